"""Standard input, and the formats of output: JSON lines, aligned columns, keys and values."""

import base64
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


def data_text(data: bytes) -> str:
    """UTF-8 on one line, with other characters escaped."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def pair_text(key: bytes, value: bytes) -> str:
    return f"{data_text(key)}\t{data_text(value)}"


def data_json(name: str, data: bytes | None) -> dict[str, object]:
    """{name: text}, or {name_base64: ...} for data that is not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def pair_json(key: bytes, value: bytes) -> str:
    return json.dumps({**data_json("key", key), **data_json("value", value)})
