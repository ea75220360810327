"""Options of the kind `log`, and of each kind that reads entries of a log."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Self

from ...protocols.limits import NUMBER_MAX
from ...protocols.zre import services
from ..options import (
    FLAG,
    SIZE,
    TIME_MS,
    Addressed,
    OptionType,
    Secured,
    one_of,
    option,
    whole,
    zoned_time,
)
from .offset import LogOffset, Offset

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from .positions import LogPositions

EARLIEST, LATEST = "earliest", "latest"
LEADER, FOLLOWERS = "leader", "followers"

StartPosition = str | int | datetime


def parse_after(value: str, least: int = 0) -> StartPosition:
    """Parses a start: EARLIEST, LATEST, the index before it, or a time with its zone."""
    word = value.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    if word.isdecimal() and least <= int(word) <= NUMBER_MAX:
        return int(word)
    time = zoned_time(value)
    if time is None:
        raise ValueError(
            f"earliest, latest, an index from {least} on, or a time with its zone like "
            f"2026-01-31T12:00:00Z, not {value!r}"
        )
    return time


def parse_start(value: str) -> StartPosition:
    """Parses the deprecated startingIndex, which names the first index itself."""
    found = parse_after(value, 1)
    return found - 1 if isinstance(found, int) else found


def parse_end(value: str) -> str | int:
    """Parses an end: LATEST, or an index from 1 on."""
    try:
        found = parse_after(value, 1)
    except ValueError:
        found = EARLIEST
    if found == EARLIEST or isinstance(found, datetime):
        raise ValueError(f"latest or an index from 1 on, not {value!r}")
    return found


def _parse_ident(value: str) -> str:
    if not value:
        raise ValueError("the cluster's ident, not an empty text")
    return value


TIME = "a time like `2026-01-31T12:00:00Z`"
AFTER = OptionType(parse_after, f"`earliest`, `latest`, a LOG INDEX, {TIME}")
COUNT = whole(1, NUMBER_MAX)


@dataclass(frozen=True, kw_only=True)
class EntryOptions(Addressed, ABC):
    """Which entries to read, of a kind whose rows are entries of a log."""

    after: StartPosition = option(
        AFTER,
        "where to begin: behind this LOG INDEX, or from this time on",
        EARLIEST,
        in_streams=LATEST,
        old_name="startingIndex",
        old_type=OptionType(parse_start, ""),
    )
    ending_index: str | int = option(
        OptionType(parse_end, "`latest`, a LOG INDEX"), "the last LOG INDEX", LATEST, only="batches"
    )
    fail_on_compaction: bool = option(FLAG, "`false`: skip compacted entries", "true")
    entries_per_partition: int = option(COUNT, "most entries of one task", "250000")
    max_entries_per_trigger: int | None = option(COUNT, "most entries of one batch", only="streams")
    max_bytes_per_trigger: int | None = None

    @property
    @abstractmethod
    def origin(self) -> Offset:
        """The offset before all entries of this log."""

    @abstractmethod
    def connect(self) -> "LogPositions":
        """Connects to the log."""

    def rows(self, batch: "RecordBatch") -> "RecordBatch":
        """The rows of a batch of entries."""
        return batch


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Secured):
    """The cluster to read from or write to."""

    service = services.LOG
    cluster: str = option(
        OptionType(_parse_ident, "text"),
        "the cluster's ident; `zre://CLUSTER` in `urls` implies it",
        "demo",
    )
    timeout_ms: int = option(TIME_MS, "longest time without progress", "30000")

    def located(self) -> Self:
        """As Addressed.located(), with the cluster of a zre:// address.

        A checkpoint holds the cluster's ident, so nodes may move between two runs of a stream.
        """
        found = super().located()
        if found is self:
            return self
        from ...clients.io.urls import cluster_of

        return replace(found, cluster=cluster_of(self.urls))


@dataclass(frozen=True, kw_only=True)
class LogReadOptions(EntryOptions, ClusterOptions):
    """What to read from a cluster's log."""

    fail_on_compaction: bool = option(
        FLAG, "`false`: [begin with the snapshot](#compacted-entries)", "true"
    )
    max_bytes_per_trigger: int | None = option(
        SIZE,
        "most bytes of data in one batch; the driver reads the entries to count, so they are read "
        "twice",
        only="streams",
    )
    read_from: str = option(
        one_of(LEADER, FOLLOWERS),
        "`followers`: each task reads from a follower, and asks the leader for entries that this "
        "one still lacks",
        LEADER,
    )
    with_state: bool = True  # Return a row with the snapshot's state in place of compacted entries.

    @property
    def origin(self) -> LogOffset:
        return LogOffset(self.cluster)

    def connect(self) -> "LogPositions":
        from .read import LogView

        return LogView(self)


@dataclass(frozen=True, kw_only=True)
class LogWriteOptions(ClusterOptions):
    """How to write to the log."""

    memory_bytes: int = option(
        SIZE, "rows that one task holds in memory; more go to a file in Spark's local folder", "64m"
    )
