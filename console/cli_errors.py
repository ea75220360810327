"""How a command ends when it can't go on: one line on stderr, an exit code."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click

FAILED = 1
IMPOSSIBLE = 2
INTERRUPTED = 130


class CliError(Exception):
    """The command ends here, for a reason that somebody can do something about."""

    def __init__(self, line: str, code: int = IMPOSSIBLE) -> None:
        super().__init__(line)
        self.code = code


def report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose foreseen failures are one line: place, problem, way out."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except CliError as ending:
            end(str(ending), ending.code)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    return wrapped


class Command(click.Command):
    """A command line whose misuse, and whose output that can't be written, are one line too."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _in_one_line(self):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _in_one_line(self):
            return super().invoke(ctx)


class Program(Command, click.Group):
    """The same with commands of its own."""


@contextlib.contextmanager
def _in_one_line(program: click.Command) -> Iterator[None]:
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else program.name
        word = str(path).partition(" ")[0]
        message = error.format_message().rstrip(".").replace("\n", " ")
        sys.stderr.write(f"{word}: {message}; see `{path} --help`\n")
        sys.exit(IMPOSSIBLE)
    except BrokenPipeError:
        # Whoever read us has gone (`kelek log entries | head`): nothing is left to be said.
        _write_nowhere()
        sys.exit(0)
    except OSError as error:
        _write_nowhere()
        context = click.get_current_context(silent=True)
        name = context.find_root().info_name if context else program.name
        place = error.filename or "standard output"
        sys.stderr.write(f"{name}: {place}: {error.strerror}; the command ended there\n")
        sys.exit(FAILED)


def _write_nowhere() -> None:
    """So that what is still buffered can't fail once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def end(line: str, code: int) -> NoReturn:
    name = click.get_current_context().find_root().info_name
    sys.stderr.write(f"{name}: {line}\n")
    sys.exit(code)
