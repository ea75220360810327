"""A broker for tests of clients: the broker of the model behind real sockets, in a thread."""

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import zmq

from kelek.net.clock import monotonic_ms
from kelek.protocols.majordomo import codec
from kelek.protocols.majordomo.codec import Failure, Final, Request
from kelek.protocols.majordomo.values import HEADERS, RESERVED
from kelek.tests.protocols.majordomo.model import ModelBroker

POLL_MS = 20


class RoutedConnection:
    """A connection as the model sees it: a routing id on one of the sockets."""

    def __init__(self, socket: "zmq.Socket[bytes]", routing_id: bytes) -> None:
        self.socket = socket
        self.routing_id = routing_id


class BrokerThread(threading.Thread):
    """A broker with two ROUTERs; it is also the network of the model."""

    def __init__(self, folder: Path, name: str = "broker") -> None:
        super().__init__(daemon=True)
        self.front_url = f"ipc://{folder}/{name}.front"
        self.back_url = f"ipc://{folder}/{name}.back"
        self.counters: Counter[str] = Counter()
        self.stopped_lately = True  # The model expires no worker on a busy machine.
        self.mute = False  # It receives everything and answers no client.
        self.refuse: list[Failure] = []  # The answers to the next requests.
        self.remaining_ms: list[int | None] = []  # By each request.
        self.services: list[bytes] = []  # Of each request.
        self.names: set[bytes] = set()  # Of clients.
        self.routing_ids: set[bytes] = set()  # Of clients.
        self._runs = count(1)
        self._stopping = False
        self._connections: dict[tuple[Any, bytes], RoutedConnection] = {}
        self.model: Any = ModelBroker(self, "")  # type: ignore[arg-type]
        self.ready = threading.Event()
        self.start()
        assert self.ready.wait(60)

    def runs(self) -> Iterator[int]:
        return self._runs

    @property
    def now_ms(self) -> int:
        return monotonic_ms()

    def carry(self, connection: RoutedConnection, frames: list[bytes], to_broker: bool) -> None:
        if not self.mute or frames[0] != HEADERS.client:
            connection.socket.send_multipart([connection.routing_id, *frames])

    def run(self) -> None:
        with zmq.Context() as context:
            sockets = [context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)]
            for socket, endpoint in zip(sockets, (self.front_url, self.back_url), strict=True):
                socket.setsockopt(zmq.LINGER, 0)
                socket.bind(endpoint)
            poller = zmq.Poller()
            for socket in sockets:
                poller.register(socket, zmq.POLLIN)
            self.ready.set()
            while not self._stopping:
                for ready, _ in poller.poll(POLL_MS):
                    while ready.poll(0):
                        routing_id, *frames = ready.recv_multipart()
                        self._on_message(ready, routing_id, frames)
            for socket in sockets:
                socket.close()

    def _on_message(
        self, socket: "zmq.Socket[bytes]", routing_id: bytes, frames: list[bytes]
    ) -> None:
        connection = self._connections.setdefault(
            (socket, routing_id), RoutedConnection(socket, routing_id)
        )
        if frames[0] in (HEADERS.client, HEADERS.deadline, HEADERS.named):
            request = codec.CLIENT_COMMANDS.decode(frames)[1]
            if isinstance(request, Request) and not request.service.startswith(RESERVED):
                self.names.add(request.name)
                self.routing_ids.add(routing_id)
                self.services.append(request.service)
                self.remaining_ms.append(request.remaining_ms)
                if self.refuse:
                    self._refuse(connection, request)
                    return
        self.model.on_frames(connection, frames)

    def _refuse(self, connection: RoutedConnection, request: Request) -> None:
        body = codec.encode_failure(self.refuse.pop(0))
        final = Final(request.service, request.request_id, body)
        self.carry(connection, codec.encode(final), to_broker=False)

    def close(self) -> None:
        self._stopping = True
        self.join(60)
