"""`kelek log dump` and `verify`: read a node's data directory without the node.

They take no lock and write nothing, so the node may run.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ...actors.topology.schema import did_you_mean
from ...protocols.zmqraft.wire.entry import Entry
from ...storage.disk.disk import Disk
from ...storage.errors import StorageError
from ...storage.log.hard_state import PATH as HARD_STATE
from ...storage.log.recovery import read_clean
from ...storage.log.segment import Identity
from ...storage.log.verify import Report, entries, read_identity
from ...storage.log.verify import verify as verify_files
from .. import completion
from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, after_option, argument, command, option, topology_option
from ..render import printer, show
from ..targets import load_topology
from .entry_output import entry_json, entry_line

if TYPE_CHECKING:
    from ...actors.topology.topology import Topology


class DataOptions(NamedTuple):
    """The data directory of `dump` and `verify`: a path, or a node of a topology."""

    data_dir: str | None = argument(required=False, type=click.Path())
    topology: str | None = topology_option("Take the directories from this file")
    nodes: tuple[str, ...] = option(
        "--node", multiple=True, metavar="NODE", shell_complete=completion.nodes,
        help="A node of the topology; repeatable.",
    )  # fmt: skip
    output: str = OUTPUT


@command
def dump(
    options: DataOptions,
    after: int | None = after_option(
        "Print the entries after this index (default: all that are stored)."
    ),
    count: int | None = option("--count", type=click.IntRange(min=1), metavar="N",
                               help="At most N entries."),
) -> None:  # fmt: skip
    """Prints the entries in a node's DATA_DIR, committed or not, without contacting the node.

    It only reads. While the node runs, it prints what was written when the command started.
    """
    paths = data_dirs(options)
    if len(paths) > 1:
        names = ", ".join(path.parent.name for path in paths)
        raise CliError(f"--node: {names} have data here; name one of them, or give DATA_DIR")
    [path] = paths
    files = Disk(str(path))
    show_entry = printer(options.output, entry_json, entry_line)
    try:
        identity = read_identity(files)
    except StorageError as error:
        raise CliError(str(error)) from error
    try:
        for entry in _read(files, identity, after or 0, count):
            show_entry(entry)
    except StorageError as error:
        raise CliError(f"{error}; see `kelek log verify {path}`", FAILED) from error


def _read(files: Disk, identity: Identity, after: int, entries_max: int | None) -> Iterator[Entry]:
    index, first_index = 0, after + 1
    for count, entry in enumerate(entries(files, identity, first_index), 1):
        index = entry.index
        yield Entry(index, entry.term, entry.kind, entry.reqid, entry.data)
        if count == entries_max:
            return
    # A damaged end looks like a torn write. The index that the writer recorded when it closed the
    # log tells them apart.
    clean = read_clean(files)
    if clean is not None and index < clean.last_index >= first_index:
        problem = f"the log ends at index {index}, it was closed at {clean.last_index}"
        raise StorageError(files.root, problem, "the entries between are damaged or missing")


@command
def verify(options: DataOptions) -> None:
    """Verifies the files in a node's DATA_DIR, without contacting the node.

    It reads every segment, snapshot and hard state and writes nothing. Without a DATA_DIR it
    verifies all nodes of the topology that have data on this machine. Exit code 1: a file is
    damaged.
    """
    count = 0
    ways_out: dict[str, None] = {}
    for path in data_dirs(options):
        try:
            report = verify_files(Disk(str(path)))
        except StorageError as error:
            raise CliError(str(error)) from error
        count += len(report.findings)
        ways_out.update(dict.fromkeys(_ways_out(path, report)))
        show(options.output, _report_json(path, report), *_report_lines(path, report))
    if count:
        places = "place" if count == 1 else "places"
        raise CliError(f"{count} {places} damaged; {'; '.join(ways_out)}", FAILED)


def _ways_out(path: Path, report: Report) -> Iterator[str]:
    """How the node will repair the damage at its next start, and what it cannot repair."""
    node = report.identity.peer_id
    damaged = {finding.path for finding in report.findings}
    if damaged - {HARD_STATE}:
        yield "a node repairs its log and its snapshot from the others when it starts"
    if HARD_STATE not in damaged:
        return
    if report.hard_state is not None:
        yield f"{node} starts, and does not vote until it has a leader of a newer term"
        return
    folder = shlex.quote(str(path.parent if path.name == "raft" else path))
    yield (
        f"{node} does not start; if a majority of the members is sound, it copies everything "
        f"from them when it starts after: mv {folder} {folder}.damaged"
    )


def _report_lines(path: Path, report: Report) -> Iterator[str]:
    node = report.identity.peer_id
    what = "sound" if not report.findings else f"{len(report.findings)} findings"
    state = report.hard_state
    yield (
        f"{node}: {what}: {_span(report)}, {len(report.segments)} segments, "
        f"{len(report.snapshots)} snapshots"
        f"{f', term {state.term}' if state else ''}"
        f"{'' if report.closed else ', not closed: its node runs, or its start recovers it'}"
    )
    for finding in report.findings:
        offset = "" if finding.offset is None else f":{finding.offset}"
        yield f"{path / finding.path}{offset}: {finding.problem}"


def _span(report: Report) -> str:
    if report.last_index < report.first_index:
        return f"no entries after index {report.last_index}"
    return f"entries {report.first_index} to {report.last_index} (term {report.last_term})"


def _report_json(path: Path, report: Report) -> dict[str, object]:
    state = report.hard_state
    return {
        "data_dir": str(path),
        "cluster": report.identity.cluster,
        "node": report.identity.peer_id,
        "sound": not report.findings,
        "findings": [finding._asdict() for finding in report.findings],
        "first_index": report.first_index,
        "last_index": report.last_index,
        "last_term": report.last_term,
        "segments": [segment._asdict() for segment in report.segments],
        "snapshots": [
            {"index": found.index, "term": found.term, "size": found.size, "path": found.path}
            for found in report.snapshots
        ],
        "term": state.term if state else None,
        "voted_for": state.voted_for if state else None,
        "closed": report.closed,
    }


def data_dirs(options: DataOptions) -> list[Path]:
    """The data directories of the peers. Raises CliError, OperatorError."""
    if options.data_dir:
        if options.topology or options.nodes:
            raise CliError("DATA_DIR: a topology or node is given too; leave one of them out")
        path = Path(options.data_dir)
        if not path.is_dir():
            raise CliError(f"{path}: there is no such directory; give a node's data directory")
        return [path / "raft" if (path / "raft").is_dir() else path]
    _, topology = load_topology(options.topology)
    return _dirs_of_topology(topology, options.nodes)


def _dirs_of_topology(topology: "Topology", nodes: tuple[str, ...]) -> list[Path]:
    for node in nodes:
        if node not in topology.own_nodes:
            way_out = did_you_mean(node, topology.own_nodes)
            raise CliError(f"--node: unknown node '{node}'; {way_out}")
    paths = {name: topology.data_dir / name / "raft" for name in nodes or topology.own_nodes}
    existing = [path for path in paths.values() if path.is_dir()]
    if not existing:
        raise CliError(f"{topology.data_dir}: {', '.join(paths)} have no data on this machine")
    return existing
