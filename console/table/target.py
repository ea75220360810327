"""The nodes whose tables a command uses, and a Table on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ...clients.errors import TableError, TableTimeout, TableTooLarge, TableUnavailable
from ...clients.table.operations import TableTuning
from ...clients.table.table import Table
from ...protocols.failover.limits import REACH_MS
from ...protocols.zre import services
from ..cli_errors import FAILED, CliError
from ..options import ServerOptions
from ..targets import load_topology, resolve_urls


class TableTarget(NamedTuple):
    """The nodes whose tables a command uses."""

    source: str  # The topology's path or the urls, for error messages.
    urls: dict[str, str]  # Node -> url; with --url each is its own name.
    by_topology: bool
    local: frozenset[int] = frozenset()  # Local tables, if known.


def resolve_tables(options: ServerOptions) -> TableTarget:
    """The ZeroDB addresses of --url, or of a topology. Raises CliError, OperatorError."""
    if options.urls:
        others = {"topology": options.topology, "node": options.nodes}
        urls = resolve_urls(options.urls, services.TABLES, **others)
        return TableTarget(", ".join(urls), {url: url for url in urls}, False)
    path, topology = load_topology(options.topology)
    known = {name: url for name, node in topology.nodes.items() if (url := node.tables_url)}
    if not known:
        way_out = "give one `zerodb: {url: ...}` (docs/topology.md)"
        raise CliError(f"{path}: no node serves tables; {way_out}")
    for node in options.nodes:
        if node not in known:
            why = "has no `zerodb: {url: ...}`" if node in topology.nodes else "is not a node"
            raise CliError(f"{path}: --node {node}: {why}; those with one are {', '.join(known)}")
    chosen = options.nodes or known
    local = frozenset(topology.zerodb.local_tables)
    return TableTarget(path, {name: known[name] for name in chosen}, True, local)


def check_local(target: TableTarget, number: int | None) -> None:
    """Raises CliError for a local table when several nodes are possible."""
    if number in target.local and len(target.urls) > 1:
        nodes = ", ".join(target.urls)
        raise CliError(f"table {number}: each node has its own; choose one with --node: {nodes}")


@contextmanager
def open_table(number: int | None, options: ServerOptions, owner: bytes = b"") -> Iterator[Table]:
    """A Table for one command. Its errors end the command with one line.

    number   None: the command concerns all tables, or none
    owner    the token of a reserved table
    """
    target = resolve_tables(options)
    check_local(target, number)
    with (
        Table(
            target.urls.values(),
            number or 0,
            timeout_ms=min(REACH_MS, options.timeout_ms),
            sync=options.sync,
            stale=options.stale,
            tuning=TableTuning(owner=owner),
        ) as table,
        report_table_errors(target, number),
    ):
        table.server()  # Fails soon when no server runs.
        table.timeout_ms = options.timeout_ms
        yield table


@contextmanager
def report_table_errors(target: TableTarget, number: int | None) -> Iterator[None]:
    """Turns the errors of a table into a CliError."""
    place = target.source if number is None else f"{target.source}: table {number}"
    try:
        yield
    except TableUnavailable as error:
        prefix = f"{target.source}: " if target.by_topology else ""
        way_out = f" start it: supervisor start {target.source}" if target.by_topology else ""
        raise CliError(f"{prefix}{error}{way_out}", FAILED) from error
    except TableTimeout as error:
        way_out = "" if error.reason else "; do all nodes run? supervisor status"
        raise CliError(f"{place}: {error}{way_out}", FAILED) from error
    except TableTooLarge as error:
        raise CliError(str(error)) from error
    except TableError as error:
        raise CliError(f"{place}: {error}", FAILED) from error
