"""A whole run of tables: a cluster with servers and workers, its clients, and random faults."""

from collections import Counter
from random import Random
from typing import cast

from kelek.tests.sim.checker import Checker
from kelek.tests.sim.log.client import SimClient
from kelek.tests.sim.log.cluster import SimCluster
from kelek.tests.sim.log.node import SimNode
from kelek.tests.sim.log.reader import ReaderProcess
from kelek.tests.sim.simulation import US_PER_MS
from kelek.tests.sim.tables.checker import TableChecker
from kelek.tests.sim.tables.client import (
    LOAD_SCRIPTS,
    SCRIPTS,
    FillingClient,
    PipelineClient,
    TableClient,
    probe,
)
from kelek.tests.sim.tables.node import SERVER, RunSettings, ServerProcess, TableNode

SERVED_WITHIN_MS = 3_000
EXPIRED_WITHIN_MS = 20_000  # Clocks that were moved, and times to live.
FILLING_CLIENTS = 4
LOADED_SEEDS = 90  # Of a hundred, the runs from this one on have bulk loads.


class TableCluster(SimCluster):
    """The faults of the log, and those of servers, workers and wall clocks."""

    faults_count = 10, 15
    waiting_requests = 0  # A server has so many in the end.
    may_be_filled = True
    checker: TableChecker

    def __init__(self, seed: int) -> None:
        random = Random(f"tables {seed}")
        self.run_settings = RunSettings(
            1 + seed % 2,
            random.choice([500, 5_000, 1 << 20]),
            random.choice([250, 1000]),
            random.choice([500, 10 << 20]),
            random.choice([2, 64]),
            random.random() < 0.75,
        )
        self.filling: list[FillingClient] = []
        if self._is_filled(seed):
            self.run_settings = self.run_settings._replace(
                request_ms=1000, window_packs=64, plain=True
            )
        super().__init__(seed)
        self.plan += [
            (10, self._kill_server),
            (12, self._kill_worker),
            (8, self._move_clock),
            (8, self._pause_worker),
            (6, self._full_tables),
            (8, self._snapshot_ahead),
            (8, self._leader_alone),
        ]
        if self.filling:
            self.plan.append((30, self._fill_servers))

    def _is_filled(self, seed: int) -> bool:
        """Whether all clients write and read single keys, so that C does all requests, and fill
        their servers at times."""
        return self.may_be_filled and seed % 11 == 9

    def _make_checker(self, names: list[str]) -> Checker:
        return TableChecker(self.simulation, names, self.run_settings.workers)

    def _make_node(self, name: str, names: list[str], options: dict[str, object]) -> SimNode:
        made = {**options, "holds_tables": True}
        return TableNode(name, names, self.network, self.checker, made, self.run_settings)

    def _make_clients(self) -> tuple[list[SimClient], list[ReaderProcess]]:
        servers = {node.server_url: node.server_router for node in self._table_nodes()}
        if self._is_filled(self.simulation.seed):
            self.filling = [
                FillingClient(self.network, self.checker, servers, number)
                for number in range(1, FILLING_CLIENTS + 1)
            ]
            return [*self.filling], []
        # The first seeds of planted bugs are those of runs without loads.
        loads = self.simulation.seed % 100 >= LOADED_SEEDS
        scripts = SCRIPTS + LOAD_SCRIPTS * loads
        clients: list[SimClient] = [
            TableClient(self.network, self.checker, servers, number, script)
            for number, script in enumerate(scripts, 1)
        ]
        number = len(clients) + 1
        clients.append(PipelineClient(self.network, self.checker, servers, number))
        return clients, []

    def _cut_off_follower_disturbs_nobody(self) -> None:
        """The runs of the log show it."""

    def _serves_everywhere(self) -> None:
        """Each server serves a client that knows only it, and has no request left then."""
        nodes = [node for node in self._table_nodes() if node.name in self._members()]
        probes = [
            TableClient(
                self.network, self.checker, {node.server_url: node.server_router}, at, probe
            )
            for at, node in enumerate(nodes, len(self.clients) + 1)
        ]
        self._run_until(lambda: all(it.served for it in probes), SERVED_WITHIN_MS, "not served")
        for one in probes:
            one.stopped = True
        self._run_until(
            lambda: all(_requests_left(node) <= self.waiting_requests for node in nodes),
            SERVED_WITHIN_MS,
            "requests left",
        )

    def _table_nodes(self) -> list[TableNode]:
        return [cast(TableNode, node) for node in self.nodes.values()]

    def seen(self) -> Counter[str]:
        counted = super().seen()
        counted["acknowledged writes"] = len(self.checker.written)
        counted["calls"] = sum(map(len, self.checker.calls.values()))
        for name, numbers in self.checker.numbers.items():
            counted[name] = len(numbers)
        return counted

    def recover(self) -> None:
        for node in self._table_nodes():
            node.free_tables()
        super().recover()
        self._serves_everywhere()
        self._run_until(self._nothing_is_bound, EXPIRED_WITHIN_MS, "sessions or keys still live")
        self._run_until(self._is_done, EXPIRED_WITHIN_MS, "not all tables are equal")
        self.checker.check_increments()
        self.checker.check_calls()

    def _nothing_is_bound(self) -> bool:
        return not sum(replay.sessions.left for replay in self.checker.replays)

    def _is_done(self) -> bool:
        return super()._is_done() and all(
            self._applies_all(node) for node in self._table_nodes() if node.name in self._members()
        )

    def _applies_all(self, node: TableNode) -> bool:
        """Whether its workers have applied all entries; the checker has compared their tables."""
        found = map(node.worker_process, range(self.run_settings.workers))
        last = self._last_index(node.name)
        return all(one is not None and one.worker.applier.applied[0] == last for one in found)

    # Faults.

    def _full_tables(self) -> None:
        """There is no room for the tables of a node for a while."""
        node = self._random_table_node()
        self.simulation.fault("full tables", node.name)
        for disk in node.table_disks:
            disk.is_full = True
        self.simulation.after(self.simulation.between(50, 1_500) * US_PER_MS, node.free_tables)

    def _leader_alone(self) -> None:
        """The leader reaches no other node, but its server serves clients."""
        leader = self.leader_name()
        if leader is not None:
            self.simulation.fault("leader alone", leader)
            self._split_off(leader)
            self.run_for(self.simulation.between(200, 1_200))
            self.network.heal()

    def _fill_servers(self) -> None:
        """Clients send all they may while no disk syncs."""
        self.simulation.fault("full servers")
        for node in self.nodes.values():
            until_us = self.simulation.now_us + self.simulation.between(50, 400) * US_PER_MS
            node.slow_until_us = max(node.slow_until_us, until_us)
        for client in self.filling:
            client.fill()

    def _snapshot_ahead(self) -> None:
        """A node is cut off until the leader's log begins behind the end of its log."""
        leader = self.leader_name()
        if leader is None:
            return
        name = self.simulation.random.choice([each for each in self.nodes if each != leader])
        self.simulation.fault("snapshot ahead", name)
        self._split_off(name)
        self.run_for(self.simulation.between(50, 300))
        if leader in self.checker.rafts:
            self._make_snapshot(self.nodes[leader])
        self.run_for(self.simulation.between(300, 900))
        self.network.heal()

    def _random_table_node(self) -> TableNode:
        return cast(TableNode, self._random_node())

    def _kill_server(self) -> None:
        node = self._random_table_node()
        self.simulation.fault("kill server", node.name)
        node.kill_table_process(SERVER)

    def _kill_worker(self) -> None:
        """At once, or after it has done nothing for a while: requests wait for it then."""
        node, random = self._random_table_node(), self.simulation.random
        number = random.randrange(self.run_settings.workers)
        hangs_ms = random.choice([0, 0, 100])
        self.simulation.fault("kill worker", node.name, number, hangs_ms)
        worker = node.worker_process(number)
        if worker is not None and hangs_ms:
            worker.pause(2 * hangs_ms * US_PER_MS)
        self.simulation.after(hangs_ms * US_PER_MS, node.kill_table_process, f"worker{number}")

    def _pause_worker(self) -> None:
        """It is behind then."""
        node = self._random_table_node()
        worker = node.worker_process(self.simulation.random.randrange(self.run_settings.workers))
        if worker is not None:
            duration_ms = self.simulation.random.choice([50, 200, 500])
            self.simulation.fault("pause worker", worker.name, duration_ms)
            worker.pause(duration_ms * US_PER_MS)

    def _move_clock(self) -> None:
        """An operator sets a wall clock."""
        node = self._random_table_node()
        seconds = self.simulation.between(-3, 3)
        self.simulation.fault("move clock", node.name, seconds)
        node.skew_s += seconds


def _requests_left(node: TableNode) -> int:
    """The unanswered requests of a server."""
    server = node.process(SERVER)
    return server.requests_left if isinstance(server, ServerProcess) else 0
