"""Plain writes of a table server without Python: csrc/server/plain.c packs them, and answers them
when the leader does (server.py). What it can't finish comes back as packs (take_back())."""

from collections.abc import Mapping, Sequence
from enum import IntFlag
from itertools import accumulate
from typing import Any, NamedTuple

from ..._native import ffi, lib
from ..errors import NativeError, uncleared
from ..latency import Latency
from ..net.messages import Arena, Frames
from .channels import ReadChannels

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
MESSAGE_BYTES = _RECORDS_BYTES + (1 << 10)  # Of a pack.


class PlainKinds(IntFlag):
    """What an arena has."""

    WRITES = lib.KLK_PLAIN_WRITES
    READS = lib.KLK_PLAIN_READS
    OTHERS = lib.KLK_PLAIN_OTHERS


class TakenPack(NamedTuple):
    """Writes in one message to the leader, in order."""

    reqids: list[bytes]
    entries: list[bytes]
    records: bytes  # Of these, as they are sent.
    answers: Frames  # One for each write.
    deadline_ms: int
    arrived_us: int
    workers: set[int]  # Of their tables.
    asked: dict[int, int]  # The worker that has the result, by position: of transactions.
    asks_index: bool
    sent: bool  # The leader has been sent it.


class PlainAnswer(NamedTuple):
    """What a commit makes the server send."""

    answers: Frames  # To clients.
    questions: dict[int, Frames]  # By worker, for the results of transactions.


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
        self.rows = uncleared("struct klk_request[]", ROWS_MAX)  # Of the last read(), in C.
        plain.ident, plain.ident_size = self._fixed[0], len(ident)
        plain.latency, plain.rows, plain.rows_max = latency.struct, self.rows, ROWS_MAX
        plain.entry_bytes_max = min(entry_bytes_max, BYTES_MAX)
        plain.workers, plain.timeout_ms, plain.maker = workers, timeout_ms, maker
        for place in range(PACKS):
            records, frames = uncleared("uint8_t[]", _RECORDS_BYTES), _new_answers()
            plain.packs[place].records, plain.packs[place].answers = records, frames._struct
            self._held.append(records)
            self._slots.append(frames)
        self.set_tables(())
        self.set_sessions({})

    def set_tables(self, tables: Sequence[int]) -> None:
        """The tables whose writes need no check."""
        self._tables = ffi.new("uint32_t[]", sorted(tables))
        self._plain.tables, self._plain.tables_count = self._tables, len(tables)

    def set_sessions(self, owners: Mapping[int, str]) -> None:
        """The sessions that transactions with keys may use, and the names of these keys."""
        names = b"".join(name.encode() for name in owners.values())
        sizes = [len(name.encode()) for name in owners.values()]
        places = accumulate(sizes, initial=0)
        rows = sorted(zip(owners, places, sizes, strict=False))
        self._sessions = ffi.new("struct klk_plain_session[]", rows), ffi.new("uint8_t[]", names)
        self._plain.sessions, self._plain.names = self._sessions
        self._plain.sessions_count = len(rows)

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

    @property
    def late_us(self) -> int | None:
        """When the caller should take back what is not answered; None: nothing is."""
        packs = self._packs()
        return packs[0].arrived_us + 1000 * LATE_MS if packs else None

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

    # ---- steps, as klk_table_wait() takes them ----

    def read(self, arena: Arena) -> PlainKinds:
        """Reads an arena of a ROUTER."""
        return PlainKinds(lib.klk_plain_read(self._plain, arena._struct))

    def receive(self, arena: Arena, now_us: int, unix_s: int) -> None:
        """Takes the writes of the arena that was read last. While some wait (is_stalled) read
        nothing else, and keep the arena."""
        self.arena, self._plain.unix_s = arena, unix_s
        lib.klk_plain_receive(self._plain, arena._struct, now_us)

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

    def answer(
        self, arena: Arena, message: int, now_us: int, channels: ReadChannels
    ) -> PlainAnswer | None:
        """Handles a message of the leader. Returns what to send, perhaps nothing, until the next
        receive(); None: it is another message, or these answers must wait."""
        plain = self._plain
        code = lib.klk_plain_answer(plain, channels._structs, arena._struct, message)
        if code == _OTHER:
            return None
        if code != _ANSWERED:
            return PlainAnswer(Frames(1, 1), {})
        asked = {}
        for number in range(plain.workers):
            frames = channels.newest(number)
            if lib.klk_plain_ask(plain, channels._structs, number):
                asked[number] = frames
        answers: Frames = self._slots[plain.first]
        lib.klk_plain_answers(plain)
        lib.klk_plain_end(plain, now_us)
        return PlainAnswer(answers, asked)

    def answers_of(self, place: int) -> Arena:
        """The answers of the pack that was at this place, until the next receive()."""
        return self._slots[place]

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
        plain.count = plain.sent = plain.row = plain.row_count = 0
        return found, rest

    def _take(self, place: int, sent: bool) -> TakenPack:
        pack, frames = self._plain.packs[place], self._slots[place]
        self._slots[place] = new = _new_answers()
        records = bytes(ffi.buffer(pack.records, pack.size))
        reqids, entries = _read_records(records)
        workers = {worker for worker in range(WORKERS_MAX) if pack.workers >> worker & 1}
        asked = bytes(ffi.buffer(pack.asked))[: pack.count] if pack.transactions else b""
        taken = TakenPack(
            *(reqids, entries, records, frames, pack.deadline_ms, pack.arrived_us, workers),
            {position: worker - 1 for position, worker in enumerate(asked) if worker},
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
