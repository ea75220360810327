"""Encodes requests of ZeroDB for the client; codec.py has the layouts."""

import struct
from itertools import chain

from . import columns, ops, requests, values
from .requests import TYPES, Request
from .values import MAGIC, PACKED, VERSION, encode_extension

_PLACE = struct.Struct("<BI")
_MODIFICATION = struct.Struct("<IIB")
_COUNTS = struct.Struct("<III")


def encode_request(request: Request) -> list[bytes]:
    """Encodes a request; codec.decode_* has the layouts. A Put, Read, Exists or Delete with PACKED
    in its extension becomes columns. The server checks limits, not this function."""
    request_type = TYPES[type(request)]
    header = bytes((MAGIC, VERSION, request_type))
    match request:
        case requests.OpenTable():
            header += bytes((0 if request.options.compression else values.NOCOMPRESSION,))
        case (
            requests.Put()
            | requests.Delete()
            | requests.DeleteRange()
            | requests.DeleteLimited()
            | requests.WriteTables()
            | requests.Transaction()
            | requests.Session()
        ):
            header += bytes((request.flags,))
    return [header + encode_extension(request.extension), *_body(request)]


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _u64(number: int | None) -> bytes:
    return b"" if number is None else number.to_bytes(8, "little")


def _body(request: Request) -> list[bytes]:
    match request:
        case requests.Put():
            if request.extension.flags & PACKED:
                pairs = [*columns.join(request.keys), *columns.join(request.values)]
            else:
                pairs = list(chain.from_iterable(zip(request.keys, request.values, strict=True)))
            return [_u32(request.table), *pairs]
        case requests.Read() | requests.Exists() | requests.Delete():
            packed = request.extension.flags & PACKED
            keys = columns.join(request.keys) if packed else request.keys
            return [_u32(request.table), *keys]
        case requests.Scan():
            limit = _u64(request.limit)
            return [_u32(request.table), limit, request.start, request.end]
        case requests.Count() | requests.CompactTable() | requests.DeleteRange():
            return [_u32(request.table), request.start, request.end]
        case requests.DeleteLimited():
            return [_u32(request.table), request.start, _u64(request.limit)]
        case requests.WriteTables():
            return list(chain.from_iterable(map(_modification, request.parts)))
        case requests.OpenTable():
            return [_u32(request.table), *map(_u64, request.options[:4])]
        case requests.CloseTable() | requests.TruncateTable():
            return [_u32(request.table)]
        case requests.Transaction():
            return _transaction(request)
        case _:
            return _other_body(request)


def _other_body(request: Request) -> list[bytes]:
    """Data jobs and kelek's requests."""
    match request:
        case requests.ForwardRange():
            limit = _u64(request.limit)
            return [_u32(request.table), request.start, request.end, limit]
        case requests.MapTable():
            tables = [_u32(request.source), _u32(request.target), _u32(request.threads)]
            return [*tables, *chain.from_iterable(request.parameters), b"", request.mapper]
        case requests.RangeJob():
            chunk = b"" if request.chunk_pairs is None else _u32(request.chunk_pairs)
            return [_u32(request.table), chunk, request.start, request.end]
        case requests.JobStatus() | requests.ClientData() | requests.EndJob():
            return [_u64(request.apid)]
        case requests.SplitPoints():
            count = _u32(request.parts)
            return [_u32(request.table), count, request.start, request.end]
        case requests.TableInfo():
            table = [] if request.table is None else [_u32(request.table)]
            return [*(table or [b""]), b"\1"] if request.content else table
        case requests.Watch():
            index = _u64(request.from_index)
            return [_u32(request.table), request.start, request.end, index]
        case requests.Session():
            return [bytes((request.action,)), _u64(request.session), _u64(request.ttl_ms)]
        case requests.Lease():
            frames = [_u64(request.lease), bytes((request.action,))]
            opens = request.action == requests.LEASE_OPEN
            return [*frames, _u32(request.table)] if opens else frames
        case requests.CopyTable():
            tables = [_u32(request.source), _u32(request.target)]
            return [*tables, request.start, request.end]
        case requests.ListJobs():
            return [bytes((request.running,)), _u32(request.most)]
        case _:
            return []  # ServerInfo: it has only a header.


def _modification(part: ops.Op) -> list[bytes]:
    match part:
        case ops.Put():
            head = _MODIFICATION.pack(part.table, len(part.keys), values.MODIFY_PUT)
            return [head, *chain.from_iterable(zip(part.keys, part.values, strict=True))]
        case ops.Delete():
            return [
                _MODIFICATION.pack(part.table, len(part.keys), values.MODIFY_DELETE),
                *part.keys,
            ]
        case _:
            raise ValueError(f"{type(part).__name__} has no place in a multi-table write")


def _transaction(request: requests.Transaction) -> list[bytes]:
    counts = len(request.compares), len(request.then), len(request.otherwise)
    frames = [_COUNTS.pack(*counts)]
    for compare in request.compares:
        frames += [_PLACE.pack(compare.kind, compare.table), compare.key, compare.operand]
    for step in (*request.then, *request.otherwise):
        frames += _step(step)
    return frames


def _step(step: ops.Op) -> list[bytes]:
    match step:
        case ops.Get(keys=[key]):
            return [_PLACE.pack(ops.GET, step.table), key, b""]
        case ops.Put(keys=[key], values=[value]):
            return [_PLACE.pack(ops.PUT, step.table), key, value]
        case ops.Delete(keys=[key]):
            return [_PLACE.pack(ops.DELETE, step.table), key, b""]
        case ops.DeleteRange():
            return [_PLACE.pack(ops.DELETE_RANGE, step.table), step.start, step.end]
        case _:
            raise ValueError(f"{step} has no place in a transaction")
