"""Options of the kind `table`."""

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Self

from ...clients.table.arguments import SYNC_FLAGS, Range, behind_prefix, parse_table
from ...protocols.zerodb.wire.values import KEY_BYTES_MAX, TABLE_MAX
from ...protocols.zre import services
from ..errors import OptionError, PipelineError
from ..formats import DDL, FORMATS, NUMBER_BYTES, STRUCTURED
from ..options import (
    SIZE,
    TEXT,
    TEXTS,
    TIME_MS,
    OptionType,
    Secured,
    one_of,
    option,
    whole,
    zoned_time,
)

PER_QUERY, PER_FRAME = "query", "frame"
ALL, KEY = "all", "key"
ON, OFF = "on", "off"
LOCAL_AUTO, LOCAL_OFF = "auto", "off"
FRAMING_AUTO, FRAMING_TEXT = "auto", "text"
PERMISSIVE, DROP, FAIL = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
ROWS_MAX = 2**62
# A schema that names a type instead of struct fields: BIGINT, DECIMAL(10, 2), ARRAY<INT>.
ONE_TYPE = re.compile(
    r"\s*(\w+\s*(\([\s\d,]*\))?|(array|map|struct)\s*<.*>)\s*", re.IGNORECASE | re.DOTALL
)


def _parse_table(value: str) -> int | str:
    try:
        return parse_table(value)
    except ValueError:
        raise ValueError(f"a table's name, or 0 to {TABLE_MAX}, not {value!r}") from None


def _parse_columns(value: str) -> str:
    """`all` and `key` in any case."""
    return value.lower() if value.lower() in (ALL, KEY) else value


def _parse_time(value: str) -> datetime:
    time = zoned_time(value)
    if time is None:
        raise ValueError(f"a time with its zone like 2026-01-31T12:00:00Z, not {value!r}")
    return time


ZONED_TIME = OptionType(_parse_time, "a time with its zone")
COLUMNS = OptionType(_parse_columns, "`all`, `key`, names")
TABLE = OptionType(_parse_table, f"a name, or 0 to {TABLE_MAX}")


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Secured):
    """The nodes to ask."""

    service = services.TABLES
    timeout_ms: int = option(TIME_MS, "longest time without an answer", "30000")


@dataclass(frozen=True, kw_only=True)
class ReadTuning(ServerOptions):
    """How to read any table."""

    partitions: int | None = option(
        whole(1, 65_536), "greatest number of tasks; without it their number follows from the size"
    )
    batch_rows: int = option(whole(1, 1 << 20), "rows in a chunk", "16384")
    snapshot: str = option(
        one_of(PER_QUERY, PER_FRAME),
        "`frame`: all queries of a frame read the first one's snapshot",
        PER_QUERY,
    )
    local: str = option(
        one_of(LOCAL_AUTO, LOCAL_OFF), "`off`: tasks never open the snapshot's files", LOCAL_AUTO
    )
    as_of_index: int | None = option(
        whole(1, ROWS_MAX), "reads the [kept snapshot](tables.md#older-rows) with this LOG INDEX"
    )
    as_of_timestamp: datetime | None = option(
        ZONED_TIME,
        "reads the newest [kept snapshot](tables.md#older-rows) that was taken then or before",
    )

    @property
    def as_of(self) -> int | datetime | None:
        """Which kept snapshot is read; None: a new one of each query. Raises OptionError."""
        if self.as_of_index is None:
            return self.as_of_timestamp
        if self.as_of_timestamp is not None:
            raise OptionError("options asOfIndex and asOfTimestamp are both given; leave one out")
        return self.as_of_index


@dataclass(frozen=True, kw_only=True)
class WriteTuning(ServerOptions):
    """How to write any table."""

    sync: str = option(
        one_of(*SYNC_FLAGS), "when a put is acknowledged, as for `kelek.Table`", "partsync"
    )
    rows_per_second: int | None = option(whole(1, ROWS_MAX), "speed limit of each task")
    bytes_per_second: int | None = option(SIZE, "speed limit of each task")
    in_flight: int = option(whole(1, 1024), "unanswered puts of a task", "16")
    batch_bytes: int = option(SIZE, "bytes of keys and values in one put", "256k")


@dataclass(frozen=True, kw_only=True)
class TableOptions(ServerOptions):
    """The table to read or write."""

    table: int | str = option(TABLE, "the name or the number of the table", required=True)
    key_format: str = option(one_of(*FORMATS), "see [formats](#formats)", "raw")
    value_format: str = option(one_of(*FORMATS), "see [formats](#formats)", "raw")
    typed: bytes = b""  # The table's schema, if the rows have its columns.
    creates: ClassVar[bool] = False  # Whether a name that no table has gets a number.

    @property
    def number(self) -> int:
        """The table's number, behind located()."""
        assert isinstance(self.table, int)
        return self.table

    def located(self) -> Self:
        """As Addressed.located(), with the table's number: later renames do not matter.

        Raises PipelineError if no table has the name.
        """
        found = super().located()
        if isinstance(found.table, int):
            return found
        from .connection import connected_table

        with connected_table(found) as table:
            number = table.locate(create=found.creates)
        if number is None:
            raise PipelineError(f"no table has the name {found.table}; option table names it")
        return replace(found, table=number)


@dataclass(frozen=True, kw_only=True)
class TableReadOptions(TableOptions, ReadTuning):
    """What to read. Making one raises OptionError if the options do not go together."""

    refused = {
        **Secured.refused,
        "pushdown": (
            "it was removed, as a second query of the same frame lacked rows; a filter by where() "
            "stays right without it, and prefix, start, end and keys read less of the table"
        ),
        "stale": "it was removed, as it mixed rows of several moments; a query reads one snapshot",
    }
    key_schema: str | None = option(
        TEXT, "for json and msgpack: what keys hold, `n INT, words ARRAY<STRING>` or a single type"
    )
    value_schema: str | None = option(TEXT, "the same for values")
    columns: str = option(
        COLUMNS,
        "`key`: neither reads nor sends values. Of a table with a schema: the columns to read, "
        "joined by commas",
        ALL,
    )
    prefix: str | None = option(
        TEXT, "only keys with this prefix; with a schema a JSON list of the first key columns"
    )
    start: str | None = option(TEXT, "only keys from this one on; with a schema as prefix")
    end: str | None = option(TEXT, "only keys below this one; with a schema as prefix")
    keys: list[str] | None = option(TEXTS, "only these keys, a JSON list; reads nothing else")
    row_limit: int | None = option(whole(0, ROWS_MAX), "only the first rows, read by one task")
    mode: str = option(
        one_of(PERMISSIVE, DROP, FAIL),
        "for unreadable items: `PERMISSIVE` null, `DROPMALFORMED` leaves the row out, `FAILFAST` "
        "an error",
        PERMISSIVE,
    )
    corrupt_column: str | None = option(
        TEXT, "name of a further column with the raw key and value of unreadable rows"
    )
    framing: str = option(
        one_of(FRAMING_AUTO, FRAMING_TEXT),
        "`text`: the specification's form, one frame for each key and value. A foreign server "
        "knows no other form and is read page by page, without a snapshot",
        FRAMING_AUTO,
    )

    chosen: tuple[str, ...] = ()  # Columns of the schema.

    def __post_init__(self) -> None:
        for name, form, schema in (
            ("key", self.key_format, self.key_schema),
            ("value", self.value_format, self.value_schema),
        ):
            if schema is not None and form not in STRUCTURED:
                raise OptionError(
                    f"option {name}Schema goes with {name}Format {' or '.join(STRUCTURED)}, "
                    f"not {form}"
                )
        if self.prefix is not None and (self.start is not None or self.end is not None):
            raise OptionError("option prefix goes without start and end")
        if self.corrupt_column in ("key", "value"):
            raise OptionError(f"option corruptColumn is another name than {self.corrupt_column}")
        if self.corrupt_column is not None and self.mode != PERMISSIVE:
            raise OptionError(f"option corruptColumn goes with mode {PERMISSIVE}, not {self.mode}")
        for key in self.listed or ():
            if not 0 < len(key) <= KEY_BYTES_MAX:
                raise OptionError(
                    f"option keys: a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}"
                )
        if self.as_of is not None and self.framing == FRAMING_TEXT:
            raise OptionError("option framing text goes without asOfIndex and asOfTimestamp")
        assert self.range is not None  # Raises OptionError now if the range is wrong.

    @property
    def with_values(self) -> bool:
        """Whether the read needs values."""
        return self.columns != KEY

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


@dataclass(frozen=True, kw_only=True)
class TableWriteOptions(TableOptions, WriteTuning):
    """How to write."""

    creates: ClassVar[bool] = True
    delete_column: str | None = option(
        TEXT,
        "name of a column: rows where it is true are deleted; their value may be null",
    )
    key_columns: list[str] | None = option(
        TEXTS,
        "the table gets a schema with the columns of the rows, and these as its key, unless it has "
        "one",
    )
    bulk: str = option(
        one_of(ON, OFF),
        "`on`: a [bulk load](#bulk-loads) fills the table, or with mode `overwrite` replaces all "
        "its rows, in one step",
        OFF,
    )
    owner: bytes = b""  # Token of a staging table's owner.


def columns_of(options: TableReadOptions) -> str:
    """Returns the columns of a read in Spark's DDL. Raises OptionError."""
    columns = [f"key {type_of('key', options.key_format, options.key_schema)}"]
    if options.with_values:
        columns.append(f"value {type_of('value', options.value_format, options.value_schema)}")
    if options.corrupt_column is not None:
        columns.append(f"`{options.corrupt_column}` STRUCT<key: BINARY, value: BINARY>")
    return ", ".join(columns)


def type_of(name: str, form: str, schema: str | None) -> str:
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
