"""The server of farm_plain on real connections with TLS and HTTP Digest, written from the
specification alone. It imports nothing else of kelek.
"""

import contextlib
import hashlib
import re
import secrets
import socket
import ssl
import struct
import threading
import time
from pathlib import Path

from kelek.tests.interop.garlicfarm.farm_plain import Inbound, Plain, PlainLink

TICK_S = 0.01
AGAIN_S = 0.05
WAIT_S = 60
HASHES = {"SHA-256": "sha256", "MD5": "md5"}


class HandshakeRefused(Exception):
    """The handshake has failed; the status is its argument."""


def digest(algorithm: str, *parts: str) -> str:
    text = ":".join(parts).encode()
    return hashlib.new(HASHES[algorithm], text, usedforsecurity=False).hexdigest()


def fields_of(header: str) -> dict[str, str]:
    """The parameters of a Digest header."""
    pairs = re.findall(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))', header)
    return {name: quoted or plain for name, quoted, plain in pairs}


def read_head(sock: socket.socket) -> tuple[list[str], bytes]:
    """The lines of a head, and the bytes after it."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(4096)
        if not more:
            raise HandshakeRefused("closed")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), rest


def old_hello(minor: int) -> bytes:
    """The ClientHello of TLS 1.0 (minor 1) or 1.1 (minor 2), which a local OpenSSL may lack: RFC
    4346, 7.4.1.2. One record with ciphers that every server of that time supported.
    """
    suites = struct.pack(">4H", 0x002F, 0x0035, 0xC013, 0xC014)
    body = bytes((3, minor)) + secrets.token_bytes(32) + b"\0"
    body += struct.pack(">H", len(suites)) + suites + b"\1\0"
    hello = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack(">H", len(hello)) + hello


class FarmUser:
    """A user of a cluster, and its connections to the servers."""

    def __init__(self, user: str, password: str, ca: Path, cluster: str = "farm") -> None:
        self.user, self.password, self.cluster = user, password, cluster
        self.path = f"/GarlicFarm/{cluster}/1/websocket"
        self.client = ssl.create_default_context(cafile=str(ca))

    def tls(self, port: int) -> ssl.SSLSocket:
        sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.client.wrap_socket(sock, server_hostname="127.0.0.1")

    def head(self, port: int, *more: str, path: str = "") -> bytes:
        lines = [f"GET {path or self.path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *more]
        return ("\r\n".join((*lines, "Cache-Control: no-cache")) + "\r\n\r\n").encode()

    def challenges(self, port: int) -> dict[str, dict[str, str]]:
        """Specification, "HTTP Request 1": the challenges, by algorithm."""
        with self.tls(port) as sock:
            sock.sendall(self.head(port, "Connection: close"))
            lines, _ = read_head(sock)
        assert lines[0].startswith("HTTP/1.1 401 "), lines[0]
        asked = [line.partition(":")[2] for line in lines if line.lower().startswith("www-auth")]
        assert all(each.strip().lower().startswith("digest ") for each in asked)
        found = [fields_of(each) for each in asked]
        return {each.get("algorithm", "MD5"): each for each in found}

    def authorization(self, asked: dict[str, str], count: int = 1, uri: str = "") -> str:
        algorithm, nc, cnonce = asked.get("algorithm", "MD5"), f"{count:08x}", secrets.token_hex(8)
        uri = uri or self.path
        ha1 = digest(algorithm, self.user, asked["realm"], self.password)
        ha2 = digest(algorithm, "GET", uri)
        said = digest(algorithm, ha1, asked["nonce"], nc, cnonce, "auth", ha2)
        opaque = f', opaque="{asked["opaque"]}"' if "opaque" in asked else ""
        return (
            f'Authorization: Digest username="{self.user}", realm="{asked["realm"]}", '
            f'nonce="{asked["nonce"]}", uri="{uri}", algorithm={algorithm}, response="{said}", '
            f'qop=auth, nc={nc}, cnonce="{cnonce}"{opaque}'
        )

    def upgrade(self, port: int, authorization: str) -> bytes:
        """Specification, "HTTP Request 2"."""
        more = ("Connection: keep-alive, Upgrade", "Upgrade: websocket", authorization)
        return self.head(port, *more)

    def enter(self, port: int, algorithm: str = "SHA-256") -> ssl.SSLSocket:
        """A connection through its handshake. Raises Refused."""
        asked = self.challenges(port)[algorithm]
        sock = self.tls(port)
        sock.sendall(self.upgrade(port, self.authorization(asked)))
        lines, rest = read_head(sock)
        if not lines[0].startswith("HTTP/1.1 101 "):
            sock.close()
            raise HandshakeRefused(lines[0])
        assert not rest, "no request was sent yet"
        return sock

    # As a server.

    def admit(self, sock: socket.socket, nonces: set[str]) -> bytes | None:
        """Answers a head; returns the bytes after it, or None if the connection must close."""
        lines, rest = read_head(sock)
        assert lines[0] == f"GET {self.path} HTTP/1.1"
        said = [line for line in lines if line.lower().startswith("authorization:")]
        if said and self._is_right(fields_of(said[0]), nonces):
            sock.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
                b"Upgrade: websocket\r\n\r\n"
            )
            return rest
        nonce = secrets.token_hex(16)
        nonces.add(nonce)
        asked = f'Digest realm="{self.cluster}", qop="auth", algorithm=SHA-256, nonce="{nonce}"'
        sock.sendall(
            b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n"
            b"WWW-Authenticate: " + asked.encode() + b"\r\n\r\n"
        )
        return None

    def _is_right(self, said: dict[str, str], nonces: set[str]) -> bool:
        ha1 = digest("SHA-256", self.user, self.cluster, self.password)
        ha2 = digest("SHA-256", "GET", said["uri"])
        terms = (said["nonce"], said["nc"], said["cnonce"], "auth", ha2)
        right = digest("SHA-256", ha1, *terms) == said["response"]
        return right and said["nonce"] in nonces and said["uri"] == self.path


def end(sock: socket.socket) -> None:
    """Ends a connection without close(): another thread still reads it, and its descriptor could
    be reused.
    """
    with contextlib.suppress(OSError):  # It has ended.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class PlainServer:
    """A listening Plain with its links, one thread per connection."""

    def __init__(self, number: int, who: FarmUser, folder: Path) -> None:
        """folder: with cert.pem and key.pem"""
        self.who = who
        self.plain = Plain(number, {}, self.now_ms(), number)
        self.lock = threading.RLock()
        self.failures: list[BaseException] = []
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._end = threading.Event()
        self._nonces: set[str] = set()
        self._socks: dict[object, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self._linking: dict[int, PlainLink] = {}
        self._go(self._listen)
        self._go(self._tick)

    @staticmethod
    def now_ms() -> int:
        return time.monotonic_ns() // 1_000_000

    def _go(self, work: object, *arguments: object) -> None:
        def run() -> None:
            try:
                work(*arguments)  # type: ignore[operator]
            except (OSError, HandshakeRefused):
                pass  # Its connection has ended.
            except AssertionError as error:
                self.failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _tick(self) -> None:
        while not self._end.wait(TICK_S):
            with self.lock:
                self.plain.wake(self.now_ms())
                for number, link in self.plain.links.items():
                    if self._linking.get(number) is not link:
                        self._linking[number] = link
                        self._go(self._link, number, link)
                self._flush()

    def _flush(self) -> None:
        """Sends the output of links and inbound connections."""
        sides: list[tuple[object, PlainLink | Inbound]] = list(self.plain.links.items())
        sides += [(-number, each) for number, each in self.plain.inbound.items()]
        for key, side in sides:
            sock = self._socks.get(key)
            if side.out and sock is not None:
                data = bytes(side.out)
                side.out.clear()
                try:
                    sock.sendall(data)
                except OSError:
                    end(sock)  # Its reader notices, and closes it.

    def _listen(self) -> None:
        while not self._end.is_set():
            sock, _ = self._listener.accept()
            sock.settimeout(WAIT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._go(self._serve, sock)

    def _serve(self, bare: socket.socket) -> None:
        with self._context.wrap_socket(bare, server_side=True) as sock:
            data = self.who.admit(sock, self._nonces)
            if data is None:
                return
            with self.lock:
                number = self.plain.accept(None)
                self._socks[-number] = sock
            sock.settimeout(None)
            try:
                while True:
                    with self.lock:
                        if data:
                            self.plain.on_requests(number, data, self.now_ms())
                        self._flush()
                    data = sock.recv(65536)
                    if not data:
                        return
            finally:
                with self.lock:
                    del self._socks[-number]
                    self.plain.on_closed(number)

    def _link(self, number: int, link: PlainLink) -> None:
        """Connects repeatedly while the server is needed."""
        port = int(link.endpoint.rpartition(":")[2])
        while not self._end.is_set() and self.plain.links.get(number) is link:
            try:
                with self.who.enter(port) as sock:
                    self._talk(number, link, sock)
            except (OSError, HandshakeRefused):
                pass
            self._end.wait(AGAIN_S)

    def _talk(self, number: int, link: PlainLink, sock: ssl.SSLSocket) -> None:
        with self.lock:
            if self.plain.links.get(number) is not link:
                return
            self._socks[number] = sock
            self.plain.on_connected(number, self.now_ms())
        sock.settimeout(None)
        try:
            while data := sock.recv(65536):
                with self.lock:
                    self.plain.on_responses(number, data, self.now_ms())
                    self._flush()
        finally:
            with self.lock:
                self._socks.pop(number, None)
                self.plain.on_lost(number)

    def close(self) -> None:
        self._end.set()
        for sock in (self._listener, *self._socks.values()):
            end(sock)
            if sock is self._listener:
                sock.close()
        for thread in self._threads:
            thread.join(WAIT_S)
