"""The archive `KLKA`: several processes' files as one stream of bytes, the state of a snapshot.

It knows no engine, and holds a piece of a file in memory at most (docs/disk-format.md, "Archive").
"""

import re
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from ...native.log.blocks import crc32c
from ..disk.files import Files
from ..errors import Damaged, StorageError
from ..log.segment import RESTORE

MAGIC = b"KLKA"
VERSION = 1
PIECE_BYTES = 1 << 20
PATH_BYTES_MAX = 255
FILES_MAX = 1_000_000

_START = Struct("<4sI")  # Magic, version.
_HEAD = Struct("<IQ")  # Size of the path (0: the end), size of the file; both follow, then ...
_CRC = Struct("<I")  # ... the CRC32C of the two.
_PATH = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?")

Pieces = Iterator[bytes]
ReadAt = Callable[[int, int], bytes]  # Offset and size; less than that only at the end.


class Source(NamedTuple):
    """A file to be packed."""

    files: Files
    name: str  # Its path there ...
    path: str  # ... and in the archive: NAME or NAME/FILE.


class Member(NamedTuple):
    """A file in an archive."""

    path: str
    offset: int  # Of its bytes.
    size: int


def folder_sources(files: Files, folder: str) -> list[Source]:
    """All files of a flat directory, to be packed as folder/NAME."""
    return [Source(files, name, f"{folder}/{name}") for name in files.names("")]


def pack(sources: Iterable[Source]) -> Pieces:
    """The archive of these files by pieces. StorageError: refused by the system, or gone."""
    yield _START.pack(MAGIC, VERSION)
    for source in sources:
        yield from _pack_file(source)
    yield _HEAD.pack(0, 0)


def _pack_file(source: Source) -> Pieces:
    file = source.files.open(source.name)
    if file is None:
        place = source.files.full_path(source.name)
        raise StorageError(place, "it disappeared", "leave this directory to its owner")
    try:
        path, size = source.path.encode(), file.size
        assert _is_path(source.path), source.path
        yield _HEAD.pack(len(path), size) + path
        crc = crc32c(path)
        for at in range(0, size, PIECE_BYTES):
            piece = file.read(at, min(PIECE_BYTES, size - at))
            crc = crc32c(piece, crc)
            yield piece
        yield _CRC.pack(crc)
    finally:
        file.close()


def _is_path(path: str) -> bool:
    """Whether it stays where it is unpacked: a worker writes files of these names."""
    parts = path.split("/")
    return bool(_PATH.fullmatch(path)) and not {".", ".."} & set(parts)


def is_archive(read: ReadAt) -> bool:
    """Whether a state is one: what a state machine alone writes has another magic."""
    return read(0, len(MAGIC)) == MAGIC


def members(read: ReadAt, place: str) -> Iterator[Member]:
    """The files of an archive, by their headers alone; place is for error texts.

    Raises Damaged: cut short, malformed, of another version.
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
            return
        path = head[_HEAD.size : _HEAD.size + path_size].decode("ascii", "replace")
        if len(path) < path_size or not _is_path(path):
            raise Damaged(place, f"offset {offset}: not the path of a file: {path!r}", RESTORE)
        offset += _HEAD.size + path_size
        yield Member(path, offset, size)
        offset += size + _CRC.size
    raise Damaged(place, f"more than {FILES_MAX} files", RESTORE)


def pieces(read: ReadAt, member: Member, place: str) -> Pieces:
    """A file's bytes. Raises Damaged behind the last one when the checksum is wrong."""
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
    """A file as a stream: at most so many bytes, none at the end. Not checked: see pieces()."""
    at = 0

    def read_next(size: int) -> bytes:
        nonlocal at
        data = read(member.offset + at, min(size, member.size - at))
        at += len(data)
        return data

    return read_next
