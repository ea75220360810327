"""Changes of the catalogue of tables, for the JVM."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...clients.errors import TableNameConflict
from ...clients.table.typed.schema import TableSchema
from ...clients.table.views.kept import AsOf
from ..errors import OptionError
from ..options import parse_options
from ..table.connection import connected_table
from ..table.options import TableOptions
from ..table.typed import columns_of
from .filters import push
from .messages import Channel, packed, unpacked
from .options import OF_BYTES, CatalogueOptions, TableHandle, current, table_options
from .overwrites import Publish, made_staging, without_own

KEY_PROPERTY = "key"
OF_SPARK = ("provider", "owner", "comment", "external", "is_managed_location", "table_type")
KEYS_A_DELETE = 1024


def do_names(channel: Channel, request: Any) -> None:
    with connected_table(table_options(request["options"], "0")) as table:
        names = table.names()
    found = [name for name in without_own(names) if name.startswith(request["prefix"])]
    channel.send({"names": found})


def do_load(channel: Channel, request: Any) -> None:
    as_of = _as_of(request)
    channel.send(loaded(request["options"], request["table"], as_of) or {"missing": True})


def _as_of(request: Any) -> AsOf | None:
    """What a query names by VERSION AS OF, an index or a name, or by TIMESTAMP AS OF."""
    if "timestamp" in request:  # Microseconds.
        return datetime.fromtimestamp(request["timestamp"] / 1e6, UTC)
    version = request.get("version")
    return int(version) if version and version.isascii() and version.isdigit() else version


def loaded(given: Mapping[str, str], name: str, as_of: AsOf | None = None) -> dict[str, Any] | None:
    """What a query needs to know of a table; None: there is none. Raises SnapshotNotKept."""
    index = 0
    with connected_table(table_options(given, name)) as table:
        number = table.locate()
        schema = table.schema() if table.name is not None else None
        if number is None or (table.name is None and table.info() is None):
            return None
        if as_of is not None:
            index = table.find_snapshot(as_of).index
    located = parse_options(CatalogueOptions, given).located()
    data = schema.encode() if schema else b""
    handle = TableHandle(given, name, number, data, located, index)
    schema = schema or OF_BYTES
    return {
        "handle": packed(handle),
        "columns": columns_of(schema, schema.columns, with_nulls=False),
        "key": schema.keys,
        "number": number,
        "index": index,
    }


def do_create(channel: Channel, request: Any) -> None:
    options = table_options(request["options"], request["table"])
    schema = _new_schema(request, options)
    with connected_table(options) as table:
        if table.locate() is not None:
            channel.send({"exists": True})
            return
        table.declare(schema)
    do_load(channel, request)


def do_stage(channel: Channel, request: Any) -> None:
    """Makes a table that gets its name when it has its rows."""
    options, how = table_options(request["options"], request["table"]), Publish(request["publish"])
    schema = _new_schema(request, options)
    with connected_table(options) as table:
        is_there = table.locate() is not None
    if is_there and how == Publish.CREATE:
        channel.send({"exists": True})
    elif not is_there and how == Publish.EXCHANGE:
        channel.send({"missing": True})
    else:
        staging = made_staging(request["options"], request["table"], schema, how)
        found = loaded(request["options"], staging.name)
        assert found is not None
        channel.send({**found, "commit": packed(staging)})


def _new_schema(request: Any, options: TableOptions) -> TableSchema:
    if isinstance(options.table, int):
        raise OptionError(f"a new table has a name, and {options.table} is a number")
    return TableSchema(_arrow_columns(request), _key_of(request["properties"], request["key"]))


def _key_of(properties: Mapping[str, str], primary: list[str]) -> list[str]:
    """The key columns: those of PRIMARY KEY, else of the property `key`. Raises OptionError."""
    unknown = [name for name in properties if name != KEY_PROPERTY and name not in OF_SPARK]
    if unknown:
        raise OptionError(f"unknown property {unknown[0]!r}; known: {KEY_PROPERTY}")
    if primary:
        return primary
    if KEY_PROPERTY not in properties:
        raise OptionError(
            "a table needs a key: PRIMARY KEY (a, b) behind the columns, or TBLPROPERTIES ('key' = "
            "'a, b')"
        )
    return [name.strip() for name in properties[KEY_PROPERTY].split(",")]


def _arrow_columns(request: Any) -> pa.Schema:
    return to_arrow_schema(StructType.fromJson(json.loads(request["columns"])), timezone="UTC")


def do_add_columns(channel: Channel, request: Any) -> None:
    with connected_table(table_options(request["options"], request["table"])) as table:
        schema = table.schema() if table.locate() is not None else None
        if schema is None:
            channel.send({"missing": True})
            return
        columns = pa.schema([*schema.arrow, *_arrow_columns(request)])
        table.declare(TableSchema(columns, schema.keys))
    do_load(channel, request)


def do_drop(channel: Channel, request: Any) -> None:
    with connected_table(table_options(request["options"], request["table"])) as table:
        channel.send({"done": table.drop()})


def do_rename(channel: Channel, request: Any) -> None:
    with connected_table(table_options(request["options"], request["table"])) as table:
        if table.locate() is None:
            channel.send({"missing": True})
            return
        try:
            table.rename(request["name"])
        except TableNameConflict:
            channel.send({"exists": True})
            return
    channel.send({})


def do_delete(channel: Channel, request: Any) -> None:
    """Deletes the rows of some predicates, which ranges of keys express exactly."""
    handle = current(unpacked(request["handle"]))
    found = push(handle.table_schema, request["predicates"])
    if not all(found.exact):
        raise OptionError("these conditions are no ranges of keys")
    wanted = found.wanted
    with connected_table(handle.writing({})) as table:
        for start in range(0, len(wanted.keys or ()), KEYS_A_DELETE):
            table.delete_many((wanted.keys or ())[start : start + KEYS_A_DELETE])
        for first, end in wanted.ranges:
            table.delete_range(start=first, end=end)
    channel.send({})
