"""A snapshot on its way to one receiver, in chunks."""

from collections import deque


class ChunkWindow:
    """What its sender reads next, and the chunks that are being read or are not acknowledged."""

    def __init__(self, size: int, chunk_bytes_max: int, window: int = 1, offset: int = 0) -> None:
        self.size = size
        self.chunk_bytes_max = chunk_bytes_max
        self.window = window  # So many chunks at a time.
        self.acked_bytes = offset
        self.in_flight: deque[tuple[int, int]] = deque()  # Begin and end of each chunk.
        self._next_offset = offset  # The next offset to read.
        self._has_started = offset > 0  # An empty snapshot is one chunk, too.

    def next_chunks(self) -> list[tuple[int, int]]:
        """Returns offset and size of the chunks to read now; they are in flight from now on."""
        chunks = []
        while len(self.in_flight) < self.window and not self._is_read:
            self._has_started = True
            begin, self._next_offset = (
                self._next_offset,
                min(self._next_offset + self.chunk_bytes_max, self.size),
            )
            self.in_flight.append((begin, self._next_offset))
            chunks.append((begin, self._next_offset - begin))
        return chunks

    def acknowledge(self, offset: int) -> None:
        """The receiver needs the chunk at offset next."""
        self.acked_bytes = offset
        while self.in_flight and self.in_flight[0][1] <= offset:
            self.in_flight.popleft()

    def rewind(self, offset: int) -> None:
        """Gives up the chunks in flight and continues at offset."""
        self._next_offset, self._has_started = offset, offset > 0
        self.in_flight.clear()

    @property
    def follows(self) -> int:
        """The offset that the receiver needs next if it got everything in order."""
        return self.in_flight[0][0] if self.in_flight else self._next_offset

    @property
    def _is_read(self) -> bool:
        return self._has_started and self._next_offset == self.size

    @property
    def is_done(self) -> bool:
        return self._is_read and not self.in_flight
