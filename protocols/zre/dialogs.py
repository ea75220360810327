"""What a ZRE node sends to its peers, and what it knows of them: greetings, PINGs, expiry.

node.py receives; it has RFC 20's rules for incoming beacons and messages.
"""

from collections import Counter, OrderedDict
from ipaddress import ip_address

from ...native.net.zre import Wire
from ..access.certificates import KEY_BYTES, encode_key
from ..errors import LocalProtocolError
from . import codec, gossip, values
from .beacon import Beacon, encode_beacon
from .codec import Command, Hello, Ping
from .effects import CloseLink, Connect, NodeEffects, NodeSetup
from .identities import HEADER as KEY_HEADER
from .identities import Identities
from .limiter import Limiter
from .peers import Event, EventKind, Peer, PeerInfo, Peers
from .values import ANSWER_BEACON_MS, Malformed, Version

GOODBYE_CHECK_MS = 2000  # A peer with CURVE that sends a goodbye and then a message has not left.
UNREADY_PART = 4  # Peers that have not greeted use at most a fourth of the table.


class Dialogs:
    """The peers of a node and its pending effects. Times are monotonic milliseconds."""

    def __init__(self, setup: NodeSetup, now_ms: int) -> None:
        """LocalProtocolError: an invalid name, header, endpoint or UUID."""
        self.setup = setup
        self.counters: Counter[str] = Counter()
        self.groups: set[str] = set()  # The node's own groups ...
        self._group_names: dict[bytes, str] = {}  # ... by their encoded names.
        self._status = 0
        self.peer_table = Peers(max(1, setup.peers_max // UNREADY_PART), setup.keyring)
        self._new_peer_limiter = Limiter(setup.rate)
        self._actions: list[Connect | CloseLink] = []
        self._to_send: dict[int, Peer] = {}
        self._beacons: list[bytes] = []
        self._events: list[Event] = []
        self._elected: dict[str, bytes | None] = {}
        # When a new node's beacon was answered by one, by UUID.
        self._answered_beacons: OrderedDict[bytes, int] = OrderedDict()
        # Encoded HELLOs, until their content changes.
        self._hellos: dict[Version, list[bytes]] = {}
        self._next_beacon_ms = now_ms if setup.beacons else None
        self._last_beacon_ms = now_ms - ANSWER_BEACON_MS
        self._next_check_ms = now_ms
        self._stopped = False
        if len(setup.uuid) != values.UUID_BYTES or not setup.uuid[0]:
            raise LocalProtocolError("a UUID has 16 octets, and the first is not 00")
        has_keyring = setup.keyring is not None
        if len(setup.public_key) not in (0, KEY_BYTES) or bool(setup.public_key) != has_keyring:
            raise LocalProtocolError("a node with CURVE has a key of 32 octets and a keyring")
        for version in Version:
            self._hellos[version] = codec.encode(1, self._hello(version), version)
        try:
            codec.parse_endpoint(codec.endpoint_of(setup.address, setup.port))
            static = [codec.parse_keyed_endpoint(endpoint) for endpoint in setup.static_peers]
        except Malformed as error:
            raise LocalProtocolError(f"the own address or a static peer's: {error}") from error
        self._on_loopback = ip_address(setup.address).is_loopback
        # The key of each mailbox.
        self._static = {(address, port): key for address, port, key in static}
        self._check_static_keys()
        self._restore_static(now_ms)

    @property
    def identities(self) -> Identities:
        return self.peer_table.identities

    @property
    def uuid(self) -> bytes:
        return self.setup.uuid

    @property
    def peers(self) -> dict[bytes, PeerInfo]:
        """Peers that have greeted, by UUID."""
        return {
            peer.uuid: peer.info
            for peer in self.peer_table
            if peer.ready and peer.uuid is not None and peer.info is not None
        }

    def peer_keys(self) -> set[bytes]:
        """The CURVE keys of all peers, also of those that have not greeted."""
        return {peer.key for peer in self.peer_table}

    @property
    def peer_groups(self) -> dict[str, list[PeerInfo]]:
        """The peers in each group."""
        return {
            group: [peer.info for peer in members.values() if peer.info is not None]
            for group, members in self.peer_table.groups.items()
        }

    # ---- new peers ----

    def _add_discovered(
        self,
        uuid: bytes,
        mailbox: tuple[str, int],
        now_ms: int,
        key: bytes = b"",
        *,
        is_local: bool = False,
    ) -> bool:
        """Adds a peer that has not sent anything. False: no room for it.

        is_local   it is a node of this process: it exists, and needs no socket
        """
        own, shared = self.peer_table.allowance, self.setup.socket_allowance
        allowances = (own,) if is_local or shared is None else (own, shared)
        if is_local:
            room = not own.full
        else:
            room = all(each.has_room_for(mailbox[0]) for each in allowances)
        full = not room or len(self.peer_table) >= self.setup.peers_max
        if full or not self._new_peer_limiter.allows(mailbox[0], now_ms):
            return False
        peer = self.peer_table.add(uuid, mailbox, now_ms, allowances, key)
        if peer.is_kelek:
            self._send_hello(peer, self.setup.greeting, now_ms)
        else:
            # A HELLO of the wrong version upsets old nodes, so foreign nodes greet first (decision
            # 0029).
            peer.times.hello_due_ms = now_ms + self.setup.times.greet_wait_ms
            self._next_check_ms = min(self._next_check_ms, peer.times.hello_due_ms)
        return True

    def _make_room(self, address: str) -> bool:
        """Makes room for a peer at an address that greets, in place of one that has not, or of one
        of a crowd; returns whether there is room."""
        if len(self.peer_table) < self.setup.peers_max:
            return True
        waiting = (peer for peer in self.peer_table if not peer.ready and not peer.static)
        displaced = next(waiting, None) or self._one_of_crowd(address)
        if displaced is None:
            return False
        self.counters["displaced"] += 1
        self._remove(displaced)
        return True

    def _one_of_crowd(self, address: str) -> Peer | None:
        """Of the address with most peers the one that is silent longest; None: a new peer at
        `address` would make a larger or an equal crowd. So one address keeps no others out."""
        peers = [peer for peer in self.peer_table if not peer.static]
        crowds = Counter(peer.mailbox[0] for peer in peers)
        if max(crowds.values(), default=0) <= crowds[address] + 1:
            return None
        (largest, _), *_ = crowds.most_common(1)
        crowd = (peer for peer in peers if peer.mailbox[0] == largest)
        return min(crowd, key=lambda peer: peer.wire.heard_ms)

    def _send_hello(self, peer: Peer, version: Version, now_ms: int) -> None:
        """RFC 20: SHALL start a dialog by sending HELLO as the first command on a connection."""
        if peer.send_version is not None:
            self._actions.append(CloseLink(peer.number))
            peer.out.clear()
        peer.send_version, peer.times.hello_due_ms = version, None
        peer.awaiting_hello, peer.times.pinged_ms = True, now_ms
        peer.wire.send_version, peer.wire.sent = version, 1
        # RFC 20: it SHALL create a DEALER, set its identity, and connect it to the peer's mailbox.
        own_id = codec.routing_id(self.uuid, version)
        watched = peer.mailbox in self._static
        self._actions.append(Connect(peer.number, peer.endpoint, own_id, watched, peer.key))
        if version not in self._hellos:  # The first HELLO on each connection is the same.
            self._hellos[version] = codec.encode(1, self._hello(version), version)
        peer.out.add(self._hellos[version])
        self._to_send[peer.number] = peer

    def _beacon(self, port: int) -> Beacon:
        return Beacon(self.uuid, port, self.setup.public_key)

    def _hello(self, version: Version) -> Hello:
        setup = self.setup
        groups = tuple(sorted(self.groups))
        headers = setup.headers
        if setup.gossip:
            headers = {**headers, gossip.HEADER: gossip.VALUE}
        if setup.public_key:
            headers = {**headers, KEY_HEADER: encode_key(setup.public_key)}
        if version is Version.V1:  # v1 has no name field, and short headers only.
            fit = values.STRING_BYTES_MAX - 1
            headers = {k: v for k, v in headers.items() if len(k.encode() + v.encode()) <= fit}
        address = setup.address.partition("%")[0]  # The link's name is valid on this machine only.
        return Hello(address, setup.port, groups, self._status, setup.name, headers)

    # ---- silence and expiry ----

    def _check_peers(self, now_ms: int) -> None:
        """Checks all peers' times; the next check is at the earliest deadline of a peer."""
        self._next_check_ms = now_ms + self.setup.times.evasive_ms
        for peer in list(self.peer_table):
            if self._has_left(peer, now_ms):
                continue
            due_ms = self._check_peer(peer, now_ms)
            self._next_check_ms = min(self._next_check_ms, due_ms)

    def _check_peer(self, peer: Peer, now_ms: int) -> int:
        """Does what is due for a peer; returns when to check it again."""
        times = self.setup.times
        if peer.times.hello_due_ms is not None:
            if now_ms < peer.times.hello_due_ms:
                return peer.times.hello_due_ms
            self._send_hello(peer, peer.send_version or self.setup.greeting, now_ms)
        if not peer.ready:
            if not peer.static and now_ms >= peer.times.created_ms + times.silent_ms:
                self.counters["never_greeted"] += 1
                self._remove(peer)
            elif (
                now_ms >= peer.times.pinged_ms + times.evasive_ms and peer.send_version is not None
            ):
                # The peer may have missed the first one.
                self._send_hello(peer, peer.send_version, now_ms)
            return now_ms + times.evasive_ms
        said_ms: int = peer.wire.heard_ms  # By a message, not by a beacon.
        heard_ms = max(said_ms, peer.times.beacon_ms)
        if peer.key:  # Any program can send a node's beacons.
            heard_ms = min(heard_ms, said_ms + times.expired_ms)
        silence_ms = now_ms - heard_ms
        if silence_ms >= times.expired_ms:
            # RFC 20: no reply to a PING and no other traffic for longer: treated as dead.
            self.counters["dead"] += 1
            self._remove(peer)
            return now_ms + times.evasive_ms
        if heard_ms != peer.times.silent_since_ms:
            peer.times.silent_since_ms, peer.times.silence_stage = heard_ms, 0
        if silence_ms < times.evasive_ms:
            # PING also without silence: a lost message shows only when the next one arrives.
            if now_ms >= max(said_ms, peer.times.pinged_ms) + times.expired_ms:
                peer.times.pinged_ms = now_ms
                self._send(peer, Ping())
            return heard_ms + times.evasive_ms
        self._on_silence(peer, silence_ms, now_ms)
        steps = (times.silent_ms, times.expired_ms)
        return min(
            peer.times.pinged_ms + times.evasive_ms,
            *(heard_ms + step for step in steps if step > silence_ms),
        )

    def _has_left(self, peer: Peer, now_ms: int) -> bool:
        """Removes a peer that has not answered since its goodbye."""
        if peer.times.goodbye is None:
            return False
        due_ms, sequence = peer.times.goodbye
        if peer.wire.want != sequence:
            peer.times.goodbye = None
            self.counters["goodbyes_forged"] += 1
            return False
        if now_ms >= due_ms:
            self.counters["goodbyes"] += 1
            self._remove(peer)
            return True
        self._next_check_ms = min(self._next_check_ms, due_ms)
        return False

    # RFC 20: SHOULD send a PING to a peer whose beacons have not come for a certain time.
    def _on_silence(self, peer: Peer, silence_ms: int, now_ms: int) -> None:
        if peer.times.silence_stage == 0:
            peer.times.silence_stage = 1
            self._emit(EventKind.EVASIVE, peer)
        elif now_ms < peer.times.pinged_ms + self.setup.times.evasive_ms:
            return
        if peer.times.silence_stage == 1 and silence_ms >= self.setup.times.silent_ms:
            peer.times.silence_stage = 2
            self._emit(EventKind.SILENT, peer)
        peer.times.pinged_ms = now_ms
        self._send(peer, Ping())

    # ---- lost peers ----

    def on_full(self, number: int) -> None:
        """RFC 20: a full send buffer means "peer not responding". The peer is removed, and greeted
        again at its next beacon."""
        peer = self.peer_table.numbers.get(number)
        if peer is not None:
            self.counters["full"] += 1
            self._remove(peer)

    def on_unreachable(self, number: int) -> None:
        """A Connect failed: no socket is left, or the address does not exist here. The peer is
        removed; a static one is greeted again later."""
        self.counters["unreachable"] += 1
        peer = self.peer_table.numbers.get(number)
        if peer is not None and (peer.ready or not peer.static):
            self._remove(peer)

    def on_disconnected(self, number: int, now_ms: int) -> None:
        """A watched connection was lost. RFC 20: a new connection begins with HELLO. Another node
        may have the mailbox now, which would not answer a PING."""
        peer = self.peer_table.numbers.get(number)
        if peer is None or peer.send_version is None:
            return
        self.counters["disconnected"] += 1
        if now_ms >= peer.times.next_hello_ms:
            peer.times.next_hello_ms = now_ms + self.setup.times.evasive_ms
            self._send_hello(peer, peer.send_version, now_ms)
        elif peer.times.hello_due_ms is None:
            peer.times.hello_due_ms = peer.times.next_hello_ms
            peer.times.next_hello_ms += self.setup.times.evasive_ms
            self._next_check_ms = min(self._next_check_ms, peer.times.hello_due_ms)

    def _remove(self, peer: Peer) -> None:
        groups = list(peer.groups)
        self.peer_table.remove(peer)
        self._to_send.pop(peer.number, None)
        if peer.send_version is not None:
            self._actions.append(CloseLink(peer.number))
        if peer.ready and not self._stopped:
            self._emit(EventKind.EXIT, peer)
        for group in groups:
            self._elect(group)

    # ---- static peers ----

    def _add_static(self, mailbox: tuple[str, int], now_ms: int) -> None:
        """Greets a mailbox without a beacon; its answer tells the version."""
        if mailbox == (self.setup.address, self.setup.port):
            return  # A shared list of static peers may name this node.
        key = self._static[mailbox]
        if not self.identities.allows(key):
            return
        peer = self.peer_table.add(None, mailbox, now_ms, key=key)
        peer.static = True
        self._send_hello(peer, self.setup.greeting, now_ms)

    def _check_static_keys(self) -> None:
        """LocalProtocolError: a key is missing, superfluous or not allowed."""
        for mailbox, key in self._static.items():
            endpoint, problem = codec.endpoint_of(*mailbox), ""
            if bool(key) != bool(self.setup.public_key):
                problem = "needs its key: ENDPOINT|KEY" if not key else "has a key, this node none"
            elif not self.identities.allows(key):
                problem = "has a key that is not allowed"
            if problem:
                raise LocalProtocolError(f"static peer {endpoint}: it {problem}")

    def _restore_static(self, now_ms: int) -> None:
        """Greets static peers that were removed."""
        for mailbox in self._static:
            if mailbox not in self.peer_table.mailboxes:
                self._add_static(mailbox, now_ms)

    # ---- elections ----

    def elect(self, group: str) -> None:
        """Enables LEADER events and leader() for a group."""
        if group not in self._elected:
            self._elected[group] = None
            self._elect(group)

    def leader(self, group: str) -> bytes | None:
        """The UUID of the group's leader, possibly this node's own; None: no leader, or elect() was
        not called."""
        return self._elected.get(group)

    def _elect(self, group: str) -> None:
        """Elects the present member with the smallest UUID in this node's view.

        Each node trusts the smallest member that it does not consider failed (Chandra and Toueg's
        failure detectors: "Omega" from an eventually perfect one). Presence comes from ZRE's JOIN,
        LEAVE, EXIT and PING, so the election needs no message. Members with equal views name the
        same leader; until then, for example in a partitioned network, several nodes may lead. It
        is no lock: use the log for actions that must happen at most once.
        """
        if group not in self._elected or self._stopped:
            return
        members = self.peer_table.groups.get(group, {}).values()
        candidates = [peer.uuid for peer in members if peer.is_kelek and peer.uuid is not None]
        if group in self.groups:
            candidates.append(self.uuid)
        leader = min(candidates, default=None)
        if leader != self._elected[group]:
            self._elected[group] = leader
            peer = self.peer_table.uuids.get(leader) if leader is not None else None
            self._events.append(Event(EventKind.LEADER, peer.info if peer else None, group))

    # ---- effects ----

    def _emit(
        self, kind: EventKind, peer: Peer, group: str = "", content: list[bytes] | None = None
    ) -> None:
        self._events.append(Event(kind, peer.info, group, content or []))

    def _send_to_all(self, command: Command) -> None:
        for peer in self.peer_table:
            if peer.send_version is not None:
                self._send(peer, command)

    def _send(self, peer: Peer, command: Command) -> None:
        assert peer.send_version is not None
        sequence = (peer.wire.sent + 1) % peer.wire.sequences
        peer.out.add(codec.encode(sequence, command, peer.send_version))
        peer.wire.sent = sequence
        self._to_send[peer.number] = peer

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        if self._stopped:
            return None
        if self._next_beacon_ms is None:
            return self._next_check_ms
        return min(self._next_beacon_ms, self._next_check_ms)

    @property
    def has_effects(self) -> bool:
        """Whether ready() has effects, apart from those that depend on the time."""
        return bool(self._actions or self._to_send or self._beacons or self._events)

    def take_events(self) -> list[Event] | None:
        """The events for ready(), if it has no other effects; None: call ready()."""
        if self._actions or self._to_send or self._beacons:
            return None
        events, self._events = self._events, []
        return events

    def direct_peer(self, uuid: bytes) -> Peer | None:
        """A peer to which a WHISPER may be sent before ready(), because nothing else waits to be
        sent. The caller sends it through `traffic`."""
        peer = self.peer_table.uuids.get(uuid)
        if peer is None or peer.send_version is None:
            return None
        return None if self._actions or self._to_send or self._beacons else peer

    @property
    def traffic(self) -> Wire:
        """The encoder and decoder of WHISPERs and SHOUTs, with a slot for each peer."""
        return self.peer_table.traffic

    def ready(self, now_ms: int) -> NodeEffects:
        """All effects that are due. The batches in `sends` remain the node's: send them, report
        those that were not sent completely to on_full(), and do not keep them."""
        if not self._stopped:
            if self._static:
                self._restore_static(now_ms)
            if now_ms >= self._next_check_ms:
                self._check_peers(now_ms)
            # RFC 20: each node SHALL broadcast a beacon at regular intervals.
            if self._next_beacon_ms is not None and now_ms >= self._next_beacon_ms:
                self._next_beacon_ms = now_ms + self.setup.times.beacon_ms
                self._last_beacon_ms = now_ms
                self._beacons.append(encode_beacon(self._beacon(self.setup.port)))
        sends = [(number, peer.out) for number, peer in self._to_send.items()]
        done = NodeEffects(self._actions, sends, self._beacons, self._events)
        self._actions, self._to_send, self._beacons, self._events = [], {}, [], []
        return done

    def status(self) -> dict[str, int]:
        """Counts for the status."""
        return {
            "peers": len(self.peer_table) - self.peer_table.unready,
            "unready": self.peer_table.unready,
            "groups": len(self.groups),
            **self.counters,
        }
