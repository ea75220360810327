"""What a peer reads from its disk at the start, once the log writer has recovered it: the newest
snapshot, then the log behind it. It changes nothing.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...native.log.updates import Reqids
from ...protocols.raft.log import RaftLog
from ...protocols.record import slice_block
from ...protocols.zmqraft.membership.directory import MemberDirectory
from ...protocols.zmqraft.membership.voter_eligibility import Repair
from ...protocols.zmqraft.server.prune import PruneMarks
from ...protocols.zmqraft.server.values import Recovered
from ...protocols.zmqraft.snapshots.orders import Snapshot
from ...protocols.zmqraft.wire.config_codec import decode_config_entry
from ..disk.files import Files
from ..snapshot.snapshot import newest, open_snapshot
from ..snapshot.work import Keep, note
from . import repair
from .hard_state import HardStateFile
from .reader import LogReader
from .segment import Identity

LOOKS_MAX = 8  # How often snapshot_sender may overtake one look.


class Started(NamedTuple):
    """What was found."""

    log: RaftLog
    roster: MemberDirectory
    snapshot: Snapshot
    marks: PruneMarks
    reset: bool  # The files of the log lack the snapshot's last entry: they begin anew behind it.
    behind_bytes: int  # Of the log behind the snapshot.

    def recovered(
        self, epoch: int, stored: HardStateFile, damage: repair.Repair | None
    ) -> Recovered:
        """All that a peer is begun with, in its unit's epoch."""
        return Recovered(
            epoch=epoch,
            log=self.log,
            hard_state=stored.state,
            voter=stored.voter,
            withheld=stored.withheld,
            snapshot=self.snapshot,
            reset=self.reset,
            marks=self.marks,
            roster=self.roster,
            repair=damage and Repair(damage.last_index, damage.problem),
        )


class PeerFiles(NamedTuple):
    """Where a peer's files are, and whose they are."""

    files: Files
    identity: Identity


class PeerIdentity(NamedTuple):
    """What the topology says."""

    keep: Keep
    urls: Mapping[str, str]
    peer_urls: Mapping[str, str]

    def roster(self, snapshot: Snapshot, base_index: int) -> MemberDirectory:
        """The members as of the snapshot: what was in force below it nobody needs any more."""
        base = None
        if snapshot.configuration:
            base = decode_config_entry(snapshot.configuration)
        return MemberDirectory(
            self.urls, self.peer_urls, base, max(base_index, snapshot.last_index)
        )


def start(
    home: PeerFiles, reader: LogReader, reqids: Reqids, known: PeerIdentity, **options: int
) -> Started:
    """Reads snapshot and log; fills the table of request ids. options are RaftLog's.

    Raises StorageError: corrupt or foreign.
    """
    snapshot = note(newest(*home))
    reqids.load(reqids_of(home))
    marks = PruneMarks()
    marks.note(snapshot.last_index, reqids.newest_s)
    runs: list[tuple[int, int]] = []
    last_index = behind_bytes = 0
    # Segments below the snapshot may still be there, but the writer has begun to remove them.
    base = reader.base(snapshot.last_index)
    roster = known.roster(snapshot, base[0])
    for batch in reader.scan(base[0] + 1):
        if not runs:
            base = reader.base(snapshot.last_index)  # Of the very files that are read.
            roster = known.roster(snapshot, base[0])
        if not runs or runs[-1][1] != batch.term:
            runs.append((batch.first_index, batch.term))
        last_index = batch.last_index
        if batch.first_index > snapshot.last_index:
            roster.recover(batch)
        if last_index > snapshot.last_index:
            if batch.first_index <= snapshot.last_index:
                batch = slice_block(batch, snapshot.last_index + 1, last_index)
            reqids.add_block(batch.block)
            marks.note(last_index, reqids.newest_s)
            behind_bytes += len(batch.block)
            if len(reqids) > known.keep.reqids_max:
                reqids.bound(known.keep.reqids_max)  # Which are left does not depend on when.
    log = RaftLog(*base, runs, max(last_index, base[0]), configurations=roster.history, **options)
    if log.term_at(snapshot.last_index) == snapshot.last_term:
        return Started(log, roster, snapshot, marks, False, behind_bytes)
    # One was installed since the writer looked, or just before the end: only it counts.
    roster = known.roster(snapshot, snapshot.last_index)
    log.configurations = roster.history
    log.reset(snapshot.last_index, snapshot.last_term, roster.history.last)
    reqids.load(reqids_of(home))
    marks.truncate(snapshot.last_index)
    return Started(log, roster, snapshot, marks, True, 0)


def reqids_of(home: PeerFiles) -> Iterator[bytes]:
    """The table of request ids of the newest snapshot, by pieces. StorageError: it is damaged."""
    for _ in range(LOOKS_MAX):
        info = newest(*home)
        if info is None:
            return
        file = open_snapshot(*home, info)
        if file is not None:
            try:
                yield from file.reqids()
            finally:
                file.close()
            return
