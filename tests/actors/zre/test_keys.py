"""The ZRE actors of a node with CURVE, and which interfaces need it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from kelek.actors.errors import OperatorError
from kelek.actors.topology.security import NodeSecurity
from kelek.actors.topology.settings import NodeSettings
from kelek.actors.zre.keys import zre_keys
from kelek.actors.zre.log import ZreLog
from kelek.actors.zre.node import ZreNode
from kelek.bench.ports import free_port
from kelek.native.net.interfaces import LOOPBACK, Interface
from kelek.net.private_files import replace_file
from kelek.net.sockets import CurveClient, SocketOptions, configure
from kelek.protocols.access.certificates import Certificate, encode_key, format_certificate
from kelek.protocols.zre import codec, services
from kelek.protocols.zre.beacon import decode_beacon
from kelek.protocols.zre.codec import Hello
from kelek.protocols.zre.identities import HEADER
from kelek.protocols.zre.log import Report, encode_report
from kelek.protocols.zre.values import Level, LogEvent, Version
from kelek.tests.actors.actor_harness import ActorHarness, Socket
from kelek.tests.actors.zre.zre_settings import PEER, receive, settings
from kelek.tests.clients.curve_gate import new_key, write_key

OPEN = Interface("eth0", "10.0.0.1", "10.0.0.255")
REPORT = encode_report(Report(Level.INFO, LogEvent.ENTER, 1, 2, 1_700_000_000_000, "x"))


class Keys:
    """The key of the node n1, and its allow directory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.allowed = folder, folder / "allowed"
        self.allowed.mkdir()
        self.own = new_key("n1")

    def allow(self, name: str, grants: str = "zre") -> Certificate:
        key = new_key(name)
        public = Certificate(key.public_key, b"", {"name": name, "grants": grants})
        replace_file(self.allowed / f"{name}.key", format_certificate(public), 0o644)
        return key

    def settings(self, node: dict[str, Any] | None = None, **zre: Any) -> NodeSettings:
        made = settings(node, **zre)
        security = NodeSecurity(
            allow=str(self.allowed),
            enforce=True,
            key_file=str(write_key(self.folder, self.own)),
            node_keys={"n1": encode_key(self.own.public_key)},
            server_keys={},
            insecure=(),
            foreign_grants="",
        )
        server_key = encode_key(self.own.public_key)
        return replace(made, node=replace(made.node, server_key=server_key), security=security)

    def client(self, harness: ActorHarness, kind: int, key: Certificate, endpoint: str) -> Socket:
        """A socket connected to the node."""
        socket = harness.socket(kind)
        curve = CurveClient(self.own.public_key, key.public_key, key.secret_key)
        routing_id = codec.routing_id(PEER, Version.V2) if kind == zmq.DEALER else b""
        configure(socket, kind, SocketOptions(curve=curve, routing_id=routing_id))
        socket.connect(endpoint)
        return socket


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def test_a_secured_node_greets_allowed_keys(
    harness: ActorHarness, tmp_path: Path, keys: Keys
) -> None:
    ann, eve = keys.allow("ann"), keys.allow("eve", "log.read")
    sends = harness.bind("zre_beacon.sends")
    node: ZreNode = harness.start_actor(ZreNode, str(tmp_path), 1, keys.settings())
    beacon = decode_beacon(receive(harness, sends)[0])
    assert beacon.key == keys.own.public_key
    endpoint = f"tcp://{LOOPBACK}:{beacon.port}"
    keys.client(harness, zmq.DEALER, eve, endpoint)
    harness.run_until(lambda: node.counters["connection-refused"])
    mailbox, port = harness.socket(zmq.ROUTER), free_port()
    mailbox.setsockopt(zmq.CURVE_SERVER, 1)
    mailbox.setsockopt(zmq.CURVE_SECRETKEY, ann.secret_key)
    mailbox.bind(f"tcp://{LOOPBACK}:{port}")
    dealer = keys.client(harness, zmq.DEALER, ann, endpoint)
    headers = {HEADER: encode_key(ann.public_key)}
    hello = Hello(LOOPBACK, port, (), 0, "ann", headers)
    dealer.send_multipart(codec.encode(1, hello, Version.V2))
    _, *frames = receive(harness, mailbox)
    answer = codec.decode(frames, Version.V2)[1]
    assert isinstance(answer, Hello)
    assert answer.headers[HEADER] == encode_key(keys.own.public_key)
    assert answer.headers[services.CLUSTER] == "c"
    assert node.status()["peers"] == 1
    (keys.allowed / "ann.key").unlink()
    harness.run_until(lambda: node.status()["peers"] == 0)
    assert node.machine.counters["revoked"] == 1


def test_a_secured_log_service_takes_reports_of_allowed_keys(
    harness: ActorHarness, tmp_path: Path, keys: Keys
) -> None:
    harness.bind("zre_node.services")
    ann, eve = keys.allow("ann"), new_key("eve")
    made = keys.settings({"log_service": "log"})
    log: ZreLog = harness.start_actor(ZreLog, str(tmp_path), 1, made)
    endpoint = str(log.status()["endpoint"])
    refused = keys.client(harness, zmq.PUB, eve, endpoint)
    harness.run_until(lambda: log.counters["connection-refused"])
    reports = keys.client(harness, zmq.PUB, ann, endpoint)

    def is_received() -> bool:
        refused.send(b"forged")
        reports.send(REPORT)
        return bool(log.in_flight)

    harness.run_until(is_received)
    assert log.in_flight[0].updates[0] == REPORT
    assert not log.counters["report_signature"] + log.counters["report_short"]


def test_an_interface_that_others_reach_needs_curve(
    harness: ActorHarness, tmp_path: Path, keys: Keys
) -> None:
    harness.bind("zre_beacon.sends")
    node: ZreNode = harness.start_actor(ZreNode, str(tmp_path), 1, settings())
    with pytest.raises(OperatorError, match=r"10\.0\.0\.1 has no CURVE.*`insecure: \[zre\]`"):
        zre_keys(node, OPEN)
    made = node.settings
    node.settings = replace(made, node=replace(made.node, insecure=("zre",)))
    assert zre_keys(node, OPEN) is None
    secured = keys.settings()
    node.settings = replace(secured, node=replace(secured.node, insecure=("zre",)))
    assert zre_keys(node, OPEN) is None
