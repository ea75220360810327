"""Reads of keys that are answered at once, and those that have to be requests of their own."""

from typing import Any

import pytest

from kelek.native.net.messages import Arena
from kelek.native.tables.gets import AnswerPlace
from kelek.protocols.zerodb.wire import answers, requests
from kelek.protocols.zerodb.wire.requests import encode_request
from kelek.protocols.zerodb.wire.values import PACKED
from kelek.protocols.zerodb.wire.worker_pipe import ANSWER_TAG, PIPE_HEADER, REQUEST
from kelek.protocols.zerodb.worker import gets
from kelek.protocols.zerodb.worker.requests import TableRequestLimits
from kelek.storage.errors import Damaged
from kelek.tests.protocols.zerodb.worker.test_requests import (
    LIMITS,
    ROWS,
    UNIX_MS,
    RequestRig,
    with_id,
)

APPLIED = 9


class GetsRig(RequestRig):
    """A worker, and messages of zerodb_server to it."""

    def __init__(self, limits: TableRequestLimits = LIMITS) -> None:
        super().__init__(limits)
        self.place = AnswerPlace(0, 7)
        self.put(5, ROWS)

    def get(self, *reads: requests.Read, ticket: int = 3, index: int = APPLIED) -> bool:
        head = PIPE_HEADER.pack(REQUEST, 0, 0, 7, index, ticket)
        messages = [[head, b"c%d" % n, *encode_request(each)] for n, each in enumerate(reads)]
        return self.requests.answer_gets(Arena.from_messages(messages), self.place, APPLIED)


def test_reads_of_many_clients_are_one_call_and_need_no_run() -> None:
    rig = GetsRig()
    rig.tables.calls.clear()
    reads = [
        requests.Read(5, [ROWS[7][0]]),
        requests.Read(5, [b"none", ROWS[8][0]], with_id(4, flags=PACKED)),
    ]
    assert rig.get(*reads)
    assert rig.tables.calls == ["get 5 3"]
    (tag, *first), (_, *second) = rig.requests.out.messages()
    assert ANSWER_TAG.unpack(tag) == (0, 0, 7, 0, 3)
    assert first == [b"c0", *answers.VALUES.encode(reads[0], [ROWS[7][1]])]
    assert second == [b"c1", *answers.VALUES.encode(reads[1], [None, ROWS[8][1]])]
    assert rig.requests.completed_ticket == 3
    assert not rig.requests.has_work
    assert rig.requests.counts["done"] == 2


def test_a_read_behind_one_that_waits_waits_too() -> None:
    rig = GetsRig()
    rig.ask(requests.Read(5, [ROWS[1][0]]), b"c0", log_index=APPLIED + 1)
    assert not rig.get(requests.Read(5, [ROWS[2][0]]))
    assert rig.run(APPLIED) == []
    assert not rig.get(requests.Read(5, [ROWS[2][0]])), "it waits still"
    assert len(rig.run(APPLIED + 1)) == 1
    assert rig.get(requests.Read(5, [ROWS[2][0]]))


def test_a_read_that_needs_a_later_entry_waits() -> None:
    rig = GetsRig()
    assert not rig.get(requests.Read(5, [ROWS[1][0]]), index=APPLIED + 1)
    assert rig.requests.out.count == 0


def test_an_unknown_table_is_refused_by_its_request() -> None:
    rig = GetsRig(TableRequestLimits(1 << 20, 5000, False))
    assert not rig.get(requests.Read(6, [b"key"]))
    assert rig.get(requests.Read(5, [b"key"]))


def test_what_is_too_large_or_unknown_is_read_in_parts() -> None:
    rig = GetsRig(TableRequestLimits(1000, 5000, True))
    many = requests.Read(5, [key for key, _ in ROWS[: gets.GET_KEYS_FIRST + 1]])
    assert not rig.get(many), "the size of the values is not known"
    assert rig.get(requests.Read(5, many.keys[1:]))
    assert rig.get(many), "now it is"
    rig.put(5, [(b"large", bytes(600))])
    assert rig.get(requests.Read(5, [b"large"]))
    assert not rig.get(requests.Read(5, [b"large"]), requests.Read(5, [b"large"]))
    assert not rig.get(requests.Read(5, [b"large", ROWS[1][0], b"large"]))


def test_damage_is_told_by_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GetsRig()

    def damaged(*_: Any) -> None:
        raise Damaged("tables", "block 7 is wrong", "it is made anew")

    monkeypatch.setattr(rig.tables, "get", damaged)
    read = requests.Read(5, [ROWS[1][0]])
    assert not rig.get(read)
    assert not rig.requests.damage
    rig.ask(read)
    rig.requests.run(APPLIED, 0, UNIX_MS)
    assert "block 7" in rig.requests.damage
