"""Blocks cut into columns, against Python twins."""

from array import array
from itertools import accumulate
from random import Random

import pytest

from kelek.clients.table.arrow import ENTRY_SCHEMA, entries_of
from kelek.native.errors import NativeError
from kelek.native.net.messages import Arena, Frames
from kelek.native.tables.columns import Message, cut_columns
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zerodb.wire.columns import join
from kelek.protocols.zmqraft.client.requests import EntryRun
from kelek.tests.native.log.some_blocks import some_blocks


@pytest.mark.parametrize("seed", range(20))
def test_columns_equal_their_twins(seed: int) -> None:
    """The columns hold the entries that Python decodes from the blocks."""
    batches = tuple(some_blocks(Random(seed)))
    part = EntryRun(batches[0].first_index, (), batches)
    found = entries_of(part)
    found.validate(full=True)
    assert found.schema == ENTRY_SCHEMA
    twins = part.decoded()
    assert [tuple(row[name] for name in row if name != "time") for row in found.to_pylist()] == [
        tuple(entry) for entry in twins
    ]
    seconds = [
        None if time is None else time.timestamp() for time in found.column("time").to_pylist()
    ]
    assert seconds == [
        None if entry.reqid is None else int.from_bytes(entry.reqid[:4], "big") for entry in twins
    ]


def test_blocks_with_another_number_of_entries_are_refused() -> None:
    block = encode_block(5, 1, [Record(0, None, b"x")] * 3).block
    for count in (0, 2, 4):
        with pytest.raises(NativeError):
            cut_columns([block], count)
    with pytest.raises(NativeError):
        cut_columns([block[:40]], 3)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 300, 301])
def test_split_frames_equal_their_twins(count: int) -> None:
    """Columns of a message of pairs equal those of Python, at any alignment."""
    rng = Random(count)
    frames = [rng.randbytes(rng.randrange(9)) for _ in range(2 * count)]
    arena = Arena.from_messages([[b"one"], [b"head", *frames], [b"another"]])
    assert [arena.frame_count(at) for at in range(3)] == [1, 2 * count + 1, 1]
    message = Message(*arena.raw(1))
    assert list(message) == [b"head", *frames] == [message[at] for at in range(len(message))]
    assert message[-1] == [b"head", *frames][-1]
    assert message[::2] == [b"head", *frames][::2]
    with pytest.raises(IndexError):
        message[len(message)]
    body = message[1:]
    assert isinstance(body, Message)
    assert list(body) == frames
    found = [bytes(column) for column in body.columns()]
    assert found == [
        part
        for items in (frames[::2], frames[1::2])
        for part in (offsets_of(items), b"".join(items))
    ]
    with pytest.raises(NativeError):
        message.columns()  # A key frame without a value frame.


def offsets_of(items: list[bytes]) -> bytes:
    return array("i", accumulate(map(len, items), initial=0)).tobytes()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 3000])
def test_joined_columns_equal_their_twins(count: int) -> None:
    """Two columns as alternating frames, behind other messages."""
    rng = Random(count)
    items = [[rng.randbytes(rng.randrange(30)) for _ in range(count)] for _ in range(2)]
    columns = [part for column in items for part in join(column)]
    frames = Frames(64, 4)
    frames.add([b"before"])
    frames.add_pairs([b"head", b""], columns)
    frames.add([b"behind"])
    twins = [part for pair in zip(*items, strict=True) for part in pair]
    assert frames.messages() == [[b"before"], [b"head", b"", *twins], [b"behind"]]


@pytest.mark.parametrize(
    "columns",
    [
        [b"", b"", b"", b""],
        [bytes(4), b""],
        [bytes(4), b"", bytes(8), b""],
        [bytes(5), b"", bytes(5), b""],
        [bytes(4), b"x", bytes(4), b""],
        [*join([b"ab", b"c"])[:1], b"abcd", *join([b"ab", b"c"])],
        [b"\0\0\0\0\2\0\0\0\1\0\0\0", b"a", *join([b"ab", b"c"])],
        [b"\1\0\0\0\1\0\0\0", b"a", *join([b"ab"])],
    ],
)
def test_malformed_columns_are_refused(columns: list[bytes]) -> None:
    frames = Frames()
    with pytest.raises(NativeError):
        frames.add_pairs([b"head"], columns)
    frames.add([b"next"])
    assert frames.messages() == [[b"next"]]
