"""The options of the kind `zre`: those of the log, and the log service's table."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from ...protocols.zerodb.wire.values import TABLE_MAX
from ..errors import OptionError
from ..log import options as log_options
from ..log.options import EARLIEST, LATEST, StartPosition
from ..options import Option, parse_options, urls, whole
from ..table import options as table_options

IN_TABLE = Option("table", whole(0, TABLE_MAX))
BATCH = (*log_options.BATCH, IN_TABLE)
STREAM = (*log_options.STREAM, IN_TABLE)
# Not allowed for a batch that reads the table.
TABLE = (
    Option("urls", urls, required=True),
    IN_TABLE,
    log_options.AFTER._replace(default=EARLIEST),
    Option("timeoutMs", whole(1, 86_400_000), table_options.TIMEOUT_MS),
)
TIME_BYTES = 8  # Of a key of the table, which begins with milliseconds (actors/zre/log.py).


class ZreReadOptions(NamedTuple):
    """The part of the log to read."""

    log: log_options.LogReadOptions
    table: int | None  # Only puts into this table; None: the log service's own entries.


def batch_options(given: Mapping[str, str]) -> ZreReadOptions | table_options.TableReadOptions:
    """For spark.read; reads the table if the options name one. Raises OptionError."""
    if any(name.lower() == IN_TABLE.name for name in given):
        return _table_options(given)
    return _options(BATCH, given, EARLIEST)


def stream_options(given: Mapping[str, str]) -> ZreReadOptions:
    """For spark.readStream, always from the log. Raises OptionError."""
    return _options(STREAM, given, LATEST)


def located(
    options: ZreReadOptions | table_options.TableReadOptions,
) -> ZreReadOptions | table_options.TableReadOptions:
    """Options for tasks, with resolved addresses. Raises PipelineError."""
    if isinstance(options, ZreReadOptions):
        return located_log(options)
    return table_options.located(options)


def located_log(options: ZreReadOptions) -> ZreReadOptions:
    """Like located(), for options of the log. Raises PipelineError."""
    return options._replace(log=log_options.located(options.log))


def _options(known: tuple[Option, ...], given: Mapping[str, str], start: str) -> ZreReadOptions:
    values = log_options.checked(parse_options(known, given))
    table = values.pop(IN_TABLE.name)
    return ZreReadOptions(log_options.read_options({**values, "with_state": False}, start), table)


def _table_options(given: Mapping[str, str]) -> table_options.TableReadOptions:
    values = parse_options(TABLE, given)
    asked = {
        "urls": ",".join(values["urls"]),
        "table": str(values["table"]),
        "timeoutMs": str(values["timeout_ms"]),
    }
    start = _first_key(values["after"])
    if start:
        asked["start"] = f"0x{start.hex()}"
    return table_options.read_options(asked)


def _first_key(place: StartPosition) -> bytes:
    """The first key to read from a table. Raises OptionError."""
    if place == EARLIEST:
        return b""
    if not isinstance(place, datetime):
        raise OptionError(
            f"option after is earliest or a time, not {place!r}: a table has no indexes; "
            "leave the option table out to read the log"
        )
    time_ms = (place - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000
    return max(int(time_ms), 0).to_bytes(TIME_BYTES)
