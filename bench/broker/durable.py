"""How many requests a second of a durable service does a cluster serve, and how long does a single
one take?

    python -m kelek.bench broker-durable [--quick] [--rounds N] [-o json]

Three nodes run on this machine, with a broker on the first. Each request and each answer is on the
disks of a majority before it goes on. The load generator plays clients with requests of 64 bytes,
and in a second process four workers with a window of 256 that echo them. The same load goes to a
service of the same broker that is not durable.
"""

import subprocess
import time
from pathlib import Path
from typing import Any

import zmq

from kelek.bench.kelek_cluster import NODES
from kelek.bench.load.loadgen import Generator, Load, finish
from kelek.bench.machine import BenchError, ends_with_us
from kelek.bench.peers import START_S_MAX
from kelek.bench.ports import free_ports
from kelek.bench.question import ROW_HEAD, Question, row
from kelek.bench.report import Section, ratios
from kelek.bench.tables.tables import BenchTables

ROUNDS = 5
WORKERS = Load(4, 256)
CASES = {
    "100 outstanding": Load(clients=4, window=25),
    "1,000 outstanding": Load(clients=10, window=100),
    "alone": Load(clients=1, window=1),
}
SERVICE = "echo"  # The load generator's service.
ANSWER_MS = 1000


class Services(BenchTables):
    """A cluster of three nodes; the first one has a broker."""

    def __init__(self, directory: Path, durable: bool) -> None:
        word = str(durable).lower()
        super().__init__(directory, f"broker: {{services: {{{SERVICE}: {{durable: {word}}}}}}}")
        self.clients_url, self.workers_url = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
        urls = f"clients_url: '{self.clients_url}', workers_url: '{self.workers_url}'"
        self.lines[0] = f"{self.lines[0][:-1]}, broker: {{{urls}}}}}"

    def wait_for_service(self) -> None:
        """Waits until a request has been answered."""
        with self.context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self.clients_url)
            until = time.monotonic() + START_S_MAX
            for number in range(1 << 20):
                frames = [b"KLKC01", b"\1", SERVICE.encode(), b"%d" % number, b"x" * 64]
                socket.send_multipart(frames)
                if socket.poll(ANSWER_MS):
                    return
                if time.monotonic() > until:
                    raise BenchError(f"no node answers; {self.last_words()}")


def measure(directory: Path, rounds: int) -> Section:
    directory.mkdir(parents=True, exist_ok=True)
    generator = Generator(directory)
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for durable in (True, False):
            for name, result in run(Services(directory / "kelek", durable), generator).items():
                found.setdefault(f"{name}{'' if durable else ', plain'}", []).append(result)
    rows = [ROW_HEAD]
    for name in CASES:
        if name != "alone":
            rows.append(row(name, [each["updates_s"] for each in found[name]], "/s"))
            rows.append(row(f"{name}, p50", [each["p50_us"] / 1000 for each in found[name]], "ms"))
            plain = ratios(found[name], found[f"{name}, plain"], "updates_s")
            rows.append(row(f"{name}, of a plain service's", plain, "", ".2f"))
    rows.append(row("alone, p50", [each["p50_us"] / 1000 for each in found["alone"]], "ms", ".1f"))
    note = f"{len(NODES)} nodes, the workers and the clients share this machine."
    return Section("Durable services", [], rows, note)


def run(cluster: Services, generator: Generator) -> dict[str, dict[str, Any]]:
    cluster.start_fresh()
    command = [str(generator.path), "--protocol", "workers", "--urls", cluster.workers_url]
    workers: subprocess.Popen[bytes] | None = None
    try:
        cluster.wait_for_tables()
        workers = subprocess.Popen(
            [*command, *WORKERS.arguments()], stdin=subprocess.PIPE, preexec_fn=ends_with_us()
        )
        cluster.wait_for_service()
        target = ["--protocol", "broker", "--urls", cluster.clients_url]
        results = {}
        for name, load in CASES.items():
            result = finish(generator.start(target, load), load)
            if not result["measured"] or result["malformed"] or result["rejected"]:
                raise BenchError(f"requests went wrong: {result}")
            results[name] = result
        return results
    finally:
        if workers is not None:
            workers.kill()
            workers.communicate()
        cluster.stop()


QUESTION = Question("broker-durable", __doc__, measure, ROUNDS)
