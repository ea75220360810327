"""Snapshots on their way from us to others: piece by piece, one under way to each."""

from ..wire.link import PendingRequest
from ..wire.messages import (
    FarmLogEntry,
    MessageType,
    Request,
    Response,
    SnapshotSync,
    ValueType,
)
from ..wire.values import encode_snapshot_sync
from .values import FarmSnapshot, PeerStorage


class SnapshotTransfer:
    """One snapshot to one server."""

    __slots__ = ("is_pending", "offset", "size", "snapshot", "to")

    def __init__(self, to: int, snapshot: FarmSnapshot) -> None:
        self.to = to
        self.snapshot = snapshot
        self.offset = 0
        self.size = 0  # Of the piece under way.
        self.is_pending = False  # It is under way.

    def chunk(self, disk: PeerStorage, header: Request, block_bytes: int) -> Request | None:
        """The next piece as a request like header; None when the snapshot is gone by now."""
        snapshot = self.snapshot
        self.size = min(block_bytes, snapshot.size - self.offset)
        data = disk.read_snapshot(snapshot, self.offset, self.size)
        if data is None:
            return None
        assert len(data) == self.size, "a snapshot is as large as its mark says"
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

    def on_response(self, pending: PendingRequest, response: Response) -> bool | None:
        """True: all of it is there. False: refused. None: there is more to send."""
        self.is_pending = False
        if not response.is_accepted or response.next_index != self.offset + self.size:
            return False
        self.offset = response.next_index
        return True if self.offset == self.snapshot.size else None
