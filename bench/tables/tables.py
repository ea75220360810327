"""How fast are the tables, beside the bare engine and beside Redis, in the same call?

    python -m kelek.bench tables [--quick] [--rounds N] [-o json]

Held equal: rows of 16 + 64 bytes, the same keys, 100 rows a request where it says so, one load
generator in C for ZeroDB and Redis (bench/load/loadgen.c), rounds interleaved; a ratio is taken
within each round. The bare engine is the same package in a process of its own, called with the same
batches (bench/tables/engine.py). Who is not driven at the moment keeps running idle.

local        a table that is not replicated: server, worker and engine of one node
replicated   three nodes; the answer comes when a majority has the write on disk and the asked node
             has applied it
redis        a primary and a replica, both `appendfsync always`; WAIT 1 where it stands against
             replicated writes, as one connection for each request that is outstanding, since a
             WAIT holds up what comes behind it on its connection

tasks        256 tasks of one kelek.AsyncTable, which write one key again and again. An increment
             stores its result, too, so that a repeat gets the same sum

Not equal: Redis keeps no order of keys and everything in memory; its replica's answer is no vote.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import kelek
from kelek.bench.kelek_cluster import NODES, Kelek
from kelek.bench.load.loadgen import Generator, Load, libzmq
from kelek.bench.machine import BenchError
from kelek.bench.ports import free_ports
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Figure, Section, summed_up
from kelek.bench.tables.engine import BATCH, Engine
from kelek.bench.tables.peers import Redis

ROUNDS = 7
SECS = 2.0
ROWS = 300_000
LOCAL, REPLICATED = 1, 2
LOCAL_TABLES = f"zerodb: {{local_tables: [{LOCAL}]}}"
SCAN_ROWS = 10_000  # Rows of one answer.
ANSWER_MS = 500
PUT = b"\x31\x01\x20\x01"
MANY, MORE = 256, 1024  # Unanswered requests of one row each.
COUNTED, COUNTER = "increment, tasks", b"counter"


class BenchTables(Kelek):
    """A cluster of three nodes that serve tables; those of LOCAL are not replicated."""

    def __init__(self, directory: Path, settings: str = LOCAL_TABLES) -> None:
        super().__init__(directory, settings)
        self.table_urls = [f"tcp://127.0.0.1:{port}" for port in free_ports(len(NODES))]
        self.lines = [
            f"{line[:-1]}, zerodb: {{url: '{url}'}}}}"
            for line, url in zip(self.lines, self.table_urls, strict=True)
        ]

    def target_of(self, node: int, table: int) -> list[str]:
        """The load generator's arguments for one node (counted from 0)."""
        target = ["--protocol", "zerodb", "--libzmq", libzmq(), "--urls", self.table_urls[node]]
        return [*target, "--table", str(table)]

    def wait_for_tables(self) -> int:
        """Waits until every node accepts a write; returns the leader's number, from 0."""
        leader = NODES.index(self.leader())
        until = time.monotonic() + self.start_s_max
        for url in self.table_urls:
            while not self.takes_writes(url):
                if time.monotonic() > until:
                    raise BenchError(f"{url} takes no write; {self.last_words()}")
        return leader

    def takes_writes(self, url: str) -> bool:
        with self.client_socket(url) as socket:
            socket.send_multipart([PUT, REPLICATED.to_bytes(4, "little"), b"up", b"1"])
            return bool(socket.poll(ANSWER_MS)) and socket.recv_multipart()[0][3] == 0

    def fill(self, generator: Generator, tables: Sequence[int], load: Load) -> None:
        """Puts so many rows as the load has updates, in turn into tables with numbers in a row."""
        target = [*self.target_of(0, tables[0]), "--tables", str(len(tables)), "--op", "put"]
        keys = ["--batch", "100", "--keys", str(load.updates)]
        result = generator.run([*target, *keys], load)
        if result["rejected"] or result["done"] != load.updates:
            raise BenchError(f"the tables were not filled: {result}; {self.last_words()}")


class TablesCase(NamedTuple):
    """What a round measures, of which system, and its name in the table."""

    name: str
    ask: Callable[[], dict[str, Any]]


class TablesBench:
    def __init__(self, directory: Path, secs: float) -> None:
        directory.mkdir(parents=True)
        self.secs = secs
        self.generator = Generator(directory)
        self.cluster = BenchTables(directory / "kelek")
        self.redis = Redis(directory / "redis")
        self.engine = Engine(directory / "engine")
        self.found: dict[str, list[float]] = {}
        self.p50: dict[str, list[float]] = {}

    def stop(self) -> None:
        self.cluster.stop()
        self.redis.stop()
        self.engine.stop()

    def drive(self, target: list[str], load: Load, op: str, batch: int) -> dict[str, Any]:
        asked = ["--op", op, "--batch", str(batch), "--keys", str(ROWS)]
        result = self.generator.run([*target, *asked], load)
        if result["rejected"] or result["malformed"] or result["refused"] or not result["measured"]:
            raise BenchError(f"{op} of {batch} went wrong: {result}; {self.cluster.last_words()}")
        return result

    def bare(self, work: str) -> dict[str, Any]:
        return {"updates_s": self.engine.rate(work, self.secs, ROWS)}

    def of_tasks(self, write: Callable[[kelek.AsyncTable], Coroutine[Any, Any, object]]) -> Any:
        """The calls a second of MANY tasks of one kelek.AsyncTable."""
        done = 0

        async def repeat(table: kelek.AsyncTable, until_s: float) -> None:
            nonlocal done
            while time.monotonic() < until_s:
                await write(table)
                done += 1

        async def drive() -> float:
            async with kelek.AsyncTable(self.cluster.table_urls[self.leader], REPLICATED) as table:
                await write(table)
                began_s = time.monotonic()
                until_s = began_s + self.secs
                await asyncio.gather(*(repeat(table, until_s) for _ in range(MANY)))
                return time.monotonic() - began_s

        seconds = asyncio.run(drive())
        return {"updates_s": done / seconds}

    def start(self) -> None:
        self.cluster.start_fresh()
        self.redis.start_fresh()
        self.leader = self.cluster.wait_for_tables()
        fill = Load(1, 16, updates=ROWS)
        targets = [
            self.cluster.target_of(self.leader, LOCAL),
            self.cluster.target_of(self.leader, REPLICATED),
            self.redis.target,
        ]
        for target in targets:
            self.drive(target, fill, "put", BATCH)
        self.engine.rate("put", self.secs, ROWS)

    def cases(self) -> list[TablesCase]:
        local = self.cluster.target_of(self.leader, LOCAL)
        ours = self.cluster.target_of(self.leader, REPLICATED)
        follower = self.cluster.target_of((self.leader + 1) % len(NODES), REPLICATED)
        redis = self.redis.target
        waits = [*redis, "--wait", "1"]
        wide, alone = Load(2, 8, secs=self.secs), Load(1, 1, secs=self.secs)
        scans = Load(2, 1, secs=self.secs)
        threads = Load(16, 1, secs=self.secs)

        def case(name: str, target: list[str], load: Load, op: str, batch: int) -> TablesCase:
            return TablesCase(name, partial(self.drive, target, load, op, batch))

        return [
            case("put, 100 a batch, local", local, wide, "put", BATCH),
            TablesCase("put, 100 a batch, engine", partial(self.bare, "put")),
            case("put, 100 a batch, redis", redis, wide, "put", BATCH),
            case("get, 100 a request, local", local, wide, "get", BATCH),
            TablesCase("get, 100 a request, engine", partial(self.bare, "get")),
            case("get, 100 a request, replicated", ours, wide, "get", BATCH),
            case("get, 100 a request, redis", redis, wide, "get", BATCH),
            case("scan, text framing, local", local, scans, "scan", SCAN_ROWS),
            TablesCase("scan, engine", partial(self.bare, "scan")),
            case("scan, packed, local", local, scans, "packed", SCAN_ROWS),
            case("put, 100 a batch, replicated", ours, wide, "put", BATCH),
            case("put, 100 a batch, replicated, asked of a follower", follower, wide, "put", BATCH),
            case("put, 100 a batch, redis, WAIT 1", waits, threads, "put", BATCH),
            *(
                case(f"put, one key, {form}", target, load, "put", 1)
                for many in (MANY, MORE)
                for form, target, load in (
                    (f"replicated, {many} outstanding", ours, Load(8, many // 8, secs=self.secs)),
                    (f"redis, WAIT 1, {many} outstanding", waits, Load(many, 1, secs=self.secs)),
                )
            ),
            TablesCase(
                "put, tasks", partial(self.of_tasks, lambda table: table.put(COUNTER, b"1"))
            ),
            TablesCase(COUNTED, partial(self.of_tasks, lambda table: table.increment(COUNTER))),
            case("put, one key, replicated, alone", ours, alone, "put", 1),
            case("put, one key, redis, WAIT 1, alone", waits, alone, "put", 1),
            *(
                case(f"get, one key, {name}", target, load, "get", 1)
                for name, target, load in (
                    ("replicated, alone", ours, alone),
                    ("replicated, alone, asked of a follower", follower, alone),
                    ("redis, alone", redis, alone),
                    (f"replicated, {MANY} outstanding", ours, Load(8, MANY // 8, secs=self.secs)),
                    (f"redis, {MANY} outstanding", redis, Load(8, MANY // 8, secs=self.secs)),
                )
            ),
        ]

    def round(self, number: int) -> None:
        cases = self.cases()
        start = number % len(cases)
        for case in cases[start:] + cases[:start]:
            result = case.ask()
            self.found.setdefault(case.name, []).append(result["updates_s"])
            if "p50_us" in result:
                self.p50.setdefault(case.name, []).append(result["p50_us"])

    def ratio(self, upper: str, lower: str) -> list[float]:
        return [a / b for a, b in zip(self.found[upper], self.found[lower], strict=True)]

    def figures(self) -> list[Figure]:
        def over(name: str, upper: str, lower: str, goal: float) -> Figure:
            return summed_up(name, self.ratio(upper, lower), "x", goal, up=True)

        engine = "engine's"
        return [
            over(f"put of 100, over the bare {engine}", PUTS[0], PUTS[1], 0.5),
            over(f"get of 100, over the bare {engine}", GETS[0], GETS[1], 0.4),
            over(f"scan, text framing, over the bare {engine}", SCANS[0], SCANS[1], 0.25),
            over(f"packed scan, over the bare {engine}", SCANS[2], SCANS[1], 0.4),
            summed_up("packed scan, one worker", self.found[SCANS[2]], "rows/s", 1.3e6, up=True),
            summed_up(
                "replicated put of 100, 16 outstanding", self.found[TRIPLE], "rows/s", 1e5, up=True
            ),
            over(f"increment of one key, {MANY} tasks, over put", COUNTED, "put, tasks", 0.8),
            *(
                over(f"put of one key, {form}, over Redis with WAIT 1", ours, theirs, 1)
                for form, ours, theirs in ONES
            ),
            *(
                over(
                    f"get of one key, {form}, over Redis",
                    f"get, one key, replicated, {form}",
                    f"get, one key, redis, {form.partition(', asked')[0]}",
                    goal,
                )
                for form, goal in ONE_GETS
            ),
        ]

    def rows(self) -> list[list[str]]:
        rows = [[*ROW_HEAD, "p50 us"]]
        for name, values in self.found.items():
            p50 = self.p50.get(name)
            rows.append(
                [*row(name, values, "rows/s"), f"{statistics.median(p50):.0f}" if p50 else ""]
            )
        return rows


PUTS = ("put, 100 a batch, local", "put, 100 a batch, engine")
GETS = ("get, 100 a request, local", "get, 100 a request, engine")
SCANS = ("scan, text framing, local", "scan, engine", "scan, packed, local")
TRIPLE = "put, 100 a batch, replicated"
ONES = [
    (
        form,
        f"put, one key, replicated, {form}",
        f"put, one key, redis, WAIT 1, {form}",
    )
    for form in (f"{MORE} outstanding", f"{MANY} outstanding", "alone")
]


# An answer alone may take 2.5 times as long as Redis's, by way of a follower 4 times.
ONE_GETS = [
    ("alone", 1 / 2.5),
    ("alone, asked of a follower", 1 / 4),
    (f"{MANY} outstanding", 0.5),
]


def measure(directory: Path, rounds: int) -> Section:
    bench = TablesBench(directory, SECS)
    try:
        bench.start()
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            bench.round(number)
    finally:
        bench.stop()
    note = (
        f"{ROWS} rows; a request for one key counts one row. Redis {bench.redis.version()};"
        " p50 is of a request."
    )
    return Section("BenchTables", bench.figures(), bench.rows(), note)


QUESTION = Question("tables", __doc__, measure, ROUNDS)
