"""Codec of the commands of the broker's three framings.

Pure functions over frames as on a DEALER, without a routing id. There are four groups:

    client_command   a client's REQUEST; extensions: CREDIT, CANCEL        to the broker
    reply            PARTIAL, FINAL (MDP/0.1: REPLY); extension: ALIVE     to a client
    worker_command   READY, PARTIAL, FINAL, PING, HEARTBEAT, DISCONNECT    of a worker
    order            REQUEST, PONG, HEARTBEAT, DISCONNECT;
                     extensions: CREDIT, CANCEL                            to a worker

Each has encode_* and decode_*. Encoding a command that the framing lacks raises LocalProtocolError.
Sources: the specification ("Protocol Client", "Protocol/Worker"), RFC 7 (MDP/0.1), RFC 18
(MDP/0.2). Extensions are kelek's (docs/protocols/majordomo.md), as are the frames behind READY's
service and the body of an error.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgpack

from ..errors import LocalProtocolError, RemoteProtocolError
from . import values
from .values import HEADERS, Framing, Headers, Side

Frames = Sequence[bytes]


class Request(NamedTuple):
    """A client's request to a service."""

    service: bytes
    request_id: bytes  # Empty in MDP's framings.
    body: list[bytes]
    remaining_ms: int | None = None  # Extension; None: no deadline.
    name: bytes = b""  # Extension: the client's own name, a secret; empty: no name, and ...
    credit: int = 0  # ... octets of parts that may be sent; 0: no parts.


class Credit(NamedTuple):
    """Extension: a client accepts so many more octets of parts; 0: no further parts."""

    service: bytes
    request_id: bytes
    name: bytes
    octets: int


class Cancel(NamedTuple):
    """Extension: a client withdraws a request."""

    service: bytes
    request_id: bytes
    name: bytes


class PartPosition(NamedTuple):
    """Extension: the position of a part."""

    run: int  # Counts the workers that were given the request.
    number: int  # From 0; of a FINAL: the number of parts of its run.


class Partial(NamedTuple):
    """A part of an answer; more follow."""

    service: bytes
    request_id: bytes
    body: list[bytes]
    position: PartPosition | None = None


class Final(NamedTuple):
    """The last part of an answer, and the only mandatory one."""

    service: bytes
    request_id: bytes
    body: list[bytes]
    position: PartPosition | None = None


class Alive(NamedTuple):
    """Extension: a sign of life of the broker."""


class WorkerReady(NamedTuple):
    """A worker registers for a service."""

    service: bytes
    window: int = 1  # Requests that it accepts at once.
    deadlines: bool = False  # Whether it wants each request's remaining time.
    credit: bool = False  # Extension: it also wants credit, and knows CANCEL.


class WorkRequest(NamedTuple):
    """The broker gives a client's request to a worker."""

    client: bytes  # The client's address.
    request_id: bytes  # Empty in MDP's framings.
    body: list[bytes]
    remaining_ms: int | None = None  # For a worker that wants it.
    credit: int | None = None  # For a worker that wants it.


class WorkCredit(NamedTuple):
    """Extension: so many more octets of parts may be sent."""

    client: bytes
    request_id: bytes
    octets: int


class WorkCancel(NamedTuple):
    """Extension: the client withdrew a request. Its FINAL is still due."""

    client: bytes
    request_id: bytes


class WorkPartial(NamedTuple):
    """A part of an answer, from a worker."""

    client: bytes
    request_id: bytes
    body: list[bytes]


class WorkFinal(NamedTuple):
    """The last part of an answer: the worker is done with the request."""

    client: bytes
    request_id: bytes
    body: list[bytes]


class Ping(NamedTuple):
    """A worker asks for a sign of life."""


class Pong(NamedTuple):
    """The answer to PING."""


class Heartbeat(NamedTuple):
    """MDP's sign of life, in both directions."""


class Disconnect(NamedTuple):
    """The end of a conversation."""


class Failure(NamedTuple):
    """The contents of an error."""

    code: int  # One of the codes in values, or a foreign one.
    message: str


LATE = Failure(values.EXPIRED, "no worker took the request in time")  # The broker's own 504.

ClientCommand = Request | Credit | Cancel
Reply = Partial | Final | Alive
WorkerCommand = WorkerReady | WorkPartial | WorkFinal | Ping | Heartbeat | Disconnect
Order = WorkRequest | WorkCredit | WorkCancel | Pong | Heartbeat | Disconnect


# ---- shared by all commands ----


def side_of(frames: Frames, headers: Headers = HEADERS) -> tuple[Side, Framing] | None:
    """The sender's side and framing, by the header alone; None: unknown.

    frames   0 header    the specification's, KLKD01, KLKN01, MDPC02 or MDPW02
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
        raise RemoteProtocolError(f"not a header of a {side.name.lower()}: {head!r}")
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
    """Checks the names and ids of our own message. MDP's framings have no ids."""
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
        raise LocalProtocolError(f"{framing.name} has no encoding for {remaining_ms} ms")
    return remaining_ms.to_bytes(values.REMAINING_BYTES, "big")


def _encode_options(remaining_ms: int | None, credit: int, name: bytes = b"") -> bytes:
    """Remaining time, credit, and, to the broker, the client's name."""
    left_ms = values.REMAINING_MS_UNKNOWN if remaining_ms is None else remaining_ms
    if not 0 <= credit <= values.CREDIT_UNLIMITED:
        raise LocalProtocolError(f"no credit: {credit}")
    octets = credit.to_bytes(values.CREDIT_BYTES, "big")
    return _encode_remaining(left_ms, Framing.TEXT) + octets + name


def _decode_options(frame: bytes) -> tuple[int, int, bytes]:
    """Remaining time, credit, and the rest of the frame."""
    if len(frame) < values.REMAINING_BYTES + values.CREDIT_BYTES:
        raise RemoteProtocolError(f"remaining time and credit have 16 octets, got {len(frame)}")
    left, rest = frame[: values.REMAINING_BYTES], frame[values.REMAINING_BYTES :]
    credit = int.from_bytes(rest[: values.CREDIT_BYTES], "big")
    return _decode_remaining(left), credit, rest[values.CREDIT_BYTES :]


def _decode_remaining(frame: bytes) -> int:
    if len(frame) != values.REMAINING_BYTES:
        raise RemoteProtocolError(f"milliseconds have 8 octets, got {len(frame)}")
    return int.from_bytes(frame, "big")


def _body(body: list[bytes]) -> list[bytes]:
    """All framings need at least one frame of body."""
    return body or [b""]


# ---- clients and the broker ----


def encode_client_request(
    request: Request, framing: Framing = Framing.TEXT, headers: Headers = HEADERS
) -> list[bytes]:
    """Encodes a client's REQUEST; decode_client_command describes the frames."""
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
    """Encodes a client's CREDIT or CANCEL; decode_client_command describes the frames."""
    _check_own(command, framing is Framing.TEXT)
    return _encode_named(command, framing, headers)


def _encode_named(command: ClientCommand, framing: Framing, headers: Headers) -> list[bytes]:
    if framing is not Framing.TEXT or not values.is_name(command.name):
        raise LocalProtocolError(f"{framing.name} has no encoding for the name {command.name!r}")
    octets, remaining_ms, credit = values.CLIENT_CANCEL, None, 0
    if isinstance(command, Request):
        octets, remaining_ms = values.CLIENT_REQUEST, command.remaining_ms
        credit = command.credit
    elif isinstance(command, Credit):
        octets, credit = values.CLIENT_CREDIT, command.octets
    options = _encode_options(remaining_ms, credit, command.name)
    return [headers.named, octets, command.service, command.request_id, options]


def decode_client_request(frames: Frames, headers: Headers = HEADERS) -> tuple[Framing, Request]:
    """Like decode_client_command(), for REQUESTs only. Raises RemoteProtocolError."""
    framing, command = decode_client_command(frames, headers)
    if not isinstance(command, Request):
        raise RemoteProtocolError(f"a REQUEST was expected, not {command}")
    return framing, command


def decode_client_command(
    frames: Frames, headers: Headers = HEADERS
) -> tuple[Framing, ClientCommand]:
    """Decodes a client's command.

    spec.     0 header      KLKC01, or client_header of the topology
              1 command     01
              2 service     1 to 255 printable octets
              3 request id  1 to 255 octets
              4.. body      one frame or more
    extension 0 header      KLKD01, or deadline_header; 1 to 3 as above
              4 remaining   8 octets, big-endian, ms
              5.. body      one frame or more
    extension 0 header      KLKN01, or named_header
              1 command     01 REQUEST, 04 CREDIT, 05 CANCEL
              2 service
              3 request id
              4 options     8 octets, big-endian, remaining ms, all ones: no deadline;
                            8 octets, big-endian, credit for parts; the client's name
              5.. body      of REQUEST: one frame or more; of the others: none
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
    """Encodes an answer or ALIVE; decode_reply describes the frames."""
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
    """Decodes the broker's answer to a client.

    spec.     0 header      KLKC01, or client_header of the topology
              1 command     02 PARTIAL, 03 FINAL
              2 service
              3 request id  the request's, octet for octet
              4.. body      one frame or more
    extension 0 header, 1 command: 04 PARTIAL, 05 FINAL, with a position, to clients with credit
              2 service
              3 request id
              4 position    4 octets of the run, 4 octets of the part's number; of a FINAL: the
                            number of parts before it
              5.. body
              0 header, 1 command: 06 ALIVE, alone
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
    _check_count(frames, 6, "PARTIAL or FINAL with a position")
    service, request_id, position = _service(frames[2]), _request_id(frames[3]), frames[4]
    if len(position) != values.PART_POSITION_BYTES:
        raise RemoteProtocolError(f"a position has 8 octets, got {len(position)}")
    run, number = (int.from_bytes(each, "big") for each in (position[:4], position[4:]))
    return _POSITIONED[frames[1]](service, request_id, list(frames[5:]), PartPosition(run, number))


# ---- workers and the broker ----

# The octets of the commands in each framing.
_FROM_WORKER: dict[Framing, dict[bytes, type[WorkerCommand]]] = {
    Framing.TEXT: {
        values.READY_CREDIT: WorkerReady,
        values.READY: WorkerReady,  # After the other one, so that encoding uses this octet.
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
    """Encodes a worker's command; decode_worker_command describes the frames."""
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
    """Decodes a worker's command.

    spec.     0 header      KLKW01, or worker_header of the topology
              1 command     01 READY, 03 PARTIAL, 04 FINAL, 06 DISCONNECT, PING;
                            extension: 07 READY, with deadlines and credit
      READY   2 service     1 to 255 printable octets
              3 window      extension, optional except with 07: 2 octets, big-endian, 1 to 65535
              4 "D"         extension, optional, not with 07: the worker wants deadlines
      03, 04  2 client      its address, 1 to 255 octets
              3 empty
              4 request id  1 to 255 octets
              5.. body      may be empty
    MDP/0.2   0 MDPW02, 1 command: 01 READY, 03 PARTIAL, 04 FINAL, 05 HEARTBEAT, 06 DISCONNECT
      READY   2 service
      03, 04  2 client, 3 empty, 4.. body
    MDP/0.1   0 empty, 1 MDPW01, 2 command: 01 READY, 03 REPLY, 04 HEARTBEAT, 05 DISCONNECT
      READY   3 service
      03      3 client, 4 empty, 5.. body: a WorkFinal

    A DISCONNECT of the specification's framing may have MDP/0.2's header, as the specification
    prints it; it is then decoded as MDP/0.2's. Returns (framing, command). Raises
    RemoteProtocolError.
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
    """Encodes the broker's command to a worker; decode_order describes the frames."""
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
    """Decodes the broker's command to a worker.

    spec.     0 header      KLKW01, or worker_header of the topology
              1 command     02 REQUEST, 06 DISCONNECT, PONG; extensions: 07 CREDIT, 08 CANCEL
      02      2 client      its address, 1 to 255 octets
              3 empty
              4 request id  1 to 255 octets
              5 remaining   extension, if this worker's READY had a D: 8 octets, big-endian, ms;
                            all ones: unknown; if its READY was 07 and the broker knows that,
                            8 octets of credit follow, big-endian; all ones: unlimited
              then body     may be empty
      07, 08  2 client, 3 empty, 4 request id; of 07: 5 credit, 8 octets, big-endian
    MDP/0.2   0 MDPW02, 1 command: 02 REQUEST, 05 HEARTBEAT, 06 DISCONNECT
      02      2 client, 3 empty, 4.. body
    MDP/0.1   0 empty, 1 MDPW01, 2 command: 02 REQUEST, 04 HEARTBEAT, 05 DISCONNECT
      02      3 client, 4 empty, 5.. body

    deadlines   whether this worker's READY asked for them

    A DISCONNECT of the specification's framing may have MDP/0.2's header. Returns (framing, order).
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


# Commands that consist of a header and a command.
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
    """The kind of a worker's command, and the frames after it."""
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
    """Client, request id and body, from the frames after the command."""
    text = framing is Framing.TEXT
    _check_count(frames, 3, "REQUEST, PARTIAL or FINAL behind its command")
    if frames[1]:
        raise RemoteProtocolError(f"expected an empty frame behind the address, got {frames[1]!r}")
    client = _address(frames[0])
    if text:
        return client, _request_id(frames[2]), list(frames[3:])
    return client, b"", list(frames[2:])


# ---- errors ----


def encode_failure(failure: Failure) -> list[bytes]:
    """The body of a FINAL that is an error; decode_failure describes the frames."""
    text = failure.message.encode("utf-8", "replace")[: values.ERROR_TEXT_BYTES_MAX]
    message = text.decode("utf-8", "ignore")
    return [values.ERROR_MARK, msgpack.packb({"code": failure.code, "message": message})]


def decode_failure(body: Frames) -> Failure | None:
    """The error in a FINAL's body; None: an ordinary answer.

    body   0 mark   KLK-ERROR
           1 bytes  msgpack map: code int, message string; other keys are ignored

    Raises RemoteProtocolError: the mark is followed by something else.
    """
    if len(body) != values.ERROR_FRAMES or body[0] != values.ERROR_MARK:
        return None
    if len(body[1]) > values.ERROR_BYTES_MAX:
        raise RemoteProtocolError(f"an error of {len(body[1])} octets")
    try:
        # The size of the frame bounds the unpacked objects.
        unpacked = msgpack.unpackb(body[1])
    except ValueError as error:  # The base class of msgpack's errors.
        raise RemoteProtocolError(f"an error that is not msgpack: {error}") from None
    code = unpacked.get("code") if isinstance(unpacked, dict) else None
    message = unpacked.get("message") if isinstance(unpacked, dict) else None
    if type(code) is not int or not isinstance(message, str):
        raise RemoteProtocolError("an error without code and message")
    return Failure(code, message)
