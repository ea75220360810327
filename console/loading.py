"""Files that commands load: how they are opened, and the progress of a load."""

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .cli_errors import FAILED, INTERRUPTED, CliError
from .render import progress_bar, progress_line, stdin


@dataclass(slots=True)
class LoadedFile:
    """A file that is loaded, and how far it is."""

    name: str
    data: IO[bytes]
    size: int | None  # In bytes, or in rows; None: unknown.
    position: int = 0  # What is read, in the same unit.
    number: int = 0  # Of the line.
    count: int = 0  # Values made of what is read.

    def lines(self, bytes_max: int, ending: str = "") -> Iterator[bytes]:
        """Its lines, cut where they are longer. ending: of the error when it cannot be read."""
        try:
            while line := self.data.readline(bytes_max):
                self.position += len(line)
                self.number += 1
                yield line
        except OSError as error:
            place = f"{self.name}: byte {self.position}"
            raise CliError(f"{place}: {error.strerror}{ending}", FAILED) from error


@contextmanager
def open_file(name: str) -> Iterator[LoadedFile]:
    """A file, or standard input. Raises CliError when it cannot be read."""
    if name == "-":
        yield LoadedFile(name, stdin(), None)
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
        yield LoadedFile(name, file, size)


def read_file(name: str, bytes_max: int, way_out: str = "") -> bytes:
    """A file, or standard input: one byte more than bytes_max if it is larger. Raises CliError."""
    try:
        if name == "-":
            return stdin().read(bytes_max + 1)
        with Path(name).open("rb") as file:
            return file.read(bytes_max + 1)
    except OSError as error:
        raise CliError(f"{name}: {error.strerror}{way_out}") from error


@contextmanager
def reporting_progress(
    file: LoadedFile,
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

    with drawn_progress(file, noun) as draw:
        try:
            yield note
        except CliError as error:
            if not done:
                raise
            raise CliError(line(error, skipped + done), FAILED) from error
        except KeyboardInterrupt:
            message = line(f"{file.name}: interrupted", skipped + done)
            raise CliError(message, INTERRUPTED) from None


@contextmanager
def drawn_progress(file: LoadedFile, noun: str) -> Iterator[Callable[[int], object]]:
    """A progress bar over the size of the file; none without a terminal."""
    if not file.size:
        with progress_line() as show:
            yield lambda count: show(f"{count:,} {noun}")
        return
    with progress_bar("loading", file.size) as draw:
        # Reading is ahead of the commits.
        yield lambda count: draw(file.position * count // max(file.count, 1), f"{count:,} {noun}")
