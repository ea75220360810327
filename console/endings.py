"""How a command ends when it can't go on: one line on stderr, an exit code."""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

FAILED = 1
IMPOSSIBLE = 2
INTERRUPTED = 130


class Ending(Exception):
    """The command ends here, for a reason that somebody can do something about."""

    def __init__(self, line: str, code: int = IMPOSSIBLE) -> None:
        super().__init__(line)
        self.code = code


def spoken(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose foreseen failures are one line: place, problem, way out."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except Ending as ending:
            end(str(ending), ending.code)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # Whoever read us has gone (`kelek log tail | head`): nothing is left to be said.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(0)

    return wrapped


def end(line: str, code: int) -> NoReturn:
    name = click.get_current_context().find_root().info_name
    sys.stderr.write(f"{name}: {line}\n")
    sys.exit(code)
