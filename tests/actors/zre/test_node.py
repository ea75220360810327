"""The actors of ZRE over real sockets, each alone in the test's thread: the test is all others."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from kelek.actors.errors import OperatorError
from kelek.actors.topology.farm import NodeFarmSettings
from kelek.actors.topology.settings import (
    BrokerEndpoints,
    NodeAddresses,
    NodeSettings,
    TableEndpoints,
)
from kelek.actors.topology.zre import NodeZreSettings, ZreSettings
from kelek.actors.zre import pipes as zre_pipes
from kelek.actors.zre.beacon import ZreBeacon
from kelek.actors.zre.log import KEY, ZreLog
from kelek.actors.zre.node import ZreNode, service_headers
from kelek.native.net.datagrams import ReceivedBeacon
from kelek.native.net.interfaces import LOOPBACK, LOOPBACK_BROADCAST
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zre import codec, services, values
from kelek.protocols.zre.beacon import Beacon, decode_beacon, encode_beacon, own_uuid
from kelek.protocols.zre.codec import Hello, Ping, PingOk
from kelek.protocols.zre.limiter import Limiter, Rate
from kelek.protocols.zre.log import Report, decode_report, encode_report, uuid_hash
from kelek.protocols.zre.presence import Presence, PresenceEvent, decode_presence, encode_presence
from kelek.protocols.zre.values import LOG_SERVICE, Level, LogEvent, Version
from kelek.tests.actors.actor_harness import ActorHarness, Socket
from kelek.tests.actors.conftest import ShiftedClock
from kelek.tests.actors.node_settings import node_settings
from kelek.tests.ports import free_port, free_udp_port

SILENT_MS = 400_000
PEER = own_uuid(b"\x22" * 14)
REPORT = Report(Level.INFO, LogEvent.ENTER, 1, 2, 1_700_000_000_000, "x")
SAID = Presence(
    PresenceEvent.ENTER, REPORT.time_ms, bytes(16), "n1", PEER, "b", "tcp://h:1", Version.V2
)


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[ActorHarness]:
    """Of a parameter, so many sockets."""
    harness = ActorHarness(*([request.param] if hasattr(request, "param") else []))
    yield harness
    harness.close()


def settings(node: dict[str, Any] | None = None, **zre: Any) -> NodeSettings:
    """Of a node on loopback whose cluster does not run.

    node   keys of its own `zre:`
    """
    # No time passes for peers, however slow this machine is.
    times = {"evasive_ms": 200_000, "silent_ms": SILENT_MS, "expired_ms": 600_000}
    own = {"interface": LOOPBACK, "broadcast_address": LOOPBACK_BROADCAST, **(node or {})}
    url = f"tcp://{LOOPBACK}:{free_port()}"
    return node_settings(
        {"url": url, "zre": NodeZreSettings(**own)},
        zre=ZreSettings(**{"port": free_udp_port(), **times, **zre}),
        members={"n1": NodeAddresses(url=url)},
    )


def received(harness: ActorHarness, socket: Socket) -> list[bytes]:
    """The next message, while the actor runs."""
    harness.run_until(lambda: socket.poll(0))
    return socket.recv_multipart()


# ---- zre_beacon ----


def test_beacons_go_out_and_come_in(harness: ActorHarness, tmp_path: Path) -> None:
    told = harness.bind("zre_node.heard")
    actor: ZreBeacon = harness.start_actor(ZreBeacon, str(tmp_path), 1, settings(beacon_ms=600_000))
    sends = harness.connect("zre_beacon.sends")
    beacon = encode_beacon(Beacon(PEER, 61_000))
    sends.send(beacon)
    heard = zre_pipes.decode_heard(received(harness, told))
    assert heard == [ReceivedBeacon(PEER, 61_000, LOOPBACK)], "a broadcast reaches its sender, too"
    sends.send(beacon)
    harness.run_until(lambda: actor.counters["repeated"])
    assert not told.poll(0), "what was just passed on is left out"
    assert actor.counters["sent"] == 2


def test_a_flood_of_datagrams_is_dropped(harness: ActorHarness, tmp_path: Path) -> None:
    """Junk is counted in C; beacons of one source are passed on no faster than a rate."""
    told = harness.bind("zre_node.heard")
    actor: ZreBeacon = harness.start_actor(ZreBeacon, str(tmp_path), 1, settings())
    actor.limiter = Limiter(Rate(burst=100, per_s=0))
    address = LOOPBACK, actor.settings.zre.port

    def judged() -> int:
        counts = actor.counters
        return counts["heard"] + counts["refused"] + actor.udp.flooded

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for i in range(100):
            sender.sendto(b"ZRE\x02" + i.to_bytes(18), address)
        harness.run_until(lambda: actor.udp.malformed >= 100)
        for first in range(0, 5000, 100):
            before = judged()
            for i in range(first, first + 100):
                uuid = b"\x07" + i.to_bytes(15)
                sender.sendto(encode_beacon(Beacon(uuid, 1 + i)), address)
            harness.run_until(lambda before=before: judged() > before)  # type: ignore[misc]
    assert told.poll(0)
    assert actor.counters["heard"] == 100
    assert actor.status()["malformed"] == 100


def test_an_interface_that_is_not_there(harness: ActorHarness, tmp_path: Path) -> None:
    harness.places["zre.interface"] = "t.yaml: nodes.n1.zre.interface"
    with pytest.raises(OperatorError, match=r"interface: no interface 'eth77'; there are .*lo; na"):
        harness.start_actor(ZreBeacon, str(tmp_path), 1, settings({"interface": "eth77"}))


# ---- zre_node ----


class ForeignPeer:
    """A peer of the node's: a mailbox and, once it knows where, a DEALER."""

    actor: ZreNode

    def __init__(
        self,
        harness: ActorHarness,
        actor: ZreNode | None,
        version: Version,
        port: int = 0,
        uuid: bytes = PEER,
    ) -> None:
        self.harness, self.version = harness, version
        if actor is not None:
            self.actor = actor
        self.mailbox = harness.socket(zmq.ROUTER)
        self.mailbox.router_handover = True
        self.port = port or free_port()
        self.mailbox.bind(f"tcp://{LOOPBACK}:{self.port}")
        self.dealer = harness.socket(zmq.DEALER)
        self.dealer.routing_id = codec.routing_id(uuid, version)
        self.sequence = 0

    def connect(self) -> None:
        self.dealer.connect(f"tcp://{LOOPBACK}:{self.actor.status()['mailbox']}")

    def say(self, command: codec.Command) -> None:
        self.sequence = 1 if isinstance(command, Hello) else self.sequence + 1
        self.dealer.send_multipart(codec.encode(self.sequence, command, self.version))

    def hello(self, **headers: str) -> Hello:
        name = "stranger" if self.version is Version.V2 else ""
        return Hello(LOOPBACK, self.port, (), 0, name, {k.replace("_", "-"): v
                                                         for k, v in headers.items()})  # fmt: skip

    def next(self) -> tuple[Version, codec.Command]:
        """What the node says next, and in which version."""
        routing_id, *frames = received(self.harness, self.mailbox)
        uuid, version = codec.identify(routing_id)
        assert uuid == self.actor.machine.uuid
        return version, codec.decode(frames, version)[1]


@pytest.fixture
def node(harness: ActorHarness, tmp_path: Path) -> ZreNode:
    harness.bind("zre_beacon.sends")
    actor: ZreNode = harness.start_actor(ZreNode, str(tmp_path), 1, settings())
    return actor


def test_a_node_is_found_and_says_what_it_offers(harness: ActorHarness, node: ZreNode) -> None:
    sends = harness.sockets[-1]
    beacon = decode_beacon(received(harness, sends)[0])
    assert beacon == Beacon(node.machine.uuid, node.machine.setup.port)
    assert 0xC000 <= beacon.port <= 0xFFFF
    stranger = ForeignPeer(harness, node, Version.V2)
    heard = harness.connect("zre_node.heard")
    heard.send_multipart(zre_pipes.encode_heard([ReceivedBeacon(PEER, stranger.port, LOOPBACK)]))
    version, hello = stranger.next()
    assert version is Version.V2
    assert isinstance(hello, Hello)
    assert (hello.address, hello.port, hello.name) == (LOOPBACK, beacon.port, "n1")
    assert hello.headers == {services.CLUSTER: "c", services.LOG: node.settings.node.url}


@pytest.mark.parametrize("version", list(Version))
def test_who_greets_is_answered_in_its_version(
    harness: ActorHarness, node: ZreNode, version: Version
) -> None:
    stranger = ForeignPeer(harness, node, version)
    stranger.connect()
    stranger.say(stranger.hello())
    said = stranger.next()
    assert said[0] is version
    assert isinstance(said[1], Hello)
    stranger.say(Ping())
    assert stranger.next() == (version, PingOk())
    harness.run_until(lambda: node.status()["peers"] == 1)


def test_a_static_peer_that_restarts_as_another_is_greeted_at_once(
    harness: ActorHarness, tmp_path: Path
) -> None:
    """It never greets first, as it does not know us; no time of silence passes here."""
    harness.bind("zre_beacon.sends")
    first = ForeignPeer(harness, None, Version.V2)
    static = (f"tcp://{LOOPBACK}:{first.port}",)
    node: ZreNode = harness.start_actor(ZreNode, str(tmp_path), 1, settings(static_peers=static))
    first.actor = node
    assert isinstance(first.next()[1], Hello)
    first.connect()
    first.say(first.hello())
    harness.run_until(lambda: PEER in node.machine.peers)
    first.mailbox.close(0)
    first.dealer.close(0)
    harness.run_until(lambda: node.machine.counters["disconnected"])
    other = own_uuid(b"\x33" * 14)
    again = ForeignPeer(harness, node, Version.V2, first.port, other)
    assert isinstance(again.next()[1], Hello)
    assert list(node.machine.peers) == [PEER], "a lost connection alone ends no peer"
    again.connect()
    again.say(again.hello())
    harness.run_until(lambda: list(node.machine.peers) == [other])


def test_a_hello_with_another_address_makes_no_connection(
    harness: ActorHarness, node: ZreNode
) -> None:
    """The address must be the one of the connection."""
    stranger = ForeignPeer(harness, node, Version.V2)
    stranger.connect()
    stranger.say(stranger.hello()._replace(address="127.0.0.2"))
    harness.run_until(lambda: node.machine.counters["message_address"])
    assert node.sockets == {}


def test_a_service_is_announced_and_reported_to(harness: ActorHarness, node: ZreNode) -> None:
    stranger = ForeignPeer(harness, node, Version.V2)
    reports, endpoint = service(harness)
    stranger.connect()
    stranger.say(stranger.hello(X_ZRELOG=endpoint))
    assert isinstance(stranger.next()[1], Hello)
    stranger.say(codec.Join("g", 1))
    for event in (LogEvent.ENTER, LogEvent.JOIN):  # Nothing is lost while it connects.
        report = decode_report(received(harness, reports))
        assert (report.event, report.peer) == (event, uuid_hash(PEER))
    harness.connect("zre_node.services").send_multipart(
        [LOG_SERVICE.encode(), b"tcp://127.0.0.1:9"]
    )
    said: codec.Command = Ping()
    while not isinstance(said, Hello):
        said = stranger.next()[1]
    assert said.headers[LOG_SERVICE] == "tcp://127.0.0.1:9"


def service(harness: ActorHarness) -> tuple[Socket, str]:
    """A log service's socket, and where it is."""
    reports = harness.socket(zmq.SUB)
    reports.subscribe(b"")
    port = free_port()
    reports.bind(f"tcp://{LOOPBACK}:{port}")
    return reports, f"tcp://{LOOPBACK}:{port}"


def test_a_service_of_kelek_is_told_who_it_is(harness: ActorHarness, node: ZreNode) -> None:
    """Names, headers, and what the text has no word for."""
    stranger = ForeignPeer(harness, node, Version.V2)
    reports, endpoint = service(harness)
    stranger.connect()
    headers = {"X_ZRELOG": endpoint, "X_KELEK_PRESENCE": endpoint}
    stranger.say(stranger.hello(**headers))
    assert isinstance(stranger.next()[1], Hello)
    stranger.say(codec.Join("g", 1))
    entered, joined = (decode_presence(received(harness, reports)) for _ in range(2))
    assert (entered.event, joined.event) == (PresenceEvent.ENTER, PresenceEvent.JOIN)
    assert (entered.node, entered.node_name) == (node.machine.uuid, "n1")
    assert (entered.peer, entered.peer_name, joined.group) == (PEER, "stranger", "g")
    assert entered.headers == {services.PRESENCE: endpoint, LOG_SERVICE: endpoint}
    assert entered.endpoint == f"tcp://{LOOPBACK}:{stranger.port}"
    stranger.say(stranger.hello(**headers, X_MOOD="good"))
    changed = decode_presence(received(harness, reports))
    assert (changed.event, changed.headers["X-MOOD"]) == (PresenceEvent.CHANGED, "good")


def test_nobody_makes_it_report_elsewhere(harness: ActorHarness, node: ZreNode) -> None:
    stranger = ForeignPeer(harness, node, Version.V2)
    stranger.connect()
    stranger.say(stranger.hello(X_ZRELOG="tcp://10.0.0.9:9"))
    harness.run_until(lambda: node.status()["peers"] == 1)
    assert len(node.reports) == 0


def test_who_takes_nothing_is_let_go(
    harness: ActorHarness, node: ZreNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mailbox that is not there, and a send buffer with room for the greeting alone."""
    monkeypatch.setattr(values, "SEND_HWM", 1)
    stranger = ForeignPeer(harness, node, Version.V2)
    stranger.connect()
    stranger.say(stranger.hello()._replace(port=free_port()))
    harness.run_until(lambda: node.status()["peers"])
    stranger.say(Ping())
    harness.run_until(lambda: node.machine.counters["full"])
    assert (node.status()["peers"], node.sockets) == (0, {})
    stranger.say(stranger.hello())
    assert isinstance(stranger.next()[1], Hello), "it is a peer again"


@pytest.mark.parametrize("harness", [40], indirect=True)
def test_a_flood_of_beacons_that_takes_all_sockets(
    harness: ActorHarness, tmp_path: Path, clock: ShiftedClock
) -> None:
    """It goes on, without those that it has no socket for, and who is there is greeted later."""
    harness.bind("zre_beacon.sends")
    actor: ZreNode = harness.start_actor(ZreNode, str(tmp_path), 1, settings())
    stranger = ForeignPeer(harness, actor, Version.V2)
    forged = [
        ReceivedBeacon(own_uuid(i.to_bytes(14, "little")), i, LOOPBACK) for i in range(1, 101)
    ]
    harness.connect("zre_node.heard").send_multipart(zre_pipes.encode_heard(forged))
    counters = actor.machine.counters
    harness.run_until(lambda: counters["unreachable"])
    assert len(actor.sockets) < 40
    clock.shift_ms = SILENT_MS  # The forged peers have been silent for too long.
    harness.run_until(lambda: counters["unreachable"] + counters["never_greeted"] == 100)
    stranger.connect()

    def answered() -> object:
        if not actor.sockets:  # The others' sockets take a moment to close.
            stranger.say(stranger.hello())
        return stranger.mailbox.poll(0)

    harness.run_until(answered)
    assert isinstance(stranger.next()[1], Hello)


def test_goodbye_is_said(harness: ActorHarness, node: ZreNode) -> None:
    sends = harness.sockets[-1]
    received(harness, sends)
    node.request_stop()
    while decode_beacon(received(harness, sends)[0]).port:
        pass  # One from before.
    harness.run_until(node.drained)
    assert node.status()["peers"] == 0


def test_what_is_announced() -> None:
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


# ---- zre_log ----


def collected(
    harness: ActorHarness, actor: ZreLog, sent: list[bytes], done: Callable[[], object]
) -> None:
    """Publishes until the actor has got it: the first ones are lost on a new connection."""
    reports = harness.socket(zmq.PUB)
    reports.connect(actor.status()["endpoint"])  # type: ignore[arg-type]

    def publish() -> object:
        if not done():
            for data in sent:
                reports.send(data)
        return done()

    harness.run_until(publish)


@pytest.mark.parametrize("into", ["log", "table"])
@pytest.mark.parametrize("frame", [encode_report(REPORT), encode_presence(SAID)])
def test_reports_go_into_the_log(
    harness: ActorHarness, tmp_path: Path, into: str, frame: bytes
) -> None:
    told = harness.bind("zre_node.services")
    actor: ZreLog = harness.start_actor(
        ZreLog, str(tmp_path), 1, settings({"log_service": into}, log_table=7)
    )
    endpoint = str(actor.status()["endpoint"])
    for header in (LOG_SERVICE, services.PRESENCE):
        assert received(harness, told) == [header.encode(), endpoint.encode()]
    port = int(endpoint.rpartition(":")[2])
    assert 0xC000 <= port <= 0xFFFF
    collected(harness, actor, [frame], lambda: actor.in_flight)
    data = actor.in_flight[0].updates[0]
    if into == "log":
        assert data == frame
        return
    (put,) = ops.unpack(data)
    assert isinstance(put, ops.Put)
    assert put.table == 7
    assert put.values[0] == frame
    hashes = (1, 2) if frame == encode_report(REPORT) else (uuid_hash(SAID.node), uuid_hash(PEER))
    assert KEY.unpack(put.keys[0])[:4] == (REPORT.time_ms, *hashes, LogEvent.ENTER)


def test_junk_is_no_report(harness: ActorHarness, tmp_path: Path) -> None:
    harness.bind("zre_node.services")
    actor: ZreLog = harness.start_actor(ZreLog, str(tmp_path), 1, settings({"log_service": "log"}))
    junk = [b"", b"x", b"\xaa\xa2", encode_report(REPORT) + b"x", b"\xaa\xa1" + bytes(16)]
    junk += [encode_presence(SAID)[:-1], encode_presence(SAID) + b"x"]
    collected(
        harness,
        actor,
        junk,
        lambda: actor.counters["report_short"] and actor.counters["report_trailing"],
    )
    assert actor.counters["report_signature"]
    assert actor.status()["waiting"] == 0
