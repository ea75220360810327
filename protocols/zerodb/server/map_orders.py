"""What job_server, spark_job and Spark's driver say to each other about maps that Spark runs.

A message is a kind (1 byte), the job's APID (8 bytes, little endian; 0: of no job), and msgpack.
"""

import struct
from typing import Any, NamedTuple, TypeVar

import msgpack

from ...errors import RemoteProtocolError
from ..wire.values import REQUEST_BYTES_MAX

HEAD = struct.Struct("<BQ")
PARTS_MAX = 65_536  # Of a map: each is a task.
MESSAGE_BYTES_MAX = REQUEST_BYTES_MAX + (1 << 20)  # A mapper and its parameters.

# To Spark.
SETUP = 1  # Setup: the driver's first message.
MAP = 2  # MapOrder
DROP = 3  # Nobody wants the job any more: it ends, if it runs, and its fresh table goes.
# From it.
CHECKED = 10  # There is Spark, and a Java for it: the JVM is being started.
READY = 11  # Maps are taken. To job_server it is said once a second, as the text of Ready.
PROGRESS = 12  # Progress
MAPPED = 13  # Mapped: everything is in the fresh table.
FAILED = 14  # Trouble
BROKEN = 15  # Trouble: the driver can't go on, or not even start.
ALIVE = 16  # Nothing else is to be said.
_KINDS = frozenset((SETUP, MAP, DROP, CHECKED, READY, PROGRESS, MAPPED, FAILED, BROKEN, ALIVE))


class Setup(NamedTuple):
    """What the driver is told once."""

    name: str  # As Spark's pages show it.
    url: str  # Of this node's tables.
    folder: str  # For its own files; the numbers of fresh tables are kept there.
    master: str  # Where Spark runs; empty: what it is set up for.
    memory_bytes: int  # The JVM's heap.


class MapOrder(NamedTuple):
    """A map that Spark is to run."""

    source: int  # The table that is read,
    lease: int  # in this snapshot,
    size: int  # and about so many bytes of it.
    parted: bool  # Whether parts of the table may be mapped side by side.
    engine: str
    module: bytes
    parameters: bytes  # Packed records.


class DriverReady(NamedTuple):
    """A spark_job that takes maps."""

    epoch: int  # New at each start of it.


class MapProgress(NamedTuple):
    """How far a map is: of the tasks that have ended."""

    tasks: int = 0  # All of them.
    tasks_done: int = 0
    rows: int = 0  # That were read.
    size: int = 0  # Bytes of their keys and values.
    chunks: int = 0  # Batches mapped.
    staged: int = 0  # Operations in the fresh table.


class Mapped(NamedTuple):
    """Where the output of a whole map lies."""

    table: int  # The fresh one.
    attempts: list[int]  # Of the tasks that count, in the order of their parts.
    progress: list[int]  # The last Progress.


class Trouble(NamedTuple):
    """Why something can't go on."""

    reason: str


AnyBody = Setup | MapOrder | DriverReady | MapProgress | Mapped | Trouble
Body = TypeVar("Body", bound=AnyBody)


class Message(NamedTuple):
    """One, with a body that is still packed."""

    kind: int
    apid: int
    data: bytes


def encode(kind: int, apid: int = 0, body: AnyBody | None = None) -> bytes:
    """One message."""
    packed: bytes = b"" if body is None else msgpack.packb(list(body))
    return HEAD.pack(kind, apid) + packed


def decode(data: bytes) -> Message:
    """Raises RemoteProtocolError on what is none."""
    if len(data) < HEAD.size:
        raise RemoteProtocolError(f"an order of {len(data)} bytes")
    kind, apid = HEAD.unpack_from(data)
    if kind not in _KINDS:
        raise RemoteProtocolError(f"an order of kind {kind}")
    return Message(kind, apid, data[HEAD.size :])


def body_of(message: Message, kind: type[Body]) -> Body:
    """The body of a message. Raises RemoteProtocolError unless it has all fields, each of its type
    and no number below 0."""
    try:
        found: Any = msgpack.unpackb(message.data)
    except (ValueError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"an order of kind {message.kind}: {error}") from None
    fields = kind.__annotations__
    if not isinstance(found, list) or len(found) != len(fields):
        raise RemoteProtocolError(f"an order of kind {message.kind} that is no {kind.__name__}")
    for item, (name, wanted) in zip(found, fields.items(), strict=True):
        if not _fits(item, wanted):
            raise RemoteProtocolError(f"a {kind.__name__} whose {name} is {item!r:.40}")
    return kind(*found)


def _fits(item: Any, wanted: Any) -> bool:
    if wanted == list[int]:
        return isinstance(item, list) and all(_fits(one, int) for one in item)
    return type(item) is wanted and (wanted is not int or item >= 0)


def stage_key(attempt: int, place: int) -> bytes:
    """The key of a fresh table's row: what the mapper returned for a batch, or for the end.

    attempt   the task attempt's number, which Spark gives out once
    place     the batch's among those of the attempt, from 0 on
    """
    return struct.pack(">QQ", attempt, place)


def stage_bounds(attempt: int) -> tuple[bytes, bytes]:
    """First key, and the one behind the last, of what an attempt wrote."""
    return stage_key(attempt, 0), stage_key(attempt, (1 << 64) - 1)
