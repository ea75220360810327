"""Leases of all nodes in virtual time: the job tables of some nodes, and the log between them. A
reader on one node keeps the lease on all; without readers it ends."""

from itertools import count
from random import Random

import pytest

from kelek.protocols.zerodb.server.jobs import (
    ENDED_LEASES_MAX,
    ROWS_LATE_MS,
    JobLimits,
    JobRefused,
    JobScan,
    JobTable,
    Lease,
)
from kelek.protocols.zerodb.server.scan_chunks import PairChunks
from kelek.protocols.zerodb.wire.values import shared_lease

IDLE_MS = 60_000
LIMITS = JobLimits(idle_ms=IDLE_MS, leases_max=8, shared_max=2)
STEP_MS = 500
DELAY_MS = 4_000  # At most, from a request for an entry until a node has applied it.


def table(limits: JobLimits = LIMITS) -> JobTable:
    numbers = count(1)
    return JobTable(limits, lambda: next(numbers))


def lease(index: int) -> Lease:
    number = shared_lease(index)
    return Lease(number, 7, f"lease.{number}", index, 1)


class LeaseNodes:
    """Three nodes; entries reach each with a delay of its own, in order."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.tables = [table() for _ in range(3)]
        self.up = [True] * 3
        self.now_ms = 0
        self.entries = 0  # Renewals.
        self.coming: list[list[tuple[int, int]]] = [[], [], []]  # By node: (when, lease).
        self.number = lease(5).number
        for each in self.tables:
            each.add_lease(lease(5), True, 0)

    def holds(self, node: int) -> bool:
        return bool(self.tables[node].shared)

    def step(self) -> None:
        """Some time passes on all running nodes."""
        self.now_ms += STEP_MS
        for node, each in enumerate(self.tables):
            while self.coming[node] and self.coming[node][0][0] <= self.now_ms:
                each.on_lease_renewed(self.coming[node].pop(0)[1], self.now_ms)
            if not self.up[node]:
                continue
            for number in each.due_renewals(self.now_ms):
                self.ask(node, number)
            each.tick(self.now_ms, 0)

    def ask(self, node: int, number: int) -> None:
        if self.dice.random() < 0.1:  # There is no leader now.
            self.tables[node].on_renewal_failed(number, self.now_ms)
            return
        self.entries += 1
        for coming in self.coming:
            last = coming[-1][0] if coming else self.now_ms
            coming.append((max(last, self.now_ms + self.dice.randrange(DELAY_MS)), number))


@pytest.mark.parametrize("seed", range(12))
def test_a_lease_lives_on_all_nodes_while_one_of_them_is_read(seed: int) -> None:
    """Readers pause for almost the lifetime of a job, and move to another node when theirs dies."""
    nodes = LeaseNodes(seed)
    dice = nodes.dice
    node, apid = 0, 0
    pause_ms = 0
    for _ in range(2):  # A node dies, twice.
        apid = begin(nodes, node)
        until_ms = nodes.now_ms + dice.randrange(10 * IDLE_MS)
        while nodes.now_ms < until_ms:
            nodes.step()
            if nodes.now_ms >= pause_ms:
                nodes.tables[node].chunk(apid, nodes.now_ms, 0)
                # Less often than each third of the lifetime, so that nodes differ.
                pause_ms = nodes.now_ms + dice.randrange(IDLE_MS // 2)
            assert all(nodes.holds(each) for each in range(3) if nodes.up[each])
        nodes.up[node] = False
        node += 1
    begin(nodes, node)
    spent_ms = nodes.now_ms
    # One node renews for all, once in a third of the lifetime.
    assert nodes.entries <= 1 + 3 * spent_ms // IDLE_MS
    while nodes.holds(node):
        nodes.step()
        # The last renewal may come a third later, and once more after a failure.
        latest_ms = spent_ms + IDLE_MS + IDLE_MS // 2 + DELAY_MS + 2 * STEP_MS
        assert nodes.now_ms <= latest_ms, "no job reads it"


def begin(nodes: LeaseNodes, node: int) -> int:
    """A job without an end."""
    scan = JobScan(0x42, 7, nodes.number, chunk_pairs=1)
    pairs = ((b"%d" % i, b"") for i in count())
    return nodes.tables[node].start(scan, PairChunks(pairs), nodes.now_ms, 0)


def test_an_unused_lease_needs_no_entries() -> None:
    nodes = LeaseNodes(1)
    while nodes.holds(0):
        nodes.step()
    assert nodes.now_ms == IDLE_MS
    assert not nodes.entries
    assert not any(map(nodes.holds, range(3)))


def test_a_release_lets_jobs_end_first() -> None:
    one = table()
    held = lease(9)
    one.add_lease(held, True, 0)
    apid = one.start(JobScan(0x42, 7, held.number), PairChunks(iter([(b"k", b"v")])), 0, 0)
    one.check_not_released(held.number)
    one.on_lease_released(held.number)
    assert one.shared == [held.number]
    with pytest.raises(JobRefused, match="it takes no further job"):
        one.check_not_released(held.number)
    one.chunk(apid, 0, 0)
    assert one.pop_freed() == [held]
    with pytest.raises(JobRefused, match="it was released or idle") as refused:
        one.renew(held.number, 0)
    assert not refused.value.retry, "other nodes have it no more, either"


def test_an_unknown_lease_may_be_on_another_node() -> None:
    one = table()
    with pytest.raises(JobRefused, match="this node has no snapshot of lease") as refused:
        one.lease(lease(9).number)
    assert refused.value.retry
    one.on_lease_released(lease(9).number)  # An entry of the log released it on all nodes.
    with pytest.raises(JobRefused, match="it was released") as refused:
        one.lease(lease(9).number)
    assert not refused.value.retry
    with pytest.raises(JobRefused) as refused:  # Of this node only.
        one.lease(12)
    assert not refused.value.retry


def test_bounds() -> None:
    one = table()
    for index in (5, 6):
        one.check_room(shared=True)
        one.add_lease(lease(index), True, 0)
    with pytest.raises(JobRefused, match="2 leases are shared"):
        one.check_room(shared=True)
    one.check_room()
    one.start(JobScan(0x42, 7, lease(5).number), PairChunks(iter([])), 0, 0)
    assert one.drop_idle_lease()
    assert not one.drop_idle_lease(), "it is read"
    assert one.pop_freed() == [lease(6)]
    with pytest.raises(JobRefused) as refused:
        one.lease(lease(6).number)
    assert refused.value.retry, "other nodes may have room"
    for index in range(100, 102 + ENDED_LEASES_MAX):
        one.on_lease_released(lease(index).number)
    assert len(one.ended_leases) == ENDED_LEASES_MAX


def test_a_kept_lease_stays_without_readers() -> None:
    one = table()
    kept, other = lease(5), lease(6)
    one.add_lease(kept, True, 0)
    one.add_lease(other, True, 0)
    one.set_kept({kept.number}, 0)
    one.tick(100 * IDLE_MS, 0)
    assert one.pop_freed() == [other]
    assert one.deadline_ms() is None, "nothing is due"
    apid = one.start(JobScan(0x42, 7, kept.number), PairChunks(iter([(b"k", b"v")])), 0, 0)
    one.set_kept((), 0)
    one.tick(1, 0)
    assert one.shared == [kept.number], "it is read"
    one.chunk(apid, 1, 0)
    one.tick(IDLE_MS + 1, 0)
    assert one.pop_freed() == [kept]


def test_a_kept_lease_stays_while_a_worker_or_server_starts_again() -> None:
    """Its row is reported late, however short leases live."""
    one = table(LIMITS._replace(idle_ms=1000))
    one.add_lease(lease(5), True, 0)
    one.set_kept({lease(5).number}, 0)
    now_ms = 3_600_000
    one.tick(now_ms, 0)
    one.set_kept((), now_ms)
    one.tick(now_ms + ROWS_LATE_MS - 1, 0)
    assert one.shared
    one.set_kept({lease(5).number}, now_ms + ROWS_LATE_MS - 1)
    one.tick(2 * now_ms, 0)
    assert one.shared
    one.set_kept((), 2 * now_ms)
    one.tick(2 * now_ms + ROWS_LATE_MS, 0)
    assert not one.shared


def test_a_full_disk_ends_kept_leases_last() -> None:
    one = table()
    for index in (5, 6):
        one.add_lease(lease(index), True, 0)
    one.set_kept({lease(5).number}, 0)
    assert one.drop_idle_lease()
    assert one.pop_freed() == [lease(6)]
    assert one.drop_idle_lease()
    assert one.pop_freed() == [lease(5)]


def test_a_lease_that_a_start_finds_waits_until_it_is_known_whether_it_is_kept() -> None:
    one = table()
    one.add_lease(lease(5), True, 0, 2 * IDLE_MS)
    one.tick(2 * IDLE_MS - 1, 0)
    assert one.shared
    one.tick(2 * IDLE_MS, 0)
    assert not one.shared


def test_a_failed_renewal_is_retried_soon() -> None:
    one = table()
    one.add_lease(lease(5), True, 0)
    one.renew(lease(5).number, 0)
    assert not one.due_renewals(IDLE_MS // 3 - 1), "who opens it has said so"
    assert one.due_renewals(IDLE_MS // 3) == [lease(5).number]
    nothing = one.renewals_due_ms
    assert nothing is None
    one.on_renewal_failed(lease(5).number, IDLE_MS // 3)
    due_ms = one.renewals_due_ms
    assert due_ms == IDLE_MS // 3 + IDLE_MS // 12
    assert one.due_renewals(due_ms) == [lease(5).number]
