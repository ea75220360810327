"""Two versions of kelek in one cluster (docs/internals/versions.md)."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.clients.errors import LogError, MembersRefused, TransferRefused
from kelek.clients.log.log import Log
from kelek.protocols.zmqraft.wire.client_codec import LogInfo
from kelek.tests.interop import versions
from kelek.tests.interop.versions import CLUSTER, QUICK, SLOW, NodeVersion, VersionedNodes


@pytest.fixture(scope="module")
def old() -> Iterator[Path]:
    try:
        home = versions.old_home()
    except versions.VersionMissing as reason:
        pytest.skip(str(reason))
    yield home
    shutil.rmtree(home)


@pytest.fixture
def nodes(old: Path) -> Iterator[VersionedNodes]:
    made = VersionedNodes(old)
    yield made
    made.close()


def connect(nodes: VersionedNodes) -> Log:
    return Log(nodes.urls.values(), CLUSTER, timeout_ms=60_000)


class UpgradeWriter:
    """Writes numbered updates, a few at a time, until it is told to end."""

    def __init__(self, nodes: VersionedNodes) -> None:
        self.count = 0
        self._nodes = nodes
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._error: LogError | None = None
        self._thread.start()

    def _write(self) -> None:
        try:
            with connect(self._nodes) as log:
                while not self._enough.wait(0.002):
                    self.count += log.append_many(
                        b"%d" % (self.count + number) for number in range(5)
                    )
        except LogError as error:
            self._error = error

    def end(self) -> int:
        self._enough.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.count


def asked(nodes: VersionedNodes, name: str) -> LogInfo:
    return nodes.wait(lambda infos: True)[name]


def make_lead(nodes: VersionedNodes, heir: str) -> None:
    """Kills both others, and starts one again when the heir has noticed it: the heir, which waits
    already, nearly always wins its vote."""
    for _ in range(8):
        leader = nodes.wait_for_leader()
        if leader == heir:
            return
        (third,) = nodes.urls.keys() - {leader, heir}
        nodes.kill(third)
        nodes.kill(leader)
        nodes.wait_leader_lost(heir, leader)
        nodes.start(third)
        nodes.wait_for_leader()
        nodes.start(leader)
        nodes.wait_caught_up(leader)
    raise AssertionError(f"{heir} never leads")


def upgrade(nodes: VersionedNodes, name: str) -> None:
    """Stopped, and started with today's code on the same data."""
    nodes.stop(name)
    nodes.wait_for_leader()
    nodes.start(name, nodes.parts[name]._replace(version="new"))
    nodes.wait_caught_up(name)


def test_nodes_are_upgraded_one_by_one_while_a_client_writes(nodes: VersionedNodes) -> None:
    """n1 and n3 follow each other as leaders, whatever versions they have."""
    nodes.start("n1", NodeVersion("old"))
    nodes.start("n2", NodeVersion("old"))
    nodes.start("n3", NodeVersion("old", QUICK))
    nodes.wait_for_leader()
    nodes.parts["n1"] = NodeVersion("old", QUICK)  # From its next start on.
    writer = UpgradeWriter(nodes)
    try:
        upgrade(nodes, "n1")  # One of today's, two old ones.
        make_lead(nodes, "n3")
        with connect(nodes) as log:  # What an old leader does not know.
            with pytest.raises(LogError, match="serves no linearizable reads"):
                log.read_index()
            with pytest.raises(LogError, match="knows no"):
                log.transfer()
            assert log.members() == nodes.urls
        make_lead(nodes, "n1")
        with connect(nodes) as log:  # It asks the old ones by the messages that they know.
            assert log.read_index() > 0
        make_lead(nodes, "n3")
        upgrade(nodes, "n2")  # Two of today's, one old one.
        make_lead(nodes, "n3")
        make_lead(nodes, "n1")
        with connect(nodes) as log:
            with pytest.raises(TransferRefused):
                log.transfer("n3")
            with pytest.raises(MembersRefused, match=r"n3 .*upgrade"):
                log.remove_member("n2")
        make_lead(nodes, "n3")
        upgrade(nodes, "n3")
        make_lead(nodes, "n1")
    finally:
        count = writer.end()
    assert count > 100
    nodes.wait_equal(count)
    for name in nodes.urls:
        nodes.kill(name)  # A stopped node transfers the leadership.
    kept = [nodes.entries(name) for name in nodes.urls]
    assert kept[0] == kept[1] == kept[2]
    written = [entry.data for entry in kept[0] if entry.kind == 0]
    assert written == [b"%d" % number for number in range(count)]
    for name in nodes.urls:  # The way back, as long as nothing is compacted.
        nodes.start(name, NodeVersion("old"))
    with connect(nodes) as log:
        nodes.wait_equal(log.append(b"with old ones only"))


def test_an_old_follower_is_not_sent_snapshots_and_an_old_kelek_refuses_a_compacted_log(
    nodes: VersionedNodes,
) -> None:
    compacts = ", snapshot_entries: 2000, snapshot_behind: 100"
    nodes.start("n1", NodeVersion("new", QUICK, compacts))
    nodes.start("n2", NodeVersion("new", SLOW, compacts))
    nodes.start("n3", NodeVersion("old"))
    make_lead(nodes, "n1")
    with connect(nodes) as log:
        log.append(b"all are there")
        nodes.wait_equal(2)
        nodes.stop("n3")
        while asked(nodes, "n1").first_index == 1:
            log.append_many(b"x" * 100 for _ in range(1000))
        nodes.start("n3")
        nodes.wait(lambda infos: infos["n3"].leader == "n1")  # It hears, and goes without.
        index = log.append(b"the two others commit")
        assert asked(nodes, "n3").last_index < index
        upgrade(nodes, "n3")  # That is the way out.
        nodes.wait_equal(index)
    assert asked(nodes, "n3").first_index > 1
    nodes.stop("n3")
    before = nodes.listing("n3")
    nodes.start("n3", NodeVersion("old"))
    assert nodes.ended("n3") != 0
    assert "expected entry 1 in the first segment" in nodes.errors("n3")
    assert nodes.listing("n3") == before
