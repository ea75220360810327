"""Layouts: errors name message and frame; optional frames, groups, cases and rests."""

import struct
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import pytest

from kelek.protocols.errors import RemoteProtocolError, TooLarge
from kelek.protocols.wire import (
    Case,
    Cases,
    Constant,
    Frame,
    FrameType,
    Id,
    Ident,
    Layout,
    Rest,
    RestError,
    RestType,
    TableRow,
    Unused,
)


def decode_digits(frame: bytes) -> int:
    if not frame.isdigit():
        raise RemoteProtocolError("no number")
    if len(frame) > 4:
        raise TooLarge("a long number")
    return int(frame)


NUMBER = FrameType("number", lambda value: b"%d" % value, decode_digits)
COUNT = FrameType(
    "number",
    lambda value: b"" if value is None else b"%d" % value,
    lambda frame: decode_digits(frame) if frame else None,
)
PAIR = FrameType("bytes", lambda pair: struct.pack("<BB", *pair), struct.Struct("<BB").unpack)
NUMBERS = RestType(
    "number",
    lambda values: [b"%d" % value for value in values],
    lambda frames: tuple(decode_digits(frame) for frame in frames),
)


class Read(NamedTuple):
    first: int = 0
    limit: int | None = None
    offset: int | None = None
    packed: bool = False


class SumMessage(NamedTuple):
    total: int
    low: int
    high: int
    more: tuple[int, ...] = ()


class KeysAndValues(NamedTuple):
    limit: int = 9
    keys: tuple[bytes, ...] = ()
    values: tuple[bytes, ...] = ()


class StatusAnswer(NamedTuple):
    state: str
    position: int = 0
    leader: int | None = None


READ = Layout(
    "read",
    Read,
    Id(NUMBER, "message id"),
    Constant(b"R"),
    Ident(),
    Frame("first", NUMBER, "first index"),
    Frame("limit", COUNT, "count; empty: all", optional=True),
    Frame("offset", COUNT, "offset", optional=True),
    given={"packed": True},
)
SUM = Layout(
    "sum",
    SumMessage,
    Frame("total", NUMBER, "total"),
    Frame(("low", "high"), PAIR, "two numbers"),
    Rest("more", NUMBERS, "more", 2),
    check=lambda value: "" if value.low <= value.high else "low is above high",
)
STATUS = FrameType(
    "byte", lambda status: b"0" if status == "refused" else b"1", lambda frame: frame
)
ANSWER = Layout(
    "answer",
    StatusAnswer,
    Id(NUMBER, "id of the request"),
    Cases(
        "state",
        STATUS,
        "status",
        Case("accepted", "in progress"),
        Case("done", "committed", Frame("position", NUMBER, "its index")),
        Case("refused", "not the leader", Unused("ignored"), Frame("leader", COUNT, "leader")),
    ),
)


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (Read(7, packed=True), [b"9", b"R", b"demo", b"7"]),
        (Read(7, 3, packed=True), [b"9", b"R", b"demo", b"7", b"3"]),
        (Read(7, None, 5, packed=True), [b"9", b"R", b"demo", b"7", b"", b"5"]),
    ],
)
def test_optional_frames_at_the_end(message: Read, frames: list[bytes]) -> None:
    assert READ.encode(message, 9, b"demo") == frames
    assert READ.decode(frames, b"demo") == message


def test_a_group_and_a_rest() -> None:
    for more in ((), (4, 5)):
        frames = [b"3", b"\1\2", *(b"%d" % each for each in more)]
        assert SUM.encode(SumMessage(3, 1, 2, more)) == frames
        assert SUM.decode(frames) == SumMessage(3, 1, 2, more)


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (StatusAnswer("accepted"), [b"9", b"1"]),
        (StatusAnswer("done", 5), [b"9", b"1", b"5"]),
        (StatusAnswer("refused", leader=2), [b"9", b"0", b"", b"2"]),
    ],
)
def test_cases_differ_in_status_and_count(message: StatusAnswer, frames: list[bytes]) -> None:
    assert ANSWER.encode(message, 9) == frames
    assert ANSWER.decode(frames) == message


def check_pairs(frames: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    if b"" in frames:
        raise RestError(frames.index(b""), "empty")
    return tuple(frames[::2]), tuple(frames[1::2])


def test_a_rest_of_several_fields_names_its_wrong_frame() -> None:
    pairs = RestType("key, value", lambda fields: chain(*zip(*fields, strict=True)), check_pairs)
    rest = Rest(("keys", "values"), pairs, "pairs", 4)
    layout = Layout(
        "pairs", KeysAndValues, Frame("limit", NUMBER, "limit"), rest, ignores_more=True
    )
    frames = [b"5", b"k", b"v", b"l", b"w"]
    assert layout.decode(frames) == KeysAndValues(5, (b"k", b"l"), (b"v", b"w"))
    assert layout.encode(layout.decode(frames)) == frames
    with pytest.raises(RemoteProtocolError, match="pairs, frame 4: empty"):
        layout.decode([b"5", b"k", b"v", b"", b"w"])
    with pytest.raises(RemoteProtocolError, match="pairs has 1 or more frames, got 0"):
        layout.decode([])


def test_an_optional_frame_can_always_be_sent() -> None:
    limit = Frame("limit", NUMBER, "limit", optional=True, is_sent=True)
    layout = Layout("pairs", KeysAndValues, limit)
    assert layout.decode([]) == KeysAndValues()
    assert layout.encode(KeysAndValues()) == [b"9"]


def test_more_frames_can_be_ignored() -> None:
    lenient = Layout("read", Read, Frame("first", NUMBER, "first index"), ignores_more=True)
    assert lenient.decode([b"1", b"junk", b""]) == Read(1)


@pytest.mark.parametrize(
    ("layout", "frames", "problem"),
    [
        (READ, [b"9", b"R", b"demo"], "read has 4 to 6 frames, got 3"),
        (READ, [b"x", b"R", b"demo", b"1"], "read, frame 1: no number"),
        (READ, [b"9", b"S", b"demo", b"1"], "read, frame 2: another message type"),
        (READ, [b"9", b"R", b"omed", b"1"], "read, frame 3: a foreign cluster ident"),
        (READ, [b"9", b"R", b"demo", b"1", b"", b"x"], "read, frame 6: no number"),
        (SUM, [b"3", b"\1\2", b"x"], "sum, frame 3: no number"),
        (SUM, [b"3", b"\1\2", b"1", b"2", b"3"], "sum has 2 to 4 frames, got 5"),
        (SUM, [b"3", b"\2\1"], "sum: low is above high"),
        (ANSWER, [b"9"], "answer has 2 to 4 frames, got 1"),
        (ANSWER, [b"9", b""], "answer, frame 2: unknown status empty"),
        (ANSWER, [b"9", b"ab"], "answer, frame 2: unknown status 61 62"),
        (ANSWER, [b"9", b"1", b"", b""], "answer has 2 to 3 frames, got 4"),
        (ANSWER, [b"9", b"1", b"x"], "answer, frame 3: no number"),
    ],
)
def test_errors_name_message_and_frame(
    layout: Layout[Read] | Layout[SumMessage] | Layout[StatusAnswer],
    frames: list[bytes],
    problem: str,
) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        layout.decode(frames, b"demo")
    assert str(caught.value) == problem


def test_the_kind_of_an_error_stays() -> None:
    with pytest.raises(TooLarge, match="sum, frame 1: a long number"):
        SUM.decode([b"12345", b"\1\2"])


def test_rows() -> None:
    assert list(READ.rows())[1:5] == [
        TableRow("2", "", "`52` `R`"),
        TableRow("3", "bytes", "cluster ident"),
        TableRow("4", "number", "first index"),
        TableRow("5", "number", "count; empty: all; may be absent"),
    ]
    assert list(SUM.rows())[2] == TableRow("3...", "number", "more: at most 2")
    assert list(ANSWER.rows())[1:] == [
        TableRow(
            "2",
            "byte",
            "status: `31` without frame 3: in progress; `31` with frame 3: committed; "
            "`30` not the leader",
        ),
        TableRow("3", "", "`31` with frame 3: number, its index; `30`: ignored"),
        TableRow("4", "number", "`30`: leader"),
    ]
