"""Runs a client machine in an actor's loop: that of ZMQ RAFT finds the leader, appends and reads;
that of ZeroDB asks a table server.

clients/io/links.py does the same with a poller of its own.
"""

from collections.abc import Callable
from functools import partial

import zmq

from ...native.net.messages import Arena
from ...native.net.sockets import DrainedSocket
from ...net.client_keys import ClientKeys, UnpinnedServer
from ...net.links import ARENA_BYTES, Link, LinkLimits, LinkProblem, link_options
from ...protocols.connections import ClientMachine, Connect, Disconnect, Send
from ..runtime.process_loop import ProcessLoop

LIMITS = LinkLimits()


class LeaderLink:
    """Performs the machine's actions and passes it what arrives.

    links      DEALER  the frames of docs/protocols/zmq-raft.md   to the ROUTER of one peer each
               DEALER  those of docs/protocols/zerodb.md          to the ROUTER of one server each
    monitors   PAIR    libzmq's events: connected, disconnected   of each link
    """

    def __init__(
        self,
        loop: ProcessLoop,
        client: ClientMachine,
        limits: LinkLimits = LIMITS,
        keys: ClientKeys | None = None,
        before_input: Callable[[], None] = lambda: None,
    ) -> None:
        """keys           None: connections without CURVE
        before_input   called before the machine learns of messages, events or the time"""
        self.client = client
        self._before_input = before_input
        self._drained: dict[str, DrainedSocket] = {}
        self._keys = keys
        self._limits = limits
        self._loop = loop
        self._links: dict[str, Link] = {}
        self._has_input = True  # The machine has received something since its last act().
        self._is_lazy = False
        self.deadline_ms: int | None = 0  # The latest time of the next act().

    def set_lazy(self, lazy: bool) -> None:
        """Whether what arrives may come with another event (PollLoop.set_lazy())."""
        if lazy is not self._is_lazy:
            self._is_lazy = lazy
            for link in self._links.values():
                self._loop.set_lazy(link.socket, lazy)

    def act(self, now_ms: int, asked: bool) -> None:
        """Performs the machine's actions. Call it once a wake, after everything was received.

        asked   the owner has given the machine a new request
        """
        due = self.deadline_ms is not None and self.deadline_ms <= now_ms
        if not (asked or due or self._has_input):
            return
        if due or self._has_input:
            self._before_input()
        self._has_input = False
        again = True
        while again:
            for action in self.client.ready(now_ms):
                match action:
                    case Send(url, frames) if url in self._links:
                        self._links[url].frames.add(frames)
                    case Connect(url):
                        self._connect(url)
                    case Disconnect(url):
                        self._disconnect(url)
            again = self._send(now_ms)
        self.deadline_ms = self.client.deadline_ms

    def _send(self, now_ms: int) -> bool:
        """Sends all queued messages. True: a connection was given up, ask the machine again."""
        lost = False
        for url, link in self._links.items():
            if not len(link.frames):
                continue
            flushed = link.flush()
            self._loop.recheck(link.socket)
            if not flushed:
                # The peer does not read. No message may be skipped, so the connection is lost.
                link.frames.clear()
                self.client.on_disconnected(url, now_ms)
                lost = True
        return lost

    def _connect(self, url: str) -> None:
        try:
            curve = None if self._keys is None else self._keys.curve(url)
        except UnpinnedServer as error:
            self._on_refused(url, LinkProblem(error.problem, error.way_out))
            return
        socket = self._loop.socket(zmq.DEALER, link_options(self._limits, curve))
        link = Link(socket, url, curve is not None)
        self._links[url] = link

        # Messages are read before the monitor: they arrived before the loss.
        drain = self._loop.listen(socket, partial(self.receive, url), ARENA_BYTES)
        self._drained[url] = DrainedSocket(socket, drain)
        self._loop.watch_link(link, partial(self._on_event, url), partial(self._on_refused, url))
        self._loop.set_lazy(socket, self._is_lazy)
        try:
            link.connect()
        except zmq.ZMQError:
            return  # A peer gave an invalid address: it counts as a peer that never answers.

    def drained(self, url: str) -> DrainedSocket | None:
        """The socket of a connection, for an owner that receives itself; None: messages wait there,
        or there is none."""
        link = self._links.get(url)
        return None if link is None or len(link.frames) else self._drained[url]

    def receive(self, url: str, arena: Arena, first: int = 0) -> None:
        """Passes messages to the machine, from the position `first` on."""
        self._before_input()
        self._has_input = True
        for position in range(first, arena.count):
            self.client.on_frames(url, arena.message(position), self._loop.now_ms)

    def _on_event(self, url: str, connected: bool) -> None:
        self._before_input()
        self._has_input = True
        report = self.client.on_connected if connected else self.client.on_disconnected
        report(url, self._loop.now_ms)

    def _on_refused(self, url: str, problem: LinkProblem) -> None:
        self._before_input()
        self._has_input = True
        self._loop.on_link_refused(url, problem)
        self.client.on_refused(url, *problem)

    def _disconnect(self, url: str) -> None:
        link = self._links.pop(url, None)
        if link is None:
            return
        del self._drained[url]
        self._loop.close_socket(link.socket)

    def close(self) -> None:
        for url in list(self._links):
            self._disconnect(url)
