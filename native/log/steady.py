"""A follower's work in C while nothing unusual happens: append, sync, acknowledge (csrc/steady).

It knows the rules of Raft for this state alone. The caller gives it the numbers of its core, and
takes them back together with the blocks that were appended meanwhile.
"""

from typing import Any, NamedTuple

import zmq

from ..._native import ffi, lib
from ..errors import NativeError, os_error, uncleared
from ..net.messages import Arena, Frames
from ..net.poller import Poller, Source
from ..net.sockets import Drain, native_socket
from .segments import Segment, Syncer
from .updates import Reqids

REASONS = ("time", "source", "message", "notice", "full", "segment", "disk")
_FULL, _DISK = lib.KLK_STEADY_FULL, lib.KLK_STEADY_DISK
ROUTE_BYTES_MAX: int = lib.KLK_STEADY_ROUTE_MAX


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


class FollowerResult(NamedTuple):
    """What a follower did in its steady state."""

    durable: list[SteadyBlock]
    written: list[SteadyBlock]  # In the segment; their sync runs.
    received: list[SteadyBlock]  # Not written yet.
    known: int  # Durable blocks whose request ids are in the table.
    answers: list[WaitingAnswer]
    commit_index: int
    heard_ms: int
    gap_ms_max: int
    missed: int  # Heartbeats.
    messages: int  # Of the leader.
    offset: int  # In the segment, behind the written blocks.
    synced: int


class SteadyFollower:
    """The follower's part of a steady state; one at a time."""

    def __init__(self, cluster: bytes, reqids: Reqids) -> None:
        self.follower = ffi.new("struct klk_steady_follower *")
        log = self._log = self.follower.log
        self._ident = ffi.new("uint8_t[]", cluster)
        self.follower.ident, self.follower.ident_size = self._ident, len(cluster)
        self._bytes = uncleared("uint8_t[]", lib.KLK_STEADY_BYTES_MAX)
        self._blocks = uncleared("struct klk_steady_block[]", lib.KLK_STEADY_BLOCKS_MAX)
        log.bytes, log.bytes_max = self._bytes, lib.KLK_STEADY_BYTES_MAX
        log.blocks, log.blocks_max = self._blocks, lib.KLK_STEADY_BLOCKS_MAX
        self._reqids = reqids
        log.reqids = reqids._struct
        self._leader: Any = None
        self._segment: SegmentState | None = None
        self._position = ffi.new("uint32_t *")

    def begin(self, state: FollowerState, segment: SegmentState | None = None) -> None:
        """segment   None: the caller writes and syncs (start_sync(), finish_sync())"""
        follower, log = self.follower, self._log
        self._leader, self._segment = ffi.new("uint8_t[]", state.leader), segment
        follower.leader, follower.leader_size = self._leader, len(state.leader)
        follower.commit_index, follower.heartbeat_ms = state.commit_index, state.heartbeat_ms
        follower.heard_ms, follower.gap_ms_max = state.heard_ms, state.gap_ms_max
        follower.missed = follower.messages = follower.first = follower.waiting = 0
        follower.clients_wait = state.clients_wait
        log.term, log.last_index, log.durable_index = state.term, state.last_index, state.last_index
        log.used = log.count = log.written = log.durable = log.known = 0
        log.syncing = log.error = log.sync_failed = 0
        if segment is not None:
            log.segment, log.syncer = segment.segment._segment, segment.syncer._syncer
            log.offset = log.synced = segment.offset
            log.epoch = segment.epoch

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

    def start_sync(self) -> bool:
        """The blocks so far are being written and synced. False: a sync runs, or all are."""
        if self._log.syncing or self._log.written == self._log.count:
            return False
        lib.klk_steady_start(self._log_pointer)
        return True

    def finish_sync(self, out: Frames) -> None:
        """They are durable: out gets the answers that have waited for them."""
        lib.klk_steady_finish(self._log_pointer)
        out.fill(lib.klk_steady_answer, self.follower, out._struct)
        lib.klk_steady_reqids(self._log_pointer)

    @property
    def _log_pointer(self) -> Any:
        return ffi.addressof(self.follower, "log")

    # ---- the end ----

    @property
    def sync_error(self) -> int:
        """The errno of a sync that has failed, or 0."""
        return int(self._log.error) if self._log.sync_failed else 0

    def end(self) -> FollowerResult:
        follower, log = self.follower, self._log
        blocks = [
            SteadyBlock(
                one.first_index,
                one.count,
                bytes(ffi.buffer(log.bytes + one.start, one.size)),
            )
            for one in (log.blocks[at] for at in range(log.count))
        ]
        places = range(follower.first, follower.first + follower.waiting)
        waiting = [follower.answers[at % lib.KLK_STEADY_ANSWERS_MAX] for at in places]
        return FollowerResult(
            blocks[: log.durable],
            blocks[log.durable : log.written],
            blocks[log.written :],
            log.known,
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
            log.offset,
            log.synced,
        )


class SteadyTurn:
    """The loop around a SteadyFollower: it waits like the poller and does the work meanwhile."""

    def __init__(self, follower: SteadyFollower, poller: Poller) -> None:
        self._follower, self._poller = follower, poller
        self._turn = ffi.new("struct klk_steady_turn *")
        self._turn.follower = follower.follower
        self._references: Any = None  # C has pointers to them.
        self._socket: zmq.Socket[bytes] | None = None
        self._out: Frames | None = None

    def listen(self, socket: "zmq.Socket[bytes]", drain: Drain, out: Frames) -> None:
        """The ROUTER that the leader's messages come to."""
        peers = self._turn.peers
        peers.socket, peers.drain, peers.out = native_socket(socket), drain._drain, out._struct
        self._references = drain, out
        self._socket, self._out = socket, out

    def wait(
        self, timeout_ms: int, notice_ms: int, noticed_index: int
    ) -> tuple[list[tuple[Source, int]], int, bool]:
        """Waits until the caller must act: for timeout_ms, or until notice_ms if more than
        noticed_index can be applied.

        Returns the sources that are ready, the reason (REASONS), and whether the drain's arena has
        messages for the caller. Raises OSError with libzmq's errno.
        """
        assert self._socket is not None
        assert self._out is not None
        native_socket(self._socket)
        turn = self._turn
        turn.poll, turn.notice_ms = self._poller._poll, notice_ms
        turn.noticed_index = noticed_index
        code = lib.klk_steady_wait(turn, timeout_ms)
        if code < 0:
            raise os_error("waiting for sockets")
        self._out.dropped += turn.peers.dropped
        turn.peers.dropped = 0
        return self._poller.ready(), int(turn.reason), bool(turn.handled)

    @property
    def wakes(self) -> int:
        """Of all steady states."""
        return int(self._turn.wakes)
