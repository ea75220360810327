"""Linearizable reads and moved leaderships on real processes: stopped, handed over, ended."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import zmq

import kelek
from kelek.clients.errors import TransferRefused
from kelek.protocols.zmqraft.wire.read_codec import (
    READ_ACCEPTED,
    READ_ANSWER,
    READ_REQUEST,
    ReadAnswer,
    RequestRead,
)
from kelek.tests.interop.conftest import InteropCluster, new_folder

KELEK = "from kelek.console.kelek_cli import main; main()"
NAMES = ("n1", "n2", "n3")
DEADLINE_S = 60


@pytest.fixture
def begin() -> Iterator[Callable[..., InteropCluster]]:
    """Makes a cluster of three with these election timeouts; it is stopped in the end."""
    folder = new_folder()
    clusters: list[InteropCluster] = []

    def make(*timeout_ms: int) -> InteropCluster:
        dialects = dict.fromkeys(NAMES, "kelek")
        made = InteropCluster(folder, dialects, election_timeout_ms=(timeout_ms[0], timeout_ms[1]))
        clusters.append(made)
        return made

    yield make
    for made in clusters:
        made.stop()
    shutil.rmtree(folder)


def connect(cluster: InteropCluster) -> kelek.Log:
    return kelek.Log(cluster.urls.values(), "interop", timeout_ms=int(1000 * DEADLINE_S))


def leader_of(log: kelek.Log) -> str:
    leader = log.config().leader
    assert leader is not None
    return leader


def test_a_read_index_covers_all_acknowledged_updates(begin: Callable[..., InteropCluster]) -> None:
    cluster = begin(400, 700)
    with connect(cluster) as writer, connect(cluster) as reader:
        for number in range(50):
            index = writer.append(b"%d" % number)
            found = reader.read_index(applied=number % 2 == 0)
            assert found >= index
            if number % 2 == 0:
                assert [entry.index for entry in reader.entries(index - 1, 1)] == [index]
        check_followers(cluster, writer, index)


def check_followers(cluster: InteropCluster, log: kelek.Log, last_index: int) -> None:
    """Each node serves all entries itself, whoever leads; of who is not there the leader does."""
    expected = [entry.data for entry in log.entries()]
    log.transfer()
    for url in cluster.urls.values():
        until = time.monotonic() + DEADLINE_S
        while len(entries := list(log.entries(count=last_index, url=url))) < last_index:
            assert time.monotonic() < until, "a follower that never applies what is committed"
        assert [entry.data for entry in entries] == expected[:last_index]
    assert "given_up" not in log.counters
    found = log.entries(count=last_index, url="tcp://127.0.0.1:1")
    assert [entry.data for entry in found] == expected[:last_index]
    assert log.counters["given_up"] == 1


@pytest.mark.parametrize("names", [("n1",), NAMES], ids=["alone", "follower"])
def test_entries_never_go_back_when_a_peer_is_killed(names: tuple[str, ...]) -> None:
    """A new process does not know at first what is committed: it waits, or names the leader."""
    folder = new_folder()
    cluster = InteropCluster(folder, dict.fromkeys(names, "kelek"), election_timeout_ms=(400, 700))
    try:
        with connect(cluster) as log:
            log.append_many(b"%d" % number for number in range(1000))
            leader = leader_of(log)
        victim = next((name for name in names if name != leader), leader)
        url = None if victim == leader else cluster.urls[victim]
        pid = cluster.pid(victim)
        assert count_entries(cluster, url) >= 1000
        os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + DEADLINE_S
        reads = 0
        while reads < 10 or cluster.pid(victim) == pid:
            assert count_entries(cluster, url) >= 1000
            assert time.monotonic() < until
            reads += 1
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def count_entries(cluster: InteropCluster, url: str | None) -> int:
    """As a client finds them that knows nothing yet."""
    with connect(cluster) as log:
        return sum(1 for _ in log.entries(url=url))


def test_a_leader_that_was_stopped_never_answers_with_the_past(
    begin: Callable[..., InteropCluster],
) -> None:
    cluster = begin(400, 700)
    with connect(cluster) as log:
        log.append(b"first")
        for round_ in range(3):
            old = leader_of(log)
            pid = cluster.pid(old)
            with zmq.Context() as context, context.socket(zmq.DEALER) as direct:
                direct.linger = 0
                direct.connect(cluster.urls[old])
                direct.send_multipart(READ_REQUEST.encode(RequestRead(b"up"), cluster=b"interop"))
                assert direct.poll(1000 * DEADLINE_S)
                direct.recv_multipart()
                os.kill(pid, signal.SIGSTOP)
                try:
                    index = log.append(b"behind its back, %d" % round_)
                    assert leader_of(log) != old
                    for number in range(100):
                        request = RequestRead(b"%d" % number, number % 2)
                        direct.send_multipart(READ_REQUEST.encode(request, cluster=b"interop"))
                    assert log.read_index() >= index
                finally:
                    os.kill(pid, signal.SIGCONT)
                waiting = {b"%d" % number for number in range(100)}
                while waiting:
                    assert direct.poll(1000 * DEADLINE_S), f"{len(waiting)} reads unanswered"
                    frames = direct.recv_multipart()
                    answer = READ_ANSWER.decode(frames)
                    if answer != ReadAnswer(READ_ACCEPTED):  # It is in progress, for a while.
                        waiting.discard(frames[0])
                    assert not answer.log_index or answer.log_index >= index
            with connect(cluster) as other:
                other.append(b"the old leader follows")


def test_no_error_and_nothing_lost_while_the_leadership_moves(
    begin: Callable[..., InteropCluster],
) -> None:
    cluster = begin(600, 1000)
    moves = 6
    indexes: list[int] = []
    reads: list[int] = []
    ended: list[str] = []  # Without an error.
    enough = threading.Event()

    def write() -> None:
        def source() -> Iterator[bytes]:
            number = 0
            while not enough.is_set():
                yield b"update %d" % number
                number += 1

        with connect(cluster) as log:
            indexes.extend(log.append_each(source()))
        ended.append("write")

    def read() -> None:
        with connect(cluster) as log:
            while not enough.is_set():
                reads.append(log.read_index())
        ended.append("read")

    with connect(cluster) as admin:
        admin.append(b"it is up")
        threads = [threading.Thread(target=target) for target in (write, read)]
        for thread in threads:
            thread.start()
        try:
            for move in range(moves):
                before = leader_of(admin)
                to = NAMES[(NAMES.index(before) + 1) % 3] if move % 2 else None
                after = moved(admin, to)
                assert after != before
                assert to in (None, after)
                admin.append(b"moved %d" % move)
        finally:
            enough.set()
            for thread in threads:
                thread.join(DEADLINE_S)
        assert sorted(ended) == ["read", "write"]
        assert reads == sorted(reads), "an index once read is never gone back behind"
        assert admin.read_index() >= indexes[-1], "the leader has applied what others wrote, too"
        stored = [entry for entry in admin.entries() if entry.data.startswith(b"update ")]
        assert [entry.data for entry in stored] == [b"update %d" % n for n in range(len(stored))]
        assert [entry.index for entry in stored] == indexes


def moved(admin: kelek.Log, to: str | None) -> str:
    """Moves the leadership; a target that a busy machine holds up is asked again."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        with suppress(TransferRefused):
            return admin.transfer(to)
    return admin.transfer(to)


def test_transfer_by_the_command_line(begin: Callable[..., InteropCluster]) -> None:
    cluster = begin(600, 1000)
    with connect(cluster) as log:
        log.append(b"it is up")
        before = leader_of(log)
    to = next(name for name in NAMES if name != before)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KELEK, "log", "transfer", *words, "-t", str(cluster.path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run(to, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["leader"] == to
    done = run(to)
    assert done.stdout.startswith(f"{to} leads ("), "where it is already it is not moved"
    done = run("n9")
    assert done.returncode == 1
    assert "n9 is no member of the cluster" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_leader_transfers_the_leadership_before_it_ends(
    begin: Callable[..., InteropCluster],
) -> None:
    """Its process has followed another one before it ended."""
    cluster = begin(1000, 1500)
    with connect(cluster) as log:
        log.append(b"it is up")
        old = leader_of(log)
        os.kill(cluster.pid(old), signal.SIGTERM)
        while leader_of(log) == old:
            pass
        log.append(b"somebody else leads")
    told = (cluster.folder / "data" / old / "logs" / "raft_peer.log").read_text()
    [life] = [life for life in told.split("recovered ") if " role=leader " in life]
    roles = re.findall(r" role=(\w+) term=(\d+)", life.partition(" role=leader ")[2])
    assert "follower" in dict(roles), told
