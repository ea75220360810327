"""TCP streams: threads that read at the same time do not share a buffer; certificates."""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, cast

from kelek.net.streams import TcpStream
from kelek.tests.actors.farm.farm_servers import issue_certificate


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


def test_a_certificate_is_known_after_an_error(tmp_path: Path) -> None:
    """OpenSSL hides it then, but bytes from before the error still count as the client's."""
    issue_certificate(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for each in (context, other):
        each.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        each.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    near, far = socket.socketpair()
    near.setblocking(False)
    stream = TcpStream(near, context)
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = other.wrap_bio(received, sent, server_hostname="localhost")
    with far:
        far.settimeout(60)
        for done in (False, True):
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            far.sendall(sent.read())
            assert stream.secure() is done
            if not done:
                received.write(far.recv(1 << 16))
        client.write(b"a request")
        far.sendall(sent.read() + bytes(100))
        assert stream.read() == b"a request"
    assert stream.error is not None
    assert stream.peer_certificate is not None
    assert ("DNS", "localhost") in stream.peer_certificate["subjectAltName"]
    stream.close()
