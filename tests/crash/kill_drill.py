"""Three nodes with tables, a load of writes, and SIGKILL of any process at any moment of it.

    PYTHONPATH=.build python -m kelek.tests.crash.kill_drill --kills 100 --seed 7

Each writer has tables of its own and one request outstanding, so it knows what they must hold. What
was acknowledged (PARTSYNC or FULLSYNC) is there; a request without an answer, or with an error,
may have happened once or not at all: its tables are left as they are and the writer takes new ones.
Limited deletes would show what is applied twice. In the end every node must show the same tables,
and hold the same bytes at the same applied index.
"""

import argparse
import itertools
import math
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import zmq

from kelek.bench.kelek_cluster import NODES, actor_name
from kelek.bench.tables.tables import BenchTables
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import open_tables
from kelek.tests.interop.zerodb import zerodb_plain as plain

WORKERS = 2
WRITERS_EACH = 2  # Per node; another writer uses its local tables.
LOCAL = range(1, 801)
SETTINGS = f"""
zerodb: {{workers: {WORKERS}, local_tables: {list(LOCAL)}, request_timeout_ms: 4000}}
raft: {{election_timeout_ms: [1000, 1500]}}
log: {{snapshot_entries: 400}}
"""
PAUSE_S = 0.3  # After a refusal.
GIVE_UP_S = 6.0  # Longer than the server's timeout.
START_S = 150.0  # Other tests run beside it, of which some sync all the time.
STUCK_S = 60.0
STOP_S = 60.0
ACKS_BETWEEN = (20, 120)  # Kills.
POLL_MS = 100
SYNCS = plain.PARTSYNC, plain.FULLSYNC
FEW = 12  # An empty table would hide earlier faults.
SHARED_BYTES = 64 << 20

Rows = dict[bytes, bytes]
Held = dict[int, Rows]  # The rows of tables, by table number.


class Broken(Exception):
    """A rule does not hold."""


class IdleTable(NamedTuple):
    """Tables without a writer: they hold `before` or `after`."""

    node: int  # The node of local tables; -1: replicated.
    before: Held
    after: Held


def newest(rows: Rows) -> list[bytes]:
    """Keys that may be deleted or changed. The others must stay, and the oldest reveal a limited
    delete that is applied twice."""
    return sorted(key for key in rows if not key.startswith(b"~"))[-10:]


class DrillWriter:
    """One connection, one request outstanding, two tables of one worker."""

    def __init__(self, drill: "Drill", node: int, local: bool) -> None:
        self.drill = drill
        self.dice = Random(drill.dice.random())
        self.node = node
        self.local = local
        self.count = itertools.count()
        self.take_new_tables()

    def take_new_tables(self, pause_s: float = 0.0) -> None:
        numbers = self.drill.local[self.node] if self.local else self.drill.replicated
        first = next(numbers)
        if self.local and first + WORKERS not in LOCAL:
            raise Broken("a writer of local tables has left all of them")
        self.held: Held = {first: {}, first + WORKERS: {}}
        self.client = self.drill.connect(self.node)
        if pause_s:
            self.after = self.held
            self.sends_at = time.monotonic() + pause_s
        else:
            self.send()

    # ---- one request ----

    def send(self) -> None:
        self.after = {table: dict(rows) for table, rows in self.held.items()}
        table = self.dice.choice([*self.held])
        kind = self.dice.choice((self.put, self.put, self.put, self.pop, self.delete, self.both))
        syncs = self.drill.local_syncs if self.local else SYNCS
        kind_of_sync = self.dice.choice(syncs)
        self.frames = kind(table, self.after[table], kind_of_sync)
        self.sent_at = time.monotonic()
        self.sends_at = math.inf
        self.client.send(*self.frames)

    def pairs(self) -> list[plain.Pair]:
        """The last pair stays: it reveals a lost write that a later delete would hide."""
        size = self.dice.choice((8, 8, 100, 4000))
        numbers = [next(self.count) for _ in range(self.dice.randint(1, 5))]
        pairs = [(b"%06d" % number, self.dice.randbytes(size)) for number in numbers]
        return [*pairs, (b"~%06d" % numbers[0], b"to stay")]

    def put(self, table: int, rows: Rows, flags: int) -> plain.Frames:
        pairs = self.pairs()
        known = newest(rows)
        if known and self.dice.random() < 0.3:
            pairs.append((self.dice.choice(known), b"anew"))
        rows.update(pairs)
        return [plain.head(plain.PUT, flags), plain.u32(table), *plain.flat(pairs)]

    def pop(self, table: int, rows: Rows, flags: int) -> plain.Frames:
        """Deletes the first keys: applied twice, it deletes others, too."""
        if len(rows) < FEW:
            return self.put(table, rows, flags)
        limit = self.dice.randint(1, 2)
        for key in sorted(rows)[:limit]:
            del rows[key]
        return [plain.head(plain.DELETE_LIMITED, flags), plain.u32(table), b"", plain.u64(limit)]

    def delete(self, table: int, rows: Rows, flags: int) -> plain.Frames:
        known = newest(rows)
        keys = self.dice.sample(known, min(len(known), 2)) or [b"nothing"]
        for key in keys:
            rows.pop(key, None)
        return [plain.head(plain.DELETE, flags), plain.u32(table), *keys]

    def both(self, table: int, rows: Rows, flags: int) -> plain.Frames:
        """Writes both tables at once, with FULLSYNC: PARTSYNC would not wait for this request."""
        one, two = self.after
        pairs, keys = self.pairs(), newest(self.after[two])[:1] or [b"nothing"]
        self.after[one].update(pairs)
        self.after[two].pop(keys[0], None)
        parts = [*plain.puts(one, *pairs), *plain.deletes(two, *keys)]
        return [plain.head(plain.WRITE_TABLES, plain.FULLSYNC), *parts]

    # ---- its answer ----

    def on_answer(self) -> None:
        header, *rest = self.client.receive()
        if header[:3] != self.frames[0][:3]:
            raise Broken(f"{self.frames[0].hex()} was answered with {header.hex()}, {rest}")
        if header[3] == 0:
            self.held = self.after
            self.drill.acknowledged += 1
            self.send()
        else:
            self.drill.seen[f"refused: {plain.text(rest[0])}"] += 1
            self.leave(PAUSE_S)  # There are not many tables.

    def leave(self, pause_s: float = 0.0) -> None:
        """Leaves the tables: the request may or may not be applied."""
        self.drill.left.append(IdleTable(self.node if self.local else -1, self.held, self.after))
        self.client.close()
        self.take_new_tables(pause_s)

    def on_time(self, now: float) -> None:
        if now >= self.sends_at:
            self.send()
        elif self.sends_at == math.inf and now > self.sent_at + GIVE_UP_S:
            self.drill.seen["no answer"] += 1
            self.leave()


def first_tables(start: int) -> Iterator[int]:
    """The first numbers of pairs (number, number + WORKERS) of one worker, by worker in turn."""
    return (start + 2 * WORKERS * number + number % WORKERS for number in itertools.count())


class Drill:
    """The cluster, its writers, and the tables that they have left."""

    local_syncs: tuple[int, ...] = SYNCS  # With which writes of local tables are acknowledged.

    def __init__(self, directory: Path, seed: int) -> None:
        self.dice = Random(seed)
        self.cluster = self.new_cluster(directory)
        self.cluster.start_s_max = START_S
        self.context: plain.Context = zmq.Context()
        self.replicated = first_tables(LOCAL.stop)
        self.local = [first_tables(LOCAL.start) for _ in NODES]
        self.left: list[IdleTable] = []
        self.acknowledged = 0
        self.seen: Counter[str] = Counter()

    def new_cluster(self, directory: Path) -> BenchTables:
        return BenchTables(directory, SETTINGS)

    def run(self, kills: int) -> None:
        """Raises Broken."""
        self.cluster.start_fresh()
        try:
            self.cluster.wait_for_tables()
            self.load(kills)
            self.check_everybody()
            self.stop()
        finally:
            self.cluster.stop()
            self.context.destroy(0)
        self.check_hashes()

    def connect(self, node: int) -> plain.PlainTableClient:
        return plain.PlainTableClient(self.context, self.cluster.table_urls[node])

    # ---- the load ----

    def writers(self) -> list[DrillWriter]:
        return [
            DrillWriter(self, node, local)
            for node in range(len(NODES))
            for local in (*[False] * WRITERS_EACH, True)
        ]

    def load(self, kills: int) -> None:
        writers = self.writers()
        for _ in range(kills):
            self.write(writers, self.dice.randint(*ACKS_BETWEEN))
            for _ in range(self.dice.choice((1, 1, 1, 2))):
                self.kill_one()
        self.write(writers, ACKS_BETWEEN[1])
        for writer in writers:
            writer.leave()  # Its request has no answer yet.
            writer.client.close()

    def write(self, writers: list[DrillWriter], count: int) -> None:
        """Writes until count more requests are acknowledged."""
        until, enough = time.monotonic() + STUCK_S, self.acknowledged + count
        while self.acknowledged < enough:
            now = time.monotonic()
            if now > until:
                raise Broken(f"nothing is acknowledged; {dict(self.seen)}")
            of = {writer.client.socket: writer for writer in writers}
            poller = zmq.Poller()
            for socket in of:
                poller.register(socket, zmq.POLLIN)
            for socket, _ in poller.poll(POLL_MS):
                of[socket].on_answer()
            for writer in writers:
                writer.on_time(now)

    def kill_one(self) -> None:
        pids = {pid: name for name, pids in self.cluster.pids().items() for pid in pids}
        victims = sorted((name, pid) for pid, name in pids.items() if "/" in name)
        name, pid = self.dice.choice(victims)
        self.seen[f"killed {name.partition('/')[2]}"] += 1
        os.kill(pid, signal.SIGKILL)
        while actor_name(pid) == name:
            os.sched_yield()

    # ---- checks ----

    def check_everybody(self) -> None:
        """Each node returns the expected rows, and never older ones than a node before.

        A request without an answer may still be applied during the check.
        """
        done: set[int] = set()
        for node, name in enumerate(NODES):
            client = self.connect(node)
            for i, left in enumerate(self.left):
                if left.node not in {-1, node}:
                    continue
                found = self.shown(client, left, name)
                if i in done and found != left.after:
                    lacks = difference(left, found)
                    raise Broken(f"{name}: it is not the same on all nodes: {lacks}")
                if found != left.before:
                    done.add(i)
            client.close()

    def shown(self, client: plain.PlainTableClient, left: IdleTable, name: str) -> Held:
        """The rows of a writer's tables on a node: with its whole last request, or without it.

        The request may be applied between the reads of two tables, but only once.
        """
        for _ in range(2):
            found = {table: self.scan(client, table) for table in left.before}
            if found in (left.before, left.after):
                return found
        raise Broken(f"{name}: {difference(left, found)}")

    def scan(self, client: plain.PlainTableClient, table: int) -> Rows:
        until = time.monotonic() + STUCK_S
        while True:
            try:
                return dict(client.scan(table))
            except plain.RequestRefused as refused:
                if time.monotonic() > until:
                    raise Broken(f"table {table} can't be read: {refused}") from None

    def stop(self) -> None:
        """Stops the nodes as an operator does: they flush everything."""
        for supervisor in self.cluster.supervisors.values():
            supervisor.send_signal(signal.SIGTERM)
        for supervisor in self.cluster.supervisors.values():
            supervisor.wait(STOP_S)

    def check_hashes(self) -> None:
        """Reads the nodes' disks: equal applied indexes must have equal bytes."""
        found: dict[tuple[str, int], dict[int, bytes]] = {}
        shared = Resources.of(SHARED_BYTES, SHARED_BYTES)
        for folder in self.cluster.directory.glob("data/*/tables/*/replicated"):
            tables = open_tables(str(folder), shared, replicated=True)
            index, hashes = tables.applied[0], {n: tables.content_hash(n) for n in tables.tables()}
            tables.close()
            self.seen["databases compared"] += (folder.parent.name, index) in found
            if found.setdefault((folder.parent.name, index), hashes) != hashes:
                raise Broken(f"{folder}: differs from another node's at index {index}")


def difference(left: IdleTable, found: Held) -> str:
    """Describes wrong rows of a writer's tables in one line."""
    lines = []
    for table, rows in found.items():
        before, after = left.before[table], left.after[table]
        lost = [key for key in before if key in after and key not in rows]
        stale = [key for key in rows if rows[key] not in (before.get(key), after.get(key))]
        lines.append(f"table {table} lacks {lost}, should not have {stale}")
    return "; ".join(lines) + " (or half of a request is done)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many times")
    parser.add_argument("--seed", type=int, default=1, help="of all dice")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kelek-drill-") as directory:
        drill = Drill(Path(directory) / "d", arguments.seed)
        try:
            drill.run(arguments.kills)
        except Broken as broken:
            print(f"seed {arguments.seed}: {broken}\n{drill.cluster.last_words()}")
            return 1
    for name, count in sorted(drill.seen.items()):
        print(f"{count:6} {name}")
    print(f"{drill.acknowledged:6} writes acknowledged; none was lost, none was done twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
