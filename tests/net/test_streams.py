"""TCP streams: threads that read at the same time do not share a buffer."""

from collections.abc import Callable
from threading import Thread
from typing import Any, cast

from kelek.net.streams import TcpStream


class FakeSocket:
    """Has four bytes to read; another thread runs before a read returns."""

    def __init__(self, octet: bytes, meanwhile: Callable[[], object]) -> None:
        self._octet, self._meanwhile = octet, meanwhile

    def recv_into(self, view: memoryview) -> int:
        view[:4] = self._octet * 4
        thread = Thread(target=self._meanwhile)
        thread.start()
        thread.join()
        return 4

    def fileno(self) -> int:
        return -1


def test_each_stream_reads_into_its_own_buffer() -> None:
    """Farm servers may be threads of one process, and a read releases the interpreter."""
    other = TcpStream(cast(Any, FakeSocket(b"b", lambda: None)))
    stream = TcpStream(cast(Any, FakeSocket(b"a", other.read)))
    assert stream.read() == b"aaaa"
