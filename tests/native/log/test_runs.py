"""Entries that only put or delete, cut from a block in C, against a twin in plain Python."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.errors import ECORRUPT, NativeError
from kelek.native.tables.ops import Run, cut_block
from kelek.protocols.record import Record, decode_block, encode_block
from kelek.protocols.zerodb.wire import ops
from kelek.tests.protocols.zerodb.wire.messages import KEY, KEYS, PAIRS, VALUE

TABLE = st.integers(0, 3)
PUT = st.builds(
    lambda table, pairs: ops.Put(table, [key for key, _ in pairs], [value for _, value in pairs]),
    TABLE,
    PAIRS,
)
PLAIN = st.one_of(PUT, st.builds(ops.Delete, TABLE, KEYS))
OTHER = st.one_of(st.builds(ops.Truncate, TABLE), st.builds(ops.DeleteRange, TABLE, KEY, KEY))


@st.composite
def entry(draw: st.DrawFn) -> bytes:
    """The data of an entry: plain mostly, and at times not packed, cut short or changed."""
    batch: list[ops.Op] = draw(st.lists(PLAIN, max_size=3))
    if draw(st.integers(0, 4)) == 0:
        batch.insert(0, draw(OTHER))
    data = ops.pack(batch)
    change = draw(st.integers(0, 9))
    if change == 0:
        return draw(VALUE) + b"x"
    if change == 1:
        return data[: draw(st.integers(1, len(data)))]
    if change == 2:
        place = draw(st.integers(0, len(data) - 1))
        return data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :]
    return data


RECORD = st.builds(
    Record,
    st.sampled_from([0, 0, 0, 3, 1, 2]),
    st.sampled_from([None, b"0123456789ab"]),
    entry(),
)


def twin_cut(
    records: list[Record], first_index: int, number: int, workers: int, marked_last: int = 1 << 60
) -> list[Run]:
    """One entry after the other."""
    runs: list[Run] = []
    for log_index, record in enumerate(records, first_index):
        if record.kind == 0 and log_index > marked_last:
            continue
        if record.kind not in (0, 3) or not ops.is_packed(record.data):
            continue
        try:
            batch = ops.unpack(record.data)
        except ValueError:
            batch = [ops.Truncate(0)]
        if not all(isinstance(op, ops.Put | ops.Delete) for op in batch):
            runs.append(Run(log_index, 0, 0, (), (), record.data))
            continue
        for op in batch:
            assert isinstance(op, ops.Put | ops.Delete)
            if op.table % workers != number or not op.keys:
                continue
            operation = ops.PUT if isinstance(op, ops.Put) else ops.DELETE
            values = tuple(op.values) if isinstance(op, ops.Put) else ()
            run = Run(log_index, operation, op.table, tuple(op.keys), values, b"")
            if runs and runs[-1][1:3] == run[1:3]:
                before = runs.pop()
                keys = (*before.keys, *run.keys)
                run = run._replace(keys=keys, values=(*before.values, *run.values))
            runs.append(run)
    return runs


@given(st.lists(RECORD, min_size=1, max_size=8), st.integers(1, 3), st.data())
def test_a_block_is_cut_as_the_twin_does(
    records: list[Record], workers: int, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, workers - 1))
    block = encode_block(77, 3, records).block
    assert decode_block(block)[1] == records
    assert cut_block(block, number, workers) == twin_cut(records, 77, number, workers)
    assert cut_block(block, number, workers, 78) == twin_cut(records, 77, number, workers, 78)


def test_a_small_entry_of_each_kind_has_room() -> None:
    malformed = Record(0, None, ops.ENTRY_MAGIC + b"?")
    deletes = Record(0, None, ops.pack([ops.Delete(i % 2, [b"k"]) for i in range(50)]))
    for records in ([malformed] * 100, [deletes] * 100, [malformed, deletes] * 50):
        block = encode_block(1, 1, records).block
        assert cut_block(block, 0, 1) == twin_cut(records, 1, 0, 1)
        assert cut_block(block, 1, 2) == twin_cut(records, 1, 1, 2)


def test_what_is_no_block() -> None:
    block = bytearray(encode_block(1, 1, [Record(0, None, ops.pack([ops.Truncate(1)]))]).block)
    block[32] = 0xFF  # The length of the first record.
    with pytest.raises(NativeError) as raised:
        cut_block(bytes(block), 0, 1)
    assert raised.value.code == ECORRUPT
    for wrong in (b"", bytes(31)):
        with pytest.raises(NativeError):
            cut_block(wrong, 0, 1)
