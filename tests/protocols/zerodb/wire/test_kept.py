"""Rows of kept snapshots."""

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.zerodb.wire.kept import (
    KeptRow,
    decode_kept,
    encode_kept,
    kept_key,
    kept_prefix,
)
from kelek.protocols.zerodb.wire.values import shared_lease

U32 = st.integers(0, 2**32 - 1)
MS = st.integers(0, 2**53)
ROWS = st.builds(
    KeptRow, U32, st.integers(1, 2**40).map(shared_lease), st.text(max_size=9), MS, MS, st.text()
)


@given(st.lists(ROWS, max_size=4))
def test_round_trip(rows: list[KeptRow]) -> None:
    assert decode_kept((kept_key(*row[:2]), encode_kept(row)) for row in rows) == rows


@given(ROWS, ROWS)
def test_keys_are_in_the_order_of_tables_and_indexes(one: KeptRow, other: KeptRow) -> None:
    keys = kept_key(*one[:2]), kept_key(*other[:2])
    assert (keys[0] < keys[1]) == ((one.table, one.log_index) < (other.table, other.log_index))
    assert keys[0].startswith(kept_prefix(one.table))


def test_malformed_rows_are_left_out_and_further_fields_ignored() -> None:
    key = kept_key(7, shared_lease(5))
    bad = [(b"", b""), (key, b""), (key, b"\xc1"), (key, msgpack.packb(3)), (key, b"\x93\1\2\3")]
    good = (key, msgpack.packb(["a", 1, 2, "ann", "more"]))
    (found,) = decode_kept([*bad, good, (key[:-1], good[1])])
    assert found == KeptRow(7, shared_lease(5), "a", 1, 2, "ann")
    assert found.log_index == 5
