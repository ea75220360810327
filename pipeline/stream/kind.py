"""The kind `stream`: the records of a named stream, as a source and a sink."""

from ..kind import Kind
from .options import StreamReadOptions, StreamWriteOptions
from .rows import SCHEMA
from .sink import StreamSinkWriter, StreamWriter
from .source import StreamReader, StreamSourceReader

KIND = Kind(
    "stream",
    SCHEMA,
    (StreamReadOptions, StreamReader, StreamSourceReader),
    (StreamWriteOptions, StreamWriter, StreamSinkWriter),
)
