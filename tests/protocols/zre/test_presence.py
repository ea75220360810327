"""Presence reports of kelek nodes: layout, round trips, junk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.zre import presence
from kelek.protocols.zre.log import uuid_hash
from kelek.protocols.zre.peers import Event, EventKind, PeerInfo
from kelek.protocols.zre.presence import (
    Presence,
    PresenceEvent,
    decode_presence,
    encode_presence,
    presence_of,
)
from kelek.protocols.zre.values import Level, LogEvent, Malformed, Version

NODE, PEER = bytes(range(0x10, 0x20)), bytes(range(0x20, 0x30))
SAID = Presence(
    PresenceEvent.ENTER, 1_700_000_000_123, NODE, "n1", PEER, "Äb", "tcp://10.0.0.1:61000",
    Version.V2, headers={"X-A": "é"},
)  # fmt: skip
SAID_DATA = (
    b"\xaa\xa2\x02\x03\x03" + uuid_hash(NODE).to_bytes(2) + uuid_hash(PEER).to_bytes(2)
    + b"\x00\x00\x01\x8b\xcf\xe5\x68\x7b"
    + NODE + PEER + b"\x02" + b"\x02n1" + b"\x03\xc3\x84b" + b"\x14tcp://10.0.0.1:61000" + b"\x00"
    + b"\0\0\0\x0c" + '{"X-A":"é"}'.encode()
)  # fmt: skip


def test_a_presence() -> None:
    assert encode_presence(SAID) == SAID_DATA
    assert decode_presence([SAID_DATA]) == SAID
    assert {one.name for one in LogEvent} == {one.name for one in list(PresenceEvent)[:4]}
    assert all(PresenceEvent[one.name].value == one.value for one in LogEvent)


@given(
    st.builds(
        Presence,
        st.sampled_from(PresenceEvent),
        st.integers(0, 2**64 - 1),
        st.binary(min_size=16, max_size=16),
        st.text(max_size=60),
        st.binary(min_size=16, max_size=16),
        st.text(max_size=60),
        st.text(max_size=60),
        st.sampled_from(Version),
        st.text(max_size=60),
        st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=5),
    ),
    st.integers(0, 500),
)
def test_they_round_trip_and_cut_ones_are_refused(said: Presence, cut: int) -> None:
    data = encode_presence(said)
    assert decode_presence([data]) == said
    assert said.level is (Level.WARNING if said.event >= PresenceEvent.EVASIVE else Level.INFO)
    for junk in ([data[: cut % len(data)]], [data + b"x"], [data, b""], [], [b"\xaa\xa2\x01"]):
        with pytest.raises(Malformed):
            decode_presence(junk)


@pytest.mark.parametrize(
    ("place", "octets", "reason"),
    [
        (3, b"\x01", "command"),  # The level of another event.
        (4, b"\x08", "command"),
        (4, b"\x00", "command"),
        (49, b"\x03", "command"),
        (51, b"\xff", "text"),
        (len(SAID_DATA) - 1, b"]", "text"),
        (len(SAID_DATA) - 12, b'["X-A","e"] ', "text"),
        (len(SAID_DATA) - 12, b'{"X-A":1.50}', "text"),
        (len(SAID_DATA) - 16, b"\0\0\0\x0b", "trailing"),
        (len(SAID_DATA) - 16, b"\xff\xff\xff\xff", "short"),
    ],
)
def test_errors_are_reported(place: int, octets: bytes, reason: str) -> None:
    data = SAID_DATA[:place] + octets + SAID_DATA[place + len(octets) :]
    with pytest.raises(Malformed) as error:
        decode_presence([data])
    assert error.value.reason.value == reason


def test_limits() -> None:
    data = encode_presence(SAID._replace(headers={}))
    with pytest.raises(Malformed, match="headers of 5000 octets"):
        decode_presence([data[:-4] + (5000).to_bytes(4) + bytes(5000)])
    for wrong in (
        SAID._replace(group="x" * 256),
        SAID._replace(headers={"a": "x" * 4096}),
        SAID._replace(time_ms=-1),
    ):
        with pytest.raises(LocalProtocolError):
            encode_presence(wrong)


def test_reported_events() -> None:
    headers = {"X-A": "1", "X-B": "x" * 4090, "X-C": "3"}
    peer = PeerInfo(PEER, "é" * 127, "tcp://10.0.0.1:61000", Version.V1, headers)
    for kind in EventKind:
        told = presence_of(Event(kind, peer, "g"), NODE, "n1", 5)
        if kind in (EventKind.WHISPER, EventKind.SHOUT, EventKind.LEADER):
            assert told is None
            continue
        assert told is not None
        assert (told.event.name, told.peer_name, told.group) == (kind.value, peer.name, "g")
        shown = kind in (EventKind.ENTER, EventKind.CHANGED)
        assert told.headers == ({"X-A": "1"} if shown else {}), "those that there is room for"
        assert decode_presence([encode_presence(told)]) == told
        assert len(encode_presence(told)) <= presence.FRAME_BYTES_MAX
    assert presence_of(Event(EventKind.EXIT, None), NODE, "n1", 5) is None
