"""Messages between the processes of one node: zerodb_server, its table_workers and job_server.

Every message to a worker or to job_server, and every report of a worker, begins with PIPE_HEADER.
Every answer that passes zerodb_server on its way to a client begins with ANSWER_TAG.
"""

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgpack

from .kept import KeptRow, decode_kept
from .values import TableOptions

Message = list[bytes]

# Its fields, by the direction of the message:
#   request to a worker     kind, flags, client, the worker's epoch, index to apply first, ticket
#   report of a worker      kind, code, 0, the worker's number, index, the worker's epoch
#   message to job_server   kind, flags, 0, code, index, ticket
# A client is the slot of its key + 1, or 0.
PIPE_HEADER = struct.Struct("<BBHIQQ")
# The worker's number, 0 or PAIRS, the worker's epoch, position within the ticket, ticket.
ANSWER_TAG = struct.Struct("<HHIIQ")
JOB_SERVER = 0xFFFF  # The worker number in tags of job_server, which uses only the ticket.
PAIRS = 1  # The last four frames are columns; the client gets key and value frames.
EPOCH_MASK = 0xFFFFFFFF
LOG_POSITION = struct.Struct("<QQ")  # Index and term.

# Kinds of requests.
REQUEST = 0  # A client's request that is answered.
ONE_WAY = 1  # A client's request that is not answered.
CHECKPOINT = 2  # For job_server: a snapshot of a table.
FAILED = 3  # To job_server: its request failed.
JOB_WRITE = 4  # For job_server: a durable write.
HELLO = 5  # The server has started: the worker repeats all reports.
SERVER_WAITS = 6  # Writes are under way; flag 1: the server waits until they are applied.
RESULT_QUERY = 7  # Repeat the result of an applied transaction, by its reqid.
LEASE = 8  # job_server asks for an entry about a lease; the worker reports that it is applied.
# The grants of a key have changed. To job_server: the frame is the key (server/clients.py). To a
# worker: the header names the client, and the frame has the tables that it may read.
KEY_CHANGED = 9
OWNERS = 10  # To job_server: the keys that own leases of all nodes, and which leases are kept.

# Codes of a worker's LEASE message; its ticket is the lease.
LEASE_OPENED = 0
LEASE_RENEWED = 1
LEASE_ENDED = 2

# Kinds of a worker's reports.
PROGRESS = 0  # The applied index, and outcomes of operations.
# Replicated and local tables, owners of reserved ones, of sessions and leases, kept snapshots.
TABLES = 1
ONE_WAY_FAILURE = 2  # Text: a one-way request failed.
WRITE_STATUS = 3  # Code 1 and the reason: the database refuses writes. Code 0: it accepts them.
NEXT_EXPIRY = 4  # The index is the unix time in ms of the next expiry; 0: there is none.
ROWS = 5  # Where the memory is that holds rows of the worker's tables (native/tables/row_cache.py).
COMPLETED = 6  # The index is a ticket: all requests up to it are completed.

# Flags.
ENVELOPE = 1  # The answer has a REQ socket's empty frame behind the routing id.
RETRYABLE = 2  # A failed request may succeed later.
KEYED = 4  # To job_server: the last frame is the client's key (server/clients.py).

_OUTCOME = struct.Struct("<QII")  # Log index, position of the operation in its entry, size.
_DONE, _REFUSED = b"\0", b"\2"


class OperationResult(NamedTuple):
    """The result of an operation of an entry, as its worker reports it."""

    code: int  # 0, or not 0: all nodes refused the operation; data is the reason.
    data: bytes


_RANGE = struct.Struct("<II")


def encode_ranges(ranges: Iterable[tuple[int, int]]) -> bytes:
    """The frame of KEY_CHANGED to a worker: first and last table of each range."""
    return b"".join(_RANGE.pack(*each) for each in ranges)


def decode_ranges(packed: bytes) -> list[tuple[int, int]]:
    """Raises struct.error."""
    return list(_RANGE.iter_unpack(packed))


def encode_outcome(log_index: int, position: int, data: bytes, problem: str) -> bytes:
    """One item of a PROGRESS report; a problem replaces the data."""
    body = _REFUSED + problem.encode() if problem else _DONE + data
    return _OUTCOME.pack(log_index, position, len(body)) + body


def decode_outcomes(joined: bytes) -> list[tuple[int, OperationResult]]:
    """The items of a PROGRESS report with their log indexes. Raises IndexError, struct.error."""
    found: list[tuple[int, OperationResult]] = []
    offset = 0
    while offset < len(joined):
        index, _, size = _OUTCOME.unpack_from(joined, offset)
        offset += _OUTCOME.size
        data = joined[offset + 1 : offset + size]
        found.append((index, OperationResult(joined[offset], data)))
        offset += size
    return found


def encode_tables(tables: Mapping[int, TableOptions]) -> bytes:
    """A frame of a TABLES report."""
    return bytes(msgpack.packb({number: list(options) for number, options in tables.items()}))


def decode_tables(packed: bytes) -> dict[int, TableOptions]:
    """Raises ValueError, TypeError."""
    unpacked = dict(msgpack.unpackb(packed, strict_map_key=False))
    return {table: TableOptions(*options) for table, options in unpacked.items()}


def encode_owners(pairs: Collection[tuple[bytes, bytes]], key_bytes: int) -> bytes:
    """A frame of a TABLES report: the pairs of OWNER_TABLE with keys of 4 bytes (tables), or of 8
    (sessions and leases of all nodes)."""
    owners = {int.from_bytes(key, "big"): value for key, value in pairs if len(key) == key_bytes}
    return bytes(msgpack.packb(owners))


def decode_owners(packed: bytes) -> dict[int, bytes]:
    """Hashes of owners' tokens by table, or names of keys by session or lease. Raises ValueError,
    TypeError."""
    return dict(msgpack.unpackb(packed, strict_map_key=False))


def encode_kept_rows(rows: Collection[tuple[bytes, bytes]]) -> bytes:
    """A frame of a TABLES report: the rows of SNAPSHOT_TABLE."""
    return bytes(msgpack.packb([*rows]))


def decode_kept_rows(packed: bytes) -> dict[int, KeptRow]:
    """Kept snapshots by lease. Raises ValueError."""
    return {each.lease: each for each in decode_kept(msgpack.unpackb(packed))}
