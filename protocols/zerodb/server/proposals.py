"""Writes of replicated tables on their way: into the log, through its commit, until they are
applied here. Then, and not before, their clients are answered.

Writes that arrive together fly together: one pack to the leader, one batch of answers. The order of
arrival is the order in the log, whatever fails (protocols/zmqraft/client/window.py).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ....native.net.messages import Frames
from ...zmqraft.client.client import LogClientMachine, PendingUpdates
from ..wire.worker_pipe import Message, OperationResult
from .worker_channel import WorkerStatus

FLIGHT_WRITES_MAX = 1024
FLIGHT_BYTES_MAX = 256 << 10
DEADLINES_APART_MS = 20  # Writes whose deadlines are nearer share a flight, and the first's.
ALL_WORKERS = -1
RESULTS_BYTES_MAX = 64 << 20  # Kept for flights whose commit is not heard of yet.
RESULT_BYTES = 200  # That one takes besides its data.


class ProposedWrite(NamedTuple):
    """One request, as it goes into the log."""

    reqids: Sequence[bytes]
    entries: Sequence[bytes]  # One, or the parts of a large one.
    deadline_ms: int
    answer: Message | None  # What its client gets when it is applied; None: nobody waits.
    worker: int  # Of its tables, or ALL_WORKERS: who has to apply it.
    has_result: bool = False  # Its answer is made of what the worker reports.
    ask: int | None = None  # The ticket of a job that asks for it.


class WriteRun(NamedTuple):
    """Many writes at once, of one entry each and the same deadline."""

    reqids: list[bytes]
    entries: list[bytes]
    deadline_ms: int
    workers: set[int]  # Of their tables.
    heard: list[int]  # Places of those whose clients wait, growing.
    acknowledge: Callable[[int, int, Frames], None]  # Adds the answers of heard[begin:end].


class Failure(NamedTuple):
    """What is to be told instead of an answer."""

    answer: Message | None
    ask: int | None
    text: str
    retry: bool  # It may go well another time.
    unproposed: bool = False  # It never left this node.
    database: bool = False  # The engine's word.


class ResultFound(NamedTuple):
    """A write that is applied and has more to tell than its answer."""

    answer: Message
    results: tuple[OperationResult, ...]


class ResultLost(NamedTuple):
    """A write that is applied, but whose result was reported before it was asked for again."""

    answer: Message
    worker: int
    reqid: bytes
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody misses.


class Flight:
    """Writes that travel as one pack."""

    __slots__ = (
        "answers",
        "asks",
        "count",
        "deadline_ms",
        "entries",
        "floor",
        "index",
        "pending",
        "places",
        "reqids",
        "size",
        "wanting",
        "whole",
        "workers",
    )

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.reqids: list[bytes] = []
        self.entries: list[bytes] = []
        self.size = 0
        self.count = 0  # Requests.
        self.workers: set[int] = set()  # Who has to apply them.
        self.answers = Frames()  # Of those whose clients wait, in order ...
        self.places: list[int] = []  # ... and the entry of each: its last.
        self.wanting: dict[int, int] = {}  # Places whose answers are made of a worker's results.
        self.asks: list[tuple[int, int]] = []  # (ticket, place)
        self.pending: PendingUpdates | None = None
        self.index = 0  # Of its last entry, once it is committed.
        self.floor = 0  # Its entries lie behind this index, but for those that it repeats.
        self.whole: Flight | None = None  # With the last part of the write that this is a part of.

    @property
    def is_void(self) -> bool:
        """Whether nobody is helped by its entries: those of a large write only by all of them."""
        return not self.entries or (self.whole is not None and not self.whole.entries)

    def room(self, entries: Sequence[bytes], begin: int, deadline_ms: int) -> int:
        """Where the part of these entries ends, from begin on, that belongs in here."""
        if self.entries and abs(deadline_ms - self.deadline_ms) > DEADLINES_APART_MS:
            return begin
        end = min(len(entries), begin + FLIGHT_WRITES_MAX - len(self.entries))
        left = FLIGHT_BYTES_MAX - self.size
        for place in range(begin, end):
            left -= len(entries[place])
            if left < 0 and (self.entries or place > begin):
                return place
        return end

    def add(self, write: ProposedWrite) -> None:
        self.reqids += write.reqids
        self.entries += write.entries
        self.size += sum(map(len, write.entries))
        self.count += 1
        self.workers.add(write.worker)
        place = len(self.entries) - 1
        if write.answer is not None:
            self.answers.add(write.answer)
            self.places.append(place)
            if write.has_result:
                self.wanting[place] = write.worker
        if write.ask is not None:
            self.asks.append((write.ask, place))

    def indexes(self) -> list[int]:
        """The LOG INDEX of each entry, once it is committed."""
        assert self.pending is not None
        return [
            index for count, first in self.pending.runs for index in range(first, first + count)
        ]

    def give_up(self, text: str) -> list[Failure]:
        """Nobody waits any longer; what is in the window stays there, for the order's sake."""
        failures = [
            Failure(self.answers.message(i), None, text, True) for i in range(self.answers.count)
        ]
        failures += [Failure(None, ask, text, True) for ask, _ in self.asks]
        self.answers, self.places, self.asks = Frames(), [], []
        self.count, self.deadline_ms = 0, _NEVER
        return failures


class Proposals:
    """All writes that are not applied yet, first to last."""

    def __init__(self, client: LogClientMachine) -> None:
        self._client = client
        self._open: Flight | None = None  # The last one, still growing.
        self._queued: deque[Flight] = deque()
        self._flying: deque[Flight] = deque()  # In the client's window.
        self._committed: deque[Flight] = deque()
        self._due_ms = _NEVER  # No flight is due before.
        self._results: dict[int, list[OperationResult]] = {}
        self._results_bytes = 0  # Of them.
        self._applied_index = 0  # By all workers.
        self.failures: list[Failure] = []  # To be told.
        self.done: list[ResultFound] = []
        self.lost: list[ResultLost] = []
        self.answers: list[Frames] = []  # To be sent as they are.
        self.asks: list[
            tuple[int, int, tuple[OperationResult, ...]]
        ] = []  # (ticket, index, results)

    def _all(self) -> Iterator[Flight]:
        yield from self._committed
        yield from self._flying
        yield from self._queued
        if self._open is not None:
            yield self._open

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not (self._flying or self._open or self._committed or self._queued)

    @property
    def count(self) -> int:
        """Writes on their way."""
        return sum(flight.count for flight in self._all())

    @property
    def size(self) -> int:
        """Bytes of them."""
        return sum(flight.size for flight in self._all())

    def add(self, write: ProposedWrite) -> None:
        """Takes a write in, behind all others."""
        if len(write.entries) == 1:
            flight = self._growing(write.deadline_ms)
            if not flight.room(write.entries, 0, write.deadline_ms):
                flight = self._next(write.deadline_ms)
            flight.add(write)
            return
        self._close()
        last = Flight(write.deadline_ms)
        for part in range(len(write.entries) - 1):  # Each in a flight of its own: they are large.
            flight = Flight(_NEVER)
            reqids, entries = [write.reqids[part]], [write.entries[part]]
            flight.add(ProposedWrite(reqids, entries, _NEVER, None, write.worker))
            flight.whole = last
            self._queued.append(flight)
        self._due_ms = min(self._due_ms, write.deadline_ms)
        last.add(write._replace(reqids=write.reqids[-1:], entries=write.entries[-1:]))
        self._queued.append(last)

    def add_run(self, run: WriteRun) -> None:
        """Takes many in, behind all others."""
        begin = 0
        heard = 0
        while begin < len(run.entries):
            flight = self._growing(run.deadline_ms)
            end = flight.room(run.entries, begin, run.deadline_ms)
            if end == begin:
                flight = self._next(run.deadline_ms)
                end = flight.room(run.entries, begin, run.deadline_ms)
            moved = len(flight.entries) - begin
            flight.reqids += run.reqids[begin:end]
            flight.entries += run.entries[begin:end]
            flight.size += sum(map(len, run.entries[begin:end]))
            flight.count += end - begin
            flight.workers |= run.workers
            heard_end = bisect_left(run.heard, end, heard)
            run.acknowledge(heard, heard_end, flight.answers)
            flight.places += [place + moved for place in run.heard[heard:heard_end]]
            begin, heard = end, heard_end

    def _growing(self, deadline_ms: int) -> Flight:
        return self._open if self._open is not None else self._next(deadline_ms)

    def _next(self, deadline_ms: int) -> Flight:
        """A new last flight."""
        self._close()
        self._open = Flight(deadline_ms)
        self._due_ms = min(self._due_ms, deadline_ms)
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            self._queued.append(self._open)
            self._open = None

    def propose(self) -> bool:
        """Hands to the client's window what finds room there; whether anything did."""
        window = self._client.window
        before = len(self._flying)
        while window.has_room:
            if not self._queued:
                self._close()
            if not self._queued or window.awaits(self._queued[0].reqids[0]):
                break  # A repeat of what is on its way: its turn comes when that is done.
            flight = self._queued.popleft()
            flight.pending = PendingUpdates(flight.reqids, flight.entries)
            flight.floor = self._applied_index
            window.add(flight.pending)
            self._flying.append(flight)
        return len(self._flying) > before

    def on_results(self, results: Sequence[tuple[int, OperationResult]]) -> None:
        """What a worker has reported, by LOG INDEX and in order."""
        if self.is_idle:
            return  # Of other nodes' writes.
        for index, result in results:
            self._results.setdefault(index, []).append(result)
            self._results_bytes += RESULT_BYTES + len(result.data)
        if self._results_bytes > RESULTS_BYTES_MAX:
            self._forget_results()

    def _forget_results(self) -> None:
        """Of other nodes' writes, then the oldest; but never that an operation was refused: who is
        not told of that is told that it was done."""
        first = next(iter((*self._committed, *self._flying)), None)
        floor = self._applied_index if first is None else first.floor
        kept: dict[int, list[OperationResult]] = {}
        size = 0
        for index, results in reversed(self._results.items()):
            if index <= floor:
                continue
            enough = size > RESULTS_BYTES_MAX // 2
            found = [result for result in results if result.code or not enough]
            if found:
                kept[index] = found
                size += sum(RESULT_BYTES + len(result.data) for result in found)
        self._results = dict(reversed(kept.items()))
        self._results_bytes = size

    def collect(self, standings: Sequence[WorkerStatus]) -> None:
        """Takes in what the window knows, and answers what is applied by its workers, in order."""
        self._applied_index = min(each.applied_index for each in standings)
        while self._flying:
            flight = self._flying[0]
            assert flight.pending is not None
            if flight.pending.refusal:
                self._on_refused()
            elif flight.pending.runs:
                flight.index = max(first + count - 1 for count, first in flight.pending.runs)
                self._committed.append(self._flying.popleft())
            else:
                break
        while self._committed:
            flight = self._committed[0]
            concerned = standings
            if ALL_WORKERS not in flight.workers:
                concerned = [standings[worker] for worker in flight.workers]
            refusal = next((each.refusal for each in concerned if each.refusal), "")
            if flight.index <= min(each.applied_index for each in concerned):
                self._finish(self._committed.popleft())
            elif refusal:
                text = f"entry {flight.index} is in the log, but not applied here yet: {refusal}"
                self._committed.popleft()
                self.failures += [
                    failure._replace(database=True) for failure in flight.give_up(text)
                ]
            else:
                break
        if self._results and self.is_idle:
            self._results.clear()
            self._results_bytes = 0

    def _on_refused(self) -> None:
        """The leader will never take one of them; those behind it go again, in order."""
        again = list(reversed(self._flying))  # The window has let go of all behind it, too.
        self._flying.clear()
        first = again[-1]
        assert first.pending is not None
        text = f"the leader has refused the write: {first.pending.refusal}"
        self.failures += self._without(first, {first.pending.refused_position}, text)
        if first.whole is not None:
            self.failures += self._without(first.whole, {0}, text)
        for flight in again:
            flight.pending = None
            self._queued.appendleft(flight)
        self._drop_void()

    def withdraw(self, routing_id: bytes, text: str) -> None:
        """Takes back what this client waits for and what has not left yet."""
        for flight in (*self._queued, *((self._open,) if self._open else ())):
            positions = {
                place
                for i, place in enumerate(flight.places)
                if flight.answers.message(i)[0] == routing_id
            }
            if positions:
                without = self._without(flight, positions, text)
                self.failures += [
                    failure._replace(retry=True, unproposed=True) for failure in without
                ]
        self._drop_void()

    def _drop_void(self) -> None:
        """Forgets what has not left and need not."""
        self._queued = deque(flight for flight in self._queued if not flight.is_void)
        if self._open is not None and self._open.is_void:
            self._open = None

    @staticmethod
    def _without(flight: Flight, positions: set[int], text: str) -> list[Failure]:
        """Takes entries out of a flight; returns what their clients are to be told."""
        kept = [place for place in range(len(flight.entries)) if place not in positions]
        moved = {place: new for new, place in enumerate(kept)}
        told: list[Failure] = []
        answers, places = Frames(), []
        for i, place in enumerate(flight.places):
            if place in moved:
                answers.add(flight.answers.message(i))
                places.append(moved[place])
            else:
                told.append(Failure(flight.answers.message(i), None, text, False))
        told += [Failure(None, ask, text, False) for ask, at in flight.asks if at not in moved]
        flight.answers, flight.places = answers, places
        flight.reqids = [flight.reqids[place] for place in kept]
        flight.entries = [flight.entries[place] for place in kept]
        flight.size = sum(map(len, flight.entries))
        flight.wanting = {
            moved[place]: worker for place, worker in flight.wanting.items() if place in moved
        }
        flight.asks = [(ask, moved[place]) for ask, place in flight.asks if place in moved]
        flight.count = max(0, flight.count - len(positions))
        return told

    def _finish(self, flight: Flight) -> None:
        """All of a flight is applied."""
        if not (self._results or flight.wanting or flight.asks):
            if flight.answers.count:
                self.answers.append(flight.answers)
            return
        indexes = flight.indexes()
        plain = Frames()
        for i, place in enumerate(flight.places):
            answer = flight.answers.message(i)
            results = tuple(self._results.get(indexes[place], ()))
            refused = next((it for it in results if it.code), None)
            if refused is not None:
                text = refused.data.decode(errors="replace")
                self.failures.append(Failure(answer, None, text, False, database=True))
            elif place not in flight.wanting:
                plain.add(answer)
            elif results:
                self.done.append(ResultFound(answer, results))
            else:
                worker, reqid = flight.wanting[place], flight.reqids[place]
                self.lost.append(ResultLost(answer, worker, reqid, indexes[place]))
        if plain.count:
            self.answers.append(plain)
        for ask, place in flight.asks:
            results = tuple(self._results.get(indexes[place], ()))
            self.asks.append((ask, indexes[place], results))

    def clear_told(self) -> None:
        """The owner has taken what is to be told."""
        self.failures, self.done, self.lost, self.answers, self.asks = [], [], [], [], []

    def expire(self, now_ms: int, reason: str) -> None:
        """Gives up what has waited for too long.

        reason   why nothing is committed, as far as is known
        """
        late = [flight for flight in self._all() if flight.deadline_ms <= now_ms]
        for flight in late:
            if flight.index:
                text = f"entry {flight.index} is in the log, but not applied here yet"
                self.failures += flight.give_up(text)
            elif flight.pending is not None:
                text = f"not known to be committed: {reason}; it may still be"
                self.failures += flight.give_up(text)
            else:
                text = f"nothing was written: {reason}"
                unheard = flight.count - len(flight.places) - len(flight.asks)
                self.failures += [
                    failure._replace(unproposed=True) for failure in flight.give_up(text)
                ]
                if unheard:
                    self.failures.append(Failure(None, None, f"{unheard} writes: {text}", False))
                flight.entries = []
        self._drop_void()
        self._committed = deque(each for each in self._committed if each not in late)
        self._due_ms = min((flight.deadline_ms for flight in self._all()), default=_NEVER)

    @property
    def deadline_ms(self) -> int | None:
        """When expire() may have something to do."""
        return None if self._due_ms == _NEVER or self.is_idle else self._due_ms


_NEVER = 1 << 62
