"""Orders of a peer to its snapshot_sender, their results, and the frames for the pipe between them.

An order may get lost with the process that executes it; its owner then repeats it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import msgpack

from ...errors import LocalProtocolError
from ...raft.messages import EntryBatch

NUMBER_MAX = (1 << 63) - 1


class Snapshot(NamedTuple):
    """An installed snapshot. last_index 0: there is none, or it names the initial members only."""

    last_index: int = 0
    last_term: int = 0
    size: int = 0  # Of the container, in bytes, ...
    state_size: int = 0  # ... and of the state in it.
    configuration: bytes = b""  # msgpack, as in a config entry; empty: unknown.


class ReadEntries(NamedTuple):
    """Reads old entries for a follower. EntriesRead answers."""

    to: str
    first_index: int
    last_index: int  # The log is known to hold this index ...
    last_term: int  # ... with this term.
    bytes_max: int


class ReadChunk(NamedTuple):
    """Reads a chunk of a snapshot for a follower. ChunkRead answers."""

    to: str
    last_index: int  # Of the snapshot, ...
    last_term: int  # ... and of its last entry.
    offset: int
    size: int
    plain: bool  # Of the state alone, not of the container.


class CreateSnapshot(NamedTuple):
    """Creates a snapshot at this committed entry or a later one. SnapshotCreated answers."""

    last_index: int
    last_term: int
    configuration: bytes  # Used when no snapshot and no entry names another one.


class WriteChunk(NamedTuple):
    """Writes a chunk from the leader. ChunkWritten answers; SnapshotInstalled after the last
    chunk."""

    last_index: int
    last_term: int
    offset: int
    size: int  # Of the whole snapshot.
    chunk: bytes
    configuration: bytes  # Ours, for a foreign leader's snapshot, which is state alone; else empty.


Order = ReadEntries | ReadChunk | CreateSnapshot | WriteChunk


class EntriesRead(NamedTuple):
    """The result of ReadEntries."""

    to: str
    first_index: int
    batches: list[EntryBatch]


class ChunkRead(NamedTuple):
    """The result of ReadChunk."""

    to: str
    last_index: int
    last_term: int
    offset: int
    chunk: bytes
    found: bool  # False: that snapshot no longer exists.


class SnapshotCreated(NamedTuple):
    """The result of CreateSnapshot."""

    snapshot: Snapshot | None  # None: it failed, see problem.
    problem: str = ""


class ChunkWritten(NamedTuple):
    """The result of WriteChunk."""

    last_index: int
    last_term: int
    offset: int  # The next offset that is needed.


class SnapshotInstalled(NamedTuple):
    """The last chunk is written: the snapshot is complete, checked, durable and in place."""

    snapshot: Snapshot


class SenderStarted(NamedTuple):
    """The process has started: orders given before are lost."""

    snapshot: Snapshot


Result = (
    EntriesRead | ChunkRead | SnapshotCreated | ChunkWritten | SnapshotInstalled | SenderStarted
)

_KINDS: tuple[type[Order] | type[Result], ...] = (*get_args(Order), *get_args(Result))


def encode_work(epoch: int, work: Order | Result) -> list[bytes]:
    """Encodes an order or result for the pipe: a map of the small fields, then the large ones.

    epoch   of the peer: results of an earlier peer's orders are ignored
    """
    large: list[bytes] = []
    fields: list[object] = [_KINDS.index(type(work)), epoch]
    for value in work:
        if isinstance(value, bytes) and len(value) > 1024:
            fields.append(None)
            large.append(value)
        elif isinstance(value, list):
            fields.append([batch[:3] for batch in value])
            large += [batch.block for batch in value]
        else:
            fields.append(value)
    return [msgpack.packb(fields), *large]


def decode_work(frames: list[bytes]) -> tuple[int, Order | Result]:
    """Decodes frames of encode_work(): (epoch, work). Raises LocalProtocolError on other frames."""
    try:
        kind, epoch, *fields = msgpack.unpackb(frames[0])
        made, large = _KINDS[_checked(int, kind)], iter(frames[1:])
        values = [
            _value(expected, field, large)
            for expected, field in zip(made.__annotations__.values(), fields, strict=True)
        ]
        if next(large, None) is not None:
            raise ValueError("more frames than fields")
        return _checked(int, epoch), made(*values)
    except (ValueError, LookupError, TypeError, StopIteration, msgpack.UnpackException) as error:
        raise LocalProtocolError(f"not an order or result of snapshot_sender: {error}") from error


def _value(expected: Any, field: Any, large: Iterator[bytes]) -> object:
    """Checks a field against its type. Raises ValueError, TypeError or StopIteration."""
    if expected == list[EntryBatch]:
        numbers = [[_checked(int, number) for number in numbers] for numbers in field]
        return [EntryBatch(first, count, term, next(large)) for first, count, term in numbers]
    if expected == Snapshot | None and field is None:
        return None
    if expected in (Snapshot, Snapshot | None):
        parts = zip(Snapshot.__annotations__.values(), _checked(list, field), strict=True)
        return Snapshot(*(_checked(*part) for part in parts))
    return _checked(expected, next(large) if field is None else field)


def _checked(expected: type, value: Any) -> Any:
    fits = type(value) is expected
    if not fits or (expected is int and not 0 <= value <= NUMBER_MAX):
        raise ValueError(f"{value!r:.40} where {expected.__name__} belongs")
    return value


def result_for(epoch: int, frames: list[bytes]) -> Result | None:
    """Decodes a result from the pipe; None when an earlier peer had ordered it.

    An installed snapshot counts for every peer. Raises LocalProtocolError.
    """
    ordered_by, work = decode_work(frames)
    if isinstance(work, Order):
        raise LocalProtocolError("expected a result, got an order")
    if ordered_by == epoch or isinstance(work, SenderStarted):
        return work
    if isinstance(work, SnapshotCreated | SnapshotInstalled) and work.snapshot is not None:
        return SenderStarted(work.snapshot)
    return None
