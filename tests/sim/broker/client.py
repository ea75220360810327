"""Programs that call services: the real client machine, and what survives it when it is killed.

A program remembers what it has asked. After a restart it repeats what has no answer, under the same
ids, and asks now and then for what has one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kelek.protocols.majordomo import values
from kelek.protocols.majordomo.client import BrokerClientMachine, BrokerClientSetup, Call
from kelek.protocols.majordomo.codec import Request, decode_failure
from kelek.protocols.majordomo.records import Message
from kelek.tests.sim.broker.checker import UNNAMED, BrokerChecker
from kelek.tests.sim.broker.node import DURABLE, ECHO, BrokerRouter
from kelek.tests.sim.log.client import ClientHost, MachineLinks, SimClient
from kelek.tests.sim.network import Network
from kelek.tests.sim.simulation import US_PER_MS

SILENCE_MS = 200
FOREVER_MS = 600_000
OPEN_MAX = 12


@dataclass(slots=True, eq=False)
class Asked:
    """A request of a program."""

    service: bytes
    request_id: bytes
    label: bytes
    is_patient: bool  # It is repeated until there is an answer.
    final: Message | None = None
    parts: list[Message] = field(default_factory=list)  # Of the present call.


class CallingProgram(SimClient):
    """A program with calls in flight."""

    def __init__(
        self,
        network: Network,
        checker: BrokerChecker,
        brokers: Mapping[str, BrokerRouter],
        number: int,
        identity: bytes,
        has_name: bool = True,
    ) -> None:
        """identity   empty: brokers do not recognise it
        has_name   False: its routing id is its identity, without the extensions of names
        """
        super().__init__(network.simulation, f"c{number}")
        self.network = network
        self.checker = checker
        self.random = self.simulation.random
        self.identity = identity
        self._has_name = has_name
        self.asked: dict[bytes, Asked] = {}  # It survives the process.
        self._brokers = brokers
        self.repeats = False
        self._last_id = 0
        self._next_us = 0
        self._calls: dict[Call, Asked] = {}
        self.start()

    # ---- the process ----

    def start(self) -> None:
        urls = list(self._brokers)
        self.random.shuffle(urls)
        setup = BrokerClientSetup(
            tuple(urls),
            name=self.identity if self._has_name else b"",
            requests_max=self.random.choice([1, 4, 1000]),
            silence_ms=SILENCE_MS,
        )
        self.machine = BrokerClientMachine(setup)
        route = b"" if self._has_name else self.identity
        host = ClientHost(self.network, self._brokers, self, self.name, False, route)
        self.links = MachineLinks(host)
        self._calls = {}
        self.alive = True
        self.resume()

    def kill_for(self, down_ms: int) -> None:
        """SIGKILL, and a new process after a while."""
        if self.alive:
            self.kill()
            self.links.close()
            self.simulation.after(down_ms * US_PER_MS, self.start)

    def on_wake(self) -> None:
        now_ms = self.simulation.now_ms
        inbox, self.inbox = self.inbox, []
        for event in inbox:
            self.links.receive(self.machine, event, now_ms)
        self._advance()
        self.links.carry_out(self.machine.ready(now_ms))
        if self._advance():
            self.links.carry_out(self.machine.ready(now_ms))
        deadline_ms = self.machine.deadline_ms
        if deadline_ms is not None:
            self.wake_after(max(0, deadline_ms * US_PER_MS - self.simulation.now_us))
        if not self.done:
            self.wake_after(max(100, self._next_us - self.simulation.now_us))

    def _advance(self) -> bool:
        """Handles answers and asks. True: the machine has something to send."""
        changed = False
        for call in self.machine.pop_updated():
            asked = self._calls.get(call)
            parts: list[Message] = []
            while (part := self.machine.pop_part(call)) is not None:
                parts.append(part)
            if parts:
                changed |= self.machine.on_parts_read(call, parts)
            if asked is None:
                continue
            asked.parts += parts
            if call.done:
                del self._calls[call]
                self._on_done(call, asked)
        if self.simulation.now_us >= self._next_us:
            self._next_us = self.simulation.now_us + self.random.choice([5, 20, 80]) * US_PER_MS
            changed |= self._ask()
        return changed

    def _begin(self, asked: Asked) -> None:
        wants_parts = self.random.random() < 0.5 and asked.service in DURABLE
        self._call(asked, self._request(asked), wants_parts)

    def _request(self, asked: Asked) -> Request:
        return Request(asked.service, asked.request_id, [asked.label, b"x" * 20])

    def _call(self, asked: Asked, request: Request, wants_parts: bool = False) -> None:
        wait_ms = FOREVER_MS if asked.is_patient else self.random.choice([100, 400, 1500])
        call = Call(request, self.simulation.now_ms + wait_ms, wants_parts)
        call.outlives_owner = asked.is_patient
        asked.parts = []
        self._calls[self.machine.add(call)] = asked

    def _new_id(self) -> bytes:
        self._last_id += 1
        return b"%d" % self._last_id

    def _on_done(self, call: Call, asked: Asked) -> None:
        self.simulation.counters["service calls"] += 1
        if call.timed_out or call.refusal or call.final is None:
            self.simulation.counters["no answer"] += 1
            return
        if asked.service == ECHO:
            is_mine = call.failure is not None or call.final[0] == asked.label
            self.checker.expect(is_mine, self.name, "another answer:", call.final)
            asked.final = call.final
            return
        parts = asked.parts if call.wants_parts else None
        if self.checker.on_final(asked.label, call.final, parts):
            self._on_answer(asked, call.final)

    def _on_answer(self, asked: Asked, final: Message) -> None:
        """It is the same as all earlier ones."""
        if self.checker.keeps_ends and asked.final is not None and not is_late(asked.final):
            same = asked.final == final
            self.checker.expect(same, self.name, "two answers:", asked.final, final)
            self.simulation.counters["answers again"] += 1
        asked.final = final

    def _ask(self) -> bool:
        """Begins calls. False: none."""
        if len(self._calls) >= OPEN_MAX:
            return False
        again = self._unanswered()
        if not again and self.stopped:
            return False
        if again and self.random.random() < 0.7:
            asked = self.random.choice(again)
        elif self.stopped:
            asked = again[0]
        elif self.identity and self.asked and self.random.random() < 0.2:
            asked = self.random.choice(list(self.asked.values()))
        else:
            asked = self._new()
            self.asked[asked.request_id] = asked
        if self.machine.has_request(asked.request_id):
            return False
        self._begin(asked)
        if not self.stopped and self.random.random() < 0.03:
            self._cancel()
        return True

    def _cancel(self) -> None:
        call = self.random.choice(list(self._calls))
        del self._calls[call]
        self.machine.cancel(call)

    def _new(self) -> Asked:
        service = self.random.choice([*DURABLE, *DURABLE, ECHO])
        request_id = self._new_id()
        is_patient = bool(self.identity) and service != ECHO and self.random.random() < 0.8
        sender = self.name.encode() if self.identity else UNNAMED + self.name.encode()
        label = b"%s/%s" % (sender, request_id)
        return Asked(service, request_id, _label(service, label), is_patient)

    def _unanswered(self) -> list[Asked]:
        open_ = {id(asked) for asked in self._calls.values()}
        return [
            asked
            for asked in self.asked.values()
            if asked.is_patient and asked.final is None and id(asked) not in open_
        ]

    def repeat_all(self) -> None:
        """Asks again for everything that has an answer. No fault is left."""
        self.repeats = True
        for asked in filter(self.may_repeat, self.asked.values()):
            self._begin(asked)
        self.wake_after(0)

    def may_repeat(self, asked: Asked) -> bool:
        return asked.service in DURABLE and asked.is_patient

    @property
    def done(self) -> bool:
        return self.alive and self.stopped and not self._calls and not self._unanswered()

    def status(self) -> str:
        left = [asked.label for asked in self._calls.values()][:3]
        return f"broker={self.machine.broker} calls={left} unanswered={len(self._unanswered())}"


def _label(service: bytes, label: bytes) -> bytes:
    return b"%s %s" % (service, label) if service == ECHO else label


def is_late(final: Message) -> bool:
    """Whether no worker finished it in time: the same id may be free again."""
    failure = decode_failure(final)
    return failure is not None and failure.code == values.EXPIRED
