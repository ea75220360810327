"""`kelek farm add`, `remove`, `publish` and the other commands of administrators."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ...clients.farm.farm import Farm
from ...clients.farm.values import checked_endpoint, checked_hash
from ..cli_errors import CliError
from ..output import show_json, stdin
from .cli import FarmOptions
from .target import open_farm

FILE_BYTES_MAX = 1 << 20


def add(server_id: int, endpoint: str, options: FarmOptions) -> None:
    """Adds a server."""
    try:
        endpoint = checked_endpoint(endpoint)
    except ValueError as error:
        raise CliError(f"ENDPOINT: {error}".replace("tls://", "tcp://")) from error
    if "://" not in endpoint:
        endpoint = f"tcp://{endpoint}"
    message = f"server {server_id} is added", f"server {server_id} is already a member"
    _apply(options, lambda farm: farm.add_server(server_id, endpoint), *message)


def remove(server_id: int, options: FarmOptions) -> None:
    """Removes a server."""
    message = f"server {server_id} is removed", f"server {server_id} is not a member"
    _apply(options, lambda farm: farm.remove_server(server_id), *message)


def publish(server: str, options: FarmOptions) -> None:
    """Orders which server publishes the MetaLS."""
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


def exclude(hashes: tuple[str, ...], ids: tuple[int, ...], options: FarmOptions) -> None:
    """Excludes destinations and servers."""
    check_hashes(hashes, ids)
    count = len(hashes) + len(ids)
    _apply(options, lambda farm: farm.exclude(hashes, servers=ids), f"{count} excluded")


def include(hashes: tuple[str, ...], ids: tuple[int, ...], options: FarmOptions) -> None:
    """Includes excluded destinations and servers again."""
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


def export(options: FarmOptions) -> None:
    """Prints the configuration."""
    with open_farm(options) as farm:
        found = farm.export()
    if options.output == "json":
        show_json(found)
    else:
        click.echo(json.dumps(found, indent=2))


def import_configuration(file: str, options: FarmOptions) -> None:
    """Imports a configuration."""
    if file == "-" and options.secret_file == "-":
        raise CliError("-: standard input cannot be both the password and the configuration")
    configuration = read_configuration(file)
    _apply(options, lambda farm: farm.import_(configuration), "the configuration is set")


def read_configuration(file: str) -> dict[str, Any]:
    """Raises CliError."""
    try:
        if file == "-":
            data = stdin().read(FILE_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(FILE_BYTES_MAX + 1)
        found = json.loads(data) if len(data) <= FILE_BYTES_MAX else None
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}") from error
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
    if options.output == "json":
        show_json({"changed": changed})
    else:
        click.echo(message if changed else unchanged_message)
