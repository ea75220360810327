"""The changes that a watch yields: the operations of an entry, key by key."""

from collections.abc import Iterator
from typing import NamedTuple

from ...protocols.zerodb.wire import answers, ops
from ..aliases import warn_renamed
from .arguments import Range, checked_number


class Change(NamedTuple):
    """A change of a key, or the deletion of a range of keys.

    index   LOG INDEX of the write
    key     the key, or the start of the range; empty: the table's first key
    value   None: deleted
    end     the end of the deleted range, exclusive; empty: behind the last key; None: one key
    """

    index: int  # type: ignore[assignment]  # A tuple, as one is made per change; hides its index.
    key: bytes
    value: bytes | None
    end: bytes | None = None


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
