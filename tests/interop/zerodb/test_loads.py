"""Bulk loads while processes of the nodes are killed, and clients that stop in the middle: a reader
sees all rows of one load, and nothing is lost or doubled, counted by content."""

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest

import kelek
from kelek.clients.table import loads
from kelek.tests.interop.conftest import new_folder
from kelek.tests.interop.zerodb.tables import NODES, NodeTables
from kelek.tests.interop.zerodb.test_indexes import kill
from kelek.tests.waiting import wait_until

pyarrow = pytest.importorskip("pyarrow")

ROWS = 4000
LOADS = 9
KILLED = [
    f"{node}/{actor}" for actor in ("raft_peer", "table_worker", "zerodb_server") for node in NODES
]
TABLE, GIVEN_UP = 7, 9  # Of one worker.
TIMEOUT_MS = 120_000
JOIN_S = 240.0


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeTables]:
    monkeypatch.setattr(loads, "CHUNK_ROWS_BYTES", 4 << 10)  # Many entries of the log.
    folder = new_folder()
    tables = NodeTables(folder, NODES)
    try:
        yield tables
    finally:
        tables.stop()
        shutil.rmtree(folder)


def keys_of(number: int) -> list[bytes]:
    """Those of a load: each has some that the one before lacks."""
    return [b"%06d" % key for key in range(number, ROWS + number)]


def rows_of(number: int) -> dict[bytes, bytes]:
    return {key: b"%d of %s" % (number, key * 8) for key in keys_of(number)}


def batches_of(number: int, dice: Random) -> list[Any]:
    rows = [*rows_of(number).items()]
    dice.shuffle(rows)
    table = pyarrow.table({"key": [key for key, _ in rows], "value": [row for _, row in rows]})
    return list(table.to_batches(max_chunksize=700))


def fail_after(batches: list[Any]) -> Iterator[Any]:
    """What a task sends that is killed."""
    yield from batches
    raise InterruptedError


class Loader:
    """Loads a table again and again. Half of the loads have a task that fails and is repeated."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.done = 0
        self.seen: list[tuple[int, int]] = []  # By a reader: loads before and after a read.
        self.dice = Random(1)

    def load(self) -> None:
        with kelek.Table(self.urls, TABLE, timeout_ms=TIMEOUT_MS) as table:
            for number in range(1, LOADS + 1):
                batches = batches_of(number, self.dice)
                if number % 2:
                    assert table.load_arrow(batches, replace=True) == ROWS
                else:
                    self._load_by_tasks(table, batches)
                self.done = number

    def _load_by_tasks(self, table: kelek.Table, batches: list[Any]) -> None:
        load = table.begin_load()
        other = batches_of(99, self.dice)
        with (
            kelek.Table(self.urls[::-1], TABLE, timeout_ms=TIMEOUT_MS) as task,
            pytest.raises(InterruptedError),
        ):
            task.load_run(load, fail_after([*other, *batches[:2]]))
        runs = [table.load_run(load, batches[:3]), table.load_run(load, batches[3:])]
        table.commit_load(load, runs, replace=True)

    def read(self) -> None:
        """One request reads as of one index: it finds the rows of one load."""
        kept = [b"%06d" % key for key in (LOADS, ROWS // 2, ROWS - 1)]
        with kelek.Table(self.urls[1:], TABLE, timeout_ms=TIMEOUT_MS) as table:
            while self.done < LOADS:
                before = self.done
                found = table.get_many(kept)
                assert None not in found
                numbers = {int(value.split()[0]) for value in found}
                assert len(numbers) == 1, found
                self.seen.append((before, max(numbers)))

    def run(self, nodes: NodeTables) -> None:
        with ThreadPoolExecutor(2) as threads:
            running = [threads.submit(self.load), threads.submit(self.read)]
            for number, name in enumerate(KILLED):
                most = number * LOADS // (len(KILLED) + 2)
                wait_until(partial(self._has_loaded, most, running), deadline_s=JOIN_S)
                kill(nodes, name)
                with suppress(kelek.SnapshotRefused):  # By a node that has just been killed.
                    nodes.make_snapshot(self.dice)
        for each in running:
            each.result()

    def _has_loaded(self, count: int, running: list[Future[None]]) -> bool:
        return self.done >= count or any(each.done() for each in running)


def test_loads_while_processes_are_killed(nodes: NodeTables) -> None:
    urls = [endpoints["url"] for endpoints in nodes.endpoints.values()]
    with kelek.Table(urls, GIVEN_UP, timeout_ms=TIMEOUT_MS) as table:
        table.put("old", "1")
        given_up = table.begin_load()
        table.load_run(given_up, batches_of(50, Random(2)))
    with kelek.Table(urls, TABLE, timeout_ms=TIMEOUT_MS) as table:
        table.load_arrow(batches_of(0, Random(2)), replace=True)
    loader = Loader(urls)
    loader.run(nodes)
    assert len(loader.seen) > 10
    assert nodes.disturbances["snapshots"] > 0
    for before, number in loader.seen:
        assert number >= before, "an acknowledged load is seen"
    for url in urls:
        with kelek.Table(url, TABLE, timeout_ms=TIMEOUT_MS) as table:
            assert dict(table.scan()) == rows_of(LOADS)
        with kelek.Table(url, GIVEN_UP, timeout_ms=TIMEOUT_MS) as table:
            assert dict(table.scan()) == {b"old": b"1"}
    hashes = set()
    for url in urls:
        with kelek.Table(url, TABLE, timeout_ms=TIMEOUT_MS) as table:
            info = table.info(content=True)
            assert info is not None
            hashes.add(info["content"])
    assert len(hashes) == 1
    with kelek.Table(urls, GIVEN_UP, timeout_ms=TIMEOUT_MS) as table:
        table.drop_load(given_up)
