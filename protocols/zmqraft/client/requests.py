"""Requests of a client other than updates: queries with one answer, and streams of entries.

The machine's owner creates these objects and reads the results that the machine stores in them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from ...errors import RemoteProtocolError
from ...raft.messages import EntryBatch
from ...record import slice_block
from ..wire.client_codec import (
    CONFIG_ANSWER,
    LOG_INFO_ANSWER,
    STATE_URL_ANSWER,
    ConfigAnswer,
    EntriesAnswer,
    EntriesStatus,
    Form,
    LogInfo,
    RequestBroadcastStateUrl,
    RequestConfig,
    RequestEntries,
    RequestLogInfo,
    StateChunk,
    encode_client_request,
)
from ..wire.config_codec import CONFIG_UPDATE_ANSWER, ConfigStatus, ConfigUpdate, ConfigUpdateAnswer
from ..wire.entry import Entry, block_log_entries, decode_entries
from ..wire.snapshot_codec import MAKE_SNAPSHOT_ANSWER, MakeSnapshot, SnapshotMade
from ..wire.transfer_codec import (
    TRANSFER_ANSWER,
    TRANSFER_NOT_LEADER,
    TRANSFER_REFUSED,
    TRANSFER_REQUEST,
    RequestTransfer,
    TransferAnswer,
)
from ..wire.values import CONFIG_UPDATE, MAKE_SNAPSHOT, REQUEST_UPDATE, TRANSFER, UPDATE_PACK

# Else log.read.
GRANTS = {
    **dict.fromkeys((REQUEST_UPDATE, UPDATE_PACK), "log.append"),
    **dict.fromkeys((CONFIG_UPDATE, TRANSFER, MAKE_SNAPSHOT), "admin"),
}
# A busy node sends a snapshot in pieces with pauses, and another peer would begin anew.
BACKUP_PATIENCE_MS = 4500
RUNS_MAX = 64  # Waiting runs of a stream. A peer sends 5 without a follow-up.

QueryAnswer = (
    ConfigAnswer | LogInfo | ConfigUpdateAnswer | SnapshotMade | TransferAnswer | str | None
)


TOO_MANY_STREAMS = (
    "this client has too many entry streams: end one, or raise `limits.client_streams_max`"
)


def denial_of(request_type: bytes) -> str:
    """Why a request of this type is denied, for users."""
    return f"this key has no grant `{GRANTS.get(request_type, 'log.read')}`"


@dataclass(slots=True, eq=False)
class Query:
    """A request with one answer, for the leader or for the peer at url."""

    request: (
        RequestConfig
        | RequestLogInfo
        | RequestBroadcastStateUrl
        | ConfigUpdate
        | MakeSnapshot
        | RequestTransfer
    )
    url: str | None = None
    sent_ms: int | None = field(init=False, default=None)
    refusals: int = field(init=False, default=0)  # Answers of peers that do not lead.
    # Answers of a leader that it is in progress.
    accepted_count: int = field(init=False, default=0)
    is_foreign: bool = field(init=False, default=False)  # The peer does not know such requests.
    # Accept an answer without a URL from any peer: it does not broadcast.
    accepts_no_url: bool = field(init=False, default=False)
    done: bool = field(init=False, default=False)
    answer: QueryAnswer = field(init=False, default=None)
    denial: str = field(init=False, default="")  # The grant that the client's key lacks.

    @property
    def makes_snapshot(self) -> bool:
        """Whether only a kelek peer answers it."""
        return isinstance(self.request, MakeSnapshot)

    @property
    def is_transfer(self) -> bool:
        """Whether it moves the leadership."""
        return isinstance(self.request, RequestTransfer)

    def refuse(self, reason: str) -> None:
        """The peer does not know such requests: it would never answer."""
        self.is_foreign = self.done = True
        if self.is_transfer:
            self.answer = TransferAnswer(TRANSFER_REFUSED, reason=reason)
        else:
            self.answer = SnapshotMade(reason=reason)

    def deny(self, reason: str) -> None:
        """The key of this client may not send it."""
        self.denial, self.done = reason, True

    def encode(self, cluster: bytes, form: Form) -> list[bytes]:
        if isinstance(self.request, RequestTransfer):
            return TRANSFER_REQUEST.encode(self.request, cluster=cluster)
        return encode_client_request(self.request, cluster, form)

    def on_answer(self, frames: Sequence[bytes], now_ms: int) -> bool:
        """Processes an answer. Returns False when it is not a leader's: search the leader."""
        answer: QueryAnswer
        in_progress = False
        match self.request:
            case RequestConfig():
                answer = CONFIG_ANSWER.decode(frames)
                leads = answer.leading
            case RequestLogInfo():
                answer = LOG_INFO_ANSWER.decode(frames)
                leads = answer.leading
            case RequestBroadcastStateUrl():
                answer = STATE_URL_ANSWER.decode(frames).url
                leads = answer is not None or self.accepts_no_url or self.refusals > 0
            case ConfigUpdate():
                answer = CONFIG_UPDATE_ANSWER.decode(frames)
                in_progress = answer.status is ConfigStatus.ACCEPTED and answer.log_index is None
                leads = answer.status is not ConfigStatus.NOT_LEADER
            case MakeSnapshot():
                answer = MAKE_SNAPSHOT_ANSWER.decode(frames)
                leads = True  # Every peer makes its own snapshots.
            case RequestTransfer():
                answer = TRANSFER_ANSWER.decode(frames)
                leads = answer.status != TRANSFER_NOT_LEADER
                in_progress = answer.status != TRANSFER_REFUSED and answer.leader is None
        if self.url is None and not leads:
            self.refusals += 1
            self.sent_ms = None
            return False
        if in_progress:  # Another answer will follow.
            self.accepted_count += 1
            self.sent_ms = now_ms
        else:
            self.answer, self.done = answer, True
        return True


class EntryRun(NamedTuple):
    """Consecutive entries, still encoded: as frames, or as whole blocks."""

    first_index: int
    entries: tuple[bytes, ...]
    batches: tuple[EntryBatch, ...] = ()

    @property
    def last_index(self) -> int:
        if self.batches:
            return self.batches[-1].last_index
        return self.first_index + len(self.entries) - 1

    def decoded(self) -> list[Entry]:
        """Decodes the entries. Raises RemoteProtocolError on invalid ones."""
        if self.batches:
            return [entry for batch in self.batches for entry in block_log_entries(batch)]
        return decode_entries(self.first_index, self.entries)


class SnapshotPiece(NamedTuple):
    """A part of a snapshot's container (docs/reference/disk-format.md, "Snapshot").

    Pieces follow each other. A piece at offset 0 replaces all earlier ones: the peer has changed,
    or has another snapshot.
    """

    last_index: int  # Of the snapshot, ...
    last_term: int  # ... and of its last entry.
    size: int  # Of the container, in bytes.
    offset: int
    data: bytes


class Compacted(NamedTuple):
    """Entries up to last_index are no longer stored; a snapshot has their state."""

    last_index: int
    size: int  # Of the state, in bytes.


@dataclass(slots=True, eq=False)
class EntryStream:
    """Entries after prev_index: up to the commit index, or `remaining` of them.

    wants_state   it ends with a snapshot's state, or with the first entry
    url           the peer to read from, while it serves the stream; None: the leader
    """

    PATIENCE_MS: ClassVar[int] = 0  # Added to the time after which a silent peer is left.

    prev_index: int  # The last index received.
    remaining: int | None = None
    wants_state: bool = field(default=False, kw_only=True)
    url: str | None = field(default=None, kw_only=True)
    compacted: Compacted | None = field(init=False, default=None)
    # The chunks of the state so far.
    chunks: list[bytes] = field(init=False, default_factory=list)
    reqid: bytes | None = field(init=False, default=None)  # None: to be requested (again).
    packed: bool = field(init=False, default=False)  # Requested as whole blocks.
    runs: deque[EntryRun] = field(init=False, default_factory=deque)
    done: bool = field(init=False)
    heard_ms: int = field(init=False, default=0)
    denial: str = field(init=False, default="")  # The grant that the client's key lacks.
    # The follow-ups of the runs that wait for the reader.
    _follow_ups: deque[int] = field(init=False, default_factory=deque)

    def __post_init__(self) -> None:
        self.done = self.remaining == 0

    @property
    def awaits_peer(self) -> bool:
        """Whether the peer has to send the next message."""
        return self.reqid is not None and not self.done and not self._follow_ups

    def start(self, reqid: bytes, packed: bool = False) -> RequestEntries:
        """Returns the first request, or the one that continues after a failure."""
        self.reqid, self.packed = reqid, packed
        self._follow_ups.clear()
        self.chunks.clear()
        return self._request(self.prev_index, self.remaining)

    def on_answer(self, answer: EntriesAnswer) -> RequestEntries | None:
        """Processes an answer. Returns the follow-up if no entries wait for the reader."""
        assert answer.status is not EntriesStatus.NOT_LEADER
        if len(self.runs) >= RUNS_MAX:
            return None  # A peer sends a few messages without a follow-up, never so many.
        if answer.chunk is not None:
            return self._on_chunk(answer, answer.chunk)
        if self.wants_state:
            self.done = True
            return self.stop() if answer.status is EntriesStatus.MORE else None
        count = answer.entries_count
        first_index = answer.last_index - count + 1
        if first_index > self.prev_index + 1 and count:
            return None  # Entries are missing: after a silence comes a new request.
        if not count and answer.last_index > self.prev_index:
            raise RemoteProtocolError("an entries answer skips entries")
        last_index = answer.last_index
        if self.remaining is not None:
            last_index = min(last_index, self.prev_index + self.remaining)
        fresh = count > 0 and last_index > self.prev_index
        if fresh:
            self.runs.append(_wanted_run(answer, self.prev_index + 1, last_index))
            if self.remaining is not None:
                self.remaining -= last_index - self.prev_index
            self.prev_index = last_index
        if answer.status is EntriesStatus.LAST or self.remaining == 0:
            self.done = True
            return self.stop() if answer.status is EntriesStatus.MORE else None
        if fresh:
            self._follow_ups.append(answer.last_index)
            return None
        return self._follow_up(answer.last_index)

    def _on_chunk(self, answer: EntriesAnswer, chunk: StateChunk) -> RequestEntries | None:
        """The requested entries are no longer stored: processes a chunk of its state."""
        last_index = answer.last_index
        if last_index <= self.prev_index:
            raise RemoteProtocolError("a snapshot up to an index that was received before")
        compacted = Compacted(last_index, chunk.size)
        if not self.wants_state:
            self.compacted = compacted
            return self.stop()
        if self.compacted != compacted:
            self.compacted = compacted
            self.chunks.clear()
        offset = sum(map(len, self.chunks))
        if chunk.offset != offset:
            return None  # Entries are missing: after a silence comes a new request.
        self.chunks.append(answer.data)
        if offset + len(answer.data) == chunk.size:
            return self.stop()
        return self._request(last_index, None)

    def next_run(self) -> tuple[EntryRun | None, RequestEntries | None]:
        """Returns the next entries for the reader, and the follow-up that lets the peer send
        more."""
        if not self.runs:
            return None, None
        run = self.runs.popleft()
        if self.done or self.reqid is None or not self._follow_ups:
            return run, None
        return run, self._follow_up(self._follow_ups.popleft())

    def deny(self, reason: str) -> None:
        """The key of this client may not read: nothing follows the waiting runs."""
        self.denial, self.done = reason, True

    def stop(self) -> RequestEntries | None:
        """Returns the request that ends the stream at the peer, if it was started."""
        self.done = True
        if self.reqid is None:
            return None
        return self._request(self.prev_index, 0)

    def _follow_up(self, last_index: int) -> RequestEntries:
        assert self.reqid is not None
        remaining = self.remaining
        if remaining is not None:
            remaining += self.prev_index - last_index
        return self._request(last_index, remaining)

    def _request(self, prev_index: int, count: int | None) -> RequestEntries:
        anywhere = self.url is not None
        reqid = self.reqid or b""
        return RequestEntries(reqid, prev_index, count, packed=self.packed, any_peer=anywhere)


@dataclass(slots=True, eq=False)
class BackupStream(EntryStream):
    """As EntryStream. If a snapshot has replaced the first entries, its container comes before
    them, in pieces that wait for the reader."""

    PATIENCE_MS: ClassVar[int] = BACKUP_PATIENCE_MS

    pieces: deque[SnapshotPiece] = field(init=False, default_factory=deque)
    # Of the container in transfer: last index, size, and the bytes that have arrived.
    _arrived: tuple[int, int, int] = field(init=False, default=(0, 0, 0))
    _peer: str = field(init=False, default="")  # The url that it is read from.

    def read_from(self, url: str) -> None:
        """The next start() asks the peer at url. Another peer's snapshot of the same entry has
        other bytes, so its container begins anew."""
        if url != self._peer:
            self._peer, self._arrived = url, (0, 0, 0)

    @property
    def awaits_peer(self) -> bool:
        return not self.pieces and super(BackupStream, self).awaits_peer

    def start(self, reqid: bytes, packed: bool = False) -> RequestEntries:
        request = super(BackupStream, self).start(reqid, packed)
        return request._replace(offset=self._arrived[2] or None)

    def _on_chunk(self, answer: EntriesAnswer, chunk: StateChunk) -> RequestEntries | None:
        last_index, end = answer.last_index, chunk.offset + len(answer.data)
        if last_index <= self.prev_index:
            raise RemoteProtocolError("a snapshot up to an index that was received before")
        if chunk.offset == 0:
            self.pieces.clear()
            self.runs.clear()
        elif self._arrived != (last_index, chunk.size, chunk.offset):
            if self._arrived[:2] != (last_index, chunk.size):
                self._arrived = 0, 0, 0
            return None  # Pieces are missing: after a silence comes a new request.
        self._arrived = last_index, chunk.size, end
        if end == chunk.size:
            self.prev_index, self._arrived = last_index, (0, 0, 0)
        position = last_index, chunk.term or 0, chunk.size, chunk.offset
        self.pieces.append(SnapshotPiece(*position, answer.data))
        return None

    def next_piece(self) -> tuple[SnapshotPiece | None, RequestEntries | None]:
        """Returns the next piece for the reader, and the follow-up that lets the peer send more."""
        if not self.pieces:
            return None, None
        piece = self.pieces.popleft()
        if self.done or self.reqid is None:
            return piece, None
        follow_up = self._request(self.prev_index, self.remaining)
        return piece, follow_up._replace(offset=piece.offset + len(piece.data))

    def _request(self, prev_index: int, count: int | None) -> RequestEntries:
        request = super(BackupStream, self)._request(prev_index, count)
        return request._replace(container=True)


def _wanted_run(answer: EntriesAnswer, first_index: int, last_index: int) -> EntryRun:
    """Returns the wanted entries of an answer, which may begin before and end after them."""
    if not answer.batches:
        begin = answer.last_index - len(answer.entries) + 1
        return EntryRun(first_index, answer.entries[first_index - begin : last_index + 1 - begin])
    batches = tuple(
        slice_block(batch, max(first_index, batch.first_index), min(last_index, batch.last_index))
        for batch in answer.batches
        if batch.last_index >= first_index and batch.first_index <= last_index
    )
    return EntryRun(first_index, (), batches)
