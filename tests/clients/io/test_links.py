"""The connections of a client: received messages and invalid addresses."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import zmq

from kelek.clients.io.links import Links, LinkSettings
from kelek.net.clock import monotonic_ms
from kelek.net.links import ARENA_BYTES
from kelek.protocols.connections import ClientAction, Connect, Disconnect, Send
from kelek.protocols.zmqraft.client.client import LogClientMachine, LogClientSetup

DEADLINE_MS = 60_000
LARGE = ARENA_BYTES * 3 // 4  # An arena has no room for two.


class RecordingMachine(LogClientMachine):
    """A client machine that records received sizes and lost connections."""

    def __init__(self, url: str, *actions: ClientAction) -> None:
        super().__init__(LogClientSetup(b"demo", (url,)), lambda: bytes(12), 0)
        self.actions: list[ClientAction] = list(actions) or [Connect(url)]
        self.sizes: list[int] = []
        self.lost: list[str] = []

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
