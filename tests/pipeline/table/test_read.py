"""Tables read by Spark: as they were when the query was planned, all of them, and nothing twice."""

import struct
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event
from typing import Any

import msgpack
import pytest

import kelek

formats = pytest.importorskip("kelek.pipeline.formats", reason="kelek[arrow] is not installed")

ROWS = [(b"%06d" % n, b"value %d" % n) for n in range(20_000)]


def loaded(spark: Any, url: str, number: int, **options: Any) -> Any:
    """What the format makes of a table."""
    given = {"kind": "table", "urls": url, "table": number, **options}
    return spark.read.format("kelek").options(**given).load()


@pytest.fixture(scope="module")
def filled(node: str) -> int:
    """The number of a table that holds ROWS."""
    with kelek.Table(node, 500) as table:
        table.put_many(ROWS)
    return 500


def test_each_query_reads_the_table_as_it_is(spark: Any, node: str, filled: int) -> None:
    frame = loaded(spark, node, filled, partitions=4, batchRows=1000)
    assert frame.schema.simpleString() == "struct<key:binary,value:binary>"
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(map(tuple, frame.collect())) == ROWS
    with kelek.Table(node, filled) as table:
        table.put(b"new", b"x")
        table.delete(ROWS[0][0])
        assert sorted(map(tuple, frame.collect())) == [*ROWS[1:], (b"new", b"x")]
        table.put(*ROWS[0])
        table.delete(b"new")


@pytest.mark.parametrize("pushed", ["false", "true"])
def test_queries_of_one_frame_do_not_mix(spark: Any, node: str, filled: int, pushed: str) -> None:
    """Whether Spark offers sources its filters or not: it keeps one plan for all of a frame."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    frame = loaded(spark, node, filled)
    one, some = frame.where("key = X'303030303037'"), frame.where("key < X'303030303033'")
    assert [tuple(row) for row in one.collect()] == [ROWS[7]]
    assert frame.count() == len(ROWS)
    found = one.union(some).union(frame.where("key = X'78'")).collect()
    assert sorted(map(tuple, found)) == [*ROWS[:3], ROWS[7]]
    assert one.crossJoin(some.select("value")).count() == 3
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_all_tasks_of_a_query_read_one_snapshot(spark: Any, node: str, number: int) -> None:
    """Of two loads, too, and while both keys are always written together."""
    with kelek.Table(node, number) as table, ThreadPoolExecutor(1) as pool:

        def put(n: int) -> None:
            value = b"%d" % n
            table.commit(table.batch().put(b"a", value).put(b"b", value))

        def write() -> None:
            for n in count(1):
                put(n)
                if done.is_set():
                    return

        put(0)
        done = Event()
        writing = pool.submit(write)
        try:
            parts = [
                loaded(spark, node, number, start=key, keyFormat="utf8", **options)
                for key, options in (("a", {}), ("b", {}), ("a", {"keys": '["a", "b"]'}))
            ]
            for _ in range(4):
                found = parts[0].union(parts[1]).union(parts[2].repartition(2)).collect()
                assert [row.key for row in found].count("b") == 3
                assert len({bytes(row.value) for row in found}) == 1
        finally:
            done.set()
            writing.result()


def test_a_frame_may_keep_to_one_snapshot(spark: Any, node: str, number: int) -> None:
    """For what one query fills, and another one goes on with: Spark's cache."""
    with kelek.Table(node, number) as table:
        table.put_many((b"%d" % n, b"old") for n in range(8))
        frame = loaded(spark, node, number, partitions=4, snapshot="frame").cache()
        assert len(frame.take(1)) == 1
        table.put_many((b"%d" % n, b"new") for n in range(12))
        assert {bytes(row.value) for row in frame.collect()} == {b"old"}
        assert frame.count() == 8
        frame.unpersist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prefix": "00001"}, ROWS[10:20]),
        ({"start": "0x303139393938"}, ROWS[19998:]),
        ({"start": "000005", "end": "000008"}, ROWS[5:8]),
        ({"start": "5", "end": "4"}, []),
        ({"rowLimit": 5, "start": "000100", "batchRows": 3}, ROWS[100:105]),
        ({"rowLimit": 0}, []),
        ({"keys": '["000003", "x", "0x303030303031"]'}, [ROWS[1], ROWS[3]]),
        ({"keys": '["000003", "000005"]', "start": "000004", "columns": "key"}, [ROWS[5][:1]]),
        ({"keys": "[]"}, []),
        ({"keys": '["000003", "x", "000005"]', "local": "off"}, [ROWS[3], ROWS[5]]),
        ({"snapshot": "frame", "partitions": 3, "start": "019900"}, ROWS[19900:]),
        ({"prefix": "00001", "columns": "key"}, [row[:1] for row in ROWS[10:20]]),
    ],
)
def test_parts_of_a_table(
    spark: Any, node: str, filled: int, options: dict[str, Any], expected: list[Any]
) -> None:
    found = loaded(spark, node, filled, **options).collect()
    assert sorted(map(tuple, found)) == expected


def test_formats_and_filters_on_them(spark: Any, node: str, number: int) -> None:
    with kelek.Table(node, number) as table:
        table.put_many(
            [(struct.pack(">Q", n), b'{"n": %d, "w": ["x"]}' % n) for n in range(10)]
            + [(b"\0" * 7 + b"\5x", b"{}"), (struct.pack(">Q", 10), b"{oops")]
        )
    options = {"keyFormat": "be64", "valueFormat": "json", "valueSchema": "n INT, w ARRAY<STRING>"}
    frame = loaded(spark, node, number, **options, corruptColumn="_bad")
    assert frame.dtypes == [
        ("key", "bigint"),
        ("value", "struct<n:int,w:array<string>>"),
        ("_bad", "struct<key:binary,value:binary>"),
    ]
    rows = frame.where("key > 7").select("key", "value.n", "_bad").collect()
    assert [tuple(row) for row in rows] == [
        (8, 8, None),
        (9, 9, None),
        (10, None, (struct.pack(">Q", 10), b"{oops")),
    ]
    [row] = frame.where("key IS NULL").select("_bad.key").collect()
    assert row.key == b"\0" * 7 + b"\5x"
    dropping = loaded(spark, node, number, **options, mode="DROPMALFORMED")
    assert dropping.count() == 10
    with pytest.raises(
        Exception, match=r"the value of key 0x000000000000000a is no json of struct<.*: 0x7b6f"
    ):
        loaded(spark, node, number, **options, mode="failfast", start="10").count()


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_number_that_its_type_can_not_hold_is_not_cut(
    spark: Any, node: str, number: int, form: str
) -> None:
    write = msgpack.packb if form == "msgpack" else formats.json_bytes
    with kelek.Table(node, number) as table:
        table.put_many((b"%d" % n, write({"n": it})) for n, it in enumerate((1, 1.5, 2.999)))
    options = {"valueFormat": form, "valueSchema": "n INT"}
    found = loaded(spark, node, number, **options).orderBy("key").select("value.n").collect()
    assert [row.n for row in found] == [1, None, None]
    with pytest.raises(
        Exception, match=f"the value of key 0x31 is no {form} of struct<n: int32>: 0x"
    ):
        loaded(spark, node, number, **options, mode="FAILFAST").collect()
    with pytest.raises(Exception, match=f"column value is map<int,string>: {form} has maps with"):
        loaded(spark, node, number, **options | {"valueSchema": "MAP<INT, STRING>"}).collect()


def test_errors_are_reported_before_anything_runs(spark: Any, node: str, filled: int) -> None:
    for options, words in (
        ({"table": 499}, "there is no table 499 at tcp"),
        (
            {"pushdown": "true"},
            "unknown option 'pushdown': it was removed, .* where.. stays right .* start, end",
        ),
        ({"stale": "true"}, "'stale': it was removed, .* a query reads one snapshot"),
        ({"snapshot": "task"}, "option snapshot is query or frame, not 'task'"),
        ({"rowlimt": 1}, "unknown option 'rowlimt'; did you mean rowLimit"),
        ({"valueFormat": "json"}, "option valueSchema is missing"),
        ({"valueSchema": "n INT"}, "option valueSchema goes with valueFormat json or msgpack"),
        ({"prefix": "a", "start": "b"}, "option prefix goes without start and end"),
        ({"mode": "failfast", "corruptColumn": "x"}, "option corruptColumn goes with mode PERM"),
        ({"corruptColumn": "key"}, "option corruptColumn is another name than key"),
        ({"keys": "a,b"}, "option keys is a list in JSON, like"),
        ({"keys": '[""]'}, "option keys: a key has 1 to 65536 bytes, not 0"),
        ({"keyFormat": "be64", "start": "x"}, "option start is a whole number from 0 on"),
        (
            {"urls": "tcp://127.0.0.1:1", "timeoutMs": 200},
            r"0\.2 s; .*\(options urls and timeoutMs\)",
        ),
    ):
        with pytest.raises(Exception, match=words):
            loaded(spark, node, filled, **options).rdd.getNumPartitions()
    reader = spark.read.format("kelek").options(kind="table", urls=node, table=filled)
    with pytest.raises(Exception, match="the columns of this table are key, value, not key, x"):
        reader.schema("key BINARY, x BINARY").load().rdd.getNumPartitions()


def snapshots(url: str) -> dict[bytes, Any]:
    """Those that tasks have noted."""
    from kelek.pipeline.table.snapshot import NOTES, noted

    with kelek.Table(url, NOTES) as notes:
        return {key: noted(note) for key, note in notes.scan()}


def test_a_snapshot_that_is_gone_is_an_error(spark: Any, node: str, filled: int) -> None:
    """Of another one rows might differ from those that other tasks have read."""
    from kelek.pipeline.table.kind import KIND

    schema = loaded(spark, node, filled).schema
    for number, words in (
        (filled, "is gone, as no task read it for longer .*; load the table again"),
        (900, "is gone, as its server ended or no task read it for long"),
    ):
        with kelek.Table(node, number) as table:
            table.put(b"k", b"v")
            given = {"urls": node, "table": str(number), "local": "off"}
            reader: Any = KIND.reader(given, schema)
            [one] = reader.partitions()
            before = snapshots(node)
            assert list(reader.read(one))
            [key] = snapshots(node).keys() - before.keys()
            table.release(snapshots(node)[key].lease)
            with pytest.raises(Exception, match=words):
                list(reader.read(one))
            table.delete(b"k")


def test_nodes_that_can_not_share_a_snapshot_leave_it_to_one(
    spark: Any, node: str, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kelek.pipeline.table.kind import KIND

    def refuse(table: kelek.Table) -> None:
        raise kelek.TableRefused(1, "192 leases are shared by the nodes already")

    schema = loaded(spark, node, filled).schema
    taken = []
    for _ in range(2):
        reader: Any = KIND.reader({"urls": node, "table": str(filled), "partitions": "3"}, schema)
        before = snapshots(node)
        found = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert sum(batch.num_rows for batch in found) == len(ROWS)
        [key] = snapshots(node).keys() - before.keys()
        taken.append(snapshots(node)[key])
        monkeypatch.setattr(kelek.Table, "open_snapshot", refuse)
    assert [(one.url, one.lease > 2**63) for one in taken] == [("", True), (node, False)]


def test_a_task_here_opens_the_snapshot_itself(spark: Any, node: str, filled: int) -> None:
    from kelek.pipeline.table.kind import KIND

    schema = loaded(spark, node, filled).schema
    begun = []
    for how in ({}, {"local": "off"}, {"local": "off", "framing": "text"}):
        given = {"urls": node, "table": str(filled), "partitions": "3", **how}
        reader: Any = KIND.reader(given, schema)
        parts = reader.partitions()
        list(reader.read(parts[0]))  # It takes the snapshot.
        with kelek.Table(node, filled) as table:
            before = {job["apid"] for job in table.jobs(limit=1000)}
            for part in parts:
                list(reader.read(part))  # An attempt that is made again reads all of its part.
            attempts = [batch for part in parts for batch in reader.read(part)]
            begun.append(len({job["apid"] for job in table.jobs(limit=1000)} - before))
        rows = [tuple(row.values()) for batch in attempts for row in batch.to_pylist()]
        assert rows == ROWS, how
    many = 2 * len(parts)
    assert begun == [0, many, many], "over the wire each attempt has an APID of its own"


def test_servers_of_another_kind_are_read_in_the_texts_form(tmp_path: Any, spark: Any) -> None:
    from kelek.tests.clients.table.table_servers import TableServers

    cluster = TableServers(tmp_path, features=7)
    try:
        with kelek.Table(cluster.urls, 3) as table:
            table.put_many(ROWS[:3000])
        found = loaded(spark, ",".join(cluster.urls), 3, batchRows=100)
        assert sorted(map(tuple, found.collect())) == ROWS[:3000]
    finally:
        cluster.close()


# ---- as of a kept snapshot ----


def as_of(spark: Any, url: str, number: int, **options: Any) -> list[tuple[bytes, ...]]:
    return sorted(map(tuple, loaded(spark, url, number, **options).collect()))


@pytest.mark.parametrize("local", ["auto", "off"])
def test_a_kept_snapshot_is_read(spark: Any, node: str, number: int, local: str) -> None:
    rows = [(b"%04d" % n, b"old") for n in range(2000)]
    with kelek.Table(node, number) as table:
        table.put_many(rows)
        first = table.keep_snapshot()
        table.put_many((key, b"new") for key, _ in rows[:1000])
        second = table.keep_snapshot()
        table.truncate()
        for kept, count_ in ((first, 0), (second, 1000)):
            expected = [(key, b"new") for key, _ in rows[:count_]] + rows[count_:]
            when = {"asOfTimestamp": kept.taken.isoformat()}
            for options in ({"asOfIndex": kept.index}, when):
                frame = loaded(spark, node, number, local=local, partitions=3, **options)
                assert sorted(map(tuple, frame.collect())) == expected
        listed = as_of(spark, node, number, asOfIndex=first.index, keys='["0007", "x"]')
        assert listed == [rows[7]]
        part = as_of(spark, node, number, asOfIndex=first.index, prefix="001", columns="key")
        assert part == [(key,) for key, _ in rows[10:20]]
        frame = loaded(spark, node, number, asOfIndex=first.index, local=local)
        assert len(frame.take(1)) == 1
        table.release_snapshot(first.index)
        with pytest.raises(Exception, match=r"the kept snapshot of table .* is gone: it was rel"):
            frame.count()
        with pytest.raises(Exception, match=f"has index {first.index}; these are kept: "):
            as_of(spark, node, number, asOfIndex=first.index)
        with pytest.raises(Exception, match="was taken at 2001-01-01T00:00:00"):
            as_of(spark, node, number, asOfTimestamp="2001-01-01T00:00:00Z")
        table.release_snapshot(second.index)
