"""The course of a run: random faults, then a complete recovery. One seed determines it.

A subclass has the cluster of one wire. It knows how to start it, which faults of its own it has,
and what must hold when all faults have ended.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from traceback import format_tb

from kelek.native.errors import NativeError
from kelek.protocols.errors import ProtocolError
from kelek.storage.errors import StorageError
from kelek.tests.sim.checker import RuleBroken
from kelek.tests.sim.network import Network, NetworkFaults
from kelek.tests.sim.simulation import US_PER_MS, Simulation

FAULTS_MIN, FAULTS_MAX = 22, 34
FAILURES = (  # A broken rule, and the other failures of code that did not expect this.
    AssertionError,
    AttributeError,
    LookupError,
    NativeError,
    OSError,
    ProtocolError,
    StorageError,
    TypeError,
    ValueError,
)


class FaultRun(ABC):
    """Injects faults by their weights. The faults of the network are here."""

    faults_count = FAULTS_MIN, FAULTS_MAX

    def __init__(self, simulation: Simulation, network: Network) -> None:
        self.simulation = simulation
        self.network = network
        self.plan: list[tuple[int, Callable[[], None]]] = []  # (weight, fault)

    def run(self) -> None:
        """Runs completely. Raises RuleBroken with the seed and the last events."""
        try:
            self.start()
            self._inject_faults()
            self.simulation.trace_event("HEAL everything")
            self.network.heal()
            self._reliable_network()
            self.recover()
        except FAILURES as error:
            text = f"seed {self.simulation.seed}: {type(error).__name__}: {error}"
            where = "" if isinstance(error, RuleBroken) else "".join(format_tb(error.__traceback__))
            raise RuleBroken(f"{text}\n{self.simulation.trace()}\n{where}{text}") from error

    def seen(self) -> Counter[str]:
        """Counts what happened."""
        counted = self.simulation.faults + self.simulation.counters
        counted["events"] = self.simulation.events
        return counted

    @abstractmethod
    def start(self) -> None:
        """Starts the cluster and runs it without a fault."""

    @abstractmethod
    def recover(self) -> None:
        """Checks what must hold when all faults have ended."""

    @abstractmethod
    def run_for(self, duration_ms: int) -> None: ...

    @abstractmethod
    def leader_name(self) -> str | None: ...

    @abstractmethod
    def server_names(self) -> list[str]: ...

    def client_names(self) -> list[str]:
        return []

    def before_fault(self) -> None:  # noqa: B027
        """Requests of clients, where clients are no processes of their own."""

    def _inject_faults(self) -> None:
        simulation = self.simulation
        faults_count = simulation.between(*self.faults_count)
        weights = [weight for weight, _ in self.plan]
        while sum(simulation.faults.values()) < faults_count:
            self.before_fault()
            _, fault = simulation.random.choices(self.plan, weights)[0]
            fault()
            self.run_for(simulation.random.choice([5, 30, 150, 400, 900]))

    def random_server(self) -> str:
        """Returns a random server, the leader more often than the others."""
        leader = self.leader_name()
        if leader is not None and self.simulation.chance(0.35):
            return leader
        return self.simulation.random.choice(self.server_names())

    # Faults of the network.

    def cut(self, is_cut: Callable[[str, str], bool], way: str) -> None:
        hosts = [*self.server_names(), *self.client_names()]
        for source in hosts:
            for target in hosts:
                if source != target and is_cut(source, target):
                    self.network.cut(source, target, way)

    def _cut_for_a_while(self, name: str, what: str, is_cut: Callable[[str, str], bool]) -> None:
        way = self.simulation.random.choice(["lose", "hold"])
        self.simulation.fault(name, what, way)
        self.cut(is_cut, way)
        duration_ms = self.simulation.random.choice([30, 150, 400, 900, 2000])
        self.simulation.after(duration_ms * US_PER_MS, self.network.heal)

    def cut_one(self) -> None:
        name = self.random_server()
        self._cut_for_a_while("cut off", name, lambda source, target: name in (source, target))

    def cut_one_way(self) -> None:
        name = self.random_server()
        if self.simulation.chance(0.5):
            self._cut_for_a_while("cut inwards", name, lambda source, target: target == name)
        else:
            self._cut_for_a_while("cut outwards", name, lambda source, target: source == name)

    def cut_in_two(self) -> None:
        hosts = [*self.server_names(), *self.client_names()]
        half = set(self.simulation.random.sample(hosts, len(hosts) // 2))
        what = "|".join(sorted(half))
        self._cut_for_a_while("cut in two", what, lambda a, b: (a in half) != (b in half))

    def cut_pair(self) -> None:
        """Two servers cannot reach each other; all other pairs can."""
        pair = set(self.simulation.random.sample(self.server_names(), 2))
        what = "-".join(sorted(pair))
        self._cut_for_a_while("cut pair", what, lambda source, target: {source, target} == pair)

    def cut_client(self) -> None:
        name = self.simulation.random.choice(self.client_names())
        self._cut_for_a_while("client cut", name, lambda source, target: name in (source, target))

    def unreliable_network(self) -> None:
        """Messages are lost, repeated and delayed for a while."""
        faults = self.network.faults
        self.simulation.fault("unreliable network")
        faults.loss = self.simulation.random.choice([0.0, 0.02, 0.2])
        faults.repeat = self.simulation.random.choice([0.0, 0.1])
        faults.spike = self.simulation.random.choice([0.01, 0.2])
        duration_ms = self.simulation.between(50, 1500)
        self.simulation.after(duration_ms * US_PER_MS, self._reliable_network)

    def _reliable_network(self) -> None:
        self.network.faults = NetworkFaults(self.network.faults.delay_us)

    def reconnect(self) -> None:
        self.simulation.fault("reconnect")
        for connection in list(self.network.connections):
            if self.simulation.chance(0.4):
                if self.simulation.chance(0.5):
                    connection.close_client_side()
                else:
                    connection.close()
