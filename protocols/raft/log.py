"""What the core knows of its log: terms, configurations, recent batches and the durable index.

It holds and reads no file. The core asks for entries that are not in memory by a StoredRead.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from ..errors import LocalProtocolError
from .membership import Configuration, ConfigurationHistory
from .messages import APPEND_BATCHES_MAX, EntryBatch

CACHE_BYTES_MAX = 16 << 20
_CACHE_DEAD_MAX = 256  # Evicted batches at the head of the list before it is compacted.


class RaftLog:
    """The log as the algorithm sees it: base, last index, terms, and the newest batches in memory.

    `base_index` is the last index that compaction has removed, 0 for none; its term stays known.
    Terms are stored as runs, so their memory grows with the number of leaders, not of entries.
    """

    __slots__ = (
        "_cached",
        "_cached_bytes",
        "_cached_dead",
        "_cached_firsts",
        "_run_firsts",
        "_run_terms",
        "base_index",
        "base_term",
        "cache_bytes_max",
        "configurations",
        "last_index",
        "last_term",
    )

    def __init__(
        self,
        base_index: int = 0,
        base_term: int = 0,
        runs: Sequence[tuple[int, int]] = (),
        last_index: int | None = None,
        *,
        configurations: ConfigurationHistory | None = None,
        cache_bytes_max: int = CACHE_BYTES_MAX,
    ) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self.last_index = base_index if last_index is None else last_index
        self.configurations = configurations or ConfigurationHistory(base_index=base_index)
        self.cache_bytes_max = cache_bytes_max
        self._run_firsts = [first for first, _ in runs]
        self._run_terms = [term for _, term in runs]
        self.last_term = self._run_terms[-1] if runs else base_term
        self._cached: list[EntryBatch] = []
        self._cached_firsts: list[int] = []
        self._cached_bytes = 0
        self._cached_dead = 0
        self._check_runs()

    def _check_runs(self) -> None:
        assert self.last_index >= self.base_index, "the log ends below its base"
        assert bool(self._run_firsts) == (self.last_index > self.base_index), "runs do not fit"
        if not self._run_firsts:
            return
        assert self._run_firsts[0] == self.base_index + 1, "the first run does not follow the base"
        assert self._run_firsts[-1] <= self.last_index, "the last run begins behind the end"
        assert all(a < b for a, b in pairwise(self._run_firsts))
        terms = [self.base_term, *self._run_terms]
        assert all(a <= b for a, b in pairwise(terms)), "terms go back"

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(First index, term) of each run of equal terms, ascending."""
        return list(zip(self._run_firsts, self._run_terms, strict=True))

    @property
    def cached_first(self) -> int:
        """The first index in memory; last_index + 1 when no entry is."""
        live = self._cached_firsts
        return live[self._cached_dead] if self._cached_dead < len(live) else self.last_index + 1

    def term_at(self, index: int) -> int | None:
        """Returns the term of the entry at `index`; None below the base and above the last
        index."""
        if index > self.last_index:
            return None
        firsts = self._run_firsts
        if firsts and index >= firsts[-1]:
            return self.last_term
        if index > self.base_index:
            return self._run_terms[bisect_right(firsts, index) - 1]
        return self.base_term if index == self.base_index else None

    def term_first(self, index: int) -> int:
        """Returns the first index of the run of equal terms around `index`."""
        assert self.base_index < index <= self.last_index
        return self._run_firsts[bisect_right(self._run_firsts, index) - 1]

    def run_last(self, index: int) -> int:
        """Returns the last index of the run of equal terms around `index`."""
        assert self.base_index < index <= self.last_index
        at = bisect_right(self._run_firsts, index)
        return self._run_firsts[at] - 1 if at < len(self._run_firsts) else self.last_index

    def term_last(self, term: int) -> int | None:
        """Returns the last index of `term`, the base included; None if the log has no such
        entry."""
        at = bisect_right(self._run_terms, term) - 1
        if at < 0 or self._run_terms[at] != term:
            return self.base_index if term == self.base_term else None
        following = at + 1
        if following == len(self._run_firsts):
            return self.last_index
        return self._run_firsts[following] - 1

    def append(self, batch: EntryBatch) -> None:
        """Appends a batch after the last entry.

        Raises LocalProtocolError when it does not follow or its term is lower.
        """
        first_index, count, term, block = batch
        if first_index != self.last_index + 1 or count < 1 or term < self.last_term:
            raise LocalProtocolError(
                f"batch {first_index}+{count} of term {term} does not follow "
                f"index {self.last_index} of term {self.last_term}"
            )
        if term != self.last_term or not self._run_firsts:
            self._run_firsts.append(first_index)
            self._run_terms.append(term)
            self.last_term = term
        self.last_index += count
        self._cached.append(batch)
        self._cached_firsts.append(first_index)
        self._cached_bytes += len(block)
        if self._cached_bytes > self.cache_bytes_max:
            self._cache_evict()

    def _cache_evict(self) -> None:
        dead, cached = self._cached_dead, self._cached
        while self._cached_bytes > self.cache_bytes_max and dead < len(cached) - 1:
            batch = cached[dead]
            self._cached_bytes -= len(batch.block)
            cached[dead] = batch._replace(
                block=b""
            )  # The list is moved together only now and then.
            dead += 1
        if dead > _CACHE_DEAD_MAX:
            del cached[:dead]
            del self._cached_firsts[:dead]
            dead = 0
        self._cached_dead = dead

    def truncate(self, index: int, trim: Callable[[EntryBatch, int], EntryBatch]) -> None:
        assert self.base_index < index <= self.last_index, "truncates outside of the log"
        self.last_index = index - 1
        self.configurations.truncate(index)
        keep = bisect_left(self._run_firsts, index)
        del self._run_firsts[keep:]
        del self._run_terms[keep:]
        self.last_term = self._run_terms[-1] if keep else self.base_term
        keep = bisect_left(self._cached_firsts, index)
        self._cached_bytes -= sum(len(batch.block) for batch in self._cached[keep:])
        del self._cached[keep:]
        del self._cached_firsts[keep:]
        self._cached_dead = min(self._cached_dead, keep)  # Evicted batches may be truncated, too.
        if keep > self._cached_dead and self._cached[-1].last_index >= index:
            batch = trim(self._cached[-1], index - 1)
            self._cached_bytes += len(batch.block) - len(self._cached[-1].block)
            self._cached[-1] = batch

    def compact(self, index: int) -> None:
        """Forgets the entries up to `index`; the term of `index` stays known."""
        term = self.term_at(index)
        assert term is not None, "compacts outside of the log"
        if index == self.base_index:
            return
        at = bisect_right(self._run_firsts, index)
        if index == self.last_index or (
            at < len(self._run_firsts) and self._run_firsts[at] == index + 1
        ):
            del self._run_firsts[:at], self._run_terms[:at]
        else:
            del self._run_firsts[: at - 1], self._run_terms[: at - 1]
            self._run_firsts[0] = index + 1
        self.base_index, self.base_term = index, term
        self.configurations.compact(index)
        keep = bisect_right(self._cached_firsts, index)
        if keep and self._cached[keep - 1].last_index > index:
            keep -= 1  # This batch has entries on both sides.
        live = max(keep, self._cached_dead)
        self._cached_bytes -= sum(len(batch.block) for batch in self._cached[:live])
        del self._cached[:live], self._cached_firsts[:live]
        self._cached_dead = 0

    def reset(self, index: int, term: int, configuration: Configuration) -> None:
        """Restarts the log behind (index, term), without entries, with the configuration in force
        there."""
        self.base_index = self.last_index = index
        self.base_term = self.last_term = term
        self.configurations.reset(index, configuration)
        self._run_firsts, self._run_terms = [], []
        self._cached, self._cached_firsts = [], []
        self._cached_bytes = self._cached_dead = 0

    def slice(self, first_index: int, bytes_max: int) -> list[EntryBatch] | None:
        """Returns the cached batches from `first_index` on: at least one, else at most bytes_max of
        blocks, and never more than one AppendEntries may hold.

        The first batch may begin before first_index; the caller cuts it. Returns [] above the last
        index, and None when first_index is not in memory.
        """
        if first_index > self.last_index:
            return []
        firsts, dead = self._cached_firsts, self._cached_dead
        if dead == len(firsts) or first_index < firsts[dead]:
            return None
        if first_index >= firsts[-1]:
            return [self._cached[-1]]
        batches: list[EntryBatch] = []
        size = 0
        begin = bisect_right(firsts, first_index) - 1
        for at in range(begin, min(begin + APPEND_BATCHES_MAX, len(firsts))):
            batch = self._cached[at]
            size += len(batch.block)
            if batches and size > bytes_max:
                break
            batches.append(batch)
        return batches


class DurableTracker:
    """The durable index, from the batches given to the log writer and its acknowledgements.

    The writer acknowledges in the order of the batches, by index and term. After a truncation the
    same index and term may be given again, so an acknowledgement counts only for the oldest
    matching batch.
    """

    __slots__ = ("_pieces", "durable_index")

    def __init__(self, durable_index: int) -> None:
        self.durable_index = durable_index
        # [first index, last index, term, last index that is still part of the log]
        self._pieces: deque[list[int]] = deque()

    def reset(self, index: int) -> None:
        """Restarts behind `index`, which a durable snapshot includes."""
        self.durable_index = index
        self._pieces.clear()

    def add(self, batch: EntryBatch) -> None:
        """The batch was given to the log writer."""
        last_index = batch[0] + batch[1] - 1
        self._pieces.append([batch[0], last_index, batch[2], last_index])

    def truncate(self, index: int) -> None:
        self.durable_index = min(self.durable_index, index - 1)
        for piece in self._pieces:
            piece[3] = min(piece[3], index - 1)

    def on_durable(self, index: int, term: int) -> None:
        """Every batch given up to (index, term) is durable. Unknown pairs are ignored."""
        pieces = self._pieces
        older = 0
        for first_index, last_index, piece_term, _ in pieces:
            if piece_term == term and first_index <= index <= last_index:
                break
            older += 1
        else:
            return
        for _ in range(older):
            self.durable_index = max(self.durable_index, pieces.popleft()[3])
        self.durable_index = max(self.durable_index, min(index, pieces[0][3]))
        if index == pieces[0][1]:
            pieces.popleft()
