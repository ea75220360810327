"""Connects to the table that the options of a source or a sink name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import PipelineError, TableUnreachable
from .options import TableOptions, TableWriteOptions

if TYPE_CHECKING:
    from ...clients.table.table import Table


def open_table(options: TableOptions, url: str = "") -> "Table":
    """Opens the table that the options name; with url, at that server only."""
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
