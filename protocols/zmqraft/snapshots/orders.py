"""What a peer has its snapshot_sender do, and what comes back: values, and frames for their pipe.

Every order may get lost with the process that carries it out; each has somebody who asks again.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from ...errors import LocalProtocolError
from ...raft.messages import EntryBatch

NUMBER_MAX = (1 << 63) - 1


class Snapshot(NamedTuple):
    """A snapshot that is in place; last_index 0: none, or one that only names the members."""

    last_index: int = 0
    last_term: int = 0
    size: int = 0  # Of the container, in bytes, ...
    state_size: int = 0  # ... and of the state in it.
    configuration: bytes = b""  # msgpack, as in a config entry; empty: unknown.


class ReadEntries(NamedTuple):
    """Old entries for a follower: answered by EntriesRead."""

    to: str
    first_index: int
    last_index: int  # The log is known to hold it, ...
    last_term: int  # ... with this term.
    bytes_max: int


class ReadChunk(NamedTuple):
    """A piece of a snapshot for a follower: answered by PieceRead."""

    to: str
    last_index: int  # Of the snapshot, ...
    last_term: int  # ... and of its last entry.
    offset: int
    size: int
    plain: bool  # Of the state alone.


class CreateSnapshot(NamedTuple):
    """A snapshot at this committed entry or a later one: answered by Made."""

    last_index: int
    last_term: int
    configuration: bytes  # When no snapshot and no entry names another one.


class WriteChunk(NamedTuple):
    """A chunk from the leader: answered by Received, or Installed when it was the last missing."""

    last_index: int
    last_term: int
    offset: int
    size: int  # Of the whole.
    chunk: bytes
    configuration: bytes  # Ours, for one in the text's form, which is state alone; else empty.


Order = ReadEntries | ReadChunk | CreateSnapshot | WriteChunk


class EntriesRead(NamedTuple):
    to: str
    first_index: int
    batches: list[EntryBatch]


class ChunkRead(NamedTuple):
    to: str
    last_index: int
    last_term: int
    offset: int
    chunk: bytes
    found: bool  # False: there is no such snapshot any more.


class SnapshotCreated(NamedTuple):
    snapshot: Snapshot | None  # None: there is none, for a reason.
    problem: str = ""


class ChunkWritten(NamedTuple):
    last_index: int
    last_term: int
    offset: int  # What is wanted next.


class SnapshotInstalled(NamedTuple):
    """The last chunk has come, all is checked, durable and in place."""

    snapshot: Snapshot


class SenderStarted(NamedTuple):
    """The process has started: whatever was ordered before is lost."""

    snapshot: Snapshot


Result = (
    EntriesRead | ChunkRead | SnapshotCreated | ChunkWritten | SnapshotInstalled | SenderStarted
)

_KINDS: tuple[type[Order] | type[Result], ...] = (
    ReadEntries,
    ReadChunk,
    CreateSnapshot,
    WriteChunk,
    EntriesRead,
    ChunkRead,
    SnapshotCreated,
    ChunkWritten,
    SnapshotInstalled,
    SenderStarted,
)


def encode_work(epoch: int, work: Order | Result) -> list[bytes]:
    """Frames for the pipe: a map of what is small, then what may be large.

    epoch   of the peer: results of orders that an earlier one gave are not meant for it
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
    """Takes what encode_work() made: (epoch, work). Raises LocalProtocolError on anything else."""
    try:
        kind, epoch, *fields = msgpack.unpackb(frames[0])
        made, large = _KINDS[_checked(int, kind)], iter(frames[1:])
        values = [
            _value(expected, field, large)
            for expected, field in zip(made.__annotations__.values(), fields, strict=True)
        ]
        if next(large, None) is not None:
            raise ValueError("frames that nothing stands for")
        return _checked(int, epoch), made(*values)
    except (ValueError, LookupError, TypeError, StopIteration, msgpack.UnpackException) as error:
        raise LocalProtocolError(f"not an order about snapshots: {error}") from error


def _value(expected: Any, field: Any, large: Iterator[bytes]) -> object:
    """A field of the type that its NamedTuple says. Raises ValueError, TypeError, StopIteration."""
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
    """Takes a result that came through the pipe; None: an earlier peer had ordered it.

    A snapshot that is in place counts for every peer. Raises LocalProtocolError.
    """
    ordered_by, work = decode_work(frames)
    if isinstance(work, Order):
        raise LocalProtocolError("an order where a result belongs")
    if ordered_by == epoch or isinstance(work, SenderStarted):
        return work
    if isinstance(work, SnapshotCreated | SnapshotInstalled) and work.snapshot is not None:
        return SenderStarted(work.snapshot)
    return None
