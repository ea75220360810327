"""A peer that speaks ZMTP 3.0 (ZeroMQ RFC 23) over a plain TCP socket, and may break its rules."""

import socket
import struct

MORE, LARGE, COMMAND = 1, 2, 4


def greeting(mechanism: bytes = b"NULL") -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def frame(data: bytes, flags: int = 0) -> bytes:
    if len(data) < 256:
        return bytes([flags, len(data)]) + data
    return bytes([flags | LARGE]) + struct.pack(">Q", len(data)) + data


def ready(socket_type: bytes = b"DEALER", identity: bytes = b"", filler: int = 0) -> bytes:
    """A READY command. filler: bytes of an unknown property."""
    properties = [(b"Socket-Type", socket_type), (b"Identity", identity)]
    if filler:
        properties.append((b"X-Filler", bytes(filler)))
    data = b"\x05READY" + b"".join(
        bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
        for name, value in properties
    )
    return frame(data, COMMAND)


class ZmtpPeer:
    """One connection."""

    def __init__(
        self,
        port: int,
        hello: bytes = greeting() + ready(),
        source: str = "127.0.0.1",
        waits: bool = True,
        timeout_s: float = 10,
    ) -> None:
        """
        waits       for the other side's READY, without which it accepts no message
        timeout_s   of a send

        Raises OSError when the other side ends the connection. Without waits an end before `hello`
        is sent raises nothing: is_cut() tells it.
        """
        self.sent = 0
        self.timeout_s = timeout_s
        self.socket = socket.socket()
        try:
            self.socket.settimeout(timeout_s)
            self.socket.bind((source, 0))
            try:
                self.socket.connect(("127.0.0.1", port))
                self.send(hello)
            except (BrokenPipeError, ConnectionResetError):
                if waits:
                    raise
                return
            received = b"" if waits else b"READY"
            while b"READY" not in received:
                part = self.socket.recv(1 << 16)
                if not part:
                    raise ConnectionResetError("the other side has ended the handshake")
                received += part
        except OSError:
            self.socket.close()
            raise

    def send(self, data: bytes) -> None:
        """Raises OSError when the other side has ended the connection."""
        self.socket.sendall(data)
        self.sent += len(data)

    def is_cut(self, timeout_s: float = 0) -> bool:
        """Whether the other side has ended the connection, after what it had sent."""
        self.socket.settimeout(timeout_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            return True
        finally:
            self.socket.settimeout(self.timeout_s)
        return True

    def close(self) -> None:
        self.socket.close()
