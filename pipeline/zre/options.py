"""The options of the kind `zre`: those of the log, and the log service's table."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...protocols.zerodb.wire.values import TABLE_MAX
from ...protocols.zre import services
from ..log.options import EARLIEST, TIME, LogReadOptions, StartPosition, parse_after
from ..options import FLAG, TIME_MS, OptionType, Secured, option, whole
from ..table.options import TableReadOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

TIME_BYTES = 8  # Of a key of the table, which begins with milliseconds (actors/zre/log.py).


@dataclass(frozen=True, kw_only=True)
class ZreReadOptions(LogReadOptions):
    """The part of the log to read."""

    fail_on_compaction: bool = option(FLAG, "`false`: skip compacted entries", "true")
    table: int | None = option(
        whole(0, TABLE_MAX), "of a stream: only reports that are put into this table"
    )
    with_state: bool = False

    def rows(self, batch: "RecordBatch") -> "RecordBatch":
        from .rows import rows_of, values_of

        data, indexes = batch["data"], batch["index"]
        if self.table is not None:
            data, places = values_of(data, self.table)
            indexes = indexes.take(places)
        return rows_of(data, indexes)


def _parse_time(value: str) -> StartPosition:
    found = parse_after(value)
    if found != EARLIEST and not isinstance(found, datetime):
        raise ValueError(
            f"earliest or a time, not {value!r}: a table has no indexes; leave the option table "
            "out to read the log"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class ZreTableOptions(Secured):
    """The part of a log service's table to read."""

    service = services.TABLES
    table: int = option(whole(0, TABLE_MAX), "the topology's `log_table`", required=True)
    after: StartPosition = option(
        OptionType(_parse_time, f"`earliest`, {TIME}"), "where to begin", EARLIEST
    )
    timeout_ms: int = option(TIME_MS, "longest time without an answer", "30000")

    def of_table(self) -> TableReadOptions:
        """The same for the reader of tables."""
        start = None
        if isinstance(self.after, datetime):
            time_ms = int((self.after - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
            start = f"0x{max(time_ms, 0).to_bytes(TIME_BYTES).hex()}"
        return TableReadOptions(
            urls=self.urls,
            table=self.table,
            timeout_ms=self.timeout_ms,
            start=start,
            key_file=self.key_file,
            server_keys=self.server_keys,
        )
