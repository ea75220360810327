"""Rows in C against their plain twins: MessagePack of Python, and a key of struct."""

import math
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.errors import NativeError
from kelek.native.tables import rows
from kelek.native.tables.rows import Cells, Found, Items, MalformedItem, Wanted

Column = tuple[int, list[Any]]
CODES = {
    rows.I8: "b", rows.I16: "h", rows.I32: "i", rows.I64: "q",
    rows.U8: "B", rows.U16: "H", rows.U32: "I", rows.U64: "Q",
    rows.F32: "f", rows.F64: "d",
}  # fmt: skip
VALUES: Mapping[int, st.SearchStrategy[Any]] = {
    rows.BOOL: st.booleans(),
    **{
        kind: st.integers(-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1)
        for kind, size in ((rows.I8, 1), (rows.I16, 2), (rows.I32, 4), (rows.I64, 8))
    },
    **{
        kind: st.integers(0, (1 << 8 * size) - 1)
        for kind, size in ((rows.U8, 1), (rows.U16, 2), (rows.U32, 4), (rows.U64, 8))
    },
    rows.F32: st.floats(width=32),
    rows.F64: st.floats(),
    rows.DECIMAL: st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-300, 300),
    rows.UTF8: st.text(max_size=40).map(str.encode),
    rows.BINARY: st.binary(max_size=300) | st.sampled_from([b"\0", b"\0\xff", b"\0\0", b"\xff"]),
}
PACKED = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
).filter(lambda item: item is not None)


def columns_of(kinds: Mapping[int, st.SearchStrategy[Any]], nulls: bool) -> Any:
    """Some columns of one number of rows."""

    def column(kind: int, count: int) -> st.SearchStrategy[Column]:
        item = st.none() | kinds[kind] if nulls else kinds[kind]
        items = st.lists(item, min_size=count, max_size=count)
        return st.tuples(st.just(kind), items)

    def columns(asked: tuple[int, list[int]]) -> Any:
        count, chosen = asked
        return st.tuples(st.just(count), st.tuples(*(column(kind, count) for kind in chosen)))

    some = st.lists(st.sampled_from([*kinds]), min_size=1, max_size=17)
    return st.tuples(st.integers(0, 4), some).flatmap(columns)


def bits(flags: Sequence[bool]) -> bytes:
    found = bytearray((len(flags) + 7) // 8)
    for place, flag in enumerate(flags):
        found[place // 8] |= flag << place % 8
    return bytes(found)


def cells(kind: int, items: list[Any], first: int = 3) -> Cells:
    """A column in Arrow's layout, behind some items that are not asked for."""
    held = [None] * first + items
    valid = bits([item is not None for item in held])
    if kind == rows.BOOL:
        return Cells(kind, valid, bits([bool(item) for item in held]), None, first)
    if kind in rows.SIZED:
        offsets = array("i", accumulate((len(item or b"") for item in held), initial=0))
        return Cells(kind, valid, b"".join(item or b"" for item in held), offsets, first)
    if kind == rows.DECIMAL:
        data = b"".join((item or 0).to_bytes(16, "little", signed=True) for item in held)
    else:
        data = struct.pack(
            f"={len(held)}{CODES[kind]}", *(0 if item is None else item for item in held)
        )
    return Cells(kind, valid, data, None, first)


def items_of(found: Found, kind: int, count: int) -> list[Any]:
    """The items of a decoded column; bytes for floats, since NaN equals nothing."""
    valid = [found.valid is None or found.valid[at // 8][0] >> at % 8 & 1 for at in range(count)]
    data = bytes(found.data)
    if kind == rows.BOOL:
        items: list[Any] = [bool(data[at // 8] >> at % 8 & 1) for at in range(count)]
    elif kind in rows.SIZED:
        at = memoryview(found.offsets).cast("B").cast("i")
        items = [data[at[row] : at[row + 1]] for row in range(count)]
    elif kind == rows.DECIMAL:
        parts = [data[16 * row : 16 * row + 16] for row in range(count)]
        items = [int.from_bytes(part, "little", signed=True) for part in parts]
    else:
        items = [*struct.unpack(f"={count}{CODES[kind]}", data)]
    return [item if there else None for item, there in zip(items, valid, strict=True)]


def plain(item: Any) -> Any:
    """Something to compare: NaN is none, and the zeros differ."""
    return (
        struct.pack(">d", item) if isinstance(item, float) and not math.isnan(item) else str(item)
    )


def twin_cell(kind: int, item: Any) -> bytes:
    if item is None:
        return b"\xc0"
    if kind == rows.PACKED:
        return bytes(item)
    if kind == rows.F32:
        return b"\xca" + struct.pack(">f", item)
    if kind == rows.UTF8:
        return bytes(msgpack.packb(item.decode()))
    if kind == rows.DECIMAL and not -(2**63) <= item < 2**63:
        return bytes(msgpack.packb(item.to_bytes(16, "big", signed=True)))
    return bytes(msgpack.packb(item))


def twin_row(row: Sequence[tuple[int, Any]]) -> bytes:
    head = msgpack.Packer().pack_array_header(len(row))
    return bytes(head) + b"".join(twin_cell(kind, item) for kind, item in row)


def cut(found: Items) -> list[bytes]:
    at = memoryview(found.offsets).cast("B").cast("i")
    return [bytes(found.data)[start:end] for start, end in pairwise(at)]


WITH_PACKED = {**VALUES, rows.PACKED: PACKED.map(msgpack.packb)}


@given(columns_of(WITH_PACKED, nulls=True), st.data())
def test_rows_equal_their_twins(made: tuple[int, list[Column]], data: st.DataObject) -> None:
    count, columns = made
    found = rows.encode_rows([cells(*column) for column in columns], count)
    twins = [twin_row([(kind, items[row]) for kind, items in columns]) for row in range(count)]
    assert cut(found) == twins
    places = sorted(data.draw(st.sets(st.integers(0, len(columns) + 2))))
    chosen = [Wanted(at, columns[at][0] if at < len(columns) else rows.I8) for at in places]
    for wanted, column in zip(chosen, rows.decode_rows(found, count, chosen), strict=True):
        items = columns[wanted.place][1] if wanted.place < len(columns) else [None] * count
        got = items_of(column, wanted.kind, count)
        assert [*map(plain, got)] == [*map(plain, items)]


@pytest.mark.parametrize("byte", range(256))
def test_each_item_is_stepped_over(byte: int) -> None:
    """As its twin, Python's MessagePack, ends it; an item that is cut off is refused."""
    filled = bytes([byte, 0, 0, 1]) + bytes(600)
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
    unpacker.feed(filled)
    wanted = [Wanted(1, rows.I8)]
    if byte == 0xC1:  # It begins no item.
        with pytest.raises(MalformedItem):
            rows.decode_rows(one(b"\x92" + filled), 1, wanted)
        return
    unpacker.skip()
    item = filled[: unpacker.tell()]
    [found] = rows.decode_rows(one(b"\x92" + item + b"\x2a"), 1, wanted)
    assert items_of(found, rows.I8, 1) == [42]
    for size in range(len(item)):
        with pytest.raises(MalformedItem):
            rows.decode_rows(one(b"\x92" + item[:size]), 1, wanted)


def twin_part(kind: int, item: Any, is_last: bool) -> bytes:
    if kind == rows.BOOL:
        return bytes([item])
    if kind in rows.SIZED:
        return bytes(item) if is_last else item.replace(b"\0", b"\0\xff") + b"\0\0"
    if kind == rows.DECIMAL:
        return int(item + (1 << 127)).to_bytes(16, "big")
    code = CODES[kind]
    if code in "fd":
        plain_item = math.nan if math.isnan(item) else item or 0.0
        size = struct.calcsize(code)
        number = int.from_bytes(struct.pack(f">{code}", plain_item), "big")
        sign = 1 << 8 * size - 1
        number = number ^ (2 * sign - 1) if number & sign else number | sign
        return number.to_bytes(size, "big")
    size = struct.calcsize(f"={code}")
    return int(item + (1 << 8 * size - 1 if code.islower() else 0)).to_bytes(size, "big")


def order(kind: int, item: Any) -> Any:
    """What Python sorts in the order of a key's column: NaN is the last number."""
    return (math.isnan(item), item) if isinstance(item, float) else item


@given(columns_of(VALUES, nulls=False))
def test_keys_equal_their_twins(made: tuple[int, list[Column]]) -> None:
    count, columns = made
    found = rows.encode_keys([cells(*column) for column in columns], count)
    kinds = [kind for kind, _ in columns]
    keys = cut(found)
    assert keys == [
        b"".join(
            twin_part(kind, items[row], place == len(columns) - 1)
            for place, (kind, items) in enumerate(columns)
        )
        for row in range(count)
    ]
    ordered = [tuple(order(kind, items[row]) for kind, items in columns) for row in range(count)]
    for one in range(count):
        for other in range(count):
            nan = any(isinstance(it, tuple) and it[0] for it in ordered[one] + ordered[other])
            if not nan:
                assert (ordered[one] < ordered[other]) == (keys[one] < keys[other])
                assert (ordered[one] == ordered[other]) == (keys[one] == keys[other])
    decoded = rows.decode_keys(found, count, kinds)
    for (kind, items), column in zip(columns, decoded, strict=True):
        got = items_of(column, kind, count)
        assert [*map(plain, got)] == [
            plain(item + 0.0 if isinstance(item, float) else item) for item in items
        ]


def test_nan_is_behind_infinity() -> None:
    for kind in (rows.F32, rows.F64):
        numbers = [-math.inf, -1.5, -0.0, 0.0, 1e-30, math.inf, math.nan, -math.nan]
        keys = cut(rows.encode_keys([cells(kind, numbers)], len(numbers)))
        assert keys == sorted(keys)
        assert keys[2] == keys[3]
        assert keys[6] == keys[7]
        assert len({*keys}) == 6


def one(data: bytes) -> Items:
    return Items(array("i", [0, len(data)]), data)


@given(st.binary(max_size=60), st.lists(st.sampled_from([*WITH_PACKED]), min_size=1, max_size=4))
def test_junk_is_refused_or_read(data: bytes, kinds: list[int]) -> None:
    for act in (
        lambda: rows.decode_rows(one(data), 1, [Wanted(*it) for it in enumerate(kinds)]),
        lambda: rows.decode_keys(one(data), 1, [it for it in kinds if it != rows.PACKED] or [1]),
    ):
        check(act)


def check(act: Callable[[], list[Found]]) -> None:
    row = 0
    try:
        act()
    except MalformedItem as error:
        row = error.row
    assert row == 0


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (rows.I8, b"\xcc\x80"),
        (rows.I8, b"\xd1\xff\x00"),
        (rows.U8, b"\xff"),
        (rows.U8, b"\xd0\x01\x00"[:1]),
        (rows.U16, b"\xce\x00\x01\x00\x00"),
        (rows.I64, b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
        (rows.I64, b"\xca\0\0\0\0"),
        (rows.F32, b"\xcb\0\0\0\0\0\0\0\0"),
        (rows.F64, b"\x01"),
        (rows.BOOL, b"\x01"),
        (rows.UTF8, b"\xc4\x01a"),
        (rows.UTF8, b"\xa2a"),
        (rows.BINARY, b"\xa1a"),
        (rows.DECIMAL, b"\xc4\x01a"),
        (rows.DECIMAL, b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
        (rows.PACKED, b"\xc1"),
        (rows.PACKED, b"\xdd\xff\xff\xff\xff\x01"),
        (rows.PACKED, b"\xdf\xff\xff\xff\xff\x01"),
        (rows.PACKED, b"\xc7\x05\x01a"),
    ],
)
def test_a_cell_of_another_kind_is_refused(kind: int, cell: bytes) -> None:
    good = b"\x92\x05\xc0"
    data = good + b"\x92\x05" + cell
    items = Items(array("i", [0, len(good), len(data)]), data)
    with pytest.raises(MalformedItem) as caught:
        rows.decode_rows(items, 2, [Wanted(0, rows.I8), Wanted(1, kind)])
    assert (caught.value.row, caught.value.column) == (1, 1)


def test_numbers_may_be_longer_than_they_need() -> None:
    """Writers of other languages need not choose the shortest form."""
    data = b"\x93\xd3\xff\xff\xff\xff\xff\xff\xff\xfe\xcf\0\0\0\0\0\0\0\7\xca\x3f\x80\0\0"
    wanted = [Wanted(0, rows.I8), Wanted(1, rows.U8), Wanted(2, rows.F64)]
    found = rows.decode_rows(one(data), 1, wanted)
    assert [items_of(it, w.kind, 1)[0] for it, w in zip(found, wanted, strict=True)] == [-2, 7, 1.0]


@pytest.mark.parametrize(
    ("kinds", "key"),
    [
        ([rows.I32], b"\0\0\0"),
        ([rows.I32], b"\0\0\0\0\0"),
        ([rows.BOOL], b"\2"),
        ([rows.UTF8, rows.I8], b"ab"),
        ([rows.UTF8, rows.I8], b"ab\0\0"),
        ([rows.UTF8, rows.I8], b"ab\0\1\0"),
        ([rows.UTF8, rows.I8], b"ab\0"),
    ],
)
def test_a_key_of_another_shape_is_refused(kinds: list[int], key: bytes) -> None:
    with pytest.raises(MalformedItem):
        rows.decode_keys(one(key), 1, kinds)


def test_wrong_arguments() -> None:
    with pytest.raises(NativeError):
        rows.encode_keys([Cells(rows.PACKED, None, b"", bytes(8), 0)], 1)
    with pytest.raises(NativeError):
        rows.decode_rows(one(b"\x90"), 1, [Wanted(1, rows.I8), Wanted(0, rows.I8)])
