"""kelek.TableView and kelek.AsyncTableView: a table as it was at one entry of the log."""

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Self

from ....protocols.zerodb.wire.values import CHUNK_PAIRS_MAX
from ...errors import TableError, TableRefused, TableTimeout
from ...io.operations import (
    Asynchronous,
    Batches,
    Blocking,
    Operation,
    Step,
    items,
    operation,
)
from ...io.public import public
from ..arguments import (
    Data,
    Pair,
    Range,
    behind_key,
    checked_key,
    checked_number,
    checked_range,
)
from ..jobs import ClusterSnapshot, TableJobs
from ..pages import ScanQuery, pairs_of
from .kept import AsOf, TableSnapshots

if TYPE_CHECKING:
    from ..async_table import AsyncTable
    from ..table import Table


class ViewOperations:
    """The reads of a view: jobs on a snapshot of all nodes, which any of them continues."""

    _table: TableSnapshots
    _as_of: AsOf | None  # In a kept snapshot; None: the view has a snapshot of its own.
    _snapshot: ClusterSnapshot | None = None  # While the view is open.

    @property
    def snapshot(self) -> ClusterSnapshot:
        """For other processes: snapshot_chunks(snapshot.number)."""
        if self._snapshot is None:
            raise TableError("the view is closed: use it within `with table.snapshot() as view`")
        return self._snapshot

    @property
    def index(self) -> int:
        """The LOG INDEX of the last entry that it contains."""
        return self.snapshot.index

    def _open(self) -> Operation[None]:
        if self._as_of is None:
            self._snapshot = yield from TableJobs.open_snapshot(self._table)
        else:
            kept = yield from TableSnapshots.find_snapshot(self._table, self._as_of)
            self._snapshot = ClusterSnapshot(kept.number, "", "", kept.index)

    def _release(self) -> Operation[None]:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None and self._as_of is None:
            # It may have ended, or no server is there: then it ends by itself.
            with suppress(TableRefused, TableTimeout):
                yield from TableJobs.release(self._table, snapshot.number)

    @operation
    def renew(self) -> Operation[None]:
        """Keeps it for at least `job_idle_s` (topology) from now. A kept
        snapshot ends when it is told to."""
        if self._as_of is None:
            yield from TableJobs.renew(self._table, self.snapshot.number)

    @operation
    def get(self, key: Data) -> Operation[Any]:
        """The value of a key; None: the key did not exist."""
        asked = checked_key(key)
        found: list[Pair] = []
        for step in self._pages(ScanQuery(Range(asked, behind_key(asked)))):
            if isinstance(step, list):
                found += step
            else:
                yield step
        return self._table._value(found[0][1]) if found else None

    @operation
    def count(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> Operation[int]:
        """The number of keys that begin with prefix, or lie in start <= key <
        end."""
        found = 0
        for step in self._pages(ScanQuery(checked_range(prefix, start, end), keys_only=True)):
            if isinstance(step, list):
                found += len(step)
            else:
                yield step
        return found

    @items
    def scan(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        limit: int | None = None,
    ) -> Batches[tuple[Any, Any]]:
        """The (key, value) pairs whose keys begin with prefix, or lie in start
        <= key < end, in order; at most limit of them.

        When a node is lost, the client continues on another one: each pair
        comes once. Raises TableRefused when the snapshot has ended.
        """
        table = self._table
        for step in self._pages(ScanQuery(checked_range(prefix, start, end), limit=limit)):
            if isinstance(step, list):
                yield [(table._key(key), table._value(value)) for key, value in step]
            else:
                yield step

    def _pages(self, asked: ScanQuery) -> Batches[Pair]:
        """The pairs of a range, in lists."""
        left, chunk_pairs = asked.limit, None
        if left is not None:
            checked_number("limit", left)
            if not left:
                return
            chunk_pairs = min(left, CHUNK_PAIRS_MAX)
        number = self.snapshot.number
        with closing(self._table._lease_chunks(number, asked, chunk_pairs, pairs_of)) as steps:
            for step in steps:
                if left is None or not isinstance(step, list):
                    yield step
                    continue
                yield step[:left]
                left -= len(step)
                if left <= 0:
                    return


@public()
class TableView(ViewOperations, Blocking):
    """A table as it was at one entry of the log: Table.snapshot() makes it.

        with kelek.Table("tcp://127.0.0.1:7100", "users") as table:
            with table.snapshot() as view:
                print(view.index, view.count(), dict(view.scan(limit=10)))

    get(key)             the value of a key
    scan(prefix, limit)  the pairs of a range, in order
    count(prefix)        how many keys a range has
    index, snapshot      the LOG INDEX of its state; for other processes
    renew()              keeps it, without a read
    close()              releases it

    All reads of a view see the same state, whichever node answers. Each is a
    job of that node: for many keys scan a range. The view ends `job_idle_s`
    (topology) after its last read or renew(); reads raise TableRefused then. A
    local table has no views. A key with CURVE needs the grant `jobs`.

    A view of a kept snapshot, by snapshot(as_of=), ends with that.
    """

    _table: "Table"

    def __init__(self, table: "Table", as_of: AsOf | None = None) -> None:
        self._table, self._as_of = table, as_of

    def _do(self, step: Step) -> None:
        self._table._do(step)

    def _on_iterated(self) -> None:
        self._table._on_iterated()

    def __enter__(self) -> Self:
        self._run(self._open())
        return self

    def close(self) -> None:
        """Closes it; a kept snapshot stays."""
        self._run(self._release())


@public(like=TableView)
class AsyncTableView(ViewOperations, Asynchronous):
    """kelek.TableView for asyncio: AsyncTable.snapshot() makes it.

    async with kelek.AsyncTable("tcp://127.0.0.1:7100", "users") as table:
        async with table.snapshot() as view:
            print(view.index, await view.count())
    """

    _table: "AsyncTable"

    def __init__(self, table: "AsyncTable", as_of: AsOf | None = None) -> None:
        self._table, self._as_of = table, as_of

    async def _do(self, step: Step) -> None:
        await self._table._do(step)

    def _on_iterated(self) -> None:
        self._table._on_iterated()

    def _on_ended(self) -> None:
        self._table._on_ended()

    async def __aenter__(self) -> Self:
        await self._run(self._open())
        return self

    async def aclose(self) -> None:
        """Closes it; a kept snapshot stays."""
        await self._run(self._release())
