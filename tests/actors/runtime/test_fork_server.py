"""The fork server of a supervisor: what it forks, and what happens when it is killed."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kelek.actors.runtime.fork_server import ForkServer
from kelek.net.poll_loop import PollLoop
from kelek.tests.actors.conftest import DEADLINE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def running(start: Callable[..., Any]) -> Any:
    running = start()
    running.wait_event("all-ready")
    return running


def test_an_actor_has_its_own_command_line_and_group(running: Any) -> None:
    (pid,) = running.pids("peer")
    words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    setup = f"{running.options['run_dir']}/n1/peer.json"
    assert words[1:4] == [b"-P", b"-m", b"kelek.actors"]
    assert words[5:] == [b"--setup", setup.encode()]
    assert os.getpgid(pid) == pid
    open_files = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    (other,) = running.pids("machine")
    log = os.readlink(f"/proc/{other}/fd/1")
    assert log not in open_files, "the pipes of others would end too late"


def test_all_actors_have_the_same_fork_server(running: Any) -> None:
    (server,) = {parent_of(pid) for pid in running.pids("writer", "peer", "machine")}
    assert parent_of(server) == running.process.pid


def test_actors_run_on_when_their_fork_server_is_killed(
    running: Any, wait_gone: Callable[[list[int], float], list[int]]
) -> None:
    (writer, peer, machine) = running.pids("writer", "peer", "machine")
    server = parent_of(machine)
    os.kill(server, signal.SIGKILL)
    assert wait_gone([server], 10.0) == []
    os.kill(peer, signal.SIGKILL)
    found = running.wait_event("exited", role="peer")
    assert found["code"] == "1", "its signal is unknown"
    running.wait_ready("writer", "peer")
    assert running.pids("machine") == [machine]
    assert running.pids("writer") != [writer]
    new = parent_of(running.pids("peer")[0])
    assert parent_of(new) == running.process.pid
    running.process.send_signal(signal.SIGTERM)
    assert running.wait_exit() == 0
    assert wait_gone([machine, new], 10.0) == []


def test_an_end_is_noticed_while_another_actor_is_forked() -> None:
    """Its report comes before the answer to the request."""
    loop = PollLoop(None, None)
    ended: list[None] = []
    server = ForkServer(loop, [], lambda: ended.append(None))
    with open(os.devnull, "r+b") as null:
        fds = (null.fileno(),) * 3
        try:
            first = server.fork("no.module", "no.json", fds)
            until = time.monotonic() + DEADLINE_S
            while os.path.exists(f"/proc/{first.pid}"):  # The fork server has not waited for it.
                assert time.monotonic() < until
            assert first.poll() is None, "its report is not read yet"
            server.fork("no.module", "no.json", fds)
            assert first.poll() == 1
            assert ended
        finally:
            server.close()
            loop.close_sockets()


def test_nothing_is_left_of_a_killed_supervisor(
    running: Any, wait_gone: Callable[[list[int], float], list[int]]
) -> None:
    pids = running.pids("writer", "peer", "machine")
    server = parent_of(pids[0])
    running.process.kill()
    assert wait_gone([server, *pids], 10.0) == []
