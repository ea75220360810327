"""The worker's side of a broker without IO: it offers a service, hands out requests, answers them.

A Worker is one registration of one service with one broker, over one connection; Workers holds one
with each broker of a list, so that clients find the service at whichever they use. The owner tells
what happens to the connections and what arrives, does what ready() returns, runs the jobs of
take_jobs() and gives back what comes of them (docs/protocols/majordomo.md, "Workers").
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..connections import Connect, Disconnect, Send
from ..errors import RemoteProtocolError
from . import codec
from .codec import (
    Failure,
    Ping,
    Pong,
    WorkCancel,
    WorkCredit,
    WorkerReady,
    WorkFinal,
    WorkPartial,
    WorkRequest,
)
from .values import (
    CREDIT_UNLIMITED,
    HEADERS,
    INTERVAL_MS,
    LIVENESS,
    REMAINING_MS_UNKNOWN,
    Framing,
    Headers,
)

RETRY_MS = 100  # Before a broker that has sent DISCONNECT is asked again; doubled each time.
RETRY_MS_MAX = 5000


class WorkerSetup(NamedTuple):
    """What is offered, and the times of the heartbeat."""

    service: bytes
    window: int = 1  # Requests that the broker may hand out before one of them is answered.
    # Whether to hear how much time each has left, how many parts may be sent, and when nobody waits
    # any more: ours only.
    deadlines: bool = True
    headers: Headers = HEADERS
    interval_ms: int = INTERVAL_MS
    liveness: int = LIVENESS  # Intervals without a word: the broker is gone.


class WorkerRequest:
    """A request that a worker was handed.

    granted, spent   for how many octets parts may be sent (None: for any), and were: the first is
                     the machine's to change, the other its owner's
    on_change        called when more is granted, when it is cancelled, and when it is not wanted
    """

    __slots__ = (
        "body",
        "cancelled",
        "client",
        "deadline_ms",
        "granted",
        "on_change",
        "request_id",
        "spent",
        "worker",
    )

    def __init__(self, worker: "WorkerMachine", request: WorkRequest, now_ms: int) -> None:
        self.worker = worker
        self.client = request.client
        self.request_id = request.request_id
        self.body = request.body
        left_ms = request.remaining_ms
        known = left_ms is not None and left_ms < REMAINING_MS_UNKNOWN
        self.deadline_ms = now_ms + left_ms if known and left_ms is not None else None
        self.granted = request.credit
        self.spent = 0
        self.cancelled = False  # Nobody waits for it any more; its FINAL is still owed.
        self.on_change: Callable[[], object] | None = None
        if request.credit == CREDIT_UNLIMITED:
            self.granted = None

    @property
    def has_credit(self) -> bool:
        """Whether a part may be sent: the last one may be larger than what is left."""
        return self.granted is None or self.granted > self.spent

    @property
    def answerable(self) -> bool:
        """Whether its answer can still reach anybody: not once the connection was lost."""
        return self.worker.is_in_work(self)


class WorkerMachine:
    """One registration. Every method that takes now_ms may be followed by ready()."""

    def __init__(self, url: str, setup: WorkerSetup) -> None:
        self.url = url
        self.setup = setup
        self.counters: Counter[str] = Counter()
        self.stopped = False  # It has said DISCONNECT, and says nothing more.
        self._actions: list[Connect | Disconnect | Send] = []
        self._is_connected = False
        self._draining = False
        self._in_work: dict[tuple[bytes, bytes], WorkerRequest] = {}  # By client and request id.
        self._arrived: deque[WorkerRequest] = deque()  # Of these, what nobody took yet.
        self._silent_since_ms = 0  # Since when the broker has said nothing, nor been asked.
        self._pings = 0  # How often it was asked in vain.
        self._connect_ms: int | None = 0  # When to connect; None: it is done.
        self._retry_ms = 0  # The last pause before that.

    # ---- what the owner wants ----

    def pop_requests(self) -> list[WorkerRequest]:
        """The requests that arrived since this was asked last, in order."""
        requests = list(self._arrived)
        self._arrived.clear()
        return requests

    def is_in_work(self, request: WorkerRequest) -> bool:
        """Whether a FINAL is still owed for it, on this connection."""
        return self._in_work.get((request.client, request.request_id)) is request

    def partial(self, request: WorkerRequest, body: list[bytes]) -> bool:
        """Sends a part of the answer; False: nobody waits for it any more."""
        if not self._is_connected or not self.is_in_work(request):
            self.counters["late"] += 1
            return False
        self._send(WorkPartial(request.client, request.request_id, body))
        return True

    # The text, "Request and Reply Processing": precisely one FINAL for each REQUEST.
    def final(self, request: WorkerRequest, body: list[bytes]) -> bool:
        """Sends the answer's last part; False: nobody waits for it any more."""
        if not self._is_connected or not self.is_in_work(request):
            self.counters["late"] += 1
            return False
        del self._in_work[request.client, request.request_id]
        self.counters["answered"] += 1
        self._send(WorkFinal(request.client, request.request_id, body))
        return True

    def fail(self, request: WorkerRequest, failure: Failure) -> bool:
        """Answers that it can't be done."""
        self.counters["failed"] += not request.cancelled
        return self.final(request, codec.encode_failure(failure))

    def drain(self) -> None:
        """Finishes what it has, takes nothing more, then ends the registration."""
        self._draining = True

    # ---- what happens ----

    # The text, "Opening and Closing Connections": READY comes first on each new socket, once.
    def on_connected(self, now_ms: int) -> None:
        """The connection is made: the service is offered."""
        if self._is_connected or self.stopped:
            return
        self._is_connected, self._silent_since_ms, self._pings = True, now_ms, 0
        self.counters["connected"] += 1
        setup = self.setup
        if setup.deadlines:
            self._send(WorkerReady(setup.service, setup.window, True, credit=True))
        # An older broker does not know the first; one that does expects this behind it.
        self._send(WorkerReady(setup.service, setup.window, setup.deadlines))

    def on_disconnected(self, now_ms: int) -> None:
        """The connection is lost, and with it the registration."""
        if self._is_connected:
            self.counters["lost"] += 1
            self._reconnect(now_ms, 0)

    def on_frames(self, frames: Sequence[bytes], now_ms: int) -> None:
        """A message arrived; junk is dropped and counted."""
        if not self._is_connected:
            return  # A late word on a connection that was given up.
        try:
            framing, order = codec.decode_order(frames, self.setup.headers, self.setup.deadlines)
        except RemoteProtocolError:
            self.counters["junk"] += 1
            return
        if isinstance(order, codec.Disconnect):
            # The text, same place: no further commands, the socket is closed, and the broker is
            # connected to on a new one.
            self.counters["disconnected"] += 1
            self._retry_ms = min(max(RETRY_MS, 2 * self._retry_ms), RETRY_MS_MAX)
            self._reconnect(now_ms, self._retry_ms)
        elif framing is not Framing.TEXT:
            self.counters["junk"] += 1
        else:
            # The text, "Heartbeating": anything but DISCONNECT is a sign of life.
            self._silent_since_ms, self._pings, self._retry_ms = now_ms, 0, 0
            if isinstance(order, WorkRequest):
                self._on_request(order, now_ms)
            elif isinstance(order, WorkCredit | WorkCancel):
                self._on_credit_or_cancel(order)
            else:
                assert isinstance(order, Pong)

    def _on_request(self, received: WorkRequest, now_ms: int) -> None:
        if self._draining:
            self.counters["declined"] += 1  # Behind our DISCONNECT somebody else gets it.
            return
        key = received.client, received.request_id
        if key in self._in_work or len(self._in_work) >= self.setup.window:
            # Never more than the window, and never one twice: a broker that does not count is no
            # better than a lost one.
            self.counters["overrun"] += 1
            self._reconnect(now_ms, RETRY_MS)
            return
        request = self._in_work[key] = WorkerRequest(self, received, now_ms)
        self._arrived.append(request)

    def _on_credit_or_cancel(self, order: WorkCredit | WorkCancel) -> None:
        request = self._in_work.get((order.client, order.request_id))
        if request is None:
            return  # Its FINAL is on its way.
        if isinstance(order, WorkCancel):
            self.counters["cancelled"] += 1
            request.cancelled = True
        elif order.octets == CREDIT_UNLIMITED:
            request.granted = None
        elif request.granted is not None:
            request.granted += order.octets
        if request.on_change is not None:
            request.on_change()

    def _reconnect(self, now_ms: int, pause_ms: int) -> None:
        """Forgets the connection and all that came by it, and makes a new one."""
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
        frames = codec.encode_worker_command(command, Framing.TEXT, self.setup.headers)
        self._actions.append(Send(self.url, frames))

    # ---- what is to be done ----

    def ready(self, now_ms: int) -> list[Connect | Disconnect | Send]:
        """Everything to be done now, in order."""
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
        """The text, same place: a worker may send DISCONNECT at any time."""
        if self.stopped or self._in_work:
            return
        if self._is_connected:
            self._send(codec.Disconnect())
        self.stopped = True
        self._connect_ms = None

    # The text, "Heartbeating": a PING in each interval in which nothing was heard; silence for some
    # multiple of it is a lost broker, and a new conversation begins.
    def _on_silence(self, now_ms: int) -> None:
        if self._pings >= self.setup.liveness - 1:
            self.counters["silent"] += 1
            self._reconnect(now_ms, 0)
            return
        self._silent_since_ms, self._pings = now_ms, self._pings + 1
        self._send(Ping())

    @property
    def _ping_ms(self) -> int:
        return self._silent_since_ms + self.setup.interval_ms

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest, whatever happens."""
        if self.stopped:
            return None
        if self._is_connected:
            return self._ping_ms
        return self._connect_ms


class Workers:
    """The same service at several brokers; as a client's machine it may be given to Links."""

    def __init__(self, urls: Sequence[str], setup: WorkerSetup) -> None:
        self.workers = {url: WorkerMachine(url, setup) for url in urls}
        self.draining = False

    def pop_requests(self) -> list[WorkerRequest]:
        """The requests that arrived since this was asked last."""
        return [request for worker in self.workers.values() for request in worker.pop_requests()]

    def drain(self) -> None:
        """Finishes what they have, then ends their registrations."""
        self.draining = True
        for worker in self.workers.values():
            worker.drain()

    @property
    def stopped(self) -> bool:
        """Whether all have said their last word."""
        return all(worker.stopped for worker in self.workers.values())

    @property
    def counters(self) -> Counter[str]:
        """What happened, at all brokers together."""
        total: Counter[str] = Counter()
        for worker in self.workers.values():
            total += worker.counters
        return total

    def on_connected(self, url: str, now_ms: int) -> None:
        self.workers[url].on_connected(now_ms)

    def on_disconnected(self, url: str, now_ms: int) -> None:
        self.workers[url].on_disconnected(now_ms)

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None:
        self.workers[url].on_frames(frames, now_ms)

    def ready(self, now_ms: int) -> list[Connect | Disconnect | Send]:
        """Everything to be done now, in order."""
        return [action for worker in self.workers.values() for action in worker.ready(now_ms)]

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest, whatever happens."""
        times = [worker.deadline_ms for worker in self.workers.values()]
        return min((time for time in times if time is not None), default=None)
