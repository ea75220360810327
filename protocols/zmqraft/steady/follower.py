"""A follower's steady state: when it begins, and what the peer learns when it has ended.

C does the follower's work meanwhile (csrc/steady, native/log/steady.py). Everything that it does
not know ends the state, and the peer goes on as if each message had come to it.
"""

from ....native.log.steady import (
    FollowerResult,
    FollowerState,
    SegmentState,
    SteadyEntries,
    SteadyFollower,
    WaitingAnswer,
)
from ...raft.messages import EntryBatch, Envelope
from ...raft.steady import (
    Contact,
    GivenEntries,
    LogEnd,
    answer_of,
    end_following,
    is_steady_follower,
)
from ..server.link import Origin
from ..server.peer import Peer
from ..wire.values import APPEND_PACKED, encode_uint


class SteadyFollowing:
    """The steady states of one peer as a follower."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.native = SteadyFollower(peer.setup.cluster.encode(), peer.updates.reqids)

    @property
    def may_begin(self) -> bool:
        """Whether the leader's messages are all that this peer has to handle."""
        peer = self._peer
        core = peer.core
        return (
            is_steady_follower(core)
            and peer.is_calm
            and peer.append_queue.is_settled
            and peer.append_queue.writable
            and peer.eligibility.may_vote
            and peer.entry_readers.knows_commits
            and core.leader in peer.requests.accepted_senders
        )

    @property
    def deadline_ms(self) -> int:
        """When Python must act at the latest."""
        return min(self._peer.core.deadline_ms, self._peer.full_due_ms)

    def begin(self, segment: SegmentState | None) -> None:
        """segment   None: the caller writes and syncs"""
        peer, core = self._peer, self._peer.core
        assert core.leader is not None
        state = FollowerState(
            term=core.term,
            leader=core.leader.encode(),
            last_index=core.log.last_index,
            commit_index=core.commit_index,
            heartbeat_ms=core.setup.tuning.heartbeat_ms,
            heard_ms=core.election.leader_heard_ms,
            gap_ms_max=core.election.leader_gap_ms_max,
            clients_wait=peer.requests.clients_wait,
        )
        self.native.begin(state, segment)

    def end(self) -> GivenEntries:
        """Takes over what C did."""
        peer, core, found = self._peer, self._peer.core, self.native.end()
        entries = found.entries
        end = log_end(core.term, entries)
        if any(end):
            peer.eligibility.on_entries_received()
        written_index = end.written[-1].last_index if end.written else core.durable_index
        written, received = self._answers(found, written_index)
        contact = Contact(found.messages, found.heard_ms, found.gap_ms_max, found.missed)
        end_following(core, end, contact, found.commit_index, received)
        seq = peer.append_queue.end_steady(end, entries.known, written)
        return GivenEntries((*end.durable, *end.written), seq, entries.offset, entries.synced)

    def _answers(
        self, found: FollowerResult, written_index: int
    ) -> tuple[list[Envelope], list[Envelope]]:
        """The answers that wait for the running sync, and those that wait for a later one."""
        written: list[Envelope] = []
        received: list[Envelope] = []
        for answer in found.answers:
            envelope = answer_of(self._peer.core, answer.last_index, self._origin(answer))
            (written if answer.last_index <= written_index else received).append(envelope)
        return written, received

    def _origin(self, answer: WaitingAnswer) -> Origin:
        leader = self._peer.core.leader
        assert leader is not None
        return Origin(
            self._peer.out.peers.add,
            leader,
            answer.route,
            encode_uint(answer.message_id),
            APPEND_PACKED,
            answer.last_index,
        )


def log_end(term: int, entries: SteadyEntries) -> LogEnd:
    durable, written, received = (
        [EntryBatch(first_index, count, term, block) for first_index, count, block in blocks]
        for blocks in entries[:3]
    )
    return LogEnd(durable, written, received)
