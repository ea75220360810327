"""What the nodes of a process share: a thread that takes in what arrives, sockets for beacons.

The thread is there while there are nodes. Whoever waits for events in the blocking face does the
thread's work meanwhile (a guest), so that no message has to go from one thread to another. All
that belongs to nodes is touched under one lock; the poller only by who turns.
"""

import atexit
import random
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import zmq

from ...native.errors import forks
from ...native.files import raise_open_files, sockets_within
from ...native.net.datagrams import Datagrams
from ...native.net.interfaces import Interface
from ...native.net.messages import Frames
from ...native.net.poller import Poller, Source
from ...native.net.sockets import Drain, backend, opened, send_batch
from ...protocols.errors import LocalProtocolError
from ...protocols.zre import codec, values
from ...protocols.zre.beacon import Beacon
from ...protocols.zre.limiter import PeerAllowance
from ...protocols.zre.node import Connect, NodeMachine, NodeSetup
from ...protocols.zre.peers import Event
from ..io.links import monotonic_ms
from ..io.zmq_context import Context

PARK_MS = 10  # So long after a guest has left the thread expects it back.
AGAIN_MS = 200  # So soon a node's beacon is no news to those who have heard it.
HEARD_MAX = 4096
GOODBYES_MAX = 4096  # That wait to be heard.
RETRY_MS = 2  # Between two looks whether peers have room again.
IDLE_MS = 60_000
EVENTS_MAX = 1 << 16  # Unread ones of a node: its mailbox is then not read, and its peers wait.
EVENT_BYTES_MAX = 64 << 20
SILENT_PART = 4  # Peers that have not greeted have a fourth of the sockets at most.
RECEIVE_MESSAGES_MAX = 4000  # Of one connection, that wait to be taken in.
HEAD_BYTES_MAX = 512  # A message's routing id, address, and what is before the content.
TAKES_MAX = 16  # Of one mailbox in a row.
ARENA_BYTES, ARENA_FRAMES = 1 << 16, 1 << 12
FAREWELL_MS = 1000  # For the last messages to leave.
GOODBYE_MS = 100  # A goodbye by UDP overtakes what was said before it by TCP.
HANDSHAKE_MS = 2000
BIND_TRIES = 64
Socket = zmq.Socket[bytes]

backend()  # Looked for now, not while a first node wants to be found.


class NodeConfig(NamedTuple):
    """What a node is begun with."""

    setup: NodeSetup  # Its port is found here.
    interface: Interface | None  # Where beacons are heard and sent; None: nowhere.
    udp_port: int
    patience_ms: int  # So long a peer may have no room.
    message_bytes_max: int = values.MESSAGE_BYTES  # Of one that comes.


class ReactorNode:
    """A node among those of the process, and what is its own: sockets, events that wait."""

    def __init__(self, hub: "NodeReactor", wish: NodeConfig) -> None:
        """Raises zmq.ZMQError: the address can't be bound to, or no socket is left."""
        self.hub = hub
        self.host = wish.setup.address
        self.patience_ms = wish.patience_ms
        self.node: NodeMachine | None = None  # Until the mailbox has its port.
        self.ear: Datagrams | None = None
        self.events: deque[Event] = deque()
        self.bytes = 0  # Of messages taken in since the events were all read.
        self.paused = False  # Too much is unread.
        self.closed = False
        self.listeners: list[Callable[[], object]] = []  # Called once, in whatever thread.
        self.links: dict[int, Socket | ReactorNode] = {}  # DEALERs, or nodes of this process.
        self.monitors: dict[int, Socket] = {}  # Of DEALERs that are watched.
        self.opened: dict[int, Any] = {}  # DEALERs as C knows them.
        self.routing_ids: dict[int, bytes] = {}  # Towards nodes of this process.
        self.stuck: dict[int, tuple[Frames, int]] = {}  # What has no room, since when.
        self.deadline_ms: int | None = 0
        self.serial = 0  # Greater than that of whoever came before.
        self.message_bytes_max = wish.message_bytes_max
        self.mailbox = _mailbox(hub.context, ":" in self.host, wish.message_bytes_max)
        self.port = _bind(self.mailbox, self.host)
        self.drain = Drain(
            self.mailbox,
            message_bytes_max=wish.message_bytes_max + HEAD_BYTES_MAX,
            message_frames_max=values.CONTENT_FRAMES_MAX + 8,
            arena_bytes=ARENA_BYTES,
            frames=ARENA_FRAMES,
            addressed=True,
        )

    @property
    def endpoint(self) -> str:
        return codec.endpoint_of(self.host, self.port)

    @property
    def full(self) -> bool:
        return len(self.events) >= EVENTS_MAX or self.bytes >= EVENT_BYTES_MAX

    def tell(self) -> None:
        """Wakes who waits for news of this node. Under the lock."""
        told, self.listeners = self.listeners, []
        for listener in told:
            listener()


def _mailbox(context: "zmq.Context[Socket]", is_v6: bool, frame_bytes_max: int) -> Socket:
    mailbox = context.socket(zmq.ROUTER)
    for option, value in (
        (zmq.IPV6, is_v6),
        (zmq.LINGER, 0),
        (zmq.ROUTER_HANDOVER, 1),  # Who greets again comes on a new connection.
        (zmq.RCVHWM, RECEIVE_MESSAGES_MAX),
        (zmq.MAXMSGSIZE, frame_bytes_max),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
    ):
        mailbox.setsockopt(option, value)
    return mailbox


def _bind(mailbox: Socket, host: str) -> int:
    """Binds to a free port of the text's range. Raises zmq.ZMQError."""
    for _ in range(BIND_TRIES):
        port = random.randint(values.MAILBOX_BIND_MIN, values.MAILBOX_BIND_MAX)
        try:
            mailbox.bind(codec.endpoint_of(host, port))
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                mailbox.close()
                raise
            continue
        return port
    mailbox.close()
    raise zmq.ZMQError(zmq.EADDRINUSE)


class NodeReactor:
    """All nodes of this process.

    mailboxes   ROUTER  [routing id][frames of a command ..]   from the DEALERs of peers
    dealers     DEALER  [frames of a command ..]               to one peer's mailbox each
    monitors    PAIR    libzmq's events: lost                  of each dealer that is watched
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)  # Events, room, or somebody to turn.
        self.context = Context()
        sockets_max = sockets_within(raise_open_files())
        self.context.set(zmq.MAX_SOCKETS, sockets_max)
        self._room = PeerAllowance(max(1, sockets_max // SILENT_PART))
        self._places: dict[str, ReactorNode] = {}  # By endpoint.
        self._mailboxes: dict[Socket, ReactorNode] = {}
        self._monitors: dict[Socket, tuple[ReactorNode, int]] = {}  # With the number of the peer.
        self._closing: list[ReactorNode] = []
        self._claims = 0  # Nodes that are about to begin.
        self._ears: dict[tuple[Interface, int], Datagrams] = {}
        self._hearers: dict[int, list[ReactorNode]] = {}  # By the ear's descriptor.
        self._serial = 0  # Of the place that was added last.
        self._heard: dict[tuple[int, Beacon, str], tuple[int, int]] = {}  # When, by whom at least.
        self._goodbyes: deque[tuple[int, int, Beacon, str]] = deque()  # When they are heard.
        self._goodbyes_dropped = 0
        self._touched: set[ReactorNode] = set()
        self._unfinished: set[ReactorNode] = set()  # Have more than their arena took.
        self._changes: deque[Callable[[], object]] = deque()  # Of the poller.
        self._turning = False  # Somebody polls.
        self._due_ms: int | None = None  # When something has its time; None: it must be reckoned.
        self._now_ms = 0  # Of the last wake.
        self._guests = 0
        self._followers = 0  # Who wait for who turns.
        self._come_ms = self._left_ms = 0  # When the first guest came, when the last one went.
        self._deep = False  # The thread waits until the last guest has gone.
        self._parked = threading.Condition(self.lock)
        self._poller = Poller()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._by_fd = self._wake_in.fileno()
        self._poller.register(self._by_fd, zmq.POLLIN)
        self._thread: threading.Thread | None = None
        self.over = False

    # ---- nodes come and go ----

    def claim(self) -> bool:
        """Has it wait for a node that will begin(); False: it has ended."""
        with self.lock:
            self._claims += not self.over
            return not self.over

    def begin(self, wish: NodeConfig) -> ReactorNode:
        """Begins a node, of whoever has claimed that. Raises OSError, LocalProtocolError."""
        try:
            return self._begin(wish)
        finally:
            with self.lock:
                self._claims -= 1
                if self._thread is None:
                    self._end()  # The first node could not begin: nobody knows this one yet.
                elif self._deserted:
                    self.wake()

    def _begin(self, wish: NodeConfig) -> ReactorNode:
        try:
            place = ReactorNode(self, wish)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"a mailbox at {wish.setup.address}: {error}") from error
        try:
            setup = wish.setup._replace(port=place.port, room=self._room)
            place.node = NodeMachine(setup, monotonic_ms())
            with self.lock:
                if wish.interface is not None:
                    place.ear = self._ear(wish.interface, wish.udp_port)
        except (OSError, LocalProtocolError):
            place.mailbox.close()
            raise
        with self.lock:
            self._serial += 1
            place.serial = self._serial
            self._places[place.endpoint] = self._mailboxes[place.mailbox] = place
            if place.ear is not None:
                self._hearers[place.ear.fileno()].append(place)
            self._change(lambda: self._register(place))
            self.act(place)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kelek-nodes", daemon=True)
                self._thread.start()
        return place

    def _ear(self, interface: Interface, port: int) -> Datagrams:
        """The socket for beacons there, shared. Raises OSError."""
        known = self._ears.get((interface, port))
        if known is None:
            known = self._ears[interface, port] = Datagrams(interface, port)
            self._hearers[known.fileno()] = []
            fd = known.fileno()
            self._change(lambda: self._poller.register(fd, zmq.POLLIN))
        return known

    def drop(self, place: ReactorNode) -> None:
        """Ends a node that nobody has any more; from anywhere, also from within the collector."""
        self._change(lambda: self.remove(place))

    def remove_all(self) -> None:
        """At the end of the process."""
        with self.lock:
            places = list(self._places.values())
            for place in places:
                self.remove(place)
        for place in places:
            self.wait_closed(place)

    def remove(self, place: ReactorNode) -> None:
        """Ends a node with a goodbye; its sockets are closed by who turns."""
        with self.lock:
            if place.closed or place.node is None:
                return
            place.node.stop()
            self.act(place)
            place.closed = True
            place.deadline_ms = None
            del self._places[place.endpoint], self._mailboxes[place.mailbox]
            self._closing.append(place)
            self._change(lambda: self._close(place))
            place.tell()
            self.changed.notify_all()

    def wait_closed(self, place: ReactorNode) -> None:
        """Waits until a removed node's sockets are closed, and the thread with the last of them."""
        with self.lock:
            while place in self._closing or (self._deserted and not self.over):
                self.changed.wait()
            thread = self._thread if self.over else None
        if thread is not None:
            thread.join()

    @property
    def _deserted(self) -> bool:
        return not self._places and not self._closing and not self._claims

    def _close(self, place: ReactorNode) -> None:
        """Of a removed node, by who turns."""
        self._poller.register(place.mailbox, 0)
        place.mailbox.close()
        for number, link in place.links.items():
            if not isinstance(link, ReactorNode):
                self._unwatch(place, number, link)
                link.close(FAREWELL_MS)
        place.links.clear()
        place.opened.clear()
        place.stuck.clear()
        self._unfinished.discard(place)
        if place.ear is not None:
            self._leave_ear(place, place.ear)
        self._closing.remove(place)
        self.changed.notify_all()

    def _leave_ear(self, place: ReactorNode, ear: Datagrams) -> None:
        hearers = self._hearers[ear.fileno()]
        hearers.remove(place)
        if not hearers:
            del self._hearers[ear.fileno()]
            del self._ears[ear.interface, ear.port]
            self._poller.register(ear.fileno(), 0)
            ear.close()

    def counters(self, place: ReactorNode) -> dict[str, int]:
        """What was discarded before its node saw it. Under the lock."""
        found = {
            "message_oversize": place.drain.dropped,
            "goodbyes_dropped": self._goodbyes_dropped,
        }
        if place.ear is not None:
            found["beacon_malformed"] = place.ear.malformed
            found["beacon_flooded"] = place.ear.flooded
            found["unsent_beacons"] = place.ear.unsent
        return {name: count for name, count in found.items() if count}

    def _change(self, change: Callable[[], object]) -> None:
        """Has the poller changed by who turns, before the next wait."""
        self._changes.append(change)
        self.wake()

    def wake(self) -> None:
        """Ends the wait of who turns."""
        with suppress(OSError):  # It is awake already; or done with everything, and over.
            self._wake_out.send(b"\0")

    # ---- who turns ----

    def _run(self) -> None:
        """The thread: turns while no guest does, until the last node has gone."""
        with self.lock:
            while True:
                if self._places:
                    self._park()
                if self._turning:
                    self._follow(PARK_MS)
                elif self._deserted:
                    self._end()
                    return
                else:
                    self._turn(IDLE_MS)

    def _park(self) -> None:
        """Leaves the turning to guests while there are any, and for a moment after."""
        now_ms = monotonic_ms()
        while self._guests or now_ms - self._left_ms < PARK_MS:
            self._deep = self._guests > 0 and now_ms - self._come_ms >= PARK_MS
            self._parked.wait(None if self._deep else PARK_MS / 1000)
            now_ms = monotonic_ms()
        self._deep = False

    def _end(self) -> None:
        """There are no nodes any more: the next one gets a hub of its own."""
        self.over = True
        for end in (self._wake_in, self._wake_out):
            end.close()
        self.context.term()
        self.changed.notify_all()

    def _follow(self, wait_ms: int) -> None:
        """Waits for what somebody else, who turns, may have changed."""
        self._followers += 1
        try:
            self.changed.wait(wait_ms / 1000)
        finally:
            self._followers -= 1

    def wait(self, is_done: Callable[[], bool], until_ms: int | None) -> None:
        """Waits as a guest until something is so, or that time has come.

        Under the lock, held once: others may have it meanwhile.
        """
        if not self._guests:
            self._come_ms = monotonic_ms()
        self._guests += 1
        if self._turning:
            self.wake()  # The thread leaves the turning to us.
        try:
            while not is_done():
                left_ms = IDLE_MS if until_ms is None else until_ms - monotonic_ms()
                if left_ms <= 0:
                    return
                if self._turning:
                    self._follow(left_ms)
                else:
                    self._turn(left_ms)
        finally:
            self._guests -= 1
            self._left_ms = self._now_ms
            if self._deep:
                self._parked.notify_all()

    def _turn(self, wait_ms: int) -> None:
        """One round: waits until something arrives or is due, takes it in, and acts.

        Under the lock, held once, which others may have while this waits.
        """
        while self._changes:
            self._changes.popleft()()
        if not self._places and self._deserted:
            return
        wait_ms = self._wait_ms(wait_ms)
        self._turning = True
        try:
            self.lock.release()
            try:
                ready = self._poller.poll(wait_ms)
            finally:
                self.lock.acquire()
            self._now_ms = monotonic_ms()
            self._on_ready(ready, self._now_ms)
        finally:
            self._turning = False
            if self._followers:
                self.changed.notify_all()  # Somebody else may turn.

    def _on_ready(self, ready: list[tuple[Source, int]], now_ms: int) -> None:
        unfinished = [*self._unfinished]
        for source, _ in ready:
            if not isinstance(source, int):
                place = self._mailboxes.get(source)
                if place is not None and place not in self._unfinished:
                    self._take(place, now_ms)
                elif source in self._monitors:
                    self._on_lost(source, now_ms)
            elif source == self._by_fd:
                self._slept()
            else:
                self._hear(source, now_ms)
        for place in unfinished:
            self._take(place, now_ms)
        if self._due_ms is None or now_ms >= self._due_ms:
            self._on_due(now_ms)
        if self._touched:
            self._act_touched(now_ms)

    def _on_due(self, now_ms: int) -> None:
        """What has a time."""
        self._due_ms = None
        while self._goodbyes and self._goodbyes[0][0] <= now_ms:
            self._tell_of(*self._goodbyes.popleft()[1:], now_ms)
        for place in self._places.values():
            if place.deadline_ms is not None and place.deadline_ms <= now_ms:
                self._touched.add(place)
            if place.stuck:
                self._retry(place, now_ms)

    def _wait_ms(self, most_ms: int) -> int:
        """How long nothing is due, unless something arrives."""
        if self._unfinished:
            return 0
        now_ms = monotonic_ms()
        if self._due_ms is None:
            due_ms = self._goodbyes[0][0] if self._goodbyes else now_ms + IDLE_MS
            for place in self._places.values():
                if place.stuck:
                    return min(most_ms, RETRY_MS)  # Whatever arrives may have made room.
                if place.deadline_ms is not None and place.deadline_ms < due_ms:
                    due_ms = place.deadline_ms
            self._due_ms = due_ms
        return max(0, min(self._due_ms - now_ms, most_ms))

    def _is_due(self, due_ms: int | None) -> None:
        """Has who turns not wait beyond that time."""
        if due_ms is not None and self._due_ms is not None and due_ms < self._due_ms:
            self._due_ms = due_ms

    def _slept(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_in.recv(4096):
                pass

    # ---- what arrives ----

    def _hear(self, fd: int, now_ms: int) -> None:
        ear = next((ear for ear in self._ears.values() if ear.fileno() == fd), None)
        if ear is None:
            return
        for uuid, port, source in ear.take(now_ms):
            beacon = Beacon(uuid, port)
            if port:
                self._tell_of(fd, beacon, source, now_ms)
            elif len(self._goodbyes) < GOODBYES_MAX:
                self._goodbyes.append((now_ms + GOODBYE_MS, fd, beacon, source))
                self._is_due(now_ms + GOODBYE_MS)
            else:
                self._goodbyes_dropped += 1

    def _tell_of(self, fd: int, beacon: Beacon, source: str, now_ms: int) -> None:
        """Tells all nodes who hear there; of one that beacons again at once only those that have
        come meanwhile. Else a crowd that comes together would cost the cube of its number: each
        answers each, and each hears it."""
        key = fd, beacon, source
        then_ms, serial = self._heard.pop(key, (now_ms - AGAIN_MS, 0))
        if now_ms - then_ms >= AGAIN_MS:
            then_ms, serial = now_ms, 0
        if beacon.port:
            if len(self._heard) >= HEARD_MAX:
                self._heard.clear()
            self._heard[key] = then_ms, self._serial
        near = codec.endpoint_of(source, beacon.port) in self._places
        for place in reversed(self._hearers.get(fd, ())):
            if place.serial <= serial:
                break
            node = place.node
            if node is None or place.closed:
                continue
            node.hear(beacon, source, now_ms, near=near)
            deadline_ms = node.deadline_ms
            sooner = deadline_ms is not None and deadline_ms != place.deadline_ms
            if sooner or node.busy:  # Who is not greeted at once is answered by a beacon.
                self._touched.add(place)

    def _take(self, place: ReactorNode, now_ms: int) -> None:
        """Takes in what lies in a mailbox, unless too much of it is unread."""
        self._unfinished.discard(place)
        node = place.node
        if place.closed or node is None:
            return
        for _ in range(TAKES_MAX):
            if place.full:
                self._pause(place)
                return
            size = node.receive(place.drain, now_ms)
            if size:
                place.bytes += size
                events = node.told()
                if events is None:
                    self._do(place, now_ms)
                else:
                    self._tell(place, events)
            if not place.drain.more:
                return
        self._unfinished.add(place)

    def _register(self, place: ReactorNode) -> None:
        self._poller.register(place.mailbox, zmq.POLLIN, drained=True)

    def _pause(self, place: ReactorNode) -> None:
        place.paused = True
        self._poller.register(place.mailbox, 0)

    def resume(self, place: ReactorNode) -> None:
        """Its events were read. Under the lock."""
        place.bytes = 0
        if place.paused and not place.closed:
            place.paused = False
            self._change(lambda: self._resume(place))

    def _resume(self, place: ReactorNode) -> None:
        if not place.closed:
            self._register(place)
            self._unfinished.add(place)

    # ---- what is to be done ----

    def whisper(self, place: ReactorNode, uuid: bytes, content: bytes) -> bool:
        """Sends one frame to a peer at once, if that can be. False: nothing was done. Under the
        lock."""
        node = place.node
        assert node is not None
        peer = node.direct(uuid)
        if peer is None:
            return False
        socket = place.opened.get(peer.number)
        if socket is None:
            link = place.links.get(peer.number)
            if link is None or isinstance(link, ReactorNode):
                return False
            socket = place.opened[peer.number] = opened(link)
        return node.traffic.whisper(peer.slot, content, socket)

    def act(self, place: ReactorNode) -> None:
        """Does what a node wants, and what others want because of it. Under the lock, by whoever
        has told the node something."""
        if place.closed:
            return
        before_ms = place.deadline_ms
        now_ms = monotonic_ms()
        told = self._do(place, now_ms)
        if self._touched:
            told = self._act_touched(now_ms) or told
        if not self._turning:
            return
        after_ms = place.deadline_ms
        sooner = after_ms is not None and (before_ms is None or after_ms < before_ms)
        if place.stuck or sooner or (told and self._guests):
            self.wake()

    def _act_touched(self, now_ms: int) -> bool:
        """Whether anybody was told of events."""
        told = False
        while self._touched:
            place = self._touched.pop()
            if place.node is not None and not place.closed:
                told = self._do(place, now_ms) or told
        return told

    def _do(self, place: ReactorNode, now_ms: int) -> bool:
        """Does what a node wants; whether anybody was told of events."""
        node = place.node
        assert node is not None
        done = node.ready(now_ms)
        place.deadline_ms = node.deadline_ms
        self._is_due(place.deadline_ms)
        for action in done.actions:
            if isinstance(action, Connect):
                self._connect(place, action)
            else:
                self._disconnect(place, action.number)
        for number, frames in done.sends:
            self._send(place, number, frames)
        if place.ear is not None:
            for beacon in done.beacons:
                place.ear.send(beacon)
        return self._tell(place, done.events)

    def _tell(self, place: ReactorNode, events: list[Event]) -> bool:
        place.events += events
        if not place.events:
            place.bytes = 0  # Nobody has to read anything.
            return False
        if place.listeners:
            place.tell()
        if self._followers:
            self.changed.notify_all()
        return True

    def _connect(self, place: ReactorNode, action: Connect) -> None:
        local = self._places.get(action.endpoint)
        if local is not None:
            place.links[action.number] = local
            place.routing_ids[action.number] = action.routing_id
            return
        dealer = self._dealer(place, action)
        if dealer is not None:
            place.links[action.number] = dealer
            return
        assert place.node is not None
        place.node.on_unreachable(action.number)
        self._touched.add(place)

    def _dealer(self, place: ReactorNode, action: Connect) -> Socket | None:
        """None: no socket is left, or there is no such address here."""
        endpoint = codec.connection_of(place.host, action.endpoint)
        try:
            dealer = self.context.socket(zmq.DEALER)
        except zmq.ZMQError:
            return None
        for option, value in (
            (zmq.IPV6, "[" in endpoint),
            (zmq.LINGER, 0),
            (zmq.SNDHWM, values.SEND_HWM),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        ):
            dealer.setsockopt(option, value)
        dealer.setsockopt(zmq.ROUTING_ID, action.routing_id)
        try:
            if action.watched:
                self._watch(place, action.number, dealer)
            dealer.connect(endpoint)
        except zmq.ZMQError:
            self._unwatch(place, action.number, dealer)
            dealer.close()
            return None
        return dealer

    def _watch(self, place: ReactorNode, number: int, dealer: Socket) -> None:
        """Hears of the dealer's connection when it is lost. Raises zmq.ZMQError."""
        monitor: Socket = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        place.monitors[number] = monitor
        self._monitors[monitor] = place, number
        self._change(lambda: self._poller.register(monitor, zmq.POLLIN))

    def _unwatch(self, place: ReactorNode, number: int, dealer: Socket) -> None:
        monitor = place.monitors.pop(number, None)
        if monitor is None:
            return
        dealer.disable_monitor()
        del self._monitors[monitor]

        def close() -> None:
            self._poller.register(monitor, 0)
            monitor.close()

        self._change(close)

    def _on_lost(self, monitor: Socket, now_ms: int) -> None:
        place, number = self._monitors[monitor]
        while monitor.poll(0):
            monitor.recv_multipart()
        if place.node is not None and not place.closed:
            place.node.on_disconnected(number, now_ms)
            self._touched.add(place)

    def _disconnect(self, place: ReactorNode, number: int) -> None:
        link = place.links.pop(number, None)
        place.opened.pop(number, None)
        place.routing_ids.pop(number, None)
        if place.stuck.pop(number, None) is not None:
            self.changed.notify_all()
        if link is not None and not isinstance(link, ReactorNode):
            self._unwatch(place, number, link)
            link.close()

    def _send(self, place: ReactorNode, number: int, frames: Frames) -> None:
        link = place.links.get(number)
        if link is None:
            frames.clear()
        else:
            self._push(place, number, link, frames)
            if len(frames):
                place.stuck.setdefault(number, (frames, monotonic_ms()))
                self._due_ms = None

    def _push(
        self, place: ReactorNode, number: int, link: "Socket | ReactorNode", frames: Frames
    ) -> None:
        """Sends as much as there is room for."""
        if not isinstance(link, ReactorNode):
            send_batch(link, frames, "keep")
        elif not link.full:
            assert link.node is not None
            source = place.host.encode()
            link.node.on_batch(place.routing_ids[number], source, frames, monotonic_ms())
            link.bytes += frames.size
            frames.clear()
            self._touched.add(link)

    def _retry(self, place: ReactorNode, now_ms: int) -> None:
        """Sends what had no room; a peer that has none for too long is held to be gone."""
        assert place.node is not None
        for number, (frames, since_ms) in list(place.stuck.items()):
            link = place.links.get(number)
            if link is not None:
                self._push(place, number, link, frames)
            if not len(frames):
                del place.stuck[number]
            elif now_ms - since_ms > place.patience_ms:
                del place.stuck[number]
                frames.clear()
                place.node.on_full([number])
                self._touched.add(place)
        if not place.stuck:
            place.tell()
            self.changed.notify_all()


_hub: NodeReactor | None = None
_hub_forks = 0
_hub_lock = threading.Lock()


def shared_hub() -> NodeReactor:
    """The hub of this process, claimed for a node that is to begin()."""
    global _hub, _hub_forks
    with _hub_lock:
        if _hub is None or _hub_forks != forks() or not _hub.claim():
            if _hub is None:
                atexit.register(_end_all)
            _hub, _hub_forks = NodeReactor(), forks()
            _hub.claim()
        return _hub


def _end_all() -> None:
    """Says goodbye for nodes that were not closed."""
    if _hub is not None and not _hub.over and _hub_forks == forks():
        _hub.remove_all()
