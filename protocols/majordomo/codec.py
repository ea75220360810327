"""Commands of the broker's three framings, from frames and back.

Pure functions over frames as they are on a DEALER: without a routing id. There are three dialogs:

    client_command   a client's REQUEST; ours: CREDIT, CANCEL              to the broker
    reply            PARTIAL, FINAL (MDP/0.1: REPLY); ours: ALIVE          to a client
    worker_command   READY, PARTIAL, FINAL, PING, HEARTBEAT, DISCONNECT    of a worker
    order            REQUEST, PONG, HEARTBEAT, DISCONNECT;
                     ours: CREDIT, CANCEL                                  to a worker

Each has encode_* and decode_*. A framing that lacks a command can't encode it: LocalProtocolError.
Sources: the text ("Protocol Client", "Protocol/Worker"), RFC 7 (MDP/0.1), RFC 18 (MDP/0.2); ours
are the frames behind READY's service and the body of an error (docs/protocols/majordomo.md).
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgpack

from ..errors import LocalProtocolError, RemoteProtocolError
from . import values
from .values import HEADERS, Framing, Headers, Side

Frames = Sequence[bytes]


class Request(NamedTuple):
    """A client asks a service for something."""

    service: bytes
    request_id: bytes  # Empty in MDP's framings.
    body: list[bytes]
    remaining_ms: int | None = None  # Ours: how much time it has; None: as the broker pleases.
    name: bytes = b""  # Ours: the client's own, a secret; empty: it says none, nor ...
    credit: int = 0  # ... for how many octets parts may come; 0: it wants none.


class Credit(NamedTuple):
    """Ours: a client takes parts for so many octets more; 0: no more parts at all."""

    service: bytes
    request_id: bytes
    name: bytes
    octets: int


class Cancel(NamedTuple):
    """Ours: nobody waits for the answer to a request any more."""

    service: bytes
    request_id: bytes
    name: bytes


class PartPosition(NamedTuple):
    """Ours: where a part belongs."""

    run: int  # Each worker that is given the request begins another one.
    number: int  # From 0 on; of a FINAL: how many parts its run had.


class Partial(NamedTuple):
    """A part of the answer, more follow."""

    service: bytes
    request_id: bytes
    body: list[bytes]
    position: PartPosition | None = None


class Final(NamedTuple):
    """The last part of an answer, and the only one that must be."""

    service: bytes
    request_id: bytes
    body: list[bytes]
    position: PartPosition | None = None


class Alive(NamedTuple):
    """Ours: the broker is there."""


class WorkerReady(NamedTuple):
    """A worker offers a service."""

    service: bytes
    window: int = 1  # Requests that it takes at once.
    deadlines: bool = False  # Whether it wants to hear how much time each has left.
    credit: bool = False  # Ours: it wants that, sends parts for credit, and knows CANCEL.


class WorkRequest(NamedTuple):
    """The broker hands a client's request to a worker."""

    client: bytes  # The client's address.
    request_id: bytes  # Empty in MDP's framings.
    body: list[bytes]
    remaining_ms: int | None = None  # For a worker that asked for it: REMAINING_MS_UNKNOWN or less.
    credit: int | None = None  # For a worker that asked for it: CREDIT_UNLIMITED or less.


class WorkCredit(NamedTuple):
    """Ours: parts of an answer may come for so many octets more."""

    client: bytes
    request_id: bytes
    octets: int


class WorkCancel(NamedTuple):
    """Ours: nobody waits for a request any more. Its FINAL is still owed."""

    client: bytes
    request_id: bytes


class WorkPartial(NamedTuple):
    """A worker's part of an answer."""

    client: bytes
    request_id: bytes
    body: list[bytes]


class WorkFinal(NamedTuple):
    """The last part of it: the worker is done with the request."""

    client: bytes
    request_id: bytes
    body: list[bytes]


class Ping(NamedTuple):
    """A worker asks whether the broker is there."""


class Pong(NamedTuple):
    """It is."""


class Heartbeat(NamedTuple):
    """MDP's word of either side that it is there."""


class Disconnect(NamedTuple):
    """Nothing more will be said on this connection."""


class Failure(NamedTuple):
    """What the body of an error says."""

    code: int  # One of values.BUSY, FAILED, EXPIRED, or somebody else's.
    message: str


LATE = Failure(values.EXPIRED, "no worker took the request in time")  # A broker's own 504.

ClientCommand = Request | Credit | Cancel
Reply = Partial | Final | Alive
WorkerCommand = WorkerReady | WorkPartial | WorkFinal | Ping | Heartbeat | Disconnect
Order = WorkRequest | WorkCredit | WorkCancel | Pong | Heartbeat | Disconnect


# ---- what all commands share ----


def side_of(frames: Frames, headers: Headers = HEADERS) -> tuple[Side, Framing] | None:
    """Tells by the header alone who speaks and how; None: nobody that we know.

    frames   0 header    the text's, our KLKD01 or KLKN01, MDPC02 or MDPW02
          or 0 empty
             1 header    MDPC01 or MDPW01
    """
    first = frames[0] if frames else None
    if first == headers.worker:
        return Side.WORKER, Framing.TEXT
    if first in (headers.client, headers.deadline, headers.named):
        return Side.CLIENT, Framing.TEXT
    if first == values.MDPW02:
        return Side.WORKER, Framing.MDP02
    if first == values.MDPC02:
        return Side.CLIENT, Framing.MDP02
    if first == b"" and len(frames) > 1:
        if frames[1] == values.MDPW01:
            return Side.WORKER, Framing.MDP01
        if frames[1] == values.MDPC01:
            return Side.CLIENT, Framing.MDP01
    return None


def _framing(frames: Frames, side: Side, headers: Headers) -> Framing:
    found = side_of(frames, headers)
    if found is None or found[0] is not side:
        head = b" ".join(frames[:2])[:16]
        raise RemoteProtocolError(f"no header of a {side.name.lower()}: {head!r}")
    return found[1]


def _client_head(framing: Framing, headers: Headers) -> list[bytes]:
    if framing is Framing.TEXT:
        return [headers.client]
    return [values.MDPC02] if framing is Framing.MDP02 else [b"", values.MDPC01]


def _worker_head(framing: Framing, headers: Headers) -> list[bytes]:
    if framing is Framing.TEXT:
        return [headers.worker]
    return [values.MDPW02] if framing is Framing.MDP02 else [b"", values.MDPW01]


def _check_count(frames: Frames, least: int, what: str) -> None:
    if len(frames) < least:
        raise RemoteProtocolError(f"{what} has {least} frames or more, got {len(frames)}")


def _check_exact_count(frames: Frames, count: int, what: str) -> None:
    if len(frames) != count:
        raise RemoteProtocolError(f"{what} has {count} frames, got {len(frames)}")


def _service(name: bytes) -> bytes:
    if not values.is_service(name):
        raise RemoteProtocolError(
            f"a service has 1 to {values.SERVICE_BYTES_MAX} printable octets, got {len(name)}:"
            f" {name[:16]!r}"
        )
    return name


def _request_id(request_id: bytes) -> bytes:
    if not 0 < len(request_id) <= values.REQUEST_ID_BYTES_MAX:
        raise RemoteProtocolError(
            f"a request id has 1 to {values.REQUEST_ID_BYTES_MAX} octets, got {len(request_id)}"
        )
    return request_id


_ServiceMessage = Request | Credit | Cancel | Partial | Final
_WorkMessage = WorkRequest | WorkCredit | WorkCancel | WorkPartial | WorkFinal


def _check_own(message: _ServiceMessage | _WorkMessage, text: bool) -> None:
    """Our own names and ids; in MDP's framings an id has no place, and is left out."""
    try:
        if isinstance(message, _ServiceMessage):
            _service(message.service)
        else:
            _address(message.client)
        if text:
            _request_id(message.request_id)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None


def _encode_remaining(remaining_ms: int, framing: Framing) -> bytes:
    if framing is not Framing.TEXT or not 0 <= remaining_ms <= values.REMAINING_MS_UNKNOWN:
        raise LocalProtocolError(f"{framing.name} can't say {remaining_ms} ms")
    return remaining_ms.to_bytes(values.REMAINING_BYTES, "big")


def _encode_options(remaining_ms: int | None, credit: int, name: bytes = b"") -> bytes:
    """Time left, credit, and to the broker the client's name."""
    left_ms = values.REMAINING_MS_UNKNOWN if remaining_ms is None else remaining_ms
    if not 0 <= credit <= values.CREDIT_UNLIMITED:
        raise LocalProtocolError(f"no credit: {credit}")
    octets = credit.to_bytes(values.CREDIT_BYTES, "big")
    return _encode_remaining(left_ms, Framing.TEXT) + octets + name


def _decode_options(frame: bytes) -> tuple[int, int, bytes]:
    """Time left, credit, and what is behind them."""
    if len(frame) < values.REMAINING_BYTES + values.CREDIT_BYTES:
        raise RemoteProtocolError(f"time left and credit have 16 octets, got {len(frame)}")
    left, rest = frame[: values.REMAINING_BYTES], frame[values.REMAINING_BYTES :]
    credit = int.from_bytes(rest[: values.CREDIT_BYTES], "big")
    return _decode_remaining(left), credit, rest[values.CREDIT_BYTES :]


def _decode_remaining(frame: bytes) -> int:
    if len(frame) != values.REMAINING_BYTES:
        raise RemoteProtocolError(f"milliseconds have 8 octets, got {len(frame)}")
    return int.from_bytes(frame, "big")


def _body(body: list[bytes]) -> list[bytes]:
    """All framings want one frame of body at least."""
    return body or [b""]


# ---- a client and the broker ----


def encode_client_request(
    request: Request, framing: Framing = Framing.TEXT, headers: Headers = HEADERS
) -> list[bytes]:
    """Encodes a client's REQUEST; the frames are under decode_client_command."""
    text = framing is Framing.TEXT
    _check_own(request, text)
    if request.name:
        return _encode_named(request, framing, headers) + _body(request.body)
    frames = _client_head(framing, headers)
    if framing is not Framing.MDP01:
        frames.append(values.CLIENT_REQUEST)
    frames.append(request.service)
    if text:
        frames.append(request.request_id)
    if request.remaining_ms is not None:
        frames[0] = headers.deadline
        frames.append(_encode_remaining(request.remaining_ms, framing))
    return frames + _body(request.body)


def encode_client_command(
    command: Credit | Cancel, framing: Framing = Framing.TEXT, headers: Headers = HEADERS
) -> list[bytes]:
    """Encodes what else a client says; the frames are under decode_client_command."""
    _check_own(command, framing is Framing.TEXT)
    return _encode_named(command, framing, headers)


def _encode_named(command: ClientCommand, framing: Framing, headers: Headers) -> list[bytes]:
    if framing is not Framing.TEXT or not values.is_name(command.name):
        raise LocalProtocolError(f"{framing.name} can't say the name {command.name!r}")
    octets, remaining_ms, credit = values.CLIENT_CANCEL, None, 0
    if isinstance(command, Request):
        octets, remaining_ms = values.CLIENT_REQUEST, command.remaining_ms
        credit = command.credit
    elif isinstance(command, Credit):
        octets, credit = values.CLIENT_CREDIT, command.octets
    options = _encode_options(remaining_ms, credit, command.name)
    return [headers.named, octets, command.service, command.request_id, options]


def decode_client_request(frames: Frames, headers: Headers = HEADERS) -> tuple[Framing, Request]:
    """decode_client_command() of who sends nothing but REQUESTs. Raises RemoteProtocolError."""
    framing, command = decode_client_command(frames, headers)
    if not isinstance(command, Request):
        raise RemoteProtocolError(f"a REQUEST was expected, not {command}")
    return framing, command


def decode_client_command(
    frames: Frames, headers: Headers = HEADERS
) -> tuple[Framing, ClientCommand]:
    """Decodes what a client says.

    text      0 header      KLKC01, or what the topology says
              1 command     01
              2 service     1 to 255 printable octets
              3 request id  1 to 255 octets
              4.. body      one frame or more
    ours      0 header      KLKD01, or what the topology says; then as in the text's, but
              4 remaining   8 octets, big-endian, ms
              5.. body      one frame or more
    ours      0 header      KLKN01, or what the topology says
              1 command     01 REQUEST, 04 CREDIT, 05 CANCEL
              2 service
              3 request id
              4 options     8 octets, big-endian, ms that are left, all ones: no deadline;
                            8 octets, big-endian, credit for parts; the client's name
              5.. body      of REQUEST: one frame or more; none of the others
    MDP/0.2   0 MDPC02, 1 command 01, 2 service, 3.. body
    MDP/0.1   0 empty, 1 MDPC01, 2 service, 3.. body

    Returns (framing, command). Raises RemoteProtocolError.
    """
    framing = _framing(frames, Side.CLIENT, headers)
    if framing is Framing.MDP01:
        _check_count(frames, 4, "REQUEST")
        return framing, Request(_service(frames[2]), b"", list(frames[3:]))
    if frames[0] == headers.named:
        return framing, _decode_named(frames)
    text = framing is Framing.TEXT
    _check_count(frames, 5 if text else 4, "REQUEST")
    if frames[1] != values.CLIENT_REQUEST:
        raise RemoteProtocolError(f"a client's command is 01, got {frames[1][:8].hex()}")
    if not text:
        return framing, Request(_service(frames[2]), b"", list(frames[3:]))
    service, request_id = _service(frames[2]), _request_id(frames[3])
    if frames[0] != headers.deadline:
        return framing, Request(service, request_id, list(frames[4:]))
    _check_count(frames, 6, "REQUEST with a deadline")
    remaining_ms = _decode_remaining(frames[4])
    return framing, Request(service, request_id, list(frames[5:]), remaining_ms)


def _decode_named(frames: Frames) -> ClientCommand:
    _check_count(frames, 5, "a command with a name")
    service, request_id = _service(frames[2]), _request_id(frames[3])
    remaining_ms, credit, name = _decode_options(frames[4])
    if not values.is_name(name):
        raise RemoteProtocolError(f"a name has 1 to 255 octets, the first not 0: {name[:16]!r}")
    if frames[1] == values.CLIENT_REQUEST:
        _check_count(frames, 6, "REQUEST with a name")
        known = None if remaining_ms == values.REMAINING_MS_UNKNOWN else remaining_ms
        return Request(service, request_id, list(frames[5:]), known, name, credit)
    _check_exact_count(frames, 5, "CREDIT or CANCEL")
    if frames[1] == values.CLIENT_CREDIT:
        return Credit(service, request_id, name, credit)
    if frames[1] == values.CLIENT_CANCEL:
        return Cancel(service, request_id, name)
    raise RemoteProtocolError(f"a client's command is 01, 04 or 05, got {frames[1][:8].hex()}")


def encode_reply(
    reply: Reply, framing: Framing = Framing.TEXT, headers: Headers = HEADERS
) -> list[bytes]:
    """Encodes what the broker says to a client; the frames are under decode_reply."""
    text = framing is Framing.TEXT
    frames = _client_head(framing, headers)
    if isinstance(reply, Alive):
        return [*frames, values.CLIENT_ALIVE]
    _check_own(reply, text)
    final = isinstance(reply, Final)
    if reply.position is not None:
        position = b"".join(
            number.to_bytes(values.PART_POSITION_BYTES // 2, "big") for number in reply.position
        )
        command = values.CLIENT_END if final else values.CLIENT_PART
        return [*frames, command, reply.service, reply.request_id, position, *_body(reply.body)]
    if framing is not Framing.MDP01:
        frames.append(values.CLIENT_FINAL if final else values.CLIENT_PARTIAL)
    elif isinstance(reply, Partial):
        raise LocalProtocolError("MDP/0.1 has no PARTIAL")
    frames.append(reply.service)
    if text:
        frames.append(reply.request_id)
    return frames + _body(reply.body)


def decode_reply(frames: Frames, headers: Headers = HEADERS) -> tuple[Framing, Reply]:
    """Decodes what the broker says to a client.

    text      0 header      KLKC01, or what the topology says
              1 command     02 PARTIAL, 03 FINAL
              2 service
              3 request id  the request's, octet for octet
              4.. body      one frame or more
    ours      0 header, 1 command: 04 PARTIAL, 05 FINAL, each with its place, to who gave credit
              2 service
              3 request id
              4 place       4 octets of the run, 4 octets of the part's number; of a FINAL: of
                            how many parts are in front of it
              5.. body
              0 header, 1 command: 06 ALIVE, and nothing more
    MDP/0.2   0 MDPC02, 1 command, 2 service, 3.. body
    MDP/0.1   0 empty, 1 MDPC01, 2 service, 3.. body: REPLY, here a Final

    Returns (framing, reply). Raises RemoteProtocolError.
    """
    framing = _framing(frames, Side.CLIENT, headers)
    if framing is Framing.MDP01:
        _check_count(frames, 4, "REPLY")
        return framing, Final(_service(frames[2]), b"", list(frames[3:]))
    text = framing is Framing.TEXT
    if text and frames[0] != headers.client:
        raise RemoteProtocolError("a reply has the header of requests with deadlines")
    if text and len(frames) == 2 and frames[1] == values.CLIENT_ALIVE:
        return framing, Alive()
    _check_count(frames, 5 if text else 4, "PARTIAL or FINAL")
    if text and frames[1] in _POSITIONED:
        return framing, _decode_positioned(frames)
    kind = _REPLIES.get(frames[1])
    if kind is None:
        raise RemoteProtocolError(f"a reply's command is 02 or 03, got {frames[1][:8].hex()}")
    if text:
        service, request_id = _service(frames[2]), _request_id(frames[3])
        return framing, kind(service, request_id, list(frames[4:]))
    return framing, kind(_service(frames[2]), b"", list(frames[3:]))


_REPLIES: dict[bytes, type[Partial] | type[Final]] = {
    values.CLIENT_PARTIAL: Partial,
    values.CLIENT_FINAL: Final,
}
_POSITIONED: dict[bytes, type[Partial] | type[Final]] = {
    values.CLIENT_PART: Partial,
    values.CLIENT_END: Final,
}


def _decode_positioned(frames: Frames) -> Partial | Final:
    _check_count(frames, 6, "PARTIAL or FINAL with a place")
    service, request_id, position = _service(frames[2]), _request_id(frames[3]), frames[4]
    if len(position) != values.PART_POSITION_BYTES:
        raise RemoteProtocolError(f"a place has 8 octets, got {len(position)}")
    run, number = (int.from_bytes(each, "big") for each in (position[:4], position[4:]))
    return _POSITIONED[frames[1]](service, request_id, list(frames[5:]), PartPosition(run, number))


# ---- a worker and the broker ----

# Octets of the commands by framing; what is missing does not exist there.
_FROM_WORKER: dict[Framing, dict[bytes, type[WorkerCommand]]] = {
    Framing.TEXT: {
        values.READY_CREDIT: WorkerReady,
        values.READY: WorkerReady,  # Behind the other: it is the one to encode with.
        values.PARTIAL: WorkPartial,
        values.FINAL: WorkFinal,
        values.PING: Ping,
        values.DISCONNECT: Disconnect,
    },
    Framing.MDP01: {
        values.READY: WorkerReady,
        values.REPLY_01: WorkFinal,
        values.HEARTBEAT_01: Heartbeat,
        values.DISCONNECT_01: Disconnect,
    },
    Framing.MDP02: {
        values.READY: WorkerReady,
        values.PARTIAL: WorkPartial,
        values.FINAL: WorkFinal,
        values.HEARTBEAT: Heartbeat,
        values.DISCONNECT: Disconnect,
    },
}
_TO_WORKER: dict[Framing, dict[bytes, type[Order]]] = {
    Framing.TEXT: {
        values.REQUEST: WorkRequest,
        values.CREDIT: WorkCredit,
        values.CANCEL: WorkCancel,
        values.PONG: Pong,
        values.DISCONNECT: Disconnect,
    },
    Framing.MDP01: {
        values.REQUEST: WorkRequest,
        values.HEARTBEAT_01: Heartbeat,
        values.DISCONNECT_01: Disconnect,
    },
    Framing.MDP02: {
        values.REQUEST: WorkRequest,
        values.HEARTBEAT: Heartbeat,
        values.DISCONNECT: Disconnect,
    },
}
_WORKER_OCTETS = {
    framing: {kind: octets for octets, kind in kinds.items()}
    for framing, kinds in _FROM_WORKER.items()
}
_ORDER_OCTETS = {
    framing: {kind: octets for octets, kind in kinds.items()}
    for framing, kinds in _TO_WORKER.items()
}


def encode_worker_command(
    command: WorkerCommand, framing: Framing = Framing.TEXT, headers: Headers = HEADERS
) -> list[bytes]:
    """Encodes any command of a worker; the frames are under decode_worker_command."""
    octets = _WORKER_OCTETS[framing].get(type(command))
    if octets is None:
        raise LocalProtocolError(f"{framing.name} has no {type(command).__name__} of a worker")
    frames = [*_worker_head(framing, headers), octets]
    if isinstance(command, WorkerReady):
        if command.credit and framing is Framing.TEXT:
            frames[1] = values.READY_CREDIT
        return frames + _encode_ready(command, framing)
    if isinstance(command, WorkPartial | WorkFinal):
        return frames + _encode_work(command, framing)
    return frames


def decode_worker_command(
    frames: Frames, headers: Headers = HEADERS
) -> tuple[Framing, WorkerCommand]:
    """Decodes any command of a worker.

    text      0 header      KLKW01, or what the topology says
              1 command     01 READY, 03 PARTIAL, 04 FINAL, 06 DISCONNECT, PING;
                            ours: 07 READY, wants deadlines and sends parts for credit
      READY   2 service     1 to 255 printable octets
              3 window      ours, optional but with 07: 2 octets, big-endian, 1 to 65535
              4 "D"         ours, optional, not with 07: the worker wants deadlines
      03, 04  2 client      its address, 1 to 255 octets
              3 empty
              4 request id  1 to 255 octets
              5.. body      none is taken, too
    MDP/0.2   0 MDPW02, 1 command: 01 READY, 03 PARTIAL, 04 FINAL, 05 HEARTBEAT, 06 DISCONNECT
      READY   2 service
      03, 04  2 client, 3 empty, 4.. body
    MDP/0.1   0 empty, 1 MDPW01, 2 command: 01 READY, 03 REPLY, 04 HEARTBEAT, 05 DISCONNECT
      READY   3 service
      03      3 client, 4 empty, 5.. body: a WorkFinal

    A DISCONNECT of the text's may have MDP/0.2's header, as the text prints it: it then comes out
    as one of MDP/0.2. Returns (framing, command). Raises RemoteProtocolError.
    """
    framing = _framing(frames, Side.WORKER, headers)
    kind, rest = _command(frames, framing, _FROM_WORKER[framing])
    if kind is WorkerReady:
        credit = framing is Framing.TEXT and frames[1] == values.READY_CREDIT
        return framing, _decode_ready(rest, framing, credit)
    if kind is WorkPartial or kind is WorkFinal:
        client, request_id, body = _decode_work(rest, framing)
        if kind is WorkPartial:
            return framing, WorkPartial(client, request_id, body)
        return framing, WorkFinal(client, request_id, body)
    _check_exact_count(rest, 0, f"{kind.__name__} behind its command")
    return framing, _BARE_COMMANDS[kind]


def encode_order(
    order: Order, framing: Framing = Framing.TEXT, headers: Headers = HEADERS
) -> list[bytes]:
    """Encodes what the broker says to a worker; the frames are under decode_order."""
    octets = _ORDER_OCTETS[framing].get(type(order))
    if octets is None:
        raise LocalProtocolError(f"{framing.name} has no {type(order).__name__} of a broker")
    frames = [*_worker_head(framing, headers), octets]
    if isinstance(order, WorkRequest):
        return frames + _encode_work(order, framing)
    if isinstance(order, WorkCredit | WorkCancel):
        _check_own(order, True)
        frames += [order.client, b"", order.request_id]
    if isinstance(order, WorkCredit):
        frames.append(order.octets.to_bytes(values.CREDIT_BYTES, "big"))
    return frames


def decode_order(
    frames: Frames, headers: Headers = HEADERS, deadlines: bool = False
) -> tuple[Framing, Order]:
    """Decodes what the broker says to a worker.

    text      0 header      KLKW01, or what the topology says
              1 command     02 REQUEST, 06 DISCONNECT, PONG; ours: 07 CREDIT, 08 CANCEL
      02      2 client      its address, 1 to 255 octets
              3 empty
              4 request id  1 to 255 octets
              5 remaining   ours, if this worker's READY had a D: 8 octets, big-endian, ms;
                            all ones: unknown; if its READY was 07 and the broker knows that,
                            8 octets of credit behind them, big-endian; all ones: unlimited
              then body     none is taken, too
      07, 08  2 client, 3 empty, 4 request id; of 07: 5 credit, 8 octets, big-endian
    MDP/0.2   0 MDPW02, 1 command: 02 REQUEST, 05 HEARTBEAT, 06 DISCONNECT
      02      2 client, 3 empty, 4.. body
    MDP/0.1   0 empty, 1 MDPW01, 2 command: 02 REQUEST, 04 HEARTBEAT, 05 DISCONNECT
      02      3 client, 4 empty, 5.. body

    deadlines   whether this worker asked for them

    A DISCONNECT of the text's may have MDP/0.2's header. Returns (framing, order).
    Raises RemoteProtocolError.
    """
    framing = _framing(frames, Side.WORKER, headers)
    kind, rest = _command(frames, framing, _TO_WORKER[framing])
    if kind is WorkRequest:
        client, request_id, body = _decode_work(rest, framing)
        remaining_ms = credit = None
        if deadlines and framing is Framing.TEXT:
            _check_count(body, 1, "the rest of a REQUEST")
            options = body.pop(0)
            if len(options) == values.REMAINING_BYTES + values.CREDIT_BYTES:
                remaining_ms, credit, _ = _decode_options(options)
            else:
                remaining_ms = _decode_remaining(options)
        return framing, WorkRequest(client, request_id, body, remaining_ms, credit)
    if kind is WorkCredit or kind is WorkCancel:
        client, request_id, body = _decode_work(rest, framing)
        if kind is WorkCancel:
            _check_exact_count(body, 0, "CANCEL behind its id")
            return framing, WorkCancel(client, request_id)
        _check_exact_count(body, 1, "CREDIT behind its id")
        if len(body[0]) != values.CREDIT_BYTES:
            raise RemoteProtocolError(f"credit has 8 octets, got {len(body[0])}")
        return framing, WorkCredit(client, request_id, int.from_bytes(body[0], "big"))
    _check_exact_count(rest, 0, f"{kind.__name__} behind its command")
    return framing, _BARE_ORDERS[kind]


# Those that are a header and a command, and nothing else.
_BARE_COMMANDS: dict[type, Ping | Heartbeat | Disconnect] = {
    Ping: Ping(),
    Heartbeat: Heartbeat(),
    Disconnect: Disconnect(),
}
_BARE_ORDERS: dict[type, Pong | Heartbeat | Disconnect] = {
    Pong: Pong(),
    Heartbeat: Heartbeat(),
    Disconnect: Disconnect(),
}


def _command(frames: Frames, framing: Framing, kinds: dict[bytes, type]) -> tuple[type, Frames]:
    """The command of a worker's dialog and the frames behind it."""
    at = 2 if framing is Framing.MDP01 else 1
    _check_count(frames, at + 1, "a worker's dialog")
    kind = kinds.get(frames[at])
    if kind is None:
        raise RemoteProtocolError(f"{framing.name} has no command {frames[at][:8].hex()} here")
    return kind, frames[at + 1 :]


def _encode_ready(ready: WorkerReady, framing: Framing) -> list[bytes]:
    if not values.is_service(ready.service) or not 1 <= ready.window <= values.WINDOW_MAX:
        raise LocalProtocolError(f"no such READY: {ready}")
    if ready.window == 1 and not ready.deadlines and not ready.credit:
        return [ready.service]
    if framing is not Framing.TEXT:
        raise LocalProtocolError(f"{framing.name} knows neither windows nor deadlines")
    window = ready.window.to_bytes(values.WINDOW_BYTES, "big")
    says_deadlines = ready.deadlines and not ready.credit
    return [ready.service, window, *([values.DEADLINES] if says_deadlines else [])]


def _decode_ready(frames: Frames, framing: Framing, credit: bool) -> WorkerReady:
    if framing is not Framing.TEXT:
        _check_exact_count(frames, 1, "READY behind its command")
        return WorkerReady(_service(frames[0]))
    if credit:
        _check_exact_count(frames, 2, "READY with credit behind its command")
    if not 1 <= len(frames) <= 3:
        raise RemoteProtocolError(f"READY has 3 to 5 frames, got {len(frames) + 2}")
    window = 1
    if len(frames) > 1:
        if len(frames[1]) != values.WINDOW_BYTES:
            raise RemoteProtocolError(f"a window has 2 octets, got {len(frames[1])}")
        window = int.from_bytes(frames[1], "big")
        if window == 0:
            raise RemoteProtocolError("a window is 1 to 65535, got 0")
    if len(frames) > 2 and frames[2] != values.DEADLINES:
        raise RemoteProtocolError(f"READY's last frame is D, got {frames[2][:8]!r}")
    return WorkerReady(_service(frames[0]), window, credit or len(frames) > 2, credit)


def _address(client: bytes) -> bytes:
    if not 0 < len(client) <= values.ADDRESS_BYTES_MAX:
        raise RemoteProtocolError(
            f"a client's address has 1 to {values.ADDRESS_BYTES_MAX} octets, got {len(client)}"
        )
    return client


def _encode_work(work: WorkRequest | WorkPartial | WorkFinal, framing: Framing) -> list[bytes]:
    text = framing is Framing.TEXT
    _check_own(work, text)
    frames = [work.client, b""]
    if text:
        frames.append(work.request_id)
    if isinstance(work, WorkRequest) and work.credit is not None:
        frames.append(_encode_options(work.remaining_ms, work.credit))
    elif isinstance(work, WorkRequest) and work.remaining_ms is not None:
        frames.append(_encode_remaining(work.remaining_ms, framing))
    return frames + _body(work.body)


def _decode_work(frames: Frames, framing: Framing) -> tuple[bytes, bytes, list[bytes]]:
    """Client, request id and body, from the frames behind the command."""
    text = framing is Framing.TEXT
    _check_count(frames, 3, "REQUEST, PARTIAL or FINAL behind its command")
    if frames[1]:
        raise RemoteProtocolError(f"expected an empty frame behind the address, got {frames[1]!r}")
    client = _address(frames[0])
    if text:
        return client, _request_id(frames[2]), list(frames[3:])
    return client, b"", list(frames[2:])


# ---- the body of an error ----


def encode_failure(failure: Failure) -> list[bytes]:
    """The body of a FINAL that says that a request failed; the frames are under decode_failure."""
    text = failure.message.encode("utf-8", "replace")[: values.ERROR_TEXT_BYTES_MAX]
    message = text.decode("utf-8", "ignore")
    return [values.ERROR_MARK, msgpack.packb({"code": failure.code, "message": message})]


def decode_failure(body: Frames) -> Failure | None:
    """What a FINAL's body says, if it says that the request failed; None: it is an answer.

    body   0 mark   KLK-ERROR
           1 bytes  msgpack map: code int, message string; other keys are ignored

    Raises RemoteProtocolError when the mark is followed by something else.
    """
    if len(body) != values.ERROR_FRAMES or body[0] != values.ERROR_MARK:
        return None
    if len(body[1]) > values.ERROR_BYTES_MAX:
        raise RemoteProtocolError(f"an error of {len(body[1])} octets")
    try:
        # What the text is about to be unpacked to is bounded by its size.
        unpacked = msgpack.unpackb(body[1])
    except ValueError as error:  # All that msgpack raises for foreign bytes.
        raise RemoteProtocolError(f"an error that is no msgpack: {error}") from None
    code = unpacked.get("code") if isinstance(unpacked, dict) else None
    message = unpacked.get("message") if isinstance(unpacked, dict) else None
    if type(code) is not int or not isinstance(message, str):
        raise RemoteProtocolError("an error without code and message")
    return Failure(code, message)
