"""A client of a run: the real client machine, with updates that name themselves."""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kelek.native.log.reads import WAIT_APPLIED, WAIT_CONFIRMED
from kelek.protocols.connections import ClientAction, ClientMachine, Connect, Disconnect, Send
from kelek.protocols.zmqraft.client.client import (
    EntryStream,
    LogClientMachine,
    LogClientSetup,
    PendingRead,
    PendingUpdates,
    WindowLimits,
)
from kelek.protocols.zmqraft.wire.client_codec import Form
from kelek.tests.sim.checker import Checker, make_update
from kelek.tests.sim.log.node import CLUSTER, UNIX_S, SimNode
from kelek.tests.sim.network import Connection, Frames, Network, SimListener
from kelek.tests.sim.simulation import US_PER_MS, Process

ONE_BY_ONE = WindowLimits(packs=1, updates=1)


class SimClient(Process):
    """A client of a run, which stops at its end."""

    stopped = False  # It begins nothing more.

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether nothing that it has begun is left."""

    @abstractmethod
    def status(self) -> str:
        """For the text of a failure."""


class ClientProcess(SimClient):
    """Adds updates, sends them through the client machine, and checks the acknowledgements."""

    def __init__(
        self,
        network: Network,
        checker: Checker,
        nodes: dict[str, SimNode],
        number: int,
        form: Form | None,
    ) -> None:
        super().__init__(network.simulation, f"c{number}")
        self.network = network
        self.checker = checker
        self.number = number
        listeners = {node.url: node.client_door for node in nodes.values()}
        self.links = MachineLinks(ClientHost(network, listeners, self, self.name))
        self.form = form
        self.reads: dict[PendingRead, int] = {}  # What was committed when each began.
        self.streams: dict[EntryStream, int] = {}  # Likewise.
        self.ids = 0
        self.added = 0
        self.acked = 0
        self.pendings: deque[PendingUpdates] = deque()
        self._counter = 0
        self._next_us = 0
        one_by_one = form is not None and self.simulation.chance(0.5)
        if form is None or one_by_one:
            checker.ordered.add(self.name.encode())
        setup = LogClientSetup(
            CLUSTER.encode(),
            tuple(listeners),
            form=form,
            limits=ONE_BY_ONE if one_by_one else WindowLimits(packs=self.simulation.between(1, 8)),
        )
        self.updates_max = 1 if one_by_one else 12
        self.machine = LogClientMachine(setup, self._new_id, self.simulation.now_ms)
        self.wake_after(0)

    def _new_id(self) -> bytes:
        """Makes a request id as specified: seconds, machine, process, counter."""
        self.ids += 1
        seconds = UNIX_S + self.simulation.now_us // 1_000_000
        return b"%s\0\0%c\0\0%s" % (
            seconds.to_bytes(4, "big"),
            self.number,
            self.ids.to_bytes(3, "big"),
        )

    def on_wake(self) -> None:
        now_ms = self.simulation.now_ms
        machine = self.machine
        inbox, self.inbox = self.inbox, []
        for event in inbox:
            self.links.receive(machine, event, now_ms)
        self._report_commits()
        self._step_reads()
        self._step_entries()
        self._add_updates()
        if machine.leader is not None and machine.leader_form is not self.form:
            # It took the leader for a foreign one: what was promised for packs is not promised now.
            self.checker.ordered.discard(self.name.encode())
            self.simulation.counters["a leader was silent about packs"] += 1
        self.links.carry_out(machine.ready(now_ms))
        deadline_ms = machine.deadline_ms
        if deadline_ms is not None:
            self.wake_after(max(0, deadline_ms * US_PER_MS - self.simulation.now_us))
        if not self.stopped:
            self.wake_after(max(0, self._next_us - self.simulation.now_us))

    def _add_updates(self) -> None:
        window = self.machine.window
        if self.stopped or self.simulation.now_us < self._next_us:
            return
        self._next_us = self.simulation.now_us + self.simulation.between(1_000, 40_000)
        if not window.has_room:
            return
        count = self.simulation.between(1, self.updates_max)
        size = self.simulation.random.choice([0, 30, 300, 3000])
        reqids = [self._new_id() for _ in range(count)]
        updates = [make_update(self.name.encode(), self.added + i, size) for i in range(count)]
        self.added += count
        pending = PendingUpdates(reqids, updates)
        self.pendings.append(pending)
        window.add(pending)

    def _step_reads(self) -> None:
        """Starts a read now and then, if the machine supports reads, and checks the answers."""
        for read in [read for read in self.reads if read.done]:
            floor = self.reads.pop(read)
            if read.refusal:
                self.simulation.counters["a leader was silent about reads"] += 1
            else:
                self.checker.on_read(self.name, floor, read.index)
        if self.form is None and not self.stopped and self.simulation.chance(0.2):
            wait = self.simulation.random.choice([WAIT_APPLIED, WAIT_CONFIRMED])
            read = self.machine.reads.add(PendingRead(wait))
            self.reads[read] = self.checker.committed.last_index

    def _step_entries(self) -> None:
        """Reads entries now and then, in any form; checks the entries and their end."""
        for stream in list(self.streams):
            while stream.runs:
                part, _ = stream.runs[0], self.machine.next_run(stream, self.simulation.now_ms)
                self.checker.on_entries(self.name, part.decoded())
            if stream.done:
                floor = self.streams.pop(stream)
                if stream.compacted is None:
                    self.simulation.counters["streams of entries"] += 1
                    self.checker.on_entries_end(self.name, floor, stream.prev_index)
        if not self.streams and not self.stopped and self.simulation.chance(0.1):
            floor = self.checker.committed.last_index
            stream = EntryStream(max(0, floor - self.simulation.between(0, 40)))
            self.streams[self.machine.open_stream(stream)] = floor

    def _report_commits(self) -> None:
        """Reports the acknowledgements to the checker."""
        while self.pendings and (self.pendings[0].runs or self.pendings[0].refusal):
            pending = self.pendings.popleft()
            assert not pending.refusal, f"{self.name} refused: {pending.refusal}"
            reqids = iter(pending.reqids)
            for count, first_index in pending.runs:
                for index in range(first_index, first_index + count):
                    self.checker.on_acked(next(reqids), index)
                    self.acked += 1

    @property
    def done(self) -> bool:
        return not (self.machine.window.items or self.reads or self.streams)

    def status(self) -> str:
        return f"leader={self.machine.leader} left={len(self.machine.window.items)}"


class ClientHost(NamedTuple):
    """The host of a client's connections, and what it may reach."""

    network: Network
    listeners: Mapping[str, SimListener]  # By url.
    process: Process
    name: str
    repeats: bool = True  # As Connection.repeats.
    route: bytes = b""  # A routing id of its own; empty: the ROUTER makes one for each connection.


class MachineLinks:
    """The connections that a client machine wants."""

    def __init__(self, home: ClientHost) -> None:
        self.home = home
        self._ends: dict[str, ClientDealer] = {}

    def receive(self, machine: ClientMachine, event: tuple[str, str, Any], now_ms: int) -> None:
        """Gives the machine an event that a dealer has posted to the process."""
        kind, url, frames = event
        if kind == "frames":
            machine.on_frames(url, frames, now_ms)
        elif kind == "connected":
            machine.on_connected(url, now_ms)
        else:
            machine.on_disconnected(url, now_ms)

    def carry_out(self, actions: Iterable[ClientAction]) -> None:
        for action in actions:
            match action:
                case Connect(url):
                    self._ends[url] = ClientDealer(self.home, url)
                case Disconnect(url):
                    self._ends.pop(url).close()
                case Send(url, frames):
                    self._ends[url].send(frames)

    def close(self) -> None:
        """The process has ended. What it has sent may still arrive."""
        for end in self._ends.values():
            end.abandon()
        self._ends.clear()


class ClientDealer:
    """A DEALER of a client: it reconnects by itself until it is closed."""

    def __init__(self, home: ClientHost, url: str) -> None:
        self.home = home
        self.client = home.process
        self.url = url
        self.listener = home.listeners[url]
        self.closed = False
        self.connection: Connection | None = None
        self._connect_later()

    def _connect_later(self) -> None:
        simulation = self.client.simulation
        simulation.after(simulation.between(200, 20_000), self._connect)

    def _connect(self) -> None:
        if self.closed or self.connection is not None or not self.client.alive:
            return
        network, host = self.home.network, self.home.name
        if network.is_cut_from(host, self.listener.host) or not self.listener.is_open():
            self._connect_later()
            return
        self.connection = network.connect(host, self.listener, self)
        self.connection.whole, self.connection.repeats = True, self.home.repeats
        self.connection.route = self.home.route or self.connection.route
        self.client.post("connected", self.url, None)

    def send(self, frames: Frames) -> None:
        if self.connection is not None:
            self.connection.send(frames)

    def on_answer(self, connection: Connection, frames: Frames) -> None:
        if not self.closed and connection is self.connection:
            self.client.post("frames", self.url, frames)

    def on_closed(self, connection: Connection) -> None:
        if not self.closed and connection is self.connection:
            self.connection = None
            self.client.post("lost", self.url, None)
            self._connect_later()

    def close(self) -> None:
        self.closed = True
        if self.connection is not None:
            self.connection.close()

    def abandon(self) -> None:
        """Its process has ended: the listener learns of that after a while."""
        self.closed = True
        if self.connection is not None:
            self.connection.close_client_side()
            simulation = self.client.simulation
            simulation.after(simulation.between(100, 50_000), self.connection.close)
