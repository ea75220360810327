"""Reads a peer's state from disk at its start: the newest snapshot, then the log after it.

The log writer has recovered the log before. This module only reads.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import NamedTuple

from ...native.log.updates import Reqids
from ...protocols.raft.log import RaftLog
from ...protocols.raft.messages import HardState
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
) -> Recovered:
    """Reads snapshot and log, and fills the table of request ids; add_vote() adds the rest. options
    are those of RaftLog.

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
    found = Recovered(
        0, log, HardState(), False, False, snapshot, False, bytes_after_snapshot, marks, directory,
        snapshot_reqids=partial(snapshot_reqids, peer_files),
    )  # fmt: skip
    if log.term_at(snapshot.last_index) == snapshot.last_term:
        return found
    # snapshot_sender has installed a snapshot after the writer's recovery, or just before the last
    # end of the unit. The log restarts after it.
    directory = settings.directory(snapshot, snapshot.last_index)
    log.configurations = directory.history
    log.reset(snapshot.last_index, snapshot.last_term, directory.history.last)
    reqids.load(snapshot_reqids(peer_files))
    marks.truncate(snapshot.last_index)
    return found._replace(reset=True, bytes_after_snapshot=0, directory=directory)


def add_vote(
    found: Recovered, epoch: int, stored: HardStateFile, damage: repair.RepairMark | None
) -> Recovered:
    """The state with term, vote and repair mark. epoch is that of the restart unit."""
    return found._replace(
        epoch=epoch,
        hard_state=stored.state,
        voter=stored.voter,
        vote_withheld=stored.withheld,
        repair=damage and Repair(damage.last_index, damage.problem),
    )


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
