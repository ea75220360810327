"""Beacons, commands and reports of ZRE: layouts octet by octet, round trips, junk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.zre import codec
from kelek.protocols.zre.beacon import Beacon, decode_beacon, encode_beacon, is_own_uuid, own_uuid
from kelek.protocols.zre.codec import (
    Command,
    Hello,
    Join,
    Leave,
    Ping,
    PingOk,
    Shout,
    Unknown,
    Whisper,
    decode,
    encode,
)
from kelek.protocols.zre.log import Report, decode_report, encode_report, report_of, uuid_hash
from kelek.protocols.zre.peers import Event, EventKind, PeerInfo
from kelek.protocols.zre.values import (
    SIGNATURE,
    CommandKind,
    Level,
    LogEvent,
    Malformed,
    Reason,
    Version,
)
from kelek.tests.protocols.layouts import Strategies, messages

V1, V2 = Version.V1, Version.V2
UUID = bytes(range(0x10, 0x20))
KEY = bytes(range(32))
HELLO = Hello("192.168.1.7", 0xC001, ("a", "Äb"), 2, "node", {"X-ZRELOG": "tcp://192.168.1.7:9"})

# The text's layouts, and RFC 36's, written by hand.
VECTORS: list[tuple[Version, int, Command, list[bytes]]] = [
    (V1, 1, HELLO._replace(name=""), [
        b"\xaa\xa1\x01\x00\x01" b"\x0b192.168.1.7" b"\xc0\x01" b"\x02\x01a\x03\xc3\x84b" b"\x02"
        b"\x01\x1cX-ZRELOG=tcp://192.168.1.7:9"]),
    (V2, 1, HELLO, [
        b"\xaa\xa1\x01\x02\x00\x01" b"\x17tcp://192.168.1.7:49153"
        b"\0\0\0\x02\0\0\0\x01a\0\0\0\x03\xc3\x84b" b"\x02" b"\x04node"
        b"\0\0\0\x01\x08X-ZRELOG\0\0\0\x13tcp://192.168.1.7:9"]),
    (V1, 512, Whisper([b"hi"]), [b"\xaa\xa1\x02\x02\x00", b"hi"]),
    (V2, 2, Whisper([b"hi", b""]), [b"\xaa\xa1\x02\x02\x00\x02", b"hi", b""]),
    (V1, 3, Shout("g", [b"x"]), [b"\xaa\xa1\x03\x00\x03\x01g", b"x"]),
    (V2, 0xFFFF, Shout("g", [b"x"]), [b"\xaa\xa1\x03\x02\xff\xff\x01g", b"x"]),
    (V1, 4, Join("g", 1), [b"\xaa\xa1\x04\x00\x04\x01g\x01"]),
    (V2, 4, Join("g", 255), [b"\xaa\xa1\x04\x02\x00\x04\x01g\xff"]),
    (V1, 5, Leave("g", 2), [b"\xaa\xa1\x05\x00\x05\x01g\x02"]),
    (V2, 5, Leave("g", 0), [b"\xaa\xa1\x05\x02\x00\x05\x01g\x00"]),
    (V1, 6, Ping(), [b"\xaa\xa1\x06\x00\x06"]),
    (V2, 6, Ping(), [b"\xaa\xa1\x06\x02\x00\x06"]),
    (V1, 7, PingOk(), [b"\xaa\xa1\x07\x00\x07"]),
    (V2, 7, PingOk(), [b"\xaa\xa1\x07\x02\x00\x07"]),
]  # fmt: skip


@pytest.mark.parametrize(("version", "sequence", "command", "frames"), VECTORS)
def test_vectors(version: Version, sequence: int, command: Command, frames: list[bytes]) -> None:
    assert encode(sequence, command, version) == frames
    assert decode(frames, version) == (sequence, command)


def test_a_beacon() -> None:
    """RFC 20: Z, R, E, 01, the UUID, the port in network order."""
    data = b"ZRE\x01" + UUID + b"\xc0\x01"
    assert encode_beacon(Beacon(UUID, 0xC001)) == data
    assert decode_beacon(data) == Beacon(UUID, 0xC001)
    assert decode_beacon(data[:20] + b"\0\0").port == 0


def test_a_beacon_with_a_key() -> None:
    """zyre_node.c: Z, R, E, 03, the UUID, the port in network order, the CURVE public key."""
    data = b"ZRE\x03" + UUID + b"\xc0\x01" + KEY
    assert len(data) == 54
    assert encode_beacon(Beacon(UUID, 0xC001, KEY)) == data
    assert decode_beacon(data) == Beacon(UUID, 0xC001, KEY)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.SIGNATURE),
        (b"ZR", Reason.SIGNATURE),
        (b"ZRE\x02" + UUID + b"\xc0\x01", Reason.SIGNATURE),
        (b"zre\x01" + UUID + b"\xc0\x01", Reason.SIGNATURE),
        (b"ZRE\x01" + UUID + b"\xc0", Reason.SHORT),
        (b"ZRE\x01" + UUID + b"\xc0\x01\x00", Reason.SHORT),
        (b"ZRE\x01" + UUID + b"\xc0\x01" + KEY, Reason.SHORT),
        (b"ZRE\x03" + UUID + b"\xc0\x01", Reason.SHORT),
        (b"ZRE\x03" + UUID + b"\xc0\x01" + KEY[1:], Reason.SHORT),
        (b"ZRE\x03" + UUID + b"\xc0\x01" + KEY + b"\0", Reason.SHORT),
        (b"ZRE\x03" + UUID + b"\xc0\x01" + bytes(32), Reason.KEY),
        (b"ZRE\x03\x00" + UUID[1:] + b"\xc0\x01" + KEY, Reason.ROUTING_ID),
        (b"ZRE\x01\x00" + UUID[1:] + b"\xc0\x01", Reason.ROUTING_ID),
    ],
)
def test_no_beacon(data: bytes, reason: Reason) -> None:
    with pytest.raises(Malformed) as caught:
        decode_beacon(data)
    assert caught.value.reason is reason


@given(st.binary(min_size=14, max_size=14))
def test_our_own_uuids(random: bytes) -> None:
    uuid = own_uuid(random)
    assert len(uuid) == 16
    assert uuid[0] != 0
    assert is_own_uuid(uuid)
    assert not is_own_uuid(uuid[:15] + bytes([uuid[15] ^ 1]))


def test_routing_ids() -> None:
    for version in Version:
        assert codec.identify(codec.routing_id(UUID, version)) == (UUID, version)
    for junk in (b"", UUID[1:], b"\x02" + UUID, b"\x01" + UUID + b"x"):
        with pytest.raises(Malformed):
            codec.identify(junk)


def short_text(most: int) -> st.SearchStrategy[str]:
    return st.text(max_size=most).filter(lambda text: len(text.encode()) <= most)


ADDRESSES = st.sampled_from(["10.0.0.1", "255.255.255.255", "fe80::1", "::1"])
MAILBOXES = st.tuples(ADDRESSES, st.integers(1, 65_535))
GROUPS = st.lists(short_text(40), max_size=9).map(tuple)
NAMES = short_text(30)
TYPES: Strategies = {
    codec.OCTET: st.integers(0, 255),
    codec.STRING: short_text(255),
    codec.MAILBOX_V1: MAILBOXES,
    codec.MAILBOX_V2: MAILBOXES,
    codec.GROUPS_V1: GROUPS,
    codec.GROUPS_V2: GROUPS,
    codec.HEADERS_V1: st.dictionaries(NAMES.filter(lambda name: "=" not in name), short_text(200)),
    codec.HEADERS_V2: st.dictionaries(NAMES, short_text(200), max_size=5),
}


@st.composite
def commands(draw: st.DrawFn, version: Version) -> Command:
    kind = draw(st.sampled_from(CommandKind))
    command: Command = draw(messages(codec.layout_of(kind, version), TYPES))
    if isinstance(command, Whisper | Shout):
        frames_max = 1 if version is V1 else 4
        content = st.lists(st.binary(max_size=50), min_size=1, max_size=frames_max)
        command = command._replace(content=draw(content))
    return command


@pytest.mark.parametrize("version", Version)
@given(st.integers(0, 65_535), st.data())
def test_round_trips(version: Version, sequence: int, data: st.DataObject) -> None:
    command = data.draw(commands(version))
    assert decode(encode(sequence, command, version), version) == (sequence, command)


@given(st.integers(0, 65_535), commands(V2), st.data())
def test_a_cut_header_is_refused(sequence: int, command: Command, data: st.DataObject) -> None:
    frames = encode(sequence, command, V2)
    cut = data.draw(st.integers(0, len(frames[0]) - 1))
    with pytest.raises(Malformed):
        decode([frames[0][:cut], *frames[1:]], V2)
    with pytest.raises(Malformed):
        decode([frames[0] + b"x", *frames[1:]], V2)


@given(st.lists(st.binary(max_size=80), max_size=4), st.sampled_from(Version), st.integers(0, 8))
def test_junk_is_refused_and_nothing_else(frames: list[bytes], version: Version, kind: int) -> None:
    begun = [SIGNATURE + bytes([kind, 2]) + frame for frame in frames[:1]] + frames[1:]
    for message in (frames, begun):
        try:
            sequence, _ = decode(message, version)
        except Malformed:
            continue
        assert 0 <= sequence < 65_536


@pytest.mark.parametrize(
    ("version", "frames", "reason"),
    [
        (V1, [], Reason.SIGNATURE),
        (V2, [b"\xaa\xa2\x06\x02\x00\x01"], Reason.SIGNATURE),
        (V2, [b"\xaa\xa1\x06\x03\x00\x01"], Reason.VERSION),
        (V2, [b"\xaa\xa1\x06\x02\x00"], Reason.SHORT),
        (V2, [b"\xaa\xa1\x00\x02\x00\x01"], Reason.COMMAND),
        (V1, [b"\xaa\xa1\x08\x00\x01"], Reason.COMMAND),
        (V2, [b"\xaa\xa1\x06\x02\x00\x01", b"more"], Reason.TRAILING),
        (V2, [b"\xaa\xa1\x04\x02\x00\x01\x02\xff\xfe\x01"], Reason.TEXT),
        (V1, [b"\xaa\xa1\x02\x00\x01"], Reason.SHORT),
        (V2, [b"\xaa\xa1\x02\x02\x00\x01", *[b""] * 1025], Reason.LIMIT),
        (V2, [b"\xaa\xa1\x01\x02\x00\x01".ljust((1 << 20) + 1)], Reason.LIMIT),
        # A list of 2^32 - 1 groups, a string of as many octets: refused before memory is taken.
        (V2, [b"\xaa\xa1\x01\x02\x00\x01\x0etcp://1.2.3.4:5" + b"\xff" * 4], Reason.ADDRESS),
        (V2, [b"\xaa\xa1\x01\x02\x00\x01\x0ftcp://1.2.3.4:5" + b"\xff" * 4], Reason.LIMIT),
        (V2, [b"\xaa\xa1\x01\x02\x00\x01\x0ftcp://1.2.3.4:5\0\0\0\1" + b"\xff" * 4], Reason.LIMIT),
        (V2, [b"\xaa\xa1\x01\x02\x00\x01\x0etcp://host.x:5"], Reason.ADDRESS),
        (V2, [b"\xaa\xa1\x01\x02\x00\x01\x0ftcp://1.2.3.4:0"], Reason.ADDRESS),
        (V1, [b"\xaa\xa1\x01\x00\x01\x071.2.3.4\x00\x00\x00\x00\x00"], Reason.ADDRESS),
        (V1, [b"\xaa\xa1\x01\x00\x01\x071.2.3.4\x00\x05\x00\x00\x01\x01a"], Reason.TEXT),
    ],
)
def test_malformed(version: Version, frames: list[bytes], reason: Reason) -> None:
    with pytest.raises(Malformed) as caught:
        decode(frames, version)
    assert caught.value.reason is reason


def test_a_later_command_counts_for_the_sequence_only() -> None:
    assert decode([b"\xaa\xa1\x0a\x02\x00\x09rest"], V2) == (9, Unknown(10))


@pytest.mark.parametrize(
    ("command", "version"),
    [
        (Join("x" * 256, 1), V2),
        (Shout("x" * 256, [b""]), V1),
        (Whisper([]), V2),
        (Whisper([b"", b""]), V1),
        (Unknown(9), V2),
        (HELLO._replace(headers={"k": "v" * 254}), V1),
        (HELLO._replace(groups=("g",) * 256), V1),
        (HELLO._replace(headers={str(i): "v" * 65_000 for i in range(17)}), V2),
    ],
)
def test_what_a_version_can_not_say(command: Command, version: Version) -> None:
    with pytest.raises(LocalProtocolError):
        encode(1, command, version)


# ---- ZRE/LOG ----

REPORT = Report(Level.WARNING, LogEvent.ENTER, 0x1234, 0xABCD, 1_700_000_000_123, "hé")
REPORT_DATA = b"\xaa\xa2\x01\x02\x03\x12\x34\xab\xcd\x00\x00\x01\x8b\xcf\xe5\x68\x7b\x03h\xc3\xa9"


def test_a_report() -> None:
    assert encode_report(REPORT) == REPORT_DATA
    assert decode_report([REPORT_DATA]) == REPORT


def test_a_hash() -> None:
    assert uuid_hash(b"") == 0
    assert uuid_hash(b"\x01") == 1
    assert uuid_hash(b"\x01\x02") == 33 ^ 2
    assert uuid_hash(bytes(range(16))) == 0x5800


@given(
    st.builds(
        Report,
        st.sampled_from(Level),
        st.sampled_from(LogEvent),
        st.integers(0, 65_535),
        st.integers(0, 65_535),
        st.integers(0, 2**64 - 1),
        short_text(255),
    ),
    st.integers(0, 300),
)
def test_reports_round_trip_and_cut_ones_are_refused(report: Report, cut: int) -> None:
    data = encode_report(report)
    assert decode_report([data]) == report
    for junk in ([data[: cut % len(data)]], [data + b"x"], [data, b""], [b"\xaa\xa1" + data[2:]]):
        with pytest.raises(Malformed):
            decode_report(junk)


def test_what_is_reported() -> None:
    peer = PeerInfo(UUID, "é" * 127, "tcp://10.0.0.1:61000", V2, {})
    report = report_of(Event(EventKind.JOIN, peer, "group"), b"\x01" * 16, 5)
    assert report is not None
    assert (report.event, report.peer, report.time_ms) == (LogEvent.JOIN, uuid_hash(UUID), 5)
    assert report.data == "group " + "é" * 124
    assert decode_report([encode_report(report)]) == report
    assert report_of(Event(EventKind.EVASIVE, peer), UUID, 5) is None
    assert report_of(Event(EventKind.LEADER, None, "g"), UUID, 5) is None
    with pytest.raises(LocalProtocolError):
        encode_report(report._replace(data="x" * 256))
