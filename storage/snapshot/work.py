"""The snapshot_sender without its pipes: it reads entries and makes, reads and receives snapshots.

It waits for the disk, never for another process.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from ...native.log.updates import Reqids
from ...protocols.raft.messages import KIND_CONFIG, EntryBatch
from ...protocols.record import block_kind, block_record
from ...protocols.zmqraft.snapshots.orders import (
    ChunkRead,
    ChunkWritten,
    CreateSnapshot,
    EntriesRead,
    Order,
    ReadChunk,
    ReadEntries,
    Result,
    Snapshot,
    SnapshotCreated,
    SnapshotInstalled,
    WriteChunk,
)
from ..disk.files import Files, file_pieces, open_existing
from ..engine.file_check import check_file
from ..errors import Damaged, StorageError
from ..log.reader import LogReader
from ..log.segment import Identity
from .archive import (
    Member,
    Source,
    folder_sources,
    is_archive,
    member_read,
    members,
    pack,
    pieces,
)
from .snapshot import (
    FOLDER,
    IncomingSnapshot,
    SnapshotFile,
    SnapshotInfo,
    Snapshots,
    SnapshotWriter,
    open_snapshot,
)

LOG_BYTES = 4 << 20  # Of the log, read in one step.
STEP_BYTES = 8 << 20  # Of the state, copied in one step.
STATE_PART = "state_machine"  # The process whose state is the first file of an archive.
OPEN_MAX = 4  # Open snapshots that followers receive.


class ReqidLimits(NamedTuple):
    """Limits of the request ids in a snapshot. The peer has the same limits."""

    kept_s: int  # Log time.
    reqids_max: int


def snapshot_value(info: SnapshotInfo | None) -> Snapshot:
    """A snapshot as messages to the peer describe it."""
    if info is None:
        return Snapshot()
    return Snapshot(info.index, info.term, info.size, info.state_size, info.configuration)


class SnapshotWork:
    """The snapshots of one peer, and its log for reading."""

    def __init__(self, files: Files, identity: Identity, reqid_limits: ReqidLimits) -> None:
        """Raises StorageError: locked, or refused by the system."""
        self.snapshots = Snapshots(files, identity)
        self.reader = LogReader(files, identity)
        self._files = files
        self._identity = identity
        self._reqid_limits = reqid_limits
        self._open: dict[tuple[int, int], SnapshotFile] = {}
        self._incoming: IncomingSnapshot | None = None
        self._pending: CreateSnapshot | None = None  # What is being made ...
        self._making: Iterator[SnapshotCreated] | None = None  # ... since the state was written.
        # The process whose part of the last snapshot was damaged, and the damage.
        self.damaged_part = "", ""

    @property
    def newest(self) -> Snapshot:
        return snapshot_value(self.snapshots.newest)

    def execute(self, order: Order) -> Result | None:
        """Executes an order. A Make is only noted: see pending_make.

        The result reports an error that the caller survives: then nothing was read or written.
        """
        match order:
            case ReadEntries():
                return self._read_entries(order)
            case ReadChunk():
                return self._read_piece(order)
            case WriteChunk():
                return self._receive(order)
            case CreateSnapshot(0):
                return self._note_configuration(order)
            case CreateSnapshot():
                if self._making is None:  # The running snapshot is finished first.
                    self._pending = order
                return None

    # ---- reading ----

    def _read_entries(self, order: ReadEntries) -> EntriesRead:
        try:
            batches = self.reader.batches(*order[1:])
        except StorageError:  # The log writer reports the damage at its next start.
            batches = []
        return EntriesRead(order.to, order.first_index, batches)

    def _read_piece(self, order: ReadChunk) -> ChunkRead:
        key = order.last_index, order.last_term
        file = self._open.get(key) or self._open_snapshot(key)
        chunk = b""
        if file is not None:
            read = file.read_state if order.plain else file.read
            chunk = read(order.offset, order.size)
        found = file is not None and len(chunk) == order.size
        return ChunkRead(order.to, *key, order.offset, chunk, found)

    def _open_snapshot(self, key: tuple[int, int]) -> SnapshotFile | None:
        """Opens the newest snapshot and keeps it open, so that a transfer can finish."""
        info = self.snapshots.newest
        file = None
        if info is not None and (info.index, info.term) == key:
            file = open_snapshot(self._files, self._identity, info)
        if file is not None:
            if len(self._open) == OPEN_MAX:
                self._open.pop(next(iter(self._open))).close()
            self._open[key] = file
        return file

    # ---- receiving ----

    def _receive(self, order: WriteChunk) -> Result:
        index, term, offset, size, chunk, configuration = order
        newest = self.snapshots.newest
        if newest is not None and newest.index >= index:
            return SnapshotInstalled(snapshot_value(newest))  # A repeated chunk.
        incoming, name = self._incoming, (index, term, size)
        try:
            if incoming is None or (incoming.index, incoming.term, incoming.size) != name:
                if incoming is not None:
                    incoming.close()
                incoming = self._incoming = self.snapshots.receive(*name)
            wanted = incoming.write(offset, chunk)
            if wanted < size:
                return ChunkWritten(index, term, wanted)
            self._incoming = None
            return SnapshotInstalled(snapshot_value(incoming.finish(configuration or None)))
        except StorageError:
            # The transfer is damaged or the disk is full: continue at the last sound offset.
            return ChunkWritten(index, term, 0 if self._incoming is None else self._incoming.offset)

    # ---- making ----

    def _note_configuration(self, order: CreateSnapshot) -> SnapshotCreated:
        """Makes a snapshot at index 0 of the initial configuration: there is no other state yet."""
        if self.snapshots.newest is not None:
            return SnapshotCreated(self.newest)
        try:
            return SnapshotCreated(
                snapshot_value(self.snapshots.create(0, 0, order.configuration).finish())
            )
        except StorageError as error:
            return SnapshotCreated(None, str(error))

    @property
    def pending_make(self) -> CreateSnapshot | None:
        """The Make order that waits for write_state() of the state machine, at this entry or a
        later one."""
        return self._pending if self._making is None else None

    def on_state_written(
        self, index: int, term: int, parts: Mapping[str, Files] | None = None
    ) -> None:
        """The state as of entry (index, term) is written; step() makes a snapshot of it.

        parts   flat directories of other processes, by process: with any, the snapshot's state is
                an archive of them and the state machine's file. They must stay until step() has
                returned the result.
        """
        order = self._pending
        if order is not None and self._making is None and index >= order.last_index:
            self._making = self._make(order, (index, term), dict(parts or {}))
        elif self._making is None:
            self._files.remove(_state_path(index))  # No order needs this state any more.

    @property
    def busy(self) -> bool:
        """Whether step() has something to do."""
        return self._making is not None

    def step(self) -> SnapshotCreated | None:
        """Does a piece of the running snapshot. Returns the result when it is finished."""
        assert self._making is not None
        try:
            for made in self._making:
                if made.snapshot is None and not made.problem:
                    return None
                self._pending = self._making = None
                return made
        except StorageError as error:
            self._pending = self._making = None
            return SnapshotCreated(None, str(error))
        raise AssertionError("the steps of a snapshot end with a result")

    def _make(
        self, order: CreateSnapshot, entry: tuple[int, int], parts: Mapping[str, Files]
    ) -> Iterator[SnapshotCreated]:
        """Makes a snapshot. Yields an empty result after each piece of work.

        Configuration and request ids come from the last snapshot and the log after it, never from
        another process.
        """
        index, term = entry
        self.damaged_part = "", ""
        for name, folder in parts.items():
            try:
                for path in folder.names(""):
                    with closing(open_existing(folder, path)) as member:
                        check_file(path, member)
                    yield SnapshotCreated(None)
            except Damaged as error:
                self.damaged_part = name, str(error)
                raise
        reqids = Reqids()
        configuration, at = order.configuration, 0
        last = self.snapshots.newest  # Not before: one may be received between the pieces of work.
        if last is not None:
            if last.index >= index:
                yield SnapshotCreated(snapshot_value(last))
                return
            at, configuration = last.index, last.configuration or configuration
            file = open_snapshot(self._files, self._identity, last)
            assert file is not None, "only this process replaces snapshots"
            with closing(file):
                reqids.load(file.reqids())
            yield SnapshotCreated(None)
        while at < index:
            batches = self.reader.batches(at + 1, index, term, LOG_BYTES)
            if not batches:
                yield SnapshotCreated(None, f"entry {at + 1} is not in the log")
                return
            for batch in batches:
                reqids.add_block(batch.block)
                configuration = _configuration(batch) or configuration
            at = batches[-1].last_index
            if len(reqids) > self._reqid_limits.reqids_max:
                reqids.bound(self._reqid_limits.reqids_max)  # Its result does not depend on when.
            yield SnapshotCreated(None)
        reqids.settle(*self._reqid_limits)
        state = self._state(index, parts)
        writer = self.snapshots.create(index, term, configuration, reqids.export(index))
        yield from self._write(writer, state)

    def _state(self, index: int, parts: Mapping[str, Files]) -> Iterator[bytes]:
        """Yields the state in pieces: the state machine's file alone, or an archive. Raises
        StorageError if a process has removed its part; without it the state would count as empty.
        """
        if not parts:
            return file_pieces(self._files, _state_path(index))
        sources = [Source(self._files, _state_path(index), STATE_PART)]
        for name, folder in parts.items():
            part = folder_sources(folder, name)
            if not part:
                raise StorageError(folder.full_path(""), "it disappeared", "leave it to its owner")
            sources += part
        return pack(sources)

    def _write(self, writer: SnapshotWriter, state: Iterator[bytes]) -> Iterator[SnapshotCreated]:
        size = 0
        try:
            for piece in state:
                writer.write(piece)
                size += len(piece)
                if size >= STEP_BYTES:
                    size = 0
                    yield SnapshotCreated(None)
            info = writer.finish()
        except StorageError:
            writer.abort()
            raise
        self._files.remove(_state_path(info.index))
        yield SnapshotCreated(snapshot_value(info))

    def close(self) -> None:
        self.reader.close()
        for file in self._open.values():
            file.close()
        if self._incoming is not None:
            self._incoming.close()
        self.snapshots.close()


def _state_path(index: int) -> str:
    return f"{FOLDER}/{index:016x}.state.new"  # The next start removes files named `.new`.


def write_state(
    files: Files, index: int, snapshot: Callable[[Callable[[bytes], object]], object]
) -> None:
    """Writes the state machine's state as of entry index for snapshot_sender.

    The file gets its name when it is complete. Raises StorageError: refused by the system.
    """
    path = _state_path(index)
    files.make_folder(FOLDER)
    with closing(files.create(f"{path}.new")) as file:
        snapshot(lambda piece: file.append([piece]))
    files.rename(f"{path}.new", path)


def state_read(file: SnapshotFile, name: str) -> Callable[[int], bytes]:
    """The state of the process `name` as a stream: read(n) returns at most n bytes, none at the
    end. A snapshot without an archive holds the state machine's state only.

    Reads the state once to check it. Raises Damaged.
    """
    read, place = file.read_state, file.info.path
    if not is_archive(read):
        file.check()
        return member_read(read, Member(name, 0, file.info.state_size if name == STATE_PART else 0))
    for member in members(read, place):
        if member.path == name:
            for _ in pieces(read, member, place):
                pass
            return member_read(read, member)
    return lambda size: b""


def _configuration(batch: EntryBatch) -> bytes | None:
    """The configuration in a batch. A config entry is alone in its block."""
    if batch.count == 1 and block_kind(batch.block) == KIND_CONFIG:
        return block_record(batch).data
    return None
