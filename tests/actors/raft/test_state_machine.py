"""The actor state_machine: a log and commit notices that do not agree."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from kelek.actors.raft.snapshot_sender import BARRIER
from kelek.actors.raft.state_machine import COMMIT, StateMachine, commits_topic
from kelek.actors.runtime import actor
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zmqraft.snapshots.barrier import Phase
from kelek.storage.disk.disk import Disk
from kelek.storage.log.log import Log
from kelek.storage.log.segment import Identity
from kelek.storage.snapshot.snapshot import Snapshots
from kelek.tests.actors.actor_harness import ActorHarness
from kelek.tests.actors.node_settings import node_settings

ME = Identity("c", "n1")
CONFIGURATION = b"\x91\x92\xa2n1\xa1u"
SETTINGS = node_settings(state_machine="digest")


class CountingStateMachine(StateMachine):
    """Counts its wakes."""

    wakes = 0

    def on_wake(self, now_ms: int) -> None:
        super().on_wake(now_ms)
        self.wakes += 1

    @property
    def applied(self) -> object:
        return self.status()["applied_index"]


class StateMachineHarness(ActorHarness):
    """A state machine, a log that the test writes, and the pipe of its raft_peer."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.disk = Disk(folder)
        self.log = Log(self.disk, ME, epoch=1, segment_bytes=16 << 10)
        self.append(1, 10)
        self.commits = self.bind("raft_peer.commits", zmq.XPUB)
        self.machine = self.start_actor(CountingStateMachine, str(folder), 7, SETTINGS)
        assert self.commits.poll(10_000), "it has subscribed"

    def append(self, term: int, count: int) -> None:
        first_index = self.log.last_index + 1
        block = encode_block(first_index, term, [Record(0, None, b"data")] * count).block
        self.log.append(self.log.last_index, self.log.last_term, [block])
        self.log.sync()

    def commit(self, index: int, term: int) -> None:
        self.commits.send(COMMIT.pack(commits_topic("state_machine"), index, term, 0, 0, 1))

    def close(self) -> None:
        super().close()
        self.log.close()


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateMachineHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # A report would wake the actor.
    harness = StateMachineHarness(tmp_path)
    yield harness
    harness.close()


def test_a_commit_before_the_log_restarts_is_applied_later(harness: StateMachineHarness) -> None:
    """The peer has installed a snapshot, and the log_writer has not restarted the log. The
    state machine must not need another commit notice."""
    machine = harness.machine
    harness.commit(10, 1)
    harness.run_until(lambda: machine.applied == 10)
    harness.append(1, 5)  # Entries of an older leader: the reset drops them.
    harness.commit(20, 2)
    wakes = machine.wakes
    harness.run_until(lambda: machine.wakes >= wakes + 3)
    assert machine.applied == 10
    snapshots = Snapshots(harness.disk, ME)
    snapshots.create(20, 2, CONFIGURATION).finish()
    snapshots.close()
    harness.log.reset(20, 2)
    harness.run_until(lambda: machine.applied == 20)
    harness.append(2, 1)
    harness.commit(21, 2)
    harness.run_until(lambda: machine.applied == 21)


def test_orders_with_an_unknown_phase_are_dropped(harness: StateMachineHarness) -> None:
    orders = harness.connect("state_machine.barriers")
    for phase in (77, 3, Phase.STOP):
        orders.send(BARRIER.pack(phase, 1, 0, 0))
    orders.send(b"junk")
    machine = harness.machine
    harness.run_until(lambda: machine.counters["malformed-dropped"] == 3)
    assert machine.barrier.attempt == 1
