"""A cluster with tables, for clients that know ZeroDB's text alone."""

import itertools
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import zmq

from kelek.bench.kelek_cluster import actor_name, children_of
from kelek.bench.ports import free_port
from kelek.clients.log.log import Log
from kelek.tests.interop.conftest import InteropCluster, new_folder
from kelek.tests.interop.zerodb.zerodb_model import CaseContext
from kelek.tests.interop.zerodb.zerodb_plain import Context, PlainTableClient

NODES = ("n1", "n2", "n3")
ENDPOINTS = ("url", "pull_url", "sub_url", "events_url", "jobs_url")
LOCAL = range(1000, 1100)  # Tables that are not replicated.
SETTINGS = f"workers: 2, local_tables: {list(LOCAL)}, request_timeout_ms: 20000"  # A busy machine.


class NodeTables:
    """A cluster whose nodes have all five endpoints, and a context for its clients."""

    def __init__(self, folder: Path, names: tuple[str, ...], settings: str = SETTINGS) -> None:
        self.endpoints = {
            name: {endpoint: f"tcp://127.0.0.1:{free_port()}" for endpoint in ENDPOINTS}
            for name in names
        }
        self.cluster = InteropCluster(
            folder, dict.fromkeys(names, "kelek"), zerodb=settings, endpoints=self.endpoints
        )
        self.asked = names[0]  # Whose endpoints are used where no node is named.
        self.context: Context = zmq.Context()
        self.clients: list[PlainTableClient] = []
        self.replicated = itertools.count(1)
        self.local = itertools.cycle(LOCAL)
        self.disturbances: Counter[str] = Counter()

    def client(
        self, kind: int = zmq.DEALER, node: str = "", endpoint: str = "url"
    ) -> PlainTableClient:
        client = PlainTableClient(self.context, self.endpoints[node or self.asked][endpoint], kind)
        self.clients.append(client)
        return client

    def ask(self, role: str) -> None:
        """From now on the `leader` is asked, or a `follower`: as they are now."""
        with Log([*self.cluster.urls.values()], "interop") as log:
            log.append(b"there is a leader")
            leader = log.info().leader
        self.asked = next(name for name in self.endpoints if (name == leader) == (role == "leader"))

    def close_clients(self) -> None:
        while self.clients:
            self.clients.pop().close()

    def ground(self, often: float) -> CaseContext:
        """Cases play on these tables in turn; `often` of the times something is killed."""
        replicated = itertools.cycle([next(self.replicated) for _ in range(32)])
        local = itertools.cycle([next(self.local) for _ in range(8)])

        def disturb(dice: Random) -> None:
            if dice.random() < often:
                dice.choice((self.kill_one, self.kill_one, self.kill_one, self.make_snapshot))(dice)

        return CaseContext(self.client, replicated.__next__, local.__next__, disturb)

    def kill_one(self, dice: Random) -> None:
        """SIGKILL of a process; returns when it is gone, not when its successor serves."""
        actors = {pid: actor_name(pid) for pid in children_of(self.cluster.process.pid)}
        pid = dice.choice(sorted(pid for pid, name in actors.items() if name))
        self.disturbances[f"{actors[pid].partition('/')[2]} killed"] += 1
        os.kill(pid, signal.SIGKILL)
        while actor_name(pid):
            assert pid in actors

    def make_snapshot(self, dice: Random) -> None:
        with Log([*self.cluster.urls.values()], "interop") as log:
            log.make_snapshot(self.cluster.urls[dice.choice([*self.endpoints])])
        self.disturbances["snapshots"] += 1

    def stop(self) -> None:
        self.close_clients()
        self.context.term()
        self.cluster.stop()


@pytest.fixture(scope="session")
def running() -> Iterator[NodeTables]:
    """One node; by KELEK_ASK=leader or follower that one of three."""
    folder = new_folder()
    role = os.environ.get("KELEK_ASK", "")
    tables = NodeTables(folder, NODES if role else NODES[:1])
    try:
        if role:
            tables.ask(role)
        yield tables
    finally:
        tables.stop()
        shutil.rmtree(folder)


@pytest.fixture
def tables(running: NodeTables) -> Iterator[NodeTables]:
    """No test may leave it changed, but for tables of its own."""
    yield running
    running.close_clients()
