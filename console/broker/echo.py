"""The workers of `kelek broker bench`, in a process of their own: they return each body.

    python -P -m kelek.console.broker.echo SETUP

SETUP is an EchoSetup in JSON. The workers end with their standard input, that is with the command.
"""

import json
import sys
from collections.abc import Mapping
from typing import NamedTuple

import zmq

from ...clients.broker.body import BODY_BYTES_MAX, BODY_FRAMES_MAX
from ...native.net.messages import Frames
from ...native.net.sockets import Drain, send_batch
from ...net.client_keys import load_client_keys
from ...net.clock import monotonic_ms
from ...net.sockets import LINGER_MS, add_curve
from ...protocols.majordomo.codec import Disconnect, Ping, WorkerReady, encode
from ...protocols.majordomo.values import DISCONNECT, FINAL, REQUEST, Framing, Headers

HEAD_BYTES = 4096  # Of a message, besides its body.


class EchoSetup(NamedTuple):
    """The settings of the workers."""

    url: str  # Of the broker's back end.
    service: str
    workers: int
    window: int
    header: str  # Of a worker's commands.
    interval_ms: int  # Between PINGs on a silent connection.
    key: str = ""  # Path of the workers' key; empty: without CURVE.
    server_keys: Mapping[str, str | None] | str = ""


class EchoWorker:
    """A worker without a queue: a DEALER."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", setup: EchoSetup) -> None:
        self._headers = Headers(worker=setup.header.encode())
        self._interval_ms = setup.interval_ms
        self.socket = context.socket(zmq.DEALER)
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            self.socket.setsockopt(option, 0)  # The window bounds both.
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        if setup.key:
            curve = load_client_keys(setup.key, setup.server_keys).curve(setup.url)
            if curve is not None:
                add_curve(self.socket, curve)
        self.socket.connect(setup.url)
        self._drain = Drain(
            self.socket,
            message_bytes_max=BODY_BYTES_MAX + HEAD_BYTES,
            message_frames_max=2 * BODY_FRAMES_MAX,
        )
        self._answers = Frames()
        self.send(WorkerReady(setup.service.encode(), setup.window))

    def send(self, command: WorkerReady | Ping | Disconnect) -> None:
        self._ping_ms = monotonic_ms() + self._interval_ms
        self.socket.send_multipart(encode(command, Framing.TEXT, self._headers))

    def answer(self) -> bool:
        """Answers all waiting requests. False: the broker sent DISCONNECT."""
        while True:
            # Without the codec, to keep the load on the broker.
            for message in self._drain.receive().messages():
                if message[1] == REQUEST:
                    self._answers.add([message[0], FINAL, *message[2:]])
                elif message[1] == DISCONNECT:
                    return False
            send_batch(self.socket, self._answers, "keep")
            self._ping_ms = monotonic_ms() + self._interval_ms
            if not self._drain.more:
                return True

    def on_time(self, now_ms: int) -> int:
        """Sends PING when it is due; returns the milliseconds until the next one."""
        if now_ms >= self._ping_ms:
            self.send(Ping())
        return max(0, self._ping_ms - now_ms)


def serve(setup: EchoSetup) -> int:
    """Returns 1 when the broker sent DISCONNECT."""
    with zmq.Context() as context:
        workers = {}
        for _ in range(setup.workers):
            worker = EchoWorker(context, setup)
            workers[worker.socket] = worker
        poller = zmq.Poller()
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        for socket in workers:
            poller.register(socket, zmq.POLLIN)
        running = True  # The command that started this process.
        while running and workers:
            wait_ms = min(worker.on_time(monotonic_ms()) for worker in workers.values())
            ready = {socket for socket, _ in poller.poll(wait_ms)}
            running = sys.stdin.fileno() not in ready
            for socket in ready & workers.keys():
                if not workers[socket].answer():
                    poller.unregister(socket)
                    del workers[socket]
                    socket.close()
        for worker in workers.values():
            worker.send(Disconnect())
            worker.socket.close()
    return int(running)


if __name__ == "__main__":
    sys.exit(serve(EchoSetup(**json.loads(sys.argv[1]))))
