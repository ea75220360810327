"""A node is lost in the middle of a query that reads its snapshot: Spark notices nothing."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from kelek.bench.ports import free_port
from kelek.protocols.zerodb.wire.values import RANGE_JOB
from kelek.tests.table_cluster import NAMES, TableCluster

ROWS = 24_000
KEYS = [b"%06d" % n for n in range(ROWS)]
VALUE = b"x" * 2000  # More than what Spark and the sockets hold of a task that is paused.
TABLE = 7
PART_ROWS = ROWS // 2
WAIT_S = 200.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[TableCluster]:
    running = TableCluster()
    try:
        with running.table(TABLE) as table:
            table.put_many((key, VALUE) for key in KEYS)
        yield running
    finally:
        running.stop()


def given(nodes: TableCluster) -> dict[str, str]:
    """Read over the wire, although the snapshot lies here."""
    urls = ",".join(nodes.urls.values())
    options = {"partitions": "2", "batchRows": "200", "timeoutMs": "120000", "local": "off"}
    return {"urls": urls, "table": str(TABLE), **options}


def lose_one(nodes: TableCluster) -> tuple[str, int]:
    """Kills a node from which a range is being read; its name, and how many rows it had given."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        for name in NAMES:
            with nodes.table(TABLE, name) as table:
                for job in table.jobs(running=True):
                    if int(job["request_type"]) == RANGE_JOB and int(job["rows"]):
                        nodes.kill(name)
                        return name, int(job["rows"])
    raise AssertionError("no node is read from")


@pytest.mark.spark
def test_an_attempt_reads_on_from_another_node(nodes: TableCluster) -> None:
    types = pytest.importorskip("pyspark.sql.types", reason="kelek[spark] is not installed")
    from kelek.pipeline.table.kind import KIND

    fields = [types.StructField(name, types.BinaryType()) for name in ("key", "value")]
    reader: Any = KIND.reader(given(nodes), types.StructType(fields))
    parts = reader.partitions()
    assert len(parts) == 2
    with nodes.table(TABLE) as table:
        first = reader.read(parts[0])
        found = [next(first) for _ in range(5)]
        table.delete_range(start=b"020000", end=b"020100")
        lost, rows = lose_one(nodes)
        assert 0 < rows < PART_ROWS, "it was lost in the middle"
        found += [*first, *reader.read(parts[1])]
        table.put_many((key, VALUE) for key in KEYS[20_000:20_100])
    assert [key for batch in found for key in batch.column("key").to_pylist()] == KEYS
    nodes.start(lost)


def pausing(port: int) -> Any:
    """What tasks do with their batches: at the first one each tells of it, and waits."""

    def map_(batches: Any) -> Any:
        import socket

        import pyarrow as pa
        from pyspark import TaskContext

        attempt = TaskContext.get().attemptNumber()
        for place, batch in enumerate(batches):
            if place == 0:
                with socket.create_connection(("127.0.0.1", port)) as told:
                    told.recv(1)
            attempts = pa.array([attempt] * batch.num_rows, pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column(0), attempts], ["key", "attempt"])

    return map_


def test_tasks_read_on_from_another_node(spark: Any, nodes: TableCluster) -> None:
    import socket

    frame = spark.read.format("kelek").options(kind="table", **given(nodes)).load()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")  # Told of at once.
    with (
        ThreadPoolExecutor(1) as pool,  # Left last: what fails ends the tasks' connections first.
        socket.create_server(("127.0.0.1", free_port())) as server,
    ):
        told = frame.mapInArrow(pausing(server.getsockname()[1]), "key BINARY, attempt BIGINT")
        query = pool.submit(told.collect)
        server.settimeout(WAIT_S)
        first, _ = server.accept()
        with first:
            _, rows = lose_one(nodes)
        server.settimeout(0.2)
        while not query.done():
            with suppress(TimeoutError):
                server.accept()[0].close()
        found = query.result()
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert 0 < rows < PART_ROWS, "it was lost in the middle"
    assert sorted(bytes(row.key) for row in found) == KEYS
    assert {row.attempt for row in found} == {0}, "no task was run again"
