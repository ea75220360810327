"""Declares the commands of the broker's three framings by their frames; encodes and decodes them.

Frames are those on a DEALER, without a routing id. There are four groups:

    client_command   a client's REQUEST; extensions: CREDIT, CANCEL        to the broker
    reply            PARTIAL, FINAL (MDP/0.1: REPLY); extension: ALIVE     to a client
    worker_command   READY, PARTIAL, FINAL, PING, HEARTBEAT, DISCONNECT    of a worker
    order            REQUEST, PONG, HEARTBEAT, DISCONNECT;
                     extensions: CREDIT, CANCEL                            to a worker

Each has encode_* and decode_*. Encoding a command that the framing lacks raises LocalProtocolError;
decode_* returns the framing and the command, or raises RemoteProtocolError.
Sources: the specification ("Protocol Client", "Protocol/Worker"), RFC 7 (MDP/0.1), RFC 18
(MDP/0.2). Extensions are kelek's (docs/protocols/majordomo.md), as are the frames behind READY's
service and the body of an error.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from sys import maxsize
from typing import Any, NamedTuple

import msgpack

from ..errors import LocalProtocolError, RemoteProtocolError
from ..wire import Constant, Frame, FrameType, Layout, Part, Rest, RestError, RestType, Unused
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


# ---- types of frames ----


def _service(name: bytes) -> bytes:
    if not values.is_service(name):
        raise RemoteProtocolError(
            f"a service has 1 to {values.SERVICE_BYTES_MAX} printable octets, got {len(name)}:"
            f" {name[:16]!r}"
        )
    return name


def _octets(name: str, size_max: int) -> Callable[[bytes], bytes]:
    def decode(frame: bytes) -> bytes:
        if not 0 < len(frame) <= size_max:
            raise RemoteProtocolError(f"a {name} has 1 to {size_max} octets, got {len(frame)}")
        return frame

    return decode


def _uint(size: int, least: int = 0) -> tuple[Callable[[bytes], int], Callable[[int], bytes]]:
    """Decoder and encoder of big-endian numbers."""

    def encode(number: int) -> bytes:
        if number < least:
            raise RemoteProtocolError(f"expected {least} or more, got {number}")
        return number.to_bytes(size, "big")

    def decode(frame: bytes) -> int:
        if len(frame) != size:
            raise RemoteProtocolError(f"expected {size} octets, got {len(frame)}")
        number = int.from_bytes(frame, "big")
        if number < least:
            raise RemoteProtocolError(f"expected {least} or more, got {number}")
        return number

    return decode, encode


def _deadlines(frame: bytes) -> bool:
    if frame != values.DEADLINES:
        raise RemoteProtocolError(f"expected D, got {frame[:8]!r}")
    return True


_CREDIT_OPTIONS = struct.Struct(">QQ")
_POSITION = struct.Struct(">II")


def _position(frame: bytes) -> PartPosition:
    if len(frame) != _POSITION.size:
        raise RemoteProtocolError(f"expected {_POSITION.size} octets, got {len(frame)}")
    return PartPosition(*_POSITION.unpack(frame))


def _options(frame: bytes) -> tuple[int | None, bytes, int]:
    """Remaining time, the client's name, credit."""
    if len(frame) < _CREDIT_OPTIONS.size:
        raise RemoteProtocolError(f"expected {_CREDIT_OPTIONS.size} octets or more")
    left_ms, credit = _CREDIT_OPTIONS.unpack_from(frame)
    name = frame[_CREDIT_OPTIONS.size :]
    if not values.is_name(name):
        raise RemoteProtocolError(f"a name has 1 to 255 octets, the first not 0: {name[:16]!r}")
    return None if left_ms == values.REMAINING_MS_UNKNOWN else left_ms, name, credit


def _pack_work_options(fields: tuple[int | None, int]) -> bytes:
    left_ms, credit = fields
    return _CREDIT_OPTIONS.pack(values.REMAINING_MS_UNKNOWN if left_ms is None else left_ms, credit)


def _pack_options(fields: tuple[int | None, bytes, int]) -> bytes:
    left_ms, name, credit = fields
    if not values.is_name(name):
        raise RemoteProtocolError(f"a name has 1 to 255 octets, the first not 0: {name[:16]!r}")
    return _pack_work_options((left_ms, credit)) + name


def _work_options(frame: bytes) -> tuple[int, int]:
    """Remaining time, credit."""
    if len(frame) != _CREDIT_OPTIONS.size:
        raise RemoteProtocolError(f"expected {_CREDIT_OPTIONS.size} octets, got {len(frame)}")
    left_ms, credit = _CREDIT_OPTIONS.unpack(frame)
    return left_ms, credit


def _body(frames: Frames) -> list[bytes]:
    if not frames:
        raise RestError(0, "expected a body of one frame or more")
    return list(frames)


def _sent_body(body: list[bytes]) -> list[bytes]:
    """All framings need at least one frame of body."""
    return body or [b""]


def _frame(
    field: str | tuple[str, ...],
    name: str,
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes] | None = None,
) -> Frame:
    """A frame; without `encode` one whose bytes are its value, which are checked when sent, too."""
    return Frame(field, FrameType(name, encode or decode, decode), name)


SERVICE = _frame("service", "service", _service)
REQUEST_ID = _frame("request_id", "request id", _octets("request id", values.REQUEST_ID_BYTES_MAX))
CLIENT = _frame("client", "client", _octets("client's address", values.ADDRESS_BYTES_MAX))
EMPTY = Constant(b"", "empty frame")
REMAINING = _frame("remaining_ms", "remaining time", *_uint(values.REMAINING_BYTES))
CREDIT = _frame("octets", "credit", *_uint(values.CREDIT_BYTES))
POSITION = _frame("position", "position", _position, lambda it: _POSITION.pack(*it))
WINDOW = _frame("window", "window", *_uint(values.WINDOW_BYTES, 1))._replace(optional=True)
DEADLINES = _frame("deadlines", "`D`", _deadlines, lambda wanted: values.DEADLINES)._replace(
    optional=True
)
REQUEST_OPTIONS = _frame(("remaining_ms", "name", "credit"), "options", _options, _pack_options)
CREDIT_OPTIONS = _frame(
    ("name", "octets"),
    "options",
    lambda it: _options(it)[1:],
    lambda it: _pack_options((None, *it)),
)
CANCEL_OPTIONS = _frame(
    "name", "options", lambda it: _options(it)[1], lambda name: _pack_options((None, name, 0))
)
WORK_OPTIONS = _frame(
    ("remaining_ms", "credit"), "remaining time and credit", _work_options, _pack_work_options
)
BODY = Rest("body", RestType("body", _sent_body, _body), "body", maxsize)
WORK_BODY = Rest("body", RestType("body", _sent_body, list), "body", maxsize)


# ---- commands ----

TEXT, MDP01, MDP02 = Framing.TEXT, Framing.MDP01, Framing.MDP02
# In the specification's framing `headers` may set another header.
_HEADS: dict[tuple[str, Framing], tuple[Part, ...]] = {
    ("client", MDP01): (EMPTY, Constant(values.MDPC01, "header")),
    ("client", MDP02): (Constant(values.MDPC02, "header"),),
    ("worker", MDP01): (EMPTY, Constant(values.MDPW01, "header")),
    ("worker", MDP02): (Constant(values.MDPW02, "header"),),
    **{
        (field, TEXT): (Unused(f"`{header.decode()}`", header),)
        for field, header in HEADERS._asdict().items()
    },
}


_Row = (
    tuple[str, type[Any], Mapping[Framing, bytes], tuple[Part, ...]]
    | tuple[str, type[Any], Mapping[Framing, bytes], tuple[Part, ...], str]
)


class Command(Layout[Any]):
    """The frames of a command in one framing.

    octets      of the command; empty: MDP/0.1's clients have no such frame
    header      the field of Headers, in the specification's framing
    extension   distinguishes commands of one value; "": none
    """

    first = 0

    def __init__(self, side: str, framing: Framing, row: _Row) -> None:
        self.title, value, octets, parts, *extension = row
        self.framing, self.octets = framing, octets[framing]
        self.extension = "".join(extension)
        self.header = self.extension if self.extension in Headers._fields else side
        command = [Constant(self.octets, "command")] if self.octets else []
        if framing is not TEXT:  # Without ids, and always with a body.
            parts = tuple(
                BODY if part is WORK_BODY else part for part in parts if part is not REQUEST_ID
            )
        given: dict[str, object] = {"request_id": b""}
        if value is WorkerReady and self.extension == "credit":
            given = {"deadlines": True, "credit": True}
        head = _HEADS[self.header, framing]
        self.behind = len(head)  # The number of the first frame behind the header.
        super().__init__(self.title, value, *head, *command, *parts, given=given)


class Commands:
    """All commands in one direction.

    side   "client" or "worker"
    rows   name, value, octets in each framing that has it, the frames behind it, extension
    """

    def __init__(self, side: str, *rows: _Row) -> None:
        self.all = [Command(side, framing, row) for row in rows for framing in row[2]]
        # By framing; then by value, or by octets, and extension.
        self._by_value: list[dict[tuple[type[Any], str], Command]] = [{} for _ in Framing]
        self._by_octets: list[dict[tuple[bytes, str], Command]] = [{} for _ in Framing]
        for command in self.all:
            self._by_value[command.framing][command.value, command.extension] = command
            self._by_octets[command.framing][command.octets, command.extension] = command

    def encode(
        self, message: Any, extension: str, framing: Framing, headers: Headers
    ) -> list[bytes]:
        """Raises LocalProtocolError: the framing lacks it, or a field is not valid."""
        command = self._by_value[framing].get((type(message), extension))
        if command is None:
            raise LocalProtocolError(f"{framing.name} has no {type(message).__name__} {extension}")
        try:
            frames = command.encode(message)
        except (RemoteProtocolError, OverflowError, struct.error) as error:
            raise LocalProtocolError(f"{command.title}: {error}") from None
        if headers is not HEADERS and framing is TEXT:
            frames[0] = getattr(headers, command.header)
        return frames

    def decode(self, frames: Frames, framing: Framing, octets: bytes, extension: str = "") -> Any:
        command = self._by_octets[framing].get((octets, extension))
        if command is None:
            raise RemoteProtocolError(f"{framing.name} has no command {octets[:8].hex()} here")
        return command.decode(frames)


def _only(octets: bytes) -> dict[Framing, bytes]:
    """A command of the specification's framing alone."""
    return {TEXT: octets}


_TO_SERVICE = SERVICE, REQUEST_ID
_TO_CLIENT = CLIENT, EMPTY, REQUEST_ID
_REQUEST = {TEXT: values.CLIENT_REQUEST, MDP02: values.CLIENT_REQUEST, MDP01: b""}
_FINAL = {TEXT: values.CLIENT_FINAL, MDP02: values.CLIENT_FINAL, MDP01: b""}
_DISCONNECT = {TEXT: values.DISCONNECT, MDP02: values.DISCONNECT, MDP01: values.DISCONNECT_01}
_HEARTBEAT = {MDP02: values.HEARTBEAT, MDP01: values.HEARTBEAT_01}

CLIENT_COMMANDS = Commands(
    "client",
    ("REQUEST", Request, _REQUEST, (*_TO_SERVICE, BODY)),
    (
        "REQUEST with a deadline",
        Request,
        _only(values.CLIENT_REQUEST),
        (*_TO_SERVICE, REMAINING, BODY),
        "deadline",
    ),
    (
        "REQUEST with a name",
        Request,
        _only(values.CLIENT_REQUEST),
        (*_TO_SERVICE, REQUEST_OPTIONS, BODY),
        "named",
    ),
    ("CREDIT", Credit, _only(values.CLIENT_CREDIT), (*_TO_SERVICE, CREDIT_OPTIONS), "named"),
    ("CANCEL", Cancel, _only(values.CLIENT_CANCEL), (*_TO_SERVICE, CANCEL_OPTIONS), "named"),
)
REPLIES = Commands(
    "client",
    (
        "PARTIAL",
        Partial,
        {TEXT: values.CLIENT_PARTIAL, MDP02: values.CLIENT_PARTIAL},
        (*_TO_SERVICE, BODY),
    ),
    ("FINAL", Final, _FINAL, (*_TO_SERVICE, BODY)),
    (
        "PARTIAL with a position",
        Partial,
        _only(values.CLIENT_PART),
        (*_TO_SERVICE, POSITION, BODY),
        "position",
    ),
    (
        "FINAL with a position",
        Final,
        _only(values.CLIENT_END),
        (*_TO_SERVICE, POSITION, BODY),
        "position",
    ),
    ("ALIVE", Alive, _only(values.CLIENT_ALIVE), ()),
)
WORKER_COMMANDS = Commands(
    "worker",
    ("READY", WorkerReady, {MDP02: values.READY, MDP01: values.READY}, (SERVICE,)),
    ("READY", WorkerReady, _only(values.READY), (SERVICE, WINDOW, DEADLINES), "window"),
    (
        "READY with credit",
        WorkerReady,
        _only(values.READY_CREDIT),
        (SERVICE, WINDOW._replace(optional=False)),
        "credit",
    ),
    (
        "PARTIAL",
        WorkPartial,
        {TEXT: values.PARTIAL, MDP02: values.PARTIAL},
        (*_TO_CLIENT, WORK_BODY),
    ),
    (
        "FINAL",
        WorkFinal,
        {TEXT: values.FINAL, MDP02: values.FINAL, MDP01: values.REPLY_01},
        (*_TO_CLIENT, WORK_BODY),
    ),
    ("PING", Ping, _only(values.PING), ()),
    ("HEARTBEAT", Heartbeat, _HEARTBEAT, ()),
    ("DISCONNECT", Disconnect, _DISCONNECT, ()),
)
ORDERS = Commands(
    "worker",
    (
        "REQUEST",
        WorkRequest,
        dict.fromkeys((TEXT, MDP02, MDP01), values.REQUEST),
        (*_TO_CLIENT, WORK_BODY),
    ),
    (
        "REQUEST with a deadline",
        WorkRequest,
        _only(values.REQUEST),
        (*_TO_CLIENT, REMAINING, WORK_BODY),
        "remaining",
    ),
    (
        "REQUEST with credit",
        WorkRequest,
        _only(values.REQUEST),
        (*_TO_CLIENT, WORK_OPTIONS, WORK_BODY),
        "credit",
    ),
    ("CREDIT", WorkCredit, _only(values.CREDIT), (*_TO_CLIENT, CREDIT)),
    ("CANCEL", WorkCancel, _only(values.CANCEL), _TO_CLIENT),
    ("PONG", Pong, _only(values.PONG), ()),
    ("HEARTBEAT", Heartbeat, _HEARTBEAT, ()),
    ("DISCONNECT", Disconnect, _DISCONNECT, ()),
)


# ---- headers ----


def side_of(frames: Frames, headers: Headers = HEADERS) -> tuple[Side, Framing] | None:
    """The sender's side and framing, by the header alone; None: unknown."""
    first = frames[0] if frames else None
    if first == headers.worker:
        return Side.WORKER, TEXT
    if first in (headers.client, headers.deadline, headers.named):
        return Side.CLIENT, TEXT
    if first == b"":
        return _MDP01_SIDES.get(frames[1]) if len(frames) > 1 else None
    return _MDP02_SIDES.get(first or b"")


_MDP01_SIDES = {values.MDPC01: (Side.CLIENT, MDP01), values.MDPW01: (Side.WORKER, MDP01)}
_MDP02_SIDES = {values.MDPC02: (Side.CLIENT, MDP02), values.MDPW02: (Side.WORKER, MDP02)}


def _framing(frames: Frames, side: Side, headers: Headers) -> Framing:
    found = side_of(frames, headers)
    if found is None or found[0] is not side:
        head = b" ".join(frames[:2])[:16]
        raise RemoteProtocolError(f"not a header of a {side.name.lower()}: {head!r}")
    return found[1]


def _command_of(frames: Frames, framing: Framing) -> bytes:
    place = 2 if framing is MDP01 else 1
    if len(frames) <= place:
        raise RemoteProtocolError(f"a command has {place + 1} frames or more, got {len(frames)}")
    return frames[place]


# ---- clients and the broker ----


def encode_client_command(
    command: ClientCommand, framing: Framing = TEXT, headers: Headers = HEADERS
) -> list[bytes]:
    """Encodes a client's command."""
    extension = "named"
    if isinstance(command, Request) and not command.name:
        extension = "" if command.remaining_ms is None else "deadline"
    return CLIENT_COMMANDS.encode(command, extension, framing, headers)


def decode_client_command(
    frames: Frames, headers: Headers = HEADERS
) -> tuple[Framing, ClientCommand]:
    """Decodes a client's command."""
    header, extension = frames[0] if frames else b"", ""
    if header == headers.named:
        framing, extension = TEXT, "named"
    elif header == headers.deadline:
        framing, extension = TEXT, "deadline"
    else:
        framing = TEXT if header == headers.client else _framing(frames, Side.CLIENT, headers)
    octets = b"" if framing is MDP01 else _command_of(frames, framing)
    return framing, CLIENT_COMMANDS.decode(frames, framing, octets, extension)


def encode_reply(reply: Reply, framing: Framing = TEXT, headers: Headers = HEADERS) -> list[bytes]:
    """Encodes the broker's answer to a client, or ALIVE."""
    positioned = not isinstance(reply, Alive) and reply.position is not None
    return REPLIES.encode(reply, "position" if positioned else "", framing, headers)


def decode_reply(frames: Frames, headers: Headers = HEADERS) -> tuple[Framing, Reply]:
    """Decodes the broker's answer to a client; MDP/0.1's REPLY is a Final."""
    if frames and frames[0] == headers.client:
        octets = _command_of(frames, TEXT)
        extension = "position" if octets in (values.CLIENT_PART, values.CLIENT_END) else ""
        return TEXT, REPLIES.decode(frames, TEXT, octets, extension)
    framing = _framing(frames, Side.CLIENT, headers)
    if framing is TEXT:
        raise RemoteProtocolError("a reply has the header of requests with deadlines")
    octets = b"" if framing is MDP01 else _command_of(frames, framing)
    return framing, REPLIES.decode(frames, framing, octets)


# ---- workers and the broker ----


def encode_worker_command(
    command: WorkerCommand, framing: Framing = TEXT, headers: Headers = HEADERS
) -> list[bytes]:
    """Encodes a worker's command."""
    extension = ""
    if isinstance(command, WorkerReady):
        if command.credit:
            extension = "credit"
        elif framing is TEXT or command.window != 1 or command.deadlines:
            extension = "window"
    return WORKER_COMMANDS.encode(command, extension, framing, headers)


def decode_worker_command(
    frames: Frames, headers: Headers = HEADERS
) -> tuple[Framing, WorkerCommand]:
    """Decodes a worker's command.

    A DISCONNECT of the specification's framing may have MDP/0.2's header, as the specification
    prints it; it is then decoded as MDP/0.2's.
    """
    is_text = frames and frames[0] == headers.worker
    framing = TEXT if is_text else _framing(frames, Side.WORKER, headers)
    octets = _command_of(frames, framing)
    extension = _READY_EXTENSIONS.get(octets, "") if framing is TEXT else ""
    return framing, WORKER_COMMANDS.decode(frames, framing, octets, extension)


_READY_EXTENSIONS = {values.READY: "window", values.READY_CREDIT: "credit"}


def encode_order(order: Order, framing: Framing = TEXT, headers: Headers = HEADERS) -> list[bytes]:
    """Encodes the broker's command to a worker."""
    extension = ""
    if isinstance(order, WorkRequest):
        if order.credit is not None:
            extension = "credit"
        elif order.remaining_ms is not None:
            extension = "remaining"
    return ORDERS.encode(order, extension, framing, headers)


def decode_order(
    frames: Frames, headers: Headers = HEADERS, deadlines: bool = False
) -> tuple[Framing, Order]:
    """Decodes the broker's command to a worker.

    deadlines   whether this worker's READY asked for them. REQUESTs then have the remaining time,
                and credit behind it if the broker knows READY 07

    A DISCONNECT of the specification's framing may have MDP/0.2's header.
    """
    is_text = frames and frames[0] == headers.worker
    framing = TEXT if is_text else _framing(frames, Side.WORKER, headers)
    octets = _command_of(frames, framing)
    extension = ""
    if deadlines and framing is TEXT and octets == values.REQUEST:
        has_credit = len(frames) > 5 and len(frames[5]) == _CREDIT_OPTIONS.size
        extension = "credit" if has_credit else "remaining"
    return framing, ORDERS.decode(frames, framing, octets, extension)


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
