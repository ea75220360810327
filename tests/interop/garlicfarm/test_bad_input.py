"""Bad input to real farm servers: it is answered with the right status or closed, and counted.
No server ends, no term moves, and other connections are not affected.
"""

import gzip
import json
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kelek.actors.farm import listener
from kelek.protocols.garlicfarm.wire import handshake
from kelek.protocols.garlicfarm.wire.htdigest import with_user
from kelek.protocols.garlicfarm.wire.messages import Response
from kelek.tests.actors.farm import farm_servers
from kelek.tests.actors.farm.farm_servers import PASSWORD, USER, FarmServers
from kelek.tests.interop.garlicfarm.farm_plain import (
    APPEND,
    APPLICATION,
    CLIENT,
    CONFIGURATION,
    INSTALL,
    JOIN,
    LEAVE,
    PACK,
    SNAPSHOT,
    SYNC,
    VOTE,
    Answer,
    PlainFarmEntry,
    PlainMessage,
    configuration,
    take_answer,
)
from kelek.tests.interop.garlicfarm.farm_tls import FarmUser, old_hello, read_head

WAIT_S = 60
WAITS = 4  # It waits for an invitation.
SLOW = "election_timeout_ms: [2000, 3000], heartbeat_ms: 100, request_timeout_ms: 2000"
STRANGER = 77
BOUND = "bound"  # A user bound to the unknown server.
PIECE = struct.pack(">qqIqqqI", 9, 9, 16, 0, 0, 0, 1) + b"x\1"  # A whole snapshot of one byte.
BOMB = gzip.compress(struct.pack(">II", 8, (1 << 31) - 1) + bytes(200 << 20), 1)


class WatchedFarm:
    """A farm of three with a leader, a follower, and a watching client."""

    def __init__(self, farm: FarmServers) -> None:
        self.farm = farm
        farm.append(b"before")
        self.leader = farm.leader()
        self.follower = next(number for number in (1, 2, 3) if number != self.leader)
        self.who = FarmUser(USER, PASSWORD, farm.ca)
        self.server = FarmUser("peer", "the servers' own", farm.ca)
        self._known: dict[int, dict[str, str]] = {}  # Challenges, by port.
        self._count = 0
        with ExitStack() as undo:
            self.watches = {
                number: undo.enter_context(farm.connect(number)) for number in (1, 2, 3)
            }
            self.term = self._ask(self.leader).term
            self.close = undo.pop_all().close

    def _ask(self, number: int) -> Response:
        watch = self.watches[number]
        watch.sock.sendall(PlainMessage(CLIENT, 0, 0, 0).encode())
        return watch.answer()

    def counts(self, number: int = 0) -> Counter[str]:
        """The counters in a server's /status."""
        shown = self.status(number)
        found = {**shown["connections"], **shown["counters"]}
        return Counter({name: n for name, n in found.items() if isinstance(n, int)})

    def status(self, number: int = 0) -> dict[str, Any]:
        port, path = self.port(number), "/GarlicFarm/farm/1/status"
        if port not in self._known:
            self._known[port] = self.who.challenges(port)["SHA-256"]
        self._count += 1
        right = self.who.authorization(self._known[port], self._count, path)
        with self.who.tls(port) as sock:
            sock.sendall(self.who.head(port, right, path=path))
            head, _, body = drained(sock).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        shown: dict[str, Any] = json.loads(body)
        return shown

    def port(self, number: int = 0) -> int:
        return self.farm.ports[number or self.leader]

    def check(self) -> None:
        """The watching clients are served, and no term has moved."""
        for number in self.watches:
            answer = self._ask(number)
            assert answer.term == self.term
            assert answer.is_accepted is (number == self.leader)
        assert not any(each.ended() for each in self.farm.running.values())


@pytest.fixture(scope="module")
def scene() -> Iterator[WatchedFarm]:
    with pytest.MonkeyPatch.context() as patch:
        # Long timeouts: on a busy machine no election moves the term.
        patch.setattr(farm_servers, "TIMES", SLOW)
        bound = f"user_server_ids: {{{BOUND}: {STRANGER}}}"
        with FarmServers(
            (1, 2, 3, WAITS), initial=(1, 2, 3), farm=bound, node="post_interval_ms: 0"
        ) as farm:
            users = (farm.folder / "passwords").read_text()
            farm.write_secret("passwords", with_user(users, "farm", BOUND, PASSWORD))
            farm.start()
            scene = WatchedFarm(farm)
            try:
                yield scene
            finally:
                scene.close()


def status_of(sock: socket.socket) -> str:
    lines, _ = read_head(sock)
    return lines[0].split(" ", 2)[1]


def asked(scene: WatchedFarm, head: bytes) -> str:
    """The status of the answer to a head."""
    with scene.who.tls(scene.port()) as sock:
        sock.sendall(head)
        return status_of(sock)


# ---- before the handshake ----

Make = Callable[[WatchedFarm], bytes]


def authorized(scene: WatchedFarm, change: Callable[[str], str]) -> bytes:
    """Request 2 with a wrong Authorization."""
    port = scene.port()
    right = scene.who.authorization(scene.who.challenges(port)["SHA-256"])
    return scene.who.upgrade(port, change(right))


def replayed(scene: WatchedFarm) -> bytes:
    """An Authorization that was used already."""
    head = authorized(scene, str)
    assert asked(scene, head) == "101"
    return head


def of_another_uri(scene: WatchedFarm) -> bytes:
    port, who = scene.port(), scene.who
    asked_of_us = who.challenges(port)["SHA-256"]
    return who.upgrade(port, who.authorization(asked_of_us, uri="/GarlicFarm/other/1/websocket"))


HEADS: dict[str, tuple[str, Make]] = {
    "a wrong path": ("404", lambda scene: scene.who.head(scene.port(), path="/")),
    "no digest": ("401", lambda scene: scene.who.upgrade(scene.port(), "X: y")),
    "a replayed digest": ("401", replayed),
    "a wrong response": (
        "401",
        lambda scene: authorized(scene, lambda right: right.replace('response="', 'response="0')),
    ),
    "another uri": ("400", of_another_uri),
    "a huge head": ("431", lambda scene: scene.who.head(scene.port(), "X: " + "y" * 9000)),
    "no HTTP": ("400", lambda scene: b"\x05" * 45 + b"\r\n\r\n"),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_without_access(scene: WatchedFarm, name: str) -> None:
    status, make = HEADS[name]
    head, before = make(scene), scene.counts()
    assert asked(scene, head) == status
    assert (scene.counts() - before)[f"http_{status}"] == 1
    scene.check()


def test_slow_heads_and_plain_tcp(scene: WatchedFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete head gets 408; silence before TLS, and input that is not TLS, is closed."""
    before = scene.counts()
    where = ("127.0.0.1", scene.port())
    with monkeypatch.context() as patch, ExitStack() as stack:
        for module in (handshake, listener):
            patch.setattr(module, "HEAD_TIMEOUT_MS", 1000)
        stalled = stack.enter_context(socket.create_connection(where, WAIT_S))
        stalled.sendall(b"\x16\x03\x01")
        silent = stack.enter_context(in_time(scene, b""))
        said = drained(stack.enter_context(in_time(scene, b"GET / HTTP/1.1\r\n")))
        assert drained(stalled) == drained(silent) == b""
        while not said:  # Its first request was not complete in time either.
            said = drained(stack.enter_context(in_time(scene, b"GET / HTTP/1.1\r\n")))
        assert said.startswith(b"HTTP/1.1 408 ")
    with socket.create_connection(where, WAIT_S) as bare:
        bare.sendall(scene.who.head(scene.port()))
        assert b"HTTP" not in drained(bare)
    counted = scene.counts() - before
    assert {"tls_failed", "tls_timeouts", "silent_timeouts", "http_408"} <= counted.keys()
    scene.check()


def in_time(scene: WatchedFarm, data: bytes) -> ssl.SSLSocket:
    """A connection that completed TLS in time."""
    while True:
        try:
            sock = scene.who.tls(scene.port())
            sock.sendall(data)
        except OSError:
            continue
        return sock


@pytest.mark.parametrize("minor", [1, 2])
def test_tls_of_the_last_century(scene: WatchedFarm, minor: int) -> None:
    """TLS 1.0 and 1.1: an alert, protocol_version."""
    before = scene.counts()
    with socket.create_connection(("127.0.0.1", scene.port()), WAIT_S) as bare:
        bare.sendall(old_hello(minor))
        alert = drained(bare)
    assert (alert[0], alert[3:]) == (21, b"\0\2\2\x46")
    assert (scene.counts() - before)["tls_failed"] == 1
    scene.check()


def drained(sock: socket.socket) -> bytes:
    """All bytes until the end."""
    data = b""
    while True:
        try:
            more = sock.recv(65536)
        except (ConnectionError, ssl.SSLError):
            return data
        if not more:
            return data
        data += more


# ---- after the handshake ----


def request(scene: WatchedFarm, kind: int, **fields: Any) -> bytes:
    """A request of another member to the leader, in its own term."""
    made = PlainMessage(kind, scene.follower, scene.leader, scene.term)._replace(**fields)
    return made.encode()


def sized(scene: WatchedFarm, size: int) -> bytes:
    return request(scene, APPEND)[:-4] + struct.pack(">I", size)


CLOSED: dict[str, Make] = {
    "an unknown type": lambda scene: request(scene, 99),
    "2 GiB of entries": lambda scene: sized(scene, 1 << 31),
    "an entry of 2 GiB": lambda scene: sized(scene, 13) + struct.pack(">QBI", 1, 1, 1 << 31),
    "a term of 2^63": lambda scene: request(scene, VOTE, term=1 << 63),
    "an unknown value": lambda scene: request(scene, APPEND, entries=(PlainFarmEntry(1, 9, b""),)),
    "a snapshot at our own term": lambda scene: request(
        scene, INSTALL, entries=(PlainFarmEntry(1, SNAPSHOT, b""),)
    ),
    "a Configuration that is none": lambda scene: request(
        scene, JOIN, entries=(PlainFarmEntry(1, CONFIGURATION, b"x"),)
    ),
}
REFUSED: dict[str, tuple[str, Make]] = {
    "a stranger's snapshot": ("install_snapshot", lambda scene: request(
        scene, INSTALL, source=STRANGER, term=scene.term + 1000,
        entries=(PlainFarmEntry(1, SNAPSHOT, PIECE),),
    )),
    "a Configuration of a client's": ("client_request", lambda scene: PlainMessage(
        CLIENT, 0, 0, 0, entries=(PlainFarmEntry(0, CONFIGURATION, bytes(16)),)
    ).encode()),
    "a bomb of who has invited nobody": ("sync_log", lambda scene: request(
        scene, SYNC, term=scene.term + 9, entries=(PlainFarmEntry(1, PACK, BOMB),)
    )),
    "a bomb of a stranger's": ("sync_log", lambda scene: request(
        scene, SYNC, source=STRANGER, term=scene.term + 9, entries=(PlainFarmEntry(1, PACK, BOMB),)
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSED)
def test_what_ends_a_connection(scene: WatchedFarm, name: str) -> None:
    before = scene.counts()
    with scene.server.enter(scene.port()) as sock:
        sock.sendall(CLOSED[name](scene))
        assert drained(sock) == b""
    assert (scene.counts() - before)["malformed"] == 1
    scene.check()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(scene: WatchedFarm, name: str) -> None:
    kind, make = REFUSED[name]
    before = scene.counts()
    with scene.server.enter(scene.port()) as sock:
        sock.sendall(make(scene))
        (answer,) = answers(sock, 1)
    assert (answer.accepted, answer.term) == (0, scene.term)
    assert (scene.counts() - before)[f"refused_{kind}"] == 1
    scene.check()


def answers(sock: socket.socket, count: int) -> list[Answer]:
    """This number of answers, on a connection that stays open."""
    buffer, found = bytearray(), list[Answer]()
    while len(found) < count:
        data = sock.recv(4096)
        assert data, "it is closed"
        buffer += data
        while (answer := take_answer(buffer)) is not None:
            found.append(answer)
    return found


SERVER_KINDS = {
    VOTE: "request_vote", APPEND: "append_entries", JOIN: "join_cluster", SYNC: "sync_log",
    INSTALL: "install_snapshot", LEAVE: "leave_cluster",
}  # fmt: skip


def test_unknown_servers_at_a_follower(scene: WatchedFarm) -> None:
    """A follower refuses what the leader refuses."""
    entries = {
        JOIN: (PlainFarmEntry(1, CONFIGURATION, bytes(16)),),
        SYNC: (PlainFarmEntry(1, PACK, BOMB),),
        INSTALL: (PlainFarmEntry(1, SNAPSHOT, PIECE),),
    }
    before = scene.counts(scene.follower)
    with scene.server.enter(scene.port(scene.follower)) as sock:
        for kind in SERVER_KINDS:
            term, more = scene.term + 1000, entries.get(kind, ())
            made = PlainMessage(kind, STRANGER, scene.follower, term, 9, 1 << 40, entries=more)
            sock.sendall(made.encode())
        found = answers(sock, len(SERVER_KINDS))
    assert {(answer.accepted, answer.term) for answer in found} == {(0, scene.term)}
    counted = scene.counts(scene.follower) - before
    assert {name: counted[f"refused_{name}"] for name in SERVER_KINDS.values()} == dict.fromkeys(
        SERVER_KINDS.values(), 1
    )
    said = f'unwilling farm=farm why="server {STRANGER} invited this server, which considers'
    scene.farm.wait(lambda: said in scene.farm.log(scene.follower), "nothing is logged")
    scene.check()


def test_a_user_bound_to_a_server(scene: WatchedFarm) -> None:
    """It cannot act as another server, and gains no other right."""
    bound = FarmUser(BOUND, PASSWORD, scene.farm.ca)
    vote = request(scene, VOTE, term=scene.term + 1000, last_term=9, last_index=1 << 40)
    before = scene.counts()
    with bound.enter(scene.port()) as sock:
        sock.sendall(vote)
        assert drained(sock) == b""
    own = request(scene, VOTE, source=STRANGER, term=scene.term + 1000)
    with bound.enter(scene.port()) as sock:
        sock.sendall(own)
        (answer,) = answers(sock, 1)
    assert (answer.accepted, answer.term) == (0, scene.term)
    counted = scene.counts() - before
    assert (counted["malformed"], counted["refused_request_vote"]) == (1, 2)
    assert f"user={BOUND}" in scene.farm.log(scene.leader)
    scene.check()


@pytest.mark.parametrize("kind", SERVER_KINDS)
def test_a_client_may_not_send_requests_of_servers(scene: WatchedFarm, kind: int) -> None:
    """Not even an administrator: a follower closes the connection with forged requests of the
    leader, and logs it.
    """
    number, term = scene.follower, scene.term + 5
    before = scene.counts(number)
    with scene.who.enter(scene.port(number)) as sock:
        order = b'{"admin":"publish","cluster":"farm","date":1,"user":"adm","server":1}'
        entries = {
            APPEND: (PlainFarmEntry(term, APPLICATION, order),),
            JOIN: (PlainFarmEntry(1, CONFIGURATION, bytes(16)),),
            SYNC: (PlainFarmEntry(1, PACK, BOMB),),
            INSTALL: (PlainFarmEntry(1, SNAPSHOT, PIECE),),
        }
        last = scene.status(number)["last"]
        forged = PlainMessage(kind, scene.leader, number, term, scene.term, last, last + 1)
        sock.sendall(forged._replace(entries=entries.get(kind, ())).encode())
        assert drained(sock) == b""
    assert (scene.counts(number) - before)[f"refused_{SERVER_KINDS[kind]}"] == 1
    what = f"{SERVER_KINDS[kind].upper()} as server {scene.leader}, term {term}"
    assert f'audit farm=farm user=demo what="{what}" taken=False' in scene.farm.log(number)
    scene.check()


def test_a_zip_bomb_for_a_joining_server(scene: WatchedFarm) -> None:
    """An invited server gets a LogPack that grows a thousandfold: it unpacks no more than the
    limit.
    """
    servers = configuration(1, 0, {1: "tcp://127.0.0.1:1"})
    join = PlainMessage(JOIN, 1, WAITS, 5, entries=(PlainFarmEntry(5, CONFIGURATION, servers),))
    bomb = PlainMessage(SYNC, 1, WAITS, 5, entries=(PlainFarmEntry(5, PACK, BOMB),))
    with FarmUser("peer", "the servers' own", scene.farm.ca).enter(scene.port(WAITS)) as sock:
        sock.sendall(join.encode() + bomb.encode())
        said = bytearray(drained(sock))
    answer = take_answer(said)
    assert answer is not None
    assert (answer.accepted, answer.next) == (1, 1)
    assert not said
    scene.check()
