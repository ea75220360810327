"""A follower's work in C while nothing unusual happens: append, sync, acknowledge (csrc/steady).

It knows the rules of Raft for this state alone. The caller gives it the numbers of its core, and
takes them back together with the blocks that were appended meanwhile.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import zmq

from ..._native import ffi, lib
from ..errors import NativeError, os_error, uncleared
from ..latency import IndexLatency
from ..net.messages import Arena, Frames
from ..net.poller import Poller, Source
from ..net.sockets import Drain, native_socket
from .lease import SharedLease
from .reads import Reads
from .segments import Segment, Syncer
from .updates import Reqids, Updates

REASONS = ("time", "source", "message", "notice", "full", "segment", "disk")
LEFT_NOTHING: int = lib.KLK_STEADY_NOTHING
LEFT_OTHERS: int = lib.KLK_STEADY_OTHERS
LEFT_PARTIAL: int = lib.KLK_STEADY_PARTIAL
LEFT_ARENA: int = lib.KLK_STEADY_ARENA
PEERS_MAX: int = lib.KLK_STEADY_PEERS_MAX
VOTERS_MAX: int = lib.KLK_STEADY_VOTERS_MAX
WINDOW_MAX: int = lib.KLK_STEADY_WINDOW_MAX
PENDING_MAX: int = lib.KLK_STEADY_PENDING_MAX
MARKS_MAX: int = lib.KLK_STEADY_MARKS_MAX
ROUNDS_BEFORE_MAX = 32  # That a steady state takes over.
CLIENTS: int = lib.KLK_STEADY_CLIENTS
TABLES: int = lib.KLK_STEADY_TABLES


class FollowerState(NamedTuple):
    """A follower's core when a steady state begins. All entries are durable."""

    term: int  # Also of the last entry.
    leader: bytes  # Its PEER ID.
    last_index: int
    commit_index: int
    heartbeat_ms: int
    heard_ms: int  # When a message of the leader last arrived.
    gap_ms_max: int
    clients_wait: bool  # Answers say so.


class SegmentState(NamedTuple):
    """Where the log goes on in its active segment. Everything before is durable."""

    segment: Segment
    syncer: Syncer
    offset: int
    epoch: int


class SteadyBlock(NamedTuple):
    first_index: int
    count: int  # type: ignore[assignment]  # Of entries; hides the tuple's own.
    block: bytes


class WaitingAnswer(NamedTuple):
    """An answer to the leader that waits until the entries up to last_index are durable."""

    last_index: int
    message_id: int
    route: bytes


class SteadyEntries(NamedTuple):
    """What was appended in a steady state."""

    durable: list[SteadyBlock]
    written: list[SteadyBlock]  # In the segment; their sync runs.
    received: list[SteadyBlock]  # Not written yet.
    known: int  # Blocks whose request ids are in the table.
    offset: int  # In the segment, behind the written blocks.
    synced: int


class FollowerResult(NamedTuple):
    """What a follower did in its steady state."""

    entries: SteadyEntries
    answers: list[WaitingAnswer]
    commit_index: int
    heard_ms: int
    gap_ms_max: int
    missed: int  # Heartbeats.
    messages: int  # Of the leader.


class SteadySocket(NamedTuple):
    """A socket with its drain and its outgoing messages."""

    socket: "zmq.Socket[bytes]"
    drain: Drain
    out: Frames


class SteadyNotices(NamedTuple):
    """Notices of commits that C sends to the processes that apply."""

    socket: "zmq.Socket[bytes]"
    messages: Frames  # What they get; C writes the index.
    urgent: Frames  # What those get that need each commit at once.
    index_at: int  # Its place in each of them: 8 bytes, little endian.
    period_ms: int
    alive_ms: int  # 0, or without a commit all get one so long after due_ms.
    from_index: int  # An earlier index would need other messages.
    noticed: "Noticed"


class Noticed(NamedTuple):
    """What the processes that apply know."""

    all_index: int  # The last one that all know.
    urgent_index: int  # The last one that urgent ones know.
    due_ms: int  # When all may get the next notice.


def _fill_notices(c: Any, notices: SteadyNotices) -> None:
    c.socket, c.messages = native_socket(notices.socket), notices.messages._struct
    c.urgent, c.alive_ms = notices.urgent._struct, notices.alive_ms
    c.index_at, c.period_ms = notices.index_at, notices.period_ms
    c.from_index = notices.from_index
    c.noticed_index, c.urgent_index, c.due_ms = notices.noticed
    c.sent = c.sent_urgent = 0


def _noticed(c: Any) -> Noticed | None:
    """None: no notice was sent."""
    if not (c.sent or c.sent_urgent):
        return None
    return Noticed(int(c.noticed_index), int(c.urgent_index), int(c.due_ms))


class SteadyLog:
    """The entries that C appends in a steady state."""

    def __init__(self, log: Any, reqids: Reqids) -> None:
        """log: struct klk_steady_log, a part of the caller's struct"""
        self._log = log
        self._bytes = uncleared("uint8_t[]", lib.KLK_STEADY_BYTES_MAX)
        self._blocks = uncleared("struct klk_steady_block[]", lib.KLK_STEADY_BLOCKS_MAX)
        log.bytes, log.bytes_max = self._bytes, lib.KLK_STEADY_BYTES_MAX
        log.blocks, log.blocks_max = self._blocks, lib.KLK_STEADY_BLOCKS_MAX
        self._reqids = reqids
        log.reqids = reqids._struct
        self._segment: SegmentState | None = None
        self._before = 0  # Blocks of before the steady state.

    def begin(
        self,
        term: int,
        last_index: int,
        segment: SegmentState | None,
        before: Sequence[SteadyBlock] = (),
    ) -> None:
        """before: the last blocks of the log, which are durable: some follower lacks them"""
        log = self._log
        log.term, log.last_index, log.durable_index = term, last_index, last_index
        log.used = 0
        for at, (first_index, count, block) in enumerate(before):
            place = log.blocks[at]
            place.first_index, place.count = first_index, count
            place.start, place.size = log.used, len(block)
            ffi.memmove(self._bytes + log.used, block, len(block))
            log.used += len(block)
        self._before = log.count = log.written = log.durable = log.known = len(before)
        log.syncing = log.error = log.sync_failed = 0
        self._segment = segment
        if segment is not None:
            log.segment, log.syncer = segment.segment._segment, segment.syncer._syncer
            log.offset = log.synced = segment.offset
            log.epoch = segment.epoch

    @property
    def is_syncing(self) -> bool:
        return bool(self._log.syncing)

    @property
    def pointer(self) -> Any:
        return ffi.addressof(self._log)

    def start_sync(self) -> bool:
        """The blocks so far are being written and synced. False: a sync runs, or all are."""
        if self._log.syncing or self._log.written == self._log.count:
            return False
        lib.klk_steady_start(self.pointer)
        return True

    def finish_sync(self) -> None:
        """They are durable."""
        lib.klk_steady_finish(self.pointer)

    def grow_reqids(self) -> None:
        """Makes the room that C has asked for."""
        self._reqids._grow()

    @property
    def sync_error(self) -> int:
        """The errno of a sync that has failed, or 0."""
        return int(self._log.error) if self._log.sync_failed else 0

    def end(self) -> SteadyEntries:
        log = self._log
        blocks = [
            SteadyBlock(
                one.first_index,
                one.count,
                bytes(ffi.buffer(log.bytes + one.start, one.size)),
            )
            for one in (log.blocks[at] for at in range(self._before, log.count))
        ]
        durable, written = log.durable - self._before, log.written - self._before
        return SteadyEntries(
            blocks[:durable],
            blocks[durable:written],
            blocks[written:],
            log.known - self._before,
            log.offset,
            log.synced,
        )


class SteadyFollower:
    """The follower's part of a steady state; one at a time."""

    def __init__(self, cluster: bytes, reqids: Reqids) -> None:
        self.follower = ffi.new("struct klk_steady_follower *")
        self.log = SteadyLog(self.follower.log, reqids)
        self._ident = ffi.new("uint8_t[]", cluster)
        self.follower.ident, self.follower.ident_size = self._ident, len(cluster)
        self._leader: Any = None
        self._position = ffi.new("uint32_t *")

    def begin(self, state: FollowerState, segment: SegmentState | None = None) -> None:
        """segment   None: the caller writes and syncs (start_sync(), finish_sync())"""
        follower = self.follower
        self._leader = ffi.new("uint8_t[]", state.leader)
        follower.leader, follower.leader_size = self._leader, len(state.leader)
        follower.commit_index, follower.heartbeat_ms = state.commit_index, state.heartbeat_ms
        follower.heard_ms, follower.gap_ms_max = state.heard_ms, state.gap_ms_max
        follower.missed = follower.messages = follower.first = follower.waiting = 0
        follower.clients_wait = state.clients_wait
        self.log.begin(state.term, state.last_index, segment)

    # ---- for a caller that writes and syncs itself ----

    def follow(self, arena: Arena, now_ms: int, out: Frames) -> int:
        """Handles the messages of an arena up to the first one that it does not know. Returns how
        many; out gets the answers that need not wait."""
        self._position[0] = 0
        code = lib.klk_steady_follow(
            self.follower, arena._struct, self._position, now_ms, out._struct
        )
        if code < 0 and code != lib.KLK_EFULL:
            raise NativeError(code)
        return int(self._position[0])

    def finish_sync(self, out: Frames) -> None:
        """The sync of self.log has ended: out gets the answers that have waited for it."""
        self.log.finish_sync()
        out.fill(lib.klk_steady_answer, self.follower, out._struct)
        lib.klk_steady_reqids(self.log.pointer)

    def end(self) -> FollowerResult:
        follower = self.follower
        places = range(follower.first, follower.first + follower.waiting)
        waiting = [follower.answers[at % lib.KLK_STEADY_ANSWERS_MAX] for at in places]
        return FollowerResult(
            self.log.end(),
            [
                WaitingAnswer(
                    one.last_index,
                    one.message_id,
                    bytes(ffi.buffer(ffi.addressof(one, "route"), one.route_size)),
                )
                for one in waiting
            ],
            follower.commit_index,
            follower.heard_ms,
            follower.gap_ms_max,
            follower.missed,
            follower.messages,
        )


class PeerState(NamedTuple):
    """A follower of a leader when a steady state begins, and when it ends."""

    next_index: int
    match_index: int
    sent_commit_index: int
    answered_round: int
    sent_round: int  # The newest in a message without entries.
    sent_ms: int
    heard_ms: int
    window: tuple[int, ...]  # Last indexes of unanswered messages with entries.
    message_id: int  # Of the last message.
    pending: tuple[tuple[int, int, int], ...]  # Unanswered messages: id, last index, round.
    answered: bool = False  # It has answered since the state began.
    clients_wait: bool = False  # Clients of its node wait for commits.


class PeerLimits(NamedTuple):
    window_max: int
    bytes_max: int  # Of the blocks of one message.
    counts: bool  # It is a voter, and no learner.
    promises: bool  # Its answers are promises to elect no other leader.


class LeadingState(NamedTuple):
    """A leader's core when a steady state begins. All its entries are durable here."""

    term: int
    name: bytes  # Its PEER ID.
    last_index: int
    commit_index: int
    term_start: int
    commit_notice_ms: int
    heartbeat_ms: int
    round: int
    round_started_ms: int
    gives_leases: bool
    is_voter: bool
    match_others: Sequence[int]
    others_notice_ms: int  # When the other followers must learn of a commit.
    views: Sequence[tuple[int, int]]  # `marked` and `kind` of View, of each intake.
    lease_ms: int  # How long a round gives a lease.
    rounds: Sequence[tuple[int, int]]  # The newest, and when each started.


class LeaderResult(NamedTuple):
    """What a leader did in its steady state."""

    entries: SteadyEntries
    commit_index: int
    round: int
    rounds: list[tuple[int, int]]  # Since the state began, and when each started.
    lease_answers: int  # Times that a lease has answered reads.
    peers: list[PeerState]
    marks: list[tuple[int, int]]
    counted_index: int


class SteadyLeader:
    """The leader's part of a steady state; one at a time."""

    GROW: int = lib.KLK_EGROW

    def __init__(
        self, cluster: bytes, intakes: Sequence[tuple[Updates, int]], reads: Reads
    ) -> None:
        """intakes: of clients and of table servers, with the frames_max of their arenas"""
        self.leader = ffi.new("struct klk_steady_leader *")
        self.intakes = [updates for updates, _ in intakes]
        self.log = SteadyLog(self.leader.log, self.intakes[CLIENTS].reqids)
        self._ident = ffi.new("uint8_t[]", cluster)
        self.leader.ident, self.leader.ident_size = self._ident, len(cluster)
        self._others = [uncleared("uint32_t[]", frames_max) for _, frames_max in intakes]
        for at, updates in enumerate(self.intakes):
            intake = self.leader.intakes[at]
            intake.updates, intake.others_found = updates._struct, self._others[at]
        self._reads, self.leader.reads = reads, reads._struct
        self._name: Any = None
        self._latency: IndexLatency | None = None
        self._outs: list[Frames] = []
        self._position = ffi.new("uint32_t *")
        self._rounds_before = 0

    def begin(
        self,
        state: LeadingState,
        peers: Sequence[tuple[PeerState, PeerLimits, Frames]],
        latency: IndexLatency,
        segment: SegmentState | None = None,
        unsent: Sequence[SteadyBlock] = (),
    ) -> None:
        """unsent: the last blocks of the log, from the first one that a follower lacks"""
        leader = self.leader
        self._name = ffi.new("uint8_t[]", state.name)
        leader.name, leader.name_size = self._name, len(state.name)
        leader.commit_index, leader.term_start = state.commit_index, state.term_start
        leader.commit_notice_ms, leader.heartbeat_ms = state.commit_notice_ms, state.heartbeat_ms
        leader.round, leader.round_started_ms = state.round, state.round_started_ms
        leader.gives_leases, leader.is_voter = state.gives_leases, state.is_voter
        leader.lease_ms, leader.lease_answers = state.lease_ms, 0
        self._rounds_before = leader.rounds_count = len(state.rounds)
        for at, (number, started_ms) in enumerate(state.rounds):
            leader.rounds[at].number, leader.rounds[at].started_ms = number, started_ms
        leader.others_notice_ms, leader.began_index = state.others_notice_ms, state.commit_index
        leader.others = len(state.match_others)
        for at, match_index in enumerate(state.match_others):
            leader.match_others[at] = match_index
        for at, (marked, kind) in enumerate(state.views):
            intake = leader.intakes[at]
            intake.others_count = 0
            view = intake.view
            view.refusal, view.refusal_size, view.leader = ffi.NULL, 0, 1
            view.marked, view.kind = marked, kind
        self._latency, leader.latency = latency, latency.struct
        leader.counted_index = latency.reached
        leader.marks_count = len(latency.marks)
        for at, (index, since_us) in enumerate(latency.marks):
            leader.marks[at].index, leader.marks[at].since_us = index, since_us
        leader.peers_count = len(peers)
        self._outs = [out for _, _, out in peers]
        for at, (peer, limits, out) in enumerate(peers):
            _fill_peer(leader.peers[at], peer, limits, out)
        self.log.begin(state.term, state.last_index, segment, unsent)

    # ---- for a caller without a loop ----

    def propose(
        self, source: int, arena: Arena, times: tuple[int, int, int], out: Frames
    ) -> tuple[int, list[int]]:
        """Receives the updates of an arena from CLIENTS or TABLES. times: ms, Unix s, us. Returns
        the code of klk_steady_propose(), and the numbers of messages that are no updates."""
        now_ms, unix_s, now_us = times
        code = lib.klk_steady_propose(
            self.leader, source, arena._struct, now_ms, unix_s, now_us, out._struct
        )
        return code, self.others(source)

    def tick(self, now_ms: int) -> None:
        lib.klk_steady_tick(self.leader, now_ms)

    def answer_reads(self, now_ms: int, out: Frames) -> bool:
        """Answers the reads that wait, by a lease. False: Python must."""
        return bool(lib.klk_steady_reads(self.leader, now_ms, out._struct) == lib.KLK_OK)

    def send(self, peer: int, now_ms: int) -> bool:
        """Sends entries to a follower. False: Python must."""
        return bool(lib.klk_steady_send(self.leader, peer, now_ms) == lib.KLK_OK)

    def answers(self, peer: int, arena: Arena, now_ms: int) -> int:
        """Handles answers up to the first one that it does not know. Returns how many."""
        self._position[0] = 0
        lib.klk_steady_answers(self.leader, peer, arena._struct, self._position, now_ms)
        return int(self._position[0])

    def commit(self, now_us: int, outs: Sequence[Frames]) -> None:
        """outs: of clients and of table servers"""
        pointers = ffi.new("struct klk_messages *[]", [out._struct for out in outs])
        while lib.klk_steady_commit(self.leader, now_us, pointers) != lib.KLK_OK:
            for out in outs:
                out._double()

    def beat(self, now_ms: int) -> bool:
        """Sends the messages without entries that are due. False: Python must."""
        return bool(lib.klk_steady_beat(self.leader, now_ms) == lib.KLK_OK)

    @property
    def due_ms(self) -> int:
        """When a follower that C does not replicate to needs a message."""
        return int(lib.klk_steady_due_ms(self.leader))

    @property
    def lease_ms(self) -> int:
        """Until when reads may rely on this leader; 0: there is no lease."""
        return int(lib.klk_steady_lease_ms(self.leader))

    # ---- the end ----

    def others(self, source: int) -> list[int]:
        """The numbers of messages that were no updates, of the last arena from there."""
        return list(ffi.unpack(self._others[source], self.leader.intakes[source].others_count))

    def end(self) -> LeaderResult:
        leader = self.leader
        count = leader.rounds_count
        ring = lib.KLK_STEADY_ROUNDS_MAX
        first = max(self._rounds_before, count - ring)
        rounds = (leader.rounds[at % ring] for at in range(first, count))
        return LeaderResult(
            self.log.end(),
            leader.commit_index,
            leader.round,
            [(one.number, one.started_ms) for one in rounds],
            leader.lease_answers,
            [_peer_state(leader.peers[at]) for at in range(leader.peers_count)],
            [(one.index, one.since_us) for one in leader.marks[0 : leader.marks_count]],
            leader.counted_index,
        )


def _fill_peer(c: Any, peer: PeerState, limits: PeerLimits, out: Frames) -> None:
    c.out = out._struct
    c.next_index, c.match_index = peer.next_index, peer.match_index
    c.sent_commit_index, c.answered_round = peer.sent_commit_index, peer.answered_round
    c.sent_round = peer.sent_round
    c.sent_ms, c.heard_ms = peer.sent_ms, peer.heard_ms
    c.bytes_max, c.window_max = limits.bytes_max, limits.window_max
    c.counts, c.promises = limits.counts, limits.promises
    c.answered, c.clients_wait = False, peer.clients_wait
    c.window_first, c.window_count = 0, len(peer.window)
    for at, last_index in enumerate(peer.window):
        c.window[at] = last_index
    c.message_id = peer.message_id
    c.pending_first, c.pending_count = 0, len(peer.pending)
    for at, (message_id, last_index, round_) in enumerate(peer.pending):
        one = c.pending[at]
        one.message_id, one.last_index, one.round = message_id, last_index, round_


def _peer_state(c: Any) -> PeerState:
    window = range(c.window_first, c.window_first + c.window_count)
    pending = range(c.pending_first, c.pending_first + c.pending_count)
    requests = (c.pending[at % lib.KLK_STEADY_PENDING_MAX] for at in pending)
    return PeerState(
        c.next_index,
        c.match_index,
        c.sent_commit_index,
        c.answered_round,
        c.sent_round,
        c.sent_ms,
        c.heard_ms,
        tuple(c.window[at % lib.KLK_STEADY_WINDOW_MAX] for at in window),
        c.message_id,
        tuple((one.message_id, one.last_index, one.round) for one in requests),
        bool(c.answered),
        bool(c.clients_wait),
    )


class LeadingWait(NamedTuple):
    """What a wait of a leader has left."""

    ready: list[tuple[Source, int]]
    reason: int
    left: list[int]  # LEFT_*, of each intake: what the caller must do with its arena.
    links: list[int]  # Numbers of peers whose arenas have messages for the caller.
    unix_s: int
    noticed: Noticed | None  # As SteadyTurn.noticed.


class LeadingTurn:
    """The loop around a SteadyLeader: it waits like the poller and does the work meanwhile."""

    def __init__(
        self, leader: SteadyLeader, poller: Poller, lease: SharedLease | None = None
    ) -> None:
        self._leader, self._poller, self._lease = leader, poller, lease
        self._turn = ffi.new("struct klk_steady_lead *")
        self._turn.leader = leader.leader
        self._turn.lease = ffi.NULL if lease is None else lease.lease
        self._references: Any = None
        self._outs: list[Frames] = []

    def listen(self, intakes: Sequence[SteadySocket], links: Sequence[SteadySocket]) -> None:
        """The ROUTERs of clients and of table servers, and the DEALERs of the followers of the
        next state."""
        self._references = sockets = [*intakes, *links]
        self._outs = [each.out for each in sockets]
        for router, (socket, drain, out) in zip(self._routers, sockets, strict=True):
            router.socket, router.drain = native_socket(socket), drain._drain
            router.out = out._struct

    def wait(self, timeout_ms: int, notices: SteadyNotices, suspended_ms: int) -> LeadingWait:
        """As SteadyTurn.wait(). suspended_ms: net.clock.suspended_ms(), before this state"""
        turn = self._turn
        turn.suspended_ms = suspended_ms
        turn.poll = self._poller._poll
        _fill_notices(turn.notices, notices)
        while True:
            if lib.klk_steady_lead_wait(turn, timeout_ms) < 0:
                raise os_error("waiting for sockets")
            if turn.reason != lib.KLK_STEADY_ROOM:
                break
            needy = int(turn.needy)
            self._leader.intakes[needy].make_room(turn.need, self._outs[needy])
            turn.resume = 1
        for router, out in zip(self._routers, self._outs, strict=True):
            out.dropped += router.dropped
            router.dropped = 0
        intakes = len(self._leader.intakes)
        left = [at for at in range(len(self._outs) - intakes) if turn.links_left >> at & 1]
        return LeadingWait(
            self._poller.ready(),
            int(turn.reason),
            list(turn.left[0:intakes]),
            left,
            int(turn.unix_s),
            _noticed(turn.notices),
        )

    @property
    def _routers(self) -> list[Any]:
        turn, intakes = self._turn, len(self._leader.intakes)
        links = len(self._outs) - intakes
        return [
            *(turn.intakes[at] for at in range(intakes)),
            *(turn.links[at] for at in range(links)),
        ]

    @property
    def wakes(self) -> int:
        """Of all steady states."""
        return int(self._turn.wakes)


class SteadyTurn:
    """The loop around a SteadyFollower: it waits like the poller and does the work meanwhile."""

    def __init__(self, follower: SteadyFollower, poller: Poller) -> None:
        self._follower, self._poller = follower, poller
        self._turn = ffi.new("struct klk_steady_turn *")
        self._turn.follower = follower.follower
        self._references: Any = None  # C has pointers to them.
        self._socket: zmq.Socket[bytes] | None = None
        self._out: Frames | None = None

    def listen(self, peers_socket: SteadySocket) -> None:
        """The ROUTER that the leader's messages come to."""
        (socket, drain, out), peers = peers_socket, self._turn.peers
        peers.socket, peers.drain, peers.out = native_socket(socket), drain._drain, out._struct
        self._references = drain, out
        self._socket, self._out = socket, out

    @property
    def noticed(self) -> Noticed | None:
        """What processes know by the notices of the last wait(); None: it has sent none."""
        return _noticed(self._turn.notices)

    def wait(
        self, timeout_ms: int, notices: SteadyNotices
    ) -> tuple[list[tuple[Source, int]], int, bool]:
        """Waits until the caller must act: for timeout_ms, or until it must write a notice.

        Returns the sources that are ready, the reason (REASONS), and whether the drain's arena has
        messages for the caller. Raises OSError with libzmq's errno.
        """
        assert self._socket is not None
        assert self._out is not None
        native_socket(self._socket)
        turn = self._turn
        turn.poll = self._poller._poll
        _fill_notices(turn.notices, notices)
        while True:
            if lib.klk_steady_wait(turn, timeout_ms) < 0:
                raise os_error("waiting for sockets")
            if turn.reason != lib.KLK_STEADY_ROOM:
                break
            self._follower.log.grow_reqids()
            turn.resume = 1
        self._out.dropped += turn.peers.dropped
        turn.peers.dropped = 0
        return self._poller.ready(), int(turn.reason), bool(turn.handled)

    @property
    def wakes(self) -> int:
        """Of all steady states."""
        return int(self._turn.wakes)
