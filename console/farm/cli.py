"""The command `kelek farm`: farms, from a shell.

Only click is imported before a command runs; what commands do is in farm/commands.py,
farm/changes.py, farm/files.py and farm/cert.py.
"""

from collections.abc import Callable
from typing import Any

import click

from .. import cli_errors, completion
from ..options import F, Seconds, after_option, follow_option, output_option

SERVER_ID = click.IntRange(-(1 << 31), (1 << 31) - 1)


def farm_options(command: F) -> F:
    """Which farm is meant, and as whom."""
    options = [
        click.option("-t", "--topology", metavar="FILE", type=click.Path(),
                     help="The farm of this file (default: ./topology.yaml, else the demo's)."),
        click.option("--url", "urls", multiple=True, metavar="URL",
                     help="A server, tls://HOST:PORT, instead of a topology; may be given again."),
        click.option("--farm", "name", metavar="NAME", shell_complete=completion.farms,
                     help="Its name (default: the topology's only one; with --url: farm)."),
        click.option("--user", metavar="NAME",
                     help="As whom (default: the topology's servers' own, for changes its only "
                          "administrator)."),
        click.option("--secret-file", metavar="FILE", type=click.Path(allow_dash=True),
                     help="The user's password is all that is in it; `-` is standard input "
                          "(default: it is asked for)."),
        click.option("--ca", metavar="FILE", type=click.Path(),
                     help="Who signs certificates (default: the topology's, else the system's)."),
        click.option("--tls", type=click.Choice(["1.2", "1.3"]),
                     help="With --url: the lowest version (default: 1.3)."),
        click.option("--proxy", metavar="HOST:PORT", help="With --url: I2P's HTTP proxy."),
        click.option("--i2p", is_flag=True, help="With --url: a tunnel on this machine, no TLS."),
        click.option("--insecure-jraft", is_flag=True,
                     help="With --url: a server of JRaft on this machine: no TLS, no user."),
        click.option("--timeout", "timeout_s", type=Seconds(0.1, 86_400), default=10.0,
                     show_default=True, metavar="SECONDS", help="Give up after so long."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def farm_command(command: Callable[..., None]) -> Callable[..., None]:
    """The options of all commands that speak with a farm."""
    return farm_options(output_option(cli_errors.report_errors(command)))


all_kinds_option = click.option(
    "--all-kinds",
    is_flag=True,
    help="Also the farm's own entries: configurations, and which user appends.",
)


@click.group(cls=cli_errors.Program)
def farm() -> None:
    """Farms: servers that share a log by Garlic Farm's protocol; docs/farm.md.

    status, servers, documents, entries, watch, append; add, remove, publish, exclude, include,
    export, import for administrators; user and cert for files.
    """


@farm.command()
@farm_command
def status(**options: Any) -> None:
    """Who leads, how far the log is committed, who publishes, and the members as the leader sees
    them."""
    from . import commands as farm_commands

    farm_commands.status(options)


@farm.command()
@farm_command
def servers(**options: Any) -> None:
    """The members, each with what it says of itself, or why it says nothing."""
    from . import commands as farm_commands

    farm_commands.servers(options)


@farm.command()
@farm_command
def documents(**options: Any) -> None:
    """The last status that each server has posted, and who publishes; with -o json all of it."""
    from . import commands as farm_commands

    farm_commands.documents(options)


@farm.command()
@after_option("Print the entries after this index (default: all).", 0)
@follow_option
@all_kinds_option
@farm_command
def entries(after: int, follow: bool, all_kinds: bool, **options: Any) -> None:
    """Prints committed entries, one a line: index, term, user and value.

    The user is the one that appended the entry, `-` where that is not known.
    """
    from . import commands as farm_commands

    farm_commands.entries(farm_commands.EntrySelection(after, follow, all_kinds), options)


@farm.command()
@after_option("Print the entries after this index first (default: all).", 0)
@all_kinds_option
@farm_command
def watch(after: int, all_kinds: bool, **options: Any) -> None:
    """Prints entries as `kelek farm entries` does, then each new one, until it is interrupted."""
    from . import commands as farm_commands

    farm_commands.entries(farm_commands.EntrySelection(after, True, all_kinds), options)


@farm.command()
@click.argument("values", metavar="DATA...", nargs=-1, required=True)
@farm_command
def append(values: tuple[str, ...], **options: Any) -> None:
    """Appends each DATA as an entry, in order, and ends when they are committed.

    DATA is UTF-8, or with 0x in front hexadecimal; `-` is all of standard input, a line an entry.
    """
    from . import commands as farm_commands

    farm_commands.append(values, options)


# ---- administrators ----


@farm.command()
@click.argument("server_id", metavar="ID", type=SERVER_ID)
@click.argument("endpoint", metavar="ENDPOINT")
@farm_command
def add(server_id: int, endpoint: str, **options: Any) -> None:
    """Takes the server ID in, which the others reach at ENDPOINT: tcp://HOST:PORT.

    It has to be running, and to wait for that. The command ends when it is a member.
    """
    from . import changes as farm_changes

    farm_changes.add(server_id, endpoint, options)


@farm.command()
@click.argument("server_id", metavar="ID", type=SERVER_ID, shell_complete=completion.farm_servers)
@farm_command
def remove(server_id: int, **options: Any) -> None:
    """Leaves the server ID out, the leader too: then another one leads.

    Its process stays, and may be stopped afterwards.
    """
    from . import changes as farm_changes

    farm_changes.remove(server_id, options)


@farm.command()
@click.argument("server", metavar="ID|auto|nobody", shell_complete=completion.farm_publishers)
@farm_command
def publish(server: str, **options: Any) -> None:
    """Says who publishes the MetaLS: the server ID, the one that the rule finds, or nobody."""
    from . import changes as farm_changes

    farm_changes.publish(server, options)


def exclusion_arguments(command: F) -> F:
    hashes = click.argument("hashes", metavar="[HASH]...", nargs=-1)
    ids = click.option("--server", "ids", metavar="ID", type=SERVER_ID, multiple=True,
                       help="All of this server's; may be given again.")  # fmt: skip
    return hashes(ids(command))


@farm.command()
@exclusion_arguments
@farm_command
def exclude(hashes: tuple[str, ...], ids: tuple[int, ...], **options: Any) -> None:
    """Leaves destinations out of the MetaLS.

    HASH is a destination's hash in I2P's base64, HASH.b32.i2p, or the whole destination.
    """
    from . import changes as farm_changes

    farm_changes.exclude(hashes, ids, options)


@farm.command()
@exclusion_arguments
@farm_command
def include(hashes: tuple[str, ...], ids: tuple[int, ...], **options: Any) -> None:
    """Takes in again what was left out."""
    from . import changes as farm_changes

    farm_changes.include(hashes, ids, options)


@farm.command()
@farm_command
def export(**options: Any) -> None:
    """Prints what administrators have set, and who the members are, as JSON that import takes."""
    from . import changes as farm_changes

    farm_changes.export(options)


@farm.command("import")
@click.argument("file", type=click.Path(allow_dash=True))
@farm_command
def import_(file: str, **options: Any) -> None:
    """Sets what an export has kept, of this farm or of another one; `-` is standard input.

    The members in it are left alone.
    """
    from . import changes as farm_changes

    farm_changes.take_over(file, options)


# ---- files ----


@farm.group(cls=cli_errors.Program)
def user() -> None:
    """Password files of servers: add, passwd, remove, list, check."""


def realm_option(command: F) -> F:
    option = click.option("--farm", "realm", default="farm", show_default=True, metavar="NAME",
                          help="The farm's name: a file may have users of several.")  # fmt: skip
    return option(command)


def secret_options(command: F) -> F:
    given = click.option("--secret-file", metavar="FILE", type=click.Path(allow_dash=True),
                         help="The password is all that is in it; `-` is standard input (default: "
                              "it is asked for).")  # fmt: skip
    made = click.option("--make", "made", metavar="DIR", type=click.Path(),
                        help="Make up a password, and write it to DIR/NAME.secret.")  # fmt: skip
    return given(made(command))


@user.command("add")
@output_option
@realm_option
@secret_options
@click.argument("file", type=click.Path())
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@cli_errors.report_errors
def user_add(file: str, names: tuple[str, ...], **options: Any) -> None:
    """Adds users to a password FILE, which is made if need be, for its owner alone.

    Servers that run see it within seconds.
    """
    from . import files as farm_files

    farm_files.add(file, names, options)


@user.command("passwd")
@output_option
@realm_option
@secret_options
@click.argument("file", type=click.Path())
@click.argument("name", metavar="NAME")
@cli_errors.report_errors
def user_passwd(file: str, name: str, **options: Any) -> None:
    """Gives a user of a password FILE another password.

    Servers that run send away, within seconds, who came with the old one.
    """
    from . import files as farm_files

    farm_files.passwd(file, name, options)


@user.command("remove")
@output_option
@realm_option
@click.argument("file", type=click.Path())
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@cli_errors.report_errors
def user_remove(file: str, names: tuple[str, ...], **options: Any) -> None:
    """Removes users from a password FILE. Servers that run send them away within seconds."""
    from . import files as farm_files

    farm_files.remove(file, names, options)


@user.command("list")
@output_option
@click.argument("file", type=click.Path())
@cli_errors.report_errors
def user_list(file: str, output: str) -> None:
    """Prints the users in a password FILE, of which farm, and for which algorithms."""
    from . import files as farm_files

    farm_files.show(file, output)


@user.command("check")
@output_option
@realm_option
@click.option("--secret-file", metavar="FILE", type=click.Path(allow_dash=True),
              help="The password is all that is in it; `-` is standard input (default: it is asked "
                   "for).")  # fmt: skip
@click.argument("file", type=click.Path())
@click.argument("name", metavar="[NAME]", required=False)
@cli_errors.report_errors
def user_check(file: str, name: str | None, **options: Any) -> None:
    """Says whether servers will take a password FILE; with NAME, whether it has that password."""
    from . import files as farm_files

    farm_files.check(file, name, options)


@farm.command()
@output_option
@click.option("--name", default="server", show_default=True, metavar="NAME",
              help="Of the files: NAME.pem and NAME.key.")  # fmt: skip
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, metavar="N",
              help="So long the certificate is valid.")  # fmt: skip
@click.argument("place", metavar="DIR", type=click.Path())
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@cli_errors.report_errors
def cert(place: str, hosts: tuple[str, ...], **options: Any) -> None:
    """Makes a certificate for servers at each HOST, to try things out (default: 127.0.0.1).

    DIR has a CA of its own, ca.pem, made the first time; ca.key stays with whoever signs. HOST is a
    name or an address, as clients and other servers connect to it.
    """
    from . import cert as farm_cert

    farm_cert.make(place, hosts or ("127.0.0.1",), options)
