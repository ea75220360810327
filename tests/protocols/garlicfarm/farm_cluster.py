"""A farm in one process: servers, disks and connections in virtual time, from one seed.

Connections carry bytes in order and are cut at random. A killed server keeps its disk. A server of
another implementation takes part with the same interface: accept, receive, links.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any, Protocol

from kelek.protocols.garlicfarm.server.inbound import PeerSession
from kelek.protocols.garlicfarm.server.peer import FarmPeer
from kelek.protocols.garlicfarm.server.values import (
    ConnectionClosed,
    FarmEvent,
    FarmSetup,
    FarmSnapshot,
    LinkUp,
    RecoveredFarm,
    make_recovered,
)
from kelek.protocols.garlicfarm.wire import codec
from kelek.protocols.garlicfarm.wire.entries import configuration_of
from kelek.protocols.garlicfarm.wire.messages import (
    ClusterServer,
    FarmConfiguration,
    FarmLogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)
from kelek.protocols.host.border import LinkLost, Requests, Responses
from kelek.protocols.raft.core import Role
from kelek.protocols.raft.messages import EntryBatch, HardState
from kelek.protocols.record import decode_block, slice_block
from kelek.tests.sim.network import Connection, Network
from kelek.tests.sim.simulation import US_PER_MS, Simulation

DELAY_US = (1_000, 20_000)
ADMIN = PeerSession(is_server=True)  # The rights of a connection without a handshake.


def server(number: int) -> ClusterServer:
    return ClusterServer(number, f"tcp://127.0.0.1:{9000 + number}")


class FarmDisk:
    """The durable state of a server."""

    def __init__(self, servers: tuple[ClusterServer, ...]) -> None:
        self.state = HardState()
        self.is_member = bool(servers)
        self.base = (0, 0)
        self.log: list[EntryBatch] = []
        self.beginning = FarmConfiguration(0, 0, servers)
        self.mark = FarmSnapshot()
        self.snapshot = b""
        self.incoming = bytearray()

    def save(self, state: HardState, is_member: bool) -> None:
        assert state.term >= self.state.term
        self.state, self.is_member = state, is_member

    def append(self, batches: list[EntryBatch]) -> None:
        for batch in batches:
            while self.log and self.log[-1].first_index >= batch.first_index:
                self.log.pop()
            if self.log and self.log[-1].last_index >= batch.first_index:
                self.log[-1] = slice_block(
                    self.log[-1], self.log[-1].first_index, batch.first_index - 1
                )
            assert batch.first_index == self.last_index + 1
            self.log.append(batch)

    @property
    def last_index(self) -> int:
        return self.log[-1].last_index if self.log else self.base[0]

    def reset(self, index: int, term: int) -> None:
        self.log, self.base = [], (index, term)
        if not index:
            self.mark, self.snapshot = FarmSnapshot(), b""
            self.beginning = FarmConfiguration(0, 0, ())

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        found: list[EntryBatch] = []
        for batch in self.log:
            if first_index <= batch.last_index and batch.first_index <= last_index:
                first, last = max(batch.first_index, first_index), min(batch.last_index, last_index)
                found.append(slice_block(batch, first, last))
            if sum(len(each.block) for each in found) > bytes_max:
                break
        return found

    def read_snapshot(self, mark: FarmSnapshot, offset: int, size: int) -> bytes | None:
        return self.snapshot[offset : offset + size] if mark == self.mark else None

    def write_snapshot(self, offset: int, data: bytes) -> None:
        if offset == 0:
            self.incoming.clear()
        assert offset == len(self.incoming)
        self.incoming += data

    def install_snapshot(self, mark: FarmSnapshot) -> None:
        assert mark.size == len(self.incoming)
        self.mark, self.snapshot = mark, bytes(self.incoming)

    def recover(self) -> RecoveredFarm:
        if self.mark.last_index > self.last_index or self.base[0] > self.mark.last_index:
            self.log, self.base = [], (self.mark.last_index, self.mark.last_term)
        log = [
            slice_block(batch, max(batch.first_index, self.mark.last_index + 1), batch.last_index)
            for batch in self.log
            if batch.last_index > self.mark.last_index
        ]
        first = (0, self.beginning)
        if self.mark.last_index:
            first = (self.mark.last_index, self.mark.configuration)
        later = []
        for batch in log:
            if batch.count == 1 and (configuration := configuration_of(batch)) is not None:
                later.append((batch.first_index, configuration))
        return make_recovered((self.state, self.is_member), log, [first, *later], self.mark)

    def values(self) -> dict[int, tuple[int, bytes]]:
        """(kind, data) of every entry in the log, by index."""
        return {
            batch.first_index + at: (record.kind, record.data)
            for batch in self.log
            for at, record in enumerate(decode_block(batch.block)[1])
        }


class Side(Protocol):
    """One end of a connection."""

    out: bytearray
    failure: str


class FarmNode(Protocol):
    """A server of any implementation."""

    @property
    def links(self) -> Mapping[int, Side]: ...

    @property
    def inbound(self) -> Mapping[int, Side]: ...

    @property
    def deadline_ms(self) -> int: ...

    def accept(self, session: PeerSession) -> int: ...

    def receive(self, event: FarmEvent, now_ms: int) -> None: ...

    def wake(self, now_ms: int) -> object: ...

    def write(self) -> object: ...


class FarmRequester:
    """Sends requests to a server and collects the answers."""

    def __init__(self, cluster: "FarmCluster", to: int, session: PeerSession = ADMIN) -> None:
        self.cluster, self.to = cluster, to
        self.answers: list[Response] = []
        self._stream = codec.ResponseStream()
        self.closed = ""
        self.connection = cluster.nodes[to].accept(session)
        cluster.readers[to, self.connection] = self._read

    def send(self, *requests: Request) -> None:
        self.send_bytes(b"".join(map(codec.encode_request, requests)))

    def send_bytes(self, data: bytes) -> None:
        peer = self.cluster.nodes[self.to]
        self.cluster.after(1, lambda: self._arrive(peer, data))

    def _arrive(self, peer: FarmNode, data: bytes) -> None:
        if self.cluster.nodes.get(self.to) is peer and self.connection in peer.inbound:
            act = partial(peer.receive, Requests(self.connection, data), self.cluster.now_ms)
            self.cluster.guarded(self.to, act)

    def _read(self, data: bytes, failure: str) -> None:
        self.answers += self._stream.feed(data)
        self.closed = self.closed or failure


def client_request(*values: bytes) -> Request:
    entries = tuple(FarmLogEntry(0, ValueType.APPLICATION, value) for value in values)
    return Request(MessageType.CLIENT_REQUEST, entries=entries)


class FarmWire:
    """Both ends of a connection between two servers."""

    def __init__(self, cluster: "FarmCluster", link: tuple[int, int]) -> None:
        """link: the server that opens the connection, the one that accepts it."""
        self.cluster, self.link = cluster, link
        near, far = link
        self.host = str(far)
        self.node = cluster.nodes[far]
        self.number = self.node.accept(PeerSession(f"server{near}", near, False))
        self.connection = connection = cluster.network.connect(str(near), self, self)
        connection.whole = True
        connection.on_disconnected = self._on_disconnected
        cluster.readers[far, self.number] = lambda data, _: connection.answer([data])

    def is_open(self) -> bool:
        return self.cluster.nodes.get(self.link[1]) is self.node

    def on_request(self, connection: Connection, frames: list[bytes]) -> None:
        cluster, (near, far) = self.cluster, self.link
        cluster.before_message(frames[0], far, near)
        if connection.open and self.is_open() and self.number in self.node.inbound:
            act = partial(self.node.receive, Requests(self.number, frames[0]), cluster.now_ms)
            cluster.guarded(far, act)

    def on_answer(self, connection: Connection, frames: list[bytes]) -> None:
        cluster, (near, far) = self.cluster, self.link
        cluster.before_message(frames[0], near, far)
        if connection.open and not connection.abandoned:
            event = Responses(far, frames[0])
            act = partial(cluster.nodes[near].receive, event, cluster.now_ms)
            cluster.guarded(near, act)

    def on_closed(self, connection: Connection) -> None:
        near, far = self.link
        if self.cluster.wires.get(self.link) is self:
            del self.cluster.wires[self.link]
            if near in self.cluster.nodes:
                self.cluster.nodes[near].receive(LinkLost(far), self.cluster.now_ms)

    def _on_disconnected(self) -> None:
        if self.is_open():
            self.node.receive(ConnectionClosed(self.number), self.cluster.now_ms)


class FarmCluster:
    """The running servers by id, and the disks of our servers, which survive kills."""

    def __init__(
        self, seed: int = 1, members: tuple[int, ...] = (1, 2, 3), others: tuple[int, ...] = ()
    ) -> None:
        """others: the members of another implementation; the test puts them into `others`."""
        self.simulation = Simulation(seed)
        self.random = self.simulation.random
        self.network = Network(self.simulation)
        self.network.faults.delay_us = DELAY_US
        # The exceptions by which a disk kills its server.
        self.deaths: tuple[type[Exception], ...] = ()
        self.members = tuple(map(server, members))
        self.disks: dict[int, FarmDisk] = {}
        self.peers: dict[int, FarmPeer] = {}
        self.others: dict[int, FarmNode] = {}
        self.setups: dict[int, FarmSetup] = {}
        self.readers: dict[tuple[int, int], Callable[[bytes, str], None]] = {}
        self.leaders: dict[int, int] = {}  # By term.
        self.wires: dict[tuple[int, int], FarmWire] = {}  # By (from, to).
        self._tried: set[tuple[int, int]] = set()
        for number in members:
            if number not in others:
                self.start(number, self.members)

    @property
    def now_ms(self) -> int:
        return self.simulation.now_ms

    @property
    def nodes(self) -> dict[int, FarmNode]:
        return {**self.others, **self.peers}

    def after(self, delay_ms: int, event: Callable[[], None]) -> None:
        self.simulation.after(delay_ms * US_PER_MS, event)

    def delay(self) -> int:
        return self.simulation.between(*DELAY_US) // US_PER_MS

    # Servers.

    def start(self, number: int, servers: tuple[ClusterServer, ...] = (), **setup: Any) -> None:
        if number not in self.disks:
            self.disks[number] = self.make_disk(number, servers)
        disk = self.disks[number]
        known = self.setups.get(number) or FarmSetup(number, servers)
        self.setups[number] = known._replace(**setup)
        dice = Random(self.random.random())
        self.peers[number] = FarmPeer(self.setups[number], disk.recover(), disk, self.now_ms, dice)

    def make_disk(self, number: int, servers: tuple[ClusterServer, ...]) -> FarmDisk:
        return FarmDisk(servers)

    def guarded(self, number: int, act: Callable[[], object]) -> None:
        """Runs a step of a server, which may kill it."""
        try:
            act()
        except self.deaths:
            self.kill(number)

    def kill(self, number: int) -> None:
        if self.peers.pop(number, None) is None:
            del self.others[number]
        for link, wire in list(self.wires.items()):
            if number in link:
                self.disconnect(wire)
        self.readers = {key: read for key, read in self.readers.items() if key[0] != number}

    # Connections.

    def before_message(self, data: bytes, actor: int, other: int) -> None:
        """A message of `other` arrives at `actor`."""

    def disconnect(self, wire: FarmWire) -> None:
        wire.connection.close()

    def lose(self, one: int, other: int) -> None:
        """Ends the connections between two servers."""
        for link, wire in list(self.wires.items()):
            if set(link) == {one, other}:
                self.disconnect(wire)

    def break_links(self) -> None:
        """Ends all connections between servers."""
        for wire in list(self.wires.values()):
            self.disconnect(wire)

    def cut_off(self, number: int, others: Iterable[int]) -> None:
        """Cuts a server off from others, and drops everything that is under way."""
        for other in others:
            for source, target in ((number, other), (other, number)):
                self.network.cut(str(source), str(target), "lose")
            self.lose(number, other)

    # Time.

    def run(self, ms: int) -> None:
        self.run_until(lambda: False, ms, must=False)

    def run_until(self, done: Callable[[], bool], ms: int = 60_000, must: bool = True) -> None:
        simulation, end_ms = self.simulation, self.now_ms + ms
        self.turn()
        while self.now_ms < end_ms and not done():
            due_us = simulation.next_us
            due_ms = end_ms if due_us is None else -(-due_us // US_PER_MS)
            next_ms = min(*self.deadlines(), end_ms, due_ms)
            simulation.run_until(max(next_ms, self.now_ms + 1) * US_PER_MS)
            self.turn()
        assert done() or not must, f"not within {ms} ms: {self.status()}"

    def deadlines(self) -> list[int]:
        """The next times of the servers' own events."""
        return [peer.deadline_ms for peer in self.nodes.values()]

    def turn(self) -> None:
        for number, peer in list(self.nodes.items()):
            self.guarded(number, partial(peer.wake, self.now_ms))
            if number not in self.nodes:
                continue
            self._connect(number, peer)
            for to, link in peer.links.items():
                wire = self.wires.get((number, to))
                if link.out and wire is not None:
                    wire.connection.send([bytes(link.out)])
                link.out.clear()
            self.guarded(number, peer.write)
            if number not in self.nodes:
                continue
            for connection, inbound in list(peer.inbound.items()):
                data, failure = bytes(inbound.out), inbound.failure
                inbound.out.clear()
                read = self.readers.get((number, connection))
                if (data or failure) and read is not None:
                    read(data, failure)
                if failure:
                    self._close(number, connection)
        self._check()

    def _close(self, number: int, connection: int) -> None:
        self.nodes[number].receive(ConnectionClosed(connection), self.now_ms)
        for (_, far), wire in list(self.wires.items()):
            if (far, wire.number) == (number, connection):
                self.disconnect(wire)

    def _connect(self, number: int, peer: FarmNode) -> None:
        for (near, to), wire in list(self.wires.items()):
            if near == number and (to not in peer.links or peer.links[to].failure):
                self.disconnect(wire)
        for to in peer.links:
            link = (number, to)
            if link not in self.wires and link not in self._tried:
                self._tried.add(link)
                self.after(self.delay(), partial(self._open, link, peer))

    def _open(self, link: tuple[int, int], peer: FarmNode) -> None:
        self._tried.discard(link)
        number, to = link
        if self.nodes.get(number) is not peer or to not in self.nodes or to not in peer.links:
            return
        if link not in self.wires and not self.network.is_cut(str(number), str(to)):
            self.wires[link] = FarmWire(self, link)
            peer.receive(LinkUp(to), self.now_ms)

    # What must hold.

    def _check(self) -> None:
        """One leader per term; committed entries are the same everywhere and stay."""
        for number, peer in self.peers.items():
            core = peer.core
            if core.role is Role.LEADER:
                assert self.leaders.setdefault(core.term, number) == number

    def committed(self, number: int) -> dict[int, tuple[int, bytes]]:
        core = self.peers[number].core
        index = min(core.commit_index, core.durable_index)
        return {at: each for at, each in self.disks[number].values().items() if at <= index}

    def check_same(self) -> None:
        whole: dict[int, tuple[int, bytes]] = {}
        for number in self.peers:
            for at, each in self.committed(number).items():
                assert whole.setdefault(at, each) == each, f"entry {at} of server {number}"

    def snapshot(self, number: int, data: bytes, keep_entries: int = 0) -> FarmSnapshot:
        """A server makes a snapshot of its committed state and compacts its log."""
        peer, disk = self.peers[number], self.disks[number]
        index = min(peer.core.commit_index, peer.core.durable_index)
        term = peer.core.log.term_at(index)
        assert term is not None
        disk.mark = FarmSnapshot(index, term, peer.directory.at(index), len(data))
        disk.snapshot = data
        peer.on_own_snapshot(disk.mark, keep_entries)
        base = peer.core.log.base_index
        disk.base = (base, peer.core.log.base_term)
        disk.log = [
            slice_block(batch, max(batch.first_index, base + 1), batch.last_index)
            for batch in disk.log
            if batch.last_index > base
        ]
        return disk.mark

    # Reports.

    @property
    def leader(self) -> int | None:
        """The leader of the newest term."""
        leading = [
            (peer.core.term, number)
            for number, peer in self.peers.items()
            if peer.core.role is Role.LEADER
        ]
        return max(leading)[1] if leading else None

    @property
    def settled(self) -> bool:
        leader = self.leader
        if leader is None:
            return False
        core = self.peers[leader].core
        return core.log.term_at(core.commit_index) == core.term

    def elect(self) -> int:
        """Runs until a leader has committed an entry of its term."""
        self.run_until(lambda: self.settled)
        assert self.leader is not None
        return self.leader

    def ask(
        self, request: Request, to: int | None = None, session: PeerSession = ADMIN
    ) -> Response:
        """Sends one request; returns its answer."""
        client = FarmRequester(self, self.elect() if to is None else to, session)
        client.send(request)
        self.run_until(lambda: bool(client.answers) or bool(client.closed))
        assert client.answers, client.closed
        return client.answers[0]

    def ids(self, number: int) -> list[int]:
        return sorted(each.id for each in self.peers[number].directory.committed.servers)

    def status(self) -> dict[int, object]:
        return {
            number: (
                peer.core.role.value, peer.core.term, peer.core.leader, peer.core.commit_index,
                peer.core.log.last_index, self.ids(number), peer.malformed,
                peer.membership.change and peer.membership.change.stage,
            )
            for number, peer in self.peers.items()
        }  # fmt: skip


def elected_farm(seed: int = 1, members: tuple[int, ...] = (1, 2, 3)) -> tuple[FarmCluster, int]:
    """A farm, and its leader."""
    cluster = FarmCluster(seed, members)
    return cluster, cluster.elect()
