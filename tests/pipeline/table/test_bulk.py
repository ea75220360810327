"""Bulk loads by Spark: all rows or none, and none twice, also when tasks are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.tests.conftest import ROOT
from kelek.tests.pipeline.table.test_write import content, given
from kelek.tests.waiting import wait_until

pytest.importorskip("pyspark")
FORMS = {"keyFormat": "be64", "valueFormat": "utf8", "bulk": "on"}


def expected(count: int, value: str = "{}") -> list[tuple[bytes, bytes]]:
    return [(n.to_bytes(8, "big"), value.format(n).encode()) for n in range(count)]


def test_an_empty_table_is_filled_and_replaced(spark: Any, node: str, number: int) -> None:
    options = given(node, number, **FORMS)
    rows = spark.range(0, 5000, 1, 3).selectExpr("4999 - id AS key", "string(4999 - id) AS value")
    rows.write.format("kelek").mode("append").options(**options).save()
    assert content(node, number) == expected(5000)
    with pytest.raises(Exception, match=r"has rows: option bulk fills an empty table, or replaces"):
        rows.write.format("kelek").mode("append").options(**options).save()
    few = spark.range(10).selectExpr("id AS key", "concat('new ', id) AS value")
    few.write.format("kelek").mode("overwrite").options(**options).save()
    assert content(node, number) == expected(10, "new {}")
    few.where("key < 0").write.format("kelek").mode("overwrite").options(**options).save()
    assert content(node, number) == []


@pytest.mark.parametrize("tries", [1, 4])
def test_a_task_is_killed_while_it_sends(
    spark: Any, node: str, number: int, tmp_path: Path, tries: int
) -> None:
    """Spark tries a task four times. The rows of its first try differ, and must not count."""
    (tmp_path / "kills").mkdir()
    for place in range(tries):
        (tmp_path / "kills" / str(place)).touch()
    folder = str(tmp_path / "kills")

    def once(batches: Any) -> Any:  # Pickled as it stands here: workers know no tests.
        import os
        import signal

        import pyarrow

        left = sorted(os.listdir(folder))
        for place, batch in enumerate(batches):
            if left and place == 5:
                os.unlink(os.path.join(folder, left[0]))
                os.kill(os.getpid(), signal.SIGKILL)
            if left:  # Keys that no other try has.
                keys = pyarrow.array([key + 10**6 for key in batch.column(0).to_pylist()])
                batch = pyarrow.RecordBatch.from_arrays([keys, batch.column(1)], batch.schema.names)
            yield batch

    with kelek.Table(node, number) as table:
        table.put_many([(key, b"old") for key, _ in expected(7)])
    rows = spark.range(0, 4000, 1, 1).selectExpr("id AS key", "string(id) AS value")
    options = given(node, number, **FORMS)
    try:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        write = rows.mapInArrow(once, rows.schema).write.format("kelek").mode("overwrite")
        if tries == 1:
            write.options(**options).save()
        else:
            with pytest.raises(Exception, match=r"\w"):
                write.options(**options).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [*Path(folder).iterdir()] == []
    wanted = expected(4000) if tries == 1 else expected(7, "old")
    assert content(node, number) == wanted


def test_a_table_with_columns(spark: Any, node: str, number: int) -> None:
    name = f"bulk_{number}"
    rows = spark.range(500).selectExpr("id % 5 AS part", "id", "id / 4 AS price")
    options = given(node, 0, table=name, keyColumns='["part", "id"]', bulk="on")
    rows.write.format("kelek").mode("append").options(**options).save()
    rows.where("part < 3").write.format("kelek").mode("overwrite").options(**options).save()
    back = spark.read.format("kelek").options(**given(node, 0, table=name)).load()
    assert back.exceptAll(rows.where("part < 3")).count() == 0
    assert back.count() == 300


def test_what_does_not_go_with_it(spark: Any, node: str, number: int, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, "v", True)], "key BIGINT, value STRING, gone BOOLEAN")
    options = given(node, number, **FORMS)
    with pytest.raises(Exception, match="option deleteColumn goes without bulk"):
        frame.write.format("kelek").mode("append").options(**options, deleteColumn="gone").save()
    frame.drop("gone").write.parquet(f"{tmp_path}/rows")
    stream = spark.readStream.schema("key BIGINT, value STRING").parquet(f"{tmp_path}/rows")
    with pytest.raises(Exception, match="option bulk goes with batches"):
        stream.writeStream.format("kelek").options(
            **options, checkpointLocation=f"{tmp_path}/checkpoint"
        ).trigger(availableNow=True).start().awaitTermination(60)
    assert content(node, number) == []


def test_a_row_that_fails_leaves_the_table(spark: Any, node: str, number: int) -> None:
    options = given(node, number, **FORMS)
    rows = spark.range(100).selectExpr("id AS key", "IF(id = 77, NULL, 'v') AS value")
    with pytest.raises(Exception, match="a value can't be written: it is null"):
        rows.write.format("kelek").mode("overwrite").options(**options).save()
    assert content(node, number) == []


DRIVER = """\
import sys
import kelek.pipeline

url, number, started = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "512m"}
spark = kelek.pipeline.session(master="local[2]", config=settings)
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")

def note(batches):
    for place, batch in enumerate(batches):
        if place == 3:
            open(started, "a").close()
        yield batch

rows = spark.range(0, 50_000, 1, 2).selectExpr("id AS key", "'new' AS value")
rows.mapInArrow(note, rows.schema).write.format("kelek").mode("overwrite").options(
    kind="table", urls=url, table=number, keyFormat="be64", valueFormat="utf8", bulk="on",
    rowsPerSecond="500",
).save()
"""


def test_a_driver_is_killed(spark: Any, node: str, number: int, tmp_path: Path) -> None:
    """With its JVM, while the tasks send: the table stays, and the next write is not disturbed."""
    with kelek.Table(node, number) as table:
        table.put_many([(key, b"old") for key, _ in expected(7)])
    started = tmp_path / "started"
    command = [sys.executable, "-c", DRIVER, node, str(number), str(started)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".build")}
    with subprocess.Popen(command, env=env, cwd=tmp_path, start_new_session=True) as driver:
        try:
            wait_until(lambda: started.exists() or driver.poll() is not None, deadline_s=240)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    assert started.exists()
    assert content(node, number) == expected(7, "old")
    rows = spark.range(100).selectExpr("id AS key", "string(id) AS value")
    options = given(node, number, **FORMS)
    rows.write.format("kelek").mode("overwrite").options(**options).save()
    assert content(node, number) == expected(100)
