"""A mapper's batches in C, against Python twins."""

import struct
from itertools import groupby
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.tables.mapper import MalformedOutput, Output, output_ops, pack_records
from kelek.protocols.zerodb.wire.ops import Delete, Op, Put, pack

KEY_BYTES_MAX = 64 << 10
Record = tuple[int, bytes, bytes]  # 0 put or 1 delete, key, value


def packed_output(records: list[Record]) -> bytes:
    """The output of a mapper written in Python."""
    return b"".join(
        struct.pack("<BII", kind, len(key), len(value)) + key + value
        for kind, key, value in records
    )


def twin_ops(records: list[Record], table: int) -> Output:
    """output_ops() of packed_output() in Python."""
    found: list[Op] = []
    for kind, group in groupby(records, key=lambda record: record[0]):
        run = list(group)
        keys = [key for _, key, _ in run]
        found.append(
            Delete(table, keys) if kind else Put(table, keys, [value for *_, value in run])
        )
    puts = sum(1 for kind, *_ in records if kind == 0)
    return Output(pack(found), puts, len(records) - puts)


def random_records(rng: Random) -> list[Record]:
    found = []
    for _ in range(rng.randint(0, 50)):
        kind = rng.choice([0, 0, 1])
        key = rng.randbytes(rng.choice([1, 8, 300, KEY_BYTES_MAX]))
        found.append((kind, key, b"" if kind else rng.randbytes(rng.choice([0, 5, 9000]))))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_records_equal_their_twins(seed: int) -> None:
    rng = Random(seed)
    frames = [rng.randbytes(rng.choice([0, 1, 9, 70_000])) for _ in range(2 * rng.randint(0, 9))]
    expected = b"".join(
        struct.pack("<II", len(key), len(value)) + key + value
        for key, value in zip(frames[::2], frames[1::2], strict=True)
    )
    assert pack_records(frames) == expected
    with pytest.raises(ValueError):
        pack_records([*frames, b"key"])


@pytest.mark.parametrize("seed", range(10))
def test_output_operations_equal_their_twins(seed: int) -> None:
    records = random_records(Random(seed))
    assert output_ops(packed_output(records), 7) == twin_ops(records, 7)


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack("<BII", 2, 1, 0) + b"k",  # Of an unknown kind.
        struct.pack("<BII", 0, 0, 1) + b"v",  # An empty key.
        struct.pack("<BII", 0, KEY_BYTES_MAX + 1, 0) + bytes(KEY_BYTES_MAX + 1),
        struct.pack("<BII", 1, 1, 1) + b"kv",  # A delete with a value.
        struct.pack("<BII", 0, 1, 2**32 - 1) + b"kv",
        struct.pack("<BII", 0, 2**32 - 1, 2**32 - 1),
        b"\0",
    ],
)
def test_a_malformed_output_has_a_position(bad: bytes) -> None:
    good = packed_output([(0, b"key", b"value"), (1, b"key", b"")])
    with pytest.raises(MalformedOutput) as caught:
        output_ops(good + bad, 1)
    assert caught.value.offset == len(good)


@given(st.binary(max_size=200))
def test_junk_is_refused_or_well_formed(junk: bytes) -> None:
    try:
        found = output_ops(junk, 1)
    except MalformedOutput:
        return
    assert (found.puts + found.deletes == 0) == (junk == b"")
