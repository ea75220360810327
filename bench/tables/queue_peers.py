"""Dramatiq and Celery on Redis, as comparison for kelek's queues.

Both keep their messages in the primary of two Redis servers with `appendfsync always`: a job that
is put is on its disk, and on its way to the replica. KELEK_QUEUE_PYTHON names the Python that has
`dramatiq[redis]` and `celery[redis]`; by default this one. What it lacks is left out.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from kelek.bench.machine import BenchError
from kelek.bench.peers import POLL_S, START_S_MAX, reap, spawn
from kelek.bench.tables.peers import Redis

PYTHON = os.environ.get("KELEK_QUEUE_PYTHON", sys.executable)

DRAMATIQ = """
import os, sys
import dramatiq
from dramatiq.brokers.redis import RedisBroker
broker = RedisBroker(url=os.environ["REDIS"])
dramatiq.set_broker(broker)

@dramatiq.actor(max_retries=3)
def work(body): pass

put = work.send
def left():
    return broker.client.hlen("dramatiq:default.msgs")
"""
CELERY = """
import os, sys
import celery, redis
app = celery.Celery("jobs", broker=os.environ["REDIS"])
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=4,
                broker_connection_retry_on_startup=True)
client = redis.Redis.from_url(os.environ["REDIS"])

@app.task
def work(body): pass

put = work.delay
def left():
    return client.llen("celery") + client.hlen("unacked")
"""
# Reads counts from stdin; answers each with the seconds until so many jobs are put and done.
# Neither package has a put of many: each put waits for its answer.
PRODUCER = """
import sys, time
import jobs
for line in sys.stdin:
    began_s = time.monotonic()
    for _ in range(int(line)):
        jobs.put(None)
    while jobs.left():
        time.sleep(0.01)
    print(time.monotonic() - began_s, flush=True)
"""


class QueueKind(NamedTuple):
    """A queue of others: its package, its module of jobs, and its workers' command."""

    name: str
    module: str
    workers: tuple[str, ...]


KINDS = (
    QueueKind(
        "dramatiq", DRAMATIQ, ("dramatiq", "jobs", "--processes", "{workers}", "--threads", "1")
    ),
    QueueKind(
        "celery",
        CELERY,
        ("celery", "-A", "jobs", "worker", "--concurrency", "{workers}", "--loglevel", "ERROR"),
    ),
)


def is_installed(name: str) -> bool:
    command = [PYTHON, "-c", f"import {name}, redis"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class PeerQueue:
    """A queue of others: its Redis, its workers, and a producer that notes the time."""

    def __init__(self, kind: QueueKind, directory: Path, workers: int) -> None:
        if not is_installed(kind.name):
            raise BenchError(f"{kind.name} is missing in {PYTHON} (KELEK_QUEUE_PYTHON)")
        self.name = kind.name
        self._redis = Redis(directory / "redis")
        self._directory = directory
        self._command = [PYTHON, "-m", *(word.format(workers=workers) for word in kind.workers)]
        directory.mkdir(parents=True)
        (directory / "jobs.py").write_text(kind.module)
        self._workers: subprocess.Popen[bytes] | None = None
        self._producer: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._redis.start_fresh()
        url = f"redis://127.0.0.1:{self._redis.ports[0]}/0"
        folder = self._directory
        env = {**os.environ, "REDIS": url, "PYTHONPATH": str(folder)}
        self._workers = spawn(self._command, folder / "workers.log", env=env, cwd=folder)
        self._producer = subprocess.Popen(
            [PYTHON, "-c", PRODUCER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=env, cwd=folder,
        )  # fmt: skip
        self.seconds(4)  # The workers have started.

    def seconds(self, count: int) -> float:
        """How long it takes until so many jobs are put and done."""
        producer = self._producer
        assert producer is not None
        assert producer.stdin is not None
        assert producer.stdout is not None
        producer.stdin.write(f"{count}\n")
        producer.stdin.flush()
        line = producer.stdout.readline()
        if not line:
            raise BenchError(f"{self.name} ended; see {self._directory}/workers.log")
        return float(line)

    def stop(self) -> None:
        if self._producer is not None:
            self._producer.kill()
            self._producer.communicate()
        if self._workers is not None:
            os.killpg(self._workers.pid, signal.SIGTERM)
            until_s = time.monotonic() + START_S_MAX
            while self._workers.poll() is None and time.monotonic() < until_s:
                time.sleep(POLL_S)
            reap([self._workers], signal.SIGKILL)
        self._redis.stop()
