"""Defects of tables; a few seeds of whole clusters find each of them (planted.py)."""

from functools import partial

from kelek.tests.sim.patches import Patch, PlantedBug

READS = "protocols/zerodb/server/reads.py"
WRITES = "protocols/zerodb/server/writes.py"
WORKER = "protocols/zerodb/worker/worker.py"
REQUESTS = "protocols/zerodb/worker/requests.py"
WATCH = "protocols/zerodb/worker/watch.py"
OPERATIONS = "protocols/zerodb/tables/operations.py"

OTHER = "has other tables at"
NO_ORDER = "no order of the calls"
READS_ANOTHER = r"\bt\d+ reads b"
ANSWERED_WRONGLY = "answers what is not asked, or twice"

_bug = partial(PlantedBug, runs="tables", seeds=8)

TABLE_BUGS = (
    _bug(
        "a worker applies its last entry again",
        (
            Patch(
                WORKER,
                "            entries += found.entries\n",
                "            entries += found.entries + found.entries[-1:]\n",
            ),
        ),
        expected=OTHER,
    ),
    _bug(
        "a worker skips an entry when it starts",
        (
            Patch(
                WORKER,
                "self.applied: LogPosition = tables.applied\n",
                "self.applied: LogPosition = (\n"
                "            tables.applied[0] + bool(tables.applied[0]),\n"
                "            tables.applied[1],\n"
                "        )\n",
            ),
        ),
        expected=OTHER,
    ),
    _bug(
        "tables of a snapshot that name the next entry",
        (
            Patch(
                "protocols/zerodb/worker/snapshot_participant.py",
                "self._store.write_state(applied)",
                "self._store.write_state((applied[0] + 1, applied[1]))",
            ),
        ),
        expected=f"{OTHER}|tables of the future",
        first_seed=6,
    ),
    _bug(
        "restored tables with the index of before",
        (
            Patch(
                WORKER,
                "        self.requests.databases = self.requests.databases._replace("
                "replicated=tables)\n        self.applier.replace(tables)\n",
                "        self.requests.databases = self.requests.databases._replace("
                "replicated=tables)\n        self.applier.tables = tables\n",
            ),
        ),
        expected="not everything",
        first_seed=5,
    ),
    _bug(
        "a put answered before its commit",
        (
            Patch(
                WRITES,
                "if checks.fence or setup.local or not setup.open_on_the_fly:",
                "if setup.workers:",
            ),
            Patch(
                WRITES,
                "awaited = answered and bool(row.flags & answers.SYNC_FLAGS)",
                "awaited = False",
            ),
        ),
        expected=f"{NO_ORDER}|acknowledged but lost|reads",
        first_seed=2,
    ),
    _bug(
        "a get answered without the leader",
        (Patch(READS, "new.read.index = self._context.leased_index()", "new.read.index = 1"),),
        expected=NO_ORDER,
        first_seed=14,
    ),
    _bug(
        "a get answered by a worker that is behind",
        (
            Patch(
                REQUESTS,
                "return pending.queued.log_index > self._applied and not (",
                "return pending.queued.log_index < 0 and not (",
            ),
        ),
        expected=NO_ORDER,
        first_seed=8,
    ),
    _bug(
        "requests of a worker that has ended are forgotten",
        (
            Patch(
                "protocols/zerodb/server/worker_channel.py",
                "        self._unsent.extendleft(reversed(self._sent))\n",
                "",
            ),
        ),
        expected="not everything",
        first_seed=32,
    ),
    _bug(
        "half of a transaction",
        (Patch(OPERATIONS, "    for step in made:\n", "    for step in made[:1]:\n"),),
        expected="half of a transaction|increments: |outlives its end",
    ),
    _bug(
        "newer writes stay when an older one is given up",
        (
            Patch(
                WRITES,
                "            self.proposals.withdraw(prefix[0], text)\n",
                "            assert text\n",
            ),
        ),
        expected="an old write follows",
    ),
    _bug(
        "a watch skips an entry behind a full page",
        (
            Patch(
                WATCH,
                "_LogPage(batches[-1].last_index + 1, by_table)",
                "_LogPage(batches[-1].last_index + 2, by_table)",
            ),
        ),
        expected="a watch misses or adds|a watch of the future",
    ),
    _bug(
        "a watch reports the last entry of a page again",
        (
            Patch(
                WATCH,
                "_LogPage(batches[-1].last_index + 1, by_table)",
                "_LogPage(max(batches[-1].last_index, index + 1), by_table)",
            ),
        ),
        expected="a watch reports twice|a watch misses or adds",
    ),
    _bug(
        "sessions end by the clock of each node",
        (
            Patch(
                WORKER,
                "local, number = databases.local, databases.owner.number",
                "local, number = databases.replicated, databases.owner.number",
            ),
        ),
        expected=OTHER,
    ),
    _bug(
        "sessions end before their time",
        (
            Patch(
                OPERATIONS,
                "ended = _due_keys(state, SESSION_EXPIRIES, (floor.sessions_ms, now_ms), left)",
                "ended = _due_keys(\n"
                "        state, SESSION_EXPIRIES, (floor.sessions_ms, now_ms + 200), left\n"
                "    )",
            ),
        ),
        expected="expires before its end",
    ),
    _bug(
        "sessions that are kept end",
        (
            Patch(
                OPERATIONS,
                "    later_ms = max(until_ms, _expires_at(ttl_ms, op.now_ms))\n",
                "    later_ms = until_ms\n",
            ),
        ),
        expected="expires before its end",
        first_seed=5,
    ),
    _bug(
        "keys stay when their session ends",
        (
            Patch(
                OPERATIONS,
                "    _delete_names(state, members)\n",
                "    assert members is not None\n",
            ),
        ),
        expected="outlives its end",
    ),
    _bug(
        "an increment counts again when it is repeated",
        (
            Patch(
                WRITES,
                "reqid = next((each for each in write.reqids if each and each != "
                'values.NO_REQID), b"")',
                'reqid = b""',
            ),
            Patch(
                OPERATIONS,
                "stored_result(state.get(SYSTEM, [result_key(op.reqid)])[0])) is",
                "None) is",
            ),
        ),
        expected="increments: ",
        first_seed=12,
    ),
    _bug(
        "compares that are not evaluated when they are applied",
        (
            Patch(
                OPERATIONS,
                "(compare for compare in op.compares if not _compare_holds(state, compare))",
                "(\n        one for one in op.compares if one.kind == ALIVE and not "
                "_compare_holds(state, one)\n    )",
            ),
        ),
        expected=NO_ORDER,
        first_seed=4,
    ),
    _bug(
        "a fencing token for two",
        (Patch(OPERATIONS, "token=counters.token + (taken == THEN)", "token=counters.token"),),
        expected="tokens have a number twice",
    ),
    _bug(
        "the first pack of writes that C gives back is forgotten",
        (
            Patch(
                "protocols/zerodb/server/session.py",
                "self.writes.proposals.take_over(packs, now.ms)",
                "self.writes.proposals.take_over(packs[1:], now.ms)",
            ),
        ),
        expected="not everything",
    ),
    _bug(
        "a transaction that C gives back is answered like a put",
        (
            Patch(
                "protocols/zerodb/server/proposals.py",
                "pack.awaiting_results, pack.is_plain = taken.asked, not taken.asked",
                "pack.awaiting_results, pack.is_plain = {}, True",
            ),
        ),
        expected="frame 1: missing",
    ),
    _bug(
        "a result that is told before its entry is applied",
        (
            Patch(
                "protocols/zerodb/worker/results.py",
                "            if queued.log_index <= applied:\n",
                "            if queued.log_index:\n",
            ),
            Patch(
                "protocols/zerodb/worker/results.py",
                "        if result is not None:\n",
                "        if result is None and problem is None:\n"
                '            result = b"\\1" + bytes(8)\n'
                "        if result is not None:\n",
            ),
        ),
        expected="not enough values",
    ),
    _bug(
        "reads behind a write without room are forwarded twice",
        (
            Patch(
                "protocols/zerodb/server/session.py",
                "if taken is not None and (position < taken or row.shape == READ):",
                "if taken is not None and position < taken:",
            ),
        ),
        expected=ANSWERED_WRONGLY,
        first_seed=20,
    ),
    _bug(
        "answered requests go to the next worker, too",
        (
            Patch(
                "protocols/zerodb/server/worker_channel.py",
                "            batch.answered.add(place)\n",
                "            assert place >= 0\n",
            ),
        ),
        expected=ANSWERED_WRONGLY,
        first_seed=24,
    ),
    _bug(
        "rows in shared memory that a write leaves as they were",
        (Patch(WORKER, "        tables.rows = self._rows\n", "        tables.rows = None\n"),),
        expected=f"{NO_ORDER}|{READS_ANOTHER}",
    ),
)
