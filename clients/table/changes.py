"""What a watch tells: an entry's operations as changes of keys."""

from collections.abc import Iterator
from typing import NamedTuple

from ...protocols.zerodb.wire import answers, ops
from .arguments import Range


class Change(NamedTuple):
    """What became of a key, or of a range of keys."""

    index: int  # type: ignore[assignment]  # LOG INDEX; hides tuple.index, which nobody misses.
    key: bytes  # Or the first of a range; empty: the table's first.
    value: bytes | None  # None: it was deleted.
    end: bytes | None = None  # Of a range of deleted keys, exclusive; empty: to the last.


def changes_of(change: answers.WatchedChange, table: int, asked: Range) -> Iterator[Change]:
    """What an entry did to the keys of a range, in its order."""
    start, end = asked

    def within(key: bytes) -> bool:
        return key >= start and (not end or key < end)

    for op in change.ops:
        if getattr(op, "table", table) != table:
            continue
        match op:
            case ops.Put():
                for key, value in zip(op.keys, op.values, strict=True):
                    if within(key):
                        yield Change(change.index, key, value)
            case ops.Delete():
                for key in op.keys:
                    if within(key):
                        yield Change(change.index, key, None)
            case ops.DeleteRange():
                yield Change(change.index, max(op.start, start), None, least(op.end, end))
            case ops.Truncate():
                yield Change(change.index, start, None, end)


def least(one: bytes, other: bytes) -> bytes:
    """Of two ends, of which an empty one is the last."""
    return min(one, other) if one and other else one or other
