"""The client's side of a broker without IO: many requests in flight, each with one FINAL.

Connections are named by their url. The owner tells what happens to them and what arrives, then does
what ready() returns, and finds in news() whose answer has grown or come to its end.

It connects to all brokers that it knows and uses one. When that one is lost, or silent for too
long, it goes to the next one and sends there all that is unanswered, in the order in which it was
begun and under the same ids (docs/protocols/majordomo.md, "Clients"). Each connection has a routing
id of its own; the name that a client says with its requests is what a broker knows it by when one
comes again. A broker is asked first whether it knows names: one that does not gets the text's
requests.

Parts of an answer come for credit: each call has some, which its owner renews by reading.
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
WINDOW_BYTES = 4 << 20  # Of parts of one answer that are on their way, or not read.
BYTES_PER_MS = (
    4096  # What is on its way needs so much time; a broker that takes it in isn't silent.
)
RETRY_MS = 50  # Before a request is sent again that nobody had room for.
RETRY_MS_MAX = 1000
DONE_MAX = 1000  # Calls whose deadlines are kept though they are done, beside as many as are not.


class BrokerClientSetup(NamedTuple):
    """The brokers, how much may be on its way, and when one of them is given up."""

    urls: tuple[str, ...]
    headers: Headers = HEADERS
    name: bytes = b""  # By which brokers know this client on a new connection; empty: by none.
    deadlines: bool = True  # Whether to tell the broker how much time a request has.
    requests_max: int = 1000  # Sent and not answered; fewer for a broker that has said 429.
    outstanding_max: int = 1 << 16  # These, and those that wait to be sent.
    bytes_max: int = 32 << 20  # Of these; a larger request goes alone.
    partial_bytes_max: int = 64 << 20  # Of parts that arrived and were not taken.
    silence_ms: int = 1000  # Then a broker is asked whether it is there, and again each so long.
    liveness: int = LIVENESS  # So many silences in a row, and it is given up.


_NO_PARTS: deque[list[bytes]] = deque(maxlen=0)


class Call:
    """A request and what has come of it.

    request_id   of no other call that has not come to its end
    deadline_ms  then nobody waits for it any more
    partials     whether parts are wanted; else they are dropped as they arrive
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
        # Bodies of PARTIALs that nobody took yet; most calls want none, and save its 600 bytes.
        self.parts: deque[list[bytes]] = deque() if wants_parts else _NO_PARTS
        self.final: list[bytes] | None = None  # The FINAL's body.
        self.failure: Failure | None = None  # What it says, or said before, if that is an error.
        # Times that it was sent over another connection. A broker that has it in work already goes
        # on, so that parts which were lost with the old one are missing; any other begins anew.
        self.resent = 0
        self.timed_out = False
        self.refusal = ""  # Why we gave it up ourselves.
        self.credit = 0  # For which its broker may still send parts.
        self.unread = 0  # What parts cost that are here and were not read.
        self.next_position: PartPosition | None = None  # Of the part that comes next.
        # Whether it may outlive its owner, who comes back for the answer: then the broker is told
        # of no deadline.
        self.outlives_owner = False
        self.owner: object = None  # The owner's own.
        self.frames: list[bytes] = []
        self.size = 0  # Octets of these.
        self.number = 0  # Its place in the order.
        self.due_ms = 0  # Not to be sent before.
        self.retry_ms = 0  # Between the last two times.
        self.in_updated = False  # Whether it is among the news.

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.final is not None or self.timed_out or bool(self.refusal)


class _BrokerConnection:
    """A connection to one broker."""

    __slots__ = ("up", "url", "withdrawals")

    def __init__(self, url: str) -> None:
        self.url = url
        self.up = False
        # What goes away for each request, by its id, that it had in work when it was left: should
        # that be answered elsewhere, nobody else would tell it.
        self.withdrawals: dict[bytes, Cancel | Credit] = {}


class BrokerClientMachine:
    """The machine. Every method that takes now_ms may be followed by ready()."""

    def __init__(self, setup: BrokerClientSetup) -> None:
        self.setup = setup
        self.broker = ""  # The url of the one that is used; empty: none is to be had.
        self.counters: Counter[str] = Counter()
        self.unserved_service = (
            b""  # A service for which the broker has no worker, as it said last.
        )
        self._connections = {url: _BrokerConnection(url) for url in setup.urls}
        self._actions: list[Connect | Disconnect | Send] = [
            Connect(url) for url in self._connections
        ]
        self._added = 0  # Calls, ever.
        self._queued: OrderedDict[bytes, Call] = OrderedDict()  # Not sent, in order.
        self._sent: dict[bytes, Call] = {}  # And not answered.
        self._sent_bytes = 0
        self._partial_bytes = 0
        self._inflight_max = setup.requests_max  # How many may be in flight.
        self._deadlines: list[tuple[int, int, Call]] = []  # A heap; calls that are done stay.
        self._updated: list[Call] = []
        self._stream_count = 0  # Calls that have not come to their end and want parts.
        # Whether the broker knows names and credit; None: it was asked, and has not answered.
        self._supports_names: bool | None = False
        self._silent_since_ms = 0  # Since when the broker has said nothing, nor been asked.
        self._probes = 0  # How often it was asked in vain whether it is there.
        self._probed_service = b""  # For which service.

    # ---- what the owner wants ----

    def add(self, call: Call) -> Call:
        """Puts a request behind those that are on their way. LocalProtocolError: a name or an id
        that the wire does not know."""
        call.frames = encode_client_request(call.request, Framing.TEXT, self.setup.headers)
        call.size = sum(map(len, call.frames))
        self._stream_count += call.wants_parts
        self._added += 1
        call.number = self._added
        self._queued[call.request.request_id] = call
        heapq.heappush(self._deadlines, (call.deadline_ms, call.number, call))
        return call

    def has_request(self, request_id: bytes) -> bool:
        """Whether a call with that id has not come to its end."""
        return request_id in self._sent or request_id in self._queued

    def cancel(self, call: Call) -> None:
        """Forgets a request: what still comes of it is thrown away."""
        while call.parts:
            self.pop_part(call)
        if not call.done:  # Else its id may be another's by now.
            self._withdraw(call)
            call.refusal = "it was given up: cancelled, or its client closed"

    def cancel_all(self) -> list[Call]:
        """Forgets all that have not come to their end, and returns them."""
        calls = [*self._sent.values(), *self._queued.values()]
        for call in calls:
            self.cancel(call)
        return calls

    def pop_part(self, call: Call) -> list[bytes] | None:
        """The next PARTIAL's body, in the order in which they came; None: there is none now."""
        if not call.parts:
            return None
        body = call.parts.popleft()
        self._partial_bytes -= sum(map(len, body))
        return body

    def on_parts_read(self, call: Call, bodies: Iterable[list[bytes]]) -> bool:
        """Parts that were taken are no longer held: others may come. True: ready() has to be asked
        soon, as the broker waits for that."""
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
        """The calls to which something happened since this was asked last."""
        pop_updated, self._updated = self._updated, []
        for call in pop_updated:
            call.in_updated = False
        return pop_updated

    @property
    def outstanding(self) -> int:
        """Calls that have not come to their end."""
        return len(self._queued) + len(self._sent)

    @property
    def has_room(self) -> bool:
        """Whether one more should be added."""
        return self.outstanding < self.setup.outstanding_max

    # ---- what happens ----

    def on_connected(self, url: str, now_ms: int) -> None:
        """The connection is made, or made again: it can be sent to."""
        connection = self._connections.get(url)
        if connection is not None:
            connection.up = True
            if not self.broker:
                self._select_broker(url, now_ms)

    def on_disconnected(self, url: str, now_ms: int) -> None:
        """The connection is lost. Of the broker's: its requests go elsewhere at once."""
        connection = self._connections.get(url)
        if connection is None or not connection.up:
            return
        if url == self.broker:
            self.counters["lost"] += 1
            self._leave_broker(now_ms)
        else:
            self._reconnect(connection)

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None:
        """A message arrived; junk is dropped and counted."""
        if url != self.broker:
            return  # A late word of one that was left; its connection is being closed.
        try:
            framing, reply = decode_reply(frames, self.setup.headers)
            if framing is not Framing.TEXT:
                raise RemoteProtocolError(f"a reply in {framing.name} to a request in the text's")
            self._silent_since_ms, self._probes = now_ms, 0
            if isinstance(reply, Alive):
                return
            call = self._sent.get(reply.request_id)
            if call is None:
                self._on_unknown_reply(reply.request_id, reply.body)
            elif not self._is_next(call, reply):
                self.counters["gaps"] += 1
                self._withdraw(call)
                call.refusal = "a part of its answer was lost, with a connection to its broker"
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
                self._supports_names = False  # It was asked before, and does not know the question.
        else:
            self.counters["strays"] += 1  # Given up meanwhile, or answered twice.

    def _is_next(self, call: Call, reply: Partial | Final) -> bool:
        """Whether no part is missing before this one, or before the end."""
        position, expected = reply.position, call.next_position
        if position is None or not call.wants_parts:
            return True
        if expected is None or position.run != expected.run:
            expected = PartPosition(position.run, 0)  # Another worker begins anew.
        call.next_position = PartPosition(expected.run, expected.number + 1)
        return position == expected

    # The text, "Protocol Client": be prepared for zero or more PARTIALs.
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
            call.refusal = "its partial answers come faster than they are read"

    # The text, "Protocol Client": keep track of REQUESTs and receive a FINAL for each.
    def _on_final(self, call: Call, body: list[bytes], now_ms: int) -> None:
        failure = decode_failure(body)
        call.failure = failure
        self._remove_sent(call)
        if failure is not None and failure.code == BUSY:
            # Nobody had room for it: less is sent at once from now on, and this once more.
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
        """It is not waited for any more; a broker that has it in work is told. A request that lasts
        goes on there, without its parts."""
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
            self._send_probe()  # Whoever answers this alone does not know the other.

    def _send_withdrawals(self, connection: _BrokerConnection) -> None:
        """It is told what has come to its end since it was left."""
        withdrawals, connection.withdrawals = connection.withdrawals, {}
        if self._supports_names:
            for request_id, withdrawal in withdrawals.items():
                if not self.has_request(request_id):
                    self._send_command(withdrawal)

    def _reconnect(self, connection: _BrokerConnection) -> None:
        """RFC 18, "MDP/Client", recommends a new socket; its routing id is another one."""
        connection.up = False
        self._actions += (Disconnect(connection.url), Connect(connection.url))

    def _leave_broker(self, now_ms: int) -> None:
        """Gives the broker up: what it owes is sent to the next one.

        What waits in the old socket must not be sent later. RFC 10 has several brokers, each as
        good as the others.
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
        """Each gets its old place in the order."""
        calls_in_order = sorted((*calls, *self._queued.values()), key=lambda it: it.number)
        self._queued = OrderedDict((it.request.request_id, it) for it in calls_in_order)

    # ---- what is to be done ----

    def ready(self, now_ms: int) -> list[Connect | Disconnect | Send]:
        """Everything to be done now, in order."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][2].done or deadlines[0][0] <= now_ms):
            self._expire(heapq.heappop(deadlines)[2])
        if len(deadlines) > 2 * self.outstanding + DONE_MAX:
            self._deadlines = [one for one in deadlines if not one[2].done]
            heapq.heapify(self._deadlines)
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
        """The text gives clients no PING: the service that every broker must have is asked."""
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
        """A request as the broker knows it, and with what has changed since it was made."""
        frames, headers = call.frames, self.setup.headers
        left_ms = min(max(call.deadline_ms - now_ms, 0), REMAINING_MS_UNKNOWN)
        if call.outlives_owner:
            left_ms = REMAINING_MS_UNKNOWN
        remaining = left_ms.to_bytes(REMAINING_BYTES, "big")
        if self._supports_names:
            # What was on its way by an old connection is lost.
            call.credit = max(self._window - call.unread, PART_COST) if call.wants_parts else 0
            options = remaining + call.credit.to_bytes(CREDIT_BYTES, "big") + self.setup.name
            return [headers.named, *frames[1:4], options, *frames[4:]]
        if call.outlives_owner or not self.setup.deadlines:
            return frames
        return [headers.deadline, *frames[1:4], remaining, *frames[4:]]

    @property
    def _may_send(self) -> bool:
        if self._supports_names is None:
            return False  # Not before the broker has said how it wants them.
        return len(self._sent) < self._inflight_max and self._sent_bytes < self.setup.bytes_max

    @property
    def _awaits_broker(self) -> bool:
        """Whether the broker has to say something."""
        return bool(self.broker) and (bool(self._sent) or self._supports_names is None)

    @property
    def _silence_deadline_ms(self) -> int:
        """When the broker has been silent for so long that something is to be done about it. It is
        given up after questions, not by the clock alone: whoever slept himself can't blame it."""
        return self._silent_since_ms + self.setup.silence_ms + self._sent_bytes // BYTES_PER_MS

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest, whatever happens."""
        times = [self._deadlines[0][0]] if self._deadlines else []
        if self.broker:
            if self._awaits_broker:
                times.append(self._silence_deadline_ms)
            first = next(iter(self._queued.values()), None)
            if first is not None and self._may_send:
                times.append(first.due_ms)
        return min(times, default=None)
