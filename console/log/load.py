"""`kelek log load`: appends the lines of a file, with a progress bar."""

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

import click

from ...protocols.record import RECORD_BYTES_MAX
from ..cli_errors import FAILED, INTERRUPTED, CliError
from ..options import ClusterOptions
from ..output import show_json, stdin
from .cli import LoadRequest
from .target import open_log


def load(request: LoadRequest, options: ClusterOptions) -> None:
    """Appends the lines of a file, with a progress bar on a terminal."""
    with (
        open_lines(request.file) as (file, size),
        reporting_progress(request.file, committed_line, request.skip) as note,
        open_log(options) as (log, _),
    ):
        began = time.monotonic()
        reader = Lines(file, request)
        with progress_bar(reader, size) as show:
            count = log.append_many(reader, lambda count: (note(count), show and show(count)))
        seconds = time.monotonic() - began
        last_index = log.info().commit_index
    rate = round(count / max(seconds, 1e-9))
    if options.output == "json":
        figures = {"seconds": round(seconds, 3), "updates_per_s": rate, "commit_index": last_index}
        show_json({"updates": count, **figures})
    else:
        click.echo(f"loaded {count:,} updates in {seconds:.1f} s: {rate:,} updates/s")


@contextmanager
def reporting_progress(
    name: str, line: Callable[[object, int], str], skipped: int = 0
) -> Iterator[Callable[[int], None]]:
    """Adds the number of completed rows to the error when a load ends early.

    line   makes the message from the error and the number of rows done or skipped
    """
    done = 0

    def note(count: int) -> None:
        nonlocal done
        done = count

    try:
        yield note
    except CliError as error:
        if not done:
            raise
        raise CliError(line(error, skipped + done), FAILED) from error
    except KeyboardInterrupt:
        raise CliError(line(f"{name}: interrupted", skipped + done), INTERRUPTED) from None


def committed_line(error: object, count: int) -> str:
    return (
        f"{error}; at least the first {count:,} updates are committed: find the last one with "
        "`kelek log entries`, and continue with --skip"
    )


@contextmanager
def open_lines(name: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """The file and its size in bytes, or standard input. Raises CliError when it cannot be read."""
    if name == "-":
        yield stdin(), None
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open("rb"))
            size = file.seek(0, io.SEEK_END) if file.seekable() else None
            if size is not None:
                file.seek(0)
        except OSError as error:
            raise CliError(
                f"{name}: {error.strerror}; give a file that can be read, or -"
            ) from error
        yield file, size


class Lines:
    """The lines of a file as values, and the position in the file."""

    def __init__(self, file: IO[bytes], request: LoadRequest) -> None:
        self.position = 0  # Bytes read from the file.
        self.count = 0  # Values made of them.
        self._file = file
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


class PositionedReader(Protocol):
    """The position in a file."""

    @property
    def position(self) -> int: ...  # In the unit of the size: bytes or rows.
    @property
    def count(self) -> int: ...  # Values made of it.


@contextmanager
def progress_bar(
    reader: PositionedReader, size: int | None, noun: str = "updates"
) -> Iterator[Callable[[int], None] | None]:
    """A progress bar over the size of the file; none without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    if not size:
        yield lambda count: click.echo(f"\r{count:,} {noun}", nl=False, err=True)
        click.echo(err=True)
        return
    steps = max(1, size // 200)
    with click.progressbar(
        length=size, file=sys.stderr, label="loading", update_min_steps=steps
    ) as bar:

        def on_committed(count: int) -> None:
            bar.label = f"{count:,} {noun}"
            # Reading is ahead of the commits.
            position = reader.position * count // max(reader.count, 1)
            bar.update(max(0, position - bar.pos))

        yield on_committed
