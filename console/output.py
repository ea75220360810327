"""Standard input; JSON lines and tables on standard output."""

import json
import sys
from collections.abc import Sequence
from typing import IO

import click

from .cli_errors import CliError


def stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise CliError("-: standard input is closed; give it a file or a pipe")
    return sys.stdin.buffer


def show_json(value: object) -> None:
    click.echo(json.dumps(value))


def show_table(heads: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """Prints aligned columns; None is a dash."""
    cells = [["-" if value is None else str(value) for value in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for line in [heads, *cells]:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())
