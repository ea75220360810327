"""Errors of a command: one line on stderr and an exit code."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from ..actors.errors import OperatorError

FAILED = 1
IMPOSSIBLE = 2
INTERRUPTED = 130  # As a shell reports a process that SIGINT has ended.


class CliError(Exception):
    """Ends the command with a message that names the place, the problem and the way out."""

    def __init__(self, line: str, code: int = IMPOSSIBLE) -> None:
        super().__init__(line)
        self.code = code


class Command(click.Command):
    """A click command whose errors are one line on stderr and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _in_one_line(self):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _in_one_line(self):
            return super().invoke(ctx)


class Program(Command, click.Group):
    """A group of such commands and groups."""

    command_class = Command
    group_class = type


@contextlib.contextmanager
def _in_one_line(program: click.Command) -> Iterator[None]:
    try:
        try:
            yield
        except CliError as error:
            _end(str(error), error.code)
        except OperatorError as error:
            _end(str(error), IMPOSSIBLE)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
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
        # The reader of a pipe has closed it (`kelek log entries | head`): end without an error.
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
    """Redirects standard output, so that flushing it cannot fail again when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _end(line: str, code: int) -> NoReturn:
    name = click.get_current_context().find_root().command.name
    sys.stderr.write(f"{name}: {line}\n")
    sys.exit(code)
