"""Filters as ranges of keys: they leave the rows that Spark's own filters leave, or more."""

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.clients.table.typed.rows import encode_key
from kelek.clients.table.typed.schema import TableSchema

pytest.importorskip("pyspark")
filters = pytest.importorskip("kelek.pipeline.jvm.filters")

EPOCH = date(1970, 1, 1)
TEXTS = ("", "a", "a\0", "a\0b", "a\xff", "ab", "b", "ä", "\U0010ffff")
NUMBERS = (-(2**63), -1, 0, 1, 2, 255, 256, 2**63 - 1)
DAYS = (-719162, -1, 0, 1, 20000)
BYTES = (b"", b"\0", b"\0\xff", b"\1", b"\1\xff\xff", b"\2", b"\xff", b"\xff\xff")
FLOATS = (float("-inf"), -1.5, 0.0, 1e-300, 2.0, float("inf"))


def text_of(value: Any) -> str:
    """As java/Filters.java writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | bytes):
        return (value.encode() if isinstance(value, str) else value).hex()
    return str((value - EPOCH).days) if isinstance(value, date) else str(value)


class Key:
    """A key column with the values that tests use."""

    def __init__(self, name: str, type_: str, spark_type: str, values: tuple[Any, ...]) -> None:
        self.name, self.type, self.spark_type, self.values = name, type_, spark_type, values

    def literal(self, value: Any) -> dict[str, Any]:
        return {"type": self.spark_type, "value": None if value is None else text_of(value)}


KEYS = (
    Key("t", "utf8", "string", TEXTS),
    Key("n", "int64", "bigint", NUMBERS),
    Key("d", "date32", "date", tuple(EPOCH + timedelta(days) for days in DAYS)),
    Key("raw", "binary", "binary", BYTES),
    Key("ok", "bool", "boolean", (False, True)),
    Key("x", "float64", "double", FLOATS),
    Key("p", "decimal(9, 2)", "decimal(9,2)", tuple(map(Decimal, ("-1.25", "0.00", "1.00")))),
    Key("small", "uint8", "smallint", (0, 1, 255)),
)
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<=>": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
SWAPPED = ("=", "<", "<=", ">", ">=")  # Spark may write 1 < n.
Row = dict[str, Any]
Holds = Callable[[Row], bool]
Made = tuple[dict[str, Any], Holds]  # A predicate, and the same in Python.


def comparison(key: Key, operation: str, value: Any) -> Made:
    compare = COMPARED[operation]
    made = {"op": operation, "args": [{"column": [key.name]}, key.literal(value)]}
    return made, lambda row: compare(of_bytes_if_text(row[key.name]), of_bytes_if_text(value))


def swapped(key: Key, operation: str, value: Any) -> Made:
    compare = COMPARED[operation]
    made = {"op": operation, "args": [key.literal(value), {"column": [key.name]}]}
    return made, lambda row: compare(of_bytes_if_text(value), of_bytes_if_text(row[key.name]))


def prefix_of(key: Key, value: Any) -> Made:
    made = {"op": "STARTS_WITH", "args": [{"column": [key.name]}, key.literal(value)]}
    prefix = of_bytes_if_text(value)
    return made, lambda row: of_bytes_if_text(row[key.name]).startswith(prefix)


@st.composite
def leaf(draw: st.DrawFn, keys: tuple[Key, ...]) -> Made:
    key = draw(st.sampled_from(keys))
    column = {"column": [key.name]}
    kind = draw(st.sampled_from(["compare", "swapped", "in", "prefix", "null", "value"]))
    value = draw(st.sampled_from(key.values))
    if kind == "in":
        some = draw(st.lists(st.sampled_from(key.values), min_size=1, max_size=4))
        literals = [key.literal(one) for one in some]
        return {"op": "IN", "args": [column, *literals]}, lambda row: row[key.name] in some
    if kind == "null":
        return {"op": "IS_NOT_NULL", "args": [column]}, lambda row: True
    if kind == "value":  # A column that is not of the key.
        return {"op": "=", "args": [{"column": ["v"]}, key.literal(value)]}, lambda row: row["v"]
    if kind == "prefix" and isinstance(value, str | bytes):
        return prefix_of(key, value)
    if kind == "swapped":
        return swapped(key, draw(st.sampled_from(SWAPPED)), value)
    return comparison(key, draw(st.sampled_from([*COMPARED])), value)


def of_bytes_if_text(value: Any) -> Any:
    """Spark compares texts by their bytes."""
    return value.encode() if isinstance(value, str) else value


def joined(operation: str) -> Callable[[list[Made]], Made]:
    def make(parts: list[Made]) -> Made:
        every = all if operation == "AND" else any
        made = {"op": operation, "args": [one for one, _ in parts]}
        return made, lambda row: every([holds(row) for _, holds in parts])

    return make


def negated(part: Made) -> Made:
    return {"op": "NOT", "args": [part[0]]}, lambda row: not part[1](row)


def predicates(keys: tuple[Key, ...]) -> st.SearchStrategy[Made]:
    def deeper(inner: st.SearchStrategy[Made]) -> st.SearchStrategy[Made]:
        pairs = st.lists(inner, min_size=2, max_size=2)
        return st.one_of(inner.map(negated), pairs.map(joined("AND")), pairs.map(joined("OR")))

    return st.recursive(leaf(keys), deeper, max_leaves=4)


@st.composite
def queries(draw: st.DrawFn) -> tuple[tuple[Key, ...], list[Made]]:
    keys = tuple(draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True)))
    return keys, draw(st.lists(predicates(keys), min_size=1, max_size=3))


def is_within(wanted: Any, key: bytes) -> bool:
    if wanted.keys is not None:
        return key in wanted.keys
    return any(one.start <= key and (not one.end or key < one.end) for one in wanted.ranges)


@given(queries())
def test_ranges_have_the_rows_of_the_filters(query: tuple[tuple[Key, ...], list[Made]]) -> None:
    check(*query)


@pytest.mark.parametrize("key", KEYS, ids=[key.name for key in KEYS])
def test_every_comparison_with_every_value(key: Key) -> None:
    other = next(one for one in KEYS if one is not key)
    column = {"column": [key.name]}
    for value in key.values:
        made = [(comparison(key, operation, value)) for operation in COMPARED]
        made += [swapped(key, operation, value) for operation in SWAPPED]
        if isinstance(value, str | bytes):
            made.append(prefix_of(key, value))
        for one in [*made, *map(negated, made)]:
            for keys in ((key,), (key, other)):
                assert check(keys, [one]).exact == [True]
        null = {"op": "IN", "args": [column, key.literal(value), key.literal(None)]}
        assert check((key,), [(null, lambda row: True)]).exact == [False]


def check(keys: tuple[Key, ...], made: list[Made]) -> Any:
    """The ranges, which have the rows that the predicates leave."""
    columns = ", ".join(f"{key.name} {key.type}" for key in keys)
    schema = TableSchema(f"{columns}, v bool", [key.name for key in keys])
    pushed = filters.push(schema, [one for one, _ in made])
    ordered = pushed.wanted.keys if pushed.wanted.keys is not None else pushed.wanted.ranges
    assert list(ordered) == sorted(set(ordered))
    for values in product(*(key.values for key in keys)):
        data = encode_key(schema, values)
        for v in (False, True):
            row = {**dict(zip(schema.keys, values, strict=True)), "v": v}
            wants = all(holds(row) for _, holds in made)
            has = is_within(pushed.wanted, data)
            left = [
                holds(row)
                for exact, (_, holds) in zip(pushed.exact, made, strict=True)
                if not exact
            ]
            if data:  # A table holds no empty key.
                assert (has and all(left)) == wants, (values, pushed)
    return pushed


def push(columns: str, key: list[str], *made: dict[str, Any]) -> Any:
    return filters.push(TableSchema(columns, key), made)


def compare(operation: str, column: str, type_: str, *texts: str | None) -> dict[str, Any]:
    literals = [{"type": type_, "value": text} for text in texts]
    return {"op": operation, "args": [{"column": [column]}, *literals]}


@pytest.mark.parametrize(
    "made",
    [
        compare("=", "n", "bigint", None),  # It is never true, and NOT of it neither.
        compare("IN", "n", "bigint", "1", None),
        compare("=", "n", "int", "1"),  # Spark has a cast around the column, which we do not see.
        compare("LIKE", "n", "bigint", "1"),
        {"op": "=", "args": [{"column": ["n"]}, {"column": ["n"]}]},
        {"op": "=", "args": [{"column": ["n", "inner"]}, {"type": "bigint", "value": "1"}]},
        {"op": "=", "args": [{}, {"type": "bigint", "value": "1"}]},
        {},
    ],
)
def test_what_is_left_to_spark(made: dict[str, Any]) -> None:
    for one in (made, {"op": "NOT", "args": [made]}):
        pushed = push("n int64, v utf8", ["n"], one)
        assert pushed == ([False], [False], filters.WantedKeys([filters.Range()]))


def test_values_that_a_column_cannot_hold_are_left_to_spark() -> None:
    for columns, made in (
        ("n timestamp(ms)", compare("<", "n", "timestamp_ntz", "1500001")),
        ("n uint8", compare("<", "n", "smallint", "256")),
        ("n utf8", compare("=", "n", "string", "ff")),
    ):
        assert push(f"{columns}, v utf8", ["n"], made).used == [False]
    for text in ("", "00"):
        assert push("n binary, v utf8", ["n"], compare("=", "n", "binary", text)).wanted.keys == (
            [b"\0"] if text else []  # No key is empty.
        )
    made = compare("<", "n", "timestamp_ntz", "1500000")
    assert push("n timestamp(ms), v utf8", ["n"], made).exact == [True]


def test_the_first_columns_narrow_the_read() -> None:
    two = "a int64, b utf8, v utf8"
    values = compare("IN", "a", "bigint", "3", "1", "3")
    keys = push(two, ["a", "b"], values, compare("=", "b", "string", "78")).wanted.keys
    schema = TableSchema(two, ["a", "b"])
    assert keys == [schema.key(1, "x"), schema.key(3, "x")]
    ranges = push(two, ["a", "b"], values, compare(">", "b", "string", "78"))
    assert (ranges.exact, len(ranges.wanted.ranges)) == ([True, True], 2)
    behind = push(
        two, ["a", "b"], compare("<", "a", "bigint", "3"), compare("=", "b", "string", "78")
    )
    assert (behind.exact, behind.used) == ([True, False], [True, False])
    many = compare("IN", "a", "bigint", *map(str, range(filters.RANGES_MAX + 1)))
    assert push(two, ["a", "b"], many).used == [False]
    either = {"op": "OR", "args": [values, compare("=", "b", "string", "78")]}
    assert push(two, ["a", "b"], either).used == [False]
    both = {"op": "AND", "args": [values, compare("=", "v", "string", "78")]}
    assert push(two, ["a", "b"], both)[:2] == ([False], [True])
