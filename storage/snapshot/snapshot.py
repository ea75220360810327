"""Snapshots on disk: the container `KLKS`, for its readers and its only writer.

It does not decode the state (docs/reference/disk-format.md, "Snapshot") and holds at most one piece
of it in memory. A configuration that can't be decoded counts as damage.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import astuple, dataclass, replace
from struct import Struct

from ...native.errors import NativeError, Readable
from ...native.log.blocks import crc32c
from ...native.log.updates import Reqids
from ...protocols.errors import RemoteProtocolError
from ...protocols.zmqraft.wire.config_codec import decode_config_entry
from ..disk.files import (
    DAMAGED_SUFFIX,
    LISTINGS_MAX,
    PIECE_BYTES,
    SYNC_BYTES,
    File,
    Files,
    ReadableFile,
    file_pieces,
)
from ..errors import Damaged, StorageError
from ..log.segment import RESTORE, SEGMENT_START, Identity, check_identity, encode_identity

FOLDER = "snapshots"
LOCK = f"{FOLDER}/lock"
MAGIC = 0x534B4C4B  # "KLKS"
CONFIGURATION_BYTES_MAX = 1 << 20

_FIELDS = Struct("<QQQQQIIIQ")  # index, term, three sizes, three checksums, Unix time
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.snap")
_INCOMING = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{16})\.incoming")


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """Header and configuration of a snapshot. Its parts follow each other without gaps."""

    index: int  # Of the last included entry.
    term: int  # Of the entry at index.
    configuration: bytes
    reqids_size: int
    state_size: int
    configuration_crc: int
    reqids_crc: int
    state_crc: int
    made_s: int  # Unix seconds; 0: unknown, a foreign peer made the snapshot.

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.index:016x}-{self.term:016x}.snap"

    @property
    def reqids_offset(self) -> int:
        return SEGMENT_START + len(self.configuration)

    @property
    def state_offset(self) -> int:
        return self.reqids_offset + self.reqids_size

    @property
    def size(self) -> int:
        """Bytes of the whole container."""
        return self.state_offset + self.state_size


# ---- reading, in any process ----


def _encode_header(info: SnapshotInfo, cluster: str) -> bytes:
    index, term, configuration, *rest = astuple(info)
    fields = _FIELDS.pack(index, term, len(configuration), *rest)
    return encode_identity(MAGIC, Identity(cluster, ""), fields)


class StateChecksum:
    """The checksum of the state in a container whose bytes pass by in order."""

    def __init__(self) -> None:
        self.crc = 0
        self._head = b""
        self._left = 0  # Bytes before the state; known when the header is complete.

    def add(self, data: bytes) -> None:
        if len(self._head) < SEGMENT_START:
            self._head += data
            if len(self._head) < SEGMENT_START:
                return
            _, _, *sizes = _FIELDS.unpack_from(self._head, 8)
            data, self._head = self._head, self._head[:SEGMENT_START]
            self._left = SEGMENT_START + sizes[0] + sizes[1]
        skipped = min(self._left, len(data))
        self._left -= skipped
        self.crc = crc32c(memoryview(data)[skipped:], self.crc)


def read_info(file: ReadableFile, cluster: str) -> SnapshotInfo:
    """Reads and checks header and configuration. Raises StorageError: damaged or foreign."""
    data = file.read(0, SEGMENT_START)
    fields = check_identity(MAGIC, Identity(cluster, ""), _FIELDS.size, data, file.full_path)
    index, term, configuration_size, *rest = _FIELDS.unpack(fields)
    sizes = configuration_size + rest[0] + rest[1]
    if configuration_size > CONFIGURATION_BYTES_MAX or file.size != SEGMENT_START + sizes:
        problem = f"offset 24: expected {file.size - SEGMENT_START} bytes of parts, found {sizes}"
        raise Damaged(file.full_path, problem, RESTORE)
    configuration = file.read(SEGMENT_START, configuration_size)
    info = SnapshotInfo(index, term, configuration, *rest)
    _check_crc(file, SEGMENT_START, info.configuration_crc, crc32c(configuration))
    _check_configuration(file, configuration)
    return info


def _check_crc(file: ReadableFile, offset: int, expected: int, found: int) -> None:
    if expected != found:
        problem = f"offset {offset}: expected checksum {expected:08x}, found {found:08x}"
        raise Damaged(file.full_path, problem, RESTORE)


def _check_configuration(file: ReadableFile, configuration: bytes) -> None:
    """Decodes the configuration: a correct checksum does not prove that it can be decoded."""
    try:
        if configuration:
            decode_config_entry(configuration)
    except RemoteProtocolError as error:
        problem = f"offset {SEGMENT_START}: no configuration: {error}"
        raise Damaged(file.full_path, problem, RESTORE) from None


def _pieces(file: ReadableFile, offset: int, size: int, crc: int) -> Iterator[bytes]:
    """Yields a range in pieces. Raises Damaged after the last piece if the checksum is wrong."""
    found, end = 0, offset + size
    for at in range(offset, end, PIECE_BYTES):
        piece = file.read(at, min(PIECE_BYTES, end - at))
        found = crc32c(piece, found)
        yield piece
    _check_crc(file, offset, crc, found)


class SnapshotFile:
    """An open snapshot. It stays readable until close(), even after a newer one replaces it."""

    def __init__(self, file: ReadableFile, info: SnapshotInfo) -> None:
        """Use open_snapshot(), or read_info() for a container that is in another file."""
        self.info = info
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        """Reads a range of the container without a check; fewer than size bytes at its end."""
        return self._file.read(offset, size)

    def read_state(self, offset: int, size: int) -> bytes:
        """Reads a range of the state without a check; fewer than size bytes at its end."""
        return self._file.read(self.info.state_offset + offset, size)

    def reqids(self) -> Iterator[bytes]:
        """Yields the table of request ids in pieces for Reqids.load(). Raises Damaged."""
        info = self.info
        return _pieces(self._file, info.reqids_offset, info.reqids_size, info.reqids_crc)

    def state(self) -> Iterator[bytes]:
        """Yields the state in pieces. Raises Damaged after the last piece if it was damaged."""
        info = self.info
        return _pieces(self._file, info.state_offset, info.state_size, info.state_crc)

    def check(self) -> None:
        """Reads the whole snapshot. Raises Damaged."""
        for pieces in (self.reqids(), self.state()):
            for _ in pieces:
                pass

    def check_state(self, found: StateChecksum) -> None:
        """Compares the checksum of the state that was read. Raises Damaged."""
        _check_crc(self._file, self.info.state_offset, self.info.state_crc, found.crc)

    def check_reqids(self) -> None:
        """Decodes the table of request ids: a correct checksum does not prove its form. Raises
        Damaged."""
        try:
            Reqids().load(self.reqids())
        except NativeError:
            at = self.info.reqids_offset
            problem = f"offset {at}: the table of request ids is malformed"
            raise Damaged(self._file.full_path, problem, RESTORE) from None

    def close(self) -> None:
        self._file.close()


def open_path(files: Files, path: str, identity: Identity) -> SnapshotFile | None:
    """Opens a snapshot by its path. None: it does not exist. Raises StorageError: header or
    configuration are damaged or foreign."""
    file = files.open(path)
    if file is None:
        return None
    with ExitStack() as undo:
        undo.callback(file.close)
        info = read_info(file, identity.cluster)
        if info.path != path:
            raise Damaged(file.full_path, f"its header says that it is {info.path}", RESTORE)
        undo.pop_all()
    return SnapshotFile(file, info)


def open_snapshot(files: Files, identity: Identity, info: SnapshotInfo) -> SnapshotFile | None:
    """Opens a snapshot that newest() returned. None: a newer one has replaced it."""
    return open_path(files, info.path, identity)


def paths(files: Files) -> list[str]:
    """The paths of all snapshots, newest first."""
    names = [name for name in files.names(FOLDER) if _NAME.fullmatch(name)]
    return [f"{FOLDER}/{name}" for name in reversed(names)]


def newest(files: Files, identity: Identity) -> SnapshotInfo | None:
    """The newest snapshot with sound header and configuration; None if there is no snapshot.

    Raises StorageError when all snapshots are damaged or foreign.
    """
    for _ in range(LISTINGS_MAX):
        damaged: StorageError | None = None
        for path in paths(files):
            try:
                found = open_path(files, path, identity)
            except StorageError as error:
                damaged = damaged or error
                continue
            if found is None:
                break  # The writer has removed it, so a newer one exists: list again.
            found.close()
            return found.info
        else:
            if damaged is not None:
                raise damaged
            return None
    raise StorageError(
        files.full_path(FOLDER), "it changes all the time", "leave this directory to its owner"
    )


def newest_verified(files: Files, identity: Identity) -> tuple[SnapshotInfo | None, Damaged | None]:
    """The newest snapshot that is sound when read in full, and the damage of the newest one.

    Raises StorageError: foreign, or refused by the system.
    """
    found, damaged = _verified(files, identity)
    return found, next(iter(damaged.values()), None)


def _verified(files: Files, identity: Identity) -> tuple[SnapshotInfo | None, dict[str, Damaged]]:
    """The newest snapshot that is sound when read in full, and the damage of newer ones by path."""
    damaged: dict[str, Damaged] = {}
    for path in paths(files):
        try:
            file = open_path(files, path, identity)
            if file is not None:
                with closing(file):
                    file.check()
                return file.info, damaged
        except Damaged as error:
            damaged[path] = error
    return None, damaged


def set_damaged_aside(files: Files, newest_sound: SnapshotInfo | None) -> None:
    """Renames the snapshots that are newer than the newest sound one, so that readers skip them."""
    for path in paths(files):
        if newest_sound is not None and path == newest_sound.path:
            break
        files.rename(path, path + DAMAGED_SUFFIX)
    files.sync_folder(FOLDER)


# ---- writing, in one process ----


class _UnfinishedFile:
    """A file that becomes a snapshot. Much of it is on the disk before the last sync."""

    def __init__(self, owner: "Snapshots", path: str, file: File) -> None:
        self._owner = owner
        self._path = path
        self._file = file
        self._synced = file.size

    def _append(self, piece: Readable) -> None:
        self._file.append([piece])
        if self._file.size - self._synced >= SYNC_BYTES:
            if self._owner.paced:
                self._file.sync()
            else:
                self._file.write_back(self._synced)
            self._synced = self._file.size

    def abort(self) -> None:
        """Gives the snapshot up and removes its file."""
        self._file.close()
        self._owner.files.remove(self._path)


class SnapshotWriter(_UnfinishedFile):
    """Writes a new snapshot. The file gets its name when all contents are durable."""

    def __init__(self, owner: "Snapshots", info: SnapshotInfo, reqids: Readable) -> None:
        """Use Snapshots.create()."""
        path = info.path.replace(".snap", ".new")
        super().__init__(owner, path, owner.files.create(path))
        self._info = replace(
            info,
            configuration_crc=crc32c(info.configuration),
            reqids_size=len(reqids),
            reqids_crc=crc32c(reqids),
        )
        try:
            self._file.append([bytes(SEGMENT_START), info.configuration])
            view = memoryview(reqids)
            for at in range(0, len(view), PIECE_BYTES):
                self._append(view[at : at + PIECE_BYTES])
        except StorageError:
            self.abort()
            raise

    def write(self, piece: Readable) -> None:
        """Adds to the state. After a StorageError call abort(). StorageFull: nothing was added."""
        self._append(piece)
        info = self._info
        self._info = replace(
            info,
            state_size=info.state_size + len(piece),
            state_crc=crc32c(piece, info.state_crc),
        )

    def finish(self, made_s: int = 0) -> SnapshotInfo:
        """Makes the snapshot durable, publishes it as the newest one, and removes older ones.

        After a StorageError call abort().
        """
        self._info = replace(self._info, made_s=made_s)
        self._file.write(0, [_encode_header(self._info, self._owner.identity.cluster)])
        self._file.sync()
        self._file.close()
        self._owner._publish(self._path, self._info)
        return self._info


class IncomingSnapshot(_UnfinishedFile):
    """A snapshot that another peer sends: a container, or the plain state of a foreign peer."""

    def __init__(self, owner: "Snapshots", name: tuple[int, int, int]) -> None:
        """Use Snapshots.receive()."""
        self.index, self.term, self.size = name
        path = _incoming_path(name)
        file = owner.files.open(path, writable=True)
        # A crash may have lost bytes of an earlier part; only a container has checksums that reveal
        # this. A plain state starts again at offset 0.
        if file is not None and not _is_container(file):
            file.close()
            file = None
        super().__init__(owner, path, file or owner.files.create(path))

    @property
    def offset(self) -> int:
        """Where the next piece must start."""
        return self._file.size

    def write(self, offset: int, data: Readable) -> int:
        """Writes a piece if it continues the file and fits its size. Returns the offset where the
        next piece must start. StorageFull: nothing was written."""
        if offset == self.offset and offset + len(data) <= self.size:
            self._append(data)
        return self.offset

    def finish(self, configuration: bytes | None = None) -> SnapshotInfo:
        """Checks the complete snapshot, makes it durable and publishes it as the newest one.

        configuration   for the plain state of a foreign peer: wrapped into a container with this
                        configuration and without request ids; None: accept containers only
        Raises StorageError: damaged (the file is removed; receive it again) or refused by the
        system.
        """
        assert self.offset == self.size, f"{self.size - self.offset} bytes are missing"
        if configuration is not None and not _is_container(self._file):
            return self._wrap(configuration)
        try:
            self._file.sync()
            info = read_info(self._file, self._owner.identity.cluster)
            snapshot = SnapshotFile(self._file, info)
            snapshot.check()
            snapshot.check_reqids()
            if (info.index, info.term) != (self.index, self.term):
                problem = (
                    f"offset 8: expected entry {self.index} of term {self.term}, "
                    f"found {info.index} of {info.term}"
                )
                raise StorageError(self._file.full_path, problem, RESTORE)
        except StorageError:
            self.abort()
            raise
        self._file.close()
        self._owner._publish(self._path, info)
        return info

    def _wrap(self, configuration: bytes) -> SnapshotInfo:
        writer = self._owner.create(self.index, self.term, configuration)
        try:
            for piece in file_pieces(self._owner.files, self._path):
                writer.write(piece)
            info = writer.finish()
        except StorageError:
            writer.abort()
            raise
        self.abort()
        return info

    def close(self) -> None:
        """Closes the file; a later receive() continues it."""
        self._file.close()


def _is_container(file: File) -> bool:
    return file.read(0, 4) == MAGIC.to_bytes(4, "little")


def _incoming_path(name: tuple[int, int, int]) -> str:
    return f"{FOLDER}/" + "-".join(f"{number:016x}" for number in name) + ".incoming"


class Snapshots:
    """A peer's snapshots as their only writer uses them.

    newest    the newest sound snapshot
    paced     a write waits for the disk now and then, to leave it to other processes meanwhile
    damaged   the errors of newer damaged ones, by path
    """

    def __init__(self, files: Files, identity: Identity, *, paced: bool = True) -> None:
        """Locks the snapshots of a data directory and removes unfinished ones.

        Raises StorageError: locked, or refused by the system. A damaged snapshot is not an error
        here: `damaged` reports it until a new one replaces it.
        """
        files.make_folder("")
        files.make_folder(FOLDER)
        self.files = files
        self.identity = identity
        self.paced = paced
        self._lock = files.lock(LOCK)
        with ExitStack() as undo:
            undo.callback(self._lock.close)
            self.newest, self.damaged = _verified(files, identity)
            for name in files.names(FOLDER):
                if name.endswith(".new") or self._is_stale(name):
                    files.remove(f"{FOLDER}/{name}")
            self._remove_older()
            files.sync_folder(FOLDER)  # An earlier process may have died before it was durable.
            undo.pop_all()

    def create(
        self, index: int, term: int, configuration: bytes, reqids: Readable = b""
    ) -> SnapshotWriter:
        """Starts a snapshot of all entries up to index. reqids: the bytes of Reqids.export().

        Raises StorageError: refused by the system; StorageFull.
        """
        assert len(configuration) <= CONFIGURATION_BYTES_MAX
        return SnapshotWriter(
            self, SnapshotInfo(index, term, configuration, 0, 0, 0, 0, 0, 0), reqids
        )

    def receive(self, index: int, term: int, size: int) -> IncomingSnapshot:
        """Starts or continues to receive a snapshot of another peer. Removes the parts of any other
        one. Raises StorageError: refused by the system."""
        name = index, term, size
        for other in self.files.names(FOLDER):
            if _INCOMING.fullmatch(other) and f"{FOLDER}/{other}" != _incoming_path(name):
                self.files.remove(f"{FOLDER}/{other}")
        return IncomingSnapshot(self, name)

    def close(self) -> None:
        self._lock.close()

    def _publish(self, path: str, info: SnapshotInfo) -> None:
        """Gives a durable file its name as a snapshot and removes older ones."""
        self.files.rename(path, info.path)
        self.files.sync_folder(FOLDER)
        if self.newest is None or info.index >= self.newest.index:
            self.newest = info
        for damaged in self.damaged:
            if damaged != info.path:
                self.files.remove(damaged)
        self.damaged = {}
        self._remove_older()

    def _remove_older(self) -> None:
        if self.newest is None:
            return
        for path in paths(self.files):
            if path < self.newest.path:
                self.files.remove(path)

    def _is_stale(self, name: str) -> bool:
        """Whether a file is a part of a received snapshot that is not newer than ours."""
        match = _INCOMING.fullmatch(name)
        return bool(match and self.newest and int(match[1], 16) <= self.newest.index)
