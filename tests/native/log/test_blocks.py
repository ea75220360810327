"""CRC and framing in C against their Python twins, and the functions of protocols/record.py."""

from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kelek.native.errors import Readable
from kelek.native.log import blocks as native_blocks
from kelek.native.log.blocks import block_from_entries, crc32c
from kelek.protocols import record
from kelek.protocols.errors import LocalProtocolError, RemoteProtocolError
from kelek.protocols.record import Record
from kelek.tests.native.log import block_twin

numbers = st.integers(1, 2**53 - 1)
records = st.builds(
    Record,
    st.integers(0, 127),
    st.none() | st.binary(min_size=12, max_size=12),
    st.binary(max_size=300),
)
blocks = st.tuples(st.integers(1, 2**40), numbers, st.lists(records, min_size=1, max_size=20))


@given(st.binary(max_size=400), st.integers(0, 2**32 - 1))
def test_crc32c_is_its_twin(data: bytes, value: int) -> None:
    assert crc32c(data, value) == block_twin.crc32c(data, value)


@given(blocks)
def test_block_is_its_twin(parts: tuple[int, int, list[Record]]) -> None:
    first_index, term, held = parts
    batch = record.encode_block(first_index, term, held)
    assert batch.block == block_twin.block_encode(first_index, term, held)
    assert record.check_block(batch.block) == batch
    assert record.decode_block(batch.block) == (batch, held)
    assert block_twin.block_decode(batch.block) == (b"KLKB", first_index, term, held, b"")


@given(blocks, st.data())
def test_a_slice_equals_the_encoded_part(
    parts: tuple[int, int, list[Record]], data: st.DataObject
) -> None:
    first_index, term, held = parts
    start = data.draw(st.integers(0, len(held) - 1))
    end = data.draw(st.integers(start, len(held) - 1))
    batch = record.encode_block(first_index, term, held)
    sliced = record.slice_block(batch, first_index + start, first_index + end)
    assert sliced == record.encode_block(first_index + start, term, held[start : end + 1])
    assert record.cut_block(batch, first_index + start) == record.encode_block(
        first_index + start, term, held[start:]
    )
    for wrong in ((first_index - 1, first_index), (batch.last_index, batch.last_index + 1)):
        with pytest.raises(LocalProtocolError):
            record.slice_block(batch, *wrong)


@given(blocks)
def test_expansions_are_their_twins(parts: tuple[int, int, list[Record]]) -> None:
    first_index, term, held = parts
    batch = record.encode_block(first_index, term, held)
    for kind in (0, 1, held[0].kind):
        states, counts = record.block_states(batch.block, kind)
        assert states == block_twin.states(held, kind)
        assert counts == [sum(r.kind == k for r in held) for k in range(128)]
    frames = record.block_entries(batch, first_index, batch.last_index)
    assert frames == [block_twin.entry_write(term, r) for r in held]
    assert record.block_entries(batch, batch.last_index, batch.last_index) == frames[-1:]
    with pytest.raises(LocalProtocolError):
        record.block_entries(batch, first_index, batch.last_index + 1)


@given(st.lists(st.tuples(st.integers(1, 3), records), min_size=1, max_size=20))
def test_entries_become_one_batch_for_each_run_of_terms(
    held: list[tuple[int, Record]],
) -> None:
    held = sorted(
        ((t, r if r.reqid != bytes(12) else r._replace(reqid=None)) for t, r in held),
        key=lambda pair: pair[0],
    )
    held = [(t, r._replace(data=r.data + b"x")) for t, r in held]
    batches = record.block_from_entries(7, [block_twin.entry_write(t, r) for t, r in held])
    runs = [[*run] for _, run in groupby(held, key=lambda pair: (pair[0], pair[1].kind))]
    # A config entry is alone in its block.
    sizes = [s for run in runs for s in ([1] * len(run) if run[0][1].kind == 1 else [len(run)])]
    assert [b.count for b in batches] == sizes
    index, found = 7, []
    for batch in batches:
        assert batch.first_index == index
        checked, decoded = record.decode_block(batch.block)
        assert checked == batch
        found += [(batch.term, r) for r in decoded]
        index += batch.count
    assert found == held


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [bytes(12) + b"\0" + b"\1" + bytes(6)],
        [bytes(12) + b"\x80" + b"\1" + bytes(6) + b"x"],
        [bytes(12) + b"\0" + bytes(7) + b"x"],
        [bytes(12) + b"\0" + b"\xff" * 7 + b"x"],
        [bytes(12) + b"\0" + b"\2" + bytes(6) + b"x", bytes(12) + b"\0" + b"\1" + bytes(6) + b"x"],
        [bytes(12) + b"\0" + b"\1" + bytes(6) + bytes(record.RECORD_BYTES_MAX + 1)],
    ],
    ids=["empty", "no data", "kind", "term 0", "term over the limit", "term falls", "too large"],
)
def test_malformed_entries_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        record.block_from_entries(1, frames)


def test_entries_over_a_blocks_limit_make_several_batches() -> None:
    frames = [bytes(12) + b"\0\5" + bytes(6) + bytes(6 << 20)] * 5
    batches = record.block_from_entries(1, frames)
    assert [batch.count for batch in batches] == [2, 2, 1]
    assert all(record.check_block(batch.block) == batch for batch in batches)


@given(st.binary(max_size=200))
@example(b"")
@example(b"KLKB" + bytes(60))
@example(b"KLKM" + bytes(28))
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        record.check_block(junk)
    with pytest.raises(RemoteProtocolError):
        record.decode_block(junk)


def test_a_mark_is_no_block() -> None:
    with pytest.raises(RemoteProtocolError, match="mark"):
        record.check_block(block_twin.encode_mark(4096, 3))


def test_every_truncation_and_every_flip_is_refused() -> None:
    block = record.encode_block(
        5, 2, [Record(0, b"r" * 12, b"data"), Record(2, None, b"\xc0")]
    ).block
    for size in range(len(block)):
        with pytest.raises(RemoteProtocolError):
            record.check_block(block[:size])
    for bit in range(len(block) * 8):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteProtocolError):
            record.check_block(bytes(flipped))
    with pytest.raises(RemoteProtocolError, match="followed by 8 more"):
        record.check_block(block + bytes(8))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.data())
def test_wrong_records_under_a_right_checksum_are_refused(
    bodies: list[bytes], data: st.DataObject
) -> None:
    """A correct checksum does not make malformed records valid."""
    payload = b"".join(bodies)
    count = data.draw(st.integers(1, 6))
    block = block_twin.frame(b"KLKB", 1, 1, count, payload)
    try:
        parts = block_twin.block_decode(block)
    except (block_twin.Torn, block_twin.Corrupt):
        with pytest.raises(RemoteProtocolError):
            record.check_block(block)
    else:
        assert [tuple(r) for r in record.decode_block(block)[1]] == parts[3]


@pytest.mark.parametrize(
    ("first_index", "term", "held"),
    [
        (0, 1, [Record(0, None, b"")]),
        (1, 0, [Record(0, None, b"")]),
        (2**53, 1, [Record(0, None, b"")]),
        (2**53 - 1, 1, [Record(0, None, b"")] * 2),
        (1, 2**53, [Record(0, None, b"")]),
        (2**64, 1, [Record(0, None, b"")]),
        (-1, 1, [Record(0, None, b"")]),
        (1, 1, []),
        (1, 1, [Record(128, None, b"")]),
        (1, 1, [Record(0, b"short", b"")]),
        (1, 1, [Record(0, None, bytes(record.LONE_BYTES_MAX + 1))]),
        (1, 1, [Record(0, None, bytes(9 << 20))] * 2),
    ],
)
def test_encoding_more_than_a_block_holds_is_a_local_error(
    first_index: int, term: int, held: list[Record]
) -> None:
    with pytest.raises(LocalProtocolError):
        record.encode_block(first_index, term, held)


def test_the_largest_record_fits() -> None:
    held = [Record(127, b"r" * 12, bytes(record.LONE_BYTES_MAX))]
    batch = record.encode_block(2**53 - 1, 2**53 - 1, held)
    assert record.decode_block(batch.block) == (batch, held)


def test_entries_of_very_many_terms_cost_no_more_than_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each term makes a block: C must not get all remaining entries for each of them."""
    frames = [bytes(13) + term.to_bytes(7, "little") + b"x" for term in range(1, 3001)]
    passed = 0
    real = block_from_entries

    def counted(first_index: int, joined: Readable, sizes: Sequence[int]) -> tuple[bytes, int]:
        nonlocal passed
        passed += len(sizes)
        return real(first_index, joined, sizes)

    monkeypatch.setattr(native_blocks, "block_from_entries", counted)
    batches = record.block_from_entries(7, frames)
    assert [batch.term for batch in batches] == list(range(1, 3001))
    assert batches[-1].last_index == 3006
    assert passed == 3000
