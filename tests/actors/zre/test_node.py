"""The actor zre_node: greetings, announced services, reports, and floods of beacons."""

from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from kelek.actors.topology.farm import NodeFarmSettings
from kelek.actors.topology.settings import BrokerEndpoints, TableEndpoints
from kelek.actors.zre import pipes as zre_pipes
from kelek.actors.zre.node import ZreNode, service_headers
from kelek.bench.ports import free_port
from kelek.native.net.datagrams import ReceivedBeacon
from kelek.native.net.interfaces import LOOPBACK
from kelek.protocols.zre import codec, services, values
from kelek.protocols.zre.beacon import Beacon, decode_beacon, own_uuid
from kelek.protocols.zre.codec import Hello, Ping, PingOk
from kelek.protocols.zre.log import decode_report, uuid_hash
from kelek.protocols.zre.presence import PresenceEvent, decode_presence
from kelek.protocols.zre.values import LogEvent, Version
from kelek.tests.actors.actor_harness import ActorHarness, Socket
from kelek.tests.actors.conftest import ShiftedClock
from kelek.tests.actors.node_settings import node_settings
from kelek.tests.actors.zre.zre_settings import PEER, SILENT_MS, receive, settings


class ForeignPeer:
    """A peer of another implementation: a mailbox, and a DEALER after connect()."""

    def __init__(self, harness: ActorHarness, actor: ZreNode, version: Version) -> None:
        self.harness, self.actor, self.version = harness, actor, version
        self.mailbox = harness.socket(zmq.ROUTER)
        self.mailbox.router_handover = True
        self.port = free_port()
        self.mailbox.bind(f"tcp://{LOOPBACK}:{self.port}")
        self.dealer = harness.socket(zmq.DEALER)
        self.dealer.routing_id = codec.routing_id(PEER, version)
        self.sequence = 0

    def connect(self) -> None:
        self.dealer.connect(f"tcp://{LOOPBACK}:{self.actor.status()['mailbox']}")

    def send(self, command: codec.Command) -> None:
        self.sequence = 1 if isinstance(command, Hello) else self.sequence + 1
        self.dealer.send_multipart(codec.encode(self.sequence, command, self.version))

    def hello(self, **headers: str) -> Hello:
        name = "foreign" if self.version is Version.V2 else ""
        return Hello(LOOPBACK, self.port, (), 0, name, {k.replace("_", "-"): v
                                                         for k, v in headers.items()})  # fmt: skip

    def next(self) -> tuple[Version, codec.Command]:
        """The next command of the node, and its version of ZRE."""
        routing_id, *frames = receive(self.harness, self.mailbox)
        uuid, version = codec.identify(routing_id)
        assert uuid == self.actor.machine.uuid
        return version, codec.decode(frames, version)[1]


@pytest.fixture
def node(harness: ActorHarness, tmp_path: Path) -> ZreNode:
    harness.bind("zre_beacon.sends")
    actor: ZreNode = harness.start_actor(ZreNode, str(tmp_path), 1, settings())
    return actor


def test_a_node_announces_its_services(harness: ActorHarness, node: ZreNode) -> None:
    sends = harness.sockets[-1]
    beacon = decode_beacon(receive(harness, sends)[0])
    assert beacon == Beacon(node.machine.uuid, node.machine.setup.port)
    assert 0xC000 <= beacon.port <= 0xFFFF
    peer = ForeignPeer(harness, node, Version.V2)
    beacons = harness.connect("zre_node.heard")
    beacons.send_multipart(zre_pipes.encode_heard([ReceivedBeacon(PEER, peer.port, LOOPBACK)]))
    version, hello = peer.next()
    assert version is Version.V2
    assert isinstance(hello, Hello)
    assert (hello.address, hello.port, hello.name) == (LOOPBACK, beacon.port, "n1")
    assert hello.headers == {services.CLUSTER: "c", services.LOG: node.settings.node.url}


@pytest.mark.parametrize("version", list(Version))
def test_a_peer_is_answered_in_its_version(
    harness: ActorHarness, node: ZreNode, version: Version
) -> None:
    peer = ForeignPeer(harness, node, version)
    peer.connect()
    peer.send(peer.hello())
    answer_version, hello = peer.next()
    assert answer_version is version
    assert isinstance(hello, Hello)
    peer.send(Ping())
    assert peer.next() == (version, PingOk())
    harness.run_until(lambda: node.status()["peers"] == 1)


def test_changed_services_are_announced_beside_those_of_other_processes(
    harness: ActorHarness, node: ZreNode
) -> None:
    peer = ForeignPeer(harness, node, Version.V2)
    peer.connect()
    peer.send(peer.hello())
    harness.connect("zre_node.services").send_multipart(
        [services.ZRE_LOG.encode(), b"tcp://127.0.0.1:9"]
    )
    headers: dict[str, str] = {}
    while services.ZRE_LOG not in headers:
        _, hello = peer.next()
        assert isinstance(hello, Hello)
        headers = hello.headers
    urls = {"clients_url": "tcp://h:2", "workers_url": "tcp://h:3"}
    for broker, header in ((BrokerEndpoints(**urls), {services.BROKER: "tcp://h:2",
                                                      services.WORKERS: "tcp://h:3"}),
                           (None, {})):  # fmt: skip
        changed = replace(node.settings, node=replace(node.settings.node, broker=broker))
        setup = replace(node.setup, settings=changed)
        name = b"n1/zre_node/1"
        harness.control.send_multipart([name, b"setup", setup.to_json().encode()])
        _, hello = peer.next()
        assert isinstance(hello, Hello)
        assert hello.headers == {**headers, **header}
    node.on_settings_changed()
    assert not node.machine.has_effects, "no greeting without a difference"


def test_reports_go_to_an_announced_log_service(harness: ActorHarness, node: ZreNode) -> None:
    peer = ForeignPeer(harness, node, Version.V2)
    reports, endpoint = bind_log_service(harness)
    peer.connect()
    peer.send(peer.hello(X_ZRELOG=endpoint))
    assert isinstance(peer.next()[1], Hello)
    peer.send(codec.Join("g", 1))
    for event in (LogEvent.ENTER, LogEvent.JOIN):  # The reports wait until the SUB has connected.
        report = decode_report(receive(harness, reports))
        assert (report.event, report.peer) == (event, uuid_hash(PEER))
    harness.connect("zre_node.services").send_multipart(
        [services.ZRE_LOG.encode(), b"tcp://127.0.0.1:9"]
    )
    command: codec.Command = Ping()
    while not isinstance(command, Hello):
        command = peer.next()[1]
    assert command.headers[services.ZRE_LOG] == "tcp://127.0.0.1:9"


def bind_log_service(harness: ActorHarness) -> tuple[Socket, str]:
    """The socket of a log service, and its endpoint."""
    reports = harness.socket(zmq.SUB)
    reports.subscribe(b"")
    port = free_port()
    reports.bind(f"tcp://{LOOPBACK}:{port}")
    return reports, f"tcp://{LOOPBACK}:{port}"


def test_presence_goes_to_a_log_service_of_kelek(harness: ActorHarness, node: ZreNode) -> None:
    """It has names, headers and events that the specification lacks."""
    peer = ForeignPeer(harness, node, Version.V2)
    reports, endpoint = bind_log_service(harness)
    peer.connect()
    headers = {"X_ZRELOG": endpoint, "X_KELEK_PRESENCE": endpoint}
    peer.send(peer.hello(**headers))
    assert isinstance(peer.next()[1], Hello)
    peer.send(codec.Join("g", 1))
    entered, joined = (decode_presence(receive(harness, reports)) for _ in range(2))
    assert (entered.event, joined.event) == (PresenceEvent.ENTER, PresenceEvent.JOIN)
    assert (entered.node, entered.node_name) == (node.machine.uuid, "n1")
    assert (entered.peer, entered.peer_name, joined.group) == (PEER, "foreign", "g")
    assert entered.headers == {services.PRESENCE: endpoint, services.ZRE_LOG: endpoint}
    assert entered.endpoint == f"tcp://{LOOPBACK}:{peer.port}"
    peer.send(peer.hello(**headers, X_MOOD="good"))
    changed = decode_presence(receive(harness, reports))
    assert (changed.event, changed.headers["X-MOOD"]) == (PresenceEvent.CHANGED, "good")


def test_a_log_service_at_a_foreign_address_is_ignored(
    harness: ActorHarness, node: ZreNode
) -> None:
    peer = ForeignPeer(harness, node, Version.V2)
    peer.connect()
    peer.send(peer.hello(X_ZRELOG="tcp://10.0.0.9:9"))
    harness.run_until(lambda: node.status()["peers"] == 1)
    assert len(node.reports) == 0


def test_a_peer_without_room_for_messages_is_dropped(
    harness: ActorHarness, node: ZreNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mailbox listens, and the send buffer has room for the HELLO only."""
    monkeypatch.setattr(values, "SEND_HWM", 1)
    peer = ForeignPeer(harness, node, Version.V2)
    peer.connect()
    peer.send(peer.hello()._replace(port=free_port()))
    harness.run_until(lambda: node.status()["peers"])
    peer.send(Ping())
    harness.run_until(lambda: node.machine.counters["full"])
    assert (node.status()["peers"], node.node.dealers) == (0, {})
    peer.send(peer.hello())
    assert isinstance(peer.next()[1], Hello), "it is a peer again"


@pytest.mark.parametrize("harness", [40], indirect=True)
def test_a_flood_of_beacons_that_takes_all_sockets(
    harness: ActorHarness, tmp_path: Path, clock: ShiftedClock
) -> None:
    """The node keeps running without a socket for each, and greets the real peer later."""
    harness.bind("zre_beacon.sends")
    actor: ZreNode = harness.start_actor(ZreNode, str(tmp_path), 1, settings())
    peer = ForeignPeer(harness, actor, Version.V2)
    forged = [
        ReceivedBeacon(own_uuid(i.to_bytes(14, "little")), i, LOOPBACK) for i in range(1, 101)
    ]
    harness.connect("zre_node.heard").send_multipart(zre_pipes.encode_heard(forged))
    counters = actor.machine.counters
    harness.run_until(lambda: counters["unreachable"])
    assert len(actor.node.dealers) < 40
    clock.shift_ms = SILENT_MS  # The forged peers have been silent for too long.
    harness.run_until(lambda: counters["unreachable"] + counters["never_greeted"] == 100)
    peer.connect()

    def has_answer() -> object:
        if not actor.node.dealers:  # The sockets of the forged peers close asynchronously.
            peer.send(peer.hello())
        return peer.mailbox.poll(0)

    harness.run_until(has_answer)
    assert isinstance(peer.next()[1], Hello)


def test_a_stopped_node_broadcasts_a_goodbye(harness: ActorHarness, node: ZreNode) -> None:
    sends = harness.sockets[-1]
    receive(harness, sends)
    node.request_stop()
    while decode_beacon(receive(harness, sends)[0]).port:
        pass  # An earlier beacon.
    harness.run_until(node.drained)
    assert node.status()["peers"] == 0


def test_service_headers() -> None:
    found = service_headers(
        "c",
        node_settings(
            {
                "url": "ipc:///tmp/x",
                "zerodb": TableEndpoints(url="tcp://h:1"),
                "broker": BrokerEndpoints(clients_url="tcp://h:2", workers_url="tcp://h:3"),
                "farm": NodeFarmSettings(url="tcp://h:4"),
            }
        ),
    )
    assert found == {
        services.CLUSTER: "c",
        services.TABLES: "tcp://h:1",
        services.BROKER: "tcp://h:2",
        services.WORKERS: "tcp://h:3",
        services.FARM: "tls://h:4",
    }
