"""Tables read as Spark's driver and tasks do, without a JVM."""

import gc
import json
import pickle
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any
from unittest.mock import Mock

import msgpack
import pytest

import kelek
from kelek.bench.ports import free_port
from kelek.net.access.keys import load_key
from kelek.pipeline.errors import PipelineError
from kelek.protocols.access.certificates import encode_key
from kelek.protocols.zerodb.wire import requests
from kelek.protocols.zerodb.wire.values import FEATURE_TABLE_INFO
from kelek.tests.clients.curve_gate import CurveGate, new_key, write_key
from kelek.tests.clients.table.table_servers import FEATURES, TableServers

types = pytest.importorskip("pyspark.sql.types")
pa = pytest.importorskip("pyarrow")
local_read = pytest.importorskip("kelek.pipeline.table.local_read")
table_connection = pytest.importorskip("kelek.pipeline.table.connection")
table_errors = pytest.importorskip("kelek.pipeline.errors")
table_kind = pytest.importorskip("kelek.pipeline.table.kind")
driver_renewal = pytest.importorskip("kelek.pipeline.table.driver_renewal")
table_snapshot = pytest.importorskip("kelek.pipeline.table.snapshot")

SCHEMA = types.StructType().add("key", types.BinaryType()).add("value", types.BinaryType())
ROWS = [(b"%04d" % n, b"value %d" % n) for n in range(20)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TableServers]:
    made = TableServers(tmp_path)
    with kelek.Table(made.urls, 3) as table:
        table.put_many(ROWS)
    yield made
    made.close()


def reader_of(urls: list[str], **options: Any) -> Any:
    given = {"urls": ",".join(urls), "table": 3, **options}
    return table_kind.KIND.reader({name: str(value) for name, value in given.items()}, SCHEMA)


def rows_of(reader: Any, part: Any) -> list[tuple[bytes, bytes]]:
    return [tuple(row.values()) for batch in reader.read(part) for row in batch.to_pylist()]


def test_listed_keys_are_of_a_table_that_is_there(cluster: TableServers) -> None:
    """Of another one it is said in the driver, as of a range: reading would make one up."""
    listed = {"keys": '["0007", "x", "0003"]'}
    reader = reader_of(cluster.urls, **listed)
    [part] = reader.partitions()
    assert sorted(rows_of(reader, part)) == [ROWS[3], ROWS[7]]
    for options in (listed, {}):
        with pytest.raises(PipelineError, match=r"there is no table 4 at .*option table names it"):
            reader_of(cluster.urls, **{**options, "table": 4}).partitions()
    assert 4 not in cluster.store.tables


@pytest.mark.parametrize("options", [{"keys": '["0007"]'}, {}])
def test_an_unreachable_server_is_reported_with_the_way_out(
    cluster: TableServers, tmp_path: Path, options: dict[str, str]
) -> None:
    """In the driver; and in a task, when it is the task that finds out."""
    words = r"within 0\.05 s; .*\(options urls and timeoutMs\)"
    with pytest.raises(table_errors.TableUnreachable, match=words):
        reader_of([f"ipc://{tmp_path}/none"], timeoutMs=50, **options).partitions()
    for server in cluster.servers:
        server.features &= ~FEATURE_TABLE_INFO  # These ones know no sizes.
    reader = reader_of(cluster.urls, **options)
    [part] = reader.partitions()
    reader.options = replace(reader.options, timeout_ms=50)
    for server in cluster.servers:
        server.silent = True
    with pytest.raises(table_errors.TableUnreachable, match=words):
        rows_of(reader, part)


def test_a_process_keeps_connections_between_requests(cluster: TableServers) -> None:
    """For another table, too; a name is looked up each time. After an error it makes a new one."""
    options = reader_of(cluster.urls).options
    with table_connection.kept_connections():
        with table_connection.open_table(options) as first:
            assert first.get(b"0001") == b"value 1"
        with table_connection.open_table(replace(options, table="named")) as named:
            assert named is first
            assert named.locate() is None
            with kelek.Table(cluster.urls, "named") as other:
                other.put(b"a", b"b")
        with table_connection.open_table(replace(options, table="named")) as again:
            assert again is first
            assert again.get(b"a") == b"b"
            with table_connection.open_table(options) as second:
                assert second is not first
        with (
            pytest.raises(ValueError, match="a query"),
            table_connection.open_table(options) as bad,
        ):
            raise ValueError("a query failed")
        for _ in range(2):
            with table_connection.open_table(options) as left:
                assert left is not bad
        with table_connection.open_table(replace(options, timeout_ms=7)) as timed:
            assert timed is not left
            assert timed.timeout_ms == 7
    with table_connection.open_table(options) as alone:
        assert alone not in (first, second)
    for closed in (first, second, timed, alone):
        with pytest.raises(kelek.TableError, match="closed"):
            closed.get(b"0001")


# ---- a snapshot that lies here, and is not read to its end ----

KEY_BYTES_MAX = 65_536
LONG = [
    (b"a", b"first"),
    (b"b".ljust(KEY_BYTES_MAX, b"\0"), b"long"),
    (b"c", b"short"),
    (b"\xff" * KEY_BYTES_MAX, b"last"),
]


@pytest.fixture
def lying(cluster: TableServers, monkeypatch: pytest.MonkeyPatch) -> "Lying":
    made = Lying(cluster)
    monkeypatch.setattr(local_read, "open_local", lambda place: made)
    monkeypatch.setattr(local_read, "batches", lambda tables, asked: made.batches())
    return made


class Lying:
    """Stands for the snapshot: it gives some rows, one in a batch, and can't be read further."""

    def __init__(self, cluster: TableServers) -> None:
        self.cluster = cluster
        self.given = self.sound = 0  # So many rows, of those that can be read.
        self.is_open = True
        with kelek.Table(cluster.urls, 5) as table:
            table.put_many(LONG)
        for server in cluster.servers:
            server.features &= ~FEATURE_TABLE_INFO

    def batches(self) -> Iterator[Any]:
        for key, value in LONG[: self.sound]:
            self.given += 1
            yield pa.RecordBatch.from_pylist([{"key": key, "value": value}])
        raise local_read.EndedEarly("a block is damaged")

    def close(self) -> None:
        self.is_open = False

    def read(self) -> list[tuple[bytes, bytes]]:
        reader = reader_of(self.cluster.urls, table=5)
        [part] = reader.partitions()
        return rows_of(reader, part)

    @property
    def asked(self) -> bytes | None:
        """The first key that was asked for over the wire; None: it was not asked."""
        request = self.cluster.store.job_request
        start: bytes = request.start
        return start if request.extension.lease else None  # Else it took the snapshot.


@pytest.mark.parametrize(
    ("sound", "start"),
    [
        (0, b""),
        (1, b"a\0"),
        (2, b"b".ljust(KEY_BYTES_MAX - 1, b"\0") + b"\1"),
        (3, b"c\0"),
        (4, None),
    ],
)
def test_the_wire_goes_on_behind_the_last_sound_row(
    lying: Lying, sound: int, start: bytes | None
) -> None:
    lying.sound = sound
    assert lying.read() == LONG
    assert (lying.asked, lying.given, lying.is_open) == (start, sound, False)


# ---- a snapshot that is kept ----


@pytest.fixture
def plain(cluster: TableServers) -> TableServers:
    """One whose servers know no sizes."""
    for server in cluster.servers:
        server.features &= ~FEATURE_TABLE_INFO
    return cluster


def test_a_snapshot_is_renewed_while_its_task_waits(
    plain: TableServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a node refuses that: another one may have it, and the read itself finds out."""
    renewed: Queue[int] = Queue()
    answers = iter([kelek.TableRefused(1, "there is no such lease"), None, None])

    def renew(table: kelek.Table, lease: int) -> None:
        renewed.put(lease)
        if (error := next(answers, None)) is not None:
            raise error

    monkeypatch.setattr(table_snapshot, "RENEW_S", 0.01)
    monkeypatch.setattr(kelek.Table, "renew", renew)
    reader = reader_of(plain.urls, batchRows=3)
    [part] = reader.partitions()
    batches = reader.read(part)
    rows = next(batches).num_rows
    assert [renewed.get(timeout=20) for _ in range(4)] == [9] * 4
    [thread] = [one for one in threading.enumerate() if one.name == "kelek-renewal"]
    assert rows + sum(batch.num_rows for batch in batches) == len(ROWS)
    thread.join(20)
    assert not thread.is_alive(), "nothing reads it any more"


class FakeDriver:
    """Stands for a driver's session: which of its queries run."""

    def __init__(self) -> None:
        self.running = {0: True, 1: True, 2: False}  # By number.
        self.sparkContext = Mock(_jsc=object())
        self.conf = Mock(get=str)
        store = Mock(execution=self.execution)
        self._jsparkSession = Mock(**{"sharedState.return_value": Mock(statusStore=lambda: store)})

    def execution(self, number: int) -> Any:
        ended = Mock(isDefined=lambda: not self.running[number])
        return Mock(
            isDefined=lambda: number in self.running, get=lambda: Mock(completionTime=lambda: ended)
        )


def test_a_driver_renews_the_snapshots_of_its_running_queries(
    plain: TableServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: Queue[int] = Queue()
    monkeypatch.setattr(driver_renewal, "RENEW_S", 0.01)
    monkeypatch.setattr(kelek.Table, "renew", lambda table, lease: renewed.put(lease))
    spark, url = FakeDriver(), plain.urls[0]
    driver = table_snapshot.driver_prefix(table_snapshot.DRIVER)

    def note(number: int) -> None:
        with kelek.Table(plain.urls, table_snapshot.NOTES) as notes:
            taken = table_snapshot.TAKEN + msgpack.packb((url, 50 + number, "", b""))
            key = driver + table_snapshot.execution_key(number)
            others = (table_snapshot.TAKING, b"=junk", taken[:-1], b"")
            notes.put_many([(key + b"x", taken), *((key + note[:3], note) for note in others)])

    note(1)
    note(2)
    renewal = driver_renewal.DriverRenewal(spark)
    monkeypatch.setenv(table_snapshot.FOLDER, renewal.folder)
    reader_of(plain.urls).partitions()  # By this it hears of the urls.
    assert [renewed.get(timeout=20) for _ in range(3)] == [51] * 3
    note(3)  # It begins before Spark lists it, ...
    while renewed.get(timeout=20) != 53:
        pass
    spark.running |= {1: False, 3: True}
    note(0)  # ... and what had begun before may read the table later.
    while renewed.get(timeout=20) != 50:
        pass
    spark.running[3] = False
    while renewed.get(timeout=20) != 50 or renewed.get(timeout=20) != 50:
        pass
    spark.sparkContext._jsc = None
    renewal.thread.join(20)
    assert not renewal.alive


# ---- one snapshot for all tasks ----


def test_the_first_task_takes_the_snapshot_and_others_wait_for_it(plain: TableServers) -> None:
    """At once: one of them takes it, and all read that one."""
    reader = reader_of(plain.urls, partitions=1)
    [part] = reader.partitions()
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: rows_of(reader, part), range(6)))
    assert found == [ROWS] * 6
    taken = [
        one
        for server in plain.servers
        for one in server.requests
        if isinstance(one, requests.RangeJob) and not one.extension.lease
    ]
    assert len(taken) == 1


def test_the_next_task_tries_when_a_snapshot_fails(
    plain: TableServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(plain.urls)
    [part] = reader.partitions()
    with monkeypatch.context() as patch:
        patch.setattr(kelek.Table, "range_job", Mock(side_effect=kelek.TableRefused(1, "full")))
        with pytest.raises(kelek.TableRefused, match="full"):
            rows_of(reader, part)
    assert rows_of(reader, part) == ROWS


def test_a_frame_with_an_expired_note_uses_no_other_snapshot(plain: TableServers) -> None:
    """What it gives then might differ from what Spark has kept of it."""
    reader = reader_of(plain.urls)
    [part] = reader.partitions()
    part.planned_s -= table_snapshot.NOTE_S
    with pytest.raises(PipelineError, match=r"is gone, .*; load the table again"):
        rows_of(reader, part)


def test_modules_are_no_garbage_in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of Spark keeps what it has imported, once; another process is left alone."""
    pytest.importorskip("pyspark", reason="the extra kelek[spark] is not installed")
    from kelek.pipeline.table import read as table_read

    gc.unfreeze()
    table_read.keep_modules()
    assert gc.get_freeze_count() == 0
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: object())
    try:
        table_read.keep_modules()
        kept = gc.get_freeze_count()
        assert kept > 10_000
        more = [[number] for number in range(100)]
        table_read.keep_modules()
        assert gc.get_freeze_count() == kept
        assert len(more) == 100
    finally:
        gc.unfreeze()


# ---- keys ----


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Options of a table whose server has CURVE."""
    gate, key = CurveGate(), new_key("spark")
    gate.allow(key)
    url = f"tcp://127.0.0.1:{free_port()}"
    path = str(write_key(tmp_path, key))
    features = FEATURES & ~FEATURE_TABLE_INFO
    with closing(TableServers(tmp_path, features, [url], gate)):
        with kelek.Table(url, 3, key=path, server_keys=gate.public_key) as table:
            table.put_many(ROWS)
        server_keys = json.dumps({url: gate.public_key})
        yield {"urls": url, "keyFile": path, "serverKeys": server_keys, "table": "3"}


def test_a_table_with_keys_is_read_and_plans_hold_no_secret(secured: dict[str, str]) -> None:
    reader = table_kind.KIND.reader(secured, SCHEMA)
    parts = reader.partitions()
    planned = pickle.dumps((reader, parts))
    secret = load_key(secured["keyFile"]).secret_key
    assert secret not in planned
    assert encode_key(secret).encode() not in planned
    reader, parts = pickle.loads(planned)
    assert sorted(row for part in parts for row in rows_of(reader, part)) == ROWS


def test_a_driver_renews_snapshots_with_its_keys(
    secured: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the key of another table's query is gone."""
    renewed: Queue[int] = Queue()
    monkeypatch.setattr(driver_renewal, "RENEW_S", 0.01)
    monkeypatch.setattr(kelek.Table, "renew", lambda table, lease: renewed.put(lease))
    spark = FakeDriver()
    renewal = driver_renewal.DriverRenewal(spark)
    monkeypatch.setenv(table_snapshot.FOLDER, renewal.folder)
    gone = Path(shutil.copy(secured["keyFile"], tmp_path / "gone.key_secret"))
    table_kind.KIND.reader({**secured, "keyFile": str(gone)}, SCHEMA).partitions()
    gone.unlink()
    reader = table_kind.KIND.reader(secured, SCHEMA)
    reader.partitions()
    keys: dict[str, Any] = reader.options.client_keys
    with kelek.Table(secured["urls"], table_snapshot.NOTES, **keys) as notes:
        driver = table_snapshot.driver_prefix(table_snapshot.DRIVER)
        taken = table_snapshot.TAKEN + msgpack.packb((secured["urls"], 51, "", b""))
        notes.put(driver + table_snapshot.execution_key(1) + b"x", taken)
    assert [renewed.get(timeout=20) for _ in range(3)] == [51] * 3
    spark.sparkContext._jsc = None
    renewal.thread.join(20)


def test_keys_that_cannot_be_used_end_the_plan(secured: dict[str, str]) -> None:
    def problem(**changed: str) -> str:
        with pytest.raises(PipelineError) as error:
            table_kind.KIND.reader({**secured, **changed}, SCHEMA).partitions()
        return str(error.value)

    assert "serverKeys is a public key of 40 characters" in problem(serverKeys="short")
    assert "serverKeys is a public key of 40 characters" in problem(serverKeys='{"tcp://h:1": 1}')
    assert "keyFile is the path of a file, not ''" in problem(keyFile="")
    assert "No such file" in problem(keyFile="spark.key_secret")
    assert "No such file" in problem(keyFile="/none/spark.key_secret")
    assert "no key of this server is known" in problem(serverKeys="{}")
    assert "unknown option 'key': a secret does not belong" in problem(key="secret")


# ---- as of a kept snapshot ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"asOfIndex": 5, "asOfTimestamp": "2026-11-28T18:00Z"}, "are both given"),
        ({"asOfTimestamp": "2026-11-28T18:00"}, "a time with its zone"),
        ({"asOfIndex": "may"}, "a whole number from 1"),
        ({"asOfIndex": 5, "framing": "text"}, "framing text goes without asOfIndex"),
    ],
)
def test_options_that_name_no_kept_snapshot(
    cluster: TableServers, options: dict[str, object], words: str
) -> None:
    with pytest.raises(PipelineError, match=words):
        reader_of(cluster.urls, **options)


def test_what_is_not_kept_is_told_in_the_driver(cluster: TableServers) -> None:
    words = r"has index 5; none is kept: .* \(options asOfIndex and asOfTimestamp\)"
    with pytest.raises(PipelineError, match=words):
        reader_of(cluster.urls, asOfIndex=5).partitions()
