"""Keys, values and the operations of log entries cut in C, against Python twins."""

import struct
from collections.abc import Collection
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.errors import ECORRUPT, ETORN, NativeError
from kelek.native.net.messages import Arena, Frames
from kelek.native.tables import ops as native_ops
from kelek.native.tables.ops import Run, cut_block
from kelek.protocols.record import Record, decode_block, encode_block
from kelek.protocols.zerodb.wire import ops
from kelek.tests.protocols.zerodb.wire.messages import KEY, KEYS, PAIRS, VALUE

KEY_MAX, VALUE_MAX = native_ops.KEY_BYTES_MAX, native_ops.VALUE_BYTES_MAX
SIZE = st.one_of(st.integers(0, 9), st.sampled_from([KEY_MAX, KEY_MAX + 1, VALUE_MAX + 1, 2**31]))


def twin_sizes(data: bytes, count: int, columns: int) -> list[bytes] | int:
    """The result of cut_sizes() at offset 0, or the code of its error."""
    head = 4 * count * columns
    if head > len(data):
        return ETORN
    sizes = struct.unpack_from(f"<{count * columns}I", data)
    found, at = [], head
    for i, size in enumerate(sizes):
        value = columns == 2 and i % 2
        if size > VALUE_MAX if value else not 0 < size <= KEY_MAX:
            return ECORRUPT
        if at + size > len(data):
            return ETORN
        found.append(data[at : at + size])
        at += size
    return found


def twin_column(offsets: bytes, data: bytes) -> list[bytes] | int:
    if not offsets or len(offsets) % 4:
        return ECORRUPT
    ends = struct.unpack(f"<{len(offsets) // 4}I", offsets)
    if ends[0] or ends[-1] != len(data) or any(a > b for a, b in pairwise(ends)):
        return ECORRUPT
    return [data[start:end] for start, end in pairwise(ends)]


@given(st.lists(SIZE, max_size=8), st.integers(0, 3), st.integers(1, 2), st.binary(max_size=60))
def test_sizes_are_cut_as_the_twin_does(
    sizes: list[int], missing: int, columns: int, rest: bytes
) -> None:
    head = struct.pack(f"<{len(sizes)}I", *sizes)
    data = head[: len(head) - missing] + rest
    count = len(sizes) // columns
    expected = twin_sizes(data, count, columns)
    before, behind = b"before", b"behind it"
    whole = before + data + behind
    end = len(before) + len(data)
    if isinstance(expected, int):
        with pytest.raises(NativeError) as raised:
            native_ops.cut_sizes(whole, len(before), end, count, columns)
        assert raised.value.code == expected
        return
    items, at = native_ops.cut_sizes(whole, len(before), end, count, columns)
    assert list(items) == expected
    assert at == len(before) + 4 * count * columns + sum(map(len, expected))


@given(st.lists(st.binary(max_size=9), max_size=9), st.integers(0, 40), st.integers(-2, 2))
def test_a_column_is_cut_as_the_twin_does(items: list[bytes], position: int, by: int) -> None:
    data = b"".join(items)
    ends = list(accumulate(map(len, items), initial=0))
    if position < len(ends):
        ends[position] = max(ends[position] + by, 0)
    offsets = struct.pack(f"<{len(ends)}I", *ends)[: None if position < 38 else position - 38]
    expected = twin_column(offsets, data)
    if isinstance(expected, int):
        with pytest.raises(NativeError) as raised:
            native_ops.cut_column(offsets, data)
        assert raised.value.code == expected
    else:
        assert list(native_ops.cut_column(offsets, data)) == expected


@pytest.mark.parametrize("columns", [1, 2])
@given(items=st.lists(st.binary(max_size=3), max_size=8))
def test_sizes_are_packed_as_the_twin_does(columns: int, items: list[bytes]) -> None:
    head = struct.pack(f"<{len(items)}I", *map(len, items))
    if any(not item for i, item in enumerate(items) if columns == 1 or i % 2 == 0):
        with pytest.raises(NativeError):
            native_ops.pack_sizes(columns, items)
    else:
        assert native_ops.pack_sizes(columns, items) == head


def test_sizes_over_their_limits_are_not_packed() -> None:
    largest = [bytes(KEY_MAX), bytes(VALUE_MAX)]
    assert native_ops.pack_sizes(2, largest) == struct.pack("<2I", KEY_MAX, VALUE_MAX)
    for items in ([bytes(KEY_MAX + 1), b""], [b"k", bytes(VALUE_MAX + 1)]):
        with pytest.raises(NativeError):
            native_ops.pack_sizes(2, items)


def test_a_count_is_checked_before_memory_is_allocated() -> None:
    with pytest.raises(NativeError) as raised:
        native_ops.cut_sizes(bytes(100), 0, 100, 2**32 - 1, 2)
    assert raised.value.code == ETORN


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=9), st.sampled_from([1, 20, 3000]))
def test_many_frames_are_put_as_the_few_of_a_twin(frames: list[bytes], times: int) -> None:
    out = Frames(64, 8)
    out.add([b"before"])
    out.add([b"head", *(frames * times)])
    out.begin([b"head"])
    out.undo()
    out.add(frames)
    assert out.messages() == [[b"before"], [b"head", *(frames * times)], frames]
    assert Arena.from_messages(out.messages()).messages() == out.messages()


@given(st.lists(st.lists(st.binary(max_size=5), min_size=1, max_size=9), max_size=4))
@pytest.mark.parametrize("times", [1, 40, 900])
def test_frames_are_cut_as_the_twin_does(times: int, messages: list[list[bytes]]) -> None:
    """The twin: the original items."""
    longer = [message * times for message in messages]
    arena = Arena.from_messages(longer)
    assert arena.messages() == longer
    assert [arena.message(i) for i in range(arena.count)] == longer
    out = Frames()
    for message in longer:
        out.add(message)
    out.begin([b"of a message that still grows"])
    assert out.messages() == longer


# ---- operations of log entries ----


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
        position = draw(st.integers(0, len(data) - 1))
        return data[:position] + bytes([draw(st.integers(0, 255))]) + data[position + 1 :]
    return data


RECORD = st.builds(
    Record,
    st.sampled_from([0, 0, 0, 3, 1, 2]),
    st.sampled_from([None, b"0123456789ab"]),
    entry(),
)


def twin_cut(
    records: list[Record],
    first_index: int,
    number: int,
    workers: int,
    marked_last: int = 1 << 60,
    apart: Collection[int] = (),
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
            joins = op.table not in apart or (runs and runs[-1].log_index == log_index)
            if joins and runs and runs[-1][1:3] == run[1:3]:
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
    apart = data.draw(st.sets(TABLE, max_size=4))
    asked = number, workers, 1 << 60, apart
    assert cut_block(block, *asked) == twin_cut(records, 77, *asked)


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
