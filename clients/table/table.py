"""kelek.Table: the blocking client of a table."""

from collections.abc import Callable, Iterable

from ..io.driver import BlockingDriver
from ..io.operations import Operation, operation
from .arguments import Data, checked_key, checked_pairs
from .jobs import TableJobs
from .reads import TableReads
from .writes import TableWrites, columns_of, packs


class Table(TableReads, TableWrites, TableJobs, BlockingDriver):
    """A client of one table of a cluster. It has no thread: its calls do all work.

        with kelek.Table("tcp://127.0.0.1:7100,tcp://127.0.0.1:7110", 7) as table:
            table.put(b"key", b"value")
            table.put_many(pairs)
            for key, value in table.scan(prefix=b"k"): ...

    urls         ZeroDB addresses of some nodes, as a list or joined by commas. The client uses one
                 and switches to another when that is lost. Each node has a local table (topology)
                 of its own: give the url of one node. zre://CLUSTER looks them up by discovery
    number       the table's number
    timeout_ms   a call without an answer for so long raises TableTimeout or TableUnavailable
    sync         when a write is acknowledged. "partsync": a majority has it on disk and it is
                 applied, so every reader sees it. "fullsync": it is also on stable storage in the
                 table. "async": on receipt, unchecked; it may be lost
    stale        reads may be served from the node's copy, without asking the leader
    tuning       limits of outstanding requests, and timeouts of the search for a server

    A replicated write takes effect once, even if the client sends it again after a node was lost.
    The writes of one Table take effect in the order of the calls. Use a Table in one thread at a
    time. All errors are TableErrors.
    """

    @operation
    def get(self, key: Data) -> Operation[bytes | None]:
        """The value of a key; None: the key does not exist."""
        return (yield from self._get([checked_key(key)]))[0]

    @operation
    def put(
        self, key: Data, value: Data, *, ttl_s: float | None = None, session: int = 0
    ) -> Operation[None]:
        """Stores a value.

        ttl_s     the table deletes the key after so many seconds
        session   the table deletes the key when this session ends (open_session())

        Raises SessionEnded, and stores nothing, when the session has ended already.
        """
        return self._put_pairs(checked_pairs([(key, value)]), ttl_s, session)

    @operation
    def put_many(
        self,
        pairs: Iterable[tuple[Data, Data]],
        *,
        ttl_s: float | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[int]:
        """Stores pairs in order, pipelined; returns their count once all are acknowledged.

        progress is called with the count acknowledged so far. Raises TableRefused, whose `written`
        is the number of pairs stored before.
        """
        return self._put_packs(map(columns_of, packs(pairs)), ttl_s, progress)
