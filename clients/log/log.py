"""kelek.Log: the replicated log for its users, without a thread of its own.

All work is done inside the calls. One Log belongs to one thread at a time; make one for each.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from ...protocols.zmqraft.client.client import LogClientMachine, PendingUpdates
from ...protocols.zmqraft.wire.client_codec import ConfigAnswer, LogInfo
from ...protocols.zmqraft.wire.entry import Entry
from ...protocols.zmqraft.wire.snapshot_codec import SnapshotMade
from ...protocols.zmqraft.wire.values import REQID_BYTES
from ..errors import LogError, LogNoLeader, LogTimeout
from ..io.driver import BlockingDriver
from ..io.links import Links
from ..io.reqids import new_reqids
from .members import members_of
from .operations import (
    REACH_MS,
    TIMEOUT_MS,
    Data,
    EntriesQuery,
    LogOperations,
    LogTuning,
    checked,
    make_client,
    packs,
)

if TYPE_CHECKING:
    import pyarrow


class Log(BlockingDriver):
    """A connection to a cluster.

        with kelek.Log("tcp://127.0.0.1:7201,tcp://127.0.0.1:7202") as log:
            index = log.update(b"one")
            log.update_many(lines)
            for entry in log.entries(after=index): ...

    urls         some of the peers, in a list or joined by commas; the others are learned
    cluster      the cluster's ident
    timeout_ms   so long without any progress: LogTimeout, or LogNoLeader
    form         how requests are written: "auto" (packs for peers that know them, else node form),
                 "node" or "text" (one message an update: order across a failover not guaranteed)

    tuning       how much may be on its way, and the times of the search for a leader

    Updates of one Log commit in the order sent, also across failovers, each exactly once.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        cluster: str = "demo",
        *,
        timeout_ms: int = TIMEOUT_MS,
        form: str = "auto",
        tuning: LogTuning | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        self._client = make_client(urls, cluster, form, tuning)
        self._steps = LogOperations(self._client)
        self._own(Links(self._client))

    def reach(self, timeout_ms: int = REACH_MS) -> None:
        """Waits until any peer of the cluster has answered, whether there is a leader or not.

        Without it a call waits timeout_ms for peers that may not be there at all. Raises
        LogUnavailable, which names the urls that were tried.
        """
        self._run(self._steps.reach(timeout_ms))

    # ---- writing ----

    def update(self, data: Data) -> int:
        """Appends one update and returns its LOG INDEX once it is committed.

        Raises LogTooLarge before anything is sent, LogExpired or LogRefused, LogTimeout.
        """
        pending = PendingUpdates(new_reqids(1), [checked(data)])
        self._run(self._steps.add(pending))
        self._run(self._steps.settle(pending, 0))
        return pending.runs[0][1]

    def update_many(
        self,
        updates: Iterable[Data],
        progress: Callable[[int], object] | None = None,
        *,
        reqids: Iterable[bytes] | None = None,
    ) -> int:
        """Appends updates in order, pipelined, and returns how many once all are committed.

        What the iterable has given is held back while it waits for its next item, up to a pack: use
        update() for a source that may wait long.
        progress is called with the number committed so far. Raises as update() does.

        reqids   one of 12 bytes for each, which nobody else uses for another update: what the
                 cluster knows by its id already counts as committed and is not appended again.
                 Without, they are made here.
        """
        count = 0
        for pending in self._committed(updates, reqids):
            count += len(pending.updates)
            if progress is not None:
                progress(count)
        return count

    def update_each(self, updates: Iterable[Data]) -> Generator[int, None, None]:
        """Appends updates in order, pipelined, and yields the LOG INDEX of each in that order.

        Nothing is sent before the first index is asked for. Raises as update() does.
        """
        for pending in self._committed(updates):
            for count, first_index in pending.runs:
                yield from range(first_index, first_index + count)

    def _committed(
        self, updates: Iterable[Data], reqids: Iterable[bytes] | None = None
    ) -> Iterator[PendingUpdates]:
        window = self._client.window
        ids = None if reqids is None else iter(reqids)
        source = packs(updates)
        pack = next(source, None)
        mine: deque[PendingUpdates] = deque()
        count = 0
        while pack is not None or mine:
            while pack is not None and (window.has_room or not mine):
                reqids = new_reqids(len(pack)) if ids is None else reqids_of(ids, len(pack))
                pending = PendingUpdates(reqids, pack)
                self._run(self._steps.add(pending))
                mine.append(pending)
                self._run_once(0)
                pack = next(source, None)
            self._run(self._steps.settle(mine[0], count))
            while mine and mine[0].runs:
                pending = mine.popleft()
                self._run(self._steps.settle(pending, count))
                count += len(pending.updates)
                yield pending

    # ---- reading ----

    def entries(
        self, after: int = 0, count: int | None = None, *, url: str | None = None
    ) -> Generator[Entry, None, None]:
        """Entries behind LOG INDEX after, up to what is committed, or count of them.

        What was acknowledged to anybody, or read by this Log, before the call is always among them.
        Raises LogCompacted when they begin with some that a snapshot has taken the place of.

        url   of a peer that need not lead: up to what it knows to be committed, which may be less,
              but not less than this Log has read. When it can't be had, is silent, has less or no
              longer stores them, the leader is asked
        """
        for entries in self._iterate(self._steps.entries(EntriesQuery(after, count, url))):
            yield from entries

    def to_arrow(
        self, after: int = 0, count: int | None = None, *, url: str | None = None
    ) -> Generator["pyarrow.RecordBatch", None, None]:
        """As entries(), as Arrow record batches: about a mebibyte of entries each.

        index, term   int64
        type          int8: 0 state, 1 config, 2 checkpoint
        reqid         binary; null: the cluster itself
        time          timestamp of the reqid, to the second, UTC; null without one
        data          binary

        Raises LogError when pyarrow is not installed.
        """
        for batches in self._iterate(self._steps.entry_columns(EntriesQuery(after, count, url))):
            yield from batches

    def subscribe(self, after: int | None = 0) -> Generator[Entry, None, None]:
        """Entries behind LOG INDEX after (None: from now on), and for ever those that follow, as
        soon as they are committed.

        None is left out, doubled or out of order, whoever leads and however slowly they are
        taken; after a pause, or in another process, go on with the index of the last one. Without
        a leader it waits. A leader that broadcasts is listened to, and asked only for what the
        broadcasts have left out; any other is asked again and again. Raises LogCompacted as
        entries() does.
        """
        for entries in self.subscribe_lists(after):
            yield from entries

    def subscribe_lists(self, after: int | None = 0) -> Generator[list[Entry], None, None]:
        """As subscribe(): all that has come at once in one list, which is never empty."""
        yield from self._iterate(self._steps.subscribe(after))

    def follow(self, after: int = 0) -> Generator[Entry, None, None]:
        """The same as subscribe()."""
        return self.subscribe(after)

    def read_index(self, *, applied: bool = True) -> int:
        """A linearizable read: a LOG INDEX at or above that of every update, by anybody, that was
        acknowledged before this call.

        A leader says so after a majority has confirmed, during this call, that it still leads: what
        an old leader knows is never returned. Whoever has applied the log up to the index sees all
        that was done before the call.

        applied   the leader has applied the index, so that entries(), asked of this Log next,
                  reach it; False: as soon as it is confirmed, for a state that is kept elsewhere

        Raises LogError when the leader is of a version, or an implementation, without such reads,
        or this Log was told a form other than auto; LogNoLeader, LogTimeout.
        """
        return self._run(self._steps.read_index(applied))

    def info(self, url: str | None = None) -> LogInfo:
        """The leader's log, or that of the peer at url: term and indexes."""
        return self._run(self._steps.info(url))

    def make_snapshot(self, url: str | None = None) -> SnapshotMade:
        """Has the leader, or the peer at url, make a snapshot of its log and state now and forget
        the entries in it; returns its last LOG INDEX and its size in bytes.

        Raises SnapshotRefused with the reason.
        """
        return self._run(self._steps.make_snapshot(url))

    def state(self) -> tuple[int, bytes]:
        """The LOG INDEX up to which the leader's snapshot goes, and the state in it: what entries()
        has no longer. (0, b"") when the leader still has every entry."""
        return self._run(self._steps.state())

    def config(self) -> ConfigAnswer:
        """Who leads, and the members' ids and urls."""
        return self._run(self._steps.config())

    def members(self) -> dict[str, str]:
        """PEER ID -> url of each member; of both sets while a change is in work."""
        return members_of(self.config())

    def set_members(self, members: Mapping[str, str]) -> int:
        """Makes these all members of the cluster, PEER ID -> url; returns the change's LOG INDEX.

        It is done when the call returns: new members have caught up, removed ones count no more.
        That may take long: timeout_ms is time without a word of the leader's. Raises
        MembersRefused with the reason, MembersConflict, LogNoLeader, LogTimeout; after the last two
        the change may still happen.
        """
        return self._run(self._steps.set_members(members))

    def add_member(self, peer_id: str, url: str) -> int:
        """Takes one more peer in, which must be running; as set_members()."""
        return self._run(self._steps.add_member(peer_id, url))

    def remove_member(self, peer_id: str) -> int:
        """Leaves one peer out from now on; as set_members()."""
        return self._run(self._steps.remove_member(peer_id))

    def broadcast_url(self) -> str | None:
        """Where the leader's state machine broadcasts, if it does."""
        return self._run(self._steps.broadcast_url())

    def transfer(self, to: str | None = None) -> str:
        """Has the leader hand over to the member `to`, or, without, to whoever is furthest.

        Returns the PEER ID of the new leader once it leads. Updates wait for some milliseconds
        meanwhile; none is lost, none is refused.
        Raises TransferRefused with the reason: it is no voter, is not heard, knows no transfer, did
        not take over within an election timeout; LogNoLeader, LogTimeout.
        """
        return self._run(self._steps.transfer(to))

    def _closed_error(self) -> LogError:
        return LogError("this Log is closed")

    def _timeout_error(self) -> LogTimeout:
        return timed_out(self._client, self.timeout_ms)

    @property
    def counters(self) -> dict[str, int]:
        """What happened: searches, leaders, refused, gaps, silent, junk, strays."""
        return dict(self._client.counters)


def reqids_of(source: Iterator[bytes], number: int) -> list[bytes]:
    """The next ones of a caller's. Raises ValueError when they are too few, or of another size."""
    ids = list(islice(source, number))
    if len(ids) < number or any(len(one) != REQID_BYTES for one in ids):
        raise ValueError(f"reqids has {REQID_BYTES} bytes for each update")
    return ids


def timed_out(client: LogClientMachine, timeout_ms: int) -> LogTimeout:
    """What is raised after so long without progress."""
    if client.leader is None:
        return LogNoLeader(f"no peer said for {timeout_ms} ms that it leads{client.hint}")
    return LogTimeout(f"no progress for {timeout_ms} ms")
