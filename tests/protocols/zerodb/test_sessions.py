"""Writes under a session: how they travel, and the answers after the session's end."""

from collections.abc import Sequence

import pytest

from kelek.protocols.zerodb.tables.tables import TableEntry, Tables
from kelek.protocols.zerodb.wire import ops, requests, values
from kelek.protocols.zerodb.wire.requests import encode_request
from kelek.protocols.zerodb.wire.values import PARTSYNC, Extension
from kelek.protocols.zerodb.wire.worker_pipe import RESULT_QUERY, OperationResult
from kelek.protocols.zerodb.wire.writes import operations_of
from kelek.tests.protocols.zerodb.server.served import UNIX_MS, SessionHarness, entries, led
from kelek.tests.storage.memory_tables import MemoryTables

SESSION = 99
SENT_MS = UNIX_MS + 1000  # Virtual time begins then.
UNDER_IT = Extension(reqid=b"r" * 12, lease=SESSION)
ALIVE = ops.Compare(7, SESSION.to_bytes(8, "little"), ops.ALIVE, ops.REQUIRED)
PUT = requests.Put(7, [b"k"], [b"v"], PARTSYNC, UNDER_IT)
BATCH = requests.Transaction(
    [ops.Compare(7, b"k", ops.ABSENT)], [ops.Put(7, [b"k"], [b"v"])], [], PARTSYNC, UNDER_IT
)


def told(result: bytes) -> bytes:
    """A worker's result of a transaction."""
    return result + bytes(8)


def asked(request: requests.Request) -> SessionHarness:
    """It is committed, and not applied."""
    harness = led()
    harness.applies = False
    harness.ask(b"c", *encode_request(request))
    harness.run(lambda: bool(harness.log.records) and not harness.client.window.items)
    return harness


def test_a_put_under_a_session_is_a_transaction_that_older_nodes_know() -> None:
    bounded = PUT._replace(extension=UNDER_IT._replace(ttl_ms=50))
    ((entry,),) = entries(asked(bounded))
    expiry = ops.Expiry(7, SENT_MS + 50, [b"k"])
    attach = ops.Attach(7, SESSION, [b"k"])
    put: list[ops.Op] = [ops.Put(7, [b"k"], [b"v"]), expiry, attach]
    assert entry == ops.Transaction(7, b"r" * 12, [ALIVE], put, [])


def test_a_put_without_a_session_is_no_transaction() -> None:
    (entry,) = entries(asked(PUT._replace(extension=UNDER_IT._replace(lease=0, ttl_ms=50))))
    assert entry == [ops.Put(7, [b"k"], [b"v"]), ops.Expiry(7, SENT_MS + 50, [b"k"])]


@pytest.mark.parametrize("request_", [PUT, BATCH], ids=["put", "batch"])
@pytest.mark.parametrize("result", [b"\0", b"\1", b"\2"])
def test_the_answer_says_whether_the_session_was_alive(
    request_: requests.Put | requests.Transaction, result: bytes
) -> None:
    harness = asked(request_)
    harness.session.writes.proposals.on_results([(1, OperationResult(0, told(result)))])
    harness.applies = True
    harness.run(lambda: bool(harness.answers))
    (answer,) = harness.heard(b"c")
    assert (answer.reqid, answer.retry) == (b"r" * 12, False)
    if result == b"\2" or (result == b"\0" and request_ is PUT):
        text = "nothing was written: the session has ended, or was never opened"
        assert (answer.code, answer.text) == (values.SESSION_ENDED, text)
    else:
        assert (answer.code, answer.frames) == (0, [told(result)] if request_ is BATCH else [])


def test_the_result_of_a_repeated_put_is_queried() -> None:
    """Without a result the server would acknowledge the write."""
    harness = asked(PUT)
    harness.applies = True
    harness.run(lambda: bool(harness.workers[0].taken))
    kind, _, _, index, _, _, frames = harness.workers[0].taken[0]
    assert (kind, index, frames[0]) == (RESULT_QUERY, 1, b"r" * 12)


# ---- effects on tables ----


def after(session: int, operations: Sequence[ops.Op]) -> Tables:
    """A table with a key and a session, to which these operations are applied."""
    tables = MemoryTables()
    tables.write(
        [TableEntry(session, 1, [ops.SessionOpen(0, 1000, 1), ops.Put(7, [b"k"], [b"old"])])]
    )
    tables.write([TableEntry(200, 1, operations)])
    return tables


def as_older_nodes_do(operations: Sequence[ops.Op]) -> list[ops.Op]:
    """For older nodes the compare of the session is an ordinary compare."""
    return [
        op._replace(compares=[compare._replace(operand=b"") for compare in op.compares])
        if isinstance(op, ops.Transaction)
        else op
        for op in operations
    ]


@pytest.mark.parametrize("session", [SESSION, SESSION + 1], ids=["alive", "ended"])
@pytest.mark.parametrize("request_", [PUT, BATCH], ids=["put", "batch"])
def test_older_nodes_hold_the_same_tables(
    request_: requests.Put | requests.Transaction, session: int
) -> None:
    operations = operations_of(request_, 1)
    now, before = after(session, operations), after(session, as_older_nodes_do(operations))
    assert dict(now.scan(7)) == dict(before.scan(7))
    assert now.expires_ms == before.expires_ms
    (result,) = now.results([b"r" * 12])
    assert result is not None
    if session != SESSION:
        assert result[0] == ops.NOT_ALIVE
        assert dict(now.scan(7)) == {b"k": b"old"}


def test_an_entry_of_an_older_version_does_what_it_did() -> None:
    """A node that applies an old log gets the tables that the others have had since."""
    entry: list[ops.Op] = [ops.Put(7, [b"k"], [b"new"]), ops.Attach(7, SESSION, [b"k"])]
    assert dict(after(SESSION + 1, entry).scan(7)) == {}
    assert dict(after(SESSION, entry).scan(7)) == {b"k": b"new"}
