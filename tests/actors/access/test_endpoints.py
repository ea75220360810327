"""A secured cluster: each endpoint of each node refuses all but allowed keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from kelek.actors.access.endpoints import ENDPOINTS
from kelek.actors.topology import topology
from kelek.actors.topology.schema import keys_of
from kelek.actors.topology.security import FOREIGN, NO_CURVE
from kelek.actors.topology.settings import BrokerEndpoints, NodeTopology, TableEndpoints
from kelek.net.clock import monotonic_ms
from kelek.protocols.access.certificates import Certificate
from kelek.protocols.access.grants import Right, parse_grants
from kelek.tests.secure_cluster import SecureCluster, new_key

KINDS = {"broadcast_url": zmq.SUB, "zerodb.events_url": zmq.SUB, "zerodb.pull_url": zmq.PUSH,
         "zerodb.sub_url": zmq.PUB}  # fmt: skip
EVERYTHING = "log.read log.append tables:*:rw services:* jobs worker:* observer admin peer"
ENDED = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "accepted",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "refused",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "failed",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "failed",
    zmq.EVENT_DISCONNECTED: "failed",
}
DEADLINE_MS = 10_000
UNKNOWN = new_key("eve")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SecureCluster]:
    running = SecureCluster()
    try:
        for name, grants in (("ann", EVERYTHING), ("none", "zre"), ("gone", EVERYTHING)):
            running.allow(name, grants, KEYS[name])
        running.start()
        running.wait(lambda: running.log().count("ready node=n") >= 3 * 7)
        running.revoke("gone")
        running.wait(lambda: "key-revoked name=gone" in running.log())
        yield running
    finally:
        running.stop()


KEYS = {name: new_key(name) for name in ("ann", "none", "gone")}


def outcome(url: str, kind: int, own: Certificate | None, server_key: bytes) -> str:
    """How the handshake of a connection ends."""
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        if own is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, server_key)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public_key)
            socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret_key)
        monitor = socket.get_monitor_socket()
        socket.connect(url)
        until_ms = monotonic_ms() + DEADLINE_MS
        found = ""
        while not found and monitor.poll(max(0, until_ms - monotonic_ms())):
            event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
            found = ENDED.get(event, "")  # type: ignore[call-overload]
        socket.disable_monitor()
        monitor.close()
        return found


def kind_of(endpoint: str) -> int:
    return KINDS.get(endpoint.partition(".")[2], zmq.DEALER)


def test_each_endpoint_has_its_rights() -> None:
    every = {name for name in keys_of(NodeTopology) if name.endswith("url")}
    for role, section in (("zerodb", TableEndpoints), ("broker", BrokerEndpoints)):
        every |= {f"{role}.{name}" for name in keys_of(section)}
    secured = {it for it in every if not it.rpartition(".")[2].startswith(FOREIGN)}
    assert set(ENDPOINTS) == secured - set(NO_CURVE)


def test_each_right_has_an_endpoint() -> None:
    served = Right(0)
    for endpoint in ENDPOINTS.values():
        served |= endpoint.serves
    assert parse_grants("internal").rights & ~served == Right.ZRE


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("allowed", "accepted"), ("unknown key", "refused"), ("revoked key", "refused"),
        ("no grant", "refused"), ("wrong server key", "failed"), ("no CURVE", "failed"),
    ],
)  # fmt: skip
def test_every_endpoint_of_the_topology(cluster: SecureCluster, case: str, expected: str) -> None:
    found = topology.load(str(cluster.topology))
    assert {*found.server_keys} == {*cluster.urls.values()}
    own = {
        "unknown key": UNKNOWN, "revoked key": KEYS["gone"], "no grant": KEYS["none"],
        "no CURVE": None,
    }.get(case, KEYS["ann"])  # fmt: skip
    results = {}
    for endpoint, url in cluster.urls.items():
        node = "n1" if not endpoint.startswith("n1.") else "n2"
        server = node if case == "wrong server key" else endpoint.partition(".")[0]
        server_key = cluster.node_keys[server].public_key
        results[endpoint] = outcome(url, kind_of(endpoint), own, server_key)
    assert results == dict.fromkeys(cluster.urls, expected)


def test_no_secret_is_in_files_and_arguments(cluster: SecureCluster) -> None:
    assert cluster.process is not None
    secrets = [
        path.read_text().partition("secret-key")[2].split('"')[1]
        for path in cluster.keys.glob("*.key_secret")
    ]
    assert len(secrets) == 6
    texts = [cluster.log(), Path(f"/proc/{cluster.process.pid}/cmdline").read_text()]
    texts += [
        path.read_bytes().decode("latin-1")
        for path in cluster.folder.rglob("*")
        if path.is_file() and path.suffix != ".key_secret"
    ]
    assert not [secret for secret in secrets for text in texts if secret in text]
