"""The kind `log`: the entries of the replicated log, in order, as a source and a sink."""

from ...clients.table.arrow import ENTRY_SCHEMA
from ..kind import Kind
from .options import LogReadOptions, LogWriteOptions
from .sink import LogStreamWriter, LogWriter
from .source import LogReader, LogStreamReader

KIND = Kind(
    "log",
    ENTRY_SCHEMA,
    (LogReadOptions, LogReader, LogStreamReader),
    (LogWriteOptions, LogWriter, LogStreamWriter),
)
