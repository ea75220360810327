"""INSERT OVERWRITE: rows in the place of others, in one step.

By default the driver gets the rows of all tasks, and puts them in the place of the others in one
transaction. With the option overwrite=exchange the tasks fill a staging table, which then gets the
name of the table. The old rows stay for a while, as clients have the table open.
"""

import base64
import json
import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...clients.errors import Error, TableError, TableNameConflict
from ...clients.table.arguments import Range
from ...clients.table.typed.schema import TableSchema
from ..errors import OptionError, PipelineError
from ..options import parse_options
from ..table.bulk import abort_bulk, begin_bulk, commit_bulk, send_rows
from ..table.connection import connected_table
from ..table.options import TableWriteOptions
from ..table.read import WantedKeys
from ..table.write import check_schema, paced_puts
from .deltas import BYTES_MAX, ROWS_MAX, key_value_pairs
from .filters import push
from .messages import REPORTED, Channel, error_of, packed, unpacked
from .options import BULK, EXCHANGE, CatalogueOptions, TableHandle, current, table_options

if TYPE_CHECKING:
    from ...clients.table.table import Table

STAGING = "_staging."  # Names of staging tables, with the time when they were made.
REPLACED = "_replaced."  # Names of old rows, with the time when they may be dropped.
_OWN_NAME = re.compile(r"(_staging|_replaced)\.(\d+)\.[0-9a-f]+")
KEEP_S = 3 * 86_400  # Staging tables that are older have lost their driver.


class OverwritePlan(NamedTuple):
    """What the tasks and the commit of an overwrite need."""

    handle: TableHandle
    options: TableWriteOptions
    wanted: WantedKeys  # The rows that are replaced.


class BulkPlan(NamedTuple):
    """A bulk load that replaces all rows."""

    options: TableWriteOptions
    load: bytes


class Publish(Enum):
    """How a staging table gets its name."""

    EXCHANGE = "exchange"  # In place of a table, which must exist.
    CREATE = "create"  # There must be no table.
    REPLACE = "replace"  # Whether there is one or not.


class Staging(NamedTuple):
    """A staging table, and the name that it gets."""

    given: Mapping[str, str]  # Options of the catalogue.
    name: str
    number: int
    target: str
    publish: Publish
    keep_s: int  # Old rows stay so long.

    def opened(self) -> AbstractContextManager["Table"]:
        return connected_table(table_options(self.given, self.name))


# ---- one transaction ----


def do_plan_overwrite(channel: Channel, request: Any) -> None:
    """Checks the columns in the driver; makes a staging table if there is to be one."""
    handle = current(unpacked(request["handle"]))
    columns = StructType.fromJson(json.loads(request["columns"]))
    options = handle.writing(request["write"])
    check_schema(options, columns)
    found = push(handle.table_schema, request["predicates"])
    if not all(found.exact):
        raise OptionError("overwrite() takes conditions on the first key columns alone")
    arrow = to_arrow_schema(columns, timezone="UTC").serialize().to_pybytes()
    response = {"arrow": base64.b64encode(arrow).decode()}
    how = handle.parsed(request["write"]).overwrite
    if how == BULK:
        if found.wanted != WantedKeys([Range()]):
            raise OptionError("option overwrite=bulk replaces all rows; leave the condition out")
        plan = packed(BulkPlan(options, begin_bulk(options, overwrite=True)))
        channel.send({**response, "op": "bulk", "writer": plan, "commit": plan})
        return
    if how != EXCHANGE:
        plan = packed(OverwritePlan(handle, options, found.wanted))
        channel.send({**response, "op": "rows", "writer": plan, "commit": plan})
        return
    if found.wanted != WantedKeys([Range()]):
        raise OptionError("option overwrite=exchange replaces all rows; leave the condition out")
    if not handle.schema:
        raise OptionError("option overwrite=exchange is for tables with a schema")
    staging = made_staging(handle.given, handle.name, handle.table_schema, Publish.EXCHANGE)
    staging = staging._replace(keep_s=handle.parsed(request["write"]).keep_old_s)
    filled = packed(replace(options, table=staging.number))
    channel.send({**response, "op": "write", "writer": filled, "commit": packed(staging)})


def do_rows(channel: Channel, request: Any) -> None:
    """Collects the rows of a task from the stream behind the request."""
    plan: OverwritePlan = unpacked(request["writer"])
    batches = pa.ipc.open_stream(channel.pipe)
    rows: dict[bytes, bytes] = {}
    size = 0
    try:
        for batch in batches:
            if is_too_large(rows, size):
                continue  # The driver says so: Spark would try this task again.
            for key, value in key_value_pairs(plan.handle, batch):
                rows[key] = value
                size += len(key) + len(value)
    except REPORTED as error:
        channel.send(error_of(error))
        for _ in batches:
            pass  # The JVM sees the error once what it sends now is read.
        return
    data = b"" if is_too_large(rows, size) else msgpack.packb([*rows.items()])
    channel.send({"text": base64.b64encode(data).decode()})


def do_bulk(channel: Channel, request: Any) -> None:
    """Sends the rows of a task, from the stream behind the request, to a bulk load."""
    plan: BulkPlan = unpacked(request["writer"])
    batches = pa.ipc.open_stream(channel.pipe)
    try:
        sent = send_rows(plan.options, plan.load, paced_puts(plan.options, iter(batches)))
    except REPORTED as error:
        channel.send(error_of(error))
        for _ in batches:
            pass  # The JVM sees the error once what it sends now is read.
        return
    channel.send({"text": packed(sent.run)})


def is_too_large(rows: dict[bytes, bytes], size: int) -> bool:
    return len(rows) > ROWS_MAX or size > BYTES_MAX


def do_commit_overwrite(channel: Channel, request: Any) -> None:
    """Replaces rows, after all tasks have succeeded. It may be repeated."""
    plan: OverwritePlan | BulkPlan | Staging = unpacked(request["commit"])
    if isinstance(plan, Staging):
        commit_staging(plan)
    elif isinstance(plan, BulkPlan):
        runs = [unpacked(text) for text in request["texts"]]
        commit_bulk(plan.options, plan.load, runs, True)
    else:
        replace_rows(plan, request["texts"])
    channel.send({})


def do_abort_overwrite(channel: Channel, request: Any) -> None:
    """Drops a staging table or a bulk load after a failure."""
    plan: OverwritePlan | BulkPlan | Staging = unpacked(request["commit"])
    if isinstance(plan, Staging):
        abort_staging(plan)
    elif isinstance(plan, BulkPlan):
        abort_bulk(plan.options, plan.load)
    channel.send({})


def replace_rows(plan: OverwritePlan, texts: list[str]) -> None:
    """Replaces rows in one transaction by those of all tasks. Raises PipelineError."""
    rows: dict[bytes, bytes] = {}
    all_fit = all(texts)
    for text in texts if all_fit else ():
        rows |= dict(map(tuple, msgpack.unpackb(base64.b64decode(text))))
    size = sum(len(key) + len(row) for key, row in rows.items())
    gone = len(plan.wanted.keys or ()) + len(plan.wanted.ranges)
    if not all_fit or is_too_large(rows, size) or len(rows) + gone > ROWS_MAX:
        raise PipelineError(
            f"the rows are more than one transaction holds ({ROWS_MAX} rows, {BYTES_MAX >> 20} "
            "MiB); nothing was changed. Replace fewer rows, or use the option overwrite=exchange"
        )
    with connected_table(plan.options) as table:
        batch = table.batch().delete(*plan.wanted.keys or ())
        for first, end in plan.wanted.ranges:
            batch.delete_range(first, end)
        table.commit(batch.put_many(rows.items()))


# ---- a staging table ----


def made_staging(
    given: Mapping[str, str], target: str, schema: TableSchema, publish: Publish
) -> Staging:
    """An empty table with a schema, which is to get the name `target`."""
    name = own_name(STAGING, time.time())
    options = table_options(given, name)
    with connected_table(options) as table:
        sweep(table, given)
        table.declare(schema)
        keep_s = parse_options(CatalogueOptions, given).keep_old_s
        return Staging(given, name, table.number, target, publish, keep_s)


def own_name(kind: str, time_s: float) -> str:
    return f"{kind}{int(time_s)}.{secrets.token_hex(8)}"


def sweep(table: "Table", given: Mapping[str, str]) -> None:
    """Drops what drivers have left behind when they ended: staging tables and old rows."""
    for name in table.names():
        made = _OWN_NAME.fullmatch(name)
        if made and int(made[2]) + (KEEP_S if name.startswith(STAGING) else 0) < time.time():
            with suppress(TableError), connected_table(table_options(given, name)) as old:
                drop(old)


def commit_staging(staging: Staging) -> None:
    """Gives the staging table its name, and sees to it that the old rows are dropped. It may be
    repeated.

    Raises PipelineError.
    """
    with staging.opened() as table:
        if table.locate() == staging.number:
            publish(table, staging)
    with staging.opened() as old:
        if old.locate() in (None, staging.number):
            return
        if staging.keep_s == 0:
            drop(old)
            return
        name = own_name(REPLACED, time.time() + staging.keep_s)
        old.rename(name)
    timer = threading.Timer(staging.keep_s, _drop_later, (staging.given, name))
    timer.daemon = True  # If this process ends before, the sweep of another overwrite drops it.
    timer.start()


def publish(table: "Table", staging: Staging) -> None:
    """Raises PipelineError."""
    with connected_table(table_options(staging.given, staging.target)) as target:
        is_there = target.locate() is not None
    try:
        if is_there and staging.publish != Publish.CREATE:
            table.exchange(staging.target)
        elif not is_there and staging.publish == Publish.EXCHANGE:
            raise PipelineError(f"table {staging.target} was dropped or renamed meanwhile")
        else:
            table.rename(staging.target)
    except TableNameConflict as error:
        raise PipelineError(f"{error}; nothing was changed") from error


def abort_staging(staging: Staging) -> None:
    """Drops a staging table that has not got its name."""
    with staging.opened() as table:
        if table.locate() == staging.number:
            drop(table)


def _drop_later(given: Mapping[str, str], name: str) -> None:
    with suppress(Error), connected_table(table_options(given, name)) as table:
        drop(table)


def drop(table: "Table") -> None:
    """Drops a table of this module. If this process ends between, its name leads to it."""
    table.truncate()
    table.drop()


def without_own(names: Iterable[str]) -> list[str]:
    """The names of users' tables."""
    return sorted(name for name in names if not _OWN_NAME.fullmatch(name))
