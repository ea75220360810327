"""Shared leases of job_server. The test acts as the log, and as the table_worker that makes the
snapshots when it applies entries."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from kelek.actors.runtime import actor
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire import worker_pipe as pipe
from kelek.protocols.zerodb.wire.kept import KeptRow, decode_kept, kept_key
from kelek.protocols.zerodb.wire.values import SNAPSHOT_TABLE, Extension, shared_lease
from kelek.storage.worker.lease_folder import (
    DESCRIPTION,
    LeaseDescription,
    LeaseFolder,
    encode_description,
)
from kelek.storage.worker.shared_lease import FREE_BYTES_MIN
from kelek.tests.actors.conftest import ShiftedClock
from kelek.tests.actors.jobs.job_server_harness import REQID, ROWS, JobServerHarness

IDLE_S = 60.0
TTL_MS = 3_600_000


class SharedLeaseHarness(JobServerHarness):
    """A job_server whose log entries are applied at once."""

    def __init__(self, folder: Path, clock: ShiftedClock) -> None:
        self.log: list[ops.Op] = []  # The entries about leases.
        self.refusal = ""  # Why the log refuses entries.
        self.worker_reports = True  # The worker's messages arrive.
        self.unix_ms = 0  # The time of entries that open a lease; 0: as of an earlier version.
        self.clock = clock
        super().__init__(folder, {})

    def on_ask(self, message: list[bytes]) -> None:
        kind, *_, ticket = pipe.PIPE_HEADER.unpack(message[0])
        if kind != pipe.LEASE:
            super().on_ask(message)
        elif self.refusal:
            self.reply(pipe.FAILED, ticket, self.refusal.encode(), flags=pipe.RETRYABLE)
        else:
            for op in ops.unpack(message[2]):
                self.apply(op)
            self.reply(pipe.JOB_WRITE, ticket, index=self.index)

    def apply(self, op: ops.Op) -> None:
        """Applies an entry as the worker does."""
        self.log.append(op)
        self.write()  # The entry writes to no table.
        match op:
            case ops.LeaseOpen():
                self.make_snapshot(op.table)
                self.report(pipe.LEASE_OPENED, shared_lease(self.index))
            case ops.LeaseKeep():
                self.report(pipe.LEASE_RENEWED, op.lease)
            case ops.LeaseEnd():
                self.report(pipe.LEASE_ENDED, op.lease)

    def make_snapshot(self, table: int) -> None:
        staged, number = self.folder / "staged", shared_lease(self.index)
        self.tables.checkpoint(str(staged))
        (staged / DESCRIPTION).write_text(
            encode_description(LeaseDescription(table, self.index, 1, self.unix_ms))
        )
        staged.rename(self.folder / "jobs" / f"lease.{number}")

    def report(self, what: int, number: int) -> None:
        if self.worker_reports:
            self.requests.send_multipart([pipe.PIPE_HEADER.pack(pipe.LEASE, 0, 0, what, 0, number)])

    # ---- the client ----

    def open(self, table: int = 7) -> answers.SnapshotLease:
        answer = self.ask(requests.Lease(0, requests.LEASE_OPEN, table))
        assert not answer.failed, answer.text
        return answers.LEASE.decode(answer)

    def lease(self, action: int, number: int) -> answers.Answer:
        return self.ask(requests.Lease(number, action, extension=Extension(reqid=REQID)))

    def job(self, number: int, table: int = 7) -> answers.Answer:
        extension = Extension(values.WITH_LEASE, reqid=REQID, lease=number)
        return self.ask(requests.RangeJob(table, extension=extension))

    def rows(self, number: int, table: int = 7) -> int:
        return len(self.read(answers.JOB.decode(self.job(number, table))[0]))

    @property
    def renewing(self) -> bool:
        """Whether a renewal is sent to the log and not answered."""
        return bool(self.actor.shared.renewals)

    def restart(self) -> None:
        """Kills the job_server and starts it again."""
        self.kill()
        self.start(f"inproc://jobs{self.clock()}")

    def pass_time(self, seconds: float) -> None:
        self.clock.shift_ms += int(1000 * seconds)


@pytest.fixture
def harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ShiftedClock
) -> Iterator[SharedLeaseHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # A report would wake the actor.
    harness = SharedLeaseHarness(tmp_path, clock)
    yield harness
    harness.close()


def test_a_lease_has_the_pairs_at_its_entry_of_the_log(harness: SharedLeaseHarness) -> None:
    lease = harness.open()
    assert lease.lease == shared_lease(2)
    assert (lease.index, lease.term) == (2, 1)
    assert Path(lease.path).name == f"lease.{lease.lease}"
    assert (Path(lease.path) / DESCRIPTION).is_file()
    harness.write(ops.DeleteRange(7, b"", b""))
    assert harness.rows(lease.lease) == ROWS
    assert harness.rows(lease.lease) == ROWS
    assert "does not hold table 8" in harness.job(lease.lease, 8).text
    assert harness.rows(harness.open(8).lease, 8) == 0, "an unknown table has no rows"


def test_a_release_is_a_log_entry_and_ends_the_lease(harness: SharedLeaseHarness) -> None:
    lease = harness.open()
    assert not harness.lease(requests.LEASE_RELEASE, lease.lease).failed
    assert harness.log[-1] == ops.LeaseEnd(0, lease.lease)
    harness.run_until(lambda: not harness.leases)
    answer = harness.job(lease.lease)
    assert "it was released" in answer.text
    assert not answer.retry
    # Other nodes may have a lease that is unknown here.
    other = shared_lease(77)
    assert not harness.lease(requests.LEASE_RELEASE, other).failed
    assert harness.log[-1] == ops.LeaseEnd(0, other)


def test_requests_for_an_unknown_lease_may_be_retried_elsewhere(
    harness: SharedLeaseHarness,
) -> None:
    answer = harness.job(shared_lease(77))
    assert "this node has no snapshot of lease" in answer.text
    assert answer.retry
    assert harness.lease(requests.LEASE_RENEW, shared_lease(77)).retry


def test_the_snapshots_in_the_folder_are_the_leases(harness: SharedLeaseHarness) -> None:
    """Also without the worker's report, and after job_server was killed."""
    harness.worker_reports = False
    harness.apply(ops.LeaseOpen(7, 0))  # Requested by another node.
    number = shared_lease(harness.index)
    assert harness.rows(number) == ROWS
    harness.restart()
    assert harness.rows(number) == ROWS
    incomplete = harness.folder / "jobs" / f"lease.{shared_lease(99)}"
    incomplete.mkdir()
    harness.restart()
    assert harness.rows(number) == ROWS
    assert not incomplete.exists(), "it has no description"
    harness.pass_time(IDLE_S)
    harness.run_until(lambda: not harness.leases)


def test_jobs_on_a_damaged_snapshot_may_be_retried_elsewhere(
    harness: SharedLeaseHarness,
) -> None:
    lease = harness.open()
    for path in Path(lease.path).glob("MANIFEST-*"):
        path.write_bytes(b"damaged")
    answer = harness.job(lease.lease)
    assert answer.failed
    assert answer.retry


def test_the_log_renews_leases_in_use(harness: SharedLeaseHarness) -> None:
    lease = harness.open()
    harness.pass_time(IDLE_S / 2)
    renewal = ops.LeaseKeep(0, lease.lease)
    assert renewal not in harness.log, "there was no request"
    assert not harness.lease(requests.LEASE_RENEW, lease.lease).failed
    harness.run_until(lambda: renewal in harness.log)
    apid = answers.JOB.decode(harness.job(lease.lease))[0]
    assert harness.log.count(renewal) == 1, "the last renewal is recent"
    harness.refusal = "no leader was found"
    harness.pass_time(IDLE_S / 3)
    harness.run_until(lambda: harness.renewing)
    harness.run_until(lambda: not harness.renewing)
    harness.refusal = ""
    harness.pass_time(IDLE_S / 12)
    harness.run_until(lambda: harness.log.count(renewal) == 2)
    assert len(harness.read(apid)) == ROWS
    # A renewal of another node extends the lease here.
    harness.pass_time(IDLE_S - 5)
    harness.apply(renewal)
    table = harness.actor.table
    harness.run_until(lambda: (table.deadline_ms() or 0) > harness.clock() + 50_000)
    harness.pass_time(IDLE_S)
    harness.run_until(lambda: not harness.leases)


def test_a_lease_that_cannot_be_opened_is_refused(
    harness: SharedLeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = harness.ask(requests.Lease(0, requests.LEASE_OPEN, 9))
    assert "table 9 is local" in local.text
    harness.refusal = "no leader was found"
    answer = harness.ask(requests.Lease(0, requests.LEASE_OPEN, 7, Extension(reqid=REQID)))
    assert "no snapshot of table 7 can be taken: no leader was found" in answer.text
    assert answer.retry
    answer = harness.lease(requests.LEASE_RELEASE, shared_lease(3))
    assert "is not released on all nodes: no leader was found" in answer.text
    harness.refusal = ""
    # The worker makes no snapshot, and its report is lost.
    monkeypatch.setattr(harness, "make_snapshot", lambda table: None)
    answer = harness.ask(requests.Lease(0, 2, 7, Extension(reqid=REQID)))
    assert "opens a lease, but this node has no snapshot of it" in answer.text
    assert not answer.retry, "each try costs all nodes a snapshot"


def test_a_full_disk_ends_leases_without_readers(
    harness: SharedLeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, read = harness.open(), harness.open()
    apid = answers.JOB.decode(harness.job(read.lease))[0]
    monkeypatch.setattr(LeaseFolder, "free", lambda _: FREE_BYTES_MIN - 1)
    harness.run_until(lambda: len(harness.leases) == 1)
    assert harness.job(first.lease).retry, "another node may have room"
    assert len(harness.read(apid)) == ROWS
    harness.run_until(lambda: not harness.leases)


def test_a_late_report_does_not_restore_a_removed_lease(harness: SharedLeaseHarness) -> None:
    harness.worker_reports = False
    lease = harness.open()
    harness.actor.lease_folder.remove(lease.lease)
    harness.actor.table.on_lease_released(lease.lease)
    shutil.rmtree(lease.path, ignore_errors=True)
    harness.report(pipe.LEASE_OPENED, lease.lease)
    assert harness.job(lease.lease).failed


# ---- kept snapshots ----


def keep(
    harness: SharedLeaseHarness, lease: int, table: int = 7, ttl_ms: int = TTL_MS
) -> answers.Answer:
    extension = Extension(reqid=REQID)
    asked = requests.Lease(lease, requests.SNAPSHOT_KEEP, table, extension, ttl_ms, "nightly")
    return harness.ask(asked)


def report(harness: SharedLeaseHarness, *kept: int) -> None:
    """zerodb_server reports which leases are kept."""
    harness.reply(pipe.OWNERS, 0, msgpack.packb({}), msgpack.packb([*kept]))
    harness.run_until(lambda: {*harness.actor.table.kept} == {*kept})


def test_the_log_says_which_snapshots_are_kept(harness: SharedLeaseHarness) -> None:
    lease = harness.open().lease
    answer = keep(harness, lease)
    put, expiry = harness.log[-2:]
    assert put == ops.Put(SNAPSHOT_TABLE, [kept_key(7, lease)], [answer.frames[0]])
    (row,) = decode_kept([(kept_key(7, lease), answer.frames[0])])
    assert row == KeptRow(7, lease, "nightly", row.taken_ms, row.until_ms)
    assert row.until_ms == row.taken_ms + TTL_MS, "the time of its entry is not known"
    assert isinstance(expiry, ops.Expiry)
    assert (expiry.at_ms, expiry.keys) == (row.until_ms, put.keys)
    assert not keep(harness, lease, ttl_ms=0).failed
    harness.run_until(lambda: not harness.leases)
    ended = [ops.Delete(SNAPSHOT_TABLE, [kept_key(7, lease)]), ops.LeaseEnd(0, lease)]
    assert harness.log[-2:] == ended


def test_a_kept_snapshot_stays_without_readers_also_after_a_restart(
    harness: SharedLeaseHarness,
) -> None:
    lease, other = harness.open(), harness.open()
    report(harness, lease.lease)
    harness.pass_time(10 * IDLE_S)
    harness.run_until(lambda: len(harness.leases) == 1)
    harness.write(ops.DeleteRange(7, b"", b""))
    harness.restart()
    harness.pass_time(IDLE_S / 2)
    assert harness.rows(lease.lease) == ROWS
    report(harness, lease.lease)
    harness.pass_time(10 * IDLE_S)
    assert harness.rows(lease.lease) == ROWS
    assert harness.job(other.lease).failed
    harness.pass_time(10 * IDLE_S)
    report(harness)
    harness.pass_time(IDLE_S)
    harness.run_until(lambda: not harness.leases)


def test_its_time_is_that_of_its_entry(harness: SharedLeaseHarness) -> None:
    harness.unix_ms = 1_700_000_000_000
    lease = harness.open().lease
    (row,) = decode_kept([(kept_key(7, lease), keep(harness, lease).frames[0])])
    assert row.taken_ms == harness.unix_ms
    assert row.until_ms > row.taken_ms + TTL_MS


def test_what_cannot_be_kept_is_refused(
    harness: SharedLeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = harness.open().lease
    answer = keep(harness, lease, table=8)
    assert answer.text == f"lease {lease} is of table 7, not 8"
    assert "belongs to one node" in keep(harness, 12).text
    unknown = keep(harness, shared_lease(77))
    assert "this node has no snapshot of lease" in unknown.text
    assert unknown.retry, "another node may have it"
    harness.refusal = "no leader was found"
    answer = keep(harness, lease)
    assert answer.text == (
        f"the nodes were not told to keep, or to release, lease {lease}: no leader was found"
    )
    assert answer.retry
    harness.refusal = ""
    monkeypatch.setattr(values, "KEPT_SNAPSHOTS_MAX", 2)
    report(harness, shared_lease(90), shared_lease(91))
    assert keep(harness, lease).text == "the nodes keep 2 snapshots already; release one"
    report(harness, shared_lease(90), lease)
    assert not keep(harness, lease).failed, "it gets another end"
