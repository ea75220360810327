"""The actor state_machine in the test's thread: log and commits that do not agree."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from kelek.actors.raft.snapshot_sender import BARRIER
from kelek.actors.raft.state_machine import COMMIT, StateMachine, commits_topic
from kelek.actors.runtime import actor
from kelek.actors.runtime.setup import ActorSetup, Host
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zmqraft.snapshots.barrier import Phase
from kelek.storage.disk.disk import Disk
from kelek.storage.log.log import Log
from kelek.storage.log.segment import Identity
from kelek.storage.snapshot.snapshot import Snapshots
from kelek.tests.actors.node_settings import node_settings

ME = Identity("c", "n1")
CONFIGURATION = b"\x91\x92\xa2n1\xa1u"
SETTINGS = node_settings(state_machine="digest")


class CountingStateMachine(StateMachine):
    """Counts its wakes."""

    looked = 0

    def on_wake(self, now_ms: int) -> None:
        super().on_wake(now_ms)
        self.looked += 1

    def turn(self, until: Callable[[], bool]) -> None:
        while not until():
            self.run_once()

    @property
    def applied(self) -> object:
        return self.status()["applied_index"]


class StateMachineHarness:
    """A state machine, a log that the test writes, and the pipe of its raft_peer."""

    def __init__(self, folder: Path) -> None:
        self.disk = Disk(folder)
        self.log = Log.open(self.disk, ME, epoch=1, segment_bytes=16 << 10)
        self.append(1, 10)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.stop_in, self.stop_out = os.pipe()
        self.control = self.context.socket(zmq.ROUTER)
        self.control.bind("inproc://control")
        self.commits = self.context.socket(zmq.XPUB)
        self.commits.bind("inproc://rig/n1/raft_peer.commits")
        setup = ActorSetup(
            "n1", "state_machine", "state_machine", "c", "inproc://rig", str(folder),
            "inproc://control", 7, False, SETTINGS, {},
        )  # fmt: skip
        self.machine = CountingStateMachine(setup, Host(self.stop_in, 2, self.context))
        self.machine.start()
        assert self.commits.poll(10_000), "it has subscribed"

    def append(self, term: int, count: int) -> None:
        first_index = self.log.last_index + 1
        block = encode_block(first_index, term, [Record(0, None, b"data")] * count).block
        self.log.append(self.log.last_index, self.log.last_term, [block])
        self.log.sync()

    def commit(self, index: int, term: int) -> None:
        self.commits.send(COMMIT.pack(commits_topic("state_machine"), index, term, 0, 0))

    def close(self) -> None:
        self.machine.close()
        self.context.destroy(linger=0)
        self.log.close()
        os.close(self.stop_in)
        os.close(self.stop_out)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateMachineHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # Reports would wake it, too.
    made = StateMachineHarness(tmp_path)
    yield made
    made.close()


def test_a_commit_before_the_log_restarts_is_applied_later(rig: StateMachineHarness) -> None:
    """The peer has installed a snapshot, and its log_writer has not restarted the log yet. No
    further commit may follow for long."""
    machine = rig.machine
    rig.commit(10, 1)
    machine.turn(lambda: machine.applied == 10)
    rig.append(1, 5)  # Of an older leader: the reset drops them.
    rig.commit(20, 2)
    looked = machine.looked
    machine.turn(lambda: machine.looked >= looked + 3)
    assert machine.applied == 10
    snapshots = Snapshots.open(rig.disk, ME)
    snapshots.create(20, 2, CONFIGURATION).finish()
    snapshots.close()
    rig.log.reset(20, 2)
    machine.turn(lambda: machine.applied == 20)
    rig.append(2, 1)
    rig.commit(21, 2)
    machine.turn(lambda: machine.applied == 21)


def test_an_order_of_no_known_phase_is_dropped(rig: StateMachineHarness) -> None:
    orders = rig.context.socket(zmq.PUSH)
    orders.connect("inproc://rig/n1/state_machine.barriers")
    with orders:
        for phase in (77, 3, Phase.STOP):
            orders.send(BARRIER.pack(phase, 1, 0, 0))
        orders.send(b"junk")
        machine = rig.machine
        machine.turn(lambda: machine.counters["malformed-dropped"] == 3)
    assert machine.barrier.attempt == 1
