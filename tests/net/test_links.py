"""A link to one peer: events of its connection, messages that wait for room, and refusals."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from kelek.bench.ports import free_port
from kelek.net.clock import monotonic_ms
from kelek.net.host_names import host_name
from kelek.net.links import (
    KEY_REFUSED,
    NO_ADDRESS,
    OTHER_KEY,
    Link,
    LinkLimits,
    LinkProblem,
    link_options,
)
from kelek.net.poll_loop import PollLoop
from kelek.net.sockets import CurveClient, SocketOptions, configure
from kelek.protocols.access.certificates import Certificate
from kelek.tests.clients.curve_gate import CurveGate, new_key
from kelek.tests.clients.router_thread import RouterThread

TIMEOUT_MS = 60_000


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def make_link(context: zmq.Context[zmq.Socket[bytes]], url: str, send_hwm: int = 10) -> Link:
    socket = context.socket(zmq.DEALER)
    options = link_options(LinkLimits())._replace(send_hwm=send_hwm)
    configure(socket, zmq.DEALER, options)
    link = Link(socket, url)
    link.connect()
    return link


def close(link: Link) -> None:
    link.socket.disable_monitor()
    link.monitor.close()
    link.socket.close(linger=0)


def test_a_link_names_a_host_without_an_address(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again, as a name may get an address later."""
    answers: list[object] = [socket.gaierror(socket.EAI_NONAME, "not known"), []]
    asked: list[str] = []

    def look_up(host: str, port: object) -> object:
        asked.append(host)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    link = make_link(context, "tcp://a..b:1")  # libzmq looks it up in the same way.
    nameless = LinkProblem("the name a..b has no address: not known", NO_ADDRESS, may_pass=True)
    for problem in (nameless, None):
        while link.problem != problem:
            assert link.monitor.poll(TIMEOUT_MS)
            assert not [*link.events()]
    assert asked == ["a..b", "a..b"]
    close(link)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("tcp://n1.example:7100", "n1.example"),
        ("tcp://localhost:7100", "localhost"),
        ("tcp://127.0.0.1:7100", ""),
        ("tcp://[::1]:7100", ""),
        ("tcp://[fe80::1%lo]:7100", ""),
        ("ipc:///tmp/x:1", ""),
    ],
)
def test_only_names_of_tcp_are_looked_up(url: str, host: str) -> None:
    assert host_name(url) == host


def test_a_link_reports_connections_that_are_made_and_lost(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    peer = context.socket(zmq.ROUTER)
    peer.bind(f"ipc://{tmp_path}/peer")
    link = make_link(context, f"ipc://{tmp_path}/peer")
    assert link.monitor.poll(TIMEOUT_MS)
    assert list(link.events()) == [True]
    peer.close(linger=0)
    assert link.monitor.poll(TIMEOUT_MS)
    assert list(link.events()) == [False]
    close(link)


def test_a_link_to_an_ipv6_address(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with context.socket(zmq.ROUTER) as peer:
        peer.setsockopt(zmq.IPV6, 1)
        try:
            port = peer.bind_to_random_port("tcp://[::1]")
        except zmq.ZMQError as reason:
            pytest.skip(f"no IPv6 here: {reason}")
        link = make_link(context, f"tcp://[::1]:{port}")
        assert link.monitor.poll(TIMEOUT_MS)
        assert list(link.events()) == [True]
        close(link)


def test_messages_without_room_stay_in_the_link(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    link = make_link(context, f"ipc://{tmp_path}/peer", send_hwm=1)
    for number in range(3):
        link.frames.add([b"%d" % number])
    assert not link.flush()
    assert len(link.frames) > 0
    with context.socket(zmq.ROUTER) as peer:
        peer.bind(f"ipc://{tmp_path}/peer")
        received: list[bytes] = []
        deadline_ms = monotonic_ms() + TIMEOUT_MS
        while len(received) < 3:
            assert monotonic_ms() < deadline_ms
            link.flush()
            if peer.poll(10):
                received.append(peer.recv_multipart()[1])
        assert received == [b"0", b"1", b"2"]
    assert not len(link.frames)
    close(link)


# ---- refusals ----

REFUSED_S = 3.5
ALLOWED_S_MAX = 2.0  # A retry comes each second.


class Echo:
    """A server that answers with the request."""

    def on_frames(self, frames: list[bytes]) -> list[list[bytes]]:
        return [frames]


class CountingGate(CurveGate):
    """Counts the connections that ask for access."""

    asked = 0

    def answer(self) -> None:
        self.asked += 1
        super().answer()


class LinkLoop(PollLoop):
    """A loop with one link; it records problems."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[LinkProblem] = []
        self.lost = 0

    def open(self, url: str, own: Certificate, server_key: bytes) -> "zmq.Socket[bytes]":
        curve = CurveClient(server_key, own.public_key, own.secret_key)
        options = SocketOptions(immediate=True, curve=curve)
        return self.connect(zmq.DEALER, url, options, self._on_lost)

    def _on_lost(self) -> None:
        self.lost += 1

    def on_link_refused(self, url: str, problem: LinkProblem) -> None:
        self.problems.append(problem)

    def run_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        self.run_until(lambda: time.monotonic() >= end_s)

    def run_until(self, is_done: Callable[[], object]) -> float:
        begin_s = time.monotonic()
        while not is_done():
            assert time.monotonic() < begin_s + TIMEOUT_MS / 1000
            self.run_once(20)
        return time.monotonic() - begin_s


@pytest.fixture
def loop() -> Iterator[LinkLoop]:
    made = LinkLoop()
    yield made
    made.close_sockets()


def test_a_refused_link_comes_back_when_its_key_is_allowed(loop: LinkLoop) -> None:
    gate, own, url = CountingGate(), new_key("late"), f"tcp://127.0.0.1:{free_port()}"
    with closing(RouterThread({url: Echo()}, gate)):
        dealer = loop.open(url, own, gate.key.public_key)
        loop.run_for(REFUSED_S)
        assert 2 <= gate.asked <= 1 + REFUSED_S
        assert loop.problems == [KEY_REFUSED]
        gate.allow(own)
        assert loop.run_until(lambda: loop.send(dealer, [b"x"])) < ALLOWED_S_MAX
        received: list[list[bytes]] = []
        loop.watch(dealer, lambda: received.append(dealer.recv_multipart()))
        loop.run_until(lambda: received == [[b"x"]])
        # A later refusal is reported again: the server restarts without the key.
        lost = loop.lost
    loop.run_until(lambda: loop.lost > lost)
    with closing(RouterThread({url: Echo()}, CurveGate(gate.key))):
        loop.run_until(lambda: loop.problems == [KEY_REFUSED] * 2)
        loop.close_socket(dealer)
        loop.run_for(0)


def test_a_link_whose_handshakes_end_connects_ever_more_rarely(loop: LinkLoop) -> None:
    """As with a wrong server key. libzmq alone would do so 20 times a second, for ever."""
    accepted = 0

    def serve(listener: socket.socket) -> None:
        nonlocal accepted
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            accepted += 1
            connection.recv(64)
            connection.close()

    with socket.create_server(("127.0.0.1", free_port())) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
            loop.open(url, new_key("own"), new_key("server").public_key)
            loop.run_for(REFUSED_S)
            assert 6 <= accepted <= 11  # 5 at once, then after 0.1, 0.2, 0.4, 0.8 and 1.6 s.
            assert loop.problems == [OTHER_KEY]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
