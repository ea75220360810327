"""Connections of a farm's server to others by themselves: where it does not go."""

from typing import Any

import pytest

from kelek.actors.farm.links import FarmLink, Way
from kelek.protocols.garlicfarm.wire.values import Address


class Owner:
    """A farm that notes what it is told, and whose addresses are asked for."""

    now_ms = 1000
    pause_ms_max = 100

    def __init__(self, way: Way) -> None:
        self.way = way
        self.names = self
        self.asked: list[Address] = []
        self.said: list[str] = []
        self.insecure = 0

    def find(self, address: Address) -> None:
        self.asked.append(address)

    def on_insecure(self) -> None:
        self.insecure += 1

    def on_down(self, server_id: int, news: str) -> None:
        self.said.append(news)


def link(endpoint: str, **way: Any) -> tuple[FarmLink, Owner]:
    owner = Owner(Way(None, "", None, "farm", "", "")._replace(**way))
    return FarmLink(owner, 2, endpoint), owner  # type: ignore[arg-type]


@pytest.mark.parametrize("endpoint", ["tcp://10.0.0.1:1", "tcp://h:1", "tcp://[fe80::1]:1"])
def test_nothing_leaves_the_machine_in_the_open(endpoint: str) -> None:
    """It is counted each time, and told once."""
    made, owner = link(endpoint)
    for _ in range(3):
        owner.now_ms += owner.pause_ms_max
        made.step(owner.now_ms)
    assert not owner.asked
    assert owner.insecure == 3
    assert owner.said == ["without TLS only this machine is connected to", "", ""]


def test_a_proxy_and_this_machine_are_gone_to() -> None:
    proxy = Address("127.0.0.1", 4444)
    for endpoint, way, place in (
        ("tcp://one.b32.i2p:80", {"proxy": proxy}, proxy),
        ("tcp://[::1]:7", {}, Address("::1", 7)),
        ("tcp://127.1.2.3:7", {}, Address("127.1.2.3", 7)),
        ("tcp://localhost:7", {}, Address("localhost", 7)),
        ("tcp://10.0.0.1:7", {"context": object()}, Address("10.0.0.1", 7)),
    ):
        made, owner = link(endpoint, **way)
        made.step(owner.now_ms)
        assert (owner.asked, owner.insecure) == ([place], 0)
