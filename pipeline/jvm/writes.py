"""Writes for the JVM: the driver checks the columns, executors put the rows of a stream."""

import base64
import json
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..table.write import check_schema, make_table, write_rows
from .messages import REPORTED, Channel, error_of, packed, unpacked
from .options import current


def do_plan_write(channel: Channel, request: Any) -> None:
    handle = current(unpacked(request["handle"]))
    columns = StructType.fromJson(json.loads(request["columns"]))
    options = handle.writing(request["write"])
    check_schema(options, columns)
    make_table(options)
    arrow = to_arrow_schema(columns, timezone="UTC").serialize().to_pybytes()
    channel.send({"writer": packed(options), "arrow": base64.b64encode(arrow).decode()})


def do_write(channel: Channel, request: Any) -> None:
    """Puts the rows of the stream behind the request."""
    batches = pa.ipc.open_stream(channel.pipe)
    try:
        written = write_rows(unpacked(request["writer"]), iter(batches))
    except REPORTED as error:
        channel.send(error_of(error))
        for _ in batches:
            pass  # The JVM sees the error once what it sends now is read.
        return
    channel.send({"puts": written.puts})
