"""Which connections real sockets accept: the gate of a process, with keys in a directory."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import create_server
from unittest.mock import Mock

import pytest
import zmq

from kelek.actors.access import gate
from kelek.actors.access.gate import AccessGate
from kelek.actors.errors import OperatorError
from kelek.actors.runtime.process_loop import ProcessLoop
from kelek.actors.topology.settings import NODES_MAX
from kelek.native.net.connections import ConnectionLimits
from kelek.native.net.messages import Arena
from kelek.net.access import keys
from kelek.net.access.keys import CHECK_INTERVAL_MS, KEEP_MS, KeyDirectory
from kelek.net.clock import monotonic_ms
from kelek.net.private_files import replace_file
from kelek.net.sockets import CurveClient, CurveServer, SocketOptions
from kelek.protocols.access.certificates import (
    Certificate,
    decode_key,
    format_certificate,
)
from kelek.protocols.access.grants import Right, parse_grants
from kelek.protocols.access.zap import CURVE, KEYS_MAX, SLOTS_MAX, KeyChange, ProtectedEndpoint

DEADLINE_MS = 30_000
URL = "tcp://127.0.0.1:*"
ENDPOINTS = {b"n1.url": ProtectedEndpoint(CURVE, Right.LOG_READ)}


def new_key(name: str) -> Certificate:
    public, secret = zmq.curve_keypair()
    return Certificate(decode_key(public.decode()), decode_key(secret.decode()), {"name": name})


class Node:
    """A loop with one CURVE endpoint, which records what it receives."""

    def __init__(self, folder: Path, limits: ConnectionLimits | None = None) -> None:
        """limits: None: it does not know its connections"""
        self.folder = folder
        self.key = new_key("n1")
        self.log_in, self.log_out = os.pipe()
        self.loop = ProcessLoop(None, self.log_out, limits)
        self.received: list[list[bytes]] = []
        self.slots: list[int] = []  # Of the senders' keys.
        self.clients: list[zmq.Socket[bytes]] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def open(self, kind: int = zmq.ROUTER, with_gate: bool = True) -> None:
        if with_gate:
            self.gate = AccessGate(self.loop, KeyDirectory(str(self.folder), "keys"), ENDPOINTS)
        curve = CurveServer(self.key.secret_key, "n1.url")
        options = SocketOptions(bind=(URL,), curve=curve)
        self.router = self.loop.socket(kind, options)
        self.loop.listen(self.router, self._on_arena)
        self.url = self.router.getsockopt_string(zmq.LAST_ENDPOINT)

    def _on_arena(self, arena: Arena) -> None:
        self.received += [frames[1:] for frames in arena.messages()]
        self.slots += arena.slots()

    def allow(self, key: Certificate, grants: str = "log.read") -> Path:
        path = self.folder / f"{key.name}.key"
        public = Certificate(key.public_key, b"", {"name": key.name, "grants": grants})
        replace_file(path, format_certificate(public), 0o644)
        return path

    def client(
        self, curve: CurveClient | None, sends: bool = True
    ) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """A DEALER that has sent one message, and its monitor."""
        is_router = self.router.type == zmq.ROUTER
        socket = self.context.socket(zmq.DEALER if is_router else zmq.SUB)
        if curve is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server_key)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.public_key)
            socket.setsockopt(zmq.CURVE_SECRETKEY, curve.secret_key)
        monitor = socket.get_monitor_socket()
        socket.connect(self.url)
        if sends and is_router:
            socket.send(b"hello")
        return socket, monitor

    def curve(self, key: Certificate) -> CurveClient:
        return CurveClient(self.key.public_key, key.public_key, key.secret_key)

    def run_until(self, condition: Callable[[], bool]) -> None:
        until_ms = monotonic_ms() + DEADLINE_MS
        while not condition():
            assert monotonic_ms() < until_ms, self.log()
            self.loop.run_once(10)

    def outcome(self, curve: CurveClient | None) -> str:
        """How the handshake of a new client ended."""
        socket, monitor = self.client(curve)
        ends = {
            zmq.EVENT_HANDSHAKE_SUCCEEDED: "accepted",
            zmq.EVENT_HANDSHAKE_FAILED_AUTH: "refused",
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "failed",
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "failed",
            zmq.EVENT_DISCONNECTED: "failed",
        }
        found = ""

        def ended() -> bool:
            nonlocal found
            while not found and monitor.poll(0):
                event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
                found = ends.get(event, "")  # type: ignore[call-overload]
            return bool(found)

        self.run_until(ended)
        socket.disable_monitor()
        monitor.close()
        self.clients.append(socket)  # Open: its message may still be on the way.
        return found

    def log(self) -> str:
        os.set_blocking(self.log_in, False)
        try:
            return os.read(self.log_in, 1 << 16).decode()
        except BlockingIOError:
            return ""

    def close(self) -> None:
        self.loop.close_sockets()
        for socket in self.clients:
            socket.close(linger=0)
        self.context.destroy(linger=0)
        os.close(self.log_in)
        os.close(self.log_out)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_an_allowed_key_connects_and_is_heard(node: Node) -> None:
    ann = new_key("ann")
    node.allow(ann)
    node.open()
    assert node.outcome(node.curve(ann)) == "accepted"
    node.run_until(lambda: bool(node.received))
    assert node.received == [[b"hello"]]


@pytest.mark.parametrize("case", ["unknown key", "no grant", "wrong server key", "no CURVE"])
def test_all_others_are_refused_and_not_heard(node: Node, case: str) -> None:
    ann, bob = new_key("ann"), new_key("bob")
    node.allow(ann)
    if case == "no grant":
        node.allow(bob, "services:mail")
    node.open()
    curve: CurveClient | None = node.curve(bob)
    if case == "wrong server key":
        curve = node.curve(ann)._replace(server_key=bob.public_key)
    if case == "no CURVE":
        curve = None
    expected = "refused" if case in ("unknown key", "no grant") else "failed"
    assert node.outcome(curve) == expected
    assert node.outcome(node.curve(ann)) == "accepted"
    node.run_until(lambda: bool(node.received))
    assert node.received == [[b"hello"]]  # Of ann.
    if expected == "refused":
        assert "connection-refused address=127.0.0.1" in node.log()


def test_without_a_gate_no_key_is_accepted(node: Node) -> None:
    node.open(with_gate=False)
    assert node.outcome(node.curve(new_key("ann"))) != "accepted"
    assert node.received == []


def test_changed_files_are_seen_within_a_second(node: Node) -> None:
    ann, bob = new_key("ann"), new_key("bob")
    path = node.allow(ann)
    node.open()
    assert node.outcome(node.curve(bob)) == "refused"
    node.allow(bob)
    path.unlink()
    now_ms = monotonic_ms() + CHECK_INTERVAL_MS
    changed = node.gate.reload(now_ms)
    assert [name for _, name in changed] == ["ann", "bob"]
    assert node.gate.reload(now_ms + CHECK_INTERVAL_MS) == []
    assert node.outcome(node.curve(bob)) == "accepted"
    assert node.outcome(node.curve(ann)) == "refused"
    lines = [line.partition(" ")[2] for line in node.log().splitlines()]
    assert {"key-allowed name=bob", "key-revoked name=ann"} <= {*lines}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has inotify")
def test_the_gate_tells_of_a_changed_file_at_once(node: Node) -> None:
    ann = new_key("ann")
    path = node.allow(ann)
    node.open()
    changes: list[KeyChange] = []
    # At this time no check is due: only the news of the change causes one.
    now_ms = monotonic_ms() + CHECK_INTERVAL_MS
    assert node.gate.reload(now_ms) == []
    node.gate.watch(lambda: changes.extend(node.gate.reload(now_ms)))
    path.unlink()
    node.run_until(lambda: bool(changes))
    assert [name for _, name in changes] == ["ann"]
    node.gate.close()


def test_a_directory_is_checked_more_often_when_nothing_tells_of_changes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        keys, "DirectoryWatch", Mock(side_effect=OSError(errno.EMFILE, "none left"))
    )
    path, now_ms = node.allow(new_key("ann")), 1000
    directory = KeyDirectory(str(node.folder), "keys")
    assert directory.watch() is None
    assert directory.reload(now_ms) is None
    path.unlink()
    assert directory.reload(now_ms + keys.UNWATCHED_INTERVAL_MS - 1) is None
    assert directory.reload(now_ms + keys.UNWATCHED_INTERVAL_MS) == []
    assert not directory.keys


def test_messages_of_a_revoked_key_are_dropped_and_others_are_not(node: Node) -> None:
    ann, bob = new_key("ann"), new_key("bob")
    path = node.allow(ann)
    node.allow(bob)
    node.open()
    assert [node.outcome(node.curve(key)) for key in (ann, bob)] == ["accepted", "accepted"]
    node.run_until(lambda: len(node.received) == 2)
    keyring, keys = node.gate.keyring, node.loop.allowed_keys
    assert [keyring.slots[slot].allowed.name for slot in node.slots] == ["ann", "bob"]
    path.unlink()
    node.gate.reload(monotonic_ms() + CHECK_INTERVAL_MS)
    for socket in node.clients:  # The connections are still open.
        socket.send_multipart([b"more", b"frames"])
    node.run_until(lambda: keys.revoked == 1 and len(node.received) == 3)
    assert node.received[2:] == [[b"more", b"frames"]]
    assert keyring.slots[node.slots[2]].allowed.name == "bob"

    path = node.allow(ann)  # A new connection of a key that is allowed again is heard.
    node.gate.reload(monotonic_ms() + 2 * CHECK_INTERVAL_MS)
    node.clients[0].send(b"old connection")
    assert node.outcome(node.curve(ann)) == "accepted"
    node.run_until(lambda: keys.revoked == 2 and len(node.received) == 4)
    assert node.received[3:] == [[b"hello"]]


class Client:
    """A client that stays connected, and the events of its connection."""

    def __init__(self, node: Node, key: Certificate, sends: bool = True) -> None:
        self.socket, self._monitor = node.client(node.curve(key), sends)
        node.clients += [self._monitor, self.socket]
        self.events: list[int] = []
        node.run_until(lambda: self.has(zmq.EVENT_HANDSHAKE_SUCCEEDED))
        self.events.clear()

    def has(self, event: int) -> bool:
        while self._monitor.poll(0):
            self.events.append(int.from_bytes(self._monitor.recv_multipart()[0][:2], "little"))
        return event in self.events


def test_connections_of_a_revoked_key_end_and_others_stay(tmp_path: Path) -> None:
    node, ann, bob = Node(tmp_path, ConnectionLimits()), new_key("ann"), new_key("bob")
    path = node.allow(ann)
    node.allow(bob)
    node.open()
    try:
        revoked = [Client(node, ann), Client(node, ann), Client(node, ann, sends=False)]
        allowed = [Client(node, bob) for _ in range(5)]
        node.run_until(lambda: len(node.received) == 7)
        path.unlink()
        begin_ms = monotonic_ms()
        changed: list[KeyChange] = []

        def is_revoked() -> bool:
            changed.extend(node.gate.reload(monotonic_ms()))
            revoked[0].socket.send(b"more", zmq.DONTWAIT)  # The others are silent.
            return all(it.has(zmq.EVENT_DISCONNECTED) for it in revoked)

        node.run_until(is_revoked)
        assert monotonic_ms() - begin_ms < 1000
        node.run_until(lambda: all(it.has(zmq.EVENT_HANDSHAKE_FAILED_AUTH) for it in revoked))
        for client in allowed:
            client.socket.send(b"still")
        node.run_until(lambda: node.received.count([b"still"]) == 5)
        assert not any(it.has(zmq.EVENT_DISCONNECTED) or it.events for it in allowed)
        assert node.loop.connections is not None
        assert node.loop.connections.cut_counts()["keys"] == 3

        # A key that is allowed again has new connections, and other grants end none.
        node.allow(ann, "log.read log.append")
        node.allow(bob, "log.read log.append")
        node.gate.reload(monotonic_ms() + CHECK_INTERVAL_MS)
        assert node.outcome(node.curve(ann)) == "accepted"
        assert not any(it.has(zmq.EVENT_DISCONNECTED) for it in allowed)
    finally:
        node.close()


def test_subscriptions_of_a_revoked_key_end_and_others_stay(tmp_path: Path) -> None:
    node, ann, bob = Node(tmp_path, ConnectionLimits()), new_key("ann"), new_key("bob")
    path = node.allow(ann)
    node.allow(bob)
    node.open(zmq.XPUB)
    try:
        revoked, allowed = Client(node, ann), Client(node, bob)
        for client in (revoked, allowed):
            client.socket.subscribe(b"demo")
        node.run_until(lambda: len(node.slots) == 2)
        path.unlink()
        node.gate.reload(monotonic_ms() + CHECK_INTERVAL_MS)
        node.run_until(lambda: revoked.has(zmq.EVENT_HANDSHAKE_FAILED_AUTH))
        node.router.send(b"demo 1")
        node.run_until(lambda: bool(allowed.socket.poll(0)))
        assert not allowed.has(zmq.EVENT_DISCONNECTED)
    finally:
        node.close()


def test_a_start_checks_that_unknown_keys_are_refused(node: Node) -> None:
    node.open()
    node.gate.check(zmq.ROUTER, node.url, node.key.public_key, "n1.url")


def test_a_start_fails_if_an_unknown_key_gets_in(node: Node) -> None:
    node.open()
    open_router = node.context.socket(zmq.ROUTER)  # Of a context without a handler.
    node.clients.append(open_router)
    open_router.setsockopt(zmq.CURVE_SERVER, 1)
    open_router.setsockopt(zmq.CURVE_SECRETKEY, node.key.secret_key)
    open_router.bind(URL)
    url = open_router.getsockopt_string(zmq.LAST_ENDPOINT)
    with pytest.raises(OperatorError, match="does not refuse unknown keys"):
        node.gate.check(zmq.ROUTER, url, node.key.public_key, "n1.url")


def test_a_start_on_a_busy_machine_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """No handshake ends in time."""
    monkeypatch.setattr(gate, "CHECK_MS", 100)
    node.open()
    with create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(OperatorError, match="does not end a handshake within 0 s; start it"):
            node.gate.check(zmq.ROUTER, url, node.key.public_key, "n1.url")


def test_a_malformed_question_is_counted(node: Node) -> None:
    node.open()
    asker = node.loop.context.socket(zmq.DEALER)
    asker.connect("inproc://zeromq.zap.01")
    asker.send_multipart([b"", b"2.0", b"x"])
    node.run_until(lambda: node.loop.counters["zap-malformed"] == 1)
    asker.close()


# ---- files ----


def test_a_node_starts_only_with_good_files(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.allow(new_key("ann"))
    (tmp_path / "bad.key").write_text("metadata\n")
    with pytest.raises(OperatorError, match=r"bad\.key: it has no public-key"):
        KeyDirectory(str(tmp_path), "keys")
    with pytest.raises(OperatorError, match="No such file"):
        KeyDirectory(str(tmp_path / "missing"), "keys")
    node.close()


def test_a_running_node_drops_the_keys_of_bad_files(tmp_path: Path) -> None:
    node, ann, bob = Node(tmp_path), new_key("ann"), new_key("bob")
    path = node.allow(ann)
    node.allow(bob)
    directory = KeyDirectory(str(tmp_path), "keys")
    assert directory.keys.keys() == {ann.public_key, bob.public_key}
    now_ms = 0
    for change, problem in (
        (lambda: path.write_text("metadata\n"), "no public-key"),
        (lambda: path.write_bytes(b"\xff"), "not UTF-8"),
        (lambda: node.allow(ann, "boss"), "no such grant"),
        (lambda: path.write_text((tmp_path / "bob.key").read_text()), "has the same key"),
    ):
        change()
        now_ms += CHECK_INTERVAL_MS
        (found,) = directory.reload(now_ms) or [""]
        assert problem in found
        assert len(directory.keys) == 1
        assert directory.reload(now_ms + 1) is None
    node.close()


def test_keys_that_cannot_be_read_stay_for_a_time(tmp_path: Path) -> None:
    """The disk does not answer for a moment, or the process has no free descriptor."""
    (tmp_path / "keys").mkdir()
    node, ann, bob = Node(tmp_path / "keys"), new_key("ann"), new_key("bob")
    path, both = node.allow(ann), {ann.public_key, bob.public_key}
    node.allow(bob)
    directory = KeyDirectory(str(tmp_path / "keys"), "keys")
    path.rename(tmp_path / "ann")
    path.mkdir()  # open() fails.
    (problem,) = directory.reload(1000) or [""]
    assert problem.endswith("ann.key: Is a directory")
    for now_ms in (2000, 500 + KEEP_MS):
        assert directory.reload(now_ms) is None
        assert directory.keys.keys() == both
    assert directory.reload(1000 + KEEP_MS) == [problem]
    assert directory.keys.keys() == {bob.public_key}
    assert directory.reload(2000 + KEEP_MS) is None
    path.rmdir()
    (tmp_path / "ann").rename(path)
    assert directory.reload(3000 + KEEP_MS) == []
    assert directory.keys.keys() == both

    (tmp_path / "keys").rename(tmp_path / "away")
    (problem,) = directory.reload(100_000) or [""]
    assert problem.endswith("the keys stay allowed for 60 s")
    assert directory.reload(99_500 + KEEP_MS) is None
    assert directory.keys.keys() == both
    (problem,) = directory.reload(100_000 + KEEP_MS) or [""]
    assert problem.endswith("no key is allowed")
    assert directory.keys == {}
    (tmp_path / "away").rename(tmp_path / "keys")
    assert directory.reload(101_000 + KEEP_MS) == []
    assert directory.keys.keys() == both
    node.close()


def test_a_key_too_many_ends_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_MAX", 2)
    node, ann, bob, zoe = Node(tmp_path), new_key("ann"), new_key("bob"), new_key("zoe")
    path = node.allow(ann)
    node.allow(bob)
    directory = KeyDirectory(str(tmp_path), "keys")
    node.allow(zoe)
    (problem,) = directory.reload(CHECK_INTERVAL_MS) or [""]
    assert problem.endswith("zoe.key: the directory has more than 2 keys")
    assert directory.keys.keys() == {ann.public_key, bob.public_key}
    path.unlink()
    assert directory.reload(2 * CHECK_INTERVAL_MS) == []  # The other files are as before.
    assert directory.keys.keys() == {bob.public_key, zoe.public_key}
    node.close()


def test_a_check_of_many_files_looks_at_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "STATS_MAX", 4)
    folder = tmp_path / "keys"
    folder.mkdir()
    node, all_keys = Node(folder), {name: new_key(name) for name in "abcdefghij"}
    paths = {name: node.allow(key) for name, key in all_keys.items()}
    directory, now_ms = KeyDirectory(str(folder), "keys"), 0

    def reload(checks: int) -> set[str]:
        """The names that are allowed after so many checks, with a directory that is not new."""
        nonlocal now_ms
        for _ in range(checks):
            os.utime(folder, ns=(0, os.stat(folder).st_mtime_ns - keys.RECENT_NS))
            now_ms += CHECK_INTERVAL_MS
            directory.reload(now_ms)
        return {allowed.name for allowed in directory.keys.values()}

    assert reload(2) == set(all_keys)
    looked: list[str] = []
    stat = os.stat

    def count(path: str) -> os.stat_result:
        looked.append(path)
        return stat(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", count)
        now_ms += CHECK_INTERVAL_MS
        assert directory.reload(now_ms) is None
    assert len(looked) == 1 + keys.STATS_MAX  # The directory, and some files.
    paths["b"].unlink()
    node.allow(new_key("zoe"))
    assert reload(1) == {*all_keys, "zoe"} - {"b"}
    node.allow(all_keys["c"], "zre")  # Another file replaces it.
    reload(1)
    assert directory.keys[all_keys["c"].public_key].grants == parse_grants("zre")
    paths["d"].write_text("metadata\n")  # The directory does not show it.
    assert reload(3) == {*all_keys, "zoe"} - {"b", "d"}
    node.close()


def test_a_process_has_room_for_a_full_directory_and_all_nodes() -> None:
    assert SLOTS_MAX >= KEYS_MAX + NODES_MAX + 1  # 1: foreign peers.


def test_a_file_that_is_removed_while_the_directory_is_read(tmp_path: Path) -> None:
    node, ann = Node(tmp_path), new_key("ann")
    node.allow(ann)
    directory = KeyDirectory(str(tmp_path), "keys")
    (tmp_path / "gone.key").symlink_to("nothing")  # Its name is there, the file is not.
    assert directory.reload(CHECK_INTERVAL_MS) is None
    assert directory.keys.keys() == {ann.public_key}
    node.close()
