"""`kelek log load`: appends the lines of a file, with a progress bar."""

import time
from collections.abc import Iterator
from typing import IO, NamedTuple

import click

from ...protocols.record import RECORD_BYTES_MAX
from ..cli_errors import FAILED, CliError
from ..loading import open_lines, reporting_progress
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
        open_lines(request.file) as (file, size),
        reporting_progress(
            lines := Lines(file, request), size, "updates", committed_line, request.skip
        ) as note,
        open_log(options) as (log, _),
    ):
        began = time.monotonic()
        count = log.append_many(lines, note)
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


class Lines:
    """The lines of a file as values, and the position in the file."""

    def __init__(self, file: IO[bytes], request: LoadRequest) -> None:
        self.position = 0  # Bytes read from the file.
        self.count = 0  # Values made of them.
        self._file = file
        self.name = request.file
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        left, skip = self._request.limit, self._request.skip
        for number, line in enumerate(self._read(), 1):
            data = line.rstrip(b"\r\n")
            if not data or (number == 1 and self._request.skip_header):
                continue
            if skip:
                skip -= 1
                continue
            if left is not None:
                if left == 0:
                    return
                left -= 1
            if len(data) > RECORD_BYTES_MAX:
                size = f"an entry has at most {RECORD_BYTES_MAX} bytes"
                raise CliError(f"{self._request.file}:{number}: the line is too long; {size}")
            self.count += 1
            yield data

    def _read(self) -> Iterator[bytes]:
        """Lines of at most the largest entry, so that a file without line ends fits the memory."""
        try:
            while line := self._file.readline(RECORD_BYTES_MAX + 3):
                self.position += len(line)
                yield line
        except OSError as error:
            where = f"{self._request.file}: byte {self.position}"
            raise CliError(
                f"{where}: {error.strerror}; nothing after it was sent", FAILED
            ) from error
