"""The operations that write requests become (ops.py)."""

from . import ops, values
from .requests import (
    LOAD_BUILD,
    LOAD_CHUNK,
    LOAD_COMMIT,
    SESSION_KEEP,
    SESSION_OPEN,
    BulkLoad,
    Delete,
    DeleteLimited,
    DeleteRange,
    OpenTable,
    Put,
    Request,
    Session,
    Transaction,
    TruncateTable,
    WriteTables,
)


def operations_of(request: Request, now_ms: int) -> list[ops.Op]:
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
            opened: list[ops.Op] = [ops.Open(request.table, request.options)]
            if request.flags & values.KEEP_VERSIONS:
                opened.append(ops.KeepVersions(request.table))
            return opened
        case TruncateTable():
            return [ops.Truncate(request.table)]
        case Transaction():
            return [_transaction(request, now_ms)]
        case Session():
            return [_session(request, now_ms)]
        case BulkLoad():
            return [_load(request, now_ms + values.LOAD_MS_MAX)]
        case _:
            raise ValueError(f"{type(request).__name__} writes nothing")


def sessions_of(request: Request) -> set[int]:
    """The sessions that a write uses."""
    found = set()
    if isinstance(request, Put | Transaction) and request.extension.lease:
        found.add(request.extension.lease)
    if isinstance(request, Session) and request.action != SESSION_OPEN:
        found.add(request.session)
    if isinstance(request, Transaction):
        keys = [compare.key for compare in request.compares if compare.kind == ops.ALIVE]
        found |= {int.from_bytes(key, "little") for key in keys}
    return found


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
        branch = ops.joined(branch)
        puts = [
            Put(op.table, op.keys, op.values, 0, request.extension)
            for op in branch
            if isinstance(op, ops.Put | ops.Increment | ops.Append)
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


def _load(request: BulkLoad, until_ms: int) -> ops.Op:
    table, load, action, run, chunk, data, chunks, replaces, *_ = request
    if action == LOAD_CHUNK:
        return ops.LoadChunk(table, load, run, chunk, until_ms, data)
    if action == LOAD_BUILD:
        return ops.LoadBuild(table, load, run, chunk, chunks, until_ms)
    if action == LOAD_COMMIT:
        return ops.LoadCommit(table, load, replaces, chunks, until_ms)
    return ops.LoadDrop(table, load)
