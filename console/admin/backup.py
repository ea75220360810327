"""`kelek backup`: copies a running cluster into one file, and verifies such files."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...actors.topology.farm import farm_directory, farms_of
from ...clients.errors import LogCompacted
from ...clients.log.log import Log
from ...protocols.raft.messages import EntryBatch
from ...protocols.zmqraft.client.client import SnapshotPiece
from ...storage.disk.disk import Disk
from ...storage.errors import StorageError
from ...storage.log.segment import Identity
from ...storage.snapshot.backup import (
    LOG,
    SNAPSHOT,
    TOPOLOGY,
    WAY_OUT,
    Backup,
    BackupWriter,
    LogRange,
    Manifest,
    check_chain,
    farm_log,
    farm_snapshot,
    open_backup,
)
from ...version import __version__
from .. import completion
from ..cli_errors import FAILED, CliError
from ..log.target import open_log
from ..options import OUTPUT, ClusterOptions, argument, command, option
from ..render import progress_bar, progress_line, show
from ..targets import Target, load_topology

if TYPE_CHECKING:
    from ...storage.farm.backup import FarmCopy

LINE_S = 0.1  # Between two lines of progress.
FILES = argument(metavar="FILE...", nargs=-1, required=True, type=click.Path())


class BackupRequest(NamedTuple):
    since: str | None = option(
        "--since", metavar="OTHER", type=click.Path(),
        help="Copy only the entries after this backup, if the log still has them.",
    )  # fmt: skip
    node: str | None = option(
        "--node", metavar="NODE", shell_complete=completion.members,
        help="Read from this node (default: one that does not lead).",
    )  # fmt: skip
    no_farms: bool = option("--no-farms", is_flag=True, help="Leave farms out.")
    nice: int = option(
        "--nice", metavar="N", type=click.IntRange(0, 19), default=10, show_default=True,
        help="How much this process yields the processors to others; 0: not at all.",
    )  # fmt: skip


@command
def create(
    options: ClusterOptions,
    request: BackupRequest,
    file: str = argument(metavar="FILE", type=click.Path(dir_okay=False)),
) -> None:
    """Copies a running cluster into FILE, which must not exist: log, tables, farms, topology.

    It includes everything that was acknowledged before the command started. The key needs the
    grant `log.read`. Farms are read from the data directories on this machine.
    """
    path = Path(file)
    if path.exists():
        raise CliError(f"{file}: it exists already; give another name")
    if not path.parent.is_dir():
        raise CliError(f"{path.parent}: there is no such directory; make it first")
    try:
        since = _manifest_of(request.since) if request.since else None
        os.nice(request.nice)
        with open_log(options) as (log, target):
            source = _source(log, target, request.node)
            if since is not None:
                _check_history(log, target, since[1], f"--since: {request.since}")
            with closing(_Maker(path, target, since)) as maker:
                maker.copy_log(log, source)
                maker.copy_rest({} if request.no_farms else _farms(target))
                backup = maker.finish(source)
    except StorageError as error:
        raise CliError(str(error), FAILED) from error
    with closing(backup):
        show(options.output, _json(backup), *_lines(backup), *maker.notes)


def _manifest_of(name: str) -> tuple[str, Manifest]:
    with closing(_open(name)) as backup:
        return backup.id, backup.manifest


def _open(name: str) -> Backup:
    path = Path(name)
    if not path.exists():
        raise CliError(f"{name}: there is no such file; check its name")
    return open_backup(Disk(str(path.parent)), path.name)


def _source(log: Log, target: Target, node: str | None) -> str | None:
    """The url to read from; None: the leader."""
    if node is None:
        found = log.config()
        return next((url for name, url in found.members or () if name != found.leader), None)
    if node not in target.urls:
        raise CliError(
            f"--node: unknown node '{node}'; {target.source} has {', '.join(target.urls)}"
        )
    return target.urls[node]


def _check_history(log: Log, target: Target, since: Manifest, place: str) -> None:
    """Refuses a backup of another log: the entry that it ends with must be in this one, unless a
    snapshot has replaced it."""
    problem, last = "", since.log
    if since.cluster != target.cluster:
        problem = f"a backup of cluster {since.cluster}, not of {target.cluster}"
    elif last.last_index:
        with suppress(LogCompacted):
            found = [entry.term for entry in log.entries(last.last_index - 1, 1)]
            if found != [last.last_term]:
                what = f"its last entry, {last.last_index} of term {last.last_term}"
                problem = f"{what}, is not in the log of {target.cluster}"
    if problem:
        raise CliError(f"{place}: {problem}; make a whole backup, without --since", FAILED)


class _Maker:
    """A backup in progress.

    notes   what it lacks, for the operator
    """

    def __init__(self, path: Path, target: Target, since: tuple[str, Manifest] | None) -> None:
        self.notes: list[str] = []
        self._path, self._target = path, target
        self._since, self._start = "", LogRange()
        if since is not None:
            self._since, last = since[0], since[1].log
            self._start = LogRange(0, last.last_index, last.last_index, last.last_term)
        self._range = self._start
        self._writer: BackupWriter | None = None
        self._missing = 0  # Bytes of the snapshot.
        self._farms: dict[str, LogRange] = {}
        self._size = 0

    def _begin(self, part: str) -> BackupWriter:
        """Starts the file, or starts it again."""
        self.close()
        self._writer = BackupWriter(Disk(str(self._path.parent)), self._path.name)
        self._writer.begin(part)
        self._range, self._missing, self._size = self._start, 0, 0
        return self._writer

    def copy_log(self, log: Log, url: str | None) -> None:
        """Copies the entries after those of the other backup; all, if the log lacks some."""
        with progress_line() as draw:
            try:
                self._copy_after(self._start.after, log, url, draw)
            except LogCompacted as error:
                note = f"a snapshot has replaced the entries up to {error.last_index}"
                self.notes.append(f"  {note}: this backup is whole")
                self._since, self._start = "", LogRange()
                self._copy_after(0, log, url, draw)
        if self._missing:
            raise CliError(f"{self._target.source}: the snapshot ended early; try again", FAILED)

    def _copy_after(
        self, after: int, log: Log, url: str | None, draw: Callable[[str], None]
    ) -> None:
        drawn_s = 0.0
        writer = self._begin(LOG)
        for part in log.backup(after, url=url):
            writer = self._copy(writer, part)
            if time.monotonic() - drawn_s > LINE_S:
                drawn_s = time.monotonic()
                draw(f"{self._size / 1e6:.0f} MB, up to entry {self._range.last_index}")

    def _copy(self, writer: BackupWriter, part: SnapshotPiece | EntryBatch) -> BackupWriter:
        if isinstance(part, SnapshotPiece):
            if part.offset == 0:
                writer = self._begin(SNAPSHOT)
                self._missing = part.size
            writer.write(part.data)
            self._missing -= len(part.data)
            self._size += len(part.data)
            if not self._missing:
                index = part.last_index
                self._range = LogRange(index, index, index, part.last_term)
                writer.begin(LOG)
            return writer
        if self._missing:  # The next peer still has all entries.
            writer = self._begin(LOG)
        writer.write_batch(part)
        self._size += len(part.block)
        self._range = self._range._replace(last_index=part.last_index, last_term=part.term)
        return writer

    def copy_rest(self, farms: "dict[str, FarmCopy | str]") -> None:
        assert self._writer is not None
        for name, copy in farms.items():
            if isinstance(copy, str):
                self.notes.append(f"  farm {name} is not in it: {copy}")
                continue
            self._farms[name] = copy.range
            if copy.range.snapshot_index:
                self._writer.begin(farm_snapshot(name))
                for piece in copy.snapshot:
                    self._writer.write(piece)
            self._writer.begin(farm_log(name))
            for batch in copy.batches:
                self._writer.write_batch(batch)
        if self._target.topology is not None:
            self._writer.begin(TOPOLOGY)
            self._writer.write(Path(self._target.topology.path).read_bytes())

    def finish(self, url: str | None) -> Backup:
        assert self._writer is not None
        names = {url: name for name, url in self._target.urls.items()}
        source = names.get(url or "", url or "the leader")
        manifest = Manifest(
            self._target.cluster, __version__, int(time.time()), source, self._range,
            self._since, self._farms,
        )  # fmt: skip
        backup = self._writer.finish(manifest)
        self._writer = None
        return backup

    def close(self) -> None:
        """Removes an unfinished file."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None


def _farms(target: Target) -> "dict[str, FarmCopy | str]":
    """Each farm of the topology, or why it is left out."""
    found: dict[str, FarmCopy | str] = {}
    if target.topology is None:
        return found
    _, topology = load_topology(target.topology.path)
    for name in topology.farms:
        own = {}
        for node in topology.farm_nodes:
            served = farms_of(node, topology.farms)
            folder = farm_directory(topology.data_dir / node, name)
            if name in served and folder.is_dir():
                own[folder] = served[name]
        found[name] = "no server of it has data on this machine"
        if own:
            found[name] = _farm(target, name, own)
    return found


def _farm(target: Target, name: str, own: dict[Path, int]) -> "FarmCopy":
    """A copy from the first server here that has what the farm has committed."""
    from ...storage.farm.backup import read_farm  # Most backups have no farm.
    from ..farm.target import FarmOptions, open_farm

    options = FarmOptions(
        target.source, (), name, None, None, None, None, None, None, None, False, False,
        10_000, "text",
    )  # fmt: skip
    with open_farm(options) as farm:
        index = farm.commit_index()
        last = next(iter(farm.entries(after=index - 1, all_kinds=True)), None) if index else None
    if last is None:
        raise CliError(f"{target.source}: farm {name}: no entry is committed; try again", FAILED)
    error: StorageError | None = None
    for folder, server_id in own.items():
        try:
            identity = Identity(name, str(server_id))
            return read_farm(Disk(str(folder)), identity, last.index, last.term)
        except StorageError as problem:
            error = problem
    assert error is not None
    raise error


@command
def verify(files: tuple[str, ...] = FILES, output: str = OUTPUT) -> None:
    """Reads backups and compares each part with its SHA-256.

    Several FILEs must continue each other, in this order. Exit code 1: one is damaged.
    """
    with opened(files, is_whole=False) as backups:
        for backup in backups:
            size = sum(part.size for part in backup.manifest.parts.values())
            with progress_bar(f"verifying {backup.path}", size) as draw:
                done = 0

                def note(count: int) -> None:
                    nonlocal done
                    done += count
                    draw(done)

                backup.verify(note)
            show(output, _json(backup), *_lines(backup))


@contextmanager
def opened(files: Sequence[str], is_whole: bool = True) -> Iterator[list[Backup]]:
    """Backups that continue each other. Raises CliError, also for a StorageError within.

    is_whole   the first one must not continue another one
    """
    backups: list[Backup] = []
    with ExitStack() as stack:
        try:
            for name in files:
                backups.append(stack.enter_context(closing(_open(name))))
            check_chain(backups, is_whole)
            yield backups
        except StorageError as error:
            line = str(error)
            if error.is_damage and any(error.place.startswith(each.path) for each in backups):
                line = f"{error.place}: {error.problem}; {WAY_OUT}"
            raise CliError(line, FAILED) from error


def _lines(backup: Backup) -> Iterator[str]:
    manifest, log = backup.manifest, backup.manifest.log
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.made_s))
    size = sum(part.size for part in manifest.parts.values())
    yield f"{Path(backup.path)}: cluster {manifest.cluster} at {made}, {size / 1e6:.1f} MB"
    first = f"entries {log.after + 1} to" if log.after < log.last_index else "up to"
    if log.snapshot_index:
        first = f"snapshot up to {log.snapshot_index}, {first}"
    since = f", after backup {manifest.since[:12]}" if manifest.since else ""
    yield f"  log: {first} {log.last_index} of term {log.last_term}{since}"
    for name, farm in manifest.farms.items():
        yield f"  farm {name}: up to entry {farm.last_index}"
    yield f"  id: {backup.id}"


def _json(backup: Backup) -> dict[str, Any]:
    manifest = backup.manifest
    return {
        "file": str(Path(backup.path)),
        "id": backup.id,
        **manifest._asdict(),
        "log": manifest.log._asdict(),
        "farms": {name: found._asdict() for name, found in manifest.farms.items()},
        "parts": {path: part._asdict() for path, part in manifest.parts.items()},
    }
