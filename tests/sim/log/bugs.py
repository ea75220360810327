"""Defects of the log; `seeds` of whole clusters find each of them (planted.py)."""

from kelek.tests.sim.patches import CORE, SAFETY_BROKEN, Patch, PlantedBug

LEADER = "protocols/raft/leader.py"
MESSAGES = "protocols/raft/messages.py"
APPEND_QUEUE = "protocols/zmqraft/server/updates.py"
SNAPSHOTS = "protocols/zmqraft/server/snapshots.py"
WRITER = "storage/log/log.py"
LOG = "storage/log/log.py"

READS = "protocols/raft/reads.py"
LEASE = "protocols/raft/lease.py"
TRANSFER = "protocols/raft/transfer.py"
READERS = "protocols/zmqraft/server/entry_readers.py"
STALE = "a stale read"
BACK = "entries that go back"

LOG_BUGS = (
    PlantedBug(
        "read answered without a round",
        (Patch(READS, "reached = leader.confirmed_round()", "reached = self.round"),),
        expected=STALE,
        first_seed=5,
    ),
    PlantedBug(
        "read answered by a round of before",
        (
            Patch(
                READS,
                "        return self.round + 1",
                "        return self.round if self._unconfirmed else self.round + 1",
            ),
        ),
        expected=STALE,
    ),
    PlantedBug(
        "read answered before the term's own commit",
        (
            Patch(
                READS,
                "if not self._requested or not leader.has_committed:",
                "if not self._requested:",
            ),
        ),
        expected=STALE,
        first_seed=4,
    ),
    PlantedBug(
        "a lease that does not end",
        (Patch(LEASE, "return started_ms + LEASE_MS", "return 1 << 62"),),
        expected=STALE,
        first_seed=5,
    ),
    PlantedBug(
        "a lost connection ends the promise to the leader",
        (
            Patch(
                "protocols/raft/election.py",
                "return term > 0 and now_ms < self.promise_ends_ms",
                "return False",
            ),
            Patch(
                "protocols/raft/election.py",
                "max(now_ms + wait_ms, self.promise_ends_ms)",
                "now_ms + wait_ms",
            ),
        ),
        expected=STALE,
        first_seed=16,
    ),
    PlantedBug(
        "a lease goes on during a transfer",
        (Patch(CORE, "self._leading.gives_leases = False", "pass"),),
        expected=STALE,
        first_seed=407,
    ),
    PlantedBug(
        "a shared lease of a leader that has committed nothing",
        (Patch(LEASE, "if leader is None or not leader.has_committed:", "if leader is None:"),),
        expected=STALE,
    ),
    PlantedBug(
        "a shared lease that is renewed by time alone",
        (
            Patch(
                LEASE,
                "    until_ms = core.lease.until_ms(leader)\n",
                "    until_ms = core._now_ms + LEASE_MS\n",
            ),
        ),
        expected=STALE,
    ),
    PlantedBug(
        "a shared lease with the index of its first entry",
        (
            Patch(
                LEASE,
                "until_ms, core.commit_index if until_ms",
                "until_ms, leader.term_start if until_ms",
            ),
        ),
        expected=STALE,
    ),
    PlantedBug(
        "entries served by a leader that is not confirmed",
        (
            Patch(
                READERS,
                "self._await_confirmation(_EntryRequest(client, request, confirmed=True), now_ms)\n"
                "\n",
                "self._queue.append(_EntryRequest(client, request, confirmed=True))\n\n",
            ),
        ),
        expected=BACK,
    ),
    PlantedBug(
        "entries served by a follower that has just started",
        (
            Patch(
                READERS,
                "        self._committed_floor: int | None = None",
                "        self._committed_floor: int | None = 0",
            ),
        ),
        expected=BACK,
    ),
    PlantedBug(
        "entries served only as far as they are applied",
        (
            Patch(
                "protocols/zmqraft/server/peer.py",
                "self.entry_readers.answer_some(self._applicable_index, now_ms)",
                "readers, index = self.entry_readers, self._applicable_index\n"
                "        readers._queue += readers._unconfirmed.pop_ready(index)\n"
                "        readers.answer_some(self.last_applied, now_ms)",
            ),
        ),
        expected=BACK,
    ),
    PlantedBug(
        "transfer that skips the up-to-date check",
        (
            Patch(TRANSFER, "if self._is_caught_up(leader, log) and now_ms", "if now_ms"),
            Patch(
                CORE,
                "        if (message.last_term, message.last_index) < (",
                "        if not message.transfer and (message.last_term, message.last_index) < (",
            ),
        ),
        first_seed=90,
    ),
    PlantedBug(
        "acknowledged before it is synced",
        (Patch(WRITER, "if self.log.start_sync():", "if True:"),),
        first_seed=6,
    ),
    PlantedBug(
        "volatile vote",
        (
            Patch(
                CORE,
                "hard_state = self._out.hard_state = HardState(self.term, self.voted_for)",
                "self._out.hard_state = HardState(self.term, self.voted_for)\n"
                "            hard_state = HardState(self.term, None)",
            ),
        ),
        expected="vote forgotten|vote changed",
    ),
    PlantedBug(
        "old terms committed by count",
        (Patch(LEADER, "if index >= self._term_start and index", "if index"),),
        first_seed=101,
    ),
    PlantedBug(
        "tail recovered without a sync",
        (
            Patch(LOG, "        elif found.tail is not None:\n", "        elif False:\n"),
            Patch(
                LOG,
                "file.sync()\n        self._files.sync_folder(FOLDER)\n        self._active",
                "self._active",
            ),
        ),
        first_seed=32,
    ),
    PlantedBug(
        "no pre-vote",
        (Patch(MESSAGES, "    pre_vote: bool = True\n", "    pre_vote: bool = False\n"),),
        expected="disturbed",
    ),
    PlantedBug(
        "writer restarted alone",
        (
            Patch(WRITER, "if job.epoch != self.epoch:", "if False:"),
            Patch(WRITER, "if job.seq != self._last_seq + 1:", "if False:"),
            Patch(LOG, "if self.term_at(prev_index) != prev_term:", "if False:"),
        ),
        expected=f"{SAFETY_BROKEN}|applies with a gap|has damaged its own log",
        first_seed=383,
    ),
    PlantedBug(
        "votes for a shorter log",
        (
            Patch(
                CORE,
                "if (message.last_term, message.last_index) < (log.last_term, log.last_index):",
                "if message.last_term < log.last_term:",
            ),
        ),
        first_seed=6,
    ),
    PlantedBug(
        "two votes in a term",
        (Patch(CORE, "granted and self.voted_for in (None, sender) and", "granted and"),),
        expected="vote changed|both lead",
        first_seed=13,
    ),
    PlantedBug(
        "follower answers before its disk",
        (
            Patch(
                CORE,
                "            self._out.messages_after.append(",
                "            self._out.messages.append(",
            ),
        ),
        first_seed=9,
    ),
    PlantedBug(
        "commit index beyond what is known to be equal",
        (
            Patch(
                CORE,
                "min(message.commit_index, last_index)",
                "min(message.commit_index, self.log.last_index)",
            ),
            Patch(  # Also when what the message builds on is not equal.
                CORE,
                "            return\n        for batch in message.batches:\n",
                "            known = min(message.commit_index, self.log.last_index)\n"
                "            self.commit_index = max(self.commit_index, known)\n"
                "            return\n        for batch in message.batches:\n",
            ),
        ),
    ),
    PlantedBug(
        "request ids of replaced updates kept",
        (Patch(APPEND_QUEUE, "        self._reqids.truncate(last_index)\n", ""),),
        expected="acknowledged|order of",
        first_seed=61,
    ),
    PlantedBug(
        "no chain between a client's packs",
        (
            Patch(
                "protocols/zmqraft/client/window.py",
                'previous = self.items[position - 1].reqids[-1] if position else b""',
                'previous = b""',
            ),
        ),
        expected="order of",
        first_seed=4,
    ),
    PlantedBug(
        "compacts what its own disk has not got",
        (
            Patch(CORE, "if index > min(self.commit_index, self.durable_index):", "if False:"),
            Patch(
                SNAPSHOTS,
                "index = min(self.newest.last_index, applied_index, core.durable_index)",
                "index = core.log.last_index",
            ),
            Patch(
                SNAPSHOTS,
                "index = min(index, max(floor, self.newest.last_index - "
                "self._setup.trailing_entries))",
                "",
            ),
        ),
        expected=f"{SAFETY_BROKEN}|not everything",
    ),
    PlantedBug(
        "an installed snapshot leaves the log as it was",
        (
            Patch(
                APPEND_QUEUE,
                "self._queued_index, self.reset_pending = index, True",
                "self._queued_index = index",
            ),
        ),
        expected=f"{SAFETY_BROKEN}|not everything",
        first_seed=5,
    ),
    PlantedBug(
        "a snapshot is named before it is durable",
        (
            Patch(
                "storage/snapshot/snapshot.py",
                "        self._file.sync()\n        self._file.close()\n"
                "        self._owner._publish(self._path, self._info)",
                "        self._file.close()\n        self._owner._publish(self._path, self._info)",
            ),
            Patch(
                "storage/snapshot/snapshot.py",
                "            self._file.sync()\n            info =",
                "            info =",
            ),
        ),
        expected="Damaged: memory/snapshots",
    ),
    PlantedBug(
        "request ids left out of snapshots",
        (Patch("storage/snapshot/work.py", "reqids.export(index))", "Reqids().export(index))"),),
        expected="acknowledged|order of|twice",
        first_seed=4,
    ),
    PlantedBug(
        "a snapshot commits entries that differ",
        (
            Patch(
                CORE,
                "if self.log.term_at(index) == term:\n            self.commit_index = index\n",
                "if self.log.term_at(index):\n            self.commit_index = index\n",
            ),
        ),
        expected=f"{SAFETY_BROKEN}|not everything",
        first_seed=96,
    ),
    PlantedBug(
        "hard state not synced",
        (Patch("storage/log/hard_state.py", "            self._file.sync()\n", ""),),
        expected="vote forgotten|term went back",
    ),
    PlantedBug(
        "joint entries committed by the new majority alone",
        (
            Patch(
                "protocols/raft/membership.py",
                "return min(result, majority_value(map(value, old))) if old else result",
                "return result",
            ),
        ),
        expected=f"{SAFETY_BROKEN}|commits without a majority",
        first_seed=27,
    ),
    PlantedBug(
        "a configuration in force only when it is committed",
        (
            Patch(
                CORE,
                "append(batch.first_index, configuration)\n                self._configure()\n",
                "append(batch.first_index, configuration)\n",
            ),
            Patch(
                CORE,
                "        commit_term = self.log.term_at(commit_index)\n",
                "        commit_term = self.log.term_at(commit_index)\n"
                "        if self.log.configurations.last_index <= commit_index:\n"
                "            self._configure()\n",
            ),
        ),
        expected=f"{SAFETY_BROKEN}|commits without a majority|another configuration",
        first_seed=3,
    ),
    PlantedBug(
        "learners counted",
        (
            Patch(
                LEADER,
                "        return quorum_value(\n"
                "            self._configuration,\n"
                "            lambda voter: own if voter == peer_id "
                "else followers[voter].counted(field),\n"
                "        )\n",
                "        assert peer_id\n"
                "        values = sorted([own, *(it.counted(field) for it in self.followers)])\n"
                "        return values[(len(values) - 1) // 2]\n",
            ),
        ),
        expected=f"{SAFETY_BROKEN}|commits without a majority",
        first_seed=3,
    ),
    PlantedBug(
        "a configuration stays when its entry is replaced",
        (
            Patch(
                "protocols/raft/log.py",
                "        self.configurations.truncate(index)\n",
                "",
            ),
        ),
        expected=f"{SAFETY_BROKEN}|configuration",
        first_seed=187,
    ),
)
