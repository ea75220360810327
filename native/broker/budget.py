"""What the clients of a ROUTER leave unread, bounded by bytes for each of them.

libzmq bounds it by messages, of any size. Here it says when it is done with a large one: sent, or
given up with its connection.
"""

import errno
import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ..._native import ffi, lib
from ..errors import os_error, uncleared
from ..net.messages import Arena
from ..net.sockets import backend, native_socket

if TYPE_CHECKING:
    import zmq

COUNTED_BYTES_MIN: int = lib.KLK_BUDGET_BYTES_MIN


class Unsent(NamedTuple):
    """Positions of the messages that were not sent."""

    over: list[int]  # Too much for what their client leaves unread.
    full: list[int]  # The socket has no room for them.
    gone: list[int]  # Their client is not there.

    @classmethod
    def of(cls, pairs: Any, count: int) -> Self:
        """C's: a position and a reason each."""
        found = cls([], [], [])
        numbers = ffi.unpack(pairs, 2 * count) if count else ()
        for place, reason in zip(numbers[::2], numbers[1::2], strict=True):
            found[reason].append(place)
        return found


class Budget:
    """The budgets of all clients of one socket."""

    def __init__(self, bytes_max: int, in_order: bool = False) -> None:
        """bytes_max   that one client may leave unread; what comes to it when it has read all is
        sent however large it is. Messages below COUNTED_BYTES_MIN are not counted.
        in_order    what stands behind a message to the same client that was not sent is not sent
        either, in one send(): whoever learns of that can still say so first."""
        self.bytes_max, self.in_order = bytes_max, in_order
        self._budget: Any = lib.klk_budget_open(int.from_bytes(os.urandom(8), "little"), in_order)
        if not self._budget:
            raise MemoryError("a budget")
        weakref.finalize(self, lib.klk_budget_close, self._budget)
        self._trackers: dict[bytes, list[tuple[Any, int]]] = {}  # Of pyzmq, where C can't send.

    def queued(self, routing_id: bytes) -> int:
        """Bytes for a client that have not left."""
        if backend() == "pyzmq":
            return self._tracked(routing_id)
        return int(lib.klk_budget_queued(self._budget, routing_id, len(routing_id)))

    def send(self, socket: "zmq.Socket[bytes]", messages: Arena, skip: int = 0) -> Unsent:
        """Sends all that a client's budget and the socket have room for; it never blocks.

        skip   frames at the start of each message that stay here; a routing id follows
        """
        if backend() == "pyzmq":
            return self._send_pyzmq(socket, messages, skip)
        position, unsents = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        unsent = uncleared("uint32_t[]", 2 * messages.count)
        code = lib.klk_budget_send(
            self._budget,
            native_socket(socket),
            messages._struct,
            skip,
            self.bytes_max,
            position,
            unsent,
            unsents,
        )
        if code < 0:
            raise os_error("zmq_msg_send")
        return Unsent.of(unsent, unsents[0])

    # ---- without libzmq's symbols ----

    def _tracked(self, routing_id: bytes) -> int:
        left = [pair for pair in self._trackers.pop(routing_id, ()) if not pair[0].done]
        if left:
            self._trackers[routing_id] = left
        return sum(size for _, size in left)

    def _send_pyzmq(self, socket: "zmq.Socket[bytes]", messages: Arena, skip: int) -> Unsent:
        from zmq import DONTWAIT, ZMQError

        socket.copy_threshold = 0  # What is copied is not tracked.
        found = Unsent([], [], [])
        lost: set[bytes] = set()  # Clients that did not get a message.
        for position in range(messages.count):
            frames = messages.message(position)[skip:]
            size = sum(map(len, frames))
            queued = self._tracked(frames[0]) if size >= COUNTED_BYTES_MIN else 0
            if self.in_order and frames[0] in lost:
                found.full.append(position)
                continue
            if queued and queued + size > self.bytes_max:
                found.over.append(position)
                lost.add(frames[0])
                continue
            try:
                tracker = socket.send_multipart(frames, DONTWAIT, copy=False, track=True)
            except ZMQError as error:
                if error.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
                    raise OSError(error.errno, str(error)) from error
                if error.errno == errno.EAGAIN:
                    found.full.append(position)
                    lost.add(frames[0])
                else:
                    found.gone.append(position)
            else:
                if size >= COUNTED_BYTES_MIN:
                    self._trackers.setdefault(frames[0], []).append((tracker, size))
        return found
