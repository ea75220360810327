"""The rules that no fault may break, checked after every event of a run.

Raft, figure 3: election safety, leader append-only, log matching, leader completeness, state
machine safety; and ours: term, vote and commit never go back, every acknowledged update is in the
log exactly once, at its index, the updates of one client stand in the order sent, and no answer to
a read is older than what was acknowledged, or served by the same node, before.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kelek.protocols.raft.core import Raft, Role
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.zmqraft.wire.entry import Entry
from kelek.tests.sim.config_rules import ConfigRules
from kelek.tests.sim.simulation import Simulation

Runs = list[tuple[int, int]]


class RuleBroken(AssertionError):
    """A rule was broken; the text names it."""


class AppliedEntry(NamedTuple):
    """An entry as a state machine has applied it."""

    term: int
    kind: int
    reqid: bytes | None
    data: bytes


class NodeHistory:
    """The state of one node from event to event. It ends with the peer's process."""

    def __init__(self) -> None:
        self.term = 0
        self.role = Role.FOLLOWER
        self.voted_for: str | None = None
        self.commit_index = 0
        self.log_key: tuple[int, int, int] = (0, 0, 0)
        self.led_term = 0
        self.led_runs: Runs = []
        self.led_last_index = 0


class Checker:
    """All commits, leaders, applied entries and acknowledgements of one run."""

    def __init__(self, simulation: Simulation, names: Iterable[str]) -> None:
        self.simulation = simulation
        self.leaders: dict[int, str] = {}
        self.seen = {name: NodeHistory() for name in names}
        self.rafts: dict[str, Raft] = {}
        self.touched: dict[str, Raft] = {}
        self.committed = RaftLog()  # Only its runs are used.
        self.committed_in: dict[int, int] = {}  # Up to where, by the term in which it was.
        self.applied: list[AppliedEntry] = []
        self._digests = [b""]  # Of the entries up to each index.
        self.reqids: dict[bytes, int] = {}
        self.acked: dict[bytes, int] = {}
        self.order: dict[bytes, int] = {}  # The last sequence number of each client, by log order.
        self.ordered: set[bytes] = set()  # Clients whose order is promised.
        self.configs = ConfigRules(self.expect)
        self.on_leader: Callable[[str], None] = lambda name: None  # A node was elected.

    # What the run reports.

    def on_started(self, name: str, raft: Raft) -> None:
        """A peer's process has recovered: it must still know all that it has promised."""
        seen = self.seen[name]
        self.expect(raft.term >= seen.term, name, "term went back", seen.term, raft.term)
        if raft.term == seen.term and seen.voted_for is not None:
            self.expect(
                raft.voted_for == seen.voted_for, name, "vote forgotten", seen.voted_for, raft.term
            )
        seen.commit_index = 0
        seen.led_term = 0
        seen.log_key = (0, 0, 0)
        self.rafts[name] = raft
        self.touched[name] = raft

    def on_wiped(self, name: str) -> None:
        """The node may have forgotten term and vote: it must not vote, which other rules check."""
        self.seen[name] = NodeHistory()

    def on_stopped(self, name: str) -> None:
        self.rafts.pop(name, None)
        self.touched.pop(name, None)

    def on_event_of(self, name: str) -> None:
        """The node's peer has acted in this event."""
        self.touched[name] = self.rafts[name]

    def after_event(self) -> None:
        """Checks the nodes that acted in the event."""
        if self.touched:
            for name, raft in self.touched.items():
                self._check_node(name, raft)
            self.touched.clear()

    # Rules about one node.

    def _check_node(self, name: str, raft: Raft) -> None:
        seen = self.seen[name]
        self.expect(raft.term >= seen.term, name, "term went back", seen.term, raft.term)
        if raft.term == seen.term and seen.voted_for is not None:
            same = raft.voted_for == seen.voted_for
            self.expect(same, name, "vote changed", seen.voted_for, raft.voted_for)
        if (seen.term, seen.role) != (raft.term, raft.role):
            self.simulation.trace_event(
                name, raft.role, "in term", raft.term, "vote", raft.voted_for
            )
            seen.role = raft.role
        seen.term, seen.voted_for = raft.term, raft.voted_for
        log = raft.log
        self.expect(raft.commit_index <= log.last_index, name, "commits what it has not")
        self.expect(raft.durable_index <= log.last_index, name, "durable without a log")
        if raft.role is Role.LEADER:
            self._check_leader(name, raft, seen)
        self.configs.check(name, raft)
        if raft.commit_index != seen.commit_index:
            self.expect(raft.commit_index > seen.commit_index, name, "commit went back")
            # As a follower it may have risen in the same event, before it led.
            by_counting = raft.role is Role.LEADER and log.term_at(raft.commit_index) == raft.term
            self.configs.on_commit(name, raft, by_counting=by_counting)
            seen.commit_index = raft.commit_index
            self._check_commits(name, raft)
        log_key = (log.last_index, log.last_term, len(log.runs))
        if log_key != seen.log_key:
            seen.log_key = log_key
            self._check_matching(name, log)

    def _check_leader(self, name: str, raft: Raft, seen: NodeHistory) -> None:
        other = self.leaders.setdefault(raft.term, name)
        self.expect(other == name, name, "election safety: both lead", other, raft.term)
        runs, last_index = raft.log.runs, raft.log.last_index
        led_runs = clipped(seen.led_runs, seen.led_last_index, raft.log)
        if seen.led_term != raft.term:
            self.simulation.counters["leaders"] += 1
            self.on_leader(name)
            # Votes that were long on their way may make a leader when a newer one has committed.
            before = [index for term, index in self.committed_in.items() if term < raft.term]
            last_committed = max(before, default=0)
            for first_index, term in clipped(self.committed.runs, last_committed, raft.log):
                has = first_index > last_committed or raft.log.term_at(first_index) == term
                self.expect(has, name, "leader completeness: lacks", first_index, term)
            if last_committed > raft.log.base_index:
                committed_term = self.committed.term_at(last_committed)
                has = raft.log.term_at(last_committed) == committed_term
                self.expect(has, name, "leader completeness: lacks", last_committed)
        else:
            append_only = last_index >= seen.led_last_index and runs[: len(led_runs)] == led_runs
            self.expect(append_only, name, "leader append-only", led_runs, runs)
        seen.led_term, seen.led_runs, seen.led_last_index = raft.term, runs, last_index

    def _check_commits(self, name: str, raft: Raft) -> None:
        """Every committed entry is the same on all nodes: equal index, equal term."""
        committed, log = self.committed, raft.log
        common = min(raft.commit_index, committed.last_index)
        for first_index, term in clipped(committed.runs, common, log):
            if first_index <= common:
                same = log.term_at(first_index) == term
                self.expect(same, name, "committed otherwise elsewhere", first_index, term)
        same = log.term_at(common) == committed.term_at(common)
        self.expect(same, name, "committed otherwise elsewhere", common)
        if raft.commit_index > committed.last_index:
            last_index = committed.last_index
            runs = [run for run in log.runs if last_index < run[0] <= raft.commit_index]
            if not runs or runs[0][0] > last_index + 1:
                first_term = log.term_at(last_index + 1)
                assert first_term is not None, "only what was committed somewhere is compacted"
                if first_term != committed.last_term or not last_index:
                    runs.insert(0, (last_index + 1, first_term))
            self.committed = RaftLog(0, 0, committed.runs + runs, raft.commit_index)
            self.committed_in[raft.term] = raft.commit_index

    def _check_matching(self, name: str, log: RaftLog) -> None:
        """Two logs with the same term at an index are equal up to there."""
        runs = log.runs
        for other_name, other_raft in self.rafts.items():
            if other_name == name:
                continue
            other = other_raft.log
            index = min(log.last_index, other.last_index)
            base_index = max(log.base_index, other.base_index)
            # The last index at which both have the same term: look at the ends of runs only.
            while index > base_index and log.term_at(index) != other.term_at(index):
                index = max(log.term_first(index), other.term_first(index)) - 1
            if index <= base_index:
                continue  # What lies below is committed, and compared there.
            mine = [run for run in clipped(runs, index, other) if run[0] <= index]
            theirs = [run for run in clipped(other.runs, index, log) if run[0] <= index]
            self.expect(mine == theirs, name, "log matching with", other_name, mine, theirs)

    # Rules about entries.

    def on_applied(self, name: str, index: int, entry: AppliedEntry) -> None:
        """A state machine applies an entry. The first one determines what the others must apply."""
        applied = self.applied
        self.expect(index <= len(applied) + 1, name, "applies with a gap", index, len(applied))
        if index <= len(applied):
            same = applied[index - 1] == entry
            self.expect(same, name, "state machine safety at", index, entry, applied[index - 1])
            return
        applied.append(entry)
        reqid = entry.reqid
        if reqid is None:
            return
        twice = self.reqids.setdefault(reqid, index)
        self.expect(twice == index, name, "the same update twice:", entry.data, twice, index)
        if entry.kind == 0:
            self._check_order(name, entry)
        self._check_acked(reqid)

    def _check_order(self, name: str, entry: AppliedEntry) -> None:
        client, number = parse_update(entry.data)
        if client in self.ordered:
            before = self.order.get(client, -1)
            self.expect(number == before + 1, name, "order of", client, before, number)
            self.order[client] = number

    def state_at(self, index: int) -> bytes:
        """Returns the state that every state machine must have after the entry at index."""
        while len(self._digests) <= index:
            entry = self.applied[len(self._digests) - 1]
            before = self._digests[-1]
            self._digests.append(hashlib.sha256(before + repr(entry).encode()).digest())
        return self._digests[index]

    def on_restored(self, name: str, index: int, state: bytes) -> None:
        """A state machine has loaded its state from a snapshot."""
        self.simulation.counters["restored"] += 1
        known = index <= len(self.applied)
        self.expect(
            known, name, "restores entries that no node has applied", index, len(self.applied)
        )
        same = state == self.state_at(index)
        self.expect(same, name, "state machine safety: another state at", index)

    def on_acked(self, reqid: bytes, index: int) -> None:
        """A client's update was acknowledged as committed at an index."""
        self.acked[reqid] = index
        self._check_acked(reqid)

    def on_read(self, who: str, floor: int, index: int) -> None:
        """A client got a read index; `floor` was committed before its request."""
        self.expect(index >= floor, who, "a stale read:", index, "after", floor)
        end = self.committed.last_index
        self.expect(index <= end, who, "reads what is not committed:", index, end)

    def on_entries_end(self, who: str, floor: int, index: int) -> None:
        """A client got the end of the entries. `floor` was committed before its request, or, where
        a node may lag, was in an earlier answer of the node."""
        self.expect(index >= floor, who, "entries that go back:", index, "after", floor)
        end = self.committed.last_index
        self.expect(index <= end, who, "serves what is not committed:", index, end)

    def on_entries(self, who: str, entries: Iterable[Entry]) -> None:
        """A client got entries."""
        for entry in entries:
            index, term = entry.index, self.committed.term_at(entry.index)
            self.expect(term == entry.term, who, "serves another entry at", index, term)
            if index <= len(self.applied):
                kept = self.applied[index - 1]
                same = (kept.kind, kept.reqid, kept.data) == (entry.type, entry.reqid, entry.data)
                self.expect(same, who, "serves another entry at", index)

    def _check_acked(self, reqid: bytes) -> None:
        index = self.acked.get(reqid)
        if index is not None and index <= len(self.applied):
            found = self.applied[index - 1].reqid
            self.expect(found == reqid, "an acknowledged update is not at", index, reqid.hex())

    def check_end(self, applied_by: dict[str, int]) -> None:
        """After the faults: every node has applied everything, and all acknowledgements hold."""
        for name, index in applied_by.items():
            self.expect(index == len(self.applied), name, "has applied", index, len(self.applied))
        for reqid, index in self.acked.items():
            self.expect(self.reqids.get(reqid) == index, "acknowledged but lost:", reqid.hex())

    def expect(self, holds: bool, *words: object) -> None:
        if not holds:
            raise RuleBroken(" ".join(map(str, words)))


def clipped(runs: Runs, last_index: int, log: RaftLog) -> Runs:
    """The runs of what ends at last_index, as they are in a log that begins behind log's base."""
    first_index = log.base_index + 1
    kept = [run for run in runs if run[0] > first_index]
    before = [run for run in runs if run[0] <= first_index]
    if before and first_index <= last_index:
        kept.insert(0, (first_index, before[-1][1]))
    return kept


def make_update(client: bytes, number: int, size: int) -> bytes:
    """Returns the data of a client's update: the client, its number, and filling."""
    head = b"%s:%d:" % (client, number)
    return head + b"." * max(0, size - len(head))


def parse_update(data: bytes) -> tuple[bytes, int]:
    client, number, _ = data.split(b":", 2)
    return client, int(number)
