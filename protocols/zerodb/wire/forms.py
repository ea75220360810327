"""How the fields of packed operations are packed: numbers are little endian (ops.py)."""

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ....native.errors import ETORN, NativeError
from ....native.tables import ops as native_ops
from ...reqids import REQID_BYTES
from .values import (
    BUILD_CHUNKS_MAX,
    CHUNK_BYTES_MAX,
    KEY_BYTES_MAX,
    LOAD_ID_BYTES,
    NO_REQID,
    VALUE_BYTES_MAX,
    TableOptions,
)

PARTS_MAX = 1 << 16
REQID = struct.Struct("<12sIII")  # With three numbers.

_COUNT = struct.Struct("<I")
_SIZES = {columns: struct.Struct(f"<{columns}I") for columns in (1, 2)}  # Of one item.
_OPTIONS = struct.Struct("<QQQQB")
_NUMBER = struct.Struct("<Q")
_CHUNK = struct.Struct(f"<{LOAD_ID_BYTES}sQIQI")
_BUILD = struct.Struct(f"<{LOAD_ID_BYTES}sQIIQ")
_COMMIT = struct.Struct(f"<{LOAD_ID_BYTES}sBQQ")


class Form(NamedTuple):
    """How the fields of an operation behind its table are packed. Numbers are little endian.

    text     as docs/protocols/zerodb.md has it
    pack     takes the fields. Raises ValueError, struct.error
    unpack   returns the fields. Raises ValueError
    """

    text: str
    pack: Callable[..., Iterable[bytes]]
    unpack: Callable[["Reader"], Iterable[Any]]


class Reader:
    """Reads bytes, never beyond the end."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self.data, self.offset = data, offset

    def numbers(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.read(form.size))

    def read(self, size: int) -> bytes:
        start, self.offset = self.offset, self.offset + size
        if self.offset > len(self.data):
            raise ValueError(f"packed operations end at {len(self.data)}, need {self.offset}")
        return self.data[start : self.offset]

    def items(self, columns: int) -> tuple[bytes, ...]:
        """Reads a count, the sizes, and the items of one or two columns."""
        count = self.numbers(_COUNT)[0]
        if count == 1:
            sizes = self.numbers(_SIZES[columns])
            _check_sizes(*sizes)
            return tuple(map(self.read, sizes))
        try:
            items, self.offset = native_ops.cut_sizes(
                self.data, self.offset, len(self.data), count, columns
            )
        except NativeError as error:
            what = "end before their sizes do" if error.code == ETORN else "hold a wrong size"
            raise ValueError(f"packed operations {what}, at {self.offset}") from None
        return items

    def bounds(self, count: int) -> list[bytes]:
        """Reads the sizes of bounds, and the bounds."""
        sizes = struct.unpack(f"<{count}I", self.read(4 * count))
        return _checked_bounds([self.read(size) for size in sizes])


_WRONG_SIZE = (
    f"a key that is empty or over {KEY_BYTES_MAX} bytes, or a value over {VALUE_BYTES_MAX}"
)


def _check_sizes(key: int, value: int = 0) -> None:
    if not 0 < key <= KEY_BYTES_MAX or value > VALUE_BYTES_MAX:
        raise ValueError(_WRONG_SIZE)


def _pack_items(columns: int, items: Sequence[bytes]) -> list[bytes]:
    if len(items) == columns:  # Without a call into C.
        own = [*map(len, items)]
        _check_sizes(*own)
        return [_COUNT.pack(1), _SIZES[columns].pack(*own), *items]
    try:
        sizes = native_ops.pack_sizes(columns, items)
    except NativeError:
        raise ValueError(_WRONG_SIZE) from None
    return [_COUNT.pack(len(items) // columns), sizes, *items]


def _pack_keys(keys: Sequence[bytes]) -> list[bytes]:
    return _pack_items(1, keys)


def _pack_pairs(keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys, {len(values)} values")
    return _pack_items(2, [*chain.from_iterable(zip(keys, values, strict=True))])


def _unpack_pairs(reader: Reader) -> list[list[bytes]]:
    items = reader.items(2)
    return [[*items[::2]], [*items[1::2]]]


def pack_pairs(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The part of a GetRange in the result of its transaction."""
    return b"".join(_pack_items(2, [*chain.from_iterable(pairs)]))


def unpack_pairs(data: bytes) -> list[tuple[bytes, bytes]]:
    """Reads pack_pairs(). Raises ValueError."""
    reader = Reader(data)
    keys, values = _unpack_pairs(reader)
    if reader.offset != len(data):
        raise ValueError(f"pairs end at {reader.offset} of {len(data)} bytes")
    return [*zip(keys, values, strict=True)]


def _checked_bounds(bounds: list[bytes]) -> list[bytes]:
    if max(map(len, bounds)) > KEY_BYTES_MAX:
        raise ValueError(f"a bound of a range over {KEY_BYTES_MAX} bytes")
    return bounds


def _pack_bounds(*bounds: bytes) -> list[bytes]:
    return [*(_COUNT.pack(len(bound)) for bound in bounds), *_checked_bounds([*bounds])]


def _unpack_options(reader: Reader) -> list[TableOptions]:
    cache, block, write_buffer, bloom, compression = reader.numbers(_OPTIONS)
    return [TableOptions(cache, block, write_buffer, bloom, bool(compression))]


def _unpack_limited(reader: Reader) -> tuple[bytes, int]:
    limit = reader.numbers(_NUMBER)[0]
    return reader.bounds(1)[0], limit


def _pack_page(start: bytes, end: bytes, limit: int) -> list[bytes]:
    return [_NUMBER.pack(limit), *_pack_bounds(start, end)]


def _unpack_page(reader: Reader) -> tuple[bytes, bytes, int]:
    limit = reader.numbers(_NUMBER)[0]
    start, end = reader.bounds(2)
    return start, end, limit


def numbers(text: str) -> Form:
    form = struct.Struct("<" + "Q" * text.count("u64"))
    return Form(text, lambda *numbers: [form.pack(*numbers)], lambda reader: reader.numbers(form))


def numbered_keys(number: str) -> Form:
    return Form(
        f"{number}, then as delete",
        lambda number, keys: [_NUMBER.pack(number), *_pack_keys(keys)],
        lambda reader: (*reader.numbers(_NUMBER), [*reader.items(1)]),
    )


def checked_reqid(reqid: bytes) -> bytes:
    if len(reqid or NO_REQID) != REQID_BYTES:
        raise ValueError(f"a reqid of {len(reqid)} bytes")
    return reqid or NO_REQID


def _check_part(part: int, parts: int) -> None:
    if not 0 <= part < parts <= PARTS_MAX:
        raise ValueError(f"part {part} of {parts}")


def _pack_part(reqid: bytes, part: int, parts: int, data: bytes) -> list[bytes]:
    _check_part(part, parts)
    return [REQID.pack(checked_reqid(reqid), part, parts, len(data)), data]


def _unpack_part(reader: Reader) -> tuple[bytes, int, int, bytes]:
    reqid, part, parts, size = reader.numbers(REQID)
    _check_part(part, parts)
    return reqid, part, parts, reader.read(size)


def _checked_load(load: bytes) -> bytes:
    if len(load) != LOAD_ID_BYTES:
        raise ValueError(f"a load of {len(load)} bytes")
    return load


def _pack_chunk(load: bytes, run: int, chunk: int, until_ms: int, data: bytes) -> list[bytes]:
    _check_chunk(len(data))
    return [_CHUNK.pack(_checked_load(load), run, chunk, until_ms, len(data)), data]


def _unpack_chunk(reader: Reader) -> tuple[Any, ...]:
    *fields, size = reader.numbers(_CHUNK)
    _check_chunk(size)
    return *fields, reader.read(size)


def _check_chunk(size: int) -> None:
    if not 0 < size <= CHUNK_BYTES_MAX:
        raise ValueError(f"a chunk of {size} bytes: 1 to {CHUNK_BYTES_MAX}")


def _pack_build(load: bytes, run: int, first: int, count: int, until_ms: int) -> list[bytes]:
    _check_build(first, count)
    return [_BUILD.pack(_checked_load(load), run, first, count, until_ms)]


def _unpack_build(reader: Reader) -> tuple[Any, ...]:
    found = reader.numbers(_BUILD)
    _check_build(*found[2:4])
    return found


def _check_build(first: int, count: int) -> None:
    if not 0 < count <= BUILD_CHUNKS_MAX or first + count > 1 << 32:
        raise ValueError(f"{count} chunks from {first} on: 1 to {BUILD_CHUNKS_MAX}")


def _unpack_commit(reader: Reader) -> tuple[Any, ...]:
    load, replaces, chunks, until_ms = reader.numbers(_COMMIT)
    return load, bool(replaces), chunks, until_ms


KEYS = Form(
    "u32 count; count times u32 key size; keys", _pack_keys, lambda reader: [[*reader.items(1)]]
)
PAIRS = Form(
    "u32 count; count times u32 key size, u32 value size; key, value, key, value ...",
    _pack_pairs,
    _unpack_pairs,
)
BOUNDS = Form(
    "u32 start size, u32 end size, start, end", _pack_bounds, lambda reader: reader.bounds(2)
)
LIMITED = Form(
    "u64 limit, u32 start size, start",
    lambda start, limit: [_NUMBER.pack(limit), *_pack_bounds(start)],
    _unpack_limited,
)
PAGE = Form("u64 limit, u32 start size, u32 end size, start, end", _pack_page, _unpack_page)
OPTIONS = Form(
    "u64 cache, u64 block, u64 write buffer, u64 bloom bits, u8 compression",
    lambda options: [_OPTIONS.pack(*options)],
    _unpack_options,
)
CHUNK = Form(
    "16 bytes load, u64 run, u32 chunk, u64 unix time in ms, u32 size, bytes; alone in its entry",
    _pack_chunk,
    _unpack_chunk,
)
BUILD = Form(
    "16 bytes load, u64 run, u32 first chunk, u32 count, u64 unix time in ms; alone in its entry",
    _pack_build,
    _unpack_build,
)
COMMIT = Form(
    "16 bytes load, u8 replace rows, u64 chunks, u64 unix time in ms; alone in its entry",
    lambda load, *fields: [_COMMIT.pack(_checked_load(load), *fields)],
    _unpack_commit,
)
LOAD = Form(
    "16 bytes load; alone in its entry",
    lambda load: [_checked_load(load)],
    lambda reader: [reader.read(LOAD_ID_BYTES)],
)
PART = Form("12 bytes reqid, u32 part, u32 parts, u32 size, bytes", _pack_part, _unpack_part)
