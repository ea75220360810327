"""Asks a cluster for positions, ends of batches and entries, without Spark.

The first connection imports ZeroMQ, in the process that makes it.
"""

import random
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.compute as pc

from ...clients.errors import LogCompacted, LogError, LogTimeout
from ..errors import LogEnds, LogUnreachable, PipelineError
from .offset import LogOffset, LogRange
from .options import FOLLOWERS, ClusterOptions, LogReadOptions
from .positions import Ends, LogPositions

if TYPE_CHECKING:
    from ...clients.log.log import Log

SNAPSHOT_TYPE = -1  # Type of a row that holds a snapshot's state in place of entries.
STATE_BYTES_MAX = (1 << 31) - 1  # The largest value of a Spark column.
WAITS_MAX = 100  # Leaders in a row that report an entry and do not return it.
LOOK_AHEAD = (1, 16, 256, 4096)  # Entries examined to find one with a time.


@contextmanager
def connected_log(options: ClusterOptions) -> Iterator["Log"]:
    """A client of the cluster that has found a node. Raises LogUnreachable."""
    from ...clients.log.log import Log

    urls, timeout_ms = options.urls, options.timeout_ms
    with Log(urls, options.cluster, timeout_ms=timeout_ms, **options.client_keys) as log:
        try:
            log.reach(options.timeout_ms)
            yield log
        except LogTimeout as error:
            raise LogUnreachable(error) from error


class LogView(LogPositions):
    """A connection to the cluster's log. Its methods raise LogUnreachable."""

    def __init__(self, options: LogReadOptions) -> None:
        self._options = options
        self._stack = ExitStack()
        self._log = self._stack.enter_context(connected_log(options))

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except LogTimeout as error:
            raise LogUnreachable(error) from error
        except LogCompacted as error:
            raise self.compacted(1, error.last_index) from error

    # ---- places ----

    def info(self) -> Ends:
        with self._reached():
            found = self._log.info()
        return Ends(found.first_index, found.applied_index, found.last_index)

    def last_index(self) -> int:
        with self._reached():
            try:
                return self._log.read_index()
            except LogTimeout:
                raise
            except LogError:  # A leader of another implementation reports its applied index.
                return self._log.info().applied_index

    def offset_at(self, index: int) -> LogOffset:
        offset = LogOffset(self._options.cluster, index)
        if not index:
            return offset
        with self._reached():
            try:
                for _ in range(WAITS_MAX):
                    for entry in self._log.entries(index - 1, 1):
                        reqid = entry.reqid.hex() if entry.reqid else ""
                        return replace(offset, term=entry.term, reqid=reqid)
                    self._wait_applied(index, index)
            except LogCompacted:
                return offset
        raise LogEnds(index, index)

    def _time_from(self, index: int, behind: int) -> tuple[int, datetime | None]:
        for count in LOOK_AHEAD:
            with self._reached(), closing(self._log.to_arrow(index - 1, count)) as batches:
                for batch in batches:
                    for row, time in enumerate(batch.column("time").to_pylist()):
                        if time is not None:
                            return index + row, time
                    index += batch.num_rows
            if index >= behind:
                break
        return index, None

    # ---- entries ----

    def end_of_bytes(self, after: int, last: int, bytes_max: int) -> int:
        """As LogPositions.end_of_bytes. A follower may not have applied these entries yet."""
        index, left = after, bytes_max
        with self._reached():
            found = self._log.to_arrow(after, last - after, url=self._source())
            with closing(found) as batches:
                for batch in batches:
                    lengths = pc.cast(pc.binary_length(batch["data"]), pyarrow.int64())
                    sizes = pc.cumulative_sum(lengths)
                    fit = pc.sum(pc.less_equal(sizes, left)).as_py() or 0
                    index += fit
                    if fit < batch.num_rows:
                        break
                    left -= sizes[-1].as_py()
        return max(index, after + 1)

    def entries(self, wanted: LogRange) -> Generator[pyarrow.RecordBatch, None, None]:
        after, last = wanted
        waits = 0
        with self._reached():
            url = self._source()
            while after < last and waits < WAITS_MAX:
                before = after
                try:
                    with closing(self._log.to_arrow(after, last - after, url=url)) as batches:
                        for batch in batches:
                            after += batch.num_rows
                            yield batch
                except LogCompacted as error:
                    if self._options.fail_on_compaction:
                        raise self.compacted(after + 1, error.last_index) from error
                    state: bytes | None = None
                    index = error.last_index
                    if self._options.with_state:
                        index, state = self._log.state()
                    if index > after:  # Otherwise a new leader has the entries.
                        after = index
                        if state is not None:
                            yield _state_row(index, state)
                if after < last:
                    self._wait_applied(after + 1, last)
                waits = waits + 1 if after == before else 0
                url = None  # The follower has fewer entries than the leader.
        if after < last:
            raise LogEnds(after + 1, last)

    def _instead(self) -> str:
        if self._options.with_state:
            return "the snapshot's state in a row of type -1 and then what follows"
        return "what follows"

    def _source(self) -> str | None:
        """Returns the url of the member to read entries from; None means the leader."""
        if self._options.read_from != FOLLOWERS:
            return None
        config = self._log.config()
        urls = [url for peer_id, url in config.members or () if peer_id != config.leader]
        return random.choice(urls) if urls else None

    def _wait_applied(self, first_index: int, last_index: int) -> None:
        """Waits until a new leader has applied what the old one had applied. Raises LogEnds."""
        if self.last_index() < last_index:
            raise LogEnds(first_index, last_index)


def _state_row(index: int, state: bytes) -> pyarrow.RecordBatch:
    from ...clients.table.arrow import ENTRY_SCHEMA

    if len(state) > STATE_BYTES_MAX:
        raise PipelineError(
            f"the snapshot's state has {len(state)} bytes, more than a value of Spark's can have: "
            f"begin behind it with option after {index}"
        )
    row = {"index": index, "type": SNAPSHOT_TYPE, "data": state}
    return pyarrow.RecordBatch.from_pylist([row], schema=ENTRY_SCHEMA)
