"""Proxies between the farm servers of a test, which can delay responses of one kind.

Every connection between servers passes a proxy. They work for farms without TLS, and run in a
thread, since the test itself waits for the servers.
"""

import selectors
import socket
import threading
from collections.abc import Iterable

from kelek.protocols.garlicfarm.wire.messages import MessageType

RESPONSE_BYTES = 26
POLL_S = 0.01
RECEIVE_BYTES = 1 << 16
UPGRADED = b"HTTP/1.1 101"


class ProxiedConnection:
    """A connection from a server (near), and its continuation to another server (far)."""

    def __init__(self, number: int, near: socket.socket, far: socket.socket) -> None:
        self.number, self.near, self.far = number, near, far
        self.delayed = bytearray()  # From the far server.
        self._upgraded = False  # The handshake is complete: the bytes are responses.

    def forward(self, held: frozenset[tuple[int, MessageType]]) -> None:
        """Forwards the responses that are not held. Raises OSError."""
        if not self._upgraded:
            head, end, _ = self.delayed.partition(b"\r\n\r\n")
            self._upgraded = bool(end) and head.startswith(UPGRADED)
            size = len(head) + len(end) if self._upgraded else len(self.delayed)
            self._send(size if end else 0)
        size = 0
        while self._upgraded and len(self.delayed) >= size + RESPONSE_BYTES:
            if (self.number, MessageType(self.delayed[size])) in held:
                break
            size += RESPONSE_BYTES
        self._send(size)

    def _send(self, size: int) -> None:
        if size:
            self.near.sendall(self.delayed[:size])
            del self.delayed[:size]


class ResponseProxies:
    """One proxy per server. By server id: ports of the proxies, targets of the servers."""

    def __init__(self, ports: dict[int, int], targets: dict[int, int]) -> None:
        self._targets = targets
        self._held: frozenset[tuple[int, MessageType]] = frozenset()
        self._selector = selectors.DefaultSelector()
        self._pairs: set[ProxiedConnection] = set()
        self._listeners: list[socket.socket] = []
        self._stopping = False
        for number, port in ports.items():
            listener = socket.create_server(("127.0.0.1", port))
            self._listeners.append(listener)
            self._selector.register(listener, selectors.EVENT_READ, number)
        self._thread = threading.Thread(target=self._run, name="response-proxies", daemon=True)
        self._thread.start()

    def hold(self, kind: MessageType, numbers: Iterable[int]) -> None:
        """Delays responses of this kind from these servers, and everything after them."""
        self._held |= {(number, kind) for number in numbers}

    def release(self, kind: MessageType | None = None) -> None:
        """Ends the delay of responses of this kind; None: of all kinds."""
        self._held = frozenset(each for each in self._held if kind not in (None, each[1]))

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        for pair in list(self._pairs):
            self._end(pair)
        for listener in self._listeners:
            listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(POLL_S):
                if isinstance(key.data, int):
                    self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
                elif key.data in self._pairs:
                    self._read(key.data, key.fileobj)  # type: ignore[arg-type]
            for pair in list(self._pairs):
                try:
                    pair.forward(self._held)
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
            data = sock.recv(RECEIVE_BYTES)
            if data and sock is pair.near:
                pair.far.sendall(data)
            elif data:
                pair.delayed += data
            else:
                pair.forward(self._held)
        except OSError:
            data = b""
        if not data:
            self._end(pair)

    def _end(self, pair: ProxiedConnection) -> None:
        self._pairs.discard(pair)
        for sock in (pair.near, pair.far):
            self._selector.unregister(sock)
            sock.close()
