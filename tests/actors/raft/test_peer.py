"""A peer in real processes: when three nodes elect, after the end of the leader's process, and what
keeps heartbeats from waiting."""

import contextlib
import os
import platform
import re
import signal
import time
from pathlib import Path
from typing import Any

from kelek.actors.raft.peer import MESSAGE_BYTES_MAX
from kelek.actors.topology import topology
from kelek.net.libc import SCHED_SETATTR, TURN_NS
from kelek.tests.actors.demo_cluster import DEADLINE_S, LEADERS, DemoCluster, Rows
from kelek.tests.zmtp_peer import ZmtpPeer, greeting, ready

TIMEOUT_S = 60  # Of an election; far more than the parts of this test take on a busy machine.


def test_no_election_waits_for_a_timeout_when_a_process_has_ended(shell: Any) -> None:
    timeout_ms = f"[{TIMEOUT_S * 1000 - 1}, {TIMEOUT_S * 1000}]"
    begin_s = time.monotonic()
    cluster = DemoCluster(shell, "writer: thread", timeout_ms)
    cluster.append(1)
    leader = cluster.leader()
    assert time.monotonic() - begin_s < TIMEOUT_S, "the first election"

    def is_replaced(rows: Rows) -> bool:
        leads = {row.get("leader") for row in rows.values()}
        return leads in LEADERS and all(row["term"] > leader["term"] for row in rows.values())

    os.kill(leader["pid"], signal.SIGKILL)
    killed_s = time.monotonic()
    cluster.wait(is_replaced)
    assert time.monotonic() - killed_s < TIMEOUT_S, "the second one"
    cluster.append(1)
    cluster.wait_caught_up()
    cluster.check()


def is_refused(port: int, size: int) -> bool:
    """Whether a peer ends a handshake with so many bytes."""
    with contextlib.closing(ZmtpPeer(port, greeting(), waits=False)) as peer:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.send(ready(filler=size))
        return peer.is_cut(DEADLINE_S)


def turns_ns(pid: int) -> set[int]:
    """The turns of all threads of a process; nothing: Linux does not tell."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/sched"):
        found.update(int(it) for it in re.findall(r"se\.slice\s*:\s*(\d+)", path.read_text()))
    return found


def test_large_handshakes_are_refused_and_turns_are_short(shell: Any) -> None:
    """Else heartbeats wait for copies of metadata, and for processors."""
    cluster = DemoCluster(shell, "writer: process", "[2000, 3000]")
    node = topology.load(str(shell.folder / "topology.yaml")).nodes[cluster.leader()["node"]]
    for url in (node.url, node.peer_url):
        assert is_refused(int(url.rpartition(":")[2]), MESSAGE_BYTES_MAX)
    release = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))
    if release >= (6, 12) and platform.machine() in SCHED_SETATTR:
        for role in ("raft_peer", "log_writer"):
            for row in cluster.peers(role).values():
                assert turns_ns(row["pid"]) <= {TURN_NS}, role
    cluster.append(1)
    cluster.check()
