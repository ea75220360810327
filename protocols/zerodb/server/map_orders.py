"""Messages between job_server, spark_job and Spark's driver about maps that run on Spark.

A message is a kind (1 byte), the job's APID (8 bytes, little endian; 0: no job), and msgpack.
"""

import struct
from typing import Any, NamedTuple, TypeVar

import msgpack

from ...errors import RemoteProtocolError
from ..wire.values import REQUEST_BYTES_MAX

HEAD = struct.Struct("<BQ")
PARTS_MAX = 65_536  # Of a map; each part is a task.
MESSAGE_BYTES_MAX = REQUEST_BYTES_MAX + (1 << 20)  # A mapper and its parameters.

# To Spark.
SETUP = 1  # Setup: the driver's first message.
MAP = 2  # MapOrder
DROP = 3  # End the job if it runs, and empty its fresh table.
# From Spark.
CHECKED = 10  # Spark and Java were found; the JVM starts.
READY = 11  # Maps are accepted. job_server gets it once a second, with DriverReady.
PROGRESS = 12  # Progress
MAPPED = 13  # Mapped: the whole output is in the fresh table.
FAILED = 14  # Trouble
BROKEN = 15  # Trouble: the driver cannot start or continue.
ALIVE = 16  # Keep-alive.
_KINDS = frozenset((SETUP, MAP, DROP, CHECKED, READY, PROGRESS, MAPPED, FAILED, BROKEN, ALIVE))


class Setup(NamedTuple):
    """The driver's settings."""

    name: str  # For Spark's web pages.
    url: str  # Of this node's tables.
    folder: str  # For the driver's files, among them the numbers of fresh tables.
    master: str  # Spark's master; empty: as Spark is configured.
    memory_bytes: int  # Heap of the JVM.
    key_file: str = ""  # The node's key; empty: `url` has no CURVE.
    server_key: str = ""  # Its public key, Z85.

    @property
    def client_keys(self) -> dict[str, Any]:
        """Arguments of clients."""
        return {"key": self.key_file or None, "server_keys": self.server_key or None}


class MapOrder(NamedTuple):
    """A map for Spark."""

    source: int  # The table that is read.
    lease: int  # The snapshot.
    size: int  # Approximate bytes of the table in it.
    parted: bool  # Parts of the table may be mapped in parallel.
    engine: str
    module: bytes
    parameters: bytes  # Packed records.


class DriverReady(NamedTuple):
    """A spark_job that accepts maps."""

    epoch: int  # New at each start.


class MapProgress(NamedTuple):
    """The progress of a map; it counts ended tasks."""

    tasks: int = 0  # Number of all tasks.
    tasks_done: int = 0
    rows: int = 0  # Read.
    size: int = 0  # Of keys and values in bytes.
    chunks: int = 0  # Batches mapped.
    staged: int = 0  # Operations in the fresh table.


class Mapped(NamedTuple):
    """Where the output of a map is."""

    table: int  # The fresh table.
    attempts: list[int]  # The task attempts that count, in the order of their parts.
    progress: list[int]  # The last MapProgress.


class Trouble(NamedTuple):
    """Why Spark cannot continue."""

    reason: str


AnyBody = Setup | MapOrder | DriverReady | MapProgress | Mapped | Trouble
Body = TypeVar("Body", bound=AnyBody)


class Message(NamedTuple):
    """A message with a packed body."""

    kind: int
    apid: int
    data: bytes


def encode(kind: int, apid: int = 0, body: AnyBody | None = None) -> bytes:
    """Encodes a message."""
    packed: bytes = b"" if body is None else msgpack.packb(list(body))
    return HEAD.pack(kind, apid) + packed


def decode(data: bytes) -> Message:
    """Raises RemoteProtocolError on a malformed message."""
    if len(data) < HEAD.size:
        raise RemoteProtocolError(f"an order of {len(data)} bytes")
    kind, apid = HEAD.unpack_from(data)
    if kind not in _KINDS:
        raise RemoteProtocolError(f"an order of kind {kind}")
    return Message(kind, apid, data[HEAD.size :])


def body_of(message: Message, kind: type[Body]) -> Body:
    """The body of a message. Raises RemoteProtocolError unless all fields are there with their
    types, and no number is negative."""
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
    """The key in a fresh table for the mapper's output of one batch, or of the end.

    attempt   number of the task attempt, which Spark uses once
    place     position of the batch within the attempt, from 0
    """
    return struct.pack(">QQ", attempt, place)


def stage_bounds(attempt: int) -> tuple[bytes, bytes]:
    """The range of keys that an attempt has written."""
    return stage_key(attempt, 0), stage_key(attempt, (1 << 64) - 1)
