"""Asks for what a stream holds, and reads its batches, without Spark.

The first connection imports ZeroMQ, in the process that makes it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from ...clients.errors import StreamTrimmed, TableError, TableTimeout
from ..errors import PipelineError, TableUnreachable
from .options import StreamOptions, StreamReadOptions
from .rows import rows_of

if TYPE_CHECKING:
    from ...clients.stream.core import StreamInfo
    from .client import TaskStream


class RecordsTrimmed(PipelineError):
    """Retention has removed records that were wanted."""

    def __init__(self, why: object) -> None:
        super().__init__(
            f"{why}. Set failOnTrim to false to go on behind them, or begin with a new "
            "checkpointLocation"
        )


@contextmanager
def connected_stream(options: StreamOptions) -> Iterator["TaskStream"]:
    """A client of the stream. Raises PipelineError."""
    from .client import TaskStream

    settings = {"table": options.table, "timeout_ms": options.timeout_ms, **options.client_keys}
    try:
        with TaskStream(options.urls, options.stream, **settings) as stream:
            yield stream
    except TableTimeout as error:
        raise TableUnreachable(error) from error
    except StreamTrimmed as error:
        raise RecordsTrimmed(error) from error
    except TableError as error:
        raise PipelineError(str(error)) from error


class StreamView:
    """A connection to a stream. Its methods raise PipelineError."""

    def __init__(self, options: StreamReadOptions) -> None:
        self._options = options
        self._stack = ExitStack()
        self._stream = self._stack.enter_context(connected_stream(options))

    def close(self) -> None:
        self._stack.close()

    def info(self) -> "StreamInfo":
        """What the stream holds. Raises PipelineError if it does not exist."""
        with self._errors():
            found = self._stream.info()
        if found is None:
            name = self._options.stream
            raise PipelineError(
                f"stream {name} does not exist; list them: kelek stream list, or make it: kelek "
                f"stream create {name}"
            )
        return found

    def start(self) -> int:
        """The offset of option start."""
        place = self._options.start
        info = self.info()
        if isinstance(place, int):
            return self.kept(place, info)
        if place == "first":
            return info.first
        if place == "end":
            return info.next
        assert isinstance(place, str | datetime)
        with self._errors():
            record = next(iter(self._stream.read(place, limit=1)), None)
        return info.next if record is None else record.offset

    def kept(self, offset: int, info: "StreamInfo") -> int:
        """An offset whose record is there, or the first one that is. Raises RecordsTrimmed."""
        if offset >= info.first:
            return offset
        if self._options.fail_on_trim:
            raise RecordsTrimmed(StreamTrimmed(self._options.stream, offset, info.first))
        return info.first

    def rows(self, start: int, end: int, wanted: frozenset[int]) -> Iterator[pa.RecordBatch]:
        """The records from one offset to before another. Raises RecordsTrimmed."""
        info = self.info()
        at = self.kept(start, info)
        with self._errors():
            for first, behind, data in self._stream.stored_batches(at, end):
                if first > at:
                    at = self.kept(at, self.info())
                yield rows_of(data, at, end, info.partitions, wanted)
                at = behind
        if at < end:
            self.kept(at, self.info())

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TableTimeout as error:
            raise TableUnreachable(error) from error
        except StreamTrimmed as error:
            raise RecordsTrimmed(error) from error
