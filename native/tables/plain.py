"""Plain writes of a table server without Python: csrc/tables/plain.c packs them, sends the packs to
the leader and answers the clients. What it can't finish comes back as packs (take_back())."""

from collections.abc import Sequence
from enum import IntFlag
from typing import Any, NamedTuple

import zmq

from ..._native import ffi, lib
from ..broker.budget import Unsent
from ..broker.server import ServedRouter
from ..errors import NativeError, os_error, uncleared
from ..latency import Latency
from ..net.messages import Arena, Frames
from ..net.poller import Poller, Source
from ..net.sockets import Drain, native_socket

PACKS: int = lib.KLK_PLAIN_PACKS
AHEAD: int = lib.KLK_PLAIN_AHEAD
WRITES_MAX: int = lib.KLK_PLAIN_WRITES_MAX
BYTES_MAX: int = lib.KLK_PLAIN_BYTES_MAX
WORKERS_MAX: int = lib.KLK_PLAIN_WORKERS_MAX
DEADLINE_MS: int = lib.KLK_PLAIN_DEADLINE_MS
APART_MS: int = lib.KLK_PLAIN_APART_MS
LATE_MS: int = lib.KLK_PLAIN_LATE_MS
ROWS_MAX = 1 << 14
_OTHER: int = lib.KLK_PLAIN_OTHER
_ANSWERED: int = lib.KLK_PLAIN_ANSWERED
_FRAMES_MAX = 3 * WRITES_MAX  # Of the answers of a pack.
_RECORDS_BYTES = BYTES_MAX + WRITES_MAX * lib.KLK_RECORD_OVERHEAD_MAX
_MESSAGE_BYTES = _RECORDS_BYTES + (1 << 10)  # Of a pack.


class TakenPack(NamedTuple):
    """Writes in one message to the leader, in order."""

    reqids: list[bytes]
    entries: list[bytes]
    records: bytes  # Of these, as they are sent.
    answers: Frames  # One for each write.
    deadline_ms: int
    arrived_us: int
    workers: set[int]  # Of their tables.
    asks_index: bool
    sent: bool  # The leader has been sent it.


class PlainWrites:
    """The plain writes of one server that are not answered."""

    def __init__(
        self,
        ident: bytes,
        latency: Latency,
        *,
        maker: bytes,
        entry_bytes_max: int,
        workers: int,
        timeout_ms: int,
    ) -> None:
        """latency      from the arrival of writes to their answers
        maker        3 bytes of machine, u16 process: for request ids (protocols/reqids.py)
        timeout_ms   of a write"""
        self.arena: Arena | None = None  # Of the last receive(), while rows of it wait.
        self._slots: list[Frames] = []
        self._held: list[Any] = []
        self._plain = plain = ffi.new("struct klk_plain *")
        self._fixed = ffi.new("uint8_t[]", ident), latency
        self._rows = uncleared("struct klk_request[]", ROWS_MAX)
        plain.ident, plain.ident_size = self._fixed[0], len(ident)
        plain.latency, plain.rows, plain.rows_max = latency.struct, self._rows, ROWS_MAX
        plain.entry_bytes_max = min(entry_bytes_max, BYTES_MAX)
        plain.workers, plain.timeout_ms, plain.maker = workers, timeout_ms, maker
        for place in range(PACKS):
            records, frames = uncleared("uint8_t[]", _RECORDS_BYTES), _new_answers()
            plain.packs[place].records, plain.packs[place].answers = records, frames._struct
            self._held.append(records)
            self._slots.append(frames)
        self.set_tables(())

    def set_tables(self, tables: Sequence[int]) -> None:
        """The tables whose writes need no check."""
        self._tables = ffi.new("uint32_t[]", sorted(tables))
        self._plain.tables, self._plain.tables_count = self._tables, len(tables)

    def set_applied_max(self, index: int) -> None:
        """Writes up to this index are answered as soon as they are committed."""
        self._plain.applied_max = index

    @property
    def has_tables(self) -> bool:
        return bool(self._plain.tables_count)

    @property
    def taken(self) -> int:
        """Writes, ever."""
        return int(self._plain.taken)

    @property
    def is_empty(self) -> bool:
        """Whether no write waits."""
        return not (self._plain.count or self._plain.row_count)

    def _packs(self) -> list[Any]:
        plain = self._plain
        return [plain.packs[(plain.first + at) % PACKS] for at in range(plain.count)]

    @property
    def count(self) -> int:
        """Writes in packs."""
        return sum(pack.count for pack in self._packs())

    @property
    def size(self) -> int:
        """Bytes of their entries."""
        return sum(pack.bytes for pack in self._packs())

    # ---- steps, as klk_plain_wait() takes them ----

    def receive(self, arena: Arena, now_us: int, unix_s: int) -> bool:
        """Takes the writes of an arena of a ROUTER. False: some messages are no plain writes, and
        none was taken. While rows wait (is_stalled) receive nothing else, and keep the arena."""
        self.arena, self._plain.unix_s = arena, unix_s
        return bool(lib.klk_plain_receive(self._plain, arena._struct, now_us) != _OTHER)

    @property
    def is_stalled(self) -> bool:
        """Whether rows of the last arena wait for room."""
        return bool(self._plain.row < self._plain.row_count)

    def packs(self, now_us: int) -> Frames:
        """The messages to the leader that may leave now, after rows that have room meanwhile."""
        if self.is_stalled and self.arena is not None:
            lib.klk_plain_take(self._plain, self.arena._struct, now_us)
        out = Frames()
        while code := lib.klk_plain_pack(self._plain, out._struct):
            if code == lib.KLK_EFULL:
                out._double()
            elif code < 0:
                raise NativeError(code)
        return out

    def answer(self, arena: Arena, message: int, now_us: int) -> Frames | None:
        """Handles a message of the leader. Returns answers to clients, perhaps none, until the next
        receive(); None: it is another message, or these answers must wait."""
        code, plain = lib.klk_plain_answer(self._plain, arena._struct, message), self._plain
        if code == _OTHER:
            return None
        if code != _ANSWERED:
            return Frames(1, 1)
        frames: Frames = self._slots[plain.first]
        lib.klk_plain_end(plain, now_us)
        return frames

    # ---- back to Python ----

    def take_back(self) -> tuple[list[TakenPack], tuple[Arena, int] | None]:
        """All packs in order, and the arena whose rows wait from a position on. Nothing is left."""
        plain = self._plain
        found = []
        for at in range(plain.count):
            place = (plain.first + at) % PACKS
            found.append(self._take(place, at < plain.sent))
        rest = None
        if self.is_stalled and self.arena is not None:
            rest = self.arena, int(plain.row)
            plain.taken -= plain.row_count - plain.row
        plain.count = plain.sent = plain.row = plain.row_count = 0
        return found, rest

    def _take(self, place: int, sent: bool) -> TakenPack:
        pack, frames = self._plain.packs[place], self._slots[place]
        self._slots[place] = new = _new_answers()
        records = bytes(ffi.buffer(pack.records, pack.size))
        reqids, entries = _read_records(records)
        workers = {worker for worker in range(WORKERS_MAX) if pack.workers >> worker & 1}
        taken = TakenPack(
            *(reqids, entries, records, frames, pack.deadline_ms, pack.arrived_us, workers),
            *(bool(pack.asks_index), sent),
        )
        pack.answers = new._struct
        return taken


def _new_answers() -> Frames:
    return Frames(lib.KLK_PLAIN_ANSWERS_BYTES, _FRAMES_MAX)


def _read_records(records: bytes) -> tuple[list[bytes], list[bytes]]:
    """The request ids and the data of records."""
    data, record = ffi.from_buffer(records), ffi.new("struct klk_record *")
    reqids, entries = [], []
    at = 0
    while at < len(records):
        size = lib.klk_record_read(data + at, len(records) - at, record)
        if size < 0:
            raise NativeError(size)
        reqids.append(bytes(ffi.buffer(record.reqid, lib.KLK_REQID_SIZE)))
        entries.append(bytes(ffi.buffer(record.data, record.data_size)))
        at += size
    return reqids, entries


class Left(IntFlag):
    """What the caller must handle, besides ready sources."""

    LEADER = lib.KLK_PLAIN_LEFT_LEADER
    CLIENTS = lib.KLK_PLAIN_LEFT_CLIENTS
    DENIED = lib.KLK_PLAIN_LEFT_DENIED
    UNSENT = lib.KLK_PLAIN_LEFT_UNSENT
    PACK = lib.KLK_PLAIN_LEFT_PACK
    LATE = lib.KLK_PLAIN_LEFT_LATE


class PlainResult(NamedTuple):
    """The result of a wait."""

    ready: list[tuple[Source, int]]  # As Poller.poll() returns them.
    left: Left
    leader_position: int  # With LEADER: the first unread message in its arena.
    unsent: Unsent | None  # With UNSENT: of `answers`.
    answers: Frames | None


class PlainServer:
    """Waits like the poller; meanwhile plain writes of a ROUTER go to the leader and are answered.

    It returns when another source is ready, or the caller must handle something.
    """

    def __init__(self, writes: PlainWrites, poller: Poller, clients: ServedRouter) -> None:
        self.writes, self._poller, self._clients = writes, poller, clients
        self._out = Frames(_MESSAGE_BYTES, 8)
        self._unsent = uncleared("uint32_t[]", 2 * WRITES_MAX)
        serve = self._serve = ffi.new("struct klk_plain_serve *")
        serve.plain, serve.out = writes._plain, self._out._struct
        router = serve.clients
        router.socket, router.drain = native_socket(clients.socket), clients.drain._drain
        router.budget, router.bytes_max = clients.budget._budget, clients.budget.bytes_max
        router.unsent = self._unsent

    def wait(
        self, leader: "zmq.Socket[bytes]", leader_drain: Drain, timeout_ms: int
    ) -> PlainResult | None:
        """Waits until the caller must act, or for timeout_ms. None: an arena has grown for a large
        message, so the caller must receive. Raises OSError with libzmq's errno.

        leader   a DEALER in the poller, and its drain
        """
        serve, writes = self._serve, self.writes
        if self._clients.drain.is_grown or leader_drain.is_grown:
            return None
        native_socket(self._clients.socket)
        serve.leader, serve.leader_drain = native_socket(leader), leader_drain._drain
        serve.poll = self._poller._poll
        writes.arena = self._clients.drain.arena
        code = lib.klk_plain_wait(serve, timeout_ms)
        if code < 0:
            raise os_error("waiting for sockets") if code == lib.KLK_EOS else NativeError(code)
        left, unsent, answers = Left(serve.left), None, None
        if left & Left.UNSENT:
            answers = writes._slots[serve.unsent_pack]
            unsent = Unsent.of(self._unsent, serve.clients.unsents)
        position = int(serve.leader_position)
        return PlainResult(self._poller.ready(), left, position, unsent, answers)
