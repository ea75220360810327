"""The poller over real sockets: nothing that arrives may wait for the safety net of 100 ms."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import zmq

from kelek.native.net.poller import Poller
from kelek.native.net.sockets import Drain
from kelek.tests.native.net import poller_twin

Pairs = list[tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]]

PAIRS = 3
TIMEOUT_MS = 20_000  # Nothing comes so late by itself.


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    context = zmq.Context()
    socket_pairs = []
    for number in range(PAIRS):
        ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        ours.bind(f"inproc://{number}")
        theirs.connect(f"inproc://{number}")
        socket_pairs.append((ours, theirs))
    yield socket_pairs
    context.destroy(0)


def poller_of(pairs: Pairs) -> Poller:
    poller = Poller()
    for ours, _ in pairs:
        poller.register(ours, zmq.POLLIN)
    return poller


def test_timeout_passes(pairs: Pairs) -> None:
    poller = poller_of(pairs)
    started = time.monotonic()
    assert poller.poll(250) == []
    assert time.monotonic() - started >= 0.248  # Milliseconds are counted whole.


def test_a_lazy_socket_waits_a_little(pairs: Pairs) -> None:
    """But not once another has something."""
    poller = poller_of(pairs)
    (lazy, to_lazy), (_, to_eager), (third, _) = pairs
    poller.set_lazy(lazy, True)
    poller.register(third, 0)  # The table is made again.
    poller.poll(0)
    to_lazy.send(b"")
    started = time.monotonic()
    assert poller.poll(TIMEOUT_MS) == [(lazy, zmq.POLLIN)]
    assert 0.001 <= time.monotonic() - started < TIMEOUT_MS / 1000
    poller.recheck(lazy)
    to_eager.send(b"")
    assert len(poller.poll(TIMEOUT_MS)) == 2


def test_end_of_file_shows_as_readable() -> None:
    poller = Poller()
    read_end, write_end = os.pipe()
    poller.register(read_end, zmq.POLLIN)
    os.close(write_end)
    assert poller.poll(TIMEOUT_MS) == [(read_end, zmq.POLLIN)]
    os.close(read_end)


def test_a_checked_send_never_hides_what_arrived(pairs: Pairs) -> None:
    """Sending settles the descriptor of a socket: without check() the message would wait."""
    ours, theirs = pairs[0]
    poller = poller_of(pairs)
    drain = Drain(ours, message_bytes_max=100)
    rounds = 2000

    def echo() -> None:
        for _ in range(rounds):
            theirs.send(theirs.recv())

    thread = threading.Thread(target=echo)
    thread.start()
    longest, received = 0.0, 0
    for _ in range(rounds):
        started = time.monotonic()
        ours.send(b"ping")
        poller.recheck(ours)
        while not (count := drain.receive().count if poller.poll(TIMEOUT_MS) else 0):
            pass
        received += count
        longest = max(longest, time.monotonic() - started)
    thread.join()
    assert received == rounds
    assert longest < 0.9 * TIMEOUT_MS / 1000, "a message waited for the end of the timeout"


def test_many_messages_are_all_delivered(pairs: Pairs) -> None:
    """A drain that fills its arena ends early and says so: check() is then needed."""
    ours, theirs = pairs[2]
    poller = poller_of(pairs)
    drain = Drain(ours, message_bytes_max=1000, arena_bytes=4096, frames=16)
    for number in range(500):
        theirs.send(str(number).encode())
    received: list[bytes] = []
    while len(received) < 500 and poller.poll(TIMEOUT_MS):
        received += [frames[0] for frames in drain.receive().messages()]
        if drain.more:
            poller.recheck(ours)
    assert received == [str(number).encode() for number in range(500)]


class Waiting:
    """A poller with sockets and pipes of its own, used as its contract asks: what was sent on is
    checked, and so is what was not read until nothing was left."""

    def __init__(self, poller: Any, context: "zmq.Context[zmq.Socket[bytes]]", name: str) -> None:
        self.poller = poller
        self.sockets, self.others, self.pipes = [], [], []
        for number in range(PAIRS):
            ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
            for socket in (ours, theirs):
                socket.sndhwm = socket.rcvhwm = 2  # So that one is not always writable.
            ours.bind(f"inproc://{name}{number}")
            theirs.connect(f"inproc://{name}{number}")
            self.sockets.append(ours)
            self.others.append(theirs)
            self.pipes.append(os.pipe())
        self.drained: set[int] = set()

    def close(self) -> None:
        for socket in self.sockets + self.others:
            socket.close(0)
        for pipe in self.pipes:
            for fd in pipe:
                os.close(fd)

    def register(self, number: int, flags: int, drained: bool) -> None:
        self.poller.register(self.sockets[number], flags, drained=drained)
        (self.drained.add if drained and flags else self.drained.discard)(number)

    def register_pipe(self, number: int, end: int, flags: int) -> None:
        self.poller.register(self.pipes[number][end], flags)

    def set_lazy(self, number: int, lazy: bool) -> None:
        """The twin knows no difference: what is ready does not depend on it."""
        if isinstance(self.poller, Poller):
            self.poller.set_lazy(self.sockets[number], lazy)
            self.poller.set_lazy(self.pipes[number][0], lazy)

    def arrive(self, number: int, count: int) -> list[bool]:
        other = self.others[number]
        return [succeeds(other, lambda: other.send(b"in", zmq.DONTWAIT)) for _ in range(count)]

    def leave(self, number: int) -> bool:
        other = self.others[number]
        return succeeds(other, lambda: other.recv(zmq.DONTWAIT))

    def send(self, number: int) -> bool:
        own = self.sockets[number]
        sent = succeeds(own, lambda: own.send(b"out", zmq.DONTWAIT))
        self.poller.recheck(own)
        return sent

    def take_one(self, number: int) -> bool:
        own = self.sockets[number]
        count = succeeds(own, lambda: own.recv(zmq.DONTWAIT))
        self.poller.recheck(own)
        return count

    def write(self, number: int) -> int:
        return os.write(self.pipes[number][1], b"xx")

    def read(self, number: int) -> int:
        """Never more than was written: it would block."""
        return len(os.read(self.pipes[number][0], 1))

    def wait(self, timeout_ms: int) -> list[tuple[str, int, int]]:
        """Who is ready for what; of a drained one, who may be told of for nothing, what it has."""
        names: dict[Any, tuple[str, int]] = {}
        for number in range(PAIRS):
            names[self.sockets[number]] = ("socket", number)
            names[self.pipes[number][0]] = ("read end", number)
            names[self.pipes[number][1]] = ("write end", number)
        found = []
        for source, flags in self.poller.poll(timeout_ms):
            kind, number = names[source]
            if kind == "socket" and number in self.drained:
                while self.take_one(number):
                    found.append(("taken", number, flags))
            else:
                found.append((kind, number, flags))
                self.poller.recheck(source)  # Nothing was done about it.
        return sorted(found)


def succeeds(socket: "zmq.Socket[bytes]", call: Callable[[], object]) -> bool:
    """Whether a send or receive went through; asked before, a socket knows of all that happened,
    else it looks only now and then, by the processor's clock."""
    socket.getsockopt(zmq.EVENTS)
    try:
        call()
    except zmq.Again:
        return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_a_history_of_waits(seed: int, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    """The poller and its plain twin are told the same and see the same throughout."""
    rng = Random(seed)
    pollers = [Waiting(Poller(), context, "c"), Waiting(poller_twin.Poller(), context, "p")]
    written = [0] * PAIRS
    kinds: set[tuple[str, int]] = set()

    def assert_same(name: str, *arguments: Any) -> Any:
        seen = [getattr(one, name)(*arguments) for one in pollers]
        assert seen[0] == seen[1], (name, arguments)
        return seen[0]

    for _ in range(400):
        number = rng.randrange(PAIRS)
        flags = rng.choice((0, zmq.POLLIN, zmq.POLLIN, zmq.POLLOUT, zmq.POLLIN | zmq.POLLOUT))
        match rng.randrange(13):
            case 0:
                assert_same("register", number, flags, rng.random() < 0.4 and flags == zmq.POLLIN)
            case 1:
                end = rng.randrange(2)
                assert_same("register_pipe", number, end, flags and (zmq.POLLIN, zmq.POLLOUT)[end])
            case 2 | 3:
                assert_same("arrive", number, rng.randint(1, 3))
            case 4:
                assert_same("leave", number)
            case 5:
                assert_same("send", number)
            case 6:
                assert_same("take_one", number)
            case 7 if written[number] < 1000:
                written[number] += assert_same("write", number)
            case 8 if written[number]:
                written[number] -= assert_same("read", number)
            case 12:
                assert_same("set_lazy", number, rng.random() < 0.5)
            case 9 if rng.random() < 0.1:
                assert_same("wait", poller_twin.CHECK_ALL_MS + 20)
            case _:
                seen = assert_same("wait", 0)
                kinds.update((kind, flags) for kind, _, flags in seen)
    assert len(kinds) >= 5, kinds
    for one in pollers:
        one.close()
