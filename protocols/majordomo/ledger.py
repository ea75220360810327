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
from typing import NamedTuple

from . import values
from .codec import (
    Failure,
    Final,
    Partial,
    PartPosition,
    Request,
    encode_failure,
    encode_reply,
)
from .records import (
    CLOSE,
    DONE,
    ENDING,
    ENDS,
    KEY_BYTES,
    NAME_BYTES_MAX,
    NUMBER_BYTES,
    OVERHEAD_BYTES,
    QUEUED,
    RECORD_BYTES_MAX,
    RECORD_FRAMES_MAX,
    REQUESTS,
    STAMP_BYTES,
    TOKEN_BYTES,
    UNREADABLE,
    WORKING,
    WRITING,
    DurableRequest,
    Message,
    Name,
    Pair,
    Segment,
    body_bytes,
    decode_record,
    end_row,
    pack,
    request_row,
    split,
    unpack,
)
from .values import Framing, Headers

UNNAMED = b"\0"  # What identities begin with that no client has set itself.
TITANIC_CLIENT = b"\0titanic"  # Requests that came by titanic.request are nobody's.

STORE_FULL = Failure(values.BUSY, "the store of durable requests is full")
CLIENT_FULL = Failure(values.BUSY, "this client has too many requests in work")
TOO_LARGE = Failure(values.TOO_LARGE, f"more than {RECORD_BYTES_MAX} bytes are not kept")

JUNK_KEYS_MAX = 4096  # Of segments with bad records, so many are told apart.

UNWANTED = -(1 << 62)  # The credit of a client that wants none.
RECHECK_MS = 250  # Until a segment of ends is looked at again whose requests are still there.


class LedgerSetup(NamedTuple):
    """How much is kept, and for how long."""

    token: bytes  # TOKEN_BYTES, of this process alone.
    reply_ttls_ms: dict[bytes, int]  # By service: answers are kept so long.
    reply_ttl_ms: int = 60_000  # Of services that are not named there.
    bytes_max: int = 512 << 20  # Of all that is kept, each record with what it costs.
    inflight_max: int = 4096  # Requests of one client that have not ended.
    headers: Headers = values.HEADERS


class Ledger:
    """What is for clients is put into `replies`: messages with the routing id first."""

    def __init__(self, setup: LedgerSetup) -> None:
        assert len(setup.token) == TOKEN_BYTES
        self.setup = setup
        self.counters: Counter[str] = Counter()
        self.replies: list[Message] = []
        self.junk: list[tuple[bytes, str]] = []  # Keys with bad records, and why: to be logged.
        self.size = 0  # Of all that is kept.
        self._requests: dict[Name, DurableRequest] = {}
        self._closed: Counter[bytes] = Counter()
        self._segments: dict[bytes, Segment] = {}
        self._inflight: Counter[bytes] = Counter()
        self._unwritten: list[DurableRequest] = []  # To be written.
        self._unwritten_ends: list[DurableRequest] = []
        self._queued: deque[DurableRequest] = deque()
        self._deletable: dict[bytes, Segment] = {}  # All that is in them has ended.
        self._expiries: list[tuple[int, bytes]] = []  # A heap: when segments of ends may go.
        self._refused_ends: set[bytes] = (
            set()
        )  # Ends that were written to no avail, as far as we know.
        self._junk_keys: set[bytes] = set()  # Those that were counted.
        self._last_number = 0
        self._last_run = int.from_bytes(setup.token[:4], "big")  # Other than another broker's.

    # ---- what clients want ----

    def identity(self, routing_id: bytes, name: bytes = b"") -> bytes:
        """By which a client is known again: the name that it says, or the routing id that it has
        set. One that the ROUTER has made, or that looks so, means nothing to another broker, nor to
        this one's next process."""
        if name:
            return name
        if routing_id.startswith(UNNAMED):
            return UNNAMED + self.setup.token + routing_id
        return routing_id

    def add_request(
        self, routing_id: bytes, framing: Framing, request: Request, unix_ms: int
    ) -> None:
        """A client's request for a durable service."""
        identity, request_id = self.identity(routing_id, request.name), request.request_id
        if framing is not Framing.TEXT:
            request_id = self.setup.token + self._next_number()
        name = identity, request_id
        known = self._requests.get(name)
        if known is not None:
            self.counters["repeated"] += 1
            self._attach_client(known, routing_id, request)
            self._send_answers(known)
            return
        if len(identity) > NAME_BYTES_MAX:  # None that a ROUTER makes, nor one that it takes.
            self.counters["nameless"] += 1
            return
        record = DurableRequest(name, request.service, framing)
        self._attach_client(record, routing_id, request)
        record.body = request.body
        if request.remaining_ms is not None and request.remaining_ms < 1 << 48:
            record.deadline_unix_ms = unix_ms + request.remaining_ms
        self._add_request(record, identity)

    def add_titanic_request(self, routing_id: bytes, framing: Framing, request: Request) -> None:
        """titanic.request (RFC 9): the body is a service and its request's body. It is answered
        with 200 and the uuid when it is written. Every broker makes the same uuid of a repeat."""
        titanic_sender = self.identity(routing_id, request.name), request.request_id
        if framing is not Framing.TEXT:
            titanic_sender = titanic_sender[0], self.setup.token + self._next_number()
        made_of = len(titanic_sender[0]).to_bytes(2, "big") + b"".join(titanic_sender)
        uuid = hashlib.blake2b(made_of, digest_size=16).hexdigest().encode()
        known = self._requests.get((TITANIC_CLIENT, uuid))
        if known is not None:
            self.counters["repeated"] += 1
            known.routing_id = routing_id
            if known.state != WRITING:
                self._send_uuid(known)
            return
        record = DurableRequest((TITANIC_CLIENT, uuid), request.body[0], framing)
        record.routing_id = routing_id
        record.body = request.body[1:]
        record.titanic_sender = titanic_sender
        self._add_request(record, titanic_sender[0])

    def titanic_reply(self, uuid: bytes) -> Message:
        """What titanic.reply is answered with (RFC 9)."""
        record = self._requests.get((TITANIC_CLIENT, uuid))
        if record is None or self._closed[uuid]:
            return [values.TITANIC_UNKNOWN]
        if record.state != DONE:
            return [values.TITANIC_PENDING]
        return [values.TITANIC_OK, *(frame for _, body in record.answers for frame in body)]

    def _add_request(self, record: DurableRequest, identity: bytes) -> None:
        record.size = OVERHEAD_BYTES + sum(map(len, record.body))
        refusal = None
        if record.size > RECORD_BYTES_MAX or len(record.body) > RECORD_FRAMES_MAX:
            refusal = TOO_LARGE
        elif self.size + record.size > self.setup.bytes_max:
            refusal = STORE_FULL
        elif self._inflight[identity] >= self.setup.inflight_max:
            refusal = CLIENT_FULL
        if refusal is not None:
            self.counters["refused"] += 1
            self.refuse(record, refusal)
            return
        self._index(record)
        self._unwritten.append(record)
        self.counters["requests"] += 1

    def refuse(self, record: DurableRequest, failure: Failure) -> None:
        """MDP has no word for it; titanic.request has one of its own."""
        if record.titanic_sender is not None:
            self._answer_titanic(record, [values.TITANIC_FAILED])
        elif record.framing == Framing.TEXT:
            self._reply(record, Final(record.service, record.name[1], encode_failure(failure)))

    def _index(self, record: DurableRequest) -> None:
        self._requests[record.name] = record
        self.size += record.size
        if record.state != DONE:
            self._inflight[self._client_of(record)] += 1
        if record.service == CLOSE and record.body:
            self._closed[record.body[0]] += 1

    @staticmethod
    def _client_of(record: DurableRequest) -> bytes:
        return record.name[0] if record.titanic_sender is None else record.titanic_sender[0]

    def _unindex(self, record: DurableRequest) -> None:
        if self._requests.get(record.name) is not record:
            return
        del self._requests[record.name]
        self.size -= record.size
        if record.state != DONE:
            self._release_inflight(record)
        if record.service == CLOSE and record.body:
            self._closed[record.body[0]] -= 1
            self._closed += Counter()  # Without those that are 0.

    def _release_inflight(self, record: DurableRequest) -> None:
        """It counts no longer among its client's requests in work."""
        client = self._client_of(record)
        self._inflight[client] -= 1
        if self._inflight[client] <= 0:
            del self._inflight[client]

    def add_credit(self, name: Name, octets: int) -> None:
        """A client takes more parts; 0: none any more."""
        record = self._requests.get(name)
        if record is not None and record.credit is not None:
            record.credit = record.credit + octets if octets else UNWANTED
            self._send_answers(record)

    def detach_client(self, routing_id: bytes, request_id: bytes) -> bool:
        """A client that says no name has lost a part: it is told nothing more. False: nor was it
        before."""
        record = self._requests.get((self.identity(routing_id), request_id))
        if record is None or not record.routing_id:
            return False
        record.routing_id = b""
        return record.state != DONE

    # ---- what clients are told ----

    def _attach_client(self, record: DurableRequest, routing_id: bytes, request: Request) -> None:
        """Its client asks here, perhaps once more: then it is told all from the beginning."""
        record.routing_id = routing_id
        record.credit = (request.credit or UNWANTED) if request.name else None
        self._restart_answers(record)

    def _send_answers(self, record: DurableRequest) -> None:
        """What its client has not been told: parts as far as it takes them, the end when it is
        written."""
        if not record.routing_id or record.titanic_sender is not None:
            return
        while record.sent_count < len(record.answers):
            last, body = record.answers[record.sent_count]
            if last and record.state != DONE:
                return
            if not last and record.credit is not None and record.credit != UNWANTED:
                if record.credit <= 0:
                    return
                record.credit -= values.part_cost(body)
            record.sent_count += 1
            if last or record.credit != UNWANTED:
                self._send_answer(record, last, body)

    def _send_answer(self, record: DurableRequest, last: bool, body: Message) -> None:
        service, request_id = record.service, record.name[1]
        if record.framing == Framing.TEXT and record.credit in (None, UNWANTED):
            # As encode_reply() does it: by far the most are so.
            command = values.CLIENT_FINAL if last else values.CLIENT_PARTIAL
            head = [record.routing_id, self.setup.headers.client, command, service, request_id]
            self.replies.append(head + (body or [b""]))
        elif record.framing == Framing.TEXT:
            kind, position = (
                Final if last else Partial,
                PartPosition(record.run, record.sent_count - 1),
            )
            self._reply(record, kind(service, request_id, body, position))
        elif record.framing != Framing.MDP01:
            self._reply(record, (Final if last else Partial)(service, b"", body))
        elif last:  # It takes one answer.
            whole = [frame for _, each in record.answers for frame in each]
            self._reply(record, Final(service, b"", whole))

    def _send_uuid(self, record: DurableRequest) -> None:
        self._answer_titanic(record, [values.TITANIC_OK, record.name[1]])

    def _answer_titanic(self, record: DurableRequest, body: Message) -> None:
        """Whoever has sent titanic.request."""
        assert record.titanic_sender is not None
        text = record.framing == Framing.TEXT
        request_id = record.titanic_sender[1] if text else b""
        self._reply(record, Final(values.TITANIC_REQUEST, request_id, body))

    def _reply(self, record: DurableRequest, reply: Final | Partial) -> None:
        if record.routing_id:
            framing = Framing(record.framing)
            self.replies.append(
                [record.routing_id, *encode_reply(reply, framing, self.setup.headers)]
            )

    # ---- what workers say ----

    def answer(self, name: Name, last: bool, body: Message) -> None:
        """A PARTIAL or the FINAL of who was given the request."""
        record = self._requests.get(name)
        if record is None or record.state != WORKING:
            self.counters["discarded"] += 1
            return
        size = body_bytes(body)
        whole = OVERHEAD_BYTES + 2 * RECORD_BYTES_MAX  # The request's own, and its answers.
        if record.size + size > whole or len(record.answers) >= RECORD_FRAMES_MAX:
            record.exceeds_limit = True
        if record.exceeds_limit:
            if not last:
                return  # It will not be whole: its end says so.
            self._drop_answers(record)
            self._restart_answers(record)
            body = encode_failure(TOO_LARGE)
            size = body_bytes(body)
        record.answers.append((last, body))
        record.size += size
        self.size += size
        if last:
            record.state = ENDING
            self._unwritten_ends.append(record)
        else:
            self._send_answers(record)

    def _drop_answers(self, record: DurableRequest) -> None:
        """Without answers."""
        size = sum(body_bytes(body) for _, body in record.answers)
        record.size -= size
        self.size -= size
        record.answers = []

    def _restart_answers(self, record: DurableRequest) -> None:
        """Another run gives the answers: its client is told them from the beginning."""
        record.sent_count = 0
        self._last_run = record.run = (self._last_run + 1) % (1 << 32)

    # ---- to the store ----

    def _next_number(self) -> bytes:
        self._last_number = (self._last_number + 1) % (1 << 8 * NUMBER_BYTES)
        return self._last_number.to_bytes(NUMBER_BYTES, "big")

    def _key(self, kind: bytes, unix_ms: int) -> bytes:
        return kind + unix_ms.to_bytes(STAMP_BYTES, "big") + self.setup.token + self._next_number()

    @property
    def has_requests_to_write(self) -> bool:
        return bool(self._unwritten)

    @property
    def has_ends_to_write(self) -> bool:
        return bool(self._unwritten_ends)

    def pack_requests(self, unix_ms: int) -> list[Pair]:
        """What is to be written of requests; on_written() follows, sooner or later."""
        # Another broker may have written one of them meanwhile.
        asked = [record for record in self._unwritten if record.state == WRITING]
        self._unwritten = []
        pairs = []
        for records in split(asked):
            key = self._key(REQUESTS, unix_ms)
            value = pack(records[0].service, [request_row(record) for record in records])
            segment = self._segments[key] = Segment(key, records, len(value))
            segment.unfinished = len(records)
            for record in records:
                record.request_segment = segment
            pairs.append((key, value))
        return pairs

    def pack_ends(self, unix_ms: int) -> list[Pair]:
        """What is to be written of ends; on_written() or on_refused() follows."""
        ended, self._unwritten_ends = self._unwritten_ends, []
        pairs = []
        for records in split(ended):
            key = self._key(ENDS, unix_ms)
            value = pack(records[0].service, [end_row(record) for record in records])
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
                    if record.titanic_sender is not None:
                        self._send_uuid(record)
            if not segment.unfinished:
                self._deletable[key] = segment

    def _on_ended(self, segment: Segment) -> None:
        """The ends in it stand."""
        for record in segment.records:
            if record.state != DONE:
                record.state = DONE
                self._release_inflight(record)
                if record.request_segment is not None:
                    self._finish_in_segment(record.request_segment)
            record.end_segment = segment
            if record.service != CLOSE:
                size = sum(map(len, record.body))
                record.size -= size
                self.size -= size
                record.body = []
            self._send_answers(record)
        if not segment.has_junk:
            heapq.heappush(
                self._expiries, (segment.created_ms + self._ttl_ms(segment), segment.key)
            )

    def _ttl_ms(self, segment: Segment) -> int:
        """How long the ends in it are kept. Those of requests that nobody has worked on go at once:
        the same id may be asked again, and be done."""
        if not segment.records or segment.records[0].never_dispatched:
            return 0
        service = segment.records[0].service
        return self.setup.reply_ttls_ms.get(service, self.setup.reply_ttl_ms)

    def _finish_in_segment(self, request_segment: Segment) -> None:
        request_segment.unfinished -= 1
        if (
            request_segment.unfinished == 0
            and request_segment.is_written
            and not request_segment.has_junk
        ):
            self._deletable[request_segment.key] = request_segment

    def on_refused(self, keys: Iterable[bytes]) -> None:
        """Another broker owns the store: these ends do not count."""
        for key in keys:
            segment = self._segments.get(key)
            if segment is None or segment.is_written:
                continue  # It was, and only the word of it was lost.
            del self._segments[key]
            self._refused_ends.add(key)
            for record in segment.records:
                if record.state == ENDING:
                    self._requeue(record)

    def _requeue(self, record: DurableRequest) -> None:
        self._drop_answers(record)
        self._restart_answers(record)
        record.exceeds_limit = False
        record.state = QUEUED
        self._queued.append(record)

    def deletable(self, unix_ms: int, count: int) -> list[bytes]:
        """Keys of segments that nobody needs any more, at most so many: on_deleted() or
        on_kept() follows."""
        found: list[bytes] = []
        while self._deletable and len(found) < count:
            key, segment = self._deletable.popitem()
            segment.is_deleting = True
            found.append(key)
        if found:
            return found  # What holds an end goes behind the request that ended so.
        postponed = []
        while self._expiries and self._expiries[0][0] <= unix_ms and len(found) < count:
            due = heapq.heappop(self._expiries)
            segment_of_ends = self._segments.get(due[1])
            if segment_of_ends is None:
                continue
            if any(record.request_segment is not None for record in segment_of_ends.records):
                postponed.append((unix_ms + RECHECK_MS, due[1]))
                continue
            segment_of_ends.is_deleting = True
            found.append(due[1])
        for due in postponed:
            heapq.heappush(self._expiries, due)
        return found

    def on_deleted(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.on_removed(key)

    def on_delete_refused(self, keys: Iterable[bytes]) -> None:
        """They were not deleted: this broker does not own the store any more."""
        for key in keys:
            segment = self._segments.get(key)
            if segment is not None:
                self._mark_deletable(segment)

    def _mark_deletable(self, segment: Segment) -> None:
        segment.is_deleting = False
        if segment.key.startswith(ENDS):
            heapq.heappush(self._expiries, (0, segment.key))
        else:
            self._deletable[segment.key] = segment

    @property
    def deletable_ms(self) -> int | None:
        """Unix time when something may be deletable; 0: something is."""
        if self._deletable:
            return 0
        return self._expiries[0][0] if self._expiries else None

    # ---- from the store ----

    def is_written_here(self, key: bytes) -> bool:
        """Whether this process has written it: then it knows better what became of it."""
        return key[1 + STAMP_BYTES : 1 + STAMP_BYTES + TOKEN_BYTES] == self.setup.token

    def load(self, key: bytes, value: bytes) -> None:
        """A segment is in the store. Bad records in it are counted and skipped, the others count;
        a segment with bad ones stays in the store, for an operator to look at."""
        if self.is_written_here(key):
            self.on_written([key])  # No other word of it may have come.
            if key not in self._refused_ends:
                return  # What became of it later we know already.
            self._refused_ends.discard(key)
        if key in self._segments:
            return
        if len(key) != KEY_BYTES or key[:1] not in (REQUESTS, ENDS):
            self.on_junk(key, "no key of a segment")
            return
        records: list[DurableRequest] = []
        problems: list[str] = []
        try:
            service, rows = unpack(value)
        except UNREADABLE as error:
            self.on_junk(key, str(error))
            return
        for row in rows:
            try:
                records.append(decode_record(key, service, row))
            except UNREADABLE as error:
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

    def _load_requests(self, segment: Segment, records: list[DurableRequest]) -> None:
        for record in records:
            known = self._requests.get(record.name)
            if known is not None:
                # It was asked twice, at two brokers: what is in the log first stands for both.
                if known.state == WRITING:
                    self._move_request(known, segment)
                continue
            record.state = QUEUED
            record.request_segment = segment
            segment.records.append(record)
            segment.unfinished += 1
            self._index(record)
            self._queued.append(record)
        if not (segment.unfinished or segment.has_junk):
            self._deletable[segment.key] = segment

    def _move_request(self, record: DurableRequest, segment: Segment) -> None:
        """Our own writing of it may never arrive."""
        if record.request_segment is not None:
            record.request_segment.unfinished -= 1
        record.request_segment = segment
        segment.records.append(record)
        segment.unfinished += 1
        record.state = QUEUED
        self._queued.append(record)
        if record.titanic_sender is not None:
            self._send_uuid(record)

    def _load_ends(self, segment: Segment, records: list[DurableRequest]) -> None:
        for loaded in records:
            record = self._requests.get(loaded.name)
            if record is None:
                loaded.state = DONE
                self._index(loaded)
                segment.records.append(loaded)
            elif record.state != DONE:
                self._drop_answers(record)
                self._restart_answers(record)  # Who gave it to a worker was another broker.
                record.answers = loaded.answers
                size = loaded.size - OVERHEAD_BYTES
                self.size += size
                record.size += size
                segment.records.append(record)
        self._on_ended(segment)

    def on_removed(self, key: bytes) -> None:
        """A segment is no longer in the store."""
        segment = self._segments.pop(key, None)
        self._deletable.pop(key, None)
        self._refused_ends.discard(key)
        self._junk_keys.discard(key)
        while self._expiries and self._expiries[0][1] not in self._segments:
            heapq.heappop(self._expiries)
        if segment is None:
            return
        records, segment.records = segment.records, []  # No ring of references is left behind.
        for record in records:
            if key.startswith(ENDS):
                if record.end_segment is segment:
                    self._unindex(record)
            elif record.request_segment is segment:
                record.request_segment = None
                if record.state != DONE:  # Its owner had the end; ours is to come.
                    self._unindex(record)

    def written_keys(self) -> set[bytes]:
        """Of all segments that are in the store, as far as is known here."""
        return {key for key, segment in self._segments.items() if segment.is_written}

    # ---- to workers ----

    def pop_queued(self) -> Iterator[DurableRequest]:
        """All that is written and waits for a worker, the oldest first."""
        queued, self._queued = self._queued, deque()
        for record in queued:
            if record.state == QUEUED and self._requests.get(record.name) is record:
                record.state = WORKING
                yield record

    def requeue_working(self) -> None:
        """What workers had is not theirs any more: another broker gives it out."""
        ended, self._unwritten_ends = self._unwritten_ends, []
        for record in self._requests.values():
            if record.state == WORKING:
                self._requeue(record)
        for record in ended:
            if record.state == ENDING:  # Its end was not proposed yet.
                self._requeue(record)

    # ---- what is known ----

    def counts_by_service(self) -> dict[bytes, list[int]]:
        """By service: requests that have not ended, and answers that are kept."""
        found: dict[bytes, list[int]] = {}
        for record in self._requests.values():
            found.setdefault(record.service, [0, 0])[record.state == DONE] += 1
        return found

    @property
    def count(self) -> int:
        return len(self._requests)
