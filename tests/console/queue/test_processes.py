"""`kelek worker run MODULE:QUEUE` in one process and in several."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kelek
import kelek.testing
from kelek.testing.local_cluster import LocalCluster

DEADLINE_S = 60.0
MODULE = """
import os
import kelek

queue = kelek.Queue({urls!r}, {name!r}, tuning=kelek.QueueTuning(worker_ttl_s=3))


@queue.worker
def work(job):
    return [{version}, os.getpid()]
"""
ASYNC_MODULE = """
import kelek

queue = kelek.AsyncQueue({urls!r}, {name!r})


@queue.worker(concurrency=4)
async def work(job):
    return job.body * 2
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with kelek.testing.cluster(nodes=1) as cluster:
        yield cluster


@contextmanager
def begin(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "kelek", "worker", "run", *words]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.05)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_one_process_works_until_a_signal(cluster: LocalCluster, tmp_path: Path) -> None:
    text = MODULE.format(urls=cluster.table_urls, name="one", version=1)
    (tmp_path / "jobs.py").write_text(text)
    with begin(tmp_path, "jobs:queue") as process, kelek.Queue(cluster.table_urls, "one") as queue:
        job = queue.put(1)
        assert queue.result(job, timeout_s=DEADLINE_S) == [1, process.pid]
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert "working queue=one" in out
        assert "ended queue=one claimed=1 done=1" in out
        assert queue.info()["workers"] == 0


def test_a_coroutine_works_until_a_signal(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(ASYNC_MODULE.format(urls=cluster.table_urls, name="two"))
    with begin(tmp_path, "jobs:queue") as process, kelek.Queue(cluster.table_urls, "two") as queue:
        assert queue.result(queue.put("ab"), timeout_s=DEADLINE_S) == "abab"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert "done=1" in out


def test_processes_are_replaced_and_loaded_again(cluster: LocalCluster, tmp_path: Path) -> None:
    """One dies; a file changes; the parent ends; the parent dies."""
    module = tmp_path / "jobs.py"
    module.write_text(MODULE.format(urls=cluster.table_urls, name="many", version=1))
    with kelek.Queue(cluster.table_urls, "many") as queue:

        def work() -> tuple[int, int]:
            version, pid = queue.result(queue.put(1), timeout_s=DEADLINE_S)
            return version, pid

        def has_workers(count: int) -> bool:
            return queue.info()["workers"] == count

        with begin(tmp_path, "jobs:queue", "--processes", "2", "--reload") as process:
            until(lambda: has_workers(2))
            version, pid = work()
            assert version == 1
            os.kill(pid, signal.SIGKILL)
            until(lambda: has_workers(2) and work()[1] != pid)
            old = work()[1]  # One that starts behind the change may be new by itself.
            module.write_text(MODULE.format(urls=cluster.table_urls, name="many", version=2))
            until(lambda: work()[0] == 2 and not is_there(old))
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0
            assert f"pid={pid} ended code=-9" in err
            assert "files have changed" in err
        with begin(tmp_path, "jobs:queue", "--processes", "2") as process:
            pid = work()[1]
            process.kill()
            until(lambda: not is_there(pid))


def test_a_worker_that_cannot_begin(cluster: LocalCluster, tmp_path: Path) -> None:
    with begin(tmp_path, "jobs:queue", "--processes", "2") as process:
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 2
        assert "No module named 'jobs'" in err
        assert "a worker could not begin" in err
