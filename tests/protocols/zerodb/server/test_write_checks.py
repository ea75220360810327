"""Tables while `open_on_the_fly` is off: which writes are refused, and which ask the leader."""

from functools import partial

import pytest

from kelek.native.net.messages import Arena
from kelek.protocols.access.grants import parse_grants
from kelek.protocols.access.zap import AllowedKey, Keyring
from kelek.protocols.zerodb.server import write_checks
from kelek.protocols.zerodb.wire import ops, requests, values
from kelek.protocols.zerodb.wire.catalogue import (
    CatalogueChange,
    NameChange,
    NameExchange,
    SchemaChange,
)
from kelek.protocols.zerodb.wire.requests import encode_request
from kelek.protocols.zerodb.wire.values import Extension, TableOptions
from kelek.protocols.zerodb.wire.worker_pipe import FAILED, JOB_WRITE, PIPE_HEADER, RETRYABLE
from kelek.tests.protocols.zerodb.server.served import TABLE, SessionHarness, entries, head, led

OPEN = b"\x31\x01\x01\x00"
PUT = b"\x31\x01\x20"
PARTSYNC = b"\x31\x01\x20\x01"


def test_a_table_must_be_opened_where_none_is_made_on_the_fly() -> None:
    harness = led(open_on_the_fly=False)
    harness.ask(b"a", PARTSYNC, TABLE, b"k", b"v")
    harness.ask(b"b", PUT, TABLE, b"k", b"v")
    harness.ask(b"o", OPEN, TABLE)
    harness.ask(b"c", PARTSYNC, TABLE, b"k", b"v")
    harness.run(lambda: len(harness.answers) == 4)
    assert [harness.heard(it)[0].code for it in (b"a", b"b", b"o", b"c")] == [1, 0, 0, 0]
    assert "table 7 is not open" in harness.heard(b"a")[0].text
    assert len(harness.log.records) == 2


def other_opens(harness: SessionHarness) -> None:
    """Another node's server opens table 7; this node's worker has not applied that."""
    harness.applies = False
    harness.log.add(b"another one.", ops.pack([ops.Open(7, TableOptions())]))


def applied(harness: SessionHarness) -> None:
    worker = harness.workers[0].channel
    worker.status = worker.status._replace(tables={7: TableOptions()})
    harness.applies = True


def test_a_table_that_was_opened_at_another_node_a_moment_ago_is_open() -> None:
    harness = led(open_on_the_fly=False)
    other_opens(harness)
    harness.ask(b"c", PARTSYNC, TABLE, b"k", b"1")
    harness.ask(b"c", PUT, TABLE, b"k", b"2")
    compare = requests.Transaction(
        [], [ops.Put(7, [b"k"], [b"3"])], [], 1, Extension(reqid=b"t" * 12)
    )
    harness.ask(b"c", *encode_request(compare))
    harness.session.on_job_request(
        (JOB_WRITE, 0, 0, 0, 0, 78), [TABLE, ops.pack([ops.Put(7, [], [])])], harness.now
    )
    assert harness.session.inflight == 4
    harness.at(100, partial(applied, harness))
    harness.at(200, partial(harness.ask, b"c", PARTSYNC, TABLE, b"k", b"4"))
    harness.run(lambda: len(harness.log.records) == 6)
    written = [op for each in entries(harness)[1:] for op in each]
    assert [type(op) for op in written] == [ops.Put, ops.Put, ops.Transaction, ops.Put, ops.Put]
    assert [harness.answers[0][1], harness.answers[1][1]] == [b"\x31\x01\x20\x00"] * 2


def test_without_a_leader_existence_is_unknown() -> None:
    harness = SessionHarness(open_on_the_fly=False, request_timeout_ms=300)
    harness.ask(b"c", head(0x20, 1, Extension(reqid=b"r" * 12)), TABLE, b"k", b"1")
    harness.session.on_job_request((JOB_WRITE, 0, 0, 0, 0, 78), [TABLE, ops.pack([])], harness.now)
    harness.run(lambda: bool(harness.answers and harness.jobs))
    (answer,) = harness.heard(b"c")
    assert answer.retry
    assert answer.text.startswith("it is not known whether the table is open: no leader was found")
    assert PIPE_HEADER.unpack(harness.jobs[0][0])[:2] == (FAILED, RETRYABLE)
    assert not harness.session.inflight


def test_a_job_and_a_transaction_need_open_tables_too() -> None:
    harness = led(open_on_the_fly=False)
    worker = harness.workers[0].channel
    worker.status = worker.status._replace(tables={7: TableOptions()})
    harness.log.add(b"another one.", b"")
    then = requests.Transaction(
        [ops.Compare(7, b"k", ops.ABSENT)], [ops.Put(9, [b"k"], [b"v"])], [], 1
    )
    harness.ask(b"c", *encode_request(then))
    harness.session.on_job_request(
        (JOB_WRITE, 0, 0, 0, 0, 78), [b"\x09\0\0\0", ops.pack([])], harness.now
    )
    harness.run(lambda: bool(harness.answers and harness.jobs))
    assert harness.heard(b"c")[0].text == "table 9 is not open; open it first (0x01)"
    assert harness.jobs[0][1] == b"table 9 is not open; open it first (0x01)"
    assert PIPE_HEADER.unpack(harness.jobs[0][0])[:2] == (FAILED, 0)


# ---- how many tables there are ----

DELETE = b"\x31\x01\x21\x01"


def table(number: int) -> bytes:
    return number.to_bytes(4, "little")


def filled(harness: SessionHarness, *tables: int) -> None:
    """These tables exist."""
    worker = harness.workers[0].channel
    worker.status = worker.status._replace(tables=dict.fromkeys(tables, TableOptions()))


def codes(harness: SessionHarness, *clients: bytes) -> list[int]:
    return [harness.heard(client)[0].code for client in clients]


def test_no_write_makes_more_tables_than_a_cluster_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_checks, "TABLES_MAX", 3)
    harness = led()
    filled(harness, 1, 2)
    two = requests.WriteTables([ops.Put(3, [b"k"], [b""]), ops.Put(4, [b"k"], [b""])], 2)
    branch = requests.Transaction([], [], [ops.Put(5, [b"k"], [b""])], 1)
    harness.ask(b"two", *encode_request(two))
    harness.ask(b"one", PARTSYNC, table(9), b"k", b"v")
    harness.ask(b"on its way", PARTSYNC, table(9), b"k", b"v")
    harness.ask(b"more", PARTSYNC, table(8), b"k", b"v")
    harness.ask(b"open", OPEN, table(8))
    harness.ask(b"branch", *encode_request(branch))
    harness.session.on_job_request(
        (JOB_WRITE, 0, 0, 0, 0, 78), [table(8), ops.pack([])], harness.now
    )
    harness.session.on_one_way(Arena.from_messages([[PUT, table(8), b"k", b"v"]]), harness.now)
    harness.ask(b"known", PARTSYNC, table(1), b"k", b"v")
    harness.ask(b"delete", DELETE, table(8), b"k")
    harness.run(lambda: len(harness.answers) == 8 and bool(harness.jobs))
    assert codes(harness, b"one", b"on its way", b"known", b"delete") == [0, 0, 0, 0]
    assert codes(harness, b"two", b"more", b"open", b"branch") == [1, 1, 0x10, 1]
    text = "table 8 is not there, and of the others there are 3: at most 3"
    assert harness.heard(b"more")[0].text == f"{text}; truncate those that are not needed"
    assert PIPE_HEADER.unpack(harness.jobs[0][0])[:2] == (FAILED, 0)
    assert {table for each in entries(harness) for table in ops.tables_made(each)} == {9, 1}


def test_a_table_that_was_truncated_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_checks, "TABLES_MAX", 2)
    harness = led(request_timeout_ms=300)
    for number in (1, 2, 3):
        harness.ask(b"%d" % number, PARTSYNC, table(number), b"k", b"v")
    harness.run(lambda: len(harness.answers) == 3)
    filled(harness, 2)  # The tables of proposed writes exist now, and table 1 does not.
    harness.at(1000, partial(harness.ask, b"later", PARTSYNC, table(3), b"k", b"v"))
    harness.run(lambda: len(harness.answers) == 4)
    assert codes(harness, b"1", b"2", b"3", b"later") == [0, 0, 1, 0]


def test_a_uniform_batch_of_puts_makes_no_table_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_checks, "TABLES_MAX", 10)
    harness = led()
    messages = [[b"%d" % one, PARTSYNC, table(one), b"k", b"v"] for one in range(100)]
    harness.session.on_requests(Arena.from_messages(messages), harness.now)
    harness.run(lambda: len(harness.answers) == 100)
    assert [harness.heard(b"%d" % one)[0].code == 0 for one in range(100)] == [True] * 10 + [
        False
    ] * 90
    assert len(harness.log.records) == 10


def test_one_write_makes_a_bounded_number_of_tables() -> None:
    harness = led()
    puts: list[ops.Op] = [ops.Put(number, [b"k"], [b"v"]) for number in range(1025)]
    harness.ask(b"c", *encode_request(requests.WriteTables(puts, 2)))
    harness.ask(b"d", *encode_request(requests.WriteTables(puts[1:], 2)))
    harness.run(lambda: len(harness.answers) == 2)
    assert "it makes 1025 tables; the limit of one write is 1024" in harness.heard(b"c")[0].text
    assert harness.heard(b"d")[0].code == 0


def named(change: CatalogueChange) -> requests.Transaction:
    extension = Extension(reqid=b"n" * 12)
    return requests.Transaction(change.compares(), change.operations(), [], 1, extension)


@pytest.mark.parametrize("on_the_fly", [True, False])
def test_only_changes_of_names_are_written_to_the_catalogue(on_the_fly: bool) -> None:
    harness = led(open_on_the_fly=on_the_fly)
    change = named(NameChange(values.NAMED_FIRST, after="users", is_new=True))
    harness.ask(b"a", *encode_request(change))
    other = change._replace(then=[*change.then, ops.Put(values.CATALOGUE_TABLE, [b"k"], [b"v"])])
    harness.ask(b"b", *encode_request(other))
    timed = change._replace(extension=change.extension._replace(ttl_ms=1000))
    harness.ask(b"c", *encode_request(timed))
    harness.run(lambda: bool(harness.heard(b"b") and harness.heard(b"c") and entries(harness)))
    for client in (b"b", b"c"):
        assert "is reserved: it takes writes from its owner alone" in harness.heard(client)[0].text
    (written,) = entries(harness)
    assert written == [
        ops.Transaction(
            values.CATALOGUE_TABLE, b"n" * 12, change.compares, change.then, change.otherwise
        )
    ]


@pytest.mark.parametrize(
    ("grants", "change", "is_allowed"),
    [
        ("tables:*:rw", NameChange(values.NAMED_FIRST, after="a", is_new=True), True),
        (f"tables:{values.CATALOGUE_TABLE}:rw", NameChange(values.NAMED_FIRST, after="a",
                                                           is_new=True), False),
        ("tables:*:rw", NameChange(7, after="a"), False),
        ("tables:*:rw", NameChange(7, "b", "a"), False),
        ("tables:*:rw", NameChange(7, "b"), False),
        ("tables:*:rw admin", NameChange(7, after="a"), True),
        ("tables:*:rw admin", NameChange(7, "b", "a"), True),
        ("tables:*:rw admin", NameChange(7, "b"), True),
        ("tables:*:rw", NameExchange(7, "b", 8, "a"), False),
        ("tables:*:rw admin", NameExchange(7, "b", 8, "a"), True),
        ("tables:*:rw", SchemaChange(7, "b", b"", b"{}"), True),
        ("tables:*:rw", SchemaChange(7, "b", b"{}"), True),
        (f"tables:{values.CATALOGUE_TABLE}:rw", SchemaChange(7, "b", b"", b"{}"), False),
        (f"tables:{values.CATALOGUE_TABLE}:rw tables:7:r", SchemaChange(7, "b", b"{}"), False),
    ],
)  # fmt: skip
def test_what_a_key_needs_to_change_names(
    grants: str, change: CatalogueChange, is_allowed: bool
) -> None:
    harness = led()
    keyring = Keyring()
    keyring.replace({b"ann" * 8: AllowedKey("ann", parse_grants(grants))})
    harness.session.clients.attach(keyring)
    slot = keyring.slot_of(b"ann" * 8)
    assert slot is not None
    arena = Arena.from_messages([[b"a", *encode_request(named(change))]], slot.number)
    harness.session.on_requests(arena, harness.now)
    harness.run(lambda: bool(harness.heard(b"a") or entries(harness)))
    assert len(entries(harness)) == is_allowed
    assert [each.code for each in harness.heard(b"a")] == [values.NOT_ALLOWED] * (not is_allowed)
