"""The exchange in plain Python: what native/exchange.py says, without tables and lists in C."""

from collections import Counter, OrderedDict
from typing import NamedTuple

from kelek.native.exchange import COUNTERS, ExchangeSetup, NewWorker, Stop

Message = list[bytes]
TEXT, MDP1, MDP2 = range(3)
MDP_CLIENTS = {MDP1: b"MDPC01", MDP2: b"MDPC02"}
MDP_WORKERS = {MDP1: b"MDPW01", MDP2: b"MDPW02"}
HEARTBEATS = {MDP1: b"\4", MDP2: b"\5"}
# command -> what it is, by framing
KINDS = {
    TEXT: {b"\1": "ready", b"\3": "partial", b"\4": "final", b"\6": "bye", b"PING": "ping"},
    MDP1: {b"\1": "ready", b"\3": "final", b"\4": "beat", b"\5": "bye"},
    MDP2: {b"\1": "ready", b"\3": "partial", b"\4": "final", b"\5": "beat", b"\6": "bye"},
}


class Stopped(Exception):  # It is no error: the message is the caller's.
    def __init__(self, stop: Stop) -> None:
        self.stop = stop


class Asked(NamedTuple):
    framing: int
    client: bytes
    service: bytes
    request_id: bytes
    deadline_ms: int | None
    body: Message


class Request:
    def __init__(self, asked: Asked, number: int, expires_ms: int) -> None:
        self.asked = asked
        self.number = number
        self.expires_ms = expires_ms
        self.collected: Message = []
        self.key = (asked.client, asked.request_id)

    @property
    def due_ms(self) -> int:
        """When it is ended if it still waits."""
        deadline_ms = self.asked.deadline_ms
        return self.expires_ms if deadline_ms is None else min(self.expires_ms, deadline_ms)


class Worker:
    def __init__(self, new: NewWorker, now_ms: int) -> None:
        self.new = new
        self.window = new.window if new.framing == TEXT else 1
        self.requests: list[Request] = []
        self.heard_ms = self.sent_ms = now_ms
        self.done = 0


class Service:
    def __init__(self) -> None:
        self.ready: list[Worker] = []
        self.again: list[Request] = []
        self.lines: OrderedDict[bytes, list[Request]] = OrderedDict()  # By client.
        self.workers = 0
        self.done = 0


def is_name(frame: bytes) -> bool:
    return 0 < len(frame) <= 255


def wanted(condition: bool, stop: Stop = Stop.INVALID) -> None:
    if not condition:
        raise Stopped(stop)


class Twin:
    """Has the limits that the tests use: requests of one client."""

    def __init__(self, setup: ExchangeSetup) -> None:
        self.setup = setup
        self.clients: list[Message] = []
        self.workers: list[Message] = []
        self.requests: dict[tuple[bytes, bytes], Request] = {}
        self.known: OrderedDict[bytes, Worker] = OrderedDict()  # By when they were heard.
        self.services: dict[bytes, Service] = {}
        self.dirty: OrderedDict[bytes, None] = OrderedDict()
        self.waiting: list[Request] = []
        self.gone: set[bytes] = set()
        self.number = 0
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))

    # ---- requests ----

    def take_request(self, message: Message, now_ms: int) -> Stop | None:
        try:
            self._take_request(self._read_request(message, now_ms), now_ms)
        except Stopped as stopped:
            return stopped.stop
        return None

    def _read_request(self, message: Message, now_ms: int) -> Asked:
        client, *frames = message
        setup, request_id, deadline_ms = self.setup, b"", None
        if frames[:2] == [b"", MDP_CLIENTS[MDP1]]:
            framing, frames = MDP1, frames[2:]
        else:
            wanted(bool(frames))
            header, *frames = frames
            framing = MDP2 if header == MDP_CLIENTS[MDP2] else TEXT
            mine = (setup.client_header, setup.deadline_header, MDP_CLIENTS[MDP2])
            wanted(header in mine and frames[:1] == [b"\1"])
            frames = frames[1:]
        wanted(bool(frames) and is_name(frames[0]) and all(32 <= c < 127 for c in frames[0]))
        service, *frames = frames
        if framing == TEXT:
            wanted(bool(frames) and is_name(frames[0]))
            request_id, *frames = frames
            if header == setup.deadline_header:
                wanted(bool(frames) and len(frames[0]) == 8)
                left_ms = int.from_bytes(frames.pop(0), "big")
                deadline_ms = now_ms + left_ms if left_ms < 2**63 - now_ms - 1 else None
        wanted(bool(frames))
        wanted(not service.startswith((b"mmi.", b"titanic.", b"klk.")), Stop.INTERNAL)
        wanted(service not in setup.kept, Stop.KEPT)
        return Asked(framing, client, service, request_id, deadline_ms, frames)

    def _take_request(self, asked: Asked, now_ms: int) -> None:
        self.gone.discard(asked.client)
        if asked.framing != TEXT:
            number = self.number + 1
            while (asked.client, number.to_bytes(8, "big")) in self.requests:
                number += 1
            self.number = number - 1
            asked = asked._replace(request_id=number.to_bytes(8, "big"))
        elif (asked.client, asked.request_id) in self.requests:
            self.counters["repeated"] += 1
            return
        if sum(key[0] == asked.client for key in self.requests) >= self.setup.inflight_max:
            self._refuse(asked, 0)
            self.counters["refused"] += 1
            return
        self.number += 1
        request = Request(asked, self.number, now_ms + self.setup.request_ttl_ms)
        self.requests[request.key] = request
        service = self.services.setdefault(asked.service, Service())
        service.lines.setdefault(asked.client, []).append(request)
        self._wait(request)
        self.counters["requests"] += 1

    def _refuse(self, asked: Asked, refusal: int) -> None:
        if asked.framing == TEXT and asked.client not in self.gone:
            told = [b"KLK-ERROR", self.setup.refusals[refusal]]
            self.clients.append([*self._to_client(asked, b"\3"), *told])

    def _to_client(self, asked: Asked, command: bytes) -> Message:
        if asked.framing == MDP1:
            return [asked.client, b"", MDP_CLIENTS[MDP1], asked.service]
        if asked.framing == MDP2:
            return [asked.client, MDP_CLIENTS[MDP2], command, asked.service]
        head = [asked.client, self.setup.client_header, command]
        return [*head, asked.service, asked.request_id]

    def _wait(self, request: Request) -> None:
        self.waiting.append(request)
        self.dirty.setdefault(request.asked.service)

    def _stop_waiting(self, request: Request) -> None:
        self.waiting.remove(request)
        service = self.services[request.asked.service]
        if request in service.again:
            service.again.remove(request)
            return
        line = service.lines[request.asked.client]
        line.remove(request)
        if not line:
            del service.lines[request.asked.client]

    def _forget(self, request: Request) -> None:
        del self.requests[request.key]
        self._settle(request.asked.service)
        if not any(key[0] == request.asked.client for key in self.requests):
            self.gone.discard(request.asked.client)

    def _settle(self, name: bytes) -> None:
        held = any(request.asked.service == name for request in self.requests.values())
        if name in self.services and not self.services[name].workers and not held:
            del self.services[name]
            self.dirty.pop(name, None)

    # ---- answers ----

    def take_answer(self, message: Message, now_ms: int) -> Stop | None:
        try:
            self._take_answer(message, now_ms)
        except Stopped as stopped:
            return stopped.stop
        return None

    def _take_answer(self, message: Message, now_ms: int) -> None:
        sender, *frames = message
        if frames[:2] == [b"", MDP_WORKERS[MDP1]]:
            framing, frames = MDP1, frames[2:]
        else:
            wanted(bool(frames) and frames[0] in (self.setup.worker_header, MDP_WORKERS[MDP2]))
            framing = TEXT if frames[0] == self.setup.worker_header else MDP2
            frames = frames[1:]
        kind = KINDS[framing].get(frames[0] if frames else b"none", "")
        worker = self.known.get(sender)
        wanted(bool(kind))
        wanted(worker is None or worker.new.framing == framing or kind == "bye")
        frames = frames[1:]
        address = request_id = b""
        if kind in ("partial", "final"):
            wanted(len(frames) >= 2 + (framing == TEXT))
            address, empty, *frames = frames
            wanted(is_name(address) and not empty)
            if framing == TEXT:
                request_id, *frames = frames
                wanted(is_name(request_id))
            else:
                wanted(bool(frames))
        elif kind != "ready":
            wanted(not frames)
        wanted(kind not in ("ready", "bye"), Stop.COMMAND)
        if worker is None:
            raise Stopped(Stop.STRANGER)
        if kind == "ping":
            self.workers.append([*self._to_worker(worker), b"PONG"])
            worker.sent_ms = now_ms
        elif kind != "beat":
            self._answer(worker, kind == "final", (address, request_id), frames)
        worker.heard_ms = now_ms
        self.known.move_to_end(sender)

    def _answer(
        self, worker: Worker, is_final: bool, key: tuple[bytes, bytes], body: Message
    ) -> None:
        if worker.new.framing == TEXT:
            request = self.requests.get(key)
        else:
            mine = [each for each in worker.requests if each.asked.client == key[0]]
            request = mine[0] if mine else None
        if request is None or request not in worker.requests:
            raise Stopped(Stop.UNEXPECTED)
        if request.asked.client in self.gone:
            self.counters["discarded"] += 1
        elif not is_final and request.asked.framing == MDP1:
            request.collected += body
        else:
            head = self._to_client(request.asked, b"\3" if is_final else b"\2")
            whole = [*request.collected, *body]
            self.clients.append([*head, *([*request.collected, b""] if not body else whole)])
        self.counters["finals" if is_final else "partials"] += 1
        if is_final:
            worker.done += 1
            self.services[request.asked.service].done += 1
            self._leave(worker, request)
            self._forget(request)

    def _leave(self, worker: Worker, request: Request) -> None:
        worker.requests.remove(request)
        if len(worker.requests) == worker.window - 1:
            self.services[worker.new.service].ready.append(worker)
            self.dirty.setdefault(worker.new.service)

    def _to_worker(self, worker: Worker) -> Message:
        new = worker.new
        if new.framing == MDP1:
            return [new.routing_id, b"", MDP_WORKERS[MDP1]]
        header = MDP_WORKERS[MDP2] if new.framing == MDP2 else self.setup.worker_header
        return [new.routing_id, header]

    # ---- workers and times ----

    def add_worker(self, new: NewWorker, now_ms: int) -> bool:
        if new.routing_id in self.known:
            return False
        worker = self.known[new.routing_id] = Worker(new, now_ms)
        service = self.services.setdefault(new.service, Service())
        service.workers += 1
        service.ready.append(worker)
        self.dirty.setdefault(new.service)
        return True

    def end_worker(self, routing_id: bytes, now_ms: int) -> int | None:
        worker = self.known.pop(routing_id, None)
        if worker is None:
            return None
        service = self.services[worker.new.service]
        count = 0
        for request in list(worker.requests):
            self._leave(worker, request)
            if request.asked.client in self.gone:
                self.counters["cancelled"] += 1
                self._forget(request)
                continue
            request.collected = []
            request.expires_ms = now_ms + self.setup.request_ttl_ms
            service.again.append(request)
            service.again.sort(key=lambda each: each.number)
            self._wait(request)
            self.counters["resent"] += 1
            count += 1
        if worker in service.ready:
            service.ready.remove(worker)
        service.workers -= 1
        self._settle(worker.new.service)
        return count

    def end_client(self, routing_id: bytes) -> int:
        mine = [each for each in self.requests.values() if each.asked.client == routing_id]
        lined = [
            each
            for each in mine
            if each in self.waiting and each not in self.services[each.asked.service].again
        ]
        if mine:
            self.gone.add(routing_id)
        for request in lined:
            self._stop_waiting(request)
            self._forget(request)
            self.counters["cancelled"] += 1
        return len(lined)

    def silent(self, before_ms: int) -> bytes | None:
        for routing_id, worker in self.known.items():
            return routing_id if worker.heard_ms < before_ms else None
        return None

    def expire(self, now_ms: int) -> None:
        for request in sorted(self.waiting, key=lambda it: (it.due_ms, it.number)):
            if request.due_ms <= now_ms:
                self._expired(request)

    def _expired(self, request: Request) -> None:
        self._refuse(request.asked, 2)
        self._stop_waiting(request)
        self._forget(request)
        self.counters["expired"] += 1

    def dispatch(self, now_ms: int) -> None:
        while self.dirty:
            name = next(iter(self.dirty))
            service = self.services[name]
            while service.ready and (request := self._next(service)):
                self._send(service, request, now_ms)
            del self.dirty[name]

    @staticmethod
    def _next(service: Service) -> Request | None:
        if service.again:
            return service.again[0]
        return next((line[0] for line in service.lines.values()), None)

    def _send(self, service: Service, request: Request, now_ms: int) -> None:
        asked = request.asked
        if asked.client in self.gone:
            self._stop_waiting(request)
            self._forget(request)
            self.counters["cancelled"] += 1
        elif asked.deadline_ms is not None and asked.deadline_ms <= now_ms:
            self._expired(request)
        else:
            worker = service.ready.pop(0)
            if asked.client in service.lines and request not in service.again:
                service.lines.move_to_end(asked.client)
            self._stop_waiting(request)
            worker.requests.append(request)
            if len(worker.requests) < worker.window:
                service.ready.append(worker)
            frames = [*self._to_worker(worker), b"\2", asked.client, b""]
            if worker.new.framing == TEXT:
                frames.append(asked.request_id)
                if worker.new.wants_deadline:
                    left = asked.deadline_ms and asked.deadline_ms - now_ms
                    frames.append((left or 2**64 - 1).to_bytes(8, "big"))
            self.workers.append([*frames, *asked.body])
            worker.sent_ms = now_ms
            self.counters["dispatched"] += 1

    def beat(self, before_ms: int, now_ms: int) -> None:
        for worker in self.known.values():
            if worker.new.framing != TEXT and worker.sent_ms < before_ms:
                self.workers.append([*self._to_worker(worker), HEARTBEATS[worker.new.framing]])
                worker.sent_ms = now_ms
