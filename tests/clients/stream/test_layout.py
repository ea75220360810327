"""The keys and values of streams, without a cluster."""

import zlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.clients.errors import TableTooLarge
from kelek.clients.stream.layout import (
    VERSION,
    BatchBody,
    BatchInfo,
    Head,
    PartitionState,
    ProducerState,
    Retention,
    StreamKeys,
    StreamRecord,
    batch_info,
    decode_head,
    decode_partition,
    decode_producer,
    encode_batch,
    pack_records,
    partition_of,
    unpack_records,
)
from kelek.clients.table.codecs import codec_of
from kelek.protocols.errors import RemoteProtocolError

NUMBERS = st.integers(0, 2**63 - 1)
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)
RECORDS = st.lists(
    st.builds(
        StreamRecord,
        st.binary(max_size=40),
        st.none() | st.binary(max_size=10),
        st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.binary(max_size=5)),
    ),
    min_size=1,
    max_size=5,
)
HEADS = st.builds(
    Head,
    *[NUMBERS] * 6,
    st.binary(min_size=8, max_size=8),
    st.integers(1, 512),
    st.builds(Retention, NUMBERS, NUMBERS, NUMBERS),
)


@given(HEADS, st.builds(ProducerState, *[NUMBERS] * 5), st.builds(PartitionState, NUMBERS))
def test_values_come_back(head: Head, producer: ProducerState, partition: PartitionState) -> None:
    assert decode_head(head.encode()) == head
    assert decode_producer(producer.encode()) == producer
    assert decode_partition(partition.encode()) == partition


@given(RECORDS, NUMBERS, NUMBERS, st.integers(0, 7))
def test_a_batch_comes_back_from_any_offset(
    records: list[StreamRecord], first: int, time_ms: int, skipped: int
) -> None:
    head = Head(next=first, position=7)
    body = pack_records(records, None)
    data = encode_batch(body, head, time_ms)
    assert batch_info(data) == BatchInfo(first, time_ms, 7, len(records))
    assert len(data) == body.size
    expected = [
        each._replace(offset=first + at, time_ms=time_ms) for at, each in enumerate(records)
    ]
    assert unpack_records(data, None, first + skipped) == expected[skipped:]


@given(RECORDS, st.integers(0, 4))
def test_the_rest_of_a_batch_is_that_of_the_rest_of_its_records(
    records: list[StreamRecord], count: int
) -> None:
    count = min(count, len(records) - 1)
    rest = pack_records(records, None).without(count)
    found = unpack_records(encode_batch(rest, Head(), 1))
    assert [each[:3] for each in found] == [each[:3] for each in records[count:]]
    assert rest.length == len(records) - count


def test_a_record_of_another_codec_is_named() -> None:
    data = encode_batch(pack_records([b"1", b"no json"], None), Head(next=5), 9)
    with pytest.raises(ValueError) as caught:
        unpack_records(data, codec_of("json"))
    (note,) = caught.value.__notes__
    assert "record 6 does not fit the reader's codec" in note


def test_a_codec_takes_values_and_keys_come_back_as_text() -> None:
    codec = codec_of("json")
    body = pack_records([{"a": 1}, StreamRecord([2], "k", {"h": b"\0"})], codec)
    found = unpack_records(encode_batch(body, Head(next=5), 9), codec)
    assert found == [
        StreamRecord({"a": 1}, None, {}, 5, 9),
        StreamRecord([2], "k", {"h": b"\0"}, 6, 9),
    ]
    assert found[0].time.isoformat() == "1970-01-01T00:00:00.009000+00:00"


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes or a str, not int"):
        pack_records([1], None)
    with pytest.raises(TypeError, match="headers"):
        pack_records([StreamRecord(b"", None, {"a": 1})], None)  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="bytes or a str"):
        pack_records([StreamRecord(b"", 7)], None)
    with pytest.raises(TableTooLarge):
        pack_records([bytes((64 << 20) + 1)], None)


@given(st.binary(max_size=60))
def test_junk_is_a_protocol_error(data: bytes) -> None:
    for decode in (decode_head, decode_producer, decode_partition, batch_info, unpack_records):
        with pytest.raises(RemoteProtocolError):
            decode(data)


def test_a_newer_layout_is_named() -> None:
    newer = msgpack.packb([VERSION + 1, 0, b""])
    with pytest.raises(RemoteProtocolError, match=f"layout {VERSION + 1}, .* knows {VERSION}"):
        decode_partition(newer)


@given(NAMES, NAMES, st.integers(0, 2**63), st.integers(0, 2**63))
def test_the_keys_of_streams_are_apart_and_in_the_order_of_offsets(
    one: str, other: str, low: int, high: int
) -> None:
    keys, others = StreamKeys(one), StreamKeys(other)
    assert (keys.batch(low) < keys.batch(high)) == (low < high)
    start, end = keys.batches(low)
    assert (start <= keys.batch(high) < end) == (low <= high)
    if one != other:
        for first, behind in keys.ranges():
            used = [others.head, others.batch(low), others.producer(one), others.group(one)]
            assert not [key for key in used if first <= key < behind]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1025])
def test_a_name_has_a_limited_length_and_no_nul(name: str) -> None:
    with pytest.raises(ValueError, match="name has 1 to 1024 bytes without NUL"):
        StreamKeys(name)


def test_a_key_has_one_partition_and_records_without_one_are_spread() -> None:
    assert partition_of(b"order-1", 5, 16) == zlib.crc32(b"order-1") % 16
    assert partition_of("order-1", 99, 16) == partition_of(b"order-1", 5, 16)
    assert {partition_of(None, offset, 4) for offset in range(8)} == set(range(4))


def test_a_body_is_empty_for_no_records() -> None:
    assert pack_records([], None) == BatchBody(0, msgpack.packb([[], None, None]))
