"""The nodes whose tables a command uses, and a Table on them."""

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
    """The nodes whose tables a command uses."""

    name: str  # For errors: the topology's path, or the urls.
    urls: dict[str, str]  # Node -> url; with --url each is its own name.
    by_topology: bool
    local: frozenset[int] = frozenset()  # Local tables, if known.


def find_tables(where: Where) -> TableTarget:
    """The ZeroDB addresses of --url, or of a topology. Raises CliError."""
    if where["urls"]:
        urls = check_given_urls(where, services.TABLES, "topology", "nodes")
        return TableTarget(", ".join(urls), {url: url for url in urls}, False)
    path, found = load_topology(where)
    known = {name: url for name, node in found.nodes.items() if (url := node.tables_url)}
    if not known:
        way_out = "give one `zerodb: {url: ...}` (docs/topology.md)"
        raise CliError(f"{path}: no node serves tables; {way_out}")
    for node in where["nodes"]:
        if node not in known:
            why = "has no `zerodb: {url: ...}`" if node in found.nodes else "is no node"
            raise CliError(f"{path}: --node {node}: {why}; those with one are {', '.join(known)}")
    chosen = where["nodes"] or known
    local = frozenset(found.zerodb.local_tables)
    return TableTarget(path, {name: known[name] for name in chosen}, True, local)


def check_local(target: TableTarget, number: int | None) -> None:
    """Raises CliError for a local table when several nodes are possible."""
    if number in target.local and len(target.urls) > 1:
        nodes = ", ".join(target.urls)
        raise CliError(f"table {number}: each node has its own; choose one with --node: {nodes}")


@contextmanager
def opened_table(number: int | None, where: Where, owner: bytes = b"") -> Iterator[Table]:
    """A Table for one command. Its errors end the command with one line.

    number   None: the command concerns all tables, or none
    owner    the token of a reserved table
    """
    target = find_tables(where)
    check_local(target, number)
    timeout_ms = int(where["timeout_s"] * 1000)
    with (
        Table(
            target.urls.values(),
            number or 0,
            timeout_ms=min(REACH_MS, timeout_ms),
            sync=where.get("sync", "partsync"),
            stale=where.get("stale", False),
            tuning=TableTuning(owner=owner),
        ) as table,
        in_one_line(target, number),
    ):
        table.server()  # Fails soon when no server runs.
        table.timeout_ms = timeout_ms
        yield table


@contextmanager
def in_one_line(target: TableTarget, number: int | None) -> Iterator[None]:
    """Turns the errors of a table into a CliError."""
    place = target.name if number is None else f"{target.name}: table {number}"
    try:
        yield
    except TableUnavailable as error:
        way_out = f"start it: supervisor start {target.name}"
        if not target.by_topology:
            way_out = "does it run there, and is this its ZeroDB url?"
        urls = ", ".join(target.urls.values())
        named = f"{target.name}: " if target.by_topology else ""
        raise CliError(f"{named}{error} at {urls}; {way_out}", FAILED) from error
    except TableTimeout as error:
        way_out = "" if error.reason else "; do all nodes run? supervisor status"
        raise CliError(f"{place}: {error}{way_out}", FAILED) from error
    except TableTooLarge as error:
        raise CliError(str(error)) from error
    except TableError as error:
        raise CliError(f"{place}: {error}", FAILED) from error
