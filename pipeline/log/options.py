"""Options of the kind `log`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from ...protocols.raft.messages import NUMBER_MAX
from ...protocols.zre import services
from ..errors import OptionError
from ..options import (
    Option,
    flag,
    found_urls,
    is_discovered,
    one_of,
    parse_options,
    size,
    text,
    urls,
    whole,
)
from .offset import LogOffset

COLUMNS = "index BIGINT, term BIGINT, type TINYINT, reqid BINARY, time TIMESTAMP, data BINARY"
EARLIEST, LATEST = "earliest", "latest"
LEADER, FOLLOWERS = "leader", "followers"
# Equal to those of clients/log/operations.py; that module would import ZeroMQ.
TIMEOUT_MS = 30_000
ENTRIES_PER_PARTITION = 250_000
MEMORY_BYTES = 64 << 20

StartPosition = str | int | datetime


def parse_after(value: str) -> StartPosition:
    """Parses a start: EARLIEST, LATEST, the index before it, or a time with its zone."""
    return _position(value, 0)


def parse_start(value: str) -> StartPosition:
    """Parses the deprecated startingIndex, which names the first index itself."""
    found = _position(value, 1)
    return found - 1 if isinstance(found, int) else found


def _position(value: str, least: int) -> StartPosition:
    word = value.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    if word.isdecimal() and least <= int(word) <= NUMBER_MAX:
        return int(word)
    try:
        time = datetime.fromisoformat(value.strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(
            f"earliest, latest, an index from {least} on, or a time with its zone like "
            f"2026-01-31T12:00:00Z, not {value!r}"
        )
    return time


def parse_end(value: str) -> str | int:
    """Parses an end: LATEST, or an index from 1 on."""
    try:
        found = _position(value, 1)
    except ValueError:
        found = EARLIEST
    if found == EARLIEST or isinstance(found, datetime):
        raise ValueError(f"latest or an index from 1 on, not {value!r}")
    return found


# Where a read begins; a kind adds the default.
AFTER = Option("after", parse_after, old_name="startingIndex", old_parse=parse_start)
BOTH = (
    Option("urls", urls, required=True),
    Option("cluster", text, "demo"),
    Option("timeoutMs", whole(1, 86_400_000), TIMEOUT_MS),
)
READ = (
    *BOTH,
    AFTER,
    Option("failOnCompaction", flag, True),
    Option("entriesPerPartition", whole(1, NUMBER_MAX), ENTRIES_PER_PARTITION),
    Option("readFrom", one_of(LEADER, FOLLOWERS), LEADER),
)
BATCH = (*READ, Option("endingIndex", parse_end, LATEST))
STREAM = (
    *READ,
    Option("maxEntriesPerTrigger", whole(1, NUMBER_MAX)),
    Option("maxBytesPerTrigger", size),
)
WRITE = (*BOTH, Option("memoryBytes", size, MEMORY_BYTES))


class LogReadOptions(NamedTuple):
    """What to read; the fields are the options of BATCH and STREAM."""

    urls: tuple[str, ...]
    cluster: str
    timeout_ms: int
    after: StartPosition
    fail_on_compaction: bool
    entries_per_partition: int
    read_from: str
    ending_index: str | int = LATEST
    max_entries_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    with_state: bool = True  # Return a row with the snapshot's state in place of compacted entries.

    @property
    def origin(self) -> LogOffset:
        """The offset before all entries of this cluster."""
        return LogOffset(self.cluster)


class WriteOptions(NamedTuple):
    """How to write; the fields are the options of WRITE."""

    urls: tuple[str, ...]
    cluster: str
    timeout_ms: int
    memory_bytes: int


def batch_options(given: Mapping[str, str]) -> LogReadOptions:
    """Parses options of spark.read; the default start is the first entry. Raises OptionError."""
    return read_options(checked(parse_options(BATCH, given)), EARLIEST)


def stream_options(given: Mapping[str, str]) -> LogReadOptions:
    """Parses options of spark.readStream; the default start is now. Raises OptionError."""
    return read_options(checked(parse_options(STREAM, given)), LATEST)


def read_options(values: dict[str, Any], start: str) -> LogReadOptions:
    """Returns parsed options with a default start."""
    return LogReadOptions(
        **{**values, "after": start if values["after"] is None else values["after"]}
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parses options of a write. Raises OptionError."""
    return WriteOptions(**checked(parse_options(WRITE, given)))


def checked(values: dict[str, Any]) -> dict[str, Any]:
    if not values["cluster"]:
        raise OptionError("option cluster is the cluster's ident, not an empty text")
    return values


Options = TypeVar("Options", LogReadOptions, WriteOptions)


def located(options: Options) -> Options:
    """Returns options for tasks, with addresses and the cluster in place of a zre:// address.

    A checkpoint holds the cluster's ident, so nodes may move between two runs of a stream. Raises
    PipelineError.
    """
    if not is_discovered(options.urls):
        return options
    from ...clients.node.discovery import cluster_of  # Imports ZeroMQ.

    found = found_urls(options.urls, services.LOG)
    return options._replace(urls=found, cluster=cluster_of(options.urls))
