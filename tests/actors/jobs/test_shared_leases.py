"""Leases of all nodes, as the process job_server keeps them, without a process: the test plays the
log, and the table_worker that takes snapshots when it applies what the log says."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kelek.actors.runtime import actor
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.values import Extension, shared_lease
from kelek.protocols.zerodb.wire.worker_pipe import (
    FAILED,
    JOB_WRITE,
    LEASE,
    LEASE_ENDED,
    LEASE_OPENED,
    LEASE_RENEWED,
    PIPE_HEADER,
    RETRYABLE,
)
from kelek.storage.worker.lease_folder import (
    DESCRIPTION,
    LeaseDescription,
    LeaseFolder,
    encode_description,
)
from kelek.storage.worker.shared_lease import FREE_BYTES_MIN
from kelek.tests.actors.jobs.test_server import REQID, ROWS, JobServerHarness

IDLE_S = 60.0


class SharedLeaseHarness(JobServerHarness):
    """A job_server; what it wants in the log gets there."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.log: list[ops.Op] = []  # About leases.
        self.refuses = ""  # Why the log takes nothing.
        self.tells = True  # The worker's messages arrive.
        super().__init__(folder, settings)

    def on_ask(self, message: list[bytes]) -> None:
        kind, *_, ticket = PIPE_HEADER.unpack(message[0])
        if kind != LEASE:
            super().on_ask(message)
        elif self.refuses:
            self.reply(FAILED, ticket, self.refuses.encode(), flags=RETRYABLE)
        else:
            for op in ops.unpack(message[2]):
                self.apply(op)
            self.reply(JOB_WRITE, ticket, index=self.index)

    def apply(self, op: ops.Op) -> None:
        """As the worker does."""
        self.log.append(op)
        self.write()  # The entry is none of the tables'.
        match op:
            case ops.LeaseOpen():
                self.take(op.table)
                self.tell(LEASE_OPENED, shared_lease(self.index))
            case ops.LeaseKeep():
                self.tell(LEASE_RENEWED, op.lease)
            case ops.LeaseEnd():
                self.tell(LEASE_ENDED, op.lease)

    def take(self, table: int) -> None:
        staged, number = self.folder / "staged", shared_lease(self.index)
        self.tables.checkpoint(str(staged))
        (staged / DESCRIPTION).write_text(
            encode_description(LeaseDescription(table, self.index, 1))
        )
        staged.rename(self.folder / "jobs" / f"lease.{number}")

    def tell(self, what: int, number: int) -> None:
        if self.tells:
            self.requests.send_multipart([PIPE_HEADER.pack(LEASE, 0, 0, what, 0, number)])

    # ---- the client ----

    def open(self, table: int = 7) -> answers.SnapshotLease:
        answer = self.ask(requests.Lease(0, requests.LEASE_OPEN, table))
        assert not answer.failed, answer.text
        return answers.decode_lease(answer)

    def lease(self, action: int, number: int) -> answers.Answer:
        return self.ask(requests.Lease(number, action, extension=Extension(reqid=REQID)))

    def job(self, number: int, table: int = 7) -> answers.Answer:
        extension = Extension(values.WITH_LEASE, reqid=REQID, lease=number)
        return self.ask(requests.RangeJob(table, extension=extension))

    def rows(self, number: int, table: int = 7) -> int:
        return len(self.read(answers.decode_apid(self.job(number, table))[0]))

    @property
    def keeping(self) -> bool:
        """Whether the log was asked to keep something, and has not said yet what became of it."""
        return bool(self.actor.shared.renewals)

    def restart(self) -> None:
        """It was killed, and is there again."""
        self.actor.close_sockets()
        self.client.close()
        self.requests.close()
        self.start(f"inproc://again{len(self.log)}")

    def pass_time(self, seconds: float) -> None:
        """All deadlines come so much nearer."""
        table = self.actor.table
        for held in table._leases.values():
            held.idle_ms -= int(1000 * seconds)
            held.renewal_due_ms -= int(1000 * seconds)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedLeaseHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # Reports wake it, too.
    made = SharedLeaseHarness(tmp_path, {})
    yield made
    made.end()


def test_a_lease_holds_what_was_there_when_the_log_opened_it(node: SharedLeaseHarness) -> None:
    lease = node.open()
    assert lease.lease == shared_lease(2)
    assert (lease.index, lease.term) == (2, 1)
    assert Path(lease.path).name == f"lease.{lease.lease}"
    assert (Path(lease.path) / DESCRIPTION).is_file()
    node.write(ops.DeleteRange(7, b"", b""))
    assert node.rows(lease.lease) == ROWS
    assert node.rows(lease.lease) == ROWS
    assert "does not hold table 8" in node.job(lease.lease, 8).text
    assert node.rows(node.open(8).lease, 8) == 0, "a table that is not there has no rows"


def test_a_release_is_an_entry_and_ends_it(node: SharedLeaseHarness) -> None:
    lease = node.open()
    assert not node.lease(requests.LEASE_RELEASE, lease.lease).failed
    assert node.log[-1] == ops.LeaseEnd(0, lease.lease)
    node.turn(lambda: not node.leases)
    answer = node.job(lease.lease)
    assert "it was released" in answer.text
    assert not answer.retry
    # Of one that this node never had: others may have it.
    other = shared_lease(77)
    assert not node.lease(requests.LEASE_RELEASE, other).failed
    assert node.log[-1] == ops.LeaseEnd(0, other)


def test_a_lease_that_this_node_has_not_is_for_others_to_serve(node: SharedLeaseHarness) -> None:
    answer = node.job(shared_lease(77))
    assert "this node has no snapshot of lease" in answer.text
    assert answer.retry
    assert node.lease(requests.LEASE_RENEW, shared_lease(77)).retry


def test_what_lies_in_the_folder_counts(node: SharedLeaseHarness) -> None:
    """Not whether somebody could tell of it; and a job_server that was killed is no matter."""
    node.tells = False
    node.apply(ops.LeaseOpen(7, 0))  # Another node's.
    number = shared_lease(node.index)
    assert node.rows(number) == ROWS
    node.restart()
    assert node.rows(number) == ROWS
    half = node.folder / "jobs" / f"lease.{shared_lease(99)}"
    half.mkdir()
    node.restart()
    assert node.rows(number) == ROWS
    assert not half.exists(), "it does not say what it is"
    node.pass_time(IDLE_S)
    node.turn(lambda: not node.leases)


def test_a_damaged_snapshot_is_for_others_to_serve(node: SharedLeaseHarness) -> None:
    lease = node.open()
    for path in Path(lease.path).glob("MANIFEST-*"):
        path.write_bytes(b"nothing good")
    answer = node.job(lease.lease)
    assert answer.failed
    assert answer.retry


def test_who_reads_lets_the_log_say_so(node: SharedLeaseHarness) -> None:
    lease = node.open()
    node.pass_time(IDLE_S / 2)
    kept = ops.LeaseKeep(0, lease.lease)
    assert kept not in node.log, "nobody has asked for anything"
    assert not node.lease(requests.LEASE_RENEW, lease.lease).failed
    node.turn(lambda: kept in node.log)
    apid = answers.decode_apid(node.job(lease.lease))[0]
    assert node.log.count(kept) == 1, "it has been said just now"
    node.refuses = "no leader was found"
    node.pass_time(IDLE_S / 3)
    node.turn(lambda: node.keeping)
    node.turn(lambda: not node.keeping)
    node.refuses = ""
    node.pass_time(IDLE_S / 12)
    node.turn(lambda: node.log.count(kept) == 2)
    assert len(node.read(apid)) == ROWS
    # What another node says keeps it here.
    node.pass_time(IDLE_S - 5)
    node.apply(kept)
    held = node.actor.table._leases[lease.lease]
    node.turn(lambda: held.idle_ms > node.actor.now_ms + 50_000)
    node.pass_time(IDLE_S)
    node.turn(lambda: not node.leases)


def test_a_lease_that_can_not_be_opened(
    node: SharedLeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = node.ask(requests.Lease(0, requests.LEASE_OPEN, 9))
    assert "table 9 is local" in local.text
    node.refuses = "no leader was found"
    answer = node.ask(requests.Lease(0, requests.LEASE_OPEN, 7, Extension(reqid=REQID)))
    assert "no snapshot of table 7 can be taken: no leader was found" in answer.text
    assert answer.retry
    answer = node.lease(requests.LEASE_RELEASE, shared_lease(3))
    assert "is not released on all nodes: no leader was found" in answer.text
    node.refuses = ""
    # The worker has taken none, and its word of that is lost.
    monkeypatch.setattr(node, "take", lambda table: None)
    answer = node.ask(requests.Lease(0, 2, 7, Extension(reqid=REQID)))
    assert "opens a lease, but this node has no snapshot of it" in answer.text
    assert not answer.retry, "each try costs all nodes a snapshot"


def test_a_disk_that_fills_up_costs_leases_that_nobody_reads_here(
    node: SharedLeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, read = node.open(), node.open()
    apid = answers.decode_apid(node.job(read.lease))[0]
    monkeypatch.setattr(LeaseFolder, "free", lambda _: FREE_BYTES_MIN - 1)
    node.turn(lambda: len(node.leases) == 1)
    assert node.job(first.lease).retry, "another node may have room"
    assert len(node.read(apid)) == ROWS
    node.turn(lambda: not node.leases)


def test_a_removed_folder_is_no_lease(node: SharedLeaseHarness) -> None:
    node.tells = False
    lease = node.open()
    node.actor.lease_folder.remove(lease.lease)
    node.actor.table.on_lease_released(lease.lease)
    shutil.rmtree(lease.path, ignore_errors=True)
    node.tell(LEASE_OPENED, lease.lease)  # The worker's word comes late.
    assert node.job(lease.lease).failed
