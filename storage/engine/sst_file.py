"""Reads the properties and the index of a RocksDB table file, and checks whole files.

It supports the block-based table of format 5 with the checksums, key order and index of our options
(docs/reference/disk-format.md). Other files are Unsupported: RocksDB reads them itself.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...native.errors import NativeError
from ...native.tables.sst import (
    EUNKNOWN,
    STAMP_SIZE,
    TRAILER_SIZE,
    Bounds,
    Index,
    blocks_checked,
    open_block,
    wanted_blocks,
)
from ..disk.files import PIECE_BYTES, ReadableFile
from ..errors import Damaged, StorageError, SystemCall, storage_error

FOOTER = 53  # Kind of checksum; handles of metaindex and index; format, magic number.
MAGIC = (0x88E241B785F4CFF7).to_bytes(8, "little")
FORMAT = 5
XXH3 = 4
INDEX_BYTES_MAX = 1 << 30
META_BYTES_MAX = 1 << 20
TOO_MANY = {errno.EMFILE, errno.ENFILE}
REPAIR = "move it away: it is made again from the log and its peers"

PROPERTIES = b"rocksdb.properties"
FILTERS = (b"filter.", b"fullfilter.", b"partitionedfilter.")  # A scan does not use them.
INDEX_FORM = {
    b"rocksdb.block.based.table.index.type": bytes(4),  # One block, binary search.
    b"rocksdb.index.value.is.delta.encoded": b"\x01",
}
# Required values of properties.
REQUIRED = INDEX_FORM | {
    b"rocksdb.comparator": b"leveldb.BytewiseComparator",
    b"rocksdb.num.range-deletions": b"\0",
    b"rocksdb.merge.operands": b"\0",
}
TAKEN_IN = b"rocksdb.external_sst_file.version"  # Its sequence numbers are those of its manifest.
NEVER = (b"rocksdb.user.defined.timestamps.persisted",)
FAMILY = b"rocksdb.column.family.name"
USER_KEYS = b"rocksdb.index.key.is.user.key"


class Unsupported(Exception):
    """Only RocksDB can read this file, or something in it."""


class Handle(NamedTuple):
    """The position of a block."""

    offset: int
    size: int


def problem_of(path: str, code: int) -> StorageError | Unsupported:
    """The exception for an error code of C."""
    if code == EUNKNOWN:
        return Unsupported(path)
    return Damaged(path, "a block does not match its checksum, or is malformed", REPAIR)


def open_file(path: str) -> int:
    """The number of the open file. Raises Unsupported: too many files are open; StorageError."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in TOO_MANY:
            raise Unsupported(path) from None
        raise storage_error(path, "open this file", error) from None


class OpenedFile:
    """A file that is open by its number; a ReadableFile."""

    def __init__(self, path: str, fd: int) -> None:
        self.full_path = path
        self.size = os.fstat(fd).st_size
        self._fd = fd

    def read(self, offset: int, size: int) -> bytes:
        with SystemCall(self.full_path, "read this file"):
            return os.pread(self._fd, size, offset)

    def close(self) -> None:
        """The caller closes the file."""


class SortedFile:
    """An open file of sorted keys."""

    def __init__(self, file: ReadableFile) -> None:
        """Reads the footer and the properties. Raises Unsupported and StorageError."""
        self._file = file
        self._path = file.full_path
        self._size = file.size
        metaindex, self._index = self._footer()
        self._parts = self._handles(metaindex)
        self._properties = self._named_values()
        self._require(INDEX_FORM)

    def index(self, family: str, is_oldest: bool = False) -> Index:
        """The list of its blocks, for a scan without RocksDB. Raises Unsupported: the scan needs
        RocksDB; StorageError.

        family      name of the column family
        is_oldest   its entries have the sequence number 0, so that of a file that was taken in
                    (ingest.py) is the one in the file, too. Such a file names no family
        """
        found = self._properties
        is_taken_in = is_oldest and TAKEN_IN in found
        self._require(REQUIRED if is_taken_in else {**REQUIRED, FAMILY: family.encode()})
        never = NEVER if is_taken_in else (*NEVER, TAKEN_IN)
        if any(name in found for name in never) or found.get(USER_KEYS) not in (b"\0", b"\x01"):
            raise Unsupported(self._path)
        if any(name != PROPERTIES and not name.startswith(FILTERS) for name in self._parts):
            raise Unsupported(f"{self._path}: {self._parts.keys()}")  # Such as range deletions.
        stamped = found[USER_KEYS] == b"\0"
        return Index(self._block(self._index, INDEX_BYTES_MAX), stamped, self._size)

    def samples(self, bounds: Bounds, step: int) -> Iterator[tuple[bytes, int]]:
        """Of the blocks that may have keys within bounds: the first key of one in each `step`
        bytes, and the bytes up to the next of them.

        Raises Unsupported and StorageError.
        """
        stamped = self._properties.get(USER_KEYS) == b"\0"
        index = Index(self._block(self._index, INDEX_BYTES_MAX), stamped, self._size)
        try:
            blocks = wanted_blocks(index, bounds)
        except NativeError as error:
            raise problem_of(self._path, error.code) from None
        first = size = 0
        for place in range(blocks.count):
            size += blocks.sizes[place]
            if size >= step or place + 1 == blocks.count:
                handle = Handle(blocks.offsets[first], blocks.sizes[first])
                try:
                    key, _ = next(entries_of(self._block(handle, INDEX_BYTES_MAX)))
                except (ValueError, StopIteration):
                    raise self._damaged(f"no key in a block at {handle.offset}") from None
                yield key[:-STAMP_SIZE], size
                first, size = place + 1, 0

    def check(self) -> None:
        """Compares the checksums of all blocks. Raises Unsupported and Damaged."""
        for handle in self._parts.values():
            self._block(handle, INDEX_BYTES_MAX)
        index = Index(self._block(self._index, INDEX_BYTES_MAX), False, self._size)
        try:
            blocks, checked, base = wanted_blocks(index, Bounds()), 0, 0
            while checked < blocks.count:
                base = blocks.offsets[checked]
                size = max(PIECE_BYTES, blocks.sizes[checked] + TRAILER_SIZE)
                data = self._file.read(base, min(size, self._size - base))
                went_on = blocks_checked(blocks, checked, data, base)
                if went_on == checked:
                    raise self._damaged(f"a block at {base} is cut short")
                checked = went_on
        except NativeError as error:
            raise problem_of(self._path, error.code) from None

    def _require(self, wanted: Mapping[bytes, bytes]) -> None:
        for name, value in wanted.items():
            if self._properties.get(name) != value:
                found = self._properties.get(name)
                raise Unsupported(f"{self._path}: {name.decode()} is {found!r}")

    def _damaged(self, problem: str) -> Damaged:
        return Damaged(self._path, problem, REPAIR)

    def _read(self, handle: Handle) -> bytes:
        if handle.offset < 0 or handle.offset + handle.size > self._size:
            raise self._damaged(f"it ends at {self._size}, in a block at {handle.offset}")
        found = self._file.read(handle.offset, handle.size)
        if len(found) != handle.size:
            raise self._damaged(f"{len(found)} bytes of {handle.size} at {handle.offset}")
        return found

    def _footer(self) -> tuple[Handle, Handle]:
        data = self._read(Handle(self._size - FOOTER, FOOTER))
        if data[-8:] != MAGIC:
            raise self._damaged(f"it ends with {data[-8:].hex()}")
        if data[-12:-8] != FORMAT.to_bytes(4, "little") or data[0] != XXH3:
            raise Unsupported(f"{self._path}: checksum {data[0]}, format {data[-12]}")
        try:
            handles = VarintReader(data[1:-12])
            return Handle(handles.next(), handles.next()), Handle(handles.next(), handles.next())
        except ValueError:
            raise self._damaged("its footer has no handles") from None

    def _block(self, handle: Handle, bytes_max: int) -> bytes:
        if handle.size > bytes_max:
            raise Unsupported(f"{self._path}: a block of {handle.size} bytes")
        stored = self._read(Handle(handle.offset, handle.size + TRAILER_SIZE))
        try:
            return open_block(stored)
        except NativeError as error:
            raise problem_of(self._path, error.code) from None

    def _handles(self, metaindex: Handle) -> dict[bytes, Handle]:
        """The blocks beside data and index, by name."""
        found = {}
        try:
            for name, value in entries_of(self._block(metaindex, META_BYTES_MAX)):
                numbers = VarintReader(value)
                found[name] = Handle(numbers.next(), numbers.next())
        except ValueError as error:
            raise self._damaged(f"its list of parts: {error}") from None
        if PROPERTIES not in found:
            raise Unsupported(f"{self._path}: it has no properties")
        return found

    def _named_values(self) -> dict[bytes, bytes]:
        try:
            return dict(entries_of(self._block(self._parts[PROPERTIES], META_BYTES_MAX)))
        except ValueError as error:
            raise self._damaged(f"its properties: {error}") from None


class VarintReader:
    """Reads numbers of 7 bits a byte, and bytes whose size they give."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def next(self) -> int:
        """Raises ValueError: there is none."""
        value = 0
        for shift in range(0, 64, 7):
            if self.at == len(self.data):
                break
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError(f"no number at {self.at}")

    def read(self, size: int) -> bytes:
        """Raises ValueError: there are fewer bytes."""
        if size > len(self.data) - self.at:
            raise ValueError(f"{size} bytes at {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]


def entries_of(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and values of a block. Raises ValueError."""
    places = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * places
    if end < 0:
        raise ValueError(f"a block of {len(block)} bytes with {places} places")
    numbers, key = VarintReader(block[:end]), b""
    while numbers.at < end:
        shared, own, size = numbers.next(), numbers.next(), numbers.next()
        if shared > len(key):
            raise ValueError(f"{shared} bytes of a key of {len(key)}")
        key = key[:shared] + numbers.read(own)
        yield key, numbers.read(size)
