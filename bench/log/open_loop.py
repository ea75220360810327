"""How long does an update take at a given rate, and does each get an answer?

    python -m kelek.bench open-loop [--quick] [--rounds N] [-o json]

A closed loop slows down with the server. Here updates are due at even distances, whatever the
server does, from 8 clients of the log on loopback; latency counts from when an update was due. Each
round finds the largest rate with a closed loop (8 x 128, 5 s), then asks for half of it for a
minute. late_p99: how late the generator itself was, which the latency includes.
"""

from pathlib import Path

from kelek.bench.kelek_cluster import Kelek
from kelek.bench.load.loadgen import Generator, Load
from kelek.bench.machine import BenchError
from kelek.bench.question import ROW_HEAD, Question, row
from kelek.bench.report import Section, summed_up

ROUNDS = 3
CLOSED = Load(8, 128, secs=5.0)
OPEN = Load(8, 4096, secs=60.0, give_up_s=90.0)


def measure(directory: Path, rounds: int) -> Section:
    directory.mkdir(parents=True)
    generator, cluster = Generator(directory), Kelek(directory / "kelek")
    found: dict[str, list[float]] = {}
    cluster.start_fresh()
    try:
        cluster.leader()
        for _ in range(rounds):
            largest = generator.run(cluster.target, CLOSED)["updates_s"]
            result = generator.run(cluster.target, OPEN._replace(rate=int(largest / 2)))
            if result["rejected"] or result["malformed"] or not result["measured"]:
                raise BenchError(f"the open loop went wrong: {result}; {cluster.last_words()}")
            found.setdefault("largest rate", []).append(largest)
            found.setdefault("rate", []).append(result["updates_s"])
            for name in ("p50_us", "p99_us", "p999_us", "longest_us", "late_p99_us"):
                found.setdefault(name.removesuffix("_us"), []).append(result[name])
            found.setdefault("sent again", []).append(result["repeated"])
            found.setdefault("unanswered", []).append(result["sent"] - result["done"])
    finally:
        cluster.stop()
    over = [high / low for high, low in zip(found["p99"], found["p50"], strict=True)]
    figures = [
        summed_up("p99 over p50 at half of the largest rate", over, "x", 3.0),
        summed_up("updates without an answer", found["unanswered"], "", 0.0),
    ]
    units = {"largest rate": "updates/s", "rate": "updates/s", "sent again": "", "unanswered": ""}
    rows = [ROW_HEAD, *(row(name, them, units.get(name, "us")) for name, them in found.items())]
    return Section("Open loop", figures, rows, f"{OPEN.secs:.0f} s at each rate, 64 B an update.")


QUESTION = Question("open-loop", __doc__, measure, ROUNDS)
