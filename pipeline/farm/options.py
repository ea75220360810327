"""The options of the kind `farm`. A password is never one: Spark shows options in its plans."""

from collections.abc import Mapping
from typing import NamedTuple

from ...clients.farm.operations import TIMEOUT_MS
from ...clients.farm.values import checked_places
from ...clients.io.urls import SCHEME
from ...protocols.zre import services
from ..errors import OptionError
from ..log.offset import FarmOffset
from ..log.options import (
    AFTER,
    EARLIEST,
    ENTRIES_PER_PARTITION,
    INDEX_MAX,
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

SECRETS = ("password", "secret")  # Likely mistakes for secretFile.


def urls(value: str) -> tuple[str, ...]:
    """Where servers are, joined by commas; zre://NAME stands for those of a cluster."""
    found = tuple(part.strip() for part in value.split(","))
    try:
        for part in found:
            check_discovery_url(part) if part.startswith(SCHEME) else checked_places([part])
    except ValueError as error:
        raise ValueError(f"the servers' addresses, tls://HOST:PORT, by commas: {error}") from None
    return found


def proxy(value: str) -> str:
    """Where an HTTP proxy is."""
    try:
        checked_places(value)
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
    Option("entriesPerPartition", whole(1, INDEX_MAX), ENTRIES_PER_PARTITION),
)
BATCH = (*READ, Option("endingIndex", parse_end, LATEST))
STREAM = (*READ, Option("maxEntriesPerTrigger", whole(1, INDEX_MAX)))


class FarmReadOptions(NamedTuple):
    """What is to be read; the fields are the options of BATCH and STREAM."""

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
    max_bytes_per_trigger: None = None  # It is not asked for: a page has 4 MiB at most.

    @property
    def origin(self) -> FarmOffset:
        """The place before all entries of this farm."""
        return FarmOffset(self.farm)


def batch_options(given: Mapping[str, str]) -> FarmReadOptions:
    """For spark.read: from the first entry unless the options say otherwise. Raises OptionError."""
    return _read_options(BATCH, given, EARLIEST)


def stream_options(given: Mapping[str, str]) -> FarmReadOptions:
    """For spark.readStream: from now on unless the options say otherwise. Raises OptionError."""
    return _read_options(STREAM, given, LATEST)


def located(options: FarmReadOptions) -> FarmReadOptions:
    """For tasks: with addresses alone. Raises PipelineError."""
    return options._replace(urls=found_urls(options.urls, services.FARM))


def _read_options(
    known: tuple[Option, ...], given: Mapping[str, str], start: str
) -> FarmReadOptions:
    for name in given:
        if name.lower() in SECRETS:
            raise OptionError(
                f"unknown option {name!r}: Spark shows options in its plans. Write the password "
                "into a file that only you may read, and name that as secretFile"
            )
    values = parse_options(known, given)
    return FarmReadOptions(
        **{**values, "after": start if values["after"] is None else values["after"]}
    )
