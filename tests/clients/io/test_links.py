"""The connections of a client: received messages, invalid addresses, refused subscriptions."""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from kelek.bench.ports import free_port
from kelek.clients.io.links import Links, LinkSettings
from kelek.net.client_keys import ClientKeys
from kelek.net.clock import monotonic_ms
from kelek.net.links import ARENA_BYTES, KEY_REFUSED
from kelek.protocols.connections import ClientAction, Connect, Disconnect, Listen, Send
from kelek.protocols.zmqraft.client.client import LogClientMachine, LogClientSetup
from kelek.tests.clients.curve_gate import CurveGate, new_key

DEADLINE_MS = 60_000
LARGE = ARENA_BYTES * 3 // 4  # An arena has no room for two.


class RecordingMachine(LogClientMachine):
    """A client machine that records received sizes and lost connections."""

    def __init__(self, url: str, *actions: ClientAction) -> None:
        super().__init__(LogClientSetup(b"demo", (url,)), lambda: bytes(12), 0)
        self.actions: list[ClientAction] = list(actions) or [Connect(url)]
        self.sizes: list[int] = []
        self.lost: list[str] = []
        self.refused: dict[str, str] = {}
        self.broadcasts: list[tuple[object, Sequence[bytes]]] = []

    def ready(self, now_ms: int) -> list[ClientAction]:
        actions, self.actions = self.actions, []
        return actions

    @property
    def deadline_ms(self) -> int | None:
        return None

    def on_disconnected(self, url: str, now_ms: int) -> None:
        self.lost.append(url)

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None:
        self.sizes.append(sum(map(len, frames)))

    def on_refused(self, url: str, problem: str, way_out: str, may_pass: bool = False) -> None:
        self.refused[url] = problem

    def on_broadcast(self, subscription: object, frames: Sequence[bytes], now_ms: int) -> None:
        self.broadcasts.append((subscription, frames))


class Feeder:
    """A PUB with CURVE that sends without end."""

    def __init__(self, url: str, gate: CurveGate) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = gate
        gate.bind(self._context)
        self._feed = self._context.socket(zmq.PUB)
        gate.protect(self._feed)
        self._feed.bind(url)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ends.is_set():
            if self._gate.socket.poll(10):
                self._gate.answer()
            self._feed.send_multipart([b"demo", b"x"])

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._context.destroy(linger=0)


def run_until(links: Links, is_done: Callable[[], object]) -> None:
    until_ms = monotonic_ms() + DEADLINE_MS
    while not is_done():
        assert monotonic_ms() < until_ms
        links.run_once(until_ms)


def test_large_messages_that_arrive_together_are_all_received(tmp_path: Path) -> None:
    """The last message waits in the drain without room in the arena, and no poll reports it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)  # It sends to its only peer.
    dealer.linger = 0
    dealer.bind(f"ipc://{tmp_path}/peer")
    machine = RecordingMachine(f"ipc://{tmp_path}/peer")
    links = Links(machine)
    try:
        links.run_once(monotonic_ms())  # Connects.
        for number in range(1, 31):
            for _ in range(3):
                dealer.send(bytes(LARGE))
            until_ms = monotonic_ms() + DEADLINE_MS
            while len(machine.sizes) < 3 * number:
                assert monotonic_ms() < until_ms, f"{len(machine.sizes)} messages arrived"
                links.run_once(until_ms)
    finally:
        links.close()
        dealer.close()
        context.term()
    assert set(machine.sizes) == {LARGE}


def test_an_address_that_cannot_be_connected_to_is_ignored() -> None:
    url = "tcp://nowhere"
    machine = RecordingMachine(url, Connect(url), Disconnect(url))
    links = Links(machine)
    links.run_once(monotonic_ms())
    assert not machine.actions
    links.close()


@pytest.mark.parametrize("patient", [False, True])
def test_a_peer_without_room_is_lost_unless_the_client_is_patient(
    tmp_path: Path, patient: bool
) -> None:
    url = f"ipc://{tmp_path}/unused"
    machine = RecordingMachine(url, Connect(url), *[Send(url, [b"x"])] * 10)
    links = Links(machine, LinkSettings(patient=patient, send_messages_max=2))
    links.run_once(monotonic_ms())
    assert machine.lost == ([] if patient else [url])
    assert links.backlog == (8 if patient else 0)
    links.close()


def test_a_refused_subscription_comes_back_when_its_key_is_allowed() -> None:
    gate, own, url = CurveGate(), new_key("late"), f"tcp://127.0.0.1:{free_port()}"
    machine = RecordingMachine(url, Listen("feed", url, b"demo"))
    keys = ClientKeys(own, gate.key.public_key)
    links = Links(machine, LinkSettings(keys=keys))
    with closing(Feeder(url, gate)):
        run_until(links, lambda: machine.refused)
        assert machine.refused == {url: KEY_REFUSED.text}
        gate.allow(own)
        run_until(links, lambda: machine.broadcasts)
    links.close()
    assert machine.broadcasts[0] == ("feed", [b"demo", b"x"])
