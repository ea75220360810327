"""The minimum that farm servers must do, as a lower bound.

    python -m kelek.bench.farm.floor FILE REQUEST_BYTES FOLLOWER_PORTS TLS_FOLDER

Three processes write and sync the bytes of each request on a majority, and answer with a response's
size. There is no Raft and no handshake. A process without followers is a follower. It prints its
port on stdout; TLS_FOLDER "-" means plain TCP.
"""

import os
import select
import socket
import ssl
import sys
from pathlib import Path
from struct import Struct

ANSWER_BYTES = 26
RECEIVE_BYTES = 1 << 20
DONE = Struct(">Q")


def contexts(folder: str) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Returns the TLS contexts of server and client."""
    if folder == "-":
        return None, None
    tls_folder = Path(folder)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tls_folder / "server.pem", tls_folder / "server.key")
    return server, ssl.create_default_context(cafile=str(tls_folder / "ca.pem"))


def connect(port: int, context: ssl.SSLContext | None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(sock, server_hostname="127.0.0.1") if context else sock


def received(sock: socket.socket) -> bytes | None:
    """Returns all received bytes; None at the end."""
    parts: list[bytes] = []
    while True:
        try:
            data = sock.recv(RECEIVE_BYTES)
        except (ssl.SSLWantReadError, BlockingIOError):
            return b"".join(parts)
        if not data:
            return None
        parts.append(data)


class FarmFloor:
    """One process of the floor."""

    def __init__(self, path: str, size: int, ports: list[int], folder: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        self._size, self._at = size, 0
        self._server, client = contexts(folder)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._clients: dict[int, socket.socket] = {}
        self._waiting: dict[int, int] = {}  # Unanswered bytes of each client.
        self._asked: list[tuple[int, int]] = []  # Requests of the current round.
        self._parts: list[bytes] = []
        self._followers: dict[int, socket.socket] = {}
        for port in ports:
            sock = connect(port, client)
            self._keep(sock, self._followers)

    def _keep(self, sock: socket.socket, among: dict[int, socket.socket]) -> None:
        sock.setblocking(False)
        among[sock.fileno()] = sock
        self._poll.register(sock, select.POLLIN)

    def run(self) -> None:
        print(self._listener.getsockname()[1], flush=True)
        while True:
            for number, _ in self._poll.poll():
                self._on_readable(number)
            if self._parts and not self._asked:
                self._begin()

    def _on_readable(self, number: int) -> None:
        if number == self._listener.fileno():
            sock, _ = self._listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made = self._server.wrap_socket(sock, server_side=True) if self._server else sock
            self._keep(made, self._clients)
            return
        if number in self._followers:
            data = received(self._followers[number])
            if data and DONE.unpack(data[-DONE.size :])[0] >= self._at:
                self._answer()
            return
        data = received(self._clients[number])
        if data is None:
            self._poll.unregister(number)
            self._clients.pop(number).close()
        elif data:
            self._waiting[number] = self._waiting.get(number, 0) + len(data)
            self._parts.append(data)

    def _begin(self) -> None:
        """Sends everything received to the followers, and writes it to our disk."""
        data = b"".join(self._parts)
        self._parts.clear()
        self._asked = [(n, self._waiting[n]) for n in self._waiting if self._waiting[n]]
        for sock in self._followers.values():
            send(sock, data)
        os.pwrite(self._file, data, self._at)
        self._at += len(data)
        os.fdatasync(self._file)
        if not self._followers:
            for number, _ in self._asked:
                send(self._clients[number], DONE.pack(self._at))
            self._waiting.clear()
            self._asked.clear()

    def _answer(self) -> None:
        asked, self._asked = self._asked, []
        for number, size in asked:
            count = size // self._size
            self._waiting[number] -= count * self._size
            if number in self._clients and count:
                send(self._clients[number], (bytes(ANSWER_BYTES - 1) + b"\x01") * count)


def send(sock: socket.socket, data: bytes) -> None:
    sock.setblocking(True)
    sock.sendall(data)
    sock.setblocking(False)


def main() -> None:
    path, size, ports, folder = sys.argv[1:]
    FarmFloor(path, int(size), [int(port) for port in ports.split(",") if port], folder).run()


if __name__ == "__main__":
    main()
