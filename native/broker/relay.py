"""Messages that pass through: sent on from where they lie, and kept until they are done with."""

from typing import TYPE_CHECKING, Literal

from ..._native import ffi, lib
from ..errors import NativeError
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
    """As send_batch, of any arena from a message on; the arena stays as it is.

    skip   frames at the start of each message that are not sent

    Returns (position of the first message that is left, messages that were dropped).
    """
    view = _Sending(messages, position, skip)
    send_batch(socket, view, mode)
    return view.sent, view.dropped


class _Sending(Frames):
    """An arena's messages while they are sent: what has left is counted here, not there."""

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
    """The first frames of all messages, joined: each has size bytes.

    NativeError: one has another size.
    """
    out = ffi.new("uint8_t[]", messages.count * size + 1)
    code = lib.klk_messages_heads(messages._struct, size, out)
    if code < 0:
        raise NativeError(code)
    return bytes(ffi.buffer(out, messages.count * size))


def stamp(messages: Arena, offset: int, data: bytes) -> None:
    """Writes data over a part of the first frame of every message.

    NativeError: a first frame ends before that.
    """
    code = lib.klk_messages_stamp(messages._struct, offset, data, len(data))
    if code < 0:
        raise NativeError(code)
