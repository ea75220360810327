"""The job table in virtual time: who gets which chunk, when jobs and leases end."""

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

from kelek.native.tables.ops import cut_column
from kelek.protocols.zerodb.server.jobs import (
    DONE,
    EXPIRED,
    FAILED,
    RUNNING,
    Chunk,
    JobFailed,
    JobLimits,
    JobRefused,
    JobScan,
    JobTable,
    Lease,
    end_exclusive,
)
from kelek.protocols.zerodb.server.scan_chunks import PairChunks
from kelek.protocols.zerodb.wire.values import NO_MORE_DATA as NO_MORE
from kelek.protocols.zerodb.wire.values import PARTIAL_DATA as PARTIAL

IDLE_MS = 60_000
LIMITS = JobLimits(idle_ms=IDLE_MS, chunk_pairs=10, jobs_max=5, leases_max=3, kept_max=4)


def pairs(number: int, value: bytes = b"v") -> list[tuple[bytes, bytes]]:
    return [(b"%05d" % i, value) for i in range(number)]


def flat(chunk: Chunk) -> list[bytes]:
    """Key, value, key, value ..."""
    if not chunk.columns:
        return []
    columns = (cut_column(*chunk.columns[place : place + 2]) for place in (0, 2))
    return [part for pair in zip(*columns, strict=True) for part in pair]


class TableJobs:
    """A job table whose numbers count from 1, with a lease for each job unless one is named."""

    def __init__(self, limits: JobLimits = LIMITS) -> None:
        numbers = count(1)
        self.table = JobTable(limits, lambda: next(numbers))
        self._leases = count(1001)

    def lease(self, keeps: bool = False, now_ms: int = 0) -> int:
        number = next(self._leases)
        self.table.add_lease(Lease(number, 7, f"lease.{number}", 5, 1), keeps, now_ms)
        return number

    def job(self, rows: Iterator[tuple[bytes, bytes]], now_ms: int = 0, **scan: Any) -> int:
        lease = scan.pop("lease", None) or self.lease(now_ms=now_ms)
        return self.table.start(JobScan(0x42, 7, lease, **scan), PairChunks(rows), now_ms, 111)

    def chunks(self, apid: int) -> list[tuple[int, int]]:
        """(flags, pairs) of each chunk, up to the one that says that it is the last."""
        got: list[tuple[int, int]] = []
        while not got or got[-1][0] == 0:
            chunk = self.table.chunk(apid, 0, 222)
            got.append((chunk.flags, len(flat(chunk)) // 2))
        return got


@pytest.mark.parametrize(
    ("rows", "scan", "expected"),
    [
        (25, {}, [(0, 10), (0, 10), (PARTIAL, 5)]),
        (20, {}, [(0, 10), (0, 10), (NO_MORE, 0)]),  # An exact multiple.
        (0, {}, [(NO_MORE, 0)]),
        (5, {}, [(PARTIAL, 5)]),
        (5, {"chunk_pairs": 3}, [(0, 3), (PARTIAL, 2)]),
        (25, {"limit": 12}, [(0, 10), (PARTIAL, 2)]),
        (25, {"limit": 10}, [(0, 10), (NO_MORE, 0)]),
        (25, {"limit": 0}, [(NO_MORE, 0)]),
        (5, {"limit": 2**64 - 1}, [(PARTIAL, 5)]),
    ],
)
def test_flags_of_chunks(rows: int, scan: dict[str, int], expected: list[tuple[int, int]]) -> None:
    one = TableJobs()
    apid = one.job(iter(pairs(rows)), **scan)
    assert one.chunks(apid) == expected
    assert one.table.chunk(apid, 0, 333) == (NO_MORE, []), "a finished one"
    assert one.table.chunk(apid + 1, 0, 333) == (NO_MORE, []), "an unknown one"
    found = one.table.statistics(apid)
    assert found is not None
    assert (found.state, found.rows, found.started_ms, found.ended_ms) == (
        DONE,
        sum(number for _, number in expected),
        111,
        222,
    )


def test_a_chunk_cut_by_our_limits_is_not_the_last_one() -> None:
    """Neither large values nor a huge chunk size look like the end of the data."""
    one = TableJobs(LIMITS._replace(chunk_bytes_max=100))
    assert one.chunks(one.job(iter(pairs(12, bytes(30))))) == [*[(0, 3)] * 4, (NO_MORE, 0)]
    other = TableJobs(LIMITS._replace(chunk_pairs_max=4))
    apid = other.job(iter(pairs(10)), chunk_pairs=2**32 - 1)
    assert other.chunks(apid) == [(0, 4), (0, 4), (PARTIAL, 2)]


def test_clients_share_a_job_and_get_each_pair_once() -> None:
    dice = Random(3)
    one = TableJobs()
    jobs = [one.job(iter(pairs(97)), chunk_pairs=7) for _ in range(3)]
    got: dict[int, list[bytes]] = {apid: [] for apid in jobs}
    for _ in range(60):  # Any client asks next, for any job.
        apid = dice.choice(jobs)
        got[apid] += flat(one.table.chunk(apid, 0, 0))
    expected = [part for pair in pairs(97) for part in pair]
    assert all(frames == expected for frames in got.values())


def test_an_idle_job_ends_and_frees_its_lease() -> None:
    one = TableJobs()
    apid = one.job(iter(pairs(50)), now_ms=1000)
    one.table.chunk(apid, 31_000, 0)
    assert one.table.deadline_ms() == 31_000 + IDLE_MS
    one.table.tick(31_000 + IDLE_MS - 1, 5)
    assert list(one.table.jobs) == [apid]
    assert one.table.pop_freed() == []
    one.table.tick(31_000 + IDLE_MS, 5)
    assert [lease.number for lease in one.table.pop_freed()] == [1001]
    assert one.table.chunk(apid, 99_000, 0) == (NO_MORE, [])
    [ended] = one.table.pop_ended()
    assert (ended.state, ended.rows, ended.ended_ms) == (EXPIRED, 10, 5)
    assert one.table.deadline_ms() is None


def test_requests_to_a_job_keep_its_lease() -> None:
    one = TableJobs()
    lease = one.lease(keeps=True)
    first = one.job(iter(pairs(10)), lease=lease)
    second = one.job(iter(pairs(40)), lease=lease)
    assert one.chunks(first) == [(0, 10), (NO_MORE, 0)]
    one.table.chunk(second, 50_000, 0)
    one.table.tick(70_000, 0)
    assert one.table.lease(lease).path == f"lease.{lease}"
    one.table.tick(110_000, 0)  # The second job has expired; the lease was idle for as long.
    assert [it.number for it in one.table.pop_freed()] == [lease]
    with pytest.raises(JobRefused, match=f"no lease {lease}"):
        one.table.lease(lease)


def test_a_lease_is_renewed_and_released() -> None:
    one = TableJobs()
    lease = one.lease(keeps=True)
    one.table.renew(lease, 50_000)
    one.table.tick(60_000, 0)
    assert one.table.pop_freed() == []
    apid = one.job(iter(pairs(3)), now_ms=60_000, lease=lease)
    one.table.release(lease)  # Its job still reads.
    assert one.table.pop_freed() == []
    assert one.chunks(apid) == [(PARTIAL, 3)]
    assert [it.number for it in one.table.pop_freed()] == [lease]
    with pytest.raises(JobRefused):
        one.table.release(lease)


def test_requests_above_the_limits_are_refused() -> None:
    one = TableJobs()
    lease = one.lease(keeps=True)
    for _ in range(5):
        one.job(iter(pairs(1)), lease=lease)
    with pytest.raises(JobRefused, match="5 data jobs run already"):
        one.table.check_room()
    with pytest.raises(JobRefused, match="5 data jobs run already"):
        one.job(iter(pairs(1)), lease=lease)
    other = TableJobs()
    for _ in range(3):
        other.lease(keeps=True)
    with pytest.raises(JobRefused, match="3 snapshots are held already"):
        other.table.check_room()


def test_a_failed_job_does_not_look_finished() -> None:
    """A client would take "no more" as the end of all pairs."""
    one = TableJobs()
    apid = one.job(iter(pairs(50)))
    one.table.fail(apid, "a block is corrupt", 9)
    with pytest.raises(JobFailed, match="a block is corrupt"):
        one.table.chunk(apid, 0, 0)
    found = one.table.statistics(apid)
    assert found is not None
    assert (found.state, found.reason) == (FAILED, "a block is corrupt")


def test_pairs_of_a_mapper_are_not_returned_to_clients() -> None:
    one = TableJobs()
    apid = one.table.start(JobScan(0x41, 7, one.lease()), PairChunks(iter(pairs(30))), 0, 0)
    assert one.table.chunk(apid, 0, 0) == (NO_MORE, [])
    assert len(one.table.next_pairs(apid, 20, 1 << 20)) == 40
    one.table.touch(apid, 59_999)
    one.table.tick(60_000, 0)
    assert len(one.table.next_pairs(apid, 20, 1 << 20)) == 20
    assert one.table.next_pairs(apid, 20, 1 << 20) == []
    one.table.add_output(apid, 12, 3)
    one.table.finish(apid, 8)
    found = one.table.statistics(apid)
    assert found is not None
    assert found[3:10] == (DONE, 30, 30 * 6, 2, 0, 8, 12)


def test_statistics_are_kept_in_a_limited_number() -> None:
    one = TableJobs()
    apids = [one.job(iter(())) for _ in range(2)]
    assert one.table.jobs[apids[0]].state == RUNNING
    for apid in apids:
        one.chunks(apid)
    ended = one.table.pop_ended()
    again = TableJobs()
    again.table.restore(ended)
    assert again.table.statistics(apids[1]) == ended[1]
    for _ in range(4):
        one.chunks(one.job(iter(())))
    assert [one.table.statistics(apid) for apid in apids] == [None, None]
    names = ended[0].fields()
    assert {"apid", "state", "rows", "bytes", "started", "ended"} <= set(names)


def test_an_inclusive_end() -> None:
    keys = [b"a", b"a\0", b"b"]
    assert [key for key in keys if key < end_exclusive(b"a")] == [b"a"]
    assert end_exclusive(b"") == b""
