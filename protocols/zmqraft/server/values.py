"""Values between a peer and its owner: settings, recovered state, events, the actions of a wake."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from ....native.net.messages import Arena, Frames
from ...host.border import LinkLost, Requests, Responses
from ...host.status import GroupRole
from ...raft.log import RaftLog
from ...raft.membership import Configuration
from ...raft.messages import (
    KIND_CHECKPOINT,
    AppendAck,
    AppendJob,
    EntryBatch,
    HardState,
    RaftTuning,
    Setup,
)
from ...record import RECORD_BYTES_MAX, Record, cut_block, encode_block, trim_block
from ..membership.directory import MemberDirectory
from ..membership.voter_eligibility import Repair
from ..snapshots.orders import Order, Result, Snapshot
from .commits import CommitNotice

CHECKPOINT_DATA = b"\xc0"
STEP_S = 60  # The least distance of two PruneMarks, in log time.
MARKS_MAX = 4096  # So many marks reach further back than any request id lives.
REQIDS_EXTRA_TTL_S = 30 * 60  # Request ids are kept so much longer than update_ttl_s.


class PruneMarks:
    """Log time at some indexes: the largest time of any request id up to there, which never falls.

    They tell up to which index all request ids have expired, without a look at each id.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=MARKS_MAX)  # Index, log time.
        self._index = 0  # All request ids up to this index have expired.

    def add(self, index: int, log_s: int) -> None:
        """The log has grown to index, and log time to log_s (Unix time in seconds)."""
        if not self._marks or log_s >= self._marks[-1][1] + STEP_S:
            self._marks.append((index, log_s))
        elif log_s == self._marks[-1][1]:
            self._marks[-1] = (index, log_s)

    def truncate(self, last_index: int) -> None:
        """The log has dropped its entries above last_index."""
        while self._marks and self._marks[-1][0] > last_index:
            self._marks.pop()

    def __len__(self) -> int:
        return len(self._marks)

    def index_before(self, expired_s: int) -> int:
        """Returns the highest index up to which all request ids are known to be older than
        expired_s."""
        while self._marks and self._marks[0][1] < expired_s:
            self._index = self._marks.popleft()[0]
        return self._index


class UpdateLimits(NamedTuple):
    entry_bytes_max: int = RECORD_BYTES_MAX
    ttl_s: int = 8 * 3600
    reqids_max: int = 10_000_000
    inflight_max: int = 65_536
    inflight_bytes_max: int = 64 << 20


class SnapshotSetup(NamedTuple):
    """The conditions for automatic snapshots; 0 disables one."""

    entries: int = 0  # Entries behind the last snapshot.
    size: int = 0  # Of the log, in bytes.
    # At most so many entries before a snapshot stay for slow followers.
    trailing_entries: int = 1_000_000


class OutgoingFrames(NamedTuple):
    """The messages to send; who sends them clears them."""

    clients: Frames  # At `url`.
    peers: Frames  # At `peer_url`.
    links: Mapping[str, Frames]  # On the link to each peer.


class PeerSetup(NamedTuple):
    """Settings of a peer. docs/reference/topology.md describes them."""

    cluster: str
    peer_id: str
    urls: Mapping[str, str]  # Each member's URL for clients, our own included.
    peer_urls: Mapping[str, str] = {}  # Of kelek members: they send peer messages there only.
    # Foreign members that use the specification's forms, not the npm package's.
    text_peers: frozenset[str] = frozenset()
    version: str = ""
    tuning: RaftTuning = RaftTuning()
    updates: UpdateLimits = UpdateLimits()
    snapshots: SnapshotSetup = SnapshotSetup()
    bootstrap: bool = False
    broadcast_url: str = ""  # The URL of this node's broadcasts; empty: none.
    holds_tables: bool = False  # This node has a table server.
    foreign_urls: Mapping[str, str] = {}  # Each member's URL for clients without CURVE.
    foreign_slot: int | None = None  # The slot of all that connect without CURVE; None: none.
    client_streams_max: int = 1000
    key_name: Callable[[int], str] = str  # Of the key in a slot.

    def core_setup(self, configuration: Callable[[EntryBatch], Configuration | None]) -> Setup:
        """Returns the core's settings, with this wire's batch functions; configuration is
        Setup's."""
        return Setup(self.peer_id, cut_block, trim_block, term_entry, configuration, self.tuning)


class Recovered(NamedTuple):
    """The state found on disk, after the log writer has synced it."""

    epoch: int
    log: RaftLog
    hard_state: HardState
    voter: bool
    vote_withheld: bool
    snapshot: Snapshot = Snapshot()
    reset: bool = False  # The log's files do not hold the snapshot's last entry.
    bytes_after_snapshot: int = 0  # Of the log: counted for the next snapshot.
    # Of the entries that the table of request ids was built from.
    prune_marks: PruneMarks | None = None
    directory: MemberDirectory | None = None  # The members by the log; None: it names none.
    repair: Repair | None = None  # The log was damaged and is not yet repaired.
    # Reads the newest snapshot's table of request ids.
    snapshot_reqids: Callable[[], Iterable[bytes]] = tuple


class Applied(NamedTuple):
    """The state machine of this node has applied everything up to applied_index.

    An applier is a process of this node that applies the log: the state machine or a worker.

    by_all         the smallest index that every applier of this node has reached; the log is kept
                   for the slowest, but reads do not wait for it
    urgent         an applier needs each commit at once
    clients_wait   clients of an applier wait for commits: our answers tell the leader
    """

    applied_index: int
    by_all: int
    urgent: bool = False
    clients_wait: bool = False


class OrderLost(NamedTuple):
    """The owner could not send an order to snapshot_sender."""

    order: Order


class Stalled(NamedTuple):
    """Saving term and vote has blocked the owner for so long: it has read no heartbeat."""

    ms: int


class Suspended(NamedTuple):
    """The machine was suspended: our clock stood still while others' went on."""


Endpoint = Literal["url", "peer_url"]  # Where messages arrive.
Event = (
    Requests[Endpoint, Arena]  # Of members and table servers at `peer_url`.
    | Responses[str, Arena]
    | LinkLost[str]
    | AppendAck
    | Applied
    | Result
    | OrderLost
    | Stalled
    | Suspended
)


class Wake(NamedTuple):
    """The actions after a wake, in this order, and the state that the owner saves and logs.

    out   the peer's own; events after the wake may add messages to it
    """

    # Make it durable before anything is sent: state, is a voter.
    hard_state: tuple[HardState, bool] | None
    urls: Mapping[str, str]  # The address of each link, by PEER ID; a new one after each change.
    job: AppendJob | None
    out: OutgoingFrames
    orders: Sequence[Order]  # For snapshot_sender.
    compact: int | None  # The log writer may remove whole segments up to this index.
    commit: CommitNotice | None  # Send it to the processes that it names.
    role: GroupRole
    last_index: int
    vote_withheld: bool  # The stored vote is damaged and not yet replaced.
    repairing: bool  # The log still lacks entries that it may have acknowledged before its damage.


def term_entry(first_index: int, term: int) -> EntryBatch:
    """Returns the first entry of a leader's term on this wire: a checkpoint."""
    return encode_block(first_index, term, [Record(KIND_CHECKPOINT, None, CHECKPOINT_DATA)])


class OwnLogReader(Protocol):
    """Reads this peer's own log from disk (storage.log.reader.LogReader)."""

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]: ...

    def close(self) -> None:
        """Forgets the state of the files: entries in them were replaced."""
