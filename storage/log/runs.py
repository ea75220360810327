"""Which terms a log's entries have, by runs of equal terms: a few numbers for any length."""

from bisect import bisect_right
from collections.abc import Iterable


class Runs:
    """Terms of the entries base_index + 1 to last_index, ascending, and of the base itself."""

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

    def copy(self) -> "Runs":
        return Runs(self.base_index, self.base_term, self.items, self.last_index)

    def term_at(self, index: int) -> int | None:
        """The term of an entry or of the base; None for any other index."""
        if not self.base_index <= index <= self.last_index:
            return None
        at = bisect_right(self.items, index, key=lambda run: run[0])
        return self.items[at - 1][1] if at else self.base_term

    def extend(self, count: int, term: int) -> None:
        """Adds count entries of a term that is not below the last one."""
        assert term >= self.last_term
        if term > self.last_term:
            self.items.append((self.last_index + 1, term))
        self.last_index += count

    def truncate(self, index: int) -> None:
        """Forgets everything behind index."""
        assert self.base_index <= index <= self.last_index
        while self.items and self.items[-1][0] > index:
            self.items.pop()
        self.last_index = index

    def rebase(self, base_index: int) -> None:
        """Forgets everything up to base_index, which becomes the base."""
        term = self.term_at(base_index)
        assert term is not None
        self.items = [run for run in self.items if run[0] > base_index]
        self.base_index, self.base_term = base_index, term
