"""The poller over real sockets: nothing that arrives may wait for the safety net of 100 ms."""

import os
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from kelek.native import Drain, backend
from kelek.native.poller import Poller

Pairs = list[tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]]

PAIRS = 3


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    context = zmq.Context()
    made = []
    for number in range(PAIRS):
        ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        ours.bind(f"inproc://{number}")
        theirs.connect(f"inproc://{number}")
        made.append((ours, theirs))
    yield made
    context.destroy(0)


def poller_of(pairs: Pairs) -> Poller:
    poller = Poller()
    for ours, _ in pairs:
        poller.register(ours, zmq.POLLIN)
    return poller


def settled(poller: Poller) -> None:
    """Until nothing shows any more: registration itself counts as an event."""
    while poller.poll(0):
        pass


def test_only_what_is_ready_is_named(pairs: Pairs) -> None:
    poller = poller_of(pairs)
    settled(poller)
    pairs[1][1].send(b"x")
    assert poller.poll(1000) == [(pairs[1][0], zmq.POLLIN)]
    assert pairs[1][0].recv() == b"x"
    poller.check(pairs[1][0])
    assert poller.poll(0) == []


def test_timeout_passes(pairs: Pairs) -> None:
    poller = poller_of(pairs)
    begun = time.monotonic()
    assert poller.poll(250) == []
    assert time.monotonic() - begun >= 0.248  # Milliseconds are counted whole.


def test_descriptors_and_sockets_together(pairs: Pairs) -> None:
    poller = poller_of(pairs)
    read_end, write_end = os.pipe()
    poller.register(read_end, zmq.POLLIN)
    settled(poller)
    os.write(write_end, b"x")
    assert poller.poll(1000) == [(read_end, zmq.POLLIN)]
    pairs[0][1].send(b"x")
    assert dict(poller.poll(1000)) == {read_end: zmq.POLLIN, pairs[0][0]: zmq.POLLIN}
    poller.register(read_end, 0)
    assert dict(poller.poll(0)).get(read_end) is None
    os.close(write_end)
    os.close(read_end)


def test_end_of_file_shows_as_readable() -> None:
    poller = Poller()
    read_end, write_end = os.pipe()
    poller.register(read_end, zmq.POLLIN)
    os.close(write_end)
    assert poller.poll(1000) == [(read_end, zmq.POLLIN)]
    os.close(read_end)


def test_writable_is_told_when_asked_for(pairs: Pairs) -> None:
    poller = Poller()
    poller.register(pairs[0][0], zmq.POLLIN | zmq.POLLOUT)
    assert poller.poll(1000) == [(pairs[0][0], zmq.POLLOUT)]
    poller.register(pairs[0][0], zmq.POLLIN)
    assert poller.poll(0) == []


@pytest.mark.skipif(backend() != "c", reason="the plain poller asks every socket each time")
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
    worst, got = 0.0, 0
    for _ in range(rounds):
        begun = time.monotonic()
        ours.send(b"ping")
        poller.check(ours)
        while not (taken := drain.take().count if poller.poll(1000) else 0):
            pass
        got += taken
        worst = max(worst, time.monotonic() - begun)
    thread.join()
    assert got == rounds
    assert worst < 0.9, "a message waited for the end of the timeout"


def test_many_messages_are_all_told(pairs: Pairs) -> None:
    """A drain that fills its arena ends early and says so: check() is then needed."""
    ours, theirs = pairs[2]
    poller = poller_of(pairs)
    drain = Drain(ours, message_bytes_max=1000, arena_bytes=4096, frames=16)
    for number in range(500):
        theirs.send(str(number).encode())
    got: list[bytes] = []
    while len(got) < 500 and poller.poll(1000):
        got += [frames[0] for frames in drain.take().messages()]
        if drain.more:
            poller.check(ours)
    assert got == [str(number).encode() for number in range(500)]
