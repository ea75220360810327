"""All that one server of a farm keeps, written inline by the process that it is a part of.

The log and the hard state are those of every peer of ours (log.py, hard_state.py); a snapshot is
one file. Whatever a method has done is durable when it returns.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from struct import Struct

from ...native.log.blocks import crc32c
from ...protocols.errors import RemoteProtocolError
from ...protocols.garlicfarm.server.values import (
    NO_SNAPSHOT,
    FarmSnapshot,
    RecoveredFarm,
    make_recovered,
)
from ...protocols.garlicfarm.wire.entries import configuration_of
from ...protocols.garlicfarm.wire.messages import ClusterServer, FarmConfiguration
from ...protocols.garlicfarm.wire.values import decode_configuration, encode_configuration
from ...protocols.raft.messages import EntryBatch, HardState
from ...protocols.record import cut_block
from ..disk.files import UNFINISHED, File, Files
from ..errors import Damaged, StorageError
from ..log.hard_state import HardStateFile
from ..log.log import SEGMENT_BYTES, Log
from ..log.reader import LogReader
from ..log.segment import Identity

SNAPSHOT = "snapshot"
INCOMING = f"{SNAPSHOT}.in{UNFINISHED}"
MADE = f"{SNAPSHOT}.made{UNFINISHED}"
MAGIC = 0x464B4C4B  # "KLKF"
CHECK_BYTES = 1 << 20  # Of a snapshot, read at a time.
ANEW = "remove this server from its farm, empty the directory, and add it again"
# Behind data and Configuration: magic, last index, last term, sizes of both, crc of all in front.
_TRAILER = Struct("<IQQQI")
_CRC = Struct("<I")


class _Writing:
    """A snapshot file that is not in its place yet."""

    __slots__ = ("_crc", "_file", "_files", "_path", "size")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._file = files.create(path)
        self._crc = 0
        self.size = 0

    def append(self, data: bytes) -> None:
        self._write(data)
        self.size += len(data)

    def _write(self, data: bytes) -> None:
        self._file.append([data])
        self._crc = crc32c(data, self._crc)

    def finish(self, mark: FarmSnapshot) -> None:
        """Puts it in the place of the one before."""
        configuration = encode_configuration(mark.configuration)
        self._write(configuration)
        sizes = (self.size, len(configuration))
        self._write(_TRAILER.pack(MAGIC, mark.last_index, mark.last_term, *sizes))
        self._file.append([_CRC.pack(self._crc)])
        self._file.sync()
        self.close()
        self._files.rename(self._path, SNAPSHOT)
        self._files.sync_folder("")

    def close(self) -> None:
        self._file.close()


class FarmStorage:
    """A data directory; peer_values.Disk says what each method is for."""

    def __init__(
        self,
        files: Files,
        identity: Identity,
        epoch: int,
        beginning: tuple[ClusterServer, ...] = (),
        segment_bytes: int = SEGMENT_BYTES,
        may_begin: bool = True,
    ) -> None:
        """Opens or makes it.

        epoch       new at each start
        beginning   the members that the farm begins with; a server that is to be taken in has none
        may_begin   an empty directory is a first start: nothing was lost

        Raises StorageError: locked, foreign, damaged, or refused by the system.
        """
        self._files = files
        self._snapshot: File | None = None
        self._incoming: _Writing | None = None
        with ExitStack() as undo:
            try:
                self._state = HardStateFile.open(files, identity)
            except Damaged as error:  # A server that comes back empty would vote again.
                raise Damaged(error.place, error.problem, ANEW) from error
            undo.callback(self._state.close)
            if self._state.withheld:
                raise Damaged(files.full_path("hard_state"), "a vote may be forgotten", ANEW)
            self.mark = self._open_snapshot()
            undo.callback(self._close_snapshot)
            base = (self.mark.last_index, self.mark.last_term)
            self._log = Log.open(
                files, identity, epoch=epoch, segment_bytes=segment_bytes, base=base
            )
            undo.callback(self._log.close)
            if self._log.damage is not None:
                raise Damaged(files.root, self._log.damage.problem, ANEW)
            self._reader = LogReader(files, identity)
            undo.callback(self._reader.close)
            if self._state.empty and beginning and may_begin:
                self._state.save(HardState(), True)  # It has begun, even if nothing else is kept.
            self.recovered = self._recover(beginning if self._state.voter else ())
            undo.pop_all()

    def _recover(self, beginning: tuple[ClusterServer, ...]) -> RecoveredFarm:
        mark, state = self.mark, self._state
        first = (0, FarmConfiguration(0, 0, beginning))
        if mark.last_index:
            first = (mark.last_index, mark.configuration)
        log: list[EntryBatch] = []
        configurations = [first]
        for batch in self._reader.scan(mark.last_index + 1):
            log.append(cut_block(batch, max(batch.first_index, mark.last_index + 1)))
            configuration = configuration_of(batch) if batch.count == 1 else None
            if configuration is not None:
                configurations.append((batch.first_index, configuration))
        return make_recovered((state.state, state.voter), log, configurations, mark)

    def save(self, state: HardState, is_member: bool) -> None:
        self._state.save(state, is_member)

    def append(self, batches: list[EntryBatch]) -> None:
        prev_index = batches[0].first_index - 1
        prev_term = self._log.term_at(prev_index)
        assert prev_term is not None, "entries follow what the log holds"
        if prev_index < self._log.last_index:
            self._reader.close()  # What it knows of the files is no longer so.
        self._log.append(prev_index, prev_term, [batch.block for batch in batches])
        self._log.sync()

    def reset(self, index: int, term: int) -> None:
        self._reader.close()
        if index == 0 and self._log.term_at(0) is not None:
            self._log.append(0, 0, [])  # Replaces all that it holds by nothing.
            self._log.sync()
        else:
            self._log.reset(index, term)
        if index == 0:
            # Last: without the snapshot a log that begins behind it would be of no use.
            self._close_snapshot()
            self.mark = NO_SNAPSHOT
            self._files.remove(SNAPSHOT)
            self._files.sync_folder("")

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        return self._reader.batches(first_index, last_index, last_term, bytes_max)

    def tidy(self) -> bool:
        """A small piece of work that is not urgent; whether there is more."""
        return self._log.background_step()

    @property
    def lags(self) -> bool:
        """Whether tidy() is in a hurry: what it has not done an append will have to wait for."""
        return self._log.spare_is_late

    # ---- snapshots ----

    def read_snapshot(self, mark: FarmSnapshot, offset: int, size: int) -> bytes | None:
        if mark != self.mark:
            return None
        assert self._snapshot is not None
        return self._snapshot.read(offset, size)

    def write_snapshot(self, offset: int, data: bytes) -> None:
        if offset == 0:
            if self._incoming is not None:
                self._incoming.close()
            self._incoming = _Writing(self._files, INCOMING)
        assert self._incoming is not None
        assert self._incoming.size == offset, "pieces follow each other"
        self._incoming.append(data)

    def install_snapshot(self, mark: FarmSnapshot) -> None:
        writing, self._incoming = self._incoming, None
        assert writing is not None
        assert writing.size == mark.size, "all of it is here"
        self._finish(writing, mark)

    def make_snapshot(self, mark: FarmSnapshot, pieces: Iterable[bytes], keep_from: int) -> None:
        """Keeps a snapshot of our own, and lets entries below keep_from go.

        mark   of what we have committed; its size is worked out, see `mark` behind
        """
        writing = _Writing(self._files, MADE)
        for piece in pieces:
            writing.append(piece)
        self._finish(writing, mark._replace(size=writing.size))
        if keep_from > self._log.first_index:
            self._log.compact(min(keep_from - 1, mark.last_index))

    def _finish(self, writing: _Writing, mark: FarmSnapshot) -> None:
        self._close_snapshot()
        writing.finish(mark)
        self.mark, self._snapshot = mark, self._files.open(SNAPSHOT)

    def _open_snapshot(self) -> FarmSnapshot:
        """The snapshot that is there, checked to its last byte."""
        file = self._files.open(SNAPSHOT)
        if file is None:
            return NO_SNAPSHOT
        try:
            mark = _check(file)
        except StorageError:
            file.close()
            raise
        self._snapshot = file
        return mark

    def _close_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def close(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
        self._close_snapshot()
        self._reader.close()
        self._log.close()
        self._state.close()


def _check(file: File) -> FarmSnapshot:
    """What a snapshot file says of itself. Raises StorageError when it is damaged."""
    end = file.size - _CRC.size
    if end < _TRAILER.size:
        raise Damaged(file.full_path, f"a snapshot of {file.size} bytes", ANEW)
    crc = 0
    for offset in range(0, end, CHECK_BYTES):
        crc = crc32c(file.read(offset, min(CHECK_BYTES, end - offset)), crc)
    at = end - _TRAILER.size
    magic, index, term, size, config_size = _TRAILER.unpack(file.read(at, _TRAILER.size))
    if (
        magic != MAGIC
        or size + config_size != at
        or _CRC.unpack(file.read(end, _CRC.size)) != (crc,)
    ):
        raise Damaged(file.full_path, "a snapshot has a wrong checksum", ANEW)
    try:
        configuration = decode_configuration(file.read(size, config_size))
    except RemoteProtocolError as error:
        raise Damaged(file.full_path, str(error), ANEW) from error
    return FarmSnapshot(index, term, configuration, size)
