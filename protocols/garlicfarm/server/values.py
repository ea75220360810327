"""What a server of a farm is begun with, and what it wants of its disk. Nothing here acts."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from ...raft.log import RaftLog
from ...raft.membership import Configuration, ConfigurationHistory
from ...raft.messages import EntryBatch, HardState, Setup
from ...record import RECORD_BYTES_MAX, cut_block, slice_block
from ..wire.entries import peer_of, voters_of
from ..wire.messages import ENTRIES_BYTES_MAX, ClusterServer, FarmConfiguration


class FarmSetup(NamedTuple):
    """What a server is told once; times in milliseconds.

    servers   the members that the farm begins with; none: waits until a leader takes us in
    cluster   the farm's name, which orders of administrators have to name
    user      as whom this server connects to the others: its own entries name it
    """

    server_id: int
    servers: tuple[ClusterServer, ...] = ()
    election_timeout_ms_min: int = 1000
    election_timeout_ms_max: int = 2000
    heartbeat_ms: int = 250
    request_timeout_ms: int = 2000
    entries_bytes_max: int = ENTRIES_BYTES_MAX
    append_bytes_max: int = 1 << 20
    append_inflight_max: int = 4
    sync_entries_max: int = 1000  # In one SyncLog.
    sync_gap: int = 100  # So near to our last entry a newcomer is taken in.
    snapshot_block_bytes: int = 64 << 10
    cluster: str = "farm"
    user: str = ""
    entry_bytes_max: int = RECORD_BYTES_MAX  # Of what a client may append.

    def for_core(
        self,
        configuration: Callable[[EntryBatch], Configuration | None],
        term_entry: Callable[[int, int], EntryBatch],
    ) -> Setup:
        """The core's part of it. This wire has no pre-votes."""
        return Setup(
            peer_id=peer_of(self.server_id),
            cut=cut_block,
            trim=lambda batch, last_index: slice_block(batch, batch.first_index, last_index),
            term_entry=term_entry,
            configuration=configuration,
            election_timeout_ms_min=self.election_timeout_ms_min,
            election_timeout_ms_max=self.election_timeout_ms_max,
            heartbeat_ms=self.heartbeat_ms,
            rpc_timeout_ms=self.request_timeout_ms,
            vote_timeout_ms=self.heartbeat_ms,
            inflight_max=self.append_inflight_max,
            append_bytes_max=self.append_bytes_max,
            pre_vote=False,
        )


class FarmSnapshot(NamedTuple):
    """A snapshot: the entry that it ends with, who the members were then, its bytes."""

    last_index: int = 0  # 0: there is none.
    last_term: int = 0
    configuration: FarmConfiguration = FarmConfiguration(0, 0, ())
    size: int = 0


NO_SNAPSHOT = FarmSnapshot()


class RecoveredFarm(NamedTuple):
    """What was found on disk.

    configurations   by the index of their entries, ascending; the first is that of the log's base
    is_member        as it was saved last; at the first start, whether we are one of the first
    """

    hard_state: HardState
    is_member: bool
    log: RaftLog
    configurations: tuple[tuple[int, FarmConfiguration], ...]
    snapshot: FarmSnapshot = NO_SNAPSHOT


def make_recovered(
    saved: tuple[HardState, bool],
    batches: Iterable[EntryBatch],
    configurations: list[tuple[int, FarmConfiguration]],
    snapshot: FarmSnapshot = NO_SNAPSHOT,
) -> RecoveredFarm:
    """Makes a log of its batches, which follow the snapshot's last entry.

    saved            what Disk.save() was given last
    configurations   what was in force at the base, and all that the batches hold
    """
    (_, base), *later = configurations
    index = snapshot.last_index
    history = ConfigurationHistory(
        voters_of(base.servers),
        [(at, voters_of(each.servers)) for at, each in later],
        index,
    )
    log = RaftLog(index, snapshot.last_term, configurations=history)
    for batch in batches:
        log.append(batch)
    return RecoveredFarm(*saved, log, ((index, base), *later), snapshot)


class PeerStorage(Protocol):
    """What a server keeps, written by it alone: everything is durable when a method returns.

    A failure raises the storage's own error, which nobody here catches: the process ends.
    """

    def save(self, state: HardState, is_member: bool) -> None:
        """Term and vote, and whether a committed Configuration has counted us in."""

    def append(self, batches: list[EntryBatch]) -> None:
        """Entries; the first may replace a suffix of the log."""

    def reset(self, index: int, term: int) -> None:
        """The log begins anew, empty, behind this entry."""

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        """Entries from first_index on, up to last_index at most; none when they are not there."""
        ...

    def read_snapshot(self, mark: FarmSnapshot, offset: int, size: int) -> bytes | None:
        """A piece of this snapshot; None when there is a newer one in its place."""
        ...

    def write_snapshot(self, offset: int, data: bytes) -> None:
        """A piece of one that comes in; with offset 0 it begins anew."""

    def install_snapshot(self, mark: FarmSnapshot) -> None:
        """The one that came in is whole, and takes the place of ours."""
