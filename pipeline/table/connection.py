"""Connects to the table that the options of a source or a sink name."""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ..errors import PipelineError, TableUnreachable
from .options import TableOptions, TableWriteOptions

if TYPE_CHECKING:
    from ...clients.table.table import Table


Target = tuple[object, ...]  # Where a connection leads, and how.
KEPT_MAX = 8  # Connections of a process that keeps them: one more is closed after its use.
_kept: deque[tuple[Target, "Table"]] | None = None


@contextmanager
def kept_connections() -> Iterator[None]:
    """Context in which this process keeps connections for the next request: one takes 2 to 4 ms."""
    global _kept
    _kept = deque()
    try:
        yield
    finally:
        drop_connections()
        _kept = None


def keeps_connections() -> bool:
    return _kept is not None


def drop_connections() -> None:
    """Closes the connections that are not in use."""
    while _kept:
        _kept.pop()[1].close()


@contextmanager
def open_table(options: TableOptions, url: str = "") -> Iterator["Table"]:
    """Opens the table that the options name; with url, at that server only."""
    kept = _kept
    if kept is None or isinstance(options, TableWriteOptions):
        with _new_table(options, url) as table:
            yield table
        return
    keys = sorted((name, str(value)) for name, value in options.client_keys.items())
    target = (url or options.urls, options.timeout_ms, *keys)
    table = _taken(kept, target) or _new_table(options, url)
    table._use(options.table)
    with ExitStack() as on_error:
        on_error.callback(table.close)  # Its other answers may still come.
        yield table
        if len(kept) < KEPT_MAX:
            on_error.pop_all()
            kept.append((target, table))


def _taken(kept: deque[tuple[Target, "Table"]], target: Target) -> "Table | None":
    """A kept connection. Renewals take and give theirs in threads of their own."""
    for _ in range(KEPT_MAX):
        try:
            found = kept.popleft()
        except IndexError:
            return None
        if found[0] == target:
            return found[1]
        kept.append(found)
    return None


def _new_table(options: TableOptions, url: str) -> "Table":
    from ...clients.table.operations import TableTuning
    from ...clients.table.table import Table

    urls, timeout_ms = url or options.urls, options.timeout_ms
    if not isinstance(options, TableWriteOptions):
        return Table(urls, options.table, timeout_ms=timeout_ms, **options.client_keys)
    tuning = TableTuning(requests_max=options.in_flight, owner=options.owner)
    return Table(
        urls,
        options.table,
        timeout_ms=timeout_ms,
        sync=options.sync,
        tuning=tuning,
        **options.client_keys,
    )


@contextmanager
def connected_table(options: TableOptions) -> Iterator["Table"]:
    """Opens the table in the driver and waits for a server, before all tasks try.

    Raises TableUnreachable.
    """
    from ...clients.errors import KeyUnusable, TableTimeout

    try:
        with open_table(options) as table:
            table.server()
            yield table
    except TableTimeout as error:
        raise TableUnreachable(error) from error
    except KeyUnusable as error:
        raise PipelineError(f"{error} (options keyFile and serverKeys)") from error
