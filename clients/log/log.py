"""kelek.Log: the blocking client of the replicated log."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from ...protocols.zmqraft.client.client import LogClientMachine, PendingUpdates
from ...protocols.zmqraft.wire.client_codec import ConfigAnswer, LogInfo
from ...protocols.zmqraft.wire.entry import Entry
from ...protocols.zmqraft.wire.snapshot_codec import SnapshotMade
from ...protocols.zmqraft.wire.values import REQID_BYTES
from ..aliases import old_name
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
    """A client of a replicated log. It has no thread: its calls do all work.

        with kelek.Log("tcp://127.0.0.1:7201,tcp://127.0.0.1:7202") as log:
            index = log.append(b"one")
            log.append_many(lines)
            for entry in log.entries(after=index): ...

    urls         addresses of some peers, as a list or joined by commas; the client learns the
                 others. zre://CLUSTER looks them up by discovery
    cluster      the cluster's ident
    timeout_ms   a call that makes no progress for so long raises LogTimeout or LogNoLeader
    form         the layout of requests: "auto" (packed where the peer supports it, else node's
                 form), "node" or "text" (one value a message: no order across a failover)
    tuning       limits of the window, and timeouts of the search for a leader

    The cluster appends the values of one Log in the order of the calls and each exactly once, also
    across failovers. Use a Log in one thread at a time.
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
        self._operations = LogOperations(self._client)
        self._own(Links(self._client))

    def reach(self, timeout_ms: int = REACH_MS) -> None:
        """Waits until a peer of the cluster has answered, with or without a leader.

        Raises LogUnavailable after timeout_ms. Other calls wait self.timeout_ms for peers.
        """
        self._run(self._operations.reach(timeout_ms))

    # ---- writing ----

    def append(self, data: Data) -> int:
        """Appends a value of 1 byte to 10 MiB; returns its LOG INDEX once it is committed.

        Raises LogTooLarge (nothing was sent), LogRefused, LogExpired, LogTimeout, LogNoLeader,
        LogUnavailable.
        """
        pending = PendingUpdates(new_reqids(1), [checked(data)])
        self._run(self._operations.add(pending))
        self._run(self._operations.settle(pending, 0))
        return pending.runs[0][1]

    def append_many(
        self,
        values: Iterable[Data],
        progress: Callable[[int], object] | None = None,
        *,
        reqids: Iterable[bytes] | None = None,
    ) -> int:
        """Appends values in order, pipelined; returns their count once all are committed.

        The call collects values up to a pack (1024 values or 256 KiB) while it waits for the next
        item of the iterable. Use append() for a source that pauses.

        progress   called with the count committed so far
        reqids     a unique request id of 12 bytes for each value. The cluster counts a value whose
                   id it knows as committed and does not append it again. Default: new ids

        Raises as append() does.
        """
        count = 0
        for pending in self._committed(values, reqids):
            count += len(pending.updates)
            if progress is not None:
                progress(count)
        return count

    def append_each(self, values: Iterable[Data]) -> Generator[int, None, None]:
        """Appends values in order, pipelined; yields the LOG INDEX of each in that order.

        It sends nothing before the caller asks for the first index. Raises as append() does.
        """
        for pending in self._committed(values):
            for count, first_index in pending.runs:
                yield from range(first_index, first_index + count)

    def _committed(
        self, values: Iterable[Data], reqids: Iterable[bytes] | None = None
    ) -> Iterator[PendingUpdates]:
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
                self._run(self._operations.add(pending))
                mine.append(pending)
                self._run_once(0)
                pack = next(source, None)
            self._run(self._operations.settle(mine[0], count))
            while mine and mine[0].runs:
                pending = mine.popleft()
                self._run(self._operations.settle(pending, count))
                count += len(pending.updates)
                yield pending

    # ---- reading ----

    def entries(
        self, after: int = 0, count: int | None = None, *, url: str | None = None
    ) -> Generator[Entry, None, None]:
        """The entries after LOG INDEX after: all that are committed, or count of them.

        They include every entry that was acknowledged to any client before the call, and every
        entry that this Log has read.

        url   a peer that need not lead. It serves what it knows to be committed, at least up to
              what this Log has read. If it does not answer, lags behind that, or no longer stores
              the entries, the leader serves them

        Raises LogCompacted when a snapshot has replaced the first of them, LogTimeout,
        LogNoLeader, LogUnavailable.
        """
        query = EntriesQuery(after, count, url)
        for entries in self._iterate(self._operations.entries(query)):
            yield from entries

    def to_arrow(
        self, after: int = 0, count: int | None = None, *, url: str | None = None
    ) -> Generator["pyarrow.RecordBatch", None, None]:
        """The same entries as Arrow record batches of about 1 MiB each.

        index, term   int64
        type          int8: 0 state, 1 config, 2 checkpoint, 3 table
        reqid         binary; null: the cluster appended the entry
        time          timestamp of the request id, to the second, UTC; null without one
        data          binary

        Raises LogError when pyarrow is not installed, else as entries() does.
        """
        query = EntriesQuery(after, count, url)
        for batches in self._iterate(self._operations.entry_columns(query)):
            yield from batches

    def watch(self, after: int | None = 0) -> Generator[Entry, None, None]:
        """The entries after LOG INDEX after (None: from now on), then each new one once committed.

        The iterator never ends by itself. It yields every entry once and in order, whichever peer
        leads and however slowly the caller reads. To go on after a pause, or in another process,
        pass the index of the last entry. Without a leader it waits. A kelek leader broadcasts
        entries, and the client requests only those that the broadcasts lack; it polls any other
        leader. Raises LogCompacted as entries() does.
        """
        for entries in self.watch_lists(after):
            yield from entries

    def watch_lists(self, after: int | None = 0) -> Generator[list[Entry], None, None]:
        """As watch(): one list, never empty, of all entries that arrived together."""
        yield from self._iterate(self._operations.watch(after))

    def read_index(self, *, applied: bool = True) -> int:
        """A linearizable read: a LOG INDEX at or above every append acknowledged before the call.

        A majority confirms during the call that the leader still leads, so a deposed leader never
        answers. A reader that has applied the log up to the index sees the effect of every append
        that any client had acknowledged before the call.

        applied   True: the leader has applied the index, so entries() of this Log reaches it.
                  False: return once the index is confirmed, for state that the caller keeps

        Raises LogError when the leader does not support such reads or form is not "auto",
        LogNoLeader, LogTimeout.
        """
        return self._run(self._operations.read_index(applied))

    # ---- the cluster ----

    def info(self, url: str | None = None) -> LogInfo:
        """Term and indexes of the leader's log, or of that of the peer at url."""
        return self._run(self._operations.info(url))

    def make_snapshot(self, url: str | None = None) -> SnapshotMade:
        """Orders a snapshot from the leader, or from the peer at url; returns once it is durable.

        The peer then drops the entries that the snapshot covers. Raises SnapshotRefused with the
        reason, SnapshotUnsupported when the peer is not kelek.
        """
        return self._run(self._operations.make_snapshot(url))

    def state(self) -> tuple[int, bytes]:
        """The leader's snapshot: the last LOG INDEX in it, and the state up to there.

        (0, b"") when the leader still stores every entry.
        """
        return self._run(self._operations.state())

    def config(self) -> ConfigAnswer:
        """The leader, and the members' ids and urls."""
        return self._run(self._operations.config())

    def members(self) -> dict[str, str]:
        """PEER ID -> url of each member; during a change, of the members of both sets."""
        return members_of(self.config())

    def set_members(self, members: Mapping[str, str]) -> int:
        """Replaces the members of the cluster, PEER ID -> url; returns the change's LOG INDEX.

        It returns when the change is complete: new members have caught up, and removed members no
        longer count. This may take long; timeout_ms bounds the time without news from the leader.

        Raises MembersRefused with the reason, MembersConflict, LogNoLeader, LogTimeout. After the
        last two the change may still happen.
        """
        return self._run(self._operations.set_members(members))

    def add_member(self, peer_id: str, url: str) -> int:
        """Adds a running peer to the members; see set_members()."""
        return self._run(self._operations.add_member(peer_id, url))

    def remove_member(self, peer_id: str) -> int:
        """Removes a peer from the members; see set_members()."""
        return self._run(self._operations.remove_member(peer_id))

    def broadcast_url(self) -> str | None:
        """The address at which the leader's state machine broadcasts; None: it does not."""
        return self._run(self._operations.broadcast_url())

    def transfer(self, to: str | None = None) -> str:
        """Moves the leadership to the member `to`, by default to the most advanced follower.

        Returns the PEER ID of the new leader once it leads. Appends wait some milliseconds; none is
        lost or refused. Raises TransferRefused with the reason (`to` is no voter, is not reachable,
        does not support transfers, or did not take over within an election timeout), LogNoLeader,
        LogTimeout.
        """
        return self._run(self._operations.transfer(to))

    update = old_name("update", append)
    update_many = old_name("update_many", append_many)
    update_each = old_name("update_each", append_each)
    subscribe = old_name("subscribe", watch)
    subscribe_lists = old_name("subscribe_lists", watch_lists)
    follow = old_name("follow", watch)

    def _closed_error(self) -> LogError:
        return LogError("this Log is closed")

    def _timeout_error(self) -> LogTimeout:
        return timed_out(self._client, self.timeout_ms)

    @property
    def counters(self) -> dict[str, int]:
        """Counts of events: searches, leaders, refused, gaps, silent, junk, strays."""
        return dict(self._client.counters)


def reqids_of(source: Iterator[bytes], number: int) -> list[bytes]:
    """The next request ids of a caller. Raises ValueError: too few, or of another size."""
    ids = list(islice(source, number))
    if len(ids) < number or any(len(each) != REQID_BYTES for each in ids):
        raise ValueError(f"reqids has {REQID_BYTES} bytes for each value")
    return ids


def timed_out(client: LogClientMachine, timeout_ms: int) -> LogTimeout:
    """The error after timeout_ms without progress."""
    if client.leader is None:
        return LogNoLeader(f"no peer led for {timeout_ms} ms{client.hint}")
    return LogTimeout(f"no progress for {timeout_ms} ms")
