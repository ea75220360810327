"""`kelek lock` and `kelek elect` against a cluster of one node."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import kelek
import kelek.testing
from kelek.clients.lock.limits import LOCK_TABLE
from kelek.console.lock.commands import Runner
from kelek.testing.local_cluster import LocalCluster
from kelek.tests.console.kelek_runner import fails, ok, run

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with kelek.testing.cluster(nodes=1) as cluster:
        yield cluster


@contextmanager
def begin(cluster: LocalCluster, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "kelek.console.kelek_cli", *words[:1], "-t", cluster.topology]
    with subprocess.Popen(
        [*command, *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.02)


def test_a_command_runs_while_the_lock_is_held(cluster: LocalCluster, tmp_path: Path) -> None:
    note = tmp_path / "note"
    words = "-t", cluster.topology, "job"
    shell = f'echo "$KELEK_TOKEN $KELEK_SESSION" > {note}; exit 3'
    done = run("lock", "--owner", "a", *words, "--", "sh", "-c", shell)
    assert done.exit_code == 3, done.output
    token, session = map(int, note.read_text().split())
    assert token > 0
    assert session > 0
    assert ok("lock", *words) == "holder  place\n", "it is free"
    with kelek.Lock(cluster.table_urls, "job", owner="host-1"):
        code, line = fails("lock", "--wait", "0", *words, "--", "touch", tmp_path / "never")
        assert code == 1
        assert line == "kelek: job: not free, host-1 holds it; COMMAND was not run"
        assert ok("lock", *words).splitlines()[1].split() == ["host-1", "holds"]
        rows = ok("lock", "-o", "json", *words)
        assert json.loads(rows) == {"name": "host-1", "waits": 0}
        assert ok("lock", "--limit", "2", *words, "--", "true") == "", (
            "a semaphore is another thing"
        )
    assert not (tmp_path / "never").exists()
    code, line = fails("lock", *words, "--", str(tmp_path / "none"))
    assert code == 127
    assert "No such file or directory" in line


def test_signals_reach_the_command(cluster: LocalCluster) -> None:
    script = "trap 'echo ended; exit 7' TERM; echo begun; for i in $(seq 600); do sleep 0.1; done"
    with begin(cluster, "lock", "signals", "--", "sh", "-c", script) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "begun\n"
        holder.terminate()
        assert holder.stdout.read() == "ended\n"
        assert holder.wait(DEADLINE_S) == 7
    with kelek.Lock(cluster.table_urls, "signals") as lock:
        assert [each.name for each in lock.holders()] != []


def test_a_command_ends_when_the_lock_is_lost(cluster: LocalCluster) -> None:
    words = "lock", "--ttl", "1", "lost", "--", "sh", "-c", "echo begun; exec sleep 60"
    with begin(cluster, *words) as holder, kelek.Table(cluster.table_urls, LOCK_TABLE) as table:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "begun\n"
        os.kill(holder.pid, signal.SIGSTOP)
        until(lambda: not list(table.scan(prefix=b"lock/lost")))
        os.kill(holder.pid, signal.SIGCONT)
        assert holder.wait(DEADLINE_S) == 1
        assert holder.stderr is not None
        assert "lock/lost: its session ended" in holder.stderr.read()


def test_an_election(cluster: LocalCluster) -> None:
    script = "echo $KELEK_TOKEN; exec sleep 60"
    words = "elect", "--ttl", "1", "chief", "--", "sh", "-c", script
    election = kelek.Election(cluster.table_urls, "chief", ttl_s=30, owner="first")
    with ExitStack() as stack, kelek.Table(cluster.table_urls, LOCK_TABLE) as table:
        with election:
            token = election.token
            leader = stack.enter_context(begin(cluster, *words))
            until(lambda: len(election.candidates()) == 2)
            shown = ok("elect", "-t", cluster.topology, "chief")
            assert shown.splitlines()[1].split() == ["first", "leads"]
        assert leader.stdout is not None
        first = int(leader.stdout.readline())
        assert first > token
        os.kill(leader.pid, signal.SIGSTOP)
        until(lambda: not list(table.scan(prefix=b"election/chief")))
        os.kill(leader.pid, signal.SIGCONT)
        assert int(leader.stdout.readline()) > first, "it leads again, with a new command"
        leader.terminate()
        assert leader.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert leader.stderr is not None
        assert "waiting again" in leader.stderr.read()


def test_a_signal_that_comes_early() -> None:
    """Between the fork and the moment in which the process of the command is known."""
    runner = Runner(["sleep", "60"], 1)
    runner.on_lost()
    assert runner.run(1, 2) == 128 + signal.SIGTERM


def test_what_is_refused(cluster: LocalCluster) -> None:
    assert fails("lock", "-t", cluster.topology, "x" * 2000)[0] == 2
    assert fails("lock", "-t", cluster.topology, "--ttl", "0.1", "a", "--", "true")[0] == 2
    assert (
        fails("lock", "--url", "tcp://127.0.0.1:1", "--timeout", "0.2", "a", "--", "true")[0] == 1
    )
