"""Snapshots that this server sends: chunk by chunk, one chunk under way to each server."""

from collections.abc import Callable, Iterable

from ...raft.core import Raft, Role
from ..wire.entries import peer_of
from ..wire.messages import (
    FarmLogEntry,
    MessageType,
    Request,
    Response,
    SnapshotSync,
    ValueType,
)
from ..wire.values import encode_snapshot_sync
from .membership import MembershipChanger
from .values import FarmSetup, FarmSnapshot, PeerStorage


class SnapshotTransfer:
    """One snapshot to one server."""

    __slots__ = ("is_pending", "offset", "size", "snapshot", "to")

    def __init__(self, to: int, snapshot: FarmSnapshot) -> None:
        self.to = to
        self.snapshot = snapshot
        self.offset = 0
        self.size = 0  # Of the chunk under way, in bytes.
        self.is_pending = False  # A chunk is under way.

    def next_chunk(self, disk: PeerStorage, header: Request, block_bytes: int) -> Request | None:
        """The next chunk, as a request with this header; None when the snapshot is replaced."""
        snapshot = self.snapshot
        self.size = min(block_bytes, snapshot.size - self.offset)
        data = disk.read_snapshot(snapshot, self.offset, self.size)
        if data is None:
            return None
        assert len(data) == self.size, "a snapshot has the size that its metadata states"
        is_done = self.offset + self.size == snapshot.size
        sync = SnapshotSync(
            snapshot.last_index,
            snapshot.last_term,
            snapshot.configuration,
            self.offset,
            data,
            is_done,
        )
        entry = FarmLogEntry(header.term, ValueType.SNAPSHOT_SYNC, encode_snapshot_sync(sync))
        return header._replace(
            type=MessageType.INSTALL_SNAPSHOT,
            last_log_term=snapshot.last_term,
            last_log_index=snapshot.last_index,
            entries=(entry,),
        )

    def on_response(self, response: Response) -> bool | None:
        """True: the receiver has the whole snapshot. False: it refused. None: more to send."""
        self.is_pending = False
        if not response.is_accepted or response.next_index != self.offset + self.size:
            return False
        self.offset = response.next_index
        return True if self.offset == self.snapshot.size else None


class SnapshotSender:
    """A leader's transfers to followers and to a joining server, one for each server."""

    def __init__(
        self,
        setup: FarmSetup,
        core: Raft,
        membership: MembershipChanger,
        disk: PeerStorage,
        send: Callable[[int, Request], bool],
    ) -> None:
        self._setup = setup
        self._core = core
        self._membership = membership
        self._disk = disk
        self._send = send
        self._transfers: dict[int, SnapshotTransfer] = {}
        self._retry_ms: dict[int, int] = {}  # When the core hears of a refused snapshot.

    @property
    def retry_times_ms(self) -> Iterable[int]:
        """The times at which step() reports refused snapshots."""
        return self._retry_ms.values()

    def step(self, snapshot: FarmSnapshot, servers: list[int], now_ms: int) -> None:
        """Starts transfers of this snapshot to the servers, and sends the chunks that are due."""
        joining, self._membership.snapshot_for = self._membership.snapshot_for, None
        if joining is not None:
            servers.append(joining)
        for server_id in servers:
            if snapshot.last_index and server_id not in self._transfers:
                self._transfers[server_id] = SnapshotTransfer(server_id, snapshot)
        for server_id in [to for to, at in self._retry_ms.items() if now_ms >= at]:
            del self._retry_ms[server_id]
            self._report(server_id, 0, now_ms)
        if self._core.role is not Role.LEADER:
            self._transfers.clear()
        for transfer in self._transfers.values():
            if not transfer.is_pending:
                self._send_chunk(transfer, snapshot)

    def _send_chunk(self, transfer: SnapshotTransfer, snapshot: FarmSnapshot) -> None:
        core = self._core
        header = Request(
            MessageType.INSTALL_SNAPSHOT,
            self._setup.server_id,
            transfer.to,
            core.term,
            commit_index=core.commit_index,
        )
        chunk = transfer.next_chunk(self._disk, header, self._setup.snapshot_block_bytes)
        if chunk is None:  # A newer snapshot has replaced it: start again.
            transfer.snapshot, transfer.offset = snapshot, 0
            chunk = transfer.next_chunk(self._disk, header, self._setup.snapshot_block_bytes)
        transfer.is_pending = chunk is not None and self._send(transfer.to, chunk)

    def on_response(self, server_id: int, response: Response, now_ms: int) -> None:
        """A server has answered a chunk."""
        transfer = self._transfers.get(server_id)
        if transfer is None or not transfer.is_pending:
            return
        done = transfer.on_response(response)
        if done is None:
            self._membership.on_chunk_sent(server_id, now_ms)
            return
        del self._transfers[server_id]
        if done:
            self._report(server_id, transfer.snapshot.last_index, now_ms)
        else:
            self._retry_ms[server_id] = now_ms + self._setup.election_timeout_ms_min

    def _report(self, server_id: int, last_index: int, now_ms: int) -> None:
        """The end of a transfer; last_index 0: refused."""
        self._core.on_snapshot_sent(peer_of(server_id), last_index)
        self._membership.on_snapshot_sent(server_id, last_index, now_ms)

    def on_link_lost(self, server_id: int) -> None:
        """The chunk under way is sent again."""
        transfer = self._transfers.get(server_id)
        if transfer is not None:
            transfer.is_pending = False

    def cancel(self, server_id: int) -> None:
        """Ends a transfer to a server that has no link any more."""
        self._transfers.pop(server_id, None)
