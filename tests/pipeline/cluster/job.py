"""What the trials run on the Spark cluster: `spark-submit job.py GATE LOGS RUN STEP...`.

GATE is the address of gate.py, LOGS are the urls of the log, RUN ends the names of tables, streams
and checkpoints. Tasks of `STEP:PLACE` wait at this place of the gate. A step ends with a line
`done STEP JSON`. The job runs where kelek is installed and its tests are not.
"""

import hashlib
import json
import sys
from typing import Any

ROWS, PARTS = 20_000, 4
MERGED, ADDED, DELETED = 4_000, 1_000, 3_000
BATCHES_BEFORE = 1  # A task waits at the gate when it has handed so many batches on.
CATALOGUE = "spark.sql.catalog.kelek"
KEPT_S = 7200.0
RECORDS, TRIGGER, PART = 6_000, 2_000, 1_000


class Steps:
    """Each method is a step."""

    def __init__(self, spark: Any, gate: str, logs: str, run: str) -> None:
        self.spark, self.gate, self.run = spark, gate, run
        self.place = ""
        self.table = f"orders{run}"
        options = {it: spark.conf.get(f"{CATALOGUE}.{it}") for it in ("urls", "keyFile")}
        self.options = {**options, "serverKeys": spark.conf.get(f"{CATALOGUE}.serverKeys")}
        self.log = {**self.options, "kind": "log", "urls": logs, "cluster": "orders"}

    def held(self, frame: Any) -> Any:
        """The same rows; each task waits at the gate in its middle."""
        (host, _, port), place = self.gate.partition(":"), self.place
        if not place:
            return frame

        def pass_on(batches: Any) -> Any:
            import socket

            from pyspark import TaskContext

            task = TaskContext.get()
            for number, batch in enumerate(batches):
                if number == BATCHES_BEFORE:
                    with socket.create_connection((host, int(port)), 30) as waits:
                        waits.settimeout(600)
                        words = f"{place} {task.partitionId()} {task.attemptNumber()}\n"
                        waits.sendall(words.encode())
                        if not waits.recv(1):
                            raise ConnectionError("the gate has ended")
                yield batch

        return frame.mapInArrow(pass_on, frame.schema)

    def range(self, start: int, end: int, name: str) -> Any:
        rows = self.spark.range(start, end, 1, PARTS)
        return rows.selectExpr("id", f"concat('{name} ', id) AS name", "CAST(7 AS INT) AS price")

    def create(self) -> None:
        columns = "id BIGINT, name STRING, price INT, PRIMARY KEY (id)"
        self.spark.sql(f"CREATE TABLE IF NOT EXISTS kelek.{self.table} ({columns})")

    def write(self) -> None:
        self.held(self.range(0, ROWS, "name")).writeTo(f"kelek.{self.table}").append()

    def keep(self) -> None:
        """Keeps the rows as they are now."""
        import kelek

        urls, keys = self.options["urls"].split(","), json.loads(self.options["serverKeys"])
        key = self.options["keyFile"]
        with kelek.Table(urls, self.table, key=key, server_keys=keys) as table:
            table.keep_snapshot(name=f"kept{self.run}", ttl_s=KEPT_S)

    def scan_kept(self) -> list[object]:
        """As scan(), of the rows that were kept."""
        return self.scan(versionAsOf=f"kept{self.run}")

    def scan(self, **options: str) -> list[object]:
        """Of all rows behind a pushed filter: how many, and a digest of them in order."""
        reader = self.spark.read.options(partitions=PARTS, batchRows=500, **options)
        found = self.held(reader.table(f"kelek.{self.table}").where("id >= 1000")).collect()
        lines = sorted(json.dumps([*row]) for row in found)
        return [len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()]

    def merge(self) -> None:
        """In one transaction."""
        arrived = self.range(ROWS - MERGED, ROWS + ADDED, "merged")
        self.held(arrived).createOrReplaceTempView("arrived")
        self.spark.sql(f"""
            MERGE INTO kelek.{self.table} o USING arrived a ON o.id = a.id
            WHEN MATCHED THEN UPDATE SET name = a.name
            WHEN NOT MATCHED THEN INSERT (id, name, price) VALUES (a.id, a.name, a.price)
        """)

    def update(self) -> None:
        """The condition is one that Spark has to compute."""
        rows = self.spark.range(0, MERGED, 1, PARTS).selectExpr("id AS one")
        self.held(rows).createOrReplaceTempView("some")
        self.spark.sql(f"""
            UPDATE kelek.{self.table} SET name = concat('updated ', id)
            WHERE id IN (SELECT one FROM some)
        """)

    def delete(self) -> None:
        rows = self.spark.range(0, DELETED, 1, PARTS).selectExpr("id AS one")
        self.held(rows).createOrReplaceTempView("some")
        self.spark.sql(f"DELETE FROM kelek.{self.table} WHERE id IN (SELECT one FROM some)")

    def replace(self) -> None:
        self.held(self.range(0, ROWS, "new")).createOrReplaceTempView("new")
        self.spark.sql(f"""
            CREATE OR REPLACE TABLE kelek.{self.table} TBLPROPERTIES ('key' = 'id')
            AS SELECT * FROM new
        """)

    def append_log(self) -> None:
        """A batch: repeated tasks append nothing twice."""
        rows = self.range(0, ROWS, f"batch{self.run}")
        rows = self.held(rows).selectExpr("name AS data", "current_timestamp() AS time")
        rows.write.format("kelek").options(**self.log).mode("append").save()

    def fill_stream(self) -> None:
        rows = self.range(0, RECORDS, "event").selectExpr("name AS value")
        self._stream_of(rows.write, f"events{self.run}").mode("append").save()

    def _stream_of(self, with_options: Any, name: str) -> Any:
        return with_options.format("kelek").options(**self.options, kind="stream", stream=name)

    def _events(self) -> Any:
        frame = self._stream_of(self.spark.readStream, f"events{self.run}")
        frame = frame.options(start="first", maxRecordsPerTrigger=TRIGGER)
        return self.held(frame.options(recordsPerPartition=PART).load().selectExpr("value"))

    def _run_to_its_end(self, writer: Any, name: str) -> None:
        writer = writer.option("checkpointLocation", f"checkpoints/{name}{self.run}")
        writer.trigger(availableNow=True).start().awaitTermination()

    def copy_stream(self) -> None:
        writer = self._stream_of(self._events().writeStream, f"copied{self.run}")
        self._run_to_its_end(writer, "copied")

    def to_log(self) -> None:
        data = f"concat('stream{self.run} ', string(value)) AS data"
        rows = self._events().selectExpr(data, "current_timestamp() AS time")
        self._run_to_its_end(rows.writeStream.format("kelek").options(**self.log), "to_log")

    def copy_changes(self) -> None:
        """A copy of the table by its changes."""
        frame = self.spark.readStream.format("kelek").options(
            **self.options, kind="changes", table=self.table, entriesPerPartition=1000
        )

        def apply(batch: Any, number: int) -> None:
            changed = batch.selectExpr("value", "kind", "value.id", "struct(index, place) AS place")
            newest = changed.groupBy("id").agg({"place": "max"})
            newest = newest.withColumnRenamed("max(place)", "place")
            rows = changed.join(newest, ["id", "place"], "left_semi")
            rows = self.held(rows.selectExpr("value.*", "kind = 'delete' AS gone"))
            rows.write.format("kelek").mode("append").options(
                **self.options, kind="table", table=f"copy{self.run}", keyColumns='["id"]',
                deleteColumn="gone",
            ).save()  # fmt: skip

        self._run_to_its_end(frame.load().writeStream.foreachBatch(apply), "changes")


def main(gate: str, logs: str, run: str, *wanted: str) -> None:
    import kelek.pipeline

    spark = kelek.pipeline.session(app_name="trial")
    steps = Steps(spark, gate, logs, run)
    for step in wanted:
        name, _, steps.place = step.partition(":")
        print(f"done {step} {json.dumps(getattr(steps, name)())}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
