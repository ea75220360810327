"""What administrators do to a farm: `kelek farm add`, `remove`, `publish` and their like."""

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
from ..targets import Where
from .target import opened_farm

FILE_BYTES_MAX = 1 << 20


def add(server_id: int, endpoint: str, options: Where) -> None:
    """Takes a server in."""
    try:
        endpoint = checked_endpoint(endpoint)
    except ValueError as error:
        raise CliError(f"ENDPOINT: {error}".replace("tls://", "tcp://")) from error
    if "://" not in endpoint:
        endpoint = f"tcp://{endpoint}"
    said = f"server {server_id} is added", f"server {server_id} is a member already"
    _do(options, lambda farm: farm.add_server(server_id, endpoint), *said)


def remove(server_id: int, options: Where) -> None:
    """Leaves a server out."""
    said = f"server {server_id} is removed", f"server {server_id} is no member"
    _do(options, lambda farm: farm.remove_server(server_id), *said)


def publish(server: str, options: Where) -> None:
    """Says who publishes."""
    if server not in ("auto", "nobody") and not re.fullmatch(r"-?[0-9]{1,10}", server):
        raise CliError(f"{server}: it is a server's id, auto or nobody")
    words = {"auto": "auto", "nobody": None}
    choice: int | str | None = words[server] if server in words else int(server)
    told = {"auto": "the rule says who publishes", "nobody": "nobody publishes"}
    said = told.get(server, f"server {server} publishes")
    _do(options, lambda farm: farm.publish(choice), said)


def exclude(hashes: tuple[str, ...], ids: tuple[int, ...], options: Where) -> None:
    """Leaves destinations out."""
    check_hashes(hashes, ids)
    count = len(hashes) + len(ids)
    _do(options, lambda farm: farm.exclude(hashes, servers=ids), f"{count} left out")


def include(hashes: tuple[str, ...], ids: tuple[int, ...], options: Where) -> None:
    """Takes destinations in again."""
    check_hashes(hashes, ids)
    count = len(hashes) + len(ids)
    _do(options, lambda farm: farm.include(hashes, servers=ids), f"{count} taken in again")


def check_hashes(hashes: tuple[str, ...], ids: tuple[int, ...]) -> None:
    """Raises Ending."""
    if not hashes and not ids:
        raise CliError("HASH: missing; give one, or --server ID")
    for each in hashes:
        try:
            checked_hash(each)
        except ValueError as error:
            raise CliError(f"HASH: {error}") from error


def export(options: Where) -> None:
    """Prints a configuration."""
    with opened_farm(options) as farm:
        found = farm.export()
    if options["output"] == "json":
        show_json(found)
    else:
        click.echo(json.dumps(found, indent=2))


def take_over(file: str, options: Where) -> None:
    """Sets what an export has kept."""
    if file == "-" and options["secret_file"] == "-":
        raise CliError("-: standard input can't be both the password and the configuration")
    configuration = read_configuration(file)
    _do(options, lambda farm: farm.import_(configuration), "the configuration is set")


def read_configuration(file: str) -> dict[str, Any]:
    """Raises Ending."""
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
        raise CliError(f"{file}: not what kelek farm export prints")
    return found


def _do(options: Where, act: Callable[[Farm], bool | None], said: str, as_was: str = "") -> None:
    """as_was: what is said when there was nothing to be done."""
    with opened_farm(options, changes=True) as farm:
        try:
            changed = act(farm) is not False
        except ValueError as error:
            raise CliError(str(error)) from error
    if options["output"] == "json":
        show_json({"changed": changed})
    else:
        click.echo(said if changed else as_was)
