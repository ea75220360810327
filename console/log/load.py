"""`kelek log load`: the lines of a file as updates, with progress for those who watch."""

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import click

from ...protocols.record import RECORD_BYTES_MAX
from ..cli_errors import FAILED, INTERRUPTED, CliError
from ..output import show_json, stdin
from ..targets import Where
from .target import opened


class LoadOptions(NamedTuple):
    file: str
    skip_header: bool
    limit: int | None
    skip: int = 0  # So many updates of the file are left out, from its first.


def load(options: LoadOptions, output: str, where: Where) -> None:
    """Appends the lines of a file, with a progress bar when somebody watches."""
    with (
        lines_of(options.file) as (file, size),
        told_so_far(options.file, committed_line, options.skip) as note,
        opened(where) as (log, _),
    ):
        began = time.monotonic()
        reader = Lines(file, options)
        with progress(reader, size) as show:
            count = log.append_many(reader, lambda count: (note(count), show and show(count)))
        seconds = time.monotonic() - began
        last_index = log.info().commit_index
    rate = round(count / max(seconds, 1e-9))
    if output == "json":
        figures = {"seconds": round(seconds, 3), "updates_per_s": rate, "commit_index": last_index}
        show_json({"updates": count, **figures})
    else:
        click.echo(f"loaded {count:,} updates in {seconds:.1f} s: {rate:,} updates/s")


@contextmanager
def told_so_far(
    name: str, line: Callable[[object, int], str], skipped: int = 0
) -> Iterator[Callable[[int], None]]:
    """A load that ends early says how far it came: what it has noted is done, from the first.

    line      how it ended and how much was done, with what was skipped -> what is said
    """
    done = 0

    def note(count: int) -> None:
        nonlocal done
        done = count

    try:
        yield note
    except CliError as ending:
        if not done:
            raise
        raise CliError(line(ending, skipped + done), FAILED) from ending
    except KeyboardInterrupt:
        raise CliError(line(f"{name}: interrupted", skipped + done), INTERRUPTED) from None


def committed_line(how: object, count: int) -> str:
    return (
        f"{how}; at least the first {count:,} updates are committed: see with `kelek log entries` "
        "which was the last, and go on with --skip"
    )


@contextmanager
def lines_of(name: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """The file and its size, or standard input. Raises CliError when it can't be read."""
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
    """The lines of a file as updates, and how far it has been read."""

    def __init__(self, file: IO[bytes], options: LoadOptions) -> None:
        self.position = 0  # Bytes taken from the file.
        self.taken = 0  # Updates made of them.
        self._file = file
        self._options = options

    def __iter__(self) -> Iterator[bytes]:
        left, skip = self._options.limit, self._options.skip
        for number, line in enumerate(self._read(), 1):
            data = line.rstrip(b"\r\n")
            if not data or (number == 1 and self._options.skip_header):
                continue
            if skip:
                skip -= 1
                continue
            if left is not None:
                if left == 0:
                    return
                left -= 1
            if len(data) > RECORD_BYTES_MAX:
                size = f"at most {RECORD_BYTES_MAX} bytes make an entry"
                raise CliError(f"{self._options.file}:{number}: the line is too long; {size}")
            self.taken += 1
            yield data

    def _read(self) -> Iterator[bytes]:
        """Lines with a largest length: a file without line ends must not fill the memory."""
        try:
            while line := self._file.readline(RECORD_BYTES_MAX + 3):
                self.position += len(line)
                yield line
        except OSError as error:
            place = f"{self._options.file}: byte {self.position}"
            raise CliError(
                f"{place}: {error.strerror}; nothing behind it was sent", FAILED
            ) from error


class Progress(Protocol):
    """How far a file has been read."""

    @property
    def position(self) -> int: ...  # In what its size is in: bytes, or rows.
    @property
    def taken(self) -> int: ...  # What was made of it.


@contextmanager
def progress(
    reader: Progress, size: int | None, noun: str = "updates"
) -> Iterator[Callable[[int], None] | None]:
    """A bar over the size of the file; nothing when nobody watches."""
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
            # What was read runs ahead of what is committed.
            position = reader.position * count // max(reader.taken, 1)
            bar.update(max(0, position - bar.pos))

        yield on_committed
