"""The client's side of the broker protocol, without I/O: requests in flight, each with one FINAL.

A connection's name is its url. The owner reports connections and messages, executes ready(), and
gets the calls that changed from pop_updated().

The client connects to all brokers and uses one. When that one is lost or silent for too long, the
client sends all unanswered requests to the next one, in the same order and with the same ids
(docs/protocols/majordomo.md, "Clients"). Each connection has a new routing id; a broker recognises
the client by the name in its requests. The client first asks a broker whether it supports names,
and sends the specification's requests to one that does not.

Parts of an answer need credit: each call grants some, which its owner renews by reading.
"""

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..connections import Connect, Disconnect, Send
from ..errors import RemoteProtocolError
from .codec import (
    Alive,
    Cancel,
    Credit,
    Failure,
    Final,
    Partial,
    PartPosition,
    Request,
    decode_failure,
    decode_reply,
    encode_client_command,
    encode_client_request,
)
from .values import (
    BUSY,
    CREDIT_BYTES,
    FEATURE_NAMED,
    HEADERS,
    LIVENESS,
    MMI_NOT_FOUND,
    MMI_SERVICE,
    OWN_FEATURES,
    PART_COST,
    REMAINING_BYTES,
    REMAINING_MS_UNKNOWN,
    Framing,
    Headers,
    part_cost,
)

PROBE_ID = b"KLK-PROBE"
FEATURES_ID = b"KLK-FEATURES"
WINDOW_BYTES = 4 << 20  # Of parts of one answer, in flight or unread.
BYTES_PER_MS = 4096  # The silence limit grows by the time that sent bytes need at this rate.
RETRY_MS = 50  # Before a refused request (429) is sent again.
RETRY_MS_MAX = 1000
# Finished calls whose deadlines remain in the heap, besides as many as there are open calls.
DONE_MAX = 1000


class BrokerClientSetup(NamedTuple):
    """The brokers, the limits, and when a broker is given up."""

    urls: tuple[str, ...]
    headers: Headers = HEADERS
    name: bytes = b""  # By which brokers recognise this client; empty: no name.
    deadlines: bool = True  # Whether to send each request's remaining time.
    requests_max: int = 1000  # Sent and unanswered requests; fewer after a 429.
    outstanding_max: int = 1 << 16  # Unanswered and queued requests.
    bytes_max: int = 32 << 20  # Of unanswered requests; a larger request is sent alone.
    partial_bytes_max: int = 64 << 20  # Of unread parts.
    # After this silence the client sends a probe, and again after each such time.
    silence_ms: int = 1000
    liveness: int = LIVENESS  # Unanswered probes until a broker is given up.


_NO_PARTS: deque[list[bytes]] = deque(maxlen=0)


class Call:
    """A request and its answer.

    request_id   unique among open calls
    deadline_ms  when the call ends without an answer
    wants_parts  False: parts are dropped on arrival
    """

    __slots__ = (
        "credit",
        "deadline_ms",
        "due_ms",
        "failure",
        "final",
        "frames",
        "in_updated",
        "next_position",
        "number",
        "outlives_owner",
        "owner",
        "parts",
        "refusal",
        "request",
        "resent",
        "retry_ms",
        "size",
        "timed_out",
        "unread",
        "wants_parts",
    )

    def __init__(self, request: Request, deadline_ms: int, wants_parts: bool = False) -> None:
        self.request = request
        self.deadline_ms = deadline_ms
        self.wants_parts = wants_parts
        # Unread PARTIALs. Most calls want none, and so save 600 bytes.
        self.parts: deque[list[bytes]] = deque() if wants_parts else _NO_PARTS
        self.final: list[bytes] | None = None  # The FINAL's body.
        self.failure: Failure | None = None  # Of the FINAL, or of an earlier refusal.
        # How often it was sent again by another connection. The same broker continues it, so parts
        # that were lost with the old connection are missing; another broker starts it anew.
        self.resent = 0
        self.timed_out = False
        self.refusal = ""  # Why the client ended it.
        self.credit = 0  # For parts that the broker may still send.
        self.unread = 0  # The cost of unread parts.
        self.next_position: PartPosition | None = None  # Of the next part.
        # Whether it may outlive its owner, who fetches the answer later. The broker then gets no
        # deadline.
        self.outlives_owner = False
        self.owner: object = None  # For the owner's use.
        self.frames: list[bytes] = []
        self.size = 0  # Of these frames.
        self.number = 0  # Its place in the order of calls.
        self.due_ms = 0  # Not to be sent before.
        self.retry_ms = 0  # The last pause before a repeat.
        self.in_updated = False  # Whether pop_updated() will return it.

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return self.final is not None or self.timed_out or bool(self.refusal)


class _BrokerConnection:
    """A connection to one broker."""

    __slots__ = ("up", "url", "withdrawals")

    def __init__(self, url: str) -> None:
        self.url = url
        self.up = False
        # The command for each request that was in work when the client left this broker: it
        # withdraws the request if another broker answers it.
        self.withdrawals: dict[bytes, Cancel | Credit] = {}


class BrokerClientMachine:
    """The state machine. After any method with now_ms call ready()."""

    def __init__(self, setup: BrokerClientSetup) -> None:
        self.setup = setup
        self.broker = ""  # The url of the broker in use; empty: none.
        self.counters: Counter[str] = Counter()
        self.unserved_service = b""  # The broker's last answer: it has no worker for this one.
        self._connections = {url: _BrokerConnection(url) for url in setup.urls}
        self._actions: list[Connect | Disconnect | Send] = [
            Connect(url) for url in self._connections
        ]
        self._added = 0  # The number of all calls so far.
        self._queued: OrderedDict[bytes, Call] = OrderedDict()  # In order.
        self._sent: dict[bytes, Call] = {}  # And unanswered.
        self._sent_bytes = 0
        self._partial_bytes = 0
        self._inflight_max = setup.requests_max  # Requests in flight.
        # A heap; it keeps finished calls for a while.
        self.deadlines: list[tuple[int, int, Call]] = []
        self._updated: list[Call] = []
        self._stream_count = 0  # Open calls that want parts.
        # None: the broker was asked and has not answered.
        self._supports_names: bool | None = False
        self._silent_since_ms = 0  # The broker's last message, or our last probe.
        self._probes = 0  # Unanswered ones in a row.
        self._probed_service = b""  # The service that the last probe asked about.

    # ---- calls ----

    def add(self, call: Call) -> Call:
        """Queues a request. LocalProtocolError: an invalid service name or id."""
        call.frames = encode_client_request(call.request, Framing.TEXT, self.setup.headers)
        call.size = sum(map(len, call.frames))
        self._stream_count += call.wants_parts
        self._added += 1
        call.number = self._added
        self._queued[call.request.request_id] = call
        heapq.heappush(self.deadlines, (call.deadline_ms, call.number, call))
        return call

    def has_request(self, request_id: bytes) -> bool:
        """Whether an open call has that id."""
        return request_id in self._sent or request_id in self._queued

    def cancel(self, call: Call) -> None:
        """Ends a call; later answers are dropped."""
        while call.parts:
            self.pop_part(call)
        if not call.done:  # Otherwise another call may use its id now.
            self._withdraw(call)
            call.refusal = "cancelled, or its client was closed"

    def cancel_all(self) -> list[Call]:
        """Ends all open calls, and returns them."""
        calls = [*self._sent.values(), *self._queued.values()]
        for call in calls:
            self.cancel(call)
        return calls

    def pop_part(self, call: Call) -> list[bytes] | None:
        """The next PARTIAL's body in order; None: none has arrived."""
        if not call.parts:
            return None
        body = call.parts.popleft()
        self._partial_bytes -= sum(map(len, body))
        return body

    def on_parts_read(self, call: Call, bodies: Iterable[list[bytes]]) -> bool:
        """Parts were read, which renews credit. True: call ready() soon, as the broker waits for
        the credit."""
        call.unread -= sum(map(part_cost, bodies))
        request = call.request
        if not self._supports_names or self._sent.get(request.request_id) is not call:
            return False
        room = self._window - call.credit - call.unread
        if room < self._window // 2:
            return False
        call.credit += room
        self._send_command(Credit(request.service, request.request_id, self.setup.name, room))
        return True

    @property
    def _window(self) -> int:
        """The credit of a call that wants parts."""
        share = self.setup.partial_bytes_max // max(self._stream_count, 1)
        return min(WINDOW_BYTES, max(share, PART_COST))

    def pop_updated(self) -> list[Call]:
        """The calls that changed since the last call of this method."""
        pop_updated, self._updated = self._updated, []
        for call in pop_updated:
            call.in_updated = False
        return pop_updated

    @property
    def outstanding(self) -> int:
        """The number of open calls."""
        return len(self._queued) + len(self._sent)

    @property
    def has_room(self) -> bool:
        """Whether another call may be added."""
        return self.outstanding < self.setup.outstanding_max

    # ---- connections and messages ----

    def on_connected(self, url: str, now_ms: int) -> None:
        """Connected, possibly again."""
        connection = self._connections.get(url)
        if connection is not None:
            connection.up = True
            if not self.broker:
                self._select_broker(url, now_ms)

    def on_disconnected(self, url: str, now_ms: int) -> None:
        """The connection is lost. If the broker was in use, its requests go to another one at
        once."""
        connection = self._connections.get(url)
        if connection is None or not connection.up:
            return
        if url == self.broker:
            self.counters["lost"] += 1
            self._leave_broker(now_ms)
        else:
            self._reconnect(connection)

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None:
        """A message arrived; invalid ones are dropped and counted."""
        if url != self.broker:
            return  # From a broker that was left; its connection is being closed.
        try:
            framing, reply = decode_reply(frames, self.setup.headers)
            if framing is not Framing.TEXT:
                raise RemoteProtocolError(f"a reply in {framing.name} to a request in TEXT")
            self._silent_since_ms, self._probes = now_ms, 0
            if isinstance(reply, Alive):
                return
            call = self._sent.get(reply.request_id)
            if call is None:
                self._on_unknown_reply(reply.request_id, reply.body)
            elif not self._is_next(call, reply):
                self.counters["gaps"] += 1
                self._withdraw(call)
                call.refusal = "a part of its answer was lost with a connection"
                self._mark_updated(call)
            elif isinstance(reply, Final):
                self._on_final(call, reply.body, now_ms)
            else:
                self._on_partial(call, reply.body)
        except RemoteProtocolError:
            self.counters["junk"] += 1

    def _on_unknown_reply(self, request_id: bytes, body: list[bytes]) -> None:
        if request_id == FEATURES_ID:
            self._supports_names = FEATURE_NAMED in body
            self._send_withdrawals(self._connections[self.broker])
        elif request_id == PROBE_ID:
            self.unserved_service = self._probed_service if body == [MMI_NOT_FOUND] else b""
            if self._supports_names is None:
                # It answered the later probe, so it does not know the question.
                self._supports_names = False
        else:
            self.counters["strays"] += 1  # Ended meanwhile, or answered twice.

    def _is_next(self, call: Call, reply: Partial | Final) -> bool:
        """Whether no part is missing before this one."""
        position, expected = reply.position, call.next_position
        if position is None or not call.wants_parts:
            return True
        if expected is None or position.run != expected.run:
            expected = PartPosition(position.run, 0)  # Another worker starts anew.
        call.next_position = PartPosition(expected.run, expected.number + 1)
        return position == expected

    # Specification, "Protocol Client": be prepared for zero or more PARTIALs.
    def _on_partial(self, call: Call, body: list[bytes]) -> None:
        if not call.wants_parts:
            return
        had_credit = call.credit > 0
        cost = part_cost(body)
        call.credit -= cost
        call.unread += cost
        self._partial_bytes += sum(map(len, body))
        call.parts.append(body)
        self._mark_updated(call)
        if self._partial_bytes > self.setup.partial_bytes_max and not had_credit:
            self.counters["overrun"] += 1
            self._withdraw(call)
            call.refusal = "its partial answers arrive faster than they are read"

    # Specification, "Protocol Client": keep track of REQUESTs and receive a FINAL for each.
    def _on_final(self, call: Call, body: list[bytes], now_ms: int) -> None:
        failure = decode_failure(body)
        call.failure = failure
        self._remove_sent(call)
        if failure is not None and failure.code == BUSY:
            # Refused for lack of room: reduce the requests in flight, and repeat this one later.
            self.counters["busy"] += 1
            self._inflight_max = max(1, len(self._sent))
            call.retry_ms = min(max(RETRY_MS, 2 * call.retry_ms), RETRY_MS_MAX)
            call.due_ms = now_ms + call.retry_ms
            if call.due_ms < call.deadline_ms:
                self._requeue([call])
                return
        elif self._inflight_max < self.setup.requests_max:
            self._inflight_max += 1
        self._stream_count -= call.wants_parts
        call.final = body
        self._mark_updated(call)

    def _mark_updated(self, call: Call) -> None:
        if not call.in_updated:
            call.in_updated = True
            self._updated.append(call)

    def _remove_sent(self, call: Call) -> None:
        if self._sent.pop(call.request.request_id, None) is not None:
            self._sent_bytes -= call.size

    def _withdraw(self, call: Call) -> None:
        """Forgets a call and withdraws it at the broker. A request that outlives its owner
        continues there, without parts."""
        request_id = call.request.request_id
        self._queued.pop(request_id, None)
        self._stream_count -= call.wants_parts
        if request_id in self._sent and self._supports_names:
            self._send_command(self._withdrawal(call))
        self._remove_sent(call)

    def _withdrawal(self, call: Call) -> Cancel | Credit:
        request, name = call.request, self.setup.name
        if call.outlives_owner:
            return Credit(request.service, request.request_id, name, 0)
        return Cancel(request.service, request.request_id, name)

    def _send_command(self, command: Credit | Cancel) -> None:
        frames = encode_client_command(command, Framing.TEXT, self.setup.headers)
        self._actions.append(Send(self.broker, frames))

    # ---- the broker ----

    def _select_broker(self, url: str, now_ms: int) -> None:
        self.broker = url
        self.counters["brokers"] += 1
        self._silent_since_ms, self._probes = now_ms, 0
        self._supports_names = False
        if self.setup.name:
            self._supports_names = None
            self._request_features()
            self._send_probe()  # A broker that answers only this probe does not support names.

    def _send_withdrawals(self, connection: _BrokerConnection) -> None:
        """Withdraws the requests that have ended since the client left this broker."""
        withdrawals, connection.withdrawals = connection.withdrawals, {}
        if self._supports_names:
            for request_id, withdrawal in withdrawals.items():
                if not self.has_request(request_id):
                    self._send_command(withdrawal)

    def _reconnect(self, connection: _BrokerConnection) -> None:
        """RFC 18, "MDP/Client", recommends a new socket; it gets a new routing id."""
        connection.up = False
        self._actions += (Disconnect(connection.url), Connect(connection.url))

    def _leave_broker(self, now_ms: int) -> None:
        """Gives the broker up, and sends its unanswered requests to the next one.

        The old socket is closed, so that it sends nothing later. RFC 10 treats several brokers as
        equivalent.
        """
        old = self.broker
        self._reconnect(self._connections[old])
        self.broker, self.unserved_service = "", b""
        self._inflight_max = self.setup.requests_max
        for call in self._sent.values():
            call.due_ms = 0
            call.resent += 1
            if self._supports_names:
                self._connections[old].withdrawals[call.request.request_id] = self._withdrawal(call)
        calls = list(self._sent.values())
        self._sent.clear()
        self._sent_bytes = 0
        self._requeue(calls)
        urls = self.setup.urls
        next_ = urls.index(old) + 1
        for url in (*urls[next_:], *urls[:next_]):
            if self._connections[url].up:
                self._select_broker(url, now_ms)
                return

    def _requeue(self, calls: Iterable[Call]) -> None:
        """Puts calls back to their place in the order."""
        calls_in_order = sorted((*calls, *self._queued.values()), key=lambda it: it.number)
        self._queued = OrderedDict((it.request.request_id, it) for it in calls_in_order)

    # ---- effects ----

    def ready(self, now_ms: int) -> list[Connect | Disconnect | Send]:
        """All effects that are due, in order."""
        deadlines = self.deadlines
        while deadlines and (deadlines[0][2].done or deadlines[0][0] <= now_ms):
            self._expire(heapq.heappop(deadlines)[2])
        if len(deadlines) > 2 * self.outstanding + DONE_MAX:
            self.deadlines = [one for one in deadlines if not one[2].done]
            heapq.heapify(self.deadlines)
        if self._awaits_broker and self._silence_deadline_ms <= now_ms:
            self._on_silence(now_ms)
        if self.broker:
            self._send_waiting(now_ms)
        actions, self._actions = self._actions, []
        return actions

    def _expire(self, call: Call) -> None:
        if call.done:
            return
        self.counters["timeouts"] += 1
        call.timed_out = True
        self._withdraw(call)
        self._mark_updated(call)

    def _on_silence(self, now_ms: int) -> None:
        """Probes by mmi.service, which every broker has; the specification has no PING for
        clients."""
        if self._probes >= self.setup.liveness - 1:
            self.counters["silent"] += 1
            self._leave_broker(now_ms)
            return
        self._silent_since_ms, self._probes = now_ms, self._probes + 1
        self._send_probe()

    def _send_probe(self) -> None:
        calls = self._sent or self._queued
        self._probed_service = next(iter(calls.values())).request.service if calls else b""
        self._send_request(Request(MMI_SERVICE, PROBE_ID, [self._probed_service]))

    def _request_features(self) -> None:
        self._send_request(Request(OWN_FEATURES, FEATURES_ID, [b""]))

    def _send_request(self, request: Request) -> None:
        frames = encode_client_request(request, Framing.TEXT, self.setup.headers)
        self._actions.append(Send(self.broker, frames))

    def _send_waiting(self, now_ms: int) -> None:
        while self._queued and self._may_send:
            call = next(iter(self._queued.values()))
            if call.due_ms > now_ms:
                return
            del self._queued[call.request.request_id]
            if not self._sent:
                self._silent_since_ms, self._probes = now_ms, 0
            self._sent[call.request.request_id] = call
            self._sent_bytes += call.size
            self._actions.append(Send(self.broker, self._encoded(call, now_ms)))

    def _encoded(self, call: Call, now_ms: int) -> list[bytes]:
        """The frames of a request for this broker, with the current remaining time and credit."""
        frames, headers = call.frames, self.setup.headers
        left_ms = min(max(call.deadline_ms - now_ms, 0), REMAINING_MS_UNKNOWN)
        if call.outlives_owner:
            left_ms = REMAINING_MS_UNKNOWN
        remaining = left_ms.to_bytes(REMAINING_BYTES, "big")
        if self._supports_names:
            # Parts in flight on an old connection are lost.
            call.credit = max(self._window - call.unread, PART_COST) if call.wants_parts else 0
            options = remaining + call.credit.to_bytes(CREDIT_BYTES, "big") + self.setup.name
            return [headers.named, *frames[1:4], options, *frames[4:]]
        if call.outlives_owner or not self.setup.deadlines:
            return frames
        return [headers.deadline, *frames[1:4], remaining, *frames[4:]]

    @property
    def _may_send(self) -> bool:
        if self._supports_names is None:
            return False  # Until the broker has told whether it supports names.
        return len(self._sent) < self._inflight_max and self._sent_bytes < self.setup.bytes_max

    @property
    def _awaits_broker(self) -> bool:
        """Whether an answer of the broker is due."""
        return bool(self.broker) and (bool(self._sent) or self._supports_names is None)

    @property
    def _silence_deadline_ms(self) -> int:
        """When to probe or give up a silent broker. Only unanswered probes end it, so that a pause
        of this process does not."""
        return self._silent_since_ms + self.setup.silence_ms + self._sent_bytes // BYTES_PER_MS

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        times = [self.deadlines[0][0]] if self.deadlines else []
        if self.broker:
            if self._awaits_broker:
                times.append(self._silence_deadline_ms)
            first = next(iter(self._queued.values()), None)
            if first is not None and self._may_send:
                times.append(first.due_ms)
        return min(times, default=None)
