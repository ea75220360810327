"""ZRE nodes in virtual time, on a network that loses beacons, partitions and delays."""

import heapq
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from kelek.native.net.messages import Arena
from kelek.protocols.zre.beacon import decode_beacon, own_uuid
from kelek.protocols.zre.effects import Connect, NodeSetup
from kelek.protocols.zre.node import NodeMachine
from kelek.protocols.zre.peers import Event, EventKind
from kelek.protocols.zre.values import CommandKind

PORT = 61_000


class _Link(NamedTuple):
    """A DEALER: its target and its routing id."""

    endpoint: str
    routing_id: bytes
    serial: int
    watched: bool
    key: bytes


class Host:
    """A node, its DEALERs, and the events of its user."""

    def __init__(self, network: "ZreNetwork", address: str, setup: NodeSetup) -> None:
        self.network = network
        self.address = address
        self.node = NodeMachine(setup, network.now_ms)
        self.links: dict[int, _Link] = {}
        self.events: list[Event] = []
        self.alive = True

    @property
    def name(self) -> str:
        return self.node.setup.name

    def seen(self, kind: EventKind) -> list[str]:
        """Names of the peers of the events of this kind, in order."""
        return [event.peer.name for event in self.events if event.kind is kind and event.peer]

    def accepts(self, client_key: bytes, server_key: bytes) -> bool:
        """Whether the handshake of CURVE with this node succeeds."""
        keyring = self.node.setup.keyring
        is_allowed = keyring is not None and keyring.slot_of(client_key) is not None
        return is_allowed and server_key == self.node.setup.public_key

    def peer_names(self) -> set[str]:
        return {peer.name for peer in self.node.peers.values()}


class ZreNetwork:
    """A seed makes every choice. Messages of a DEALER arrive in order; beacons may be lost."""

    def __init__(self, seed: int, beacon_loss: float = 0.0) -> None:
        self.dice = Random(seed)
        self.now_ms = 1_000_000
        self.beacon_loss = beacon_loss
        self.hosts: dict[str, Host] = {}
        self.cut: set[str] = set()  # Addresses without a connection in either direction.
        self.full: set[str] = set()  # Endpoints whose senders find no room.
        self.beacons_sent = self.greetings = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._hosts = self._count = 0
        self._serial = 0
        self._waiting: dict[str, list[Callable[[], None]]] = {}  # Messages, by where they go.

    def add(self, name: str, uuid: bytes | None = None, **settings: object) -> Host:
        """A node at an address of its own."""
        self._hosts += 1
        address = f"10.0.{self._hosts // 250}.{self._hosts % 250 + 1}"
        if uuid is None:
            uuid = own_uuid(self.dice.randbytes(14))
        setup = NodeSetup(uuid, address, PORT, name)._replace(**settings)  # type: ignore[arg-type]
        place = f"{setup.address}:{setup.port}"
        host = self.hosts[place] = Host(self, setup.address, setup)
        for arrive in self._waiting.pop(place, ()):
            self.at(1, arrive)
        self.act(host)
        return host

    def kill(self, host: Host) -> None:
        """Stops a node without a goodbye. Connections to it are lost at once."""
        host.alive = False
        for other in self.hosts.values():
            for number, link in list(other.links.items()):
                if link.watched and self.hosts.get(link.endpoint.removeprefix("tcp://")) is host:
                    other.node.on_disconnected(number, self.now_ms)
            self.act(other)
        self.hosts = {place: other for place, other in self.hosts.items() if other is not host}

    def stop(self, host: Host) -> None:
        host.node.stop()
        self.act(host)
        self.kill(host)

    def at(self, delay_ms: int, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._count, what))

    def act(self, host: Host) -> None:
        """Runs a node's effects."""
        if not host.alive:
            return
        ready = host.node.ready(self.now_ms)
        host.events += ready.events
        for action in ready.actions:
            if isinstance(action, Connect):
                self._serial += 1
                endpoint, routing_id, watched, key = action[1:]
                link = _Link(endpoint, routing_id, self._serial, watched, key)
                host.links[action.number] = link
            else:
                host.links.pop(action.number)
        for data in ready.beacons:
            self._broadcast(host, data)
        full = []
        for number, batch in ready.sends:
            link = host.links[number]
            if link.endpoint in self.full:
                full.append(number)
            else:
                self._send(host, link, number, batch.messages())
            batch.clear()
        if full:
            for number in full:
                host.node.on_full(number)
            self.act(host)

    def _broadcast(self, host: Host, data: bytes) -> None:
        self.beacons_sent += 1
        if host.address in self.cut:
            return
        for other in self.hosts.values():
            if other.address in self.cut or self.dice.random() < self.beacon_loss:
                continue
            self.at(self.dice.randint(0, 3), partial(self._beacon, other, data, host))

    def _beacon(self, host: Host, data: bytes, source: Host) -> None:
        if host.alive:
            host.node.on_beacon(decode_beacon(data), source.address, self.now_ms)
            self.act(host)

    def _send(self, host: Host, link: _Link, number: int, messages: list[list[bytes]]) -> None:
        place = link.endpoint.removeprefix("tcp://")
        self.greetings += sum(frames[0][2] == CommandKind.HELLO for frames in messages)

        def arrive() -> None:
            target = self.hosts.get(place)
            if target is None and link.watched:
                self._waiting.setdefault(place, []).append(arrive)  # As a DEALER keeps it.
            if target is None or {target.address, host.address} & self.cut:
                return
            still = host.links.get(number)
            if still is None or still.serial != link.serial:
                return  # Closed before it arrived.
            setup, address = host.node.setup, host.address.encode()
            if link.key:
                if target.accepts(setup.public_key, link.key):
                    arena = Arena.from_messages(messages)
                    key = setup.public_key
                    target.node.on_batch(link.routing_id, address, arena, self.now_ms, key)
            elif not target.node.setup.public_key:
                arena = Arena.from_messages(
                    [[link.routing_id, address, *frames] for frames in messages]
                )
                target.node.on_messages(arena, self.now_ms)
            self.act(target)

        self.at(1, arrive)

    def run(self, ms: int) -> None:
        """Advances the time."""
        end_ms = self.now_ms + ms
        while True:
            wakes = [
                host.node.deadline_ms
                for host in self.hosts.values()
                if host.node.deadline_ms is not None
            ]
            next_ms = min([*wakes, end_ms, *(entry[0] for entry in self._queue[:1])])
            self.now_ms = max(self.now_ms, next_ms)
            while self._queue and self._queue[0][0] <= self.now_ms:
                heapq.heappop(self._queue)[2]()
            for host in list(self.hosts.values()):
                due_ms = host.node.deadline_ms
                if due_ms is not None and due_ms <= self.now_ms:
                    self.act(host)
            if self.now_ms >= end_ms:
                return
