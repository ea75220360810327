"""Only owners write reserved tables, with any request."""

from functools import partial

import pytest

from kelek.native.net.messages import Arena
from kelek.protocols.zerodb.server.ownership import digest
from kelek.protocols.zerodb.wire import ops, requests
from kelek.protocols.zerodb.wire.requests import Request, encode_request
from kelek.protocols.zerodb.wire.values import (
    BROKER_TABLE,
    CHUNK_TABLE,
    LOADED_FIRST,
    OWNER_TABLE,
    PACKED,
    RESERVED_FIRST,
    Extension,
    TableOptions,
)
from kelek.tests.protocols.zerodb.server.served import SessionHarness, entries, led

SECRET, TOKEN, WRONG = b"s" * 16, b"t" * 15 + b"\0", b"w" * 16
LOG_TABLE = 12  # Of ZRE's log service.
FRESH = RESERVED_FIRST + 77


def writes(table: int, token: bytes = b"") -> list[Request]:
    """One request of each kind."""
    tagged = Extension(reqid=b"r" * 12, owner=token)
    put = ops.Put(table, [b"k"], [b"v"])
    return [
        requests.OpenTable(table, extension=tagged),
        requests.TruncateTable(table, tagged),
        requests.Put(table, [b"k"], [b"v"], 1, tagged),
        requests.Put(table, [b"k"], [b"v"], 0, tagged),
        requests.Put(table, [b"k"], [b"v"], 1, tagged._replace(flags=PACKED)),
        requests.Put(table, [b"k"], [b"v"], 1, tagged._replace(ttl_ms=1000)),
        requests.Delete(table, [b"k"], 1, tagged),
        requests.DeleteRange(table, b"", b"", 1, tagged),
        requests.DeleteLimited(table, b"", 9, 1, tagged),
        requests.WriteTables([put], 2, tagged),
        requests.Transaction([], [put], [], 1, tagged),
        requests.Transaction([], [], [put], 1, tagged),
        requests.BulkLoad(table, b"l" * 16, requests.LOAD_COMMIT, flags=1, extension=tagged),
    ]


def each(harness: SessionHarness, found: list[Request]) -> list[str]:
    """The answers: empty, or the reason of the refusal."""
    told = []
    for number, request in enumerate(found):
        name = b"c%d" % len(harness.answers) + b"-%d" % number
        reqid = (number + 1 + 1000 * len(harness.answers)).to_bytes(12, "big")
        tagged = request._replace(extension=request.extension._replace(reqid=reqid))
        harness.ask(name, *encode_request(tagged))
        harness.run(lambda name=name: bool(harness.heard(name)))  # type: ignore[misc]
        told.append(harness.heard(name)[0].text if harness.heard(name)[0].failed else "")
    return told


def settings() -> dict[str, object]:
    return {"secret": SECRET, "reserved": frozenset({LOG_TABLE})}


@pytest.mark.parametrize(
    "table", [BROKER_TABLE, OWNER_TABLE, LOG_TABLE, FRESH, LOADED_FIRST, CHUNK_TABLE]
)
@pytest.mark.parametrize("token", [b"", WRONG])
def test_only_the_owner_writes_a_reserved_table(table: int, token: bytes) -> None:
    harness = led(**settings())
    harness.session.writes.checks.ownership.owners = {FRESH: digest(TOKEN)}
    for text in each(harness, writes(table, token)):
        assert text.endswith(f"table {table} is reserved: it takes writes from its owner alone")
    for request in writes(table, token):
        arena = Arena.from_messages([encode_request(request)])
        harness.session.on_one_way(arena, harness.now)
    harness.at(50, lambda: None)
    harness.run(lambda: harness.session.outbox.counters["dropped"] >= 10)
    assert entries(harness) == []


def test_no_client_comes_to_own_a_table_of_loads() -> None:
    harness = led(**settings())
    for table in (LOADED_FIRST, CHUNK_TABLE):
        (text,) = each(harness, writes(table, TOKEN)[:1])
        assert text.endswith(f"table {table} is reserved: it takes writes from its owner alone")
    assert entries(harness) == []


def test_ownership_is_checked_for_each_put_of_a_batch() -> None:
    harness = led(**settings())
    for number in range(20):
        table = BROKER_TABLE if number % 5 == 0 else 7
        put = requests.Put(table, [b"%d" % number], [b"v"], 1)
        harness.ask(b"c%d" % number, *encode_request(put))
    harness.run(lambda: len(harness.answers) == 20)
    assert {op.table for entry in entries(harness) for op in entry} == {7}
    assert sum(harness.heard(b"c%d" % number)[0].failed for number in range(20)) == 4


@pytest.mark.parametrize("table", [BROKER_TABLE, LOG_TABLE, FRESH])
def test_processes_of_the_node_write_them(table: int) -> None:
    harness = led(**settings())
    assert set(each(harness, writes(table, SECRET)[:10])) == {""}
    assert {op.table for entry in entries(harness) for op in entry} == {table}


def test_the_client_that_opens_a_fresh_table_owns_it() -> None:
    harness = led(**settings())
    assert "reserved" in each(harness, writes(FRESH, TOKEN)[2:3])[0], "it is not open"
    assert each(harness, writes(FRESH, TOKEN)[:1]) == [""]
    key = FRESH.to_bytes(4, "big")
    put = ops.Put(OWNER_TABLE, [key], [digest(TOKEN)])
    assert entries(harness) == [[put, ops.Open(FRESH, TableOptions())]]
    harness.session.writes.checks.ownership.owners = {FRESH: digest(TOKEN)}
    assert set(each(harness, [writes(FRESH, TOKEN)[place] for place in (0, 2, 6)])) == {""}
    assert "reserved" in each(harness, writes(FRESH, WRONG)[:1])[0]
    before = len(entries(harness))
    assert each(harness, writes(FRESH, TOKEN)[1:2]) == [""]
    assert entries(harness)[before:] == [[ops.Delete(OWNER_TABLE, [key]), ops.Truncate(FRESH)]]


def test_a_fresh_table_that_was_opened_at_another_node_a_moment_ago() -> None:
    harness = led(**settings())
    harness.applies = False
    harness.log.add(b"another one.", ops.pack([ops.Open(FRESH, TableOptions())]))

    def apply() -> None:
        harness.session.writes.checks.ownership.owners = {FRESH: digest(TOKEN)}
        harness.applies = True

    harness.ask(b"owner", *encode_request(writes(FRESH, TOKEN)[2]))
    harness.ask(b"other", *encode_request(writes(FRESH, WRONG)[0]))
    harness.at(100, partial(apply))
    harness.run(lambda: len(harness.answers) == 2)
    assert not harness.heard(b"owner")[0].failed
    assert harness.heard(b"other")[0].failed
