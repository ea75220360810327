"""Messages and values of the Raft core, independent of any wire."""

from collections.abc import Callable
from typing import NamedTuple

from ..errors import RemoteProtocolError
from ..limits import NUMBER_MAX
from .membership import Configuration

KIND_STATE = 0
KIND_CONFIG = 1
KIND_CHECKPOINT = 2
KIND_TABLES = 3  # Operations on tables, from a table server.
APPEND_BATCHES_MAX = 256  # Of one AppendEntries.


class EntryBatch(NamedTuple):
    """Consecutive log entries of one term, framed once and then passed on unchanged.

    The core never reads `block` (docs/reference/disk-format.md, "Block"). On the hot path no
    Python object stands for a single entry.
    """

    first_index: int
    count: int  # type: ignore[assignment]  # A tuple, as one is made per message; hides its count.
    term: int
    block: bytes

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1


class HardState(NamedTuple):
    """The state that must be durable before a message that depends on it is sent (Raft, figure
    2)."""

    term: int = 0
    voted_for: str | None = None


class RequestVote(NamedTuple):
    """Raft, section 5.2. With `pre_vote`: section 9.6 of the dissertation."""

    term: int  # The candidate's term; with pre_vote, the term of its next campaign.
    candidate: str
    last_index: int
    last_term: int
    pre_vote: bool = False
    transfer: bool = False  # The leader asked for this campaign: leader stickiness does not apply.


class Vote(NamedTuple):
    """The answer to RequestVote."""

    term: int
    granted: bool
    pre_vote: bool = False


class AppendEntries(NamedTuple):
    """Raft, section 5.3. Without batches it is a heartbeat and a commit notice."""

    term: int
    leader: str
    prev_index: int
    prev_term: int
    commit_index: int
    batches: tuple[EntryBatch, ...] = ()
    read_round: int = 0  # The round of reads it belongs to (reads.py); never on the wire.


class AppendResponse(NamedTuple):
    """The answer to AppendEntries.

    On success every entry up to match_index is equal and durable. match_index may be below the
    request's previous index while our disk is behind. A wire that cannot express this refuses such
    a request with conflict_index = match_index + 1.

    On refusal the leader continues at conflict_index. It is the first index of conflict_term, the
    term of our entry at prev_index. If our log is too short, it is our last index + 1, and
    conflict_term is 0. conflict_index 0 is no hint: the term is stale, or the wire has no hints.

    read_round is the request's; the request's sender fills it in by message id. The owner fills in
    clients_wait where its wire can express it.
    """

    term: int
    success: bool
    match_index: int = 0
    conflict_index: int = 0
    conflict_term: int = 0
    read_round: int = 0
    clients_wait: bool = False  # Clients of the follower's node wait for the next commit.


class InstallSnapshot(NamedTuple):
    """Raft, section 7: a chunk of a snapshot that ends with entry (last_index, last_term).

    The core checks only the leader and the index. The owner of the snapshot files checks the chunk.
    """

    term: int
    leader: str
    last_index: int
    last_term: int
    offset: int  # Of the chunk in the snapshot, in bytes.
    size: int  # Of the whole snapshot, in bytes.
    chunk: bytes


class SnapshotResponse(NamedTuple):
    """The answer to InstallSnapshot."""

    term: int
    offset: int | None = None  # The next offset to send; None: the end of the chunk.
    done: bool = False  # The snapshot is installed, or was not needed.


class TimeoutNow(NamedTuple):
    """The leader asks a follower to campaign at once (dissertation, section 3.10). It has no
    answer."""

    term: int
    leader: str


Request = RequestVote | AppendEntries | InstallSnapshot | TimeoutNow
Message = Request | Vote | AppendResponse | SnapshotResponse


class Envelope(NamedTuple):
    """A message and its receiver. `context` is the value that step() got with the request."""

    to: str
    message: Message
    context: object = None


class AppendJob(NamedTuple):
    """Blocks for the log writer. They follow entry prev_index and replace every entry after it.

    With `reset` the log first restarts behind that entry, with which a durable snapshot ends. The
    epoch is new at each start of peer and writer.
    """

    epoch: int
    seq: int  # 1, 2, 3, ... within an epoch.
    prev_index: int
    prev_term: int
    blocks: list[bytes]
    reset: bool = False


class AppendAck(NamedTuple):
    """All jobs up to seq are durable. seq 0: the log is open.

    is_full   the disk has no space: nothing more is acknowledged until there is
    """

    epoch: int
    seq: int
    is_full: bool = False


class StoredRead(NamedTuple):
    """Entries for a follower that are no longer in memory. Raft.on_stored_read() gets the
    answer."""

    to: str
    first_index: int
    bytes_max: int


class ReadIndex(NamedTuple):
    """A confirmed round of reads: every commit before its start is at or below `log_index`."""

    round: int
    log_index: int


class Ready(NamedTuple):
    """Everything that the core wants done, in the only safe order.

    `batches` follow each other without a gap. The first may begin at or below an index of an
    earlier Ready, and then replaces the entries from there on. `messages_after` wait until all
    batches so far, also those of earlier Readys, are durable.
    """

    hard_state: HardState | None  # Make this durable first, ...
    messages: list[Envelope]  # ... then send these.
    batches: list[EntryBatch]  # Write these in order (the first may replace a suffix), ...
    messages_after: list[Envelope]  # ... and send these as soon as all are durable.
    reads: list[StoredRead]
    snapshots: list[str]  # Followers that need one, named once; on_snapshot_sent() answers.
    commit_index: int
    commit_term: int  # The term of the entry at commit_index.
    read_index: ReadIndex | None = None  # Reads of this round and earlier ones may be answered.


class RaftTuning(NamedTuple):
    """Times and limits of a core; times in milliseconds."""

    election_timeout_ms_min: int = 200
    election_timeout_ms_max: int = 300
    heartbeat_ms: int = 70
    commit_notice_ms: int = 10  # The longest delay of a commit notice that no entries carry.
    append_timeout_ms: int = 100  # After this time an unanswered probe or StoredRead is repeated.
    vote_retry_ms: int = 50  # After this time an unanswered RequestVote is repeated.
    inflight_max: int = 4  # Unanswered AppendEntries with entries to one follower.
    append_bytes_max: int = 1 << 20
    pre_vote: bool = True
    check_quorum: bool = True
    lease_reads: bool = False  # A leader answers reads without a round while it has a lease.


class Setup(NamedTuple):
    peer_id: str
    cut: Callable[[EntryBatch, int], EntryBatch]  # The batch without its entries below an index.
    trim: Callable[[EntryBatch, int], EntryBatch]  # The batch without its entries above an index.
    term_entry: Callable[[int, int], EntryBatch]  # (first index, term): a leader's first entry.
    # The configuration in a batch, if any. The core asks only for batches of one entry, because a
    # configuration is alone in its batch.
    configuration: Callable[[EntryBatch], Configuration | None]
    tuning: RaftTuning = RaftTuning()


def check_append_entries(sender: str, message: AppendEntries) -> int:
    """Returns the index of the message's last entry, or its previous index without entries.

    Raises RemoteProtocolError when the message contradicts itself.
    """
    term, leader, index, entry_term, commit_index, batches, _ = message
    if leader != sender or entry_term > term or (index == 0) is not (entry_term == 0):
        raise RemoteProtocolError(f"AppendEntries from {sender} contradicts itself")
    for first_index, count, batch_term, _ in batches:
        if first_index != index + 1 or count < 1 or not entry_term <= batch_term <= term:
            raise RemoteProtocolError(
                f"batch {first_index}+{count} of term {batch_term} does not follow "
                f"index {index} of term {entry_term}"
            )
        index += count
        entry_term = batch_term
    if index > NUMBER_MAX or commit_index > NUMBER_MAX:
        raise RemoteProtocolError(f"index {max(index, commit_index)} is out of range")
    return index
