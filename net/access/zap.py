"""The socket of a ZAP handler: libzmq asks it about new connections (ZeroMQ RFC 27)."""

from collections.abc import Callable, Sequence

import zmq

from ...native.net.messages import Arena
from ...protocols.errors import RemoteProtocolError
from ..poll_loop import PollLoop
from ..sockets import SocketOptions

ENDPOINT = "inproc://zeromq.zap.01"
ARENA_BYTES = 1 << 13  # About 50 questions a wake: others must not wait for a flood of handshakes.
OPTIONS = SocketOptions(bind=(ENDPOINT,), message_bytes_max=4096, message_frames_max=16)


class ZapSocket:
    """The ZAP handler of a context, which has one.

    socket   ROUTER   inproc://zeromq.zap.01   libzmq, once a connection
    """

    def __init__(
        self,
        loop: PollLoop,
        answer: Callable[[Sequence[bytes]], tuple[list[bytes], str]],
        on_refused: Callable[[str, str], None],
    ) -> None:
        """
        answer       as ZapHandler.answer
        on_refused   gets the address of a refused connection, and the reason
        """
        self._loop, self._answer, self._on_refused = loop, answer, on_refused
        self.socket = loop.socket(zmq.ROUTER, OPTIONS, loop.curve_context)
        loop.listen(self.socket, self._on_arena, arena_bytes=ARENA_BYTES)

    def answer_waiting(self) -> None:
        """Answers before the loop runs."""
        while self.socket.poll(0):
            self._on_request(self.socket.recv_multipart())

    def _on_arena(self, arena: Arena) -> None:
        for frames in arena.messages():
            self._on_request(frames)

    def _on_request(self, frames: list[bytes]) -> None:
        """frames: [routing id][empty], and the request"""
        try:
            answer, problem = self._answer(frames[2:])
        except RemoteProtocolError:
            self._loop.counters["zap-malformed"] += 1
            return
        if problem:
            self._on_refused(frames[5].decode(errors="replace"), problem)
        self._loop.send(self.socket, [*frames[:2], *answer])
