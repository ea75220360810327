"""A peer of the npm package as a member of a cluster of ours: follower, leader, and back."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import zmq

import kelek
from kelek.bench.ports import free_port
from kelek.tests.interop.conftest import InteropCluster, new_folder
from kelek.tests.interop.zmqraft.node_package import NodeClient, NodePeer
from kelek.tests.interop.zmqraft.plain import Context, Dealer, json, number, reqid

DEADLINE_S = 60.0
UNCOMMITTED = 20


class Info(NamedTuple):
    """What a peer answers to RequestLogInfo."""

    leads: bool
    leader: object
    term: int
    first_index: int
    commit_index: int
    last_index: int


class PeerPlan(NamedTuple):
    """Which members are ours and which of the package; whose timers are quick campaigns first."""

    ours: tuple[str, ...] = ("n1", "n2")
    nodes: tuple[str, ...] = ("n3",)
    ours_ms: tuple[int, int] = (1500, 3000)
    nodes_ms: tuple[int, int] = (400, 600)
    log: str = ""  # The topology's section.


NODE_LEADS = PeerPlan()
OURS_LEAD = PeerPlan(ours_ms=(400, 600), nodes_ms=(1500, 3000))


COMPACTS = "segment_bytes: 64KiB, snapshot_entries: 1000, snapshot_trailing_entries: 0"
OURS_ONLY = PeerPlan(("n1", "n2", "n3"), (), ours_ms=(600, 1000))


class Mixed:
    """A cluster of both, and the package's client to it."""

    def __init__(self, node_home: Path, plan: PeerPlan) -> None:
        self.plan = plan
        self.folder = new_folder()
        dialects = {**dict.fromkeys(plan.ours, "kelek"), **dict.fromkeys(plan.nodes, "node")}
        self.cluster = InteropCluster(
            self.folder,
            dialects,
            "--bootstrap",
            log=plan.log,
            election_timeout_ms=plan.ours_ms,
        )
        self.urls = self.cluster.urls
        self.context: Context = zmq.Context()
        self.nodes = {
            name: NodePeer(node_home, name, self.urls, self.folder, plan.nodes_ms)
            for name in plan.nodes
        }
        self.client = NodeClient(node_home, list(self.urls.values()), "interop")
        self._stopped: set[int] = set()

    def close(self) -> None:
        self.client.process.stop()
        for pid in self._stopped:
            os.kill(pid, signal.SIGCONT)
        for node in self.nodes.values():
            node.stop()
        self.cluster.stop()
        self.context.term()
        shutil.rmtree(self.folder)

    @contextmanager
    def asleep(self, *names: str) -> Iterator[None]:
        """These peers are stopped meanwhile; what is sent to them waits."""
        found = [self._pid(name) for name in names]
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        self._stopped.update(found)
        yield
        for pid in found:
            os.kill(pid, signal.SIGCONT)
        self._stopped.difference_update(found)

    def _pid(self, name: str) -> int:
        return self.nodes[name].pid if name in self.nodes else self.cluster.pid(name)

    def info(self, name: str) -> Info | None:
        """One question to one peer; None when it does not answer."""
        with closing(Dealer(self.context, self.urls[name])) as dealer:
            dealer.send(reqid(), b"%", b"interop")
            found = dealer.receive_within(0.5)
        if found is None:
            return None
        term, first_index, _, commit_index, last_index = map(number, found[3:8])
        leads, leader = found[1] == b"\x01", json(found[2])
        return Info(leads, leader, term, first_index, commit_index, last_index)

    def last_index(self, name: str) -> int:
        info = self.info(name)
        return info.last_index if info else 0

    def leader(self, *names: str) -> str:
        """The leader, once one of these nodes leads; without names, any node."""
        found: list[str] = []

        def led() -> bool:
            asked = names or tuple(self.urls)
            found[:] = [name for name in asked if (info := self.info(name)) and info.leads]
            return bool(found)

        self.wait(led)
        return found[0]

    def lead(self, *names: str) -> str:
        """Whoever else leads sleeps until one of these does."""
        while (leader := self.leader()) not in names:
            with self.asleep(leader):
                self.leader(*({*self.urls} - {leader}))
        return leader

    def wait(self, is_so: Callable[[], object]) -> None:
        until = time.monotonic() + DEADLINE_S
        while not is_so():
            said = [node.broke for node in self.nodes.values() if node.broke]
            assert not said, f"a peer of the package has ended: {said[0]}"
            assert time.monotonic() < until, "it never came"

    def reaches(self, name: str, index: int) -> None:
        """Until a peer knows that everything up to index is committed."""
        self.wait(lambda: (info := self.info(name)) and info.commit_index >= index)

    def write_alone(self, name: str) -> None:
        """Updates that reach no other peer; their client gets no answer."""
        last_index = self.last_index(name) + UNCOMMITTED
        with closing(Dealer(self.context, self.urls[name])) as dealer:
            for _ in range(UNCOMMITTED):
                dealer.send(reqid(), b"=", b"interop", b"never committed")
            self.wait(lambda: self.last_index(name) >= last_index)


Start = Callable[[PeerPlan], Mixed]


@pytest.fixture
def start(node_home: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(plan: PeerPlan) -> Mixed:
            mixed = Mixed(node_home, plan)
            stack.callback(mixed.close)
            return mixed

        yield started


def test_it_leads_and_ours_follow_then_ours_lead_again(start: Start) -> None:
    mixed = start(NODE_LEADS)
    client = mixed.client
    written = {client.update(b"first"): b"first"}
    mixed.lead("n3")
    for count in range(50):
        data = b"by its leadership %d" % count
        written[client.update(data)] = data
    for name in mixed.urls:
        mixed.reaches(name, max(written))

    mixed.nodes["n3"].stop()
    mixed.leader("n1", "n2")
    written[client.update(b"without it")] = b"without it"
    mixed.nodes["n3"].start()
    mixed.reaches("n3", max(written))
    client.wait_applied(max(written))
    entries = {entry["index"]: entry["data"] for entry in client.entries() if entry["kind"] == 0}
    assert entries == written


def test_a_commit_needs_its_acknowledgement(start: Start) -> None:
    mixed = start(OURS_LEAD)
    leader = mixed.lead("n1", "n2")
    [follower] = {"n1", "n2"} - {leader}
    index = mixed.client.update(b"all are there")
    mixed.reaches("n3", index)
    with mixed.asleep(follower):
        with mixed.asleep("n3"):
            waiting = mixed.client.begin_update(b"nobody but the leader")
            mixed.wait(lambda: mixed.last_index(leader) > index)
            info = mixed.info(leader)
            assert info is not None
            assert info.commit_index == index
        found = mixed.client.answer(waiting)
        assert found["index"] > index
        mixed.reaches("n3", found["index"])


def test_it_takes_many_and_large_entries(start: Start) -> None:
    """A message to it holds about 64 KiB, which may be a part of a block, or one larger entry."""
    mixed = start(OURS_LEAD)
    mixed.lead("n1", "n2")
    for size in (1, 70_000, 3_000_000, 5):
        mixed.client.update(b"x" * size)
    with kelek.Log(f"{mixed.urls['n1']},{mixed.urls['n2']}", cluster="interop") as log:
        log.append_many(b"%d" % number for number in range(20_000))
        index = log.info().last_index
    mixed.reaches("n3", index)


def test_what_only_it_has_is_replaced(start: Start) -> None:
    """Our leader finds where the logs meet without ever asking for less than it committed."""
    mixed = start(NODE_LEADS)
    mixed.lead("n3")
    index = max(mixed.client.update(b"common") for _ in range(50))
    for name in mixed.urls:
        mixed.reaches(name, index)
    mixed.cluster.stop()
    mixed.write_alone("n3")
    with mixed.asleep("n3"):
        for _ in range(2):  # The second leader begins to look behind what it has not in common.
            mixed.cluster.start()
            mixed.leader("n1", "n2")
            index = max(mixed.client.update(b"instead") for _ in range(5))
            mixed.cluster.stop()
        mixed.cluster.start()
        leader = mixed.leader("n1", "n2")
    mixed.reaches("n3", index)
    assert mixed.last_index("n3") == mixed.last_index(leader)


def test_what_only_ours_has_is_replaced(start: Start) -> None:
    """Its leadership is told, in the form that it reads, where the logs meet."""
    mixed = start(PeerPlan(("n1",), ("n2", "n3"), ours_ms=(400, 600), nodes_ms=(1500, 3000)))
    mixed.lead("n1")
    index = mixed.client.update(b"common")
    for name in mixed.urls:
        mixed.reaches(name, index)
    for node in mixed.nodes.values():
        node.stop()
    mixed.write_alone("n1")
    with mixed.asleep("n1"):
        for node in mixed.nodes.values():
            node.start()
        leader = mixed.leader("n2", "n3")
        index = mixed.client.update(b"instead")
    mixed.reaches("n1", index)
    assert mixed.last_index("n1") == mixed.last_index(mixed.leader())
    assert leader in mixed.nodes


def test_one_of_ours_catches_up_with_its_leadership(start: Start) -> None:
    mixed = start(PeerPlan(("n1",), ("n2", "n3"), ours_ms=(1500, 3000), nodes_ms=(400, 600)))
    mixed.lead("n2", "n3")
    mixed.cluster.stop()
    index = max(mixed.client.update(b"while one is away") for _ in range(20))
    mixed.cluster.start()
    mixed.reaches("n1", index)


def test_it_catches_up_with_a_log_that_it_has_not_seen(start: Start) -> None:
    mixed = start(OURS_LEAD)
    mixed.lead("n1", "n2")
    mixed.nodes["n3"].stop()
    with kelek.Log(f"{mixed.urls['n1']},{mixed.urls['n2']}", cluster="interop") as log:
        log.append_many(b"%d" % number * 100 for number in range(20_000))
        index = log.info().last_index
    mixed.nodes["n3"].start()
    mixed.reaches("n3", index)


def test_it_is_fed_again_by_the_same_leader_when_it_has_lost_its_disk(start: Start) -> None:
    mixed = start(OURS_LEAD)
    leader = mixed.lead("n1", "n2")
    index = max(mixed.client.update(b"kept") for _ in range(20))
    mixed.reaches("n3", index)
    info = mixed.info(leader)
    assert info is not None
    mixed.nodes["n3"].stop()
    mixed.nodes["n3"].lose_disk()
    mixed.nodes["n3"].start()
    mixed.reaches("n3", index)
    [other] = {"n1", "n2"} - {leader}
    with mixed.asleep(other):
        mixed.reaches("n3", mixed.client.update(b"by its acknowledgement"))
    found = mixed.info(leader)
    assert found is not None
    assert (found.leads, found.term) == (True, info.term)


def test_thousands_of_updates_at_once_hold_no_election(node_home: Path) -> None:
    """kelek.Log at peers of the package alone: sent all of them at once, the leader would answer
    nobody for longer than its followers wait."""
    folder = new_folder()
    urls = {name: f"tcp://127.0.0.1:{free_port()}" for name in ("n1", "n2", "n3")}
    nodes = [NodePeer(node_home, name, urls, folder, (600, 1000)) for name in urls]
    try:
        with kelek.Log(urls.values(), "interop", timeout_ms=int(DEADLINE_S * 1000)) as log:
            log.append(b"there is a leader")
            term = log.info().term
            assert log.append_many(b"%08d" % number for number in range(8000)) == 8000
            assert log.info().term == term
            entries = [entry.data for entry in log.entries() if entry.type == 0]
        assert entries[1:] == [b"%08d" % number for number in range(8000)]
    finally:
        for node in nodes:
            node.stop()
        shutil.rmtree(folder)


def test_it_joins_by_config_update_and_leaves_again(start: Start, node_home: Path) -> None:
    """Its client asks; before that it has copied the log by itself, and answers only then."""
    mixed = start(OURS_ONLY)
    client = mixed.client
    index = max(client.update(b"%d" % number) for number in range(100))
    client.wait_applied(index)
    url = f"tcp://127.0.0.1:{free_port()}"
    joiner = NodePeer(node_home, "n4", mixed.urls, mixed.folder, (1500, 3000), own_url=url)
    before = dict(mixed.urls)
    mixed.nodes["n4"], mixed.urls["n4"] = joiner, url
    mixed.wait(lambda: mixed.last_index("n4") >= index)
    client.ask("members", members=[*mixed.urls.items()])
    assert dict(client.ask("config")["peers"]) == mixed.urls
    index = client.update(b"with it")
    mixed.reaches("n4", index)
    with mixed.asleep("n1" if mixed.leader() != "n1" else "n2"):
        # Three of four are a majority: the joiner's acknowledgement is one of them.
        index = client.update(b"by its acknowledgement")
    mixed.reaches("n4", index)

    client.ask("members", members=[*before.items()])
    assert dict(client.ask("config")["peers"]) == before
    joiner.stop()
    assert client.update(b"without it") > index


def _compacted(start: Start) -> tuple[Mixed, int]:
    """Three of ours, whose log begins far behind 1, and its last index."""
    mixed = start(OURS_ONLY._replace(log=COMPACTS))
    mixed.client.update(b"all are there")
    with kelek.Log(",".join(mixed.urls.values()), cluster="interop") as log:
        log.append_many(b"%d" % number * 10 for number in range(20_000))
        index = log.info().last_index
    mixed.wait(lambda: (info := mixed.info(mixed.leader())) and info.first_index > 10_000)
    mixed.client.wait_applied(index)
    return mixed, index


def test_its_client_reads_the_snapshot_before_the_entries(start: Start) -> None:
    mixed, index = _compacted(start)
    items = mixed.client.ask("mixed", after=0)["found"]
    chunks = [item for item in items if "offset" in item]
    entries = [item["index"] for item in items if "offset" not in item]
    [snapshot_index] = {chunk["index"] for chunk in chunks}
    assert entries == list(range(snapshot_index + 1, index + 1))
    offset = 0
    for chunk in chunks:
        assert chunk["offset"] == offset
        offset += chunk["bytes"]
    assert offset == chunks[-1]["size"] > 0


def test_its_client_gets_the_reason_of_a_refused_configuration(start: Start) -> None:
    mixed = start(OURS_ONLY)
    mixed.client.update(b"all are there")
    members = [*mixed.urls.items()]
    nobody = f"tcp://127.0.0.1:{free_port()}"
    for wrong, reason in (
        ([*members, ("n4", nobody)], "n4"),
        ([*members, ("n4", mixed.urls["n1"])], ""),
        (members, ""),
    ):
        found = mixed.client.answer(mixed.client.send("members", members=wrong))
        assert reason in found["error"]
    assert [*map(tuple, mixed.client.ask("config")["peers"])] == members


def test_it_takes_our_snapshot_when_the_log_begins_behind_its_own(start: Start) -> None:
    mixed = start(OURS_LEAD._replace(log=COMPACTS))
    leader = mixed.lead("n1", "n2")
    mixed.reaches("n3", mixed.client.update(b"all are there"))
    mixed.nodes["n3"].stop()
    with kelek.Log(f"{mixed.urls['n1']},{mixed.urls['n2']}", cluster="interop") as log:
        log.append_many(b"%d" % number * 10 for number in range(20_000))
        index = log.info().last_index
    mixed.wait(lambda: (info := mixed.info(leader)) and info.first_index > 10_000)
    mixed.nodes["n3"].start()
    mixed.reaches("n3", index)
    info = mixed.info("n3")
    assert info is not None
    assert info.first_index > 1
    mixed.reaches("n3", mixed.client.update(b"and goes on"))
