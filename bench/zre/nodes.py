"""Three kinds of nodes behind one interface, for bench/zre/zre.py: ours, pyre's, and bare sockets.

As a program it is the other side: `python -m kelek.bench.zre.nodes ROLE ...`.
"""

import ipaddress
import os
import select
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from random import Random
from typing import Any, Protocol

import zmq

import kelek
from kelek.native.net.datagrams import Datagrams, ReceivedBeacon

LO, BROADCAST = "127.0.0.1", "127.255.255.255"
GROUP = "bench"
ECHO, ACK, PLAIN = b"e", b"a", b"p"  # First byte of a message.
SPOKEN = ("WHISPER", "SHOUT")
SIZE = 64
WINDOW = 1000  # Messages for one ACK.
Socket = zmq.Socket[bytes]
Told = tuple[str, Any, bytes]  # Event, peer, message.


class AnyNode(Protocol):
    """A node that is measured."""

    def receive(self) -> list[Told]: ...
    def whisper(self, peer: Any, content: bytes) -> object: ...
    def whisper_many(self, peer: Any, contents: list[bytes]) -> object: ...
    def join(self) -> object: ...
    def close(self) -> None: ...


class GroupNode(AnyNode, Protocol):
    """A node with groups."""

    def shout_many(self, contents: list[bytes]) -> object: ...


class Ours:
    """kelek.Node."""

    def __init__(self, port: int) -> None:
        self.node = kelek.Node(tuning=kelek.NodeTuning(port=port, interface=LO))

    def receive(self) -> list[Told]:
        return [
            (event.kind.value, event.peer, event.content[0] if event.content else b"")
            for event in self.node.receive()
        ]

    def whisper(self, peer: Any, content: bytes) -> object:
        return self.node.whisper(peer, content)

    def whisper_many(self, peer: Any, contents: list[bytes]) -> object:
        return self.node.whisper_many(peer, contents)

    def shout_many(self, contents: list[bytes]) -> object:
        return self.node.shout_many(GROUP, contents)

    def join(self) -> None:
        self.node.join(GROUP)

    def close(self) -> None:
        self.node.close()


class Pyre:
    """pyre's node (PyPI: zeromq-pyre), set to send beacons on loopback."""

    def __init__(self, port: int) -> None:
        from pyre import Pyre as Node
        from pyre import PyreEvent, zbeacon

        def prepare(beacon: Any) -> None:
            beacon.address = beacon.network_address = ipaddress.IPv4Address(LO)
            beacon.broadcast_address = ipaddress.IPv4Address(BROADCAST)

        zbeacon.ZBeacon._prepare_socket = prepare
        self.node, self._event = Node(ctx=zmq.Context()), PyreEvent
        self.node.set_port(str(port).encode())
        self.node.start()

    def receive(self) -> list[Told]:
        events = [self._event(self.node), *self.node.recent_events()]
        return [
            (event.type, event.peer_uuid, event.msg[0] if event.msg else b"") for event in events
        ]

    def whisper(self, peer: Any, content: bytes) -> object:
        return self.node.whisper(peer, content)

    def whisper_many(self, peer: Any, contents: list[bytes]) -> object:
        for content in contents:
            self.node.whisper(peer, content)
        return None

    def shout_many(self, contents: list[bytes]) -> object:
        for content in contents:
            self.node.shout(GROUP, content)
        return None

    def join(self) -> object:
        return self.node.join(GROUP)

    def close(self) -> None:
        self.node.stop()


class Bare:
    """A ROUTER to receive and a DEALER to send, without a protocol; two nodes know each other's
    ports."""

    def __init__(self, port: int, peer_port: int | None = None) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.mailbox, self.dealer = (self.context.socket(kind) for kind in (zmq.ROUTER, zmq.DEALER))
        self.mailbox.bind(f"tcp://{LO}:{port}")
        if peer_port is not None:
            self.dealer.connect(f"tcp://{LO}:{peer_port}")

    def receive(self) -> list[Told]:
        return [("WHISPER", None, self.mailbox.recv_multipart()[1])]

    def whisper(self, peer: Any, content: bytes) -> object:
        return self.dealer.send(content)

    def whisper_many(self, peer: Any, contents: list[bytes]) -> object:
        for content in contents:
            self.dealer.send(content)
        return None

    def join(self) -> None:
        """Does nothing: there are no groups, and the node receives all that its peer sends."""

    def close(self) -> None:
        self.context.destroy(0)


def load(kind: str) -> None:
    """Imports what a node of this kind needs, before discovery is timed."""
    modules = {"kelek": "kelek.clients.node.node", "pyre": "pyre", "bare": "zmq"}
    import_module(modules[kind])


def make(kind: str, port: int) -> AnyNode:
    """Creates a node. Bare nodes have consecutive ports; the lower one is the driver's."""
    makers: dict[str, Callable[[int], AnyNode]] = {
        "kelek": Ours,
        "pyre": Pyre,
        "bare": lambda port: Bare(port + 1, port),
    }
    return makers[kind](port)


# ---- roles ----


def answer(nodes: Iterable[AnyNode]) -> None:
    """Echoes messages that ask for it, and sends an ACK for each window of the others."""
    counts = dict.fromkeys(nodes, 0)
    for node in counts:
        node.join()
    print("up", flush=True)
    if len(counts) > 1:
        _answer_in_threads(counts)
    (node,) = counts
    while True:
        counts[node] = _answer_once(node, counts[node])


def _answer_in_threads(counts: dict[AnyNode, int]) -> None:
    from threading import Thread

    def run(node: AnyNode) -> None:
        count = 0
        while True:
            count = _answer_once(node, count)

    threads = [Thread(target=run, args=(node,), daemon=True) for node in counts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _answer_once(node: AnyNode, count: int) -> int:
    for event, peer, content in node.receive():
        if event not in SPOKEN:
            continue
        if content[:1] == ECHO:
            node.whisper(peer, content)
        else:
            count += 1
            if count % WINDOW == 0:
                node.whisper(peer, ACK)
    return count


def mesh(port: int, count: int, idle_s: float) -> None:
    """Creates nodes in this process; measures the time until all know all, and their cost
    afterwards."""
    started = time.monotonic()
    nodes = [kelek.Node(tuning=kelek.NodeTuning(port=port, interface=LO)) for _ in range(count)]
    for node in nodes:
        while len(node.peers) < count - 1:
            node.receive()
    took = time.monotonic() - started
    before, begun = time.process_time(), time.monotonic()
    time.sleep(idle_s)
    busy = (time.process_time() - before) / (time.monotonic() - begun)
    lost = sum(event.kind.value == "EXIT" for node in nodes for event in node.receive(0))
    print(took, busy, lost, flush=True)
    for node in nodes:
        node.close()


def lossy(port: int, count: int, loss: float) -> None:
    """Nodes that receive only some of the beacons. At the end of stdin it prints how often a node
    wrongly missed a peer."""
    rng, receive = Random(os.getpid()), Datagrams.receive

    def lose(datagrams: Datagrams, now_ms: int) -> list[ReceivedBeacon]:
        return [beacon for beacon in receive(datagrams, now_ms) if rng.random() >= loss]

    Datagrams.receive = lose  # type: ignore[method-assign, assignment]
    nodes = [kelek.Node(tuning=kelek.NodeTuning(port=port, interface=LO)) for _ in range(count)]
    print("up", flush=True)
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
    kinds = [event.kind.value for node in nodes for event in node.receive(0)]
    peers = min(len(node.peers) for node in nodes)
    print(kinds.count("EXIT"), kinds.count("EVASIVE"), peers, flush=True)


if __name__ == "__main__":
    role, arguments = sys.argv[1], sys.argv[2:]
    if role == "answer":
        answer([make(arguments[0], int(arguments[1])) for _ in range(int(arguments[2]))])
    elif role == "mesh":
        mesh(int(arguments[0]), int(arguments[1]), float(arguments[2]))
    elif role == "lossy":
        lossy(int(arguments[0]), int(arguments[1]), float(arguments[2]))
