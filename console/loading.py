"""Files that commands load: how they are opened, and the progress of a load."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

import click

from .cli_errors import FAILED, INTERRUPTED, CliError
from .render import BAR_STEPS, stdin


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


class PositionedReader(Protocol):
    """The position in a file."""

    @property
    def name(self) -> str: ...
    @property
    def position(self) -> int: ...  # In the unit of the size: bytes or rows.
    @property
    def count(self) -> int: ...  # Values made of it.


@contextmanager
def reporting_progress(
    reader: PositionedReader,
    size: int | None,
    noun: str,
    line: Callable[[object, int], str],
    skipped: int = 0,
) -> Iterator[Callable[[int], None]]:
    """Takes the number of completed rows: shows it on a terminal, and adds it to an error.

    line   makes the message from the error and the number of rows done or skipped
    """
    done = 0

    def note(count: int) -> None:
        nonlocal done
        done = count
        draw(count)

    with drawn_progress(reader, size, noun) as draw:
        try:
            yield note
        except CliError as error:
            if not done:
                raise
            raise CliError(line(error, skipped + done), FAILED) from error
        except KeyboardInterrupt:
            message = line(f"{reader.name}: interrupted", skipped + done)
            raise CliError(message, INTERRUPTED) from None


@contextmanager
def drawn_progress(
    reader: PositionedReader, size: int | None, noun: str
) -> Iterator[Callable[[int], object]]:
    """A progress bar over the size of the file; none without a terminal."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    if not size:
        yield lambda count: click.echo(f"\r{count:,} {noun}", nl=False, err=True)
        click.echo(err=True)
        return
    steps = max(1, size // BAR_STEPS)
    with click.progressbar(
        length=size, file=sys.stderr, label="loading", update_min_steps=steps
    ) as bar:

        def on_committed(count: int) -> None:
            bar.label = f"{count:,} {noun}"
            # Reading is ahead of the commits.
            position = reader.position * count // max(reader.count, 1)
            bar.update(max(0, position - bar.pos))

        yield on_committed
