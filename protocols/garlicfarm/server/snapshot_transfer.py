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
from .values import Disk, SnapshotMark


class Sending:
    """One snapshot to one server."""

    __slots__ = ("asked", "mark", "offset", "size", "to")

    def __init__(self, to: int, mark: SnapshotMark) -> None:
        self.to = to
        self.mark = mark
        self.offset = 0
        self.size = 0  # Of the piece under way.
        self.asked = False  # It is under way.

    def piece(self, disk: Disk, header: Request, block_bytes: int) -> Request | None:
        """The next piece as a request like header; None when the snapshot is gone by now."""
        mark = self.mark
        self.size = min(block_bytes, mark.size - self.offset)
        data = disk.read_snapshot(mark, self.offset, self.size)
        if data is None:
            return None
        assert len(data) == self.size, "a snapshot is as large as its mark says"
        is_done = self.offset + self.size == mark.size
        sync = SnapshotSync(
            mark.last_index, mark.last_term, mark.configuration, self.offset, data, is_done
        )
        entry = FarmLogEntry(header.term, ValueType.SNAPSHOT_SYNC, encode_snapshot_sync(sync))
        return header._replace(
            type=MessageType.INSTALL_SNAPSHOT,
            last_log_term=mark.last_term,
            last_log_index=mark.last_index,
            entries=(entry,),
        )

    def on_answer(self, asked: PendingRequest, response: Response) -> bool | None:
        """True: all of it is there. False: refused. None: there is more to send."""
        self.asked = False
        if not response.is_accepted or response.next_index != self.offset + self.size:
            return False
        self.offset = response.next_index
        return True if self.offset == self.mark.size else None
