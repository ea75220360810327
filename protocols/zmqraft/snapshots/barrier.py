"""The snapshot barrier: all appliers of a node's log write their states at the same entry.

It has two phases. All appliers stop and report their applied entries. Then each applies exactly up
to the highest of these, writes its state and continues. An applier without further orders continues
by itself, and a new attempt starts; so a process that has ended blocks no other. This module sends
nothing itself.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

STOP_MS = 500  # The time for all to stop, before the stopped ones continue.
STOPPED_MS_MAX = 3000  # The longest stop of a participant without further orders.
WRITE_MS_MAX = 60_000  # The time to write a state.
RETRY_MS = 2000  # Between two attempts, doubled after each failure ...
RETRY_MS_MAX = 30_000  # ... up to this.


class Phase(IntEnum):
    STOP = 0  # Stop, and report the applied entry.
    APPLY = 1  # Apply exactly up to the entry, write that state, continue.
    RESUME = 2  # Continue: the states of this attempt are used, or useless.


class BarrierMessage(NamedTuple):
    """An order to a participant, or its answer: it has stopped at this entry (STOP), or written its
    state (APPLY).

    An unasked RESUME says that it could not write its state, or has just started.
    """

    phase: Phase
    attempt: int = 0
    at: tuple[int, int] = (0, 0)  # Index and term of the entry.


class Barrier:
    """The coordinator: it makes attempts until all participants have written their states."""

    def __init__(self, participants: Sequence[str]) -> None:
        # To be sent by the owner, which then clears it.
        self.orders: list[tuple[str, BarrierMessage]] = []
        self.attempt = 0
        self._participants = tuple(participants)
        self._phase: Phase | None = None  # None: no attempt is in progress.
        self._index_min: int | None = None
        self._answers: dict[str, tuple[int, int]] = {}
        self._due_ms = 0
        self._failed = 0

    def start(self, index: int, now_ms: int) -> None:
        """Requests the states at this entry or a later one, at once."""
        self.cancel()
        self._index_min, self._failed, self._due_ms = index, 0, now_ms

    def cancel(self) -> None:
        """Ends the attempt: no states are needed, or they have been used."""
        if self.attempt:
            self._order_all(BarrierMessage(Phase.RESUME, self.attempt))
        self._phase = self._index_min = None

    def on_reply(self, name: str, reply: BarrierMessage, now_ms: int) -> tuple[int, int] | None:
        """Processes an answer. Returns the entry of the states once all are written, else None."""
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
            self._fail(now_ms)  # No participant has applied that entry yet.
            return None
        self._start_phase(Phase.APPLY, now_ms + WRITE_MS_MAX, furthest)
        return None

    def tick(self, now_ms: int) -> None:
        """Starts an attempt or ends one without answers. Call it at deadline_ms."""
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
        self._order_all(BarrierMessage(phase, self.attempt, at))

    def _fail(self, now_ms: int) -> None:
        self._order_all(BarrierMessage(Phase.RESUME, self.attempt))
        self._phase = None
        self._due_ms = now_ms + min(RETRY_MS << min(self._failed, 8), RETRY_MS_MAX)
        self._failed += 1

    def _order_all(self, order: BarrierMessage) -> None:
        self.orders += [(name, order) for name in self._participants]


class BarrierParticipant:
    """A participant: it limits how far its process may apply."""

    def __init__(self) -> None:
        self.attempt = 0  # The last attempt that ordered a stop.
        self._target: tuple[int, int] | None = None
        self._until_ms: int | None = None  # When the stop or the way to the target expires.

    def on_order(
        self, order: BarrierMessage, at: tuple[int, int], now_ms: int
    ) -> BarrierMessage | None:
        """Processes an order; `at` is the applied entry. Returns the answer to send at once, if
        any."""
        if order.phase is Phase.STOP:
            self.attempt, self._target = order.attempt, None
            self._until_ms = now_ms + STOPPED_MS_MAX
            return BarrierMessage(Phase.STOP, order.attempt, at)
        if order.attempt == self.attempt and self._until_ms is not None:
            if order.phase is Phase.RESUME or at[0] > order.at[0]:
                self.resume()
            else:
                # All entries up to the target are committed, so nothing delays it.
                self._target, self._until_ms = order.at, now_ms + WRITE_MS_MAX
        return None

    def apply_limit(self, commit: tuple[int, int], applied: int, now_ms: int) -> tuple[int, int]:
        """Returns index and term of the entry up to which to apply, at most `commit`; 0, 0 while
        stopped."""
        if self._until_ms is None:
            return commit
        beyond = self._target is not None and applied > self._target[0]  # By an installed snapshot.
        if beyond or now_ms >= self._until_ms:
            self.resume()
            return commit
        if self._target is None:
            return 0, 0
        return min(commit, self._target)

    def reply_when_written(self, applied: int) -> BarrierMessage | None:
        """Returns the answer to send once the present state is written; None if no order wants
        it."""
        if self._target is None or self._target[0] != applied:
            return None
        return BarrierMessage(Phase.APPLY, self.attempt, self._target)

    def resume(self) -> None:
        """Ends the stop: the state is written, or the attempt is over."""
        self._target = self._until_ms = None

    @property
    def deadline_ms(self) -> int | None:
        return self._until_ms
