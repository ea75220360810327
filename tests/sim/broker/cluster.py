"""A whole run of brokers: a cluster with their store, programs that call, workers, and faults."""

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import cast

from kelek.tests.sim.broker.checker import BrokerChecker
from kelek.tests.sim.broker.client import CallingProgram, is_late
from kelek.tests.sim.broker.node import (
    BROKER,
    DURABLE,
    ECHO,
    BrokerNode,
    BrokerProcess,
    BrokerRunSettings,
)
from kelek.tests.sim.broker.service import ServiceProcess
from kelek.tests.sim.broker.titanic import TitanicProgram
from kelek.tests.sim.checker import Checker
from kelek.tests.sim.log.client import SimClient
from kelek.tests.sim.log.node import SimNode
from kelek.tests.sim.log.reader import ReaderProcess
from kelek.tests.sim.simulation import US_PER_MS
from kelek.tests.sim.tables.cluster import TableCluster
from kelek.tests.sim.tables.node import SERVER

ENDED_WITHIN_MS = 10_000
EXECUTED_WITHIN_MS = 60_000  # All requests of a run, once more.
EXPIRED_WITHIN_MS = 20_000
LONG_MS = 600_000  # Longer than a run.


class BrokerCluster(TableCluster):
    """The faults of tables, and those of brokers, workers and programs."""

    checker: BrokerChecker
    waiting_requests = 1  # The broker's watch.
    may_be_filled = False  # Its clients are brokers.

    def __init__(self, seed: int) -> None:
        random = Random(f"broker {seed}")
        self.keeps_ends = seed % 3 > 0
        self.broker_settings = BrokerRunSettings(
            one_endpoint=seed % 4 == 1,
            reply_ttl_ms=LONG_MS if self.keeps_ends else 2_000,
            lease_ms=random.choice([300, 600, 1200]),
            inflight_max=random.choice([4, 4096]),
            bytes_max=random.choice([30_000, 1 << 30]) if not self.keeps_ends else 1 << 30,
            request_ttl_ms=random.choice([1_500, LONG_MS]),
        )
        super().__init__(seed)
        changes = self._change_members, self._cut_while_joint
        self.plan = [(weight, fault) for weight, fault in self.plan if fault not in changes]
        self.plan += [
            (24, self._kill_broker),
            (12, self._stop_broker),
            (18, self._pause_broker),
            (12, self._kill_service),
            (6, self._pause_service),
            (6, self._drain_service),
            (6, self._no_workers),
            (14, self._kill_program),
            (6, self._slow_program),
            (10, self._kill_everything),
            (14, self._ask_twice),
            (14, self._depose_owner),
            (6, self._snapshot_ahead),
        ]

    def _make_checker(self, names: list[str]) -> Checker:
        workers = self.run_settings.workers
        return BrokerChecker(self.simulation, names, workers, self.keeps_ends)

    def _make_node(self, name: str, names: list[str], options: dict[str, object]) -> SimNode:
        made = {**options, "holds_tables": True}
        settings = self.run_settings, self.broker_settings
        return BrokerNode(name, names, self.network, self.checker, made, settings)

    def _make_clients(self) -> tuple[list[SimClient], list[ReaderProcess]]:
        clients, workers = {}, {}
        for node in self._broker_nodes():
            (clients_url, of_clients), (workers_url, of_workers) = node.routers.items()
            clients[clients_url], workers[workers_url] = of_clients, of_workers
        made = self.network, self.checker
        self.programs = [
            CallingProgram(*made, clients, 1, b"desk-1"),
            CallingProgram(*made, clients, 2, b"desk-2"),
            CallingProgram(*made, clients, 3, b"desk-3", has_name=False),
            CallingProgram(*made, clients, 4, b""),
            TitanicProgram(*made, clients, 5, b"desk-5"),
        ]
        self.services = [
            ServiceProcess(*made, workers, number, service)
            for number, service in enumerate([*DURABLE, *DURABLE, ECHO], 1)
        ]
        return [*self.programs, *self.services], []

    def _broker_nodes(self) -> list[BrokerNode]:
        return [
            node
            for node in cast("Iterable[BrokerNode]", self.nodes.values())
            if BROKER in node.tables
        ]

    def seen(self) -> Counter[str]:
        counted = super().seen()
        counted["ends"] = len(self.checker.ends)
        counted["executed again"] = sum(it > 1 for it in self.checker.executed.values())
        return counted

    def recover(self) -> None:
        for broker in self._brokers():
            broker.slow.clear()
        super().recover()
        within = ENDED_WITHIN_MS
        self._run_until(self._all_ended, within, "requests without an end, or in brokers")
        if not self.keeps_ends:
            expired = lambda: not self.checker.has_ends  # noqa: E731
            self._run_until(expired, EXPIRED_WITHIN_MS, "ends that do not expire")
        executed = dict(self.checker.executed)
        for program in self.programs:
            program.repeat_all()
        within = ENDED_WITHIN_MS if self.keeps_ends else EXECUTED_WITHIN_MS
        self._run_until(lambda: all(it.done for it in self.programs), within, "no old answers")
        self._run_until(self._all_ended, within, "requests without an end after repeats")
        self._check_repeats(executed)

    def _check_repeats(self, executed: dict[bytes, int]) -> None:
        """A repeat of a request whose end is there was not executed; another one was, once."""
        more = 0 if self.keeps_ends else 1
        for program in self.programs:
            if isinstance(program, TitanicProgram):
                continue  # It repeats titanic.reply.
            for asked in filter(program.may_repeat, program.asked.values()):
                before, now = executed.get(asked.label), self.checker.executed.get(asked.label)
                is_late_now = asked.final is not None and is_late(asked.final)
                is_right = before is None or is_late_now or now == before + more
                self.checker.expect(is_right, "repeats of", asked.label, "executed", before, now)

    def _all_ended(self) -> bool:
        """The log has an end of each request and needs the requests no more; no broker has any."""
        checker, brokers = self.checker, self._brokers()
        owners = sum(broker.durable.owns for broker in brokers)
        all_run = len(brokers) == len(self._broker_nodes()) and owners == 1
        return (
            all_run
            and not checker.open
            and not checker.requests
            and all(broker.is_idle for broker in brokers)
        )

    def _brokers(self) -> list[BrokerProcess]:
        return [node.broker for node in self._broker_nodes() if node.broker is not None]

    def status(self) -> str:
        brokers = [f"{it.name} {it.machine.status()}" for it in self._brokers()]
        left = f"open={list(self.checker.open)[:5]} requests={list(self.checker.requests)[:5]}"
        return "; ".join([super().status(), left, *brokers])

    # Faults.

    def _random_broker(self) -> BrokerProcess | None:
        """The owner more often than the others."""
        brokers = self._brokers()
        owners = [broker for broker in brokers if broker.durable.owns]
        if owners and self.simulation.chance(0.5):
            return owners[0]
        return self.simulation.random.choice(brokers) if brokers else None

    def _kill_broker(self) -> None:
        broker = self._random_broker()
        if broker is not None:
            self.simulation.fault("kill broker", broker.name)
            broker.node.kill_table_process(BROKER)

    def _stop_broker(self) -> None:
        broker = self._random_broker()
        if broker is not None:
            self.simulation.fault("stop broker", broker.name)
            broker.stop()

    def _pause_broker(self) -> None:
        broker = self._random_broker()
        if broker is not None:
            duration_ms = self.simulation.random.choice([50, 300, 1_000, 2_000])
            self.simulation.fault("pause broker", broker.name, duration_ms)
            broker.pause(duration_ms * US_PER_MS)

    def _kill_service(self) -> None:
        service = self.simulation.random.choice(self.services)
        self.simulation.fault("kill service", service.name)
        service.kill_for(self._down_ms())

    def _pause_service(self) -> None:
        service = self.simulation.random.choice(self.services)
        duration_ms = self.simulation.random.choice([50, 300, 1_500])
        self.simulation.fault("pause service", service.name, duration_ms)
        service.pause(duration_ms * US_PER_MS)

    def _drain_service(self) -> None:
        service = self.simulation.random.choice(self.services)
        self.simulation.fault("drain service", service.name)
        if service.alive:
            service.drain()

    def _no_workers(self) -> None:
        """A service has no worker for a while."""
        service, down_ms = self.simulation.random.choice(DURABLE), self._down_ms()
        self.simulation.fault("no workers", service, down_ms)
        for one in self.services:
            if one.service == service:
                one.kill_for(down_ms + self.simulation.between(0, 100))

    def _kill_program(self) -> None:
        program = self.simulation.random.choice(self.programs)
        self.simulation.fault("kill program", program.name)
        program.kill_for(self._down_ms())

    def _slow_program(self) -> None:
        """What a broker sends to its clients finds no room now and then."""
        broker = self._random_broker()
        if broker is not None:
            self.simulation.fault("slow clients", broker.name)
            broker.slow_down()
            self.simulation.after(self.simulation.between(50, 800) * US_PER_MS, broker.slow.clear)

    def _depose_owner(self) -> None:
        """The owner, or the server of its store, is silent until another broker takes the store."""
        owners = [broker for broker in self._brokers() if broker.durable.owns]
        if not owners:
            return
        node = owners[0].node
        silent = self.simulation.random.choice([node.broker, node.process(SERVER)])
        if silent is not None:
            lease_ms = self.broker_settings.lease_ms
            duration_ms = lease_ms + self.simulation.between(lease_ms // 5, lease_ms + 300)
            self.simulation.fault("depose owner", silent.name, duration_ms)
            silent.pause(duration_ms * US_PER_MS)

    def _ask_twice(self) -> None:
        """Programs leave their brokers while one broker is behind: two brokers write a request."""
        node = self.simulation.random.choice(self._broker_nodes())
        self.simulation.fault("ask twice", node.name)
        for number in range(self.run_settings.workers):
            worker = node.worker_process(number)
            if worker is not None:
                worker.pause(self.simulation.between(100, 600) * US_PER_MS)
        self.run_for(self.simulation.between(5, 80))
        names = [program.name for program in self.programs]
        for connection in list(self.network.connections):
            if connection.host in names and connection.machines[1] != node.name:
                connection.close_client_side()

    def _kill_everything(self) -> None:
        """A program, the owner and workers at once."""
        self._kill_program()
        self._kill_broker()
        self._kill_service()
