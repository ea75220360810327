"""Linearizable reads at the peer: who waits for which round, and when each is answered.

The rounds are the core's (protocols/raft/reads.py), the queues are in C (native/log/reads.py);
nothing here is done once a read. The client's half is read_window.py, the frames are in
read_codec.py.
"""

from collections import deque

from ....native.log.reads import WAIT_APPLIED, WAIT_CONFIRMED, Reads, ReadView
from ....native.net.messages import Arena, Frames
from ...raft.core import Raft, Role
from ...raft.messages import ReadIndex

UNAPPLIED_MAX = 64  # Confirmed rounds that wait to be applied; further ones share the last place.


class PeerReads:
    """The reads that clients have asked this peer for, from their arrival to their answer."""

    def __init__(self, core: Raft, cluster: bytes, out: Frames) -> None:
        self._core = core
        self._out = out
        self._reads = Reads(cluster)
        # Confirmed rounds whose index is not applied yet, for those who wait for that.
        self._unapplied: deque[ReadIndex] = deque()

    @property
    def waiting(self) -> int:
        return self._reads.waiting

    @property
    def deadline_ms(self) -> int | None:
        """When remind() has something to do."""
        return self._reads.deadline_ms

    @property
    def awaited_index(self) -> int:
        """What somebody waits to be applied: 0 when nobody does."""
        return self._unapplied[-1].index if self._unapplied else 0

    def accept(self, arena: Arena, numbers: list[int], refusal: bytes, now_ms: int) -> list[int]:
        """Takes in the reads among the messages with these numbers; returns the others.

        refusal   msgpack of the leader's PEER ID or of nil, for whoever must go there
        """
        core = self._core
        view = ReadView(core.role is Role.LEADER, refusal, core.read_round, now_ms)
        taken, others = self._reads.receive(arena, numbers, view, self._out)
        if taken:
            core.start_read()
        return others

    def on_ready(self, read_index: ReadIndex | None, applied_index: int) -> None:
        """Answers whom a confirmed round, or a state machine that has come further, lets answer."""
        if read_index is not None:
            self._reads.answer(WAIT_CONFIRMED, read_index.round, read_index.index, self._out)
            if self._reads.waits(WAIT_APPLIED):
                if len(self._unapplied) == UNAPPLIED_MAX:
                    self._unapplied.pop()
                self._unapplied.append(read_index)
        applied = None
        while self._unapplied and self._unapplied[0].index <= applied_index:
            applied = self._unapplied.popleft()
        if applied is not None:
            self._reads.answer(WAIT_APPLIED, applied.round, applied.index, self._out)

    def remind(self, now_ms: int) -> None:
        """Tells those who have waited for long that they are not forgotten."""
        self._reads.remind(now_ms, self._out)

    def refuse(self, refusal: bytes) -> None:
        """We do not lead any more: whoever waits is sent to the leader."""
        self._unapplied.clear()
        self._reads.refuse(refusal, self._out)

    def counters(self) -> dict[str, int]:
        return self._reads.counters()
