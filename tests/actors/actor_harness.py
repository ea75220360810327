"""An actor with real sockets in the test's thread; the test acts as all other processes."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

import zmq

from kelek.actors.runtime.actor import Actor
from kelek.actors.runtime.setup import ActorSetup, Host
from kelek.actors.topology.settings import NodeSettings

DEADLINE_S = 60
WAKE_MS_MAX = 200  # The longest wake, so that run_until() checks its condition again.
RUN_DIR = "inproc://harness"
CONTROL = "inproc://control"

Socket = zmq.Socket[bytes]
AnyActor = TypeVar("AnyActor", bound=Actor)


class ActorHarness:
    """The pipes of a node n1 whose only actor is the tested one."""

    def __init__(self, sockets_max: int = 1023) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, sockets_max)  # Of the actor and the test together.
        self.sockets: list[Socket] = []  # References: pyzmq warns of sockets that are not closed.
        self.stop_in, self.stop_out = os.pipe()
        self.log_fd = 2
        self.places: dict[str, str] = {}  # Of options, for the operator's errors.
        self.control = self.socket(zmq.ROUTER)
        self.control.bind(CONTROL)

    def start_actor(
        self, kind: type[AnyActor], folder: str, epoch: int, settings: NodeSettings
    ) -> AnyActor:
        setup = ActorSetup(
            "n1", kind.role, kind.role, "c", RUN_DIR, folder,
            CONTROL, epoch, False, settings, self.places,
        )  # fmt: skip
        actor = kind(setup, Host(self.stop_in, self.log_fd, self.context))
        self._actor = actor
        actor.start()
        return actor

    def socket(self, kind: int) -> Socket:
        self.sockets.append(self.context.socket(kind))
        return self.sockets[-1]

    def bind(self, name: str, kind: int = zmq.PULL) -> Socket:
        """The receiving end of another actor's pipe, ACTOR.SOCKET."""
        socket = self.socket(kind)
        socket.bind(f"{RUN_DIR}/n1/{name}")
        return socket

    def connect(self, name: str) -> Socket:
        """The sending end of a pipe that the tested actor binds."""
        socket = self.socket(zmq.PUSH)
        socket.connect(f"{RUN_DIR}/n1/{name}")
        return socket

    def run_until(self, is_done: Callable[[], object]) -> None:
        """Runs the actor until the condition holds."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_done():
            assert time.monotonic() < deadline_s, "the condition never holds"
            self._actor.run_once(WAKE_MS_MAX)

    def close(self) -> None:
        self._actor.close()
        self.context.destroy(linger=0)
        for fd in (self.stop_in, self.stop_out):
            if fd >= 0:
                os.close(fd)
