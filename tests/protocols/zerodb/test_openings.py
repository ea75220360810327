"""Where no table is opened on the fly: what is refused, and what waits for the leader's word."""

from functools import partial

from kelek.protocols.zerodb import ops, requests
from kelek.protocols.zerodb.client_codec import encode_request
from kelek.protocols.zerodb.handoff import AGAIN, FAILED, HEAD, WRITE
from kelek.protocols.zerodb.values import Extension, TableOptions
from kelek.tests.protocols.zerodb.served import TABLE, Served, entries, head, led

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
    """Another node's server opens table 7; our worker has not heard of it."""
    world.applies = False
    world.log.add(b"another one.", ops.pack([ops.Open(7, TableOptions())]))


def applied(world: Served) -> None:
    worker = world.workers[0].handoff
    worker.standing = worker.standing._replace(tables={7: TableOptions()})
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
    world.session.on_ask(
        (WRITE, 0, 0, 0, 0, 78), [TABLE, ops.pack([ops.Put(7, [], [])])], world.now
    )
    assert world.session.inflight == 4
    world.at(100, partial(applied, world))
    world.at(200, partial(world.ask, b"c", PARTSYNC, TABLE, b"k", b"4"))
    world.run(lambda: len(world.log.records) == 6)
    written = [op for each in entries(world)[1:] for op in each]
    assert [type(op) for op in written] == [ops.Put, ops.Put, ops.Transaction, ops.Put, ops.Put]
    assert [world.answers[0][1], world.answers[1][1]] == [b"\x31\x01\x20\x00"] * 2


def test_whether_a_table_is_open_nobody_knows_without_a_leader() -> None:
    world = Served(open_on_the_fly=False, request_timeout_ms=300)
    world.ask(b"c", head(0x20, 1, Extension(reqid=b"r" * 12)), TABLE, b"k", b"1")
    world.session.on_ask((WRITE, 0, 0, 0, 0, 78), [TABLE, ops.pack([])], world.now)
    world.run(lambda: bool(world.answers and world.jobs))
    (answer,) = world.heard(b"c")
    assert answer.retry
    assert answer.text.startswith("nobody knows whether its table is open: no leader was found")
    assert HEAD.unpack(world.jobs[0][0])[:2] == (FAILED, AGAIN)
    assert not world.session.inflight


def test_a_job_and_a_transaction_need_open_tables_too() -> None:
    world = led(open_on_the_fly=False)
    worker = world.workers[0].handoff
    worker.standing = worker.standing._replace(tables={7: TableOptions()})
    world.log.add(b"another one.", b"")
    then = requests.Transaction(
        [ops.Compare(7, b"k", ops.ABSENT)], [ops.Put(9, [b"k"], [b"v"])], [], 1
    )
    world.ask(b"c", *encode_request(then))
    world.session.on_ask((WRITE, 0, 0, 0, 0, 78), [b"\x09\0\0\0", ops.pack([])], world.now)
    world.run(lambda: bool(world.answers and world.jobs))
    assert world.heard(b"c")[0].text == "table 9 is not open; open it first (0x01)"
    assert world.jobs[0][1] == b"table 9 is not open; open it first (0x01)"
    assert HEAD.unpack(world.jobs[0][0])[:2] == (FAILED, 0)
