"""A process of peers without a user that break every rule of TLS and HTTP at farm servers.

    python -m kelek.tests.crash.hostile.hostile_farm KIND CONNECTIONS SOURCE PORT...

hostile_peers.py says how they run, and at which rate.
"""

import contextlib
import os
import ssl
import sys

from kelek.protocols.garlicfarm.wire.handshake import (
    ChallengeCache,
    ClientHandshake,
    ConnectTarget,
    HandshakeOutcome,
    path_to,
)
from kelek.tests.crash.hostile.hostile_peers import Attack, Connect, Pace, attack_ports
from kelek.tests.zmtp_peer import ZmtpPeer

FARM, USER = "farm", "demo"
PART_BYTES = 64 << 10
HANDSHAKES_S = 50  # Of each connection.
LOGIN_BYTES_MAX = 64 << 10
HEAD = f"GET {path_to(FARM)} HTTP/1.1\r\nHost: x\r\n".encode()
LARGE_BODY = HEAD.replace(b"GET", b"POST") + b"Content-Length: %d\r\n\r\n" % (1 << 40)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


CONTEXT = _context()


def client_hello() -> bytes:
    """The first message of TLS."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        CONTEXT.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def secured(connect: Connect) -> ZmtpPeer:
    """A connection with TLS, before the head. Raises OSError."""
    peer = connect(b"", waits=False)
    peer.socket = CONTEXT.wrap_socket(peer.socket)
    return peer


def until_cut(peer: ZmtpPeer) -> None:
    while not peer.is_cut(1):
        pass


def half_handshake(connect: Connect, _pace: Pace) -> None:
    until_cut(connect(client_hello()[:100], waits=False))


def handshake_byte_a_second(connect: Connect, _pace: Pace) -> None:
    byte_a_second(connect(b"", waits=False), client_hello())


def byte_a_second(peer: ZmtpPeer, data: bytes) -> None:
    for byte in data:
        peer.send(bytes([byte]))
        if peer.is_cut(1):
            return


def no_tls(connect: Connect, pace: Pace) -> None:
    """Bytes without an end."""
    peer = connect(b"", waits=False)
    while True:
        peer.send(bytes(PART_BYTES))
        pace.spend(0, PART_BYTES)


def handshakes(connect: Connect, pace: Pace) -> None:
    """Handshakes, each of which costs the server a signature, and no more."""
    secured(connect).close()
    pace.spend(1, most_s=HANDSHAKES_S)


def silent(connect: Connect, _pace: Pace) -> None:
    until_cut(secured(connect))


def head_byte_a_second(connect: Connect, _pace: Pace) -> None:
    byte_a_second(secured(connect), HEAD + bytes(1000))


def large_head(connect: Connect, pace: Pace) -> None:
    endless(secured(connect), HEAD + b"X-Filler: ", pace)


def large_body(connect: Connect, pace: Pace) -> None:
    endless(secured(connect), LARGE_BODY, pace)


def endless(peer: ZmtpPeer, begin: bytes, pace: Pace) -> None:
    """Bytes without an end after these ones."""
    peer.send(begin)
    while True:
        peer.send(b"x" * PART_BYTES)
        pace.spend(0, PART_BYTES)


def wrong_password(connect: Connect, pace: Pace) -> None:
    """Logins of a user whose password it guesses."""
    challenges = ChallengeCache()
    target = ConnectTarget("127.0.0.1:1", FARM, USER, os.urandom(8).hex())
    result = None
    while result is None or result.outcome is HandshakeOutcome.RETRY:
        login = ClientHandshake(target, challenges, 0, os.urandom)
        peer = secured(connect)
        peer.send(login.request)
        result = None
        while result is None:
            data = peer.socket.recv(LOGIN_BYTES_MAX)
            result = login.feed(data, 0)
            if not data:
                return
        peer.close()
        pace.spend(1, most_s=HANDSHAKES_S)


KINDS: dict[str, Attack] = {
    each.__name__: each
    for each in (
        half_handshake,
        handshake_byte_a_second,
        no_tls,
        handshakes,
        silent,
        head_byte_a_second,
        large_head,
        large_body,
        wrong_password,
    )
}

if __name__ == "__main__":
    attack_ports(
        KINDS[sys.argv[1]], int(sys.argv[2]), sys.argv[3], [int(it) for it in sys.argv[4:]]
    )
