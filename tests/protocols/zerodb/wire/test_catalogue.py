"""The catalogue of names: a server recognises each change, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.catalogue import (
    SCHEMA_BYTES_MAX,
    CatalogueChange,
    NameChange,
    NameExchange,
    SchemaChange,
    change_of,
    decode_names,
    is_table_name,
    name_key,
    number_key,
)
from kelek.protocols.zerodb.wire.values import (
    CATALOGUE_TABLE,
    NAMED_FIRST,
    NAMED_LAST,
    NO_REQID,
    RESERVED_FIRST,
    TABLE_NAME_BYTES_MAX,
)

CHANGES = [
    NameChange(NAMED_FIRST, after="users", is_new=True),
    NameChange(NAMED_FIRST + 7, after="u.s_e-r", is_new=True),
    NameChange(NAMED_LAST, after="u", is_new=True),
    NameChange(7, after="users"),
    NameChange(7, "users", "people"),
    NameChange(NAMED_FIRST + 7, "users", "people"),
    NameChange(NAMED_FIRST + 7, "users"),
    NameExchange(NAMED_FIRST, "users", NAMED_FIRST + 7, "people"),
    NameExchange(NAMED_FIRST + 7, "users", 7, "people"),
    SchemaChange(NAMED_FIRST, "users", b"", b"{}"),
    SchemaChange(7, "users", b"{}", b"x" * SCHEMA_BYTES_MAX),
    SchemaChange(NAMED_FIRST + 7, "users", b"{}"),
]
Change = CatalogueChange


def transaction(change: Change, reqid: bytes = NO_REQID) -> ops.Transaction:
    return ops.Transaction(CATALOGUE_TABLE, reqid, change.compares(), change.operations(), [])


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_recognised(change: Change) -> None:
    packed = ops.unpack(ops.pack([transaction(change, b"r" * 12)]))
    assert change_of(packed) == change
    get: list[ops.Op] = [ops.Get(CATALOGUE_TABLE, [b"c"])]
    assert change_of([transaction(change)._replace(otherwise=get)]) == change


@pytest.mark.parametrize(
    "change",
    [
        NameChange(7),
        NameChange(7, after="7"),
        NameChange(7, after="a b"),
        NameChange(7, after="ä"),
        NameChange(7, after="a\n"),
        NameChange(7, after="a" * (TABLE_NAME_BYTES_MAX + 1)),
        NameChange(7, after="users", is_new=True),
        NameChange(NAMED_FIRST - 1, after="users", is_new=True),
        NameChange(NAMED_LAST + 1, after="users", is_new=True),
        NameChange(NAMED_FIRST, "users", "people", is_new=True),
        NameChange(NAMED_FIRST, after="users"),  # It may be the next one of the counter.
        NameChange(RESERVED_FIRST, after="users"),
        NameChange(CATALOGUE_TABLE, "users", "people"),
        NameExchange(7, "users", 7, "people"),
        NameExchange(7, "users", 8, "users"),
        NameExchange(7, "users", 8, "8"),
        NameExchange(CATALOGUE_TABLE, "users", 8, "people"),
        NameExchange(7, "users", RESERVED_FIRST, "people"),
        SchemaChange(7, "", b"", b"{}"),
        SchemaChange(7, "a b", b"", b"{}"),
        SchemaChange(7, "users"),
        SchemaChange(7, "users", b"{}", b"{}"),
        SchemaChange(7, "users", b"", b"x" * (SCHEMA_BYTES_MAX + 1)),
        SchemaChange(RESERVED_FIRST, "users", b"", b"{}"),
    ],
)
def test_a_change_that_no_client_may_make(change: Change) -> None:
    assert change_of([transaction(change)]) is None


@pytest.mark.parametrize("change", CHANGES)
def test_other_transactions_are_no_changes(change: Change) -> None:
    right = transaction(change)
    put = ops.Put(CATALOGUE_TABLE, [b"c"], [b"0000"])
    for wrong in (
        right._replace(compares=right.compares[1:]),
        right._replace(compares=right.compares[-1:] * 2),
        right._replace(compares=[*right.compares, right.compares[0]]),
        right._replace(then=right.then[1:]),
        right._replace(then=[*right.then, put]),
        right._replace(then=right.then[::-1]) if len(right.then) > 1 else right._replace(then=[]),
        right._replace(otherwise=[put]),
        right._replace(table=7),
        right._replace(then=[each._replace(table=7) for each in right.then]),
        right._replace(compares=[each._replace(kind=ops.LESS) for each in right.compares]),
    ):
        assert change_of([wrong]) is None, wrong
    assert change_of([right, right]) is None
    assert change_of([put]) is None
    assert change_of([]) is None


KEYS = st.binary(max_size=6) | st.sampled_from([name_key("a"), number_key(7), b"c"])
COMPARES = st.builds(
    ops.Compare, st.just(CATALOGUE_TABLE), KEYS, st.integers(0, 6), st.binary(max_size=5)
)


@given(st.lists(COMPARES, max_size=4), st.lists(KEYS, max_size=3))
def test_junk_is_no_change(compares: list[ops.Compare], keys: list[bytes]) -> None:
    puts: list[ops.Op] = [ops.Put(CATALOGUE_TABLE, [key], [key]) for key in keys]
    found = change_of([ops.Transaction(CATALOGUE_TABLE, NO_REQID, compares, puts, [])])
    assert found is None or (found.compares(), found.operations()) == (compares, puts)


def test_names_and_pairs() -> None:
    assert is_table_name("a" * TABLE_NAME_BYTES_MAX)
    assert not is_table_name("")
    pairs = [(b"c", b"\0\0\0\7"), (b"nusers", b"\0\0\0\7"), (b"nx", b"junk!"), (b"t\0\0\0\7", b"u")]
    assert decode_names(pairs) == {"users": 7}
