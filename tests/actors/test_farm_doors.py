"""Connections of a farm's server by themselves, in virtual time: how long who is slow may take."""

import json
import socket
from collections import Counter
from typing import Any

from kelek.actors.farm_doors import LINGER_MS, Connection, Doors, Inside
from kelek.actors.farm_stream import Poll
from kelek.protocols.garlicfarm.face import View
from kelek.protocols.garlicfarm.gate import Gate
from kelek.protocols.garlicfarm.handshake import Challenges, Door, ServerHandshake, path_to
from kelek.protocols.garlicfarm.htdigest import users_of, with_user

DEADLINE_S = 60
SHOWN = json.dumps("x" * (8 << 20)).encode()
PATH = path_to("farm", "status")


class Host:
    """A process with one farm, which shows much."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.counters: Counter[str] = Counter()
        self.users = users_of(with_user("", "farm", "alice", "secret"), "farm")
        self.gate = Gate(b"k" * 16, bytes)

    def watch(self, fd: int, handler: Any) -> None:
        """The loop's part of a Poll: the test turns it."""

    def show(self, view: View) -> bytes:
        return SHOWN

    def begin_handshake(self) -> ServerHandshake:
        return ServerHandshake(self.gate, {"farm": self.users}, self.now_ms, {"farm": self})

    def let_in(self, cluster: str, user: str, connection: Connection) -> Inside:
        raise AssertionError("nobody asks for messages")

    def request(self) -> bytes:
        challenges = Challenges()
        offers = self.gate.challenges(self.users, self.now_ms)
        challenges.note([(b"www-authenticate", offer) for offer in offers], self.now_ms)
        door = Door("a", "farm", "alice", "secret")
        answer = challenges.answer(door, ("GET", PATH), "c").decode()
        return f"GET {PATH} HTTP/1.1\r\nHost: a\r\nAuthorization: {answer}\r\n\r\n".encode()


def test_who_reads_slowly_gets_all_of_it() -> None:
    """Longer than who was refused may stay; one who reads nothing is closed all the same."""
    host = Host()
    doors = Doors(host, Poll(host), None, 10)  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        theirs.settimeout(DEADLINE_S)
        doors._begin(ours)
        (connection,) = doors.connections.values()
        theirs.sendall(host.request())
        connection.on_ready()
        assert len(connection.stream.out) > len(SHOWN) // 2, "a socket takes only so much"
        host.now_ms += LINGER_MS + 1
        doors.step(host.now_ms)
        got = b""
        while connection.stream.out:
            piece = theirs.recv(1 << 20)
            assert piece, "it was closed too early"
            got += piece
            connection.on_ready()
        theirs.setblocking(False)
        while data := theirs.recv(1 << 20):
            got += data
        assert got.partition(b"\r\n\r\n")[2] == SHOWN
        host.now_ms += len(SHOWN)
        doors.step(host.now_ms)
    assert not doors.connections
    doors.poll.close()
