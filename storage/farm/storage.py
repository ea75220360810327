"""The durable state of one farm server, written inline by its process.

The log and the hard state have the formats of every peer (log.py, hard_state.py). A snapshot is one
file. Everything is durable when a method returns.
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
OWN = f"{SNAPSHOT}.made{UNFINISHED}"
MAGIC = 0x464B4C4B  # "KLKF"
CHECK_BYTES = 1 << 20  # Per read while a snapshot is verified.
REBUILD_HINT = "remove this server from its farm, empty the directory, and add it again"
# After data and Configuration: magic, last index, last term, sizes of both, CRC of all before.
_TRAILER = Struct("<IQQQI")
_CRC = Struct("<I")


class _SnapshotWriter:
    """An unfinished snapshot file."""

    __slots__ = ("_crc", "_file", "_files", "_path", "size")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._file = files.create(path)
        self._crc = 0
        self.size = 0

    def append(self, data: bytes) -> None:
        self._file.append([data])
        self._crc = crc32c(data, self._crc)
        self.size += len(data)

    def finish(self, snapshot: FarmSnapshot) -> None:
        """Completes the file and replaces the current snapshot with it."""
        configuration = encode_configuration(snapshot.configuration)
        sizes = (self.size, len(configuration))
        self.append(configuration)
        self.append(_TRAILER.pack(MAGIC, snapshot.last_index, snapshot.last_term, *sizes))
        self._file.append([_CRC.pack(self._crc)])
        self._file.sync()
        self.close()
        self._files.rename(self._path, SNAPSHOT)
        self._files.sync_folder("")

    def close(self) -> None:
        self._file.close()


class FarmStorage:
    """A data directory. PeerStorage (protocols/garlicfarm/server/values.py) describes the
    methods.
    """

    def __init__(
        self,
        files: Files,
        identity: Identity,
        epoch: int,
        initial_servers: tuple[ClusterServer, ...] = (),
        segment_bytes: int = SEGMENT_BYTES,
        is_first_start: bool = True,
    ) -> None:
        """Opens or creates it.

        epoch             new at each start
        initial_servers   the farm's initial members; none for a server that waits for an invitation
        is_first_start    an empty directory is a first start: no data was lost

        Raises StorageError if it is locked, foreign, damaged, or refused by the system.
        """
        self._files = files
        self._snapshot_file: File | None = None
        self._incoming: _SnapshotWriter | None = None
        with ExitStack() as undo:
            try:
                self._state = HardStateFile(files, identity)
            except Damaged as error:  # A server without its hard state could vote twice in a term.
                raise Damaged(error.place, error.problem, REBUILD_HINT) from error
            undo.callback(self._state.close)
            if self._state.withheld:
                raise Damaged(
                    files.full_path("hard_state"), "a vote may be forgotten", REBUILD_HINT
                )
            self.snapshot = self._open_snapshot()
            undo.callback(self._close_snapshot)
            base = (self.snapshot.last_index, self.snapshot.last_term)
            self._log = Log(files, identity, epoch=epoch, segment_bytes=segment_bytes, base=base)
            undo.callback(self._log.close)
            if self._log.damage is not None:
                raise Damaged(files.root, self._log.damage.problem, REBUILD_HINT)
            self._reader = LogReader(files, identity)
            undo.callback(self._reader.close)
            if self._state.empty and initial_servers and is_first_start:
                self._state.save(HardState(), True)  # It has started once.
            self.recovered = self._recover(initial_servers if self._state.voter else ())
            undo.pop_all()

    def _recover(self, initial_servers: tuple[ClusterServer, ...]) -> RecoveredFarm:
        snapshot, state = self.snapshot, self._state
        first = (0, FarmConfiguration(0, 0, initial_servers))
        if snapshot.last_index:
            first = (snapshot.last_index, snapshot.configuration)
        log: list[EntryBatch] = []
        configurations = [first]
        for batch in self._reader.scan(snapshot.last_index + 1):
            log.append(cut_block(batch, max(batch.first_index, snapshot.last_index + 1)))
            configuration = configuration_of(batch) if batch.count == 1 else None
            if configuration is not None:
                configurations.append((batch.first_index, configuration))
        return make_recovered((state.state, state.voter), log, configurations, snapshot)

    def save(self, state: HardState, is_member: bool) -> None:
        self._state.save(state, is_member)

    def append(self, batches: list[EntryBatch]) -> None:
        prev_index = batches[0].first_index - 1
        prev_term = self._log.term_at(prev_index)
        assert prev_term is not None, "entries follow the log"
        if prev_index < self._log.last_index:
            self._reader.close()  # Its cached positions are invalid now.
        self._log.append(prev_index, prev_term, [batch.block for batch in batches])
        self._log.sync()

    def reset(self, index: int, term: int) -> None:
        self._reader.close()
        if index == 0 and self._log.term_at(0) is not None:
            self._log.append(0, 0, [])  # Replaces all entries by none.
            self._log.sync()
        else:
            self._log.reset(index, term)
        if index == 0:
            # Last: a log that begins after the snapshot needs it.
            self._close_snapshot()
            self.snapshot = NO_SNAPSHOT
            self._files.remove(SNAPSHOT)
            self._files.sync_folder("")

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        return self._reader.batches(first_index, last_index, last_term, bytes_max)

    def run_background_step(self) -> bool:
        """A small step of background work; returns whether there is more."""
        return self._log.background_step() or self._log.has_background_work

    # ---- snapshots ----

    def read_snapshot(self, snapshot: FarmSnapshot, offset: int, size: int) -> bytes | None:
        if snapshot != self.snapshot:
            return None
        assert self._snapshot_file is not None
        return self._snapshot_file.read(offset, size)

    def write_snapshot(self, offset: int, data: bytes) -> None:
        if offset == 0:
            if self._incoming is not None:
                self._incoming.close()
            self._incoming = _SnapshotWriter(self._files, INCOMING)
        assert self._incoming is not None
        assert self._incoming.size == offset, "chunks follow each other"
        self._incoming.append(data)

    def install_snapshot(self, snapshot: FarmSnapshot) -> None:
        writer, self._incoming = self._incoming, None
        assert writer is not None
        assert writer.size == snapshot.size, "the snapshot is complete"
        self._finish(writer, snapshot)

    def make_snapshot(
        self, snapshot: FarmSnapshot, chunks: Iterable[bytes], keep_from_index: int
    ) -> None:
        """Stores an own snapshot and removes entries below keep_from_index.

        snapshot   its metadata; the size is computed, see `snapshot` afterwards
        """
        writer = _SnapshotWriter(self._files, OWN)
        for piece in chunks:
            writer.append(piece)
        self._finish(writer, snapshot._replace(size=writer.size))
        if keep_from_index > self._log.first_index:
            self._log.compact(min(keep_from_index - 1, snapshot.last_index))

    def _finish(self, writer: _SnapshotWriter, snapshot: FarmSnapshot) -> None:
        self._close_snapshot()
        writer.finish(snapshot)
        self.snapshot, self._snapshot_file = snapshot, self._files.open(SNAPSHOT)

    def _open_snapshot(self) -> FarmSnapshot:
        """Opens the current snapshot and verifies it completely."""
        file = self._files.open(SNAPSHOT)
        if file is None:
            return NO_SNAPSHOT
        try:
            snapshot = verify_snapshot(file)
        except StorageError:
            file.close()
            raise
        self._snapshot_file = file
        return snapshot

    def _close_snapshot(self) -> None:
        if self._snapshot_file is not None:
            self._snapshot_file.close()
            self._snapshot_file = None

    def close(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
        self._close_snapshot()
        self._reader.close()
        self._log.close()
        self._state.close()


def verify_snapshot(file: File) -> FarmSnapshot:
    """The metadata in a snapshot file. Raises StorageError if it is damaged."""
    end = file.size - _CRC.size
    if end < _TRAILER.size:
        raise Damaged(file.full_path, f"a snapshot of {file.size} bytes", REBUILD_HINT)
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
        raise Damaged(file.full_path, "a snapshot has a wrong checksum", REBUILD_HINT)
    try:
        configuration = decode_configuration(file.read(size, config_size))
    except RemoteProtocolError as error:
        raise Damaged(file.full_path, str(error), REBUILD_HINT) from error
    return FarmSnapshot(index, term, configuration, size)
