"""Declares messages whose fields follow one another in one frame: Layouts of octets.

    JOIN = ByteLayout(
        "JOIN",
        Join,
        Constant(b"\\x04", "command"),
        Frame("group", string(number(1), 255), "name of the group"),
        Frame("status", number(1), "joins and leaves of the sender, modulo 256"),
    )

A type is a FrameType whose `decode` takes the frame and the position of the field, and returns the
value and the position behind it. The functions below make types.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from .errors import LocalProtocolError, RemoteProtocolError, TooLarge
from .wire import Constant, Frame, FrameType, Layout, V

Found = tuple[Any, int]  # A value, and the position behind it.


class Incomplete(RemoteProtocolError):
    """The frame ends within a field."""


class Surplus(RemoteProtocolError):
    """Octets follow the last field."""


class InvalidValue(RemoteProtocolError):
    """A text is not UTF-8, or another value can't be converted."""


def number(size: int, *, signed: bool = False) -> FrameType:
    """A big-endian integer of `size` octets."""

    def decode(data: bytes, at: int) -> Found:
        end = at + size
        if end > len(data):
            raise Incomplete(f"{end - len(data)} octets are missing")
        return int.from_bytes(data[at:end], "big", signed=signed), end

    return FrameType(f"number {size}", lambda value: value.to_bytes(size, signed=signed), decode)


def sized(size: FrameType, bytes_max: int, name: str = "bytes") -> FrameType:
    """Bytes behind their number."""

    def encode(data: bytes) -> bytes:
        if len(data) > bytes_max:
            raise LocalProtocolError(f"{len(data)} octets, at most {bytes_max}")
        return size.encode(len(data)) + data

    def decode(data: bytes, at: int) -> Found:
        count, at = size.decode(data, at)
        if count > bytes_max:
            raise TooLarge(f"{count} octets, at most {bytes_max}")
        end = at + count
        if end > len(data):
            raise Incomplete(f"{end - len(data)} octets are missing")
        return data[at:end], end

    return FrameType(name, encode, decode)


def string(size: FrameType, bytes_max: int, name: str = "string") -> FrameType:
    """A text in UTF-8 behind its number of octets."""
    return mapped(sized(size, bytes_max, name), str.encode, bytes.decode)


def several(*types: FrameType) -> FrameType:
    """A tuple of values."""

    def encode(values: Iterable[Any]) -> bytes:
        return b"".join(each.encode(value) for each, value in zip(types, values, strict=True))

    def decode(data: bytes, at: int) -> Found:
        values = []
        for each in types:
            value, at = each.decode(data, at)
            values.append(value)
        return tuple(values), at

    return FrameType(", ".join(each.name for each in types), encode, decode)


def listed(item: FrameType, count_max: int, count: FrameType | None = None) -> FrameType:
    """A tuple of items behind their number, or to the end of the frame."""

    def encode(items: Collection[Any]) -> bytes:
        if len(items) > count_max:
            raise LocalProtocolError(f"{len(items)} items, at most {count_max}")
        return (count.encode(len(items)) if count else b"") + b"".join(map(item.encode, items))

    def decode(data: bytes, at: int) -> Found:
        size, at = count.decode(data, at) if count else (None, at)
        if size is not None and size > count_max:
            raise TooLarge(f"{size} items, at most {count_max}")
        items: list[Any] = []
        while at < len(data) if size is None else len(items) < size:
            found, at = item.decode(data, at)
            items.append(found)
            if len(items) > count_max:
                raise TooLarge(f"more than {count_max} items")
        return tuple(items), at

    shown = f"list ({count.name})" if count else "list to the end"
    return FrameType(f"{shown} of {item.name}", encode, decode)


def mapped(
    type_: FrameType, encode: Callable[[Any], Any], decode: Callable[[Any], Any]
) -> FrameType:
    """A type whose values another type carries; both functions may raise ValueError."""

    def read(data: bytes, at: int) -> Found:
        value, at = type_.decode(data, at)
        return decode(value), at

    return type_._replace(encode=lambda value: type_.encode(encode(value)), decode=read)


class ByteLayout(Layout[V]):
    """The fields of a message in one frame, or in the rest of one."""

    def unpack(self, data: bytes, at: int = 0) -> V:
        """Decodes a frame from a position to its end. Raises RemoteProtocolError."""
        fields: dict[str, Any] = dict(self.given)
        meaning = ""
        try:
            for part in self.parts:
                meaning = part.meaning
                if isinstance(part, Constant):
                    found = data[at : at + len(part.data)]
                    at += len(found)
                    if found != part.data:
                        raise RemoteProtocolError(f"{found.hex(' ')}, not {part.data.hex(' ')}")
                elif isinstance(part, Frame):
                    value, at = part.type.decode(data, at)
                    if isinstance(part.field, str):
                        fields[part.field] = value
                    else:
                        fields.update(zip(part.field, value, strict=True))
        except ValueError as error:
            raise InvalidValue(f"{self.name}, {meaning}: {error}") from error
        except RemoteProtocolError as error:
            error.args = (f"{self.name}, {meaning}: {error}",)
            raise
        if at < len(data):
            raise Surplus(f"{self.name}: {len(data) - at} octets too many")
        message = self.value(**fields)
        if self.check is not None and (problem := self.check(message)):
            raise RemoteProtocolError(f"{self.name}: {problem}")
        return message

    def pack(self, message: V) -> bytes:
        """Encodes a message. Raises LocalProtocolError: a value that its type can't carry."""
        try:
            return b"".join(self.encode(message))
        except (ValueError, OverflowError) as error:
            raise LocalProtocolError(f"{self.name}: {error}") from error
