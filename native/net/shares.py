"""How many messages of each client wait, counted in C before Python sees them."""

import os
from collections.abc import Sequence

from ..._native import ffi, lib
from ..errors import uncleared
from .messages import Arena

FEW: int = lib.KLK_SHARES_FEW
LOAD_SHARE: int = lib.KLK_LOAD_SHARE
_NO_SLOT = 0xFFFFFFFF


def slot_number(foreign_slot: int | None) -> int:
    """As C code has it; None: there is none."""
    return _NO_SLOT if foreign_slot is None else foreign_slot


class MessageShares:
    """Limits of what waits of all clients together, and of each.

    A client is the slot of its key. Without keys, and in the slot of all foreign peers, it is its
    routing id.
    """

    def __init__(
        self, client_max: int, crowded: int, all_max: int, secret: bytes | None = None
    ) -> None:
        """crowded   above so many messages in all, a client may have FEW
        secret    8 bytes, by default random: clients must not choose names that share a number
        """
        shares = self._struct = ffi.new("struct klk_shares *")
        shares.seed = int.from_bytes(secret or os.urandom(8), "little")
        shares.client_max, shares.crowded, shares.all_max = client_max, crowded, all_max
        self._numbers, self._clients = ffi.new("uint32_t[]", 1), ffi.new("uint32_t[]", 1)
        self._count = ffi.new("uint32_t *")

    def __len__(self) -> int:
        return int(self._struct.count)

    @property
    def refused(self) -> int:
        return int(self._struct.refused)

    def take(
        self, arena: Arena, numbers: Sequence[int], foreign_slot: int | None = None
    ) -> list[tuple[int, int]]:
        """Counts the messages with these numbers. Returns those for which there is room, each with
        its client for release()."""
        count = len(numbers)
        if count > len(self._numbers):
            self._numbers, self._clients = (uncleared("uint32_t[]", 2 * count) for _ in range(2))
        self._numbers[0:count] = numbers
        self._count[0] = count
        self._struct.foreign_slot = slot_number(foreign_slot)
        found = self._numbers, self._clients, self._count
        lib.klk_shares_take(self._struct, arena._struct, *found)
        taken = self._count[0]
        return [
            *zip(ffi.unpack(self._numbers, taken), ffi.unpack(self._clients, taken), strict=True)
        ]

    def release(self, client: int) -> None:
        """A message of a client no longer waits."""
        lib.klk_shares_release(self._struct, client)
