"""The results of transactions that zerodb_server asks a worker for."""

from collections.abc import Sequence

import pytest

from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire import requests, values
from kelek.protocols.zerodb.wire.ops import Put
from kelek.protocols.zerodb.wire.writes import operations_of
from kelek.protocols.zerodb.worker.results import REFUSALS_MAX, Refusals
from kelek.protocols.zerodb.worker.tickets import QueuedRequest
from kelek.storage.errors import Damaged
from kelek.tests.protocols.zerodb.worker.test_requests import (
    LIMITS,
    UNIX_MS,
    RequestRig,
    with_id,
)

HEADER = b"\x31\x01\x25\0"  # Of the answer to a transaction.


def ask_result(rig: RequestRig, number: int, log_index: int = 0) -> None:
    query = QueuedRequest(b"c1", [with_id(number).reqid, HEADER], log_index, ticket=1)
    rig.requests.add_result_query(query, rig.now_ms)


def test_the_result_of_a_transaction_is_told_as_often_as_it_is_asked_for() -> None:
    rig = RequestRig()
    transaction = requests.Transaction([], [Put(5, [b"a"], [b"1"])], [], 0, with_id(7))
    rig.tables.write([TableEntry(1, 1, operations_of(transaction, UNIX_MS))])
    rig.refusals[with_id(9).reqid] = "not so"
    for number in (7, 8, 9, 7):
        ask_result(rig, number)
    known, unknown, refused, again = rig.run_all()
    assert known == again == [b"c1", HEADER, *rig.tables.results([with_id(7).reqid])]
    assert unknown[1][:4] == b"\x31\x01\x25\x01"
    assert b"no longer known" in unknown[2]
    assert refused[1][3] == values.DATABASE_ERROR
    assert b"not so" in refused[2]
    assert rig.requests.completed_ticket == 1


def test_a_result_waits_for_its_entry_but_not_for_ever() -> None:
    rig = RequestRig()
    transaction = requests.Transaction([], [Put(5, [b"a"], [b"1"])], [], 0, with_id(7))
    ask_result(rig, 7, 3)
    ask_result(rig, 8, 4)
    assert rig.run(2) == []
    assert rig.requests.is_waiting
    assert rig.requests.completed_ticket == 0
    rig.tables.write([TableEntry(3, 1, operations_of(transaction, UNIX_MS))])
    ((_, header, _),) = rig.run(3)
    assert header == HEADER
    assert rig.requests.deadline_ms == LIMITS.timeout_ms
    rig.now_ms = LIMITS.timeout_ms
    ((_, header, text),) = rig.run(3)
    assert header[3] != 0
    assert b"entry 4 is not applied here yet, only 3" in text
    assert not rig.requests.is_waiting


def test_a_result_fails_at_once_while_the_tables_apply_nothing() -> None:
    rig = RequestRig()
    ask_result(rig, 7, 3)
    assert rig.run(2) == []
    rig.tables.problem = "no space"
    assert rig.requests.deadline_ms == 0
    ((_, _, text),) = rig.run(2)
    assert b"not applied here yet, only 2: no space" in text


def test_damage_that_is_found_meanwhile_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ends then, and makes its tables again."""

    def damaged(reqids: Sequence[bytes]) -> list[bytes | None]:
        raise Damaged("tables", "a block does not match its checksum", "make them again")

    rig = RequestRig()
    monkeypatch.setattr(rig.tables, "results", damaged)
    ask_result(rig, 7)
    ((_, header, text),) = rig.run()
    assert header[3] != 0
    assert b"does not match its checksum" in text
    assert "does not match its checksum" in rig.requests.damage


def test_the_newest_refusals_are_remembered() -> None:
    refusals = Refusals()
    for number in (*range(REFUSALS_MAX), 0, REFUSALS_MAX):
        refusals.add(b"%d" % number, f"text {number}")
    assert len(refusals.texts) == REFUSALS_MAX
    assert b"1" not in refusals.texts
    assert refusals.texts[b"0"] == "text 0"
