"""Cuts blocks into messages of entries in C, without an object per entry."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..._native import ffi, lib
from ..errors import NativeError, Readable, checked
from ..net.messages import Frames


class MessageLimits(NamedTuple):
    """Limits of one message: bytes of entries (a larger entry goes alone), and entries."""

    bytes: int
    entries: int


class Fit(NamedTuple):
    """How many entries fit into a message."""

    last_index: int
    bytes: int
    full: bool  # No more entries fit.


def entries_fit(
    blocks: Sequence[Readable], first_index: int, last_index: int, room: MessageLimits
) -> Fit:
    """How many entries of contiguous blocks, from first_index on, fit into a message.

    The first entry always fits. NativeError: first_index is not in the first block.
    """
    entries = _entries(first_index, last_index, room)
    code = lib.KLK_OK
    for block in blocks:
        if entries.index > last_index or code == lib.KLK_MORE:
            break
        buffer = ffi.from_buffer(block)
        code = checked(lib.klk_entries_add(entries, buffer, len(buffer), ffi.NULL))
    full = code == lib.KLK_MORE or entries.bytes >= room.bytes or entries.count == room.entries
    return Fit(int(entries.index) - 1, int(entries.bytes), full)


def add_entries(
    out: Frames,
    head: Sequence[bytes],
    blocks: Sequence[Readable],
    first_index: int,
    last_index: int,
) -> None:
    """Adds one message: the frames of head, then a frame for each entry of contiguous blocks.

    NativeError: the blocks lack entries of first_index to last_index; nothing was added.
    """
    entries = _entries(first_index, last_index, _ALL)
    code = lib.KLK_EINVAL
    out.begin(head)
    for block in blocks:
        buffer = ffi.from_buffer(block)
        while entries.index <= last_index:
            code = lib.klk_entries_add(entries, buffer, len(buffer), out._struct)
            if code != lib.KLK_EFULL:
                break
            out._double()
        if code < 0:
            break
    if entries.index <= last_index:
        out.undo()
        raise NativeError(code)
    out.end()


_ALL = MessageLimits(1 << 40, (1 << 32) - 1)


def _entries(first_index: int, last_index: int, room: MessageLimits) -> Any:
    entries = ffi.new("struct klk_entries *")
    entries.index, entries.last_index = first_index, last_index
    entries.bytes_max, entries.count_max = room
    return entries
