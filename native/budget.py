"""What the clients of a ROUTER leave unread, bounded by bytes for each of them.

libzmq bounds it by messages, of any size. Here it says when it is done with a large one: sent, or
given up with its connection.
"""

import errno
import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from .._native import ffi, lib
from . import Arena, _os_error, backend, opened
from .relay import send_messages

if TYPE_CHECKING:
    import zmq

COUNTED_BYTES_MIN: int = lib.KLK_BUDGET_BYTES_MIN


class Sent(NamedTuple):
    """What became of messages."""

    dropped: int  # For want of room in the socket, or of a client.
    over: list[int]  # Positions of those that were too much for their client: not sent.


class Budget:
    """The budgets of all clients of one socket."""

    def __init__(self, bytes_max: int) -> None:
        """bytes_max   that one client may leave unread; what comes to it when it has read all is
        sent however large it is. Messages below COUNTED_BYTES_MIN are not counted."""
        self.bytes_max = bytes_max
        self._budget: Any = lib.klk_budget_open(int.from_bytes(os.urandom(8), "little"))
        if not self._budget:
            raise MemoryError("a budget")
        weakref.finalize(self, lib.klk_budget_close, self._budget)
        self._trackers: dict[bytes, list[tuple[Any, int]]] = {}  # Of pyzmq, where C can't send.

    def queued(self, routing_id: bytes) -> int:
        """Bytes for a client that have not left."""
        if backend() == "pyzmq":
            return self._tracked(routing_id)
        return int(lib.klk_budget_queued(self._budget, routing_id, len(routing_id)))

    def send(self, socket: "zmq.Socket[bytes]", messages: Arena, skip: int = 0) -> Sent:
        """Sends all that a client's budget and the socket have room for; it never blocks.

        skip   frames at the start of each message that stay here; a routing id follows
        """
        if messages.size < COUNTED_BYTES_MIN:
            return Sent(send_messages(socket, messages, 0, "drop", skip)[1], [])
        if backend() == "pyzmq":
            return self._send_pyzmq(socket, messages, skip)
        position, dropped = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        over, overs = ffi.new("uint32_t[]", messages.count), ffi.new("uint32_t *")
        code = lib.klk_budget_send(
            self._budget,
            opened(socket),
            messages._struct,
            skip,
            self.bytes_max,
            position,
            dropped,
            over,
            overs,
        )
        if code < 0:
            raise _os_error("zmq_msg_send")
        return Sent(dropped[0], list(over[0 : overs[0]]))

    # ---- without libzmq's symbols ----

    def _tracked(self, routing_id: bytes) -> int:
        left = [pair for pair in self._trackers.pop(routing_id, ()) if not pair[0].done]
        if left:
            self._trackers[routing_id] = left
        return sum(size for _, size in left)

    def _send_pyzmq(self, socket: "zmq.Socket[bytes]", messages: Arena, skip: int) -> Sent:
        from zmq import DONTWAIT, ZMQError

        socket.copy_threshold = 0  # What is copied is not tracked.
        dropped, over = 0, []
        for position in range(messages.count):
            frames = messages.message(position)[skip:]
            size = sum(map(len, frames))
            queued = self._tracked(frames[0]) if size >= COUNTED_BYTES_MIN else 0
            if queued and queued + size > self.bytes_max:
                over.append(position)
                continue
            try:
                tracker = socket.send_multipart(frames, DONTWAIT, copy=False, track=True)
            except ZMQError as error:
                if error.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
                    raise OSError(error.errno, str(error)) from error
                dropped += 1
            else:
                if size >= COUNTED_BYTES_MIN:
                    self._trackers.setdefault(frames[0], []).append((tracker, size))
        return Sent(dropped, over)
