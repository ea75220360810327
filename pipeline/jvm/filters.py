"""Which keys the filters of a query leave, as ranges of the table's keys in bytes.

The encoding of keys keeps the order of values, so a comparison of a key column is a range of its
part of the key. Columns of a key are never null, so NOT is the complement. What cannot be expressed
exactly stays with Spark; it may still narrow the ranges.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from ...clients.table.arguments import Range, behind_prefix
from ...clients.table.typed.rows import key_parts
from ...clients.table.typed.schema import TableSchema
from ...protocols.zerodb.wire.values import KEY_BYTES_MAX
from ..table.read import WantedKeys
from ..table.typed import spark_type_of

PART_BYTES_MAX = KEY_BYTES_MAX // 4  # Longer literals are left to Spark.
RANGES_MAX = 1000  # Filters that leave more are left to Spark: each range costs a task 1 ms.
KEYS_MAX = 10_000  # Likewise of single keys.
SWAPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
STEPS_US = {"s": 1_000_000, "ms": 1000, "us": 1}

Predicate = Mapping[str, Any]  # As the JVM sends it (java/Filters.java).
Cut = bytes | None  # In front of this part of keys; None: behind all.
Span = tuple[bytes, Cut]  # From the first to below the second.


class Pushed(NamedTuple):
    """What a read does for a query's predicates, which the query combines by AND.

    exact    of each: it does all of it
    used     of each: it narrows the read
    wanted   the keys that are left
    """

    exact: list[bool]
    used: list[bool]
    wanted: WantedKeys


class KeySpans(NamedTuple):
    """What a predicate means for one key column: the spans have all rows for which it holds."""

    column: int  # Place in the key.
    spans: list[Span]  # In order, without overlaps.
    is_exact: bool  # They have no other rows.


class Unsupported(Exception):
    """Spark evaluates this predicate alone."""


def push(schema: TableSchema, predicates: Sequence[Predicate]) -> Pushed:
    """Divides the work on predicates between the read and Spark."""
    columns = [_Column(schema, place) for place in range(len(schema.keys))]
    found = [_found(columns, one) for one in predicates]
    used, wanted = 0, WantedKeys([Range()])
    prefixes = [b""]
    for column in columns:
        spans = column.combined(found)
        if spans is None:
            break
        are_values = all(map(column.is_value, spans))
        most = KEYS_MAX if are_values and column.is_last else RANGES_MAX
        if len(spans) * len(prefixes) > most:
            break
        used += 1
        if not are_values:
            wanted = WantedKeys([_range(prefix, span) for prefix in prefixes for span in spans])
            break
        prefixes = [prefix + start for prefix in prefixes for start, _ in spans]
        if column.is_last:
            wanted = WantedKeys([], [key for key in prefixes if key])
        else:
            wanted = WantedKeys([_range(prefix, (b"", None)) for prefix in prefixes])
    is_used = [one is not None and one.column < used for one in found]
    exact = [one is not None and one.is_exact for one in found]
    return Pushed([a and b for a, b in zip(is_used, exact, strict=True)], is_used, wanted)


def _range(prefix: bytes, span: Span) -> Range:
    start, end = span
    return Range(prefix + start, behind_prefix(prefix) if end is None else prefix + end)


class _Column:
    """A key column: the bytes of its values in keys."""

    def __init__(self, schema: TableSchema, place: int) -> None:
        field = schema.key_fields[place]
        self.place, self.name, self.type = place, field.name, field.type
        self.spark_type = spark_type_of(field.type).replace(" ", "")
        self.is_last = place + 1 == len(schema.keys)
        self._values: set[bytes] = set()  # The parts of literals.

    def parts(self, literals: Sequence[Predicate]) -> list[bytes]:
        """The parts of keys with these values, in their order. Raises Unsupported."""
        texts = [one["value"] for one in literals]
        if any(one["type"] != self.spark_type for one in literals) or None in texts:
            raise Unsupported
        try:
            array = _array(self.type, texts)
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError):
            raise Unsupported from None
        found = key_parts([array], is_whole=self.is_last)
        if any(len(part) > PART_BYTES_MAX for part in found):
            raise Unsupported
        self._values.update(found)
        return found

    def behind(self, part: bytes) -> Cut:
        """Behind all keys with this value."""
        return part + b"\0" if self.is_last else behind_prefix(part) or None

    def is_value(self, span: Span) -> bool:
        """Whether it has the keys of one value."""
        return span[0] in self._values and span[1] == self.behind(span[0])

    def combined(self, found: Sequence[KeySpans | None]) -> list[Span] | None:
        """The spans that all predicates of this column leave; None: there are none."""
        mine = [one.spans for one in found if one is not None and one.column == self.place]
        spans: list[Span] | None = None
        for one in mine:
            spans = one if spans is None else _both(spans, one)
        return spans


def _array(type_: pa.DataType, texts: list[str]) -> pa.Array:
    """Values of a key column from their texts. Raises for a value that the type has not."""
    if pa.types.is_boolean(type_):
        return pa.array([text == "true" for text in texts], type_)
    if pa.types.is_date(type_):
        return pa.array(map(int, texts), pa.int32()).view(type_)
    if pa.types.is_timestamp(type_):
        found = [divmod(int(text), STEPS_US[type_.unit]) for text in texts]
        if any(rest for _, rest in found):
            raise ValueError("between two times that the column can hold")
        return pa.array([whole for whole, _ in found], pa.int64()).view(type_)
    if pa.types.is_decimal(type_):
        return pa.array(map(Decimal, texts), type_)
    if pa.types.is_floating(type_):
        return pa.array(map(float, texts), type_)
    if pa.types.is_integer(type_):
        return pa.array(map(int, texts), type_)
    data = map(bytes.fromhex, texts)
    return pa.array((one.decode() for one in data) if pa.types.is_string(type_) else data, type_)


# ---- predicates ----


def _found(columns: Sequence[_Column], predicate: Predicate) -> KeySpans | None:
    try:
        return _meaning(columns, predicate)
    except Unsupported:
        return None


def _meaning(columns: Sequence[_Column], predicate: Predicate) -> KeySpans:
    """Raises Unsupported."""
    operation, inner = predicate.get("op"), predicate.get("args", ())
    if operation == "AND":
        return _and(columns, inner)
    if operation == "OR":
        parts = [_meaning(columns, one) for one in inner]
        if len({part.column for part in parts}) > 1:
            raise Unsupported
        spans = _union([span for part in parts for span in part.spans])
        return KeySpans(parts[0].column, spans, all(part.is_exact for part in parts))
    if operation == "NOT":
        part = _meaning(columns, inner[0])
        if not part.is_exact:
            raise Unsupported
        return part._replace(spans=_complement(part.spans))
    if predicate.get("type") == "boolean" and predicate["value"] is not None:
        return KeySpans(0, [(b"", None)] if predicate["value"] == "true" else [], True)
    if operation == "IS_NOT_NULL":
        return KeySpans(_column(columns, inner[0]).place, [(b"", None)], True)
    if operation == "IS_NULL":
        return KeySpans(_column(columns, inner[0]).place, [], True)
    return _comparison(columns, operation, inner)


def _and(columns: Sequence[_Column], inner: Sequence[Predicate]) -> KeySpans:
    """One part that can be expressed is enough to narrow the read."""
    parts = [part for one in inner if (part := _found(columns, one)) is not None]
    if not parts:
        raise Unsupported
    place = parts[0].column
    mine = [part for part in parts if part.column == place]
    spans = mine[0].spans
    for part in mine[1:]:
        spans = _both(spans, part.spans)
    is_exact = len(mine) == len(inner) and all(part.is_exact for part in mine)
    return KeySpans(place, spans, is_exact)


def _comparison(
    columns: Sequence[_Column], operation: str | None, inner: Sequence[Predicate]
) -> KeySpans:
    if len(inner) < 2:
        raise Unsupported
    first, literals = inner[0], inner[1:]
    if "column" not in first and len(inner) == 2 and operation in SWAPPED:
        operation, first, literals = SWAPPED[operation], inner[1], inner[:1]
    column = _column(columns, first)
    if not all("value" in one for one in literals):
        raise Unsupported
    if operation == "<=>":
        operation = "="
    if operation == "STARTS_WITH":
        return KeySpans(column.place, [_prefix_span(column, literals[0])], True)
    parts = column.parts(literals)
    if operation == "IN":
        return KeySpans(column.place, _union([(it, column.behind(it)) for it in parts]), True)
    if operation == "<>":
        return KeySpans(column.place, _complement([(parts[0], column.behind(parts[0]))]), True)
    made: Mapping[str, Callable[[bytes], list[Span]]] = {
        "=": lambda part: [(part, column.behind(part))],
        "<": lambda part: [(b"", part)],
        "<=": lambda part: [(b"", column.behind(part))],
        ">": lambda part: (
            [] if column.behind(part) is None else [(column.behind(part) or b"", None)]
        ),
        ">=": lambda part: [(part, None)],
    }
    if operation is None or operation not in made:
        raise Unsupported
    return KeySpans(column.place, _union(made[operation](parts[0])), True)


def _column(columns: Sequence[_Column], reference: Predicate) -> _Column:
    for column in columns:
        if reference.get("column") == [column.name]:
            return column
    raise Unsupported


def _prefix_span(column: _Column, literal: Predicate) -> Span:
    """The texts or bytes with a prefix."""
    part = column.parts([literal])[0]
    if column.is_last:
        return part, behind_prefix(part) or None
    above = behind_prefix(bytes.fromhex(literal["value"]))
    if not above:
        return part, None
    return part, key_parts([pa.array([above], pa.binary())], is_whole=False)[0]


# ---- spans: from the first part of a key to below the second; without overlaps, in order ----


def _order(span: Span) -> tuple[bytes, bool, bytes]:
    return span[0], span[1] is None, span[1] or b""


def _lower(one: Cut, other: Cut) -> Cut:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def _is_empty(start: bytes, end: Cut) -> bool:
    return end is not None and start >= end


def _union(spans: Sequence[Span]) -> list[Span]:
    """Spans that only touch stay apart: each may be a single value."""
    found: list[Span] = []
    for start, end in sorted(spans, key=_order):
        if _is_empty(start, end):
            continue
        if found and (found[-1][1] is None or start < found[-1][1]):
            before = found[-1][1]
            longest = None if before is None or end is None else max(before, end)
            found[-1] = found[-1][0], longest
        else:
            found.append((start, end))
    return found


def _both(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    found: list[Span] = []
    ends = [(end is None, end or b"") for _, end in other]
    for start, end in one:
        place = bisect_left(ends, (False, start))
        while place < len(other) and (end is None or other[place][0] < end):
            made = max(start, other[place][0]), _lower(end, other[place][1])
            if not _is_empty(*made):
                found.append(made)
            place += 1
    return found


def _complement(spans: Sequence[Span]) -> list[Span]:
    found: list[Span] = []
    start: Cut = b""
    for first, end in spans:
        if start is not None and start < first:
            found.append((start, first))
        start = end
    if start is not None:
        found.append((start, None))
    return found
