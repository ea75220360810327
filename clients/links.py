"""The client machine's connections: one DEALER for each peer, and a monitor for what befalls it."""

import time
from types import TracebackType
from typing import Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from ..protocols.zmqraft.client import Client, Connect, Disconnect, Send

SEND_MESSAGES_MAX = 1 << 15  # More than a window of single updates.
RECEIVE_MESSAGES_MAX = 1000
MESSAGE_BYTES_MAX = 32 << 20
RECONNECT_MS = 50
RECONNECT_MS_MAX = 1000
HANDSHAKE_MS = 2000
DRAIN_MAX = 1000  # Messages from one socket before the others have their turn.
EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Link:
    __slots__ = ("monitor", "socket", "url")

    def __init__(self, url: str, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.url = url
        self.socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, SEND_MESSAGES_MAX),
            (zmq.RCVHWM, RECEIVE_MESSAGES_MAX),
            (zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX),
            (zmq.RECONNECT_IVL, RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        ):
            self.socket.setsockopt(option, value)
        self.monitor = self.socket.get_monitor_socket(EVENTS)
        self.socket.connect(url)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()


class Links:
    """Does what the machine asks for and tells it what arrives.

    links      DEALER  the frames of docs/protocols/zmq-raft.md   to one peer's ROUTER each
    monitors   PAIR    libzmq's events: made, lost                of each link
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._links: dict[str, _Link] = {}
        self._poller = zmq.Poller()

    def turn(self, give_up_ms: int) -> None:
        """One round: sends what is due, waits until something arrives or is due, takes it in."""
        now_ms = monotonic_ms()
        for action in self.client.ready(now_ms):
            match action:
                case Send(url, frames):
                    self._send(url, frames)
                case Connect(url):
                    self._connect(url)
                case Disconnect(url):
                    self._disconnect(url)
        until_ms = give_up_ms
        if self.client.deadline_ms is not None:
            until_ms = min(until_ms, self.client.deadline_ms)
        ready = {socket for socket, _ in self._poller.poll(max(0, until_ms - now_ms))}
        if ready:
            self._take(ready)

    def _take(self, ready: set[object]) -> None:
        links = list(self._links.values())
        for link in links:
            if link.socket in ready:
                self._drain(link)
        # Behind the messages, for those came before the loss.
        for link in links:
            if link.monitor in ready:
                self._on_events(link)

    def _drain(self, link: _Link) -> None:
        now_ms = monotonic_ms()
        for _ in range(DRAIN_MAX):
            try:
                frames = link.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self.client.on_frames(link.url, frames, now_ms)

    def _on_events(self, link: _Link) -> None:
        while link.monitor.poll(0):
            event = recv_monitor_message(link.monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.client.on_connected(link.url, monotonic_ms())
            elif event == zmq.EVENT_DISCONNECTED:
                self.client.on_disconnected(link.url, monotonic_ms())

    def _send(self, url: str, frames: list[bytes]) -> None:
        link = self._links.get(url)
        if link is None:
            return
        try:
            link.socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            # It has stopped reading: the same as a lost connection, and nothing may be left out.
            self.client.on_disconnected(url, monotonic_ms())

    def _connect(self, url: str) -> None:
        link = _Link(url, self._context)
        self._links[url] = link
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)

    def _disconnect(self, url: str) -> None:
        link = self._links.pop(url)
        self._poller.unregister(link.socket)
        self._poller.unregister(link.monitor)
        link.close()

    def close(self) -> None:
        """Ends all connections; what was queued for them is dropped."""
        for url in list(self._links):
            self._disconnect(url)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
