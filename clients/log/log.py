"""kelek.Log: the blocking client of the replicated log."""

from collections import deque
from collections.abc import Callable, Iterable

from ...protocols.zmqraft.client.client import PendingUpdates
from ..aliases import old_name
from ..io.driver import BlockingDriver
from ..io.operations import Batches, Operation, Sleep, Wait, items, operation
from ..io.public import public
from ..io.reqids import new_reqids
from .operations import Data, LogOperations, checked, packs, reqids_of


@public()
class Log(LogOperations, BlockingDriver):
    """A client of a replicated log. It has no thread of its own.

        with kelek.Log("tcp://127.0.0.1:7201,tcp://127.0.0.1:7202") as log:
            index = log.append(b"one")
            print([entry.data for entry in log.entries(after=index - 1)])

    urls         addresses of some peers, a list or joined by commas
    cluster      the cluster's ident
    timeout_ms   a call without progress for so long raises LogTimeout
    form         the layout of requests: "auto", "node" or "text" (one value a
                 message: no order across a failover)
    tuning       limits of the window, times of the search for a leader
    key          path of this client's CURVE key, NAME.key_secret; None: none
    server_keys  the servers' public keys by url, or one key of all servers

    append(data)                  appends a value; returns its LOG INDEX
    append_many() append_each()   pipelined; returns the count; yields indexes
    entries(after)                the entries that are committed
    watch() watch_lists()         the same, then each new one, without end
    to_arrow()                    the entries as Arrow record batches
    read_index()                  an index above all acknowledged appends
    info() config() state()       indexes; the leader and members; a snapshot
    members() set_members() add_member() remove_member()    the membership
    transfer(to) make_snapshot()  moves the leadership; orders a snapshot
    backup(after) broadcast_url() what restores the log; where it broadcasts
    reach() counters, close()     waits for a peer; counts events; closes

    The client learns the other peers; zre://CLUSTER looks them up by discovery.
    "auto" packs requests where the peer supports it. server_keys are 40
    characters of Z85, None for a server without CURVE; with zre:// a list of
    the nodes' keys. A server without a key here is never used
    (docs/security.md).

    The cluster appends the values of one Log in the order of the calls and each
    exactly once, also across failovers. Use a Log in one thread at a time.
    """

    @operation
    def append(self, data: Data) -> Operation[int]:
        """Appends a value of 1 byte to 10 MiB; returns its LOG INDEX once it is
        committed.

        Raises LogTooLarge (nothing was sent), LogRefused, LogExpired,
        LogNotAllowed, LogTimeout, LogNoLeader, LogUnavailable.
        """
        pending = PendingUpdates(new_reqids(1), [checked(data)])
        yield from self._add(pending)
        yield from self._settle(pending, 0)
        return pending.runs[0][1]

    @operation
    def append_many(
        self,
        values: Iterable[Data],
        progress: Callable[[int], object] | None = None,
        *,
        reqids: Iterable[bytes] | None = None,
    ) -> Operation[int]:
        """Appends values in order, pipelined; returns their count once all are
        committed.

        The call collects values up to a pack (1024 values or 256 KiB) while it
        waits for the next item of the iterable. Use append() for a source that
        pauses.

        progress   called with the count committed so far
        reqids     a unique request id of 12 bytes for each value. The cluster
                   counts a value whose id it knows as committed and does not
                   append it again. Default: new ids

        Raises as append() does.
        """
        count = 0
        for step in self._appended(values, reqids):
            if isinstance(step, list):
                count += len(step[0].updates)
                if progress is not None:
                    progress(count)
            else:
                yield step
        return count

    @items
    def append_each(self, values: Iterable[Data]) -> Batches[int]:
        """Appends values in order, pipelined; yields the LOG INDEX of each in
        that order.

        It sends nothing before the caller asks for the first index. Raises as
        append() does.
        """
        for step in self._appended(values):
            if isinstance(step, list):
                for count, first_index in step[0].runs:
                    yield list(range(first_index, first_index + count))
            else:
                yield step

    def _add(self, pending: PendingUpdates) -> Operation[None]:
        """Waits for room in the window, then sends values."""
        window = self._client.window
        yield Wait(lambda: window.accepts(pending.reqids))
        window.add(pending)

    def _appended(
        self, values: Iterable[Data], reqids: Iterable[bytes] | None = None
    ) -> Batches[PendingUpdates]:
        """Packs of the values, one at a time, as they are committed."""
        window = self._client.window
        ids = None if reqids is None else iter(reqids)
        source = packs(values)
        pack = next(source, None)
        mine: deque[PendingUpdates] = deque()
        count = 0
        while pack is not None or mine:
            while pack is not None and (window.has_room or not mine):
                reqids = new_reqids(len(pack)) if ids is None else reqids_of(ids, len(pack))
                pending = PendingUpdates(reqids, pack)
                yield from self._add(pending)
                mine.append(pending)
                yield Sleep(0)  # Sends it now.
                pack = next(source, None)
            yield from self._settle(mine[0], count)
            while mine and mine[0].runs:
                pending = mine.popleft()
                yield from self._settle(pending, count)
                count += len(pending.updates)
                yield [pending]

    update = old_name("update", append)
    update_many = old_name("update_many", append_many)
    update_each = old_name("update_each", append_each)
