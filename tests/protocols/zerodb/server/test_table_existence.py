"""Tables while `open_on_the_fly` is off: which writes are refused, and which ask the leader."""

from functools import partial

import pytest

from kelek.native.net.messages import Arena
from kelek.protocols.zerodb.server import table_existence as openings
from kelek.protocols.zerodb.wire import ops, requests
from kelek.protocols.zerodb.wire.client_codec import encode_request
from kelek.protocols.zerodb.wire.values import Extension, TableOptions
from kelek.protocols.zerodb.wire.worker_pipe import FAILED, JOB_WRITE, PIPE_HEADER, RETRYABLE
from kelek.tests.protocols.zerodb.server.served import TABLE, Served, entries, head, led

OPEN = b"\x31\x01\x01\x00"
PUT = b"\x31\x01\x20"
PARTSYNC = b"\x31\x01\x20\x01"


def test_a_table_must_be_opened_where_none_is_made_on_the_fly() -> None:
    world = led(open_on_the_fly=False)
    world.ask(b"a", PARTSYNC, TABLE, b"k", b"v")
    world.ask(b"b", PUT, TABLE, b"k", b"v")
    world.ask(b"o", OPEN, TABLE)
    world.ask(b"c", PARTSYNC, TABLE, b"k", b"v")
    world.run(lambda: len(world.answers) == 4)
    assert [world.heard(it)[0].code for it in (b"a", b"b", b"o", b"c")] == [1, 0, 0, 0]
    assert "table 7 is not open" in world.heard(b"a")[0].text
    assert len(world.log.records) == 2


def other_opens(world: Served) -> None:
    """Another node's server opens table 7; this node's worker has not applied that."""
    world.applies = False
    world.log.add(b"another one.", ops.pack([ops.Open(7, TableOptions())]))


def applied(world: Served) -> None:
    worker = world.workers[0].channel
    worker.status = worker.status._replace(tables={7: TableOptions()})
    world.applies = True


def test_a_table_that_was_opened_at_another_node_a_moment_ago_is_open() -> None:
    world = led(open_on_the_fly=False)
    other_opens(world)
    world.ask(b"c", PARTSYNC, TABLE, b"k", b"1")
    world.ask(b"c", PUT, TABLE, b"k", b"2")
    compare = requests.Transaction(
        [], [ops.Put(7, [b"k"], [b"3"])], [], 1, Extension(reqid=b"t" * 12)
    )
    world.ask(b"c", *encode_request(compare))
    world.session.on_job_request(
        (JOB_WRITE, 0, 0, 0, 0, 78), [TABLE, ops.pack([ops.Put(7, [], [])])], world.now
    )
    assert world.session.inflight == 4
    world.at(100, partial(applied, world))
    world.at(200, partial(world.ask, b"c", PARTSYNC, TABLE, b"k", b"4"))
    world.run(lambda: len(world.log.records) == 6)
    written = [op for each in entries(world)[1:] for op in each]
    assert [type(op) for op in written] == [ops.Put, ops.Put, ops.Transaction, ops.Put, ops.Put]
    assert [world.answers[0][1], world.answers[1][1]] == [b"\x31\x01\x20\x00"] * 2


def test_without_a_leader_existence_is_unknown() -> None:
    world = Served(open_on_the_fly=False, request_timeout_ms=300)
    world.ask(b"c", head(0x20, 1, Extension(reqid=b"r" * 12)), TABLE, b"k", b"1")
    world.session.on_job_request((JOB_WRITE, 0, 0, 0, 0, 78), [TABLE, ops.pack([])], world.now)
    world.run(lambda: bool(world.answers and world.jobs))
    (answer,) = world.heard(b"c")
    assert answer.retry
    assert answer.text.startswith("it is not known whether the table is open: no leader was found")
    assert PIPE_HEADER.unpack(world.jobs[0][0])[:2] == (FAILED, RETRYABLE)
    assert not world.session.inflight


def test_a_job_and_a_transaction_need_open_tables_too() -> None:
    world = led(open_on_the_fly=False)
    worker = world.workers[0].channel
    worker.status = worker.status._replace(tables={7: TableOptions()})
    world.log.add(b"another one.", b"")
    then = requests.Transaction(
        [ops.Compare(7, b"k", ops.ABSENT)], [ops.Put(9, [b"k"], [b"v"])], [], 1
    )
    world.ask(b"c", *encode_request(then))
    world.session.on_job_request(
        (JOB_WRITE, 0, 0, 0, 0, 78), [b"\x09\0\0\0", ops.pack([])], world.now
    )
    world.run(lambda: bool(world.answers and world.jobs))
    assert world.heard(b"c")[0].text == "table 9 is not open; open it first (0x01)"
    assert world.jobs[0][1] == b"table 9 is not open; open it first (0x01)"
    assert PIPE_HEADER.unpack(world.jobs[0][0])[:2] == (FAILED, 0)


# ---- how many tables there are ----

DELETE = b"\x31\x01\x21\x01"


def table(number: int) -> bytes:
    return number.to_bytes(4, "little")


def filled(world: Served, *tables: int) -> None:
    """These tables exist."""
    worker = world.workers[0].channel
    worker.status = worker.status._replace(tables=dict.fromkeys(tables, TableOptions()))


def codes(world: Served, *clients: bytes) -> list[int]:
    return [world.heard(client)[0].code for client in clients]


def test_no_write_makes_more_tables_than_a_cluster_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openings, "TABLES_MAX", 3)
    world = led()
    filled(world, 1, 2)
    two = requests.WriteTables([ops.Put(3, [b"k"], [b""]), ops.Put(4, [b"k"], [b""])], 2)
    branch = requests.Transaction([], [], [ops.Put(5, [b"k"], [b""])], 1)
    world.ask(b"two", *encode_request(two))
    world.ask(b"one", PARTSYNC, table(9), b"k", b"v")
    world.ask(b"on its way", PARTSYNC, table(9), b"k", b"v")
    world.ask(b"more", PARTSYNC, table(8), b"k", b"v")
    world.ask(b"open", OPEN, table(8))
    world.ask(b"branch", *encode_request(branch))
    world.session.on_job_request((JOB_WRITE, 0, 0, 0, 0, 78), [table(8), ops.pack([])], world.now)
    world.session.on_one_way(Arena.from_messages([[PUT, table(8), b"k", b"v"]]), world.now)
    world.ask(b"known", PARTSYNC, table(1), b"k", b"v")
    world.ask(b"delete", DELETE, table(8), b"k")
    world.run(lambda: len(world.answers) == 8 and bool(world.jobs))
    assert codes(world, b"one", b"on its way", b"known", b"delete") == [0, 0, 0, 0]
    assert codes(world, b"two", b"more", b"open", b"branch") == [1, 1, 0x10, 1]
    text = "table 8 is not there, and of the others there are 3: at most 3"
    assert world.heard(b"more")[0].text == f"{text}; truncate those that are not needed"
    assert PIPE_HEADER.unpack(world.jobs[0][0])[:2] == (FAILED, 0)
    assert {table for each in entries(world) for table in ops.tables_made(each)} == {9, 1}


def test_a_table_that_was_truncated_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "TABLES_MAX", 2)
    world = led(request_timeout_ms=300)
    for number in (1, 2, 3):
        world.ask(b"%d" % number, PARTSYNC, table(number), b"k", b"v")
    world.run(lambda: len(world.answers) == 3)
    filled(world, 2)  # The tables of proposed writes exist now, and table 1 does not.
    world.at(1000, partial(world.ask, b"later", PARTSYNC, table(3), b"k", b"v"))
    world.run(lambda: len(world.answers) == 4)
    assert codes(world, b"1", b"2", b"3", b"later") == [0, 0, 1, 0]


def test_a_uniform_batch_of_puts_makes_no_table_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "TABLES_MAX", 10)
    world = led()
    messages = [[b"%d" % one, PARTSYNC, table(one), b"k", b"v"] for one in range(100)]
    world.session.on_requests(Arena.from_messages(messages), world.now)
    world.run(lambda: len(world.answers) == 100)
    assert [world.heard(b"%d" % one)[0].code == 0 for one in range(100)] == [True] * 10 + [
        False
    ] * 90
    assert len(world.log.records) == 10


def test_one_write_makes_a_bounded_number_of_tables() -> None:
    world = led()
    puts: list[ops.Op] = [ops.Put(number, [b"k"], [b"v"]) for number in range(1025)]
    world.ask(b"c", *encode_request(requests.WriteTables(puts, 2)))
    world.ask(b"d", *encode_request(requests.WriteTables(puts[1:], 2)))
    world.run(lambda: len(world.answers) == 2)
    assert "it makes 1025 tables; the limit of one write is 1024" in world.heard(b"c")[0].text
    assert world.heard(b"d")[0].code == 0
