"""What a peer is begun with, and what it wants done: values that pass between it and who drives it.

Nothing here acts; protocols/zmqraft/server/peer.py does.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from ...raft.log import RaftLog
from ...raft.membership import Configuration
from ...raft.messages import KIND_CHECKPOINT, AppendJob, EntryBatch, HardState, Setup
from ...record import RECORD_BYTES_MAX, Record, cut_block, encode_block, trim_block
from ..membership.directory import MemberDirectory
from ..membership.voter_eligibility import Repair
from ..snapshots.orders import Order, Snapshot
from .append_queue import PruneMarks
from .commits import CommitNotice

CHECKPOINT_DATA = b"\xc0"
FORGET_AFTER_TTL_S = 30 * 60  # So much longer than update_ttl_s request ids are kept.


class PeerSetup(NamedTuple):
    """What a peer is told once; times in milliseconds, the defaults are decisions/zmq-raft's."""

    cluster: str
    peer_id: str
    urls: Mapping[str, str]  # Each member's ROUTER url, our own included.
    peer_urls: Mapping[str, str] = {}  # Of those who come in at a door of their own: only there.
    text_peers: frozenset[str] = frozenset()  # Members that speak as the text does, not as node.
    version: str = ""
    election_timeout_ms_min: int = 200
    election_timeout_ms_max: int = 300
    heartbeat_ms: int = 70
    rpc_timeout_ms: int = 50
    append_timeout_ms: int = 100
    append_inflight_max: int = 4
    append_bytes_max: int = 1 << 20
    entry_bytes_max: int = RECORD_BYTES_MAX
    update_ttl_s: int = 8 * 3600
    reqids_max: int = 10_000_000
    inflight_max: int = 65_536
    inflight_bytes_max: int = 64 << 20
    pre_vote: bool = True
    check_quorum: bool = True
    bootstrap: bool = False
    broadcast_url: str = ""  # Where our state machine broadcasts, if it does.
    snapshot_entries: int = 0  # Behind the last snapshot the next one is made; 0: never for this.
    snapshot_bytes: int = 0
    snapshot_behind: int = 1_000_000  # Entries kept for followers that lack them, at most.
    holds_tables: bool = False  # This node has a table server.

    def core_setup(self, configuration: Callable[[EntryBatch], Configuration | None]) -> Setup:
        """The core's part of it, over batches of this wire; configuration is Setup's."""
        return Setup(
            peer_id=self.peer_id,
            election_timeout_ms_min=self.election_timeout_ms_min,
            election_timeout_ms_max=self.election_timeout_ms_max,
            heartbeat_ms=self.heartbeat_ms,
            vote_timeout_ms=self.rpc_timeout_ms,
            rpc_timeout_ms=self.append_timeout_ms,
            pre_vote=self.pre_vote,
            check_quorum=self.check_quorum,
            append_bytes_max=self.append_bytes_max,
            inflight_max=self.append_inflight_max,
            cut=cut_block,
            trim=trim_block,
            term_entry=term_entry,
            configuration=configuration,
        )


class Recovered(NamedTuple):
    """What was found on disk, after the log writer has synced it."""

    epoch: int
    log: RaftLog
    hard_state: HardState
    voter: bool
    vote_withheld: bool
    snapshot: Snapshot = Snapshot()
    reset: bool = False  # The files of the log do not hold the snapshot's last entry.
    bytes_after_snapshot: int = 0  # Of the log: counted for the next snapshot.
    prune_marks: PruneMarks | None = None  # Of what the table of request ids was made of.
    directory: MemberDirectory | None = None  # What the log says of the members; None: nothing.
    repair: Repair | None = None  # The log was damaged, and that is not yet made good.


class Wake(NamedTuple):
    """What is to be done after a wake, in this order; frames lie in the peer's outgoing Frames."""

    hard_state: tuple[HardState, bool] | None  # Make durable before anything is sent: state, voter.
    job: AppendJob | None
    commit: CommitNotice | None  # Publish.
    orders: list[Order]  # For snapshot_sender; one that gets lost is given again.
    compact: int | None  # Up to here the log writer may remove whole segments.


def term_entry(first_index: int, term: int) -> EntryBatch:
    """The entry with which a leader of this wire starts its term: a checkpoint."""
    return encode_block(first_index, term, [Record(KIND_CHECKPOINT, None, CHECKPOINT_DATA)])


class OwnLogReader(Protocol):
    """Reads our own log from disk (storage.reader.LogReader)."""

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]: ...

    def close(self) -> None:
        """Forgets what it knows of the files: the log was replaced from somewhere on."""
