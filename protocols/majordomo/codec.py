"""Declares the commands of the broker's three framings by their frames; encodes and decodes them.

Frames are those on a DEALER, without a routing id. There are four groups:

    CLIENT_COMMANDS   a client's REQUEST; extensions: CREDIT, CANCEL       to the broker
    REPLIES           PARTIAL, FINAL (MDP/0.1: REPLY); extension: ALIVE    to a client
    WORKER_COMMANDS   READY, PARTIAL, FINAL, PING, HEARTBEAT, DISCONNECT   of a worker
    ORDERS            REQUEST, PONG, HEARTBEAT, DISCONNECT;
                      extensions: CREDIT, CANCEL                           to a worker

Sources: the specification ("Protocol Client", "Protocol/Worker"), RFC 7 (MDP/0.1), RFC 18
(MDP/0.2). Extensions are kelek's (docs/protocols/majordomo.md), as are the frames behind READY's
service and the body of an error.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from sys import maxsize
from typing import Any, Generic, NamedTuple, TypeVar

import msgpack

from ..errors import LocalProtocolError, RemoteProtocolError
from ..wire import Constant, Frame, FrameType, Layout, Part, Rest, RestError, RestType, Unused
from . import values
from .values import HEADERS, Framing, Headers

Frames = Sequence[bytes]
T = TypeVar("T")


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
    bundles: bool = False  # Extension: it also accepts bundles.


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


# The broker's own 504: no worker had the request; or one had it, or may have had it.
LATE = Failure(values.EXPIRED, "no worker took the request in time")
UNFINISHED = Failure(values.EXPIRED, "no worker finished the request in time")

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


def _mark(mark: bytes) -> Callable[[bytes], bool]:
    def decode(frame: bytes) -> bool:
        if frame != mark:
            raise RemoteProtocolError(f"expected {mark.decode()}, got {frame[:8]!r}")
        return True

    return decode


_U64 = struct.Struct(">Q")
_WINDOW = struct.Struct(">H")
_POSITION = struct.Struct(">II")
_TIME_AND_CREDIT = struct.Struct(">QQ")


def _unpack(layout: struct.Struct, frame: bytes) -> tuple[Any, ...]:
    if len(frame) != layout.size:
        raise RemoteProtocolError(f"expected {layout.size} octets, got {len(frame)}")
    return layout.unpack(frame)


def _window(number: int) -> int:
    if number < 1:
        raise RemoteProtocolError(f"expected 1 or more, got {number}")
    return number


def _name(name: bytes) -> bytes:
    if not values.is_name(name):
        raise RemoteProtocolError(f"a name has 1 to 255 octets, the first not 0: {name[:16]!r}")
    return name


def _options(frame: bytes) -> tuple[int | None, bytes, int]:
    """Remaining time, the client's name, credit."""
    size = _TIME_AND_CREDIT.size
    left_ms, credit = _unpack(_TIME_AND_CREDIT, frame[:size])
    return None if left_ms == values.REMAINING_MS_UNKNOWN else left_ms, _name(frame[size:]), credit


def _pack_work_options(fields: tuple[int | None, int]) -> bytes:
    left_ms, credit = fields
    left_ms = values.REMAINING_MS_UNKNOWN if left_ms is None else left_ms
    return _TIME_AND_CREDIT.pack(left_ms, credit)


def _pack_options(fields: tuple[int | None, bytes, int]) -> bytes:
    left_ms, name, credit = fields
    return _pack_work_options((left_ms, credit)) + _name(name)


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
REMAINING = _frame("remaining_ms", "remaining time", lambda it: _unpack(_U64, it)[0], _U64.pack)
CREDIT = _frame("octets", "credit", lambda it: _unpack(_U64, it)[0], _U64.pack)
POSITION = _frame(
    "position",
    "position",
    lambda it: PartPosition(*_unpack(_POSITION, it)),
    lambda it: _POSITION.pack(*it),
)
WINDOW = _frame(
    "window",
    "window",
    lambda it: _window(*_unpack(_WINDOW, it)),
    lambda number: _WINDOW.pack(_window(number)),
)._replace(optional=True)
DEADLINES = _frame(
    "deadlines", "`D`", _mark(values.DEADLINES), lambda wanted: values.DEADLINES
)._replace(optional=True)
BUNDLES = _frame("bundles", "`B`", _mark(values.BUNDLES), lambda wanted: values.BUNDLES)._replace(
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
    ("remaining_ms", "credit"),
    "remaining time and credit",
    lambda it: _unpack(_TIME_AND_CREDIT, it),
    _pack_work_options,
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


class CommandRow(NamedTuple):
    """A command in all framings that have it."""

    title: str
    value: type[Any]
    octets: Mapping[Framing, bytes]
    parts: tuple[Part, ...]  # Behind the octets; MDP has no request ids, and always a body.
    header: str = ""  # The field of Headers, if it is not the group's.
    given: Mapping[str, object] = {}  # Fields that the octets imply.


class Command(Layout[Any]):
    """The frames of a command in one framing.

    octets   of the command; empty: MDP/0.1's clients have no such frame
    header   the field of Headers, in the specification's framing
    """

    first = 0

    def __init__(self, header: str, framing: Framing, row: CommandRow) -> None:
        self.title, parts, given = row.title, row.parts, row.given
        self.framing, self.octets, self.header = framing, row.octets[framing], row.header or header
        if framing is not TEXT:
            given = {"request_id": b""} if REQUEST_ID in parts else {}
            parts = tuple(
                BODY if part is WORK_BODY else part for part in parts if part is not REQUEST_ID
            )
        head = _HEADS[self.header, framing]
        self.behind = len(head)  # The number of the first frame behind the header.
        command = [Constant(self.octets, "command")] if self.octets else []
        super().__init__(self.title, row.value, *head, *command, *parts, given=given)

    @cached_property
    def _implied(self) -> list[tuple[int, object]]:
        """The places of the fields that no frame carries, and what they must be."""
        frames = [part for part in self.parts if isinstance(part, Frame | Rest)]
        carried = {name for part in frames for name in _names(part)}
        fields = {**self.value._field_defaults, **self.given}
        names = enumerate(self.value._fields)
        return [(place, fields.get(name)) for place, name in names if name not in carried]

    def carries(self, message: Any) -> bool:
        """Whether these frames tell all fields of a message."""
        for place, value in self._implied:  # noqa: SIM110 - all() is slower.
            if message[place] != value:
                return False
        return True


def _names(part: Frame | Rest) -> Sequence[str]:
    return (part.field,) if isinstance(part.field, str) else part.field


class Commands(Generic[T]):
    """All commands in one direction; `header` is the field of Headers for most of them."""

    def __init__(self, header: str, *rows: CommandRow) -> None:
        self.all = [Command(header, framing, row) for row in rows for framing in row.octets]
        # Orders with more than the plain REQUEST's frames are found by decode_order().
        self._by_head: list[dict[tuple[str, bytes], Command]] = [{} for _ in Framing]
        for command in self.all:
            self._by_head[command.framing].setdefault((command.header, command.octets), command)

    def decode(self, frames: Frames, headers: Headers = HEADERS) -> tuple[Framing, T]:
        """The framing and the command. Raises RemoteProtocolError."""
        header, framing = header_of(frames, headers)
        place = 2 if framing is MDP01 else 1
        octets = frames[place] if len(frames) > place else b""
        if framing is MDP01 and header == "client":
            octets = b""
        command = self._by_head[framing].get((header, octets))
        if command is None:
            what = f"{framing.name} command {octets[:8].hex()}"
            raise RemoteProtocolError(f"no {what} with a {header}'s header is expected here")
        return framing, command.decode(frames)


def header_of(frames: Frames, headers: Headers = HEADERS) -> tuple[str, Framing]:
    """The field of Headers, and the framing. Raises RemoteProtocolError: another header."""
    found = _fields_of(headers).get(frames[0] if frames else b"")
    if found is None and frames and not frames[0] and len(frames) > 1:
        found = _MDP01_HEADERS.get(frames[1])
    if found is None:
        raise RemoteProtocolError(f"not a header: {b' '.join(frames[:2])[:16]!r}")
    return found


@lru_cache
def _fields_of(headers: Headers) -> dict[bytes, tuple[str, Framing]]:
    own = {header: (field, TEXT) for field, header in headers._asdict().items()}
    return {values.MDPC02: ("client", MDP02), values.MDPW02: ("worker", MDP02), **own}


_MDP01_HEADERS = {values.MDPC01: ("client", MDP01), values.MDPW01: ("worker", MDP01)}


def _only(octets: bytes) -> dict[Framing, bytes]:
    """A command of the specification's framing alone."""
    return {TEXT: octets}


_TO_SERVICE = SERVICE, REQUEST_ID
_TO_CLIENT = CLIENT, EMPTY, REQUEST_ID
_REQUEST = {TEXT: values.CLIENT_REQUEST, MDP02: values.CLIENT_REQUEST, MDP01: b""}
_FINAL = {TEXT: values.CLIENT_FINAL, MDP02: values.CLIENT_FINAL, MDP01: b""}
_DISCONNECT = {TEXT: values.DISCONNECT, MDP02: values.DISCONNECT, MDP01: values.DISCONNECT_01}
_HEARTBEAT = {MDP02: values.HEARTBEAT, MDP01: values.HEARTBEAT_01}

CLIENT_COMMANDS: Commands[ClientCommand] = Commands(
    "client",
    CommandRow("REQUEST", Request, _REQUEST, (*_TO_SERVICE, BODY)),
    CommandRow(
        "REQUEST with a deadline",
        Request,
        _only(values.CLIENT_REQUEST),
        (*_TO_SERVICE, REMAINING, BODY),
        "deadline",
    ),
    CommandRow(
        "REQUEST with a name",
        Request,
        _only(values.CLIENT_REQUEST),
        (*_TO_SERVICE, REQUEST_OPTIONS, BODY),
        "named",
    ),
    CommandRow(
        "CREDIT", Credit, _only(values.CLIENT_CREDIT), (*_TO_SERVICE, CREDIT_OPTIONS), "named"
    ),
    CommandRow(
        "CANCEL", Cancel, _only(values.CLIENT_CANCEL), (*_TO_SERVICE, CANCEL_OPTIONS), "named"
    ),
)
# MDP/0.1's REPLY is a Final.
REPLIES: Commands[Reply] = Commands(
    "client",
    CommandRow(
        "PARTIAL",
        Partial,
        {TEXT: values.CLIENT_PARTIAL, MDP02: values.CLIENT_PARTIAL},
        (*_TO_SERVICE, BODY),
    ),
    CommandRow("FINAL", Final, _FINAL, (*_TO_SERVICE, BODY)),
    CommandRow(
        "PARTIAL with a position",
        Partial,
        _only(values.CLIENT_PART),
        (*_TO_SERVICE, POSITION, BODY),
    ),
    CommandRow(
        "FINAL with a position", Final, _only(values.CLIENT_END), (*_TO_SERVICE, POSITION, BODY)
    ),
    CommandRow("ALIVE", Alive, _only(values.CLIENT_ALIVE), ()),
)
# A DISCONNECT of the specification's framing may have MDP/0.2's header, as the specification prints
# it; it is then decoded as MDP/0.2's.
WORKER_COMMANDS: Commands[WorkerCommand] = Commands(
    "worker",
    CommandRow("READY", WorkerReady, {MDP02: values.READY, MDP01: values.READY}, (SERVICE,)),
    CommandRow("READY", WorkerReady, _only(values.READY), (SERVICE, WINDOW, DEADLINES)),
    CommandRow(
        "READY with credit",
        WorkerReady,
        _only(values.READY_CREDIT),
        (SERVICE, WINDOW._replace(optional=False), BUNDLES),
        given={"deadlines": True, "credit": True},
    ),
    CommandRow(
        "PARTIAL",
        WorkPartial,
        {TEXT: values.PARTIAL, MDP02: values.PARTIAL},
        (*_TO_CLIENT, WORK_BODY),
    ),
    CommandRow(
        "FINAL",
        WorkFinal,
        {TEXT: values.FINAL, MDP02: values.FINAL, MDP01: values.REPLY_01},
        (*_TO_CLIENT, WORK_BODY),
    ),
    CommandRow("PING", Ping, _only(values.PING), ()),
    CommandRow("HEARTBEAT", Heartbeat, _HEARTBEAT, ()),
    CommandRow("DISCONNECT", Disconnect, _DISCONNECT, ()),
)
ORDERS: Commands[Order] = Commands(
    "worker",
    CommandRow(
        "REQUEST",
        WorkRequest,
        dict.fromkeys((TEXT, MDP02, MDP01), values.REQUEST),
        (*_TO_CLIENT, WORK_BODY),
    ),
    CommandRow(
        "REQUEST with a deadline",
        WorkRequest,
        _only(values.REQUEST),
        (*_TO_CLIENT, REMAINING, WORK_BODY),
    ),
    CommandRow(
        "REQUEST with credit",
        WorkRequest,
        _only(values.REQUEST),
        (*_TO_CLIENT, WORK_OPTIONS, WORK_BODY),
    ),
    CommandRow("CREDIT", WorkCredit, _only(values.CREDIT), (*_TO_CLIENT, CREDIT)),
    CommandRow("CANCEL", WorkCancel, _only(values.CANCEL), _TO_CLIENT),
    CommandRow("PONG", Pong, _only(values.PONG), ()),
    CommandRow("HEARTBEAT", Heartbeat, _HEARTBEAT, ()),
    CommandRow("DISCONNECT", Disconnect, _DISCONNECT, ()),
)

# By framing and value; the one with the fewest frames first.
_ENCODERS: list[dict[type[Any], list[Command]]] = [{} for _ in Framing]
for _each in chain(CLIENT_COMMANDS.all, REPLIES.all, WORKER_COMMANDS.all, ORDERS.all):
    _ENCODERS[_each.framing].setdefault(_each.value, []).append(_each)
_ORDER_REQUESTS = [
    each for each in ORDERS.all if each.value is WorkRequest and each.framing is TEXT
]


def encode(
    message: ClientCommand | Reply | WorkerCommand | Order,
    framing: Framing = TEXT,
    headers: Headers = HEADERS,
) -> list[bytes]:
    """Raises LocalProtocolError: the framing lacks the command, or a field is not valid."""
    for command in _ENCODERS[framing].get(type(message), ()):
        if command.carries(message):
            break
    else:
        raise LocalProtocolError(f"{framing.name} has no frames for {message}")
    try:
        frames = command.encode(message)
    except (RemoteProtocolError, OverflowError, struct.error) as error:
        raise LocalProtocolError(f"{command.title}: {error}") from None
    if headers is not HEADERS and framing is TEXT:
        frames[0] = getattr(headers, command.header)
    return frames


def decode_order(
    frames: Frames, headers: Headers = HEADERS, deadlines: bool = False
) -> tuple[Framing, Order]:
    """The framing and the broker's command to a worker.

    deadlines   whether this worker's READY asked for them. REQUESTs then have the remaining time,
                and credit behind it if the broker knows READY 07
    """
    if deadlines and list(frames[:2]) == [headers.worker, values.REQUEST]:
        has_credit = len(frames) > 5 and len(frames[5]) == _TIME_AND_CREDIT.size
        return TEXT, _ORDER_REQUESTS[1 + has_credit].decode(frames)
    return ORDERS.decode(frames, headers)


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
    match unpacked:
        case {"code": int(code), "message": str(message)} if type(code) is int:
            return Failure(code, message)
    raise RemoteProtocolError("an error without code and message")
