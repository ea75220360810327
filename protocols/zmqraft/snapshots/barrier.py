"""How all that apply a node's log stop at one entry, so that a snapshot holds one moment of them.

Two phases: everybody stops and says where; the furthest one's entry is what all then apply exactly
to, write their state at and go on from. Whoever hears nothing goes on by itself, and a new attempt
is made: nobody waits for a process that has ended. It sends nothing itself.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

STOP_MS = 500  # How long all may take to stop, before those who did go on.
STOPPED_MS_MAX = 3000  # So long somebody stands still without hearing anything.
WRITE_MS_MAX = 60_000  # A state that is not written by then will not come.
RETRY_MS = 2000  # Between two attempts, ...
RETRY_MS_MAX = 30_000  # ... at most, when one after the other fails.


class Phase(IntEnum):
    STOP = 0  # Stand still, and say where.
    APPLY = 1  # Apply exactly to the entry, write the state of there, go on.
    RESUME = 2  # What was written for this attempt is of no use, or has been used.


class BarrierOrder(NamedTuple):
    """To a participant."""

    phase: Phase
    attempt: int
    at: tuple[int, int] = (0, 0)  # APPLY: index and term of the entry.


class BarrierReply(NamedTuple):
    """A participant's answer: it stands at this entry (STOP), or has written its state (APPLY).

    GO_ON, unasked: it could not write its state, or has just started and knows of no attempt.
    """

    phase: Phase
    attempt: int = 0
    at: tuple[int, int] = (0, 0)


class Barrier:
    """The side that has a state written: one attempt after the other, until all have done it."""

    def __init__(self, participants: Sequence[str]) -> None:
        self.orders: list[tuple[str, BarrierOrder]] = []  # To be sent; whoever sends clears it.
        self.attempt = 0
        self._participants = tuple(participants)
        self._phase: Phase | None = None  # None: nothing is wanted, or the next attempt waits.
        self._index_min: int | None = None
        self._answers: dict[str, tuple[int, int]] = {}
        self._due_ms = 0
        self._failed = 0

    def start(self, index: int, now_ms: int) -> None:
        """The state of this entry or of a later one is wanted, at once."""
        self.cancel()
        self._index_min, self._failed, self._due_ms = index, 0, now_ms

    def cancel(self) -> None:
        """Nothing is wanted any more, or what was written has been used."""
        if self.attempt:
            self._order_all(BarrierOrder(Phase.RESUME, self.attempt))
        self._phase = self._index_min = None

    def on_reply(self, name: str, reply: BarrierReply, now_ms: int) -> tuple[int, int] | None:
        """Takes an answer; returns the entry at which the states of all are written, once."""
        if reply.phase is Phase.RESUME and self._phase is not None:
            self._fail(now_ms)
        current = reply.phase is self._phase and reply.attempt == self.attempt
        if not current or name not in self._participants:
            return None
        self._answers[name] = reply.at
        if len(self._answers) < len(self._participants):
            return None
        furthest = max(self._answers.values())
        if self._phase is Phase.APPLY:
            self._phase = self._index_min = None
            return furthest
        if self._index_min is not None and furthest[0] < self._index_min:
            self._fail(now_ms)  # Nobody has got so far yet.
            return None
        self._start_phase(Phase.APPLY, now_ms + WRITE_MS_MAX, furthest)
        return None

    def tick(self, now_ms: int) -> None:
        """To be called at deadline_ms."""
        if self._index_min is None or now_ms < self._due_ms:
            return
        if self._phase is not None:
            self._fail(now_ms)
        else:
            self.attempt += 1
            self._start_phase(Phase.STOP, now_ms + STOP_MS, (0, 0))

    @property
    def deadline_ms(self) -> int | None:
        return self._due_ms if self._index_min is not None else None

    def _start_phase(self, phase: Phase, due_ms: int, at: tuple[int, int]) -> None:
        self._phase, self._due_ms = phase, due_ms
        self._answers = {}
        self._order_all(BarrierOrder(phase, self.attempt, at))

    def _fail(self, now_ms: int) -> None:
        self._order_all(BarrierOrder(Phase.RESUME, self.attempt))
        self._phase = None
        self._due_ms = now_ms + min(RETRY_MS << min(self._failed, 8), RETRY_MS_MAX)
        self._failed += 1

    def _order_all(self, order: BarrierOrder) -> None:
        self.orders += [(name, order) for name in self._participants]


class BarrierParticipant:
    """The side of one participant: how far it may apply just now."""

    def __init__(self) -> None:
        self.attempt = 0  # The last one heard of.
        self._target: tuple[int, int] | None = None
        self._until_ms: int | None = None  # It stands still, or goes to the target, until then.

    def on_order(
        self, order: BarrierOrder, at: tuple[int, int], now_ms: int
    ) -> BarrierReply | None:
        """Takes an order; at is where the participant is. Returns what to answer at once."""
        if order.phase is Phase.STOP:
            self.attempt, self._target = order.attempt, None
            self._until_ms = now_ms + STOPPED_MS_MAX
            return BarrierReply(Phase.STOP, order.attempt, at)
        if order.attempt == self.attempt and self._until_ms is not None:
            if order.phase is Phase.RESUME or at[0] > order.at[0]:
                self.resume()
            else:
                # All that is up to the entry is committed: nothing holds it up on its way there.
                self._target, self._until_ms = order.at, now_ms + WRITE_MS_MAX
        return None

    def apply_limit(self, commit: tuple[int, int], applied: int, now_ms: int) -> tuple[int, int]:
        """Index and term of the entry up to which to apply, with this much committed; 0: none."""
        if self._until_ms is None:
            return commit
        beyond = self._target is not None and applied > self._target[0]  # By a snapshot.
        if beyond or now_ms >= self._until_ms:
            self.resume()
            return commit
        if self._target is None:
            return 0, 0
        return min(commit, self._target)

    def reply_when_written(self, applied: int) -> BarrierReply | None:
        """What to answer once the state of just now is written; None: nobody wants it."""
        if self._target is None or self._target[0] != applied:
            return None
        return BarrierReply(Phase.APPLY, self.attempt, self._target)

    def resume(self) -> None:
        """Ends the halt: the state is written, or nobody is to wait for it."""
        self._target = self._until_ms = None

    @property
    def deadline_ms(self) -> int | None:
        return self._until_ms
