"""Forwarding of messages from an arena without copying them to Python objects."""

from typing import TYPE_CHECKING, Literal

from ..._native import ffi, lib
from ..errors import checked
from ..net.messages import Arena, Frames
from ..net.sockets import send_batch

if TYPE_CHECKING:
    import zmq


def send_messages(
    socket: "zmq.Socket[bytes]",
    messages: Arena,
    position: int = 0,
    mode: Literal["drop", "keep"] = "drop",
    skip: int = 0,
) -> tuple[int, int]:
    """Like send_batch(), for an arena's messages from a position on; does not change the arena.

    skip   frames at the start of each message that are not sent

    Returns (position of the first message that is left, number of dropped messages).
    """
    view = _Sending(messages, position, skip)
    send_batch(socket, view, mode)
    return view.sent, view.dropped


class _Sending(Frames):
    """Counts the sent messages here instead of in the arena."""

    __slots__ = ()

    def __init__(self, messages: Arena, position: int, skip: int) -> None:
        self._struct, self._bytes = messages._struct, messages._bytes
        self._offsets, self._firsts = messages._offsets, messages._firsts
        self._buffer = messages._buffer
        self._position, self._lost = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        self.sent, self.dropped, self.skip = position, 0, skip

    def _on_sent(self, position: int, dropped: int) -> None:
        self.sent = position
        self.dropped += dropped


def heads(messages: Arena, size: int) -> bytes:
    """The first frames of all messages, joined; each has size bytes.

    Raises NativeError: a frame has another size.
    """
    out = ffi.new("uint8_t[]", messages.count * size + 1)
    checked(lib.klk_messages_heads(messages._struct, size, out))
    return bytes(ffi.buffer(out, messages.count * size))


def stamp(messages: Arena, offset: int, data: bytes) -> None:
    """Overwrites a part of the first frame of every message.

    Raises NativeError: a first frame is too short.
    """
    checked(lib.klk_messages_stamp(messages._struct, offset, data, len(data)))
