"""The changes that a watch yields: the operations of an entry, key by key."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self

from ...protocols.zerodb.wire import answers, ops
from ..aliases import warn_renamed
from ..errors import TableTooLarge
from .arguments import Range, checked_number

SNAPSHOT_BYTES_MAX = 256 << 20  # Of keys and values that a watch with a snapshot holds.
PUT, DELETE, DELETE_RANGE = "put", "delete", "delete_range"
SNAPSHOT, LIVE = "snapshot", "live"


class Change(NamedTuple):
    """A change of a key, or the deletion of a range of keys.

    index     LOG INDEX of the write; of a snapshot, that as of which it is complete
    key       the key, or the start of the range; empty: the table's first key
    value     None: deleted
    end       the end of the deleted range, exclusive; empty: behind the last key; None: one key
    kind      "put", "delete", "delete_range"; of watch(snapshot=True) also "snapshot": a pair that
              was there at the beginning, and "live": there are no more of those, changes follow
    previous  of watch(snapshot=True): the value before; None: the key did not exist
    """

    index: int  # type: ignore[assignment]  # A tuple, as one is made per change; hides its index.
    key: bytes
    value: bytes | None
    end: bytes | None = None

    @property
    def kind(self) -> str:
        if self.value is not None:
            return PUT
        return DELETE if self.end is None else DELETE_RANGE

    @property
    def previous(self) -> Any:
        return None


class KnownChange(Change):
    """A change of a key whose value before is known."""

    _kind = PUT
    _previous: Any = None

    @classmethod
    def of(cls, change: Change, kind: str, previous: Any = None) -> Self:
        made = cls(*change)
        made._kind, made._previous = kind, previous
        return made

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def previous(self) -> Any:
        return self._previous


class WatchedRange:
    """The pairs of a range, as a watch with a snapshot has told them."""

    def __init__(self) -> None:
        self._pairs: dict[bytes, bytes] = {}
        self._size = 0

    def add(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        for key, value in pairs:
            self._set(key, value)

    def told(self, index: int) -> list[Change]:
        """The pairs in the order of their keys, and the end of the snapshot."""
        found = sorted(self._pairs.items())
        pairs = [KnownChange.of(Change(index, *pair), SNAPSHOT) for pair in found]
        return [*pairs, KnownChange.of(Change(index, b"", None), LIVE)]

    def apply(self, changes: Iterable[Change]) -> list[Change]:
        """The changes with the previous values; deletions of a range key by key. A deletion of a
        key that does not exist is no change."""
        found: list[Change] = []
        for change in changes:
            for key, previous in self.replace(change):
                one = Change(change.index, key, change.value)
                found.append(KnownChange.of(one, one.kind, previous))
        return found

    def replace(self, change: Change) -> list[tuple[bytes, bytes | None]]:
        """Applies a change; returns the keys that it changes and their values before, in order."""
        _, key, value, end = change
        keys = [key]
        if end is not None:
            keys = sorted(it for it in self._pairs if it >= key and (not end or it < end))
        found = [(it, self._set(it, value)) for it in keys]
        return found if value is not None else [it for it in found if it[1] is not None]

    def _set(self, key: bytes, value: bytes | None) -> bytes | None:
        """Raises TableTooLarge."""
        previous = self._pairs.pop(key, None)
        self._size -= 0 if previous is None else len(key) + len(previous)
        if value is not None:
            self._pairs[key] = value
            self._size += len(key) + len(value)
            if self._size > SNAPSHOT_BYTES_MAX:
                raise TableTooLarge(
                    f"a watch with a snapshot holds at most {SNAPSHOT_BYTES_MAX} bytes of the "
                    "range; use open_snapshot(), and watch(after=) its index"
                )
        return previous


def first_index(after: int | None, index: int | None) -> int:
    """The first index of a watch; 0: from now on. The old argument index is inclusive and warns.

    Raises TypeError, ValueError.
    """
    if index is not None:
        warn_renamed("index=", "after=, which is exclusive", 5)
        return checked_number("index", index)
    return 0 if after is None else checked_number("after", after) + 1


def changes_of(change: answers.WatchedChange, table: int, bounds: Range) -> Iterator[Change]:
    """The changes of an entry within a range, in the entry's order."""
    start, end = bounds

    def within(key: bytes) -> bool:
        return key >= start and (not end or key < end)

    for op in change.ops:
        if getattr(op, "table", table) != table:
            continue
        match op:
            case ops.Put():
                for key, value in zip(op.keys, op.values, strict=True):
                    if within(key):
                        yield Change(change.log_index, key, value)
            case ops.Delete():
                for key in op.keys:
                    if within(key):
                        yield Change(change.log_index, key, None)
            case ops.DeleteRange():
                yield Change(change.log_index, max(op.start, start), None, least(op.end, end))
            case ops.Truncate():
                yield Change(change.log_index, start, None, end)


def least(one: bytes, other: bytes) -> bytes:
    """The lower of two range ends. An empty end is behind the last key."""
    return min(one, other) if one and other else one or other
