"""The reference of commands as a page: the help of each command, from the code."""

from collections.abc import Iterator

import click

from kelek.console import kelek_cli
from kelek.console.admin import supervisor_cli

COLUMNS = 96
PROGRAMS = {"supervisor": supervisor_cli.main, "kelek": kelek_cli.main}


def commands(command: click.Command, parent: click.Context | None, name: str) -> Iterator[
    tuple[str, click.Context]
]:  # fmt: skip
    """A command and all commands below it: (its words, its context)."""
    context = click.Context(
        command, parent, name, terminal_width=COLUMNS, max_content_width=COLUMNS
    )
    yield context.command_path, context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from commands(found, context, below)


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Commands",
        "",
        "The help of every command. `--help` prints the same in a terminal.",
        "",
    ]
    for program, main in PROGRAMS.items():
        for words, context in commands(main, None, program):
            level = "##" if words == program else "###"
            lines += [f"{level} {words}", "", "```text", context.get_help(), "```", ""]
    return "\n".join(lines)
