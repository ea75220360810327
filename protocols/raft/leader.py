"""The leader's part of the algorithm: replication, retries and the commit index."""

from collections.abc import Iterable, Mapping

from ..errors import RemoteProtocolError
from .log import RaftLog
from .membership import Configuration, majority_value, quorum_value
from .messages import (
    APPEND_BATCHES_MAX,
    AppendEntries,
    AppendResponse,
    EntryBatch,
    Envelope,
    Setup,
    StoredRead,
)
from .progress import APPEND_BYTES_MAX_PLAIN, Follower, PeerCapabilities, ReplicationState

URGENT_NOTICE_MS = 1  # An urgent commit notice waits so long for entries that could carry it.


class Leader:
    """The state of a leader in one term.

    Raft owns it, passes in events and collects its messages. It changes neither term nor log. Its
    followers are all other voters, and learners, which no majority counts.
    """

    __slots__ = (
        "_commit_index",
        "_configuration",
        "_followers",
        "_log",
        "_setup",
        "_term",
        "_term_start",
        "_tuning",
        "gives_leases",
        "read_round",
        "wanted_round",
    )

    def __init__(self, setup: Setup, log: RaftLog, term: int) -> None:
        self._setup = setup
        self._tuning = setup.tuning
        self._log = log
        self._term = term
        self._term_start = log.last_index + 1  # The index of this term's own first entry.
        self._commit_index = 0
        self.read_round = 0  # The newest round of reads (reads.py); every message belongs to it.
        self.wanted_round = 0  # The newest one that a read waits for.
        self.gives_leases = setup.tuning.lease_reads and setup.tuning.check_quorum
        self._configuration = Configuration(())
        self._followers: dict[str, Follower] = {}

    def configure(
        self,
        configuration: Configuration,
        capabilities: Mapping[str, PeerCapabilities],
        now_ms: int,
    ) -> None:
        """Sets the configuration that majorities are counted by, and the peers to replicate to."""
        self._configuration = configuration
        self._followers = {
            peer: self._followers.get(peer)
            or Follower(peer, capabilities, self._log.last_index + 1, now_ms)
            for peer, capabilities in capabilities.items()
        }

    def _majority(self, own: int, field: str) -> int:
        """Returns the largest value that a majority of the voters has reached, of both sets while
        joint.

        own     our own value, which counts only while this peer is a voter
        field   the name of a follower's value
        """
        followers, peer_id = self._followers, self._setup.peer_id
        voters, old = self._configuration
        if voters and not old:  # As quorum_value(), with fewer calls.
            return majority_value(
                own if voter == peer_id else followers[voter].counted(field) for voter in voters
            )
        return quorum_value(
            self._configuration,
            lambda voter: own if voter == peer_id else followers[voter].counted(field),
        )

    @property
    def term_start(self) -> int:
        """The index of this term's own first entry."""
        return self._term_start

    def follower(self, peer: str) -> Follower | None:
        return self._followers.get(peer)

    @property
    def followers(self) -> Iterable[Follower]:
        return self._followers.values()

    # ---- answers ----

    def on_response(self, peer: str, message: AppendResponse, now_ms: int) -> bool:
        """Processes an answer of this term. Returns True when the commit index may have changed.

        A refusal below the confirmed index counts only for a follower that may lose entries. From a
        kelek member it is an old message, because its hello reports a log that was lost.

        Raises RemoteProtocolError when it names entries that this leader never had.
        """
        follower = self._followers[peer]
        last_index = self._log.last_index
        if message.match_index > last_index or message.conflict_index > last_index:
            raise RemoteProtocolError(
                f"{peer} answers for entries after our last one, {last_index}"
            )
        follower.heard_ms = now_ms
        follower.answered_round = max(follower.answered_round, message.read_round)
        if message.success:
            follower.clients_wait = message.clients_wait
            return follower.on_match(message.match_index)
        next_index = self._next_index(follower, message)
        if 0 < next_index <= follower.match_index and follower.capabilities.may_lose_entries:
            follower.reset_match(next_index)
            return True
        if (
            follower.next_index <= self._log.base_index
            and follower.state is not ReplicationState.SNAPSHOT
        ):
            # A message or its answer was lost, and the entries behind it are compacted: heartbeats
            # name the base, which this follower lacks.
            follower.probe(follower.next_index, paused=False)
            return False
        # A refusal that names no new index is an old message: the entries are in flight already.
        if follower.match_index < next_index < follower.next_index:
            follower.probe(next_index, paused=False)
        return False

    def _next_index(self, follower: Follower, message: AppendResponse) -> int:
        """Returns the next index to send after a refusal, by its conflict hint (Raft, end of
        section 5.3).

        A refusal without a hint has index 0.
        """
        if message.conflict_term == 0:
            return message.conflict_index
        term_last = self._log.term_last(message.conflict_term)
        if term_last is None or term_last + 1 >= follower.next_index:
            return message.conflict_index
        return max(message.conflict_index, term_last + 1)

    def on_stored_read(self, peer: str, first_index: int, batches: list[EntryBatch]) -> None:
        """Keeps entries that were read from disk. It drops them when the log has been replaced."""
        follower = self._followers[peer]
        if follower.read_started_ms is None or follower.next_index != first_index:
            return
        at = first_index
        for batch in batches:
            if batch.first_index != at or self._log.term_at(batch.last_index) != batch.term:
                return
            at += batch.count
        if batches:  # Else they are not on disk yet; the read is repeated.
            follower.read_started_ms = None
            follower.loaded_batches = batches[:APPEND_BATCHES_MAX]

    def on_snapshot_response(self, peer: str, now_ms: int) -> None:
        """A follower has answered a chunk of a snapshot."""
        self._followers[peer].heard_ms = now_ms

    def on_snapshot_sent(self, peer: str, last_index: int) -> None:
        """A follower has installed a snapshot up to last_index; 0: it could not be sent.

        A probe then shows what the follower holds. If it still needs compacted entries, it gets
        another snapshot.
        """
        follower = self._followers[peer]
        if follower.state is ReplicationState.SNAPSHOT:
            next_index = max(follower.next_index, last_index + 1)
            follower.probe(min(next_index, self._log.last_index + 1), paused=False)

    def on_unreachable(self, peer: str) -> None:
        """The connection is lost with its messages: send heartbeats alone until the follower
        answers."""
        follower = self._followers[peer]
        if follower.state is not ReplicationState.SNAPSHOT:
            # It may have committed up to the index that was sent last, and its answer was lost.
            follower.probe(max(follower.match_index, follower.sent_commit_index) + 1, paused=True)

    def on_restarted(self, peer: str, last_index: int) -> None:
        """Forgets what a restarted peer has confirmed, until it confirms it again.

        Even a log of the same length may differ: the disk was lost, and another leader filled it.
        """
        follower = self._followers[peer]
        follower.match_index = 0
        if follower.state is not ReplicationState.SNAPSHOT:
            follower.probe(min(last_index, self._log.last_index) + 1, paused=False)

    def on_capabilities(self, peer: str, last_index: int | None) -> None:
        """The peer is reachable (again); `last_index` is the end of the log it started with."""
        follower = self._followers[peer]
        if last_index is not None and last_index < follower.match_index:
            follower.match_index = last_index  # It has lost confirmed entries.
            follower.probe(last_index + 1, paused=False)
        elif (
            last_index is not None
            and follower.state is ReplicationState.SNAPSHOT
            and self._log.base_index <= last_index <= self._log.last_index
        ):
            follower.probe(last_index + 1, paused=False)  # It got a snapshot from another peer.
        follower.paused = False

    # ---- reads ----

    @property
    def has_committed(self) -> bool:
        """Whether an entry of this term is committed. Then every earlier commit is known, too."""
        return self._commit_index >= self._term_start

    def confirmed_round(self) -> int:
        """The newest round of reads that a majority has answered."""
        return self._majority(self.read_round, "answered_round")

    def promised_round(self) -> int:
        """The newest round of reads whose answers are promises of a majority."""
        return self._majority(self.read_round, "promised_round")

    def send_read_round(self, now_ms: int, out: list[Envelope]) -> None:
        """Sends a heartbeat to each follower that has received no heartbeat of the wanted round.

        A message with entries is answered only when they are durable; reads need not wait for
        disks.
        """
        if not self.wanted_round:
            return
        for follower in self._followers.values():
            asked = max(follower.sent_round, follower.answered_round)
            if asked < self.wanted_round and not follower.awaits_response():
                self._send(follower, (), now_ms, out)

    # ---- times ----

    def quorum_heard_ms(self, now_ms: int) -> int:
        """The latest time since which a majority, this peer included, has answered."""
        return self._majority(now_ms, "heard_ms")

    def deadline_ms(self, now_ms: int) -> int:
        """When send_heartbeats() or send_entries() have something to do next."""
        return self.due_ms(self._followers.values(), now_ms)

    def due_ms(self, followers: Iterable[Follower], now_ms: int) -> int:
        """The same for some of the followers."""
        deadline = now_ms + self._tuning.heartbeat_ms
        for follower in followers:
            if follower.next_index <= self._log.last_index and follower.can_send_entries():
                if follower.read_started_ms is None:
                    return now_ms
                deadline = min(deadline, follower.read_started_ms + self._tuning.append_timeout_ms)
            deadline = min(deadline, follower.sent_ms + self._resend_after_ms(follower))
        return deadline

    def _resend_after_ms(self, follower: Follower) -> int:
        if follower.inflight and follower.capabilities.inflight_max == 1:
            return self._tuning.append_timeout_ms  # It accepts one message at a time.
        if follower.sent_commit_index < self._commit_index:
            return URGENT_NOTICE_MS if follower.clients_wait else self._tuning.commit_notice_ms
        return self._tuning.heartbeat_ms

    # ---- messages ----

    def has_messages(self) -> bool:
        """Whether the next calls below send something, send_heartbeats() aside."""
        last_index, commit_index = self._log.last_index, self._commit_index
        for follower in self._followers.values():
            if follower.next_index <= last_index and follower.can_send_entries():
                return True
            if follower.clients_wait and follower.sent_commit_index < commit_index == last_index:
                return True
            if max(follower.sent_round, follower.answered_round) < self.wanted_round:
                return True
        return False

    def may_wait(self) -> tuple[bool, bool]:
        """Whether our own sync can't commit anything before a follower has answered, and whether
        all is committed and no follower needs a message."""
        last_index, followers = self._log.last_index, self._followers.values()
        if self._commit_index < last_index:
            answered = any(each.match_index > self._commit_index for each in followers)
            return bool(followers) and not answered, False
        for follower in followers:
            settled = follower.state is ReplicationState.REPLICATE and not follower.clients_wait
            if not settled or follower.next_index <= last_index:
                return False, False
        return False, True

    def send_heartbeats(self, now_ms: int, out: list[Envelope]) -> None:
        """Adds the heartbeats and commit notices that are due.

        In REPLICATE state the previous index covers everything sent: a follower that lost a message
        refuses the heartbeat and names its last index.
        """
        for follower in self._followers.values():
            silent_ms = now_ms - follower.sent_ms
            if silent_ms < URGENT_NOTICE_MS or silent_ms < self._resend_after_ms(follower):
                continue
            self._send(follower, (), now_ms, out)

    def send_commit_notices(self, now_ms: int, out: list[Envelope]) -> None:
        """Adds urgent commit notices when no entries follow that would carry the commit index."""
        if self._commit_index == self._log.last_index:
            for follower in self._followers.values():
                if follower.clients_wait and follower.sent_commit_index < self._commit_index:
                    self._send(follower, (), now_ms, out)

    def send_entries(
        self, now_ms: int, out: list[Envelope], reads: list[StoredRead], snapshots: list[str]
    ) -> None:
        """Adds at most one message with entries for each follower, or a read or snapshot that it
        needs."""
        last_index = self._log.last_index
        for follower in self._followers.values():
            if follower.next_index > last_index or not follower.can_send_entries():
                continue
            if follower.next_index <= self._log.base_index:
                follower.state = ReplicationState.SNAPSHOT
                snapshots.append(follower.peer)
                continue
            batches = self._entries(follower)
            if batches is None:
                if self._may_read_log(follower, now_ms):
                    follower.read_started_ms = now_ms
                    bytes_max = self._bytes_max(follower)
                    reads.append(StoredRead(follower.peer, follower.next_index, bytes_max))
                continue
            self._send(follower, tuple(batches), now_ms, out)
            follower.next_index = batches[-1].last_index + 1
            if follower.state is ReplicationState.PROBE:
                follower.paused = True
            else:
                follower.inflight.append(follower.next_index - 1)

    def _may_read_log(self, follower: Follower, now_ms: int) -> bool:
        read_ms = follower.read_started_ms
        return read_ms is None or now_ms - read_ms >= self._tuning.append_timeout_ms

    def _bytes_max(self, follower: Follower) -> int:
        return min(self._tuning.append_bytes_max, follower.capabilities.append_bytes_max)

    def _entries(self, follower: Follower) -> list[EntryBatch] | None:
        """Returns the entries from next_index on; None when they are not in memory."""
        found: list[EntryBatch] | None
        if follower.loaded_batches:
            found, follower.loaded_batches = follower.loaded_batches, []
        else:
            found = self._log.slice(follower.next_index, self._bytes_max(follower))
            if found is not None and found[0].first_index < follower.next_index:
                found[0] = self._setup.cut(found[0], follower.next_index)
        if found is not None and follower.capabilities.append_bytes_max == APPEND_BYTES_MAX_PLAIN:
            return self._limit_plain(follower, found)
        return found

    def _limit_plain(self, follower: Follower, batches: list[EntryBatch]) -> list[EntryBatch]:
        """Splits a batch that exceeds what a foreign peer accepts in one message. The rest is kept.

        It assumes that all entries of a batch have the same size.
        """
        first = batches[0]
        count = max(1, first.count * APPEND_BYTES_MAX_PLAIN // len(first.block))
        if count >= first.count:
            return batches
        last_index = first.first_index + count - 1
        follower.loaded_batches = [self._setup.cut(first, last_index + 1), *batches[1:]]
        return [self._setup.trim(first, last_index)]

    def _send(
        self, follower: Follower, batches: tuple[EntryBatch, ...], now_ms: int, out: list[Envelope]
    ) -> None:
        prev_index = max(follower.next_index - 1, self._log.base_index)
        prev_term = self._log.term_at(prev_index)
        assert prev_term is not None
        commit_index = self._commit_index
        out.append(
            Envelope(
                follower.peer,
                AppendEntries(
                    self._term,
                    self._setup.peer_id,
                    prev_index,
                    prev_term,
                    commit_index,
                    batches,
                    self.read_round,
                ),
            )
        )
        if not batches:
            follower.sent_round = self.read_round
        follower.sent_ms = now_ms
        follower.sent_commit_index = commit_index

    # ---- commit ----

    def advance_commit(self, durable_index: int, commit_index: int) -> int:
        """Returns the new commit index, given our durable index and the previous commit index.

        Only an entry of the current term is committed by counting; all entries before it are
        committed with it (Raft, section 5.4.2).
        """
        index = self._majority(durable_index, "match_index")
        if index >= self._term_start and index > commit_index:
            commit_index = index
        self._commit_index = commit_index
        return commit_index
