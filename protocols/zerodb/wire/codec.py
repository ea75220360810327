"""Decodes requests of ZeroDB; each decode_* has the table of its request's frames.

Frame 0 is the header: the caller has removed the routing id and a REQ socket's empty frame. Surplus
frames are ignored. answers.py has the answers, client_codec.py the encoders
(docs/protocols/zerodb.md).
"""

import struct
from collections.abc import Callable, Sequence

from . import columns, ops, requests, values
from .requests import TYPES, Request, RequestError
from .values import (
    HEADER_BYTES_MIN,
    KEY_BYTES_MAX,
    MAGIC,
    NO_EXTENSION,
    PACKED,
    VALUE_BYTES_MAX,
    VERSION,
    Extension,
    decode_extension,
    echoed,
)

Frames = Sequence[bytes]

# Where the extension begins: behind the header of the specification with its optional flags.
_FLAGGED = values.WRITE_TYPES | {values.OPEN_TABLE}
_PLACE = struct.Struct("<BI")
_MODIFICATION = struct.Struct("<IIB")
_COUNTS = struct.Struct("<III")

# Types whose errors have the code 0x10; other types have 0x01.
_REQUEST_ERRORS = frozenset(
    {
        values.OPEN_TABLE,
        values.CLOSE_TABLE,
        values.READ,
        values.COUNT,
        values.EXISTS,
        values.SCAN,
        values.SPLIT_POINTS,
        values.TABLE_INFO,
        values.WATCH,
        values.FORWARD_RANGE,
        values.RANGE_JOB,
    }
)


def error_code(request_type: int) -> int:
    """The error code of this request type."""
    return values.REQUEST_ERROR if request_type in _REQUEST_ERRORS else values.ERROR


def peek(frames: Frames) -> tuple[int, int | None]:
    """The type and the table of a request, without a check of its frames. (PROTOCOL_ERROR, None):
    unknown request. Table None: it has none, or frame 1 is malformed."""
    header = frames[0] if frames else b""
    if len(header) < HEADER_BYTES_MIN or header[0] != MAGIC or header[1] != VERSION:
        return values.PROTOCOL_ERROR, None
    request_type = header[2]
    if request_type not in _DECODERS:
        return values.PROTOCOL_ERROR, None
    if request_type in _WITHOUT_TABLE or len(frames) < 2:
        return request_type, None
    if request_type == values.WRITE_TABLES and len(frames[1]) == _MODIFICATION.size:
        return request_type, int.from_bytes(frames[1][:4], "little")
    number = frames[1]
    return request_type, int.from_bytes(number, "little") if len(number) == 4 else None


def decode_request(frames: Frames) -> Request:
    """Decodes any request.

    frames   0 header  0x31, version 1, type; then what the type defines, then the extension

    Raises RequestError with the frame, what was expected and what was found. Its type is
    PROTOCOL_ERROR for an unknown magic, version or type.
    """
    header = frames[0] if frames else b""
    if len(header) < HEADER_BYTES_MIN:
        raise _protocol_error(f"expected a header of 3 bytes or more, found {len(header)}")
    magic, version, request_type = header[:3]
    if magic != MAGIC or version != VERSION:
        raise _protocol_error(f"expected 3101 as the first bytes, found {header[:2].hex()}")
    decoder = _DECODERS.get(request_type)
    if decoder is None:
        raise _protocol_error(f"request type {request_type:#04x} is unknown")
    flagged = request_type in _FLAGGED
    flags = header[3] if flagged and len(header) > HEADER_BYTES_MIN else 0
    extension = NO_EXTENSION
    try:
        if len(header) > HEADER_BYTES_MIN:
            extension = decode_extension(header, 4 if flagged else 3)
        return decoder(frames, flags, extension)
    except ValueError as problem:
        if extension is NO_EXTENSION:
            extension = echoed(header, 4 if flagged else 3)
        odd = isinstance(problem, _OddKeyError)
        code = values.REQUEST_ERROR if odd else error_code(request_type)
        error = RequestError(request_type, code, str(problem), extension)
        error.flags = flags
        raise error from None


class _OddKeyError(ValueError):
    """A key without a value; the specification has a code for it."""


def _protocol_error(text: str) -> RequestError:
    return RequestError(values.PROTOCOL_ERROR, values.ERROR, f"frame 0: {text}")


# ---- frames ----


def _frame(frames: Frames, place: int, name: str) -> bytes:
    if place >= len(frames):
        raise ValueError(f"frame {place}: expected the {name}, found {len(frames)} frames")
    return frames[place]


def _number(frames: Frames, place: int, name: str, size: int) -> int:
    frame = _frame(frames, place, name)
    if len(frame) != size:
        raise ValueError(f"frame {place}: expected {size} bytes of {name}, found {len(frame)}")
    return int.from_bytes(frame, "little")


def _optional(frames: Frames, place: int, name: str, size: int) -> int | None:
    """A number, or None if its frame is empty."""
    frame = _frame(frames, place, name)
    return _number(frames, place, name, size) if frame else None


def _table(frames: Frames, place: int = 1) -> int:
    return _number(frames, place, "table number", 4)


def _bound(frames: Frames, place: int, name: str) -> bytes:
    """A start or end key; it may be empty."""
    frame = _frame(frames, place, name)
    if len(frame) > KEY_BYTES_MAX:
        raise ValueError(
            f"frame {place}: expected a {name} of {KEY_BYTES_MAX} bytes at most, found {len(frame)}"
        )
    return frame


def _check_keys(keys: Frames, first: int, step: int) -> None:
    """Checks that keys in the frames first, first + step ... have 1 to KEY_BYTES_MAX bytes."""
    sizes = list(map(len, keys))
    if sizes and (not min(sizes) or max(sizes) > KEY_BYTES_MAX):
        i, size = next((i, size) for i, size in enumerate(sizes) if not 0 < size <= KEY_BYTES_MAX)
        raise ValueError(
            f"frame {first + i * step}: expected a key of 1 to {KEY_BYTES_MAX} bytes, found {size}"
        )


def _check_values(data: Frames, first: int) -> None:
    sizes = list(map(len, data))
    if sizes and max(sizes) > VALUE_BYTES_MAX:
        i = next(i for i, size in enumerate(sizes) if size > VALUE_BYTES_MAX)
        raise ValueError(
            f"frame {first + 2 * i}: expected a value of {VALUE_BYTES_MAX} bytes at most,"
            f" found {sizes[i]}"
        )


def _keys(frames: Frames, extension: Extension) -> list[bytes]:
    """The keys of frames 2 to n, or of the packed column in frames 2 and 3."""
    if extension.flags & PACKED:
        keys = columns.split(_frame(frames, 2, "key offsets"), _frame(frames, 3, "keys"), 2)
        _check_packed(keys, 3)
    else:
        keys = list(frames[2:])
        _check_keys(keys, 2, 1)
    return keys


def _check_packed(keys: list[bytes], place: int) -> None:
    sizes = list(map(len, keys))
    if sizes and (not min(sizes) or max(sizes) > KEY_BYTES_MAX):
        size = min(sizes) and max(sizes)
        raise ValueError(
            f"frame {place}: expected keys of 1 to {KEY_BYTES_MAX} bytes, found {size}"
        )


def _pairs(frames: Frames, first: int) -> tuple[list[bytes], list[bytes]]:
    """Alternating keys and values from frame `first` on."""
    if (len(frames) - first) % 2:
        raise _OddKeyError(f"frame {len(frames) - 1}: expected a value behind the key, found none")
    keys, data = list(frames[first::2]), list(frames[first + 1 :: 2])
    _check_keys(keys, first, 2)
    _check_values(data, first + 1)
    return keys, data


# ---- meta requests ----


def decode_server_info(frames: Frames, flags: int, extension: Extension) -> requests.ServerInfo:
    """Decodes a server info request.

    frames   0 header  31 01 00
    """
    return requests.ServerInfo(extension)


def decode_open_table(frames: Frames, flags: int, extension: Extension) -> requests.OpenTable:
    """Decodes an open table request.

    frames   0 header  31 01 01, u8 flags: 1 without compression
             1 u32     table
             2 u64     LRU cache, bytes           empty or missing: the default
             3 u64     block, bytes               empty or missing: the default
             4 u64     write buffer, bytes        empty or missing: the default
             5 u64     bloom filter bits per key  empty or missing: no filter
    """
    table = _table(frames)
    numbers = list(values.TableOptions())[:4]
    for place, (name, smallest, largest) in enumerate(values.OPTION_LIMITS, 2):
        number = _optional(frames, place, name, 8) if place < len(frames) else None
        if number is None:
            continue
        if not smallest <= number <= largest:
            raise ValueError(
                f"frame {place}: expected a {name} of {smallest} to {largest}, found {number}"
            )
        numbers[place - 2] = number
    cache, block, write_buffer, bloom = numbers
    compression = not flags & values.NOCOMPRESSION
    options = values.TableOptions(cache, block, write_buffer, bloom, compression)
    return requests.OpenTable(table, options, extension)


def decode_close_table(frames: Frames, flags: int, extension: Extension) -> requests.CloseTable:
    """Decodes a close table request.

    frames   0 header  31 01 02
             1 u32     table
    """
    return requests.CloseTable(_table(frames), extension)


def decode_compact_table(frames: Frames, flags: int, extension: Extension) -> requests.CompactTable:
    """Decodes a compact table request.

    frames   0 header  31 01 03
             1 u32     table
             2 bytes   start key, inclusive; empty: the first
             3 bytes   end key, inclusive; empty: the last
    """
    table = _table(frames)
    start, end = _bound(frames, 2, "start key"), _bound(frames, 3, "end key")
    return requests.CompactTable(table, start, end, extension)


def decode_truncate_table(
    frames: Frames, flags: int, extension: Extension
) -> requests.TruncateTable:
    """Decodes a truncate table request.

    frames   0 header  31 01 04
             1 u32     table
    """
    return requests.TruncateTable(_table(frames), extension)


# ---- reads ----


def decode_read(frames: Frames, flags: int, extension: Extension) -> requests.Read:
    """Decodes a read request.

    frames   0 header  31 01 10
             1 u32     table
             2.. bytes keys; packed: 2 offsets, 3 keys, joined
    """
    return requests.Read(_table(frames), _keys(frames, extension), extension)


def decode_count(frames: Frames, flags: int, extension: Extension) -> requests.Count:
    """Decodes a count request.

    frames   0 header  31 01 11
             1 u32     table
             2 bytes   start key, inclusive; empty or missing: the first
             3 bytes   end key, inclusive; empty or missing: the last
    """
    start = _bound(frames, 2, "start key") if len(frames) > 2 else b""
    end = _bound(frames, 3, "end key") if len(frames) > 3 else b""
    return requests.Count(_table(frames), start, end, extension)


def decode_exists(frames: Frames, flags: int, extension: Extension) -> requests.Exists:
    """Decodes an exists request.

    frames   0 header  31 01 12
             1 u32     table
             2.. bytes keys; packed: 2 offsets, 3 keys, joined
    """
    return requests.Exists(_table(frames), _keys(frames, extension), extension)


def decode_scan(frames: Frames, flags: int, extension: Extension) -> requests.Scan:
    """Decodes a scan request.

    frames   0 header  31 01 13
             1 u32     table
             2 u64     limit, pairs; empty: none; 0: nothing
             3 bytes   start key, inclusive; empty: the first
             4 bytes   end key, exclusive; empty: to the last
    """
    table, limit = _table(frames), _optional(frames, 2, "limit", 8)
    start, end = _bound(frames, 3, "start key"), _bound(frames, 4, "end key")
    return requests.Scan(table, limit, start, end, extension)


def decode_split_points(frames: Frames, flags: int, extension: Extension) -> requests.SplitPoints:
    """Decodes a split points request.

    frames   0 header  31 01 14
             1 u32     table
             2 u32     parts
             3 bytes   start key, inclusive; empty: the first
             4 bytes   end key, exclusive; empty: to the last
    """
    table, parts = _table(frames), _number(frames, 2, "number of parts", 4)
    if not 0 < parts <= values.SPLIT_POINTS_MAX:
        raise ValueError(f"frame 2: expected 1 to {values.SPLIT_POINTS_MAX} parts, found {parts}")
    start, end = _bound(frames, 3, "start key"), _bound(frames, 4, "end key")
    return requests.SplitPoints(table, parts, start, end, extension)


def decode_table_info(frames: Frames, flags: int, extension: Extension) -> requests.TableInfo:
    """Decodes a table info request.

    frames   0 header  31 01 15
             1 u32     table; empty or missing: all tables
             2 u8      1: with a hash of the content; empty or missing: without
    """
    table = _optional(frames, 1, "table number", 4) if len(frames) > 1 else None
    content = _optional(frames, 2, "flags", 1) if len(frames) > 2 else None
    return requests.TableInfo(table, bool((content or 0) & 1), extension)


def decode_watch(frames: Frames, flags: int, extension: Extension) -> requests.Watch:
    """Decodes a watch request.

    frames   0 header  31 01 16
             1 u32     table
             2 bytes   start key, inclusive; empty: the first
             3 bytes   end key, exclusive; empty: to the last
             4 u64     the first LOG INDEX; 0: only say where to begin
    """
    table = _table(frames)
    start, end = _bound(frames, 2, "start key"), _bound(frames, 3, "end key")
    index = _number(frames, 4, "index", 8)
    return requests.Watch(table, start, end, index, extension)


# ---- writes ----


def decode_put(frames: Frames, flags: int, extension: Extension) -> requests.Put:
    """Decodes a put request.

    frames   0 header  31 01 20, u8 flags: 1 PARTSYNC, 2 FULLSYNC; missing: 0
             1 u32     table
             2.. bytes key, value, key, value ...
                       packed: 2 key offsets, 3 keys, 4 value offsets, 5 values
    """
    table = _table(frames)
    if not extension.flags & PACKED:
        return requests.Put(table, *_pairs(frames, 2), flags, extension)
    keys = _keys(frames, extension)
    data = columns.split(_frame(frames, 4, "value offsets"), _frame(frames, 5, "values"), 4)
    if len(keys) != len(data):
        raise ValueError(f"frame 4: expected {len(keys)} values, found {len(data)}")
    if data and max(map(len, data)) > VALUE_BYTES_MAX:
        size = max(map(len, data))
        raise ValueError(
            f"frame 5: expected values of {VALUE_BYTES_MAX} bytes at most, found {size}"
        )
    return requests.Put(table, keys, data, flags, extension)


def decode_delete(frames: Frames, flags: int, extension: Extension) -> requests.Delete:
    """Decodes a delete request.

    frames   0 header  31 01 21, u8 flags; missing: 0
             1 u32     table
             2.. bytes keys; packed: 2 offsets, 3 keys, joined
    """
    return requests.Delete(_table(frames), _keys(frames, extension), flags, extension)


def decode_delete_range(frames: Frames, flags: int, extension: Extension) -> requests.DeleteRange:
    """Decodes a delete range request.

    frames   0 header  31 01 22, u8 flags; missing: 0
             1 u32     table
             2 bytes   start key, inclusive; empty: the first
             3 bytes   end key, exclusive; empty: to the last
    """
    table = _table(frames)
    start, end = _bound(frames, 2, "start key"), _bound(frames, 3, "end key")
    return requests.DeleteRange(table, start, end, flags, extension)


def decode_delete_limited(
    frames: Frames, flags: int, extension: Extension
) -> requests.DeleteLimited:
    """Decodes a delete limited request.

    frames   0 header  31 01 23, u8 flags; missing: 0
             1 u32     table
             2 bytes   start key, inclusive; empty: the first
             3 u64     limit, keys
    """
    table = _table(frames)
    start, limit = _bound(frames, 2, "start key"), _number(frames, 3, "limit", 8)
    return requests.DeleteLimited(table, start, limit, flags, extension)


def decode_write_tables(frames: Frames, flags: int, extension: Extension) -> requests.WriteTables:
    """Decodes a write tables request.

    frames   0 header  31 01 24, u8 flags; missing: 0
             then any number of: 9 bytes (u32 table, u32 count, u8: 0 put, 1 delete) and
             count x (key, value), or count x key
    """
    parts: list[ops.Op] = []
    place = 1
    while place < len(frames):
        if len(frames[place]) != _MODIFICATION.size:
            raise ValueError(
                f"frame {place}: expected 9 bytes of modification, found {len(frames[place])}"
            )
        table, count, kind = _MODIFICATION.unpack(frames[place])
        if kind not in (values.MODIFY_PUT, values.MODIFY_DELETE):
            raise ValueError(f"frame {place}: expected a modification 0 or 1, found {kind}")
        put = kind == values.MODIFY_PUT
        first, end = place + 1, place + 1 + count * (2 if put else 1)
        if put and end == len(frames) + 1:
            raise _OddKeyError(
                f"frame {len(frames) - 1}: expected a value behind the key, found none"
            )
        if end > len(frames):
            raise ValueError(
                f"frame {place}: expected {count} sets, found {len(frames) - first} frames"
            )
        if put:
            keys, data = list(frames[first:end:2]), list(frames[first + 1 : end : 2])
            _check_values(data, first + 1)
            parts.append(ops.Put(table, keys, data))
        else:
            keys = list(frames[first:end])
            parts.append(ops.Delete(table, keys))
        _check_keys(keys, first, 2 if put else 1)
        place = end
    return requests.WriteTables(parts, flags, extension)


def decode_transaction(frames: Frames, flags: int, extension: Extension) -> requests.Transaction:
    """Decodes a transaction request.

    frames   0 header  31 01 25, u8 flags; missing: 0
             1 12 bytes  u32 compares, u32 operations then, u32 operations else
             then three frames for each compare: (u8 kind, u32 table), key, operand
             and for each operation: (u8 operation, u32 table), then
               0x10 get           key, empty
               0x20 put           key, value
               0x21 delete        key, empty
               0x22 delete range  start key, end key; exclusive, empty: to the last
    """
    counts = _frame(frames, 1, "three counts")
    if len(counts) != _COUNTS.size:
        raise ValueError(f"frame 1: expected 12 bytes of counts, found {len(counts)}")
    sizes = _COUNTS.unpack(counts)
    if max(sizes) > values.COMPARES_MAX:
        raise ValueError(
            f"frame 1: expected {values.COMPARES_MAX} of each at most, found {max(sizes)}"
        )
    if 2 + 3 * sum(sizes) > len(frames):
        raise ValueError(f"frame 1: expected {2 + 3 * sum(sizes)} frames, found {len(frames)}")
    compares = [_decode_compare(frames, 2 + 3 * i) for i in range(sizes[0])]
    place = 2 + 3 * sizes[0]
    steps = [_decode_step(frames, place + 3 * i) for i in range(sizes[1] + sizes[2])]
    return requests.Transaction(compares, steps[: sizes[1]], steps[sizes[1] :], flags, extension)


def _kind_and_table(frames: Frames, place: int) -> tuple[int, int]:
    if len(frames[place]) != _PLACE.size:
        raise ValueError(f"frame {place}: expected 5 bytes, found {len(frames[place])}")
    kind, table = _PLACE.unpack(frames[place])
    return kind, table


def _decode_compare(frames: Frames, place: int) -> ops.Compare:
    kind, table = _kind_and_table(frames, place)
    key, operand = frames[place + 1 : place + 3]
    if kind not in ops.COMPARE_KINDS:
        raise ValueError(f"frame {place}: expected a compare 0 to 6, found {kind}")
    if kind == ops.ALIVE and len(key) != 8:
        raise ValueError(f"frame {place + 1}: expected 8 bytes of session, found {len(key)}")
    _check_keys([key], place + 1, 1)
    _check_values([operand], place + 2)
    return ops.Compare(table, key, kind, operand)


def _decode_step(frames: Frames, place: int) -> ops.Op:
    operation, table = _kind_and_table(frames, place)
    key, value = frames[place + 1 : place + 3]
    if operation == ops.DELETE_RANGE:
        _bound(frames, place + 1, "start key")
        _bound(frames, place + 2, "end key")
        return ops.DeleteRange(table, key, value)
    _check_keys([key], place + 1, 1)
    if operation == ops.PUT:
        _check_values([value], place + 2)
        return ops.Put(table, [key], [value])
    if operation == ops.DELETE:
        return ops.Delete(table, [key])
    if operation == ops.GET:
        return ops.Get(table, [key])
    raise ValueError(f"frame {place}: operation {operation:#04x} has no place in a transaction")


def decode_session(frames: Frames, flags: int, extension: Extension) -> requests.Session:
    """Decodes a session request.

    frames   0 header  31 01 26, u8 flags; missing: 0
             1 u8      0 open, 1 keep, 2 end
             2 u64     session; 0 for an open
             3 u64     time to live, ms; for an open
    """
    action = _number(frames, 1, "action", 1)
    if action not in (requests.SESSION_OPEN, requests.SESSION_KEEP, requests.SESSION_END):
        raise ValueError(f"frame 1: expected an action 0 to 2, found {action}")
    session = _number(frames, 2, "session", 8)
    ttl_ms = _number(frames, 3, "time to live", 8)
    if action == requests.SESSION_OPEN and not 0 < ttl_ms <= values.TTL_MS_MAX:
        raise ValueError(
            f"frame 3: expected a time to live of 1 to {values.TTL_MS_MAX}, found {ttl_ms}"
        )
    return requests.Session(action, session, ttl_ms, flags, extension)


# ---- data jobs ----


def decode_forward_range(frames: Frames, flags: int, extension: Extension) -> requests.ForwardRange:
    """Decodes a forward range request.

    frames   0 header  31 01 40
             1 u32     table
             2 bytes   start key, inclusive; empty: the first
             3 bytes   end key, inclusive; empty: the last
             4 u64     limit, pairs; empty: none
    """
    table = _table(frames)
    start, end = _bound(frames, 2, "start key"), _bound(frames, 3, "end key")
    limit = _number(frames, 4, "limit", 8)
    return requests.ForwardRange(table, start, end, limit, extension)


def decode_map_table(frames: Frames, flags: int, extension: Extension) -> requests.MapTable:
    """Decodes a map table request.

    frames   0 header  31 01 41
             1 u32     table that is read
             2 u32     table that is written
             3 u32     worker threads
             4.. bytes parameters: key, value, key, value ...
             n bytes   empty, in a key's place
             n + 1     the mapper
    """
    source, target = _table(frames), _table(frames, 2)
    threads = _number(frames, 3, "number of threads", 4)
    if not 0 < threads <= values.THREADS_MAX:
        raise ValueError(f"frame 3: expected 1 to {values.THREADS_MAX} threads, found {threads}")
    end = next((place for place in range(4, len(frames), 2) if not frames[place]), None)
    if end is None and len(frames) % 2:
        raise _OddKeyError(f"frame {len(frames) - 1}: expected a value behind the key, found none")
    if end is None:
        raise ValueError(f"frame {len(frames)}: expected an empty frame, found none")
    keys, data = _pairs(frames[:end], 4)
    mapper = _frame(frames, end + 1, "mapper")
    if not 0 < len(mapper) <= values.MAPPER_BYTES_MAX:
        raise ValueError(
            f"frame {end + 1}: expected a mapper of 1 to {values.MAPPER_BYTES_MAX} bytes,"
            f" found {len(mapper)}"
        )
    parameters = list(zip(keys, data, strict=True))
    return requests.MapTable(source, target, threads, parameters, mapper, extension)


def decode_range_job(frames: Frames, flags: int, extension: Extension) -> requests.RangeJob:
    """Decodes a range job request.

    frames   0 header  31 01 42
             1 u32     table
             2 u32     pairs in a chunk; empty: the default
             3 bytes   start key, inclusive; empty: the first
             4 bytes   end key, inclusive; empty: the last
    """
    table, chunk = _table(frames), _optional(frames, 2, "chunk size", 4)
    if chunk is not None and not 0 < chunk <= values.CHUNK_PAIRS_MAX:
        raise ValueError(
            f"frame 2: expected a chunk of 1 to {values.CHUNK_PAIRS_MAX} pairs, found {chunk}"
        )
    start, end = _bound(frames, 3, "start key"), _bound(frames, 4, "end key")
    return requests.RangeJob(table, chunk, start, end, extension)


def decode_job_status(frames: Frames, flags: int, extension: Extension) -> requests.JobStatus:
    """Decodes a job status request.

    frames   0 header  31 01 48
             1 u64     APID
    """
    return requests.JobStatus(_number(frames, 1, "APID", 8), extension)


def decode_client_data(frames: Frames, flags: int, extension: Extension) -> requests.ClientData:
    """Decodes a client data request.

    frames   0 header  31 01 50
             1 u64     APID; of another size: as one that is not known
    """
    apid = _number(frames, 1, "APID", 8) if len(frames) > 1 and len(frames[1]) == 8 else None
    return requests.ClientData(apid, extension)


def decode_lease(frames: Frames, flags: int, extension: Extension) -> requests.Lease:
    """Decodes a lease request.

    frames   0 header  31 01 43
             1 u64     lease
             2 u8      0 renew, 1 release, 2 open on all nodes
             3 u32     of an open: table
    """
    lease, action = _number(frames, 1, "lease", 8), _number(frames, 2, "action", 1)
    if action not in (requests.LEASE_RENEW, requests.LEASE_RELEASE, requests.LEASE_OPEN):
        raise ValueError(f"frame 2: expected an action 0 to 2, found {action}")
    table = _number(frames, 3, "table", 4) if action == requests.LEASE_OPEN else 0
    return requests.Lease(lease, action, table, extension)


def decode_copy_table(frames: Frames, flags: int, extension: Extension) -> requests.CopyTable:
    """Decodes a copy table request.

    frames   0 header  31 01 44
             1 u32     table that is read
             2 u32     table that is written
             3 bytes   start key, inclusive; empty: the first
             4 bytes   end key, exclusive; empty: to the last
    """
    source, target = _table(frames), _table(frames, 2)
    start, end = _bound(frames, 3, "start key"), _bound(frames, 4, "end key")
    return requests.CopyTable(source, target, start, end, extension)


def decode_list_jobs(frames: Frames, flags: int, extension: Extension) -> requests.ListJobs:
    """Decodes a list jobs request.

    frames   0 header  31 01 45
             1 u8      0 all that are known, 1 those that run
             2 u32     so many at most
    """
    which, most = _number(frames, 1, "choice", 1), _number(frames, 2, "number of jobs", 4)
    if which > 1:
        raise ValueError(f"frame 1: expected a choice 0 or 1, found {which}")
    if not 0 < most <= values.LISTED_JOBS_MAX:
        raise ValueError(f"frame 2: expected 1 to {values.LISTED_JOBS_MAX} jobs, found {most}")
    return requests.ListJobs(bool(which), most, extension)


def decode_end_job(frames: Frames, flags: int, extension: Extension) -> requests.EndJob:
    """Decodes an end job request.

    frames   0 header  31 01 46
             1 u64     APID
    """
    return requests.EndJob(_number(frames, 1, "APID", 8), extension)


_DECODERS: dict[int, Callable[[Frames, int, Extension], Request]] = {
    values.SERVER_INFO: decode_server_info,
    values.OPEN_TABLE: decode_open_table,
    values.CLOSE_TABLE: decode_close_table,
    values.COMPACT_TABLE: decode_compact_table,
    values.TRUNCATE_TABLE: decode_truncate_table,
    values.READ: decode_read,
    values.COUNT: decode_count,
    values.EXISTS: decode_exists,
    values.SCAN: decode_scan,
    values.SPLIT_POINTS: decode_split_points,
    values.TABLE_INFO: decode_table_info,
    values.WATCH: decode_watch,
    values.PUT: decode_put,
    values.DELETE: decode_delete,
    values.DELETE_RANGE: decode_delete_range,
    values.DELETE_LIMITED: decode_delete_limited,
    values.WRITE_TABLES: decode_write_tables,
    values.TRANSACTION: decode_transaction,
    values.SESSION: decode_session,
    values.FORWARD_RANGE: decode_forward_range,
    values.MAP_TABLE: decode_map_table,
    values.RANGE_JOB: decode_range_job,
    values.JOB_STATUS: decode_job_status,
    values.CLIENT_DATA: decode_client_data,
    values.LEASE: decode_lease,
    values.COPY_TABLE: decode_copy_table,
    values.LIST_JOBS: decode_list_jobs,
    values.END_JOB: decode_end_job,
}
_WITHOUT_TABLE = frozenset(
    {
        values.SERVER_INFO,
        values.TRANSACTION,
        values.SESSION,
        values.JOB_STATUS,
        values.CLIENT_DATA,
        values.LEASE,
        values.LIST_JOBS,
        values.END_JOB,
    }
)
assert set(_DECODERS) == set(TYPES.values())
