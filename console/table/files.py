"""`kelek table load` and `export`: CSV, JSON lines and Parquet, with a progress bar."""

import base64
import csv
import datetime
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from ...clients.errors import TableError, TableTooLarge
from ...clients.table.arguments import checked_key, checked_range, checked_value
from ..cli_errors import FAILED, CliError
from ..loading import LoadedFile, open_file, reporting_progress
from ..options import (
    AS_OF,
    TABLE,
    AsOf,
    KeyRange,
    LoadOptions,
    ReadOptions,
    argument,
    command,
    option,
)
from ..render import data_text, pair_json, per_second, progress_bar, show
from .target import open_table

LINE_BYTES_MAX = 128 << 20  # So that a file without line ends fits the memory.
PARQUET_ROWS = 4096  # Read at once.
SUFFIXES = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}

NEEDS_QUOTES = re.compile('[",\r\n]')
Row = dict[str, Any]
Pair = tuple[bytes, bytes]
FORMAT = option("--format", type=click.Choice(["csv", "jsonl", "parquet"]),
                help="Format of FILE (default: by its name).")  # fmt: skip
ENCODING = option("--encoding", type=click.Choice(["utf8", "hex", "base64"]), default="utf8",
                  show_default=True, help="Of keys and values in CSV.")  # fmt: skip


class TableLoadRequest(NamedTuple):
    form: str | None = FORMAT
    keys: tuple[str, ...] = option(
        "--key", multiple=True, metavar="COLUMN",
        help="The key's column; several are joined. Default: key.",
    )  # fmt: skip
    separator: str = option("--separator", default="/", show_default=True,
                            help="Between the columns of a key.")  # fmt: skip
    value: str | None = option(
        "--value", metavar="COLUMN",
        help="The value's column. Default: value if it exists and no --key is given, else all "
             "columns as a JSON object. Other types than text become JSON.",
    )  # fmt: skip
    encoding: str = ENCODING
    limit: int | None = option("--limit", type=click.IntRange(min=1), metavar="N",
                               help="At most N rows.")  # fmt: skip
    bulk: bool = option("--bulk", is_flag=True,
                        help="Fills an empty table in one step.")  # fmt: skip
    replace: bool = option("--replace", is_flag=True,
                           help="Replaces all rows in one step; a bulk load, too.")  # fmt: skip
    file: str = argument(type=click.Path(allow_dash=True))


@command
def load(options: LoadOptions, request: TableLoadRequest, number: int | str = TABLE) -> None:
    """Stores every row of FILE: CSV with a header, JSON lines or Parquet; `-` is standard input.

    \b
    kelek table load 7 flights.csv --key carrier --key time_hour

    With --bulk or --replace readers see none of the rows, or all of them.
    """
    name = request.file
    form = request.form or form_of_name(name)
    bulk = request.bulk or request.replace
    began = time.monotonic()
    with (
        open_rows(name, form) as (file, rows),
        reporting_progress(file, "rows", sent_line if bulk else stored_line) as note,
        open_table(number, options, creates=True) as table,
    ):
        pairs = read_pairs(file, rows, request)
        if bulk:
            count = table.load(pairs, replace=request.replace, progress=note)
        else:
            count = table.put_many(pairs, progress=note)
    show_rate("loaded", count, time.monotonic() - began, options.output)


def show_rate(verb: str, count: int, seconds: float, output: str) -> None:
    per_s = per_second(count, seconds)
    figures = {"rows": count, "seconds": round(seconds, 3), "rows_per_s": per_s}
    show(output, figures, f"{verb} {count:,} rows in {seconds:.1f} s: {per_s:,} rows/s")


def stored_line(error: object, count: int) -> str:
    return f"{error}; the first {count:,} rows are stored: you can load the file again"


def sent_line(error: object, count: int) -> str:
    return f"{error}; {count:,} rows were sent: the table shows all rows of the file, or none"


def form_of_name(name: str) -> str:
    """The format by the file's name. Raises CliError."""
    form = SUFFIXES.get(Path(name).suffix.lower())
    if form is None:
        raise CliError(f"{name}: the name shows no format; add --format csv, jsonl or parquet")
    return form


# ---- reading ----


@contextmanager
def open_rows(name: str, form: str) -> Iterator[tuple[LoadedFile, Iterator[Row]]]:
    """A file and its rows. Raises CliError."""
    if form == "parquet":
        with open_parquet(name) as parquet:
            batches = parquet.iter_batches(PARQUET_ROWS)
            file = LoadedFile(name, io.BytesIO(), parquet.metadata.num_rows)
            yield file, (row for batch in batches for row in batch.to_pylist())
        return
    with open_file(name) as file:
        yield file, csv_rows(file) if form == "csv" else json_rows(file)


def text_lines(file: LoadedFile) -> Iterator[str]:
    """The lines of a text file. Bytes that are not UTF-8 pass unchanged."""
    return map(os.fsdecode, file.lines(LINE_BYTES_MAX))


def csv_rows(file: LoadedFile) -> Iterator[Row]:
    """The rows of a CSV file, whose first line names the columns."""
    csv.field_size_limit(LINE_BYTES_MAX)
    reader = csv.reader(text_lines(file), strict=True)
    try:
        names = next(reader, None)
        if not names:
            raise CliError(f"{file.name}: the first line of CSV names the columns; it is empty")
        for cells in filter(None, reader):
            if len(cells) != len(names):
                what = f"{len(cells)} cells; the header has {len(names)}"
                raise CliError(f"{file.name}:{file.number}: {what}")
            yield dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise CliError(f"{file.name}:{file.number}: {error}") from error


def json_rows(file: LoadedFile) -> Iterator[Row]:
    """The rows of a file with one JSON object a line."""
    for line in text_lines(file):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CliError(f"{file.name}:{file.number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise CliError(f"{file.name}:{file.number}: a row is a JSON object")
        yield row


@contextmanager
def open_parquet(name: str) -> Iterator[Any]:
    parquet = need_parquet()
    import pyarrow

    if name == "-":
        raise CliError("-: Parquet is read from its end; give a file")
    try:
        file = parquet.ParquetFile(name)
    except OSError as error:
        reason = error.strerror or error
        raise CliError(f"{name}: {reason}; give a file that can be read") from error
    except pyarrow.ArrowInvalid as error:
        raise CliError(f"{name}: not Parquet: {str(error).splitlines()[0]}") from error
    with closing(file):
        yield file


def need_parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise CliError("Parquet needs pyarrow: pip install 'kelek[arrow]'") from error
    return parquet


def read_pairs(file: LoadedFile, rows: Iterable[Row], request: TableLoadRequest) -> Iterator[Pair]:
    """The key and value of each row. Raises CliError."""
    name = file.name
    for number, row in enumerate(islice(rows, request.limit), 1):
        file.count = number
        if not file.number:  # Parquet has no lines.
            file.position = number
        try:
            key, value = make_pair(row, request)
            yield checked_key(key), checked_value(value)
        except KeyError as error:
            names = ", ".join(map(str, row))
            way_out = f"--key COLUMN; the columns are {names}"
            raise CliError(
                f"{name}: row {number}: no column '{error.args[0]}'; {way_out}"
            ) from error
        except (TableTooLarge, ValueError) as error:
            raise CliError(f"{name}: row {number}: {error}") from error


def make_pair(row: Row, request: TableLoadRequest) -> Pair:
    """Without --key: the column key; without --value: the column value, or all columns.

    Raises KeyError, ValueError.
    """
    keys, encoding = request.keys, request.encoding
    cells = (decode_cell(row, column, encoding) for column in keys or ("key",))
    key = request.separator.encode().join(cells)
    if request.value is not None:
        return key, decode_cell(row, request.value, encoding)
    if not keys and ("value" in row or "value_base64" in row):
        return key, decode_cell(row, "value", encoding)
    if not keys and len(row) == 1:
        raise ValueError("it has no value; add --key key to store the whole row under its key")
    return key, json.dumps(row, default=plain_text).encode("utf-8", "surrogateescape")


def decode_cell(row: Row, column: str, encoding: str) -> bytes:
    """The bytes of a cell. In JSON lines, COLUMN_base64 also serves as COLUMN."""
    if column not in row and f"{column}_base64" in row:
        column, encoding = f"{column}_base64", "base64"
    value = row[column]
    if isinstance(value, bytes):
        return value
    text = value if isinstance(value, str) else plain_text(value)
    if encoding == "hex":
        return bytes.fromhex(text)
    if encoding == "base64":
        return base64.b64decode(text, validate=True)
    return os.fsencode(text)


def plain_text(value: object) -> str:
    """The text of a number, time or list."""
    if isinstance(value, datetime.date | datetime.datetime | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return json.dumps(value, default=str)


# ---- writing ----


class ExportRequest(NamedTuple):
    form: str | None = FORMAT
    encoding: str = ENCODING
    snapshot: bool = option(
        "--snapshot", is_flag=True,
        help="Write a consistent snapshot. Without it, FILE may have part of the concurrent "
             "writes.",
    )  # fmt: skip
    as_of: AsOf | None = AS_OF
    file: str = argument(type=click.Path(allow_dash=True))


@command
def export(
    options: ReadOptions, key_range: KeyRange, request: ExportRequest, number: int | str = TABLE
) -> None:
    """Writes keys and values to FILE, which `load` can read; `-` is standard output."""
    name = request.file
    form = request.form or form_of_name(name)
    bounds, as_of = key_range.bounds(), request.as_of
    began = time.monotonic()
    with open_table(number, options) as table:
        kept = None if as_of is None else table.find_snapshot(as_of).number
        total = table.count(**bounds) if sys.stderr.isatty() and kept is None else None
        with open_output(name, form) as file, progress_bar("exporting", total) as note:
            consistent = request.snapshot and kept is None and not checked_range(**bounds).empty
            job = table.range_job(**bounds) if consistent else None
            if form == "parquet":
                batches = (
                    table.snapshot_chunks_arrow(kept, **bounds)
                    if kept is not None
                    else table.chunks_arrow(job)
                    if job
                    else table.to_arrow(**bounds, raw=True)
                )
                counts = write_parquet(file, batches)
            else:
                pages = (
                    table.snapshot_chunks(kept, **bounds)
                    if kept is not None
                    else table.chunks(job)
                    if job
                    else table.scan_pages(**bounds)
                )
                counts = write_text(file, pages, form, request.encoding)
            count = 0
            for count in counts:
                note(count)
    if name != "-":
        show_rate("exported", count, time.monotonic() - began, options.output)


@contextmanager
def open_output(name: str, form: str) -> Iterator[IO[bytes]]:
    """The file to write. It gets its name once it is complete. Raises CliError."""
    if name == "-":
        if form == "parquet":
            raise CliError("-: Parquet is binary; give a file")
        yield sys.stdout.buffer
        return
    part = Path(f"{name}.part")
    try:
        file = part.open("wb")
    except OSError as error:
        raise CliError(f"{name}: {error.strerror}; give a file that can be written") from error
    try:
        with file:
            yield file
        part.replace(name)
    except TableError:  # A TableTimeout is an OSError too.
        raise
    except OSError as error:
        raise CliError(f"{name}: {error.strerror}; it is not written", FAILED) from error
    finally:
        part.unlink(missing_ok=True)


def quote(text: str) -> str:
    """A cell of CSV. Python's writer does not quote a lone carriage return, which readers take for
    a line end.
    """
    return '"' + text.replace('"', '""') + '"' if NEEDS_QUOTES.search(text) else text


def encode_cell(data: bytes, encoding: str) -> str:
    """A cell as text. Raises CliError when it is not UTF-8."""
    if encoding == "hex":
        return data.hex()
    if encoding == "base64":
        return base64.b64encode(data).decode()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        way_out = "add --encoding base64, or --format jsonl"
        raise CliError(f"'{data_text(data[:40])}' is not UTF-8; {way_out}", FAILED) from error


def write_text(
    file: IO[bytes], pages: Iterable[Sequence[Pair]], form: str, encoding: str
) -> Iterator[int]:
    """Writes pages of text; yields how many rows are written."""
    count = 0
    if form == "csv":
        file.write(b"key,value\n")
    for page in pages:
        if form == "csv":
            rows = ([quote(encode_cell(cell, encoding)) for cell in pair] for pair in page)
            text = "".join(f"{','.join(row)}\n" for row in rows)
        else:
            text = "".join(f"{pair_json(key, value)}\n" for key, value in page)
        file.write(text.encode())
        count += len(page)
        yield count


def write_parquet(file: IO[bytes], batches: Iterable[Any]) -> Iterator[int]:
    """Writes record batches as row groups; yields how many rows are written."""
    parquet = need_parquet()
    import pyarrow

    schema = pyarrow.schema([("key", pyarrow.binary()), ("value", pyarrow.binary())])
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
            yield count
