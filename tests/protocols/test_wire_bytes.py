"""ByteLayouts: errors name message and field; lists, sizes, byte order, limits."""

from typing import NamedTuple

import pytest

from kelek.protocols.errors import LocalProtocolError, RemoteProtocolError, TooLarge
from kelek.protocols.wire import Constant, Frame
from kelek.protocols.wire_bytes import (
    ByteLayout,
    Incomplete,
    InvalidValue,
    Surplus,
    listed,
    number,
    sized,
    string,
)


class Score(NamedTuple):
    player: str
    points: int
    moves: tuple[bytes, ...] = ()


class Points(NamedTuple):
    points: tuple[int, ...]


OCTET = number(1)
PLAYER = string(OCTET, 8)
POINTS = number(2, signed=True)
SCORE = ByteLayout(
    "score",
    Score,
    Constant(b"S", "signature"),
    Frame("player", PLAYER, "name"),
    Frame("points", POINTS, "points"),
    Frame("moves", listed(sized(OCTET, 4), 2), "moves"),
    check=lambda score: "" if score.player else "no player",
)
LIST = ByteLayout("list", Points, Frame("points", listed(OCTET, 2, OCTET), ""))


def test_values_and_their_octets() -> None:
    score = Score("Ä", -2, (b"a1", b""))
    assert SCORE.pack(score) == b"S\x02\xc3\x84\xff\xfe\x02a1\x00"
    assert SCORE.unpack(b"--" + SCORE.pack(score), 2) == score
    assert LIST.unpack(LIST.pack(Points((7, 8)))) == Points((7, 8))


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"T", RemoteProtocolError, "score, signature: 54, not 53"),
        (b"S\x03ab", Incomplete, "score, name: 1 octets are missing"),
        (b"S\x09", TooLarge, "score, name: 9 octets, at most 8"),
        (b"S\x01\xff\0\0", InvalidValue, "score, name: 'utf-8' codec can't decode"),
        (b"S\x01a\0", Incomplete, "score, points: 1 octets are missing"),
        (b"S\x01a\0\0\x05", TooLarge, "score, moves: 5 octets, at most 4"),
        (b"S\x01a\0\0\0\0\0", TooLarge, "score, moves: more than 2 items"),
        (b"S\0\0\0", RemoteProtocolError, "score: no player"),
    ],
)
def test_errors_name_the_field(data: bytes, error: type[RemoteProtocolError], text: str) -> None:
    with pytest.raises(error) as caught:
        SCORE.unpack(data)
    assert type(caught.value) is error
    assert str(caught.value).startswith(text)


def test_a_counted_list() -> None:
    with pytest.raises(TooLarge, match="255 items, at most 2"):
        LIST.unpack(b"\xff")
    with pytest.raises(Surplus, match="list: 1 octets too many"):
        LIST.unpack(b"\x01ab")


@pytest.mark.parametrize(
    "score", [Score("x" * 9, 0), Score("x", 1 << 15), Score("x", 0, (b"",) * 3), Score("\ud800", 0)]
)
def test_what_a_type_can_not_carry(score: Score) -> None:
    with pytest.raises(LocalProtocolError):
        SCORE.pack(score)
