"""The client machine's connections: a DEALER for each peer, with a monitor for what befalls it, and
a SUB for each subscription.
"""

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import zmq

from ...native.net.messages import Frames
from ...native.net.sockets import Drain, send_batch
from ...native.tables.columns import Message
from ...net.clock import monotonic_ms as monotonic_ms
from ...protocols.connections import ClientMachine, Connect, Disconnect, Listen, Send, Unlisten
from .resources import Resources

SEND_MESSAGES_MAX = 1 << 15  # More than a window of single updates.
RECEIVE_MESSAGES_MAX = 1000
BROADCASTS_MAX = 256  # That wait for their reader; what is beyond is asked for.
TAKES_MAX = 16  # In one go, however much goes on arriving.
ARENA_BYTES = 1 << 18
ARENA_FRAMES = 1 << 12
RECONNECT_MS = 50
RECONNECT_MS_MAX = 1000
HANDSHAKE_MS = 2000
EVENT = struct.Struct("=H")  # What a monitor's message begins with (libzmq, zmq_socket_monitor).
EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@runtime_checkable
class Listener(Protocol):
    """One that also has subscriptions."""

    def on_broadcast(self, subscription: Any, frames: Sequence[bytes], now_ms: int) -> None: ...


class MessageLimits(NamedTuple):
    """The largest message that is taken in; a larger one is dropped."""

    size: int = 32 << 20  # Bytes, all frames together.
    frames: int = 1 << 13
    whole: int = 1 << 30  # Messages of more frames are handed over uncut (native.columns.Message).


LIMITS = MessageLimits()


class Manner(NamedTuple):
    """How connections are treated."""

    secret_ids: bool = False  # Each socket has a random routing id, in place of libzmq's counter.
    patient: bool = False  # AsyncLinks: what a peer has no room for waits; else it counts as lost.
    send_messages_max: int = SEND_MESSAGES_MAX  # Queued for a peer.
    linger_ms: int = 0  # close() waits so long for what is queued to leave.


PLAIN = Manner()


class _Link:
    __slots__ = ("_resources", "drain", "frames", "monitor", "socket", "url")

    def __init__(
        self, url: str, resources: Resources, limits: MessageLimits, manner: Manner
    ) -> None:
        self.url = url
        self._resources = resources
        marks = manner.send_messages_max, RECEIVE_MESSAGES_MAX
        self.socket = _socket(resources, zmq.DEALER, marks)
        if manner.secret_ids:
            self.socket.setsockopt(zmq.ROUTING_ID, b"k" + os.urandom(15))  # A first octet not 0.
        self.socket.setsockopt(zmq.MAXMSGSIZE, limits.size)
        self.monitor = self.socket.get_monitor_socket(EVENTS)
        resources.add(self.monitor)
        self.frames = Frames()
        self.drain = _drain(self.socket, limits)
        try:
            self.socket.connect(url)
        except zmq.ZMQError:
            self.close()  # A context that still has a socket never ends.
            raise

    def close(self) -> None:
        self.socket.disable_monitor()
        self._resources.close_socket(self.monitor)
        self._resources.close_socket(self.socket)


class _Feed:
    """The SUB of a subscription."""

    __slots__ = ("_resources", "drain", "socket")

    def __init__(self, url: str, topic: bytes, resources: Resources) -> None:
        self._resources = resources
        self.socket = _socket(resources, zmq.SUB, (1, BROADCASTS_MAX))
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        self.drain = _drain(self.socket, LIMITS)
        try:
            self.socket.connect(url)
        except zmq.ZMQError:
            self.close()
            raise

    def close(self) -> None:
        self._resources.close_socket(self.socket)


def _socket(resources: Resources, kind: int, marks: tuple[int, int]) -> zmq.Socket[bytes]:
    """marks: so many messages may wait to be sent, and to be taken in."""
    socket = resources.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, marks[0]),
        (zmq.RCVHWM, marks[1]),
        (zmq.MAXMSGSIZE, LIMITS.size),
        (zmq.RECONNECT_IVL, RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
    ):
        socket.setsockopt(option, value)
    return socket


def _drain(socket: zmq.Socket[bytes], limits: MessageLimits) -> Drain:
    return Drain(
        socket,
        message_bytes_max=limits.size,
        message_frames_max=limits.frames,
        arena_bytes=ARENA_BYTES,
        frames=ARENA_FRAMES,
    )


class Links:
    """Does what the machine asks for and tells it what arrives.

    links      DEALER  the frames of docs/protocols/zmq-raft.md   to one peer's ROUTER each
    monitors   PAIR    libzmq's events: made, lost                of each link
    feeds      SUB     StateBroadcast                             of a leader's state machine each
    """

    def __init__(
        self,
        client: ClientMachine,
        limits: MessageLimits = LIMITS,
        manner: Manner = PLAIN,
        resources: Resources | None = None,
    ) -> None:
        self.client = client
        self._limits = limits
        self._manner = manner
        self.resources = resources or Resources()
        self._links: dict[str, _Link] = {}
        self._feeds: dict[Any, _Feed] = {}
        self._poller = zmq.Poller()

    def turn(self, give_up_ms: int, is_done: Callable[[], bool] = lambda: False) -> None:
        """One round: sends what is due, waits until something arrives or is due, takes it in.

        It does not wait when that is done already: who asks an old leader is refused unsent.
        """
        now_ms = monotonic_ms()
        if not self._act(now_ms) or is_done():
            return
        until_ms = give_up_ms
        if self.client.deadline_ms is not None:
            until_ms = min(until_ms, self.client.deadline_ms)
        wait_ms = 0 if self._unfinished else max(0, until_ms - now_ms)
        ready = {socket for socket, _ in self._poller.poll(wait_ms)}
        if ready or self._unfinished:
            self._take(ready)

    def take_in(self) -> None:
        """Takes in what lies there, before anything is held to be late: for owners that were away
        for a while."""
        for _ in range(TAKES_MAX):
            ready = {socket for socket, _ in self._poller.poll(0)}
            if not ready and not self._unfinished:
                break
            self._take(ready)

    @property
    def _unfinished(self) -> bool:
        """Whether a drain holds what its arena had no room for: no poll shows that."""
        drains = [link.drain for link in self._links.values()]
        drains += [feed.drain for feed in self._feeds.values()]
        return any(drain.more for drain in drains)

    def _act(self, now_ms: int) -> bool:
        """Does what the machine wants now; False: it wants a word once more."""
        for action in self.client.ready(now_ms):
            match action:
                case Send(url, frames) if url in self._links:
                    self._links[url].frames.add(frames)
                case Connect(url):
                    self._connect(url)
                case Disconnect(url):
                    self._disconnect(url)
                case Listen(subscription, url, topic):
                    self._listen(subscription, url, topic)
                case Unlisten(subscription):
                    self._unlisten(subscription)
        return self._send(now_ms)

    def _send(self, now_ms: int) -> bool:
        """Sends all that is queued; False: a connection was given up, the machine wants a word."""
        lost = False
        for link in self._links.values():
            send_batch(link.socket, link.frames, "keep")
            if len(link.frames) and not self._manner.patient:
                # It has stopped reading: as good as lost, for nothing may be left out.
                link.frames.clear()
                self.client.on_disconnected(link.url, now_ms)
                lost = True
        return not lost

    @property
    def backlog(self) -> int:
        """Messages for which their peers have no room yet."""
        return sum(len(link.frames) for link in self._links.values())

    def _take(self, ready: set[object]) -> None:
        links = list(self._links.values())
        for link in links:
            if link.socket in ready or link.drain.more:
                self._drain(link)
        for subscription, feed in list(self._feeds.items()):
            if feed.socket in ready or feed.drain.more:
                self._drain_feed(subscription, feed)
        # Behind the messages, for those came before the loss.
        for link in links:
            if link.monitor in ready:
                self._on_events(link)

    def _drain(self, link: _Link) -> None:
        arena = link.drain.take()
        now_ms = monotonic_ms()
        for position in range(arena.count):
            frames: Sequence[bytes]
            if arena.frame_count(position) > self._limits.whole:
                frames = Message(*arena.raw(position))
            else:
                frames = arena.message(position)
            self.client.on_frames(link.url, frames, now_ms)

    def _drain_feed(self, subscription: Any, feed: _Feed) -> None:
        assert isinstance(self.client, Listener)
        arena = feed.drain.take()
        now_ms = monotonic_ms()
        for position in range(arena.count):
            self.client.on_broadcast(subscription, arena.message(position), now_ms)

    def _on_events(self, link: _Link) -> None:
        while link.monitor.poll(0):
            # [event, its value][endpoint]; pyzmq's own way takes asyncio in, 40 ms of a start.
            (event,) = EVENT.unpack_from(link.monitor.recv_multipart()[0])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.client.on_connected(link.url, monotonic_ms())
            elif event == zmq.EVENT_DISCONNECTED:
                self.client.on_disconnected(link.url, monotonic_ms())

    def _connect(self, url: str) -> None:
        try:
            link = _Link(url, self.resources, self._limits, self._manner)
        except zmq.ZMQError:
            return  # Learned from a peer, and no address here: it stays a peer that never answers.
        self._links[url] = link
        self._register(link.socket)
        self._register(link.monitor)

    def _disconnect(self, url: str) -> None:
        link = self._links.pop(url, None)
        if link is None:
            return
        self._unregister(link.socket)
        self._unregister(link.monitor)
        link.close()

    def _listen(self, subscription: Any, url: str, topic: bytes) -> None:
        try:
            feed = _Feed(url, topic, self.resources)
        except zmq.ZMQError:
            return  # No address here: what it would bring is asked for.
        self._feeds[subscription] = feed
        self._register(feed.socket)

    def _unlisten(self, subscription: Any) -> None:
        feed = self._feeds.pop(subscription, None)
        if feed is not None:
            self._unregister(feed.socket)
            feed.close()

    def _register(self, socket: zmq.Socket[bytes]) -> None:
        self._poller.register(socket, zmq.POLLIN)

    def _unregister(self, socket: zmq.Socket[bytes]) -> None:
        self._poller.unregister(socket)

    def close(self) -> None:
        """Ends all connections; what was queued for them is dropped, unless it may linger."""
        for link in self._links.values():
            link.socket.setsockopt(zmq.LINGER, self._manner.linger_ms)
        for url in list(self._links):
            self._disconnect(url)
        for subscription in list(self._feeds):
            self._unlisten(subscription)
        self.resources.close()
