"""The durable requests in memory: their clients, answers, and what the store has of them.

The ledger knows neither the store nor workers; durable.py connects them. It knows a request by
(identity, id) from its arrival until the segment with its end is deleted. The end of a request is
the record of its answers, or of its failure (records.py).
"""

import hashlib
import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from . import records, values
from .codec import (
    UNFINISHED,
    Failure,
    Final,
    Partial,
    PartPosition,
    Request,
    encode,
    encode_failure,
)
from .records import DurableRequest, Message, Name, Pair, Segment, Sender
from .values import Framing, Headers

UNNAMED = b"\0"  # Begins the identities of clients that have not set a routing id.
TITANIC_CLIENT = b"\0titanic"  # The identity of requests by titanic.request.

STORE_FULL = Failure(values.BUSY, "the store of durable requests is full")
CLIENT_FULL = Failure(values.BUSY, "this client has too many requests in work")
TOO_LARGE = Failure(values.TOO_LARGE, f"more than {records.RECORD_BYTES_MAX} bytes are not kept")

# Of answers of services that are no longer durable, and of titanic.close, whose end stays at least
# as long as the answer that it closes.
REPLY_TTL_MS = 60_000
JUNK_KEYS_MAX = 4096  # Bad segments are counted and logged once; so many are remembered.

UNWANTED = -(1 << 62)  # The credit of a client that wants no parts.
RECHECK_MS = 250  # Before a segment of ends is checked again whose requests still exist.


# Clients of a key together have as many requests as so many clients, ...
KEY_SHARE = 4
KEY_BYTES_SHARE = 2  # ... and at most this part of all bytes: the half.


class DurableSetup(NamedTuple):
    """The settings of durable services."""

    node: str  # Of this broker, unique at any time.
    token: bytes  # TOKEN_BYTES, of this process alone.
    reply_ttls_ms: dict[bytes, int]  # The durable services, and the lifetime of their answers.
    unix_offset_ms: int = 0  # Unix time minus monotonic time.
    request_ttl_ms: int = 86_400_000  # The longest wait for a worker.
    bytes_max: int = 512 << 20  # Of all records with their overhead.
    lease_ms: int = 3000
    inflight_max: int = 4096  # Unfinished requests of one client; as BrokerSetup has it.
    headers: Headers = values.HEADERS  # The same.


class Ledger:
    """Puts messages for clients into `replies`, with the routing id first."""

    def __init__(self, setup: DurableSetup) -> None:
        assert len(setup.token) == records.TOKEN_BYTES
        self.setup = setup
        self.counters: Counter[str] = Counter()
        self.replies: list[Message] = []
        # Keys with bad records and the reason, to be logged.
        self.junk: list[tuple[bytes, str]] = []
        self.size = 0  # Of all records.
        self._requests: dict[Name, DurableRequest] = {}
        self._closed: Counter[tuple[bytes, bytes]] = Counter()  # By key and uuid.
        # Requests of clients without a name, by routing id and request id.
        self._unnamed: dict[tuple[bytes, bytes], DurableRequest] = {}
        self._segments: dict[bytes, Segment] = {}
        self._inflight: Counter[bytes] = Counter()  # By client, and by key_of() it.
        self._key_bytes: Counter[bytes] = Counter()  # Of records, by key.
        self._unwritten: list[DurableRequest] = []  # Requests.
        self._unwritten_ends: list[DurableRequest] = []
        self._queued: deque[DurableRequest] = deque()
        self._deletable: dict[bytes, Segment] = {}  # Segments whose requests have all ended.
        # A heap: when segments of ends may be deleted.
        self._expiries: list[tuple[int, bytes]] = []
        self._refused_ends: set[bytes] = set()  # Segments of ends that the store refused.
        self._junk_keys: set[bytes] = set()  # Those that were counted.
        self._last_number = 0
        self._last_run = int.from_bytes(setup.token[:4], "big")  # Differs from other brokers' runs.

    # ---- requests of clients ----

    def identity(self, sender: Sender, name: bytes = b"") -> bytes:
        """The identity by which a client is recognised: its name, or the routing id that it has
        set. A routing id of the ROUTER's means nothing to other brokers or later processes. With
        keys there is one identity for each key's name."""
        identity = name or sender.routing_id
        if identity.startswith(UNNAMED):
            identity = UNNAMED + self.setup.token + identity
        if not sender.key:
            return identity
        return records.key_digest(sender.key) + records.digest(identity)

    def add_request(self, sender: Sender, framing: Framing, request: Request, unix_ms: int) -> None:
        """A client's request for a durable service."""
        identity, request_id = self.identity(sender, request.name), request.request_id
        if framing is not Framing.TEXT:
            request_id = self.setup.token + self._next_number()
        name = identity, request_id
        known = self._requests.get(name)
        if known is not None:
            self.counters["repeated"] += 1
            self._attach_client(known, sender, request)
            self._link(known)
            self._send_answers(known)
            return
        record = DurableRequest(name, request.service, framing)
        self._attach_client(record, sender, request)
        record.body = request.body
        if request.remaining_ms is not None and request.remaining_ms < 1 << 48:
            record.deadline_unix_ms = unix_ms + request.remaining_ms
        self._add_request(record, identity)

    def add_titanic_request(self, sender: Sender, framing: Framing, request: Request) -> None:
        """titanic.request (RFC 9): the body is a service and its request's body. The answer is 200
        and the uuid, once the store has the request. All brokers derive the same uuid from a
        repeat."""
        titanic_sender = self.identity(sender, request.name), request.request_id
        if framing is not Framing.TEXT:
            titanic_sender = titanic_sender[0], self.setup.token + self._next_number()
        made_of = len(titanic_sender[0]).to_bytes(2, "big") + b"".join(titanic_sender)
        uuid = hashlib.blake2b(made_of, digest_size=16).hexdigest().encode()
        known = self._requests.get((TITANIC_CLIENT, uuid))
        if known is not None:
            self.counters["repeated"] += 1
            known.routing_id, known.slot = sender.routing_id, sender.slot
            if known.state != records.WRITING:
                self._send_uuid(known)
            return
        record = DurableRequest((TITANIC_CLIENT, uuid), request.body[0], framing)
        record.routing_id, record.slot = sender.routing_id, sender.slot
        record.body = request.body[1:]
        record.titanic_sender = titanic_sender
        self._add_request(record, titanic_sender[0])

    def has_titanic_request(self, uuid: bytes) -> bool:
        """Whether this broker knows a request of titanic.request."""
        return (TITANIC_CLIENT, uuid) in self._requests

    def reply_to(self, sender: Sender, framing: Framing, request: Request, body: Message) -> None:
        """Answers a request for an internal service."""
        final = Final(request.service, request.request_id, body)
        self.replies.append([sender.routing_id, *encode(final, framing, self.setup.headers)])

    def titanic_reply(self, sender: Sender, uuid: bytes) -> Message:
        """The answer to titanic.reply (RFC 9), of the same key."""
        record, key = self._requests.get((TITANIC_CLIENT, uuid)), records.key_digest(sender.key)
        if record is None or self._closed[key, uuid]:
            return [values.TITANIC_UNKNOWN]
        if records.key_of(self._client_of(record)) != key:
            return [values.TITANIC_UNKNOWN]
        if record.state != records.DONE:
            return [values.TITANIC_PENDING]
        return [values.TITANIC_OK, *(frame for _, body in record.answers for frame in body)]

    def _add_request(self, record: DurableRequest, identity: bytes) -> None:
        record.size = records.OVERHEAD_BYTES + sum(map(len, record.body))
        refusal, key = None, records.key_of(identity)
        if record.size > records.RECORD_BYTES_MAX or len(record.body) > records.RECORD_FRAMES_MAX:
            refusal = TOO_LARGE
        elif self.size + record.size > self.setup.bytes_max:
            refusal = STORE_FULL
        elif self._inflight[identity] >= self.setup.inflight_max or (
            key
            and (
                self._inflight[key] >= KEY_SHARE * self.setup.inflight_max
                or self._key_bytes[key] + record.size > self.setup.bytes_max // KEY_BYTES_SHARE
            )
        ):
            refusal = CLIENT_FULL
        if refusal is None:
            self._index(record)
            self._unwritten.append(record)
            self.counters["requests"] += 1
            return
        self.counters["refused"] += 1
        if record.titanic_sender is not None:
            self._answer_titanic(record, [values.TITANIC_FAILED])
        elif record.framing == Framing.TEXT:  # MDP has no error.
            self._reply(record, Final(record.service, record.name[1], encode_failure(refusal)))

    def _index(self, record: DurableRequest) -> None:
        self._requests[record.name] = record
        self.size += record.size
        self._add_key_bytes(record, record.size)
        if record.state != records.DONE:
            client = self._client_of(record)
            self._inflight.update(filter(None, (client, records.key_of(client))))
        if record.service == records.CLOSE and record.body:
            self._closed[records.key_of(record.name[0]), record.body[0]] += 1
        self._link(record)

    def _link(self, record: DurableRequest) -> None:
        """Its client has no name: detach_client() finds it by its connection."""
        if record.routing_id and record.credit is None and record.titanic_sender is None:
            self._unnamed[record.routing_id, record.name[1]] = record

    def _unlink(self, record: DurableRequest) -> None:
        connection = record.routing_id, record.name[1]
        if self._unnamed.get(connection) is record:
            del self._unnamed[connection]

    @staticmethod
    def _client_of(record: DurableRequest) -> bytes:
        return record.name[0] if record.titanic_sender is None else record.titanic_sender[0]

    def _unindex(self, record: DurableRequest) -> None:
        if self._requests.get(record.name) is not record:
            return
        del self._requests[record.name]
        self._unlink(record)
        self.size -= record.size
        self._add_key_bytes(record, -record.size)
        if record.state != records.DONE:
            self._release_inflight(record)
        if record.service == records.CLOSE and record.body:
            self._closed[records.key_of(record.name[0]), record.body[0]] -= 1
            self._closed += Counter()  # Removes zero counts.

    def _resize(self, record: DurableRequest, change: int) -> None:
        record.size += change
        self.size += change
        self._add_key_bytes(record, change)

    def _add_key_bytes(self, record: DurableRequest, change: int) -> None:
        key = records.key_of(self._client_of(record))
        if key:
            self._key_bytes[key] += change
            if self._key_bytes[key] <= 0:
                del self._key_bytes[key]

    def _enqueue(self, record: DurableRequest) -> None:
        """The store has the request: it waits for a worker."""
        record.state = records.QUEUED
        self._queued.append(record)

    def _on_stored(self, record: DurableRequest) -> None:
        self._enqueue(record)
        if record.titanic_sender is not None:
            self._send_uuid(record)

    def _release_inflight(self, record: DurableRequest) -> None:
        """The request no longer counts as one of its client's unfinished requests."""
        client = self._client_of(record)
        for each in filter(None, (client, records.key_of(client))):
            self._inflight[each] -= 1
            if self._inflight[each] <= 0:
                del self._inflight[each]

    def add_credit(self, name: Name, octets: int) -> None:
        """A client accepts more parts; 0: no further ones."""
        record = self._requests.get(name)
        if record is not None and record.credit is not None:
            record.credit = record.credit + octets if octets else UNWANTED
            self._send_answers(record)

    def detach_client(self, routing_id: bytes, request_id: bytes) -> bool:
        """Stops sending to a client without a name that has lost a part; returns whether an
        unfinished answer was affected."""
        record = self._unnamed.pop((routing_id, request_id), None)
        if record is None:
            return False
        record.routing_id = b""
        return record.state != records.DONE

    def detach_key(self, slot: int) -> None:
        """Stops sending to the clients of a key."""
        for record in self._requests.values():
            if record.slot == slot and record.routing_id:
                self._unlink(record)
                record.routing_id = b""

    # ---- answers to clients ----

    def _attach_client(self, record: DurableRequest, sender: Sender, request: Request) -> None:
        """Connects a client to a request, possibly again; it then gets all answers from the
        first."""
        self._unlink(record)
        record.routing_id, record.slot = sender.routing_id, sender.slot
        record.credit = (request.credit or UNWANTED) if request.name else None
        self._restart_answers(record)

    def _send_answers(self, record: DurableRequest) -> None:
        """Sends unsent answers: parts as far as the credit goes, the FINAL once the store has
        it."""
        if not record.routing_id or record.titanic_sender is not None:
            return
        while record.sent_count < len(record.answers):
            last, body = record.answers[record.sent_count]
            if last and record.state != records.DONE:
                return
            if not last and record.credit is not None and record.credit != UNWANTED:
                if record.credit <= 0:
                    return
                record.credit -= values.part_cost(body)
            record.sent_count += 1
            if last or record.credit != UNWANTED:
                self._send_answer(record, last, body)

    def _send_answer(self, record: DurableRequest, last: bool, body: Message) -> None:
        service, request_id, position = record.service, record.name[1], None
        if record.framing == Framing.TEXT and record.credit in (None, UNWANTED):
            # Like encode(), for the most frequent case.
            command = values.CLIENT_FINAL if last else values.CLIENT_PARTIAL
            head = [record.routing_id, self.setup.headers.client, command, service, request_id]
            self.replies.append(head + (body or [b""]))
            return
        if record.framing == Framing.TEXT:
            position = PartPosition(record.run, record.sent_count - 1)
        else:
            request_id = b""
        if record.framing == Framing.MDP01:  # It has a single answer.
            if not last:
                return
            body = [frame for _, each in record.answers for frame in each]
        self._reply(record, (Final if last else Partial)(service, request_id, body, position))

    def _send_uuid(self, record: DurableRequest) -> None:
        self._answer_titanic(record, [values.TITANIC_OK, record.name[1]])

    def _answer_titanic(self, record: DurableRequest, body: Message) -> None:
        """Answers titanic.request."""
        assert record.titanic_sender is not None
        text = record.framing == Framing.TEXT
        request_id = record.titanic_sender[1] if text else b""
        self._reply(record, Final(values.TITANIC_REQUEST, request_id, body))

    def _reply(self, record: DurableRequest, reply: Final | Partial) -> None:
        if record.routing_id:
            framing = Framing(record.framing)
            self.replies.append([record.routing_id, *encode(reply, framing, self.setup.headers)])

    # ---- answers of workers ----

    def answer(self, name: Name, last: bool, body: Message) -> None:
        """A PARTIAL or FINAL of the worker that has the request."""
        record = self._requests.get(name)
        if record is None or record.state != records.WORKING:
            self.counters["discarded"] += 1
            return
        if record.may_have_run and (last, body) == records.NEVER_DISPATCHED:
            body = encode_failure(UNFINISHED)
        size = records.body_bytes(body)
        # Of the request and its answers.
        whole = records.OVERHEAD_BYTES + 2 * records.RECORD_BYTES_MAX
        if record.size + size > whole or len(record.answers) >= records.RECORD_FRAMES_MAX:
            record.exceeds_limit = True
        if record.exceeds_limit:
            if not last:
                return  # The end will report the error.
            self._drop_answers(record)
            self._restart_answers(record)
            body = encode_failure(TOO_LARGE)
            size = records.body_bytes(body)
        record.answers.append((last, body))
        self._resize(record, size)
        if last:
            record.state = records.ENDING
            self._unwritten_ends.append(record)
        else:
            self._send_answers(record)

    def _drop_answers(self, record: DurableRequest) -> None:
        """Deletes the answers."""
        self._resize(record, -sum(records.body_bytes(body) for _, body in record.answers))
        record.answers = []

    def _restart_answers(self, record: DurableRequest) -> None:
        """Starts a new run: the client gets its answers from the first."""
        record.sent_count = 0
        self._last_run = record.run = (self._last_run + 1) % (1 << 32)

    # ---- writing to the store ----

    def _next_number(self) -> bytes:
        self._last_number = (self._last_number + 1) % (1 << 8 * records.NUMBER_BYTES)
        return self._last_number.to_bytes(records.NUMBER_BYTES, "big")

    @property
    def has_requests_to_write(self) -> bool:
        return bool(self._unwritten)

    def pack_requests(self, unix_ms: int) -> list[Pair]:
        """The segments to write of new requests; on_written() follows eventually."""
        # Another broker may have written one of them since.
        asked = [record for record in self._unwritten if record.state == records.WRITING]
        self._unwritten = []
        return self._pack(records.REQUESTS, asked, unix_ms)

    def pack_ends(self, unix_ms: int) -> list[Pair]:
        """The segments to write of ends; on_written() or on_refused() follows."""
        ended, self._unwritten_ends = self._unwritten_ends, []
        return self._pack(records.ENDS, ended, unix_ms)

    def _pack(self, kind: bytes, requests: list[DurableRequest], unix_ms: int) -> list[Pair]:
        pairs = []
        stamp = unix_ms.to_bytes(records.STAMP_BYTES, "big")
        for mine in records.split(requests):
            key = kind + stamp + self.setup.token + self._next_number()
            segment = self._segments[key] = Segment(key, mine)
            if kind == records.REQUESTS:
                segment.unfinished = len(mine)
                for record in mine:
                    record.request_segments.append(segment)
            pairs.append((key, records.pack(kind, mine)))
        return pairs

    def on_written(self, keys: Iterable[bytes]) -> None:
        """The log has these segments permanently."""
        for key in keys:
            segment = self._segments.get(key)
            if segment is None or segment.is_written:
                continue
            segment.is_written = True
            if key.startswith(records.ENDS):
                self._on_ended(segment)
                continue
            for record in segment.records:
                if record.state == records.WRITING:
                    self._on_stored(record)
            self._settle(segment)

    def _on_ended(self, segment: Segment) -> None:
        """The ends in a segment are final."""
        for record in segment.records:
            if record.state != records.DONE:
                if record.state == records.WRITING and record.titanic_sender is not None:
                    self._send_uuid(record)  # Another broker has written the same request.
                record.state = records.DONE
                self._release_inflight(record)
                for each in record.request_segments:
                    each.unfinished -= 1
                    self._settle(each)
            record.end_segment = segment
            if record.service != records.CLOSE:
                self._resize(record, -sum(map(len, record.body)))
                record.body = []
            self._send_answers(record)
        if not segment.has_junk:
            heapq.heappush(
                self._expiries, (segment.created_ms + self._ttl_ms(segment), segment.key)
            )

    def _ttl_ms(self, segment: Segment) -> int:
        """How long the ends are stored. Ends of requests that were never dispatched expire at once,
        so that a repeat of the same id can be executed."""
        if not segment.records or segment.records[0].never_dispatched:
            return 0
        service = segment.records[0].service
        return self.setup.reply_ttls_ms.get(service, REPLY_TTL_MS)

    def _settle(self, segment: Segment) -> None:
        """Marks a segment of requests for deletion once all have ended."""
        if segment.is_written and not segment.unfinished and not segment.has_junk:
            self._deletable[segment.key] = segment

    def on_refused(self, keys: Iterable[bytes]) -> None:
        """Another broker owns the store: these ends do not count."""
        for key in keys:
            segment = self._segments.get(key)
            if segment is None or segment.is_written:
                continue  # Written; only its confirmation was lost.
            del self._segments[key]
            self._refused_ends.add(key)
            for record in segment.records:
                if record.state == records.ENDING:
                    self._requeue(record)

    def _requeue(self, record: DurableRequest) -> None:
        self._drop_answers(record)
        self._restart_answers(record)
        record.exceeds_limit = False
        self._enqueue(record)

    def deletable(self, unix_ms: int, count: int) -> list[bytes]:
        """At most `count` keys of segments that can be deleted; on_deleted() or on_delete_refused()
        follows."""
        found: list[bytes] = []
        while self._deletable and len(found) < count:
            key, _ = self._deletable.popitem()
            found.append(key)
        if found:
            return found  # A segment of ends is deleted after the requests that it ended.
        postponed = []
        while self._expiries and self._expiries[0][0] <= unix_ms and len(found) < count:
            due = heapq.heappop(self._expiries)
            segment_of_ends = self._segments.get(due[1])
            if segment_of_ends is None:
                continue
            if any(record.request_segments for record in segment_of_ends.records):
                postponed.append((unix_ms + RECHECK_MS, due[1]))
                continue
            if any(self._closes_an_answer(record) for record in segment_of_ends.records):
                postponed.append((unix_ms + REPLY_TTL_MS, due[1]))
                continue
            found.append(due[1])
        for due in postponed:
            heapq.heappush(self._expiries, due)
        return found

    def _closes_an_answer(self, record: DurableRequest) -> bool:
        """Whether it is a titanic.close, and what it closes still exists."""
        if record.service != records.CLOSE or not record.body:
            return False
        closed = self._requests.get((TITANIC_CLIENT, record.body[0]))
        key = records.key_of(record.name[0])
        return closed is not None and records.key_of(self._client_of(closed)) == key

    def on_delete_refused(self, keys: Iterable[bytes]) -> None:
        """They were not deleted, because this broker no longer owns the store."""
        for key in keys:
            segment = self._segments.get(key)
            if segment is not None and key.startswith(records.ENDS):
                heapq.heappush(self._expiries, (0, key))
            elif segment is not None:
                self._deletable[key] = segment

    @property
    def deletable_ms(self) -> int | None:
        """Unix time when a segment may be deletable; 0: one is."""
        if self._deletable:
            return 0
        return self._expiries[0][0] if self._expiries else None

    # ---- reading from the store ----

    def is_written_here(self, key: bytes) -> bool:
        """Whether this process wrote the segment, and so knows its state."""
        return (
            key[1 + records.STAMP_BYTES : 1 + records.STAMP_BYTES + records.TOKEN_BYTES]
            == self.setup.token
        )

    def load(self, key: bytes, value: bytes) -> None:
        """Loads a segment of the store. Bad records are counted and skipped. A segment with bad
        records is never deleted, so that an operator can inspect it."""
        if self.is_written_here(key):
            self.on_written([key])  # Its confirmation may have been lost.
            if key not in self._refused_ends:
                return  # The ledger knows its later state.
            self._refused_ends.discard(key)
        if key in self._segments:
            return
        if len(key) != records.KEY_BYTES or key[:1] not in (records.REQUESTS, records.ENDS):
            self.on_junk(key, "not a segment's key")
            return
        found: list[DurableRequest] = []
        problems: list[str] = []
        try:
            service, rows = records.unpack(value)
        except records.UNREADABLE as error:
            self.on_junk(key, str(error))
            return
        for row in rows:
            try:
                found.append(records.decode_record(key, service, row))
            except records.UNREADABLE as error:
                problems.append(str(error))
        if problems:
            self.on_junk(key, f"{len(problems)} of {len(rows)} records, the first: {problems[0]}")
        segment = self._segments[key] = Segment(key, [], is_written=True)
        segment.has_junk = bool(problems)
        if key.startswith(records.REQUESTS):
            self._load_requests(segment, found)
        else:
            self._load_ends(segment, found)

    def on_junk(self, key: bytes, problem: str) -> None:
        """The segment under this key is damaged or not a broker's."""
        if key in self._junk_keys:
            return
        self.counters["junk"] += 1
        if len(self._junk_keys) < JUNK_KEYS_MAX:
            self._junk_keys.add(key)
            self.junk.append((key, problem))

    def _load_requests(self, segment: Segment, found: list[DurableRequest]) -> None:
        for loaded in found:
            # A repeat at another broker is the same request. All of its segments stay until its
            # end: brokers find them in different orders.
            record = self._requests.get(loaded.name, loaded)
            record.request_segments.append(segment)
            segment.records.append(record)
            segment.unfinished += record.state != records.DONE
            if record.state == records.WRITING:
                self._on_stored(record)
            if record is loaded:
                self._index(record)
        self._settle(segment)

    def _load_ends(self, segment: Segment, found: list[DurableRequest]) -> None:
        for loaded in found:
            record = self._requests.get(loaded.name)
            if record is None:
                loaded.state = records.DONE
                self._index(loaded)
                segment.records.append(loaded)
            elif record.state != records.DONE:
                self._drop_answers(record)
                self._restart_answers(record)  # Another broker had dispatched it.
                record.answers = loaded.answers
                self._resize(record, loaded.size - records.OVERHEAD_BYTES)
                segment.records.append(record)
        self._on_ended(segment)

    def on_deleted(self, keys: Iterable[bytes]) -> None:
        """The store no longer has these segments."""
        for key in keys:
            segment = self._segments.pop(key, None)
            self._deletable.pop(key, None)
            self._refused_ends.discard(key)
            self._junk_keys.discard(key)
            while self._expiries and self._expiries[0][1] not in self._segments:
                heapq.heappop(self._expiries)
            if segment is not None:
                self._forget_records(segment)

    def _forget_records(self, segment: Segment) -> None:
        mine, segment.records = segment.records, []  # Break the reference cycle.
        for record in mine:
            if record.end_segment is segment:
                self._unindex(record)
            elif segment in record.request_segments:
                record.request_segments.remove(segment)
                if record.state != records.DONE and not record.request_segments:
                    # The request's owner has stored its end; we have not read it yet.
                    self._unindex(record)

    def written_keys(self) -> dict[bytes, None]:
        """The keys of all segments known to be in the store, in order."""
        return {key: None for key, segment in self._segments.items() if segment.is_written}

    # ---- dispatch ----

    def pop_queued(self) -> Iterator[DurableRequest]:
        """All stored requests that wait for a worker, oldest first."""
        queued, self._queued = self._queued, deque()
        for record in queued:
            if record.state == records.QUEUED and self._requests.get(record.name) is record:
                record.state = records.WORKING
                yield record

    def on_owner_changed(self) -> None:
        """This broker dispatches from now on. An earlier owner may have dispatched any request that
        is stored: the store does not have that."""
        for record in self._requests.values():
            record.may_have_run |= record.state != records.WRITING

    def requeue_working(self) -> None:
        """Queues the requests that workers have, because another broker dispatches them."""
        ended, self._unwritten_ends = self._unwritten_ends, []
        for record in self._requests.values():
            if record.state == records.WORKING:
                self._requeue(record)
        for record in ended:
            if record.state == records.ENDING:  # Its end is not proposed yet.
                self._requeue(record)

    # ---- status ----

    def counts_by_service(self) -> dict[bytes, list[int]]:
        """By service: unfinished requests, and stored answers."""
        found: dict[bytes, list[int]] = {}
        for record in self._requests.values():
            found.setdefault(record.service, [0, 0])[record.state == records.DONE] += 1
        return found

    @property
    def count(self) -> int:
        return len(self._requests)
