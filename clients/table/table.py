"""kelek.Table, the blocking client of a table, and the methods of it and kelek.AsyncTable that
write."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ...net.clock import monotonic_ms
from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import answers, ops, requests
from ...protocols.zerodb.wire.values import PACKED, PARTSYNC, WITH_INDEX, Extension
from ..errors import TableRefused, TableUnsupported
from ..io.driver import BlockingDriver
from ..io.operations import Operation, Sleep, operation
from ..io.public import public
from .arguments import (
    Data,
    Pair,
    checked_bound,
    checked_key,
    checked_keys,
    checked_number,
    checked_range,
    milliseconds,
)
from .batch import Batch, BatchResult
from .loads import TableLoads
from .operations import OPENING_MS, OPENING_POLL_MS, decoded
from .pages import arrow, typed
from .typed.operations import TypedTable
from .updates import TableUpdates
from .views.kept import AsOf, TableSnapshots
from .views.view import TableView

if TYPE_CHECKING:
    import pyarrow

PACK_PAIRS = 1024  # In one put of put_many().
PACK_BYTES = 256 << 10
COLLECT_S_MAX = 0.002  # A pack waits no longer for the next pair of a slow source.
Columns = tuple[Sequence[bytes], Sequence[bytes]]  # Keys and their values.
Progress = Callable[[int], object]


class TableWrites(TypedTable):
    """Puts, deletes, batches and sessions."""

    @operation
    def put_arrow(
        self,
        batches: Iterable["pyarrow.RecordBatch"],
        *,
        ttl_s: float | None = None,
        bytes_max: int = PACK_BYTES,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[int]:
        """As put_many(), from the binary or text columns key and value of
        record batches.

        It makes no Python object for a row.

        bytes_max   of keys and values in a request of several pairs

        Raises TableError when pyarrow is not installed.
        """
        return self._put_packs(arrow().packs_of(batches, bytes_max), ttl_s, progress)

    @operation
    def put_rows(
        self,
        rows: Any,
        *,
        ttl_s: float | None = None,
        bytes_max: int = PACK_BYTES,
        progress: Progress | None = None,
    ) -> Operation[int]:
        """Stores rows of a table with a schema, pipelined; returns their count
        once all are acknowledged.

        rows   dicts by column, or a table, record batches or a reader of
               pyarrow, and so of Polars and DuckDB. A column that is left out
               is null

        A row replaces the one with the same key. Raises TableSchemaError with
        the row, the column and the value that does not fit; the rows of the
        batches before it may be stored.
        """
        convert = typed()
        schema = yield from self._current_schema()
        pairs = convert.pairs_of_rows(schema, rows)
        return (yield from self._put_packs(arrow().packs_of(pairs, bytes_max), ttl_s, progress))

    def _put_packs(
        self, packs: Iterable[Columns], ttl_s: float | None, progress: Progress | None
    ) -> Operation[int]:
        with closing(Puts(self, ttl_s, progress)) as puts:
            for keys, data in packs:
                yield from puts.add(keys, data)
            return (yield from puts.finish())

    def _put_pairs(
        self, pairs: Sequence[Pair], ttl_s: float | None = None, session: int = 0
    ) -> Operation[int | None]:
        """Stores pairs with one request. Returns its LOG INDEX, if it is told."""
        yield from self._ensure()
        self._flush()
        extension = self._put_extension(ttl_s, session, WITH_INDEX)
        exchange = self._begin_put(*columns_of(pairs), extension)
        return (yield from self._finish(exchange)).log_index or None

    def _begin_put(
        self,
        keys: Sequence[bytes],
        data: Sequence[bytes],
        extension: Extension,
    ) -> Exchange:
        """Sends keys and their values in one request."""
        return self._begin(requests.Put(self._number, keys, data, self._write_flags, extension))

    @staticmethod
    def _put_extension(ttl_s: float | None = None, session: int = 0, flags: int = 0) -> Extension:
        lease = checked_number("a session", session)
        return Extension(PACKED | flags, ttl_ms=milliseconds(ttl_s), lease=lease)

    @operation
    def delete(self, key: Data) -> Operation[int | None]:
        """Deletes a key, if it exists. Returns the LOG INDEX, as put()."""
        return (yield from TableWrites.delete_many(self, [key]))

    @operation
    def delete_many(self, keys: Iterable[Data]) -> Operation[int | None]:
        """Deletes the keys that exist, in one atomic write. Returns its LOG
        INDEX, as put()."""
        asked = checked_keys(keys)
        if not asked or not (yield from self._find()):
            return None
        packed = Extension(PACKED)
        return (
            yield from self._write(requests.Delete(self._number, asked, self._write_flags, packed))
        )

    @operation
    def delete_range(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> Operation[int | None]:
        """Deletes the keys that begin with prefix, or lie in start <= key <
        end, atomically. Returns the LOG INDEX, as put()."""
        asked = checked_range(prefix, start, end)
        if asked.empty or not (yield from self._find()):
            return None
        return (
            yield from self._write(requests.DeleteRange(self._number, *asked, self._write_flags))
        )

    @operation
    def delete_limited(self, limit: int, *, start: Data = b"") -> Operation[int | None]:
        """Deletes the first limit keys from start on. Returns the LOG INDEX, as
        put()."""
        checked_number("limit", limit)
        first = checked_bound(start)
        if not (yield from self._find()):
            return None
        return (
            yield from self._write(
                requests.DeleteLimited(self._number, first, limit, self._write_flags)
            )
        )

    def _write(self, request: requests.WriteRequest) -> Operation[int | None]:
        """Asks, behind the writes that were collected before. Returns the LOG INDEX, if told."""
        self._flush()
        flags = request.extension.flags | WITH_INDEX
        extension = request.extension._replace(flags=flags)
        _, answer = yield from self._ask(request._replace(extension=extension))
        return answer.log_index or None

    # ---- several at once ----

    def batch(self, *, ttl_s: float | None = None, session: int = 0) -> Batch:
        """An empty batch for this table; commit() applies it."""
        table = self._name or self._number
        return Batch(table, ttl_s=ttl_s, session=session, codec=self.codec)

    @operation
    def commit(self, batch: Batch) -> Operation[BatchResult]:
        """Applies a batch atomically: the branch that its conditions select.

        Raises SessionEnded when the batch has a session that has ended; it
        changes nothing then. Raises TableUnsupported when it increments,
        appends, reads a range or compares versions and the server does not know
        that, or another member of the cluster may not know it yet. In a cluster
        that has just begun all members soon do, so it is tried for 2 s.
        """
        until_ms = monotonic_ms() + OPENING_MS
        while True:
            try:
                exchange = yield from self._begin_commit(batch, WITH_INDEX)
                succeeded, token, found = yield from self._finish_transaction(exchange)
                break
            except TableUnsupported:
                opens = batch.is_gated and self._knows_sums
                if not opens or monotonic_ms() >= until_ms:
                    raise
            yield Sleep(OPENING_POLL_MS)
        results: list[Any] = []
        for kind, data in zip(batch.reads(succeeded), found, strict=True):
            if kind is ops.GetRange:
                pairs = decoded(answers.decode_range, data or b"")
                results.append([(self._key(key), self._value(value)) for key, value in pairs])
            else:
                results.append(self._value(data) if kind is ops.Get else int(data or b"0"))
        assert exchange.answer is not None
        result = BatchResult(succeeded, token, results)
        result.index = exchange.answer.log_index or None
        return result

    @operation
    def compare_and_put(self, key: Data, expected: Any, value: Any) -> Operation[bool]:
        """Stores a value if the key's present value is expected (None: no key);
        returns whether it did.

        It is one atomic step: of several callers with the same expectation, one
        succeeds.
        """
        batch = self.batch().put(key, value)
        if expected is None:
            batch.when_absent(key)
        else:
            batch.when_equal(key, expected)
        return (yield from TableWrites.commit(self, batch)).succeeded

    # ---- sessions ----

    @operation
    def open_session(self, ttl_s: float) -> Operation[int]:
        """Opens a session and returns its number. Keys that are put under it
        are deleted when it ends.

        A session ends by end_session(), or ttl_s seconds after the last
        keep_session().
        """
        return self._session(requests.SESSION_OPEN, 0, milliseconds(ttl_s))

    @operation
    def keep_session(self, session: int) -> Operation[bool]:
        """Restarts the session's time to live; False: the session has ended."""
        return bool((yield from self._session(requests.SESSION_KEEP, session, 0)))

    @operation
    def end_session(self, session: int) -> Operation[None]:
        """Ends a session and deletes its keys."""
        yield from self._session(requests.SESSION_END, session, 0)

    def _session(self, action: int, session: int, ttl_ms: int) -> Operation[int]:
        flags = self._write_flags or PARTSYNC
        asked = requests.Session(action, checked_number("a session", session), ttl_ms, flags)
        self._flush()
        return self._fetch(asked, answers.SESSION)


def packs(
    pairs: Iterable[tuple[Data, Any]], stored: Callable[[Any], bytes]
) -> Iterator[list[Pair]]:
    """Groups pairs into packs: full ones, or what a slow source yields within COLLECT_S_MAX."""
    clock = time.monotonic
    pack: list[Pair] = []
    size = 0
    until_s = 0.0
    for one in pairs:
        key, value = checked_key(one[0]), stored(one[1])
        size += len(key) + len(value)
        if size > PACK_BYTES and pack:
            yield pack
            pack, size = [], len(key) + len(value)
        if not pack:
            until_s = clock() + COLLECT_S_MAX
        pack.append((key, value))
        if len(pack) == PACK_PAIRS or clock() >= until_s:
            yield pack
            pack, size = [], 0
    if pack:
        yield pack


class Puts:
    """A pipeline of packs of pairs, acknowledged in order."""

    def __init__(self, table: TableWrites, ttl_s: float | None, progress: Progress | None) -> None:
        self._table = table
        self._extension = table._put_extension(ttl_s)
        self._progress = progress
        self._written = 0  # Acknowledged pairs.
        self._sent: deque[tuple[Exchange, int]] = deque()

    def add(self, keys: Sequence[bytes], data: Sequence[bytes]) -> Operation[None]:
        """Sends a pack when the window has room; settles acknowledged packs."""
        client = self._table._client
        yield from self._table._ensure()
        while self._sent and (self._sent[0][0].done or not client.has_room):
            yield from self._settle()
        self._table._flush()
        self._sent.append((self._table._begin_put(keys, data, self._extension), len(keys)))
        yield Sleep(0)  # Sends it now.
        self._report()

    def finish(self) -> Operation[int]:
        """Waits for all packs; returns the number of pairs."""
        while self._sent:
            yield from self._settle()
            self._report()
        return self._written

    def _settle(self) -> Operation[None]:
        """Waits for the oldest pack. Raises TableRefused with the number of pairs written."""
        exchange, count = self._sent[0]
        try:
            yield from self._table._finish(exchange)
        except TableRefused as error:
            raise type(error)(error.code, error.text, self._written) from error
        self._sent.popleft()
        self._written += count

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._written)

    def close(self) -> None:
        """Drops outstanding packs after an error."""
        for exchange, _ in self._sent:
            self._table._client.drop(exchange)


def columns_of(pairs: Sequence[Pair]) -> Columns:
    return [key for key, _ in pairs], [value for _, value in pairs]


@public()
class Table(TableUpdates, TableWrites, TableLoads, TableSnapshots, BlockingDriver):
    """A client of one table of a cluster. It has no thread of its own.

        with kelek.Table("tcp://127.0.0.1:7100", "users", codec="json") as t:
            t.put("user/1", {"name": "Ann"})
            print([*t.scan(prefix="user/")], t.count())

    urls         ZeroDB addresses of some nodes, a list or joined by commas
    number       the table's number, or its name: the first write numbers it
    timeout_ms   a call without an answer for so long raises TableTimeout
    sync         a write is acknowledged: "partsync" a majority has it and it is
                 applied, "fullsync" also in stable storage, "async" unchecked
    stale        reads may come from the node's copy, without the leader
    codec        of the values: "text", "json", "msgpack", a model of pydantic,
                 a Struct of msgspec, or an object; None: bytes
    tuning       limits of outstanding requests, times of the search
    key          path of this client's CURVE key, NAME.key_secret; None: none
    server_keys  the servers' public keys by url, or one key of all servers

    read     get get_many get_entry exists exists_many keys scan scan_pages
             count watch
    write    put put_many delete delete_many delete_range delete_limited
    change   increment append swap pop update compare_and_put batch commit
    lives    truncate set_ttl lifetime open_session keep_session end_session
    rows     declare schema rows get_row put_rows delete_row
    Arrow    put_arrow to_arrow chunks_arrow snapshot_chunks_arrow
    bulk     load load_arrow begin_load load_run commit_load drop_load
    jobs     copy_into map_into jobs job_status wait_job end_job chunks
    views    snapshot open_snapshot snapshot_chunks renew release range_job
    past     keep_snapshot snapshots find_snapshot release_snapshot
    names    name number names locate rename exchange drop open
    server   server info tables counters compact unload split_points close

    Each node has a local table (topology) of its own: give the url of one node.
    zre://CLUSTER looks the nodes up by discovery. The client uses one node, and
    switches to another when that is lost.

    With a codec keys come back as str, and the codec's errors reach the caller.
    Jobs, snapshots and Arrow always have bytes. server_keys are 40 characters
    of Z85, None for a server without CURVE; with zre:// a list of the nodes'
    keys. A server without a key here is never used (docs/security.md).

    A replicated write takes effect once, even if the client sends it again
    after a node was lost. The writes of one Table take effect in the order of
    the calls. Use a Table in one thread at a time. All errors are TableErrors.
    """

    @operation
    def get(self, key: Data) -> Operation[Any]:
        """The value of a key; None: the key does not exist."""
        return self._value((yield from self._get([checked_key(key)]))[0])

    @operation
    def put(
        self, key: Data, value: Any, *, ttl_s: float | None = None, session: int = 0
    ) -> Operation[int | None]:
        """Stores a value. Returns the LOG INDEX of the write, for watch(after=);
        None: the table is local, sync is "async", or the server is of a version
        that does not tell.

        ttl_s     the table deletes the key after so many seconds
        session   the table deletes the key when this session ends
                  (open_session())

        Raises SessionEnded, and stores nothing, when the session has ended
        already.
        """
        return self._put_pairs([(checked_key(key), self._stored(value))], ttl_s, session)

    @operation
    def put_many(
        self,
        pairs: Iterable[tuple[Data, Any]],
        *,
        ttl_s: float | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[int]:
        """Stores pairs in order, pipelined; returns their count once all are
        acknowledged.

        progress is called with the count acknowledged so far. Raises
        TableRefused, whose `written` is the number of pairs stored before.
        """
        return self._put_packs(map(columns_of, packs(pairs, self._stored)), ttl_s, progress)

    def snapshot(self, *, as_of: AsOf | None = None) -> TableView:
        """The table as it is now, for reads in a `with` statement that all see
        this state; see TableView. It contains every write acknowledged before.

        as_of   the table as it was instead, in a kept snapshot: its index, its
                name, or a datetime; see find_snapshot()
        """
        return TableView(self, as_of)
