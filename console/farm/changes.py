"""`kelek farm add`, `remove`, `publish` and the other commands of administrators."""

import json
import re
from collections.abc import Callable
from typing import Any

import click

from ...clients.farm.farm import Farm
from ...clients.farm.values import checked_endpoint, checked_hash
from .. import completion
from ..cli_errors import CliError
from ..loading import read_file
from ..options import argument, command, option
from ..render import show
from .target import FarmOptions, open_farm

FILE_BYTES_MAX = 1 << 20
SERVER_ID = click.IntRange(-(1 << 31), (1 << 31) - 1)
HASHES = argument(metavar="[HASH]...", nargs=-1)
SERVER_IDS = option("--server", metavar="ID", type=SERVER_ID, multiple=True,
                    help="All destinations of this server; repeatable.")  # fmt: skip


@command
def add(
    options: FarmOptions,
    server_id: int = argument(metavar="ID", type=SERVER_ID),
    endpoint: str = argument(metavar="ENDPOINT"),
) -> None:
    """Adds the server ID, which the others reach at ENDPOINT: tcp://HOST:PORT.

    It must be running and waiting for an invitation. The command ends when it is a member.
    """
    try:
        endpoint = checked_endpoint(endpoint)
    except ValueError as error:
        raise CliError(f"ENDPOINT: {error}".replace("tls://", "tcp://")) from error
    if "://" not in endpoint:
        endpoint = f"tcp://{endpoint}"
    message = f"server {server_id} is added", f"server {server_id} is already a member"
    _apply(options, lambda farm: farm.add_server(server_id, endpoint), *message)


@command
def remove(
    options: FarmOptions,
    server_id: int = argument(metavar="ID", type=SERVER_ID,
                              shell_complete=completion.farm_servers),
) -> None:  # fmt: skip
    """Removes the server ID. If it leads, another server becomes leader.

    Its process keeps running; you may stop it afterwards.
    """
    message = f"server {server_id} is removed", f"server {server_id} is not a member"
    _apply(options, lambda farm: farm.remove_server(server_id), *message)


@command
def publish(
    options: FarmOptions,
    server: str = argument(metavar="ID|auto|none", shell_complete=completion.farm_publishers),
) -> None:
    """Orders who publishes the MetaLS: the server ID, the rule's choice (auto), or no server
    (none).
    """
    if server == "nobody":  # The old value of this argument; it works for one release.
        click.echo(f"kelek farm publish {server} is deprecated: use none", err=True)
        server = "none"
    if server not in ("auto", "none") and not re.fullmatch(r"-?[0-9]{1,10}", server):
        raise CliError(f"{server}: give a server's id, auto or none")
    choices = {"auto": "auto", "none": None}
    choice: int | str | None = choices[server] if server in choices else int(server)
    messages = {"auto": "the rule chooses the publisher", "none": "no server publishes"}
    message = messages.get(server, f"server {server} publishes")
    _apply(options, lambda farm: farm.publish(choice), message)


@command
def exclude(
    options: FarmOptions,
    hashes: tuple[str, ...] = HASHES,
    ids: tuple[int, ...] = SERVER_IDS,
) -> None:
    """Excludes destinations from the MetaLS.

    HASH is a destination's hash in I2P's base64, HASH.b32.i2p, or the whole destination.
    """
    check_hashes(hashes, ids)
    count = len(hashes) + len(ids)
    _apply(options, lambda farm: farm.exclude(hashes, servers=ids), f"{count} excluded")


@command
def include(
    options: FarmOptions,
    hashes: tuple[str, ...] = HASHES,
    ids: tuple[int, ...] = SERVER_IDS,
) -> None:
    """Includes excluded destinations again."""
    check_hashes(hashes, ids)
    count = len(hashes) + len(ids)
    _apply(options, lambda farm: farm.include(hashes, servers=ids), f"{count} included again")


def check_hashes(hashes: tuple[str, ...], ids: tuple[int, ...]) -> None:
    """Raises CliError."""
    if not hashes and not ids:
        raise CliError("HASH: missing; give one, or --server ID")
    for each in hashes:
        try:
            checked_hash(each)
        except ValueError as error:
            raise CliError(f"HASH: {error}") from error


@command
def export(options: FarmOptions) -> None:
    """Prints the administrators' configuration and the members as JSON for import."""
    with open_farm(options) as farm:
        found = farm.export()
    show(options.output, found, json.dumps(found, indent=2))


@command
def import_(
    options: FarmOptions,
    file: str = argument(type=click.Path(allow_dash=True)),
) -> None:
    """Sets an exported configuration, of this farm or of another one; `-` is standard input.

    It does not change the members.
    """
    if file == "-" and options.secret_file == "-":
        raise CliError("-: standard input cannot be both the password and the configuration")
    configuration = read_configuration(file)
    _apply(options, lambda farm: farm.import_(configuration), "the configuration is set")


def read_configuration(file: str) -> dict[str, Any]:
    """Raises CliError."""
    data = read_file(file, FILE_BYTES_MAX)
    try:
        found = json.loads(data) if len(data) <= FILE_BYTES_MAX else None
    except (ValueError, RecursionError) as error:
        raise CliError(f"{file}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CliError(f"{file}: not a configuration from kelek farm export")
    return found


def _apply(
    options: FarmOptions,
    change: Callable[[Farm], bool | None],
    message: str,
    unchanged_message: str = "",
) -> None:
    """Performs a change and prints the message. unchanged_message: printed if there was no
    change.
    """
    with open_farm(options, needs_admin=True) as farm:
        try:
            changed = change(farm) is not False
        except ValueError as error:
            raise CliError(str(error)) from error
    show(options.output, {"changed": changed}, message if changed else unchanged_message)
