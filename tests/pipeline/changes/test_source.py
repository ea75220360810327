"""The changes of a table as Spark asks for them: offsets, partitions and rows, over one real node.

No JVM runs: a Query calls the reader as Spark's micro-batches do.
"""

import json
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import kelek
from kelek.clients.table import changes
from kelek.pipeline.errors import (
    ChangesLost,
    OptionError,
    PipelineError,
    PreviousUnknown,
    SchemaError,
    WrongCheckpoint,
)
from kelek.tests.pipeline.conftest import TOPOLOGY, running

types = pytest.importorskip("pyspark.sql.types")
arrow_types = pytest.importorskip("pyspark.sql.pandas.types")
source = pytest.importorskip("kelek.pipeline.changes.source")
known = pytest.importorskip("kelek.pipeline.changes.known")
KIND = pytest.importorskip("kelek.pipeline.changes.kind").KIND

HEAD = [
    types.StructField("index", types.LongType()),
    types.StructField("place", types.IntegerType()),
    types.StructField("time", types.TimestampType()),
    types.StructField("kind", types.StringType()),
]
BOUNDS = types.StructType(
    [types.StructField("start", types.BinaryType()), types.StructField("end", types.BinaryType())]
)
Rows = list[dict[str, Any]]
DEADLINE_S = 240.0
STARTED: list["Query"] = []


class Query:
    """A query that keeps a checkpoint of its offsets, as Spark does."""

    def __init__(
        self, table: kelek.Table, value: Any = None, key: Any = None, **options: str
    ) -> None:
        """value, key: the types of these columns, if they are not binary."""
        name = str(table.name or table.number)
        self.given = {"urls": table.server().url, "table": name, **options}
        kind = value or types.BinaryType()
        tail = types.StructField("range", BOUNDS)
        if options.get("previous") == "true":
            tail = types.StructField("previous", kind)
        keys = types.StructField("key", key or types.BinaryType())
        self.schema = types.StructType([*HEAD, keys, types.StructField("value", kind), tail])
        self.offsets: list[str] = []
        self.reader: Any = None
        self.start()
        STARTED.append(self)

    def start(self) -> None:
        """Starts it again, from its checkpoint, in place of the one that runs."""
        if self.reader is not None:
            self.reader.stop()
        self.reader = KIND.stream_reader(self.given, self.schema)

    @property
    def position(self) -> str:
        return self.offsets[-1] if self.offsets else json.dumps(self.reader.initialOffset())

    def latest(self) -> str:
        limit = self.reader.getDefaultReadLimit()
        return json.dumps(self.reader.latestOffset(json.loads(self.position), limit))

    def batch(self) -> Rows:
        """The rows of the next batch; none: there is nothing new."""
        begin, end = self.position, self.latest()
        if end == begin:
            return []
        rows = self.rows(begin, end)
        self.offsets.append(end)
        self.reader.commit(json.loads(end))
        return rows

    def until(self, key: bytes) -> Rows:
        """The rows of the next batches, up to the one with a row of this key at its end."""
        found: Rows = []
        until_s = time.monotonic() + DEADLINE_S
        while not found or found[-1]["key"] != key:
            assert time.monotonic() < until_s, found
            found += self.batch()
        return found

    def rows(self, begin: str, end: str) -> Rows:
        parts = self.reader.partitions(json.loads(begin), json.loads(end))
        self.tasks = [
            [row for batch in self.reader.read(part) for row in batch.to_pylist()] for part in parts
        ]
        return [row for rows in self.tasks for row in rows]

    def stop(self) -> None:
        self.reader.stop()


def short(rows: Rows) -> list[tuple[Any, ...]]:
    return [(row["kind"], row["key"], row["value"]) for row in rows]


class NodeUrls(NamedTuple):
    url: str
    log_url: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUrls]:
    """A node of its own, as tests compact its log; tables 900 to 999 are local."""
    topology = f"{TOPOLOGY}log: {{segment_bytes: 262144}}\n"
    with running(tmp_path_factory.mktemp("node"), topology) as shell:
        found = [shell.addresses[f"127.0.0.1:{port}"] for port in (7100, 7201)]
        yield NodeUrls(*(f"tcp://{address}" for address in found))


@pytest.fixture
def table(place: NodeUrls, number: int) -> Iterator[kelek.Table]:
    with kelek.Table(place.url, number) as table:
        table.open()
        yield table


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Stops all queries of a test."""
    yield
    while STARTED:
        STARTED.pop().stop()


def apply(rows: Rows, state: dict[bytes, bytes]) -> None:
    """Does to a dict what the rows say."""
    for row in sorted(rows, key=lambda row: (row["index"], row["place"])):
        key, value = row["key"], row["value"]
        if row["kind"] == "delete_range":
            start, end = row["range"]["start"], row["range"]["end"]
            for gone in [it for it in state if it >= start and (not end or it < end)]:
                del state[gone]
        elif row["kind"] == "delete":
            state.pop(key, None)
        else:
            state[key] = value


# ---- what changes a row ----


def change_in_each_way(table: kelek.Table) -> None:
    """Every way in which a row changes, beginning with the keys a, b and c."""
    table.put(b"a", b"3")
    table.commit(table.batch().put(b"d", b"4").delete(b"b").increment(b"n", 7).append(b"d", b"!"))
    table.increment(b"n", 1)
    table.commit(table.batch().when_absent(b"a").put(b"z", b"no"))
    table.put_many([(b"e", b"5"), (b"e", b"6"), (b"f", b"7")])
    table.delete_many([b"e", b"absent"])
    table.delete_limited(1, start=b"f")
    session = table.open_session(60)
    table.put(b"held", b"s", session=session)
    table.end_session(session)
    table.put(b"short", b"t", ttl_s=0.01)
    with kelek.Table(table.server().url, table.number) as other:
        for change in other.watch(start=b"short", after=0, timeout_s=30):
            if change.kind == "delete":
                break
    table.delete_range(start=b"c", end=b"e")
    table.truncate()
    table.put(b"new", b"9")


def test_each_change_after_a_snapshot(table: kelek.Table) -> None:
    table.put_many([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    query = Query(table)
    first = query.batch()
    rows = [("snapshot", b"a", b"1"), ("snapshot", b"b", b"2"), ("snapshot", b"c", b"3")]
    assert short(first) == rows
    assert {row["index"] for row in first} == {json.loads(query.position)["index"]}
    begun = datetime.now(UTC) - timedelta(seconds=1)
    change_in_each_way(table)
    found = query.until(b"new")
    assert short(found) == [
        ("put", b"a", b"3"),
        ("put", b"d", b"4"),
        ("delete", b"b", None),
        ("put", b"n", b"7"),
        ("put", b"d", b"4!"),
        ("put", b"n", b"8"),
        ("put", b"e", b"5"),
        ("put", b"e", b"6"),
        ("put", b"f", b"7"),
        ("delete", b"e", None),
        ("delete", b"absent", None),
        ("delete", b"f", None),
        ("put", b"held", b"s"),
        ("delete", b"held", None),
        ("put", b"short", b"t"),
        ("delete", b"short", None),
        ("delete_range", None, None),
        ("delete_range", None, None),
        ("put", b"new", b"9"),
    ]
    bounds = [row["range"] for row in found if row["range"] is not None]
    assert bounds == [{"start": b"c", "end": b"e"}, {"start": b"", "end": b""}]
    assert all(begun <= row["time"] <= datetime.now(UTC) for row in found)
    places = [(row["index"], row["place"]) for row in found]
    assert places == sorted({*places})


def test_each_change_with_the_value_before(table: kelek.Table) -> None:
    table.put_many([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    query = Query(table, previous="true")
    assert len(query.batch()) == 3
    change_in_each_way(table)
    found = query.until(b"new")
    assert [(*it, row["previous"]) for it, row in zip(short(found), found, strict=True)] == [
        ("update", b"a", b"3", b"1"),
        ("insert", b"d", b"4", None),
        ("delete", b"b", None, b"2"),
        ("insert", b"n", b"7", None),
        ("update", b"d", b"4!", b"4"),
        ("update", b"n", b"8", b"7"),
        ("insert", b"e", b"5", None),
        ("update", b"e", b"6", b"5"),
        ("insert", b"f", b"7", None),
        ("delete", b"e", None, b"6"),
        ("delete", b"f", None, b"7"),
        ("insert", b"held", b"s", None),
        ("delete", b"held", None, b"s"),
        ("insert", b"short", b"t", None),
        ("delete", b"short", None, b"t"),
        ("delete", b"c", None, b"3"),
        ("delete", b"d", None, b"4!"),
        ("delete", b"a", None, b"3"),
        ("delete", b"n", None, b"8"),
        ("insert", b"new", b"9", None),
    ]
    places = [(row["index"], row["place"]) for row in found]
    assert places == sorted({*places})


def test_a_large_value_comes_as_it_is_when_it_is_read(table: kelek.Table) -> None:
    query = Query(table, after="latest")
    query.batch()
    value = bytes(range(256)) * 12_000
    table.put(b"new", value)
    assert short(query.until(b"new")) == [("put", b"new", value)]


def test_a_part_of_a_table(table: kelek.Table) -> None:
    table.put_many([(b"a", b"1"), (b"b1", b"2"), (b"c", b"3")])
    query = Query(table, prefix="b", previous="true")
    plain = Query(table, start="b", end="c")
    assert short(query.batch()) == short(plain.batch()) == [("snapshot", b"b1", b"2")]
    table.put_many([(b"b2", b"4"), (b"c", b"5")])
    table.delete_range()
    table.put(b"b3", b"6")
    assert short(query.until(b"b3")) == [
        ("insert", b"b2", b"4"),
        ("delete", b"b1", None),
        ("delete", b"b2", None),
        ("insert", b"b3", b"6"),
    ]
    rows = plain.until(b"b3")
    assert short(rows) == [
        ("put", b"b2", b"4"), ("delete_range", None, None), ("put", b"b3", b"6")
    ]  # fmt: skip
    assert rows[1]["range"] == {"start": b"b", "end": b"c"}


# ---- nothing lost, nothing doubled ----


def write_at_random(table: kelek.Table, seed: int, count: int) -> None:
    dice = random.Random(seed)
    for number in range(count):
        key = b"%02d" % dice.randrange(40)
        match dice.randrange(8):
            case 0:
                table.delete(key)
            case 1:
                table.delete_range(start=key, end=b"%02d" % dice.randrange(40))
            case 2:
                table.commit(table.batch().append(key, b"+").put(b"k" + key, b"%d" % number))
            case 3:
                table.put_many((b"%02d" % it, b"%d" % number) for it in range(dice.randrange(40)))
            case 4 if not number % 50:
                table.truncate()
            case _:
                table.put(key, b"%d" % number)


@pytest.mark.parametrize("previous", ["false", "true"])
def test_a_query_that_begins_amid_writes_and_is_killed_misses_nothing(
    place: NodeUrls, table: kelek.Table, previous: str, monkeypatch: Any
) -> None:
    """Each batch is planned and read, and then again by another process that knows offsets only."""
    monkeypatch.setattr(source, "TASK_ENTRIES_MIN", 4)
    write_at_random(table, 1, 50)

    def write() -> None:
        with kelek.Table(place.url, table.number) as other:
            write_at_random(other, 2, 300)
            other.put(b"zzz", b"end")

    writer = threading.Thread(target=write)
    writer.start()
    query = Query(table, previous=previous, maxEntriesPerTrigger="40")
    state: dict[bytes, bytes] = {}
    seen: list[tuple[int, int, bytes]] = []
    while b"zzz" not in state:
        begin, end = query.position, query.latest()
        if end == begin:
            continue
        query.rows(begin, end)
        rows, tasks = query.rows(begin, end), query.tasks
        query.start()
        assert query.rows(begin, end) == rows
        assert query.tasks == tasks, "each task has the same rows"
        query.offsets.append(end)
        query.reader.commit(json.loads(end))
        seen += [(row["index"], row["place"], row["key"]) for row in rows]
        if previous == "true":
            for row in rows:
                assert row["kind"] != "delete_range"
                before = state.get(row["key"])
                assert row["previous"] == before
                if row["kind"] != "snapshot":
                    assert (row["kind"] == "insert") == (before is None)
                apply([row], state)
        else:
            apply(rows, state)
    writer.join()
    assert state == dict(table.scan())
    assert len({*seen}) == len(seen)


def test_many_changes_with_the_values_before(table: kelek.Table) -> None:
    """The driver reads them, page by page."""
    query = Query(table, previous="true")
    query.batch()
    pairs = [(b"%06d" % number, b"x" * 1000) for number in range(10_000)]
    table.put_many(pairs)
    table.put_many((key, b"y") for key, _ in pairs)
    rows = query.until(b"009999")
    while rows[-1]["kind"] == "insert":
        rows += query.batch()
    assert short(rows[:10_000]) == [("insert", *pair) for pair in pairs]
    assert short(rows[10_000:]) == [("update", key, b"y") for key, _ in pairs]
    assert {row["previous"] for row in rows[10_000:]} == {b"x" * 1000}


def test_many_changes_are_read_by_tasks(table: kelek.Table, monkeypatch: Any) -> None:
    """More than what the driver gives to tasks itself."""
    monkeypatch.setattr(source, "TASK_ENTRIES_MIN", 4)
    query = Query(table)
    assert query.batch() == []
    pairs = [(b"%06d" % number, b"x" * 100) for number in range(30_000)]
    table.put_many(pairs)
    while (end := query.latest()) == query.position:
        pass
    parts = query.reader.partitions(json.loads(query.position), json.loads(end))
    assert len(parts) == 4
    assert all(part.data is None for part in parts)
    assert sorted(short(query.batch())) == [("put", *pair) for pair in pairs]


def test_the_rows_of_a_snapshot_are_divided_alike_when_they_come_again(
    table: kelek.Table, monkeypatch: Any
) -> None:
    monkeypatch.setattr(source, "SMALL_BYTES", 1)
    table.put_many((b"%06d" % number, b"x" * 100) for number in range(20_000))
    table.unload()
    query = Query(table, partitions="3")
    begin, end = query.position, query.latest()
    query.rows(begin, end)
    tasks = query.tasks
    assert [row["key"] for rows in tasks for row in rows] == [b"%06d" % it for it in range(20_000)]
    table.put_many((b"%06d" % number, b"x" * 100) for number in range(20_000, 60_000))
    table.unload()
    query.start()
    query.rows(begin, end)
    assert query.tasks == tasks
    assert len(tasks) > 1


# ---- where a query begins and goes on ----


def test_where_a_query_begins(table: kelek.Table) -> None:
    table.put(b"a", b"1")
    [first] = [row for row in Query(table).batch() if row["key"] == b"a"]
    table.put(b"b", b"2")
    every = [Query(table, after=after) for after in ("earliest", str(first["index"]), "latest")]
    assert every[2].batch() == []
    assert every[2].batch() == []
    table.put(b"new", b"3")
    new = [("put", b"b", b"2"), ("put", b"new", b"3")]
    assert short(every[0].until(b"new")) == [("put", b"a", b"1"), *new]
    assert short(every[1].until(b"new")) == new
    assert short(every[2].until(b"new")) == new[1:]


def test_a_table_that_is_empty_or_not_there(place: NodeUrls, number: int) -> None:
    with kelek.Table(place.url, number) as table:
        query = Query(table, previous="true")
        assert query.batch() == []
        table.put(b"new", b"1")
        assert short(query.until(b"new")) == [("insert", b"new", b"1")]


def test_the_offset_follows_a_log_that_does_not_change_the_table(
    place: NodeUrls, table: kelek.Table, monkeypatch: Any
) -> None:
    """Else the log could be compacted behind the offset of a table that is quiet."""
    monkeypatch.setattr(source, "IDLE_ENTRIES", 20)
    every = [Query(table), Query(table, previous="true")]
    for query in every:
        assert query.batch() == []
    with kelek.Table(place.url, table.number + 1_000_000) as other:
        for number in range(50):
            other.put(b"k", b"%d" % number)
    for query in every:
        until_s = time.monotonic() + DEADLINE_S
        while len(query.offsets) < 2:
            assert query.batch() == []
            assert time.monotonic() < until_s
        assert query.tasks == []
    table.put(b"new", b"1")
    assert short(every[0].until(b"new")) == [("put", b"new", b"1")]
    assert short(every[1].until(b"new")) == [("insert", b"new", b"1")]


def test_a_query_goes_on_from_a_newer_snapshot_of_what_was_before(
    table: kelek.Table, monkeypatch: Any
) -> None:
    monkeypatch.setattr(known, "STATE_ENTRIES", 3)
    query = Query(table, previous="true")
    query.batch()
    states = set()
    for number in range(12):
        table.put(b"k", b"%d" % number)
        [row] = query.until(b"k")
        assert row["previous"] == (b"%d" % (number - 1) if number else None)
        states.add(json.loads(query.position)["state"])
        if number % 5 == 4:
            query.stop()
            query.start()
    assert len(states) > 2
    gone = min(states)
    with pytest.raises(kelek.TableRefused, match="no lease"):
        table.renew(gone)


def test_the_values_before_are_unknown_without_their_snapshot(table: kelek.Table) -> None:
    table.put(b"a", b"1")
    query = Query(table, previous="true")
    assert len(query.batch()) == 1
    query.stop()
    table.release(json.loads(query.position)["state"])
    table.put(b"a", b"2")
    query.start()
    with pytest.raises(PreviousUnknown, match="leave option previous out to go on without them"):
        query.batch()
    query.stop()
    plain = Query(table)
    plain.offsets = query.offsets
    assert short(plain.until(b"a")) == [("put", b"a", b"2")]
    again = Query(table, previous="true")
    again.offsets = plain.offsets
    with pytest.raises(PreviousUnknown, match="were without the value before"):
        again.batch()


def test_the_first_batch_comes_again_as_long_as_its_snapshot_is_there(table: kelek.Table) -> None:
    table.put(b"a", b"1")
    query = Query(table)
    begin, end = query.position, query.latest()
    query.stop()
    table.put(b"a", b"2")
    query.start()
    assert short(query.rows(begin, end)) == [("snapshot", b"a", b"1")]
    query.stop()
    table.release(json.loads(end)["snapshot"])
    query.start()
    with pytest.raises(PipelineError, match=r"is gone.*start the query with a new checkpoint"):
        query.rows(begin, end)


def is_kept(table: kelek.Table, after: int) -> bool:
    """Whether the log has the changes behind an index."""
    try:
        return next(table.watch(after=after, timeout_s=1), None) is not None
    except kelek.TableCompacted:
        return False


def test_changes_that_are_lost(place: NodeUrls, table: kelek.Table) -> None:
    """The query is told, or goes on with a new snapshot in place of what it has."""
    table.put_many([(b"a", b"1"), (b"b", b"2")])
    query, known_ = Query(table), Query(table, previous="true")
    state: dict[bytes, bytes] = {}
    apply(query.batch(), state)
    known_.batch()
    for each in (query, known_):
        each.stop()
    query.start()
    table.put(b"a", b"3")
    while (planned := query.latest()) == query.position:
        pass
    query.stop()
    table.delete(b"b")
    after = last = json.loads(query.position)["index"]
    with kelek.Log(place.log_url, "spark") as log:
        until_s = time.monotonic() + DEADLINE_S
        while is_kept(table, after):  # Whole segments go, up to the snapshot before.
            assert time.monotonic() < until_s
            for _ in range(5):
                table.put(b"c", bytes(100_000))
            last = log.make_snapshot().last_index
    query.start()
    with pytest.raises(ChangesLost) as error:
        query.batch()
    assert f"behind LOG INDEX {after} are no longer kept" in str(error.value)
    assert "Set failOnCompaction to false" in str(error.value)
    known_.start()
    with pytest.raises(PreviousUnknown, match="are no longer kept"):
        known_.batch()
    query.given["failOnCompaction"] = "false"
    query.start()
    repeated = query.rows(query.position, planned)
    assert sorted(row["kind"] for row in repeated) == ["delete_range", "snapshot", "snapshot"]
    query.start()
    rows = query.batch()
    assert sorted(row["kind"] for row in rows) == ["delete_range", "snapshot", "snapshot"]
    assert {row["index"] > last for row in rows} == {True}
    apply(rows, state)
    assert state == {b"a": b"3", b"c": bytes(100_000)} == dict(table.scan())
    table.put(b"new", b"5")
    assert short(query.until(b"new")) == [("put", b"new", b"5")]


def test_a_checkpoint_of_something_else(table: kelek.Table) -> None:
    query = Query(table)
    query.batch()
    offset = json.loads(query.position)
    for wrong, why in (
        ({**offset, "table": 1}, "it is of table 1, not of"),
        ({**offset, "index": 10**9}, "goes on behind entry 1000000000, the log ends at"),
        ({**offset, "more": 1}, "its offset reads"),
        ({**offset, "splits": ["xyz"]}, "its offset reads"),
        ({**offset, "state": 5}, "its offset reads"),
    ):
        other = Query(table)
        other.offsets = [json.dumps(wrong)]
        with pytest.raises(WrongCheckpoint, match=why):
            other.batch()


def test_a_range_that_is_too_large_for_the_values_before(
    table: kelek.Table, monkeypatch: Any
) -> None:
    monkeypatch.setattr(changes, "SNAPSHOT_BYTES_MAX", 100)
    query = Query(table, previous="true")
    query.batch()
    table.put(b"a", bytes(200))
    with pytest.raises(PipelineError, match="option previous keeps the range in the driver's"):
        query.until(b"a")


# ---- columns ----

SCHEMA = pa.schema(
    [
        pa.field("day", pa.date32(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)


def test_a_table_with_columns(place: NodeUrls) -> None:
    with kelek.Table(place.url, "priced") as table:
        table.declare(kelek.TableSchema(SCHEMA, ["day", "id"]))
        day = datetime(2026, 1, 31, tzinfo=UTC).date()
        row = {"day": day, "id": 1, "price": Decimal("1.50"), "tags": ["a"]}
        table.put_rows([row])
        value = arrow_types.from_arrow_schema(SCHEMA)
        query = Query(table, value, previous="true")
        plain = Query(table, value)
        for each in (query, plain):
            [first] = each.batch()
            assert (first["kind"], first["value"]) == ("snapshot", row)
        cheaper = {**row, "price": None, "tags": None}
        table.put_rows([cheaper, {**row, "id": 2}])
        table.delete_row(day, 1)
        table.delete_range()
        table.put_rows([{**row, "id": 3}])
        found: Rows = []
        while len(found) < 5:
            found += query.batch()
        gone = {**dict.fromkeys(SCHEMA.names), "day": day}
        assert [(it["kind"], it["value"], it["previous"]) for it in found] == [
            ("update", cheaper, row),
            ("insert", {**row, "id": 2}, None),
            ("delete", {**gone, "id": 1}, cheaper),
            ("delete", {**gone, "id": 2}, {**row, "id": 2}),
            ("insert", {**row, "id": 3}, None),
        ]
        rows: Rows = []
        while len(rows) < 5:
            rows += plain.batch()
        assert [(it["kind"], it["value"]) for it in rows] == [
            ("put", cheaper),
            ("put", {**row, "id": 2}),
            ("delete", {**gone, "id": 1}),
            ("delete_range", None),
            ("put", {**row, "id": 3}),
        ]


def test_formats_and_items_that_are_none(table: kelek.Table) -> None:
    given = {"keyFormat": "utf8", "valueFormat": "json", "valueSchema": "INT", "previous": "true"}
    query = Query(table, types.IntegerType(), types.StringType(), **given)
    query.batch()
    table.put_many([(b"a", b"1"), (b"b", b"x"), (b"a", b"2")])
    table.delete(b"a")
    rows = query.until("a")  # type: ignore[arg-type]
    found = [(*it, row["previous"]) for it, row in zip(short(rows), rows, strict=True)]
    assert found[:3] == [
        ("insert", "a", 1, None), ("insert", "b", None, None), ("update", "a", 2, 1)
    ]  # fmt: skip
    query.given["mode"] = "FAILFAST"
    query.stop()
    query.offsets.pop()
    query.start()
    with pytest.raises(PipelineError, match="a value is no json: 0x78; options valueFormat"):
        query.until("a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"after": "soon"}, "snapshot, earliest, latest or an index from 0 on"),
        ({"after": "7", "previous": "true"}, "previous goes with after snapshot, not 7"),
        ({"failOnCompaction": "false", "previous": "true"}, "do not go together"),
        ({"keys": '["a"]'}, "unknown option 'keys'"),
        ({"mode": "DROPMALFORMED"}, "PERMISSIVE or FAILFAST"),
    ],
)
def test_wrong_options(table: kelek.Table, given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        Query(table, **given)


def test_wrong_uses(place: NodeUrls, table: kelek.Table) -> None:
    with pytest.raises(PipelineError, match=r"can't be read as a batch; use spark\.readStream"):
        KIND.reader({}, types.StructType([]))
    with pytest.raises(PipelineError, match="can't be written by a stream"):
        KIND.stream_writer({}, types.StructType([]), False)
    with kelek.Table(place.url, 900) as local:
        local.put(b"a", b"1")
        with pytest.raises(PipelineError, match=r"table 900 is local at .*not in the log"):
            Query(local).batch()
    query = Query(table)
    query.schema = types.StructType(query.schema.fields[:-1])
    with pytest.raises(SchemaError, match="columns of changes are index, place, time, kind, key"):
        query.start()
