"""Tables read as Spark's driver and tasks do, without a JVM."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.pipeline.errors import PipelineError
from kelek.protocols.zerodb.values import FEATURE_TABLE_INFO
from kelek.tests.clients.table_world import Cluster

types = pytest.importorskip("pyspark.sql.types")
pa = pytest.importorskip("pyarrow")
local_read = pytest.importorskip("kelek.pipeline.local_read")
table_errors = pytest.importorskip("kelek.pipeline.table_errors")
table_kind = pytest.importorskip("kelek.pipeline.table_kind")
table_read = pytest.importorskip("kelek.pipeline.table_read")

SCHEMA = types.StructType().add("key", types.BinaryType()).add("value", types.BinaryType())
ROWS = [(b"%04d" % n, b"value %d" % n) for n in range(20)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    with kelek.Table(made.urls, 3) as table:
        table.put_many(ROWS)
    yield made
    made.close()


def reader_of(urls: list[str], **options: Any) -> Any:
    given = {"urls": ",".join(urls), "table": 3, **options}
    return table_kind.KIND.reader({name: str(value) for name, value in given.items()}, SCHEMA)


def rows_of(reader: Any, part: Any) -> list[tuple[bytes, bytes]]:
    return [tuple(row.values()) for batch in reader.read(part) for row in batch.to_pylist()]


def test_listed_keys_are_of_a_table_that_is_there(cluster: Cluster) -> None:
    """Of another one it is said in the driver, as of a range: reading would make one up."""
    listed = {"keys": '["0007", "x", "0003"]'}
    reader = reader_of(cluster.urls, **listed)
    [part] = reader.partitions()
    assert sorted(rows_of(reader, part)) == [ROWS[3], ROWS[7]]
    for options in (listed, {}):
        with pytest.raises(PipelineError, match=r"there is no table 4 at .*option table names it"):
            reader_of(cluster.urls, **{**options, "table": 4}).partitions()
    assert 4 not in cluster.world.tables


@pytest.mark.parametrize("options", [{"keys": '["0007"]'}, {}])
def test_nobody_there_is_said_with_the_way_out(
    cluster: Cluster, tmp_path: Path, options: dict[str, str]
) -> None:
    """In the driver; and in a task, when it is the task that finds out."""
    words = r"for 50 ms; is one of .* \(option urls\)"
    with pytest.raises(table_errors.TableUnreachable, match=words):
        reader_of([f"ipc://{tmp_path}/none"], timeoutMs=50, **options).partitions()
    for server in cluster.servers:
        server.features &= ~FEATURE_TABLE_INFO  # These ones know no sizes.
    reader = reader_of(cluster.urls, **options)
    [part] = reader.partitions()
    reader.options = reader.options._replace(timeout_ms=50)
    for server in cluster.servers:
        server.silent = True
    with pytest.raises(table_errors.TableUnreachable, match=words):
        rows_of(reader, part)


# ---- a snapshot that lies here, and is not read to its end ----

KEY_BYTES_MAX = 65_536
LONG = [
    (b"a", b"first"),
    (b"b".ljust(KEY_BYTES_MAX, b"\0"), b"long"),
    (b"c", b"short"),
    (b"\xff" * KEY_BYTES_MAX, b"last"),
]


@pytest.fixture
def lying(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> "Lying":
    made = Lying(cluster)
    monkeypatch.setattr(local_read, "open_place", lambda place: made)
    monkeypatch.setattr(local_read, "batches", lambda tables, asked: made.batches())
    return made


class Lying:
    """Stands for the snapshot: it gives some rows, one in a batch, and can't be read further."""

    def __init__(self, cluster: Cluster) -> None:
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
        self.jobs_before = len(self.cluster.world.jobs)
        return rows_of(reader, part)

    @property
    def asked(self) -> bytes | None:
        """The first key that was asked for over the wire; None: it was not asked."""
        world = self.cluster.world
        start: bytes = world.job_request.start
        return start if len(world.jobs) > self.jobs_before else None


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


def test_the_wire_goes_on_where_a_renewal_is_refused(
    lying: Lying, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(table: kelek.Table, lease: int) -> None:
        raise kelek.TableRefused(1, "there is no such lease")

    monkeypatch.setattr(table_read, "RENEW_S", -1.0)
    monkeypatch.setattr(kelek.Table, "renew", refuse)
    lying.sound = 3
    assert lying.read() == LONG
    assert (lying.asked, lying.given, lying.is_open) == (b"a\0", 1, False)
