"""The base of actors: sockets, pipes that never block, limits, log lines."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from kelek.actors.errors import OperatorError
from kelek.actors.runtime import actor
from kelek.actors.runtime.actor import Actor
from kelek.actors.runtime.setup import ActorSetup, Host
from kelek.actors.topology.settings import LimitSettings
from kelek.bench.ports import free_port
from kelek.native.net.connections import ConnectionLimits
from kelek.native.net.messages import Arena
from kelek.net import poll_loop
from kelek.net.clock import monotonic_ms
from kelek.net.sockets import SocketOptions
from kelek.tests.actors.actor_harness import ActorHarness
from kelek.tests.actors.node_settings import node_settings
from kelek.tests.zmtp_peer import ZmtpPeer

Frames = list[list[bytes]]


class Probe(Actor):
    """Collects messages and wakes."""

    role = "probe"

    def __init__(self, setup: ActorSetup, host: Host) -> None:
        super().__init__(setup, host)
        self.got: list[Frames] = []
        self.wakes = 0
        self.adopted: list[str] = []

    def on_arena(self, arena: Arena) -> None:
        self.got.append(arena.messages())

    def on_wake(self, now_ms: int) -> None:
        self.wakes += 1

    def on_settings_changed(self) -> None:
        self.adopted.append(self.settings.node.url)

    def status(self) -> dict[str, Any]:
        return {"wakes": self.wakes}


class ProbeHarness(ActorHarness):
    """A probe in the test's thread, and the other ends of its connections."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.control.setsockopt(zmq.RCVTIMEO, 10_000)
        self.log_in, self.log_fd = os.pipe()
        self.probe = self.start_actor(Probe, "", 7, node_settings(**settings))

    def log(self) -> list[str]:
        os.set_blocking(self.log_in, False)
        return os.read(self.log_in, 1 << 16).decode().splitlines()

    def close(self) -> None:
        super().close()
        os.close(self.log_in)
        os.close(self.log_fd)


@pytest.fixture
def harness() -> Iterator[ProbeHarness]:
    harness = ProbeHarness()
    yield harness
    harness.close()


def peer_socket(
    harness: ProbeHarness, kind: int, address: str = "", hwm: int = 1000
) -> zmq.Socket[bytes]:
    socket = harness.socket(kind)
    socket.setsockopt(zmq.RCVTIMEO, 10_000)
    socket.setsockopt(zmq.RCVHWM, hwm)
    if address:
        socket.connect(address)
    return socket


def test_a_wake_receives_everything_in_one_arena(harness: ProbeHarness) -> None:
    probe = harness.probe
    probe.pull("inbox", probe.on_arena)
    sender = peer_socket(harness, zmq.PUSH, "inproc://harness/n1/probe.inbox")
    for i in range(100):
        sender.send_multipart([b"a", str(i).encode()])
    probe.run_once()
    assert probe.got == [[[b"a", str(i).encode()] for i in range(100)]]


def test_a_paused_source_is_not_read(harness: ProbeHarness) -> None:
    probe = harness.probe
    inbox = probe.socket(zmq.PULL, SocketOptions(bind=("inproc://x",)))
    probe.listen(inbox, probe.on_arena)
    sender = peer_socket(harness, zmq.PUSH, "inproc://x")
    sender.send(b"1")
    probe.set_paused(inbox, True)
    probe.run_once()
    assert probe.got == []
    probe.set_paused(inbox, False)
    probe.run_once()
    assert probe.got == [[[b"1"]]]


def test_messages_left_in_a_drain_are_received_without_a_new_one(
    harness: ProbeHarness,
) -> None:
    """A message without room in an arena has left its socket, so no poll reports it."""
    probe = harness.probe
    inbox = probe.socket(zmq.PULL, SocketOptions(bind=("inproc://x",)))
    probe.listen(inbox, probe.on_arena, arena_bytes=1 << 16)
    sender = peer_socket(harness, zmq.PUSH, "inproc://x")
    large = bytes(40_000)
    for _ in range(2):
        sender.send(large)
    probe.run_once()
    probe.set_paused(inbox, True)
    probe.run_once()
    assert probe.got == [[[large]]]
    probe.set_paused(inbox, False)
    probe.run_once()
    assert probe.got == [[[large]], [[large]]]


def test_a_pipe_holds_messages_until_there_is_room(harness: ProbeHarness) -> None:
    """No reader, then a slow one: nothing is lost or reordered, and nothing blocks."""
    probe = harness.probe
    pipe = probe.pipe(probe.socket(zmq.PUSH, SocketOptions(bind=("inproc://x",), hwm=2)))
    for i in range(50):
        pipe.send([str(i).encode()])
    assert pipe.full
    reader = peer_socket(harness, zmq.PULL, "inproc://x", hwm=2)
    for i in range(50):
        while pipe.full and not reader.poll(0):
            probe.run_once()
        assert reader.recv() == str(i).encode()
    assert pipe.count == 0


def test_a_router_drops_and_counts_messages_to_unknown_peers(harness: ProbeHarness) -> None:
    probe = harness.probe
    clients = probe.socket(zmq.ROUTER, SocketOptions(bind=("inproc://x",), router_mandatory=True))
    assert not probe.send(clients, [b"unknown", b"x"])
    assert probe.counters["send_dropped"] == 1


def test_messages_over_the_limits_are_dropped_and_logged_once(harness: ProbeHarness) -> None:
    probe = harness.probe
    inbox = probe.socket(
        zmq.PULL,
        SocketOptions(bind=("inproc://x",), message_bytes_max=100, message_frames_max=3),
    )
    probe.listen(inbox, probe.on_arena)
    sender = peer_socket(harness, zmq.PUSH, "inproc://x")
    for frames in ([b"a" * 60, b"b" * 60], [b""] * 4, [b"fits"], [b"a" * 101]):
        sender.send_multipart(frames)
        probe.run_once()
    assert probe.got == [[[b"fits"]]]
    assert probe.counters["oversize-dropped"] == 3
    assert [line.split(" ", 1)[1] for line in harness.log()] == [
        "oversize-dropped count=1 socket=inproc://x"
    ]


def test_the_supervisor_gets_reports(harness: ProbeHarness) -> None:
    harness.probe.counters["dropped"] = 3
    harness.probe.ready()
    assert harness.control.recv_multipart() == [b"n1/probe/7", b"ready"]
    name, kind, status = harness.control.recv_multipart()
    assert (name, kind) == (b"n1/probe/7", b"status")
    assert msgpack.unpackb(status) == {"wakes": 0, "counters": {"dropped": 3}}
    harness.control.send_multipart([name, b"status"])
    harness.probe.run_once()
    assert harness.control.recv_multipart()[1] == b"status"


class QuietProbe(Probe):
    """A probe in virtual time; its status changes when told."""

    time_ms = 1000
    news = 0

    def wait(self, timeout_ms: int) -> list[Any]:
        self.time_ms += timeout_ms
        return []

    def status(self) -> dict[str, Any]:
        return {"news": self.news}


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[QuietProbe, Callable[[], list[int]]]]:
    """A quiet probe, and a function that takes the news which the supervisor has got."""
    harness = ActorHarness()
    probe = harness.start_actor(QuietProbe, "", 7, node_settings())
    for module in (actor, poll_loop):
        monkeypatch.setattr(module, "monotonic_ms", lambda: probe.time_ms)

    def take_reports() -> list[int]:
        found = []
        while harness.control.poll(100):
            found.append(msgpack.unpackb(harness.control.recv_multipart()[2])["news"])
        return found

    probe.run_once()
    yield probe, take_reports
    harness.close()


def test_a_status_without_news_is_reported_less_often(
    quiet: tuple[QuietProbe, Callable[[], list[int]]],
) -> None:
    """An idle cluster of thirty processes costs their wakes."""
    probe, take_reports = quiet
    assert take_reports() == [0]
    start_ms = probe.time_ms
    while probe.time_ms - start_ms < 10 * actor.UNCHANGED_MS:
        probe.run_once()
    assert len(take_reports()) == 10
    assert probe.wakes <= 13


def test_news_of_an_idle_actor_are_reported_soon(
    quiet: tuple[QuietProbe, Callable[[], list[int]]],
) -> None:
    probe, take_reports = quiet
    for _ in range(5):
        probe.run_once()
    take_reports()
    probe.news = 1
    probe.run_once(10)  # Something arrives, and the loop waits again.
    start_ms = probe.time_ms
    while not (found := take_reports()):
        probe.run_once()
    assert found == [1]
    assert probe.time_ms - start_ms <= actor.REPORT_MS


def test_an_actor_adopts_settings_while_it_runs(harness: ProbeHarness) -> None:
    probe, changed = harness.probe, node_settings({"url": "tcp://h:2"})
    setup = replace(probe.setup, settings=changed)
    probe.ready()
    for _ in range(2):
        name = harness.control.recv_multipart()[0]
    harness.control.send_multipart([name, b"setup", setup.to_json().encode()])
    probe.run_once()
    assert probe.adopted == ["tcp://h:2"]
    assert probe.setup == setup
    assert harness.control.recv_multipart()[1] == b"status", "of its new settings"
    assert harness.control.recv_multipart() == [name, b"adopted"]


def test_the_default_limits_are_those_of_the_guard(harness: ProbeHarness) -> None:
    assert harness.probe.connections is not None
    state, limits = harness.probe.connections.state, ConnectionLimits()
    assert (state.connections_max, state.address_max) == limits[:2]
    assert (state.bytes_max, state.memory_max, state.stall_ms) == limits[2:]


def test_the_limits_of_the_topology_end_connections() -> None:
    limits = LimitSettings(
        connections_max=3,
        address_connections_max=2,
        held_bytes_max=300 << 20,
        growth_bytes_max=100 << 20,
        stall_ms=700,
    )
    with contextlib.closing(ProbeHarness(limits=limits)) as harness:
        probe, port = harness.probe, free_port()
        socket = probe.bind_url(zmq.ROUTER, f"tcp://127.0.0.1:{port}", "url")
        probe.listen(socket, probe.on_arena)
        connections = probe.connections
        assert connections is not None
        state = connections.state
        assert (state.bytes_max, state.memory_max, state.stall_ms) == (300 << 20, 100 << 20, 700)
        peers = [ZmtpPeer(port, waits=False) for _ in range(3)]
        harness.run_until(lambda: peers[2].is_cut() and connections.count == 2)
        peers.append(ZmtpPeer(port, source="127.0.0.2", waits=False))
        peers.append(ZmtpPeer(port, source="127.0.0.3", waits=False))
        harness.run_until(lambda: peers[4].is_cut())
        assert [peer.is_cut() for peer in peers] == [False, False, True, False, True]
        probe.ready()
        assert probe.counters["connection-cut-address"] == 1
        assert probe.counters["connection-cut-connections"] == 1
        for peer in peers:
            peer.close()


def test_sigterm_drains_an_actor_and_the_supervisors_end_stops_it(
    harness: ProbeHarness,
) -> None:
    probe = harness.probe
    probe.drain_ms_max = 60_000
    probe.drained = lambda: False  # type: ignore[method-assign]
    os.write(harness.stop_out, b"T")
    probe.run_once()
    assert probe.stopping
    os.close(harness.stop_out)
    harness.stop_out = -1
    probe.run_loop()
    assert not probe.running
    assert harness.log()[0].endswith(" supervisor-gone")


def test_a_deadline_wakes_an_idle_loop(
    harness: ProbeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)
    probe = harness.probe
    probe.ready()  # The next report is due in an hour.
    probe.deadline_ms = lambda: monotonic_ms() + 20  # type: ignore[method-assign]
    thread = threading.Thread(target=probe.run_once)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_log_lines(harness: ProbeHarness) -> None:
    harness.probe.log(
        "event", word="x", sentence='a "b" c', number=3, part=0.12345, empty="", bad="\n"
    )
    for _ in range(3):
        harness.probe.log_rarely("malformed", sender="x")
    lines = [line.split(" ", 1) for line in harness.log()]
    assert lines[0][1] == (
        r'event word=x sentence="a \"b\" c" number=3 part=0.123 empty="" bad="\n"'
    )
    assert [text for _, text in lines[1:]] == ["malformed sender=x"]
    assert harness.probe.counters["malformed"] == 3


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("{used}", "is in use; end the program that holds it, or choose another address"),
        ("tcp://192.0.2.1:7201", "is not an address of this machine; write one of its own"),
        ("ipc:///nowhere/x", "is in no directory; make the directory"),
    ],
)
def test_errors_of_bind_name_the_way_out(
    harness: ProbeHarness, address: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_loop, "BIND_RETRY_MS", 0)
    other = peer_socket(harness, zmq.ROUTER)
    used = f"tcp://127.0.0.1:{free_port()}"
    other.bind(used)
    address = address.format(used=used)
    with pytest.raises(OperatorError) as error:
        harness.probe.socket(zmq.ROUTER, SocketOptions(bind=(address,)))
    assert str(error.value) == f"{address}: {line}"


def test_errors_of_bind_name_the_place_in_the_topology(
    harness: ProbeHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_loop, "BIND_RETRY_MS", 0)
    options = SocketOptions(bind=("ipc:///nowhere/x",), place="t.yaml:4:10: nodes.a.url")
    with pytest.raises(OperatorError, match=r"^t.yaml:4:10: nodes.a.url: .*is in no"):
        harness.probe.socket(zmq.ROUTER, options)
