"""Linearizable reads in C: queued from an arena, answered when they are confirmed.

It does not know Raft: the caller names the round of a read, and the index that the round confirmed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..._native import ffi, lib
from ..errors import uncleared
from ..net.messages import Arena, Frames

WAIT_APPLIED: int = lib.KLK_READS_APPLIED
WAIT_CONFIRMED: int = lib.KLK_READS_CONFIRMED
RING_BYTES = 1 << 22  # Per queue: about 80,000 reads with libzmq's own routing ids.
_COUNTERS = ("reads", "reads_dropped", "reads_over", "reads_astray")


class ReadView(NamedTuple):
    """The state of the peer during receive()."""

    leader: bool
    refusal: bytes  # msgpack of the leader's PEER ID or of nil, for refused clients.
    round: int  # The round that will confirm these reads; it never goes back.
    now_ms: int  # Monotonic.


class Reads:
    """Reads that wait for their round, in two queues, in the order of arrival.

    A WAIT_CONFIRMED read is answered when its round is confirmed, a WAIT_APPLIED read when the
    index is applied, too. If a queue exceeds ring_bytes (a power of two), further reads get no
    answer, and clients repeat them.
    """

    def __init__(self, ident: bytes, ring_bytes: int = RING_BYTES) -> None:
        if ring_bytes < 512 or ring_bytes & ring_bytes - 1:
            raise ValueError(f"a ring has a power of two bytes, 512 at least, not {ring_bytes}")
        self._ident = ffi.new("uint8_t[]", ident)
        self._rings = [uncleared("uint64_t[]", ring_bytes // 8) for _ in range(2)]
        self._numbers = ffi.new("uint32_t[]", 1)
        self._count = ffi.new("uint32_t *")
        self._view = ffi.new("struct klk_reads_view *")
        reads = self._struct = ffi.new("struct klk_reads *")
        reads.ident, reads.ident_size = self._ident, len(ident)
        for wait, ring in enumerate(self._rings):
            reads.readers[wait].ring, reads.readers[wait].ring_max = ring, ring_bytes

    @property
    def waiting(self) -> int:
        """Reads that wait for an answer."""
        return int(self._struct.readers[0].waiting + self._struct.readers[1].waiting)

    def waits(self, wait: int) -> bool:
        """Whether a read waits in this queue."""
        return bool(self._struct.readers[wait].waiting)

    @property
    def deadline_ms(self) -> int | None:
        """The earliest time of the next reminder."""
        readers = self._struct.readers
        return min((int(each.remind_ms) for each in readers if each.waiting), default=None)

    def counters(self) -> dict[str, int]:
        """Reads received; dropped (malformed), over the queue's limit, astray (not the leader)."""
        counts = ffi.unpack(self._struct.counters, len(_COUNTERS))
        return dict(zip(_COUNTERS, counts, strict=True))

    def receive(
        self, arena: Arena, numbers: Sequence[int], view: ReadView, out: Frames
    ) -> tuple[int, list[int]]:
        """Handles the reads among the messages with these numbers: queues them, or refuses them if
        this peer does not lead. Returns the number of queued reads, and the other messages."""
        reads, count = self._struct, len(numbers)
        before = reads.counters[lib.KLK_READS_RECEIVED]
        if count > len(self._numbers):
            self._numbers = uncleared("uint32_t[]", 2 * count)
        self._numbers[0:count] = numbers
        self._count[0] = count
        c, refusal = self._view, ffi.from_buffer(view.refusal)
        c.refusal, c.refusal_size, c.leader = refusal, len(view.refusal), view.leader
        c.round, c.now_ms = view.round, view.now_ms
        out.fill(
            lib.klk_reads_receive, reads, arena._struct, c, out._struct, self._numbers, self._count
        )
        others = ffi.unpack(self._numbers, self._count[0])
        return int(reads.counters[lib.KLK_READS_RECEIVED] - before), others

    def answer(self, wait: int, round_: int, index: int, out: Frames) -> int:
        """Answers the reads of a queue up to this round. Returns their number."""
        readers = self._struct.readers[wait]
        waited = readers.waiting
        out.fill(lib.klk_reads_answer, self._struct, wait, round_, index, out._struct)
        return int(waited - readers.waiting)

    def remind(self, now_ms: int, out: Frames) -> None:
        """Sends "accepted" to reads that wait for REMIND_MS, and again after each such time."""
        out.fill(lib.klk_reads_remind, self._struct, now_ms, out._struct)

    def refuse(self, refusal: bytes, out: Frames) -> int:
        """Refuses all waiting reads with refusal (as in ReadView). Returns their number."""
        waited = self.waiting
        out.fill(lib.klk_reads_refuse, self._struct, refusal, len(refusal), out._struct)
        return waited
