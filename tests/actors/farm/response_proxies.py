"""Proxies between the farm servers of a test. They can hold back answers of one kind.

Every connection between servers passes a proxy, so that a test can keep a server waiting. For farms
without TLS. The proxies run in a thread, as the test itself waits for the servers.
"""

import selectors
import socket
import threading
from collections.abc import Iterable

from kelek.protocols.garlicfarm.wire.messages import MessageType

RESPONSE_BYTES = 26
LOOK_S = 0.01
ROOM = 1 << 16
UPGRADED = b"HTTP/1.1 101"


class ProxiedConnection:
    """A connection, and its other half to the server."""

    def __init__(self, number: int, near: socket.socket, far: socket.socket) -> None:
        self.number, self.near, self.far = number, near, far
        self.back = bytearray()  # From the server, held back.
        self._speaks = False  # The handshake is over: the bytes are responses.

    def let_through(self, held: frozenset[tuple[int, MessageType]]) -> None:
        """Forwards the answers that may pass. Raises OSError."""
        if not self._speaks:
            head, end, _ = self.back.partition(b"\r\n\r\n")
            self._speaks = bool(end) and head.startswith(UPGRADED)
            size = len(head) + len(end) if self._speaks else len(self.back)
            self._send(size if end else 0)
        size = 0
        while self._speaks and len(self.back) >= size + RESPONSE_BYTES:
            if (self.number, MessageType(self.back[size])) in held:
                break
            size += RESPONSE_BYTES
        self._send(size)

    def _send(self, size: int) -> None:
        if size:
            self.near.sendall(self.back[:size])
            del self.back[:size]


class ResponseProxies:
    """One proxy per server. `ports` are the proxies' by server id, `targets` the servers'."""

    def __init__(self, ports: dict[int, int], targets: dict[int, int]) -> None:
        self._targets = targets
        self._held: frozenset[tuple[int, MessageType]] = frozenset()
        self._selector = selectors.DefaultSelector()
        self._pairs: set[ProxiedConnection] = set()
        self._listeners: list[socket.socket] = []
        self._ends = False
        for number, port in ports.items():
            listener = socket.create_server(("127.0.0.1", port))
            self._listeners.append(listener)
            self._selector.register(listener, selectors.EVENT_READ, number)
        self._thread = threading.Thread(target=self._run, name="gates", daemon=True)
        self._thread.start()

    def hold(self, kind: MessageType, numbers: Iterable[int]) -> None:
        """Holds back answers of this kind from these servers, and what follows them."""
        self._held |= {(number, kind) for number in numbers}

    def let_go(self, kind: MessageType | None = None) -> None:
        """Releases answers of these servers; None: of all."""
        self._held = frozenset(each for each in self._held if kind not in (None, each[1]))

    def close(self) -> None:
        self._ends = True
        self._thread.join()
        for pair in list(self._pairs):
            self._end(pair)
        for listener in self._listeners:
            listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._ends:
            for key, _ in self._selector.select(LOOK_S):
                if isinstance(key.data, int):
                    self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
                elif key.data in self._pairs:
                    self._read(key.data, key.fileobj)  # type: ignore[arg-type]
            for pair in list(self._pairs):
                try:
                    pair.let_through(self._held)
                except OSError:
                    self._end(pair)

    def _accept(self, listener: socket.socket, number: int) -> None:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._targets[number]))
        except OSError:
            near.close()  # The server does not run.
            return
        pair = ProxiedConnection(number, near, far)
        self._pairs.add(pair)
        for sock in (near, far):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ, pair)

    def _read(self, pair: ProxiedConnection, sock: socket.socket) -> None:
        try:
            data = sock.recv(ROOM)
            if data and sock is pair.near:
                pair.far.sendall(data)
            elif data:
                pair.back += data
            else:
                pair.let_through(self._held)
        except OSError:
            data = b""
        if not data:
            self._end(pair)

    def _end(self, pair: ProxiedConnection) -> None:
        self._pairs.discard(pair)
        for sock in (pair.near, pair.far):
            self._selector.unregister(sock)
            sock.close()
