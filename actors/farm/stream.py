"""TCP connections that never block, with TLS or without, and the one poll of all of them.

It knows no protocol: bytes come and go. What can't be sent waits in `out`, which its owner bounds.
"""

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import NamedTuple

from ...net.poll_loop import PollLoop

READ_BYTES = 256 << 10  # At a time, so that one that sends much does not hold up the others.
EVENTS_MAX = 1024  # A wake.
IN, OUT = select.EPOLLIN, select.EPOLLOUT


class _Buffer(threading.local):
    """What is read into, once a thread: servers may share a process (`supervisor start
    --one-process`, tests), and a read lets the others run."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_buffer = _Buffer()


class Poll:
    """Waits for any number of connections as one source of an actor's loop."""

    def __init__(self, loop: PollLoop) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._masks: dict[int, int] = {}
        self._unread: dict[int, Callable[[], None]] = {}
        loop.watch(self._epoll.fileno(), self._on_ready)

    def add(self, fd: int, mask: int, handler: Callable[[], None]) -> None:
        self._epoll.register(fd, mask)
        self._handlers[fd], self._masks[fd] = handler, mask

    def want(self, fd: int, mask: int) -> None:
        if self._masks[fd] != mask:
            self._masks[fd] = mask
            self._epoll.modify(fd, mask)

    def remove(self, fd: int) -> None:
        """To be called before the descriptor is closed."""
        del self._handlers[fd], self._masks[fd]
        self._unread.pop(fd, None)
        self._epoll.unregister(fd)

    def more(self, fd: int) -> None:
        """There is more to be read, which no poll tells of: the next wake comes at once."""
        self._unread[fd] = self._handlers[fd]

    @property
    def has_more(self) -> bool:
        return bool(self._unread)

    def read_on(self) -> None:
        """Goes on where the last wake has left something."""
        unread, self._unread = self._unread, {}
        for fd, handler in unread.items():
            if fd in self._handlers:
                handler()

    def _on_ready(self) -> None:
        for fd, _ in self._epoll.poll(0, EVENTS_MAX):
            handler = self._handlers.get(fd)
            if handler is not None:  # Else another one has closed it.
                handler()

    def close(self) -> None:
        self._epoll.close()


class TcpStream:
    """One connection. After each call `ended` says whether it is over, and `why`."""

    __slots__ = ("_sock", "_tls", "ended", "fd", "more", "needs_out", "out", "secured", "why")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self.fd = sock.fileno()
        self.secured = not self._tls  # TLS is through its handshake.
        self.out = bytearray()  # What waits to be sent.
        self.needs_out = False  # What is to be done next waits for room to write.
        self.more = False  # The last read took as much as it may: there is more.
        self.ended = False
        self.why = ""

    def secure(self) -> bool:
        """Goes on with the handshake of TLS; whether it is over."""
        sock = self._sock
        assert isinstance(sock, ssl.SSLSocket)
        self.needs_out = False
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self.needs_out = True
            return False
        except (OSError, ValueError) as error:  # ValueError: of a certificate's names.
            self._end(error)
            return False
        self.secured = True
        return True

    def read(self) -> bytes:
        """What has arrived, READ_BYTES at most."""
        buffer, got = _buffer.view, 0
        self.more = False
        try:
            while got < READ_BYTES:
                count = self._sock.recv_into(buffer[got:])
                got += count
                if not count:
                    self.ended = True
                # TLS gives a record at a time: there may be more of them, to be taken in at once.
                if not count or (not self._tls and got < READ_BYTES):
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            pass
        except (OSError, ValueError) as error:
            self._end(error)
        self.more = got == READ_BYTES
        return bytes(buffer[:got])

    def flush(self) -> None:
        """Sends of `out` as much as finds room."""
        out = self.out
        self.needs_out = False
        try:
            while out and not self.ended:
                del out[: self._sock.send(out)]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
            self.needs_out = True
        except (OSError, ValueError) as error:
            self._end(error)

    def say_end(self) -> None:
        """Nothing more is sent; what the other side still sends may be read."""
        with contextlib.suppress(OSError, ValueError):
            if isinstance(self._sock, ssl.SSLSocket) and self.secured:
                self._sock.unwrap()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _end(self, error: Exception) -> None:
        self.ended = True
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        detail = getattr(error, "verify_message", "")
        self.why = self.why or (f"{reason}: {detail}" if detail else str(reason))

    def close(self) -> None:
        self._sock.close()


class TlsFiles(NamedTuple):
    """Where certificates are, and which versions are spoken."""

    certificate: str
    key: str
    ca: str
    version: str  # The lowest: "1.3" or "1.2".


def _least(context: ssl.SSLContext, version: str) -> ssl.SSLContext:
    names = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    context.minimum_version = names[version]
    return context


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises OSError (ssl.SSLError is one) when a file can't be used."""
    context = _least(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files.version)
    # An encrypted key is refused: OpenSSL would ask at a terminal, and hold up the loop.
    context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    context.num_tickets = 0  # Nobody resumes: servers stay connected.
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Verifies whom we connect to, by name or address. Raises OSError."""
    context = _least(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files.version)
    context.load_verify_locations(files.ca)
    return context
