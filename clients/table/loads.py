"""Bulk loads of kelek.Table and kelek.AsyncTable: sorted rows that fill a table, or replace its
rows, in one step."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ...net.clock import monotonic_ms
from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import requests, values
from ...protocols.zerodb.wire.chunks import Compress, SortedRows, encode_chunk
from ...protocols.zerodb.wire.values import PARTSYNC
from ..errors import TableError, TableRefused, TableTimeout, TableTooLarge, TableUnsupported
from ..io.operations import Operation, Sleep, operation
from .arguments import Data, checked_key, checked_number
from .operations import OPENING_MS, OPENING_POLL_MS, TableOperations
from .pages import arrow

if TYPE_CHECKING:
    import pyarrow

RUN_BYTES = 64 << 20  # Of rows that are sorted at once.
CHUNK_ROWS_BYTES = 768 << 10  # Of the rows of a chunk, before it is compressed.
# That a row counts besides its key and value. Its offsets have 8; with 4 more BUILD_CHUNKS chunks
# of the smallest rows are within the limit of a step, too.
ROW_BYTES = 12
BUILD_CHUNKS = 16  # In one step, which takes a node about 0.1 s.
BUILDS_SENT = 2  # A node has the next step when it has done one.
Progress = Callable[[int], object]
Packed = tuple[bytes, int]  # A chunk, and the number of its rows.


class LoadRun(NamedTuple):
    """The rows of a bulk load that one call of load_run() has sent."""

    run: int
    chunks: int
    rows: int


class TableLoads(TableOperations):
    """Bulk loads."""

    @operation
    def load(
        self,
        pairs: Iterable[tuple[Data, Any]],
        *,
        replace: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[int]:
        """Fills the table, which must be empty, or replaces all its rows, in
        one step: readers see none of the rows or all. Returns how many pairs
        there were; of equal keys the last one counts.

        replace    the table may have rows, which go
        progress   is called with the number of pairs that were sent so far

        It takes about as long as put_many(), less if the rows can be compressed
        (with pyarrow) and come in the order of their keys. A key and its value
        have 1 MiB at most together; the table keeps no versions; watch() ends
        at the load. Raises TableRefused when the table has rows,
        TableUnsupported when not all nodes know bulk loads. After an error
        nothing was changed, but for TableTimeout: commit_load() may still
        happen then.
        """
        checked = ((checked_key(key), self._stored(value)) for key, value in pairs)
        return self._load(packed_pairs(checked), replace, progress)

    @operation
    def load_arrow(
        self,
        batches: Iterable["pyarrow.RecordBatch"],
        *,
        replace: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[int]:
        """As load(), from the binary or text columns key and value of record
        batches.

        Raises TableError when pyarrow is not installed.
        """
        return self._load(packed_batches(batches), replace, progress)

    @operation
    def begin_load(self) -> Operation[bytes]:
        """Begins a bulk load of several processes; returns its id, which
        load_run() of each of them and commit_load() take.

        A load that does not end within a day of its last rows is removed.
        """
        load = os.urandom(values.LOAD_ID_BYTES)
        yield from self._ensure()
        until_ms = monotonic_ms() + OPENING_MS
        while True:
            yield from self._check_feature(values.FEATURE_LOADS, "take bulk loads")
            try:
                yield from self._step(load, requests.LOAD_DROP)  # Asks whether all nodes know it.
                return load
            except TableRefused as error:
                if values.LOADS_UNKNOWN not in error.text:
                    raise
                if monotonic_ms() >= until_ms:
                    raise TableUnsupported(error.text) from None
            yield Sleep(OPENING_POLL_MS)

    @operation
    def load_run(
        self,
        load: bytes,
        batches: Iterable["pyarrow.RecordBatch"],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[LoadRun]:
        """Sends rows of a bulk load, as load_arrow() does. They count if
        commit_load() gets what this returns: those of a call that failed, and
        was repeated, do not."""
        yield from self._ensure()
        return (yield from self._send(load, packed_batches(batches), progress))

    @operation
    def commit_load(
        self,
        load: bytes,
        runs: Iterable[LoadRun],
        *,
        replace: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[None]:
        """Ends a bulk load: the rows of these runs become those of the table,
        in one step. Of a key in several runs the last one counts.

        It may be repeated after an error or a restart, and continues then.

        progress   is called with the number of rows that the nodes have sorted
                   in so far
        """
        yield from self._ensure()
        done = [LoadRun(*run) for run in runs]
        with closing(Steps(self)) as steps:
            rows = 0
            for run, chunks, count in done:
                for first in range(0, chunks, BUILD_CHUNKS):
                    some = min(BUILD_CHUNKS, chunks - first)
                    if steps.waiting == BUILDS_SENT:
                        yield from steps.settle()
                    step = self._load_request(load, requests.LOAD_BUILD)
                    steps.send(step._replace(run=run, chunk=first, chunks=some))
                    yield Sleep(0)
                rows += count
                if progress is not None:
                    progress(rows)
            yield from steps.finish()
        total = sum(run.chunks for run in done)
        yield from self._step(load, requests.LOAD_COMMIT, chunks=total, replaces=replace)

    @operation
    def drop_load(self, load: bytes) -> Operation[None]:
        """Removes what a bulk load has sent, unless it was committed."""
        yield from self._ensure()
        yield from self._step(load, requests.LOAD_DROP)

    def _load(
        self, chunks: Iterable[Packed], replace: bool, progress: Progress | None
    ) -> Operation[int]:
        load = yield from TableLoads.begin_load(self)
        try:
            run = yield from self._send(load, chunks, progress)
            yield from TableLoads.commit_load(self, load, [run], replace=replace)
        except TableTimeout:
            raise  # The nodes remove it.
        except (TableError, TypeError, ValueError):
            with suppress(TableError):
                yield from self._step(load, requests.LOAD_DROP)
            raise
        return run.rows

    def _send(
        self, load: bytes, chunks: Iterable[Packed], progress: Progress | None
    ) -> Operation[LoadRun]:
        self._flush()
        run, number, rows = int.from_bytes(os.urandom(8)), 0, 0
        with closing(Steps(self)) as steps:
            for data, count in chunks:
                if len(data) > values.CHUNK_BYTES_MAX:
                    raise TableTooLarge(
                        "a row of a bulk load has 1 MiB at most, with its key: put it instead"
                    )
                while steps.waiting and not self._client.has_room:
                    yield from steps.settle()
                step = self._load_request(load, requests.LOAD_CHUNK)
                steps.send(step._replace(run=run, chunk=number, data=data))
                yield Sleep(0)  # Sends it now.
                number, rows = number + 1, rows + count
                if progress is not None:
                    progress(rows)
            yield from steps.finish()
        return LoadRun(run, number, rows)

    def _load_request(self, load: bytes, action: int) -> requests.BulkLoad:
        if len(load) != values.LOAD_ID_BYTES:
            raise ValueError(f"the id of a load has {values.LOAD_ID_BYTES} bytes: begin_load()")
        return requests.BulkLoad(self._number, load, action, flags=PARTSYNC)

    def _step(self, load: bytes, action: int, **fields: Any) -> Operation[None]:
        self._flush()
        if "chunks" in fields:
            checked_number("chunks", fields["chunks"])
        yield from self._ask(self._load_request(load, action)._replace(**fields))


class Steps:
    """A pipeline of requests, answered in order."""

    def __init__(self, table: TableLoads) -> None:
        self._table = table
        self._sent: deque[Exchange] = deque()

    @property
    def waiting(self) -> int:
        return len(self._sent)

    def send(self, request: requests.BulkLoad) -> None:
        while self._sent and self._sent[0].done:
            self._table._answer(self._sent.popleft())
        self._sent.append(self._table._begin(request))

    def settle(self) -> Operation[None]:
        """Waits for the oldest one. Raises TableRefused and its like."""
        yield from self._table._finish(self._sent[0])
        self._sent.popleft()

    def finish(self) -> Operation[None]:
        while self._sent:
            yield from self.settle()

    def close(self) -> None:
        """Drops what has no answer, after an error."""
        for exchange in self._sent:
            self._table._client.drop(exchange)


def packed_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[Packed]:
    """Chunks of pairs, each run of them sorted."""
    compress = snappy()
    held: dict[bytes, bytes] = {}
    size = count = 0
    for key, value in pairs:
        held[key] = value
        size += len(key) + len(value) + ROW_BYTES
        count += 1
        if size >= RUN_BYTES:
            yield from _chunks(held, count, compress)
            held.clear()
            size = count = 0
    if held:
        yield from _chunks(held, count, compress)


def _chunks(pairs: dict[bytes, bytes], count: int, compress: Compress | None) -> Iterator[Packed]:
    """count: of the pairs that came, with those of equal keys"""
    keys: list[bytes] = []
    size, doubled = 0, count - len(pairs)
    for key in sorted(pairs):
        own = len(key) + len(pairs[key]) + ROW_BYTES
        if keys and size + own > CHUNK_ROWS_BYTES:
            yield (
                encode_chunk(SortedRows(keys, [*map(pairs.__getitem__, keys)]), compress),
                len(keys),
            )
            keys, size = [], 0
        keys.append(key)
        size += own
    last = encode_chunk(SortedRows(keys, [*map(pairs.__getitem__, keys)]), compress)
    yield last, len(keys) + doubled


def packed_batches(batches: Iterable["pyarrow.RecordBatch"]) -> Iterator[Packed]:
    """Chunks of record batches, each run of them sorted. Raises TableError."""
    compress = snappy()
    for keys, data, count in arrow().sorted_packs(batches, RUN_BYTES, CHUNK_ROWS_BYTES, ROW_BYTES):
        yield encode_chunk(SortedRows(keys, data), compress), count


def snappy() -> Compress | None:
    """Compresses bytes; None: pyarrow is not installed."""
    try:
        import pyarrow
    except ImportError:
        return None
    codec = pyarrow.Codec("snappy")
    return lambda data: bytes(codec.compress(data, asbytes=True))
