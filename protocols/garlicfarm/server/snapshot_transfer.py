"""Snapshots that this server sends: chunk by chunk, one chunk under way to each server."""

from collections.abc import Callable, Iterable

from ...host.chunks import ChunkWindow
from ...raft.core import Raft, Role
from ..wire.entries import peer_of
from ..wire.messages import FarmLogEntry, MessageType, Request, Response, SnapshotSync, ValueType
from ..wire.values import encode_snapshot_sync
from .membership import MembershipChanger
from .values import FarmSetup, FarmSnapshot, PeerStorage


class SnapshotTransfer(ChunkWindow):
    def __init__(self, to: int, snapshot: FarmSnapshot, block_bytes: int) -> None:
        super().__init__(snapshot.size, block_bytes)
        self.to = to
        self.snapshot = snapshot

    def restart(self, snapshot: FarmSnapshot) -> None:
        self.snapshot, self.size = snapshot, snapshot.size
        self.rewind(0)


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
                self._transfers[server_id] = SnapshotTransfer(
                    server_id, snapshot, self._setup.snapshot_block_bytes
                )
        for server_id in [to for to, at in self._retry_ms.items() if now_ms >= at]:
            del self._retry_ms[server_id]
            self._report(server_id, 0, now_ms)
        if self._core.role is not Role.LEADER:
            self._transfers.clear()
        for transfer in self._transfers.values():
            if not transfer.in_flight:
                self._send_chunk(transfer, snapshot)

    def _send_chunk(self, transfer: SnapshotTransfer, newest: FarmSnapshot) -> None:
        ((offset, size),) = transfer.next_chunks()
        snapshot, core = transfer.snapshot, self._core
        data = self._disk.read_snapshot(snapshot, offset, size)
        if data is None:  # A newer snapshot has replaced it: start again.
            transfer.restart(newest)
            if snapshot != newest:
                self._send_chunk(transfer, newest)
            return
        assert len(data) == size, "a snapshot has the size that its metadata states"
        sync = SnapshotSync(*snapshot[:3], offset, data, is_done=offset + size == snapshot.size)
        entry = FarmLogEntry(core.term, ValueType.SNAPSHOT_SYNC, encode_snapshot_sync(sync))
        request = Request(
            MessageType.INSTALL_SNAPSHOT,
            self._setup.server_id,
            transfer.to,
            core.term,
            snapshot.last_term,
            snapshot.last_index,
            core.commit_index,
            (entry,),
        )
        if not self._send(transfer.to, request):
            transfer.rewind(offset)

    def on_response(self, server_id: int, response: Response, now_ms: int) -> None:
        transfer = self._transfers.get(server_id)
        if transfer is None or not transfer.in_flight:
            return
        ((_, end),) = transfer.in_flight
        if not response.is_accepted or response.next_index != end:
            self._retry_ms[server_id] = now_ms + self._setup.election_timeout_ms_min
            del self._transfers[server_id]
            return
        transfer.acknowledge(end)
        if transfer.is_done:
            del self._transfers[server_id]
            self._report(server_id, transfer.snapshot.last_index, now_ms)
        else:
            self._membership.on_chunk_sent(server_id, now_ms)

    def _report(self, server_id: int, last_index: int, now_ms: int) -> None:
        """The end of a transfer; last_index 0: refused."""
        self._core.on_snapshot_sent(peer_of(server_id), last_index)
        self._membership.on_snapshot_sent(server_id, last_index, now_ms)

    def on_link_lost(self, server_id: int) -> None:
        """The chunk under way is sent again."""
        transfer = self._transfers.get(server_id)
        if transfer is not None:
            transfer.rewind(transfer.acked_bytes)

    def cancel(self, server_id: int) -> None:
        """Ends a transfer to a server that has no link any more."""
        self._transfers.pop(server_id, None)
