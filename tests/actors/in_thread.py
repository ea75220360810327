"""An actor of real sockets in the test's own thread: the test is all other processes."""

import os
import time
from collections.abc import Callable
from typing import Any

import zmq

from kelek.actors.runtime.actor import Actor, ActorSetup, Host

DEADLINE_S = 60
LOOK_MS = 200

Socket = zmq.Socket[bytes]


class Watched(Actor):
    """Beside an actor's class: its loop ends when something is so."""

    until: Callable[[], object] = staticmethod(lambda: True)

    def on_wake(self, now_ms: int) -> None:
        super().on_wake(now_ms)
        if self.until():
            self.stop()

    def deadline_ms(self) -> int | None:
        """Now and then it looks whether the test waits for nothing."""
        return min(super().deadline_ms() or 1 << 60, self.now_ms + LOOK_MS)


class Rig:
    """The pipes of a node n1 whose only actor this is."""

    def __init__(self, sockets_max: int = 1023) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, sockets_max)  # The actor's and the test's.
        self.sockets: list[Socket] = []  # An unclosed one would be complained of.
        self.stop_in, self.stop_out = os.pipe()
        self.places: dict[str, str] = {}  # Of options, for the operator's errors.
        self.socket(zmq.ROUTER).bind("inproc://control")

    def begin(self, kind: type[Watched], folder: str, epoch: int, options: dict[str, Any]) -> Any:
        """Starts it; returns the actor."""
        setup = ActorSetup(
            "n1", kind.role, kind.role, "c", "inproc://rig", folder,
            "inproc://control", epoch, False, options, self.places,
        )  # fmt: skip
        self._actor = actor = kind(setup, Host(self.stop_in, 2, self.context))
        actor._open()
        actor.on_start()
        actor._starting = False
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

        def ends() -> object:
            assert time.monotonic() < late, "nothing more happens"
            return until()

        self._actor.until = ends
        self._actor.running = not until()
        self._actor.run_loop()

    def end(self) -> None:
        if not self._actor._starting:
            self._actor.on_stop()
        self._actor.close_sockets()
        self.context.destroy(linger=0)
        os.close(self.stop_in)
        os.close(self.stop_out)
