"""Options of the kind `table`."""

import re
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from ...clients.table.arguments import SYNC_FLAGS, Range, behind_prefix
from ...protocols.zerodb.wire.values import KEY_BYTES_MAX, TABLE_MAX
from ...protocols.zre import services
from ..errors import OptionError
from ..formats import DDL, FORMATS, NUMBER_BYTES, STRUCTURED
from ..options import Option, found_urls, one_of, parse_options, size, text, texts, urls, whole

PER_QUERY, PER_FRAME = "query", "frame"
LOCAL_AUTO, LOCAL_OFF = "auto", "off"
FRAMING_AUTO, FRAMING_TEXT = "auto", "text"
PERMISSIVE, DROP, FAIL = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
ROWS_MAX = 2**62
TIMEOUT_MS = 30_000
# A schema that names a type instead of struct fields: BIGINT, DECIMAL(10, 2), ARRAY<INT>.
ONE_TYPE = re.compile(
    r"\s*(\w+\s*(\([\s\d,]*\))?|(array|map|struct)\s*<.*>)\s*", re.IGNORECASE | re.DOTALL
)

BOTH = (
    Option("urls", urls, required=True),
    Option("table", whole(0, TABLE_MAX), required=True),
    Option("keyFormat", one_of(*FORMATS), "raw"),
    Option("valueFormat", one_of(*FORMATS), "raw"),
    Option("timeoutMs", whole(1, 86_400_000), TIMEOUT_MS),
)
READ = (
    *BOTH,
    Option("keySchema", text),
    Option("valueSchema", text),
    Option("columns", one_of("all", "key"), "all"),
    Option("prefix", text),
    Option("start", text),
    Option("end", text),
    Option("keys", texts),
    Option("rowLimit", whole(0, ROWS_MAX)),
    Option("mode", one_of(PERMISSIVE, DROP, FAIL), PERMISSIVE),
    Option("corruptColumn", text),
    Option("partitions", whole(1, 65_536)),
    Option("batchRows", whole(1, 1 << 20), 16_384),
    Option("snapshot", one_of(PER_QUERY, PER_FRAME), PER_QUERY),
    Option("local", one_of(LOCAL_AUTO, LOCAL_OFF), LOCAL_AUTO),
    Option("framing", one_of(FRAMING_AUTO, FRAMING_TEXT), FRAMING_AUTO),
)
REMOVED = {
    "pushdown": (
        "a second query of the same frame lacked rows; a filter by where() stays right without it, "
        "and prefix, start, end and keys read less of the table"
    ),
    "stale": "it mixed rows of several moments; a query reads one snapshot",
}
WRITE = (
    *BOTH,
    Option("sync", one_of(*SYNC_FLAGS), "partsync"),
    Option("deleteColumn", text),
    Option("rowsPerSecond", whole(1, ROWS_MAX)),
    Option("bytesPerSecond", size),
    Option("inFlight", whole(1, 1024), 16),
    Option("batchBytes", size, 256 << 10),
)


class TableReadOptions(NamedTuple):
    """What to read; the fields are the options of READ."""

    urls: tuple[str, ...]
    table: int
    key_format: str
    value_format: str
    timeout_ms: int
    key_schema: str | None
    value_schema: str | None
    columns: str
    prefix: str | None
    start: str | None
    end: str | None
    keys: list[str] | None
    row_limit: int | None
    mode: str
    corrupt_column: str | None
    partitions: int | None
    batch_rows: int
    snapshot: str
    local: str
    framing: str

    @property
    def with_values(self) -> bool:
        """Whether the read needs values."""
        return self.columns == "all"

    @property
    def range(self) -> Range:
        """The range of keys that the options name. Raises OptionError."""
        if self.prefix is not None:
            first = key_of(self.key_format, self.prefix, "prefix")
            return Range(first, behind_prefix(first))
        bounds = (("start", self.start), ("end", self.end))
        return Range(*(key_of(self.key_format, it, name) if it else b"" for name, it in bounds))

    @property
    def listed(self) -> list[bytes] | None:
        """Returns the listed keys within the range, in order, without repeats; None if there is no
        list.

        Raises OptionError.
        """
        if self.keys is None:
            return None
        start, end = self.range
        found = {key_of(self.key_format, key, "keys") for key in self.keys}
        return sorted(key for key in found if key >= start and (not end or key < end))


class WriteOptions(NamedTuple):
    """How to write; the fields are the options of WRITE."""

    urls: tuple[str, ...]
    table: int
    key_format: str
    value_format: str
    timeout_ms: int
    sync: str
    delete_column: str | None
    rows_per_second: int | None
    bytes_per_second: int | None
    in_flight: int
    batch_bytes: int
    owner: bytes = b""  # Token of a staging table's owner.


def read_options(given: Mapping[str, str]) -> TableReadOptions:
    """Parses options of a read. Raises OptionError."""
    for name in given:
        if name.lower() in REMOVED:
            raise OptionError(f"option {name} was removed: {REMOVED[name.lower()]}")
    options = TableReadOptions(**parse_options(READ, given))
    for name, form, schema in (
        ("key", options.key_format, options.key_schema),
        ("value", options.value_format, options.value_schema),
    ):
        if schema is not None and form not in STRUCTURED:
            raise OptionError(
                f"option {name}Schema goes with {name}Format {' or '.join(STRUCTURED)}, not {form}"
            )
    if options.prefix is not None and (options.start is not None or options.end is not None):
        raise OptionError("option prefix goes without start and end")
    if options.corrupt_column in ("key", "value"):
        raise OptionError(f"option corruptColumn is another name than {options.corrupt_column}")
    if options.corrupt_column is not None and options.mode != PERMISSIVE:
        raise OptionError(f"option corruptColumn goes with mode {PERMISSIVE}, not {options.mode}")
    for key in options.listed or ():
        if not 0 < len(key) <= KEY_BYTES_MAX:
            raise OptionError(f"option keys: a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")
    assert options.range is not None  # Raises OptionError now if the range is wrong.
    return options


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parses options of a write. Raises OptionError."""
    return WriteOptions(**parse_options(WRITE, given))


Options = TypeVar("Options", TableReadOptions, WriteOptions)


def located(options: Options) -> Options:
    """Returns options for tasks, with addresses in place of zre:// ones. Raises PipelineError."""
    return options._replace(urls=found_urls(options.urls, services.TABLES))


def columns_of(options: TableReadOptions) -> str:
    """Returns the columns of a read in Spark's DDL. Raises OptionError."""
    columns = [f"key {_type('key', options.key_format, options.key_schema)}"]
    if options.with_values:
        columns.append(f"value {_type('value', options.value_format, options.value_schema)}")
    if options.corrupt_column is not None:
        columns.append(f"`{options.corrupt_column}` STRUCT<key: BINARY, value: BINARY>")
    return ", ".join(columns)


def _type(name: str, form: str, schema: str | None) -> str:
    if form in DDL:
        return DDL[form]
    if schema is None:
        raise OptionError(f"option {name}Schema is missing: what {name}Format {form} holds")
    return schema if ONE_TYPE.fullmatch(schema) else f"STRUCT<{schema}>"


def key_of(form: str, value: str, option: str) -> bytes:
    """Returns the key that an option gives as text. Raises OptionError.

    With be64 the text is a number. Otherwise it is the key itself, or its bytes as in 0x6b65.
    """
    if form == "be64":
        try:
            return int(value).to_bytes(NUMBER_BYTES, "big")
        except (ValueError, OverflowError):
            raise OptionError(
                f"option {option} is a whole number from 0 on with keyFormat be64, not {value!r}"
            ) from None
    if not value.startswith("0x"):
        return value.encode()
    try:
        return bytes.fromhex(value[2:])
    except ValueError:
        raise OptionError(f"option {option} is hexadecimal behind 0x, not {value!r}") from None
