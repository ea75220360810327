"""The network of a run: connections as ZeroMQ makes them, with everything that may go wrong.

A connection delivers in order; only a new one may overtake an old one. Messages between peers of
the log may be lost one by one, as both sides drop what finds no room; what a client or a farm sends
is lost only with its connection. A host that is cut off may lose what is sent to it, or get it all
when the cut heals.
"""

from collections.abc import Callable
from typing import Protocol

from kelek.tests.sim.simulation import Simulation

Frames = list[bytes]


class SimListener(Protocol):
    """A ROUTER: it receives requests while it is open."""

    host: str

    def is_open(self) -> bool: ...

    def on_request(self, connection: "Connection", frames: Frames) -> None: ...


class ConnectionOwner(Protocol):
    """A DEALER."""

    def on_answer(self, connection: "Connection", frames: Frames) -> None: ...

    def on_closed(self, connection: "Connection") -> None: ...


def machine_of(host: str) -> str:
    """The machine of a host: NAME, or NAME.PROCESS for a process whose connections end alone."""
    return host.partition(".")[0]


class NetworkFaults:
    """The present loss, repetition and delay of messages."""

    def __init__(self, delay_us: tuple[int, int] = (60, 400)) -> None:
        self.loss = 0.0
        self.repeat = 0.0
        self.delay_us = delay_us
        self.spike = 0.0
        self.spike_us = (1_000, 60_000)


class Network:
    """The connections of all hosts, and the cuts between hosts."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.faults = NetworkFaults()
        self.cuts: dict[tuple[str, str], str] = {}  # (from, to): "lose" or "hold"
        self.connections: list[Connection] = []
        self._routes = 0

    def connect(self, host: str, listener: SimListener, end: "ConnectionOwner") -> "Connection":
        """Makes a connection of a host to a listener; both must exist."""
        self._routes += 1
        route = b"r" + self._routes.to_bytes(4, "big")
        connection = Connection(self, host, listener, route, end)
        self.connections.append(connection)
        return connection

    def cut(self, source: str, target: str, way: str) -> None:
        """From now on no message gets from source to target."""
        self.cuts[source, target] = way

    def heal(self) -> None:
        """Ends all cuts; held messages arrive."""
        self.cuts.clear()
        for connection in list(self.connections):
            connection.release()

    def heal_pair(self, one: str, other: str) -> None:
        """Ends the cuts between two hosts; held messages arrive."""
        for pair in ((one, other), (other, one)):
            self.cuts.pop(pair, None)
        for connection in list(self.connections):
            if {one, other} == set(connection.machines):
                connection.release()

    def is_cut(self, one: str, other: str) -> bool:
        """Whether a connection can not be made."""
        return (one, other) in self.cuts or (other, one) in self.cuts

    def is_cut_from(self, source: str, target: str) -> bool:
        """Whether nothing gets from one host to another."""
        return (machine_of(source), machine_of(target)) in self.cuts

    def close_host(self, host: str) -> None:
        """A process or a host ends: all its connections are lost, on both sides."""
        for connection in list(self.connections):
            if host in (connection.host, connection.listener.host):
                connection.close()


class Connection:
    """One DEALER's connection to one ROUTER."""

    def __init__(
        self,
        network: Network,
        host: str,
        listener: SimListener,
        route: bytes,
        end: ConnectionOwner,
    ) -> None:
        self.network = network
        self.host = host
        self.listener = listener
        self.route = route
        self.open = True
        self.abandoned = False
        self.machines = machine_of(host), machine_of(listener.host)
        self.whole = False  # Nothing is lost in it but with it.
        self.repeats = True  # Messages may arrive twice; within a machine none does, nor is lost.
        self.on_disconnected: Callable[[], None] = lambda: None  # The listener learns of the end.
        self._end = end
        self._last_us = {True: 0, False: 0}  # Nothing overtakes, by direction.
        self._held: list[tuple[bool, Frames]] = []

    def send(self, frames: Frames) -> None:
        """From the DEALER to the ROUTER."""
        self._send(True, frames)

    def answer(self, frames: Frames) -> None:
        """From the ROUTER to the DEALER."""
        self._send(False, frames)

    def close(self) -> None:
        """Both sides lose the connection and its messages."""
        if self.open:
            self.open = False
            self._held.clear()
            self.network.connections.remove(self)
            self._end.on_closed(self)
            self.on_disconnected()

    def close_client_side(self) -> None:
        """The DEALER loses the connection and all answers; its sent messages may still arrive."""
        self.abandoned = True
        self._end.on_closed(self)

    def release(self) -> None:
        held, self._held = self._held, []
        for forward, frames in held:
            self._send(forward, frames)

    def _send(self, forward: bool, frames: Frames) -> None:
        network = self.network
        simulation, faults = network.simulation, network.faults
        if not self.open:
            simulation.counters["lost: closed"] += 1
            return
        way = network.cuts.get(self.machines if forward else self.machines[::-1])
        is_faulty = self.machines[0] != self.machines[1]
        if way == "hold":
            self._held.append((forward, frames))
            simulation.counters["held"] += 1
            return
        if way is not None or (is_faulty and faults.loss and simulation.chance(faults.loss)):
            simulation.counters["lost: network"] += 1
            if self.whole:
                self.close()
            return
        copies = 1
        if is_faulty and self.repeats and faults.repeat and simulation.chance(faults.repeat):
            simulation.counters["repeated"] += 1
            copies = 2
        for _ in range(copies):
            delay_us = simulation.between(*faults.delay_us)
            if faults.spike and simulation.chance(faults.spike):
                delay_us += simulation.between(*faults.spike_us)
                simulation.counters["delayed"] += 1
            at_us = max(simulation.now_us + delay_us, self._last_us[forward])
            self._last_us[forward] = at_us
            simulation.after(at_us - simulation.now_us, self._arrive, forward, frames)

    def _arrive(self, forward: bool, frames: Frames) -> None:
        if not self.open:
            self.network.simulation.counters["lost: closed"] += 1
        elif not forward:
            if not self.abandoned:
                self._end.on_answer(self, frames)
        elif self.listener.is_open():
            self.listener.on_request(self, frames)
        else:
            self.network.simulation.counters["lost: closed"] += 1
