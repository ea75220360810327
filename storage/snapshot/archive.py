"""The archive `KLKA`: files of several processes as one stream, the state of a snapshot.

It holds at most one piece of a file in memory (docs/reference/disk-format.md, "Archive").
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from struct import Struct
from typing import NamedTuple

from ...native.errors import Readable
from ...native.log.blocks import crc32c
from ..disk.files import PIECE_BYTES, SYNC_BYTES, File, Files, open_existing
from ..errors import Damaged
from ..log.segment import RESTORE

MAGIC = b"KLKA"
VERSION = 1
PATH_BYTES_MAX = 255
FILES_MAX = 1_000_000

_START = Struct("<4sI")  # Magic, version.
_HEAD = Struct("<IQ")  # Size of the path (0: the end), size of the file; then path and file.
_CRC = Struct("<I")  # The CRC32C of path and file.
_PATH = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?")

Pieces = Iterator[bytes]
ReadAt = Callable[[int, int], bytes]  # Offset, size; returns fewer bytes only at the end.


class Source(NamedTuple):
    """A file to pack."""

    files: Files
    name: str  # The path in files.
    path: str  # The path in the archive: NAME or NAME/FILE.


class Member(NamedTuple):
    """A file in an archive."""

    path: str
    offset: int  # Of the file's bytes.
    size: int


def folder_sources(files: Files, folder: str) -> list[Source]:
    """The files of a flat directory, to pack as folder/NAME."""
    return [Source(files, name, f"{folder}/{name}") for name in files.names("")]


def pack(sources: Iterable[Source]) -> Pieces:
    """Yields the archive of the files in pieces. StorageError: refused, or a file is gone."""
    yield _START.pack(MAGIC, VERSION)
    for source in sources:
        yield from _pack_file(source)
    yield _HEAD.pack(0, 0)


def _pack_file(source: Source) -> Pieces:
    with closing(open_existing(source.files, source.name)) as file:
        path, size = source.path.encode(), file.size
        assert _is_path(source.path), source.path
        yield _HEAD.pack(len(path), size) + path
        crc = crc32c(path)
        for at in range(0, size, PIECE_BYTES):
            piece = file.read(at, min(PIECE_BYTES, size - at))
            crc = crc32c(piece, crc)
            yield piece
        yield _CRC.pack(crc)


class ArchiveWriter:
    """Writes an archive of files whose sizes are known only when they end. The system writes it to
    the disk meanwhile, so that the sync at the end is short."""

    def __init__(self, file: File) -> None:
        """file: new and empty."""
        self._file = file
        self._written_back = 0
        self._path = b""
        self._head_offset = 0
        self._crc = 0
        self._heads: list[tuple[int, bytes]] = []  # Of complete files, by offset.
        file.append([_START.pack(MAGIC, VERSION)])

    def begin(self, path: str) -> None:
        """Ends the last file and starts another one."""
        assert _is_path(path), path
        self._end()
        self._path, self._head_offset = path.encode(), self._file.size
        self._crc = crc32c(self._path)
        self._file.append([_HEAD.pack(len(self._path), 0) + self._path])

    def write(self, piece: Readable) -> None:
        """Adds to the file. Raises StorageError."""
        self._file.append([piece])
        self._crc = crc32c(piece, self._crc)
        if self._file.size - self._written_back >= SYNC_BYTES:
            self._file.write_back(self._written_back)
            self._written_back = self._file.size

    def finish(self) -> None:
        """Makes the archive complete and durable; the caller closes the file."""
        self._end()
        self._file.append([_HEAD.pack(0, 0)])
        for offset, head in self._heads:
            self._file.write(offset, [head])
        self._file.sync()

    def _end(self) -> None:
        if not self._path:
            return
        size = self._file.size - self._head_offset - _HEAD.size - len(self._path)
        self._heads.append((self._head_offset, _HEAD.pack(len(self._path), size)))
        self._file.append([_CRC.pack(self._crc)])


def _is_path(path: str) -> bool:
    """Whether unpacking under this path stays inside the target folder."""
    parts = path.split("/")
    return bool(_PATH.fullmatch(path)) and not {".", ".."} & set(parts)


def is_archive(read: ReadAt) -> bool:
    """Whether a state is an archive; the state of a single state machine has another magic."""
    return read(0, len(MAGIC)) == MAGIC


def members(read: ReadAt, place: str) -> Iterator[Member]:
    """Yields the files of an archive from its headers. place is for error messages.

    Raises Damaged: cut short, malformed, or of another version.
    """
    start = read(0, _START.size)
    if len(start) < _START.size or _START.unpack(start) != (MAGIC, VERSION):
        raise Damaged(place, f"offset 0: expected an archive of version {VERSION}", RESTORE)
    offset = _START.size
    for _ in range(FILES_MAX):
        head = read(offset, _HEAD.size + PATH_BYTES_MAX)
        if len(head) < _HEAD.size:
            raise Damaged(place, f"offset {offset}: the archive is cut short", RESTORE)
        path_size, size = _HEAD.unpack_from(head)
        if path_size == 0:
            if size:
                raise Damaged(place, f"offset {offset}: the end is malformed", RESTORE)
            return
        path = head[_HEAD.size : _HEAD.size + path_size].decode("ascii", "replace")
        if len(path) < path_size or not _is_path(path):
            raise Damaged(place, f"offset {offset}: not the path of a file: {path!r}", RESTORE)
        offset += _HEAD.size + path_size
        yield Member(path, offset, size)
        offset += size + _CRC.size
    raise Damaged(place, f"more than {FILES_MAX} files", RESTORE)


def pieces(read: ReadAt, member: Member, place: str) -> Pieces:
    """Yields a file's bytes in pieces. Raises Damaged after the last piece if its CRC is wrong."""
    crc = crc32c(member.path.encode())
    end = member.offset + member.size
    for at in range(member.offset, end, PIECE_BYTES):
        piece = read(at, min(PIECE_BYTES, end - at))
        if not piece:
            raise Damaged(place, f"offset {at}: the archive is cut short", RESTORE)
        crc = crc32c(piece, crc)
        yield piece
    expected = read(end, _CRC.size)
    if expected != _CRC.pack(crc):
        problem = f"offset {end}: expected checksum {expected[::-1].hex()}, found {crc:08x}"
        raise Damaged(place, problem, RESTORE)


def member_read(read: ReadAt, member: Member) -> Callable[[int], bytes]:
    """A file as a stream: read(n) returns at most n bytes, none at the end. It does not check the
    CRC; pieces() does."""
    at = 0

    def read_next(size: int) -> bytes:
        nonlocal at
        data = read(member.offset + at, min(size, member.size - at))
        at += len(data)
        return data

    return read_next
