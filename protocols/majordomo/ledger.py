"""Requests of durable services and their answers, as the store has them: who asked what, what is
written, what is answered. It reaches no store and knows no worker: durable.py does.

Everything is kept in segments, one key of the store each, so that a batch of any size is one write:
`r` segments hold requests, `f` segments how they ended. A request is known by (identity, id) from
its request segment on until the segment with its end is deleted.
"""

import hashlib
import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgpack

from . import values
from .codec import (
    LATE,
    Failure,
    Final,
    Partial,
    Place,
    Request,
    encode_failure,
    encode_reply,
)
from .values import Framing, Headers

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
NOBODY = b"\0"  # What identities begin with that no client has set itself.
TITANIC_CLIENT = b"\0titanic"  # Requests that came by titanic.request are nobody's.
CLOSE = b"titanic.close"

FULL = Failure(values.BUSY, "the store of durable requests is full")
OVER = Failure(values.BUSY, "this client has too many requests in work")
LARGE = Failure(values.TOO_LARGE, f"more than {RECORD_BYTES_MAX} bytes are not kept")

JUNK_KEYS_MAX = 4096  # Of segments with bad records, so many are told apart.

NO_PARTS = -(1 << 62)  # The credit of a client that wants none.

UNDONE = True, encode_failure(LATE)  # How a request ends that no worker has had.

Name = tuple[bytes, bytes]  # Identity, and request id.
Pair = tuple[bytes, bytes]
Message = list[bytes]

# Where a record is on its way.
WRITING, QUEUED, WORKING, ENDING, DONE = range(5)


class LedgerSetup(NamedTuple):
    """How much is kept, and for how long."""

    token: bytes  # TOKEN_BYTES, of this process alone.
    reply_ttls_ms: dict[bytes, int]  # By service: answers are kept so long.
    reply_ttl_ms: int = 60_000  # Of services that are not named there.
    bytes_max: int = 512 << 20  # Of all that is kept, each record with what it costs.
    inflight_max: int = 4096  # Requests of one client that have not ended.
    headers: Headers = values.HEADERS


class Record:
    """One request, from when it is taken in until its end is forgotten."""

    __slots__ = (
        "answers", "asker", "body", "credit", "due_ms", "end", "framing", "home", "is_over", "name",
        "run", "service", "size", "state", "told", "where",
    )  # fmt: skip

    def __init__(self, name: Name, service: bytes, framing: int) -> None:
        self.name = name
        self.service = service
        self.framing = framing
        self.body: Message = []
        self.due_ms = 0  # Unix time of its client's deadline; 0: none.
        self.answers: list[tuple[bool, Message]] = []  # Whether it is the last one, and its body.
        self.size = 0
        self.state = WRITING
        self.is_over = False  # Its answers are more than is kept.
        self.where = b""  # The routing id of its client; empty: it does not ask this broker.
        self.credit: int | None = None  # Of its client for parts; None: it takes them as they come.
        self.run = 0  # Of parts that are told with their place.
        self.told = 0  # Answers that it was told.
        self.asker: Name | None = None  # Who sent titanic.request.
        self.home: Segment | None = None  # While that is in the store.
        self.end: Segment | None = None

    @property
    def is_undone(self) -> bool:
        """Whether it ended without having been with a worker. Who sent titanic.request has to be
        told of that, too: there the end is an answer as any other."""
        return self.answers == [UNDONE] and self.asker is None


class Segment:
    """What one key of the store holds."""

    __slots__ = ("deleting", "has_junk", "is_written", "key", "open", "records", "size")

    def __init__(self, key: bytes, records: list[Record], size: int) -> None:
        self.key = key
        self.records = records
        self.size = size
        self.open = 0  # Of requests: those that have not ended.
        self.is_written = False
        self.deleting = False
        self.has_junk = False  # Records that nobody here can read: it is never deleted.

    @property
    def stamp_ms(self) -> int:
        return int.from_bytes(self.key[1 : 1 + STAMP_BYTES], "big")


class Ledger:
    """What is for clients is put into `replies`: messages with the routing id first."""

    def __init__(self, setup: LedgerSetup) -> None:
        assert len(setup.token) == TOKEN_BYTES
        self.setup = setup
        self.counters: Counter[str] = Counter()
        self.replies: list[Message] = []
        self.junk: list[tuple[bytes, str]] = []  # Keys with bad records, and why: to be logged.
        self.size = 0  # Of all that is kept.
        self._known: dict[Name, Record] = {}
        self._closed: Counter[bytes] = Counter()
        self._segments: dict[bytes, Segment] = {}
        self._inflight: Counter[bytes] = Counter()
        self._asked: list[Record] = []  # To be written.
        self._ended: list[Record] = []
        self._queued: deque[Record] = deque()
        self._dead: dict[bytes, Segment] = {}  # All that is in them has ended.
        self._due: list[tuple[int, bytes]] = []  # A heap: when segments of ends may go.
        self._refused: set[bytes] = set()  # Ends that were written to no avail, as far as we know.
        self._junk_keys: set[bytes] = set()  # Those that were counted.
        self._numbers = 0
        self._runs = int.from_bytes(setup.token[:4], "big")  # Other than another broker's.

    # ---- what clients want ----

    def identity(self, routing_id: bytes, name: bytes = b"") -> bytes:
        """By which a client is known again: the name that it says, or the routing id that it has
        set. One that the ROUTER has made, or that looks so, means nothing to another broker, nor to
        this one's next process."""
        if name:
            return name
        if routing_id.startswith(NOBODY):
            return NOBODY + self.setup.token + routing_id
        return routing_id

    def ask(self, routing_id: bytes, framing: Framing, request: Request, unix_ms: int) -> None:
        """A client's request for a durable service."""
        identity, request_id = self.identity(routing_id, request.name), request.request_id
        if framing is not Framing.TEXT:
            request_id = self.setup.token + self._next_number()
        name = identity, request_id
        known = self._known.get(name)
        if known is not None:
            self.counters["repeated"] += 1
            self._listen(known, routing_id, request)
            self._tell(known)
            return
        if len(identity) > NAME_BYTES_MAX:  # None that a ROUTER makes, nor one that it takes.
            self.counters["nameless"] += 1
            return
        record = Record(name, request.service, framing)
        self._listen(record, routing_id, request)
        record.body = request.body
        if request.remaining_ms is not None and request.remaining_ms < 1 << 48:
            record.due_ms = unix_ms + request.remaining_ms
        self._add_asked(record, identity)

    def ask_titanic(self, routing_id: bytes, framing: Framing, request: Request) -> None:
        """titanic.request (RFC 9): the body is a service and its request's body. It is answered
        with 200 and the uuid when it is written. Every broker makes the same uuid of a repeat."""
        asker = self.identity(routing_id, request.name), request.request_id
        if framing is not Framing.TEXT:
            asker = asker[0], self.setup.token + self._next_number()
        made_of = len(asker[0]).to_bytes(2, "big") + b"".join(asker)
        uuid = hashlib.blake2b(made_of, digest_size=16).hexdigest().encode()
        known = self._known.get((TITANIC_CLIENT, uuid))
        if known is not None:
            self.counters["repeated"] += 1
            known.where = routing_id
            if known.state != WRITING:
                self._tell_uuid(known)
            return
        record = Record((TITANIC_CLIENT, uuid), request.body[0], framing)
        record.where = routing_id
        record.body = request.body[1:]
        record.asker = asker
        self._add_asked(record, asker[0])

    def titanic_reply(self, uuid: bytes) -> Message:
        """What titanic.reply is answered with (RFC 9)."""
        record = self._known.get((TITANIC_CLIENT, uuid))
        if record is None or self._closed[uuid]:
            return [values.TITANIC_UNKNOWN]
        if record.state != DONE:
            return [values.TITANIC_PENDING]
        return [values.TITANIC_OK, *(frame for _, body in record.answers for frame in body)]

    def _add_asked(self, record: Record, identity: bytes) -> None:
        record.size = OVERHEAD_BYTES + sum(map(len, record.body))
        refusal = None
        if record.size > RECORD_BYTES_MAX or len(record.body) > RECORD_FRAMES_MAX:
            refusal = LARGE
        elif self.size + record.size > self.setup.bytes_max:
            refusal = FULL
        elif self._inflight[identity] >= self.setup.inflight_max:
            refusal = OVER
        if refusal is not None:
            self.counters["refused"] += 1
            self.refuse(record, refusal)
            return
        self._know(record)
        self._asked.append(record)
        self.counters["requests"] += 1

    def refuse(self, record: Record, failure: Failure) -> None:
        """MDP has no word for it; titanic.request has one of its own."""
        if record.asker is not None:
            self._tell_titanic(record, [values.TITANIC_FAILED])
        elif record.framing == Framing.TEXT:
            self._reply(record, Final(record.service, record.name[1], encode_failure(failure)))

    def _know(self, record: Record) -> None:
        self._known[record.name] = record
        self.size += record.size
        if record.state != DONE:
            self._inflight[self._client_of(record)] += 1
        if record.service == CLOSE and record.body:
            self._closed[record.body[0]] += 1

    @staticmethod
    def _client_of(record: Record) -> bytes:
        return record.name[0] if record.asker is None else record.asker[0]

    def _forget(self, record: Record) -> None:
        if self._known.get(record.name) is not record:
            return
        del self._known[record.name]
        self.size -= record.size
        if record.state != DONE:
            self._settle(record)
        if record.service == CLOSE and record.body:
            self._closed[record.body[0]] -= 1
            self._closed += Counter()  # Without those that are 0.

    def _settle(self, record: Record) -> None:
        """It counts no longer among its client's requests in work."""
        client = self._client_of(record)
        self._inflight[client] -= 1
        if self._inflight[client] <= 0:
            del self._inflight[client]

    def add_credit(self, name: Name, octets: int) -> None:
        """A client takes more parts; 0: none any more."""
        record = self._known.get(name)
        if record is not None and record.credit is not None:
            record.credit = record.credit + octets if octets else NO_PARTS
            self._tell(record)

    def leave(self, routing_id: bytes, request_id: bytes) -> bool:
        """A client that says no name has lost a part: it is told nothing more. False: nor was it
        before."""
        record = self._known.get((self.identity(routing_id), request_id))
        if record is None or not record.where:
            return False
        record.where = b""
        return record.state != DONE

    # ---- what clients are told ----

    def _listen(self, record: Record, routing_id: bytes, request: Request) -> None:
        """Its client asks here, perhaps once more: then it is told all from the beginning."""
        record.where = routing_id
        record.credit = (request.credit or NO_PARTS) if request.name else None
        self._begin_anew(record)

    def _tell(self, record: Record) -> None:
        """What its client has not been told: parts as far as it takes them, the end when it is
        written."""
        if not record.where or record.asker is not None:
            return
        while record.told < len(record.answers):
            last, body = record.answers[record.told]
            if last and record.state != DONE:
                return
            if not last and record.credit is not None and record.credit != NO_PARTS:
                if record.credit <= 0:
                    return
                record.credit -= values.part_cost(body)
            record.told += 1
            if last or record.credit != NO_PARTS:
                self._tell_one(record, last, body)

    def _tell_one(self, record: Record, last: bool, body: Message) -> None:
        service, request_id = record.service, record.name[1]
        if record.framing == Framing.TEXT and record.credit in (None, NO_PARTS):
            # As encode_reply() does it: by far the most are so.
            command = values.CLIENT_FINAL if last else values.CLIENT_PARTIAL
            head = [record.where, self.setup.headers.client, command, service, request_id]
            self.replies.append(head + (body or [b""]))
        elif record.framing == Framing.TEXT:
            kind, place = Final if last else Partial, Place(record.run, record.told - 1)
            self._reply(record, kind(service, request_id, body, place))
        elif record.framing != Framing.MDP01:
            self._reply(record, (Final if last else Partial)(service, b"", body))
        elif last:  # It takes one answer.
            whole = [frame for _, each in record.answers for frame in each]
            self._reply(record, Final(service, b"", whole))

    def _tell_uuid(self, record: Record) -> None:
        self._tell_titanic(record, [values.TITANIC_OK, record.name[1]])

    def _tell_titanic(self, record: Record, body: Message) -> None:
        """Whoever has sent titanic.request."""
        assert record.asker is not None
        text = record.framing == Framing.TEXT
        request_id = record.asker[1] if text else b""
        self._reply(record, Final(values.TITANIC_REQUEST, request_id, body))

    def _reply(self, record: Record, reply: Final | Partial) -> None:
        if record.where:
            framing = Framing(record.framing)
            self.replies.append([record.where, *encode_reply(reply, framing, self.setup.headers)])

    # ---- what workers say ----

    def answer(self, name: Name, last: bool, body: Message) -> None:
        """A PARTIAL or the FINAL of who was given the request."""
        record = self._known.get(name)
        if record is None or record.state != WORKING:
            self.counters["discarded"] += 1
            return
        size = _body_bytes(body)
        whole = OVERHEAD_BYTES + 2 * RECORD_BYTES_MAX  # The request's own, and its answers.
        if record.size + size > whole or len(record.answers) >= RECORD_FRAMES_MAX:
            record.is_over = True
        if record.is_over:
            if not last:
                return  # It will not be whole: its end says so.
            self._empty(record)
            self._begin_anew(record)
            body = encode_failure(LARGE)
            size = _body_bytes(body)
        record.answers.append((last, body))
        record.size += size
        self.size += size
        if last:
            record.state = ENDING
            self._ended.append(record)
        else:
            self._tell(record)

    def _empty(self, record: Record) -> None:
        """Without answers."""
        size = sum(_body_bytes(body) for _, body in record.answers)
        record.size -= size
        self.size -= size
        record.answers = []

    def _begin_anew(self, record: Record) -> None:
        """Another run gives the answers: its client is told them from the beginning."""
        record.told = 0
        self._runs = record.run = (self._runs + 1) % (1 << 32)

    # ---- to the store ----

    def _next_number(self) -> bytes:
        self._numbers = (self._numbers + 1) % (1 << 8 * NUMBER_BYTES)
        return self._numbers.to_bytes(NUMBER_BYTES, "big")

    def _key(self, kind: bytes, unix_ms: int) -> bytes:
        return kind + unix_ms.to_bytes(STAMP_BYTES, "big") + self.setup.token + self._next_number()

    @property
    def has_asked(self) -> bool:
        return bool(self._asked)

    @property
    def has_ended(self) -> bool:
        return bool(self._ended)

    def cut_requests(self, unix_ms: int) -> list[Pair]:
        """What is to be written of requests; on_written() follows, sooner or later."""
        # Another broker may have written one of them meanwhile.
        asked = [record for record in self._asked if record.state == WRITING]
        self._asked = []
        pairs = []
        for records in _parted(asked):
            key = self._key(REQUESTS, unix_ms)
            value = _pack(records[0].service, [_request_row(record) for record in records])
            segment = self._segments[key] = Segment(key, records, len(value))
            segment.open = len(records)
            for record in records:
                record.home = segment
            pairs.append((key, value))
        return pairs

    def cut_ends(self, unix_ms: int) -> list[Pair]:
        """What is to be written of ends; on_written() or on_refused() follows."""
        ended, self._ended = self._ended, []
        pairs = []
        for records in _parted(ended):
            key = self._key(ENDS, unix_ms)
            value = _pack(records[0].service, [_end_row(record) for record in records])
            self._segments[key] = Segment(key, records, len(value))
            pairs.append((key, value))
        return pairs

    def on_written(self, keys: Iterable[bytes]) -> None:
        """These are in the log, and nobody can take them out of it."""
        for key in keys:
            segment = self._segments.get(key)
            if segment is None or segment.is_written:
                continue
            segment.is_written = True
            if key.startswith(ENDS):
                self._on_ended(segment)
                continue
            for record in segment.records:
                if record.state == WRITING:
                    record.state = QUEUED
                    self._queued.append(record)
                    if record.asker is not None:
                        self._tell_uuid(record)
            if not segment.open:
                self._dead[key] = segment

    def _on_ended(self, segment: Segment) -> None:
        """The ends in it stand."""
        for record in segment.records:
            if record.state != DONE:
                record.state = DONE
                self._settle(record)
                if record.home is not None:
                    self._close_home(record.home)
            record.end = segment
            if record.service != CLOSE:
                size = sum(map(len, record.body))
                record.size -= size
                self.size -= size
                record.body = []
            self._tell(record)
        if not segment.has_junk:
            heapq.heappush(self._due, (segment.stamp_ms + self._ttl_ms(segment), segment.key))

    def _ttl_ms(self, segment: Segment) -> int:
        """How long the ends in it are kept. Those of requests that nobody has worked on go at once:
        the same id may be asked again, and be done."""
        if not segment.records or segment.records[0].is_undone:
            return 0
        service = segment.records[0].service
        return self.setup.reply_ttls_ms.get(service, self.setup.reply_ttl_ms)

    def _close_home(self, home: Segment) -> None:
        home.open -= 1
        if home.open == 0 and home.is_written and not home.has_junk:
            self._dead[home.key] = home

    def on_refused(self, keys: Iterable[bytes]) -> None:
        """Another broker owns the store: these ends do not count."""
        for key in keys:
            segment = self._segments.get(key)
            if segment is None or segment.is_written:
                continue  # It was, and only the word of it was lost.
            del self._segments[key]
            self._refused.add(key)
            for record in segment.records:
                if record.state == ENDING:
                    self._requeue(record)

    def _requeue(self, record: Record) -> None:
        self._empty(record)
        self._begin_anew(record)
        record.is_over = False
        record.state = QUEUED
        self._queued.append(record)

    def deletable(self, unix_ms: int, count: int) -> list[bytes]:
        """Keys of segments that nobody needs any more, at most so many: on_deleted() or
        on_kept() follows."""
        found: list[bytes] = []
        while self._dead and len(found) < count:
            key, segment = self._dead.popitem()
            segment.deleting = True
            found.append(key)
        if found:
            return found  # What holds an end goes behind the request that ended so.
        again = []
        while self._due and self._due[0][0] <= unix_ms and len(found) < count:
            due = heapq.heappop(self._due)
            segment_of_ends = self._segments.get(due[1])
            if segment_of_ends is None:
                continue
            if any(record.home is not None for record in segment_of_ends.records):
                again.append((unix_ms + PINNED_MS, due[1]))
                continue
            segment_of_ends.deleting = True
            found.append(due[1])
        for due in again:
            heapq.heappush(self._due, due)
        return found

    def on_deleted(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.drop(key)

    def on_kept(self, keys: Iterable[bytes]) -> None:
        """They were not deleted: this broker does not own the store any more."""
        for key in keys:
            segment = self._segments.get(key)
            if segment is not None:
                self._offer(segment)

    def _offer(self, segment: Segment) -> None:
        segment.deleting = False
        if segment.key.startswith(ENDS):
            heapq.heappush(self._due, (0, segment.key))
        else:
            self._dead[segment.key] = segment

    @property
    def due_ms(self) -> int | None:
        """Unix time when something may be deletable; 0: something is."""
        if self._dead:
            return 0
        return self._due[0][0] if self._due else None

    # ---- from the store ----

    def is_own(self, key: bytes) -> bool:
        """Whether this process has written it: then it knows better what became of it."""
        return key[1 + STAMP_BYTES : 1 + STAMP_BYTES + TOKEN_BYTES] == self.setup.token

    def load(self, key: bytes, value: bytes) -> None:
        """A segment is in the store. Bad records in it are counted and skipped, the others count;
        a segment with bad ones stays in the store, for an operator to look at."""
        if self.is_own(key):
            self.on_written([key])  # No other word of it may have come.
            if key not in self._refused:
                return  # What became of it later we know already.
            self._refused.discard(key)
        if key in self._segments:
            return
        if len(key) != KEY_BYTES or key[:1] not in (REQUESTS, ENDS):
            self.on_junk(key, "no key of a segment")
            return
        records: list[Record] = []
        problems: list[str] = []
        try:
            service, rows = _unpack(value)
        except _UNREADABLE as error:
            self.on_junk(key, str(error))
            return
        for row in rows:
            try:
                records.append(_record(key, service, row))
            except _UNREADABLE as error:
                problems.append(str(error))
        if problems:
            self.on_junk(key, f"{len(problems)} of {len(rows)} records, the first: {problems[0]}")
        segment = self._segments[key] = Segment(key, [], len(value))
        segment.is_written = True
        segment.has_junk = bool(problems)
        if key.startswith(REQUESTS):
            self._load_requests(segment, records)
        else:
            self._load_ends(segment, records)

    def on_junk(self, key: bytes, problem: str) -> None:
        """What is in the store under this key is none of ours, or damaged."""
        if key in self._junk_keys:
            return
        self.counters["junk"] += 1
        if len(self._junk_keys) < JUNK_KEYS_MAX:
            self._junk_keys.add(key)
            self.junk.append((key, problem))

    def _load_requests(self, segment: Segment, records: list[Record]) -> None:
        for record in records:
            known = self._known.get(record.name)
            if known is not None:
                # It was asked twice, at two brokers: what is in the log first stands for both.
                if known.state == WRITING:
                    self._move_home(known, segment)
                continue
            record.state = QUEUED
            record.home = segment
            segment.records.append(record)
            segment.open += 1
            self._know(record)
            self._queued.append(record)
        if not (segment.open or segment.has_junk):
            self._dead[segment.key] = segment

    def _move_home(self, record: Record, segment: Segment) -> None:
        """Our own writing of it may never arrive."""
        if record.home is not None:
            record.home.open -= 1
        record.home = segment
        segment.records.append(record)
        segment.open += 1
        record.state = QUEUED
        self._queued.append(record)
        if record.asker is not None:
            self._tell_uuid(record)

    def _load_ends(self, segment: Segment, records: list[Record]) -> None:
        for loaded in records:
            record = self._known.get(loaded.name)
            if record is None:
                loaded.state = DONE
                self._know(loaded)
                segment.records.append(loaded)
            elif record.state != DONE:
                self._empty(record)
                self._begin_anew(record)  # Who gave it to a worker was another broker.
                record.answers = loaded.answers
                size = loaded.size - OVERHEAD_BYTES
                self.size += size
                record.size += size
                segment.records.append(record)
        self._on_ended(segment)

    def drop(self, key: bytes) -> None:
        """A segment is no longer in the store."""
        segment = self._segments.pop(key, None)
        self._dead.pop(key, None)
        self._refused.discard(key)
        self._junk_keys.discard(key)
        while self._due and self._due[0][1] not in self._segments:
            heapq.heappop(self._due)
        if segment is None:
            return
        records, segment.records = segment.records, []  # No ring of references is left behind.
        for record in records:
            if key.startswith(ENDS):
                if record.end is segment:
                    self._forget(record)
            elif record.home is segment:
                record.home = None
                if record.state != DONE:  # Its owner had the end; ours is to come.
                    self._forget(record)

    def written_keys(self) -> set[bytes]:
        """Of all segments that are in the store, as far as is known here."""
        return {key for key, segment in self._segments.items() if segment.is_written}

    # ---- to workers ----

    def take_queued(self) -> Iterator[Record]:
        """All that is written and waits for a worker, the oldest first."""
        queued, self._queued = self._queued, deque()
        for record in queued:
            if record.state == QUEUED and self._known.get(record.name) is record:
                record.state = WORKING
                yield record

    def release(self) -> None:
        """What workers had is not theirs any more: another broker gives it out."""
        ended, self._ended = self._ended, []
        for record in self._known.values():
            if record.state == WORKING:
                self._requeue(record)
        for record in ended:
            if record.state == ENDING:  # Its end was not proposed yet.
                self._requeue(record)

    # ---- what is known ----

    def waiting(self) -> dict[bytes, list[int]]:
        """By service: requests that have not ended, and answers that are kept."""
        found: dict[bytes, list[int]] = {}
        for record in self._known.values():
            found.setdefault(record.service, [0, 0])[record.state == DONE] += 1
        return found

    @property
    def count(self) -> int:
        return len(self._known)


_UNREADABLE = ValueError, TypeError, msgpack.exceptions.UnpackException
DUE_MS_MAX = (1 << 63) - 1
PINNED_MS = 250  # Until a segment of ends is looked at again whose requests are still there.


def _parted(records: list[Record]) -> Iterator[list[Record]]:
    """Records of one service each, done or undone, of about SEGMENT_BYTES: so one that nobody
    answers holds up the others' space for no other service."""
    alike: dict[tuple[bytes, bool], list[Record]] = {}
    for record in records:
        alike.setdefault((record.service, record.is_undone), []).append(record)
    for mine in alike.values():
        part: list[Record] = []
        size = 0
        for record in mine:
            part.append(record)
            size += record.size - OVERHEAD_BYTES
            if size >= SEGMENT_BYTES or len(part) == SEGMENT_RECORDS:
                yield part
                part, size = [], 0
        if part:
            yield part


def _pack(service: bytes, rows: list[list[Any]]) -> bytes:
    return bytes(msgpack.packb([VERSION, service, rows]))


def _request_row(record: Record) -> list[Any]:
    identity, request_id = record.name
    return [identity, request_id, record.framing, record.due_ms, record.body, record.asker]


def _end_row(record: Record) -> list[Any]:
    identity, request_id = record.name
    closes = record.body[:1] if record.service == CLOSE else []
    return [identity, request_id, record.framing, record.answers, closes, record.asker]


def _unpack(value: bytes) -> tuple[bytes, list[Any]]:
    """Raises one of _UNREADABLE: it is none of ours."""
    match msgpack.unpackb(value):
        case [version, bytes(service), list(rows)] if version == VERSION:
            pass
        case _:
            raise ValueError("no segment of this version")
    if not values.is_service(service) or (service.startswith(values.RESERVED) and service != CLOSE):
        raise ValueError("no service that can be durable")
    return service, rows


def _record(key: bytes, service: bytes, row: object) -> Record:
    """Takes nothing but what _request_row() or _end_row() make: what else stands here was written
    by another program, or is damaged. Raises ValueError."""
    match row:
        case [bytes(identity), bytes(request_id), int(framing), fourth, list(fifth), asker]:
            record = Record((identity, request_id), service, Framing(framing))
        case _:
            raise ValueError("a record has six fields: name, id, framing, and what is said")
    match asker:
        case None:
            pass
        case [bytes(asking), bytes(asked)]:
            record.asker = asking, asked
        case _:
            raise ValueError("whoever sent titanic.request has a name and an id")
    names = (*record.name, *(record.asker or ()))
    if not all(0 < len(each) <= NAME_BYTES_MAX for each in names):
        raise ValueError("an identity or id of a wrong size")
    record.body = _frames(fifth)
    record.size = OVERHEAD_BYTES + sum(map(len, record.body))
    if key.startswith(REQUESTS):
        if type(fourth) is not int or not 0 <= fourth <= DUE_MS_MAX:
            raise ValueError("a time that is none")
        record.due_ms = fourth
        if not 0 < len(record.body) <= RECORD_FRAMES_MAX or record.size > RECORD_BYTES_MAX:
            raise ValueError("a request without a body, or too large")
        return record
    if not isinstance(fourth, list):
        raise ValueError("answers that are no list")
    record.answers = [_answer(each) for each in fourth]
    record.size += sum(_body_bytes(body) for _, body in record.answers)
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


def _body_bytes(body: Message) -> int:
    """What it takes, each frame with its object."""
    return sum(map(len, body)) + 8 * len(body)
