"""A kelek node in a ZRE network: its HELLO headers announce the node's services.

The rules are in protocols/zre/node.py; zre_beacon sends and receives the datagrams.
"""

import os
import time
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from itertools import islice

import zmq

from ...native.net.messages import Arena
from ...net.sockets import CurveClient, SocketOptions
from ...net.zre import NodeSockets
from ...protocols.access.certificates import decode_key
from ...protocols.access.zap import KeyChange
from ...protocols.errors import LocalProtocolError
from ...protocols.zre import services, values
from ...protocols.zre.beacon import Beacon, own_uuid
from ...protocols.zre.codec import endpoint_of, parse_endpoint
from ...protocols.zre.effects import NodeSetup
from ...protocols.zre.log import encode_report, report_of
from ...protocols.zre.peers import Event, EventKind, Peer, PeerInfo
from ...protocols.zre.presence import encode_presence, presence_of
from ...protocols.zre.values import Malformed, Times, Version
from ..errors import OperatorError
from ..runtime.actor import Actor
from ..topology.farm import public_endpoint
from ..topology.settings import NodeSettings
from .keys import zre_keys
from .pipes import BEACON, HWM, NODE, decode_heard, interface_of
from .reports import EventReport, Reports

MESSAGES_HWM = 1000  # Of one peer, that wait to be received.
STATUS_PEERS_MAX = 64  # That the status names; all are counted.
STATUS_GROUPS_MAX = 8  # Of each.
MESSAGE_BYTES_MAX = 1 << 20  # This node expects only small messages.
NETWORK = ("tcp://", "tls://")  # Urls that other machines can reach.
GOODBYE_MS = 50  # For the goodbye to reach zre_beacon.
LOGGED_EVENTS = {EventKind.ENTER, EventKind.EXIT}  # Events that are written to the process log.


class ZreNode(Actor):
    """Speaks both versions of ZRE (docs/protocols/zre.md).

    mailbox   ROUTER  as in NodeSockets         from peers, at a port in 61000-65535
    dealers   DEALER  as in NodeSockets         to one peer each
    heard     PULL    zre_pipes                 from zre_beacon
    sends     PUSH    zre_pipes                 to zre_beacon
    services  PULL    zre_pipes                 from processes of this node that offer services
    reports   XPUB    [report] or [presence]    to each log service that a peer announces
    """

    role = NODE
    # A peer and its log service, each with the two ends of a monitor.
    sockets_max = 6 * values.PEERS_MAX + 64

    def on_start(self) -> None:
        settings = self.settings.zre
        interface = interface_of(self.setup)
        self.pull("heard", self._on_heard, hwm=HWM)
        self.pull("services", self._on_services, hwm=HWM)
        self._sends = self.connect_pipe(zmq.PUSH, BEACON, "sends", hwm=HWM)
        self._subnets = tuple(ip_network(text) for text in settings.subnets)
        places = self.setup.places
        self._keys = keys = zre_keys(self, interface)
        mailbox = SocketOptions(
            hwm=MESSAGES_HWM,
            message_bytes_max=MESSAGE_BYTES_MAX,
            curve=keys.server if keys else None,
        )
        try:
            self.node = NodeSockets(self, self._node_setup(interface.address), mailbox)
        except LocalProtocolError as error:
            raise OperatorError(
                places["zre.static_peers"], str(error), "write tcp://ADDRESS:PORT"
            ) from error
        except zmq.ZMQError as error:
            raise no_free_port(places["zre.interface"]) from error
        self.machine = self.node.machine
        self.listen(self.node.mailbox, self._on_mailbox)
        if keys is not None:
            setup = self.machine.setup
            keys.check(zmq.ROUTER, endpoint_of(setup.address, setup.port))
        self.reports = Reports(self)
        self._offered: dict[str, str] = {}  # Headers by what processes of this node offer.
        self._gone_ms: int | None = None
        setup = self.machine.setup
        self.log("mailbox", address=setup.address, port=setup.port, uuid=setup.uuid.hex())
        self.ready()

    def _node_setup(self, address: str) -> NodeSetup:
        settings = self.settings.zre
        return NodeSetup(
            own_uuid(os.urandom(14)),
            address,
            0,
            self.setup.node,
            service_headers(self.setup.cluster, self.settings),
            Version.V1 if settings.greeting == "v1" else Version.V2,
            static_peers=tuple(settings.static_peers),
            subnets=self._subnets,
            gossip=settings.gossip,
            public_key=self._keys.own.public_key if self._keys else b"",
            keyring=self._keys.gate.keyring if self._keys else None,
            times=Times(
                settings.beacon_ms,
                settings.greet_wait_ms,
                settings.evasive_ms,
                settings.silent_ms,
                settings.expired_ms,
            ),
        )

    # ---- receiving ----

    def _on_mailbox(self, arena: Arena) -> None:
        self.machine.on_messages(arena, self.now_ms)

    def _on_heard(self, arena: Arena) -> None:
        for frames in arena.messages():
            for uuid, port, source, key in decode_heard(frames):
                self.machine.on_beacon(Beacon(uuid, port, key), source, self.now_ms)

    def _on_services(self, arena: Arena) -> None:
        for frames in arena.messages():
            name, value = (frame.decode() for frame in frames)
            if self._offered.get(name) == value:
                continue
            self._offered[name] = value
            self._announce()
            if name == services.PRESENCE and self.settings.zre.report:
                own_key = self.machine.setup.public_key
                self.reports.connect(self.machine.uuid, value, self._curve(own_key), is_kelek=True)

    def on_settings_changed(self) -> None:
        self._announce()

    def _announce(self) -> None:
        """Greets all peers again if other services are to be announced."""
        known = self.machine.setup.headers
        headers = service_headers(self.setup.cluster, self.settings) | self._offered
        for name in sorted(known.keys() | headers.keys()):
            if known.get(name) != headers.get(name):
                self.log("service_headers", header=name, value=headers.get(name, "-"))
        self.machine.set_headers(headers, self.now_ms)

    def on_keys_changed(self, changes: Sequence[KeyChange]) -> None:
        self.machine.on_keys_changed()

    # ---- the loop ----

    def on_wake(self, now_ms: int) -> None:
        self._run_effects(now_ms)
        while self.machine.has_effects:  # A peer without room was removed: other peers hear of it.
            self._run_effects(now_ms)

    def _run_effects(self, now_ms: int) -> None:
        effects = self.node.run_effects(now_ms)
        for beacon in effects.beacons:
            self.send(self._sends, [beacon])
        for event in effects.events:
            self._on_event(event)

    # ---- events ----

    def _on_event(self, event: Event) -> None:
        if event.peer is None:
            return
        if event.kind in LOGGED_EVENTS:
            word = "entered" if event.kind is EventKind.ENTER else "left"
            self.log(f"peer-{word}", name=event.peer.name, endpoint=event.peer.endpoint)
        if event.kind in (EventKind.ENTER, EventKind.CHANGED):
            self._report_to(event.peer)
        event_report = self._report_of(event, time.time_ns() // 1_000_000)
        if event_report is not None and self.settings.zre.report:
            self.reports.send(event_report)
        if event.kind is EventKind.EXIT:
            self.reports.disconnect(event.peer.uuid)

    def _report_of(self, event: Event, unix_ms: int) -> EventReport | None:
        """The reports of an event for log services, if any."""
        uuid, name = self.machine.uuid, self.machine.setup.name
        presence = presence_of(event, uuid, name, unix_ms)
        if presence is None:
            return None
        report = report_of(event, uuid, unix_ms)
        return EventReport(report and encode_report(report), encode_presence(presence))

    # RFC 20: any node wishing to send log data SHALL create a PUB socket and connect it to the
    # endpoint of the log service.
    def _report_to(self, peer: PeerInfo) -> None:
        if self.settings.zre.report:
            for header in (services.PRESENCE, services.ZRE_LOG):
                endpoint = peer.headers.get(header, "")
                if self._is_allowed(endpoint, peer):
                    is_kelek = header == services.PRESENCE
                    # The peer has proven its key, and its node has one key.
                    key = decode_key(peer.public_key) if peer.public_key else b""
                    self.reports.connect(peer.uuid, endpoint, self._curve(key), is_kelek=is_kelek)
                    return
        self.reports.disconnect(peer.uuid)

    def _curve(self, key: bytes) -> CurveClient | None:
        return self._keys.client(key) if self._keys else None

    def _is_allowed(self, endpoint: str, peer: PeerInfo) -> bool:
        """Whether a service is at its node's address or in our subnets; other addresses could be a
        victim's."""
        try:
            address, _ = parse_endpoint(endpoint)
            if address == parse_endpoint(peer.endpoint)[0]:
                return True
            return any(ip_address(address) in subnet for subnet in self._subnets)
        except (Malformed, ValueError):
            return False

    # ---- stopping ----

    def on_stop_requested(self) -> None:
        self.machine.stop()
        self._gone_ms = self.now_ms + GOODBYE_MS

    def drained(self) -> bool:
        return self._gone_ms is None or self.now_ms >= self._gone_ms

    def deadline_ms(self) -> int | None:
        return self._gone_ms if self._gone_ms is not None else self.machine.deadline_ms

    def status(self) -> dict[str, object]:
        machine = self.machine
        greeted = (peer for peer in machine.peer_table if peer.ready and peer.info)
        return {
            **machine.status(),
            "mailbox": machine.setup.port,
            "endpoint": endpoint_of(machine.setup.address, machine.setup.port),
            "known": {it.endpoint: _peer_status(it) for it in islice(greeted, STATUS_PEERS_MAX)},
        }


def _peer_status(peer: Peer) -> dict[str, object]:
    assert peer.info is not None
    return {
        "name": peer.info.name,
        "cluster": peer.info.headers.get(services.CLUSTER, ""),
        "groups": sorted(peer.groups)[:STATUS_GROUPS_MAX],
        "silent": peer.times.silence_stage > 0,
    }


def no_free_port(place: str) -> OperatorError:
    ports = f"{values.MAILBOX_BIND_MIN} to {values.MAILBOX_BIND_MAX}"
    problem = f"no port of {ports} is free there"
    return OperatorError(place, problem, "end the programs that hold them")


def service_headers(cluster: str, settings: NodeSettings) -> dict[str, str]:
    """The headers that announce this node's services; ipc urls are left out."""
    node = settings.node
    urls = {
        services.LOG: node.url,
        services.TABLES: node.tables_url,
        services.BROKER: node.clients_url,
        services.WORKERS: node.workers_url,
        services.FARM: public_endpoint(node.farm) if node.farm else "",
    }
    return {
        services.CLUSTER: cluster,
        **{name: url for name, url in urls.items() if url.startswith(NETWORK)},
    }
