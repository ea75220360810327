"""A peer that knows only the text, as follower, candidate and leader of one node of ours."""

import json as json_text
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import zmq
from click import Command
from click.testing import CliRunner, Result

from kelek.console.admin.supervisor_cli import main as supervisor_main
from kelek.console.kelek_cli import main
from kelek.tests.interop.conftest import InteropCluster
from kelek.tests.interop.zmqraft.plain import (
    DEADLINE_S,
    Context,
    Dealer,
    PlainEntry,
    entry,
    entry_frame,
    json,
    number,
    reqid,
    truth,
    uint,
)

IDENT = b"interop"
VOTE, APPEND = b"?", b"+"


class VoteRequest(NamedTuple):
    candidate: bytes
    term: int
    last_index: int
    last_term: int


class Follower:
    """A peer's ROUTER and a follower as specified: one log, a vote for each candidate."""

    def __init__(self, context: Context, url: str) -> None:
        self.router = context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.bind(url)
        self.log: list[PlainEntry] = []
        self.term = 0
        self.commit_index = 0
        self.leader = b""
        self.votes: list[VoteRequest] = []
        self.grants = True
        self.ids: list[bytes] = []
        self.other_types: set[bytes] = set()

    def turn(self, wait_s: float) -> bool:
        """Takes in one message and answers it; False: there was none."""
        if not self.router.poll(int(wait_s * 1000)):
            return False
        routing_id, *frames = self.router.recv_multipart()
        message_id, kind, ident = frames[:3]
        assert ident == IDENT
        if kind == VOTE:
            answer = self._on_vote(frames)
        elif kind == APPEND:
            answer = self._on_append(frames)
        else:
            self.other_types.add(kind)  # Unknown: dropped, as the text's peers do.
            return True
        assert 1 <= len(message_id) <= 3
        self.ids.append(message_id)
        self.router.send_multipart([routing_id, message_id, *answer])
        return True

    def run_until(self, is_done: Callable[[], object]) -> None:
        until = time.monotonic() + DEADLINE_S
        while not is_done():
            assert time.monotonic() < until, "it never came"
            self.turn(0.05)

    def _on_vote(self, frames: list[bytes]) -> list[bytes]:
        candidate, (term, last_index, last_term) = frames[3], map(number, frames[4:])
        self.votes.append(VoteRequest(candidate, term, last_index, last_term))
        if not self.grants or term < self.term:
            return [uint(self.term), b""]
        self.term = term
        return [uint(term), b"\x01"]

    def _on_append(self, frames: list[bytes]) -> list[bytes]:
        leader, (term, prev, prev_term, commit) = frames[3], map(number, frames[4:8])
        if term < self.term:
            return [uint(self.term), b""]
        self.term, self.leader = term, leader
        if prev > len(self.log):
            return [uint(term), b"", b"\0", uint(len(self.log) + 1)]
        if prev and self.log[prev - 1].term != prev_term:
            wrong = self.log[prev - 1].term
            first = next(n for n, it in enumerate(self.log, 1) if it.term == wrong)
            return [uint(term), b"", uint(wrong), uint(first)]
        self.log[prev:] = map(entry, frames[8:])
        self.commit_index = min(commit, len(self.log))
        return [uint(term), b"\x01"]


class OwnSockets:
    """The test's own sockets; closed when it ends."""

    def __init__(self) -> None:
        self.context: Context = zmq.Context()
        self.open: list[zmq.Socket[bytes]] = []

    def dealer(self, url: str) -> Dealer:
        dealer = Dealer(self.context, url)
        self.open.append(dealer.socket)
        return dealer

    def follower(self, url: str) -> Follower:
        follower = Follower(self.context, url)
        self.open.append(follower.router)
        return follower


@pytest.fixture
def net() -> Iterator[OwnSockets]:
    net = OwnSockets()
    yield net
    for socket in net.open:
        socket.close()
    net.context.term()


def follow(mixed: Callable[[], InteropCluster], net: OwnSockets) -> tuple[InteropCluster, Follower]:
    cluster = mixed()
    return cluster, net.follower(cluster.urls["n2"])


def beside(follower: Follower, command: Command, *words: str, **variables: str) -> Result:
    """Runs a command while the follower goes on."""
    done: list[Result] = []
    runner = CliRunner(env=variables)
    thread = threading.Thread(target=lambda: done.append(runner.invoke(command, words)))
    thread.start()
    follower.run_until(lambda: not thread.is_alive())
    return done[0]


def test_one_of_ours_leads_a_follower_of_the_text(
    mixed: Callable[[], InteropCluster], net: OwnSockets
) -> None:
    cluster, follower = follow(mixed, net)
    follower.run_until(lambda: follower.leader == b"n1" and follower.log)
    vote = follower.votes[-1]
    assert (vote.candidate, vote.last_index, vote.last_term) == (b"n1", 0, 0)
    assert follower.log[0] == PlainEntry(bytes(12), 2, follower.term, b"\xc0")

    client = net.dealer(cluster.urls["n1"])
    request = reqid()
    client.send(request, b"=", b"through a foreign follower")
    answers: list[list[bytes]] = []

    def committed() -> bool:
        found = client.receive_within(0)
        if found is not None:
            answers.append(found)
        return bool(answers) and len(answers[-1]) == 3

    follower.run_until(committed)
    index = json(answers[-1][2])
    assert isinstance(index, int)
    assert follower.log[index - 1] == PlainEntry(
        request, 0, follower.term, b"through a foreign follower"
    )
    follower.run_until(lambda: follower.commit_index >= index)

    shown = beside(follower, main, "log", "snapshot", "-t", str(cluster.path))
    assert shown.exit_code == 0, "the kelek node has made one"
    assert "n1  up to " in shown.stdout
    assert "n2  not kelek" in shown.stdout

    until = time.monotonic() + DEADLINE_S
    while True:
        words = "status", str(cluster.path), "-o", "json"
        shown = beside(follower, supervisor_main, *words, XDG_RUNTIME_DIR=str(cluster.folder))
        rows = json_text.loads(shown.stdout)["processes"]
        foreign = {row["node"]: row for row in rows if row["role"] == "foreign"}
        states = {name: row["state"] for name, row in foreign.items()}
        if states == {"n2": "ready", "n3": "silent"}:
            break
        assert time.monotonic() < until, states
    assert shown.exit_code == 1, "n3 is away"
    assert foreign["n2"]["lag"] == 0
    assert foreign["n3"]["lag"] >= index


@pytest.mark.parametrize("old", [9, 2], ids=["conflict", "too short"])
def test_a_follower_with_other_entries_is_set_right(
    mixed: Callable[[], InteropCluster], net: OwnSockets, old: int
) -> None:
    """n3 has entries of an old term that never committed; its answers say where to go on."""
    cluster, first = follow(mixed, net)
    first.term = 2
    first.run_until(lambda: first.log)
    client = net.dealer(cluster.urls["n1"])
    for _ in range(5):
        client.send(reqid(), b"=", b"kept")
    first.run_until(lambda: len(first.log) >= 6)
    assert first.term > 1
    first.router.close()
    second = net.follower(cluster.urls["n3"])
    second.log = [PlainEntry(reqid(), 0, 1, b"never committed") for _ in range(old)]
    second.run_until(lambda: [it.data for it in second.log[1:6]] == [b"kept"] * 5)
    assert second.log[:6] == first.log[:6]


@pytest.mark.parametrize("lost", [3, 9], ids=["tail", "disk"])
def test_a_follower_that_lost_what_it_confirmed_is_fed_again(
    mixed: Callable[[], InteropCluster], net: OwnSockets, lost: int
) -> None:
    """It has no longer what it has acknowledged, and n3 is down. The same leader sends it again,
    and commits what comes next."""
    cluster, follower = follow(mixed, net)
    follower.run_until(lambda: follower.leader == b"n1" and follower.log)
    client = net.dealer(cluster.urls["n1"])
    for _ in range(5):
        client.send(reqid(), b"=", b"kept")
    follower.run_until(lambda: follower.commit_index >= 6)
    term, whole = follower.term, [*follower.log]
    del follower.log[-lost:]
    follower.commit_index = len(follower.log)
    client.send(reqid(), b"=", b"next")
    follower.run_until(lambda: follower.commit_index >= 7)
    assert follower.log[:6] == whole
    assert follower.log[6].data == b"next"
    assert follower.term == term, "it was not helped by an election"


def test_repeats_carry_the_same_id_and_ids_count(
    mixed: Callable[[], InteropCluster], net: OwnSockets
) -> None:
    _, follower = follow(mixed, net)
    follower.run_until(lambda: len(follower.ids) >= 20)
    ids = [number(message_id) for message_id in follower.ids]
    assert ids == sorted(ids)


class Leader:
    """The text's leader and candidate, as n2: it asks n1 at its ROUTER."""

    def __init__(self, cluster: InteropCluster, net: OwnSockets) -> None:
        self.peer = net.dealer(cluster.urls["n1"])
        self.message_id = 0

    def ask(self, kind: bytes, *frames: bytes, name: bytes = b"n2") -> list[bytes]:
        self.message_id += 1
        return self.peer.ask(uint(self.message_id), kind, IDENT, name, *frames)

    def vote(self, term: int, last_index: int = 0, last_term: int = 0) -> tuple[int, bool]:
        answer = self.ask(VOTE, uint(term), uint(last_index), uint(last_term))
        assert len(answer) == 2
        return number(answer[0]), truth(answer[1])

    def append(
        self, term: int, prev: int, prev_term: int, commit: int, *entries: bytes
    ) -> list[bytes]:
        numbers = map(uint, (term, prev, prev_term, commit))
        return self.ask(APPEND, *numbers, *entries)

    def info(self) -> list[int]:
        """TERM, first, applied, commit and last index of n1."""
        return [number(frame) for frame in self.peer.ask(reqid(), b"%")[2:7]]


def elected(cluster: InteropCluster, net: OwnSockets) -> tuple[Leader, int]:
    """n2 asks for n1's vote in ever higher terms until it has it."""
    leader = Leader(cluster, net)
    until = time.monotonic() + DEADLINE_S
    term = 0
    while time.monotonic() < until:
        term, granted = leader.vote(term + 1)
        if granted:
            return leader, term
    raise AssertionError("no vote was granted")


def test_one_of_ours_follows_a_leader_of_the_text(
    mixed: Callable[[], InteropCluster], net: OwnSockets
) -> None:
    cluster = mixed()
    leader, term = elected(cluster, net)
    # The vote of a term is given once: n3 does not get it too.
    answer = leader.ask(VOTE, uint(term), b"\0", b"\0", name=b"n3")
    assert (number(answer[0]), truth(answer[1])) == (term, False)

    first = entry_frame(bytes(12), 2, term, b"\xc0")
    second = entry_frame(reqid(), 0, term, b"from a foreign leader")
    assert leader.append(term, 0, 0, 0, first, second) == [uint(term), b"\x01"]
    assert leader.append(term, 2, term, 2) == [uint(term), b"\x01"]
    assert leader.info()[3:] == [2, 2]
    # It says where its leader is.
    taken, name = leader.peer.ask(reqid(), b"=", b"elsewhere")
    assert (taken, json(name)) == (b"", "n2")


def test_the_answers_to_appends_that_do_not_fit(
    mixed: Callable[[], InteropCluster], net: OwnSockets
) -> None:
    cluster = mixed()
    leader, term = elected(cluster, net)
    entries = [entry_frame(reqid(), 0, term, b"%d" % n) for n in range(5)]
    assert leader.append(term, 0, 0, 0, *entries) == [uint(term), b"\x01"]
    # Too short: conflict TERM 0, and the index behind the last one.
    assert leader.append(term, 9, term, 0) == [uint(term), b"", b"\0", uint(6)]
    # Conflict: the TERM that stands there, and its first index.
    higher = term + 3
    assert leader.append(higher, 4, term + 1, 0) == [uint(higher), b"", uint(term), uint(1)]
    # A stale term: three frames.
    assert leader.append(term, 5, term, 0) == [uint(higher), b""]
    # The suffix is replaced.
    other = entry_frame(reqid(), 0, higher, b"other")
    assert leader.append(higher, 3, term, 0, other) == [uint(higher), b"\x01"]
    assert leader.info()[4] == 4


def test_a_working_leader_is_not_unseated(
    mixed: Callable[[], InteropCluster], net: OwnSockets
) -> None:
    """Stickiness: the vote is answered, and neither given nor does the term move."""
    cluster = mixed()
    leader, term = elected(cluster, net)
    assert leader.append(term, 0, 0, 0) == [uint(term), b"\x01"]
    answer = leader.ask(VOTE, uint(term + 5), uint(9), uint(term), name=b"n3")
    assert [number(answer[0]), truth(answer[1])] == [term, False]


def test_a_repeated_request_gets_the_same_answer(
    mixed: Callable[[], InteropCluster], net: OwnSockets
) -> None:
    cluster = mixed()
    leader, term = elected(cluster, net)
    first = leader.append(term, 0, 0, 0, entry_frame(reqid(), 0, term, b"once"))
    leader.message_id -= 1
    assert leader.append(term, 0, 0, 0, entry_frame(reqid(), 0, term, b"another")) == first
    assert leader.info()[4] == 1


def test_unknown_senders_and_other_clusters_get_no_answer(
    mixed: Callable[[], InteropCluster], net: OwnSockets
) -> None:
    cluster = mixed()
    leader, term = elected(cluster, net)
    high = struct.pack("<Q", term + 100)[:7]
    for name, ident in ((b"n9", IDENT), (b"n2", b"elsewhere"), (b"", IDENT), (b"\xff", IDENT)):
        leader.peer.send(b"\x99", VOTE, ident, name, high, b"\0", b"\0")
        leader.peer.send(b"\x99", APPEND, ident, name, high, b"\0", b"\0", b"\0")
    assert leader.info()[0] <= term + 1  # In order: those before were taken in and dropped.
    assert leader.peer.receive_within(0.2) is None
