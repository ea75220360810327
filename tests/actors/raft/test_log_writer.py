"""The log writer as a process, as a thread and inline: real clusters, and a full disk."""

import itertools
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

from kelek.actors.raft import log_writer
from kelek.actors.raft.log_writer import GroupCommit
from kelek.actors.runtime.setup import ActorSetup
from kelek.actors.topology.settings import LogSettings
from kelek.protocols.raft.messages import AppendAck, AppendJob
from kelek.protocols.record import Record, encode_block
from kelek.tests.actors.demo_cluster import DEADLINE_S, DemoCluster
from kelek.tests.actors.node_settings import node_settings
from kelek.tests.storage.memory_disk import MemoryDisk


@contextmanager
def tracing(pid: int, inject: str) -> Iterator[None]:
    """Makes system calls of a process fail or delays them, by strace."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    command = ["strace", "-f", "-o", os.devnull, "-e", f"inject={inject}", "-p", str(pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert tracer.stderr is not None
    try:
        ready, _, _ = select.select([tracer.stderr], [], [], DEADLINE_S)
        assert ready
        if b"attached" not in tracer.stderr.readline():
            pytest.skip("strace may not trace here")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=DEADLINE_S)


def test_a_killed_cluster_recovers_its_log(shell: Any) -> None:
    cluster = DemoCluster(shell, "writer: thread, segment_bytes: 64 KiB")
    for _ in range(10):  # Several segments.
        cluster.append_batch(100)
        rows = cluster.wait_caught_up()  # Otherwise a late node gets many entries at once.
    assert len(list(cluster.data.glob("n1/raft/log/*.seg"))) >= 10
    with open(f"/proc/{rows['n1']['pid']}/task/{rows['n1']['pid']}/children") as children:
        assert not children.read()
    for node in ("n1", "n2", "n3"):
        os.kill(cluster.peers()[node]["pid"], signal.SIGKILL)
        cluster.append(1)
    cluster.append_batch(300)
    for row in cluster.peers().values():  # All nodes at once.
        os.kill(row["pid"], signal.SIGKILL)
    cluster.append_batch(300)
    cluster.wait_caught_up()
    cluster.check()
    shell.ok("supervisor stop topology.yaml")
    assert all((cluster.data / node / "raft/log/clean").exists() for node in ("n1", "n2", "n3"))


def test_a_failed_sync_restarts_the_unit(shell: Any) -> None:
    cluster = DemoCluster(shell, "writer: thread")
    cluster.append(1)
    leader = cluster.leader()
    with tracing(leader["pid"], "fdatasync:error=EIO"):
        cluster.append(1)
        rows = cluster.wait(lambda rows: rows[leader["node"]]["restarts"] > 0)
    assert "can't sync: EIO" in cluster.peer_log(leader["node"])
    assert sum(row["restarts"] for row in rows.values()) == rows[leader["node"]]["restarts"]
    cluster.append(1)
    cluster.wait_caught_up()
    cluster.check()


def test_a_leader_with_a_slow_disk_still_leads(shell: Any) -> None:
    """The others form the majority. The leader sends heartbeats while its thread waits."""
    # Long enough that a busy machine, with the leader under strace, causes no election.
    cluster = DemoCluster(shell, "writer: thread", election_timeout_ms="[1500, 2000]")
    cluster.append(1)
    leader = cluster.leader()
    with tracing(leader["pid"], "fdatasync:delay_enter=4500000"):  # Two election timeouts and more.
        ends_s = time.monotonic() + 4.5
        while time.monotonic() < ends_s:
            cluster.append(10)
        rows = cluster.peers()
    assert {row["leader"] for row in rows.values()} == {leader["node"]}
    assert {row["term"] for row in rows.values()} == {leader["term"]}
    rows = cluster.wait_caught_up()
    assert rows[leader["node"]]["restarts"] == 0
    cluster.check()


@pytest.mark.parametrize("writer", ["process", "thread", "inline"])
def test_a_full_disk_is_reported_once_and_retried(
    monkeypatch: pytest.MonkeyPatch, writer: Literal["process", "thread", "inline"]
) -> None:
    disk = MemoryDisk()
    monkeypatch.setattr(log_writer, "Disk", lambda _: disk.process())
    log = LogSettings(segment_bytes=16 << 10, writer=writer)
    setup = ActorSetup("n1", "", "", "c", "", "", "", 7, False, node_settings(log=log), {})
    commits = GroupCommit(setup)
    now_ms = 0
    seqs = itertools.count(1)

    def append() -> AppendAck | None:
        seq = next(seqs)
        block = encode_block(seq, 1, [Record(0, None, bytes(3000))]).block
        commits.enqueue(AppendJob(7, seq, seq - 1, min(1, seq - 1), [block]))
        return commit()

    def commit() -> AppendAck | None:
        ack = commits.commit(now_ms)
        return ack or (commits.poll_sync() if commits.sync_fd is not None else None)

    assert append() == AppendAck(7, 1)
    disk.bytes_max = 0
    while (ack := append()) is not None and not ack.is_full:
        now_ms += 1
        assert ack.seq < 20
    assert ack == AppendAck(7, 0, is_full=True)
    assert commits.full
    for _ in range(3):
        assert append() is None, "it is reported once"
        now_ms = commits.deadline_ms
    disk.bytes_max = 1 << 40
    assert commit() == AppendAck(7, next(seqs) - 1)
    commits.log.close()
