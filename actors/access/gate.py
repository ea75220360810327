"""The gate of a process: it answers libzmq's questions about new connections (ZeroMQ RFC 27)."""

import struct

import zmq

from ...native.net.messages import Arena
from ...net.clock import monotonic_ms
from ...net.sockets import CurveClient, Socket, SocketOptions
from ...protocols.access.certificates import decode_key
from ...protocols.access.guards import row_of
from ...protocols.access.zap import KeyChange, Keyring, ProtectedEndpoint, ZapHandler
from ...protocols.errors import RemoteProtocolError
from ..errors import OperatorError
from ..runtime.process_loop import ProcessLoop
from .keys import KeyDirectory

ENDPOINT = "inproc://zeromq.zap.01"
OPTIONS = SocketOptions(bind=(ENDPOINT,), message_bytes_max=4096, message_frames_max=16)
CHECK_MS = 5000  # How long a start waits for the refusal of an unknown key.
_REFUSED = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_EVENT = struct.Struct("=HI")


class AccessGate:
    """The keys that a process allows, and its ZAP handler.

    handler   ROUTER   inproc://zeromq.zap.01   libzmq, once a connection

    It must exist before the first endpoint with a domain is bound. A context has one handler.
    """

    def __init__(
        self, loop: ProcessLoop, keys: KeyDirectory, endpoints: dict[bytes, ProtectedEndpoint]
    ) -> None:
        """endpoints: by ZAP domain"""
        self._loop, self._keys = loop, keys
        self.keyring = Keyring()
        self._replace()
        self._handler = ZapHandler(self.keyring, endpoints)
        self._socket = loop.socket(zmq.ROUTER, OPTIONS)
        loop.listen(self._socket, self._on_arena, arena_bytes=1 << 16)

    def reload(self, now_ms: int) -> list[KeyChange]:
        """Loads changed key files. Returns what has changed."""
        problems = self._keys.reload(now_ms)
        if problems is None:
            return []
        for problem in problems:
            self._loop.log("key-refused", problem=problem)
        changed = self._replace()
        for slot, name in changed:
            self._loop.log("key-allowed" if slot.key else "key-revoked", name=name)
        return changed

    def _replace(self) -> list[KeyChange]:
        changed = self.keyring.replace(self._keys.keys)
        self._loop.allowed_keys.replace(map(row_of, self.keyring.slots))
        return changed

    def check(self, url: str, server_key: bytes, place: str) -> None:
        """Connects to an own endpoint with an unknown key. Raises OperatorError if it gets in.

        libzmq accepts every key where no handler answers.
        """
        public, secret = (decode_key(key.decode()) for key in zmq.curve_keypair())
        curve = CurveClient(server_key, public, secret)
        # Not as an option of socket(): the monitor must see the first event.
        socket = self._loop.socket(zmq.DEALER, SocketOptions(curve=curve))
        monitor: Socket = socket.get_monitor_socket()
        try:
            socket.connect(url)
            until_ms = monotonic_ms() + CHECK_MS
            while (left_ms := until_ms - monotonic_ms()) > 0:
                self._answer_waiting()
                if not monitor.poll(min(left_ms, 10)):
                    continue
                event, _value = _EVENT.unpack_from(monitor.recv_multipart()[0])
                if event == _REFUSED:
                    return
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    break
        finally:
            socket.disable_monitor()
            monitor.close()
            self._loop.close_socket(socket)
        raise OperatorError(place, f"{url} does not refuse unknown keys", "report this as a defect")

    def _answer_waiting(self) -> None:
        """Answers before the loop runs."""
        while self._socket.poll(0):
            self._answer(self._socket.recv_multipart())

    def _on_arena(self, arena: Arena) -> None:
        for frames in arena.messages():
            self._answer(frames)

    def _answer(self, frames: list[bytes]) -> None:
        """frames: [routing id][empty], and the request"""
        try:
            answer, problem = self._handler.answer(frames[2:])
        except RemoteProtocolError as error:
            self._loop.log_rarely("zap-malformed", problem=str(error))
            return
        if problem:
            address = frames[5].decode(errors="replace")
            self._loop.log_rarely("connection-refused", address=address, problem=problem)
        self._loop.send(self._socket, [*frames[:2], *answer])
