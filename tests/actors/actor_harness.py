"""An actor of real sockets in the test's own thread: the test is all other processes."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

import zmq

from kelek.actors.runtime.actor import Actor
from kelek.actors.runtime.setup import ActorSetup, Host
from kelek.actors.topology.settings import NodeSettings

DEADLINE_S = 60
LOOK_MS = 200  # The longest wake, so that turn() looks again.

Socket = zmq.Socket[bytes]
AnyActor = TypeVar("AnyActor", bound=Actor)


class ActorHarness:
    """The pipes of a node n1 whose only actor this is."""

    def __init__(self, sockets_max: int = 1023) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, sockets_max)  # The actor's and the test's.
        self.sockets: list[Socket] = []  # An unclosed one would be complained of.
        self.stop_in, self.stop_out = os.pipe()
        self.places: dict[str, str] = {}  # Of options, for the operator's errors.
        self.socket(zmq.ROUTER).bind("inproc://control")

    def begin(
        self, kind: type[AnyActor], folder: str, epoch: int, settings: NodeSettings
    ) -> AnyActor:
        """Starts it; returns the actor."""
        setup = ActorSetup(
            "n1", kind.role, kind.role, "c", "inproc://rig", folder,
            "inproc://control", epoch, False, settings, self.places,
        )  # fmt: skip
        actor = kind(setup, Host(self.stop_in, 2, self.context))
        self._actor = actor
        actor.start()
        return actor

    def socket(self, kind: int) -> Socket:
        self.sockets.append(self.context.socket(kind))
        return self.sockets[-1]

    def bound(self, name: str) -> Socket:
        """The pipe of another actor: ACTOR.SOCKET."""
        socket = self.socket(zmq.PULL)
        socket.bind(f"inproc://rig/n1/{name}")
        return socket

    def connected(self, name: str) -> Socket:
        """Another actor's end of a pipe of this one."""
        socket = self.socket(zmq.PUSH)
        socket.connect(f"inproc://rig/n1/{name}")
        return socket

    def turn(self, until: Callable[[], object]) -> None:
        """Runs the actor until something is so."""
        late = time.monotonic() + DEADLINE_S
        while not until():
            assert time.monotonic() < late, "nothing more happens"
            self._actor.run_once(LOOK_MS)

    def end(self) -> None:
        self._actor.close()
        self.context.destroy(linger=0)
        os.close(self.stop_in)
        os.close(self.stop_out)
