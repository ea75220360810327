"""Connections of a farm's server: what arrives on one stays there, also beside other threads."""

from collections.abc import Callable
from threading import Thread
from typing import Any, cast

from kelek.net.streams import TcpStream


class FakeSocket:
    """Has four bytes; another thread has its turn before whoever reads goes on."""

    def __init__(self, sign: bytes, meanwhile: Callable[[], object]) -> None:
        self._sign, self._meanwhile = sign, meanwhile

    def recv_into(self, view: memoryview) -> int:
        view[:4] = self._sign * 4
        thread = Thread(target=self._meanwhile)
        thread.start()
        thread.join()
        return 4

    def fileno(self) -> int:
        return -1


def test_servers_of_one_process_read_into_bytes_of_their_own() -> None:
    """Servers may be threads of one process, and reading lets others run."""
    other = TcpStream(cast(Any, FakeSocket(b"b", lambda: None)))
    stream = TcpStream(cast(Any, FakeSocket(b"a", other.read)))
    assert stream.read() == b"aaaa"
