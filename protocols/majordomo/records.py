"""The records of durable requests and of their ends, and the segments that the store keeps.

A segment is one key of the store with many records, so that a batch of any size is one write: `r`
segments hold requests, `f` segments their ends.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import msgpack

from ...native.broker.exchange import NO_SLOT
from . import values
from .codec import LATE, encode_failure
from .values import Framing

VERSION = 1
REQUESTS = b"r"
ENDS = b"f"
STAMP_BYTES = 8  # Unix time in ms, big-endian, so that keys are in order of time.
TOKEN_BYTES = 8
NUMBER_BYTES = 4
KEY_BYTES = 1 + STAMP_BYTES + TOKEN_BYTES + NUMBER_BYTES
SEGMENT_BYTES = 128 << 10  # Of frames; the last record may exceed it.
SEGMENT_RECORDS = 2048
RECORD_BYTES_MAX = 16 << 20  # Of a request, or of all its answers.
RECORD_FRAMES_MAX = 4096
NAME_BYTES_MAX = 255  # Of an identity, and of a request id.
OVERHEAD_BYTES = 512  # Of a record in memory, besides its frames.
CLOSE = b"titanic.close"

NEVER_DISPATCHED = True, encode_failure(LATE)  # The end of a request that no worker has had.

Name = tuple[bytes, bytes]  # Identity, and request id.
Pair = tuple[bytes, bytes]
Message = list[bytes]


class Sender(NamedTuple):
    """A client of a durable service.

    slot, key   of its key, and the key's name; NO_SLOT and "" at an endpoint without keys
    """

    routing_id: bytes
    slot: int = NO_SLOT
    key: str = ""


# The identities of clients with keys: KEYED, digests of the key's name and of the own identity.
KEYED = b"\1"
DIGEST_BYTES = 16


def digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def key_digest(name: str) -> bytes:
    """Begins the identities of a key's clients; empty: they have no key."""
    return KEYED + digest(name.encode()) if name else b""


def key_of(identity: bytes) -> bytes:
    """The key_digest() of an identity."""
    is_keyed = identity.startswith(KEYED) and len(identity) == len(KEYED) + 2 * DIGEST_BYTES
    return identity[: len(KEYED) + DIGEST_BYTES] if is_keyed else b""


class RequestState(Enum):
    """The progress of a durable request."""

    WRITING = 0  # The store does not have it yet.
    QUEUED = 1
    WORKING = 2  # A worker has it.
    ENDING = 3  # Its FINAL is not written yet.
    DONE = 4


# Attribute access on an Enum is slow.
WRITING, QUEUED, WORKING, ENDING, DONE = RequestState


@dataclass(slots=True, eq=False)
class DurableRequest:
    """One request, from its arrival until its end is deleted."""

    name: Name
    service: bytes
    framing: int
    body: Message = field(default_factory=list)
    deadline_unix_ms: int = 0  # Its client's deadline; 0: none.
    # Whether it is the last one, and its body.
    answers: list[tuple[bool, Message]] = field(default_factory=list)
    size: int = 0
    state: RequestState = WRITING
    exceeds_limit: bool = False  # Its answers exceed RECORD_BYTES_MAX.
    may_have_run: bool = False  # An earlier owner of the store may have dispatched it.
    routing_id: bytes = b""  # Of its client; empty: the client is not connected to this broker.
    slot: int = NO_SLOT  # Of its client's key.
    credit: int | None = None  # For parts; None: the client accepts all parts.
    run: int = 0  # Counts the workers that have had it, for the positions of parts.
    sent_count: int = 0  # Answers that the client was sent.
    titanic_sender: Name | None = None  # The client that sent titanic.request.
    # Those that have the request, until they are deleted: several if several brokers wrote it.
    request_segments: list["Segment"] = field(default_factory=list)
    end_segment: "Segment | None" = None

    @property
    def never_dispatched(self) -> bool:
        """Whether it ended before any worker had it. False for titanic.request, whose sender
        fetches that end like any other answer."""
        return self.answers == [NEVER_DISPATCHED] and self.titanic_sender is None


@dataclass(slots=True, eq=False)
class Segment:
    """The contents of one key of the store."""

    key: bytes
    records: list[DurableRequest]
    unfinished: int = 0  # Requests without an end.
    is_written: bool = False
    has_junk: bool = False  # It has unreadable records, and is never deleted.

    @property
    def created_ms(self) -> int:
        return int.from_bytes(self.key[1 : 1 + STAMP_BYTES], "big")


UNREADABLE = ValueError, TypeError, msgpack.exceptions.UnpackException
DUE_MS_MAX = (1 << 63) - 1


def split(records: list[DurableRequest]) -> Iterator[list[DurableRequest]]:
    """Groups records by service and outcome into segments of about SEGMENT_BYTES, so that a slow
    service does not delay the deletion of others' segments."""
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


def pack(kind: bytes, records: list[DurableRequest]) -> bytes:
    """The value of a segment of REQUESTS or ENDS."""
    rows = []
    for record in records:
        own: tuple[object, object] = record.deadline_unix_ms, record.body
        if kind == ENDS:
            own = record.answers, record.body[:1] if record.service == CLOSE else []
        rows.append([*record.name, record.framing, *own, record.titanic_sender])
    return bytes(msgpack.packb([VERSION, records[0].service, rows]))


def unpack(value: bytes) -> tuple[bytes, list[Any]]:
    """Raises one of UNREADABLE: not a broker's segment."""
    match msgpack.unpackb(value):
        case [version, bytes(service), list(rows)] if version == VERSION:
            pass
        case _:
            raise ValueError("not a segment of this version")
    if not values.is_service(service) or (service.startswith(values.RESERVED) and service != CLOSE):
        raise ValueError("not a service that can be durable")
    return service, rows


def decode_record(key: bytes, service: bytes, row: object) -> DurableRequest:
    """Decodes a row of pack(). Raises ValueError: damaged, or written by another program."""
    match row:
        case [
            bytes(identity),
            bytes(request_id),
            int(framing),
            fourth,
            list(fifth),
            (None | [bytes(), bytes()]) as sender,
        ]:
            record = DurableRequest((identity, request_id), service, Framing(framing))
            record.titanic_sender = None if sender is None else (sender[0], sender[1])
        case _:
            raise ValueError("a record has six fields of certain types")
    names = (*record.name, *(record.titanic_sender or ()))
    if not all(0 < len(each) <= NAME_BYTES_MAX for each in names):
        raise ValueError("an identity or id of a wrong size")
    record.body = _frames(fifth)
    record.size = OVERHEAD_BYTES + sum(map(len, record.body))
    if key.startswith(REQUESTS):
        if type(fourth) is not int or not 0 <= fourth <= DUE_MS_MAX:
            raise ValueError("not a deadline")
        record.deadline_unix_ms = fourth
        if not 0 < len(record.body) <= RECORD_FRAMES_MAX or record.size > RECORD_BYTES_MAX:
            raise ValueError("a request without a body, or too large")
        return record
    if not isinstance(fourth, list):
        raise ValueError("answers are a list")
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
        raise ValueError("frames of a body are bytes")
    return frames


def body_bytes(body: Message) -> int:
    """The memory for a body: its frames, and an object for each."""
    return sum(map(len, body)) + 8 * len(body)
