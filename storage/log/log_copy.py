"""Writes the log of a new peer from the blocks of an old one.

Nothing reads the log before its directory is complete, so it needs no marks and few syncs.
"""

from collections import deque
from contextlib import closing

from ...protocols.errors import LocalProtocolError
from ...protocols.raft.messages import EntryBatch
from ..disk.files import PIECE_BYTES, SYNC_BYTES, File, Files, replace
from .log import SEGMENT_BYTES
from .recovery import CLEAN
from .segment import (
    FOLDER,
    SEGMENT_START,
    CleanMark,
    Identity,
    SegmentHeader,
    encode_clean,
    encode_header,
)

UNSYNCED_MAX = 4  # Segments that the system writes to the disk before they are synced.


class LogCopy:
    """A log that is written once, in order, and closed. A Log opens it then.

    last_index, last_term   of the entries so far
    """

    def __init__(self, files: Files, identity: Identity, base: tuple[int, int] = (0, 0)) -> None:
        """base: index and term of the entry before the first one. Raises StorageError."""
        files.make_folder("")
        files.make_folder(FOLDER)
        self.last_index, self.last_term = base
        self._files, self._identity = files, identity
        self._unsynced: deque[File] = deque()
        self._sequence = self._written_back = 0
        self._blocks: list[bytes] = []  # To be written in one piece, ...
        self._blocks_size = 0  # ... of so many bytes.
        self._begin_segment()

    def append(self, batch: EntryBatch) -> None:
        """Writes a checked batch. Raises LocalProtocolError: it does not follow; StorageError."""
        if batch.first_index != self.last_index + 1 or batch.term < self.last_term:
            raise LocalProtocolError(
                f"a block from {batch.first_index} of term {batch.term} does not follow entry "
                f"{self.last_index} of term {self.last_term}"
            )
        size = self._file.size + self._blocks_size
        if size + len(batch.block) > SEGMENT_BYTES and size > SEGMENT_START:
            self._write()
            self._end_segment()
            self._begin_segment()
        self._blocks.append(batch.block)
        self._blocks_size += len(batch.block)
        self.last_index, self.last_term = batch.last_index, batch.term
        if self._blocks_size >= PIECE_BYTES:
            self._write()

    def finish(self) -> None:
        """Makes the log durable, with room for later entries in its last segment."""
        self._write()
        offset = self._file.size
        if offset < SEGMENT_BYTES:
            self._file.zero(offset, SEGMENT_BYTES - offset)
        self._end_segment()
        self._sync(0)
        mark = CleanMark(self._sequence, offset, self.last_index, self.last_term)
        replace(self._files, CLEAN, encode_clean(mark))

    def close(self) -> None:
        """Closes the files, also of an unfinished log."""
        for file in (*self._unsynced, self._file):
            file.close()

    def _write(self) -> None:
        blocks, self._blocks, self._blocks_size = self._blocks, [], 0
        if not blocks:
            return
        self._file.append([blocks[0] if len(blocks) == 1 else b"".join(blocks)])
        if self._file.size - self._written_back >= SYNC_BYTES:
            self._write_back()

    def _write_back(self) -> None:
        self._file.write_back(self._written_back)
        self._written_back = self._file.size

    def _begin_segment(self) -> None:
        self._sequence += 1
        self._header = SegmentHeader(0, self._sequence, self.last_index + 1, self.last_term)
        self._file = self._files.create(self._header.path)
        self._file.append([bytes(SEGMENT_START)])
        self._written_back = 0

    def _end_segment(self) -> None:
        header = self._header._replace(size=self._file.size)
        self._file.write(0, [encode_header(header, self._identity)])
        self._write_back()
        self._unsynced.append(self._file)
        self._sync(UNSYNCED_MAX)

    def _sync(self, left: int) -> None:
        """Syncs the oldest segments, all but so many."""
        while len(self._unsynced) > left:
            with closing(self._unsynced.popleft()) as file:
                file.sync()
