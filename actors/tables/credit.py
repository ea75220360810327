"""How many bytes of answers are on their way from a table_worker to zerodb_server.

libzmq bounds their number alone. So the server tells each worker how much of its answers it has
taken, and who has sent much more waits.
"""

import struct

TAKEN = struct.Struct("<QQ")  # The server's epoch, bytes that it has taken since the last one.
TELL_BYTES = 1 << 20  # So many it takes before it tells of them.
UNTAKEN_BYTES_MAX = 64 << 20  # Beyond that nothing more is answered; one answer may be larger.


class Credit:
    """A worker's side."""

    def __init__(self) -> None:
        self._server: int | None = None  # Its epoch.
        self.untaken = 0

    @property
    def is_used_up(self) -> bool:
        return self.untaken >= UNTAKEN_BYTES_MAX

    def on_sent(self, size: int) -> None:
        self.untaken += size

    def on_taken(self, epoch: int, size: int) -> None:
        """What was on its way to an earlier server is gone with it."""
        if epoch != self._server:
            self._server, self.untaken = epoch, 0
        self.untaken = max(0, self.untaken - size)


class ConsumedBytes:
    """The server's side: what it took of one worker's answers and has not told."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._size = 0

    def add(self, size: int) -> None:
        self._size += size

    def first(self) -> bytes:
        """Says that this server is here."""
        return TAKEN.pack(self._epoch, 0)

    def due(self) -> bytes | None:
        """What is to be told now, if anything is."""
        if self._size < TELL_BYTES:
            return None
        size, self._size = self._size, 0
        return TAKEN.pack(self._epoch, size)
