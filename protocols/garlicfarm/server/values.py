"""Values of a farm server: its setup, its recovered state, the events and actions of its owner, and
the interface to its storage.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from ...host.border import LinkLost, Requests, Responses
from ...host.status import GroupRole
from ...raft.log import RaftLog
from ...raft.membership import Configuration, ConfigurationHistory
from ...raft.messages import EntryBatch, HardState, RaftTuning, Setup
from ...record import RECORD_BYTES_MAX, cut_block, slice_block
from ..wire.entries import peer_of, voters_of
from ..wire.messages import ENTRIES_BYTES_MAX, ClusterServer, FarmConfiguration
from .append_policy import AppendPolicy
from .inbound import InboundConnection


class FarmSetup(NamedTuple):
    """The settings of a server. Times are in milliseconds.

    servers   the initial members; none: the server waits for a leader's invitation
    cluster   the farm's name, which administrators' orders must contain
    user      the user of this server on other servers; it owns the server's own entries
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
    sync_entries_max: int = 1000  # Per SyncLog.
    sync_gap: int = 100  # A joining server that lacks no more entries becomes a member.
    snapshot_block_bytes: int = 64 << 10
    cluster: str = "farm"
    user: str = ""
    entry_bytes_max: int = RECORD_BYTES_MAX  # Largest entry that a client may append.

    def for_core(
        self,
        configuration: Callable[[EntryBatch], Configuration | None],
        term_entry: Callable[[int, int], EntryBatch],
    ) -> Setup:
        """The settings of the Raft core. This wire has no pre-votes."""
        return Setup(
            peer_id=peer_of(self.server_id),
            cut=cut_block,
            trim=lambda batch, last_index: slice_block(batch, batch.first_index, last_index),
            term_entry=term_entry,
            configuration=configuration,
            tuning=RaftTuning(
                self.election_timeout_ms_min,
                self.election_timeout_ms_max,
                self.heartbeat_ms,
                append_timeout_ms=self.request_timeout_ms,
                vote_retry_ms=self.heartbeat_ms,
                inflight_max=self.append_inflight_max,
                append_bytes_max=self.append_bytes_max,
                pre_vote=False,
            ),
        )


class FarmSnapshot(NamedTuple):
    """A snapshot: its last entry, the members at that entry, and its size in bytes."""

    last_index: int = 0  # 0: there is no snapshot.
    last_term: int = 0
    configuration: FarmConfiguration = FarmConfiguration(0, 0, ())
    size: int = 0


NO_SNAPSHOT = FarmSnapshot()


class ConnectionClosed(NamedTuple):
    """A connection to us has ended. Its requests may still be committed."""

    number: int


class LinkUp(NamedTuple):
    """Our link to another server has finished its handshake."""

    server: int


FarmEvent = (
    Requests[int, bytes]  # By the number of their connection.
    | ConnectionClosed
    | LinkUp
    | Responses[int, bytes]
    | LinkLost[int]
)


class FarmReport(NamedTuple):
    """The state of a server in its farm."""

    role: GroupRole
    members: tuple[int, ...]  # Of the committed Configuration.
    refusal: str  # Why the server refused the last JoinCluster.


class FarmAnswers(NamedTuple):
    """What the owner does when the entries are durable.

    audits        log and remove them first
    connections   those with answers, a failure or another load: send and clear each `out`
    report        None: call wake() again
    """

    audits: AppendPolicy
    connections: Mapping[int, InboundConnection]
    report: FarmReport | None


class RecoveredFarm(NamedTuple):
    """The state found on disk.

    configurations   by index of their entries, ascending; the first is that of the log's base
    is_member        as saved last; at the first start, whether this server is an initial member
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
    """Builds the log from batches that follow the snapshot's last entry.

    saved            the last state given to PeerStorage.save()
    configurations   the Configuration at the base, and each one in the batches
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
    """The durable state of a server. Everything is durable when a method returns.

    A failure raises the storage's own error; it ends the process.
    """

    def save(self, state: HardState, is_member: bool) -> None:
        """Saves term and vote, and whether a committed Configuration includes this server."""

    def append(self, batches: list[EntryBatch]) -> None:
        """Appends entries; the first one may replace a suffix of the log."""

    def reset(self, index: int, term: int) -> None:
        """Empties the log; the next entry follows this one."""

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        """Entries from first_index to last_index at most; none if they are not there."""
        ...

    def read_snapshot(self, mark: FarmSnapshot, offset: int, size: int) -> bytes | None:
        """A part of this snapshot; None if a newer one has replaced it."""
        ...

    def write_snapshot(self, offset: int, data: bytes) -> None:
        """Writes a chunk of an incoming snapshot; offset 0 starts a new one."""

    def install_snapshot(self, mark: FarmSnapshot) -> None:
        """The incoming snapshot is complete and replaces the current one."""
