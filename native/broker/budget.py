"""A limit in bytes for the unread messages of each client of a ROUTER.

libzmq limits their number only. This module learns from libzmq when a message of 1 KiB or more, or
a bundle of that size, is released: sent, or dropped with its connection.
"""

import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ..._native import ffi, lib
from ..errors import os_error, uncleared
from ..net.messages import Arena
from ..net.sockets import native_socket

if TYPE_CHECKING:
    import zmq

ANSWERS_BYTES_MAX = 128 << 20  # Of one client, by default.
COUNTED_BYTES_MIN: int = lib.KLK_BUDGET_BYTES_MIN


class Unsent(NamedTuple):
    """Positions of the messages that were not sent."""

    over: list[int]  # They would exceed their client's budget.
    full: list[int]  # The socket has no room.
    gone: list[int]  # Their client is not connected.

    @classmethod
    def of(cls, pairs: Any, count: int) -> Self:
        """Converts C's pairs of position and reason."""
        found = cls([], [], [])
        numbers = ffi.unpack(pairs, 2 * count) if count else ()
        for place, reason in zip(numbers[::2], numbers[1::2], strict=True):
            found[reason].append(place)
        return found


class Budget:
    """The budgets of all clients of one socket."""

    def __init__(self, bytes_max: int, in_order: bool = False) -> None:
        """bytes_max   unread bytes of one client; a single message may exceed it if nothing else is
                    unread. Messages below COUNTED_BYTES_MIN are not counted.
        in_order    after an unsent message, later ones of the same send() to the same client are
                    not sent either, so that the caller can send an error first"""
        self.bytes_max, self.in_order = bytes_max, in_order
        self._budget: Any = lib.klk_budget_open(int.from_bytes(os.urandom(8), "little"), in_order)
        if not self._budget:
            raise MemoryError("a budget")
        weakref.finalize(self, lib.klk_budget_close, self._budget)

    def queued(self, routing_id: bytes) -> int:
        """Unsent bytes for a client."""
        return int(lib.klk_budget_queued(self._budget, routing_id, len(routing_id)))

    def send(self, socket: "zmq.Socket[bytes]", messages: Arena, skip: int = 0) -> Unsent:
        """Sends messages while their client's budget and the socket have room; never blocks.

        skip   frames at the start of each message that are not sent; a routing id follows
        """
        position, unsents = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        unsent = uncleared("uint32_t[]", 2 * messages.count)
        out = native_socket(socket), messages._struct, skip, self.bytes_max
        code = lib.klk_budget_send(self._budget, *out, position, unsent, unsents)
        if code < 0:
            raise os_error("zmq_msg_send")
        return Unsent.of(unsent, unsents[0])
