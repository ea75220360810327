"""Backups: an archive (archive.py) whose last file, the manifest, describes the others.

It holds the log of a cluster from its beginning, a snapshot and the log after it, or the log after
another backup; also farms and the topology (docs/reference/disk-format.md, "Backup").
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import Any, NamedTuple

from ...native.log.blocks import crc32c
from ...native.log.segments import segment_blocks
from ...protocols.raft.messages import EntryBatch
from ...protocols.record import slice_block
from ..disk.files import PIECE_BYTES, UNFINISHED, File, Files
from ..errors import Damaged, StorageError
from . import archive
from .archive import ArchiveWriter, Member
from .snapshot import SnapshotFile, StateChecksum, read_info

FORMAT = 1
SNAPSHOT = "snapshot"  # A container `KLKS`.
LOG = "log"  # Blocks without gaps, as in a segment.
TOPOLOGY = "topology.yaml"
MANIFEST = "manifest"
MANIFEST_BYTES_MAX = 1 << 20
_HEAD_BYTES = 12  # Of an archive's end.
_CRC_BYTES = 4  # After each file of an archive.
WAY_OUT = "use another backup"

Progress = Callable[[int], object]  # Takes the bytes since the last call.


def _silent(_: int) -> None: ...


def farm_snapshot(name: str) -> str:
    """The path of the file `snapshot` of a farm server."""
    return f"farms/{name}.snapshot"


def farm_log(name: str) -> str:
    return f"farms/{name}.log"


class LogRange(NamedTuple):
    """Entries of a log: those after the index `after` up to last_index, which has last_term.

    snapshot_index   of a snapshot up to `after`; 0: none
    """

    snapshot_index: int = 0
    after: int = 0
    last_index: int = 0
    last_term: int = 0


class Part(NamedTuple):
    """A file of a backup."""

    size: int
    sha256: str


class Manifest(NamedTuple):
    """What a backup holds.

    since   the id of the backup that this one continues; "": none
    farms   by name
    parts   by path
    """

    cluster: str
    version: str  # Of kelek.
    made_s: int  # Unix seconds.
    source: str  # The node or url that was asked.
    log: LogRange
    since: str = ""
    farms: Mapping[str, LogRange] = {}
    parts: Mapping[str, Part] = {}

    def encode(self) -> bytes:
        farms = {name: found._asdict() for name, found in self.farms.items()}
        parts = {path: part._asdict() for path, part in self.parts.items()}
        value = {**self._asdict(), "log": self.log._asdict(), "farms": farms, "parts": parts}
        return json.dumps({"format": FORMAT, **value}, sort_keys=True).encode()


def _decode_manifest(data: bytes) -> Manifest:
    """Raises ValueError."""
    try:
        value: dict[str, Any] = json.loads(data)
        if value.pop("format") != FORMAT:
            raise ValueError("another format")
        log = LogRange(**value.pop("log"))
        farms = {name: LogRange(**found) for name, found in value.pop("farms").items()}
        parts = {path: Part(**part) for path, part in value.pop("parts").items()}
        return Manifest(log=log, farms=farms, parts=parts, **value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


class _WrittenLog:
    """The entries of a log that was written: blocks whose checksums their receiver has checked."""

    def __init__(self) -> None:
        self._first_index = self._last_index = self._term = 0

    def add(self, batch: EntryBatch, place: str) -> None:
        """Raises Damaged: the batch does not follow."""
        self._first_index = self._first_index or batch.first_index
        index = self._last_index + 1 if self._last_index else batch.first_index
        if batch.first_index != index or batch.term < self._term:
            raise Damaged(place, f"expected entry {index}, found {batch.first_index}", WAY_OUT)
        self._last_index, self._term = batch.last_index, batch.term

    def check(self, expected: LogRange, place: str) -> None:
        """Raises Damaged: these are not the entries of the range."""
        first = expected.after + 1
        if self._first_index not in (0, first):
            raise Damaged(place, f"expected entry {first}, found {self._first_index}", WAY_OUT)
        _check_end(place, (self._last_index or expected.after, self._term), expected)


def _check_end(place: str, found: tuple[int, int], expected: LogRange) -> None:
    """found: index and term of the last entry; the term is 0 without entries. Raises Damaged."""
    index, term = found
    if (index, term) != (expected.last_index, term and expected.last_term):
        problem = f"it ends at entry {index} of term {term}, not at {expected.last_index}"
        raise Damaged(place, problem, WAY_OUT)


class BackupWriter:
    """Writes a backup. The file gets its name when it is complete and durable.

    It checks what it gets while it writes, so that nothing must be read again.
    """

    def __init__(self, files: Files, name: str) -> None:
        """Raises StorageError."""
        self._files, self._name = files, name
        self._file = files.create(name + UNFINISHED)
        self._writer = ArchiveWriter(self._file)
        self._parts: dict[str, Part] = {}
        self._path = ""
        self._hash = hashlib.sha256()
        self._size = 0
        self._blocks: list[bytes] = []  # To be written in one piece, ...
        self._blocks_size = 0  # ... of so many bytes.
        self._logs: dict[str, _WrittenLog] = {}
        self._state = StateChecksum()

    def begin(self, path: str) -> None:
        """Ends the last part and starts another one."""
        self._end()
        self._writer.begin(path)
        self._path, self._size, self._hash = path, 0, hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Adds to a part that is no log."""
        if self._path == SNAPSHOT:
            self._state.add(data)
        self._write(data)

    def write_batch(self, batch: EntryBatch) -> None:
        """Adds to a log. Raises Damaged: it does not follow."""
        self._logs.setdefault(self._path, _WrittenLog()).add(batch, self._place(self._path))
        self._blocks.append(batch.block)
        self._blocks_size += len(batch.block)
        if self._blocks_size >= PIECE_BYTES:
            self._write_blocks()

    def _write_blocks(self) -> None:
        blocks, self._blocks, self._blocks_size = self._blocks, [], 0
        if blocks:
            self._write(blocks[0] if len(blocks) == 1 else b"".join(blocks))

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._writer.write(data)
        self._size += len(data)

    def _place(self, path: str) -> str:
        return f"{self._files.full_path(self._name)}: {path}"

    def _end(self) -> None:
        self._write_blocks()
        if self._path:
            self._parts[self._path] = Part(self._size, self._hash.hexdigest())

    def finish(self, manifest: Manifest) -> "Backup":
        """Adds the parts to the manifest, and names the file.

        Raises StorageError: refused by the system, or what was received is no backup.
        """
        self._end()
        logs = {LOG: manifest.log, **{farm_log(name): it for name, it in manifest.farms.items()}}
        for path in logs.keys() & self._parts.keys():
            self._logs.get(path, _WrittenLog()).check(logs[path], self._place(path))
        self._writer.begin(MANIFEST)
        self._writer.write(manifest._replace(parts=self._parts).encode())
        self._writer.finish()
        backup = Backup(self._file)
        backup.check_snapshot(self._state)
        self._files.rename(self._name + UNFINISHED, self._name)
        backup.path = self._files.full_path(self._name)
        self._files.sync_folder(os.path.dirname(self._name))
        return backup

    def abort(self) -> None:
        """Removes what was written."""
        self._file.close()
        self._files.remove(self._name + UNFINISHED)


class BackupPart:
    """A part of a backup as a file. Reading it from its beginning to its end hashes it."""

    def __init__(self, file: File, member: Member, part: Part, progress: Progress) -> None:
        self.full_path = f"{file.full_path}: {member.path}"
        self.size = member.size
        self._file, self._member, self._part = file, member, part
        self._progress = progress
        self._hash = hashlib.sha256()
        self._crc = crc32c(member.path.encode())
        self._hashed = 0

    def read(self, offset: int, size: int) -> bytes:
        data = self._file.read(self._member.offset + offset, max(0, min(size, self.size - offset)))
        if offset == self._hashed and data:
            self._hash.update(data)
            self._crc = crc32c(data, self._crc)
            self._hashed += len(data)
            self._progress(len(data))
        return data

    def pieces(self) -> Iterator[bytes]:
        """Yields all bytes. Raises Damaged after the last ones if they have another hash."""
        for at in range(0, self.size, PIECE_BYTES):
            yield self.read(at, PIECE_BYTES)
        self.check()

    def check(self) -> None:
        """All bytes were read. Raises Damaged if they have another hash."""
        assert self._hashed == self.size, "only a part that was read completely can be checked"
        found = self._hash.hexdigest()
        if found != self._part.sha256:
            offset, size = self._member.offset, self.size
            problem = (
                f"the {size} bytes at offset {offset} have the SHA-256 {found[:12]}..., "
                f"not {self._part.sha256[:12]}..."
            )
            raise Damaged(self.full_path, problem, WAY_OUT)
        end = self._member.offset + self.size
        if self._file.read(end, _CRC_BYTES) != self._crc.to_bytes(_CRC_BYTES, "little"):
            problem = f"offset {end}: expected checksum {self._crc:08x}"
            raise Damaged(self.full_path, problem, WAY_OUT)

    def close(self) -> None:
        """The backup's file stays open."""


class Backup:
    """An open backup.

    id         the SHA-256 of the manifest, which has those of all parts
    """

    def __init__(self, file: File) -> None:
        """Reads the manifest. Raises StorageError: no backup, cut short, or damaged."""
        self._file = file
        self.path = file.full_path
        self._members = {each.path: each for each in self._read_members()}
        manifest = self._members.pop(MANIFEST, None)
        if manifest is None or manifest.size > MANIFEST_BYTES_MAX:
            raise Damaged(self.path, f"offset 0: no file `{MANIFEST}`: it is no backup", WAY_OUT)
        data = b"".join(self._usable(archive.pieces(file.read, manifest, self.path)))
        try:
            self.manifest = _decode_manifest(data)
        except ValueError as error:
            problem = f"offset {manifest.offset}: a manifest that this version cannot read: {error}"
            raise Damaged(self.path, problem, "use the version of kelek that made it") from None
        self.id = hashlib.sha256(data).hexdigest()
        sizes = {path: part.size for path, part in self.manifest.parts.items()}
        found = {path: member.size for path, member in self._members.items()}
        has_snapshot = bool(self.manifest.log.snapshot_index)
        if sizes != found or LOG not in found or (SNAPSHOT in found) != has_snapshot:
            raise Damaged(self.path, "its files are not those of its manifest", WAY_OUT)

    def _read_members(self) -> Iterator[Member]:
        file, end = self._file, 8
        for member in self._usable(archive.members(file.read, self.path)):
            end = member.offset + member.size + _CRC_BYTES
            if end + _HEAD_BYTES > file.size:
                raise Damaged(self.path, f"offset {file.size}: it is cut short", WAY_OUT)
            yield member
        if file.size != end + _HEAD_BYTES:
            raise Damaged(self.path, f"offset {end + _HEAD_BYTES}: expected the end", WAY_OUT)

    def _usable(self, items: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from items
        except Damaged as error:
            raise Damaged(error.place, error.problem, WAY_OUT) from error

    def part(self, path: str, progress: Progress = _silent) -> BackupPart:
        return BackupPart(self._file, self._members[path], self.manifest.parts[path], progress)

    def snapshot_part(self, progress: Progress = _silent) -> BackupPart | None:
        """The snapshot that the log follows, if any."""
        if self.manifest.log.snapshot_index:
            return self.part(SNAPSHOT, progress)
        return None

    def open_snapshot(self, part: BackupPart) -> SnapshotFile:
        """The snapshot in its part. Raises Damaged."""
        index = self.manifest.log.after
        try:
            info = read_info(part, self.manifest.cluster)
        except StorageError as error:
            raise Damaged(error.place, error.problem, WAY_OUT) from error
        if info.index != index:
            problem = f"offset 8: expected entry {index}, found {info.index}"
            raise Damaged(part.full_path, problem, WAY_OUT)
        return SnapshotFile(part, info)

    def check_snapshot(self, state: StateChecksum) -> None:
        """Decodes the snapshot, if any, all but the state that was read. Raises Damaged."""
        part = self.snapshot_part()
        if part is not None:
            snapshot = self.open_snapshot(part)
            snapshot.check_reqids()
            snapshot.check_state(state)

    def check_small_parts(self, progress: Progress = _silent) -> None:
        """Reads all but the snapshot and the log. Raises Damaged."""
        for path in self.manifest.parts.keys() - {SNAPSHOT, LOG}:
            for _ in self.part(path, progress).pieces():
                pass

    def verify(self, progress: Progress = _silent) -> None:
        """Reads everything. Raises Damaged for the first part that is not as it was written."""
        state = StateChecksum()
        part = self.snapshot_part(progress)
        for piece in part.pieces() if part is not None else ():
            state.add(piece)
        for _ in self.log(progress):
            pass
        self.check_small_parts(progress)
        self.check_snapshot(state)

    def log(self, progress: Progress = _silent) -> Iterator[EntryBatch]:
        """The entries of the log."""
        return batches(self.part(LOG, progress), self.manifest.log)

    def close(self) -> None:
        self._file.close()


def open_backup(files: Files, name: str) -> Backup:
    """Raises StorageError: it does not exist, is no backup, cut short, or damaged."""
    file = files.open(name)
    if file is None:
        raise StorageError(files.full_path(name), "there is no such file", "check its name")
    with ExitStack() as undo:
        undo.callback(file.close)
        backup = Backup(file)
        undo.pop_all()
    return backup


def batches(part: BackupPart, expected: LogRange) -> Iterator[EntryBatch]:
    """Yields the blocks of a log, which are exactly those of the range, and checks the hash.

    Raises Damaged.
    """
    index, term, rest, offset = expected.after, 0, b"", 0

    def damaged(problem: str) -> Damaged:
        return Damaged(part.full_path, f"offset {offset}: {problem}", WAY_OUT)

    for piece in part.pieces():
        data = rest + piece if rest else piece
        at = 0
        while True:
            blocks, _ = segment_blocks(memoryview(data)[at:])
            if not blocks:
                break
            for begin, size, first_index, count, block_term in blocks:
                if first_index != index + 1 or block_term < term:
                    raise damaged(f"expected entry {index + 1}, found {first_index}")
                index, term = index + count, block_term
                block = data[at + begin : at + begin + size]
                offset += size
                yield EntryBatch(first_index, count, block_term, block)
            at += blocks[-1][0] + blocks[-1][1]
        rest = data[at:]
    if rest:
        raise damaged("a block is damaged or cut short")
    _check_end(part.full_path, (index, term), expected)


def up_to(found: Iterable[EntryBatch], last_index: int) -> Iterator[EntryBatch]:
    """Cuts a log at an index. It reads on to the end, which has the check."""
    for batch in found:
        if batch.first_index <= last_index:
            yield slice_block(batch, batch.first_index, min(last_index, batch.last_index))


def check_chain(backups: Sequence[Backup], is_whole: bool = True) -> None:
    """Checks that each backup continues the one before it. Raises StorageError.

    is_whole   the first one must not continue another one
    """
    first = backups[0]
    if is_whole and first.manifest.since:
        problem = f"it continues another backup, {first.manifest.since[:12]}"
        raise StorageError(first.path, problem, "name that one before it")
    for before, backup in pairwise(backups):
        if backup.manifest.since != before.id:
            problem = f"it does not continue {before.path} ({before.id[:12]})"
            way_out = "name a whole backup, then those that continue it, in order"
            raise StorageError(backup.path, problem, way_out)


def read_closed(files: Files, name: str) -> Manifest:
    """The manifest of a backup."""
    with closing(open_backup(files, name)) as backup:
        return backup.manifest
