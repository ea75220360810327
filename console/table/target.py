"""The nodes whose tables a command uses, and a Table on them."""

from collections.abc import Iterator
from contextlib import contextmanager

from ...clients.errors import (
    TableError,
    TableNotAllowed,
    TableTimeout,
    TableTooLarge,
    TableUnavailable,
)
from ...clients.table.operations import TableTuning
from ...clients.table.table import Table
from ...protocols.zre import services
from .. import targets
from ..cli_errors import FAILED, CliError
from ..options import ServerOptions
from ..targets import Target, fitting, resolve


def resolve_tables(options: ServerOptions) -> Target:
    """The ZeroDB addresses of --url, or of a topology. Raises CliError, OperatorError."""
    need = "no node serves tables; give one `zerodb: {url: ...}`"
    found = resolve(
        options.topology, options.urls, services.TABLES, "tables_url", need, node=options.nodes
    )
    if found.topology is None or not options.nodes:
        return found
    known = found.urls
    for node in options.nodes:
        if node not in known:
            is_there = node in found.topology.nodes
            why = "has no `zerodb: {url: ...}`" if is_there else "is not a node"
            others = f"those with one are {', '.join(known)}"
            raise CliError(f"{found.source}: --node {node}: {why}; {others}")
    return found._replace(urls={name: known[name] for name in options.nodes})


def check_local(target: Target, number: int | str | None) -> None:
    """Raises CliError for a local table when several nodes are possible."""
    local = target.topology.local_tables if target.topology else ()
    if number in local and len(target.urls) > 1:
        nodes = ", ".join(target.urls)
        raise CliError(f"table {number}: each node has its own; choose one with --node: {nodes}")


@contextmanager
def open_table(
    number: int | str | None, options: ServerOptions, owner: bytes = b"", creates: bool = False
) -> Iterator[Table]:
    """A Table for one command. Its errors end the command with one line.

    number   or the table's name; None: the command concerns all tables, or none
    owner    the token of a reserved table
    creates  a name that no table has gets a number; otherwise it is an error
    """
    target = resolve_tables(options)
    check_local(target, number)
    with (
        Table(
            target.urls.values(),
            number or 0,
            sync=options.sync,
            stale=options.stale,
            tuning=TableTuning(owner=owner),
            **target.keys,
        ) as table,
        report_table_errors(target, number),
    ):
        reach(table, options.timeout_ms)
        if isinstance(number, str) and table.locate(create=creates) is None:
            raise CliError(f"no table has the name {number}; list them: kelek table list", FAILED)
        yield table


def reach(table: Table, timeout_ms: int) -> None:
    """Waits for a server; further calls may take timeout_ms. Raises TableUnavailable."""

    def ask(within_ms: int) -> None:
        table.timeout_ms = within_ms
        table.server()

    targets.reach(ask, timeout_ms)
    table.timeout_ms = timeout_ms


@contextmanager
def report_table_errors(target: Target, number: int | str | None) -> Iterator[None]:
    place = target.source if number is None else f"{target.source}: table {number}"
    try:
        yield
    except TableUnavailable as error:  # It names the urls.
        prefix = f"{target.source}: " if target.topology else ""
        raise CliError(f"{prefix}{error}{fitting(target.start, error)}", FAILED) from error
    except TableTooLarge as error:
        raise CliError(str(error)) from error
    except TableError as error:
        way_out = ""
        if isinstance(error, TableTimeout) and not error.reason:
            way_out = "; do all nodes run? supervisor status"
        elif isinstance(error, TableNotAllowed):
            way_out = "; `kelek keys allow` grants tables:NUMBERS:r or :rw, see docs/security.md"
        raise CliError(f"{place}: {error}{way_out}", FAILED) from error
