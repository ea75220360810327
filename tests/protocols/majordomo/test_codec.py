"""Every command of the three framings: the frames that the texts list, there and back, and junk.

The tables of frames are those of the text ("Protocol Client", "Protocol/Worker"), of RFC 7 and of
RFC 18; what is ours is in docs/protocols/majordomo.md.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import LocalProtocolError, RemoteProtocolError
from kelek.protocols.majordomo import codec, values
from kelek.protocols.majordomo.values import Framing, Headers
from kelek.tests.protocols.layouts import FEWER, Strategies, check_fuzz, check_round_trip

TEXT, MDP01, MDP02 = Framing.TEXT, Framing.MDP01, Framing.MDP02
ID = b"\0\xff"
CLIENT = b"\0\x01\x02\x03\x04"
BODY = [b"one", b""]
SEVEN = bytes(7) + b"\7"

CLIENT_COMMANDS = [
    (TEXT, codec.Request(b"echo", ID, BODY), [b"KLKC01", b"\x01", b"echo", ID, *BODY]),
    (
        TEXT,
        codec.Request(b"echo", ID, BODY, 258),
        [b"KLKD01", b"\x01", b"echo", ID, bytes(6) + b"\x01\x02", *BODY],
    ),
    (
        TEXT,
        codec.Request(b"echo", ID, BODY, 258, b"me", 7),
        [b"KLKN01", b"\x01", b"echo", ID, bytes(6) + b"\x01\x02" + SEVEN + b"me", *BODY],
    ),
    (
        TEXT,
        codec.Request(b"echo", ID, BODY, None, b"me"),
        [b"KLKN01", b"\x01", b"echo", ID, b"\xff" * 8 + bytes(8) + b"me", *BODY],
    ),
    (MDP02, codec.Request(b"echo", b"", BODY), [b"MDPC02", b"\x01", b"echo", *BODY]),
    (MDP01, codec.Request(b"echo", b"", BODY), [b"", b"MDPC01", b"echo", *BODY]),
    (
        TEXT,
        codec.Credit(b"echo", ID, b"me", 7),
        [b"KLKN01", b"\x04", b"echo", ID, b"\xff" * 8 + SEVEN + b"me"],
    ),
    (
        TEXT,
        codec.Cancel(b"echo", ID, b"me"),
        [b"KLKN01", b"\x05", b"echo", ID, b"\xff" * 8 + bytes(8) + b"me"],
    ),
]
REPLIES = [
    (
        TEXT,
        codec.Partial(b"echo", ID, BODY, codec.PartPosition(258, 7)),
        [b"KLKC01", b"\x04", b"echo", ID, b"\0\0\1\2\0\0\0\7", *BODY],
    ),
    (
        TEXT,
        codec.Final(b"echo", ID, BODY, codec.PartPosition(258, 7)),
        [b"KLKC01", b"\x05", b"echo", ID, b"\0\0\1\2\0\0\0\7", *BODY],
    ),
    (TEXT, codec.Alive(), [b"KLKC01", b"\x06"]),
    (TEXT, codec.Partial(b"echo", ID, BODY), [b"KLKC01", b"\x02", b"echo", ID, *BODY]),
    (TEXT, codec.Final(b"echo", ID, BODY), [b"KLKC01", b"\x03", b"echo", ID, *BODY]),
    (MDP02, codec.Partial(b"echo", b"", BODY), [b"MDPC02", b"\x02", b"echo", *BODY]),
    (MDP02, codec.Final(b"echo", b"", BODY), [b"MDPC02", b"\x03", b"echo", *BODY]),
    (MDP01, codec.Final(b"echo", b"", BODY), [b"", b"MDPC01", b"echo", *BODY]),
]
WORKER_COMMANDS = [
    (TEXT, codec.WorkerReady(b"echo"), [b"KLKW01", b"\x01", b"echo"]),
    (TEXT, codec.WorkerReady(b"echo", 258), [b"KLKW01", b"\x01", b"echo", b"\x01\x02"]),
    (TEXT, codec.WorkerReady(b"echo", 1, True, True), [b"KLKW01", b"\x07", b"echo", b"\0\1"]),
    (TEXT, codec.WorkerReady(b"echo", 1, True), [b"KLKW01", b"\x01", b"echo", b"\0\x01", b"D"]),
    (TEXT, codec.WorkPartial(CLIENT, ID, BODY), [b"KLKW01", b"\x03", CLIENT, b"", ID, *BODY]),
    (TEXT, codec.WorkFinal(CLIENT, ID, BODY), [b"KLKW01", b"\x04", CLIENT, b"", ID, *BODY]),
    (TEXT, codec.Ping(), [b"KLKW01", b"PING"]),
    (TEXT, codec.Disconnect(), [b"KLKW01", b"\x06"]),
    (MDP02, codec.WorkerReady(b"echo"), [b"MDPW02", b"\x01", b"echo"]),
    (MDP02, codec.WorkPartial(CLIENT, b"", BODY), [b"MDPW02", b"\x03", CLIENT, b"", *BODY]),
    (MDP02, codec.WorkFinal(CLIENT, b"", BODY), [b"MDPW02", b"\x04", CLIENT, b"", *BODY]),
    (MDP02, codec.Heartbeat(), [b"MDPW02", b"\x05"]),
    (MDP02, codec.Disconnect(), [b"MDPW02", b"\x06"]),  # The text prints this one as its own, too.
    (MDP01, codec.WorkerReady(b"echo"), [b"", b"MDPW01", b"\x01", b"echo"]),
    (MDP01, codec.WorkFinal(CLIENT, b"", BODY), [b"", b"MDPW01", b"\x03", CLIENT, b"", *BODY]),
    (MDP01, codec.Heartbeat(), [b"", b"MDPW01", b"\x04"]),
    (MDP01, codec.Disconnect(), [b"", b"MDPW01", b"\x05"]),
]
ORDERS = [
    (TEXT, codec.WorkRequest(CLIENT, ID, BODY), [b"KLKW01", b"\x02", CLIENT, b"", ID, *BODY]),
    (TEXT, codec.WorkCredit(CLIENT, ID, 7), [b"KLKW01", b"\x07", CLIENT, b"", ID, SEVEN]),
    (TEXT, codec.WorkCancel(CLIENT, ID), [b"KLKW01", b"\x08", CLIENT, b"", ID]),
    (TEXT, codec.Pong(), [b"KLKW01", b"PONG"]),
    (TEXT, codec.Disconnect(), [b"KLKW01", b"\x06"]),
    (MDP02, codec.WorkRequest(CLIENT, b"", BODY), [b"MDPW02", b"\x02", CLIENT, b"", *BODY]),
    (MDP02, codec.Heartbeat(), [b"MDPW02", b"\x05"]),
    (MDP02, codec.Disconnect(), [b"MDPW02", b"\x06"]),
    (MDP01, codec.WorkRequest(CLIENT, b"", BODY), [b"", b"MDPW01", b"\x02", CLIENT, b"", *BODY]),
    (MDP01, codec.Heartbeat(), [b"", b"MDPW01", b"\x04"]),
    (MDP01, codec.Disconnect(), [b"", b"MDPW01", b"\x05"]),
]
DIALOGS: list[tuple[list[Any], Callable[..., Any]]] = [
    (CLIENT_COMMANDS, codec.CLIENT_COMMANDS.decode),
    (REPLIES, codec.REPLIES.decode),
    (WORKER_COMMANDS, codec.WORKER_COMMANDS.decode),
    (ORDERS, codec.ORDERS.decode),
]


@pytest.mark.parametrize(("golden", "decode"), DIALOGS)
def test_the_frames_of_the_texts(golden: list[Any], decode: Callable[..., Any]) -> None:
    for framing, message, frames in golden:
        assert codec.encode(message, framing) == frames
        assert decode(frames) == (framing, message)


def test_which_octets_a_service_may_have() -> None:
    known = [octet for octet in range(256) if values.is_service(b"%c" % octet)]
    assert known == list(range(values.PRINTABLE_MIN, values.PRINTABLE_MAX + 1))


def test_headers_are_configurable() -> None:
    headers = Headers(b"ABC", b"DEF", b"GHI")
    values.check_headers(headers)
    frames = codec.encode(codec.Request(b"echo", ID, BODY), TEXT, headers)
    assert frames[0] == b"ABC"
    assert codec.header_of(frames, headers) == ("client", TEXT)
    with pytest.raises(RemoteProtocolError, match="not a header"):
        codec.CLIENT_COMMANDS.decode(frames)
    frames = codec.encode(codec.Ping(), TEXT, headers)
    assert codec.WORKER_COMMANDS.decode(frames, headers) == (TEXT, codec.Ping())
    # MDP's own stay beside them.
    assert codec.decode_order([b"MDPW02", b"\x05"], headers) == (MDP02, codec.Heartbeat())


@pytest.mark.parametrize(
    "headers",
    [
        (b"", b"w", b"d"),
        (b"c" * 256, b"w", b"d"),
        (b"same", b"same", b"d"),
        (b"same", b"w", b"same"),
        (b"c", b"MDPW02", b"d"),
    ],
)
def test_headers_that_are_ambiguous(headers: tuple[bytes, bytes, bytes]) -> None:
    with pytest.raises(LocalProtocolError):
        values.check_headers(Headers(*headers))


def test_an_empty_body_of_a_worker_is_accepted() -> None:
    frames = [b"KLKW01", b"\x04", CLIENT, b"", ID]
    assert codec.WORKER_COMMANDS.decode(frames) == (TEXT, codec.WorkFinal(CLIENT, ID, []))
    frames[1] = b"\x02"
    assert codec.decode_order(frames) == (TEXT, codec.WorkRequest(CLIENT, ID, []))
    # None is ever sent: there is one frame of body at least.
    assert codec.encode(codec.WorkFinal(CLIENT, ID, [])) == [
        b"KLKW01",
        b"\x04",
        CLIENT,
        b"",
        ID,
        b"",
    ]


def test_the_remaining_time_is_sent_on_request() -> None:
    order = codec.WorkRequest(CLIENT, ID, BODY, 258)
    frames = codec.encode(order)
    assert frames == [b"KLKW01", b"\x02", CLIENT, b"", ID, bytes(6) + b"\x01\x02", *BODY]
    assert codec.decode_order(frames, deadlines=True) == (TEXT, order)
    for short in (frames[:5], [*frames[:5], b"1234567"], [*frames[:5], b"123456789"]):
        with pytest.raises(RemoteProtocolError, match=r"8 octets|6 or more frames"):
            codec.decode_order(short, deadlines=True)
    # MDP's framings have no place for it.
    with pytest.raises(LocalProtocolError):
        codec.encode(order, MDP02)
    # Who takes credit finds that behind it.
    for left, remaining_ms in ((bytes(6) + b"\x01\x02", 258), (b"\xff" * 8, 2**64 - 1)):
        order = codec.WorkRequest(CLIENT, ID, BODY, remaining_ms, 7)
        frames = codec.encode(order)
        assert frames == [b"KLKW01", b"\x02", CLIENT, b"", ID, left + SEVEN, *BODY]
        assert codec.decode_order(frames, deadlines=True) == (TEXT, order)
    frames = [b"MDPW02", b"\x02", CLIENT, b"", b"x"]
    assert codec.decode_order(frames, deadlines=True)[1] == codec.WorkRequest(CLIENT, b"", [b"x"])


REQUEST, NAMED = [b"KLKC01", b"\x01"], [b"KLKN01", b"\x01", b"e", ID]
FINAL = [b"KLKW01", b"\x04"]


@pytest.mark.parametrize(
    ("decode", "frames", "why"),
    [
        *(
            (codec.CLIENT_COMMANDS.decode, frames, why)
            for frames, why in (
                ([], "not a header"),
                ([b"", b"MDPC02"], "not a header"),
                ([b"KLKW01", b"\x01", b"echo", ID, b""], "with a worker's header"),
                ([b"KLKC01", b"\x02", b"echo", ID, b""], "command 02"),
                ([*REQUEST, b"echo", ID], "a body"),
                ([*REQUEST, b"echo", b"", b""], "request id"),
                ([*REQUEST, b"echo", b"i" * 256, b""], "request id"),
                ([*REQUEST, b"", ID, b""], "service"),
                ([*REQUEST, b"a\x7f", ID, b""], "printable"),
                ([*REQUEST, b"s" * 256, ID, b""], "service"),
                ([b"KLKD01", b"\x01", b"e", ID, bytes(7), b""], "8 octets"),
                ([*NAMED, bytes(17), b""], "a name"),
                ([*NAMED, b"n" * 15, b""], "16 octets"),
                ([b"KLKN01", b"\x05", b"e", ID, b"n" * 17, b""], "5 frames"),
                ([b"", b"MDPC01", b"echo"], "a body"),
            )
        ),
        (codec.REPLIES.decode, [b"KLKN01", b"\x03", b"echo", ID, b""], "with a named's header"),
        (codec.REPLIES.decode, [b"KLKC01", b"\x05", b"echo", ID, bytes(7), b""], "8 octets"),
        *(
            (codec.WORKER_COMMANDS.decode, frames, why)
            for frames, why in (
                ([b"KLKW01"], "no TEXT command"),
                ([b"KLKW01", b"PONG"], "no TEXT command"),
                ([b"MDPW02", b"PING"], "no MDP02 command"),
                ([b"", b"MDPW01", b"\x06"], "no MDP01 command"),
                ([b"KLKW01", b"PING", b""], "PING has 2 frames"),
                ([b"KLKW01", b"\x01", b"e", b"\0\0"], "got 0"),
                ([b"KLKW01", b"\x01", b"e", b"\x01"], "2 octets"),
                ([b"KLKW01", b"\x01", b"e", b"\0\1", b"X"], "READY, frame 4: expected D"),
                ([b"KLKW01", b"\x01", b"e", b"\0\1", b"D", b""], "3 to 5"),
                ([*FINAL, CLIENT, b""], "FINAL has 5 or more frames"),
                ([*FINAL, CLIENT, b"x", ID, b""], "empty frame"),
                ([*FINAL, b"", b"", ID, b""], "address"),
                ([b"MDPW02", b"\x04", CLIENT, b""], "a body"),
            )
        ),
        (codec.ORDERS.decode, [b"KLKW01", b"\x07", CLIENT, b"", ID, b"x"], "8 octets"),
    ],
)
def test_what_is_refused(
    decode: Callable[[Sequence[bytes]], Any], frames: list[bytes], why: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        decode(frames)


@pytest.mark.parametrize(
    ("message", "framing"),
    [
        (codec.Request(b"", ID, BODY), TEXT),
        (codec.Request(b"echo", ID, BODY), MDP02),
        (codec.Request(b"echo", b"", BODY, 1), MDP02),
        (codec.Request(b"echo", ID, BODY, -1), TEXT),
        (codec.Request(b"echo", ID, BODY, None, b"\0me"), TEXT),
        (codec.Request(b"echo", ID, BODY, None, b"me", 1 << 64), TEXT),
        (codec.Partial(b"echo", b"", BODY), MDP01),
        (codec.WorkerReady(b"echo", 2), MDP02),
        (codec.WorkerReady(b"echo", 65_536), TEXT),
        (codec.WorkerReady(b"echo", 0), TEXT),
        (codec.Heartbeat(), TEXT),
        (codec.WorkRequest(CLIENT, ID, BODY, 1 << 64), TEXT),
    ],
)
def test_what_we_never_send(message: Any, framing: Framing) -> None:
    with pytest.raises(LocalProtocolError):
        codec.encode(message, framing)


# ---- errors ----


def test_the_body_of_an_error() -> None:
    body = codec.encode_failure(codec.Failure(values.EXPIRED, "no worker in time"))
    assert body == [b"KLK-ERROR", msgpack.packb({"code": 504, "message": "no worker in time"})]
    assert codec.decode_failure(body) == codec.Failure(504, "no worker in time")
    # Exactly these two frames: anything else is an answer.
    for answer in (body[:1], [*body, b""], [b"x", body[1]], []):
        assert codec.decode_failure(answer) is None


def test_a_long_message_of_an_error_is_cut_between_characters() -> None:
    (_, packed) = codec.encode_failure(codec.Failure(500, "x" + "é" * 2000))
    assert msgpack.unpackb(packed)["message"] == "x" + "é" * 511
    assert codec.encode_failure(codec.Failure(500, "\ud800"))  # No UTF-8: it is sent all the same.


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\x80\x80",
        msgpack.packb([504, "x"]),
        msgpack.packb({"code": "504", "message": "x"}),
        msgpack.packb({"code": True, "message": "x"}),
        msgpack.packb({"code": 504}),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 4096,
        b"\x82\xa4code\x01\xa7message\xa1\xff",
        msgpack.packb({"code": 504, "message": "x" * 4096}),
    ],
)
def test_an_error_that_is_none(packed: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode_failure([values.ERROR_MARK, packed])


# ---- any ----

U64 = st.integers(0, (1 << 64) - 1)
NAMES = st.binary(min_size=1, max_size=255).filter(lambda name: name[0] != 0)
LEFT_MS = st.none() | st.integers(0, (1 << 64) - 2)
STRATEGIES: Strategies = {
    codec.SERVICE.type: st.text(
        st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255
    ).map(str.encode),
    codec.REQUEST_ID.type: st.binary(min_size=1, max_size=255),
    codec.CLIENT.type: st.binary(min_size=1, max_size=255),
    codec.REMAINING.type: U64,
    codec.CREDIT.type: U64,
    codec.POSITION.type: st.builds(
        codec.PartPosition, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1)
    ),
    codec.WINDOW.type: st.integers(1, 65_535),
    codec.DEADLINES.type: st.just(True),
    codec.BUNDLES.type: st.just(True),
    codec.REQUEST_OPTIONS.type: st.tuples(LEFT_MS, NAMES, U64),
    codec.CREDIT_OPTIONS.type: st.tuples(NAMES, U64),
    codec.CANCEL_OPTIONS.type: NAMES,
    codec.WORK_OPTIONS.type: st.tuples(U64, U64),
    codec.BODY.type: st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    codec.WORK_BODY.type: st.lists(st.binary(max_size=40), min_size=1, max_size=5),
}
GROUPS = codec.CLIENT_COMMANDS, codec.REPLIES, codec.WORKER_COMMANDS, codec.ORDERS
COMMANDS = [command for group in GROUPS for command in group.all]
by_command = pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda command: f"{command.framing.name} {command.title}"
)


@by_command
@FEWER
@given(st.data())
def test_there_and_back(command: codec.Command, data: st.DataObject) -> None:
    check_round_trip(data, command, STRATEGIES)


@by_command
@FEWER
@given(st.data())
def test_broken_commands(command: codec.Command, data: st.DataObject) -> None:
    check_fuzz(data, command, STRATEGIES)


HEADS = [*values.HEADERS, *values.MDP_HEADERS, b"", *(bytes([octet]) for octet in range(9))]


@given(st.lists(st.sampled_from(HEADS) | st.binary(max_size=40), max_size=8))
def test_any_frames_are_a_command_or_a_protocol_error(frames: list[bytes]) -> None:
    for group in GROUPS:
        with contextlib.suppress(RemoteProtocolError):
            framing, message = group.decode(frames)
            assert codec.decode_order(frames) if group is codec.ORDERS else message
            codec.encode(message, framing)
    with contextlib.suppress(RemoteProtocolError):
        codec.decode_order(frames, deadlines=True)


@given(st.integers(), st.text(max_size=300))
def test_errors_there_and_back(code: int, message: str) -> None:
    code %= 1 << 63
    failure = codec.decode_failure(codec.encode_failure(codec.Failure(code, message)))
    assert failure == codec.Failure(code, message.encode("utf-8", "replace").decode())


@given(st.binary(max_size=60))
def test_junk_in_an_error(packed: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        codec.decode_failure([values.ERROR_MARK, packed])
