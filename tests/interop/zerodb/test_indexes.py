"""Indexes of writes and reads while processes of the nodes are killed: each is the one at which the
log has the write, and each read is the state as of its index. Versions are those of the log, too.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import islice
from random import Random
from typing import NamedTuple

import pytest

import kelek
from kelek.bench.kelek_cluster import actor_name, children_of
from kelek.tests.interop.conftest import new_folder
from kelek.tests.interop.zerodb.tables import NODES, NodeTables
from kelek.tests.waiting import wait_until

WRITERS, READERS = 3, 2
WRITES = 120  # Of a writer.
# In turn; one of the peers leads.
KILLED = [
    f"{node}/{actor}" for actor in ("raft_peer", "zerodb_server", "table_worker") for node in NODES
]
KEYS = ("a", "b", "c")
TIMEOUT_MS = 120_000
JOIN_S = 240.0


class Write(NamedTuple):
    """A write of a key, and the index that the client learned."""

    key: bytes
    value: bytes | None
    log_index: int | None


@pytest.fixture
def nodes() -> Iterator[NodeTables]:
    folder = new_folder()
    tables = NodeTables(folder, NODES)
    try:
        yield tables
    finally:
        tables.stop()
        shutil.rmtree(folder)


class Storm:
    """Clients of a table, all of which may use any node."""

    def __init__(self, urls: list[str], number: int) -> None:
        self.urls, self.number = urls, number
        self.writes: list[Write] = []
        self.reads: list[tuple[str, bytes | None, int]] = []  # Key, value, index.
        self.ended = False

    def table(self, dice: Random) -> kelek.Table:
        urls = dice.sample(self.urls, len(self.urls))
        return kelek.Table(urls, self.number, timeout_ms=TIMEOUT_MS)

    def write(self, seed: int) -> None:
        dice = Random(seed)
        with self.table(dice) as table:
            for number in range(WRITES):
                key = dice.choice(KEYS)
                value: bytes | None = b"writer %d, %d" % (seed, number)
                kind = dice.randrange(5)
                if kind == 0:
                    index = table.put(key, value, ttl_s=3600)
                elif kind == 1:
                    batch = table.batch().when_absent("never").put(key, value)
                    index = table.commit(batch).index
                elif kind == 2:
                    value, index = None, table.delete(key)
                else:
                    index = table.put(key, value)
                self.writes.append(Write(key.encode(), value, index))

    def read(self, seed: int) -> None:
        dice = Random(seed)
        with self.table(dice) as table:
            while not self.ended:
                key = dice.choice(KEYS)
                self.reads.append((key, *table.get_entry(key)[:2]))

    def run(self, nodes: NodeTables) -> None:
        with ThreadPoolExecutor(WRITERS + READERS) as threads:
            writers = [threads.submit(self.write, seed) for seed in range(WRITERS)]
            readers = [threads.submit(self.read, WRITERS + seed) for seed in range(READERS)]
            for number, name in enumerate(KILLED, 1):
                most = number * WRITERS * WRITES // (len(KILLED) + 2)
                wait_until(
                    partial(self._has_written, most, writers),
                    deadline_s=JOIN_S,
                )
                kill(nodes, name)
            wait(writers)
            self.ended = True
        for each in (*writers, *readers):
            each.result()

    def _has_written(self, count: int, writers: list[Future[None]]) -> bool:
        return len(self.writes) >= count or any(writer.done() for writer in writers)


def keeps_versions(table: kelek.Table) -> bool:
    """Once all nodes have started and said that they know versions."""
    with suppress(kelek.TableUnsupported):
        table.open(versions=True)
        return True
    return False


def kill(nodes: NodeTables, name: str) -> None:
    """SIGKILL of an actor, whose supervisor starts it again."""
    pids = [pid for pid in children_of(nodes.cluster.process.pid) if actor_name(pid) == name]
    assert pids, f"no process of {name}"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_indexes_while_processes_are_killed(nodes: NodeTables) -> None:
    urls = [endpoints["url"] for endpoints in nodes.endpoints.values()]
    storm = Storm(urls, 7)
    with kelek.Table(urls, 7, timeout_ms=TIMEOUT_MS) as table:
        wait_until(lambda: keeps_versions(table), "not all members know versions")
        before = table.put("first", "")
        assert before is not None
        storm.run(nodes)
        count = WRITERS * WRITES
        assert len(storm.writes) == count
        assert len(storm.reads) > 20
        changes = list(islice(table.watch(after=before), count))
        last = table.get_entry("first").index
        versions = {key: table.get_entry(key).version for key in KEYS}
        assert list(table.watch(after=changes[-1].index, timeout_s=0)) == []
    found = sorted((it.index, it.key, it.value) for it in changes if it.value is not None)
    told = sorted(
        (it.log_index, it.key, it.value)
        for it in storm.writes
        if it.value is not None and it.log_index
    )
    assert told == found
    deletes = sorted((it.index, it.key) for it in changes if it.value is None)
    assert deletes == sorted(
        (it.log_index, it.key) for it in storm.writes if it.value is None and it.log_index
    )
    # The state behind each entry.
    states: dict[bytes, list[tuple[int, bytes | None]]] = {
        key.encode(): [(before, None)] for key in KEYS
    }
    expected = dict.fromkeys(KEYS, (0, 0))
    for change in changes:
        states[change.key].append((change.index, change.value))
        key, is_put = change.key.decode(), change.value is not None
        expected[key] = (change.index, expected[key][1] + 1) if is_put else (0, 0)
    assert versions == expected
    for key, value, index in storm.reads:
        assert before <= index <= last
        known = [it for at, it in states[key.encode()] if at <= index]
        assert value == known[-1], (key, index)
