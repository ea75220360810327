"""The records of durable requests and of their ends, and the segments that the store keeps.

A segment is one key of the store with many records, so that a batch of any size is one write: `r`
segments hold requests, `f` segments their ends.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgpack

from . import values
from .codec import LATE, encode_failure
from .values import Framing

VERSION = 1
REQUESTS = b"r"
ENDS = b"f"
STAMP_BYTES = 8  # Unix time in ms, big-endian: keys are in the order of time.
TOKEN_BYTES = 8
NUMBER_BYTES = 4
KEY_BYTES = 1 + STAMP_BYTES + TOKEN_BYTES + NUMBER_BYTES
SEGMENT_BYTES = 128 << 10  # Of frames, and the record that reaches beyond it.
SEGMENT_RECORDS = 2048
RECORD_BYTES_MAX = 16 << 20  # Of a request, or of all its answers.
RECORD_FRAMES_MAX = 4096
NAME_BYTES_MAX = 255  # Of an identity, and of a request id.
OVERHEAD_BYTES = 512  # That a record takes here besides its frames.
CLOSE = b"titanic.close"

NEVER_DISPATCHED = True, encode_failure(LATE)  # How a request ends that no worker has had.

Name = tuple[bytes, bytes]  # Identity, and request id.
Pair = tuple[bytes, bytes]
Message = list[bytes]


class RequestState(Enum):
    """The progress of a durable request."""

    WRITING = 0  # The store does not have it yet.
    QUEUED = 1
    WORKING = 2  # A worker has it.
    ENDING = 3  # Its FINAL is not written yet.
    DONE = 4


# Attribute access on an Enum is slow.
WRITING, QUEUED, WORKING, ENDING, DONE = RequestState


class DurableRequest:
    """One request, from when it is taken in until its end is forgotten."""

    __slots__ = (
        "answers", "body", "credit", "deadline_unix_ms", "end_segment", "exceeds_limit", "framing",
        "name", "request_segment", "routing_id", "run", "sent_count", "service", "size", "state",
        "titanic_sender",
    )  # fmt: skip

    def __init__(self, name: Name, service: bytes, framing: int) -> None:
        self.name = name
        self.service = service
        self.framing = framing
        self.body: Message = []
        self.deadline_unix_ms = 0  # Unix time of its client's deadline; 0: none.
        self.answers: list[tuple[bool, Message]] = []  # Whether it is the last one, and its body.
        self.size = 0
        self.state: RequestState = WRITING
        self.exceeds_limit = False  # Its answers are more than is kept.
        self.routing_id = b""  # The routing id of its client; empty: it does not ask this broker.
        self.credit: int | None = None  # Of its client for parts; None: it takes them as they come.
        self.run = 0  # Of parts that are told with their place.
        self.sent_count = 0  # Answers that it was told.
        self.titanic_sender: Name | None = None  # Who sent titanic.request.
        self.request_segment: Segment | None = None  # While that is in the store.
        self.end_segment: Segment | None = None

    @property
    def never_dispatched(self) -> bool:
        """Whether it ended without having been with a worker. Who sent titanic.request has to be
        told of that, too: there the end is an answer as any other."""
        return self.answers == [NEVER_DISPATCHED] and self.titanic_sender is None


class Segment:
    """What one key of the store holds."""

    __slots__ = ("has_junk", "is_deleting", "is_written", "key", "records", "size", "unfinished")

    def __init__(self, key: bytes, records: list[DurableRequest], size: int) -> None:
        self.key = key
        self.records = records
        self.size = size
        self.unfinished = 0  # Of requests: those that have not ended.
        self.is_written = False
        self.is_deleting = False
        self.has_junk = False  # Records that nobody here can read: it is never deleted.

    @property
    def created_ms(self) -> int:
        return int.from_bytes(self.key[1 : 1 + STAMP_BYTES], "big")


UNREADABLE = ValueError, TypeError, msgpack.exceptions.UnpackException
DUE_MS_MAX = (1 << 63) - 1


def split(records: list[DurableRequest]) -> Iterator[list[DurableRequest]]:
    """Records of one service each, done or undone, of about SEGMENT_BYTES: so one that nobody
    answers holds up the others' space for no other service."""
    alike: dict[tuple[bytes, bool], list[DurableRequest]] = {}
    for record in records:
        alike.setdefault((record.service, record.never_dispatched), []).append(record)
    for mine in alike.values():
        part: list[DurableRequest] = []
        size = 0
        for record in mine:
            part.append(record)
            size += record.size - OVERHEAD_BYTES
            if size >= SEGMENT_BYTES or len(part) == SEGMENT_RECORDS:
                yield part
                part, size = [], 0
        if part:
            yield part


def pack(service: bytes, rows: list[list[Any]]) -> bytes:
    return bytes(msgpack.packb([VERSION, service, rows]))


def request_row(record: DurableRequest) -> list[Any]:
    identity, request_id = record.name
    return [
        identity,
        request_id,
        record.framing,
        record.deadline_unix_ms,
        record.body,
        record.titanic_sender,
    ]


def end_row(record: DurableRequest) -> list[Any]:
    identity, request_id = record.name
    closes = record.body[:1] if record.service == CLOSE else []
    return [identity, request_id, record.framing, record.answers, closes, record.titanic_sender]


def unpack(value: bytes) -> tuple[bytes, list[Any]]:
    """Raises one of UNREADABLE: it is none of ours."""
    match msgpack.unpackb(value):
        case [version, bytes(service), list(rows)] if version == VERSION:
            pass
        case _:
            raise ValueError("no segment of this version")
    if not values.is_service(service) or (service.startswith(values.RESERVED) and service != CLOSE):
        raise ValueError("no service that can be durable")
    return service, rows


def decode_record(key: bytes, service: bytes, row: object) -> DurableRequest:
    """Takes nothing but what request_row() or end_row() make: what else stands here was written
    by another program, or is damaged. Raises ValueError."""
    match row:
        case [
            bytes(identity),
            bytes(request_id),
            int(framing),
            fourth,
            list(fifth),
            titanic_sender,
        ]:
            record = DurableRequest((identity, request_id), service, Framing(framing))
        case _:
            raise ValueError("a record has six fields: name, id, framing, and what is said")
    match titanic_sender:
        case None:
            pass
        case [bytes(asking), bytes(asked)]:
            record.titanic_sender = asking, asked
        case _:
            raise ValueError("whoever sent titanic.request has a name and an id")
    names = (*record.name, *(record.titanic_sender or ()))
    if not all(0 < len(each) <= NAME_BYTES_MAX for each in names):
        raise ValueError("an identity or id of a wrong size")
    record.body = _frames(fifth)
    record.size = OVERHEAD_BYTES + sum(map(len, record.body))
    if key.startswith(REQUESTS):
        if type(fourth) is not int or not 0 <= fourth <= DUE_MS_MAX:
            raise ValueError("a time that is none")
        record.deadline_unix_ms = fourth
        if not 0 < len(record.body) <= RECORD_FRAMES_MAX or record.size > RECORD_BYTES_MAX:
            raise ValueError("a request without a body, or too large")
        return record
    if not isinstance(fourth, list):
        raise ValueError("answers that are no list")
    record.answers = [_answer(each) for each in fourth]
    record.size += sum(body_bytes(body) for _, body in record.answers)
    return record


def _answer(answer: object) -> tuple[bool, Message]:
    match answer:
        case [bool(last), list(body)] if body:
            return last, _frames(body)
    raise ValueError("an answer without a body")


def _frames(frames: list[Any]) -> Message:
    if not all(isinstance(frame, bytes) for frame in frames):
        raise ValueError("a body that is none")
    return frames


def body_bytes(body: Message) -> int:
    """What it takes, each frame with its object."""
    return sum(map(len, body)) + 8 * len(body)
