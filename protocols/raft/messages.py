"""What the Raft core takes in and hands out: plain values, whatever the wire they travel on."""

from collections.abc import Callable
from typing import NamedTuple

from .membership import Configuration

KIND_STATE = 0
KIND_CONFIG = 1
KIND_CHECKPOINT = 2
KIND_TABLES = 3  # Operations of tables, from a table server.

APPEND_BATCHES_MAX = 256  # In one AppendEntries.


class EntryBatch(NamedTuple):
    """Consecutive log entries of one term, framed once and then passed on unchanged.

    The core never looks into `block` (docs/disk-format.md, "Block"): on the hot path no Python
    object stands for one entry.
    """

    first_index: int
    count: int  # type: ignore[assignment]  # It hides tuple.count, which nobody misses.
    term: int
    block: bytes

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1


class HardState(NamedTuple):
    """What must be durable before any message that depends on it leaves (Raft, figure 2)."""

    term: int = 0
    voted_for: str | None = None


class RequestVote(NamedTuple):
    """Raft, section 5.2; with `pre_vote` the question of section 9.6 of the dissertation."""

    term: int  # The candidate's term; with pre_vote the term that it would campaign in.
    candidate: str
    last_index: int
    last_term: int
    pre_vote: bool = False
    transfer: bool = False  # The leader asked for it: stickiness does not apply.


class Vote(NamedTuple):
    """The answer to RequestVote."""

    term: int
    granted: bool
    pre_vote: bool = False


class AppendEntries(NamedTuple):
    """Raft, section 5.3; without batches it is a heartbeat and a commit notice."""

    term: int
    leader: str
    prev_index: int
    prev_term: int
    commit_index: int
    batches: tuple[EntryBatch, ...] = ()
    read_round: int = 0  # Of reads, in which it is sent (reads.py); never on a wire.


class AppendResponse(NamedTuple):
    """The answer to AppendEntries.

    match_index is meaningful on success: everything up to it is equal and durable. It may be below
    the request's previous index when our disk has not got that far; a wire that can't say so
    refuses such a request with conflict_index = match_index + 1. On refusal conflict_index is where
    the leader should go on: the first index of conflict_term (the term that we have at prev_index),
    or our last index + 1 with conflict_term 0 when our log is too short; conflict_index 0 says
    nothing (a stale term, or a wire without hints).

    round is that of the request: its sender fills it in by the request's id. waits is for whoever
    sends it to fill in, where its wire can say so.
    """

    term: int
    success: bool
    match_index: int = 0
    conflict_index: int = 0
    conflict_term: int = 0
    read_round: int = 0
    clients_wait: bool = False  # Somebody beside this follower waits for what is committed next.


class InstallSnapshot(NamedTuple):
    """Raft, section 7: a piece of a snapshot that ends with entry (last_index, last_term).

    The core looks at who leads; what the piece is worth is for whoever keeps the file to say.
    """

    term: int
    leader: str
    last_index: int
    last_term: int
    offset: int  # Of the chunk, in bytes.
    size: int  # Of the whole.
    chunk: bytes


class SnapshotResponse(NamedTuple):
    """The answer to InstallSnapshot."""

    term: int
    offset: int | None = None  # Go on from there; None: behind the chunk.
    done: bool = False  # The whole is in place, or was not needed.


class TimeoutNow(NamedTuple):
    """The leader asks a follower to campaign at once: it has no answer (dissertation, 3.10)."""

    term: int
    leader: str


Request = RequestVote | AppendEntries | InstallSnapshot | TimeoutNow
Message = Request | Vote | AppendResponse | SnapshotResponse


class Envelope(NamedTuple):
    """A message and its way: context is what step() was given with the request, untouched."""

    to: str
    message: Message
    context: object = None


class AppendJob(NamedTuple):
    """Blocks for the log writer, behind entry prev_index and instead of what stood there.

    With reset the log begins anew there first: a durable snapshot ends with that entry. Its
    acknowledgement is (epoch, seq). The epoch is new at each start of peer and writer.
    """

    epoch: int
    seq: int  # 1, 2, 3, ... within an epoch.
    prev_index: int
    prev_term: int
    blocks: list[bytes]
    reset: bool = False


class StoredRead(NamedTuple):
    """Entries for a follower that are no longer in memory: answered by Raft.on_read()."""

    to: str
    first_index: int
    bytes_max: int


class ReadIndex(NamedTuple):
    """A confirmed round of reads: when it began, everything up to index was committed, and no
    other leader had committed more."""

    round: int
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody misses.


class Ready(NamedTuple):
    """Everything the core wants done, in the only order that is safe.

    batches follow each other without a gap; the first may begin at or below what was handed out
    earlier, and then replaces it from there on. messages_after wait for everything handed out so
    far, also by earlier Readys; when all of that is durable they go out at once.
    """

    hard_state: HardState | None  # Make this durable first, ...
    messages: list[Envelope]  # ... then send these.
    batches: list[EntryBatch]  # Write these in order (the first may replace a suffix), ...
    messages_after: list[Envelope]  # ... and send these when they are durable.
    reads: list[StoredRead]
    snapshots: list[str]  # Followers that need one, told once: answered by on_snapshot_sent().
    commit_index: int
    commit_term: int  # The term of the entry at commit_index.
    read_index: ReadIndex | None = None  # Reads of this round and earlier ones may be answered.


class Setup(NamedTuple):
    """What a core is told once; times in milliseconds."""

    peer_id: str
    cut: Callable[[EntryBatch, int], EntryBatch]  # The batch without its entries below an index.
    trim: Callable[[EntryBatch, int], EntryBatch]  # The batch without its entries above an index.
    term_entry: Callable[[int, int], EntryBatch]  # (first index, term): a leader's first entry.
    # What a batch puts in force; asked only for batches of one entry, as configurations are alone.
    configuration: Callable[[EntryBatch], Configuration | None]
    election_timeout_ms_min: int = 200
    election_timeout_ms_max: int = 300
    heartbeat_ms: int = 70
    commit_notice_ms: int = (
        10  # Followers hear of a commit so late when nothing else is to be said.
    )
    rpc_timeout_ms: int = 100  # An unanswered probe is repeated, an unanswered Read forgotten.
    vote_timeout_ms: int = 50  # An unanswered RequestVote is repeated.
    inflight_max: int = 4  # AppendEntries with entries under way to one follower.
    append_bytes_max: int = 1 << 20
    pre_vote: bool = True
    check_quorum: bool = True
