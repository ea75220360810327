"""Declares the messages of a protocol by their frames.

A protocol defines the types of its frames (for example zmqraft/wire/values.py) and declares each
message once. Decoder, encoder, error texts, the table in docs/protocols/ and the generated tests
come from the declaration:

    TRANSFER_REQUEST = Layout(
        "transfer request",
        RequestTransfer,
        Frame("reqid", REQUEST_ID, "id: 1 to 12 bytes, repeated in the answer"),
        Constant(TRANSFER),
        IDENT,
        Frame("to", PEER_ID_OR_EMPTY, "PEER ID of the next leader; empty: the longest log"),
    )

C decodes the messages of the hot path by the batch (native/).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from sys import maxsize
from typing import Any, Generic, NamedTuple, TypeVar

from .errors import RemoteProtocolError

V = TypeVar("V", bound=tuple[Any, ...])


class FrameType(NamedTuple):
    """How a frame carries a value. `decode` raises RemoteProtocolError."""

    name: str  # As the pages of the protocols call it: uint, string, json.
    encode: Callable[[Any], bytes]
    decode: Callable[..., Any]  # Takes a frame; in wire_bytes.py also a position.


class RestError(RemoteProtocolError):
    """One of all further frames is wrong: at this offset from the first of them."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset


class RestType(NamedTuple):
    """How all further frames carry a value. `decode` raises RemoteProtocolError or RestError."""

    name: str  # Of one frame.
    encode: Callable[[Any], Iterable[bytes]]
    decode: Callable[[Sequence[bytes]], Any]


class Frame(NamedTuple):
    """A frame with a field of the value, or with several, whose type then carries a tuple.

    optional   the frame may be missing, with all frames behind it. The field then has its default
    is_sent    an optional frame that kelek always sends
    """

    field: str | tuple[str, ...]
    type: FrameType
    meaning: str
    optional: bool = False
    is_sent: bool = False


class Constant(NamedTuple):
    """A frame with the same bytes in each message."""

    data: bytes
    meaning: str = "message type"


class Unused(NamedTuple):
    """A frame that the receiver ignores."""

    meaning: str
    data: bytes = b""


class Id(NamedTuple):
    """A frame that pairs request and answer. It is no field: callers read it from the frames."""

    type: FrameType
    meaning: str


class Ident(NamedTuple):
    """A frame that names the sender's cluster."""

    meaning: str = "cluster ident"


class Rest(NamedTuple):
    """All further frames, if any: one field, or several in a row, whose type carries a tuple."""

    field: str | tuple[str, ...]
    type: RestType
    meaning: str
    count_max: int


class Case:
    """The frames that follow a status."""

    def __init__(self, status: Any, meaning: str, *parts: "Part") -> None:
        self.status = status
        self.meaning = meaning
        self.parts = parts


class Cases:
    """A status frame, which tells what follows.

    Statuses with the same bytes on the wire differ in the number of frames that follow.
    """

    def __init__(self, field: str, type_: FrameType, meaning: str, *cases: Case) -> None:
        self.field = field
        self.type = type_
        self.meaning = meaning
        self.cases = cases


Part = Frame | Constant | Unused | Id | Ident | Rest


class TableRow(NamedTuple):
    """A row of a message's table."""

    number: str
    type: str
    meaning: str


class Layout(Generic[V]):
    """The frames of a message, from the first behind a routing id."""

    first = 1  # The number of the first frame.

    def __init__(
        self,
        name: str,
        value: type[V],
        *parts: Part | Cases,
        given: Mapping[str, object] | None = None,
        check: Callable[[V], str] | None = None,
        ignores_more: bool = False,
    ) -> None:
        """Declares a message.

        name           as errors and the page call it
        value          a NamedTuple; fields without a frame have defaults
        parts          the frames in order; Cases can be the last
        given          fields that no frame carries, because the message type implies them
        check          tells why valid fields are not valid together; "": they are
        ignores_more   further frames are valid and ignored
        """
        self.name = name
        self.value = value
        self.given = given or {}
        self.check = check
        self.parts = tuple(part for part in parts if not isinstance(part, Cases))
        self.cases = next((part for part in parts if isinstance(part, Cases)), None)
        self.ignores_more = ignores_more

    @cached_property
    def _shape(self) -> "_Shape | None":
        """The shape of a message without Cases, which processes that do not use it never make."""
        if self.cases is not None:
            return None
        return _Shape(self.value, self.parts, self.given, self.ignores_more)

    @cached_property
    def _shapes(self) -> "dict[Any, _Shape]":
        """The shapes by status."""
        assert self.cases is not None
        shapes = {}
        for case in self.cases.cases:
            parts = (*self.parts, Unused("", self.cases.type.encode(case.status)), *case.parts)
            given = {**self.given, self.cases.field: case.status}
            shapes[case.status] = _Shape(self.value, parts, given, self.ignores_more)
        return shapes

    @cached_property
    def _by_frame(self) -> "dict[Any, list[_Shape]]":
        """The shapes by the decoded status frame."""
        assert self.cases is not None
        shapes: dict[Any, list[_Shape]] = {}
        type_ = self.cases.type
        for status, shape in self._shapes.items():
            shapes.setdefault(type_.decode(type_.encode(status)), []).append(shape)
        return shapes

    def decode(self, frames: Sequence[bytes], cluster: bytes = b"") -> V:
        """Decodes a message, whose ident must be `cluster`.

        Raises RemoteProtocolError with the name of the message and the number of the frame.
        """
        count = len(frames)
        shape = self._shape or self._choose(frames)
        if not shape.count_min <= count <= shape.count_max:
            raise self.count_error([shape], count)
        values = shape.values.copy()
        position = 0
        try:
            for position, data, meaning in shape.constants:
                if frames[position] != data:
                    raise RemoteProtocolError(f"another {meaning}")
            for position, meaning in shape.idents:
                if frames[position] != cluster:
                    raise RemoteProtocolError(f"a foreign {meaning}")
            for position, decode in shape.checks:
                decode(frames[position])
            for position, where, decode in shape.decoders:
                values[where] = decode(frames[position])
            if shape.groups:
                for position, slots, _, type_ in shape.groups:
                    for slot, value in zip(slots, type_.decode(frames[position]), strict=True):
                        values[slot] = value
            if shape.optional:
                for position, where, type_ in shape.optional[: count - shape.count_min]:
                    values[where] = type_.decode(frames[position])
            elif shape.rest is not None:
                position, where, rest_type = shape.rest
                values[where] = rest_type.decode(frames[position:])
        except RemoteProtocolError as error:
            number = self.first + position + (error.offset if isinstance(error, RestError) else 0)
            error.args = (f"{self.name}, frame {number}: {error}",)
            raise
        message: V = shape.make(values)
        if self.check is not None and (problem := self.check(message)):
            raise RemoteProtocolError(f"{self.name}: {problem}")
        return message

    def _choose(self, frames: Sequence[bytes]) -> "_Shape":
        """Returns the shape that the status frame and the number of frames tell."""
        cases = self.cases
        assert cases is not None
        position, count = len(self.parts), len(frames)
        if count <= position:
            raise self.count_error([*self._shapes.values()], count)
        try:
            shapes = self._by_frame.get(cases.type.decode(frames[position]))
            if shapes is None:
                shown = frames[position][:8].hex(" ") or "empty"
                raise RemoteProtocolError(f"unknown {cases.meaning} {shown}")
        except RemoteProtocolError as error:
            error.args = (f"{self.name}, frame {self.first + position}: {error}",)
            raise
        for shape in shapes:
            if shape.count_min <= count <= shape.count_max:
                return shape
        raise self.count_error(shapes, count)

    def count_error(self, shapes: "list[_Shape]", count: int) -> RemoteProtocolError:
        """The error for a message with too few or too many frames."""
        least = min(shape.count_min for shape in shapes)
        most = max(shape.count_max for shape in shapes)
        wanted = f"{least}" if least == most else f"{least} to {most}"
        if most == maxsize:
            wanted = f"{least} or more"
        return RemoteProtocolError(f"{self.name} has {wanted} frames, got {count}")

    def encode(self, message: V, message_id: Any = None, cluster: bytes = b"") -> list[bytes]:
        """Encodes a message. It leaves out optional frames at the end that have their defaults.

        message_id   the value of the message's Id, if it has one
        """
        shape = self._shape
        if shape is None:
            assert self.cases is not None
            shape = self._shapes[getattr(message, self.cases.field)]
        frames = shape.frames.copy()
        for position, _ in shape.idents:
            frames[position] = cluster
        for position, encode in shape.ids:
            frames[position] = encode(message_id)
        for position, where, encode in shape.encoders:
            frames[position] = encode(message[where])
        if shape.groups:
            for position, _, fields, type_ in shape.groups:
                frames[position] = type_.encode(fields(message))
        if shape.optional:
            count = len(shape.optional)
            while count > shape.sent_count:
                if message[shape.optional[count - 1][1]] != shape.defaults[count - 1]:
                    break
                count -= 1
            frames += [type_.encode(message[where]) for _, where, type_ in shape.optional[:count]]
        elif shape.rest is not None:
            _, where, rest_type = shape.rest
            frames += rest_type.encode(message[where])
        return frames

    def rows(self) -> Iterator[TableRow]:
        """The rows of the message's table on the page of its protocol."""
        for number, part in enumerate(self.parts, self.first):
            yield _row(f"{number}", part)
        if self.cases is None:
            return
        type_, number = self.cases.type, len(self.parts) + self.first
        shown = [_code(type_.encode(case.status)) for case in self.cases.cases]
        codes = [
            f"{code} {'with' if case.parts else 'without'} frame {number + 1}"
            if shown.count(code) > 1
            else code
            for code, case in zip(shown, self.cases.cases, strict=True)
        ]
        cases = list(zip(codes, self.cases.cases, strict=True))
        texts = [f"{code}{':' * ('frame' in code)} {case.meaning}" for code, case in cases]
        yield TableRow(f"{number}", type_.name, f"{self.cases.meaning}: {'; '.join(texts)}")
        for place in range(max(len(case.parts) for case in self.cases.cases)):
            number += 1
            yield _case_row(
                [
                    (code, _row(f"{number}", case.parts[place]))
                    for code, case in cases
                    if len(case.parts) > place
                ]
            )


def _place(names: Sequence[str], field: str | tuple[str, ...]) -> int | slice | list[int]:
    """The place of a field in the value, a slice for fields in a row, or the places of others."""
    if isinstance(field, str):
        return names.index(field)
    slots = [names.index(each) for each in field]
    in_a_row = slots == [*range(slots[0], slots[0] + len(slots))]
    return slice(slots[0], slots[-1] + 1) if in_a_row else slots


class _Shape:
    """The frames of a message with one status, sorted once by what to do with them."""

    def __init__(
        self,
        value: type[tuple[Any, ...]],
        parts: Sequence[Part],
        given: Mapping[str, object],
        ignores_more: bool,
    ) -> None:
        names: list[str] = list(value._fields)  # type: ignore[attr-defined]
        defaults: dict[str, Any] = value._field_defaults  # type: ignore[attr-defined]
        self.make: Callable[[list[Any]], Any] = value._make  # type: ignore[attr-defined]
        self.values = [given.get(name, defaults.get(name)) for name in names]
        self.frames: list[bytes] = []  # Without optional ones.
        self.constants: list[tuple[int, bytes, str]] = []
        self.idents: list[tuple[int, str]] = []
        self.ids: list[tuple[int, Callable[[Any], bytes]]] = []
        self.checks: list[tuple[int, Callable[[bytes], Any]]] = []  # Of ids.
        # Position, and place in the value: a slice for several fields.
        self.encoders: list[tuple[int, Any, Callable[[Any], bytes]]] = []
        self.decoders: list[tuple[int, Any, Callable[[bytes], Any]]] = []
        # Fields that are not in a row, and how to take them from the value.
        self.groups: list[tuple[int, list[int], itemgetter[Any], FrameType]] = []
        self.optional: list[tuple[int, Any, FrameType]] = []
        self.defaults: list[Any] = []  # Of the optional fields.
        self.sent_count = 0  # Optional frames that are always sent.
        self.rest: tuple[int, Any, RestType] | None = None
        self.count_max = maxsize if ignores_more else len(parts)
        for position, part in enumerate(parts):
            match part:
                case Constant(data, meaning):
                    self.constants.append((position, data, meaning))
                case Ident(meaning):
                    self.idents.append((position, meaning))
                case Id(type_):
                    self.ids.append((position, type_.encode))
                    self.checks.append((position, type_.decode))
                case Frame(str(field), type_, optional=True):
                    self.optional.append((position, names.index(field), type_))
                    self.defaults.append(defaults[field])
                    self.sent_count += part.is_sent
                    continue
                case Frame(field, type_):
                    where = _place(names, field)
                    if isinstance(where, list):
                        self.groups.append((position, where, itemgetter(*where), type_))
                    else:
                        self.encoders.append((position, where, type_.encode))
                        self.decoders.append((position, where, type_.decode))
                case Rest(field, rest_type, _, count_max):
                    self.rest = position, _place(names, field), rest_type
                    self.count_max = min(max(self.count_max, position + count_max), maxsize)
                    continue
            self.frames.append(part.data if isinstance(part, Constant | Unused) else b"")
        self.count_min = len(self.frames)


def _code(frame: bytes) -> str:
    return f"`{frame.hex(' ')}`" if frame else "empty"


def _row(number: str, part: Part) -> TableRow:
    match part:
        case Constant(data):
            text = data.decode() if data.isascii() and data.decode().isprintable() else ""
            if len(data) > 2 and text:
                return TableRow(number, "", f"`{text}`")
            return TableRow(number, "", _code(data) + (f" `{text}`" if len(text) == 1 else ""))
        case Ident(meaning):
            return TableRow(number, "bytes", meaning)
        case Unused(meaning):
            return TableRow(number, "", meaning)
        case Rest(_, type_, meaning, count_max) if count_max < maxsize:
            return TableRow(f"{number}...", type_.name, f"{meaning}: at most {count_max}")
        case Rest(_, type_, meaning):
            return TableRow(f"{number}...", type_.name, meaning)
        case Frame(_, type_, meaning, optional=True):
            return TableRow(number, type_.name, f"{meaning}; may be absent")
        case Id() | Frame():
            return TableRow(number, part.type.name, part.meaning)


def _case_row(rows: list[tuple[str, TableRow]]) -> TableRow:
    """The row of a frame whose meaning depends on the status."""
    types = {row.type for _, row in rows}
    type_ = types.pop() if len(types) == 1 else ""
    texts: dict[str, list[str]] = {}  # By meaning: the statuses.
    for code, row in rows:
        text = row.meaning if row.type in ("", type_) else f"{row.type}, {row.meaning}"
        texts.setdefault(text, []).append(code)
    meaning = "; ".join(f"{', '.join(codes)}: {text}" for text, codes in texts.items())
    return TableRow(rows[0][1].number, type_, meaning)
