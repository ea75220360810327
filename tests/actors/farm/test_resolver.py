"""Host name look-ups of farm servers: they run in the background."""

import socket
import threading
from typing import Any

import pytest

from kelek.actors.farm.resolver import AddressResolver
from kelek.protocols.garlicfarm.wire.values import Address

DEADLINE_S = 60
FARM = Address("farm.example", 7401)


class FakeNameServer:
    """getaddrinfo() whose look-ups of names wait for the test."""

    def __init__(self) -> None:
        self.lookups = 0
        self.answered = threading.Event()
        self.is_known = True

    def getaddrinfo(self, host: str, port: int, **options: Any) -> list[Any]:
        if options["flags"] == socket.AI_NUMERICHOST:
            raise socket.gaierror("not an address")
        self.lookups += 1
        assert self.answered.wait(DEADLINE_S)
        if not self.is_known:
            raise socket.gaierror("unknown host")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port))]

    def answer(self) -> None:
        """Ends the look-ups in progress."""
        threads = [thread for thread in threading.enumerate() if thread.name == "resolver"]
        self.answered.set()
        for thread in threads:
            thread.join(DEADLINE_S)
        self.answered.clear()


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> FakeNameServer:
    server = FakeNameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    return server


def test_addresses_need_no_lookup() -> None:
    addresses = AddressResolver()
    assert addresses.resolve(Address("127.0.0.1", 7)) == [(socket.AF_INET, ("127.0.0.1", 7))]
    assert addresses.resolve(Address("::1", 7)) == [(socket.AF_INET6, ("::1", 7))]


def test_a_name_is_looked_up_once_in_the_background(name_server: FakeNameServer) -> None:
    addresses = AddressResolver()
    assert addresses.resolve(FARM) is None
    assert addresses.resolve(FARM) is None, "the look-up is in progress"
    name_server.answer()
    assert addresses.resolve(FARM) == [(socket.AF_INET, ("10.0.0.1", 7401))]
    assert name_server.lookups == 1


def test_an_unknown_name_is_an_error_and_may_be_looked_up_again(
    name_server: FakeNameServer,
) -> None:
    addresses = AddressResolver()
    name_server.is_known = False
    assert addresses.resolve(FARM) is None
    name_server.answer()
    with pytest.raises(OSError, match="unknown host"):
        addresses.resolve(FARM)
    name_server.is_known = True
    assert addresses.resolve(FARM) is None
    name_server.answer()
    assert addresses.resolve(FARM) is not None
