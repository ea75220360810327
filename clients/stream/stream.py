"""kelek.Stream, a named stream of records, and its producers, which block."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from ..io.operations import Blocking, Operation, Step
from ..io.public import public
from ..table.table import Table
from .appender import ProducerLink
from .core import BATCH_RECORDS, Appends, bodies
from .operations import ProducerOperations, StreamOperations

if TYPE_CHECKING:
    from .group import Group

T = TypeVar("T")


@public()
class Stream(StreamOperations["Producer"], Blocking):
    """A named stream of records, to append to and to read from any place.

        with kelek.Stream("tcp://127.0.0.1:7100", "orders", codec="text") as s:
            offset = s.append("new", key="order-1")
            print([record.value for record in s.read(start=offset)])

    urls         ZeroDB addresses of some nodes, a list or joined by commas
    name         the stream's name, at most 1024 bytes of UTF-8
    codec        of the values: "text", "json", "msgpack", a model, or an
                 object, as of kelek.Table. Keys are str then; None: both bytes
    table        number of the table that holds it; a key needs rw for it
    timeout_ms   a call without an answer for so long raises TableTimeout
    tuning       limits of outstanding requests, times of the search
    key          path of this client's CURVE key, NAME.key_secret; None: none
    server_keys  the servers' public keys by url, or one key of all servers

    append(value, key)            appends a record; returns its offset
    append_many() append_batch()  pipelined; in one atomic step
    read(start, limit)            the records up to the last one as of now
    tail() tail_lists()           the same, then each new one, without end
    group(name)                   a member of a consumer group
    groups() reset_group() delete_group()   the groups, and their positions
    producer(id)                  appends that count once, even if repeated
    create() delete()             makes it with settings; removes it
    retain() trim(before)         what it keeps; removes what it need not keep
    info() streams() name close() what it holds; all streams; its name

    A record has an offset, from 0 without gaps, and a time. Records are in the
    order of the calls. Use a Stream in one thread at a time.
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
        """Appends records in order, pipelined; returns their count once all are
        appended.

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

    def group(self, name: str, **settings: Any) -> "Group":
        """A member of the consumer group of this name, with the settings of
        Group; see there. It joins at the begin of `with`, or of iteration."""
        from .group import Group  # Few programs have groups.

        return Group(self._urls, self.name, name, **{**self._settings, **settings})

    def close(self) -> None:
        """Closes the connections."""
        self._table.close()


@public()
class Producer(ProducerOperations, Blocking):
    """Appends to a stream, each record once: Stream.producer() makes it.

        with kelek.Stream("tcp://127.0.0.1:7100", "orders") as orders:
            producer = orders.producer("import")
            producer.append_many([b"one", b"two"][producer.sequence :])

    append(value, key)    appends a record; returns its offset
    append_many(records)  pipelined; leaves out those that are there already
    append_batch(records) in one atomic step; returns the first one's offset
    sequence, id          number of its last record, by any process; its id
    close()               has nothing to close

    Its records are numbered from 1. It uses the connections of its Stream.
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
        """As kelek.Stream.append_many(). Records whose numbers were appended
        already are left out, and do not count.

        sequence   the number of the first record; None: the next one
        """
        appends = Appends(self._core, self._link, sequence, progress)
        return self._stream._run(self._stream._append_many(records, batch, appends))

    def close(self) -> None:
        """Has nothing to close."""
