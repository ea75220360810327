"""The sockets of a peer to the other peers. Its machine decides which ones exist."""

from collections.abc import Callable, Mapping
from functools import partial

import zmq

from ...native.net.messages import Arena, Frames
from ...net.sockets import RECONNECT_MS, SocketOptions
from ..runtime.actor import Actor


class PeerLinks:
    """One DEALER for each link of the peer's machine."""

    def __init__(self, actor: Actor, on_answers: Callable[[str, Arena], None], hwm: int) -> None:
        """on_answers receives the PEER ID and the messages that arrived from it."""
        self._actor = actor
        self._on_answers = on_answers
        self._hwm = hwm
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._urls: Mapping[str, str] = {}  # The address of each socket.

    def __len__(self) -> int:
        return len(self._sockets)

    def update(self, urls: Mapping[str, str]) -> None:
        if urls is self._urls:
            return
        actor = self._actor
        for name in [name for name, url in self._urls.items() if urls.get(name) != url]:
            if name in self._sockets:
                actor.close_socket(self._sockets.pop(name))
        for name, url in urls.items():
            if name not in self._sockets:
                options = SocketOptions(
                    connect=(url,), immediate=True, hwm=self._hwm, reconnect_ms=RECONNECT_MS
                )
                try:
                    socket = self._sockets[name] = actor.socket(zmq.DEALER, options)
                except zmq.ZMQError as error:  # The configuration may hold an invalid address.
                    actor.log_rarely("unreachable", peer=name, url=url, error=error)
                    continue
                actor.listen(socket, partial(self._on_answers, name))
        self._urls = urls

    def send(self, out: Mapping[str, Frames]) -> None:
        """Sends the messages for other peers. Drops those without a socket."""
        for name, frames in out.items():
            if name in self._sockets:
                self._actor.send_batch(self._sockets[name], frames)
            else:
                frames.clear()
