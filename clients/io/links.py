"""The ZeroMQ connections of a client: a DEALER with a monitor for each peer, a SUB for each
subscription.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import zmq

from ...native.net.sockets import Drain
from ...native.tables.columns import Message
from ...net.client_keys import ClientKeys, UnpinnedServer
from ...net.clock import monotonic_ms
from ...net.links import (
    ARENA_BYTES,
    NEVER_MS,
    SEND_MESSAGES_MAX,
    Link,
    LinkLimits,
    LinkProblem,
    link_options,
)
from ...net.sockets import SocketOptions, configure
from ...protocols.connections import (
    ClientMachine,
    Connect,
    Disconnect,
    Listen,
    Send,
    Unlisten,
    Warn,
)
from .notices import warn
from .resources import Resources

BROADCASTS_MAX = 256  # Broadcasts that wait for their reader; it requests the others.
RECEIVES_MAX = 16  # In a row, while messages keep arriving.
ARENA_FRAMES = 1 << 12


@runtime_checkable
class Listener(Protocol):
    """A client machine that has subscriptions."""

    def on_broadcast(self, subscription: Any, frames: Sequence[bytes], now_ms: int) -> None: ...


class LinkSettings(NamedTuple):
    """How the connections of a client behave."""

    limits: LinkLimits = LinkLimits()
    columnar_frames_min: int = 1 << 30  # Messages of more frames stay one native Message.
    secret_ids: bool = False  # Each socket has a random routing id, in place of libzmq's counter.
    patient: bool = False  # Messages wait for a peer without room; else it counts as lost.
    send_messages_max: int = SEND_MESSAGES_MAX  # Queued for a peer.
    linger_ms: int = 0  # How long close() waits for queued messages to leave.
    idle_ms: int = 1 << 62  # After so long a pause receive first: answers then are not late.
    keys: ClientKeys | None = None  # None: connections without CURVE.
    has_bundles: bool = False  # Opens bundles, and sends bundles to a peer that has sent one.


DEFAULTS = LinkSettings()


class _ClientLink(Link):
    """A connection that the client's resources own."""

    __slots__ = ("_resources", "drain")

    def __init__(self, kind: int, url: str, options: SocketOptions, resources: Resources) -> None:
        """Raises ZMQError."""
        self._resources = resources
        socket = resources.socket(kind)
        configure(socket, kind, options)
        self.drain = Drain(
            socket,
            message_bytes_max=options.message_bytes_max,
            message_frames_max=options.message_frames_max,
            arena_bytes=ARENA_BYTES,
            frames=ARENA_FRAMES,
            opens_bundles=options.opens_bundles,
        )
        super().__init__(socket, url, options.curve is not None)
        resources.add(self.monitor)
        try:
            self.connect()
        except zmq.ZMQError:
            self.close()  # A context that still has a socket never ends.
            raise

    def close(self) -> None:
        self.socket.disable_monitor()
        self._resources.close_socket(self.monitor)
        self._resources.close_socket(self.socket)


def _peer_link(url: str, resources: Resources, settings: LinkSettings) -> _ClientLink:
    """Raises ZMQError, UnpinnedServer."""
    curve = None if settings.keys is None else settings.keys.curve(url)
    options = link_options(settings.limits, curve)._replace(
        send_hwm=settings.send_messages_max,
        keepalive=False,
        opens_bundles=settings.has_bundles,
        routing_id=b"k" + os.urandom(15) if settings.secret_ids else b"",  # Its first is not 0.
    )
    return _ClientLink(zmq.DEALER, url, options, resources)


def _feed(asked: Listen, resources: Resources, keys: ClientKeys | None) -> _ClientLink:
    """The SUB of a subscription. Raises ZMQError, UnpinnedServer."""
    curve = None if keys is None else keys.curve(asked.url, asked.named_by)
    options = link_options(LinkLimits(), curve)._replace(
        hwm=BROADCASTS_MAX, send_hwm=1, keepalive=False, topics=(asked.topic,)
    )
    return _ClientLink(zmq.SUB, asked.url, options, resources)


class Links:
    """Executes the actions of a client machine and passes events to it.

    links      DEALER  the frames of docs/protocols/zmq-raft.md   to one peer's ROUTER each
    feeds      SUB     StateBroadcast                             of a leader's state machine each
    monitors   PAIR    libzmq's events: made, lost                of each link and feed
    """

    def __init__(
        self,
        client: ClientMachine,
        settings: LinkSettings = DEFAULTS,
        resources: Resources | None = None,
    ) -> None:
        self.client = client
        self._settings = settings
        self.resources = resources or Resources()
        self._links: dict[str, _ClientLink] = {}
        self._feeds: dict[Any, _ClientLink] = {}
        self._poller = zmq.Poller()
        self._ran_ms = monotonic_ms()
        self._warned: set[str] = set()  # Urls whose problem the user knows.

    def run_once(self, give_up_ms: int, is_done: Callable[[], bool] = lambda: False) -> None:
        """Sends what is due, waits until something arrives or is due, and receives it.

        It returns without a wait when is_done() is true after the first step: a request to an old
        leader is refused before it is sent.
        """
        now_ms = monotonic_ms()
        if not self._act(now_ms) or is_done():
            return
        until_ms = give_up_ms
        if self.deadline_ms is not None:
            until_ms = min(until_ms, self.deadline_ms)
        wait_ms = 0 if self._unfinished else max(0, until_ms - now_ms)
        ready = {socket for socket, _ in self._poller.poll(wait_ms)}
        if ready or self._unfinished:
            self._receive(ready)

    def run_ready(self) -> bool:
        """Sends and receives what is possible now; returns whether more may be possible.

        A socket's descriptor becomes readable once when something has happened, so an event loop
        has to call it until nothing is left to do.
        """
        if not self._act(monotonic_ms()):
            return True
        ready: set[object] = {socket for socket, _ in self._poller.poll(0)}
        if not ready and not self._unfinished and not self._sent_more():
            return False
        self._receive(ready)
        return True

    @property
    def deadline_ms(self) -> int | None:
        """When run_once() or run_ready() must be called at the latest."""
        retry_ms = min((link.retry_ms for link in self._every_link()), default=NEVER_MS)
        machine_ms = self.client.deadline_ms
        if retry_ms == NEVER_MS:
            return machine_ms
        return retry_ms if machine_ms is None else min(machine_ms, retry_ms)

    def _sent_more(self) -> bool:
        """Sends queued messages again; returns whether some have left.

        Polling a socket for messages clears its descriptor, also of the news that it has room.
        """
        left = self.backlog
        if left:
            self._send(monotonic_ms())
        return self.backlog < left

    def _receive_late(self, now_ms: int) -> None:
        """Receives what has arrived while the owner was busy, before a deadline is noticed."""
        then_ms, self._ran_ms = self._ran_ms, now_ms
        if now_ms - then_ms > self._settings.idle_ms:
            for _ in range(RECEIVES_MAX):
                ready: set[object] = {socket for socket, _ in self._poller.poll(0)}
                if not ready and not self._unfinished:
                    break
                self._receive(ready)

    @property
    def _unfinished(self) -> bool:
        """Whether a drain holds messages for which its arena had no room: no poll shows them."""
        return any(link.drain.more for link in self._every_link())

    def _every_link(self) -> Iterator[_ClientLink]:
        yield from self._links.values()
        yield from self._feeds.values()

    def _act(self, now_ms: int) -> bool:
        """Executes the machine's actions; False: it has new ones, for a connection was lost."""
        self._receive_late(now_ms)
        for link in self._every_link():
            link.retry(now_ms)
        for action in self.client.ready(now_ms):
            match action:
                case Send(url, frames) if url in self._links:
                    self._links[url].frames.add(frames)
                case Connect(url):
                    self._connect(url)
                case Disconnect(url):
                    self._disconnect(url)
                case Listen():
                    self._listen(action)
                case Unlisten(subscription):
                    self._unlisten(subscription)
                case Warn(text):
                    warn(text)
        return self._send(now_ms)

    def _send(self, now_ms: int) -> bool:
        """Sends all queued messages; False: a connection was given up."""
        lost = False
        for link in self._links.values():
            if not link.flush(link.drain.bundles > 0) and not self._settings.patient:
                # The peer has stopped reading. No message may be left out, so it counts as lost.
                link.frames.clear()
                self.client.on_disconnected(link.url, now_ms)
                lost = True
        return not lost

    @property
    def backlog(self) -> int:
        """Messages for which their peers have no room yet."""
        return sum(len(link.frames) for link in self._links.values())

    def _receive(self, ready: set[object]) -> None:
        links = list(self._links.values())
        for link in links:
            if link.socket in ready or link.drain.more:
                self._drain(link)
        for subscription, feed in list(self._feeds.items()):
            if feed.socket in ready or feed.drain.more:
                self._drain_feed(subscription, feed)
        # After the messages, which came before the loss.
        for link in links:
            if link.monitor in ready:
                for connected in link.events():
                    report = self.client.on_connected if connected else self.client.on_disconnected
                    report(link.url, monotonic_ms())
                self._report_problem(link)
        for feed in list(self._feeds.values()):
            if feed.monitor in ready:
                for _ in feed.events():
                    pass  # The machine requests what the feed did not bring.
                self._report_problem(feed)

    def _drain(self, link: _ClientLink) -> None:
        arena = link.drain.receive()
        now_ms = monotonic_ms()
        for position in range(arena.count):
            frames: Sequence[bytes]
            if arena.frame_count(position) > self._settings.columnar_frames_min:
                frames = Message(*arena.raw(position))
            else:
                frames = arena.message(position)
            self.client.on_frames(link.url, frames, now_ms)

    def _drain_feed(self, subscription: Any, feed: _ClientLink) -> None:
        assert isinstance(self.client, Listener)
        arena = feed.drain.receive()
        now_ms = monotonic_ms()
        for position in range(arena.count):
            self.client.on_broadcast(subscription, arena.message(position), now_ms)

    def _report_problem(self, link: _ClientLink) -> None:
        if link.problem is not None:
            self._on_refused(link.url, link.problem)
        else:
            self._warned.discard(link.url)

    def _on_refused(self, url: str, problem: LinkProblem) -> None:
        self.client.on_refused(url, *problem)
        if url not in self._warned:
            self._warned.add(url)
            warn(f"{url}: {problem.text}; {problem.way_out}")

    def _connect(self, url: str) -> None:
        try:
            link = _peer_link(url, self.resources, self._settings)
        except zmq.ZMQError:
            return  # A bad address from a peer: it stays a peer that never answers.
        except UnpinnedServer as error:
            self._on_refused(url, LinkProblem(error.problem, error.way_out))
            return
        self._links[url] = link
        self._register(link)

    def _disconnect(self, url: str) -> None:
        link = self._links.pop(url, None)
        if link is not None:
            self._close(link)

    def _listen(self, asked: Listen) -> None:
        try:
            feed = _feed(asked, self.resources, self._settings.keys)
        except zmq.ZMQError:
            return  # A bad address: the client requests the entries instead.
        except UnpinnedServer as error:
            self._on_refused(asked.url, LinkProblem(error.problem, error.way_out))
            return
        self._feeds[asked.subscription] = feed
        self._register(feed)

    def _unlisten(self, subscription: Any) -> None:
        feed = self._feeds.pop(subscription, None)
        if feed is not None:
            self._close(feed)

    def _register(self, link: _ClientLink) -> None:
        for socket in (link.socket, link.monitor):
            self._poller.register(socket, zmq.POLLIN)
            self.resources.watch(socket)

    def _close(self, link: _ClientLink) -> None:
        for socket in (link.socket, link.monitor):
            self._poller.unregister(socket)
        link.close()

    def close(self) -> None:
        """Ends all connections; queued messages are dropped after linger_ms."""
        for link in self._links.values():
            link.socket.setsockopt(zmq.LINGER, self._settings.linger_ms)
        for url in list(self._links):
            self._disconnect(url)
        for subscription in list(self._feeds):
            self._unlisten(subscription)
        self.resources.close()
