"""`kelek restore`: makes the data directories of a new cluster from backups."""

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import click

from ...actors.runtime import data_dir
from ...actors.topology.farm import FarmServerSettings, farm_directory
from ...actors.topology.schema import did_you_mean
from ...protocols.raft.messages import EntryBatch
from ...storage.disk.disk import Disk
from ...storage.log.rescue import OldLog, Rescued, fill
from ...storage.log.segment import Identity
from ...storage.snapshot.backup import (
    Backup,
    BackupPart,
    LogRange,
    Progress,
    batches,
    farm_log,
    farm_snapshot,
    up_to,
)
from .. import completion
from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, command, option, topology_option
from ..render import progress_bar, show
from ..targets import load_topology
from .backup import FILES, opened
from .recovery import AUDIT, sync_folder

UNFINISHED = "restoring.new"  # In the node's directory.
TAKEN = "raft", "tables", "jobs"  # With one of these a node is not new.


class RestoreRequest(NamedTuple):
    topology: str | None = topology_option("Of the new cluster")
    nodes: tuple[str, ...] = option(
        "--node", multiple=True, metavar="NODE", shell_complete=completion.nodes,
        help="Only this node of the topology; repeatable.",
    )  # fmt: skip
    last_index: int | None = option(
        "--index", type=click.IntRange(min=1), metavar="N",
        help="Restore the log up to this entry.",
    )  # fmt: skip
    no_farms: bool = option("--no-farms", is_flag=True, help="Leave farms out.")
    output: str = OUTPUT


@command
def restore(request: RestoreRequest, files: tuple[str, ...] = FILES) -> None:
    """Makes the data directories of the topology's nodes from backups.

    FILEs: a whole backup, then those that continue it, in order. The nodes must have no data. The
    cluster's ident and members are those of the topology. On several machines give the same FILEs
    and --index, and --node.
    """
    path, topology = load_topology(request.topology)
    for node in request.nodes:
        if node not in topology.own_nodes:
            way_out = did_you_mean(node, topology.own_nodes)
            raise CliError(f"--node: unknown node '{node}'; {way_out}")
    nodes = request.nodes or tuple(topology.own_nodes)
    with opened(files) as backups:
        last = backups[-1].manifest.log
        index = _target_index(request.last_index, backups)
        restorer = _Restorer(topology, backups, index, not request.no_farms)
        size = sum(part.size for backup in backups for part in backup.manifest.parts.values())
        with progress_bar("restoring", size) as draw:
            rescued = restorer.run(nodes, draw)
        cluster = backups[0].manifest.cluster
    if topology.cluster == cluster:
        line = f"never start a node with older data of cluster {cluster} beside these"
        click.secho(f"kelek: WARNING: {line}", fg="red", bold=True, err=True)
    figures = {"cluster": topology.cluster, "from": cluster, "last_index": index}
    show(
        request.output,
        {**figures, "term": rescued.term, "nodes": list(nodes), "farms": restorer.farms},
        f"restored {', '.join(nodes)} as cluster {topology.cluster}: entries up to {index}"
        + (f" of {last.last_index}" if index < last.last_index else ""),
        *(f"farm {name}: entries up to {last}" for name, last in restorer.farms.items()),
        f"start it: supervisor start {path}",
    )


def _target_index(index: int | None, backups: Sequence[Backup]) -> int:
    first, last = backups[0].manifest.log, backups[-1].manifest.log
    if index is None:
        return last.last_index
    if not first.after <= index <= last.last_index:
        lowest = max(1, first.after)
        way_out = "take an older backup" if index < lowest else "add the backups after it"
        problem = f"these backups restore entries {lowest} to {last.last_index}"
        raise CliError(f"--index: {index}: {problem}; {way_out}")
    return index


class _Restorer:
    """A restore in progress.

    farms   the last entry of each farm that was restored
    """

    def __init__(
        self, topology: Any, backups: Sequence[Backup], index: int, with_farms: bool
    ) -> None:
        self.farms: dict[str, int] = {}
        self._topology, self._backups, self._index = topology, backups, index
        self._with_farms = with_farms

    def run(self, nodes: Sequence[str], draw: Any) -> Rescued:
        """Fills a directory beside the data of each node, and moves all into place at the end.

        Raises CliError, StorageError.
        """
        done = 0

        def note(count: int) -> None:
            nonlocal done
            done += count
            draw(done)

        for node in nodes:
            self._check_new(node)
        for backup in self._backups:
            backup.check_small_parts()
        try:
            rescued = self._fill_nodes(nodes, note)
            for node in nodes:
                self._publish(node, rescued)
        except OSError as error:
            raise CliError(f"{error.filename}: {error.strerror}", FAILED) from error
        finally:
            for node in nodes:
                shutil.rmtree(self._folder(node) / UNFINISHED, ignore_errors=True)
        return rescued

    def _folder(self, node: str) -> Path:
        folder: Path = self._topology.data_dir / node
        return folder

    def _check_new(self, node: str) -> None:
        folder = self._folder(node)
        farms = [f"farm/{name}" for name in self._farm_settings(node)]
        for name in (*TAKEN, *farms):
            if (folder / name).exists():
                problem = f"node {node} has data already"
                raise CliError(f"{folder / name}: {problem}; move {folder} away, or use --node")

    def _farm_settings(self, node: str) -> dict[str, FarmServerSettings]:
        """The settings of the node's farms that are in the backups."""
        farm = self._topology.node_settings(node).farm
        known = self._backups[-1].manifest.farms if self._with_farms else ()
        return {name: farm for name in known if farm is not None and name in farm.farms}

    def _fill_nodes(self, nodes: Sequence[str], progress: Progress) -> Rescued:
        targets = []
        for node in nodes:
            folder = self._folder(node)
            data_dir.make(folder)
            target = folder / UNFINISHED
            shutil.rmtree(target, ignore_errors=True)
            data_dir.make(target)
            identity = Identity(self._topology.cluster, node)
            targets.append((Disk(str(target / "raft")), identity))
        members = tuple((name, each.url) for name, each in self._topology.nodes.items())
        rescued = fill(targets, self._old_log(progress), members)
        for node in nodes:
            for name, settings in self._farm_settings(node).items():
                folder = farm_directory(self._folder(node) / UNFINISHED, name)
                self._fill_farm(folder, name, settings)
        return rescued

    def _old_log(self, progress: Progress) -> OldLog:
        first, last = self._backups[0], self._backups[-1].manifest.log
        part = first.snapshot_part(progress)
        if part is None:
            return OldLog(None, (0, 0), self._batches(progress), last.last_term)
        snapshot = first.open_snapshot(part)
        base = snapshot.info.index, snapshot.info.term
        return OldLog(snapshot, base, self._batches(progress, part), last.last_term)

    def _batches(
        self, progress: Progress, snapshot: BackupPart | None = None
    ) -> Iterator[EntryBatch]:
        """The entries up to the index. It reads all files to their ends, to check their hashes.

        snapshot   has been copied before the first entry
        """
        if snapshot is not None:
            snapshot.check()
        found = chain.from_iterable(backup.log(progress) for backup in self._backups)
        yield from up_to(found, self._index)

    def _fill_farm(self, folder: Path, name: str, settings: FarmServerSettings) -> None:
        from ...protocols.garlicfarm.wire.messages import ClusterServer
        from ...storage.farm.backup import FarmCopy, fill_farm  # Most backups have no farm.

        backup, farm = self._backups[-1], settings.farms[name]
        found: LogRange = backup.manifest.farms[name]
        pieces: Iterator[bytes] = iter(())
        if found.snapshot_index:
            pieces = backup.part(farm_snapshot(name)).pieces()
        log = list(batches(backup.part(farm_log(name)), found))
        ids = farm.initial_servers or ()
        servers = tuple(ClusterServer(each, farm.servers[each]) for each in ids)
        identity = Identity(name, str(settings.server_ids[name]))
        fill_farm(Disk(str(folder)), identity, FarmCopy(found, pieces, log), servers)
        self.farms[name] = found.last_index

    def _publish(self, node: str, rescued: Rescued) -> None:
        """Moves the directories of a node into place, the log last: without it the node has no
        data."""
        folder = self._folder(node)
        self._audit(node, rescued)
        for name in self._farm_settings(node):
            target = farm_directory(folder, name)
            data_dir.make(target.parent)
            farm_directory(folder / UNFINISHED, name).rename(target)
            sync_folder(target.parent)
        (folder / UNFINISHED / "raft").rename(folder / "raft")
        sync_folder(folder)
        sync_folder(folder.parent)

    def _audit(self, node: str, rescued: Rescued) -> None:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "user": os.getuid(),
            "node": node,
            "restored": [backup.id for backup in self._backups],
            "old_cluster": self._backups[0].manifest.cluster,
            "new_cluster": self._topology.cluster,
            "last_index": self._index,
            "new_term": rescued.term,
        }
        with (self._folder(node) / AUDIT).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
