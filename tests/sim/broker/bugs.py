"""Defects of brokers with durable services; a few seeds find each of them (planted.py)."""

from functools import partial

from kelek.tests.sim.patches import Patch, PlantedBug

LEDGER = "protocols/majordomo/ledger.py"
DURABLE = "protocols/majordomo/durable.py"

STUCK = "not everything|requests without an end"
NOT_OWNER = "is not the owner"

_bug = partial(PlantedBug, runs="broker", seeds=8)

BROKER_BUGS = (
    _bug(
        "a worker gets a request before the log has it",
        (
            Patch(
                LEDGER,
                "            self._unwritten.append(record)\n",
                "            self._unwritten.append(record)\n"
                "            self._queued.append(record)\n"
                "            record.state = records.QUEUED\n",
            ),
            Patch(
                LEDGER,
                "asked = [record for record in self._unwritten if record.state == records.WRITING]",
                "asked = self._unwritten",
            ),
        ),
        expected="dispatches what the log has not",
    ),
    _bug(
        "a client gets its answer before the log has it",
        (
            Patch(
                LEDGER,
                "if last and record.state != records.DONE:",
                "if last and record.state == records.QUEUED:",
            ),
            Patch(
                LEDGER,
                "            self._unwritten_ends.append(record)\n        else:\n"
                "            self._send_answers(record)\n",
                "            self._unwritten_ends.append(record)\n"
                "        self._send_answers(record)\n",
            ),
        ),
        expected="an answer that the log has not",
    ),
    _bug(
        "an owner gives requests to workers after its lease",
        (Patch(DURABLE, "and now_ms < self._lease_until_ms and", "and now_ms and"),),
        expected=NOT_OWNER,
    ),
    _bug(
        "a broker takes the store before the owner's lease ends",
        (
            Patch(
                DURABLE,
                "+ self.setup.lease_ms + self.setup.lease_ms // 10 + 1",
                "+ self.setup.lease_ms // 2",
            ),
        ),
        expected=NOT_OWNER,
    ),
    _bug(
        "a former owner writes ends",
        (
            Patch(
                DURABLE,
                "            self._send([(OWNER, self._owner_value)], pairs, deletes,",
                "            self._send([], pairs, deletes,",
            ),
        ),
        expected="an end of no open request|two ends",
        first_seed=6,
    ),
    _bug(
        "a request is deleted while a part of its segment has no end",
        (
            Patch(
                LEDGER,
                "if segment.is_written and not segment.unfinished and not segment.has_junk:",
                "if segment.is_written and not segment.has_junk:",
            ),
        ),
        expected="deleted before its end",
    ),
    _bug(
        "a copy of a request is taken for the only one",
        (
            Patch(
                LEDGER,
                "segment.unfinished += record.state != records.DONE",
                "segment.unfinished += record is loaded",
            ),
            Patch(
                LEDGER,
                "if record.state != records.DONE and not record.request_segments:",
                "if record.state != records.DONE:",
            ),
        ),
        expected=f"{STUCK}|deleted before its end",
    ),
    _bug(
        "a repeat is another request",
        (
            Patch(
                LEDGER,
                "        known = self._requests.get(name)\n        if known is not None:\n"
                '            self.counters["repeated"] += 1\n            self._attach_client(',
                "        known = self._requests.get(name)\n        if known is not None and (\n"
                "            known.state != records.DONE\n        ):\n"
                '            self.counters["repeated"] += 1\n            self._attach_client(',
            ),
        ),
        expected="two ends|an end of no open request|two answers|dispatches what has ended",
    ),
    _bug(
        "a new owner says that no worker had the requests of the last one",
        (Patch(DURABLE, "            self.ledger.on_owner_changed()\n", "            pass\n"),),
        expected="ended as if no worker had it",
    ),
    _bug(
        "requests of workers are lost with the ownership",
        (
            Patch(
                LEDGER,
                "            if record.state == records.WORKING:\n"
                "                self._requeue(record)\n        for",
                "            if record.state == records.WRITING:\n"
                "                self._requeue(record)\n        for",
            ),
        ),
        expected=STUCK,
        first_seed=9,
    ),
    _bug(
        "changes that the log no longer has are skipped",
        (
            Patch(
                DURABLE,
                "            self._reading.ticket = self._reading.index = None\n",
                "            self._reading.ticket, self._reading.index = None, 0\n",
            ),
        ),
        expected=STUCK,
        first_seed=14,
    ),
    _bug(
        "an answer is kept too short",
        (
            Patch(
                LEDGER,
                "        service = segment.records[0].service\n        return self.setup",
                '        service = b""\n        return self.setup',
            ),
            Patch(LEDGER, "REPLY_TTL_MS = 60_000", "REPLY_TTL_MS = 600"),
        ),
        expected="two ends|two answers|executed for a repeat",
    ),
    _bug(
        "unanswered calls are not sent to the next broker",
        (
            Patch(
                "protocols/majordomo/client.py",
                "                withdrawals[call.request.request_id] = self._withdrawal(call)\n"
                "        calls.rewind()\n",
                "                withdrawals[call.request.request_id] = self._withdrawal(call)\n",
            ),
        ),
        expected=STUCK,
    ),
    _bug(
        "all clients have one identity",
        (Patch(LEDGER, "identity = name or sender.routing_id", 'identity = name[:1] or b"one"'),),
        expected="an answer that the log has not|another answer",
    ),
    _bug(
        "titanic accepts a request before the log has it",
        (
            Patch(
                LEDGER,
                "        record.titanic_sender = titanic_sender\n"
                "        self._add_request(record, titanic_sender[0])\n",
                "        record.titanic_sender = titanic_sender\n"
                "        self._add_request(record, titanic_sender[0])\n"
                "        self._send_uuid(record)\n",
            ),
        ),
        expected="accepted before the log has it",
    ),
)
