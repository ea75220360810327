"""`supervisor logs` and `supervisor events`: what the processes of the nodes have logged."""

import contextlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from ...actors.errors import OperatorError
from ...actors.topology.schema import did_you_mean
from .. import completion
from ..admin.processes import ProcessTarget, targets_of
from ..admin.supervisor_client import EXIT_NOTHING, load, own_nodes
from ..cli_errors import CliError
from ..options import OUTPUT, argument, command, option
from ..render import printer
from .files import LogFiles, log_folders
from .lines import EVENTS, LEVELS, SUPERVISOR, LogLine, event_text, events_of, stamp_of

LINES = 50  # Printed without -n and --since.
LINES_MAX = 100_000
EVENT_LOGS = (SUPERVISOR, "raft_peer", "farm_server", "snapshot_sender", "table_worker")


def _since(_: click.Context, __: click.Parameter, word: str | None) -> str:
    try:
        return stamp_of(word) if word else ""
    except ValueError:
        raise click.BadParameter(f"{word!r} is no time; 10m, 2h, or 2026-01-31T12:00") from None


class LineOptions(NamedTuple):
    """The lines that a command prints."""

    words: tuple[str, ...] = argument(
        metavar="[TOPOLOGY] [NODE[/ROLE]]...", nargs=-1, shell_complete=completion.targets
    )
    nodes: tuple[str, ...] = option("--node", multiple=True, shell_complete=completion.nodes,
                                    help="Only this node; repeatable.")  # fmt: skip
    since: str = option("--since", callback=_since, metavar="TIME",
                        help="Only since then: 10m, 2h, 3d, or a date with a time "
                             "(UTC).")  # fmt: skip
    lines: int | None = option("-n", "--lines", type=click.IntRange(0, LINES_MAX),
                               help="Only the last lines (default: 50, with --since "
                                    "all).")  # fmt: skip
    follow: bool = option("-f", "--follow", is_flag=True,
                          help="Print new lines as they are written.")  # fmt: skip
    output: str = OUTPUT

    @property
    def lines_max(self) -> int:
        if self.lines is not None:
            return self.lines
        return LINES_MAX if self.since else LINES


@command
def logs(
    options: LineOptions,
    roles: tuple[str, ...] = option("--role", multiple=True, shell_complete=completion.roles,
                                    help="Only this role; repeatable."),
    level: str = option("--level", type=click.Choice(LEVELS), default=LEVELS[0], show_default=True,
                        help="Only lines of this level or a higher one."),
) -> None:  # fmt: skip
    """Shows the logs of the processes, merged by time."""
    found, targets = _found(options)
    folders = _folders(found, options, targets)
    known = {path.stem: None for folder in folders.values() for path in folder.glob("*.log")}
    _check_roles("--role", roles, known)
    for target in targets:
        own = {path.stem: None for path in folders[target.node].glob("*.log")}
        _check_roles(str(target), [target.role] if target.role else [], own)
    wanted = {(target.node, target.role) for target in targets if target.role}
    whole = {target.node for target in targets if not target.role}

    def is_read(process: str) -> bool:
        node, _, role = process.partition("/")
        if wanted and node not in whole and (node, role) not in wanted:
            return False
        return not roles or role in roles

    show = printer(options.output, LogLine.document, lambda it: f"{it.process:<20} {it.text}")
    files = LogFiles(folders, is_read, lambda line: line.is_at_least(level))
    _print(files.last(options.lines_max, options.since), show)
    if options.follow:
        with contextlib.suppress(KeyboardInterrupt):
            for line in files.follow():
                _print([line], show)


@command
def events(options: LineOptions) -> None:
    """Shows what happened, in order: starts, ends and restarts of processes, elections, roles.

    It reads the logs of the nodes on this machine.
    """
    found, targets = _found(options)
    folders = _folders(found, options, targets)

    wanted = {str(target) for target in targets}

    def concerns(line: LogLine) -> bool:
        return not wanted or bool({line.process, line.process.partition("/")[0]} & wanted)

    show = printer(
        options.output, LogLine.document, lambda it: f"{it.time} {it.process:<20} {event_text(it)}"
    )
    files = LogFiles(
        folders, lambda it: it.partition("/")[2] in EVENT_LOGS, lambda it: it.event in EVENTS
    )
    happened = [each for each in events_of(files.last(LINES_MAX, options.since)) if concerns(each)]
    _print(happened[max(0, len(happened) - options.lines_max) :], show)
    if options.follow:
        with contextlib.suppress(KeyboardInterrupt):
            for line in filter(concerns, events_of(files.follow())):
                _print([line], show)


def _print(lines: Iterable[LogLine], show: Any) -> None:
    for line in lines:
        show(line)
    sys.stdout.flush()


def _found(options: LineOptions) -> tuple[Any, list[ProcessTarget]]:
    topology, targets = targets_of(options.words)
    return load(topology), targets


def _folders(found: Any, options: LineOptions, targets: Sequence[ProcessTarget]) -> dict[str, Path]:
    """The log folders of the nodes that the options name. Raises OperatorError, CliError."""
    own = found.own_nodes
    for target in targets:
        if target.node not in own:
            way_out = did_you_mean(target.node, own)
            raise OperatorError(str(target), f"unknown node '{target.node}'", way_out)
    named = {target.node for target in targets} | {*options.nodes}
    nodes = [name for name in own_nodes(found, options.nodes if not targets else ()) if
             not named or name in named]  # fmt: skip
    folders = log_folders(found, nodes)
    if not any(folder.is_dir() for folder in folders.values()):
        raise CliError(f"{found.data_dir}: no logs; no node of it has run here yet", EXIT_NOTHING)
    return folders


def _check_roles(place: str, roles: Sequence[str], known: Iterable[str]) -> None:
    for role in roles:
        if role not in known:
            raise OperatorError(place, f"no logs of '{role}'", did_you_mean(role, [*known]))
