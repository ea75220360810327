"""The keys and values of a queue's table.

The table of the queue NAME is `queue.NAME`. A key begins with a letter. JOB is the id of a job, 15
bytes: u8 9 - priority, u48 ms of its first due time, 5 random bytes of the producer, u24 number. So
the id says where the job waits at first.

    r LEVEL DUE JOB              a waiting job, u8 9 - priority and u64 ms (JobRecord)
    l JOB                        the key r of a job that waits at another place than the first
    j JOB                        its body, if that is long; it goes with the job's end
    c SESSION NUMBER             the jobs that a worker has claimed together, two u64 (Group)
    e JOB                        how a job ended (JobEnd)
    x JOB                        a dead letter (JobRecord)
    u KEY                        the job that has this unique key
    p JOB                        progress: fraction, text, ms
    v SESSION                    a worker: name, ms; until its claims are given back
    w SESSION                    a worker that lives: a key under its session
    s SCHEDULE                   u64 ms: the last time of a schedule that was done
    t                            the rate's bucket: u64 us at which it is full

Numbers are big endian, values are one byte, VERSION, and msgpack.

Sources: docs/decisions/0045-queues.md; the bucket is the generic cell rate algorithm (ITU-T I.371).
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Self

import msgpack

from ..errors import TableError

VERSION = b"\x01"
BODY, READY, MOVED, CLAIM, END, DEAD = b"j", b"r", b"l", b"c", b"e", b"x"
UNIQUE, PROGRESS, WORKER, ALIVE, SCHEDULE, BUCKET = b"u", b"p", b"v", b"w", b"s", b"t"

ID_BYTES = 15
PRIORITY_MAX = 9
ERRORS_MAX = 10  # Of a job, the newest.
ERROR_CHARACTERS_MAX = 1000
TIME_MS_MAX = 1 << 47  # The year 6429; later times are mistakes.
NAME_CHARACTERS_MAX = 100
UNIQUE_BYTES_MAX = 1024
BODY_BYTES_MAX = 1 << 20  # Of a job's body, and of a result.
INLINE_BYTES_MAX = 1024  # Of a body within its record.
DONE, CANCELLED, DIED = "done", "cancelled", "dead"


def _packed(values: Any) -> bytes:
    data: bytes = msgpack.packb(values)
    return VERSION + data


def unpacked(data: bytes, least: int, most: int) -> list[Any]:
    """The fields of a value; a later version may add some. Raises TableError."""
    if not data.startswith(VERSION):
        raise TableError(f"a newer kelek wrote this queue: version {data[:1].hex() or 'none'}")
    found: Any = None
    with suppress(ValueError):
        found = msgpack.unpackb(data[1:])
    if not isinstance(found, list) or len(found) < least:
        raise TableError(f"the queue's table holds a value that is not of a queue: {data[:40]!r}")
    return found[:most]


class JobRecord(NamedTuple):
    """A job that has not ended.

    put_ms, due_ms   Unix times
    tries      how often it may fail before it is a dead letter; 0: as the worker says
    unique     its unique key; empty: none
    body       as the codec has it; None: it has a key of its own
    attempts   how often its function has begun, or may have
    alone      its worker ended while it held several jobs: it is claimed alone now
    errors     Unix time in ms and text of the last failures
    """

    put_ms: int
    due_ms: int
    tries: int
    unique: bytes
    body: bytes | None
    attempts: int = 0
    alone: bool = False
    errors: tuple[tuple[int, str], ...] = ()

    def encode(self) -> bytes:
        fresh = self[5:] == (0, False, ())
        return _packed(list(self[:5] if fresh else self))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        *fields, errors = [*unpacked(data, 5, 8), *cls._field_defaults.values()][:8]
        return cls._make([*fields, tuple((at_ms, text) for at_ms, text in errors)])

    def failed(self, now_ms: int, text: str) -> Self:
        errors = (*self.errors, (now_ms, text[:ERROR_CHARACTERS_MAX]))[-ERRORS_MAX:]
        return self._replace(errors=errors)


class Group(NamedTuple):
    """Jobs that a worker has claimed together and not ended.

    since_ms   Unix time
    jobs       their records by id, as they waited: the attempt that began is not counted
    """

    since_ms: int
    jobs: dict[bytes, bytes]

    def encode(self) -> bytes:
        return _packed([self.since_ms, self.jobs])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(*unpacked(data, 2, 2))

    def without(self, jobs: Iterable[bytes]) -> "Group":
        gone = {*jobs}
        left = {job: data for job, data in self.jobs.items() if job not in gone}
        return Group(self.since_ms, left)


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
        return cls(*unpacked(data, 4, 4))


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


def group_key(session: int, number: int) -> bytes:
    return number_key(CLAIM, session) + number.to_bytes(8, "big")


def level_of(job: bytes) -> int:
    """The priority of a job, by its id."""
    return PRIORITY_MAX - job[0]


def ready_key(job: bytes, due_ms: int) -> bytes:
    """Where a job waits."""
    return ReadyKey(level_of(job), due_ms, job).encode()


def first_ready(job: bytes) -> bytes:
    """Where a job waits at first."""
    return ready_key(job, int.from_bytes(job[1:7], "big"))
