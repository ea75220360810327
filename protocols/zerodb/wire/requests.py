"""Requests of ZeroDB as values, the operations that they become, and their errors.

codec.py declares their frames, and encodes and decodes them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from . import ops, values
from .values import NO_EXTENSION, Extension, TableOptions


class RequestError(Exception):
    """A refused request, which does nothing; answers.encode_refusal()."""

    def __init__(
        self, request_type: int, code: int, text: str, extension: Extension = NO_EXTENSION
    ) -> None:
        super().__init__(text)
        self.flags = 0  # Of a write request: PARTSYNC, FULLSYNC.
        self.request_type = request_type  # PROTOCOL_ERROR: it is not a known request.
        self.code = code
        self.text = text
        self.extension = extension


class ServerInfo(NamedTuple):
    extension: Extension = NO_EXTENSION


class OpenTable(NamedTuple):
    """Its fields are those of TableOptions."""

    table: int
    cache_bytes: int = TableOptions().cache_bytes
    block_bytes: int = TableOptions().block_bytes
    write_buffer_bytes: int = TableOptions().write_buffer_bytes
    bloom_bits: int = TableOptions().bloom_bits
    flags: int = 0  # NOCOMPRESSION
    extension: Extension = NO_EXTENSION

    @property
    def options(self) -> TableOptions:
        return TableOptions(*self[1:5], not self.flags & values.NOCOMPRESSION)


def open_table(table: int, options: TableOptions) -> OpenTable:
    """The request for these options."""
    flags = 0 if options.compression else values.NOCOMPRESSION
    return OpenTable(table, *options[:4], flags=flags)


class CloseTable(NamedTuple):
    table: int
    extension: Extension = NO_EXTENSION


class CompactTable(NamedTuple):
    """start <= key <= end; an empty bound is no bound."""

    table: int
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


class TruncateTable(NamedTuple):
    table: int
    extension: Extension = NO_EXTENSION


class Read(NamedTuple):
    table: int
    keys: list[bytes]
    extension: Extension = NO_EXTENSION


class Count(NamedTuple):
    """start <= key <= end: the end is included. An empty bound is no bound."""

    table: int
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


class Exists(NamedTuple):
    table: int
    keys: list[bytes]
    extension: Extension = NO_EXTENSION


class Scan(NamedTuple):
    """start <= key < end; reverse: from the largest key below end down to start."""

    table: int
    limit: int | None = None  # Of pairs; None: no limit.
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


class Put(NamedTuple):
    table: int
    keys: Sequence[bytes]
    values: Sequence[bytes]
    flags: int = 0  # PARTSYNC, FULLSYNC
    extension: Extension = NO_EXTENSION


class Delete(NamedTuple):
    table: int
    keys: list[bytes]
    flags: int = 0
    extension: Extension = NO_EXTENSION


class DeleteRange(NamedTuple):
    """start <= key < end."""

    table: int
    start: bytes
    end: bytes
    flags: int = 0
    extension: Extension = NO_EXTENSION


class DeleteLimited(NamedTuple):
    table: int
    start: bytes
    limit: int
    flags: int = 0
    extension: Extension = NO_EXTENSION


class WriteTables(NamedTuple):
    """One atomic batch over several tables."""

    parts: list[ops.Op]  # Put and Delete only.
    flags: int = 0
    extension: Extension = NO_EXTENSION


class ForwardRange(NamedTuple):
    """A range job with a limit; start <= key <= end."""

    table: int
    start: bytes
    end: bytes
    limit: int  # Of pairs.
    extension: Extension = NO_EXTENSION


class MapTable(NamedTuple):
    """SSTSMIR: runs a mapper over a snapshot of a table; the output goes into a table."""

    source: int
    target: int
    threads: int
    parameters: list[tuple[bytes, bytes]]
    mapper: bytes
    extension: Extension = NO_EXTENSION


class RangeJob(NamedTuple):
    """CSPTMIR: a snapshot of start <= key <= end, returned in chunks."""

    table: int
    chunk_pairs: int | None = None  # None: the server's default.
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


class JobStatus(NamedTuple):
    apid: int
    extension: Extension = NO_EXTENSION


class ClientData(NamedTuple):
    """The next chunk of a range job. apid None: malformed; the answer is that of an unknown job."""

    apid: int | None = None
    extension: Extension = NO_EXTENSION


# ---- requests of kelek ----


class SplitPoints(NamedTuple):
    """At most parts - 1 keys that split start <= key < end into parts of about equal size."""

    table: int
    parts: int
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


class TableInfo(NamedTuple):
    table: int | None = None  # None: all tables.
    content: bool = False  # With a hash of all keys and values, for which the table is read.
    extension: Extension = NO_EXTENSION


class Watch(NamedTuple):
    """Changes of start <= key < end by entries from an index on; waits for a change until the
    deadline of its extension. Index 0: returns only the index to begin at."""

    table: int
    start: bytes
    end: bytes
    from_index: int
    extension: Extension = NO_EXTENSION


class Transaction(NamedTuple):
    """Runs `then` if all compares hold, else `otherwise`, as one atomic batch. Each operation has
    one key: Get, Put, Delete and DeleteRange."""

    compares: list[ops.Compare]
    then: list[ops.Op]
    otherwise: list[ops.Op]
    flags: int = 0
    extension: Extension = NO_EXTENSION


SESSION_OPEN = 0
SESSION_KEEP = 1
SESSION_END = 2


class Session(NamedTuple):
    """Opens a session, keeps it alive, or ends it with its keys."""

    action: int  # SESSION_OPEN, SESSION_KEEP, SESSION_END
    session: int = 0  # 0 for an open.
    ttl_ms: int = 0  # For an open.
    flags: int = 0
    extension: Extension = NO_EXTENSION


LEASE_RENEW = 0
LEASE_RELEASE = 1
LEASE_OPEN = 2


class Lease(NamedTuple):
    """Renews or releases the lease of a snapshot, or opens a lease on all nodes."""

    lease: int  # 0 for an open.
    action: int  # LEASE_RENEW, LEASE_RELEASE, LEASE_OPEN
    table: int = 0  # For an open.
    extension: Extension = NO_EXTENSION


class CopyTable(NamedTuple):
    """A job that puts start <= key < end of a snapshot of source into target."""

    source: int
    target: int
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


class ListJobs(NamedTuple):
    """The data jobs that a node knows, the newest first."""

    running: bool = False  # Only running ones.
    most: int = values.LISTED_JOBS_MAX
    extension: Extension = NO_EXTENSION


class EndJob(NamedTuple):
    """Ends a running data job; what it has written stays."""

    apid: int
    extension: Extension = NO_EXTENSION


TableRequest = ServerInfo | OpenTable | CloseTable | CompactTable | TruncateTable
ReadRequest = Read | Count | Exists | Scan | SplitPoints | TableInfo | Watch
WriteRequest = Put | Delete | DeleteRange | DeleteLimited | WriteTables | Transaction | Session
SnapshotRequest = ForwardRange | MapTable | RangeJob | CopyTable  # They begin a data job.
JobServerRequest = SnapshotRequest | JobStatus | ClientData | Lease | ListJobs | EndJob
Request = TableRequest | ReadRequest | WriteRequest | JobServerRequest


def operations(request: Request, now_ms: int) -> list[ops.Op]:
    """The operations of a write request, as one batch. Raises ValueError: the request is no write.

    now_ms   unix time at which times to live begin
    """
    match request:
        case Put():
            put = ops.Put(request.table, request.keys, request.values)
            return _while_alive(request, [put, *_bounds(request, now_ms)])
        case Delete():
            return [ops.Delete(request.table, request.keys)]
        case DeleteRange():
            return [ops.DeleteRange(request.table, request.start, request.end)]
        case DeleteLimited():
            return [ops.DeleteLimited(request.table, request.start, request.limit)]
        case WriteTables():
            return request.parts
        case OpenTable():
            return [ops.Open(request.table, request.options)]
        case TruncateTable():
            return [ops.Truncate(request.table)]
        case Transaction():
            return [_transaction(request, now_ms)]
        case Session():
            return [_session(request, now_ms)]
        case _:
            raise ValueError(f"{type(request).__name__} writes nothing")


def _while_alive(request: Put, operations: list[ops.Op]) -> list[ops.Op]:
    """A put with a session becomes a transaction: once the session has ended, nothing changes."""
    session = request.extension.lease
    if not session:
        return operations
    reqid = request.extension.reqid or values.NO_REQID
    alive = _required(request.table, session)
    return [ops.Transaction(request.table, reqid, [alive], operations, [])]


def _required(table: int, session: int) -> ops.Compare:
    return ops.Compare(table, session.to_bytes(8, "little"), ops.ALIVE, ops.REQUIRED)


def _bounds(request: Put, now_ms: int) -> list[ops.Op]:
    """The operations that limit the lifetime of the keys."""
    extension = request.extension
    bounds: list[ops.Op] = []
    if extension.ttl_ms:
        bounds.append(ops.Expiry(request.table, now_ms + extension.ttl_ms, request.keys))
    if extension.lease:
        bounds.append(ops.Attach(request.table, extension.lease, request.keys))
    return bounds


def _transaction(request: Transaction, now_ms: int) -> ops.Transaction:
    def bound(branch: list[ops.Op]) -> list[ops.Op]:
        puts = [
            Put(op.table, op.keys, op.values, 0, request.extension)
            for op in branch
            if isinstance(op, ops.Put)
        ]
        return branch + [op for put in puts for op in _bounds(put, now_ms)]

    tables = [part.table for part in (*request.compares, *request.then, *request.otherwise)]
    table = tables[0] if tables else 0
    session = request.extension.lease
    required = [_required(table, session)] if session else []
    return ops.Transaction(
        table,
        request.extension.reqid or values.NO_REQID,
        [*required, *request.compares],
        bound(request.then),
        bound(request.otherwise),
    )


def _session(request: Session, now_ms: int) -> ops.Op:
    if request.action == SESSION_OPEN:
        return ops.SessionOpen(0, request.ttl_ms, now_ms)
    if request.action == SESSION_KEEP:
        return ops.SessionKeep(0, request.session, now_ms)
    return ops.SessionEnd(0, request.session)
