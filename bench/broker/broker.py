"""How many requests a second does a broker pass on, and how long does a single one take?

    python -m kelek.bench broker [--quick] [--rounds N] [-o json]

The load generator (loadgen_broker.c) plays clients with 100 unanswered requests of 64 bytes, and in
a second process four workers that echo them. In the same round the same load goes through three
comparisons:

  - a plain zmq_proxy, without queues, ids or heartbeats
  - a minimal broker on libzmq in C that checks and stores nothing (loadgen_bare.c)
  - a broker as the ZeroMQ guide writes it: Python, one message at a time, libzmq's poll

Finally the broker answers 10,000 requests while 200 of its 210 workers are killed
(broker/kills.py).
"""

import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import zmq

from kelek.actors.runtime.fork_server import python_command
from kelek.actors.runtime.setup import ActorSetup
from kelek.actors.topology.settings import (
    BrokerEndpoints,
    BrokerSettings,
    NodeSettings,
    NodeTopology,
)
from kelek.bench.broker.kills import SCALE, Kills, kills
from kelek.bench.load.loadgen import Generator, Load, finish, libzmq
from kelek.bench.machine import BenchError, cpu_s, ends_with_us
from kelek.bench.ports import free_ports
from kelek.bench.question import ROW_HEAD, Question, row
from kelek.bench.report import Section, ratios, summed_up

ROUNDS = 7
WORKERS = 4
WINDOW = 32
MANY = Load(clients=4, window=25)
ALONE = Load(clients=1, window=1)
NAMES = (("kelek", WINDOW), ("kelek", 1), ("bare", 1), ("proxy", 1), ("one_by_one", 1))
IDLE = 1000  # Workers, and as many clients.
IDLE_S = 10.0
START_S = 20
Socket = zmq.Socket[bytes]


# ---- what is measured, each a process ----


def proxy(clients_url: str, workers_url: str) -> None:
    """Runs libzmq's own proxy between two ports."""
    context: zmq.Context[Socket] = zmq.Context()
    sockets = []
    for kind, url in ((zmq.ROUTER, clients_url), (zmq.DEALER, workers_url)):
        socket = context.socket(kind)
        socket.bind(url)
        sockets.append(socket)
    zmq.proxy(*sockets)


def one_by_one(clients_url: str, workers_url: str) -> None:
    """A broker as the guide writes it: the specification's framing, least recently used worker, no
    windows."""
    context: zmq.Context[Socket] = zmq.Context()
    clients, workers = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    clients.bind(clients_url)
    workers.bind(workers_url)
    poller = zmq.Poller()
    poller.register(clients, zmq.POLLIN)
    poller.register(workers, zmq.POLLIN)
    idle: deque[bytes] = deque()
    waiting: deque[list[bytes]] = deque()
    service = b""
    while True:
        ready = dict(poller.poll())
        if workers in ready:
            worker, _, command, *rest = workers.recv_multipart()
            if command == b"\1":
                service = rest[0]
                idle.append(worker)
            elif command == b"\4":
                client, _, request_id, *body = rest
                clients.send_multipart([client, b"KLKC01", b"\3", service, request_id, *body])
                idle.append(worker)
            else:
                workers.send_multipart([worker, b"KLKW01", b"PONG"])
        if clients in ready:
            waiting.append(clients.recv_multipart())
        while waiting and idle:
            client, _, _, _, request_id, *body = waiting.popleft()
            head = [idle.popleft(), b"KLKW01", b"\2", client, b"", request_id]
            workers.send_multipart([*head, *body])


class Between:
    """A process between clients and workers, and the workers. Our broker uses defaults plus the
    given settings."""

    def __init__(self, name: str, directory: Path, generator: Generator, **settings: Any) -> None:
        self.name = name
        self.directory = directory / name
        self.directory.mkdir()
        self.generator = generator
        self.settings = BrokerSettings(**settings)
        ports = free_ports(2)
        self.clients_url, self.workers_url = (f"tcp://127.0.0.1:{port}" for port in ports)
        self.processes: list[subprocess.Popen[Any]] = []
        self.context: zmq.Context[Socket] = zmq.Context()

    def start(self) -> None:
        command = [sys.executable, "-P", "-m"]
        if self.name == "kelek":
            self._spawn(python_command("kelek.actors.broker.broker", self._setup()))
        elif self.name == "bare":
            urls = f"{self.clients_url},{self.workers_url}"
            target = ["--protocol", "bare", "--libzmq", libzmq(), "--urls", urls]
            self._spawn([str(self.generator.path), *target])
        else:
            module = [*command, "kelek.bench.broker.broker", self.name]
            self._spawn([*module, self.clients_url, self.workers_url])

    def _setup(self) -> Path:
        """Setup of the broker's actor, which runs without a supervisor."""
        endpoints = BrokerEndpoints(clients_url=self.clients_url, workers_url=self.workers_url)
        settings = NodeSettings(node=NodeTopology(url="", broker=endpoints), broker=self.settings)
        places = dict.fromkeys(("broker.clients_url", "broker.workers_url"), "")
        control = f"ipc://{self.directory}/control"
        setup = ActorSetup(
            "n1", "broker", "broker", "c", str(self.directory), str(self.directory),
            control, 1, False, settings, places,
        )  # fmt: skip
        path = self.directory / "setup.json"
        path.write_text(setup.to_json())
        return path

    def _spawn(self, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                preexec_fn=ends_with_us(),
            )
        self.processes.append(process)
        return process

    def add_workers(self, count: int, window: int, hold_ms: int = 0) -> "subprocess.Popen[bytes]":
        load = Load(count, window, pack=int(self.name == "proxy"), hold_ms=hold_ms)
        target = ["--protocol", "workers", "--urls", self.workers_url]
        return self._spawn([str(self.generator.path), *target, *load.arguments()])

    def start_load(self, load: Load) -> "subprocess.Popen[str]":
        """Starts the load; finish() returns its counts."""
        return self.generator.start(["--protocol", "broker", "--urls", self.clients_url], load)

    def run(self, load: Load) -> dict[str, Any]:
        before, started = cpu_s([self.processes[0].pid]), time.monotonic()
        result = finish(self.start_load(load), load)
        if not result["measured"] or result["malformed"] or result["rejected"]:
            raise BenchError(f"{self.name}: requests went wrong: {result}")
        spent = cpu_s([self.processes[0].pid]) - before
        return {**result, "busy": spent / (time.monotonic() - started)}

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        self.context.destroy(0)


# ---- the measurement ----


def measure(directory: Path, rounds: int) -> Section:
    directory.mkdir(parents=True, exist_ok=True)
    generator = Generator(directory)
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for name, window in NAMES:
            folder = directory / f"{number}-{window}"
            folder.mkdir(exist_ok=True)
            between = Between(name, folder, generator)
            try:
                between.start()
                between.add_workers(WORKERS, window)
                between.run(ALONE._replace(secs=0.2))  # Waits until all workers are connected.
                key = f"{name} {window}"
                found.setdefault(key, []).append(between.run(MANY))
                found.setdefault(f"{key} alone", []).append(between.run(ALONE))
            finally:
                between.stop()
    folder = directory / "kills"
    folder.mkdir()
    killed = kills(Between("kelek", folder, generator))
    return _section(found, idle(directory, generator), killed)


def idle(directory: Path, generator: Generator) -> tuple[float, float]:
    """Measures a thousand idle workers and clients: part of a core, and MB."""
    folder = directory / "idle"
    folder.mkdir()
    between = Between("kelek", folder, generator)
    clients: list[Socket] = []
    try:
        between.start()
        between.add_workers(IDLE, 1)
        between.context.set(zmq.MAX_SOCKETS, IDLE + 1)
        for _ in range(IDLE):
            client = between.context.socket(zmq.DEALER)
            clients.append(client)
            client.connect(between.clients_url)
            client.send_multipart([b"KLKC01", b"\1", b"mmi.service", b"id", b"echo"])
        for client in clients:
            if not client.poll(START_S * 1000):
                raise BenchError("a client hears nothing")
        pid = between.processes[0].pid
        before = cpu_s([pid])
        time.sleep(IDLE_S)
        return (cpu_s([pid]) - before) / IDLE_S, anonymous_mb(pid)
    finally:
        for client in clients:
            client.close(0)
        between.stop()


def anonymous_mb(pid: int) -> float:
    """Anonymous memory of a process in MB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) / 1024
    raise BenchError("no smaps_rollup")


def _section(
    found: dict[str, list[dict[str, Any]]], idled: tuple[float, float], killed: Kills
) -> Section:
    def values(name: str, key: str) -> list[float]:
        return [result[key] for result in found[name]]

    wide, narrow = found[f"kelek {WINDOW}"], found["kelek 1"]
    plain, bare, guide = found["proxy 1"], found["bare 1"], found["one_by_one 1"]
    names = [f"{name} {window}" for name, window in NAMES]
    figures = [
        summed_up("4 workers, no window", values("kelek 1", "updates_s"), "/s", 60_000, up=True),
        summed_up("window 32", values(f"kelek {WINDOW}", "updates_s"), "/s", 150_000, up=True),
        summed_up("window 32 / proxy", ratios(wide, plain, "updates_s"), "", 0.4, up=True),
        summed_up(
            "alone, p50 / proxy",
            ratios(found["kelek 1 alone"], found["proxy 1 alone"], "p50_us"),
            "",
            1.3,
            up=False,
        ),
        summed_up("1,000 + 1,000 idle", [100 * idled[0]], "% of a core", 5, up=False),
        summed_up("1,000 + 1,000 idle, memory", [idled[1]], "MB", 200, up=False),
        summed_up(
            f"{SCALE.killed} killed: answered once", [killed.once], "", SCALE.requests, up=True
        ),
        summed_up(
            f"{SCALE.killed} killed: longest wait / heartbeats'",
            [killed.wait_of_expiry],
            "",
            1.25,
            up=False,
        ),
    ]
    rows = [
        ROW_HEAD,
        *(row(f"{name}, 100 outstanding", values(name, "updates_s"), "/s") for name in names),
        *(row(f"{name}, CPU of it", values(name, "busy"), "cores", ".2f") for name in names),
        row("kelek 1 / bare", ratios(narrow, bare, "updates_s"), "", ".2f"),
        row("kelek 1 / one_by_one", ratios(narrow, guide, "updates_s"), "", ".2f"),
        row("kelek alone, p50", values("kelek 1 alone", "p50_us"), "us"),
        row("proxy alone, p50", values("proxy 1 alone", "p50_us"), "us"),
        row(f"{SCALE.killed} killed, requests resent", [killed.resent], ""),
        row(f"{SCALE.killed} killed, longest wait", [killed.wait_s], "s", ".1f"),
    ]
    note = f"{WORKERS} workers in one thread of one process, clients in another; the number behind"
    return Section("The broker", figures, rows, f"{note} a name is the window of each worker.")


QUESTION = Question("broker", __doc__, measure, ROUNDS)

if __name__ == "__main__":
    {"proxy": proxy, "one_by_one": one_by_one}[sys.argv[1]](*sys.argv[2:])
