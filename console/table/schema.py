"""The command `kelek table schema`: shows the columns of a table, or declares them."""

from typing import NamedTuple

from ...clients.errors import TableSchemaError
from ...clients.table.table import Table
from .. import render
from ..cli_errors import FAILED, CliError
from ..options import TABLE, OutputOptions, command, option
from .target import open_table


class SchemaRequest(NamedTuple):
    columns: str | None = option(
        "--columns", metavar="TEXT", help="As `day date32, id int64, price decimal(12, 2)`."
    )
    key: str | None = option("--key", metavar="NAMES", help="Key columns, joined by commas.")


@command
def schema(options: OutputOptions, request: SchemaRequest, number: int | str = TABLE) -> None:
    """Shows the columns of TABLE; with --columns and --key it declares them, or adds some.

    A table gets its columns before its first row. Later ones are added behind them and are null in
    the rows that exist.
    """
    if (request.columns is None) != (request.key is None):
        missing = "--columns" if request.columns is None else "--key"
        raise CliError(f"{missing} is missing: a schema has columns and a key")
    with open_table(number, options, creates=request.columns is not None) as table:
        try:
            show(table, request, options.output)
        except TableSchemaError as error:
            raise CliError(f"table {number}: {error}", FAILED) from error


def show(table: Table, request: SchemaRequest, output: str) -> None:
    found = table.schema()
    if request.columns is not None:
        names = [name.strip() for name in (request.key or "").split(",")]
        found = table.declare(request.columns, key=names)
    if found is None:
        raise TableSchemaError("it has no schema; --columns and --key give it one")
    fields = str(found)
    known = {"columns": fields, "key": [*found.keys]}
    render.show(output, known, f"columns  {fields}\nkey      {', '.join(found.keys)}")
