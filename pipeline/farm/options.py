"""The options of the kind `farm`. None of them is a password, because Spark shows options in its
plans.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ...clients.farm.operations import TIMEOUT_MS
from ...clients.farm.values import checked_servers
from ...clients.io.urls import SCHEME
from ...protocols.raft.messages import NUMBER_MAX
from ...protocols.zre import services
from ..errors import OptionError
from ..log.offset import FarmOffset
from ..log.options import (
    AFTER,
    EARLIEST,
    ENTRIES_PER_PARTITION,
    LATEST,
    StartPosition,
    parse_end,
)
from ..options import (
    Option,
    check_discovery_url,
    flag,
    found_urls,
    one_of,
    parse_options,
    text,
    whole,
)

PASSWORD_OPTIONS = ("password", "secret")  # Likely mistakes for secretFile.


def urls(value: str) -> tuple[str, ...]:
    """Server addresses joined by commas; zre://NAME stands for a cluster's servers."""
    found = tuple(part.strip() for part in value.split(","))
    try:
        for part in found:
            check_discovery_url(part) if part.startswith(SCHEME) else checked_servers([part])
    except ValueError as error:
        raise ValueError(
            f"the servers' addresses, tls://HOST:PORT, joined by commas: {error}"
        ) from None
    return found


def proxy(value: str) -> str:
    """The address of an HTTP proxy."""
    try:
        checked_servers(value)
    except ValueError:
        raise ValueError(f"HOST:PORT of an HTTP proxy, not {value!r}") from None
    return value


READ = (
    Option("urls", urls, required=True),
    Option("farm", text, "farm"),
    Option("user", text, required=True),
    Option("secretFile", text, required=True),
    Option("caFile", text),
    Option("tls", one_of("1.3", "1.2"), "1.3"),
    Option("serverName", text, ""),
    Option("proxy", proxy, ""),
    Option("i2p", flag, False),
    Option("timeoutMs", whole(1, 86_400_000), TIMEOUT_MS),
    AFTER,
    Option("failOnCompaction", flag, True),
    Option("entriesPerPartition", whole(1, NUMBER_MAX), ENTRIES_PER_PARTITION),
)
BATCH = (*READ, Option("endingIndex", parse_end, LATEST))
STREAM = (*READ, Option("maxEntriesPerTrigger", whole(1, NUMBER_MAX)))


class FarmReadOptions(NamedTuple):
    """The parsed options of BATCH and STREAM."""

    urls: tuple[str, ...]
    farm: str
    user: str
    secret_file: str
    ca_file: str | None
    tls: str
    server_name: str
    proxy: str
    i2p: bool
    timeout_ms: int
    after: StartPosition
    fail_on_compaction: bool
    entries_per_partition: int
    ending_index: str | int = LATEST
    max_entries_per_trigger: int | None = None
    max_bytes_per_trigger: None = None  # No option: a page has at most 4 MiB.

    @property
    def origin(self) -> FarmOffset:
        """The offset before the first entry."""
        return FarmOffset(self.farm)


def batch_options(given: Mapping[str, str]) -> FarmReadOptions:
    """The options of spark.read; the default start is the first entry. Raises OptionError."""
    return _read_options(BATCH, given, EARLIEST)


def stream_options(given: Mapping[str, str]) -> FarmReadOptions:
    """The options of spark.readStream; the default start is the end of the log. Raises
    OptionError.
    """
    return _read_options(STREAM, given, LATEST)


def with_addresses(options: FarmReadOptions) -> FarmReadOptions:
    """The options for tasks, with zre:// resolved. Raises PipelineError."""
    return options._replace(urls=found_urls(options.urls, services.FARM))


def _read_options(
    known: tuple[Option, ...], given: Mapping[str, str], start: str
) -> FarmReadOptions:
    for name in given:
        if name.lower() in PASSWORD_OPTIONS:
            raise OptionError(
                f"unknown option {name!r}: Spark shows options in its plans. Write the password "
                "into a file that only you may read, and name that as secretFile"
            )
    values = parse_options(known, given)
    return FarmReadOptions(
        **{**values, "after": start if values["after"] is None else values["after"]}
    )
