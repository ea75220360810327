"""Outgoing links of a farm server: the addresses that it refuses."""

from collections import Counter
from typing import Any

import pytest

from kelek.actors.farm.links import FarmLink, LinkEvent, LinkSettings
from kelek.protocols.garlicfarm.wire.values import Address


class RecordingLinkOwner:
    """The owner of a link; it records look-ups, refusals and reasons."""

    now_ms = 1000
    retry_ms_max = 100

    def __init__(self, link_settings: LinkSettings) -> None:
        self.link_settings = link_settings
        self.resolver = self
        self.resolved: list[Address] = []
        self.reasons: list[str] = []
        self.counters = Counter[str]()

    def resolve(self, address: Address) -> None:
        self.resolved.append(address)

    def on_link(self, event: LinkEvent, reason: str) -> None:
        self.reasons.append(reason)


def make_link(endpoint: str, **settings: Any) -> tuple[FarmLink, RecordingLinkOwner]:
    owner = RecordingLinkOwner(LinkSettings(None, "", None, "farm", "", "")._replace(**settings))
    return FarmLink(owner, 2, endpoint), owner  # type: ignore[arg-type]


@pytest.mark.parametrize("endpoint", ["tcp://10.0.0.1:1", "tcp://h:1", "tcp://[fe80::1]:1"])
def test_hosts_other_than_loopback_are_refused_without_tls(endpoint: str) -> None:
    """Each refusal is counted; the reason is reported once."""
    link, owner = make_link(endpoint)
    for _ in range(3):
        owner.now_ms += owner.retry_ms_max
        link.step(owner.now_ms)
    assert not owner.resolved
    assert owner.counters == {"insecure_endpoints": 3}
    assert owner.reasons == ["without TLS only loopback addresses are allowed", "", ""]


def test_a_proxy_and_loopback_addresses_are_allowed() -> None:
    proxy = Address("127.0.0.1", 4444)
    for endpoint, settings, address in (
        ("tcp://one.b32.i2p:80", {"proxy": proxy}, proxy),
        ("tcp://[::1]:7", {}, Address("::1", 7)),
        ("tcp://127.1.2.3:7", {}, Address("127.1.2.3", 7)),
        ("tcp://localhost:7", {}, Address("localhost", 7)),
        ("tcp://10.0.0.1:7", {"context": object()}, Address("10.0.0.1", 7)),
    ):
        link, owner = make_link(endpoint, **settings)
        link.step(owner.now_ms)
        assert (owner.resolved, owner.counters) == ([address], {})
