"""Types of the frames of ZeroDB: numbers, keys, columns, and lists that reach to the last frame.

Decoders check each value against its limit (docs/protocols/zerodb.md, "Limits"). They raise
RemoteProtocolError and nothing else.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from ...errors import RemoteProtocolError
from ...wire import FrameType, RestError, RestType
from . import columns, ops, values
from .values import KEY_BYTES_MAX, VALUE_BYTES_MAX, is_number

Frames = Sequence[bytes]
Pairs = tuple[Sequence[bytes], Sequence[bytes]]

_KIND_AND_TABLE = struct.Struct("<BI")
_RANGE_HEAD = struct.Struct("<BIQ")  # Of a GetRange: with its limit.
_MODIFICATION = struct.Struct("<IIB")
_COUNTS = struct.Struct("<III")


class OddKeyError(RestError):
    """A key without a value; the specification has a code for it."""


# ---- frames ----


def _uint(size: int) -> FrameType:
    def encode(number: int) -> bytes:
        return number.to_bytes(size, "little")

    def decode(frame: bytes) -> int:
        if len(frame) != size:
            raise RemoteProtocolError(f"expected {size} bytes, found {len(frame)}")
        return int.from_bytes(frame, "little")

    return FrameType(f"u{8 * size}", encode, decode)


def within(kind: FrameType, least: int, most: int) -> FrameType:
    """The numbers from least to most."""

    def decode(frame: bytes) -> int:
        number: int = kind.decode(frame)
        if not least <= number <= most:
            raise RemoteProtocolError(f"expected {least} to {most}, found {number}")
        return number

    return FrameType(kind.name, kind.encode, decode)


def or_empty(kind: FrameType, default: object = None) -> FrameType:
    """The type, or an empty frame, which means the default."""
    return FrameType(
        kind.name,
        lambda value: b"" if value is None else kind.encode(value),
        lambda frame: kind.decode(frame) if frame else default,
    )


def converted(kind: FrameType, make: Callable[[Any], Any]) -> FrameType:
    """The type, with its numbers converted."""
    return FrameType(kind.name, kind.encode, lambda frame: make(kind.decode(frame)))


def _check_bound(key: bytes) -> bytes:
    if len(key) > KEY_BYTES_MAX:
        raise RemoteProtocolError(f"expected {KEY_BYTES_MAX} bytes at most, found {len(key)}")
    return key


U8, U32, U64 = _uint(1), _uint(4), _uint(8)


def sized(least: int, most: int) -> FrameType:
    """Bytes of a limited number."""

    def decode(frame: bytes) -> bytes:
        if not least <= len(frame) <= most:
            raise RemoteProtocolError(f"expected {least} to {most} bytes, found {len(frame)}")
        return frame

    return FrameType("bytes", bytes, decode)


BOUND = FrameType("key", bytes, _check_bound)


def _decode_mapper(frame: bytes) -> bytes:
    if not 0 < len(frame) <= values.MAPPER_BYTES_MAX:
        raise RemoteProtocolError(
            f"expected a mapper of 1 to {values.MAPPER_BYTES_MAX} bytes, found {len(frame)}"
        )
    return frame


# ---- keys and values ----


def _check_keys(keys: Frames, first: int = 0, step: int = 1) -> None:
    """Checks keys in the frames first, first + step ... behind the first of the rest."""
    sizes = list(map(len, keys))
    if sizes and (not min(sizes) or max(sizes) > KEY_BYTES_MAX):
        i, size = next((i, size) for i, size in enumerate(sizes) if not 0 < size <= KEY_BYTES_MAX)
        text = f"expected a key of 1 to {KEY_BYTES_MAX} bytes, found {size}"
        raise RestError(first + i * step, text)


def _check_values(data: Frames, first: int = 0, step: int = 2) -> None:
    if data and max(map(len, data)) > VALUE_BYTES_MAX:
        i, size = next((i, len(it)) for i, it in enumerate(data) if len(it) > VALUE_BYTES_MAX)
        text = f"expected a value of {VALUE_BYTES_MAX} bytes at most, found {size}"
        raise RestError(first + i * step, text)


def _decode_keys(frames: Frames) -> list[bytes]:
    _check_keys(frames)
    return list(frames)


def _encode_pairs(pairs: Pairs) -> list[bytes]:
    return list(chain.from_iterable(zip(*pairs, strict=True)))


def _decode_pairs(frames: Frames, first: int = 0) -> tuple[list[bytes], list[bytes]]:
    if len(frames) % 2:
        raise OddKeyError(first + len(frames) - 1, "expected a value behind the key, found none")
    keys, data = list(frames[::2]), list(frames[1::2])
    _check_keys(keys, first, 2)
    _check_values(data, first + 1)
    return keys, data


def column_at(frames: Frames, offset: int) -> list[bytes]:
    """The items of the column that begins at this frame."""
    if len(frames) < offset + 2:
        raise RestError(len(frames), "expected a column of two frames, found its end")
    try:
        return columns.split(frames[offset], frames[offset + 1])
    except ValueError as error:
        raise RestError(offset, str(error)) from None


def _decode_key_column(frames: Frames) -> list[bytes]:
    keys = column_at(frames, 0)
    _check_keys(keys, 1, 0)
    return keys


def _decode_columns(frames: Frames) -> tuple[list[bytes], list[bytes]]:
    keys, data = _decode_key_column(frames), column_at(frames, 2)
    if len(keys) != len(data):
        raise RestError(2, f"expected {len(keys)} values, found {len(data)}")
    _check_values(data, 3, 0)
    return keys, data


def _encode_columns(pairs: Pairs) -> list[bytes]:
    return [*columns.join(pairs[0]), *columns.join(pairs[1])]


KEYS = RestType("key", list, _decode_keys)
PAIRS = RestType("key, value", _encode_pairs, _decode_pairs)
KEY_COLUMN = RestType("column", columns.join, _decode_key_column)
COLUMNS = RestType("columns", _encode_columns, _decode_columns)


# ---- the mapper with its parameters ----


def _encode_mapper(value: tuple[list[tuple[bytes, bytes]], bytes]) -> list[bytes]:
    return [*chain.from_iterable(value[0]), b"", value[1]]


def _decode_parameters(frames: Frames) -> tuple[list[tuple[bytes, bytes]], bytes]:
    end = next((place for place in range(0, len(frames), 2) if not frames[place]), None)
    pairs = _decode_pairs(frames if end is None else frames[:end])
    if end is None or end + 1 == len(frames):
        raise RestError(len(frames), "expected an empty frame and the mapper, found none")
    try:
        mapper = _decode_mapper(frames[end + 1])
    except RemoteProtocolError as error:
        raise RestError(end + 1, str(error)) from None
    return list(zip(*pairs, strict=True)), mapper


MAPPER = RestType("key, value ... empty, mapper", _encode_mapper, _decode_parameters)


# ---- writes of several tables ----


def _encode_modifications(parts: Sequence[ops.Op]) -> Iterator[bytes]:
    for part in parts:
        match part:
            case ops.Put():
                yield _MODIFICATION.pack(part.table, len(part.keys), values.MODIFY_PUT)
                yield from _encode_pairs((part.keys, part.values))
            case ops.Delete():
                yield _MODIFICATION.pack(part.table, len(part.keys), values.MODIFY_DELETE)
                yield from part.keys
            case _:
                raise ValueError(f"{type(part).__name__} has no place in a multi-table write")


def _decode_modifications(frames: Frames) -> list[ops.Op]:
    parts: list[ops.Op] = []
    place = 0
    while place < len(frames):
        if len(frames[place]) != _MODIFICATION.size:
            raise RestError(place, f"expected 9 bytes, found {len(frames[place])}")
        table, count, kind = _MODIFICATION.unpack(frames[place])
        if kind not in (values.MODIFY_PUT, values.MODIFY_DELETE):
            raise RestError(place, f"expected a modification 0 or 1, found {kind}")
        put = kind == values.MODIFY_PUT
        first, end = place + 1, place + 1 + (2 * count if put else count)
        if end > len(frames) + put:  # A put may lack its last value: an odd key.
            raise RestError(place, f"expected {count} sets, found {len(frames) - first} frames")
        if put:
            parts.append(ops.Put(table, *_decode_pairs(frames[first:end], first)))
        else:
            _check_keys(frames[first:end], first)
            parts.append(ops.Delete(table, list(frames[first:end])))
        place = end
    return parts


MODIFICATIONS = RestType("modification", _encode_modifications, _decode_modifications)


# ---- transactions ----

_WITH_VALUE: dict[int, type[ops.Put | ops.Increment | ops.Append]] = {
    ops.PUT: ops.Put,
    ops.INCREMENT: ops.Increment,
    ops.APPEND: ops.Append,
}
Branches = tuple[Sequence[ops.Compare], Sequence[ops.Op], Sequence[ops.Op]]


def _encode_transaction(value: Branches) -> Iterator[bytes]:
    compares, then, otherwise = value
    yield _COUNTS.pack(len(compares), len(then), len(otherwise))
    for compare in compares:
        yield _KIND_AND_TABLE.pack(compare.kind, compare.table)
        yield from (compare.key, compare.operand)
    for step in (*then, *otherwise):
        match step:
            case ops.Get(keys=[key]):
                frames = ops.GET, key, b""
            case ops.Put(keys=[key], values=[value_]):
                frames = ops.PUT, key, value_
            case ops.Increment(keys=[key], values=[value_]):
                frames = ops.INCREMENT, key, value_
            case ops.Append(keys=[key], values=[value_]):
                frames = ops.APPEND, key, value_
            case ops.Delete(keys=[key]):
                frames = ops.DELETE, key, b""
            case ops.DeleteRange():
                frames = ops.DELETE_RANGE, step.start, step.end
            case ops.GetRange():
                yield _RANGE_HEAD.pack(ops.GET_RANGE, step.table, step.limit)
                yield from (step.start, step.end)
                continue
            case _:
                raise ValueError(f"{step} has no place in a transaction")
        yield _KIND_AND_TABLE.pack(frames[0], step.table)
        yield from frames[1:]


def _decode_transaction(frames: Frames) -> Branches:
    if not frames or len(frames[0]) != _COUNTS.size:
        raise RestError(0, f"expected 12 bytes of counts, found {len(b''.join(frames[:1]))}")
    sizes = _COUNTS.unpack(frames[0])
    if max(sizes) > values.COMPARES_MAX:
        raise RestError(0, f"expected {values.COMPARES_MAX} of each at most, found {max(sizes)}")
    if 1 + 3 * sum(sizes) > len(frames):
        raise RestError(0, f"expected {1 + 3 * sum(sizes)} frames, found {len(frames)}")
    steps = [_decode_step(frames, 1 + 3 * i, i < sizes[0]) for i in range(sum(sizes))]
    then = sizes[0] + sizes[1]
    return steps[: sizes[0]], steps[sizes[0] : then], steps[then:]  # type: ignore[return-value]


def _decode_step(frames: Frames, place: int, compares: bool) -> ops.Compare | ops.Op:
    """Decodes three frames: u8 kind and u32 table, key, operand."""
    head, limit = frames[place], list[int]()
    if not compares and head[:1] == bytes([ops.GET_RANGE]) and len(head) == _RANGE_HEAD.size:
        kind, table, *limit = _RANGE_HEAD.unpack(head)
    elif len(head) != _KIND_AND_TABLE.size:
        raise RestError(place, f"expected 5 bytes, found {len(head)}")
    else:
        kind, table = _KIND_AND_TABLE.unpack(head)
    key, operand = frames[place + 1 : place + 3]
    if limit or (kind == ops.DELETE_RANGE and not compares):
        for number, bound in enumerate((key, operand), place + 1):
            if len(bound) > KEY_BYTES_MAX:
                raise RestError(
                    number, f"expected {KEY_BYTES_MAX} bytes at most, found {len(bound)}"
                )
        if limit:
            return ops.GetRange(table, key, operand, *limit)
        return ops.DeleteRange(table, key, operand)
    known = ops.COMPARE_KINDS if compares else (ops.GET, ops.DELETE, *_WITH_VALUE)
    if kind not in known:
        what = "compare" if compares else "operation"
        raise RestError(place, f"{kind:#04x} is no {what} of a transaction")
    _check_keys([key], place + 1)
    if compares or kind in _WITH_VALUE:
        _check_values([operand], place + 2)
    if compares:
        if kind == ops.ALIVE and len(key) != 8:
            raise RestError(place + 1, f"expected 8 bytes of session, found {len(key)}")
        if kind >= ops.VERSION_INDEX and len(operand) != ops.NUMBER_BYTES:
            raise RestError(place + 2, f"expected 8 bytes of a number, found {len(operand)}")
        return ops.Compare(table, key, kind, operand)
    if kind in _WITH_VALUE:
        if kind == ops.INCREMENT and not is_number(operand):
            raise RestError(place + 2, "expected a whole number of decimal digits")
        return _WITH_VALUE[kind](table, [key], [operand])
    return ops.Delete(table, [key]) if kind == ops.DELETE else ops.Get(table, [key])


TRANSACTION = RestType("transaction", _encode_transaction, _decode_transaction)
