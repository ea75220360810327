"""The command line of `kelek farm`.

Only click is imported before a command runs. The commands are in commands.py, changes.py, files.py
and cert.py.
"""

from collections.abc import Callable
from typing import Any

import click

from .. import cli_errors, completion
from ..options import F, Seconds, after_option, follow_option, output_option

SERVER_ID = click.IntRange(-(1 << 31), (1 << 31) - 1)


def farm_options(command: F) -> F:
    """The options for the farm and the user."""
    options = [
        click.option("-t", "--topology", metavar="FILE", type=click.Path(),
                     help="Topology of the farm (default: ./topology.yaml, else the demo's)."),
        click.option("--url", "urls", multiple=True, metavar="URL",
                     help="A server, tls://HOST:PORT, instead of a topology; repeatable."),
        click.option("--farm", "name", metavar="NAME", shell_complete=completion.farms,
                     help="Name of the farm (default: the topology's only one; with --url: farm)."),
        click.option("--user", metavar="NAME",
                     help="User (default: the servers' user in the topology, for changes the only "
                          "administrator)."),
        click.option("--secret-file", metavar="FILE", type=click.Path(allow_dash=True),
                     help="File with the user's password alone; `-` is standard input "
                          "(default: the command asks)."),
        click.option("--ca", metavar="FILE", type=click.Path(),
                     help="CA certificates (default: the topology's, else the system's)."),
        click.option("--tls", type=click.Choice(["1.2", "1.3"]),
                     help="With --url: the lowest version (default: 1.3)."),
        click.option("--proxy", metavar="HOST:PORT", help="With --url: I2P's HTTP proxy."),
        click.option("--i2p", is_flag=True, help="With --url: a tunnel on this machine, no TLS."),
        click.option("--insecure-jraft", is_flag=True,
                     help="With --url: a JRaft server on this machine: no TLS, no user."),
        click.option("--timeout", "timeout_s", type=Seconds(0.1, 86_400), default=10.0,
                     show_default=True, metavar="SECONDS", help="Time limit."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def farm_command(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of all commands that connect to a farm."""
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
    """Shows the leader, how far the log is committed, the publisher, and the members as the
    leader sees them.
    """
    from . import commands as farm_commands

    farm_commands.status(options)


@farm.command()
@farm_command
def servers(**options: Any) -> None:
    """Shows the members, each with its own status or the reason why there is none."""
    from . import commands as farm_commands

    farm_commands.servers(options)


@farm.command()
@farm_command
def documents(**options: Any) -> None:
    """Shows the last status of each server and the publisher; -o json prints everything."""
    from . import commands as farm_commands

    farm_commands.documents(options)


@farm.command()
@after_option("Print the entries after this index (default: all).", 0)
@follow_option
@all_kinds_option
@farm_command
def entries(after: int, follow: bool, all_kinds: bool, **options: Any) -> None:
    """Prints committed entries, one a line: index, term, user and value.

    The user is the one that appended the entry, `-` if unknown.
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

    DATA is UTF-8, or hexadecimal after 0x; `-` reads standard input, a line an entry.
    """
    from . import commands as farm_commands

    farm_commands.append(values, options)


# ---- administrators ----


@farm.command()
@click.argument("server_id", metavar="ID", type=SERVER_ID)
@click.argument("endpoint", metavar="ENDPOINT")
@farm_command
def add(server_id: int, endpoint: str, **options: Any) -> None:
    """Adds the server ID, which the others reach at ENDPOINT: tcp://HOST:PORT.

    It must be running and waiting for an invitation. The command ends when it is a member.
    """
    from . import changes as farm_changes

    farm_changes.add(server_id, endpoint, options)


@farm.command()
@click.argument("server_id", metavar="ID", type=SERVER_ID, shell_complete=completion.farm_servers)
@farm_command
def remove(server_id: int, **options: Any) -> None:
    """Removes the server ID. If it leads, another server becomes leader.

    Its process keeps running; you may stop it afterwards.
    """
    from . import changes as farm_changes

    farm_changes.remove(server_id, options)


@farm.command()
@click.argument("server", metavar="ID|auto|none", shell_complete=completion.farm_publishers)
@farm_command
def publish(server: str, **options: Any) -> None:
    """Orders who publishes the MetaLS: the server ID, the rule's choice (auto), or no server
    (none).
    """
    from . import changes as farm_changes

    farm_changes.publish(server, options)


def exclusion_arguments(command: F) -> F:
    hashes = click.argument("hashes", metavar="[HASH]...", nargs=-1)
    ids = click.option("--server", "ids", metavar="ID", type=SERVER_ID, multiple=True,
                       help="All destinations of this server; repeatable.")  # fmt: skip
    return hashes(ids(command))


@farm.command()
@exclusion_arguments
@farm_command
def exclude(hashes: tuple[str, ...], ids: tuple[int, ...], **options: Any) -> None:
    """Excludes destinations from the MetaLS.

    HASH is a destination's hash in I2P's base64, HASH.b32.i2p, or the whole destination.
    """
    from . import changes as farm_changes

    farm_changes.exclude(hashes, ids, options)


@farm.command()
@exclusion_arguments
@farm_command
def include(hashes: tuple[str, ...], ids: tuple[int, ...], **options: Any) -> None:
    """Includes excluded destinations again."""
    from . import changes as farm_changes

    farm_changes.include(hashes, ids, options)


@farm.command()
@farm_command
def export(**options: Any) -> None:
    """Prints the administrators' configuration and the members as JSON for import."""
    from . import changes as farm_changes

    farm_changes.export(options)


@farm.command("import")
@click.argument("file", type=click.Path(allow_dash=True))
@farm_command
def import_(file: str, **options: Any) -> None:
    """Sets an exported configuration, of this farm or of another one; `-` is standard input.

    It does not change the members.
    """
    from . import changes as farm_changes

    farm_changes.import_configuration(file, options)


# ---- files ----


@farm.group(cls=cli_errors.Program)
def user() -> None:
    """Password files of servers: add, passwd, remove, list, check."""


def realm_option(command: F) -> F:
    option = click.option("--farm", "realm", default="farm", show_default=True, metavar="NAME",
                          help="The farm's name; a file may serve several farms.")  # fmt: skip
    return option(command)


def secret_options(command: F) -> F:
    given = click.option("--secret-file", metavar="FILE", type=click.Path(allow_dash=True),
                         help="File with the password alone; `-` is standard input (default: "
                              "the command asks).")  # fmt: skip
    made = click.option("--make", "made", metavar="DIR", type=click.Path(),
                        help="Generate a password and write it to DIR/NAME.secret.")  # fmt: skip
    return given(made(command))


@user.command("add")
@output_option
@realm_option
@secret_options
@click.argument("file", type=click.Path())
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@cli_errors.report_errors
def user_add(file: str, names: tuple[str, ...], **options: Any) -> None:
    """Adds users to a password FILE, which is created if needed, with mode 0600.

    Running servers see it within seconds.
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
    """Changes the password of a user in a password FILE.

    Running servers disconnect users of the old password within seconds.
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
    """Removes users from a password FILE. Running servers disconnect them within seconds."""
    from . import files as farm_files

    farm_files.remove(file, names, options)


@user.command("list")
@output_option
@click.argument("file", type=click.Path())
@cli_errors.report_errors
def user_list(file: str, output: str) -> None:
    """Prints the users in a password FILE, with farm and algorithms."""
    from . import files as farm_files

    farm_files.show(file, output)


@user.command("check")
@output_option
@realm_option
@click.option("--secret-file", metavar="FILE", type=click.Path(allow_dash=True),
              help="File with the password alone; `-` is standard input (default: the command "
                   "asks).")  # fmt: skip
@click.argument("file", type=click.Path())
@click.argument("name", metavar="[NAME]", required=False)
@cli_errors.report_errors
def user_check(file: str, name: str | None, **options: Any) -> None:
    """Checks whether servers accept a password FILE; with NAME, whether the password is right."""
    from . import files as farm_files

    farm_files.check(file, name, options)


@farm.command()
@output_option
@click.option("--name", default="server", show_default=True, metavar="NAME",
              help="Names the files NAME.pem and NAME.key.")  # fmt: skip
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, metavar="N",
              help="Validity of the certificate.")  # fmt: skip
@click.argument("place", metavar="DIR", type=click.Path())
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@cli_errors.report_errors
def cert(place: str, hosts: tuple[str, ...], **options: Any) -> None:
    """Makes a certificate for servers at each HOST, for trials (default: 127.0.0.1).

    DIR gets its own CA, ca.pem, with the first certificate; keep ca.key with the person who signs.
    HOST is the name or address that clients and other servers connect to.
    """
    from . import cert as farm_cert

    farm_cert.make(place, hosts or ("127.0.0.1",), options)
