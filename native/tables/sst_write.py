"""Checks sorted rows, and writes them as blocks of RocksDB's files, in C."""

import struct
from typing import Any, NamedTuple

from ..._native import ffi, lib
from ..errors import NativeError, Readable, checked, uncleared
from .sst import TRAILER_SIZE

PLAIN: int = lib.KLK_SST_PLAIN
_ROW_MAX: int = lib.KLK_SST_ROW_MAX


def snappy_encode(data: Readable) -> bytes:
    """Compresses data."""
    size = len(data)
    out = uncleared("uint8_t[]", size + size // 6 + lib.KLK_SNAPPY_OVERHEAD)
    return bytes(ffi.buffer(out, lib.klk_snappy_encode(ffi.from_buffer(data), size, out)))


def sealed(block: bytes) -> bytes:
    """A block that is not compressed, with its trailer."""
    size = len(block)
    stored = bytearray(block + bytes(TRAILER_SIZE))
    lib.klk_sst_block_seal(ffi.from_buffer(stored), size, PLAIN)
    return bytes(stored)


class PackedRows(NamedTuple):
    """Keys and values as columns: offsets, u32 little endian, one more than rows; joined bytes."""

    key_offsets: Readable
    keys: Readable
    value_offsets: Readable
    values: Readable

    def held(self) -> tuple[Any, list[Any]]:
        """The struct for C, and what must live as long. Raises NativeError: ECORRUPT."""
        count = len(self.key_offsets) // 4 - 1
        sizes = len(self.key_offsets), len(self.value_offsets)
        if sizes != (4 * (count + 1),) * 2 or count < 1:
            raise NativeError(lib.KLK_ECORRUPT)
        buffers = [ffi.from_buffer(part) for part in self]
        rows = ffi.new("struct klk_sst_rows *")
        rows.key_offsets, rows.keys, rows.value_offsets, rows.values = buffers
        rows.keys_size, rows.values_size, rows.count = len(self.keys), len(self.values), count
        return rows, buffers

    def check(self) -> None:
        """Raises NativeError: ECORRUPT, the columns are malformed or empty; EINVAL, the keys do not
        ascend; ESPACE, one has more than 64 KiB."""
        rows, _buffers = self.held()
        checked(lib.klk_sst_rows_check(rows))


class BlockWriter:
    """Makes the blocks of a file, and then its index."""

    def __init__(self, block_bytes: int, compresses: bool) -> None:
        """compresses: blocks that get an eighth smaller by Snappy."""
        writer = self._writer = ffi.new("struct klk_sst_writer *")
        writer.block_bytes, writer.compresses = block_bytes, compresses
        self._index: list[bytes] = []
        self._restarts: list[bytes] = []
        self.blocks = 0

    @property
    def size(self) -> int:
        """Of the blocks so far."""
        return int(self._writer.offset)

    def write(self, rows: PackedRows) -> Any:
        """The blocks of rows that follow those before in the order of keys, as a buffer. Raises
        NativeError as check() does, and ESPACE beyond about 2 GiB."""
        held, _buffers = rows.held()
        writer, count = self._writer, held.count
        room = held.keys_size + held.values_size + count * _ROW_MAX
        writer.out_max = room + room // 6 + lib.KLK_SNAPPY_OVERHEAD
        writer.block_max = room + 4 * count
        writer.index_max = held.keys_size + count * _ROW_MAX
        writer.blocks_max = count
        writer.out = out = uncleared("uint8_t[]", writer.out_max)
        writer.block = block = uncleared("uint8_t[]", writer.block_max)
        writer.index = index = uncleared("uint8_t[]", writer.index_max)
        writer.restarts = restarts = uncleared("uint32_t[]", count)
        checked(lib.klk_sst_write(writer, held))
        self._index.append(bytes(ffi.buffer(index, writer.index_size)))
        self._restarts.append(struct.pack(f"<{writer.blocks}I", *restarts[0 : writer.blocks]))
        self.blocks += writer.blocks
        writer.offset += writer.out_size
        writer.index_base += writer.index_size
        del block
        return ffi.buffer(out, writer.out_size)

    def index(self) -> bytes:
        """The index of all blocks."""
        count = self.blocks.to_bytes(4, "little")
        return b"".join([*self._index, *self._restarts, count])
