"""Malformed, oversize, foreign and random messages on every socket of a running cluster.

Nothing may change: no process ends, no term from outside is taken over, and what was dropped is
counted.
"""

import os
import random
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest
import zmq

from kelek.tests.interop.conftest import InteropCluster
from kelek.tests.interop.zmqraft.plain import Dealer, PlainLogClient, reqid, uint
from kelek.tests.interop.zmqraft.test_peer_from_text import Follower

TYPES = (b"?", b"+", b"$", b"^", b"=", b"<", b"%", b"*", b"&", b"k\0", b"k=", b"k+", b"k?", b"k<")
LOGGED_S_MAX = 60.0
ELECTIONS_MAX = 20  # That a machine holds within one test, because it is busy.
HIGH = uint(1 << 40)  # A term that would depose each leader.


Process = tuple[str, str, int, int, str]


def processes(cluster: InteropCluster) -> list[Process]:
    found = [
        (str(row["node"]), str(row["role"]), row["pid"], row["restarts"], row["state"])
        for row in cluster.status()
    ]
    return sorted(found)


def dropped(cluster: InteropCluster) -> int:
    """All counters of what was thrown away, summed over the peers."""
    names = ("malformed", "strangers", "dropped", "junk", "oversize")
    rows: list[dict[str, Any]] = [r for r in cluster.status() if r["role"] == "raft_peer"]
    return sum(int(value) for row in rows for key, value in flat(row) if key in names)


def wait_dropped(cluster: InteropCluster, count: int) -> None:
    """Until so many are shown: what a peer reports is a little older than what it does."""
    until = time.monotonic() + LOGGED_S_MAX
    while (found := dropped(cluster)) < count:
        assert time.monotonic() < until, f"{found} of {count} are shown to be dropped"


def flat(row: dict[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in row.items():
        found += flat(value) if isinstance(value, dict) else [(key, value)]
    return found


def malformed(dice: random.Random) -> list[bytes]:
    """A message that means nothing, mostly close to one that does."""
    ident = dice.choice([b"interop", b"interop", b"elsewhere", b"", b"inter"])
    name = dice.choice([b"n1", b"n2", b"n3", b"n9", b"", b"\xff\xfe", b"n" * 300])
    frames = [
        dice.choice([reqid(), b"", b"\0" * 13, uint(dice.randrange(1 << 24)), b"\xff" * 200]),
        dice.choice([*TYPES, b"", b"??", dice.randbytes(2)]),
        ident,
        name,
        *(
            dice.choice([b"", b"\xff" * 9, b"\xff" * 8, b"\xdd\xff\xff\xff\xff", dice.randbytes(5)])
            for _ in range(dice.randrange(8))
        ),
    ]
    if frames[1] == b"=" and len(frames) > 3 and ident == b"interop":
        frames[0] = b"short"  # Else it is a good update.
    return frames[: dice.randrange(1, len(frames) + 1)]


def is_update(frames: list[bytes]) -> bool:
    return len(frames) == 3 and frames[1] == b"=" and len(frames[0]) == 12


@pytest.fixture
def urls(cluster: InteropCluster) -> list[str]:
    return [*cluster.urls.values(), *cluster.peer_urls.values()]


def assert_unmoved(cluster: InteropCluster, before: list[Process]) -> None:
    assert processes(cluster) == before
    with cluster.client() as client:
        assert client.update(b"still here") > 0


def assert_not_unseated(cluster: InteropCluster, leads: tuple[str, int]) -> None:
    """No term that came from outside was taken over. A busy machine may hold an election."""
    assert leads[1] <= leader_and_term(cluster)[1] < leads[1] + ELECTIONS_MAX


def leader_and_term(cluster: InteropCluster) -> tuple[str, int]:
    with cluster.client() as client:
        client.find_leader()
        return client.leader, term_of(client)


def term_of(client: PlainLogClient) -> int:
    return int.from_bytes(client.peers[client.leader].ask(reqid(), b"%")[2], "little")


@pytest.mark.parametrize("seed", range(3))
def test_random_messages(cluster: InteropCluster, urls: list[str], seed: int) -> None:
    dice = random.Random(seed)
    before, leads, count = processes(cluster), leader_and_term(cluster), dropped(cluster)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealers = [Dealer(context, url) for url in urls]
    for _ in range(500):
        frames = malformed(dice)
        if not is_update(frames):
            for dealer in dealers:
                dealer.send(*frames)
    for dealer in dealers:
        # Taken in order: once this is answered, all before it were dealt with.
        dealer.ask(reqid(), b"^")
        dealer.close()
    context.term()
    assert_not_unseated(cluster, leads)
    assert_unmoved(cluster, before)
    wait_dropped(cluster, count + 1)
    until = time.monotonic() + LOGGED_S_MAX
    for name in cluster.urls:
        while not (times := said(cluster, name)):
            assert time.monotonic() < until, f"{name} says nothing of bad messages"
            processes(cluster)  # Each asks for a report, with which the line comes.
        assert times == sorted(set(times)), "said more than once a minute"


def said(cluster: InteropCluster, name: str) -> list[str]:
    """The minutes in which a peer has logged bad messages."""
    lines = (cluster.folder / f"data/{name}/logs/raft_peer.log").read_text().splitlines()
    return [line[:16] for line in lines if " bad-messages " in line]


def test_requests_of_another_cluster(cluster: InteropCluster, urls: list[str]) -> None:
    before, leads, count = processes(cluster), leader_and_term(cluster), dropped(cluster)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for url in urls:
        dealer = Dealer(context, url)
        for ident in (b"elsewhere", b"INTEROP", b""):
            dealer.send(b"\x01", b"?", ident, b"n2", HIGH, HIGH, HIGH)
            dealer.send(b"\x02", b"+", ident, b"n2", HIGH, b"\0", b"\0", b"\0")
            dealer.send(b"\x03", b"k?", ident, b"n2", HIGH, HIGH, HIGH)
            dealer.send(b"\x04", b"k\0", ident, b"n2", b"\x80")
            dealer.send(reqid(), b"=", ident, b"an update of another cluster")
            dealer.send(reqid(), b"k=", ident, b"", b"\x0e\x80" + reqid() + b"x")
            dealer.send(reqid(), b"&", ident, b"\x90")
        answers = dealer.receive_within(0.2)
        assert answers is None
        dealer.close()
    context.term()
    assert_not_unseated(cluster, leads)
    assert_unmoved(cluster, before)
    wait_dropped(cluster, count + 1)
    with cluster.client() as client:
        assert not [it for _, it in client.entries() if it.data.startswith(b"an update of")]


def test_terms_that_no_peer_can_have(cluster: InteropCluster, urls: list[str]) -> None:
    """From a known PEER ID: numbers over 2**53 - 1, and a vote that stickiness refuses."""
    before, leads = processes(cluster), leader_and_term(cluster)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for url in urls:
        dealer = Dealer(context, url)
        for number in (b"\xff" * 8, (1 << 53).to_bytes(8, "little"), b"", b"\0" * 9):
            dealer.send(b"\x01", b"?", b"interop", b"n2", number, b"\0", b"\0")
            dealer.send(b"\x02", b"+", b"interop", b"n2", number, b"\0", b"\0", b"\0")
            dealer.send(b"\x03", b"k+", b"interop", b"n2", struct.pack("<QQQQ", 1 << 60, 0, 0, 0))
        dealer.ask(reqid(), b"^")
        dealer.close()
    context.term()
    assert_not_unseated(cluster, leads)
    assert_unmoved(cluster, before)


def test_oversize_messages(cluster: InteropCluster, urls: list[str]) -> None:
    """Too many bytes and too many frames: that connection's, or that message's, own problem."""
    before, leads = processes(cluster), leader_and_term(cluster)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for url in urls:
        for frames in ([reqid(), b"=", bytes(40 << 20)], [reqid(), b"^", *[b""] * 100_000]):
            dealer = Dealer(context, url)
            dealer.send(*frames)
            dealer.receive_within(0.3)
            dealer.close()
    context.term()
    assert_not_unseated(cluster, leads)
    assert_unmoved(cluster, before)


def test_bytes_that_are_not_zmtp(cluster: InteropCluster, urls: list[str]) -> None:
    before, leads = processes(cluster), leader_and_term(cluster)
    for url in urls:
        place = urlsplit(url)
        for junk in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\xff" + bytes(9)):
            with socket.create_connection((place.hostname or "", place.port or 0)) as plain:
                plain.sendall(junk)
    assert_not_unseated(cluster, leads)
    assert_unmoved(cluster, before)


def test_the_pipes_between_the_processes(cluster: InteropCluster) -> None:
    """They lie in a private directory; what has not the form of their messages is dropped."""
    before, leads = processes(cluster), leader_and_term(cluster)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pipes = [path for path in cluster.folder.rglob("*") if path.is_socket()]
    assert len(pipes) >= 3 * 4
    for path in pipes:
        for kind in (zmq.PUSH, zmq.DEALER, zmq.SUB):
            stranger = context.socket(kind)
            stranger.linger = 1000
            stranger.sndtimeo = 200
            stranger.connect(f"ipc://{path}")
            if kind != zmq.SUB:
                for frames in ([b""], [b"junk"], [b"ready"], [b"", b""], [b"\xff" * 7] * 9):
                    send_if_taken(stranger, frames)
            stranger.close()
    context.term()
    assert_not_unseated(cluster, leads)
    assert_unmoved(cluster, before)


def send_if_taken(stranger: zmq.Socket[bytes], frames: list[bytes]) -> None:
    """A PUSH to a socket of another kind has no peer, or none any more."""
    if stranger.poll(200, zmq.POLLOUT):
        with suppress(zmq.Again):
            stranger.send_multipart(frames)


def test_dropped_messages_are_logged_once_a_minute(
    cluster: InteropCluster, urls: list[str]
) -> None:
    """Thousands of bad messages, seconds apart, make one line of each peer's log."""
    for _ in range(3):
        count = dropped(cluster)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        for url in urls:
            dealer = Dealer(context, url)
            for _ in range(200):
                dealer.send(b"\x01", b"?", b"interop")
            dealer.ask(reqid(), b"^")
            dealer.close()
        context.term()
        assert dropped(cluster) >= count
    for name in cluster.urls:
        log = (cluster.folder / "data" / name / "logs" / "raft_peer.log").read_text()
        lines = [line for line in log.splitlines() if " bad-messages " in line]
        times = [datetime.fromisoformat(line.split()[0]) for line in lines]
        assert times
        # Both clocks tick on their own, so a second is let go.
        assert all((b - a).total_seconds() >= 59 for a, b in pairwise(times)), lines


def stops_node() -> list[list[bytes]]:
    """What ends a peer of the other implementation, each of them alone, and their kin."""
    nine = b"\xff" * 9
    return [
        *([reqid(), b"<", *ident] for ident in ([], [b"interop"])),
        *([reqid(), b"<", *ident, prev] for ident in ([], [b"interop"]) for prev in (b"", nine)),
        *([reqid(), b"<", *ident, b"\0", nine] for ident in ([], [b"interop"])),
        [reqid(), b"<", b"interop", b"\0", b"", nine],
        *([reqid(), b"k<", b"interop", *rest] for rest in ([], [b""], [nine], [b"\0", nine])),
        [reqid(), b"k<"],
        [reqid(), b"="],
        [reqid(), b"=", b""],
        [reqid(), b"=", b"interop", b""],
        *([b"", kind, *ident] for kind in (b"^", b"%", b"*") for ident in ([], [b"interop"])),
        *([b"i" * 13, kind, b"interop"] for kind in (b"^", b"%", b"*")),
        *([reqid(), b"&", b"interop", members] for members in (b"", b"\xc1", b"\x90", b"\xc0")),
        [b"\1", b"+", b"interop", b"n2", HIGH, b"\0", b"\0", b"\0", b"short"],
        [b"\1", b"+", b"interop", b"n2"],
        [b"\1", b"?", b"interop", b"n2", b"", b"", b""],
        [b"\1", b"$", b"interop", b"n2", b"", b"", b"", b"", b"", b""],
    ]


def test_what_stops_the_other_implementation(cluster: InteropCluster, urls: list[str]) -> None:
    """From strangers and, at the url of the members, in a member's name."""
    before, leads = processes(cluster), leader_and_term(cluster)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for url in urls:
        for frames in stops_node():
            dealer = Dealer(context, url)
            dealer.send(*frames)
            dealer.ask(reqid(), b"^")
            dealer.close()
    context.term()
    assert_not_unseated(cluster, leads)
    assert_unmoved(cluster, before)


class JunkFollower(Follower):
    """A follower whose answers are junk, as long as there is some; then it says what is right."""

    junk: list[list[bytes]] = []

    def turn(self, wait_s: float) -> bool:
        if not self.junk:
            return super().turn(wait_s)
        if not self.router.poll(int(wait_s * 1000)):
            return False
        routing_id, message_id, *_ = self.router.recv_multipart()
        self.router.send_multipart([routing_id, message_id, *self.junk.pop()])
        return super().turn(wait_s)  # The next one gets a good answer: it stays in touch.


def junk_answers() -> list[list[bytes]]:
    """To a vote, entries or a heartbeat: none of them says anything."""
    nine, eight = b"\xff" * 9, b"\xff" * 8
    return [
        [], [b""], [nine], [eight], [b"\1"], [b"", b"\1"], [nine, b"\1"], [eight, b"\1"],
        [b"\1", b"", b""], [b"\1", b"", nine], [b"\1", b"", b"", b""], [b"\1", b"", nine, nine],
        [b"\1", b"\1", b"\1", b"\1", b"\1", b"\1"],
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_a_member_of_another_kind_that_sends_junk(
    mixed: Callable[[], InteropCluster], seed: int
) -> None:
    """Such a member connects to the url for clients, where requests are not refused by sender. It
    sends, in its own name, what stops the other implementation, and 200 random messages."""
    dice = random.Random(seed)
    cluster = mixed()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    follower = JunkFollower(context, cluster.urls["n2"])
    dealer = Dealer(context, cluster.urls["n1"])
    try:
        follower.run_until(lambda: follower.leader == b"n1" and follower.log)
        before, count = cluster.pid("n1"), dropped(cluster)
        for frames in [*stops_node(), *(malformed(dice) for _ in range(200))]:
            if len(frames) > 4 and frames[1] in (b"?", b"+", b"$"):
                frames[3:5] = [b"n2", b"\xff" * 9]  # Never a good one of a term that unseats.
            if not is_update(frames):
                dealer.send(*frames)
        follower.junk = junk_answers()
        follower.run_until(lambda: not follower.junk)
        index = len(follower.log)
        update = reqid()

        def is_committed() -> bool:
            dealer.send(update, b"=", b"still here")  # It may be refused while there is a vote.
            return any(it.reqid == update for it in follower.log[index : follower.commit_index])

        follower.run_until(is_committed)
        assert sum(it.reqid == update for it in follower.log) == 1
        wait_dropped(cluster, count + len(junk_answers()))
        assert (cluster.pid("n1"), follower.leader) == (before, b"n1")
    finally:
        dealer.close()
        follower.router.close()
        context.term()
