"""Packed operations: round trips, and refused values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.values import CHUNK_BYTES_MAX, KEY_BYTES_MAX, TableOptions

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
KEY = st.binary(min_size=1, max_size=20)
KEYS = st.lists(KEY, max_size=5)
VALUE = st.binary(max_size=20)
BOUND = st.binary(max_size=20)
REQID = st.binary(min_size=12, max_size=12)
PAIRS = st.lists(st.tuples(KEY, VALUE), max_size=5)


def put(table: int, pairs: list[tuple[bytes, bytes]]) -> ops.Put:
    return ops.Put(table, [key for key, _ in pairs], [value for _, value in pairs])


PUT = st.builds(put, U32, PAIRS)
SUM = st.builds(lambda kind, pairs: kind(*pairs), st.sampled_from([ops.Increment, ops.Append]), PUT)
STEP = st.one_of(
    PUT,
    SUM,
    st.builds(ops.Get, U32, KEYS),
    st.builds(ops.GetRange, U32, BOUND, BOUND, U64),
    st.builds(ops.Delete, U32, KEYS),
    st.builds(ops.DeleteRange, U32, BOUND, BOUND),
    st.builds(ops.Expiry, U32, U64, KEYS),
    st.builds(ops.Attach, U32, U64, KEYS),
)
COMPARE = st.builds(ops.Compare, U32, KEY, st.integers(0, ops.ALIVE), VALUE) | st.builds(
    ops.Compare,
    U32,
    KEY,
    st.sampled_from([ops.VERSION_INDEX, ops.VERSION_CHANGES]),
    st.binary(min_size=8, max_size=8),
)
STEPS = st.lists(STEP, max_size=3)
OP = st.one_of(
    PUT,
    st.builds(ops.Delete, U32, KEYS),
    st.builds(ops.Open, U32, st.builds(TableOptions, U64, U64, U64, U64, st.booleans())),
    st.builds(ops.Truncate, U32),
    st.builds(ops.DeleteRange, U32, BOUND, BOUND),
    st.builds(ops.DeleteLimited, U32, BOUND, U64),
    st.builds(ops.Transaction, U32, REQID, st.lists(COMPARE, max_size=3), STEPS, STEPS),
    st.builds(ops.Expiry, U32, U64, KEYS),
    st.builds(ops.Attach, U32, U64, KEYS),
    st.builds(ops.SessionOpen, U32, U64, U64),
    st.builds(ops.SessionKeep, U32, U64, U64),
    st.builds(ops.SessionEnd, U32, U64),
    st.builds(ops.Expire, U32, U64),
    st.builds(ops.Part, U32, REQID, st.just(3), st.integers(4, ops.PARTS_MAX), VALUE),
)
TOLD = st.one_of(st.builds(ops.LeaseKeep, U32, U64), st.builds(ops.LeaseEnd, U32, U64))
OPEN = st.builds(ops.LeaseOpen, U32, U64)
LOAD_ID = st.binary(min_size=16, max_size=16)
LOAD = st.one_of(
    st.builds(ops.LoadChunk, U32, LOAD_ID, U64, U32, U64, st.binary(min_size=1, max_size=20)),
    st.builds(ops.LoadBuild, U32, LOAD_ID, U64, st.integers(0, 99), st.integers(1, 64), U64),
    st.builds(ops.LoadCommit, U32, LOAD_ID, st.booleans(), U64, U64),
    st.builds(ops.LoadDrop, U32, LOAD_ID),
)
# Of one entry: leases and loads stand alone.
ALONE = OPEN | LOAD
OPS = st.one_of(st.lists(OP, max_size=4), st.lists(TOLD, max_size=4), ALONE.map(lambda op: [op]))


@given(PAIRS, st.binary(max_size=3))
def test_the_pairs_of_a_range(pairs: list[tuple[bytes, bytes]], more: bytes) -> None:
    packed = ops.pack_pairs(pairs)
    assert ops.unpack_pairs(packed) == pairs
    for wrong in {packed + more, packed[: -len(more) or None]} - {packed}:
        with pytest.raises(ValueError, match=r"\w"):
            ops.unpack_pairs(wrong)


@given(OPS)
def test_unpack_gives_what_was_packed(batch: list[ops.Op]) -> None:
    packed = ops.pack(batch)
    assert ops.is_packed(packed)
    assert ops.unpack(packed) == batch


@given(LOAD, st.lists(OP | LOAD, min_size=1, max_size=3), st.integers(0, 3))
def test_an_operation_of_a_load_stands_alone(load: ops.Op, others: list[ops.Op], at: int) -> None:
    others.insert(at, load)
    with pytest.raises(ValueError, match="an operation of a load stands among others"):
        ops.unpack(ops.pack(others))


@pytest.mark.parametrize(
    ("op", "problem"),
    [
        (ops.LoadChunk(7, b"x" * 15, 0, 0, 0, b"c"), "a load of 15 bytes"),
        (ops.LoadChunk(7, b"x" * 16, 0, 0, 0, b""), "a chunk of 0 bytes"),
        (ops.LoadChunk(7, b"x" * 16, 0, 0, 0, bytes(CHUNK_BYTES_MAX + 1)), "a chunk of 1044481"),
        (ops.LoadBuild(7, b"x" * 16, 0, 0, 0, 0), "0 chunks"),
        (ops.LoadBuild(7, b"x" * 16, 0, 0, 65, 0), "65 chunks"),
        (ops.LoadBuild(7, b"x" * 16, 0, 2**32 - 1, 2, 0), "2 chunks from"),
    ],
)
def test_limits_of_loads(op: ops.Op, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ops.pack([op])


@given(st.lists(st.one_of(OP, TOLD, OPEN), min_size=1, max_size=4))
def test_a_lease_among_other_operations_is_refused(batch: list[ops.Op]) -> None:
    """Otherwise two leases would have one number and ambiguous snapshots."""
    about = [op for op in batch if isinstance(op, ops.LeaseOpen | ops.LeaseKeep | ops.LeaseEnd)]
    alone = len(batch) == 1 or not about
    among_its_like = len(about) == len(batch) and not any(
        isinstance(op, ops.LeaseOpen) for op in batch
    )
    packed = ops.pack(batch)
    if alone or among_its_like:
        assert ops.unpack(packed) == batch
    else:
        with pytest.raises(ValueError, match="a lease stands among other operations"):
            ops.unpack(packed)


@given(OPS, st.data())
def test_no_mutation_raises_anything_else(batch: list[ops.Op], data: st.DataObject) -> None:
    packed = bytearray(ops.pack(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(packed) - 1))
        packed[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, packed[place] ^ 1]))
    end = data.draw(st.integers(0, len(packed)))
    try:
        ops.unpack(bytes(packed[:end]))
    except ValueError:
        return


@given(OPS, st.integers(60, 200))
def test_parts_joined_are_the_whole(batch: list[ops.Op], size: int) -> None:
    packed = ops.pack(batch)
    entries = ops.cut(packed, 5, b"r" * 12, size)
    assert max(map(len, entries)) <= size
    if len(entries) == 1:
        assert entries == [packed]
        return
    parts = [part for entry in entries for part in ops.unpack(entry)]
    assert all(isinstance(part, ops.Part) for part in parts)
    assert [part[1:4] for part in parts] == [
        (b"r" * 12, i, len(entries)) for i in range(len(entries))
    ]
    assert b"".join(part.data for part in parts if isinstance(part, ops.Part)) == packed


@pytest.mark.parametrize(
    "batch",
    [
        [ops.Get(1, [b"k"])],
        [ops.GetRange(1, b"", b"", 0)],
        [ops.Increment(1, [b"k"], [b"1"])],
        [ops.Append(1, [b"k"], [b"1"])],
        [ops.Put(1, [b""], [b"v"])],
        [ops.Put(1, [b"k" * (KEY_BYTES_MAX + 1)], [b"v"])],
        [ops.Put(1, [b"k"], [])],
        [ops.Delete(1, [b"k", b""])],
        [ops.DeleteRange(1, b"", b"k" * (KEY_BYTES_MAX + 1))],
        [ops.Transaction(1, b"", [], [ops.Truncate(1)], [])],
        [ops.Transaction(1, b"", [ops.Compare(1, b"k", 7)], [], [])],
        [ops.Transaction(1, b"short", [], [], [])],
        [ops.Part(1, b"", 2, 2, b"")],
    ],
)
def test_values_that_cannot_be_packed(batch: list[ops.Op]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ops.pack(batch)
