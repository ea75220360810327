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

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..connections import ClientAction
from ..errors import RemoteProtocolError
from ..failover.limits import NEVER_MS, RETRY_MS, RETRY_MS_MAX, SILENCE_MS, doubled
from ..failover.requests import ClientRequest, RequestWindow
from ..failover.servers import (
    Candidate,
    Failover,
    FailoverPolicy,
)
from . import codec, values

PROBE_ID = b"KLK-PROBE"
FEATURES_ID = b"KLK-FEATURES"
WINDOW_BYTES = 4 << 20  # Of parts of one answer, in flight or unread.


class BrokerClientSetup(NamedTuple):
    """The brokers, the limits, and when a broker is given up."""

    urls: tuple[str, ...]
    headers: values.Headers = values.HEADERS
    name: bytes = b""  # By which brokers recognise this client; empty: no name.
    deadlines: bool = True  # Whether to send each request's remaining time.
    requests_max: int = 1000  # Sent and unanswered requests; fewer after a 429.
    outstanding_max: int = 1 << 16  # Unanswered and queued requests.
    bytes_max: int = 32 << 20  # Of unanswered requests; a larger request is sent alone.
    partial_bytes_max: int = 64 << 20  # Of unread parts.
    # After this silence the client sends a probe, and again after each such time.
    silence_ms: int = SILENCE_MS
    liveness: int = values.LIVENESS  # Unanswered probes until a broker is given up.
    notice: bool = False  # Warn of calls that wait without a broker.
    reach_ms: int | None = NEVER_MS  # Of the failover.


_NO_PARTS: deque[list[bytes]] = deque(maxlen=0)


@dataclass(slots=True, eq=False)
class Call(ClientRequest):
    """A request and its answer.

    request      its request_id is unique among open calls
    deadline_ms  when the call ends without an answer
    wants_parts  False: parts are dropped on arrival
    """

    request: codec.Request
    deadline_ms: int
    wants_parts: bool = False
    # Unread PARTIALs. Most calls want none, and so save 600 bytes.
    parts: deque[list[bytes]] = field(init=False)
    final: list[bytes] | None = field(init=False, default=None)  # The FINAL's body.
    # Of the FINAL, or of an earlier refusal.
    failure: codec.Failure | None = field(init=False, default=None)
    # How often it was sent again by another connection. The same broker continues it, so parts that
    # were lost with the old connection are missing; another broker starts it anew.
    resent: int = field(init=False, default=0)
    timed_out: bool = field(init=False, default=False)
    refusal: str = field(init=False, default="")  # Why the client ended it.
    credit: int = field(init=False, default=0)  # For parts that the broker may still send.
    unread: int = field(init=False, default=0)  # The cost of unread parts.
    next_position: codec.PartPosition | None = field(init=False, default=None)  # Of the next part.
    # Whether it may outlive its owner, who fetches the answer later. The broker then gets no
    # deadline.
    outlives_owner: bool = field(init=False, default=False)
    owner: object = field(init=False, default=None)  # For the owner's use.
    frames: list[bytes] = field(init=False)  # Encoded once.
    retry_ms: int = field(init=False, default=0)  # The last pause before a repeat.
    in_updated: bool = field(init=False, default=False)  # Whether pop_updated() will return it.

    def __post_init__(self) -> None:
        self.parts = deque() if self.wants_parts else _NO_PARTS

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return self.final is not None or self.timed_out or bool(self.refusal)


class BrokerClientMachine:
    """The state machine. After any method with now_ms call ready()."""

    def __init__(self, setup: BrokerClientSetup) -> None:
        self.setup = setup
        policy = FailoverPolicy(
            kind="broker",
            plural="brokers",
            silence_ms=setup.silence_ms,
            probes_max=setup.liveness - 1,
            keeps_others=True,
            notice=setup.notice,
            reach_ms=setup.reach_ms,
        )
        self.counters: Counter[str] = Counter()
        self.failover: Failover[Candidate] = Failover(policy, self, Candidate, self.counters)
        self.unserved_service = b""  # The broker's last answer: it has no worker for this one.
        self.calls: RequestWindow[Call] = RequestWindow(setup.requests_max, setup.bytes_max)
        # By broker, the command for each request that was in work when the client left it: it
        # withdraws the request if another broker answers it.
        self._withdrawals: dict[str, dict[bytes, codec.Cancel | codec.Credit]] = {}
        self._partial_bytes = 0
        self._updated: list[Call] = []
        self._stream_count = 0  # Open calls that want parts.
        # None: the broker was asked and has not answered.
        self._supports_names: bool | None = False
        self._probed_service = b""  # The service that the last probe asked about.
        self.failover.search(0)

    @property
    def broker(self) -> str:
        """The url of the broker in use; empty: none."""
        current = self.failover.current
        return "" if current is None else current.url

    # ---- calls ----

    def add(self, call: Call) -> Call:
        """Queues a request. LocalProtocolError: an invalid service name or id."""
        call.frames = codec.encode(call.request, values.Framing.TEXT, self.setup.headers)
        call.size = sum(map(len, call.frames))
        self._stream_count += call.wants_parts
        self.calls.add(call.request.request_id, call, call.deadline_ms)
        return call

    def has_request(self, request_id: bytes) -> bool:
        """Whether an open call has that id."""
        return request_id in self.calls

    def cancel(self, call: Call) -> None:
        """Ends a call; later answers are dropped."""
        while call.parts:
            self.pop_part(call)
        if not call.done:  # Otherwise another call may use its id now.
            self._withdraw(call)
            call.refusal = "cancelled, or its client was closed"

    def cancel_all(self) -> list[Call]:
        """Ends all open calls, and returns them."""
        calls = list(self.calls)
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
        call.unread -= sum(map(values.part_cost, bodies))
        request = call.request
        if not self._supports_names or self.calls.sent.get(call.id) is not call:
            return False
        room = self._window - call.credit - call.unread
        if room < self._window // 2:
            return False
        call.credit += room
        self._send(codec.Credit(request.service, request.request_id, self.setup.name, room))
        return True

    @property
    def _window(self) -> int:
        """The credit of a call that wants parts."""
        share = self.setup.partial_bytes_max // max(self._stream_count, 1)
        return min(WINDOW_BYTES, max(share, values.PART_COST))

    def pop_updated(self) -> list[Call]:
        """The calls that changed since the last call of this method."""
        pop_updated, self._updated = self._updated, []
        for call in pop_updated:
            call.in_updated = False
        return pop_updated

    @property
    def outstanding(self) -> int:
        """The number of open calls."""
        return len(self.calls)

    @property
    def has_room(self) -> bool:
        """Whether another call may be added."""
        return self.outstanding < self.setup.outstanding_max

    # ---- connections and messages ----

    def on_connected(self, url: str, now_ms: int) -> None:
        """Connected, possibly again."""
        self.failover.on_connected(url, now_ms)

    def on_disconnected(self, url: str, now_ms: int) -> None:
        """The connection is lost. If the broker was in use, its requests go to another one at
        once."""
        self.failover.on_disconnected(url, now_ms)

    def on_refused(self, url: str, problem: str, way_out: str, may_pass: bool = False) -> None:
        """The connection is not made: a key is missing or refused, or the host has no address."""
        self.failover.on_refused(url, problem, way_out, may_pass)

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None:
        """A message arrived; invalid ones are dropped and counted."""
        broker = self.failover.current
        if broker is None or url != broker.url:
            return  # From a broker that was left; its connection is being closed.
        try:
            framing, reply = codec.REPLIES.decode(frames, self.setup.headers)
            if framing is not values.Framing.TEXT:
                raise RemoteProtocolError(f"a reply in {framing.name} to a request in TEXT")
            self.failover.on_heard(broker, now_ms)
            if isinstance(reply, codec.Alive):
                return
            call = self.calls.sent.get(reply.request_id)
            if call is None:
                self._on_unknown_reply(url, reply.request_id, reply.body)
            elif not self._is_next(call, reply):
                self.counters["gaps"] += 1
                self._withdraw(call)
                call.refusal = "a part of its answer was lost with a connection"
                self._mark_updated(call)
            elif isinstance(reply, codec.Final):
                self._on_final(call, reply.body, now_ms)
            else:
                self._on_partial(call, reply.body)
        except RemoteProtocolError:
            self.counters["junk"] += 1

    def _on_unknown_reply(self, url: str, request_id: bytes, body: list[bytes]) -> None:
        if request_id == FEATURES_ID:
            self._supports_names = values.FEATURE_NAMED in body
            self._send_withdrawals(url)
        elif request_id == PROBE_ID:
            self.unserved_service = self._probed_service if body == [values.MMI_NOT_FOUND] else b""
            if self._supports_names is None:
                # It answered the later probe, so it does not know the question.
                self._supports_names = False
        else:
            self.counters["strays"] += 1  # Ended meanwhile, or answered twice.

    def _is_next(self, call: Call, reply: codec.Partial | codec.Final) -> bool:
        """Whether no part is missing before this one."""
        position, expected = reply.position, call.next_position
        if position is None or not call.wants_parts:
            return True
        if expected is None or position.run != expected.run:
            expected = codec.PartPosition(position.run, 0)  # Another worker starts anew.
        call.next_position = codec.PartPosition(expected.run, expected.number + 1)
        return position == expected

    # Specification, "Protocol Client": be prepared for zero or more PARTIALs.
    def _on_partial(self, call: Call, body: list[bytes]) -> None:
        if not call.wants_parts:
            return
        had_credit = call.credit > 0
        cost = values.part_cost(body)
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
        failure = codec.decode_failure(body)
        call.failure = failure
        self.calls.drop(call)
        if failure is not None and failure.code == values.BUSY:
            # Refused for lack of room: reduce the requests in flight, and repeat this one later.
            self.counters["busy"] += 1
            self.calls.sent_max = max(1, len(self.calls.sent))
            call.retry_ms = doubled(call.retry_ms, RETRY_MS, RETRY_MS_MAX)
            if now_ms + call.retry_ms < call.deadline_ms:
                self.calls.retry(call, now_ms + call.retry_ms)
                return
        elif self.calls.sent_max < self.setup.requests_max:
            self.calls.sent_max += 1
        self._stream_count -= call.wants_parts
        call.final = body
        self._mark_updated(call)

    def _mark_updated(self, call: Call) -> None:
        if not call.in_updated:
            call.in_updated = True
            self._updated.append(call)

    def _withdraw(self, call: Call) -> None:
        """Forgets a call and withdraws it at the broker. A request that outlives its owner
        continues there, without parts."""
        self._stream_count -= call.wants_parts
        if call.id in self.calls.sent and self._supports_names:
            self._send(self._withdrawal(call))
        self.calls.drop(call)

    def _withdrawal(self, call: Call) -> codec.Cancel | codec.Credit:
        request, name = call.request, self.setup.name
        if call.outlives_owner:
            return codec.Credit(request.service, request.request_id, name, 0)
        return codec.Cancel(request.service, request.request_id, name)

    def _send(self, command: codec.ClientCommand) -> None:
        frames = codec.encode(command, values.Framing.TEXT, self.setup.headers)
        self.failover.send(self.broker, frames)

    # ---- the service of the failover ----

    def candidates(self) -> Iterable[str]:
        return self.setup.urls

    def on_used(self, broker: Candidate, now_ms: int) -> None:
        self._supports_names = False
        if self.setup.name:
            self._supports_names = None
            self._send(codec.Request(values.OWN_FEATURES, FEATURES_ID, [values.FEATURE_BUNDLES]))
            self.ask(broker, now_ms)  # A broker that answers only this does not support names.

    def on_left(self, broker: Candidate, why: str) -> None:
        """Gives the broker up: its requests go to the next one. RFC 10 treats several brokers as
        equivalent."""
        calls = self.calls
        self.unserved_service = b""
        calls.sent_max = self.setup.requests_max
        withdrawals = self._withdrawals.setdefault(broker.url, {})
        for call in calls.sent.values():
            call.due_ms = 0
            call.resent += 1
            if self._supports_names:
                withdrawals[call.request.request_id] = self._withdrawal(call)
        calls.rewind()

    def owed(self) -> tuple[int | None, int]:
        """Only unanswered probes end a silence, so that a pause of this process does not."""
        awaited = self.calls.sent or self._supports_names is None
        return (self.failover.heard_ms if awaited else None), self.calls.sent_bytes

    def waits(self) -> str | None:
        return "" if len(self.calls) else None

    def ask(self, broker: Candidate, now_ms: int) -> None:
        """Asks mmi.service, which every broker has; the specification has no PING for clients."""
        call = next(iter(self.calls), None)
        self._probed_service = b"" if call is None else call.request.service
        self._send(codec.Request(values.MMI_SERVICE, PROBE_ID, [self._probed_service]))

    def _send_withdrawals(self, url: str) -> None:
        """Withdraws the requests that have ended since the client left this broker."""
        withdrawals = self._withdrawals.pop(url, {})
        if self._supports_names:
            for request_id, withdrawal in withdrawals.items():
                if not self.has_request(request_id):
                    self._send(withdrawal)

    # ---- effects ----

    def ready(self, now_ms: int) -> list[ClientAction]:
        """All effects that are due, in order."""
        gives_up = self.failover.give_up_ms <= now_ms
        for expired in list(self.calls) if gives_up else self.calls.expired(now_ms):
            self.counters["timeouts"] += 1
            expired.timed_out = True
            self._withdraw(expired)
            self._mark_updated(expired)
        self.failover.step(now_ms)
        if self._may_send:
            broker = self.broker
            for call in self.calls.send_due(now_ms):
                if not self.calls.sent:
                    self.failover.restart_silence(now_ms)
                self.failover.send(broker, self._encoded(call, now_ms))
        actions, self.failover.actions = self.failover.actions, []
        return actions

    def _encoded(self, call: Call, now_ms: int) -> list[bytes]:
        """The frames of a request for this broker, with the current remaining time and credit."""
        frames, headers = call.frames, self.setup.headers
        left_ms = min(max(call.deadline_ms - now_ms, 0), values.REMAINING_MS_UNKNOWN)
        if call.outlives_owner:
            left_ms = values.REMAINING_MS_UNKNOWN
        remaining = left_ms.to_bytes(values.REMAINING_BYTES, "big")
        if self._supports_names:
            # Parts in flight on an old connection are lost.
            call.credit = (
                max(self._window - call.unread, values.PART_COST) if call.wants_parts else 0
            )
            options = remaining + call.credit.to_bytes(values.CREDIT_BYTES, "big") + self.setup.name
            return [headers.named, *frames[1:4], options, *frames[4:]]
        if call.outlives_owner or not self.setup.deadlines:
            return frames
        return [headers.deadline, *frames[1:4], remaining, *frames[4:]]

    @property
    def _may_send(self) -> bool:
        """Whether a broker is used, and has told whether it supports names."""
        return self.failover.current is not None and self._supports_names is not None

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        due_ms = self.calls.due_ms if self._may_send else NEVER_MS
        failover = self.failover
        due_ms = min(due_ms, self.calls.expiry_ms, failover.deadline_ms, failover.give_up_ms)
        return due_ms if due_ms < NEVER_MS else None
