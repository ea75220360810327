"""Clients of a farm in virtual time: connections, handshakes and servers are of farm_cluster."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from kelek.protocols.garlicfarm.client.client import FarmClient
from kelek.protocols.garlicfarm.client.values import (
    CloseConnection,
    ConnectFailure,
    FailureKind,
    FarmClientSetup,
    FarmCommand,
    OpenConnection,
    ViewQuery,
)
from kelek.protocols.garlicfarm.server.inbound import PeerSession
from kelek.protocols.garlicfarm.server.values import ConnectionClosed
from kelek.protocols.garlicfarm.wire import htdigest
from kelek.protocols.garlicfarm.wire.authenticator import DigestAuthenticator
from kelek.protocols.garlicfarm.wire.handshake import Reply, ServerHandshake
from kelek.protocols.garlicfarm.wire.messages import FarmLogEntry, MessageType, ValueType
from kelek.protocols.garlicfarm.wire.values import Address
from kelek.protocols.host.border import Requests
from kelek.tests.protocols.garlicfarm.farm_cluster import FarmCluster

FARM = "farm"
USERS = htdigest.users_of(htdigest.with_user("", FARM, "alice", "secret"), FARM)
REFUSED = ConnectFailure(FailureKind.LOST, "nobody listens there")


def place(number: int) -> Address:
    return Address("127.0.0.1", 9000 + number)


class ClientWire:
    """A connection of the client, at the server's end."""

    def __init__(self, caller: "Caller", number: int, to: int) -> None:
        cluster = caller.cluster
        self.caller, self.number, self.to = caller, number, to
        self.peer = cluster.nodes[to]
        plain = caller.client.setup.plain
        authenticator = caller.authenticators.setdefault(
            to, DigestAuthenticator(b"k" * 16, cluster.random.randbytes)
        )
        users = {FARM: caller.users.get(to, USERS)}
        self.handshake = None if plain else ServerHandshake(authenticator, users, cluster.now_ms)
        self.connection: int | None = None
        if plain:
            self._enter(b"")

    def receive(self, data: bytes) -> None:
        """Bytes of the client arrive."""
        cluster = self.caller.cluster
        if (
            self.caller.wires.get(self.number) is not self
            or cluster.nodes.get(self.to) is not self.peer
        ):
            return
        if self.connection is not None:
            act = partial(self.peer.receive, Requests(self.connection, data), cluster.now_ms)
            cluster.guarded(self.to, act)
        elif self.handshake is not None:
            reply = self.handshake.feed(data, cluster.now_ms)
            if reply is not None:
                self._reply(reply)

    def _reply(self, reply: Reply) -> None:
        self.caller.statuses.append(reply.status)
        self.caller.deliver(self, reply.data)
        if reply.status == 101:
            self._enter(reply.rest)
        else:
            self.handshake = None
            self.caller.deliver(self, b"")

    def _enter(self, rest: bytes) -> None:
        self.connection = self.peer.accept(PeerSession("alice", None, self.caller.is_admin))
        self.caller.cluster.readers[self.to, self.connection] = self._read
        if rest:
            self.receive(rest)

    def _read(self, data: bytes, failure: str) -> None:
        if data:
            self.caller.deliver(self, data)
        if failure:
            self.caller.deliver(self, b"")


class Caller:
    """The owner of a client."""

    def __init__(self, cluster: FarmCluster, places: tuple[int, ...], **setup: Any) -> None:
        self.cluster = cluster
        known = FarmClientSetup(FARM, tuple(map(place, places)), "alice", "secret")
        self.client = FarmClient(known._replace(**setup), cluster.random.randbytes)
        self.wires: dict[int, ClientWire] = {}
        self.authenticators: dict[int, DigestAuthenticator] = {}
        self.users: dict[int, htdigest.Users] = {}  # Servers with other users.
        self.is_admin = True
        self.statuses: list[int] = []
        self.muted: set[int] = set()  # Servers whose answers are dropped.
        self._next_ms: int | None = None

    def run_once(self) -> None:
        """Performs the client's actions."""
        cluster = self.cluster
        for action in self.client.ready(cluster.now_ms):
            if isinstance(action, OpenConnection):
                cluster.after(cluster.delay(), partial(self._made, action))
            elif isinstance(action, CloseConnection):
                self._end(action.number)
        for number, line in self.client.connections.items():
            if line.out:
                wire, data = self.wires[number], bytes(line.out)
                line.out.clear()
                cluster.after(5, partial(wire.receive, data))
        deadline_ms = self.client.deadline_ms
        if deadline_ms is not None and deadline_ms != self._next_ms:
            self._next_ms = deadline_ms
            cluster.after(max(1, deadline_ms - cluster.now_ms), self._on_time)

    def _on_time(self) -> None:
        self._next_ms = None
        self.run_once()

    def _made(self, action: OpenConnection) -> None:
        to = action.address.port - 9000
        if action.number not in self.client.connections:
            return
        if to not in self.cluster.nodes:
            self.client.on_lost(action.number, REFUSED, self.cluster.now_ms)
        else:
            self.wires[action.number] = ClientWire(self, action.number, to)
            self.client.on_open(action.number, self.cluster.now_ms)
        self.run_once()

    def _end(self, number: int) -> None:
        wire = self.wires.pop(number, None)
        if wire is not None and wire.connection is not None:
            self.cluster.readers.pop((wire.to, wire.connection), None)
            wire.peer.receive(ConnectionClosed(wire.connection), self.cluster.now_ms)

    def deliver(self, wire: ClientWire, data: bytes) -> None:
        """Sends a server's bytes to the client; b"" closes the connection."""
        if wire.to not in self.muted:
            self.cluster.after(5, partial(self._bring, wire, data))

    def _bring(self, wire: ClientWire, data: bytes) -> None:
        if self.wires.get(wire.number) is not wire:
            return
        if data:
            self.client.on_data(wire.number, data, self.cluster.now_ms)
        else:
            self._end(wire.number)
            self.client.on_lost(wire.number, None, self.cluster.now_ms)
        self.run_once()

    def cut(self, number: int) -> None:
        """Ends a server's connections, as a kill would."""
        for wire in [each for each in self.wires.values() if each.to == number]:
            del self.wires[wire.number]
            self.client.on_lost(wire.number, None, self.cluster.now_ms)
        self.run_once()

    # ---- users ----

    def append(self, *values: bytes, ms: int = 60_000) -> FarmCommand:
        entries = tuple(FarmLogEntry(0, ValueType.APPLICATION, value) for value in values)
        until_ms = self.cluster.now_ms + ms
        command = self.client.submit(FarmCommand(MessageType.CLIENT_REQUEST, entries, until_ms))
        self.run_once()
        return command

    def until(self, *commands: FarmCommand | ViewQuery, ms: int = 60_000) -> None:
        self.run_once()
        self.cluster.run_until(lambda: all(command.done for command in commands), ms)

    def values(self, number: int) -> list[bytes]:
        """The clients' values in a server's committed log."""
        found: Mapping[int, tuple[int, bytes]] = self.cluster.committed(number)
        return [data for _, (_, data) in sorted(found.items()) if data[:1] == b"v"]
