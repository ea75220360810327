"""Asks a cluster for what changed in a table, without Spark.

The first connection imports ZeroMQ, in the process that makes it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import ChangesLost, PipelineError, TableUnreachable, WrongCheckpoint
from .options import ChangesReadOptions

if TYPE_CHECKING:
    from ...clients.table.jobs import ClusterSnapshot
    from ...protocols.zerodb.wire.answers import WatchedChange
    from .client import ChangesTable


class ChangesView:
    """A connection to a table. Its methods raise PipelineError."""

    def __init__(self, options: ChangesReadOptions) -> None:
        self._options = options
        self._bounds = options.range
        with self._errors():
            self._table = self.connect()

    def close(self) -> None:
        self._table.close()

    def check(self) -> None:
        """Raises PipelineError unless the table is replicated."""
        with self._errors():
            info = self._table.info()
            url = self._table.server().url
        if info is not None and not info.get("replicated"):
            raise PipelineError(
                f"table {self._options.table} is local at {url}: the changes of a local table are "
                "not in the log. Name a replicated table by option table"
            )

    def next_index(self) -> int:
        """The index behind every entry that was acknowledged before this call."""
        with self._errors():
            return self._table.next_index()

    def entries(self, after: int, last: int) -> Iterator[tuple[int, list["WatchedChange"]]]:
        """Yields the changes of the range by entries behind `after` up to `last`, in some pages,
        each with the last index that it covers. Raises ChangesLost, WrongCheckpoint."""
        moved_s = time.monotonic()
        while after < last:
            reached, found = self.page(after, last, 1)
            if reached > after:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > self._options.timeout_ms / 1000:
                raise WrongCheckpoint(f"it goes on behind entry {last}, the log ends at {after}")
            after = reached
            yield after, found

    def page(self, after: int, last: int, wait_ms: int) -> tuple[int, list["WatchedChange"]]:
        """Some changes by entries behind `after` up to `last`, none after wait_ms, and the last
        index that they cover. Raises ChangesLost."""
        from ...clients.errors import TableCompacted

        with self._errors():
            try:
                following, found = self._table.entries_from(*self._bounds, after + 1, wait_ms)
            except TableCompacted as error:
                raise ChangesLost(self._options.table, after, error.after) from error
        if following <= last + 1:
            return following - 1, found
        return last, [entry for entry in found if entry.log_index <= last]

    # ---- snapshots ----

    def open_snapshot(self) -> "ClusterSnapshot":
        with self._errors():
            return self._table.open_snapshot()

    def split_points(self, parts: int) -> list[bytes]:
        """Keys that divide the range into parts of about equal size."""
        start, end = self._bounds
        with self._errors():
            return self._table.split_points(parts, start=start, end=end) if parts > 1 else []

    def size(self) -> int:
        """Bytes of the table, estimated."""
        with self._errors():
            return int((self._table.info() or {}).get("bytes", 0))

    def pairs(self, lease: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """The pairs of the range in a snapshot."""
        start, end = self._bounds
        with self._errors():
            yield from self._table.snapshot_chunks(lease, start=start, end=end)

    def release(self, lease: int) -> None:
        with self._errors():
            self._table.release(lease)

    def connect(self) -> "ChangesTable":
        """One more connection, for another thread."""
        from .client import ChangesTable

        options = self._options
        arguments = {"timeout_ms": options.timeout_ms, **options.client_keys}
        return ChangesTable(options.urls, options.number, **arguments)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from ...clients.errors import KeyUnusable, TableError, TableTimeout

        try:
            yield
        except TableTimeout as error:
            raise TableUnreachable(error) from error
        except KeyUnusable as error:
            raise PipelineError(f"{error} (options keyFile and serverKeys)") from error
        except TableError as error:
            raise PipelineError(str(error)) from error
