"""The terms of a log's entries as runs of equal terms: a few numbers for a log of any length."""

from bisect import bisect_right
from collections.abc import Iterable


class Runs:
    """The terms of entries base_index to last_index. Terms never decrease."""

    def __init__(
        self, base_index: int, base_term: int, runs: Iterable[tuple[int, int]], last_index: int
    ) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self.items = list(runs)  # (first index, term)
        self.last_index = last_index

    @property
    def last_term(self) -> int:
        return self.items[-1][1] if self.items else self.base_term

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None outside base_index to last_index."""
        if not self.base_index <= index <= self.last_index:
            return None
        at = bisect_right(self.items, index, key=lambda run: run[0])
        return self.items[at - 1][1] if at else self.base_term

    def extend(self, count: int, term: int) -> None:
        """Adds count entries of a term, which must not be below last_term."""
        assert term >= self.last_term
        if term > self.last_term:
            self.items.append((self.last_index + 1, term))
        self.last_index += count

    def truncate(self, index: int) -> None:
        """Drops the entries after index."""
        assert self.base_index <= index <= self.last_index
        while self.items and self.items[-1][0] > index:
            self.items.pop()
        self.last_index = index

    def rebase(self, base_index: int) -> None:
        """Drops the entries before base_index, which becomes the base."""
        term = self.term_at(base_index)
        assert term is not None
        self.items = [run for run in self.items if run[0] > base_index]
        self.base_index, self.base_term = base_index, term
