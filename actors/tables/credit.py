"""Flow control of answers from a table_worker to zerodb_server, by bytes.

libzmq only bounds their number. So the server reports to each worker how many bytes it has read,
and a worker with too many unread bytes waits.
"""

import struct

BYTES_READ = struct.Struct("<QQ")  # The server's epoch, bytes read since the last message.
REPORT_BYTES = 1 << 20  # Read bytes between two reports.
UNREAD_BYTES_MAX = 64 << 20  # The worker answers nothing above it; a single answer may exceed it.


class Credit:
    """The worker's side."""

    def __init__(self) -> None:
        self._server: int | None = None  # Epoch of the server.
        self.unread_bytes = 0
        self._queued_bytes = 0  # Of the answers in the queue: already counted.

    @property
    def is_used_up(self) -> bool:
        return self.unread_bytes >= UNREAD_BYTES_MAX

    def on_queued(self, size: int) -> None:
        """Counts the answers of the queue, which has this size; 0: all are sent."""
        self.unread_bytes += max(0, size - self._queued_bytes)
        self._queued_bytes = size

    def on_taken(self, epoch: int, size: int) -> None:
        """The server has read bytes. A new server starts at 0: unread bytes of its predecessor are
        lost."""
        if epoch != self._server:
            self._server, self.unread_bytes = epoch, 0
        self.unread_bytes = max(0, self.unread_bytes - size)


class ReadBytes:
    """The server's side: bytes read of one worker's answers and not reported yet."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._size = 0

    def add(self, size: int) -> None:
        self._size += size

    def announce(self) -> bytes:
        """The first message, which announces this server."""
        return BYTES_READ.pack(self._epoch, 0)

    def report(self) -> bytes | None:
        """The report to send now, or None."""
        if self._size < REPORT_BYTES:
            return None
        size, self._size = self._size, 0
        return BYTES_READ.pack(self._epoch, size)
