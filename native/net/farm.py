"""Garlic Farm's wire entries in C: converted to log blocks and back, a batch per call.

The Python twins are protocols/garlicfarm/wire/codec.py and entries.py. They also describe errors in
entries that the C functions reject.
"""

from struct import Struct

from ..._native import ffi, lib
from ..errors import HEADER_SIZE, checked_bytes, uncleared

PREFIX: int = lib.KLK_FARM_ENTRY_PREFIX
BLOCK_COUNT_MAX: int = lib.KLK_FARM_BLOCK_COUNT_MAX
BLOCK_VALUES_MAX: int = lib.KLK_FARM_BLOCK_VALUES_MAX
_ROOM = BLOCK_VALUES_MAX + BLOCK_COUNT_MAX * PREFIX
_HEAD = Struct(">QxI")  # Term and size of an entry.


def count_entries(data: bytes) -> int | None:
    """The number of entries that fill the data if all are valid Application entries; else None."""
    count = int(lib.klk_farm_count(data, len(data)))
    return None if count < 0 else count


def blocks_of(data: bytes, first_index: int, term: int) -> list[tuple[int, int, int, bytes]]:
    """Blocks of counted entries: (first index, count, term, block) of each.

    term   replaces the entries' own terms, unless 0

    Raises NativeError if a term or an index is not from 1 to 2**53 - 1.
    """
    found: list[tuple[int, int, int, bytes]] = []
    at, count = ffi.new("size_t *"), ffi.new("uint32_t *")
    while (begin := at[0]) < len(data):
        own_term, value_size = _HEAD.unpack_from(data, begin)
        # Room for one block's values with some bytes per entry, or for one larger entry.
        room = min(len(data) - begin, max(_ROOM, PREFIX + value_size))
        capacity = HEADER_SIZE + room + 8
        out = uncleared("uint8_t[]", capacity)
        size = lib.klk_farm_block(data, len(data), at, first_index, term, count, out, capacity)
        found.append((first_index, count[0], term or own_term, checked_bytes(out, size)))
        first_index += count[0]
    return found


def entries_of_block(block: bytes, count: int) -> bytes:
    """The wire entries of a verified block with this count of records. Raises NativeError."""
    capacity = len(block) + PREFIX * count
    out = uncleared("uint8_t[]", capacity)
    return checked_bytes(out, lib.klk_farm_entries(block, len(block), out, capacity))
