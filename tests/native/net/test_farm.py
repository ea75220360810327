"""The C functions for Garlic Farm's wire entries against their Python twins: codec.py and
entries.py.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.errors import NativeError
from kelek.native.net.farm import blocks_of, count_entries, entries_of_block
from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.garlicfarm.wire.codec import decode_entries, encode_entries
from kelek.protocols.garlicfarm.wire.entries import BATCH_BYTES_MAX, batches_of, entries_of
from kelek.protocols.garlicfarm.wire.messages import FarmLogEntry, ValueType
from kelek.protocols.garlicfarm.wire.packed import PackedEntries, pack_batches, parse_packed
from kelek.protocols.raft.messages import KIND_CHECKPOINT, EntryBatch
from kelek.protocols.record import Record, encode_block

TERM_MAX = 2**53 - 1
ANY_ENTRY = st.builds(
    FarmLogEntry,
    st.one_of(st.integers(1, 3), st.sampled_from((0, TERM_MAX, TERM_MAX + 1))),
    st.sampled_from((ValueType.APPLICATION,) * 9 + (ValueType.CLUSTER_SERVER,)),
    st.binary(max_size=300),
)
LARGE = [
    (BATCH_BYTES_MAX, 1, 1),
    (BATCH_BYTES_MAX + 1, 0, BATCH_BYTES_MAX - 1, 1, 1),
    (0,) * 5000,
    (400_000,) * 6,
]


def same(entries: Sequence[FarmLogEntry], first_index: int) -> None:
    """Both agree on valid entries."""
    data = encode_entries(tuple(entries))
    found = parse_packed(data)
    fit = all(each.value_type is ValueType.APPLICATION for each in entries)
    fit = fit and all(each.term <= TERM_MAX for each in entries)
    assert (found is not None) == fit
    if found is None:
        return
    assert (len(found), tuple(found)) == (len(entries), tuple(entries))
    try:
        expected = batches_of(first_index, tuple(entries))
    except RemoteProtocolError:
        with pytest.raises(NativeError):
            blocks_of(data, first_index, 0)
        with pytest.raises(RemoteProtocolError):
            batches_of(first_index, found)
        return
    assert batches_of(first_index, found) == expected
    assert entries_of(expected) == tuple(entries)
    assert pack_batches(expected).data == data
    own = [EntryBatch(*block) for block in blocks_of(data, first_index, 7)]
    assert own == batches_of(first_index, tuple(each._replace(term=7) for each in entries))


@given(st.lists(ANY_ENTRY, max_size=20), st.integers(1, 2**50))
def test_entries_are_their_twins(entries: list[FarmLogEntry], first_index: int) -> None:
    same(entries, first_index)


@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_entries_that_fill_blocks(sizes: tuple[int, ...]) -> None:
    same([FarmLogEntry(1, ValueType.APPLICATION, bytes(size)) for size in sizes], 1)


@given(st.lists(ANY_ENTRY, max_size=4), st.data())
def test_what_is_cut_or_flipped_is_seen_alike(
    entries: list[FarmLogEntry], data: st.DataObject
) -> None:
    """The twin accepts what C accepts, and may accept more."""
    wire = bytearray(encode_entries(tuple(entries)))
    if wire and data.draw(st.booleans()):
        wire[data.draw(st.integers(0, len(wire) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    del wire[data.draw(st.integers(0, len(wire))) :]
    try:
        same(decode_entries(bytes(wire)), 1)
    except RemoteProtocolError:
        assert count_entries(bytes(wire)) is None


def test_records_that_the_wire_does_not_know() -> None:
    batch = encode_block(1, 1, [Record(KIND_CHECKPOINT, None, b"")])
    with pytest.raises(NativeError):
        entries_of_block(batch.block, 1)
    with pytest.raises(NativeError):
        entries_of_block(b"", 1)


def test_packed_entries_are_a_tuple_to_others() -> None:
    entries = (
        FarmLogEntry(1, ValueType.APPLICATION, b"a"),
        FarmLogEntry(2, ValueType.APPLICATION, b"b"),
    )
    found = PackedEntries(encode_entries(entries), 2)
    assert (found[1], found[:1], list(found)) == (entries[1], entries[:1], list(entries))
    assert entries == found
    assert found != entries[:1]
