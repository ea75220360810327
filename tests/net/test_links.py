"""A link to one peer: events of its connection, and messages that wait for room."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from kelek.net.clock import monotonic_ms
from kelek.net.links import Link, LinkLimits, link_options
from kelek.net.sockets import configure

TIMEOUT_MS = 60_000


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def make_link(context: zmq.Context[zmq.Socket[bytes]], send_hwm: int = 10) -> Link:
    socket = context.socket(zmq.DEALER)
    options = link_options(LinkLimits())._replace(send_hwm=send_hwm)
    configure(socket, zmq.DEALER, options)
    return Link(socket)


def close(link: Link) -> None:
    link.socket.disable_monitor()
    link.monitor.close()
    link.socket.close(linger=0)


def test_a_link_reports_connections_that_are_made_and_lost(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    peer = context.socket(zmq.ROUTER)
    peer.bind(f"ipc://{tmp_path}/peer")
    link = make_link(context)
    link.socket.connect(f"ipc://{tmp_path}/peer")
    assert link.monitor.poll(TIMEOUT_MS)
    assert list(link.events()) == [True]
    peer.close(linger=0)
    assert link.monitor.poll(TIMEOUT_MS)
    assert list(link.events()) == [False]
    close(link)


def test_messages_without_room_stay_in_the_link(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    link = make_link(context, send_hwm=1)
    link.socket.connect(f"ipc://{tmp_path}/peer")
    for number in range(3):
        link.frames.add([b"%d" % number])
    assert not link.flush()
    assert len(link.frames) > 0
    with context.socket(zmq.ROUTER) as peer:
        peer.bind(f"ipc://{tmp_path}/peer")
        received: list[bytes] = []
        deadline_ms = monotonic_ms() + TIMEOUT_MS
        while len(received) < 3:
            assert monotonic_ms() < deadline_ms
            link.flush()
            if peer.poll(10):
                received.append(peer.recv_multipart()[1])
        assert received == [b"0", b"1", b"2"]
    assert not len(link.frames)
    close(link)
