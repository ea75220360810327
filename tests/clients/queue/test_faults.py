"""Queues while their workers are killed and stopped, and nodes are killed.

KELEK_QUEUE_KILLS makes the drill longer; it is the number of workers that are killed.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import kelek
from kelek.tests.clients.queue.drill_worker import EFFECTS
from kelek.tests.table_cluster import TableCluster

KILLS = int(os.environ.get("KELEK_QUEUE_KILLS", "5"))
SEED = int(os.environ.get("KELEK_SEED", "1"))
WORKERS = 4
TTL_S = 2.0
JOB_MS = 20
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[TableCluster]:
    cluster = TableCluster()
    try:
        yield cluster
    finally:
        cluster.stop()


class QueueDrill:
    """A queue, its workers and what they have written."""

    def __init__(self, cluster: TableCluster, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.urls = ",".join(cluster.urls.values())
        self.name = folder.name
        self.queue = stack.enter_context(kelek.Queue(self.urls, self.name))
        self.workers: list[subprocess.Popen[str]] = []

    def begin(self, prefetch: int = 16) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "kelek.tests.clients.queue.drill_worker", self.urls]
        words = [self.name, str(self.folder), str(TTL_S), str(prefetch)]
        worker = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        self.stack.callback(worker.stdout.close)
        self.stack.callback(worker.wait)
        self.stack.callback(worker.kill)
        self.workers.append(worker)
        return worker

    def until(self, holds: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline_s, self.queue.info()
            threading.Event().wait(0.05)

    def is_done(self) -> bool:
        """Whether each job has ended. One that comes back from a killed worker between two of the
        reads is seen by the third."""
        states = ("running", "waiting", "running")
        return not any(self.queue.jobs(state, limit=1) for state in states)

    def executions(self) -> Counter[str]:
        """How often each job began."""
        lines = [
            line.split()[0]
            for path in self.folder.iterdir()
            if path.name.isdigit()
            for line in path.read_text().splitlines()
        ]
        return Counter(lines)

    def effects(self) -> Counter[str]:
        """How often each job took effect."""
        with kelek.Table(self.urls, EFFECTS) as table:
            return Counter(key.decode().split("/")[0] for key in table.keys())  # noqa: SIM118


@pytest.fixture
def drill(cluster: TableCluster, tmp_path: Path) -> Iterator[QueueDrill]:
    folder = tmp_path / f"q{random.Random(str(tmp_path)).randrange(10**9)}"
    folder.mkdir()
    with ExitStack() as stack:
        yield QueueDrill(cluster, folder, stack)


@pytest.mark.parametrize("prefetch", [1, 16])
def test_workers_are_killed_while_they_hold_jobs(drill: QueueDrill, prefetch: int) -> None:
    """Each job takes effect once. Those that ran twice were held by a worker that was killed: with
    a prefetch of 1 that is at most one job a kill."""
    randomly = random.Random(SEED)
    jobs = drill.queue.put_many([JOB_MS] * 200, tries=50)
    for _ in range(WORKERS):
        drill.begin(prefetch)
    for _ in range(KILLS):
        victim = randomly.choice(drill.workers)
        path = drill.folder / str(victim.pid)
        drill.until(partial(has_lines, path))
        jobs += drill.queue.put_many([JOB_MS] * 60, tries=50)
        threading.Event().wait(randomly.uniform(0, 0.2))
        assert not drill.is_done(), "it holds jobs"
        victim.kill()
        victim.wait()
        drill.workers.remove(victim)
        drill.begin(prefetch)
    drill.until(drill.is_done)
    executions, effects = drill.executions(), drill.effects()
    assert {*executions} == {*jobs}, "none is lost"
    assert {job: effects[job] for job in jobs} == dict.fromkeys(jobs, 1)
    doubled = sum(count - 1 for count in executions.values())
    print(f"{len(jobs)} jobs, {KILLS} kills, prefetch {prefetch}: {doubled} ran again")
    assert doubled <= KILLS * prefetch
    assert drill.queue.jobs("dead") == []


def test_a_job_that_kills_its_worker_is_a_dead_letter(drill: QueueDrill) -> None:
    """Its neighbours end well, though their worker was killed, too."""
    jobs = drill.queue.put_many([0] * 50 + ["poison"] + [0] * 50)
    poison = jobs[50]
    drill.begin()

    def is_done() -> object:
        for worker in [*drill.workers]:
            if worker.poll() is not None:  # As a supervisor does.
                drill.workers.remove(worker)
                drill.begin()
        return drill.queue.jobs("dead") and drill.is_done()

    drill.until(is_done)
    (dead,) = drill.queue.jobs("dead")
    assert dead.id == poison
    assert [text for _, text in dead.errors] == ["its worker ended"] * 3
    with pytest.raises(kelek.JobFailed, match="its worker ended"):
        drill.queue.result(poison)
    executions, effects = drill.executions(), drill.effects()
    assert executions[poison] in (3, 4), "once among others, three times alone"
    assert effects[poison] == 0
    assert all(effects[job] == 1 for job in jobs if job != poison)


def test_a_late_acknowledgement_is_refused(drill: QueueDrill) -> None:
    """A worker is stopped while it holds a job; another has it; then the first one goes on."""
    job = drill.queue.put("hold")
    first = drill.begin()
    drill.until((drill.folder / "held").exists)
    first.send_signal(signal.SIGSTOP)
    (drill.folder / "held").unlink()
    second = drill.begin()
    drill.until((drill.folder / "held").exists)
    first.send_signal(signal.SIGCONT)
    (drill.folder / "go").touch()
    drill.until(drill.is_done)
    for worker in (first, second):
        worker.send_signal(signal.SIGTERM)
    lost = [int(worker.communicate(timeout=DEADLINE_S)[0]) for worker in (first, second)]
    assert lost == [1, 0]
    assert drill.executions()[job] == 2
    with kelek.Table(drill.urls, EFFECTS) as table:
        (effect,) = table.keys(prefix=job)
    assert effect.decode().split("/")[1] == str(second.pid)


def test_the_leaders_node_is_killed(drill: QueueDrill, cluster: TableCluster) -> None:
    jobs = drill.queue.put_many([JOB_MS] * 400, tries=50)
    for _ in range(2):
        drill.begin()
    drill.until(lambda: len(drill.executions()) > 50)
    node = cluster.leader()
    cluster.kill(node)
    more = drill.queue.put_many([JOB_MS] * 50)
    drill.until(lambda: len(drill.executions()) > 250)
    cluster.start(node)
    drill.until(drill.is_done)
    effects = drill.effects()
    assert all(effects[job] == 1 for job in jobs + more)
    assert drill.queue.jobs("dead") == []


def has_lines(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
