"""`kelek table load` and `export`: CSV, JSON lines and Parquet, with a progress bar."""

import base64
import csv
import datetime
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import click

from ...clients.errors import TableError, TableTooLarge
from ...clients.table.arguments import checked_key, checked_range, checked_value
from ..cli_errors import FAILED, CliError
from ..log.load import Progress, lines_of, progress, told_so_far
from ..output import show_json
from ..targets import Where
from .commands import bounds
from .output import data_text, pair_json
from .target import opened_table

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


class Columns(NamedTuple):
    """The columns of a row that are the key and the value."""

    keys: tuple[str, ...]  # Empty: the column key.
    separator: str
    value: str | None  # None: the column value, or all columns.
    encoding: str


class RowReader(Progress, Protocol):
    """The rows of a file, and the position in it."""

    def __iter__(self) -> Iterator[Row]: ...


def load(number: int, name: str, output: str, options: Where) -> None:
    """Stores the rows of a file."""
    form = options["form"] or form_of(name)
    columns = Columns(options["keys"], options["separator"], options["value"], options["encoding"])
    began = time.monotonic()
    with rows_of(name, form) as (reader, size), told_so_far(name, stored_line) as note:
        source = pairs_of(name, reader, columns, options["limit"])
        with opened_table(number, options) as table, progress(reader, size, "rows") as show:
            count = table.put_many(
                source, progress=lambda count: (note(count), show and show(count))
            )
    tell("loaded", count, time.monotonic() - began, output)


def tell(what: str, count: int, seconds: float, output: str) -> None:
    per_s = round(count / max(seconds, 1e-9))
    if output == "json":
        show_json({"rows": count, "seconds": round(seconds, 3), "rows_per_s": per_s})
    else:
        click.echo(f"{what} {count:,} rows in {seconds:.1f} s: {per_s:,} rows/s")


def stored_line(how: object, count: int) -> str:
    return f"{how}; the first {count:,} rows are stored: you can load the file again"


def form_of(name: str) -> str:
    """The format by the file's name. Raises CliError."""
    form = SUFFIXES.get(Path(name).suffix.lower())
    if form is None:
        raise CliError(f"{name}: the name shows no format; add --format csv, jsonl or parquet")
    return form


# ---- reading ----


@contextmanager
def rows_of(name: str, form: str) -> Iterator[tuple[RowReader, int | None]]:
    """The rows of a file, and its size in the unit of their position. Raises CliError."""
    if form == "parquet":
        with parquet_of(name) as found:
            yield found
        return
    with lines_of(name) as (file, size):
        lines = Lines(name, file)
        yield (CsvRows(lines) if form == "csv" else JsonRows(lines)), size


class Lines:
    """The lines of a text file. Bytes that are not UTF-8 pass unchanged."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self.name = name
        self.position = 0
        self.number = 0
        self._file = file

    def __iter__(self) -> Iterator[str]:
        try:
            while line := self._file.readline(LINE_BYTES_MAX):
                self.position += len(line)
                self.number += 1
                yield os.fsdecode(line)
        except OSError as error:
            raise CliError(
                f"{self.name}: byte {self.position}: {error.strerror}", FAILED
            ) from error


class CsvRows:
    """The rows of a CSV file, whose first line names the columns."""

    def __init__(self, lines: Lines) -> None:
        self.taken = 0
        self._lines = lines

    @property
    def position(self) -> int:
        return self._lines.position

    def __iter__(self) -> Iterator[Row]:
        csv.field_size_limit(LINE_BYTES_MAX)
        reader = csv.reader(self._lines, strict=True)
        place = self._lines
        try:
            names = next(reader, None)
            if not names:
                raise CliError(
                    f"{place.name}: the first line of CSV names the columns; it is empty"
                )
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(names):
                    what = f"{len(cells)} cells; the header has {len(names)}"
                    raise CliError(f"{place.name}:{place.number}: {what}")
                self.taken += 1
                yield dict(zip(names, cells, strict=True))
        except csv.Error as error:
            raise CliError(f"{place.name}:{place.number}: {error}") from error


class JsonRows:
    """The rows of a file with one JSON object a line."""

    def __init__(self, lines: Lines) -> None:
        self.taken = 0
        self._lines = lines

    @property
    def position(self) -> int:
        return self._lines.position

    def __iter__(self) -> Iterator[Row]:
        place = self._lines
        for line in place:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise CliError(f"{place.name}:{place.number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise CliError(f"{place.name}:{place.number}: a row is a JSON object")
            self.taken += 1
            yield row


class ParquetRows:
    """Rows of a Parquet file."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.taken = self.position = 0
        self._batches = batches

    def __iter__(self) -> Iterator[Row]:
        for batch in self._batches:
            for row in batch.to_pylist():
                self.taken += 1
                self.position = self.taken
                yield row


@contextmanager
def parquet_of(name: str) -> Iterator[tuple[RowReader, int]]:
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
        yield ParquetRows(file.iter_batches(PARQUET_ROWS)), file.metadata.num_rows


def need_parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise CliError("Parquet needs pyarrow: pip install 'kelek[arrow]'") from error
    return parquet


def pairs_of(name: str, rows: Iterable[Row], columns: Columns, limit: int | None) -> Iterator[Pair]:
    """The key and value of each row. Raises CliError."""
    for number, row in enumerate(rows, 1):
        if limit is not None and number > limit:
            return
        try:
            key, value = pair_of(row, columns)
            yield checked_key(key), checked_value(value)
        except KeyError as error:
            names = ", ".join(map(str, row))
            way_out = f"--key COLUMN; the columns are {names}"
            raise CliError(
                f"{name}: row {number}: no column '{error.args[0]}'; {way_out}"
            ) from error
        except (TableTooLarge, ValueError) as error:
            raise CliError(f"{name}: row {number}: {error}") from error


def pair_of(row: Row, columns: Columns) -> Pair:
    """Raises KeyError, ValueError."""
    if columns.keys:
        key = columns.separator.encode().join(
            cell(row, column, columns.encoding) for column in columns.keys
        )
    else:
        key = cell(row, "key", columns.encoding)
    if columns.value is not None:
        return key, cell(row, columns.value, columns.encoding)
    if not columns.keys and ("value" in row or "value_base64" in row):
        return key, cell(row, "value", columns.encoding)
    if not columns.keys and len(row) == 1:
        raise ValueError("it has no value; add --key key to store the whole row under its key")
    return key, json.dumps(row, default=plain_text).encode("utf-8", "surrogateescape")


def cell(row: Row, column: str, encoding: str) -> bytes:
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


def export(number: int, name: str, output: str, options: Where) -> None:
    """Writes a range to a file."""
    form = options["form"] or form_of(name)
    asked = bounds(options)
    began = time.monotonic()
    with opened_table(number, options) as table:
        total = table.count(**asked) if sys.stderr.isatty() else None
        with target_of(name, form) as file, exported(total) as show:
            whole = options["snapshot"] and not checked_range(**asked).empty
            job = table.range_job(**asked) if whole else None
            if form == "parquet":
                batches = table.chunks_arrow(job) if job else table.to_arrow(**asked)
                counts = write_parquet(file, batches)
            else:
                pages = table.chunks(job) if job else table.scan_pages(**asked)
                counts = write_text(file, pages, form, options["encoding"])
            count = 0
            for count in counts:
                show(count)
    if name != "-":
        tell("exported", count, time.monotonic() - began, output)


@contextmanager
def target_of(name: str, form: str) -> Iterator[IO[bytes]]:
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


@contextmanager
def exported(total: int | None) -> Iterator[Callable[[int], object]]:
    """A progress bar over the rows; none without a terminal."""
    if not total:
        yield lambda count: None
        return
    with click.progressbar(length=total, file=sys.stderr, label="exporting") as bar:
        yield lambda count: bar.update(max(0, min(count, total) - bar.pos))


def csv_text(page: Sequence[Pair], encoding: str) -> str:
    rows = ((encoded(key, encoding), encoded(value, encoding)) for key, value in page)
    return "".join(f"{quoted(key)},{quoted(value)}\n" for key, value in rows)


def quoted(text: str) -> str:
    """A cell of CSV. Python's writer does not quote a lone carriage return, which readers take for
    a line end.
    """
    return '"' + text.replace('"', '""') + '"' if NEEDS_QUOTES.search(text) else text


def encoded(data: bytes, encoding: str) -> str:
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
            text = csv_text(page, encoding)
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
