"""The sockets of a peer to the other peers. Its machine decides which ones exist."""

from collections.abc import Callable, Mapping
from functools import partial

import zmq

from ...native.net.messages import Arena, Frames
from ...native.net.sockets import Drain
from ...net.client_keys import UnpinnedServer
from ...net.sockets import RECONNECT_MS, Socket, SocketOptions
from ..runtime.actor import Actor

# After a cut TCP waits as long as the cut took before it repeats its data. A new connection does
# not; the messages that are lost with the old one are repeated by Raft.
UNACKNOWLEDGED_MS = 2000


class PeerLinks:
    """One DEALER for each link of the peer's machine."""

    def __init__(
        self,
        actor: Actor,
        on_answers: Callable[[str, Arena], None],
        on_lost: Callable[[str], None],
        hwm: int,
    ) -> None:
        """on_answers receives the PEER ID and the messages that arrived from it; on_lost the PEER
        ID when the connection has ended."""
        self._actor = actor
        self._on_lost = on_lost
        self._on_answers = on_answers
        self._hwm = hwm
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._urls: Mapping[str, str] = {}  # The address of each socket.
        self._lazy = False
        self.endpoints: dict[str, tuple[Socket, Drain]] = {}  # By PEER ID.

    def __len__(self) -> int:
        return len(self._sockets)

    def update(self, urls: Mapping[str, str]) -> None:
        if urls is self._urls:
            return
        actor = self._actor
        for name in [name for name, url in self._urls.items() if urls.get(name) != url]:
            if name in self._sockets:
                actor.close_socket(self._sockets.pop(name))
                self.endpoints.pop(name, None)
        for name, url in urls.items():
            if name not in self._sockets:
                try:
                    options = SocketOptions(
                        immediate=True,
                        hwm=self._hwm,
                        reconnect_ms=RECONNECT_MS,
                        unacknowledged_ms=UNACKNOWLEDGED_MS,
                        curve=actor.client_keys.curve(url) if actor.client_keys else None,
                    )
                    socket = self._sockets[name] = actor.connect(
                        zmq.DEALER, url, options, partial(self._on_lost, name)
                    )
                # The configuration may hold an address that is invalid, or has no known key.
                except (zmq.ZMQError, UnpinnedServer) as error:
                    actor.log_rarely("unreachable", peer=name, url=url, error=error)
                    continue
                drain = actor.listen(socket, partial(self._on_answers, name))
                self.endpoints[name] = socket, drain
        self._urls = urls
        self._lazy = False
        for socket in self._sockets.values():
            actor.set_lazy(socket, False)

    def set_lazy(self, lazy: bool) -> None:
        """Whether answers may wait for another event."""
        if lazy != self._lazy:
            self._lazy = lazy
            for socket in self._sockets.values():
                self._actor.set_lazy(socket, lazy)

    def send(self, out: Mapping[str, Frames]) -> None:
        """Sends the messages for other peers. Drops those without a socket."""
        for name, frames in out.items():
            if not frames:
                continue
            if name in self._sockets:
                self._actor.send_batch(self._sockets[name], frames)
            else:
                frames.clear()
