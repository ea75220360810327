"""Defines what a kind of source offers to Spark, and lists the kinds.

Each kind is a package: `options` declares its options, `kind` holds its Kind. Spark calls a kind in
a process of the driver that plans, and pickles what it returns for the tasks. So readers and
writers hold plain values, and their modules import ZeroMQ inside the functions that open a socket.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from .errors import OptionError, PipelineError, SchemaError
from .options import Addressed, parse_options, unknown

Given = Mapping[str, str]  # Options as Spark passes them.
SPARK_TYPES = {
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.timestamp("us", "UTC"): "timestamp",
}


@dataclass
class Kind:
    """A value of the option `kind`. Methods raise PipelineError.

    name       value of the option
    columns    of a read; None: they depend on options
    reads      class of the options, of the reader and of the reader of streams
    writes     class of the options, of the writer and of the writer of streams
    """

    name: str
    columns: pa.Schema = None
    reads: tuple[type[Addressed], type, type] | None = None
    writes: tuple[type[Addressed], type, type] | None = None

    def schema(self, given: Given) -> str:
        """Returns the columns of a read as Spark's DDL."""
        return ", ".join(f"`{field.name}` {spark_type(field.type)}" for field in self.columns)

    def check_columns(self, schema: StructType) -> None:
        """Raises SchemaError unless the columns are those of the kind."""
        wanted = ",".join(f"{field.name}:{spark_type(field.type)}" for field in self.columns)
        if schema.simpleString() != f"struct<{wanted}>":
            raise SchemaError(f"kind {self.name} has the columns {wanted}: leave schema() out")

    def reader(self, given: Given, schema: StructType, load: str = "") -> Any:
        """Returns the reader for spark.read.

        load   token that all plans of one load() or view share
        """
        assert self.reads is not None
        self.check_columns(schema)
        return self.reads[1](parse_options(self.reads[0], given).located())

    def stream_reader(self, given: Given, schema: StructType) -> Any:
        if self.reads is None:
            raise self._cannot("be read as a stream", "use spark.read")
        self.check_columns(schema)
        return self.reads[2](parse_options(self.reads[0], given, "streams").located())

    def writer(self, given: Given, schema: StructType, overwrite: bool) -> Any:
        if self.writes is None:
            raise self._cannot("be written by a batch", "use writeStream")
        options = parse_options(self.writes[0], given, "writes").located()
        return self.writes[1](options, schema, overwrite)

    def stream_writer(self, given: Given, schema: StructType, overwrite: bool) -> Any:
        if self.writes is None:
            raise self._cannot("be written by a stream", "use foreachBatch")
        options = parse_options(self.writes[0], given, "writes").located()
        return self.writes[2](options, schema, overwrite)

    def _cannot(self, done: str, way_out: str) -> PipelineError:
        others = ", ".join(name for name in KINDS if name != self.name)
        return PipelineError(
            f"kind {self.name} can't {done}; {way_out}, or another option kind: {others}"
        )


def spark_type(type_: pa.DataType) -> str:
    """Spark's name of an Arrow type."""
    if pa.types.is_list(type_):
        return f"array<{spark_type(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"map<{spark_type(type_.key_type)},{spark_type(type_.item_type)}>"
    return SPARK_TYPES[type_]


KINDS = ("table", "changes", "log", "stream", "zre", "farm")


def kind_of(given: Given) -> Kind:
    """Returns the kind that the options name, and imports it. Raises OptionError."""
    name = next((value for key, value in given.items() if key.lower() == "kind"), None)
    if name is None:
        raise OptionError(f"option kind is missing; it is one of: {', '.join(KINDS)}")
    if name.lower() not in KINDS:
        raise OptionError(unknown("kind", name, KINDS))
    kind = import_module(f".{name.lower()}.kind", __package__).KIND
    assert isinstance(kind, Kind)
    return kind
