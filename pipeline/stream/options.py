"""Options of the kind `stream`."""

from dataclasses import dataclass
from datetime import datetime

from ...clients.stream.layout import OFFSET_MAX, STREAM_TABLE
from ...protocols.limits import TABLE_MAX
from ...protocols.zre import services
from ..options import FLAG, TEXT, TIME_MS, OptionType, Secured, one_of, option, whole, zoned_time

FIRST, LAST, END = "first", "last", "end"
OFFSETS, KEYS = "offsets", "keys"

StartPosition = int | str | datetime


def parse_start(value: str) -> StartPosition:
    """Parses a start: a word, an offset, or a time with its zone."""
    word = value.strip().lower()
    if word in (FIRST, LAST, END):
        return word
    if word.isdecimal() and int(word) <= OFFSET_MAX:
        return int(word)
    time = zoned_time(value)
    if time is None:
        raise ValueError(
            f"first, last, end, an offset, or a time with its zone like 2026-01-31T12:00:00Z, not "
            f"{value!r}"
        )
    return time


START = OptionType(parse_start, "`first`, `last`, `end`, an offset, a time")
COUNT = whole(1, OFFSET_MAX)


@dataclass(frozen=True, kw_only=True)
class StreamOptions(Secured):
    """The stream to read or to write."""

    service = services.TABLES
    stream: str = option(TEXT, "the stream's name", required=True)
    table: int = option(whole(0, TABLE_MAX), "the table that holds it", str(STREAM_TABLE))
    timeout_ms: int = option(TIME_MS, "longest time without an answer", "30000")


@dataclass(frozen=True, kw_only=True)
class StreamReadOptions(StreamOptions):
    """What to read of a stream."""

    start: StartPosition = option(START, "where to begin", FIRST, in_streams=END)
    end_offset: int | None = option(
        whole(0, OFFSET_MAX), "read only records below this offset", only="batches"
    )
    fail_on_trim: bool = option(
        FLAG, "`false`: go on behind records that retention has removed", "true"
    )
    divide_by: str = option(
        one_of(OFFSETS, KEYS),
        "`keys`: each task has some of the stream's partitions, and all records of a key, in order",
        OFFSETS,
    )
    records_per_partition: int = option(COUNT, "most records of one task by offsets", "250000")
    max_records_per_trigger: int | None = option(COUNT, "most records of one batch", only="streams")


@dataclass(frozen=True, kw_only=True)
class StreamWriteOptions(StreamOptions):
    """How to append to a stream."""
