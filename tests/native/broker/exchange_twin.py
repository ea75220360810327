"""The exchange in plain Python, a twin of native/broker/exchange.py without C's tables."""

from collections import Counter, OrderedDict
from typing import NamedTuple

from kelek.native.broker import exchange
from kelek.protocols.majordomo.values import Headers

Message = list[bytes]
TEXT, MDP1, MDP2 = range(3)
MDP_CLIENTS = {MDP1: b"MDPC01", MDP2: b"MDPC02"}
MDP_WORKERS = {MDP1: b"MDPW01", MDP2: b"MDPW02"}
HEARTBEATS = {MDP1: b"\4", MDP2: b"\5"}
# command -> what it is, by framing
KINDS = {
    TEXT: {
        b"\1": "ready",
        b"\3": "partial",
        b"\4": "final",
        b"\6": "bye",
        b"\7": "ready",
        b"PING": "ping",
    },
    MDP1: {b"\1": "ready", b"\3": "final", b"\4": "beat", b"\5": "bye"},
    MDP2: {b"\1": "ready", b"\3": "partial", b"\4": "final", b"\5": "beat", b"\6": "bye"},
}


UNLIMITED = 2**64 - 1
CREDIT_MAX = 2**62
PLAIN, NUMBERED, UNWANTED = range(3)


class Stopped(Exception):  # It is no error: the message is the caller's.
    def __init__(self, stop: exchange.Stop) -> None:
        self.stop = stop


class QueuedRequest(NamedTuple):
    framing: int
    client: bytes
    service: bytes
    request_id: bytes
    deadline_ms: int | None
    body: Message
    name: bytes = b""
    credit: int = 0
    command: bytes = b"\1"
    slot: int = exchange.NO_SLOT


class ClientTwin:
    def __init__(self, route: bytes, name: bytes, number: int, slot: int) -> None:
        self.route = route
        self.slot = slot
        self.name = name
        self.address = number.to_bytes(8, "big")
        self.previous_route = b""
        self.gone_ms: int | None = None
        self.last_seen_ms = self.sent_ms = 0


class RequestTwin:
    def __init__(
        self, client: ClientTwin, parsed: QueuedRequest, number: int, expires_ms: int
    ) -> None:
        self.client = client
        self.parsed = parsed
        self.number = number
        self.expires_ms = expires_ms
        self.collected: Message = []
        self.key = (client, parsed.request_id)
        self.credit = parsed.credit
        self.parts_are = PLAIN
        if parsed.name:
            self.parts_are = NUMBERED if parsed.credit else UNWANTED
        self.run = self.parts = 0
        self.is_over = False
        self.worker: WorkerTwin | None = None

    @property
    def due_ms(self) -> int:
        """When the request ends if it still waits."""
        deadline_ms = self.parsed.deadline_ms
        return self.expires_ms if deadline_ms is None else min(self.expires_ms, deadline_ms)


class WorkerTwin:
    def __init__(self, new: exchange.NewWorker, now_ms: int) -> None:
        self.new = new
        self.number = 0
        self.window = new.window if new.framing == TEXT else 1
        self.requests: list[RequestTwin] = []
        self.last_seen_ms = self.sent_ms = now_ms
        self.done = 0


class Service:
    def __init__(self) -> None:
        self.ready: list[WorkerTwin] = []
        self.redelivery: list[RequestTwin] = []
        self.client_queues: OrderedDict[ClientTwin, list[RequestTwin]] = OrderedDict()
        self.workers = 0
        self.done = 0


def is_name(frame: bytes) -> bool:
    return 0 < len(frame) <= 255


def require(condition: bool, stop: exchange.Stop = exchange.Stop.INVALID) -> None:
    if not condition:
        raise Stopped(stop)


class ExchangeTwin:
    """Has the tests' limit of requests of one client."""

    def __init__(self, setup: exchange.ExchangeSetup) -> None:
        self.setup = setup
        self.headers = Headers(*setup.headers)
        self.clients: list[Message] = []
        self.workers: list[Message] = []
        self.requests: dict[tuple[ClientTwin, bytes], RequestTwin] = {}
        self.known: OrderedDict[bytes, WorkerTwin] = OrderedDict()  # By when they were heard.
        self.services: dict[bytes, Service] = {}
        self.dirty: OrderedDict[bytes, None] = OrderedDict()
        self.waiting: list[RequestTwin] = []
        self.number = 0
        self.next_client = self.next_worker = setup.first_number
        self.run = setup.first_number
        self.counters: Counter[str] = Counter(dict.fromkeys(exchange.COUNTERS, 0))

    # ---- requests ----

    def receive_request(
        self, message: Message, now_ms: int, slot: int = exchange.NO_SLOT
    ) -> exchange.Stop | None:
        try:
            parsed = self._read_request(message, now_ms)._replace(slot=slot)
            self._receive_request(parsed, now_ms)
        except Stopped as stopped:
            return stopped.stop
        return None

    def _read_request(self, message: Message, now_ms: int) -> QueuedRequest:
        client, *frames = message
        headers = self.headers
        setup, request_id, deadline_ms, name, credit = self.setup, b"", None, b"", 0
        command = b"\1"
        if frames[:2] == [b"", MDP_CLIENTS[MDP1]]:
            framing, frames = MDP1, frames[2:]
        else:
            require(bool(frames))
            header, *frames = frames
            framing = MDP2 if header == MDP_CLIENTS[MDP2] else TEXT
            own = (headers.deadline, headers.named)
            require(header in (headers.client, MDP_CLIENTS[MDP2], *own) and bool(frames))
            command, *frames = frames
            commands = (b"\1", b"\4", b"\5") if header == headers.named else (b"\1",)
            require(command in commands)
        require(bool(frames) and is_name(frames[0]) and all(32 <= c < 127 for c in frames[0]))
        service, *frames = frames
        if framing == TEXT:
            require(bool(frames) and is_name(frames[0]))
            request_id, *frames = frames
            if header in own:
                require(bool(frames))
                options = frames.pop(0)
                is_named = header == headers.named
                require(len(options) > 16 if is_named else len(options) == 8)
                left_ms = int.from_bytes(options[:8], "big")
                deadline_ms = now_ms + left_ms if left_ms < 2**63 - now_ms - 1 else None
                credit = min(int.from_bytes(options[8:16], "big"), CREDIT_MAX)
                name = options[16:]
                require(not is_named or (is_name(name) and name[0] != 0))
        require(bool(frames) == (command == b"\1"))
        require(not service.startswith((b"mmi.", b"titanic.", b"klk.")), exchange.Stop.INTERNAL)
        require(service not in setup.durable_services, exchange.Stop.DURABLE)
        return QueuedRequest(
            framing, client, service, request_id, deadline_ms, frames, name, credit, command
        )

    def _known_clients(self) -> set[ClientTwin]:
        return {request.client for request in self.requests.values()}

    def _find_client(self, parsed: QueuedRequest, now_ms: int) -> ClientTwin | None:
        route, name = parsed.client, parsed.name
        self._lose(
            {it for it in self._known_clients() if it.route == route}
            - {it for it in self._known_clients() if it.slot == parsed.slot},
            now_ms,
        )
        known = [client for client in self._known_clients() if client.slot == parsed.slot]
        for client in known:
            if (client.route, client.name) == (route, name):
                return client
        for client in known:
            if name and client.name == name:
                if client.previous_route != route:
                    client.previous_route, client.route = client.route, route
                return client
        return None

    def _receive_request(self, parsed: QueuedRequest, now_ms: int) -> None:
        client = self._find_client(parsed, now_ms)
        if client is not None:
            client.gone_ms, client.last_seen_ms = None, now_ms
        if parsed.command != b"\1":
            if client is not None and (client, parsed.request_id) in self.requests:
                self._receive_command(parsed, self.requests[client, parsed.request_id])
            return
        if client is None:
            client = ClientTwin(parsed.client, parsed.name, self.next_client, parsed.slot)
            client.last_seen_ms = client.sent_ms = now_ms
            self.next_client += 1
        if parsed.framing != TEXT:
            number = self.number + 1
            while (client, number.to_bytes(8, "big")) in self.requests:
                number += 1
            self.number = number - 1
            parsed = parsed._replace(request_id=number.to_bytes(8, "big"))
        elif (client, parsed.request_id) in self.requests:
            self._repeat(parsed, self.requests[client, parsed.request_id])
            return
        of_key = sum(key[0].slot == client.slot != exchange.NO_SLOT for key in self.requests)
        if (
            sum(key[0] is client for key in self.requests) >= self.setup.inflight_max
            or of_key >= self.setup.key_inflight_max
        ):
            self._refuse(parsed, parsed.client, 0)
            self.counters["refused"] += 1
            return
        self.number += 1
        request = RequestTwin(client, parsed, self.number, now_ms + self.setup.request_ttl_ms)
        self.requests[request.key] = request
        service = self.services.setdefault(parsed.service, Service())
        service.client_queues.setdefault(client, []).append(request)
        self._wait(request)
        self.counters["requests"] += 1

    def _repeat(self, parsed: QueuedRequest, request: RequestTwin) -> None:
        if request.is_over:
            self._refuse(parsed, parsed.client, 0)
            self.counters["refused"] += 1
            return
        self.counters["repeated"] += 1
        if not parsed.name:
            return
        if not parsed.credit:
            self._unwanted(request)
            return
        request.parts_are = NUMBERED
        if parsed.credit > request.credit:
            self._add_credit(request, parsed.credit - request.credit)

    def _receive_command(self, parsed: QueuedRequest, request: RequestTwin) -> None:
        if request.is_over:
            return
        if parsed.command == b"\5":
            self._cancel(request)
        elif not parsed.credit:
            self._unwanted(request)
        elif request.parts_are == NUMBERED:
            self._add_credit(request, parsed.credit)

    def _order(self, request: RequestTwin, command: bytes, *more: bytes) -> None:
        worker = request.worker
        if worker is not None and worker.new.wants >= exchange.Wants.CREDIT:
            address, request_id = request.client.address, request.parsed.request_id
            head = [*self._to_worker(worker), command, address, b"", request_id]
            self.workers.append([*head, *more])

    def _add_credit(self, request: RequestTwin, octets: int) -> None:
        self._order(request, b"\7", octets.to_bytes(8, "big"))
        request.credit += octets if octets < CREDIT_MAX - request.credit else 0

    def _unwanted(self, request: RequestTwin) -> None:
        if request.parts_are == NUMBERED:
            self._order(request, b"\7", UNLIMITED.to_bytes(8, "big"))
            request.parts_are = UNWANTED

    def _cancel(self, request: RequestTwin) -> None:
        if request.is_over:
            return
        self._order(request, b"\x08")
        self.counters["cancelled"] += 1
        if request.worker is not None:
            request.is_over = True
        else:
            self._stop_waiting(request)
            self._forget(request)

    def _refuse(self, parsed: QueuedRequest, route: bytes, refusal: int) -> None:
        if parsed.framing == TEXT:
            error = [b"KLK-ERROR", self.setup.refusals[refusal]]
            self.clients.append([*self._to_client(parsed, route, b"\3"), *error])

    def _to_client(self, parsed: QueuedRequest, route: bytes, command: bytes) -> Message:
        if parsed.framing == MDP1:
            return [route, b"", MDP_CLIENTS[MDP1], parsed.service]
        if parsed.framing == MDP2:
            return [route, MDP_CLIENTS[MDP2], command, parsed.service]
        head = [route, self.headers.client, command]
        return [*head, parsed.service, parsed.request_id]

    def _wait(self, request: RequestTwin) -> None:
        self.waiting.append(request)
        self.dirty.setdefault(request.parsed.service)

    def _stop_waiting(self, request: RequestTwin) -> None:
        self.waiting.remove(request)
        service = self.services[request.parsed.service]
        if request in service.redelivery:
            service.redelivery.remove(request)
            return
        queue = service.client_queues[request.client]
        queue.remove(request)
        if not queue:
            del service.client_queues[request.client]

    def _forget(self, request: RequestTwin) -> None:
        del self.requests[request.key]
        self._settle(request.parsed.service)

    def _settle(self, name: bytes) -> None:
        held = any(request.parsed.service == name for request in self.requests.values())
        if name in self.services and not self.services[name].workers and not held:
            del self.services[name]
            self.dirty.pop(name, None)

    # ---- answers ----

    def receive_answer(
        self, message: Message, now_ms: int, slot: int = exchange.NO_SLOT
    ) -> exchange.Stop | None:
        try:
            self._receive_answer(message, now_ms, slot)
        except Stopped as stopped:
            return stopped.stop
        return None

    def _receive_answer(self, message: Message, now_ms: int, slot: int) -> None:
        sender, *frames = message
        if frames[:2] == [b"", MDP_WORKERS[MDP1]]:
            framing, frames = MDP1, frames[2:]
        else:
            require(bool(frames) and frames[0] in (self.headers.worker, MDP_WORKERS[MDP2]))
            framing = TEXT if frames[0] == self.headers.worker else MDP2
            frames = frames[1:]
        kind = KINDS[framing].get(frames[0] if frames else b"none", "")
        worker = self.known.get(sender)
        if worker is not None and worker.new.slot != slot:
            worker = None
        require(bool(kind))
        require(worker is None or worker.new.framing == framing or kind == "bye")
        frames = frames[1:]
        address = request_id = b""
        if kind in ("partial", "final"):
            require(len(frames) >= 2 + (framing == TEXT))
            address, empty, *frames = frames
            require(is_name(address) and not empty)
            if framing == TEXT:
                request_id, *frames = frames
                require(is_name(request_id))
            else:
                require(bool(frames))
        elif kind != "ready":
            require(not frames)
        require(kind not in ("ready", "bye"), exchange.Stop.COMMAND)
        if worker is None:
            raise Stopped(exchange.Stop.UNKNOWN_WORKER)
        if kind == "ping":
            self.workers.append([*self._to_worker(worker), b"PONG"])
            worker.sent_ms = now_ms
        elif kind != "beat":
            self._answer(worker, kind == "final", (address, request_id), frames, now_ms)
        worker.last_seen_ms = now_ms
        self.known.move_to_end(sender)

    def _answer(
        self,
        worker: WorkerTwin,
        is_final: bool,
        key: tuple[bytes, bytes],
        body: Message,
        now_ms: int,
    ) -> None:
        found = [each for each in worker.requests if each.client.address == key[0]]
        if worker.new.framing == TEXT:
            found = [each for each in found if each.parsed.request_id == key[1]]
        if not found:
            raise Stopped(exchange.Stop.UNEXPECTED)
        request = found[0]
        is_unwanted = not is_final and request.parts_are == UNWANTED
        if request.client.gone_ms is not None or request.is_over or is_unwanted:
            self.counters["discarded"] += not is_unwanted
        elif not is_final and request.parsed.framing == MDP1:
            request.collected += body
        else:
            self._forward(request, is_final, body)
            request.client.sent_ms = now_ms
        if not is_final:
            request.parts += 1
            request.credit -= exchange.PART_COST + sum(map(len, body))
        self.counters["finals" if is_final else "partials"] += 1
        if is_final:
            worker.done += 1
            self.services[request.parsed.service].done += 1
            self._leave(worker, request)
            self._forget(request)

    def _forward(self, request: RequestTwin, is_final: bool, body: Message) -> None:
        part_number = []
        command = b"\3" if is_final else b"\2"
        if request.parts_are == NUMBERED:
            command = b"\5" if is_final else b"\4"
            part_number = [request.run.to_bytes(4, "big") + request.parts.to_bytes(4, "big")]
        head = [*self._to_client(request.parsed, request.client.route, command), *part_number]
        whole = [*request.collected, *body]
        self.clients.append([*head, *([*request.collected, b""] if not body else whole)])

    def _leave(self, worker: WorkerTwin, request: RequestTwin) -> None:
        worker.requests.remove(request)
        request.worker = None
        if len(worker.requests) == worker.window - 1:
            self.services[worker.new.service].ready.append(worker)
            self.dirty.setdefault(worker.new.service)

    def _to_worker(self, worker: WorkerTwin) -> Message:
        new = worker.new
        if new.framing == MDP1:
            return [new.routing_id, b"", MDP_WORKERS[MDP1]]
        header = MDP_WORKERS[MDP2] if new.framing == MDP2 else self.headers.worker
        return [new.routing_id, header]

    # ---- workers and times ----

    def add_worker(self, new: exchange.NewWorker, now_ms: int) -> bool:
        if new.routing_id in self.known:
            return False
        worker = self.known[new.routing_id] = WorkerTwin(new, now_ms)
        worker.number = self.next_worker
        self.next_worker += 1
        service = self.services.setdefault(new.service, Service())
        service.workers += 1
        service.ready.append(worker)
        self.dirty.setdefault(new.service)
        return True

    def remove_worker(self, routing_id: bytes, now_ms: int) -> int | None:
        worker = self.known.pop(routing_id, None)
        if worker is None:
            return None
        service = self.services[worker.new.service]
        count = 0
        for request in list(worker.requests):
            self._leave(worker, request)
            if request.client.gone_ms is not None or request.is_over:
                self.counters["cancelled"] += 1
                self._forget(request)
                continue
            request.collected = []
            request.expires_ms = now_ms + self.setup.request_ttl_ms
            service.redelivery.append(request)
            service.redelivery.sort(key=lambda each: each.number)
            self._wait(request)
            self.counters["resent"] += 1
            count += 1
        if worker in service.ready:
            service.ready.remove(worker)
        service.workers -= 1
        self._settle(worker.new.service)
        return count

    def remove_client(self, routing_id: bytes, now_ms: int) -> int:
        return self._lose({it for it in self._known_clients() if it.route == routing_id}, now_ms)

    def remove_key(self, slot: int, now_ms: int) -> int:
        return self._lose({it for it in self._known_clients() if it.slot == slot}, now_ms)

    def _lose(self, clients: set[ClientTwin], now_ms: int) -> int:
        found = [each for each in self.requests.values() if each.client in clients]
        queued = [
            each
            for each in found
            if each in self.waiting and each not in self.services[each.parsed.service].redelivery
        ]
        for request in found:
            if request.client.gone_ms is None:
                request.client.gone_ms = now_ms
        for request in queued:
            self._stop_waiting(request)
            self._forget(request)
            self.counters["cancelled"] += 1
        return len(queued)

    def probe_clients(self, now_ms: int) -> None:
        for worker in self.known.values():
            for request in worker.requests:
                client, parsed = request.client, request.parsed
                if client.gone_ms is None:
                    pause_ms = exchange.PROBE_MS // 2 + (now_ms - client.last_seen_ms) // 8
                    if client.name and now_ms - client.sent_ms >= pause_ms:
                        self.clients.append([client.route, self.headers.client, b"\6"])
                        client.sent_ms = now_ms
                elif now_ms - client.gone_ms < exchange.PROBE_MS:
                    pass
                elif parsed.framing == TEXT and parsed.deadline_ms is None:
                    self._unwanted(request)
                else:
                    self._cancel(request)

    def drop_part(self, routing_id: bytes, request_id: bytes) -> bool:
        for client, known_id in list(self.requests):
            request = self.requests[client, known_id]
            if (client.route, known_id) == (routing_id, request_id) and not request.is_over:
                self._cancel(request)
                return True
        return False

    def drop_mdp_part(self, routing_id: bytes) -> None:
        for worker in self.known.values():
            for request in worker.requests:
                if request.client.route == routing_id and request.parsed.framing != TEXT:
                    self._cancel(request)

    def silent_worker(self, before_ms: int) -> bytes | None:
        for routing_id, worker in self.known.items():
            return routing_id if worker.last_seen_ms < before_ms else None
        return None

    def expire(self, now_ms: int) -> None:
        for request in sorted(self.waiting, key=lambda it: (it.due_ms, it.number)):
            if request.due_ms <= now_ms:
                self._expired(request)

    def _expired(self, request: RequestTwin) -> None:
        if request.client.gone_ms is None:
            was_lost = request in self.services[request.parsed.service].redelivery
            self._refuse(request.parsed, request.client.route, 3 if was_lost else 2)
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
    def _next(service: Service) -> RequestTwin | None:
        if service.redelivery:
            return service.redelivery[0]
        return next((queue[0] for queue in service.client_queues.values()), None)

    def _send(self, service: Service, request: RequestTwin, now_ms: int) -> None:
        parsed = request.parsed
        if request.client.gone_ms is not None:
            self._stop_waiting(request)
            self._forget(request)
            self.counters["cancelled"] += 1
        elif parsed.deadline_ms is not None and parsed.deadline_ms <= now_ms:
            self._expired(request)
        else:
            worker = service.ready.pop(0)
            if request.client in service.client_queues and request not in service.redelivery:
                service.client_queues.move_to_end(request.client)
            self._stop_waiting(request)
            worker.requests.append(request)
            request.worker, request.parts = worker, 0
            self.run = request.run = (self.run + 1) % 2**32
            if len(worker.requests) < worker.window:
                service.ready.append(worker)
            frames = [*self._to_worker(worker), b"\2", request.client.address, b""]
            if worker.new.framing == TEXT:
                frames.append(parsed.request_id)
                left = parsed.deadline_ms and parsed.deadline_ms - now_ms
                options = (left or UNLIMITED).to_bytes(8, "big")
                if worker.new.wants >= exchange.Wants.CREDIT:
                    credit = max(request.credit, 0)
                    if request.parts_are != NUMBERED:
                        credit = UNLIMITED
                    options += credit.to_bytes(8, "big")
                if worker.new.wants is not exchange.Wants.NOTHING:
                    frames.append(options)
            self.workers.append([*frames, *parsed.body])
            worker.sent_ms = now_ms
            self.counters["dispatched"] += 1

    def heartbeat(self, before_ms: int, now_ms: int) -> None:
        for worker in self.known.values():
            if worker.new.framing != TEXT and worker.sent_ms < before_ms:
                self.workers.append([*self._to_worker(worker), HEARTBEATS[worker.new.framing]])
                worker.sent_ms = now_ms
