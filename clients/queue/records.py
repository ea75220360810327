"""The keys and values of a queue's table.

The table of the queue NAME is `queue.NAME`. A key begins with a letter; JOB has 14 bytes: u48 time
in ms, 5 random bytes, u24 number, so jobs of one producer are in the order of their puts.

    j JOB                        the job, as it was put (JobRecord); it goes with the job's end
    r LEVEL DUE JOB              a waiting job, u8 9 - priority and u64 ms (JobState, or empty)
    l JOB                        the key r of a job that waits again, after a failure
    c SESSION JOB                a job that a worker has claimed, u64 (JobState)
    e JOB                        how a job ended (JobEnd)
    x JOB                        a dead letter (JobState); its j stays
    u KEY                        the job that has this unique key
    p JOB                        progress: fraction, text, ms
    v SESSION                    a worker: name, ms; until its claims are given back
    w SESSION                    a worker that lives: a key under its session
    s SCHEDULE                   u64 ms: the last time of a schedule that was done
    t                            the rate's bucket: u64 ms at which it is full

Numbers are big endian, values are one byte, VERSION, and msgpack.

Sources: docs/decisions/0045-queues.md; the bucket is the generic cell rate algorithm (ITU-T I.371).
"""

from typing import Any, NamedTuple, Self

import msgpack

from ..errors import TableError

VERSION = b"\x01"
JOB, READY, MOVED, CLAIM, END, DEAD = b"j", b"r", b"l", b"c", b"e", b"x"
UNIQUE, PROGRESS, WORKER, ALIVE, SCHEDULE, BUCKET = b"u", b"p", b"v", b"w", b"s", b"t"

ID_BYTES = 14
PRIORITY_MAX = 9
ERRORS_MAX = 10  # Of a job, the newest.
ERROR_CHARACTERS_MAX = 1000
TIME_MS_MAX = 1 << 47  # The year 6429; later times are mistakes.
NAME_CHARACTERS_MAX = 100
UNIQUE_BYTES_MAX = 1024
BODY_BYTES_MAX = 1 << 20  # Of a job's body, and of a result.
DONE, CANCELLED, DIED = "done", "cancelled", "dead"


def _packed(values: Any) -> bytes:
    data: bytes = msgpack.packb(values)
    return VERSION + data


def unpacked(data: bytes, fields: int) -> list[Any]:
    """Raises TableError."""
    if not data.startswith(VERSION):
        raise TableError(f"a newer kelek wrote this queue: version {data[:1].hex() or 'none'}")
    try:
        found: list[Any] = msgpack.unpackb(data[1:])
    except ValueError as error:
        raise TableError(f"the queue's table holds a value that is not of a queue: {error}") from (
            error
        )
    return found[:fields]  # A later version may add some.


class JobRecord(NamedTuple):
    """A job, as it was put.

    put_ms, due_ms   Unix times
    tries            how often it may fail before it is a dead letter; 0: as the worker says
    unique           its unique key; empty: none
    body             as the codec has it
    """

    priority: int
    put_ms: int
    due_ms: int
    tries: int
    unique: bytes
    body: bytes

    def encode(self) -> bytes:
        return _packed(list(self))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(*unpacked(data, 6))


class JobState(NamedTuple):
    """What has happened to a job that has not ended.

    attempts   how often its function has begun, or may have
    alone      its worker ended while it held several jobs: it is claimed alone now
    since_ms   Unix time of the claim, or since when it is a dead letter
    errors     time in ms and text of the last failures
    """

    attempts: int = 0
    alone: bool = False
    since_ms: int = 0
    errors: tuple[tuple[int, str], ...] = ()

    def encode(self) -> bytes:
        return b"" if self == FRESH else _packed(list(self))

    @classmethod
    def decode(cls, data: bytes) -> "JobState":
        if not data:
            return FRESH
        attempts, alone, since_ms, errors = unpacked(data, 4)
        return cls(attempts, alone, since_ms, tuple((at, text) for at, text in errors))

    def failed(self, now_ms: int, text: str) -> "JobState":
        errors = (*self.errors, (now_ms, text[:ERROR_CHARACTERS_MAX]))[-ERRORS_MAX:]
        return self._replace(errors=errors, since_ms=now_ms)


FRESH = JobState()


class JobEnd(NamedTuple):
    """How a job ended.

    state    DONE, CANCELLED or DIED
    at_ms    Unix time
    keep_ms  how long this record is kept
    result   as the codec has it; of a dead letter the text of its last failure
    """

    state: str
    at_ms: int
    keep_ms: int
    result: bytes = b""

    def encode(self) -> bytes:
        return _packed(list(self))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(*unpacked(data, 4))


def encode_progress(fraction: float, text: str, now_ms: int) -> bytes:
    return _packed([fraction, text[:ERROR_CHARACTERS_MAX], now_ms])


def encode_worker(name: str, now_ms: int) -> bytes:
    return _packed([name, now_ms])


# ---- keys ----


class ReadyKey(NamedTuple):
    """The parts of a key of a waiting job."""

    priority: int
    due_ms: int
    job: bytes

    def encode(self) -> bytes:
        return ready_bound(self.priority, self.due_ms) + self.job

    @classmethod
    def decode(cls, key: bytes) -> Self:
        return cls(PRIORITY_MAX - key[1], int.from_bytes(key[2:10], "big"), key[10:])


def ready_bound(priority: int, due_ms: int) -> bytes:
    """The first key of a waiting job of a priority that is due at this time or later."""
    return READY + bytes((PRIORITY_MAX - priority,)) + due_ms.to_bytes(8, "big")


def number_key(kind: bytes, session: int) -> bytes:
    return kind + session.to_bytes(8, "big")


def session_of(key: bytes) -> int:
    """The session in a key of a claim or worker."""
    return int.from_bytes(key[1:9], "big")


def first_ready(job: bytes, record: JobRecord) -> bytes:
    """Where a job waits at first."""
    return ReadyKey(record.priority, record.due_ms, job).encode()
