"""Reads a peer's state from disk at its start: the newest snapshot, then the log after it.

The log writer has recovered the log before. This module only reads.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import NamedTuple

from ...native.log.updates import Reqids
from ...protocols.raft.log import RaftLog
from ...protocols.record import slice_block
from ...protocols.zmqraft.membership.directory import MemberDirectory
from ...protocols.zmqraft.membership.voter_eligibility import Repair
from ...protocols.zmqraft.server.values import PruneMarks, Recovered
from ...protocols.zmqraft.snapshots.orders import Snapshot
from ...protocols.zmqraft.wire.config_codec import decode_config_entry
from ..disk.files import LISTINGS_MAX, Files
from ..snapshot.snapshot import newest, open_snapshot
from ..snapshot.work import ReqidLimits, snapshot_value
from . import repair
from .hard_state import HardStateFile
from .reader import LogReader
from .segment import Identity


class PeerFiles(NamedTuple):
    """A peer's data directory and the identity that its files must have."""

    files: Files
    identity: Identity


class PeerRecovery(NamedTuple):
    """The state of a peer as found on disk."""

    peer_files: PeerFiles
    log: RaftLog
    directory: MemberDirectory
    snapshot: Snapshot
    marks: PruneMarks
    bytes_after_snapshot: int = 0  # Of the log.
    reset: bool = False  # The segments lack the snapshot's last entry: the log restarts after it.

    def recovered(
        self, epoch: int, stored: HardStateFile, damage: repair.RepairMark | None
    ) -> Recovered:
        """The value that a Peer is made with. epoch is that of the restart unit."""
        return Recovered(
            epoch=epoch,
            log=self.log,
            hard_state=stored.state,
            voter=stored.voter,
            vote_withheld=stored.withheld,
            snapshot=self.snapshot,
            reset=self.reset,
            bytes_after_snapshot=self.bytes_after_snapshot,
            prune_marks=self.marks,
            directory=self.directory,
            repair=damage and Repair(damage.last_index, damage.problem),
            snapshot_reqids=partial(snapshot_reqids, self.peer_files),
        )


class RecoverySettings(NamedTuple):
    """Settings from the topology: limits of request ids, addresses of the members."""

    reqid_limits: ReqidLimits
    urls: Mapping[str, str]
    peer_urls: Mapping[str, str]

    def directory(self, snapshot: Snapshot, base_index: int) -> MemberDirectory:
        """The members as of the snapshot. Older configurations are not needed."""
        base = None
        if snapshot.configuration:
            base = decode_config_entry(snapshot.configuration)
        return MemberDirectory(
            self.urls, self.peer_urls, base, max(base_index, snapshot.last_index)
        )


def recover_peer(
    peer_files: PeerFiles,
    reader: LogReader,
    reqids: Reqids,
    settings: RecoverySettings,
    **options: int,
) -> PeerRecovery:
    """Reads snapshot and log, and fills the table of request ids. options are those of RaftLog.

    Raises StorageError: corrupt or foreign.
    """
    snapshot = snapshot_value(newest(*peer_files))
    reqids.load(snapshot_reqids(peer_files))
    marks = PruneMarks()
    marks.add(snapshot.last_index, reqids.newest_s)
    runs: list[tuple[int, int]] = []
    last_index = bytes_after_snapshot = 0
    reqids_max = settings.reqid_limits.reqids_max
    # Segments below the snapshot may still exist, but the writer has started to remove them.
    base = reader.base(snapshot.last_index)
    directory = settings.directory(snapshot, base[0])
    for batch in reader.scan(base[0] + 1):
        if not runs:
            base = reader.base(snapshot.last_index)  # The segments that scan() has listed.
            directory = settings.directory(snapshot, base[0])
        if not runs or runs[-1][1] != batch.term:
            runs.append((batch.first_index, batch.term))
        last_index = batch.last_index
        if batch.first_index > snapshot.last_index:
            directory.recover(batch)
        if last_index > snapshot.last_index:
            if batch.first_index <= snapshot.last_index:
                batch = slice_block(batch, snapshot.last_index + 1, last_index)
            reqids.add_block(batch.block)
            marks.add(last_index, reqids.newest_s)
            bytes_after_snapshot += len(batch.block)
            if len(reqids) > reqids_max:
                reqids.bound(reqids_max)  # The result does not depend on when bound() is called.
    last_index = max(last_index, base[0])
    log = RaftLog(*base, runs, last_index, configurations=directory.history, **options)
    if log.term_at(snapshot.last_index) == snapshot.last_term:
        return PeerRecovery(peer_files, log, directory, snapshot, marks, bytes_after_snapshot)
    # snapshot_sender has installed a snapshot after the writer's recovery, or just before the last
    # end of the unit. The log restarts after it.
    directory = settings.directory(snapshot, snapshot.last_index)
    log.configurations = directory.history
    log.reset(snapshot.last_index, snapshot.last_term, directory.history.last)
    reqids.load(snapshot_reqids(peer_files))
    marks.truncate(snapshot.last_index)
    return PeerRecovery(peer_files, log, directory, snapshot, marks, reset=True)


def snapshot_reqids(peer_files: PeerFiles) -> Iterator[bytes]:
    """Yields the newest snapshot's table of request ids in pieces. StorageError: damaged."""
    for _ in range(LISTINGS_MAX):
        info = newest(*peer_files)
        if info is None:
            return
        file = open_snapshot(*peer_files, info)
        if file is not None:
            with closing(file):
                yield from file.reqids()
            return
