"""How entries are shown, one a line, as text and as JSON."""

import base64
import json
import sys
from typing import IO

import click

from ..protocols.zmqraft.entry import Entry
from .endings import Ending

KIND_NAMES = {0: "state", 1: "config", 2: "checkpoint"}


def stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise Ending("-: standard input is closed; give it a file or a pipe")
    return sys.stdin.buffer


def show_json(value: object) -> None:
    click.echo(json.dumps(value))


def entry_line(entry: Entry) -> str:
    text = entry.data.decode("utf-8", "backslashreplace")
    kind = "" if entry.type == 0 else f"({KIND_NAMES.get(entry.type, entry.type)}) "
    if not text.isprintable():  # One entry is one line, whatever is in it.
        text = "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
    return f"{entry.index:>8}  {entry.term:>4}  {kind}{text}"


def entry_json(entry: Entry) -> dict[str, object]:
    found: dict[str, object] = {
        "index": entry.index,
        "term": entry.term,
        "kind": KIND_NAMES.get(entry.type, entry.type),
        "reqid": entry.reqid.hex() if entry.reqid else None,
    }
    try:
        found["data"] = entry.data.decode()
    except UnicodeDecodeError:
        found["data_base64"] = base64.b64encode(entry.data).decode()
    return found
