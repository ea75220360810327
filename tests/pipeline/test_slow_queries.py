"""Queries that take longer than a snapshot is kept which nothing reads."""

from collections.abc import Iterator
from typing import Any

import pytest

import kelek
from kelek.tests.pipeline.conftest import TOPOLOGY, running

IDLE_S = 3
SLOW_S = 2 * IDLE_S  # A snapshot that nothing renews lives one and a half times job_idle_s.
TABLE, LOCAL, ROWS = 7, 907, 600
VIEW = "CREATE OR REPLACE TEMP VIEW slow USING kelek OPTIONS (kind 'table', urls '{}', table '7')"


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The url of a node that ends snapshots soon."""
    topology = TOPOLOGY.replace("zerodb: {local", f"zerodb: {{job_idle_s: {IDLE_S}, local")
    assert topology != TOPOLOGY
    with running(tmp_path_factory.mktemp("hasty"), topology) as shell:
        url = f"tcp://{shell.addresses['127.0.0.1:7100']}"
        for number in (TABLE, LOCAL):
            with kelek.Table(url, number) as table:
                table.put_many((b"%06d" % n, b"x") for n in range(ROWS))
        yield url


def pausing(seconds: float) -> Any:
    """What a stage ends with: both cores' tasks wait, long after they have read their parts."""

    def map_(batches: Any) -> Any:
        import threading

        from pyspark import TaskContext

        for batch in batches:
            if TaskContext.get().partitionId() < 2:
                threading.Event().wait(seconds)
            yield batch

    return map_


def counted(spark: Any) -> int:
    found: int = spark.sql("SELECT count(*) FROM slow").first()[0]
    return found


def test_a_slow_query_keeps_its_snapshot_and_views_see_new_rows(spark: Any, hasty: str) -> None:
    """The third part is read by a task that begins when the first two have paused; the view's own
    snapshot is gone by then."""
    spark.sql(VIEW.format(hasty))
    assert counted(spark) == ROWS
    options = {"kind": "table", "urls": hasty, "partitions": 3}
    frame = spark.read.format("kelek").options(**options, table=TABLE).load()
    local = spark.read.format("kelek").options(**options, table=LOCAL).load()
    assert local.count() == frame.count() == ROWS
    assert frame.mapInArrow(pausing(SLOW_S), frame.schema).count() == ROWS
    assert counted(spark) == local.count() == frame.count() == ROWS
    spark.sql("INSERT INTO slow VALUES (X'61', X'31')")
    assert counted(spark) == ROWS + 1
    with kelek.Table(hasty, TABLE) as table:
        table.delete(b"a")
    spark.catalog.refreshTable("slow")
    assert counted(spark) == ROWS


def test_a_stage_of_others_between_two_readings(spark: Any, hasty: str) -> None:
    """Nothing reads the table meanwhile: the driver renews the snapshot of a query that runs."""
    frame = (
        spark.read.format("kelek")
        .options(kind="table", urls=hasty, table=LOCAL, partitions=2)
        .load()
    )
    first = (
        frame.selectExpr("min(key) AS least")
        .coalesce(1)
        .mapInArrow(pausing(SLOW_S), "least BINARY")
    )
    first.createOrReplaceTempView("first")
    frame.createOrReplaceTempView("frame")
    found = spark.sql("SELECT count(*) FROM frame WHERE key > (SELECT min(least) FROM first)")
    assert found.first()[0] == ROWS - 1
