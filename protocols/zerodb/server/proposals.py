"""Writes of replicated tables: into the log, until they are committed and applied on this node.
Their clients are answered then, those of plain puts and deletes at the commit: these are never
refused, and a later read waits for them.

Writes that arrive together share a pack: one message to the leader and one batch of answers. Their
order in the log is the order of arrival, even after failures (protocols/zmqraft/client/window.py).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ....native.latency import Latency
from ....native.net.messages import Frames
from ....native.tables.plain import TakenPack
from ....native.tables.requests import tell_indexes
from ...zmqraft.client.client import LogClientMachine, PendingUpdates
from ..wire.worker_pipe import Message, OperationResult
from .worker_channel import WorkerStatus

PACK_WRITES_MAX = 1024
PACK_BYTES_MAX = 256 << 10
# Writes with closer deadlines share a pack and the deadline of its first write.
DEADLINES_APART_MS = 20
ALL_WORKERS = -1
UNAPPLIED_MAX = 1 << 14  # Entries that this node may be behind before all writes wait for it.
RESULTS_BYTES_MAX = 64 << 20  # Kept for packs that are not known to be committed.
RESULT_BYTES = 200  # Memory of a result besides its data.


class ProposedWrite(NamedTuple):
    """A write as entries of the log."""

    reqids: Sequence[bytes]
    entries: Sequence[bytes]  # One entry, or the parts of a large write.
    deadline_ms: int
    answer: Message | None  # For the client once the write is applied; None: it expects none.
    worker: int  # The worker that applies the write, or ALL_WORKERS.
    has_result: bool = False  # The answer contains the worker's result.
    job_ticket: int | None = None  # Of job_server's request.
    asks_index: bool = False  # The answer tells the LOG INDEX.


class WriteRun(NamedTuple):
    """Many writes of one entry each, with one deadline."""

    reqids: list[bytes]
    entries: list[bytes]
    deadline_ms: int
    workers: set[int]  # Of their tables.
    is_plain: bool  # They are puts and deletes.
    awaited: list[int]  # Ascending positions of the writes whose clients expect answers.
    acknowledge: Callable[[int, int, Frames], None]  # Adds the answers of awaited[begin:end].
    asks_index: bool  # Some answers tell the LOG INDEX.


class Failure(NamedTuple):
    """A write that failed."""

    answer: Message | None
    job_ticket: int | None
    text: str
    retry: bool  # A later attempt may succeed.
    unproposed: bool = False  # The write never left this node.
    database: bool = False  # The worker's database failed.


class AppliedWrite(NamedTuple):
    """An applied write whose answer contains the worker's result."""

    answer: Message
    results: tuple[OperationResult, ...]  # Empty: a repeat, reported at the first time.
    worker: int
    reqid: bytes
    log_index: int


class WritePack:
    """Writes that are proposed in one message."""

    __slots__ = (
        "answers",
        "applied_before",
        "arrived_us",
        "asks_index",
        "awaiting_results",
        "count",
        "deadline_ms",
        "entries",
        "index",
        "is_plain",
        "job_tickets",
        "last_part",
        "pending",
        "positions",
        "reqids",
        "size",
        "workers",
    )

    def __init__(self, deadline_ms: int, arrived_us: int = 0) -> None:
        self.deadline_ms = deadline_ms
        self.arrived_us = arrived_us  # When its first write has arrived.
        self.reqids: list[bytes] = []
        self.entries: list[bytes] = []
        self.size = 0
        self.count = 0  # Number of requests.
        self.workers: set[int] = set()  # The workers that apply them.
        self.is_plain = True  # All are plain puts and deletes.
        self.asks_index = False  # Some answers tell the LOG INDEX.
        self.answers = Frames()  # Finished answers in order.
        self.positions: list[int] = []  # The last entry of each answer's write.
        self.awaiting_results: dict[int, int] = {}  # Worker by position of the write's last entry.
        self.job_tickets: list[tuple[int, int]] = []  # (ticket, position)
        self.pending: PendingUpdates | None = None
        self.index = 0  # Of its last entry, once committed.
        # The applied index when it was proposed; new entries lie behind it.
        self.applied_before = 0
        self.last_part: WritePack | None = None  # The pack with the last part of a large write.

    @property
    def is_empty(self) -> bool:
        """Whether no entry is of use: parts of a large write need its last part."""
        return not self.entries or (self.last_part is not None and not self.last_part.entries)

    def fit(self, entries: Sequence[bytes], begin: int, deadline_ms: int) -> int:
        """The end of the entries, from begin on, that fit into this pack."""
        if self.entries and abs(deadline_ms - self.deadline_ms) > DEADLINES_APART_MS:
            return begin
        end = min(len(entries), begin + PACK_WRITES_MAX - len(self.entries))
        left = PACK_BYTES_MAX - self.size
        for position in range(begin, end):
            left -= len(entries[position])
            if left < 0 and (self.entries or position > begin):
                return position
        return end

    def add(self, write: ProposedWrite) -> None:
        self.reqids += write.reqids
        self.entries += write.entries
        self.size += sum(map(len, write.entries))
        self.count += 1
        self.is_plain = False
        self.asks_index |= write.asks_index
        self.workers.add(write.worker)
        position = len(self.entries) - 1
        if write.answer is not None:
            self.answers.add(write.answer)
            self.positions.append(position)
            if write.has_result:
                self.awaiting_results[position] = write.worker
        if write.job_ticket is not None:
            self.job_tickets.append((write.job_ticket, position))

    def indexes(self) -> list[int]:
        """The log index of each entry, once committed."""
        assert self.pending is not None
        return [
            index for count, first in self.pending.runs for index in range(first, first + count)
        ]

    def tell_indexes(self) -> None:
        """Puts the log index of its entry into each answer that has a place for it. A repeated
        write has that of the first time."""
        indexes = self.indexes()
        tell_indexes(self.answers, [indexes[position] for position in self.positions])

    def abandon(self, text: str) -> list[Failure]:
        """Fails all writes. What is in the client's window stays there to keep the order."""
        failures = [
            Failure(self.answers.message(i), None, text, True) for i in range(self.answers.count)
        ]
        failures += [Failure(None, ticket, text, True) for ticket, _ in self.job_tickets]
        self.answers, self.positions, self.job_tickets = Frames(), [], []
        self.count, self.deadline_ms = 0, _NEVER
        return failures


class Proposals:
    """All writes that are not applied, in order."""

    def __init__(self, client: LogClientMachine, take_back: Callable[[], None]) -> None:
        """take_back: called before a write is added, so that those which C holds come first"""
        self._client = client
        self._take_back = take_back
        self.now_us = 0  # As Now.us.
        self.latency = Latency()  # From the arrival of writes to their answers.
        self._open: WritePack | None = None  # The last pack, which still grows.
        self._queued: deque[WritePack] = deque()
        self._proposed: deque[WritePack] = deque()  # In the window of the log client.
        self._committed: deque[WritePack] = deque()
        self._due_ms = _NEVER  # The earliest deadline of a pack, or earlier.
        # By the index of the entry.
        self.unclaimed_results: dict[int, list[OperationResult]] = {}
        self._results_bytes = 0  # Size of these.
        self._applied_index = 0  # Applied by all workers.
        self.failures: list[Failure] = []  # To be answered by the owner.
        self.applied: list[AppliedWrite] = []
        self.answers: list[Frames] = []  # Finished answers to send.
        # (ticket, index, results) for job_server.
        self.job_results: list[tuple[int, int, tuple[OperationResult, ...]]] = []

    def _packs(self) -> Iterator[WritePack]:
        yield from self._committed
        yield from self._proposed
        yield from self._queued
        if self._open is not None:
            yield self._open

    @property
    def is_idle(self) -> bool:
        """Whether there is no write."""
        return not (self._proposed or self._open or self._committed or self._queued)

    @property
    def awaits_apply(self) -> bool:
        """Whether a write waits until it is applied."""
        return any(not pack.is_plain for pack in self._packs())

    @property
    def may_wait(self) -> bool:
        """Whether the leader's answer may come with another event: there is one pack that must be
        applied, and the workers have applied nothing since it was proposed."""
        if len(self._proposed) != 1 or self._queued or self._open is not None:
            return False
        pack = self._proposed[0]
        return not pack.is_plain and pack.applied_before == self._applied_index

    @property
    def count(self) -> int:
        """Number of writes."""
        return sum(pack.count for pack in self._packs())

    @property
    def size(self) -> int:
        """Size of the writes in bytes."""
        return sum(pack.size for pack in self._packs())

    def add(self, write: ProposedWrite) -> None:
        """Adds a write behind all others."""
        self._take_back()
        if len(write.entries) == 1:
            pack = self._current_pack(write.deadline_ms)
            if not pack.fit(write.entries, 0, write.deadline_ms):
                pack = self._new_pack(write.deadline_ms)
            pack.add(write)
            return
        self._close_pack()
        last = WritePack(write.deadline_ms, self.now_us)
        for part in range(len(write.entries) - 1):  # Parts are large: each has its own pack.
            pack = WritePack(_NEVER, self.now_us)
            reqids, entries = [write.reqids[part]], [write.entries[part]]
            pack.add(ProposedWrite(reqids, entries, _NEVER, None, write.worker))
            pack.last_part = last
            self._queued.append(pack)
        self._due_ms = min(self._due_ms, write.deadline_ms)
        last.add(write._replace(reqids=write.reqids[-1:], entries=write.entries[-1:]))
        self._queued.append(last)

    def add_run(self, run: WriteRun) -> None:
        """Adds many writes behind all others."""
        self._take_back()
        begin = 0
        awaited = 0
        while begin < len(run.entries):
            pack = self._current_pack(run.deadline_ms)
            end = pack.fit(run.entries, begin, run.deadline_ms)
            if end == begin:
                pack = self._new_pack(run.deadline_ms)
                end = pack.fit(run.entries, begin, run.deadline_ms)
            moved = len(pack.entries) - begin
            pack.reqids += run.reqids[begin:end]
            pack.entries += run.entries[begin:end]
            pack.size += sum(map(len, run.entries[begin:end]))
            pack.count += end - begin
            pack.workers |= run.workers
            pack.is_plain = pack.is_plain and run.is_plain
            pack.asks_index = pack.asks_index or run.asks_index
            awaited_end = bisect_left(run.awaited, end, awaited)
            run.acknowledge(awaited, awaited_end, pack.answers)
            pack.positions += [position + moved for position in run.awaited[awaited:awaited_end]]
            begin, awaited = end, awaited_end

    def take_over(self, packs: Sequence[TakenPack], now_ms: int) -> None:
        """Takes over writes from C. There are no others."""
        for taken in packs:
            pack = WritePack(taken.deadline_ms, taken.arrived_us)
            pack.reqids, pack.entries = taken.reqids, taken.entries
            pack.size, pack.count = sum(map(len, taken.entries)), len(taken.entries)
            pack.workers, pack.asks_index = taken.workers, taken.asks_index
            pack.answers, pack.positions = taken.answers, list(range(pack.count))
            pack.awaiting_results, pack.is_plain = taken.asked, not taken.asked
            self._due_ms = min(self._due_ms, pack.deadline_ms)
            if taken.sent:
                pack.pending = PendingUpdates(pack.reqids, pack.entries)
                pack.applied_before = self._applied_index
                self._client.window.add_sent(pack.pending, taken.records, now_ms)
                self._proposed.append(pack)
            else:
                self._queued.append(pack)

    def _current_pack(self, deadline_ms: int) -> WritePack:
        return self._open if self._open is not None else self._new_pack(deadline_ms)

    def _new_pack(self, deadline_ms: int) -> WritePack:
        """Starts a new last pack."""
        self._close_pack()
        self._open = WritePack(deadline_ms, self.now_us)
        self._due_ms = min(self._due_ms, deadline_ms)
        return self._open

    def _close_pack(self) -> None:
        if self._open is not None:
            self._queued.append(self._open)
            self._open = None

    def propose(self) -> bool:
        """Moves packs into the client's window while it has room. Returns whether any moved."""
        window = self._client.window
        before = len(self._proposed)
        while window.has_room:
            if not self._queued:
                self._close_pack()
            if not self._queued or window.awaits(self._queued[0].reqids[0]):
                break  # The same write is in the window; its repeat waits.
            pack = self._queued.popleft()
            pack.pending = PendingUpdates(pack.reqids, pack.entries)
            pack.applied_before = self._applied_index
            window.add(pack.pending)
            self._proposed.append(pack)
        return len(self._proposed) > before

    def on_results(self, results: Sequence[tuple[int, OperationResult]]) -> None:
        """A worker has reported results, with log indexes in order."""
        if self.is_idle:
            return  # They belong to writes of other nodes.
        for index, result in results:
            self.unclaimed_results.setdefault(index, []).append(result)
            self._results_bytes += RESULT_BYTES + len(result.data)
        if self._results_bytes > RESULTS_BYTES_MAX:
            self._limit_results()

    def _limit_results(self) -> None:
        """Drops results of other nodes' writes, then the oldest. Refusals stay: a write without a
        result is acknowledged as done."""
        first = next(iter((*self._committed, *self._proposed)), None)
        floor = self._applied_index if first is None else first.applied_before
        kept: dict[int, list[OperationResult]] = {}
        size = 0
        for index, results in reversed(self.unclaimed_results.items()):
            if index <= floor:
                continue
            enough = size > RESULTS_BYTES_MAX // 2
            found = [result for result in results if result.code or not enough]
            if found:
                kept[index] = found
                size += sum(RESULT_BYTES + len(result.data) for result in found)
        self.unclaimed_results = dict(reversed(kept.items()))
        self._results_bytes = size

    def collect(self, statuses: Sequence[WorkerStatus]) -> None:
        """Reads what the window has committed, and completes applied packs in order."""
        self._applied_index = min(each.applied_index for each in statuses)
        while self._proposed:
            pack = self._proposed[0]
            assert pack.pending is not None
            if pack.pending.refusal:
                self._on_refused()
            elif pack.pending.runs:
                pack.index = max(first + count - 1 for count, first in pack.pending.runs)
                self._committed.append(self._proposed.popleft())
            else:
                break
        while self._committed:
            pack = self._committed[0]
            involved = statuses
            if ALL_WORKERS not in pack.workers:
                involved = [statuses[worker] for worker in pack.workers]
            refusal = next((each.refusal for each in involved if each.refusal), "")
            ahead = UNAPPLIED_MAX if pack.is_plain and not refusal else 0
            if pack.index <= min(each.applied_index for each in involved) + ahead:
                self._complete(self._committed.popleft())
            elif refusal:
                text = f"entry {pack.index} is in the log, but not applied here yet: {refusal}"
                self._committed.popleft()
                self.failures += [failure._replace(database=True) for failure in pack.abandon(text)]
            else:
                break
        if self.unclaimed_results and self.is_idle:
            self.unclaimed_results.clear()
            self._results_bytes = 0

    def _on_refused(self) -> None:
        """The leader refuses a pack for good. The packs behind it are queued again in order."""
        packs = list(reversed(self._proposed))  # The window has dropped all packs behind it, too.
        self._proposed.clear()
        first = packs[-1]
        assert first.pending is not None
        text = f"the leader has refused the write: {first.pending.refusal}"
        self.failures += self._remove(first, {first.pending.refused_position}, text)
        if first.last_part is not None:
            self.failures += self._remove(first.last_part, {0}, text)
        for pack in packs:
            pack.pending = None
            self._queued.appendleft(pack)
        self._drop_empty()

    def withdraw(self, routing_id: bytes, text: str) -> None:
        """Fails the client's writes that are not proposed yet."""
        for pack in (*self._queued, *((self._open,) if self._open else ())):
            positions = {
                position
                for i, position in enumerate(pack.positions)
                if pack.answers.message(i)[0] == routing_id
            }
            if positions:
                without = self._remove(pack, positions, text)
                self.failures += [
                    failure._replace(retry=True, unproposed=True) for failure in without
                ]
        self._drop_empty()

    def _drop_empty(self) -> None:
        """Drops queued packs that are of no use."""
        self._queued = deque(pack for pack in self._queued if not pack.is_empty)
        if self._open is not None and self._open.is_empty:
            self._open = None

    @staticmethod
    def _remove(pack: WritePack, removed: set[int], text: str) -> list[Failure]:
        """Removes entries from a pack; returns the failures of their clients."""
        kept = [position for position in range(len(pack.entries)) if position not in removed]
        moved = {position: new for new, position in enumerate(kept)}
        failures: list[Failure] = []
        answers = Frames()
        positions: list[int] = []
        for i, position in enumerate(pack.positions):
            if position in moved:
                answers.add(pack.answers.message(i))
                positions.append(moved[position])
            else:
                failures.append(Failure(pack.answers.message(i), None, text, False))
        failures += [
            Failure(None, ticket, text, False) for ticket, at in pack.job_tickets if at not in moved
        ]
        pack.answers, pack.positions = answers, positions
        pack.reqids = [pack.reqids[position] for position in kept]
        pack.entries = [pack.entries[position] for position in kept]
        pack.size = sum(map(len, pack.entries))
        pack.awaiting_results = {
            moved[position]: worker
            for position, worker in pack.awaiting_results.items()
            if position in moved
        }
        pack.job_tickets = [
            (ticket, moved[position]) for ticket, position in pack.job_tickets if position in moved
        ]
        pack.count = max(0, pack.count - len(removed))
        return failures

    def _complete(self, pack: WritePack) -> None:
        """Answers a pack."""
        self.latency.add(self.now_us - pack.arrived_us, pack.count)
        if pack.asks_index:
            pack.tell_indexes()
        if not (self.unclaimed_results or pack.awaiting_results or pack.job_tickets):
            if pack.answers.count:
                self.answers.append(pack.answers)
            return
        indexes = pack.indexes()
        plain = Frames()
        for i, position in enumerate(pack.positions):
            answer = pack.answers.message(i)
            results = tuple(self.unclaimed_results.get(indexes[position], ()))
            refused = next((it for it in results if it.code), None)
            if refused is not None:
                text = refused.data.decode(errors="replace")
                self.failures.append(Failure(answer, None, text, False, database=True))
            elif position not in pack.awaiting_results:
                plain.add(answer)
            else:
                worker, reqid = pack.awaiting_results[position], pack.reqids[position]
                applied = AppliedWrite(answer, results, worker, reqid, indexes[position])
                self.applied.append(applied)
        if plain.count:
            self.answers.append(plain)
        for ticket, position in pack.job_tickets:
            results = tuple(self.unclaimed_results.get(indexes[position], ()))
            self.job_results.append((ticket, indexes[position], results))

    def clear_results(self) -> None:
        """The owner has handled all results and failures."""
        self.failures, self.applied, self.answers, self.job_results = [], [], [], []

    def expire(self, now_ms: int, reason: str) -> None:
        """Fails writes whose deadline has passed.

        reason   why nothing is committed, as far as is known
        """
        late = [pack for pack in self._packs() if pack.deadline_ms <= now_ms]
        for pack in late:
            if pack.index:
                text = f"entry {pack.index} is in the log, but not applied here yet"
                self.failures += pack.abandon(text)
            elif pack.pending is not None:
                text = f"not known to be committed: {reason}; it may still be"
                self.failures += pack.abandon(text)
            else:
                text = f"nothing was written: {reason}"
                silent = pack.count - len(pack.positions) - len(pack.job_tickets)
                self.failures += [
                    failure._replace(unproposed=True) for failure in pack.abandon(text)
                ]
                if silent:
                    self.failures.append(Failure(None, None, f"{silent} writes: {text}", False))
                pack.entries = []
        self._drop_empty()
        self._committed = deque(each for each in self._committed if each not in late)
        self._due_ms = min((pack.deadline_ms for pack in self._packs()), default=_NEVER)

    @property
    def deadline_ms(self) -> int | None:
        """When expire() may have work."""
        return None if self._due_ms == _NEVER or self.is_idle else self._due_ms


_NEVER = 1 << 62
