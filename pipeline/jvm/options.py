"""Options of the catalogue, spark.sql.catalog.NAME.OPTION, and what a loaded table has of them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

from ...clients.table.arguments import parse_table
from ...clients.table.typed.schema import TableSchema
from ..errors import OptionError, PipelineError
from ..options import TEXT, one_of, option, parse_options, whole
from ..table.connection import connected_table
from ..table.options import (
    OFF,
    ON,
    ReadTuning,
    ServerOptions,
    TableOptions,
    TableReadOptions,
    TableWriteOptions,
    WriteTuning,
)

Options = TypeVar("Options", bound=TableOptions)
OF_BYTES = TableSchema("key binary, value binary", ["key"])  # Of a table without a schema.
TRANSACTION, EXCHANGE, BULK = "transaction", "exchange", "bulk"
OF_PAST = frozenset(("asofindex", "asoftimestamp"))
OF_SPARKS_PAST = frozenset(("versionasof", "timestampasof"))
OF_NODES = frozenset(("urls", "keyfile", "serverkeys", "python"))


@dataclass(frozen=True, kw_only=True)
class CatalogueOptions(ReadTuning, WriteTuning):
    """Where the tables are, and how to read and write them."""

    atomic: str = option(
        one_of(ON, OFF),
        "`on`: UPDATE, MERGE and DELETE change all rows in one transaction, or none. `off`: any "
        "number of rows, in one transaction for each part of a task",
        ON,
    )
    overwrite: str = option(
        one_of(TRANSACTION, EXCHANGE, BULK),
        "how rows replace others in one step. `transaction`: at most 8192 rows. `bulk`: any "
        "number, by a [bulk load](tables.md#bulk-loads). `exchange`: any number; another table "
        "gets the name, and clients must open it again",
        TRANSACTION,
    )
    keep_old_s: int = option(
        whole(0, 86_400),
        "seconds that the old rows of an exchange stay for those who have the table open",
        "60",
    )
    python: str | None = option(
        TEXT,
        "the Python command that has kelek, on the driver and each executor; without it Spark's "
        "(`spark.pyspark.python`, `PYSPARK_PYTHON`)",
    )


class TableHandle(NamedTuple):
    """A table as a query found it when it was analysed."""

    given: Mapping[str, str]  # Options of the catalogue, as text.
    name: str
    number: int
    schema: bytes  # As the catalogue of tables has it; empty: keys and values are bytes.
    located: CatalogueOptions  # With addresses in place of zre:// ones.
    as_of: int = 0  # The index of the kept snapshot that a query has named; 0: none.

    def options(self, section: type[Options], more: Mapping[str, str], **others: Any) -> Options:
        """Options of a read or a write.

        more   options that the query gives

        Raises OptionError.
        """
        parsed = self.parsed(more)
        nodes = self.located
        parsed = replace(parsed, urls=nodes.urls, server_keys=nodes.server_keys)
        names = {field.name for field in fields(parsed)}
        shared = {
            field.name: getattr(parsed, field.name)
            for field in fields(section)
            if field.name in names
        }
        return section(**shared, table=self.number, typed=self.schema, **others)

    def parsed(self, more: Mapping[str, str]) -> CatalogueOptions:
        """The options of the catalogue with those that a query gives. Raises OptionError."""
        for name in more:
            if name.lower() in OF_NODES:
                raise OptionError(f"option {name} is for spark.sql.catalog, not for a query")
        given = {
            name.lower(): text for options in (self.given, more) for name, text in options.items()
        }
        return parse_options(CatalogueOptions, given)

    @property
    def table_schema(self) -> TableSchema:
        return TableSchema.decode(self.schema) if self.schema else OF_BYTES

    @property
    def is_atomic(self) -> bool:
        """Whether a statement changes all rows or none."""
        return self.located.atomic == ON

    def reading(self, more: Mapping[str, str], **others: Any) -> TableReadOptions:
        if self.as_of:
            both = [name for name in more if name.lower() in OF_PAST]
            if both:
                raise OptionError(f"option {both[0]}: VERSION or TIMESTAMP AS OF is given, too")
            # Spark leaves its own options there, with which it has loaded this table.
            given = {
                name: text for name, text in more.items() if name.lower() not in OF_SPARKS_PAST
            }
            more = {**given, "asOfIndex": str(self.as_of)}
        return self.options(TableReadOptions, more, **others)

    def writing(self, more: Mapping[str, str], **others: Any) -> TableWriteOptions:
        return self.options(TableWriteOptions, more, **others)


def table_options(given: Mapping[str, str], name: str) -> TableOptions:
    """Options that name a table, which may not exist. Raises OptionError, PipelineError."""
    for option_ in given:
        if option_.lower() in OF_PAST:
            raise OptionError(f"option {option_} is for a query, not for spark.sql.catalog")
    located = parse_options(CatalogueOptions, given).located()
    try:
        table = parse_table(name)
    except ValueError as error:
        raise OptionError(f"{name!r} is no name of a table: {error}") from None
    names = [field.name for field in fields(ServerOptions)]
    return TableOptions(table=table, **{one: getattr(located, one) for one in names})


def current(handle: TableHandle) -> TableHandle:
    """The table that has the name now: another one after an exchange. Raises PipelineError."""
    options = table_options(handle.given, handle.name)
    if isinstance(options.table, int) or handle.as_of:
        return handle
    with connected_table(options) as table:
        number = table.locate()
        if number in (None, handle.number):  # It may have another name now.
            return handle
        schema = table.schema()
    if (schema.encode() if schema else b"") != handle.schema:
        raise PipelineError(
            f"table {handle.name} was replaced by one with other columns: build the frame again"
        )
    return handle._replace(number=number)
