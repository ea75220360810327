"""A log for tests of Spark, and how streams are run over it."""

from pathlib import Path
from typing import Any, NamedTuple

import kelek

DEADLINE_S = 240  # Of what takes seconds on a machine that does nothing else.


class LogStart(NamedTuple):
    """A real log, and where a test begins in it."""

    url: str
    last_index: int

    @property
    def options(self) -> dict[str, str]:
        return {"kind": "log", "urls": self.url, "cluster": "logs"}

    @property
    def log(self) -> kelek.Log:
        return kelek.Log(self.url, "logs")

    def put(self, *updates: bytes) -> None:
        with self.log as log:
            log.append_many(updates)

    def data(self) -> list[bytes]:
        """Of all updates of this test that anybody was told of: the leader may not have applied yet
        what another Log has committed."""
        with self.log as log:
            log.read_index()
            return [entry.data for entry in log.entries(self.last_index) if entry.type == 0]

    def read(self, spark: Any, **options: Any) -> Any:
        begin = {"after": self.last_index} | options
        return spark.read.format("kelek").options(**self.options, **begin).load()

    def read_stream(self, spark: Any, **options: Any) -> Any:
        begin = {"after": self.last_index} | options
        return spark.readStream.format("kelek").options(**self.options, **begin).load()

    def write(self, rows: Any, **options: Any) -> None:
        rows.write.format("kelek").options(**self.options, **options).mode("append").save()


def now() -> Any:
    from pyspark.sql.functions import current_timestamp

    return current_timestamp().alias("time")


def run_now(rows: Any, checkpoint: Path, options: dict[str, str]) -> Any:
    """Takes all that is there through a stream into a sink; returns the query that has ended."""
    writer = rows.writeStream.options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.format(options.get("format", "kelek")).trigger(availableNow=True).start()
    assert query.awaitTermination(DEADLINE_S), "the query has not ended"
    return query
