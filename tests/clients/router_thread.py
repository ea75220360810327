"""Servers in memory behind ROUTERs, which one thread serves."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import zmq

from kelek.protocols.errors import RemoteProtocolError
from kelek.tests.clients.curve_gate import CurveGate


class Responder(Protocol):
    """A server without sockets."""

    def on_frames(self, frames: list[bytes]) -> list[list[bytes]]:
        """The answers to a message."""


AnyResponder = TypeVar("AnyResponder", bound=Responder)


class RouterThread(Generic[AnyResponder]):
    """Serves each responder at its url until close(). Commands change it while it runs."""

    def __init__(
        self, responders: Mapping[str, AnyResponder], gate: CurveGate | None = None
    ) -> None:
        """gate: the ROUTERs have CURVE; None: they have not"""
        self.urls = list(responders)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._responders: dict[zmq.Socket[bytes], AnyResponder] = {}
        self._routers: dict[str, zmq.Socket[bytes]] = {}
        self._gate = gate
        if gate is not None:
            gate.bind(self.context)
        for url, responder in responders.items():
            router = self.context.socket(zmq.ROUTER)
            if gate is not None:
                gate.protect(router)
            router.linger = 0
            router.bind(url)
            self._responders[router] = responder
            self._routers[url] = router
        self._commands = self._command_socket(zmq.PULL)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _command_socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.linger = 0
        (socket.bind if kind == zmq.PULL else socket.connect)("inproc://commands")
        return socket

    def send_command(self, *words: str) -> None:
        """Has the thread run a command, after the messages that it is answering."""
        socket = self._command_socket(zmq.PUSH)
        socket.send_string(" ".join(words))
        socket.close(linger=1000)

    def kill(self, url: str) -> None:
        """Closes the ROUTER of a responder."""
        self.send_command("kill", url)

    def on_command(self, command: str, argument: str) -> None:
        """Runs another command than kill and stop."""

    def _serve(self) -> None:
        poller = zmq.Poller()
        gates = [] if self._gate is None else [self._gate.socket]
        for socket in (self._commands, *self._responders, *gates):
            poller.register(socket, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                assert isinstance(socket, zmq.Socket)
                if self._gate is not None and socket is self._gate.socket:
                    self._gate.answer()
                    continue
                if socket is not self._commands:
                    if not socket.closed:
                        self._answer(socket)
                    continue
                command, _, argument = socket.recv_string().partition(" ")
                if command not in ("stop", "kill"):
                    self.on_command(command, argument)
                    continue
                for url in [argument] if command == "kill" else list(self._routers):
                    router = self._routers.pop(url)
                    poller.unregister(router)
                    router.close()
                if command == "stop":
                    self._commands.close()
                    for gate in gates:
                        gate.close()
                    return

    def _answer(self, router: zmq.Socket[bytes]) -> None:
        routing_id, *frames = router.recv_multipart()
        with suppress(RemoteProtocolError):  # A server drops requests of another cluster.
            for answer in self._responders[router].on_frames(frames):
                router.send_multipart([routing_id, *answer])

    def close(self) -> None:
        self.send_command("stop")
        self._thread.join()
        self.context.term()
