"""A libzmq that is too old, or lacks the CURVE that a key needs, is refused; threads for CURVE."""

from collections.abc import Iterator

import pytest
import zmq

from kelek.actors.topology.settings import LimitSettings
from kelek.net.errors import OperatorError
from kelek.net.sockets import CurveClient, SocketOptions, check_libzmq, configure, curve_threads

WAY_OUT = "install pyzmq's own wheel"


@pytest.fixture
def socket() -> Iterator[zmq.Socket[bytes]]:
    check_libzmq.cache_clear()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        yield socket
    check_libzmq.cache_clear()


def test_an_old_libzmq(socket: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    with pytest.raises(OperatorError, match=rf"^libzmq 4\.3\.4: is older than 4\.3\.5; {WAY_OUT}"):
        configure(socket, zmq.DEALER, SocketOptions())


def test_no_curve(socket: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda feature: feature != "curve")
    configure(socket, zmq.DEALER, SocketOptions())
    curve = CurveClient(bytes(32), bytes(32), bytes(32))
    with pytest.raises(OperatorError, match=rf"was built without CURVE, .*; {WAY_OUT}"):
        configure(socket, zmq.DEALER, SocketOptions(curve=curve))


def test_this_libzmq(socket: zmq.Socket[bytes]) -> None:
    curve = CurveClient(bytes(32), bytes(32), bytes(32))
    configure(socket, zmq.DEALER, SocketOptions(curve=curve))
    assert socket.getsockopt(zmq.MECHANISM) == zmq.CURVE


def test_all_connections_of_an_address_may_come_at_once(socket: zmq.Socket[bytes]) -> None:
    configure(socket, zmq.ROUTER, SocketOptions())
    assert int(socket.getsockopt(zmq.BACKLOG)) >= LimitSettings().address_connections_max


def test_threads_for_curve() -> None:
    assert [curve_threads(cores) for cores in (1, 2, 3, 4, 8, 64)] == [1, 1, 1, 2, 4, 4]
    assert 1 <= curve_threads() <= 4
