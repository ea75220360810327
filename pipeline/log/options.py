"""The options of the kind `log`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from ...protocols.zre import services
from ..errors import OptionError
from ..options import (
    Option,
    flag,
    found_urls,
    one_of,
    parse_options,
    size,
    sought,
    text,
    urls,
    whole,
)
from .offset import LogOffset

COLUMNS = "index BIGINT, term BIGINT, type TINYINT, reqid BINARY, time TIMESTAMP, data BINARY"
EARLIEST, LATEST = "earliest", "latest"
LEADER, FOLLOWERS = "leader", "followers"
# Those of clients/log/operations.py, which loads ZeroMQ.
INDEX_MAX = (1 << 53) - 1
TIMEOUT_MS = 30_000
ENTRIES_PER_PARTITION = 250_000
MEMORY_BYTES = 64 << 20

Place = str | int | datetime


def place(value: str) -> Place:
    """Where to begin: EARLIEST, LATEST, a LOG INDEX from 1 on, or a time with its zone."""
    word = value.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    if word.isdecimal() and 1 <= int(word) <= INDEX_MAX:
        return int(word)
    try:
        time = datetime.fromisoformat(value.strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(
            "earliest, latest, an index from 1 on, or a time with its zone like "
            f"2026-01-31T12:00:00Z, not {value!r}"
        )
    return time


def end_place(value: str) -> str | int:
    """Where to end: LATEST, or a LOG INDEX from 1 on."""
    try:
        found = place(value)
    except ValueError:
        found = EARLIEST
    if found == EARLIEST or isinstance(found, datetime):
        raise ValueError(f"latest or an index from 1 on, not {value!r}")
    return found


BOTH = (
    Option("urls", urls, required=True),
    Option("cluster", text, "demo"),
    Option("timeoutMs", whole(1, 86_400_000), TIMEOUT_MS),
)
READ = (
    *BOTH,
    Option("startingIndex", place),
    Option("failOnCompaction", flag, True),
    Option("entriesPerPartition", whole(1, INDEX_MAX), ENTRIES_PER_PARTITION),
    Option("readFrom", one_of(LEADER, FOLLOWERS), LEADER),
)
BATCH = (*READ, Option("endingIndex", end_place, LATEST))
STREAM = (
    *READ,
    Option("maxEntriesPerTrigger", whole(1, INDEX_MAX)),
    Option("maxBytesPerTrigger", size),
)
WRITE = (*BOTH, Option("memoryBytes", size, MEMORY_BYTES))


class LogReadOptions(NamedTuple):
    """What is to be read; the fields are the options of BATCH and STREAM."""

    urls: tuple[str, ...]
    cluster: str
    timeout_ms: int
    starting_index: Place
    fail_on_compaction: bool
    entries_per_partition: int
    read_from: str
    ending_index: str | int = LATEST
    max_entries_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    with_state: bool = True  # A snapshot gives a row in the place of its entries.

    @property
    def origin(self) -> LogOffset:
        """The place before all entries of this cluster."""
        return LogOffset(self.cluster)


class WriteOptions(NamedTuple):
    """How it is to be written; the fields are the options of WRITE."""

    urls: tuple[str, ...]
    cluster: str
    timeout_ms: int
    memory_bytes: int


def batch_options(given: Mapping[str, str]) -> LogReadOptions:
    """For spark.read: from the first entry unless the options say otherwise. Raises OptionError."""
    return read_options(checked(parse_options(BATCH, given)), EARLIEST)


def stream_options(given: Mapping[str, str]) -> LogReadOptions:
    """For spark.readStream: from now on unless the options say otherwise. Raises OptionError."""
    return read_options(checked(parse_options(STREAM, given)), LATEST)


def read_options(values: dict[str, Any], start: str) -> LogReadOptions:
    """Of parsed options; where to begin when they do not say."""
    return LogReadOptions(**{**values, "starting_index": values["starting_index"] or start})


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Raises OptionError."""
    return WriteOptions(**checked(parse_options(WRITE, given)))


def checked(values: dict[str, Any]) -> dict[str, Any]:
    if not values["cluster"]:
        raise OptionError("option cluster is the cluster's ident, not an empty text")
    return values


Options = TypeVar("Options", LogReadOptions, WriteOptions)


def located(options: Options) -> Options:
    """For tasks: with addresses alone, and the cluster that a zre:// names. A checkpoint holds the
    ident, so its nodes may have moved when the stream goes on. Raises PipelineError."""
    if not sought(options.urls):
        return options
    from ...clients.node.discovery import cluster_of  # It loads ZeroMQ.

    found = found_urls(options.urls, services.LOG)
    return options._replace(urls=found, cluster=cluster_of(options.urls))
