"""`kelek log load`: appends the lines of a file, with a progress bar."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import click

from ...protocols.record import RECORD_BYTES_MAX
from ..cli_errors import CliError
from ..loading import LoadedFile, open_file, reporting_progress
from ..options import ClusterOptions, argument, command, option
from ..render import per_second, show
from .target import open_log


class LoadRequest(NamedTuple):
    skip_header: bool = option("--skip-header", is_flag=True, help="Leave out the first line.")
    limit: int | None = option("--limit", type=click.IntRange(min=1), metavar="N",
                               help="At most N lines.")  # fmt: skip
    skip: int = option("--skip", type=click.IntRange(min=0), default=0, metavar="N",
                       help="Leave out the first N entries.")  # fmt: skip
    file: str = argument(type=click.Path(allow_dash=True))


@command
def load(options: ClusterOptions, request: LoadRequest) -> None:
    """Appends every line of FILE as one entry, in order; `-` is standard input.

    It leaves out line ends and empty lines.
    """
    with (
        open_file(request.file) as file,
        reporting_progress(file, "updates", committed_line, request.skip) as note,
        open_log(options) as (log, _),
    ):
        began = time.monotonic()
        count = log.append_many(read_values(file, request), note)
        seconds = time.monotonic() - began
        last_index = log.info().commit_index
    rate = per_second(count, seconds)
    figures = {"seconds": round(seconds, 3), "updates_per_s": rate, "commit_index": last_index}
    text = f"loaded {count:,} updates in {seconds:.1f} s: {rate:,} updates/s"
    show(options.output, {"updates": count, **figures}, text)


def committed_line(error: object, count: int) -> str:
    return (
        f"{error}; at least the first {count:,} updates are committed: find the last one with "
        "`kelek log entries`, and continue with --skip"
    )


def read_values(file: LoadedFile, request: LoadRequest) -> Iterator[bytes]:
    """The lines of a file as values. Raises CliError."""
    skip = request.skip
    # A line is cut behind the largest entry, so that a file without line ends fits the memory.
    for line in file.lines(RECORD_BYTES_MAX + 3, "; nothing after it was sent"):
        data = line.rstrip(b"\r\n")
        if not data or (file.number == 1 and request.skip_header):
            continue
        if skip:
            skip -= 1
            continue
        if file.count == request.limit:
            return
        if len(data) > RECORD_BYTES_MAX:
            size = f"an entry has at most {RECORD_BYTES_MAX} bytes"
            raise CliError(f"{file.name}:{file.number}: the line is too long; {size}")
        file.count += 1
        yield data
