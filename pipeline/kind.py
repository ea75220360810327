"""Defines what a kind of source offers to Spark, and lists the kinds."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from .errors import OptionError, PipelineError
from .options import unknown

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

Given = Mapping[str, str]  # Options as Spark passes them.


class Kind:
    """A value of the option `kind`. A method that is not overridden reports that the kind lacks it.

    Spark calls all methods in a Python process of the driver, which may differ between calls. It
    pickles what they return. So these objects hold plain values and create sockets only in use.
    """

    name = ""

    def schema(self, given: Given) -> "StructType | str":
        """Returns the columns of a read as Spark's DDL or type. Raises PipelineError."""
        raise self._cannot("be read", "it is for writing")

    def reader(self, given: Given, schema: "StructType", load: str = "") -> "DataSourceReader":
        """Returns the reader for spark.read. Raises PipelineError.

        load   token that all plans of one load() or view share
        """
        raise self._cannot("be read as a batch", "use spark.readStream")

    def stream_reader(self, given: Given, schema: "StructType") -> "DataSourceStreamReader":
        """Returns the reader for spark.readStream. Raises PipelineError."""
        raise self._cannot("be read as a stream", "use spark.read")

    def writer(self, given: Given, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """Returns the writer for df.write. Raises PipelineError."""
        raise self._cannot("be written by a batch", "use writeStream")

    def stream_writer(
        self, given: Given, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        """Returns the writer for df.writeStream. Raises PipelineError."""
        raise self._cannot("be written by a stream", "use foreachBatch")

    def _cannot(self, done: str, way_out: str) -> PipelineError:
        others = ", ".join(name for name in KINDS if name != self.name)
        return PipelineError(
            f"kind {self.name} can't {done}; {way_out}, or another option kind: {others}"
        )


# Each module holds a Kind named KIND. kind_of() imports the module at its first use.
KINDS = {
    "table": ".table.kind",
    "log": ".log.kind",
    "zre": ".zre.kind",
    "farm": ".farm.kind",
}


def kind_of(given: Given) -> Kind:
    """Returns the kind that the options name. Raises OptionError."""
    name = next((value for key, value in given.items() if key.lower() == "kind"), None)
    if name is None:
        raise OptionError(f"option kind is missing; it is one of: {', '.join(KINDS)}")
    if name.lower() not in KINDS:
        raise OptionError(unknown("kind", name, KINDS))
    kind = import_module(KINDS[name.lower()], __package__).KIND
    assert isinstance(kind, Kind)
    return kind
