"""The long form: each way to read and to write, while each part is killed.

KELEK_SPARK_KILLS says how many rounds there are; KELEK_SEED how they are drawn.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kelek.tests.crash.machines.machines import NODES
from kelek.tests.pipeline.cluster.job import ADDED, DELETED, MERGED, RECORDS, ROWS
from kelek.tests.pipeline.cluster.spark_machines import DRIVER, PAGE, Gate, Job, SparkMachines
from kelek.tests.pipeline.cluster.test_spark_machines import (
    digest,
    rows,
    run_the_page,
    running,
)
from kelek.tests.test_docs import commands, section
from kelek.tests.test_packaging import copied, pip
from kelek.tests.waiting import wait_until

pytest.importorskip("pyspark", reason="the extra kelek[spark] is not installed")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("KELEK_SEED", "1"))
KILLS = int(os.environ.get("KELEK_SPARK_KILLS", "1"))
VICTIMS = "executor", "worker", "node", "leader", "driver"
PASS_MAX = 3  # Tasks that pass the gate before the others are held; each step but one has more.

WRITTEN = rows(0, ROWS, "name")
MERGED_ROWS = WRITTEN[:-MERGED] + rows(ROWS - MERGED, ROWS + ADDED, "merged")
UPDATED = rows(0, MERGED, "updated") + MERGED_ROWS[MERGED:]

# The steps in their order, the table behind each, and whether something is killed in its middle.
STORY: list[tuple[str, list[list[object]], bool]] = [
    ("create", [], False),
    ("write", WRITTEN, True),
    ("scan", WRITTEN, True),
    ("keep", [], False),
    ("copy_changes", WRITTEN, True),
    ("merge", MERGED_ROWS, True),
    ("update", UPDATED, True),
    ("delete", UPDATED[DELETED:], True),
    ("copy_changes", UPDATED[DELETED:], True),
    ("scan_kept", WRITTEN, True),
    ("replace", rows(0, ROWS, "new"), True),
    ("fill_stream", [], False),
    ("copy_stream", [], True),
    ("to_log", [], True),
    ("append_log", [], True),
]
REPEATS_APPEND = {"append_log"}  # Another run of such a job is another job.


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkMachines]:
    yield from running()


class Trial:
    """The story, in each step of which something of a kind is killed."""

    def __init__(self, cluster: SparkMachines, victim: str, number: int) -> None:
        self._cluster, self._victim, self._run = cluster, victim, f"_{victim}_{number}"
        self._dice = Random(f"{SEED} {self._run}")
        self._restart: Callable[[], object] = lambda: None
        self._story = [
            (step, after, is_held and not (victim == "driver" and step in REPEATS_APPEND))
            for step, after, is_held in STORY
        ]

    def __call__(self) -> None:
        with self._cluster.gate() as gate:
            passing = [
                0 if step == "copy_changes" else self._dice.randint(0, PASS_MAX)
                for step, _, _ in self._story
            ]
            for number, count in enumerate(passing):
                gate.hold(self._place(number), count)
            begin = 0
            while begin < len(self._story):
                begin = self._go_on(gate, begin, passing)

    def _place(self, number: int) -> str:
        return f"{self._story[number][0]}{number}{self._run}"

    def _go_on(self, gate: Gate, begin: int, passing: list[int]) -> int:
        """One driver, from a step on; where the next one begins."""
        words = [
            f"{step}:{self._place(number) if is_held else ''}"
            for number, (step, _, is_held) in enumerate(self._story)
        ]
        with self._cluster.submit(self._run, *words[begin:]) as job:
            for number in range(begin, len(words)):
                place, count = self._place(number), passing[number]
                # A driver that follows a killed one finds the gate open.
                if self._story[number][2] and count >= 0:
                    job.wait_for(lambda: len(gate.arrived(place)) > count)  # noqa: B023
                    self._kill(job, gate.arrived(place)[-1])
                    gate.open(place)
                    passing[number] = -1
                    if self._victim == "driver":
                        return number
                self._check(number, job.result(words[number]))
                self._restart()
                self._restart = lambda: None
            job.end()
        return len(words)

    def _kill(self, job: Job, address: str) -> None:
        """The task at this address is held."""
        machines = self._cluster.machines
        worker = self._cluster.worker_at(address)
        if self._victim == "executor":
            assert self._cluster.kill_executors(worker) > 0
        elif self._victim == "worker":
            assert machines.kill(worker) > 1
            self._restart = lambda: self._cluster.start_worker(worker)
        elif self._victim == "driver":
            assert machines.kill(DRIVER) > 1
            job.ended()
        else:
            leader = wait_until(machines.leader, "no leader")
            others = [node for node in NODES if node != leader]
            node = leader if self._victim == "leader" else self._dice.choice(others)
            assert machines.kill(node) > 0
            self._restart = lambda: machines.start(node)

    def _check(self, number: int, found: Any) -> None:
        """Nothing is lost or doubled, by content."""
        step, after, _ = self._story[number]
        run, content = self._run, self._cluster.content
        if step in ("scan", "scan_kept"):
            assert found == [ROWS - 1000, digest(after[1000:])]
        elif after:
            name = "copy" if step == "copy_changes" else "orders"
            assert content("rows", f"{name}{run}") == after, step
        elif step == "copy_stream":
            assert Counter(content("stream", f"copied{run}")) == numbered("event ", RECORDS)
        elif step in ("to_log", "append_log"):
            batch = step == "append_log"
            begin = f"batch{run} " if batch else f"stream{run} event "
            values = [value for value in content("log") if value.startswith(begin)]
            assert Counter(values) == numbered(begin, ROWS if batch else RECORDS)


def numbered(begin: str, count: int) -> Counter[str]:
    return Counter(f"{begin}{number}" for number in range(count))


def test_the_archive_of_the_page(cluster: SparkMachines, tmp_path: Path) -> None:
    """Made by the page's commands, of a wheel; the page's job runs with it."""
    pip("wheel", "--no-deps", "-w", tmp_path, copied(tmp_path / "source"))
    [packing] = [block for block in section(*PAGE) if "--target environment" in block.text]
    for command, _ in commands(packing):
        words = command.replace("python3", shlex.quote(sys.executable))
        subprocess.run(["bash", "-c", words], cwd=tmp_path, check=True)
    driver = cluster.machines.shells[DRIVER].folder
    shutil.rmtree(driver / "environment")
    shutil.move(tmp_path / "environment", driver)
    shutil.copy(tmp_path / "environment.zip", driver)
    run_the_page(cluster)


@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("victim", VICTIMS)
def test_kills(cluster: SparkMachines, victim: str, number: int) -> None:
    Trial(cluster, victim, number)()
