"""Standard input, and JSON on standard output, one object a line."""

import json
import sys
from typing import IO

import click

from .endings import Ending


def stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise Ending("-: standard input is closed; give it a file or a pipe")
    return sys.stdin.buffer


def show_json(value: object) -> None:
    click.echo(json.dumps(value))
