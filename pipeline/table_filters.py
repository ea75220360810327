"""What of a query's filters a table can do itself: ranges, prefixes and lists of keys."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from ..clients.arguments import Range, behind_prefix
from ..protocols.zerodb.values import KEY_BYTES_MAX
from .formats import NUMBER_BYTES

KEY = ("key",)
FORMATS = ("raw", "utf8", "be64")  # Whose order of bytes is that of their values.
NUMBER_MAX = 2**63 - 1  # Of Spark's BIGINT.


class Wanted(NamedTuple):
    """Keys: those of a range, or those of a list that lie in it."""

    range: Range
    keys: frozenset[bytes] | None = None

    @property
    def empty(self) -> bool:
        """Whether there can be none."""
        return self.range.empty or self.keys == frozenset()

    @property
    def listed(self) -> list[bytes] | None:
        """The list, in order; None: there is none, but a range."""
        if self.keys is None:
            return None
        start, end = self.range
        return sorted(key for key in self.keys if key >= start and (not end or key < end))


def narrowed(wanted: Wanted, form: str, filters: Iterable[Filter]) -> tuple[Wanted, list[Filter]]:
    """What is left of the keys under some filters, and the filters that Spark must apply itself.

    Keys that can't be read as their format says are null to Spark, and may lie in any range: so
    only with raw keys, which can always be read, a filter is done with.
    """
    rest = []
    for one in filters:
        less = _narrowed(wanted, form, one) if form in FORMATS else None
        if less is None or form != "raw":
            rest.append(one)
        wanted = less or wanted
    return wanted, rest


def _narrowed(wanted: Wanted, form: str, one: Filter) -> Wanted | None:
    """None: the filter is about something else."""
    if getattr(one, "attribute", None) != KEY:
        return None
    match one:
        case IsNotNull():
            return wanted
        case EqualTo() | EqualNullSafe():
            key = _key(form, one.value)
            return None if key is None else _listed(wanted, {key})
        case In():
            keys = [_key(form, value) for value in one.value if value is not None]
            return None if None in keys else _listed(wanted, {key for key in keys if key})
        case StringStartsWith() if form == "utf8":
            prefix = one.value.encode()[:KEY_BYTES_MAX]
            return _within(wanted, prefix, behind_prefix(prefix))
        case GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
            return _bounded(wanted, form, one)
    return None


def _bounded(wanted: Wanted, form: str, one: Any) -> Wanted | None:
    """Above or below a value."""
    value = one.value
    if form == "be64" and isinstance(value, int) and value < 0:
        above = isinstance(one, GreaterThan | GreaterThanOrEqual)
        return wanted if above else wanted._replace(keys=frozenset())
    key = _key(form, value)
    if key is None or len(key) >= KEY_BYTES_MAX:  # No bound may be longer.
        return None
    match one:
        case GreaterThan():
            return _within(wanted, key + b"\0", b"")
        case GreaterThanOrEqual():
            return _within(wanted, key, b"")
        case LessThan():
            return _within(wanted, b"", key) if key else wanted._replace(keys=frozenset())
        case _:
            return _within(wanted, b"", key + b"\0")


def _within(wanted: Wanted, start: bytes, end: bytes) -> Wanted:
    old = wanted.range
    ends = [one for one in (old.end, end) if one]
    return wanted._replace(range=Range(max(old.start, start), min(ends, default=b"")))


def _listed(wanted: Wanted, keys: Iterable[bytes]) -> Wanted:
    """No key is empty, or longer than the limit: such are in no table."""
    some = frozenset(key for key in keys if 0 < len(key) <= KEY_BYTES_MAX)
    return wanted._replace(keys=some if wanted.keys is None else wanted.keys & some)


def _key(form: str, value: Any) -> bytes | None:
    """The key that a value stands for, empty: none can be it; None: it is of another type."""
    if form == "raw" and isinstance(value, bytes | bytearray):
        return bytes(value)
    if form == "utf8" and isinstance(value, str):
        return value.encode()
    if form == "be64" and isinstance(value, int) and value <= NUMBER_MAX:
        return value.to_bytes(NUMBER_BYTES, "big") if value >= 0 else b""
    return None
