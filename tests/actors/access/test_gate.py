"""Which connections real sockets accept: the gate of a process, with keys in a directory."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from kelek.actors.access.gate import AccessGate
from kelek.actors.access.keys import CHECK_INTERVAL_MS, KeyDirectory, load_key
from kelek.actors.errors import OperatorError
from kelek.actors.runtime.process_loop import ProcessLoop
from kelek.native.net.messages import Arena
from kelek.net.clock import monotonic_ms
from kelek.net.private_files import replace_file
from kelek.net.sockets import CurveClient, CurveServer, SocketOptions
from kelek.protocols.access.certificates import Certificate, decode_key, format_certificate
from kelek.protocols.access.grants import Right
from kelek.protocols.access.zap import CURVE, ProtectedEndpoint

DEADLINE_MS = 30_000
URL = "tcp://127.0.0.1:*"
ENDPOINTS = {b"n1.url": ProtectedEndpoint(CURVE, Right.LOG_READ)}


def new_key(name: str) -> Certificate:
    public, secret = zmq.curve_keypair()
    return Certificate(decode_key(public.decode()), decode_key(secret.decode()), {"name": name})


class Node:
    """A loop with one CURVE endpoint, which records what it receives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = new_key("n1")
        self.log_in, self.log_out = os.pipe()
        self.loop = ProcessLoop(None, self.log_out)
        self.received: list[list[bytes]] = []
        self.slots: list[int] = []  # Of the senders' keys.
        self.clients: list[zmq.Socket[bytes]] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def open(self, with_gate: bool = True) -> None:
        if with_gate:
            self.gate = AccessGate(self.loop, KeyDirectory(str(self.folder), "keys"), ENDPOINTS)
        curve = CurveServer(self.key.secret_key, "n1.url")
        options = SocketOptions(bind=(URL,), curve=curve)
        self.router = self.loop.socket(zmq.ROUTER, options)
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

    def client(self, curve: CurveClient | None) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """A DEALER that has sent one message, and its monitor."""
        socket = self.context.socket(zmq.DEALER)
        if curve is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server_key)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.public_key)
            socket.setsockopt(zmq.CURVE_SECRETKEY, curve.secret_key)
        monitor = socket.get_monitor_socket()
        socket.connect(self.url)
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


def test_a_start_checks_that_unknown_keys_are_refused(node: Node) -> None:
    node.open()
    node.gate.check(node.url, node.key.public_key, "n1.url")


def test_a_start_fails_if_an_unknown_key_gets_in(node: Node) -> None:
    node.open()
    open_router = node.context.socket(zmq.ROUTER)  # Of a context without a handler.
    node.clients.append(open_router)
    open_router.setsockopt(zmq.CURVE_SERVER, 1)
    open_router.setsockopt(zmq.CURVE_SECRETKEY, node.key.secret_key)
    open_router.bind(URL)
    url = open_router.getsockopt_string(zmq.LAST_ENDPOINT)
    with pytest.raises(OperatorError, match="does not refuse unknown keys"):
        node.gate.check(url, node.key.public_key, "n1.url")


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
    path.unlink()
    (tmp_path / "bob.key").unlink()
    tmp_path.rmdir()
    now_ms += CHECK_INTERVAL_MS
    assert "No such file" in (directory.reload(now_ms) or [""])[0]
    assert directory.keys == {}
    node.close()


def test_the_nodes_own_key_is_a_private_file(tmp_path: Path) -> None:
    key = new_key("n1")
    path = tmp_path / "n1.key_secret"
    replace_file(path, format_certificate(key))
    assert load_key(str(path), "topology").secret_key == key.secret_key
    path.chmod(0o640)
    with pytest.raises(OperatorError, match="chmod 600"):
        load_key(str(path), "topology")
    public = tmp_path / "n1.key"
    replace_file(public, format_certificate(key._replace(secret_key=b"")))
    with pytest.raises(OperatorError, match=r"is a public key; name .*n1\.key_secret"):
        load_key(str(public), "topology")
    replace_file(path, "curve\n")
    with pytest.raises(OperatorError, match="no public-key"):
        load_key(str(path), "topology")
