"""Whose tables a command of `kelek` is about, and a table opened there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ...clients.errors import TableError, TableTimeout, TableTooLarge, TableUnavailable
from ...clients.table.operations import TableTuning
from ...clients.table.table import Table
from ...protocols.zre import services
from ..cli_errors import FAILED, CliError
from ..targets import Where, check_given_urls, load_topology

REACH_MS = 2000


class TableTarget(NamedTuple):
    """Where tables are asked for."""

    name: str  # For errors: the topology's path, or the urls.
    urls: dict[str, str]  # Node -> url; with --url each is its own name.
    by_topology: bool
    local: frozenset[int] = frozenset()  # Tables that each node has of its own, if that is known.


def find_tables(where: Where) -> TableTarget:
    """The doors to a cluster's tables: from --url, or from a topology. Raises CliError."""
    if where["urls"]:
        urls = check_given_urls(where, services.TABLES, "topology", "nodes")
        return TableTarget(", ".join(urls), {url: url for url in urls}, False)
    path, found = load_topology(where)
    known = {name: url for name, node in found.nodes.items() if (url := node.tables_url)}
    if not known:
        way_out = "give one `zerodb: {url: ...}` (docs/topology.md)"
        raise CliError(f"{path}: no node has a door to tables; {way_out}")
    for node in where["nodes"]:
        if node not in known:
            why = "has no `zerodb: {url: ...}`" if node in found.nodes else "is no node"
            raise CliError(f"{path}: --node {node}: {why}; those with one are {', '.join(known)}")
    chosen = where["nodes"] or known
    local = frozenset(found.zerodb.local_tables)
    return TableTarget(path, {name: known[name] for name in chosen}, True, local)


def check_whose(doors: TableTarget, number: int | None) -> None:
    """Raises CliError for a table of which each node has its own, when any of them may be asked."""
    if number in doors.local and len(doors.urls) > 1:
        nodes = ", ".join(doors.urls)
        raise CliError(f"table {number}: each node has its own; say whose with --node: {nodes}")


@contextmanager
def opened_table(number: int | None, where: Where, owner: bytes = b"") -> Iterator[Table]:
    """A Table for one command; what goes wrong with it ends the command with one line.

    number   None: the command is about no table, or about all
    owner    the token of a reserved table
    """
    doors = find_tables(where)
    check_whose(doors, number)
    timeout_ms = int(where["timeout_s"] * 1000)
    with (
        Table(
            doors.urls.values(),
            number or 0,
            timeout_ms=min(REACH_MS, timeout_ms),
            sync=where.get("sync", "partsync"),
            stale=where.get("stale", False),
            tuning=TableTuning(owner=owner),
        ) as table,
        in_one_line(doors, number),
    ):
        table.server()  # Nobody waits long for servers that are not there at all.
        table.timeout_ms = timeout_ms
        yield table


@contextmanager
def in_one_line(doors: TableTarget, number: int | None) -> Iterator[None]:
    """Ends the command when a table can't do what was asked."""
    place = doors.name if number is None else f"{doors.name}: table {number}"
    try:
        yield
    except TableUnavailable as error:
        way_out = f"start it: supervisor start {doors.name}"
        if not doors.by_topology:
            way_out = "does it run there, and is this its ZeroDB url?"
        urls = ", ".join(doors.urls.values())
        named = f"{doors.name}: " if doors.by_topology else ""
        raise CliError(f"{named}{error} at {urls}; {way_out}", FAILED) from error
    except TableTimeout as error:
        way_out = "" if error.reason else "; do all nodes run? supervisor status"
        raise CliError(f"{place}: {error}{way_out}", FAILED) from error
    except TableTooLarge as error:
        raise CliError(str(error)) from error
    except TableError as error:
        raise CliError(f"{place}: {error}", FAILED) from error
