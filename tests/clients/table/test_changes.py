"""Watches that begin with a snapshot, kinds of changes, values before, the time without changes."""

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kelek
from kelek.clients.table import changes
from kelek.clients.table.changes import Change, WatchedRange
from kelek.testing import LocalCluster
from kelek.testing.fixtures import kelek_cluster as kelek_cluster
from kelek.tests.clients.table.table_servers import TableServers

JOIN_S = 120.0
Told = tuple[str, bytes, bytes | None, bytes | None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TableServers]:
    cluster = TableServers(tmp_path)
    yield cluster
    cluster.close()


def told(found: list[Change]) -> list[Told]:
    return [(it.kind, it.key, it.value, it.previous) for it in found]


def test_a_snapshot_then_changes(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, "users", timeout_ms=60_000) as table:
        table.put_many([("a/2", "two"), ("a/1", "one"), ("b", "other")])
        watch = table.watch(prefix="a/", snapshot=True)
        first = list(islice(watch, 3))
        assert told(first) == [
            ("snapshot", b"a/1", b"one", None), ("snapshot", b"a/2", b"two", None),
            ("live", b"", None, None),
        ]  # fmt: skip
        assert len({it.index for it in first}) == 1
        table.put("a/1", "new")
        table.put("a/3", "three")
        table.delete_many(["a/3", "a/9"])
        table.put("b", "not watched")
        table.delete_range()
        found = list(islice(watch, 5))
        assert told(found) == [
            ("put", b"a/1", b"new", b"one"), ("put", b"a/3", b"three", None),
            ("delete", b"a/3", None, b"three"), ("delete", b"a/1", None, b"new"),
            ("delete", b"a/2", None, b"two"),
        ]  # fmt: skip
        assert first[-1].index < found[0].index < found[-1].index
        with pytest.raises(ValueError, match="begins now; leave after out"):
            next(table.watch(snapshot=True, after=1))


def test_a_watch_ends_without_changes(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 7, codec="json", timeout_ms=60_000) as table:
        table.put("k", {"a": 1})
        assert list(table.watch(timeout_s=0.001)) == []
        found = list(table.watch(snapshot=True, timeout_s=0.001))
        values: list[Any] = [(it.kind, it.key, it.value) for it in found]
        assert values == [
            ("snapshot", "k", {"a": 1}), ("live", "", None)
        ]  # fmt: skip
        watch = table.watch(after=0)
        table.put("k", 2)
        table.delete("k")
        table.delete_range(start="a", end="b")
        assert [it.kind for it in islice(watch, 4)] == ["put", "put", "delete", "delete_range"]
        end: Any = next(table.watch(after=3)).end
        assert end == "b"


def test_a_snapshot_has_a_limit(cluster: TableServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SNAPSHOT_BYTES_MAX", 10)
    with kelek.Table(cluster.urls, 7, timeout_ms=60_000) as table:
        table.put("a", "12345678")
        watch = table.watch(snapshot=True)
        assert next(watch).kind == "snapshot"
        table.put("a", "123456789")
        table.put("b", "")
        with pytest.raises(kelek.TableTooLarge, match=r"at most 10 bytes .* open_snapshot"):
            list(watch)


KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
CHANGES = st.builds(
    lambda key, value, end: Change(1, key, value, None if value is not None else end),
    KEYS, st.none() | st.sampled_from([b"", b"1", b"2"]), st.none() | KEYS | st.just(b""),
)  # fmt: skip


@given(st.dictionaries(KEYS, st.just(b"0")), st.lists(CHANGES))
def test_previous_values_are_those_of_a_model(
    start: dict[bytes, bytes], made: list[Change]
) -> None:
    """One that applies the changes has the range, and knew each value before."""
    known, follower, model = WatchedRange(), dict(start), dict(start)
    known.add(start.items())
    for change in made:
        if change.end is None:
            gone = [change.key]
        else:
            end = change.end or b"e"
            gone = [key for key in model if change.key <= key < end]
        for key in gone:
            model.pop(key, None)
        if change.value is not None:
            model[change.key] = change.value
        for each in known.apply([change]):
            assert each.end is None
            assert follower.get(each.key) == each.previous
            if each.value is None:
                del follower[each.key]
            else:
                follower[each.key] = each.value
        assert follower == model
    found = [(it.key, it.value) for it in known.told(1)[:-1]]
    assert found == sorted(model.items())


def test_a_snapshot_is_of_one_index_while_others_write(kelek_cluster: LocalCluster) -> None:
    """Two keys always change together: no state that a watch tells has them differ."""
    names = ["first", *(f"m{n:03}" for n in range(300)), "last"]
    ended = threading.Event()

    def write() -> None:
        with kelek.Table(kelek_cluster.table_urls, "pairs", timeout_ms=60_000) as table:
            count = 0
            while not ended.is_set():
                count += 1
                batch = table.batch().put(names[0], str(count)).put(names[-1], str(count))
                table.commit(batch)

    with kelek.Table(kelek_cluster.table_urls, "pairs", timeout_ms=60_000) as table:
        table.put_many((name, "0" * 4000) for name in names)  # More than one page.
        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(5):
                watch = table.watch(snapshot=True, timeout_s=JOIN_S)
                state: dict[bytes, bytes | None] = {}
                index = 0
                for change in islice(watch, len(names) + 41):
                    if change.index != index and index and change.kind == "put":
                        assert state[b"first"] == state[b"last"]
                    index = change.index if change.kind == "put" else 0
                    if change.kind == "live":
                        assert state[b"first"] == state[b"last"]
                        assert len(state) == len(names)
                    else:
                        state[change.key] = change.value
        finally:
            ended.set()
            thread.join(JOIN_S)
