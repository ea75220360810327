"""What kelek.Table promises, on a real node: writes under sessions that have ended, tables that
nobody has put anything in, watches of large batches."""

from collections.abc import Iterator
from itertools import islice

import pytest

import kelek
from kelek.protocols.zerodb.wire.values import SESSION_ENDED
from kelek.tests.interop.zerodb.tables import LOCAL, NodeTables
from kelek.tests.interop.zerodb.tables import running as running
from kelek.tests.interop.zerodb.tables import tables as tables
from kelek.tests.interop.zerodb.zerodb_plain import head, u32

COPY = 0x44
TIMEOUT_MS = 60_000
NEVER = 1 << 40  # A session that was never opened.
LARGE = 70_000  # Bytes: of such batches the node keeps no values for those who watch.


@pytest.fixture
def table(tables: NodeTables) -> Iterator[kelek.Table]:
    with opened(tables, next(tables.replicated)) as table:
        yield table


def opened(tables: NodeTables, number: int) -> kelek.Table:
    return kelek.Table([tables.endpoints[tables.asked]["url"]], number, timeout_ms=TIMEOUT_MS)


# ---- changes ----


def swap(table: kelek.Table, before: bytes | None, after: bytes) -> None:
    """Puts a value in the place of another, and deletes a key and a range beside it."""
    batch = table.batch().put(b"k", after).delete(b"gone").delete_range(prefix=b"r")
    if before is None:
        batch.when_absent(b"k")
    else:
        batch.when_equal(b"k", before)
    batch.otherwise.put(b"k", b"not " + after)
    table.commit(batch)


def test_a_watch_reports_large_batches_as_small_ones(table: kelek.Table) -> None:
    """Each value once, though none of them is held any more."""
    values = [bytes([letter]) * LARGE for letter in b"abc"]
    table.put(b"first", b"")
    first = next(table.watch(after=0, prefix=b"first")).index
    swap(table, None, values[0])
    swap(table, values[0], values[1])
    swap(table, b"something else", values[2])
    table.delete(b"k")
    told = list(islice(table.watch(after=first, start=b"k", end=b"s"), 6))
    assert [(it.key, it.value, it.end) for it in told] == [
        (b"k", values[0], None),
        (b"r", None, b"s"),
        (b"k", values[1], None),
        (b"r", None, b"s"),
        (b"k", b"not " + values[2], None),
        (b"k", None, None),
    ]
    assert [change.index for change in told] == sorted(change.index for change in told)


def test_a_watch_reports_once_the_keys_of_an_ended_session(table: kelek.Table) -> None:
    """Also where the keys alone are larger than what a node keeps of values."""
    session = table.open_session(60)
    keys = [b"%d" % number * 1000 for number in range(10, 90)]
    for key in keys:
        table.put(key, b"v", session=session)
    last = next(table.watch(after=0, prefix=keys[-1])).index
    table.end_session(session)
    table.put(keys[0], b"new")
    told = list(islice(table.watch(after=last), len(keys) + 1))
    assert sorted(change.key for change in told[:-1]) == sorted(keys)
    assert {change.value for change in told[:-1]} == {None}
    assert (told[-1].key, told[-1].value) == (keys[0], b"new")


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


def test_a_local_table_knows_no_sessions(tables: NodeTables, table: kelek.Table) -> None:
    session = table.open_session(60)
    with opened(tables, LOCAL[-1]) as local:
        local.put(b"k", b"old")
        with pytest.raises(kelek.SessionEnded, match="a local table has no sessions"):
            local.put(b"k", b"new", session=session)
        with pytest.raises(kelek.SessionEnded):
            local.commit(local.batch(session=session).put(b"k", b"new"))
        assert list(local.scan()) == [(b"k", b"old")]


# ---- tables that are not there ----


def test_only_a_put_makes_a_table(tables: NodeTables, table: kelek.Table) -> None:
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


def test_a_table_is_not_copied_into_itself(tables: NodeTables, table: kelek.Table) -> None:
    with pytest.raises(ValueError, match="into itself"):
        table.copy_into(table.number)
    number = u32(table.number)
    header, text = tables.client().ask(head(COPY), number, number, b"", b"")
    assert (header[3], text) == (1, b"table %d is not copied into itself\0" % table.number)
