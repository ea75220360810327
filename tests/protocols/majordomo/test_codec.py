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
from kelek.protocols.majordomo.codec import (
    Alive,
    Cancel,
    Credit,
    Disconnect,
    Failure,
    Final,
    Heartbeat,
    Partial,
    PartPosition,
    Ping,
    Pong,
    Request,
    WorkCancel,
    WorkCredit,
    WorkerReady,
    WorkFinal,
    WorkPartial,
    WorkRequest,
)
from kelek.protocols.majordomo.values import Framing, Headers, Side

TEXT, MDP01, MDP02 = Framing.TEXT, Framing.MDP01, Framing.MDP02
ID = b"\0\xff"
CLIENT = b"\0\x01\x02\x03\x04"
BODY = [b"one", b""]
SEVEN = bytes(7) + b"\7"

CLIENT_COMMANDS = [
    (TEXT, Request(b"echo", ID, BODY), [b"KLKC01", b"\x01", b"echo", ID, *BODY]),
    (
        TEXT,
        Request(b"echo", ID, BODY, 258),
        [b"KLKD01", b"\x01", b"echo", ID, bytes(6) + b"\x01\x02", *BODY],
    ),
    (
        TEXT,
        Request(b"echo", ID, BODY, 258, b"me", 7),
        [b"KLKN01", b"\x01", b"echo", ID, bytes(6) + b"\x01\x02" + SEVEN + b"me", *BODY],
    ),
    (
        TEXT,
        Request(b"echo", ID, BODY, None, b"me"),
        [b"KLKN01", b"\x01", b"echo", ID, b"\xff" * 8 + bytes(8) + b"me", *BODY],
    ),
    (MDP02, Request(b"echo", b"", BODY), [b"MDPC02", b"\x01", b"echo", *BODY]),
    (MDP01, Request(b"echo", b"", BODY), [b"", b"MDPC01", b"echo", *BODY]),
    (
        TEXT,
        Credit(b"echo", ID, b"me", 7),
        [b"KLKN01", b"\x04", b"echo", ID, b"\xff" * 8 + SEVEN + b"me"],
    ),
    (
        TEXT,
        Cancel(b"echo", ID, b"me"),
        [b"KLKN01", b"\x05", b"echo", ID, b"\xff" * 8 + bytes(8) + b"me"],
    ),
]
REPLIES = [
    (
        TEXT,
        Partial(b"echo", ID, BODY, PartPosition(258, 7)),
        [b"KLKC01", b"\x04", b"echo", ID, b"\0\0\1\2\0\0\0\7", *BODY],
    ),
    (
        TEXT,
        Final(b"echo", ID, BODY, PartPosition(258, 7)),
        [b"KLKC01", b"\x05", b"echo", ID, b"\0\0\1\2\0\0\0\7", *BODY],
    ),
    (TEXT, Alive(), [b"KLKC01", b"\x06"]),
    (TEXT, Partial(b"echo", ID, BODY), [b"KLKC01", b"\x02", b"echo", ID, *BODY]),
    (TEXT, Final(b"echo", ID, BODY), [b"KLKC01", b"\x03", b"echo", ID, *BODY]),
    (MDP02, Partial(b"echo", b"", BODY), [b"MDPC02", b"\x02", b"echo", *BODY]),
    (MDP02, Final(b"echo", b"", BODY), [b"MDPC02", b"\x03", b"echo", *BODY]),
    (MDP01, Final(b"echo", b"", BODY), [b"", b"MDPC01", b"echo", *BODY]),
]
WORKER_COMMANDS = [
    (TEXT, WorkerReady(b"echo"), [b"KLKW01", b"\x01", b"echo"]),
    (TEXT, WorkerReady(b"echo", 258), [b"KLKW01", b"\x01", b"echo", b"\x01\x02"]),
    (TEXT, WorkerReady(b"echo", 1, True, True), [b"KLKW01", b"\x07", b"echo", b"\0\1"]),
    (TEXT, WorkerReady(b"echo", 1, True), [b"KLKW01", b"\x01", b"echo", b"\0\x01", b"D"]),
    (TEXT, WorkPartial(CLIENT, ID, BODY), [b"KLKW01", b"\x03", CLIENT, b"", ID, *BODY]),
    (TEXT, WorkFinal(CLIENT, ID, BODY), [b"KLKW01", b"\x04", CLIENT, b"", ID, *BODY]),
    (TEXT, Ping(), [b"KLKW01", b"PING"]),
    (TEXT, Disconnect(), [b"KLKW01", b"\x06"]),
    (MDP02, WorkerReady(b"echo"), [b"MDPW02", b"\x01", b"echo"]),
    (MDP02, WorkPartial(CLIENT, b"", BODY), [b"MDPW02", b"\x03", CLIENT, b"", *BODY]),
    (MDP02, WorkFinal(CLIENT, b"", BODY), [b"MDPW02", b"\x04", CLIENT, b"", *BODY]),
    (MDP02, Heartbeat(), [b"MDPW02", b"\x05"]),
    (MDP02, Disconnect(), [b"MDPW02", b"\x06"]),  # The text prints this one as its own, too.
    (MDP01, WorkerReady(b"echo"), [b"", b"MDPW01", b"\x01", b"echo"]),
    (MDP01, WorkFinal(CLIENT, b"", BODY), [b"", b"MDPW01", b"\x03", CLIENT, b"", *BODY]),
    (MDP01, Heartbeat(), [b"", b"MDPW01", b"\x04"]),
    (MDP01, Disconnect(), [b"", b"MDPW01", b"\x05"]),
]
ORDERS = [
    (TEXT, WorkRequest(CLIENT, ID, BODY), [b"KLKW01", b"\x02", CLIENT, b"", ID, *BODY]),
    (TEXT, WorkCredit(CLIENT, ID, 7), [b"KLKW01", b"\x07", CLIENT, b"", ID, SEVEN]),
    (TEXT, WorkCancel(CLIENT, ID), [b"KLKW01", b"\x08", CLIENT, b"", ID]),
    (TEXT, Pong(), [b"KLKW01", b"PONG"]),
    (TEXT, Disconnect(), [b"KLKW01", b"\x06"]),
    (MDP02, WorkRequest(CLIENT, b"", BODY), [b"MDPW02", b"\x02", CLIENT, b"", *BODY]),
    (MDP02, Heartbeat(), [b"MDPW02", b"\x05"]),
    (MDP02, Disconnect(), [b"MDPW02", b"\x06"]),
    (MDP01, WorkRequest(CLIENT, b"", BODY), [b"", b"MDPW01", b"\x02", CLIENT, b"", *BODY]),
    (MDP01, Heartbeat(), [b"", b"MDPW01", b"\x04"]),
    (MDP01, Disconnect(), [b"", b"MDPW01", b"\x05"]),
]
DIALOGS: list[tuple[list[Any], Callable[..., Any], Callable[..., Any]]] = [
    (CLIENT_COMMANDS, codec.encode_client_command, codec.decode_client_command),
    (REPLIES, codec.encode_reply, codec.decode_reply),
    (WORKER_COMMANDS, codec.encode_worker_command, codec.decode_worker_command),
    (ORDERS, codec.encode_order, codec.decode_order),
]
DECODERS = [decode for _, _, decode in DIALOGS]
SOUND = [(frames, decode) for golden, _, decode in DIALOGS for _, _, frames in golden]


@pytest.mark.parametrize(("golden", "encode", "decode"), DIALOGS)
def test_the_frames_of_the_texts(
    golden: list[Any], encode: Callable[..., Any], decode: Callable[..., Any]
) -> None:
    for framing, message, frames in golden:
        assert encode(message, framing) == frames
        assert decode(frames) == (framing, message)


def test_which_octets_a_service_may_have() -> None:
    known = [octet for octet in range(256) if values.is_service(b"%c" % octet)]
    assert known == list(range(values.PRINTABLE_MIN, values.PRINTABLE_MAX + 1))


def test_headers_are_configurable() -> None:
    headers = Headers(b"ABC", b"DEF", b"GHI")
    values.check_headers(headers)
    frames = codec.encode_client_command(Request(b"echo", ID, BODY), TEXT, headers)
    assert frames[0] == b"ABC"
    assert codec.side_of(frames, headers) == (Side.CLIENT, TEXT)
    assert codec.side_of(frames) is None
    with pytest.raises(RemoteProtocolError, match="not a header of a client"):
        codec.decode_client_command(frames)
    frames = codec.encode_worker_command(Ping(), TEXT, headers)
    assert codec.decode_worker_command(frames, headers) == (TEXT, Ping())
    # MDP's own stay beside them.
    assert codec.decode_order([b"MDPW02", b"\x05"], headers) == (MDP02, Heartbeat())


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


def test_sides() -> None:
    for _, _, frames in CLIENT_COMMANDS + REPLIES:
        assert codec.side_of(frames) in [(Side.CLIENT, framing) for framing in Framing]
    for _, _, frames in WORKER_COMMANDS + ORDERS:
        assert codec.side_of(frames) in [(Side.WORKER, framing) for framing in Framing]
    for frames in ([], [b""], [b"", b""], [b"MDPC01"], [b"", b"MDPC02"], [b"\x01"]):
        assert codec.side_of(frames) is None


def test_an_empty_body_of_a_worker_is_accepted() -> None:
    frames = [b"KLKW01", b"\x04", CLIENT, b"", ID]
    assert codec.decode_worker_command(frames) == (TEXT, WorkFinal(CLIENT, ID, []))
    frames[1] = b"\x02"
    assert codec.decode_order(frames) == (TEXT, WorkRequest(CLIENT, ID, []))
    # None is ever sent: there is one frame of body at least.
    assert codec.encode_worker_command(WorkFinal(CLIENT, ID, [])) == [
        b"KLKW01",
        b"\x04",
        CLIENT,
        b"",
        ID,
        b"",
    ]


def test_the_remaining_time_is_sent_on_request() -> None:
    order = WorkRequest(CLIENT, ID, BODY, 258)
    frames = codec.encode_order(order)
    assert frames == [b"KLKW01", b"\x02", CLIENT, b"", ID, bytes(6) + b"\x01\x02", *BODY]
    assert codec.decode_order(frames, deadlines=True) == (TEXT, order)
    for short in (frames[:5], [*frames[:5], b"1234567"], [*frames[:5], b"123456789"]):
        with pytest.raises(RemoteProtocolError, match=r"8 octets|6 or more frames"):
            codec.decode_order(short, deadlines=True)
    # MDP's framings have no place for it.
    with pytest.raises(LocalProtocolError):
        codec.encode_order(order, MDP02)
    # Who takes credit finds that behind it.
    for left, remaining_ms in ((bytes(6) + b"\x01\x02", 258), (b"\xff" * 8, 2**64 - 1)):
        order = WorkRequest(CLIENT, ID, BODY, remaining_ms, 7)
        frames = codec.encode_order(order)
        assert frames == [b"KLKW01", b"\x02", CLIENT, b"", ID, left + SEVEN, *BODY]
        assert codec.decode_order(frames, deadlines=True) == (TEXT, order)
    frames = [b"MDPW02", b"\x02", CLIENT, b"", b"x"]
    assert codec.decode_order(frames, deadlines=True)[1] == WorkRequest(CLIENT, b"", [b"x"])


@pytest.mark.parametrize(
    ("decode", "frames", "why"),
    [
        (codec.decode_client_command, [b"KLKC01", b"\x01", b"echo", ID], "a body"),
        (codec.decode_client_command, [b"KLKC01", b"\x02", b"echo", ID, b""], "no command 02"),
        (codec.decode_client_command, [b"KLKC01", b"\x01", b"echo", b"", b""], "request id"),
        (codec.decode_client_command, [b"KLKC01", b"\x01", b"echo", b"i" * 256, b""], "request id"),
        (codec.decode_client_command, [b"KLKC01", b"\x01", b"", ID, b""], "service"),
        (codec.decode_client_command, [b"KLKC01", b"\x01", b"a\x1f", ID, b""], "printable"),
        (codec.decode_client_command, [b"KLKC01", b"\x01", b"a\x7f", ID, b""], "printable"),
        (codec.decode_client_command, [b"KLKC01", b"\x01", b"s" * 256, ID, b""], "service"),
        (codec.decode_client_command, [b"KLKD01", b"\x01", b"echo", ID, bytes(8)], "a body"),
        (codec.decode_client_command, [b"KLKD01", b"\x01", b"e", ID, bytes(7), b""], "8 octets"),
        (codec.decode_reply, [b"KLKD01", b"\x03", b"echo", ID, b""], "deadlines"),
        (codec.decode_reply, [b"KLKN01", b"\x03", b"echo", ID, b""], "deadlines"),
        (codec.decode_reply, [b"KLKC01", b"\x04", b"echo", ID, bytes(8)], "a body"),
        (codec.decode_reply, [b"KLKC01", b"\x05", b"echo", ID, bytes(7), b""], "8 octets"),
        (codec.decode_client_command, [b"KLKN01", b"\x01", b"e", ID, bytes(17), b""], "a name"),
        (codec.decode_client_command, [b"KLKN01", b"\x01", b"e", ID, b"n" * 15, b""], "16 octets"),
        (codec.decode_client_command, [b"KLKN01", b"\x01", b"e", ID, b"n" * 17], "a body"),
        (codec.decode_client_command, [b"KLKN01", b"\x05", b"e", ID, b"n" * 17, b""], "5 frames"),
        (codec.decode_client_command, [b"KLKN01", b"\x02", b"e", ID, b"n" * 17], "no command 02"),
        (codec.decode_worker_command, [b"KLKW01", b"\x07", b"e"], "has 4 frames"),
        (codec.decode_order, [b"KLKW01", b"\x07", CLIENT, b"", ID], "CREDIT has 6 frames"),
        (codec.decode_order, [b"KLKW01", b"\x07", CLIENT, b"", ID, b"x"], "8 octets"),
        (codec.decode_order, [b"KLKW01", b"\x08", CLIENT, b"", ID, b"x"], "CANCEL has 5 frames"),
        (codec.decode_client_command, [b"MDPC02", b"\x01", b"echo"], "a body"),
        (codec.decode_client_command, [b"", b"MDPC01", b"echo"], "a body"),
        (codec.decode_client_command, [b"KLKW01", b"\x01", b"echo", ID, b""], "header"),
        (codec.decode_reply, [b"KLKC01", b"\x01", b"echo", ID, b""], "no command 01"),
        (codec.decode_worker_command, [b"KLKW01"], "frames"),
        (codec.decode_worker_command, [b"KLKW01", b"\x05"], "no command 05"),
        (codec.decode_worker_command, [b"KLKW01", b"PONG"], "no command"),
        (codec.decode_worker_command, [b"KLKW01", b"PING", b""], "PING has 2 frames"),
        (codec.decode_worker_command, [b"KLKW01", b"\x06", b""], "DISCONNECT has 2 frames"),
        (codec.decode_worker_command, [b"KLKW01", b"\x02", CLIENT, b"", ID, b""], "no command"),
        (codec.decode_worker_command, [b"MDPW02", b"PING"], "no command"),
        (codec.decode_worker_command, [b"", b"MDPW01", b"\x06"], "no command"),
        (codec.decode_worker_command, [b"KLKW01", b"\x01"], "3 to 5 frames"),
        (codec.decode_worker_command, [b"KLKW01", b"\x01", b"e", b"\0\0"], "got 0"),
        (codec.decode_worker_command, [b"KLKW01", b"\x01", b"e", b"\x01"], "2 octets"),
        (
            codec.decode_worker_command,
            [b"KLKW01", b"\x01", b"e", b"\0\1", b"X"],
            "READY, frame 4: expected D",
        ),
        (codec.decode_worker_command, [b"KLKW01", b"\x01", b"e", b"\0\1", b"D", b""], "3 to 5"),
        (codec.decode_worker_command, [b"MDPW02", b"\x01", b"e", b"\0\1"], "READY has 3 frames"),
        (
            codec.decode_worker_command,
            [b"KLKW01", b"\x04", CLIENT, b""],
            "FINAL has 5 or more frames",
        ),
        (codec.decode_worker_command, [b"KLKW01", b"\x04", CLIENT, b"x", ID, b""], "empty frame"),
        (codec.decode_worker_command, [b"KLKW01", b"\x04", CLIENT, b"", b"", b""], "request id"),
        (codec.decode_worker_command, [b"KLKW01", b"\x04", b"", b"", ID, b""], "address"),
        (codec.decode_worker_command, [b"MDPW02", b"\x04", CLIENT, b""], "a body"),
        (codec.decode_order, [b"KLKW01", b"PING"], "no command"),
        (codec.decode_order, [b"KLKW01", b"\x03", CLIENT, b"", ID, b""], "no command"),
    ],
)
def test_what_is_refused(
    decode: Callable[[Sequence[bytes]], Any], frames: list[bytes], why: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        decode(frames)


@pytest.mark.parametrize(
    ("encode", "message", "framing"),
    [
        (codec.encode_client_command, Request(b"", ID, BODY), TEXT),
        (codec.encode_client_command, Request(b"echo", b"", BODY), TEXT),
        (codec.encode_client_command, Request(b"echo", b"", BODY, 1), MDP02),
        (codec.encode_client_command, Request(b"echo", ID, BODY, -1), TEXT),
        (codec.encode_client_command, Request(b"echo", b"", BODY, None, b"me"), MDP02),
        (codec.encode_client_command, Request(b"echo", ID, BODY, None, b"\0me"), TEXT),
        (codec.encode_client_command, Request(b"echo", ID, BODY, None, b"me", 1 << 64), TEXT),
        (codec.encode_client_command, Cancel(b"echo", ID, b""), TEXT),
        (codec.encode_order, WorkCancel(CLIENT, ID), MDP02),
        (codec.encode_reply, Partial(b"echo", b"", BODY), MDP01),
        (codec.encode_worker_command, WorkerReady(b"echo", 2), MDP02),
        (codec.encode_worker_command, WorkerReady(b"echo", 65_536), TEXT),
        (codec.encode_worker_command, WorkerReady(b"echo", 0), TEXT),
        (codec.encode_worker_command, Ping(), MDP02),
        (codec.encode_worker_command, Heartbeat(), TEXT),
        (codec.encode_worker_command, WorkPartial(CLIENT, b"", BODY), MDP01),
        (codec.encode_worker_command, WorkFinal(b"", ID, BODY), TEXT),
        (codec.encode_order, Pong(), MDP01),
        (codec.encode_order, WorkRequest(CLIENT, ID, BODY, 1 << 64), TEXT),
    ],
)
def test_what_we_never_send(encode: Callable[..., Any], message: Any, framing: Framing) -> None:
    with pytest.raises(LocalProtocolError):
        encode(message, framing)


# ---- errors ----


def test_the_body_of_an_error() -> None:
    body = codec.encode_failure(Failure(values.EXPIRED, "no worker in time"))
    assert body == [b"KLK-ERROR", msgpack.packb({"code": 504, "message": "no worker in time"})]
    assert codec.decode_failure(body) == Failure(504, "no worker in time")
    # Exactly these two frames: anything else is an answer.
    for answer in (body[:1], [*body, b""], [b"x", body[1]], []):
        assert codec.decode_failure(answer) is None


def test_a_long_message_of_an_error_is_cut_between_characters() -> None:
    (_, packed) = codec.encode_failure(Failure(500, "x" + "é" * 2000))
    assert msgpack.unpackb(packed)["message"] == "x" + "é" * 511
    assert codec.encode_failure(Failure(500, "\ud800"))  # No UTF-8: it is sent all the same.


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

services = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255
).map(str.encode)
ids = st.binary(min_size=1, max_size=255)
bodies = st.lists(st.binary(max_size=40), min_size=1, max_size=5)
headers_of_any_kind = st.sampled_from([values.HEADERS, Headers(b"\0", b"worker", b"d")])


@given(st.data(), headers_of_any_kind)
def test_there_and_back(data: st.DataObject, headers: Headers) -> None:
    framing = data.draw(st.sampled_from(Framing))
    request_id = data.draw(ids) if framing is TEXT else b""
    body = data.draw(bodies)
    limits_ms = st.none() | st.integers(0, (1 << 64) - 1) if framing is TEXT else st.none()
    asked = Request(data.draw(services), request_id, body, data.draw(limits_ms))
    frames = codec.encode_client_command(asked, framing, headers)
    assert codec.decode_client_command(frames, headers) == (framing, asked)
    final = Final(asked.service, request_id, body)
    frames = codec.encode_reply(final, framing, headers)
    assert codec.decode_reply(frames, headers) == (framing, final)
    window = data.draw(st.integers(1, 65_535)) if framing is TEXT else 1
    deadlines = framing is TEXT and data.draw(st.booleans())
    ready = WorkerReady(asked.service, window, deadlines)
    frames = codec.encode_worker_command(ready, framing, headers)
    assert codec.decode_worker_command(frames, headers) == (framing, ready)
    remaining_ms = data.draw(st.integers(0, (1 << 64) - 1)) if deadlines else None
    order = WorkRequest(data.draw(ids), request_id, body, remaining_ms)
    frames = codec.encode_order(order, framing, headers)
    assert codec.decode_order(frames, headers, deadlines) == (framing, order)
    done = WorkFinal(order.client, request_id, body)
    frames = codec.encode_worker_command(done, framing, headers)
    assert codec.decode_worker_command(frames, headers) == (framing, done)


@given(st.integers(), st.text(max_size=300))
def test_errors_there_and_back(code: int, message: str) -> None:
    code %= 1 << 63
    failure = codec.decode_failure(codec.encode_failure(Failure(code, message)))
    assert failure == Failure(code, message.encode("utf-8", "replace").decode())


def _mutate(frames: list[bytes], data: st.DataObject) -> list[bytes]:
    frames = list(frames)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, max(len(frames) - 1, 0)))
        match data.draw(st.integers(0, 4)):
            case 0 if frames:
                del frames[place]
            case 1:
                frames.insert(place, data.draw(st.binary(max_size=12)))
            case 2 if frames:
                frames[place] = data.draw(st.binary(max_size=300))
            case 3 if frames and frames[place]:
                octet = data.draw(st.integers(0, len(frames[place]) - 1))
                flipped = frames[place][octet] ^ (1 << data.draw(st.integers(0, 7)))
                frames[place] = (
                    frames[place][:octet] + bytes([flipped]) + frames[place][octet + 1 :]
                )
            case 4:
                frames = frames[:place]
    return frames


@given(st.sampled_from(SOUND), st.data())
def test_mutations_raise_nothing_but_the_protocol_error(
    sound: tuple[list[bytes], Callable[..., Any]], data: st.DataObject
) -> None:
    frames = _mutate(sound[0], data)
    found = codec.side_of(frames)
    for decode in DECODERS:
        with contextlib.suppress(RemoteProtocolError):
            framing, _ = decode(frames)
            assert found is not None
            assert found[1] is framing
    with contextlib.suppress(RemoteProtocolError):
        codec.decode_order(frames, deadlines=True)


@given(st.binary(max_size=60))
def test_junk_in_an_error(packed: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        codec.decode_failure([values.ERROR_MARK, packed])
