"""`kelek recover`: starts a new cluster from one node's data after a majority is lost for good.

The node's data does not change: its old directory stays beside the new one.
"""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import click

from ...actors.topology import client_topology
from ...actors.topology.schema import NAME, NAME_RULE, did_you_mean
from ...clients.errors import LogError
from ...clients.log.log import Log
from ...storage.disk.disk import Disk
from ...storage.errors import StorageError
from ...storage.log.rescue import Rescued, inspect, lock_peer, rescue
from ...storage.log.segment import Identity
from ...storage.log.verify import Report, read_identity
from .. import client_keys, completion
from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, command, option, topology_option
from ..render import show
from ..targets import load_topology

AUDIT = "recovery.log"  # Beside the data, one line of JSON for each recovery.
UNFINISHED = "raft.recovering"
ASK_MS = 300  # Another node that answers within this is not lost.
CONFIRMATION = "--lose-what-only-others-have"


class Plan(NamedTuple):
    """A recovery after all checks."""

    found: Any  # The topology.
    folder: Path  # Of the node.
    report: Report
    new: Identity
    members: tuple[tuple[str, str], ...]


class RecoveryRequest(NamedTuple):
    node: str = option("--from", required=True, metavar="NODE", shell_complete=completion.nodes,
                       help="The node whose data the new cluster starts with.")  # fmt: skip
    cluster: str = option("--cluster", required=True, metavar="IDENT",
                          help="The new cluster's ident.")  # fmt: skip
    topology: str | None = topology_option("Of the lost cluster")
    confirmed: bool = option(
        "--lose-what-only-others-have", is_flag=True,
        help="Do it. Without this option the command only prints the warnings.",
    )  # fmt: skip
    output: str = OUTPUT


@command
def recover(request: RecoveryRequest) -> None:
    """Starts a new cluster from one node's data, when a majority is lost FOR GOOD.

    The node must be stopped. The command makes a data directory for a new cluster with this node as
    the only member, keeps the old directory beside it, and writes an audit line. Entries that only
    the lost nodes had are lost.
    """
    found = _load(request)
    folder = found.data_dir / request.node
    source = Disk(str(folder / "raft"))
    if not (folder / "raft").is_dir():
        raise CliError(
            f"{folder / 'raft'}: the directory does not exist; run this command where the data is"
        )
    try:
        locks = lock_peer(source)
    except StorageError as error:
        raise CliError(str(error), FAILED) from error
    try:
        identity = read_identity(source)
        if identity != (found.cluster, request.node):
            raise CliError(
                f"{folder / 'raft'}: the data of {identity.peer_id} of cluster {identity.cluster}; "
                "give its topology"
            )
        if not request.confirmed:  # Before reading the data, which may take minutes.
            _warn(found, request.node, "ends where `kelek log verify` says")
            raise CliError(f"nothing was changed; repeat it with {CONFIRMATION} to go on")
        report = inspect(source)
        _warn(found, request.node, f"ends at index {report.last_index}, term {report.last_term}")
        members = ((request.node, found.nodes[request.node].url),)
        plan = Plan(found, folder, report, Identity(request.cluster, request.node), members)
        _refuse_survivors(plan)
        rescued, old_folder = _carry_out(plan, source)
    except StorageError as error:
        raise CliError(str(error), FAILED) from error
    finally:
        for lock in locks:
            lock.close()
    _report(plan, rescued, old_folder, request.output)


def _load(request: RecoveryRequest) -> Any:
    if not NAME.fullmatch(request.cluster):
        raise CliError(f"--cluster: {request.cluster!r} is not a name; use {NAME_RULE}")
    _, found = load_topology(request.topology)
    if request.node not in found.own_nodes:
        way_out = did_you_mean(request.node, found.own_nodes)
        raise CliError(f"--from: unknown node '{request.node}'; {way_out}")
    if request.cluster == found.cluster:
        raise CliError(
            f"--cluster: '{request.cluster}' is the ident of the lost cluster; choose another one"
        )
    return found


def _warn(found: Any, node: str, end: str) -> None:
    """Prints the risks on stderr, also for a confirmed request."""
    others = [name for name in found.nodes if name != node]
    for line in (
        f"only the data of {node} is kept: its log {end}",
        "updates that only other nodes have are LOST, even acknowledged ones; indexes are reused",
        "all entries of its log count as committed, even if the lost cluster never committed them",
        f"never start {', '.join(others) or 'other nodes'} with their old data beside it",
    ):
        click.secho(f"kelek: WARNING: {line}", fg="red", bold=True, err=True)


def _refuse_survivors(plan: Plan) -> None:
    """Refuses while another node answers: two clusters would continue one log."""
    keys = client_keys.of_topology(client_topology.of(plan.found))
    for name, node in plan.found.nodes.items():
        if name == plan.new.peer_id:
            continue
        with Log([node.url], plan.found.cluster, timeout_ms=ASK_MS, **keys) as log:
            try:
                log.info(node.url)
            except LogError:
                continue
        raise CliError(
            f"{name}: answers at {node.url}, so it is not lost; start the majority again, or stop "
            "this node to give up its data",
            FAILED,
        )


def _carry_out(plan: Plan, source: Disk) -> tuple[Rescued, Path]:
    """Creates the new directory, writes the audit line, then swaps both by renaming."""
    folder = plan.folder
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    target = Disk(str(folder / UNFINISHED))
    rescued = rescue(source, plan.report, target, plan.new, plan.members)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    old_folder = folder / f"raft.{plan.report.identity.cluster}-{stamp}"
    try:
        _audit(plan, rescued, old_folder)
        (folder / "raft").rename(old_folder)
        (folder / UNFINISHED).rename(folder / "raft")
        sync_folder(folder)
    except OSError as error:
        place = error.filename or folder
        line = f"{place}: {error.strerror}; {old_folder} or raft is the old directory"
        raise CliError(line, FAILED) from error
    return rescued, old_folder


def _audit(plan: Plan, rescued: Rescued, old_folder: Path) -> None:
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "user": os.getuid(),
        "node": plan.new.peer_id,
        "old_cluster": plan.report.identity.cluster,
        "new_cluster": plan.new.cluster,
        "old_members": list(plan.found.nodes),
        "last_index": plan.report.last_index,
        "last_term": plan.report.last_term,
        "new_term": rescued.term,
        "config_index": rescued.last_index,
        "kept": old_folder.name,
    }
    with (plan.folder / AUDIT).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _report(plan: Plan, rescued: Rescued, old_folder: Path, output: str) -> None:
    node, cluster = plan.new.peer_id, plan.new.cluster
    figures = {"node": node, "cluster": cluster, "last_index": rescued.last_index}
    show(
        output,
        {**figures, "term": rescued.term, "kept": str(old_folder)},
        f"recovered {node} as cluster {cluster}: entries up to {plan.report.last_index}",
        f"the old data is in {old_folder}, the audit line in {plan.folder / AUDIT}",
        f"now write `cluster: {cluster}` into {plan.found.path}, leave only {node} in it, start "
        "it, and add other nodes, with empty directories, by `kelek log members add`",
    )
