"""A small HTTP proxy like the one of an I2P tunnel: it resolves its own names, without CONNECT."""

import selectors
import socket
from threading import Thread
from types import TracebackType
from typing import Self

DEADLINE_S = 60
HEAD_BYTES_MAX = 16_384


class HttpProxy:
    """Forwards requests of the absolute form in the origin form, with a thread per connection.

    hosts   the port of 127.0.0.1 for each name; the proxy answers other names with 503
    heads   the received heads
    """

    def __init__(self, hosts: dict[str, int]) -> None:
        self.hosts = hosts
        self.heads: list[str] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(Thread(target=self._accept, daemon=True))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for sock in (self._listener, *self._sockets):
            try:
                sock.shutdown(socket.SHUT_RDWR)  # Wakes the thread that waits for it.
            except OSError:
                continue  # It is closed already.
        for thread in self._threads:
            thread.join(DEADLINE_S)
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _start(self, thread: Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.settimeout(DEADLINE_S)
            self._sockets.append(client)
            self._start(Thread(target=self._serve, args=(client,), daemon=True))

    def _serve(self, client: socket.socket) -> None:
        try:
            head = _read_head(client)
            self.heads.append(head)
            line, _, lines = head.partition("\r\n")
            method, target, version = line.split(" ")
            name, slash, path = target.removeprefix("http://").partition("/")
            port = self.hosts.get(name)
            if port is None:
                client.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            else:
                with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as server:
                    server.sendall(f"{method} {slash}{path} {version}\r\n{lines}".encode())
                    _forward(client, server)
            client.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # A side has closed.


def _read_head(client: socket.socket) -> str:
    """Reads a head. The client sends nothing after it before the answer."""
    data = b""
    while b"\r\n\r\n" not in data and len(data) < HEAD_BYTES_MAX:
        more = client.recv(4096)
        if not more:
            raise ConnectionError("the client has closed")
        data += more
    return data.decode()


def _forward(client: socket.socket, server: socket.socket) -> None:
    """Forwards data in both directions until one side closes."""
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while True:
            for key, _ in selector.select():
                source, target = key.fileobj, key.data
                assert isinstance(source, socket.socket)
                data = source.recv(65536)
                if not data:
                    return
                target.sendall(data)
