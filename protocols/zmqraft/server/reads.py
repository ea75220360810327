"""Linearizable reads of kelek clients, at the peer: from their arrival to their answers.

The core makes the rounds (protocols/raft/reads.py), and C holds the queues (native/log/reads.py);
Python does nothing for a single read. The client's side is client/read_window.py, the frames are in
wire/read_codec.py.
"""

from collections import deque

from ....native.log.reads import WAIT_APPLIED, WAIT_CONFIRMED, Reads, ReadView
from ....native.net.messages import Arena, Frames
from ...raft.core import Raft, Role
from ...raft.messages import ReadIndex

UNAPPLIED_MAX = 64  # Confirmed rounds that wait until applied; a further one replaces the last.


class PeerReads:
    """The reads that clients have sent to this peer."""

    def __init__(self, core: Raft, cluster: bytes, out: Frames) -> None:
        self._core = core
        self._out = out
        self.native = self._reads = Reads(cluster)
        # Confirmed rounds with an index that is not applied yet, for reads that await that.
        self._unapplied: deque[ReadIndex] = deque()

    @property
    def waiting(self) -> int:
        return self._reads.waiting

    @property
    def unapplied_count(self) -> int:
        """Confirmed rounds that wait until their index is applied."""
        return len(self._unapplied)

    @property
    def deadline_ms(self) -> int | None:
        return self._reads.deadline_ms

    @property
    def awaited_index(self) -> int:
        """The applied index that a read waits for; 0 for none."""
        return self._unapplied[-1].log_index if self._unapplied else 0

    def accept(self, arena: Arena, numbers: list[int], refusal: bytes, now_ms: int) -> list[int]:
        """Accepts the reads among the messages with these numbers. Returns the other numbers.

        refusal   msgpack of the leader's PEER ID or of nil, for clients that must go elsewhere
        """
        core = self._core
        view = ReadView(core.role is Role.LEADER, refusal, core.read_round, now_ms)
        accepted, others = self._reads.receive(arena, numbers, view, self._out)
        if accepted:
            core.start_read()
        return others

    def on_ready(self, read_index: ReadIndex | None, applied_index: int) -> None:
        """Answers the reads that a confirmed round, or progress of the state machine, allows to
        answer."""
        if read_index is not None:
            self._reads.answer(WAIT_CONFIRMED, read_index.round, read_index.log_index, self._out)
            if self._reads.waits(WAIT_APPLIED):
                if len(self._unapplied) == UNAPPLIED_MAX:
                    self._unapplied.pop()
                self._unapplied.append(read_index)
        applied = None
        while self._unapplied and self._unapplied[0].log_index <= applied_index:
            applied = self._unapplied.popleft()
        if applied is not None:
            self._reads.answer(WAIT_APPLIED, applied.round, applied.log_index, self._out)

    def remind(self, now_ms: int) -> None:
        """Tells clients whose reads have waited long that they are still in progress."""
        self._reads.remind(now_ms, self._out)

    def refuse(self, refusal: bytes) -> None:
        """This peer no longer leads: sends waiting clients to the leader."""
        self._unapplied.clear()
        self._reads.refuse(refusal, self._out)

    def counters(self) -> dict[str, int]:
        return self._reads.counters()
