"""Workers of services: the real machines of registrations, and functions that take their time."""

from collections.abc import Mapping
from dataclasses import dataclass

from kelek.protocols.majordomo import values
from kelek.protocols.majordomo.codec import Failure
from kelek.protocols.majordomo.records import Message
from kelek.protocols.majordomo.worker import WorkerRequest, Workers, WorkerSetup
from kelek.tests.sim.broker.checker import BrokerChecker
from kelek.tests.sim.broker.node import INTERVAL_MS, LIVENESS, STREAM, BrokerRouter
from kelek.tests.sim.log.client import ClientHost, MachineLinks, SimClient
from kelek.tests.sim.network import Network
from kelek.tests.sim.simulation import US_PER_MS

PARTS_MAX = 4


@dataclass(slots=True, eq=False)
class Execution:
    """A function that runs."""

    request: WorkerRequest
    parts: list[Message]
    final: Message | None  # None: it fails.
    due_us: int


class ServiceProcess(SimClient):
    """A worker of one service, registered at all brokers."""

    def __init__(
        self,
        network: Network,
        checker: BrokerChecker,
        brokers: Mapping[str, BrokerRouter],
        number: int,
        service: bytes,
    ) -> None:
        super().__init__(network.simulation, f"s{number}")
        self.network = network
        self.checker = checker
        self.random = self.simulation.random
        self.service = service
        self._brokers = brokers
        self._running: list[Execution] = []
        self.start()

    def start(self) -> None:
        window = self.random.choice([1, 2, 4])
        setup = WorkerSetup(
            self.service, window, heartbeat_interval_ms=INTERVAL_MS, liveness=LIVENESS
        )
        self.workers = Workers(list(self._brokers), setup)
        host = ClientHost(self.network, self._brokers, self, self.name, repeats=False)
        self.links = MachineLinks(host)
        self._running = []
        self.alive = True
        self.resume()

    def kill_for(self, down_ms: int) -> None:
        """SIGKILL, and a new process after a while."""
        if self.alive:
            self.kill()
            self.links.close()
            self.simulation.after(down_ms * US_PER_MS, self.start)

    def drain(self) -> None:
        """SIGTERM: it ends what it has."""
        self.workers.drain()
        self.wake_after(0)

    def on_wake(self) -> None:
        now_ms = self.simulation.now_ms
        inbox, self.inbox = self.inbox, []
        for event in inbox:
            self.links.receive(self.workers, event, now_ms)
        self._running += [self._begin(request) for request in self.workers.pop_requests()]
        for one in [one for one in self._running if one.due_us <= self.simulation.now_us]:
            self._step(one)
        self.links.carry_out(self.workers.ready(now_ms))
        if self.workers.stopped:
            self.kill_for(self.random.choice([5, 100, 400]))
            return
        dues = [one.due_us - self.simulation.now_us for one in self._running]
        if (deadline_ms := self.workers.deadline_ms) is not None:
            dues.append(deadline_ms * US_PER_MS - self.simulation.now_us)
        if dues:
            self.wake_after(max(100, min(dues)))

    def _begin(self, request: WorkerRequest) -> Execution:
        """The answers of an execution differ from those of all others."""
        label = request.body[0]
        count = self.checker.on_executed(label)
        parts: list[Message] = []
        if self.service == STREAM:
            many = self.random.randrange(PARTS_MAX)
            parts = [[b"part", b"%d of %d" % (part, count)] for part in range(many)]
        final = None if self.random.random() < 0.1 else [label, b"%d" % count, *request.body[1:]]
        return Execution(request, parts, final, self._pause())

    def _pause(self) -> int:
        pause_ms = self.random.choice([1, 20, 100, 100, 400])
        return self.simulation.now_us + pause_ms * US_PER_MS

    def _step(self, one: Execution) -> None:
        request = one.request
        if not request.answerable:
            self._running.remove(one)
        elif request.cancelled or (
            request.deadline_ms is not None and request.deadline_ms <= self.simulation.now_ms
        ):
            code = values.CANCELLED if request.cancelled else values.EXPIRED
            self._end(one, Failure(code, "not done"))
        elif one.parts and not request.has_credit:
            one.due_us = self._pause() + US_PER_MS
        elif one.parts:
            part = one.parts.pop(0)
            request.spent += values.part_cost(part)
            request.worker.partial(request, part)
            one.due_us = self._pause()
        elif one.final is None:
            self._end(one, Failure(values.FAILED, f"failed {request.body[0]!r}"))
        else:
            self._running.remove(one)
            request.worker.final(request, one.final)

    def _end(self, one: Execution, failure: Failure) -> None:
        self._running.remove(one)
        one.request.worker.fail(one.request, failure)

    @property
    def done(self) -> bool:
        return True

    def status(self) -> str:
        return f"running={len(self._running)}"
