"""Random requests against a plain model of dicts, with restarts and snapshots between them.

A case is a client of its own with four tables of its own, and a dozen requests: what an
answer must say, the dicts know. Its seed is all of its dice; a failure names it, and
zerodb_campaign.py plays it again. Whatever else happens to the cluster (a process killed, a
snapshot taken) is told by who runs the cases, between two of them or within one.
"""

import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import zmq

from kelek.tests.interop.zerodb import zerodb_malformed as malformed
from kelek.tests.interop.zerodb import zerodb_plain as plain
from kelek.tests.interop.zerodb.zerodb_plain import (
    Pair,
    PlainTableClient,
    RequestRefused,
    deletes,
    puts,
)

REQUESTS = 12
KEYS = [
    b"a",
    b"aa",
    b"ab",
    b"b",
    b"\0",
    b"\0\0",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff",
    b"k" * 300,
]
LONG = 300_000  # Some values are.
AWAY = ("no job_server runs", "has ended")  # What refuses a job.
Rows = dict[bytes, bytes]


class CaseContext(NamedTuple):
    """Where a case is played."""

    client: Callable[[int], PlainTableClient]  # By the kind of its socket.
    replicated: Callable[[], int]  # A table of its own.
    local: Callable[[], int]
    disturb: Callable[[Random], None]  # Restarts something, takes a snapshot, or does nothing.


class ModelCase:
    """One client's requests, each checked against the dicts."""

    def __init__(self, seed: int, ground: CaseContext) -> None:
        self.dice = Random(seed)
        self.seed = seed
        self.ground = ground
        self.kind = self.dice.choice([zmq.DEALER, zmq.REQ])
        self.client = ground.client(self.kind)
        replicated = [ground.replicated() for _ in range(3)]
        self.tables: dict[int, Rows] = {table: {} for table in (*replicated, ground.local())}
        self.local = [*self.tables][-1]
        self.behind: set[int] = set()  # Tables with writes that were acknowledged unseen.
        self.did: list[str] = []

    STEPS = (
        *["put", "put", "put", "delete", "delete_range", "delete_limited", "write_tables"],
        *["read", "exists", "count", "scan", "malformed", "malformed_unseen", "slow"],
    )
    # An engine takes 20 ms and more for these.
    SLOW = ("open", "shut", "compact", "truncate", "range_job", "forward_range")

    def run(self) -> None:
        disturbed = self.dice.randrange(REQUESTS)
        try:
            for table in self.tables:
                self.client.delete_range(table, b"", b"")
            for number in range(REQUESTS):
                step = self.dice.choice(self.STEPS)
                self.did.append(step)
                getattr(self, step)()
                if number == disturbed:
                    self.see(*self.tables)
                    self.client.close()  # What is sent to who is killed may be lost.
                    self.ground.disturb(self.dice)
                    self.client = self.ground.client(self.kind)
            self.see(*self.tables)
            for table, rows in self.tables.items():
                assert self.client.scan(table) == sorted(rows.items())
        except (AssertionError, RequestRefused) as error:
            error.add_note(f"seed {self.seed}, after {', '.join(self.did)}")
            raise
        finally:
            self.client.close()

    # ---- dice ----

    def table(self) -> int:
        return self.dice.choice([*self.tables])

    def key(self) -> bytes:
        return self.dice.choice(KEYS)

    def keys(self) -> list[bytes]:
        return [self.key() for _ in range(self.dice.randint(1, 6))]

    def value(self) -> bytes:
        return self.dice.randbytes(self.dice.choice((0, 1, 10, 10, 1000, 1000, LONG)))

    def pairs(self) -> list[Pair]:
        return [(key, self.value()) for key in self.keys()]

    def bound(self) -> bytes:
        return self.dice.choice((b"", self.key(), self.key() + b"\0"))

    def flags(self, *tables: int) -> int:
        """ASYNC writes are seen later: a reader must wait for them."""
        flags = self.dice.choice((0, plain.PARTSYNC, plain.FULLSYNC, 3))
        if not flags:
            self.behind.update(tables)
        return flags

    def see(self, *tables: int) -> None:
        """Writes of a connection to a table keep their order: behind this one, all are done."""
        for table in self.behind.intersection(tables):
            self.client.delete(table, b"never there")
        self.behind.difference_update(tables)

    # ---- writes ----

    def put(self) -> None:
        table, pairs = self.table(), self.pairs()
        self.client.put(table, *pairs, flags=self.flags(table))
        self.tables[table].update(pairs)

    def delete(self) -> None:
        table, keys = self.table(), self.keys()
        self.client.delete(table, *keys, flags=self.flags(table))
        for key in keys:
            self.tables[table].pop(key, None)

    def delete_range(self) -> None:
        table, start, end = self.table(), self.bound(), self.bound()
        self.client.delete_range(table, start, end, flags=self.flags(table))
        self.remove(table, self.within(table, start, end))

    def delete_limited(self) -> None:
        table, start, limit = self.table(), self.bound(), self.dice.choice((0, 1, 3, 1000))
        going = self.within(table, start, b"")[:limit]
        try:
            self.client.delete_limited(table, start, limit, flags=self.flags(table))
        except RequestRefused as refused:
            if table != self.local or "it may have been done" not in refused.reason:
                raise
            # Its worker was killed: of a local table, this may be done or not, but not by halves.
            if self.client.scan(table) == sorted(self.tables[table].items()):
                return
        self.remove(table, going)

    def write_tables(self) -> None:
        """Over the tables of one worker (it goes by the number), or over the local one."""
        first = self.table()
        mates = [
            table
            for table in self.tables
            if table == first or (self.local not in {table, first} and (table - first) % 2 == 0)
        ]
        parts = []
        for _ in range(self.dice.randint(1, 4)):
            table = self.dice.choice(mates)
            if self.dice.random() < 0.7:
                pairs = self.pairs()
                parts.append(puts(table, *pairs))
                self.tables[table].update(pairs)
            else:
                keys = self.keys()
                parts.append(deletes(table, *keys))
                self.remove(table, [(key, b"") for key in keys])
        self.client.write_tables(*parts, flags=self.dice.choice((0, plain.PARTSYNC)))
        self.behind.update(mates)

    def remove(self, table: int, rows: list[Pair]) -> None:
        for key, _ in rows:
            self.tables[table].pop(key, None)

    def malformed(self) -> None:
        """Refused, and nothing is written."""
        bad, table = self.dice.choice(malformed.all_bad()), self.table()
        header, *_ = self.client.ask(*bad.request(table, *malformed.flags_of(bad.kind)))
        assert (header[2], header[3]) == (bad.kind, bad.code), bad

    def malformed_unseen(self) -> None:
        """Acknowledged, and nothing is written."""
        bad, table = self.dice.choice(malformed.WRITES), self.table()
        assert self.client.ask(*bad.request(table)) == [plain.head(bad.kind, 0)], bad

    # ---- reads ----

    def within(self, table: int, start: bytes, end: bytes, inclusive: bool = False) -> list[Pair]:
        return [
            (key, value)
            for key, value in sorted(self.tables[table].items())
            if start <= key and (not end or key < end or (inclusive and key == end))
        ]

    def read(self) -> None:
        table, keys = self.table(), self.keys()
        self.see(table)
        assert self.client.read(table, *keys) == [self.tables[table].get(key, b"") for key in keys]

    def exists(self) -> None:
        table, keys = self.table(), self.keys()
        self.see(table)
        assert self.client.exists(table, *keys) == [key in self.tables[table] for key in keys]

    def count(self) -> None:
        table = self.table()
        self.see(table)
        start, end = self.dice.choice((b"", self.bound())), self.bound()
        given = self.dice.randint(0, 2)  # Bounds that are left out are none.
        wanted = self.within(table, start * (given > 0), end * (given > 1), inclusive=True)
        assert self.client.count(table, *(start, end)[:given]) == len(wanted)

    def scan(self) -> None:
        table, start, end = self.table(), self.bound(), self.bound()
        self.see(table)
        limit = self.dice.choice((None, 0, 1, 3, 1000))
        wanted = self.within(table, start, end)[:limit]
        assert self.client.scan(table, limit, start, end) == wanted

    def begin(self, ask: Callable[[], bytes]) -> bytes:
        """While a killed job_server or worker comes back, jobs are refused: nothing has begun."""
        until = time.monotonic() + plain.DEADLINE_S
        while True:
            try:
                return ask()
            except RequestRefused as refused:
                away = any(reason in refused.reason for reason in AWAY)
                if not away or time.monotonic() > until:
                    raise

    def range_job(self) -> None:
        """Its snapshot is from before what is written while it is read."""
        table, start, end = self.table(), self.bound(), self.bound()
        self.see(table)
        wanted = self.within(table, start, end, inclusive=True)
        size = self.dice.choice((None, 1, 3))
        apid = self.begin(lambda: self.client.range_job(table, size, start, end))
        if self.dice.random() < 0.5:
            self.put()
        found = [pair for chunk in self.client.chunks(apid) for pair in chunk.pairs]
        assert found == wanted

    def forward_range(self) -> None:
        table, start, end = self.table(), self.bound(), self.bound()
        self.see(table)
        limit = self.dice.choice((0, 1, 3, 1000))
        wanted = self.within(table, start, end, inclusive=True)[:limit]
        apid = self.begin(lambda: self.client.forward_range(table, start, end, limit))
        found = [pair for chunk in self.client.chunks(apid) for pair in chunk.pairs]
        assert found == wanted

    # ---- tables ----

    def slow(self) -> None:
        step = self.dice.choice(self.SLOW)
        self.did[-1] = step
        getattr(self, step)()

    def open(self) -> None:
        options = (self.dice.choice((None, 1 << 20)), self.dice.choice((None, 8 << 10)), None)
        bloom = self.dice.choice((None, 10))
        self.client.open(self.table(), *options, bloom, flags=self.dice.randint(0, 1))

    def shut(self) -> None:
        """Nothing may be going on in the table meanwhile."""
        table = self.table()
        self.see(table)
        self.client.shut(table)

    def compact(self) -> None:
        self.client.compact(self.table(), self.bound(), self.bound())

    def truncate(self) -> None:
        table = self.table()
        self.see(table)
        self.client.truncate(table)
        self.tables[table].clear()
