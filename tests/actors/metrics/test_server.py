"""The HTTP server of a node with the test as its supervisor, and its hostile clients."""

import resource
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest

from kelek.actors.errors import OperatorError
from kelek.actors.farm.listener import LINGER_MS
from kelek.actors.metrics.health import STALE_MS
from kelek.actors.metrics.server import CONNECTIONS_MAX, MetricsServer
from kelek.bench.ports import free_port
from kelek.protocols.garlicfarm.wire.handshake import HEAD_TIMEOUT_MS
from kelek.tests.actors.actor_harness import ActorHarness
from kelek.tests.actors.node_settings import node_settings

parser = pytest.importorskip("prometheus_client.parser", reason="kelek[metrics] is not installed")

ROWS = [
    {"node": "n1", "role": "supervisor", "name": "supervisor", "state": "ready", "restarts": 0},
    {
        "node": "n1", "role": "raft_peer", "name": "raft_peer", "state": "ready", "restarts": 3,
        "uptime": 1.5, "raft_role": "leader", "leader": "n1", "term": 7,
        "commit_index": 40, "applied_index": 40,
        "counters": {'it "quotes" \\ this\n': 2}, "followers": {"n2": {"silent_ms": 2500}},
    },
    {"node": "n2", "role": "raft_peer", "name": "raft_peer", "state": "ready", "term": 8},
]  # fmt: skip


class Scraped:
    """A metrics server in the test's thread."""

    def __init__(self, folder: Path) -> None:
        self.harness = ActorHarness()
        self.port = free_port()
        settings = node_settings({"metrics": f"127.0.0.1:{self.port}"})
        self.server = self.harness.start_actor(MetricsServer, str(folder), 1, settings)
        self.asked = 0

    def answer(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Answers the next question of the server, as its supervisor."""
        asked: list[bytes] = []

        def is_asked() -> bool:
            while self.harness.control.poll(0):
                routing_id, *frames = self.harness.control.recv_multipart()
                if frames == [b"ask-status"]:
                    asked.append(routing_id)
            return bool(asked)

        self.harness.run_until(is_asked)
        self.harness.control.send_multipart([asked[-1], msgpack.packb(list(rows))])
        line = f'kelek_raft_term{{node="n1",role="raft_peer"}} {rows[1]["term"]:.1f}'
        self.harness.run_until(lambda: line in self.text("/metrics"))

    @property
    def connections(self) -> int:
        return int(str(self.server.status()["connections"]))

    def connect(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port))
        made.settimeout(0)
        return made

    def fetch(self, path: str, method: str = "GET") -> tuple[int, str]:
        """(status, body) of a request."""
        with self.connect() as made:
            made.sendall(f"{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            data = self.read(made)
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    def text(self, path: str) -> str:
        return self.fetch(path)[1]

    def read(self, made: socket.socket) -> bytes:
        """Everything until the server closes the connection."""
        data = bytearray()

        def is_closed() -> bool:
            try:
                piece = made.recv(1 << 16)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True
            data.extend(piece)
            return not piece

        self.harness.run_until(is_closed)
        return bytes(data)


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[Scraped]:
    made = Scraped(tmp_path)
    yield made
    made.harness.close()


def values(text: str) -> dict[tuple[str, ...], float]:
    """Samples by name, node, role and further labels."""
    return {
        (sample.name, sample.labels.pop("node"), sample.labels.pop("role"),
         *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }  # fmt: skip


def test_pages_follow_the_last_report(scraped: Scraped) -> None:
    assert scraped.fetch("/readyz") == (
        503,
        "not ready\nproblem: the supervisor has not reported yet\n",
    )
    assert scraped.fetch("/livez") == (200, "alive\n")
    scraped.answer(ROWS)
    found = values(scraped.text("/metrics"))
    assert found["kelek_raft_term", "n1", "raft_peer"] == 7.0
    assert found["kelek_process_restarts_total", "n1", "raft_peer"] == 3.0
    assert found["kelek_events_total", "n1", "raft_peer", 'it "quotes" \\ this\n'] == 2.0
    assert found["kelek_raft_member_silent_seconds", "n1", "raft_peer", "n2"] == 2.5
    assert not [key for key in found if "n2" in key[1:2]], "each node has an endpoint of its own"
    assert scraped.fetch("/readyz") == (200, "ready\n")
    assert scraped.fetch("/readyz", "HEAD") == (200, "")
    scraped.answer([ROWS[0], {**ROWS[1], "leader": None, "term": 8}])
    assert scraped.fetch("/readyz")[1].startswith("not ready\nproblem: no leader")
    assert scraped.fetch("/livez") == (200, "alive\n")


def test_a_silent_supervisor_is_no_life(scraped: Scraped, clock: Any) -> None:
    scraped.answer(ROWS)
    clock.shift_ms = STALE_MS + 1
    for path, word in (("/livez", "alive"), ("/readyz", "ready")):
        assert scraped.fetch(path) == (
            503,
            f"not {word}\nproblem: the supervisor has not reported for 5 s\n",
        )


def test_slow_clients_neither_stop_it_nor_fill_its_memory(scraped: Scraped, clock: Any) -> None:
    """Connections that send nothing, half a head, or too much of one."""
    scraped.answer(ROWS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ExitStack() as stack:
        slow = []
        for number in range(4 * CONNECTIONS_MAX):
            made = stack.enter_context(scraped.connect())
            made.setblocking(False)
            junk = (b"", b"GET /metrics HTTP/1.1\r\nX: ", b"\xff" * 100_000)[number % 3]
            try:
                made.send(junk)
            except OSError:
                assert number % 3 == 2
            slow.append(made)
            scraped.server.run_once(0)
        assert scraped.fetch("/metrics")[0] == 200, "they make room for others"
        assert scraped.connections <= CONNECTIONS_MAX
        clock.shift_ms = HEAD_TIMEOUT_MS + 1
        scraped.harness.run_until(lambda: scraped.connections < CONNECTIONS_MAX)
        clock.shift_ms = HEAD_TIMEOUT_MS + LINGER_MS + 1000
        scraped.harness.run_until(lambda: not scraped.connections)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 32 << 10
    assert scraped.fetch("/metrics")[0] == 200


def refusal(folder: Path, port: int) -> str:
    """Why a server does not start at this port."""
    harness = ActorHarness()
    settings = node_settings({"metrics": f"127.0.0.1:{port}"})
    try:
        with pytest.raises(OperatorError) as caught:
            harness.start_actor(MetricsServer, str(folder), 1, settings)
    finally:
        harness.close()
    return str(caught.value)


def test_an_address_in_use_is_an_error(scraped: Scraped, tmp_path: Path) -> None:
    assert refusal(tmp_path, scraped.port) == (
        f"metrics: 127.0.0.1:{scraped.port} cannot be bound: Address already in use; "
        "end the program that holds it, or choose another address"
    )
