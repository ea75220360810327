"""`kelek shell`: runs commands interactively, with history and completion by readline.

Each line becomes a command line of `kelek`.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import ShellComplete

from ...clients.table.arguments import parse_table
from ..cli_errors import LazyGroup
from ..options import TABLE_TYPE, argument, command, topology_option

HISTORY_LINES = 10_000
OWN = ("help", "use", "exit")
NEEDS_TABLE = "use a table first: use users"


@command
def shell(
    topology: str | None = topology_option("For the commands"),
    number: int | str | None = argument(metavar="[TABLE]", type=TABLE_TYPE, required=False),
) -> None:
    """Runs commands interactively, with history and completion.

    With TABLE, or after `use TABLE`, the commands of that table need no TABLE: `get KEY`, `scan
    --prefix a`. Standard input can be a file of commands.
    """
    program = click.get_current_context().find_root().command
    assert isinstance(program, LazyGroup)
    run(program, topology, number)


class Shell:
    """The loop, and its state between lines."""

    def __init__(self, program: LazyGroup, topology: str | None, number: int | str | None) -> None:
        self.program = program
        self.number = number
        self.code = 0  # Of the last command.
        group = program.groups["table"]
        assert isinstance(group, LazyGroup)
        self._table_commands = group.outline.commands
        found = {name: group.get_command(None, name) for name in self._table_commands}
        self._numbered = {
            name
            for name, command in found.items()
            if command and any(parameter.name == "number" for parameter in command.params)
        }
        self._defaults = defaults_of(program, {"topology": topology} if topology else {})

    @property
    def prompt(self) -> str:
        return "kelek> " if self.number is None else f"kelek {self.number}> "

    def words_of(self, line: str) -> list[str]:
        """A line as words of a command line. Raises ValueError on an open quote."""
        words = shlex.split(line, comments=True)
        if not words or words[0] not in self._table_commands:
            return words
        if words[0] not in self._numbered:
            return ["table", *words]
        if self.number is not None:
            return ["table", words[0], str(self.number), *words[1:]]
        return words

    def run_line(self, line: str) -> bool:
        """Runs a line; False: it ends the shell."""
        try:
            words = self.words_of(line)
        except ValueError as error:
            self._say(str(error))
            return True
        if not words:
            return True
        if words[0] in ("exit", "quit"):
            return False
        if words[0] == "use":
            self._use(words[1:])
        elif words[0] == "help":
            self._help(words[1:])
        elif words[0] in self._table_commands and words[0] not in self.program.outline.commands:
            self._say(f"{words[0]}: {NEEDS_TABLE}")
        else:
            self._run(words)
        return True

    def _help(self, about: list[str]) -> None:
        """Help on a command, or on all; with a table in use, on its commands."""
        of_table = about[0] in self._table_commands if about else self.number is not None
        self._run([*["table"] * of_table, *about, "--help"])
        if about:
            return
        if of_table:
            others = " ".join(sorted(self.program.outline.commands))
            click.echo(f"\nThese use table {self.number}; type them without `table TABLE`.")
            click.echo(f"Other commands: {others}")
        click.echo("\nShell commands: help [COMMAND], use [TABLE], exit")

    def _use(self, words: Sequence[str]) -> None:
        if not words:
            self.number = None
            return
        try:
            (word,) = words
            self.number = parse_table(word)
        except ValueError as error:
            self._say(f"use TABLE: {error if len(words) == 1 else 'give one'}")

    def _say(self, line: str) -> None:
        self.code = 2
        click.echo(f"kelek: {line}", err=True)

    def _run(self, words: list[str]) -> None:
        """Runs a command. Its errors do not end the shell."""
        if words[0] in ("help", "shell"):
            self._say(f"{words[0]}: this is the shell")
            return
        self.code = 0
        try:
            self.program.main(words, prog_name="kelek", default_map=self._defaults)
        except SystemExit as ending:
            self.code = ending.code if isinstance(ending.code, int) else 1

    def complete(self, line: str, word: str) -> list[str]:
        """Completions of `word`, the last word of a line."""
        with contextlib.suppress(ValueError):
            before = self.words_of(line[: len(line) - len(word)])
            found = ShellComplete(self.program, {}, "kelek", "").get_completions(before, word)
            names = [item.value for item in found if item.type == "plain"]
            if any(item.type in ("file", "dir") for item in found):
                names += paths_of(word)
            if not line[: len(line) - len(word)].strip():
                names += [name for name in OWN if name.startswith(word)]
                unusable = self._numbered if self.number is None else set()
                usable = self._table_commands.keys() - unusable
                names += [name for name in usable if name.startswith(word)]
            return sorted(set(names))
        return []


def defaults_of(command: click.Command | None, defaults: dict[str, Any]) -> dict[str, Any]:
    """The same defaults for every command of a group."""
    if not isinstance(command, LazyGroup):
        return defaults
    names = command.outline.commands
    return {name: defaults_of(command.groups.get(name), defaults) for name in names}


def paths_of(word: str) -> list[str]:
    folder, name = os.path.split(word)
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder or "."):
            if entry.name.startswith(name):
                found.append(os.path.join(folder, entry.name) + ("/" if entry.is_dir() else ""))
    return found


def run(program: LazyGroup, topology: str | None, number: int | str | None) -> None:
    """Runs lines until the input ends. Without a terminal the first failure ends it with its exit
    code.
    """
    shell = Shell(program, topology, number)
    watched = sys.stdin.isatty()
    with history(shell) if watched else contextlib.nullcontext():
        for line in typed(shell) if watched else sys.stdin:
            if not shell.run_line(line):
                break
            if shell.code and not watched:
                break
    if not watched and shell.code:
        sys.exit(shell.code)


def typed(shell: Shell) -> Iterator[str]:
    """Lines from the terminal; Ctrl-C discards a line, Ctrl-D ends."""
    click.echo("help shows the commands, Tab completes, Ctrl-D ends")
    while True:
        try:
            yield input(shell.prompt)
        except KeyboardInterrupt:
            click.echo()
        except EOFError:
            click.echo()
            return


@contextlib.contextmanager
def history(shell: Shell) -> Iterator[None]:
    """Loads and saves the history and sets completion up, if readline exists."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = history_path()
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer_delims(" \t\n")
    found: list[str] = []

    def completer(word: str, state: int) -> str | None:
        if state == 0:
            found[:] = shell.complete(readline.get_line_buffer()[: readline.get_endidx()], word)
            if len(found) == 1 and not found[0].endswith("/"):
                found[0] += " "
        return found[state] if state < len(found) else None

    readline.set_completer(completer)
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(path)


def history_path() -> Path:
    """The file of the history, in XDG's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "kelek" / "history"
