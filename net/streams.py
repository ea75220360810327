"""TCP connections that never block, with or without TLS, and one poll for all of them.

Bytes go in and out; no protocol is known here. Bytes that can't be sent yet wait in `out`, which
the owner bounds.
"""

import contextlib
import errno
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .poll_loop import PollLoop  # Loads zmq, which clients of farms do without.

READ_BYTES = 256 << 10  # Of one read, so that a fast sender does not delay the other connections.
EVENTS_MAX = 1024  # A wake.
IN, OUT = select.EPOLLIN, select.EPOLLOUT
# What the handshake, a read or a write raises when it has to wait.
WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class _Buffer(threading.local):
    """The read buffer, one a thread: servers may be threads of one process (`supervisor start
    --one-process`, tests), and a read releases the interpreter lock."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_buffer = _Buffer()


class StreamPoll:
    """Waits for any number of connections as one source of a poll loop."""

    def __init__(self, loop: "PollLoop") -> None:
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
        """To be called before the stream is closed."""
        del self._handlers[fd], self._masks[fd]
        self._unread.pop(fd, None)
        with contextlib.suppress(OSError):  # TLS has closed it, after an error at its start.
            self._epoll.unregister(fd)

    def more(self, fd: int) -> None:
        """TLS holds unread bytes, which no poll shows: the next wake comes at once."""
        self._unread[fd] = self._handlers[fd]

    @property
    def has_more(self) -> bool:
        return bool(self._unread)

    def read_on(self) -> None:
        """Calls the handlers of connections that the last wake has not read empty."""
        unread, self._unread = self._unread, {}
        for fd, handler in unread.items():
            if fd in self._handlers:
                handler()

    def _on_ready(self) -> None:
        for fd, _ in self._epoll.poll(0, EVENTS_MAX):
            handler = self._handlers.get(fd)
            if handler is not None:  # Else the handler of another connection has closed it.
                handler()

    def close(self) -> None:
        self._epoll.close()


class TcpStream:
    """One connection. After each call `ended` says whether it is over, and `error` why.

    `error` is None while it is open and when the other side has closed it.
    """

    __slots__ = (
        "_context", "_server_name", "_sock", "_tls", "connected", "ended", "error", "fd", "more",
        "needs_out", "out", "peer_certificate", "secured",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext | None = None,
        server_name: str | None = None,
        connected: bool = True,
    ) -> None:
        """A connection that was accepted, or one of connect().

        context   of TLS; None: plain TCP
        """
        self._sock = sock
        self._context = context  # Of TLS that has not begun.
        self._server_name = server_name  # Of a connection that we open.
        self._tls = context is not None
        self.fd = sock.fileno()
        self.connected = connected  # TCP is connected.
        self.secured = connected and not self._tls  # The handshake of TLS is complete.
        # The verified certificate of the other side, as ssl shows it.
        self.peer_certificate: Mapping[str, Any] | None = None
        self.out = bytearray()  # Bytes that wait to be sent.
        self.needs_out = False  # The next step waits until the socket is writable.
        self.more = False  # The last read reached its limit: more bytes may wait.
        self.ended = False
        self.error: Exception | None = None

    @classmethod
    def connect(
        cls, family: int, address: Any, context: ssl.SSLContext | None, server_name: str
    ) -> "TcpStream":
        """Starts to connect. The socket becomes writable when TCP is connected or has failed: then
        call secure(). Raises OSError when the attempt fails at once.

        server_name   the name in the server's certificate
        """
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            error = sock.connect_ex(address)
            if error not in (0, errno.EINPROGRESS):
                raise OSError(error, os.strerror(error))
        except OSError:
            sock.close()
            raise
        return cls(sock, context, server_name, connected=False)

    def keep_alive(self, idle_s: int, interval_s: int = 0) -> None:
        """Sends small messages at once, and probes a silent peer after idle_s.

        interval_s   between two probes; 0: the system's
        """
        sock = self._sock
        with contextlib.suppress(OSError):  # The other side may have closed it already.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
            if interval_s and hasattr(socket, "TCP_KEEPINTVL"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)

    def fileno(self) -> int:
        return self.fd

    @property
    def why(self) -> str:
        """The first error in OpenSSL's or the system's words; "" without one."""
        error = self.error
        if error is None:
            return ""
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        detail = getattr(error, "verify_message", "")
        return f"{reason}: {detail}" if detail else str(reason)

    def secure(self) -> bool:
        """Continues to connect, by TCP and then TLS; returns whether that is complete."""
        self.needs_out = False
        try:
            if not self.connected:
                error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error))
                self.connected = True
            if self._context is not None:
                context, self._context = self._context, None
                self._sock = context.wrap_socket(  # The descriptor is unchanged.
                    self._sock,
                    server_side=self._server_name is None,
                    server_hostname=self._server_name,
                    do_handshake_on_connect=False,
                )
            if isinstance(self._sock, ssl.SSLSocket):
                self._sock.do_handshake()
                # Now, since an error of the connection would hide it.
                self.peer_certificate = self._sock.getpeercert() or None
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self.needs_out = True
            return False
        except (OSError, ValueError) as failure:  # ValueError: of a certificate's names.
            self._end(failure)
            return False
        self.secured = True
        return True

    def read(self) -> bytes:
        """The bytes that have arrived, READ_BYTES at most."""
        buffer, got = _buffer.view, 0
        self.more = False
        try:
            while got < READ_BYTES:
                count = self._sock.recv_into(buffer[got:])
                got += count
                if not count:
                    self.ended = True
                # TLS returns one record at a time: read on until none is left.
                if not count or (not self._tls and got < READ_BYTES):
                    break
        except WAITS:
            pass
        except (OSError, ValueError) as error:
            self._end(error)
        self.more = got == READ_BYTES
        return bytes(buffer[:got])

    def flush(self) -> None:
        """Sends as much of `out` as the socket takes."""
        out = self.out
        self.needs_out = False
        try:
            while out and not self.ended:
                del out[: self._sock.send(out)]
        except WAITS:
            self.needs_out = True
        except (OSError, ValueError) as error:
            self._end(error)

    def end_sending(self) -> None:
        """Closes our direction; what the other side still sends may be read."""
        with contextlib.suppress(OSError, ValueError):
            if isinstance(self._sock, ssl.SSLSocket) and self.secured:
                self._sock.unwrap()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _end(self, error: Exception) -> None:
        self.ended = True
        self.error = self.error or error

    def close(self) -> None:
        self._sock.close()
