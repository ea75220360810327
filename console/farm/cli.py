"""The command line of `kelek farm`.

Only click is imported before a command runs. The commands are in commands.py, changes.py, files.py
and cert.py.
"""

from typing import NamedTuple

import click

from .. import cli_errors, completion
from ..options import (
    OUTPUT,
    F,
    after_option,
    argument,
    follow_option,
    option,
    option_group,
    output_option,
    timeout_option,
    url_option,
)

SERVER_ID = click.IntRange(-(1 << 31), (1 << 31) - 1)


class FarmOptions(NamedTuple):
    """The farm and the user of a command, and the output format."""

    topology: str | None = option(
        "-t", "--topology", metavar="FILE", type=click.Path(),
        help="Topology of the farm (default: ./topology.yaml, else the demo's).",
    )  # fmt: skip
    urls: tuple[str, ...] = url_option("A server, tls://HOST:PORT")
    farm: str | None = option(
        "--farm", metavar="NAME", shell_complete=completion.farms,
        help="Name of the farm (default: the topology's only one; with --url: farm).",
    )  # fmt: skip
    user: str | None = option(
        "--user", metavar="NAME",
        help="User (default: the servers' user in the topology, for changes the only "
             "administrator).",
    )  # fmt: skip
    secret_file: str | None = option(
        "--secret-file", metavar="FILE", type=click.Path(allow_dash=True),
        help="File with the user's password alone; `-` is standard input (default: the command "
             "asks).",
    )  # fmt: skip
    ca: str | None = option("--ca", metavar="FILE", type=click.Path(),
                            help="CA certificates (default: the topology's, else the "
                                 "system's).")  # fmt: skip
    tls: str | None = option("--tls", type=click.Choice(["1.2", "1.3"]),
                             help="With --url: the lowest version (default: 1.3).")  # fmt: skip
    proxy: str | None = option("--proxy", metavar="HOST:PORT",
                               help="With --url: I2P's HTTP proxy.")  # fmt: skip
    i2p: bool = option("--i2p", is_flag=True,
                       help="With --url: a tunnel on this machine, no TLS.")  # fmt: skip
    insecure_jraft: bool = option(
        "--insecure-jraft", is_flag=True,
        help="With --url: a JRaft server on this machine: no TLS, no user.",
    )  # fmt: skip
    timeout_ms: int = timeout_option("Time limit.")
    output: str = OUTPUT


farm_options = option_group("options", FarmOptions)

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
@farm_options
def status(options: FarmOptions) -> None:
    """Shows the leader, how far the log is committed, the publisher, and the members as the
    leader sees them.
    """
    from . import commands as farm_commands

    farm_commands.status(options)


@farm.command()
@farm_options
def servers(options: FarmOptions) -> None:
    """Shows the members, each with its own status or the reason why there is none."""
    from . import commands as farm_commands

    farm_commands.servers(options)


@farm.command()
@farm_options
def documents(options: FarmOptions) -> None:
    """Shows the last status of each server and the publisher; -o json prints everything."""
    from . import commands as farm_commands

    farm_commands.documents(options)


@farm.command()
@after_option("Print the entries after this index (default: all).", 0)
@follow_option
@all_kinds_option
@farm_options
def entries(after: int, follow: bool, all_kinds: bool, options: FarmOptions) -> None:
    """Prints committed entries, one a line: index, term, user and value.

    The user is the one that appended the entry, `-` if unknown.
    """
    from . import commands as farm_commands

    farm_commands.entries(farm_commands.EntrySelection(after, follow, all_kinds), options)


@farm.command()
@after_option("Print the entries after this index first (default: all).", 0)
@all_kinds_option
@farm_options
def watch(after: int, all_kinds: bool, options: FarmOptions) -> None:
    """Prints entries as `kelek farm entries` does, then each new one, until it is interrupted."""
    from . import commands as farm_commands

    farm_commands.entries(farm_commands.EntrySelection(after, True, all_kinds), options)


@farm.command()
@click.argument("values", metavar="DATA...", nargs=-1, required=True)
@farm_options
def append(values: tuple[str, ...], options: FarmOptions) -> None:
    """Appends each DATA as an entry, in order, and ends when they are committed.

    DATA is UTF-8, or hexadecimal after 0x; `-` reads standard input, a line an entry.
    """
    from . import commands as farm_commands

    farm_commands.append(values, options)


# ---- administrators ----


@farm.command()
@click.argument("server_id", metavar="ID", type=SERVER_ID)
@click.argument("endpoint", metavar="ENDPOINT")
@farm_options
def add(server_id: int, endpoint: str, options: FarmOptions) -> None:
    """Adds the server ID, which the others reach at ENDPOINT: tcp://HOST:PORT.

    It must be running and waiting for an invitation. The command ends when it is a member.
    """
    from . import changes as farm_changes

    farm_changes.add(server_id, endpoint, options)


@farm.command()
@click.argument("server_id", metavar="ID", type=SERVER_ID, shell_complete=completion.farm_servers)
@farm_options
def remove(server_id: int, options: FarmOptions) -> None:
    """Removes the server ID. If it leads, another server becomes leader.

    Its process keeps running; you may stop it afterwards.
    """
    from . import changes as farm_changes

    farm_changes.remove(server_id, options)


@farm.command()
@click.argument("server", metavar="ID|auto|none", shell_complete=completion.farm_publishers)
@farm_options
def publish(server: str, options: FarmOptions) -> None:
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
@farm_options
def exclude(hashes: tuple[str, ...], ids: tuple[int, ...], options: FarmOptions) -> None:
    """Excludes destinations from the MetaLS.

    HASH is a destination's hash in I2P's base64, HASH.b32.i2p, or the whole destination.
    """
    from . import changes as farm_changes

    farm_changes.exclude(hashes, ids, options)


@farm.command()
@exclusion_arguments
@farm_options
def include(hashes: tuple[str, ...], ids: tuple[int, ...], options: FarmOptions) -> None:
    """Includes excluded destinations again."""
    from . import changes as farm_changes

    farm_changes.include(hashes, ids, options)


@farm.command()
@farm_options
def export(options: FarmOptions) -> None:
    """Prints the administrators' configuration and the members as JSON for import."""
    from . import changes as farm_changes

    farm_changes.export(options)


@farm.command("import")
@click.argument("file", type=click.Path(allow_dash=True))
@farm_options
def import_(file: str, options: FarmOptions) -> None:
    """Sets an exported configuration, of this farm or of another one; `-` is standard input.

    It does not change the members.
    """
    from . import changes as farm_changes

    farm_changes.import_configuration(file, options)


# ---- files ----


@farm.group(cls=cli_errors.Program)
def user() -> None:
    """Password files of servers: add, passwd, remove, list, check."""


class PasswordFileOptions(NamedTuple):
    """The farm of a password file, and a password."""

    farm: str = option("--farm", default="farm", show_default=True, metavar="NAME",
                       help="The farm's name; a file may serve several farms.")  # fmt: skip
    secret_file: str | None = None
    make_dir: str | None = None
    output: str = OUTPUT


password_file_options = option_group("options", PasswordFileOptions)
secret_option = click.option("--secret-file", metavar="FILE", type=click.Path(allow_dash=True),
                             help="File with the password alone; `-` is standard input (default: "
                                  "the command asks).")  # fmt: skip
make_option = click.option("--make", "make_dir", metavar="DIR", type=click.Path(),
                           help="Generate a password and write it to DIR/NAME.secret.")  # fmt: skip


@user.command("add")
@password_file_options
@secret_option
@make_option
@click.argument("file", type=click.Path())
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def user_add(file: str, names: tuple[str, ...], options: PasswordFileOptions) -> None:
    """Adds users to a password FILE, which is created if needed, with mode 0600.

    Running servers see it within seconds.
    """
    from . import files as farm_files

    farm_files.add(file, names, options)


@user.command("passwd")
@password_file_options
@secret_option
@make_option
@click.argument("file", type=click.Path())
@click.argument("name", metavar="NAME")
def user_passwd(file: str, name: str, options: PasswordFileOptions) -> None:
    """Changes the password of a user in a password FILE.

    Running servers disconnect users of the old password within seconds.
    """
    from . import files as farm_files

    farm_files.passwd(file, name, options)


@user.command("remove")
@password_file_options
@click.argument("file", type=click.Path())
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def user_remove(file: str, names: tuple[str, ...], options: PasswordFileOptions) -> None:
    """Removes users from a password FILE. Running servers disconnect them within seconds."""
    from . import files as farm_files

    farm_files.remove(file, names, options)


@user.command("list")
@output_option
@click.argument("file", type=click.Path())
def user_list(file: str, output: str) -> None:
    """Prints the users in a password FILE, with farm and algorithms."""
    from . import files as farm_files

    farm_files.show(file, output)


@user.command("check")
@password_file_options
@secret_option
@click.argument("file", type=click.Path())
@click.argument("name", metavar="[NAME]", required=False)
def user_check(file: str, name: str | None, options: PasswordFileOptions) -> None:
    """Checks whether servers accept a password FILE; with NAME, whether the password is right."""
    from . import files as farm_files

    farm_files.check(file, name, options)


class CertRequest(NamedTuple):
    output: str = OUTPUT
    name: str = option("--name", default="server", show_default=True, metavar="NAME",
                       help="Names the files NAME.pem and NAME.key.")  # fmt: skip
    days: int = option("--days", type=click.IntRange(1, 3650), default=365, show_default=True,
                       metavar="N", help="Validity of the certificate.")  # fmt: skip
    folder: str = argument(metavar="DIR", type=click.Path())
    hosts: tuple[str, ...] = argument(metavar="[HOST]...", nargs=-1)


@farm.command()
@option_group("request", CertRequest)
def cert(request: CertRequest) -> None:
    """Makes a certificate for servers at each HOST, for trials (default: 127.0.0.1).

    DIR gets its own CA, ca.pem, with the first certificate; keep ca.key where you sign.
    HOST is the name or address that clients and other servers connect to.
    """
    from . import cert as farm_cert

    farm_cert.make(request)
