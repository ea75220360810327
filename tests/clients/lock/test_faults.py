"""Locks while their holders stop, die and have slow clocks, and the cluster is killed.

KELEK_LOCK_FAULTS makes the drill longer (./check --long locks); it is the number of faults.
"""

import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import kelek
import kelek.testing
from kelek.testing.local_cluster import LocalCluster
from kelek.tests.clients.lock.holder import FENCE, KINDS

FAULTS = int(os.environ.get("KELEK_LOCK_FAULTS", "4"))
SEED = int(os.environ.get("KELEK_SEED", "1"))
HOLDERS = 4
TTL_S = 1.0
TABLE = 30
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with kelek.testing.cluster() as cluster:
        with kelek.Table(cluster.table_urls, TABLE) as table:
            table.put(FENCE, bytes(8))
        yield cluster


class HolderProcess:
    """A holder, and the lines that it has printed."""

    def __init__(self, cluster: LocalCluster, owner: str, ttl_s: float, *words: str) -> None:
        urls = ",".join(cluster.table_urls)
        command = [sys.executable, "-m", "kelek.tests.clients.lock.holder"]
        self.process = subprocess.Popen(
            [*command, urls, str(TABLE), owner, str(ttl_s), *words],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[list[str]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.split())

    def wait_for(self, *words: str) -> list[str]:
        """The next line that begins with these words."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            line = self.lines.get(timeout=max(deadline_s - time.monotonic(), 0.001))
            if tuple(line[: len(words)]) == words:
                return line

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def tokens_by_kind(cluster: LocalCluster) -> dict[bytes, list[int]]:
    """The tokens of accepted writes, in the order of the log."""
    found: dict[bytes, list[int]] = {kind: [] for kind in KINDS}
    with kelek.Table(cluster.table_urls, TABLE) as table:
        table.put(b"zz/end", os.urandom(8))
        for change in table.watch(after=1):
            kind, _, rest = change.key.partition(b"/")
            if kind in found:
                found[kind].append(int.from_bytes(rest[:8], "big"))
            if change.key == b"zz/end" and change.value == table.get(b"zz/end"):
                return found
    raise AssertionError


def test_a_holder_that_was_stopped_writes_nothing_late(cluster: LocalCluster) -> None:
    """It is stopped before its first write; another takes the lock; then the first one goes on."""
    with ExitStack() as stack:
        first = HolderProcess(cluster, "first", TTL_S, "stops")
        stack.callback(first.close)
        first.wait_for("taken")
        second = HolderProcess(cluster, "second", TTL_S)
        stack.callback(second.close)
        taken = int(second.wait_for("taken")[1])
        second.wait_for("taken")
        second.signal(signal.SIGSTOP)
        first.signal(signal.SIGCONT)
        late = first.wait_for("refused")
        assert int(late[2]) < taken
        assert first.wait_for("refused")[1] != late[1], "both guards refuse it"
    found = tokens_by_kind(cluster)
    assert found[b"alive"] == sorted(found[b"alive"])
    assert found[b"fenced"] == sorted(found[b"fenced"])
    assert found[b"bare"] != sorted(found[b"bare"]), "without a guard the write comes late"


def test_a_dead_holder_is_followed_in_time(cluster: LocalCluster) -> None:
    ttl_s = 4.0
    with ExitStack() as stack:
        first = HolderProcess(cluster, "first", ttl_s)
        stack.callback(first.close)
        first.wait_for("taken")
        first.close()
        killed_s = time.monotonic()
        with kelek.Lock(cluster.table_urls, "drill", ttl_s=ttl_s) as lock:
            assert time.monotonic() - killed_s <= 1.5 * ttl_s
            with kelek.Lock(cluster.table_urls, "other", ttl_s=ttl_s):
                assert lock.held


def test_no_guarded_write_is_late_under_faults(cluster: LocalCluster) -> None:
    randomly = random.Random(SEED)
    with ExitStack() as stack:

        def begin(number: int) -> HolderProcess:
            words = ["slow"] if number == 0 else []
            holder = HolderProcess(cluster, str(number), TTL_S, *words)
            stack.callback(holder.close)
            return holder

        holders = [begin(number) for number in range(HOLDERS)]
        for each in holders:
            each.wait_for("taken")
        for fault in range(FAULTS):
            number = randomly.randrange(HOLDERS)
            victim = holders[number]
            if fault % 4 == 3:
                cluster.kill()
                cluster.start()
            elif fault % 4 == 2:
                victim.close()
                victim = holders[number] = begin(number)
            else:
                victim.signal(signal.SIGSTOP)
                threading.Event().wait(randomly.uniform(0.1, 1.5) * TTL_S)
                victim.signal(signal.SIGCONT)
            while not victim.lines.empty():
                victim.lines.get()
            victim.wait_for("taken")  # The lock passes on.
    found = tokens_by_kind(cluster)
    assert len({*found[b"alive"]}) > 2 * FAULTS
    assert found[b"alive"] == sorted(found[b"alive"])
    assert found[b"fenced"] == sorted(found[b"fenced"])
