"""Reads that ask the leader in C, how far they must see the log (csrc/server/rounds.c). Those that
C has not served come back to the caller."""

from typing import Any

from ..._native import ffi, lib
from ..errors import uncleared
from ..net.messages import Arena, Frames
from .plain import PlainWrites

READS_MAX: int = lib.KLK_ROUNDS_READS_MAX  # Of a round.
_BYTES, _FRAMES = 1 << 17, 1 << 12  # Of a round: a worker's channel has more room.
_OTHER: int = lib.KLK_ROUNDS_OTHER


class ReadRounds:
    """The reads of one server that wait for the leader."""

    def __init__(self, ident: bytes, maker: bytes) -> None:
        """maker: as of PlainWrites"""
        self.rows = uncleared("struct klk_request[]", READS_MAX)  # Of the asked reads, in C.
        self._frames = [Frames(_BYTES, _FRAMES) for _ in range(2)]
        slots = [ffi.new("uint32_t[]", READS_MAX) for _ in self._frames]
        self._held: tuple[Any, ...] = ffi.new("uint8_t[]", ident), *slots
        self._rounds = rounds = ffi.new("struct klk_rounds *")
        rounds.ident, rounds.ident_size = self._held[0], len(ident)
        rounds.maker, rounds.rows = maker, self.rows
        rounds.asked, rounds.next = (frames._struct for frames in self._frames)
        rounds.asked_slots, rounds.next_slots = slots

    def _read_frames(self) -> list[Frames]:
        """The asked reads, and those that wait for the next question."""
        places = self._rounds.asked, self._rounds.next
        return [each for place in places for each in self._frames if each._struct == place]

    @property
    def is_empty(self) -> bool:
        return not self.count

    @property
    def count(self) -> int:
        return sum(frames.count for frames in self._frames)

    @property
    def size(self) -> int:
        """Their size in bytes."""
        return sum(frames.size for frames in self._frames)

    @property
    def since_us(self) -> int | None:
        """When the first of them has arrived."""
        return None if self.is_empty else int(lib.klk_rounds_since_us(self._rounds))

    def take_back(self) -> list[Frames]:
        """All reads in order, valid until the next add(). None is left."""
        found = [frames for frames in self._read_frames() if frames.count]
        self._frames = [Frames(_BYTES, _FRAMES) for _ in range(2)]
        rounds = self._rounds
        rounds.asked, rounds.next = (frames._struct for frames in self._frames)
        rounds.is_asked = 0
        return found

    # ---- steps, as klk_table_wait() takes them ----

    def add(self, arena: Arena, plain: PlainWrites, now_us: int) -> bool:
        """Copies the reads of the arena that plain.read() has read. False: there is no room."""
        return bool(lib.klk_rounds_add(self._rounds, arena._struct, plain.rows, now_us))

    def ask(self) -> list[bytes] | None:
        """The question to the leader that may leave now; None: there is none."""
        out = Frames()
        return out.message(0) if lib.klk_rounds_ask(self._rounds, out._struct) == 1 else None

    def answer(self, arena: Arena, message: int) -> int | None:
        """Handles a message of the leader. Returns the index that the asked reads, of `rows`, must
        see; 0: it comes later; None: it is another message."""
        index = ffi.new("uint64_t *")
        code = lib.klk_rounds_answer(self._rounds, arena._struct, message, index)
        return None if code == _OTHER else int(index[0])

    @property
    def asked(self) -> Frames:
        return self._read_frames()[0]

    def end(self) -> None:
        """The asked reads are served."""
        lib.klk_rounds_end(self._rounds)
