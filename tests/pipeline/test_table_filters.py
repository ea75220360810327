"""Which keys are left under a query's filters, without a JVM."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.clients.arguments import Range

sources = pytest.importorskip("pyspark.sql.datasource")
filters = pytest.importorskip("kelek.pipeline.table_filters")

ALL = filters.Wanted(Range())
KEY = ("key",)


def be64(number: int) -> bytes:
    return struct.pack(">Q", number)


def left(form: str, *pushed: Any) -> tuple[Any, list[Any]]:
    found, rest = filters.narrowed(ALL, form, pushed)
    return found, rest


def within(wanted: Any, key: bytes) -> bool:
    start, end = wanted.range
    listed = wanted.keys is None or key in wanted.keys
    return listed and key >= start and (not end or key < end)


KEYS = st.binary(min_size=1, max_size=3)
COMPARISONS = [
    (sources.EqualTo, lambda key, value: key == value),
    (sources.GreaterThan, lambda key, value: key > value),
    (sources.GreaterThanOrEqual, lambda key, value: key >= value),
    (sources.LessThan, lambda key, value: key < value),
    (sources.LessThanOrEqual, lambda key, value: key <= value),
    (sources.In, lambda key, value: key in (value, b"a")),
]


@given(
    st.lists(st.tuples(st.sampled_from(COMPARISONS), st.binary(max_size=3)), max_size=4),
    st.lists(KEYS),
)
def test_raw_keys_are_exactly_those_that_the_filters_leave(chosen: Any, keys: list[bytes]) -> None:
    pushed = [
        kind(KEY, (value, b"a", None) if kind is sources.In else value)
        for (kind, _), value in chosen
    ]
    found, rest = left("raw", *pushed)
    assert rest == [], "all of them are done with"
    for key in [*keys, *(value for _, value in chosen if value)]:
        holds = all(compare(key, value) for (_, compare), value in chosen)
        assert within(found, key) == holds
        assert not (holds and found.empty)
        if found.listed is not None:
            assert (key in found.listed) == holds


@given(st.integers(0, 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.sampled_from(COMPARISONS))
def test_numbers_are_narrowed_and_left_to_spark_too(key: int, value: int, chosen: Any) -> None:
    kind, compare = chosen
    if kind is sources.In:
        pushed, holds = kind(KEY, (value, 3)), key in (value, 3)
    else:
        pushed, holds = kind(KEY, value), compare(key, value)
    found, rest = left("be64", pushed)
    assert rest == [pushed]
    assert within(found, be64(key)) == holds


def test_prefixes_of_text() -> None:
    pushed = sources.StringStartsWith(KEY, "aé")
    found, rest = left("utf8", pushed)
    assert (found.range, rest) == (Range("aé".encode(), b"a\xc3\xaa"), [pushed])


@pytest.mark.parametrize(
    ("form", "pushed"),
    [
        ("raw", sources.EqualTo(("value",), b"x")),
        ("raw", sources.EqualTo(("key", "x"), b"x")),
        ("raw", sources.Not(sources.EqualTo(KEY, b"x"))),
        ("raw", sources.StringEndsWith(KEY, "x")),
        ("raw", sources.GreaterThan(KEY, b"x" * (64 << 10))),
        ("json", sources.EqualTo(KEY, "x")),
        ("be64", sources.EqualTo(KEY, 2**63)),
        ("utf8", sources.EqualTo(KEY, 5)),
    ],
)
def test_what_is_about_something_else_is_left_to_spark(form: str, pushed: Any) -> None:
    assert left(form, pushed) == (ALL, [pushed])


def test_keys_that_no_table_holds() -> None:
    for value in (b"", b"x" * ((64 << 10) + 1)):
        assert left("raw", sources.EqualTo(KEY, value))[0].empty
    assert left("raw", sources.LessThan(KEY, b""))[0].empty
    assert left("be64", sources.LessThan(KEY, -3))[0].empty
