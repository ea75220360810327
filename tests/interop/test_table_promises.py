"""What kelek.Table promises, on a real node: writes under sessions that have ended, tables that
nobody has put anything in, watches of large batches."""

from collections.abc import Iterator

import pytest

import kelek
from kelek.protocols.zerodb.values import SESSION_ENDED
from kelek.tests.interop.tables import LOCAL, Tables
from kelek.tests.interop.tables import running as running
from kelek.tests.interop.tables import tables as tables
from kelek.tests.interop.zerodb_plain import head, u32

COPY = 0x44
TIMEOUT_MS = 60_000
NEVER = 1 << 40  # A session that was never opened.
LARGE = 70_000  # Bytes: of such batches the node keeps no values for those who watch.


@pytest.fixture
def table(tables: Tables) -> Iterator[kelek.Table]:
    with opened(tables, next(tables.replicated)) as table:
        yield table


def opened(tables: Tables, number: int) -> kelek.Table:
    return kelek.Table([tables.doors[tables.asked]["url"]], number, timeout_ms=TIMEOUT_MS)


# ---- sessions ----


def ended(table: kelek.Table) -> int:
    session = table.open_session(60)
    table.end_session(session)
    return session


@pytest.mark.parametrize("never", [False, True], ids=["ended", "never opened"])
def test_a_put_under_a_session_that_is_not_alive_changes_nothing(
    table: kelek.Table, never: bool
) -> None:
    session = NEVER if never else ended(table)
    table.put(b"k", b"old")
    with pytest.raises(kelek.SessionEnded, match="the session has ended") as error:
        table.put(b"k", b"new", session=session)
    assert error.value.code == SESSION_ENDED
    with pytest.raises(kelek.SessionEnded):
        table.put(b"new", b"1", session=session, ttl_s=60)
    assert list(table.scan()) == [(b"k", b"old")]


def test_a_batch_under_a_session_that_has_ended_changes_nothing(table: kelek.Table) -> None:
    session = ended(table)
    table.put(b"k", b"old")
    lock = table.batch(session=session).when_absent(b"lock").put(b"lock", b"me").delete(b"k")
    with pytest.raises(kelek.SessionEnded):
        table.commit(lock)
    other = table.batch(session=session).when_absent(b"k").put(b"k", b"new")
    other.otherwise.put(b"k", b"newer").delete(b"k")
    with pytest.raises(kelek.SessionEnded):
        table.commit(other)
    with pytest.raises(kelek.SessionEnded):
        table.commit(table.batch(session=session))
    assert list(table.scan()) == [(b"k", b"old")]


def test_a_write_under_a_session_that_is_alive_is_done(table: kelek.Table) -> None:
    session = table.open_session(60)
    table.put(b"a", b"1", session=session)
    lock = table.batch(session=session).when_absent(b"lock").put(b"lock", b"me")
    lock.otherwise.get(b"lock")
    assert table.commit(lock).succeeded
    assert table.commit(lock) == (False, table.commit(lock).token, [b"me"])
    assert [key for key, _ in table.scan()] == [b"a", b"lock"]
    table.end_session(session)
    assert list(table.scan()) == []
    with pytest.raises(kelek.SessionEnded):
        table.commit(lock)


def test_a_local_table_knows_no_sessions(tables: Tables, table: kelek.Table) -> None:
    session = table.open_session(60)
    with opened(tables, LOCAL[-1]) as local:
        local.put(b"k", b"old")
        with pytest.raises(kelek.SessionEnded, match="a local table knows no sessions"):
            local.put(b"k", b"new", session=session)
        with pytest.raises(kelek.SessionEnded):
            local.commit(local.batch(session=session).put(b"k", b"new"))
        assert list(local.scan()) == [(b"k", b"old")]


# ---- tables that are not there ----


def test_only_a_put_makes_a_table(tables: Tables, table: kelek.Table) -> None:
    table.delete(b"k")
    table.delete_many([b"a", b"b"])
    table.delete_range(prefix=b"a")
    table.delete_limited(5)
    table.delete_limited(1 << 40)
    table.truncate()
    assert table.commit(table.batch().delete(b"k").get(b"k").delete_range()).succeeded
    refused = table.batch().when_present(b"k").put(b"k", b"v")
    assert not table.commit(refused).succeeded
    with pytest.raises(kelek.SessionEnded):
        table.put(b"k", b"v", session=NEVER)
    target = next(tables.replicated)
    done = table.wait_job(table.copy_into(target))
    assert (done["state"], done["puts"]) == ("done", "0")
    assert [table.get(b"k"), table.count(), list(table.scan())] == [None, 0, []]
    assert list(table.chunks(table.range_job())) == []
    assert {table.number, target}.isdisjoint(table.tables())
    table.put(b"k", b"v")
    assert table.number in table.tables()


def test_a_table_is_not_copied_into_itself(tables: Tables, table: kelek.Table) -> None:
    with pytest.raises(ValueError, match="into itself"):
        table.copy_into(table.number)
    number = u32(table.number)
    header, text = tables.client().ask(head(COPY), number, number, b"", b"")
    assert (header[3], text) == (1, b"table %d is not copied into itself\0" % table.number)
