"""A key is revoked while its clients append: nothing is taken after a second, its connections end,
and other clients notice nothing.

KELEK_REVOKED is the number of runs: `./check --long hostile` makes 100.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import zmq

from kelek.clients.io.reqids import new_reqid
from kelek.protocols.access.certificates import Certificate
from kelek.protocols.zmqraft.wire.client_codec import RequestUpdate, encode_client_request
from kelek.tests.secure_cluster import SecureCluster, new_key

RUNS = int(os.environ.get("KELEK_REVOKED", "5"))
TAKEN_S_MAX = 1.0
ENDED_S_MAX = 2.0  # Beside other tests the end comes later.
WINDOW = 8  # Appends without an answer.
WATCHED_S = 0.3  # After the end of its connections a client is watched for so long.
ACTORS = 7
DEADLINE_S = 30.0
GRANTS = "log.append log.read"
ENDED, DENIED = int(zmq.EVENT_DISCONNECTED), int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)

pytestmark = pytest.mark.timeout(120 + 5 * RUNS)


class Times(NamedTuple):
    """Seconds from the revocation to the last answered append, and to the end of connections."""

    taken_s: float
    ended_s: float


class Appender:
    """A DEALER that appends all the time, or is silent after one append."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", url: str, server: bytes, key: Certificate
    ) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.curve_serverkey = server
        self._socket.curve_publickey = key.public_key
        self._socket.curve_secretkey = key.secret_key
        self._monitor = self._socket.get_monitor_socket()
        self._socket.connect(url)
        self._unanswered = 0
        self.answered = 0
        self.answered_s = 0.0
        self.events: dict[int, float] = {}

    def run(self, sends: bool) -> None:
        """Appends, as far as its window has room, and notes answers and events."""
        while sends and self._unanswered < WINDOW:
            request = RequestUpdate(new_reqid(), b"x")
            frames = encode_client_request(request, b"safe")
            try:
                self._socket.send_multipart(frames, zmq.DONTWAIT)
            except zmq.Again:
                break  # It has no connection.
            self._unanswered += 1
        while self._socket.poll(0):
            self._socket.recv_multipart()
            self._unanswered -= 1
            self.answered += 1
            self.answered_s = time.monotonic()
        while self._monitor.poll(0):
            event = int.from_bytes(self._monitor.recv_multipart()[0][:2], "little")
            self.events[event] = time.monotonic()

    def wait(self) -> None:
        """Until an answer comes, or 5 ms have passed."""
        self._socket.poll(5)

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()


class RevocationDrill(SecureCluster):
    """One node, and an allowed client that appends during all runs."""

    def __init__(self) -> None:
        super().__init__(names=("n1",))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.other = new_key("other")
        self.keys_of_runs = [new_key(f"gone{number}") for number in range(RUNS)]
        for key in (self.other, *self.keys_of_runs):
            self.allow(key.name, GRANTS, key)

    def appender(self, key: Certificate) -> Appender:
        return Appender(self.context, self.urls["n1.url"], self.node_keys["n1"].public_key, key)

    def revoke_one(self, key: Certificate, other: Appender) -> Times:
        clients = [self.appender(key) for _ in range(3)]

        def run() -> None:
            for client in (other, *clients):
                client.run(client is not clients[-1] or not client.answered)
            other.wait()

        try:
            run_until(run, lambda: all(it.answered for it in clients))
            self.revoke(key.name)
            revoked_s = time.monotonic()
            run_until(run, lambda: all(DENIED in it.events for it in clients))
            watched_s = time.monotonic() + WATCHED_S
            run_until(run, lambda: time.monotonic() >= watched_s)
            ended_s = max(it.events[ENDED] for it in clients) - revoked_s
            return Times(max(it.answered_s for it in clients) - revoked_s, ended_s)
        finally:
            for client in clients:
                client.close()


def run_until(run: Callable[[], None], is_done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < end_s, "the condition never holds"
        run()


@pytest.fixture
def drill() -> Iterator[RevocationDrill]:
    made = RevocationDrill()
    try:
        made.start()
        made.wait(lambda: made.log().count("ready node=n1") >= ACTORS)
        yield made
    finally:
        made.context.destroy(linger=0)
        made.stop()


def test_nothing_of_a_revoked_key_is_taken_after_a_second(drill: RevocationDrill) -> None:
    other = drill.appender(drill.other)
    run_until(lambda: other.run(True), lambda: other.answered > 0)
    other.events.clear()
    runs = [drill.revoke_one(key, other) for key in drill.keys_of_runs]
    for name in Times._fields:
        values = sorted(getattr(it, name) for it in runs)
        print(f"{name}: median {statistics.median(values):.3f}, largest {values[-1]:.3f} of {RUNS}")
    assert other.events == {}
    other.close()
    assert max(it.taken_s for it in runs) < TAKEN_S_MAX
    assert max(it.ended_s for it in runs) < ENDED_S_MAX
