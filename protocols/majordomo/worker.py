"""The worker's side of the broker protocol, without I/O: registration, requests and answers.

A WorkerMachine is one registration of a service with one broker; Workers has one with each broker
of a list, so that clients find the service at any of them. The owner reports connections and
messages, executes ready(), runs the requests of pop_requests() and passes in their answers
(docs/protocols/majordomo.md, "Workers").
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..connections import ClientAction, Connect, Disconnect, Send, Warn
from ..errors import RemoteProtocolError
from ..failover.limits import CONNECT_RETRY_MS, WORKER_RETRY_MS_MAX, doubled
from ..failover.servers import StallNotice
from . import codec, values


class WorkerSetup(NamedTuple):
    """The service, and the times of the heartbeat."""

    service: bytes
    window: int = 1  # Requests that the broker may send before an answer.
    # Whether to receive remaining time, credit for parts and cancellations: extensions of kelek.
    deadlines: bool = True
    headers: values.Headers = values.HEADERS
    heartbeat_interval_ms: int = values.INTERVAL_MS
    # Intervals without a message until the broker is considered lost.
    liveness: int = values.LIVENESS
    way_out: str = ""  # What a warning of no connection suggests; empty: a question.


@dataclass(slots=True, eq=False)
class WorkerRequest:
    """A request for this worker.

    granted, spent   octets of parts that may be sent (None: any number), and were sent; the machine
                     changes the first, the owner the second
    on_change        called after credit, cancellation, and the loss of the connection
    """

    worker: "WorkerMachine"
    client: bytes
    request_id: bytes
    body: list[bytes]
    deadline_ms: int | None
    granted: int | None
    spent: int = 0
    cancelled: bool = False  # The client withdrew it; the FINAL is still due.
    on_change: Callable[[], object] | None = None

    @property
    def has_credit(self) -> bool:
        """Whether a part may be sent. The last part may exceed the credit."""
        return self.granted is None or self.granted > self.spent

    @property
    def answerable(self) -> bool:
        """Whether an answer can still be sent; False after the loss of the connection."""
        return self.worker.is_in_work(self)


class WorkerMachine:
    """One registration. After any method with now_ms call ready()."""

    def __init__(self, url: str, setup: WorkerSetup) -> None:
        self.url = url
        self.setup = setup
        self.counters: Counter[str] = Counter()
        self.stopped = False  # It has sent DISCONNECT, and sends nothing more.
        self._actions: list[ClientAction] = []
        self._is_connected = False
        self._draining = False
        self._in_work: dict[tuple[bytes, bytes], WorkerRequest] = {}  # By client and request id.
        # Of these, those that pop_requests() has not returned.
        self._arrived: deque[WorkerRequest] = deque()
        self._silent_since_ms = 0  # The last message or PING.
        self._pings = 0  # Unanswered ones in a row.
        self._connect_ms: int | None = 0  # When to connect; None: connected or connecting.
        self._retry_ms = 0  # The last pause before that.

    # ---- requests and answers ----

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    def pop_requests(self) -> list[WorkerRequest]:
        """The requests that arrived since the last call, in order."""
        requests = list(self._arrived)
        self._arrived.clear()
        return requests

    def is_in_work(self, request: WorkerRequest) -> bool:
        """Whether a FINAL is still due for it, on this connection."""
        return self._in_work.get((request.client, request.request_id)) is request

    def partial(self, request: WorkerRequest, body: list[bytes]) -> bool:
        """Sends a part of the answer. False: it is no longer due."""
        if not self._is_connected or not self.is_in_work(request):
            self.counters["late"] += 1
            return False
        self._send(codec.WorkPartial(request.client, request.request_id, body))
        return True

    # Specification, "Request and Reply Processing": precisely one FINAL for each REQUEST.
    def final(self, request: WorkerRequest, body: list[bytes]) -> bool:
        """Sends the last part of the answer. False: it is no longer due."""
        if not self._is_connected or not self.is_in_work(request):
            self.counters["late"] += 1
            return False
        del self._in_work[request.client, request.request_id]
        self.counters["answered"] += 1
        self._send(codec.WorkFinal(request.client, request.request_id, body))
        return True

    def fail(self, request: WorkerRequest, failure: codec.Failure) -> bool:
        """Answers with an error."""
        self.counters["failed"] += not request.cancelled
        return self.final(request, codec.encode_failure(failure))

    def drain(self) -> None:
        """Finishes the requests in work, accepts no others, then ends the registration."""
        self._draining = True

    # ---- connections and messages ----

    # Specification, "Opening and Closing Connections": READY comes first on each new socket, once.
    def on_connected(self, now_ms: int) -> None:
        """Connected: registers the service."""
        if self._is_connected or self.stopped or self._connect_ms is not None:
            return  # In the last case its socket is about to be closed, and connected by itself.
        self._is_connected, self._silent_since_ms, self._pings = True, now_ms, 0
        self.counters["connected"] += 1
        setup = self.setup
        if setup.deadlines:
            self._send(codec.WorkerReady(setup.service, setup.window, True, True, bundles=True))
            self._send(codec.WorkerReady(setup.service, setup.window, True, credit=True))
        # Older brokers do not know the first READYs; newer ones expect these after it.
        self._send(codec.WorkerReady(setup.service, setup.window, setup.deadlines))

    def on_disconnected(self, now_ms: int) -> None:
        """The connection is lost, and the registration with it."""
        if self._is_connected:
            self.counters["lost"] += 1
            self._reconnect(now_ms, 0)

    def on_frames(self, frames: Sequence[bytes], now_ms: int) -> None:
        """A message arrived; invalid ones are dropped and counted."""
        if not self._is_connected:
            return  # From a connection that was given up.
        try:
            framing, order = codec.decode_order(frames, self.setup.headers, self.setup.deadlines)
        except RemoteProtocolError:
            self.counters["junk"] += 1
            return
        if isinstance(order, codec.Disconnect):
            # Specification, "Opening and Closing Connections": no further commands, close the
            # socket, and connect by a new one.
            self.counters["disconnected"] += 1
            self._retry_ms = doubled(self._retry_ms, CONNECT_RETRY_MS, WORKER_RETRY_MS_MAX)
            self._reconnect(now_ms, self._retry_ms)
        elif framing is not values.Framing.TEXT:
            self.counters["junk"] += 1
        else:
            # Specification, "Heartbeating": anything but DISCONNECT is a sign of life.
            self._silent_since_ms, self._pings, self._retry_ms = now_ms, 0, 0
            if isinstance(order, codec.WorkRequest):
                self._on_request(order, now_ms)
            elif isinstance(order, codec.WorkCredit | codec.WorkCancel):
                self._on_credit_or_cancel(order)
            else:
                assert isinstance(order, codec.Pong)

    def _on_request(self, received: codec.WorkRequest, now_ms: int) -> None:
        if self._draining:
            self.counters["declined"] += 1  # After our DISCONNECT another worker gets it.
            return
        key = received.client, received.request_id
        if key in self._in_work or len(self._in_work) >= self.setup.window:
            # More requests than the window, or a repeat: the broker is faulty, so treat it as lost.
            self.counters["overrun"] += 1
            self._reconnect(now_ms, CONNECT_RETRY_MS)
            return
        left_ms, granted = received.remaining_ms, received.credit
        known = left_ms is not None and left_ms < values.REMAINING_MS_UNKNOWN
        deadline_ms = now_ms + left_ms if known and left_ms is not None else None
        request = self._in_work[key] = WorkerRequest(
            self,
            *key,
            received.body,
            deadline_ms,
            None if granted == values.CREDIT_UNLIMITED else granted,
        )
        self._arrived.append(request)

    def _on_credit_or_cancel(self, order: codec.WorkCredit | codec.WorkCancel) -> None:
        request = self._in_work.get((order.client, order.request_id))
        if request is None:
            return  # Its FINAL is already sent.
        if isinstance(order, codec.WorkCancel):
            self.counters["cancelled"] += 1
            request.cancelled = True
        elif order.octets == values.CREDIT_UNLIMITED:
            request.granted = None
        elif request.granted is not None:
            request.granted += order.octets
        if request.on_change is not None:
            request.on_change()

    def _reconnect(self, now_ms: int, pause_ms: int) -> None:
        """Forgets the connection and its requests, and connects again."""
        if self._is_connected or self._connect_ms is None:
            self._actions.append(Disconnect(self.url))
        self._is_connected = False
        lost, self._in_work = self._in_work, {}
        for request in lost.values():
            if request.on_change is not None:
                request.on_change()
        self._arrived.clear()
        self._connect_ms = now_ms + pause_ms

    def _send(self, command: codec.WorkerCommand) -> None:
        frames = codec.encode(command, values.Framing.TEXT, self.setup.headers)
        self._actions.append(Send(self.url, frames))

    # ---- effects ----

    def ready(self, now_ms: int) -> list[ClientAction]:
        """All effects that are due, in order."""
        if self._draining:
            self._stop_if_idle()
        elif self._connect_ms is not None and self._connect_ms <= now_ms:
            self._connect_ms = None
            self._actions.append(Connect(self.url))
        if self._is_connected and not self.stopped and self._ping_ms <= now_ms:
            self._on_silence(now_ms)
        actions, self._actions = self._actions, []
        return actions

    def _stop_if_idle(self) -> None:
        """Specification, "Opening and Closing Connections": a worker may send DISCONNECT at any
        time."""
        if self.stopped or self._in_work:
            return
        if self._is_connected:
            self._send(codec.Disconnect())
        self.stopped = True
        self._connect_ms = None

    # Specification, "Heartbeating": a PING in each silent interval. After several silent intervals
    # the broker is lost, and a new conversation begins.
    def _on_silence(self, now_ms: int) -> None:
        if self._pings >= self.setup.liveness - 1:
            self.counters["silent"] += 1
            self._reconnect(now_ms, 0)
            return
        self._silent_since_ms, self._pings = now_ms, self._pings + 1
        self._send(codec.Ping())

    @property
    def _ping_ms(self) -> int:
        return self._silent_since_ms + self.setup.heartbeat_interval_ms

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        if self.stopped:
            return None
        if self._is_connected:
            return self._ping_ms
        return self._connect_ms


class Workers:
    """Registrations of a service with several brokers; Links drives them as it drives a client."""

    def __init__(self, urls: Sequence[str], setup: WorkerSetup) -> None:
        self.workers = {url: WorkerMachine(url, setup) for url in urls}
        self.draining = False
        self._service = setup.service.decode()
        self._way_out = setup.way_out or "does a broker take workers there?"
        self._notice = StallNotice()

    def pop_requests(self) -> list[WorkerRequest]:
        """The requests that arrived since the last call."""
        return [request for worker in self.workers.values() for request in worker.pop_requests()]

    def drain(self) -> None:
        """Finishes the requests in work, then ends all registrations."""
        self.draining = True
        for worker in self.workers.values():
            worker.drain()

    @property
    def stopped(self) -> bool:
        """Whether all registrations have ended."""
        return all(worker.stopped for worker in self.workers.values())

    @property
    def counters(self) -> Counter[str]:
        """The sums over all brokers."""
        return sum((worker.counters for worker in self.workers.values()), Counter())

    def on_connected(self, url: str, now_ms: int) -> None:
        self.workers[url].on_connected(now_ms)

    def on_disconnected(self, url: str, now_ms: int) -> None:
        self.workers[url].on_disconnected(now_ms)

    def on_refused(self, url: str, problem: str, way_out: str, may_pass: bool = False) -> None:
        self.workers[url].counters["refused"] += 1

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None:
        self.workers[url].on_frames(frames, now_ms)

    def ready(self, now_ms: int) -> list[ClientAction]:
        """All effects that are due, in order."""
        actions = [action for worker in self.workers.values() for action in worker.ready(now_ms)]
        waits = not (self.draining or any(each.is_connected for each in self.workers.values()))
        # Of a refused key its own warning says more.
        if self._notice.is_due(waits, now_ms) and not self.counters["refused"]:
            urls = ", ".join(self.workers)
            text = f"no connection to {urls}; {self._way_out}"
            actions.append(Warn(f"service '{self._service}' gets no requests: {text}"))
        return actions

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        if self.stopped:
            return None
        times = [self._notice.deadline_ms, *(each.deadline_ms for each in self.workers.values())]
        return min(time for time in times if time is not None)
