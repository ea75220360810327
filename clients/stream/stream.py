"""kelek.Stream, a named stream of records, and its producers, which block."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ..io.operations import Blocking, Operation, Step
from ..table.table import Table
from .appender import ProducerLink
from .core import BATCH_RECORDS, Appends, bodies
from .group import Group
from .operations import ProducerOperations, StreamOperations

T = TypeVar("T")


class Stream(StreamOperations["Producer"], Blocking):
    """A named stream of records, which clients append to and read from any place.

        with kelek.Stream("tcp://127.0.0.1:7100,tcp://127.0.0.1:7110", "orders") as orders:
            offset = orders.append("new", key="order-1")
            for record in orders.read(start=offset): ...
            for record in orders.tail(): ...

    urls         ZeroDB addresses of some nodes, as of kelek.Table
    name         the stream's name, at most 1024 bytes of UTF-8
    codec        how values are stored and come back, as of kelek.Table: "text", "json", "msgpack",
                 a model, or an object. Keys come back as str then. None: both are bytes
    table        the number of the table that holds the stream; a key needs rw for it
    timeout_ms, tuning, key, server_keys   as of kelek.Table

    A record has an offset, from 0 without gaps, a time, a value, and maybe a key and headers. The
    first append makes the stream; create() does it with other settings, retain() limits what it
    keeps. Consumers share the work of a stream in a group(). Records of one Stream are in the order
    of the calls, and those of one batch follow one another. Use a Stream in one thread at a time.
    """

    _table: Table

    def _open(self, *arguments: Any, **settings: Any) -> Table:
        self._table = Table(*arguments, **settings)
        return self._table

    def _do(self, step: Step) -> None:
        self._table._do(step)

    def _on_iterated(self) -> None:
        self._table._on_iterated()

    def _producer(self, link: ProducerLink) -> "Producer":
        return Producer(self, link)

    def append_many(
        self,
        records: Iterable[Any],
        *,
        batch: int = BATCH_RECORDS,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Appends records in order, pipelined; returns their count once all are appended.

        records    values, or StreamRecords with keys and headers
        batch      at most so many in each atomic step; large records are fewer
        progress   called with the count appended so far

        Raises as append() does; what came before may have been appended.
        """
        return self._run(
            self._append_many(records, batch, Appends(self._core, None, None, progress))
        )

    def _append_many(self, records: Iterable[Any], batch: int, appends: Appends) -> Operation[int]:
        for body in bodies(records, self._codec, batch):
            yield from appends.add(body)
        return (yield from appends.finish())

    def group(self, name: str, **settings: Any) -> Group:
        """A member of the consumer group of this name, with the settings of Group; see there. It
        joins at the begin of `with`, or of iteration."""
        return Group(self._urls, self.name, name, **{**self._settings, **settings})

    def close(self) -> None:
        """Closes the connections."""
        self._table.close()


class Producer(ProducerOperations, Blocking):
    """Appends to a stream, each record once: kelek.Stream.producer() makes it.

        producer = orders.producer("import")
        producer.append_many(itertools.islice(lines, producer.sequence, None))

    Its records are numbered from 1. `sequence` is the number of the last one appended under its id,
    by this process or one before. It uses the connections of its Stream.
    """

    def __init__(self, stream: Stream, link: ProducerLink) -> None:
        super().__init__(stream._core, link)
        self._stream = stream

    def _do(self, step: Step) -> None:
        self._stream._do(step)

    def append_many(
        self,
        records: Iterable[Any],
        *,
        sequence: int | None = None,
        batch: int = BATCH_RECORDS,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """As kelek.Stream.append_many(). Records whose numbers were appended already are left out,
        and do not count.

        sequence   the number of the first record; None: the next one
        """
        appends = Appends(self._core, self._link, sequence, progress)
        return self._stream._run(self._stream._append_many(records, batch, appends))

    def close(self) -> None:
        """Has nothing to close."""
