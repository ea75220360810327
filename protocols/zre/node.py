"""The state machine of a ZRE node, without sockets: peers, groups and messages.

The owner passes in datagrams and messages, runs the effects of ready(), and reports failed sends. A
process may have many nodes. The numbers of decisions are those of docs/decisions.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from ...native.net.messages import Arena
from ...native.net.sockets import Drain
from ...native.net.zre import Said
from ..access.certificates import encode_key
from ..errors import LocalProtocolError
from . import codec, gossip, values
from .beacon import Beacon, encode_beacon
from .codec import Command, Hello, Join, Leave, Ping, PingOk, Shout, Unknown, Whisper
from .dialogs import GOODBYE_CHECK_MS, Dialogs
from .identities import HEADER as KEY_HEADER
from .peers import Event, EventKind, Peer, PeerInfo
from .values import ANSWER_BEACON_MS, SEQUENCES, STATUSES, Malformed, Version

WHISPER, SHOUT = EventKind.WHISPER, EventKind.SHOUT  # Attribute access on an Enum is slow.


class NodeMachine(Dialogs):
    """Receives, then acts once in ready(). Times are monotonic milliseconds."""

    # ---- commands of the user ----

    # RFC 20: a node that joins a group SHALL broadcast a JOIN to all its peers, with the status
    # after joining; LEAVE likewise.
    def join(self, group: str) -> None:
        """Joins a group, unless it is a member. LocalProtocolError: an invalid group name."""
        if not 0 < len(group.encode()) <= values.STRING_BYTES_MAX:
            raise LocalProtocolError(f"a group's name has 1 to {values.STRING_BYTES_MAX} octets")
        if group in self.groups:
            return
        if len(self.groups) == values.COUNT_V1_MAX:
            raise LocalProtocolError(f"a node is in {values.COUNT_V1_MAX} groups at most")
        self.groups.add(group)
        self._group_names[group.encode()] = group
        self._on_groups_changed()
        self._send_to_all(Join(group, self._status))
        self._elect(group)

    def leave(self, group: str) -> None:
        """Leaves a group, if it is a member."""
        if group not in self.groups:
            return
        self.groups.remove(group)
        del self._group_names[group.encode()]
        self._on_groups_changed()
        self._send_to_all(Leave(group, self._status))
        self._elect(group)

    def _on_groups_changed(self) -> None:
        self._status = (self._status + 1) % STATUSES
        self._hellos.clear()

    def whisper(self, uuid: bytes, content: list[bytes]) -> bool:
        """Sends content to a peer: one frame or more, one to a v1 peer. False: no such peer.
        LocalProtocolError: the peer's version can't encode it."""
        peer = self.peer_table.uuids.get(uuid)
        if peer is None or peer.send_version is None:
            return False
        if len(content) == 1:
            self.peer_table.traffic.say(peer.to, None, content[0])
            self._to_send[peer.number] = peer
        else:
            self._send(peer, Whisper(content))
        return True

    def shout(self, group: str, content: list[bytes]) -> int:
        """Sends content to all other members of a group; returns their number. v1 peers do not get
        content of several frames, which is counted."""
        members = self.peer_table.groups.get(group, {})
        if len(content) == 1 and members:
            self.peer_table.traffic.say(
                self.peer_table.group_rows(group), group.encode(), content[0]
            )
            self._to_send.update(members)
            return len(members)
        count = 0
        for peer in members.values():
            if peer.send_version is Version.V1:
                self.counters["v1_not_shouted"] += 1
            else:
                self._send(peer, Shout(group, content))
                count += 1
        return count

    def set_headers(self, headers: dict[str, str], now_ms: int) -> None:
        """Sets the headers and greets all peers again, as only HELLO carries headers.
        LocalProtocolError: they can't be encoded."""
        setup = self.setup
        if headers == setup.headers:
            return
        self.setup = setup._replace(headers=headers)
        try:
            for version in Version:
                codec.encode(1, self._hello(version), version)
        except LocalProtocolError:
            self.setup = setup
            raise
        self._hellos.clear()
        for peer in self.peer_table:
            if peer.send_version is not None:
                self._send_hello(peer, peer.send_version, now_ms)

    def stop(self) -> None:
        """Says goodbye; after the next ready() the node sends nothing."""
        if self._stopped:
            return
        self._stopped = True
        if self.setup.beacons and self._has_v2_peers:
            self._beacons.append(encode_beacon(self._beacon(0)))
        for peer in list(self.peer_table):
            self._remove(peer)

    @property
    def _has_v2_peers(self) -> bool:
        """Whether a peer understands a goodbye beacon, which RFC 20 does not have."""
        peers = (peer.send_version for peer in self.peer_table)
        return self.setup.greeting is Version.V2 or Version.V2 in peers

    # ---- beacons ----

    def on_beacon(
        self, beacon: Beacon, source: str, now_ms: int, *, is_local: bool = False
    ) -> None:
        """A beacon has arrived.

        source     the numeric address that it came from
        is_local   the mailbox belongs to a node of this process
        """
        if self._stopped:
            return
        if beacon.uuid == self.uuid:
            self.counters["beacon_own"] += 1  # RFC 20: SHALL discard beacons from itself.
            return
        if bool(beacon.key) != bool(self.setup.public_key):
            # As zyre: nodes with and without CURVE are two networks.
            self.counters["beacon_secured" if beacon.key else "beacon_insecure"] += 1
            return
        if self._on_loopback and not _is_loopback(source):
            # The socket receives from all interfaces. Loopback can't reach other addresses.
            self.counters["beacon_elsewhere"] += 1
            return
        if not self._may_announce(beacon.uuid, beacon.key):
            self.counters["beacon_key"] += 1
            return
        peer = self.peer_table.find(beacon.uuid, beacon.key)
        if beacon.port == 0:
            self._on_goodbye(peer, source, now_ms)
        elif peer is None:
            self._on_new_beacon(beacon, source, now_ms, is_local)
        elif (source, beacon.port) == peer.mailbox:
            peer.times.beacon_ms = now_ms
        else:
            # Forged, or the peer moved; then the old one expires.
            self.counters["beacon_other_place"] += 1

    def _may_announce(self, uuid: bytes, key: bytes) -> bool:
        """Whether a node with this key is allowed, and may have the UUID."""
        peer = self.peer_table.uuids.get(uuid)
        if peer is not None and peer.ready and peer.key != key:
            return False
        return self.identities.allows(key) and self.identities.is_free(uuid, key)

    def _on_goodbye(self, peer: Peer | None, source: str, now_ms: int) -> None:
        """RFC 20: a beacon of port 0 is invalid. Decision 0029: it removes a known v2 peer.

        Any program can send a beacon: with CURVE the peer must also be silent after a PING.
        """
        if peer is None or peer.version is not Version.V2 or source != peer.mailbox[0]:
            self.counters["beacon_port"] += 1
            return
        if peer.key:
            if peer.times.goodbye is None:
                peer.times.goodbye = now_ms + GOODBYE_CHECK_MS, peer.wire.want
                self._next_check_ms = min(self._next_check_ms, now_ms + GOODBYE_CHECK_MS)
                self._send(peer, Ping())
            return
        self.counters["goodbyes"] += 1
        self._remove(peer)

    # RFC 20: a beacon of a node that is not known SHALL be considered a new peer.
    def _on_new_beacon(self, beacon: Beacon, source: str, now_ms: int, is_local: bool) -> None:
        # Decision 0030: connect only to the datagram's own source address.
        mailbox = source, beacon.port
        if not self._add_discovered(beacon.uuid, mailbox, now_ms, beacon.key, is_local=is_local):
            self.counters["beacon_refused"] += 1
            return
        # Answer a new peer by a beacon at once, but each peer at most once in evasive_ms: two nodes
        # that keep losing each other would answer each other forever.
        known_ms = self._answered_beacons.pop(beacon.uuid, None)
        if known_ms is not None and now_ms < known_ms + self.setup.times.evasive_ms:
            self._answered_beacons[beacon.uuid] = known_ms
            return
        self._answered_beacons[beacon.uuid] = now_ms
        if len(self._answered_beacons) > self.setup.peers_max:
            self._answered_beacons.popitem(last=False)
        if self._next_beacon_ms is not None:
            self._next_beacon_ms = min(
                self._next_beacon_ms, self._last_beacon_ms + ANSWER_BEACON_MS
            )

    # ---- messages ----

    def receive(self, mailbox: Drain, now_ms: int) -> int:
        """Receives from the mailbox: [routing id][the sender's address][frames ..]. Returns the
        number of bytes; 0: nothing waited."""
        count, size, position, said = self.peer_table.traffic.receive(mailbox, now_ms)
        if said and not self._stopped:
            self._on_contents(said, now_ms)
        if position < count:
            self.on_messages(mailbox.arena, now_ms, position)
        return size if count else 0

    def on_messages(self, messages: Arena, now_ms: int, position: int = 0) -> None:
        """Handles messages that receive() left in the arena, from a position on."""
        count = messages.count
        slots = messages.slots() if self.setup.public_key else ()
        while position < count and not self._stopped:
            position, said = self.peer_table.traffic.take(messages, position, now_ms)
            if said:
                self._on_contents(said, now_ms)
            if position < count:
                routing_id, source, *frames = messages.message(position)
                key = self.identities.key_at(slots[position]) if slots else b""
                self.on_message(routing_id, source, frames, now_ms, key)
                position += 1

    def on_batch(
        self, routing_id: bytes, source: bytes, messages: Arena, now_ms: int, key: bytes = b""
    ) -> None:
        """Handles messages [frames ..] of one sender, a node of the same process with that key."""
        position, uuid = 0, routing_id[-values.UUID_BYTES :]
        while position < messages.count and not self._stopped:
            peer = self.peer_table.uuids.get(uuid)
            known = peer.version if peer is not None and peer.key == key else None
            if peer and known and routing_id == codec.routing_id(uuid, known):
                position, said = self.peer_table.traffic.take(messages, position, now_ms, peer.slot)
                if said:
                    self._on_contents(said, now_ms)
            if position < messages.count:
                self.on_message(routing_id, source, messages.message(position), now_ms, key)
                position += 1

    def _on_contents(self, said: list[Said], now_ms: int) -> None:
        slots, tell, names = self.peer_table.slots, self._events.append, self._group_names
        new, gossip_heard = tuple.__new__, self.setup.gossip
        for slot, group, content in said:
            if group is None:
                if gossip_heard and self._is_gossip(slots[slot], content):
                    self._on_gossip(content[0], now_ms)
                    continue
                tell(new(Event, (WHISPER, slots[slot].info, "", content)))
            elif group in names:
                tell(new(Event, (SHOUT, slots[slot].info, names[group], content)))
            else:
                self.counters["shouts_elsewhere"] += 1

    def on_message(
        self,
        routing_id: bytes,
        source: bytes,
        frames: Sequence[bytes],
        now_ms: int,
        key: bytes = b"",
    ) -> None:
        """Handles one message.

        source   the numeric address of its connection, b"" if unknown
        key      the CURVE key of its connection
        """
        if self._stopped:
            return
        try:
            uuid, version = codec.identify(routing_id)
            sequence, command = codec.decode(frames, version)
            if isinstance(command, Hello):
                self._on_hello(
                    _ReceivedHello(uuid, version, sequence, command, source, key), now_ms
                )
                return
        except Malformed as error:
            self.counters[f"message_{error.reason.value}"] += 1  # RFC 20: discarded silently.
            return
        peer = self.peer_table.uuids.get(uuid)
        if peer is None or not peer.ready or peer.version is not version:
            # RFC 20: SHALL silently ignore any commands that precede a HELLO command.
            self.counters["before_hello"] += 1
        elif peer.key != key:
            self.counters["message_other_key"] += 1
        elif self._in_sequence(peer, sequence):
            peer.wire.heard_ms = now_ms
            self._on_command(peer, command, now_ms)

    def _in_sequence(self, peer: Peer, sequence: int) -> bool:
        """Whether no message is missing before this one. A gap removes a v2 peer; for a v1 peer it
        is only counted (decision 0029)."""
        wire = peer.wire
        want = (wire.want + 1) % wire.sequences
        if sequence == 0 and want == SEQUENCES - 1:
            wire.sequences = SEQUENCES - 1  # pyre skips 65535, and expects the same of its peers.
            want = 0
        wire.want = sequence
        if sequence == want:
            return True
        self.counters["gaps"] += 1
        if peer.version is Version.V1:
            return True
        self._remove(peer)
        return False

    def _on_command(self, peer: Peer, command: Command, now_ms: int) -> None:
        match command:
            case Whisper(content):
                self._on_contents([(peer.slot, None, content)], now_ms)
            case Shout(group, content):
                self._on_contents([(peer.slot, group.encode(), content)], now_ms)
            case Join(group, status):
                self._on_join(peer, group)
                self._check_status(peer, status, now_ms)
            case Leave(group, status):
                self._on_leave(peer, group)
                self._check_status(peer, status, now_ms)
            case Ping():
                # RFC 20: when a node receives a PING it SHALL reply with a PING-OK.
                self._send(peer, PingOk())
            case PingOk():
                pass  # It only shows that the peer is alive.
            case Unknown():
                self.counters["unknown_commands"] += 1

    def _on_join(self, peer: Peer, group: str) -> None:
        if group in peer.groups:
            return
        if len(peer.groups) >= values.GROUPS_MAX:
            self.counters["groups_refused"] += 1
            return
        self.peer_table.join(peer, group)
        self._emit(EventKind.JOIN, peer, group)
        self._elect(group)

    def _on_leave(self, peer: Peer, group: str) -> None:
        if group in peer.groups:
            self.peer_table.leave(peer, group)
            self._emit(EventKind.LEAVE, peer, group)
            self._elect(group)

    # RFC 20: the status is incremented each time, and a peer MAY use this to assert the accuracy of
    # its own group management information. On a difference we send a new HELLO.
    def _check_status(self, peer: Peer, status: int, now_ms: int) -> None:
        peer.status = (peer.status + 1) % STATUSES
        if status == peer.status:
            return
        peer.status = status
        self.counters["status_gaps"] += 1
        if now_ms >= peer.times.next_hello_ms and peer.send_version is not None:
            peer.times.next_hello_ms = now_ms + self.setup.times.evasive_ms
            self._send_hello(peer, peer.send_version, now_ms)

    # ---- greetings ----

    def _on_hello(self, greeting: "_ReceivedHello", now_ms: int) -> None:
        """RFC 20: only a HELLO starts a dialog; the receiver connects to the endpoint that it
        names. Malformed: the endpoint is not the sender's."""
        uuid, hello = greeting.uuid, self._reachable(greeting)
        greeting = greeting._replace(hello=hello)
        mailbox = hello.address, hello.port
        if uuid == self.uuid:
            self.counters["hello_own"] += 1  # Forged: a node never greets itself (_add_static).
            return
        if not self._is_allowed_address(hello.address, greeting.source):
            raise Malformed(values.Reason.ADDRESS, "a HELLO that names another address")
        if greeting.version is Version.V2 and greeting.sequence != 1:
            self.counters["hello_sequence"] += 1  # The first v2 message has sequence 1.
            return
        if self.setup.public_key and not self._is_own_identity(greeting):
            self.counters["hello_other_key"] += 1
            return
        others = [
            other
            for other in self.peer_table.at_mailbox(mailbox)
            if other.ready and other.uuid != uuid
        ]
        if any(other.key != greeting.key for other in others) or (
            others and not _is_from(hello.address, greeting.source)
        ):
            # Within a subnet any node may name any address.
            self.counters["hello_taken_place"] += 1
            return
        peer = self._peer_of(greeting, now_ms)
        if peer is None:
            return
        for other in self.peer_table.with_uuid_of(peer):
            self._remove(other)
        self.peer_table.own_uuid(peer)
        self.identities.bind(uuid, peer.key)
        for other in self.peer_table.at_mailbox(mailbox):
            if other is not peer:  # A mailbox belongs to one node; the other peer was there before.
                if other.awaiting_hello and other.key == peer.key:
                    # This HELLO answers ours to the other peer; the answer to the new one follows.
                    peer.times.next_hello_ms = now_ms + self.setup.times.evasive_ms
                self._remove(other)
        was_ready = peer.ready
        self.peer_table.set_ready(peer, greeting.version)
        peer.wire.want = greeting.sequence
        peer.wire.key_slot = self.identities.slot_of(peer.key)
        self._answer_hello(peer, mailbox, now_ms)
        self._on_hello_details(peer, hello, was_ready)
        peer.wire.heard_ms = now_ms
        if self.setup.gossip and not was_ready:
            self._send_gossip(peer)

    def _is_own_identity(self, greeting: "_ReceivedHello") -> bool:
        """Whether a HELLO's key may have its UUID and mailbox. Malformed: it does not name the key
        of its connection."""
        uuid, key, hello = greeting.uuid, greeting.key, greeting.hello
        if hello.headers.get(KEY_HEADER) != encode_key(key):
            raise Malformed(values.Reason.KEY, "a HELLO without its connection's key")
        if not self._may_announce(uuid, key):
            return False
        if uuid in self.peer_table.uuids and self.peer_table.find(uuid, key) is None:
            return False  # The key must be that of a beacon.
        at_mailbox = self.peer_table.at_mailbox((hello.address, hello.port))
        return all(other.key == key for other in at_mailbox if other.static)

    def _peer_of(self, greeting: "_ReceivedHello", now_ms: int) -> Peer | None:
        """The peer that sent a HELLO: known, static or new; None: refused."""
        uuid, hello = greeting.uuid, greeting.hello
        mailbox = hello.address, hello.port
        peer = self.peer_table.find(uuid, greeting.key)
        if peer is not None:
            if peer.ready and hello.address != peer.mailbox[0]:
                self.counters["hello_other_place"] += 1  # Another node with the peer's UUID.
                return None
            if peer.version in (None, greeting.version):
                return peer
            # A peer keeps its version, so this is another node.
            self.counters["version_changed"] += 1
            self._remove(peer)
            return self.peer_table.add(uuid, mailbox, now_ms, key=greeting.key)
        for other in self.peer_table.at_mailbox(mailbox):
            if other.uuid is None:
                self.peer_table.name(other, uuid)
                return other
        allows = self._new_peer_limiter.allows(hello.address, now_ms)
        if not allows or not self._make_room(hello.address):
            self.counters["hello_refused"] += 1
            return None
        return self.peer_table.add(uuid, mailbox, now_ms, key=greeting.key)

    def _reachable(self, greeting: "_ReceivedHello") -> Hello:
        """Adds the link to a link-local IPv6 address in a HELLO; the sender does not know its name
        here."""
        hello, source = greeting.hello, greeting.source.decode("ascii", "replace")
        address = hello.address.partition("%")[0]
        named = _parse_address(address)
        if named is not None and named == _parse_address(source.partition("%")[0]):
            address = source
        return hello._replace(address=address)

    def _is_allowed_address(self, address: str, source: bytes) -> bool:
        """Whether an address in a HELLO is its connection's own or in a subnet (decision 0030)."""
        if _is_from(address, source):
            return True
        named = _parse_address(address)
        return named is not None and any(named in subnet for subnet in self.setup.subnets)

    def _answer_hello(self, peer: Peer, mailbox: tuple[str, int], now_ms: int) -> None:
        """Sends a HELLO in the peer's version, unless it had one."""
        assert peer.version is not None
        moved = mailbox != peer.mailbox
        if moved:
            self.peer_table.move(peer, mailbox)
        # kelek nodes understand both versions, so their greetings may differ.
        wrong = peer.send_version is not peer.version and not peer.is_kelek
        if wrong or peer.send_version is None:
            self._send_hello(peer, peer.version, now_ms)
        elif moved or (not peer.awaiting_hello and now_ms >= peer.times.next_hello_ms):
            # An unsolicited HELLO: the peer has lost its state. The pause prevents an endless
            # exchange.
            peer.times.next_hello_ms = now_ms + self.setup.times.evasive_ms
            self._send_hello(peer, peer.send_version, now_ms)
        peer.awaiting_hello = False

    def _on_hello_details(self, peer: Peer, hello: Hello, was_ready: bool) -> None:
        """Applies name, headers and groups of a HELLO."""
        assert peer.uuid is not None
        assert peer.version is not None
        before = peer.info
        key = encode_key(peer.key) if peer.key else ""
        peer.info = PeerInfo(peer.uuid, hello.name, peer.endpoint, peer.version, hello.headers, key)
        if not was_ready:
            self._emit(EventKind.ENTER, peer)
        elif before != peer.info:
            self._emit(EventKind.CHANGED, peer)
        for group in sorted(peer.groups.difference(hello.groups)):
            self._on_leave(peer, group)
        for group in hello.groups:
            self._on_join(peer, group)
        peer.status = hello.status

    # ---- keys ----

    def on_keys_changed(self) -> None:
        """The keyring has changed: removes the peers whose keys are no longer allowed."""
        self.identities.forget_refused()
        for peer in list(self.peer_table):
            if not self.identities.allows(peer.key):
                self.counters["revoked"] += 1
                self._remove(peer)

    # ---- gossip ----

    def _knows_gossip(self, peer: Peer) -> bool:
        return peer.info is not None and gossip.HEADER in peer.info.headers

    def _send_gossip(self, peer: Peer) -> None:
        """Sends a new peer the known nodes, and the others the new peer, if they accept gossip."""
        others = [other for other in self.peer_table if other.ready and other is not peer]
        if self._knows_gossip(peer) and others:
            self._send(peer, Whisper([gossip.encode_sightings(map(_sighting_of, others))]))
        take_events = gossip.encode_sightings([_sighting_of(peer)])
        for other in others:
            if self._knows_gossip(other) and other.send_version is not None:
                self._send(other, Whisper([take_events]))

    def _is_gossip(self, peer: Peer, content: list[bytes]) -> bool:
        return len(content) == 1 and content[0].startswith(gossip.MARK) and self._knows_gossip(peer)

    def _on_gossip(self, data: bytes, now_ms: int) -> None:
        try:
            sightings = gossip.decode_sightings(data)
        except Malformed as error:
            self.counters[f"gossip_{error.reason.value}"] += 1
            return
        for uuid, address, port, key in sightings:
            if uuid == self.uuid or not uuid[0] or uuid in self.peer_table.uuids:
                continue
            # Gossip leads only into our subnets.
            if not self._is_allowed_address(address, b""):
                self.counters["gossip_address"] += 1
            elif bool(key) != bool(self.setup.public_key) or not self._may_announce(uuid, key):
                self.counters["gossip_key"] += 1
            elif not self._add_discovered(uuid, (address, port), now_ms, key):
                self.counters["gossip_refused"] += 1


def _sighting_of(peer: Peer) -> gossip.Sighting:
    assert peer.uuid is not None
    return gossip.Sighting(peer.uuid, *peer.mailbox, peer.key)


def _is_from(address: str, source: bytes) -> bool:
    """Whether an address is the connection's."""
    if address.encode() == source:
        return True
    named = _parse_address(address)
    return named is not None and named == _parse_address(source.decode("ascii", "replace"))


def _is_loopback(address: str) -> bool:
    parsed = _parse_address(address)
    return parsed is not None and parsed.is_loopback


def _parse_address(address: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(address)
    except ValueError:  # An ipc connection has no address to connect to.
        return None


class _ReceivedHello(NamedTuple):
    """A HELLO and its sender."""

    uuid: bytes
    version: Version
    sequence: int
    hello: Hello
    source: bytes
    key: bytes  # Of the connection.
