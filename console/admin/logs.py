"""`supervisor logs`: the logs of the actors, merged by time."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from ...actors.errors import OperatorError
from ...actors.topology.schema import did_you_mean
from .. import completion
from ..cli_errors import CliError
from ..options import command, option
from .supervisor_client import EXIT_NOTHING, NodeOptions, load, own_nodes

FOLLOW_S = 0.2
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\S+Z ")


@command
def logs(
    options: NodeOptions,
    roles: tuple[str, ...] = option("--role", multiple=True, shell_complete=completion.roles,
                                    help="Only this role; repeatable."),
    lines: int = option("-n", "--lines", default=50, show_default=True,
                        type=click.IntRange(0, 100_000)),
    follow: bool = option("-f", "--follow", is_flag=True,
                          help="Print new lines as they are written."),
) -> None:  # fmt: skip
    """Shows the logs of the actors, merged by time."""
    found = load(options.topology)
    paths = {
        path: f"{name}/{path.stem}"
        for name in own_nodes(found, options.nodes)
        for path in sorted((found.data_dir / name / "logs").glob("*.log"))
    }
    if not paths:
        raise CliError(f"{found.data_dir}: no logs; no node of it has run here yet", EXIT_NOTHING)
    known = {path.stem: None for path in paths}
    for role in roles:
        if role not in known:
            raise OperatorError("--role", f"no logs of '{role}'", did_you_mean(role, known))
    if roles:
        paths = {path: name for path, name in paths.items() if path.stem in roles}
    tails = {path: _tail(path, lines) for path in paths}
    merged = sorted(
        (stamp, paths[path], number, line)
        for path, tail in tails.items()
        for number, (stamp, line) in enumerate(tail.lines)
    )
    for _, who, _, line in merged[max(0, len(merged) - lines) :]:
        click.echo(f"{who:<20} {line}")
    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            for path, line in _follow(tails):
                click.echo(f"{paths[path]:<20} {line}")


class _Tail(NamedTuple):
    """The end of a log: its last lines with their times, and the offset of the next line."""

    lines: list[tuple[str, str]]
    inode: int
    offset: int


def _tail(path: Path, count: int) -> _Tail:
    """Reads the last lines of a log, and of the previous file if there are too few.

    A line without a time, as in a traceback, gets the time of the line before it.
    """
    older = path.with_suffix(".log.1")
    with path.open("rb") as file:
        inode, data = os.fstat(file.fileno()).st_ino, file.read()
    data = data[: data.rfind(b"\n") + 1]
    text = data.decode("utf-8", "replace")
    if text.count("\n") < count and older.exists():
        text = older.read_text("utf-8", "replace") + text
    found: list[tuple[str, str]] = []
    stamp = ""
    for line in text.splitlines():
        if STAMP.match(line):
            stamp = line.split(" ", 1)[0]
        found.append((stamp, line))
    return _Tail(found[max(0, len(found) - count) :], inode, len(data))


def _follow(tails: dict[Path, _Tail]) -> Iterator[tuple[Path, str]]:
    """New lines, across a rotation."""
    places = {path: (tail.inode, tail.offset) for path, tail in tails.items()}
    while True:
        for path, (inode, offset) in places.items():
            try:
                found = os.stat(path)
            except FileNotFoundError:  # A rotation is under way.
                continue
            if found.st_ino != inode:
                inode, offset = found.st_ino, 0
            if found.st_size > offset:
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
                data = data[: data.rfind(b"\n") + 1]
                offset += len(data)
                for line in data.decode("utf-8", "replace").splitlines():
                    yield path, line
            places[path] = inode, offset
        time.sleep(FOLLOW_S)
