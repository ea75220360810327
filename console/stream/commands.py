"""The commands of `kelek stream` over a kelek.Stream."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import click

from ...clients.stream.core import StreamInfo
from ...clients.stream.layout import (
    BATCH_BYTES_MAX,
    OFFSET_MAX,
    PARTITIONS,
    PARTITIONS_MAX,
    StreamRecord,
)
from ...clients.stream.reader import Start
from .. import render
from ..cli_errors import FAILED, CliError
from ..options import DATA, SIZE, Seconds, ServerOptions, argument, command, option
from .target import AGE, NAME, START, OutputOptions, StreamPlace, missing, open_stream

QUIET_S_MAX = 86_400


class RetentionOptions(NamedTuple):
    """What a stream keeps."""

    max_age_s: float | None = option(
        "--max-age", type=AGE, metavar="AGE", help="Records of so long: 3600, 60m, 24h, 7d."
    )
    max_bytes: int | None = option(
        "--max-size", type=SIZE, metavar="SIZE", help="Batches of so many bytes: 4096, 100MiB."
    )
    max_records: int | None = option(
        "--max-records", type=click.IntRange(1, OFFSET_MAX), metavar="N", help="So many records."
    )


@command
def list_(options: OutputOptions, place: StreamPlace) -> None:
    """Prints all streams: name, first and next offset, bytes."""
    with open_stream("list", options, place) as stream:
        found = stream.streams()
    rows = [info_json(each) for each in found]
    render.show_rows(options.output, rows, ["name", "first", "next", "size"])


@command
def create(
    options: ServerOptions,
    place: StreamPlace,
    kept: RetentionOptions,
    name: str = NAME,
    partitions: int = option(
        "--partitions",
        type=click.IntRange(1, PARTITIONS_MAX),
        metavar="N",
        default=PARTITIONS,
        show_default=True,
        help="Into which groups divide the records, for ever.",
    ),
) -> None:
    """Creates the stream NAME. The first append does it, too, with the default settings."""
    with open_stream(name, options, place) as stream:
        if not stream.create(partitions=partitions, **kept._asdict()):
            way_out = f"to change what it keeps: kelek stream retain {name}"
            raise CliError(f"stream {name}: exists already; {way_out}", FAILED)


@command
def retain(
    options: ServerOptions, place: StreamPlace, kept: RetentionOptions, name: str = NAME
) -> None:
    """Sets what the stream NAME keeps; without options it keeps all.

    Appends remove what is older, as whole batches; so does `kelek stream trim`.
    """
    with open_stream(name, options, place) as stream:
        if stream.info() is None:
            raise missing(name)
        stream.retain(**kept._asdict())


class AppendRequest(NamedTuple):
    key: bytes | None = option("--key", type=DATA, metavar="KEY",
                               help="Records of one key stay in order.")  # fmt: skip
    headers: tuple[str, ...] = option("--header", multiple=True, metavar="NAME=VALUE",
                                      help="A header; repeatable.")  # fmt: skip
    producer: str | None = option(
        "--producer", metavar="ID",
        help="Append each once: a repeat with the same ID leaves out those it has.",
    )  # fmt: skip
    values: tuple[bytes, ...] = argument(metavar="[VALUE...]", type=DATA, nargs=-1)


@command
def append(
    options: OutputOptions, place: StreamPlace, request: AppendRequest, name: str = NAME
) -> None:
    """Appends each VALUE to the stream NAME, or each line of standard input.

    Prints how many records it has appended, and the offset of the next one.
    """
    headers = checked_headers(request.headers)
    if request.producer == "":
        raise CliError("--producer: an ID has a character at least")
    with open_stream(name, options, place) as stream:
        values = request.values or lines()
        records = (StreamRecord(value, request.key, headers) for value in values)
        if request.producer is None:
            count = stream.append_many(records)
        else:
            count = stream.producer(request.producer).append_many(records, sequence=1)
        info = stream.info()
    behind = info.next if info else 0
    found = {"appended": count, "next": behind}
    render.show(options.output, found, f"{count:,} appended, the next offset is {behind}")


def checked_headers(given: Iterable[str]) -> dict[str, str | bytes]:
    """Raises CliError."""
    found: dict[str, str | bytes] = {}
    for each in given:
        name, is_there, value = each.partition("=")
        if not is_there or not name:
            raise CliError(f"--header: {each!r} is no NAME=VALUE")
        found[name] = value
    return found


def lines() -> Iterator[bytes]:
    """The lines of standard input, without their ends."""
    from ..loading import open_file  # Imported here: VALUEs need no file.

    with open_file("-") as file:
        for line in file.lines(BATCH_BYTES_MAX):
            yield line.removesuffix(b"\n").removesuffix(b"\r")


class ReadRequest(NamedTuple):
    start: Start = option("--start", type=START, metavar="START", default="first",
                          show_default=True, help="Where to begin.")  # fmt: skip
    limit: int | None = option("-n", "--limit", type=click.IntRange(0, OFFSET_MAX), metavar="N",
                               help="At most N records.")  # fmt: skip
    values_only: bool = option("--values", is_flag=True, help="Print only values.")


@command
def read(
    options: OutputOptions, place: StreamPlace, request: ReadRequest, name: str = NAME
) -> None:
    """Prints the records of the stream NAME up to the last one: offset, time, key, value."""
    show = record_printer(options.output, request.values_only)
    with open_stream(name, options, place) as stream:
        if stream.info() is None:
            raise missing(name)
        for record in stream.read(request.start, limit=request.limit):
            show(record)


class TailRequest(NamedTuple):
    start: Start = option("--start", type=START, metavar="START", default="end",
                          show_default=True, help="Where to begin.")  # fmt: skip
    limit: int | None = option("-n", "--limit", type=click.IntRange(1, OFFSET_MAX), metavar="N",
                               help="End after N records.")  # fmt: skip
    timeout_s: float | None = option("--quiet", type=Seconds(0.001, QUIET_S_MAX),
                                     metavar="SECONDS",
                                     help="End after so long without a record.")  # fmt: skip
    values_only: bool = option("--values", is_flag=True, help="Print only values.")


@command
def tail(
    options: OutputOptions, place: StreamPlace, request: TailRequest, name: str = NAME
) -> None:
    """Prints new records of the stream NAME as they come, until it is interrupted.

    To go on later, give --start the offset of the last record printed, plus 1.
    """
    show = record_printer(options.output, request.values_only)
    left = request.limit
    with open_stream(name, options, place) as stream:
        for found in stream.tail_lists(request.start, timeout_s=request.timeout_s):
            for record in found[:left]:
                show(record)
            sys.stdout.flush()
            if left is not None:
                left -= len(found)
                if left <= 0:
                    return


def record_printer(output: str, values_only: bool) -> Any:
    if values_only and output == "json":
        raise CliError("--values: -o json is given too; leave one of them out")
    if values_only:
        return lambda record: click.echo(record.value)
    return render.printer(output, record_json, record_text)


def record_text(record: StreamRecord) -> str:
    key = "-" if record.key is None else render.data_text(record.key)
    names = [f"{name}={header_text(value)}" for name, value in record.headers.items()]
    more = f"  [{', '.join(names)}]" if names else ""
    time = render.time_text(record.time_ms)
    return f"{record.offset:>8}  {time}  {key}  {render.data_text(record.value)}{more}"


def header_text(value: str | bytes) -> str:
    return render.data_text(value.encode() if isinstance(value, str) else value)


def record_json(record: StreamRecord) -> dict[str, object]:
    return {
        "offset": record.offset,
        "time": render.time_text(record.time_ms),
        **render.data_json("key", record.key),
        **render.data_json("value", record.value),
        "headers": {name: header_text(value) for name, value in record.headers.items()},
    }


@command
def info(options: OutputOptions, place: StreamPlace, name: str = NAME) -> None:
    """Prints what the stream NAME holds and keeps."""
    with open_stream(name, options, place) as stream:
        found = stream.info()
    if found is None:
        raise missing(name)
    shown = [
        f"stream {found.name}",
        f"  {'records':<14} {found.records:,}, from {found.first} to below {found.next}",
        f"  {'size':<14} {found.size:,} bytes",
        f"  {'partitions':<14} {found.partitions}",
        f"  {'keeps':<14} {kept_text(found)}",
    ]
    if found.records:
        times = render.time_text(found.first_time_ms), render.time_text(found.last_time_ms)
        shown.insert(2, f"  {'times':<14} {' to '.join(times)}")
    render.show(options.output, info_json(found), *shown)


def kept_text(found: StreamInfo) -> str:
    kept = [
        f"{found.max_age_s:,.0f} s" if found.max_age_s else "",
        f"{found.max_bytes:,} bytes" if found.max_bytes else "",
        f"{found.max_records:,} records" if found.max_records else "",
    ]
    return ", ".join(filter(None, kept)) or "all"


def info_json(found: StreamInfo) -> dict[str, Any]:
    return {**found._asdict(), "records": found.records}


@command
def trim(
    options: OutputOptions,
    place: StreamPlace,
    name: str = NAME,
    before: int | None = option("--before", type=click.IntRange(0, OFFSET_MAX), metavar="OFFSET",
                                help="Batches below OFFSET instead."),
) -> None:  # fmt: skip
    """Removes the batches that the stream NAME need not keep, and prints the first offset left."""
    with open_stream(name, options, place) as stream:
        if stream.info() is None:
            raise missing(name)
        first = stream.trim(before)
    render.show(options.output, {"first": first}, first)


@command
def drop(
    options: ServerOptions,
    place: StreamPlace,
    name: str = NAME,
    yes: bool = option("--yes", is_flag=True, help="Do it."),
) -> None:
    """Deletes the stream NAME with its groups and producers. Stop those that append before."""
    with open_stream(name, options, place) as stream:
        found = stream.info()
        if found is None:
            raise missing(name)
        if not yes:
            records = f"{found.records:,} {'record' if found.records == 1 else 'records'}"
            raise CliError(f"stream {name}: {records} would be deleted; add --yes to do it")
        stream.delete()
