"""The peer's part of snapshots: when they are created, sent, received and compacted behind.

It holds no file. Another process executes its orders (snapshots/orders.py), so a slow disk
never delays a heartbeat. docs/protocols/zmq-raft.md, "InstallSnapshot".
"""

from collections import deque
from dataclasses import dataclass

from ...errors import RemoteProtocolError
from ...host.chunks import ChunkWindow
from ...raft.core import Raft
from ...raft.messages import InstallSnapshot, SnapshotResponse, StoredRead
from ..membership.directory import MemberDirectory
from ..snapshots.orders import (
    ChunkRead,
    ChunkWritten,
    CreateSnapshot,
    EntriesRead,
    Order,
    ReadChunk,
    ReadEntries,
    Result,
    SenderStarted,
    Snapshot,
    SnapshotCreated,
    SnapshotInstalled,
    WriteChunk,
)
from ..wire.client_codec import ReplyAddress, RequestEntries
from ..wire.config_codec import ConfigEntry, encode_config_entry
from ..wire.snapshot_codec import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_PLAIN,
    MAKE_SNAPSHOT_ANSWER,
    MAKE_SNAPSHOT_REQUEST,
    SnapshotMade,
)
from ..wire.values import INSTALL_SNAPSHOT, Feature
from .link import Origin, PeerRequests
from .links import Links
from .state_streams import STREAM_PREFIX, StateStreams
from .values import SnapshotSetup

WINDOW = 4  # Chunks being read or in flight to one kelek peer.
SILENCE_MS = 1000  # After this time without progress, chunks to a kelek peer are sent again.
RECEIVING_MAX = 16  # Chunks being written; more are dropped.
CLIENTS_WAITING_MAX = 1000  # Clients that wait for a new snapshot.
CREATE_MS_MAX = 60_000  # The time limit of a new snapshot.
COMPACT_MS = 200  # The least time between two compactions.
SMALL_STATE_BYTES = 16 << 20  # A state up to this size may be written at any request.
FOLLOWER_SILENT_MS_MAX = 5000  # Compaction ignores a follower without an answer for so long.


class _OutgoingSnapshot(ChunkWindow):
    """A snapshot being sent to one follower."""

    def __init__(self, snapshot: Snapshot, plain: bool, now_ms: int) -> None:
        # A single chunk until the first answer, which may name an offset to resume from.
        super().__init__(
            snapshot.state_size if plain else snapshot.size,
            CHUNK_BYTES_PLAIN if plain else CHUNK_BYTES_MAX,
        )
        self.snapshot = snapshot
        self.plain = plain
        # The last one in text form: a repeat must be equal.
        self.last_message: InstallSnapshot | None = None
        self.progress_ms = now_ms

    def rewind(self, offset: int) -> None:
        super().rewind(offset)
        self.last_message = None

    def resend(self) -> None:
        """Continues with a single chunk behind the last one that was acknowledged."""
        self.window = 1
        self.rewind(self.acked_bytes)

    def next_reads(self, to: str) -> list[ReadChunk]:
        return [
            ReadChunk(to, *self.snapshot[:2], *chunk, self.plain) for chunk in self.next_chunks()
        ]

    def on_answer(self, offset: int, now_ms: int) -> None:
        """The follower needs the chunk at offset next."""
        if offset > self.size:
            raise RemoteProtocolError(f"offset {offset} of a snapshot of {self.size} bytes")
        if offset != self.acked_bytes:
            self.progress_ms = now_ms
        self.window = 1 if self.plain else WINDOW
        self.acknowledge(offset)
        if self.follows != offset:
            self.rewind(offset)


@dataclass(slots=True)
class _Creation:
    """The new snapshot in progress, if any."""

    since_ms: int | None = None  # When it was ordered; None: none is in progress.
    # The order for it if that got lost, and when to repeat it.
    lost_order: tuple[CreateSnapshot, int] | None = None
    retry_ms: int = 0  # After a failure, the earliest time of the next one.


class SnapshotManager:
    """Creates, sends and receives the snapshots of one peer, and compacts its log."""

    def __init__(
        self,
        core: Raft,
        links: Links,
        requests: PeerRequests,
        directory: MemberDirectory,
        setup: SnapshotSetup,
        snapshot: Snapshot,
    ) -> None:
        self.newest = snapshot
        self.state_streams = StateStreams()
        self.orders: list[Order] = []  # For snapshot_sender, after this wake.
        self.bytes_at_order = 0  # The log's size when the last snapshot was ordered.
        self.problem = ""  # Why the last one failed.
        self._core, self._links = core, links
        self._requests, self._directory = requests, directory
        self._setup = setup
        self._outgoing: dict[str, _OutgoingSnapshot] = {}
        self._awaiting_hello: set[str] = set()  # Followers that need one, but have not said hello.
        # The chunks being written, in order, and the origin of each.
        self._receiving: deque[tuple[WriteChunk, Origin]] = deque()
        self._waiting_clients: list[tuple[ReplyAddress, bytes]] = []
        self._creation = _Creation()
        self._initial_due_ms = 0
        self._appended_bytes = 0
        self._compact_due_ms = 0
        self.incoming: tuple[int, int] | None = None  # Bytes so far, bytes of all: for status.

    # ---- leader ----

    def read_entries(self, read: StoredRead) -> None:
        """Orders old entries for a follower from disk."""
        core = self._core
        last_index = core.durable_index
        last_term = core.log.term_at(last_index)
        if last_term is not None and read.first_index <= last_index:
            self.orders.append(
                ReadEntries(read.to, read.first_index, last_index, last_term, read.bytes_max)
            )

    def start_sending(self, to: str, now_ms: int) -> None:
        """Starts, or restarts, to send the newest snapshot to a follower."""
        link = self._links.by_peer.get(to)
        if link is None or self.newest.last_index < max(1, self._core.log.base_index):
            return  # Our file was damaged: a peer that holds those entries must lead.
        plain = link.features is None and (
            self._directory.is_declared_foreign(to) or link.is_foreign
        )
        if not plain and not link.has_feature(Feature.SNAPSHOT):
            # Without its hello it would take state alone for a foreign leader's: without request
            # ids, and with the members that it knows, which may be outdated.
            self._awaiting_hello.add(to)
            return
        transfer = _OutgoingSnapshot(self.newest, plain, now_ms)
        self._outgoing[to] = transfer
        self.orders += transfer.next_reads(to)

    def on_answer(self, peer: str, response: SnapshotResponse, now_ms: int) -> None:
        """A follower has answered a chunk. Raises RemoteProtocolError."""
        transfer = self._outgoing.get(peer)
        if transfer is None or response.term != self._core.term:
            return
        if response.done:
            del self._outgoing[peer]
            self._core.on_snapshot_sent(peer, transfer.snapshot.last_index)
            return
        transfer.on_answer(response.offset or 0, now_ms)
        self.orders += transfer.next_reads(peer)

    def on_entries_request(
        self, client: ReplyAddress, request: RequestEntries, now_ms: int
    ) -> RequestEntries | None:
        """Processes a request for entries that are no longer stored: the client gets the state.

        Returns the request that remains to be answered with entries, if any.
        """
        stored = request.prev_index >= self._core.log.base_index or not self.newest.last_index
        if stored and not self.state_streams.has_stream(client, request):
            return request
        return self.state_streams.on_request(client, request, self.newest, now_ms)

    def on_lost(self, peer: str) -> None:
        """The connection is lost with its messages: continue with a single chunk."""
        transfer = self._outgoing.get(peer)
        if transfer is not None:
            transfer.resend()

    def on_hello(self, peer: str, now_ms: int) -> None:
        """The capabilities of the peer are known now."""
        transfer = self._outgoing.get(peer)
        if peer in self._awaiting_hello or (transfer is not None and transfer.plain):
            self._awaiting_hello.discard(peer)
            self.start_sending(peer, now_ms)

    def _is_foreign(self, peer: str) -> bool:
        link = self._links.by_peer.get(peer)
        return link is not None and link.is_foreign

    def on_step_down(self) -> None:
        self._outgoing.clear()
        self._awaiting_hello.clear()
        self.state_streams.on_step_down()

    def _on_chunk_read(self, piece: ChunkRead, now_ms: int) -> None:
        transfer = self._outgoing.get(piece.to)
        if transfer is None or transfer.snapshot[:2] != (piece.last_index, piece.last_term):
            return
        if not piece.found:
            if self.newest[:2] != transfer.snapshot[:2]:  # Else it is requested again later.
                self.start_sending(piece.to, now_ms)
            return
        if (piece.offset, piece.offset + len(piece.chunk)) in transfer.in_flight:
            core = self._core
            numbers = piece.last_index, piece.last_term, piece.offset, transfer.size
            message = InstallSnapshot(core.term, core.setup.peer_id, *numbers, piece.chunk)
            if transfer.plain:
                transfer.last_message = message
            self._send_chunk(piece.to, message, transfer)

    def _resend_after_ms(self, transfer: _OutgoingSnapshot) -> int:
        """Returns the time before a repeat. It is short for a single chunk, because the follower
        may not have been connected yet."""
        return self._core.setup.tuning.append_timeout_ms if transfer.window == 1 else SILENCE_MS

    def _send_chunk(self, to: str, message: InstallSnapshot, transfer: _OutgoingSnapshot) -> None:
        link = self._links.by_peer.get(to)
        if link is not None:
            link.send_chunk(message, plain=transfer.plain)

    # ---- follower ----

    def on_chunk(self, message: InstallSnapshot, origin: Origin) -> None:
        """Processes a chunk from the peer that the core accepts as leader."""
        if not self._core.wants_snapshot(message) or len(self._receiving) >= RECEIVING_MAX:
            self._requests.forget_request(origin)
            return
        link = self._links.by_peer.get(message.leader)
        is_plain = origin.type == INSTALL_SNAPSHOT
        if is_plain and link is not None and link.has_feature(Feature.SNAPSHOT):
            self._requests.forget_request(origin)  # It does not know our capabilities yet.
            self._links.hello_pending.add(message.leader)
            return
        _, _, index, term, offset, size, chunk = message
        foreign = b""
        if is_plain:
            foreign = self._directory.encode_at(self._core.log.last_index)
        order = WriteChunk(index, term, offset, size, chunk, foreign)
        self._receiving.append((order, origin))
        self.orders.append(order)
        self.incoming = offset, size

    def on_order_lost(self, order: Order, now_ms: int) -> None:
        """The pipe was full, or had no reader: the order is lost.

        A lost chunk is forgotten, because a later result would answer it. A lost order to create a
        snapshot is repeated. Other orders are repeated after a while anyway.
        """
        if isinstance(order, CreateSnapshot) and order.last_index:
            self._creation.lost_order = order, now_ms + self._core.setup.tuning.append_timeout_ms
        for receiving in self._receiving:
            if receiving[0] is order:
                self._receiving.remove(receiving)
                self._requests.forget_request(receiving[1])
                return

    def _answer_chunk(self, offset: int, *, done: bool) -> None:
        if self._receiving:
            _, origin = self._receiving.popleft()
            self._requests.answer(origin, SnapshotResponse(self._core.term, offset, done))

    # ---- our own ----

    def on_make_request(self, request: list[bytes], cluster: bytes, client: ReplyAddress) -> None:
        """A client requests a new snapshot, and gets an answer when it exists. Raises
        RemoteProtocolError."""
        request_id = MAKE_SNAPSHOT_REQUEST.decode(request, cluster).reqid
        if len(self._waiting_clients) < CLIENTS_WAITING_MAX:
            self._waiting_clients.append((client, request_id))

    def _create(self, now_ms: int) -> None:
        core = self._core
        index = min(core.commit_index, core.durable_index)
        term = core.log.term_at(index)
        if self._creation.since_ms is not None:
            return
        if index <= self.newest.last_index or term is None:
            self._answer_clients(self.newest, "no entry is committed after it" if not index else "")
            return
        self._creation.since_ms = now_ms
        self.bytes_at_order = self._appended_bytes
        self.orders.append(CreateSnapshot(index, term, self._directory.encode_at(index)))

    def _save_initial_members(self, now_ms: int) -> None:
        """Saves the initial members in a snapshot without state.

        The topology may change, and the log will be compacted.
        """
        first = self._directory.initial_members
        if first is not None and now_ms >= self._initial_due_ms:
            self._initial_due_ms = now_ms + SILENCE_MS
            self.orders.append(CreateSnapshot(0, 0, encode_config_entry(ConfigEntry(first))))

    def _answer_clients(self, snapshot: Snapshot, problem: str) -> None:
        waiting, self._waiting_clients = self._waiting_clients, []
        made = SnapshotMade(snapshot.last_index, snapshot.size)
        if problem:
            made = SnapshotMade(reason=problem)
        for client, request_id in waiting:
            client.send(MAKE_SNAPSHOT_ANSWER.encode(made, request_id))

    def _on_created(self, made: SnapshotCreated, now_ms: int) -> None:
        if made.snapshot is not None and not made.snapshot.last_index:
            self.newest = max(self.newest, made.snapshot)
            return
        self._creation.since_ms = self._creation.lost_order = None
        self.problem = made.problem
        if made.snapshot is None:
            self._creation.retry_ms = now_ms + CREATE_MS_MAX
            self._answer_clients(self.newest, made.problem or "it was not created")
            return
        self.newest = max(self.newest, made.snapshot)
        self._answer_clients(self.newest, "")

    def _is_due(self, applied_index: int) -> bool:
        """Whether an automatic snapshot is due.

        A large state is written again only after the log has grown by as much, so that the total of
        written bytes at most doubles.
        """
        entries, size = self._setup[:2]
        behind = applied_index - self.newest.last_index
        grown = self._appended_bytes - self.bytes_at_order
        if behind <= 0 or SMALL_STATE_BYTES < self.newest.state_size > grown:
            return False
        return (0 < entries <= behind) or (0 < size <= grown)

    def compact(self, applied_index: int, now_ms: int) -> int | None:
        """Compacts the log. Returns the new base index, or None.

        It keeps every entry that is not in the newest snapshot, applied and durable. Within the
        limit of trailing_entries it also keeps entries that an answering follower, or a receiver of
        a snapshot or backup, needs next.
        """
        core = self._core
        if self.newest.last_index <= core.log.base_index or now_ms < self._compact_due_ms:
            return None
        self._compact_due_ms = now_ms + COMPACT_MS
        index = min(self.newest.last_index, applied_index, core.durable_index)
        needed = [transfer.snapshot.last_index for transfer in self._outgoing.values()]
        needed += [
            follower.match_index
            for follower in core.followers
            if now_ms - follower.heard_ms < FOLLOWER_SILENT_MS_MAX
            and follower.peer not in self._outgoing
        ]
        floor = min(needed + self.state_streams.needed, default=index)
        index = min(index, max(floor, self.newest.last_index - self._setup.trailing_entries))
        if index <= core.log.base_index:
            return None
        core.compact(index)
        return index

    # ---- what comes back, and time ----

    def on_result(self, result: Result, now_ms: int) -> Snapshot | None:
        """Processes a result of snapshot_sender. Returns a snapshot to be installed, if any."""
        match result:
            case EntriesRead(to, first_index, batches):
                self._core.on_stored_read(to, first_index, batches)
            case ChunkRead(to) if to.startswith(STREAM_PREFIX):
                self.state_streams.on_chunk_read(result)
            case ChunkRead():
                self._on_chunk_read(result, now_ms)
            case ChunkWritten(_, _, offset):
                self._answer_chunk(offset, done=False)
            case SnapshotInstalled(snapshot):
                self.newest = max(self.newest, snapshot)
                self._answer_chunk(snapshot.size, done=True)
                self.incoming = None
                return snapshot
            case SnapshotCreated():
                self._on_created(result, now_ms)
            case SenderStarted(snapshot):
                self._on_sender_started(snapshot, now_ms)
                return snapshot
        return None

    def _on_sender_started(self, snapshot: Snapshot, now_ms: int) -> None:
        """snapshot_sender has restarted: orders in progress are lost."""
        self.newest = max(self.newest, snapshot)
        self._receiving.clear()
        self._requests.forget_chunks()
        self.incoming = None
        self._creation.since_ms = self._creation.lost_order = None
        for peer, transfer in self._outgoing.items():
            transfer.resend()
            self.orders += transfer.next_reads(peer)

    def step(self, applied_index: int, appended_bytes: int, now_ms: int) -> list[Order]:
        """Repeats lost chunks, and orders a snapshot when it is due or a client waits.

        appended_bytes   of the log behind the snapshot that the peer started with

        Returns the orders for snapshot_sender.
        """
        self._appended_bytes = appended_bytes
        if not self.newest.configuration:
            self._save_initial_members(now_ms)
        for peer in [peer for peer in self._awaiting_hello if self._is_foreign(peer)]:
            self._awaiting_hello.remove(peer)
            self.start_sending(peer, now_ms)
        for peer, transfer in self._outgoing.items():
            if now_ms - transfer.progress_ms < self._resend_after_ms(transfer):
                continue
            transfer.progress_ms = now_ms
            if transfer.plain and transfer.last_message is not None:
                self._send_chunk(peer, transfer.last_message, transfer)
                continue
            transfer.resend()
            self.orders += transfer.next_reads(peer)
        creation = self._creation
        if creation.since_ms is not None:
            if now_ms - creation.since_ms >= CREATE_MS_MAX:
                self._on_created(SnapshotCreated(None, "snapshot_sender does not answer"), now_ms)
            elif creation.lost_order is not None and now_ms >= creation.lost_order[1]:
                self.orders.append(creation.lost_order[0])
                creation.lost_order = None
        elif self._waiting_clients or (now_ms >= creation.retry_ms and self._is_due(applied_index)):
            self._create(now_ms)
        orders, self.orders = [*self.orders, *self.state_streams.orders], []
        self.state_streams.orders.clear()
        return orders

    @property
    def is_sending(self) -> bool:
        """Whether a follower gets a snapshot, or will when its hello has come."""
        return bool(self._outgoing or self._awaiting_hello or self.orders)

    @property
    def deadline_ms(self) -> int | None:
        """When step() has something to do, at the latest."""
        deadlines = [
            transfer.progress_ms + self._resend_after_ms(transfer)
            for transfer in self._outgoing.values()
        ]
        if self._creation.since_ms is not None:
            deadlines.append(self._creation.since_ms + CREATE_MS_MAX)
            if self._creation.lost_order is not None:
                deadlines.append(self._creation.lost_order[1])
        if self.newest.last_index > self._core.log.base_index:
            deadlines.append(self._compact_due_ms)
        return min(deadlines, default=None)

    def status(self) -> dict[str, object]:
        status: dict[str, object] = {
            "base_index": self._core.log.base_index,
            "snapshot_index": self.newest.last_index,
            "snapshot_size": self.newest.size if self.newest.last_index else 0,
        }
        if self._outgoing:
            status["snapshots_sent"] = {
                peer: [transfer.acked_bytes, transfer.size]
                for peer, transfer in self._outgoing.items()
            }
        if self.incoming is not None:
            status["snapshot_incoming"] = list(self.incoming)
        if self.problem:
            status["snapshot_problem"] = self.problem
        return status
