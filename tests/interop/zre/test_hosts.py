"""Nodes of ZRE on hosts of their own, one of which is cut off and comes back."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kelek.net.private_files import replace_file
from kelek.protocols.access.certificates import Certificate, format_certificate
from kelek.tests.clients.curve_gate import new_key, write_key
from kelek.tests.hosts import BROADCAST, Hosts, HostsMissing
from kelek.tests.interop.zre import zre_zyre
from kelek.tests.interop.zre.zre_nodes import (
    OURS,
    PLAIN,
    PYRE,
    ZYRE,
    NodeProcess,
    meet,
    pairs,
    talk,
)

PORT = 5670  # A network of its own has all ports.
GROUP = "room"
PLACES = ((0, OURS), (1, OURS), (1, PLAIN), (2, PYRE))  # Host, kind.
CUT = 1


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    try:
        made = Hosts(3)
    except HostsMissing as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    with made:
        yield made


def test_a_host_is_cut_off_and_comes_back(hosts: Hosts) -> None:
    with ExitStack() as stack:
        nodes = []
        for host, kind in PLACES:
            node = NodeProcess(
                kind, PORT, name=f"{kind}-{host}", within=hosts.within(host), evasive_s=2, dead_s=6,
                host=hosts.address(host), broadcast=BROADCAST,
            )  # fmt: skip
            nodes.append(stack.enter_context(node))
        places = {node: host for node, (host, _) in zip(nodes, PLACES, strict=True)}
        meet(nodes, GROUP)
        talk(nodes, GROUP, "all")
        apart = [
            (node, other)
            for node, other in pairs(nodes)
            if (places[node] == CUT) != (places[other] == CUT)
        ]

        for node in nodes:
            node.mark()
        hosts.cut(CUT)
        for node, other in apart:
            node.wait_for("EXIT", peer=other.uuid)
        for side in (True, False):
            talk([node for node in nodes if (places[node] == CUT) == side], GROUP, "apart")

        for node in nodes:
            node.mark()
        hosts.heal(CUT)
        for node, other in apart:
            node.wait_for("ENTER", peer=other.uuid)
            node.wait_for("JOIN", peer=other.uuid, group=GROUP)
        talk(nodes, GROUP, "healed")
        for node in nodes:
            node.stop()


# Host, interface: two processes of one host share the port, the last two know their link alone.
V6_PLACES = ((0, "eth0"), (0, "fd66::1"), (1, "eth0"))
V6_LINK = ((0, "fe80::1%eth0"), (1, "fe80::2%eth0"))


def test_hosts_find_each_other_by_multicast(hosts: Hosts) -> None:
    """IPv6, by addresses of a network, and by those that are good on their link alone."""
    try:
        hosts.add_v6()
    except HostsMissing as reason:
        pytest.skip(f"no IPv6 here: {reason}")
    with ExitStack() as stack:
        for port, places in ((PORT, V6_PLACES), (PORT + 1, V6_LINK)):
            nodes = []
            for host, interface in places:
                node = NodeProcess(
                    OURS, port, name=f"{interface}-{host}", within=hosts.within(host),
                    host=interface, broadcast="ff02::1",
                )  # fmt: skip
                nodes.append(stack.enter_context(node))
            meet(nodes, GROUP)
            talk(nodes, GROUP, "all")
            for node in nodes:
                node.stop()


def test_a_node_on_loopback_does_not_react_to_other_interfaces(hosts: Hosts) -> None:
    """Its socket hears the broadcasts of the other host, where a beacon would have it connect."""
    with ExitStack() as stack:

        def begin(place: int, **options: str) -> NodeProcess:
            node = NodeProcess(OURS, PORT, within=hosts.within(place), **options)
            return stack.enter_context(node)

        loopback = begin(0)
        beside = begin(0)
        there = begin(1, host=hosts.address(1), broadcast=BROADCAST)
        here = begin(0, host=hosts.address(0), broadcast=BROADCAST)
        there.wait_for("ENTER", peer=here.uuid)
        loopback.wait_for("ENTER", peer=beside.uuid)
        loopback.tell("count")
        counted = loopback.wait_for("COUNTERS")
        assert counted["beacon_elsewhere"] >= 1
        assert (counted["peers"], counted["unready"]) == (1, 0)
        assert [event["peer"] for event in loopback.said("ENTER")] == [beside.uuid]


def test_zyre_with_curve(hosts: Hosts, tmp_path: Path) -> None:
    """Two of ours and two of zyre's with allowed keys, and one of zyre's with another key."""
    try:
        zre_zyre.Library()
    except zre_zyre.ZyreMissing as reason:
        pytest.skip(str(reason))
    allowed = tmp_path / "allowed"
    allowed.mkdir()

    def key_of(name: str, *, is_allowed: bool = True) -> str:
        key = new_key(name)
        public = Certificate(key.public_key, b"", {"name": name, "grants": "zre"})
        if is_allowed:
            replace_file(allowed / f"{name}.key", format_certificate(public), 0o644)
        return str(write_key(tmp_path, key))

    with ExitStack() as stack:
        nodes = []
        for number, kind in enumerate((OURS, ZYRE, OURS, ZYRE)):
            host = number % 3
            node = NodeProcess(
                kind, PORT, name=f"{kind}-{number}", within=hosts.within(host),
                host=hosts.address(host) if kind == OURS else "eth0", broadcast=BROADCAST,
                key=key_of(f"k{number}"), allow=allowed, headers={"X-NUMBER": str(number)},
            )  # fmt: skip
            nodes.append(stack.enter_context(node))
        other = NodeProcess(
            ZYRE, PORT, name="other", within=hosts.within(2), host="eth0",
            key=key_of("other", is_allowed=False), allow=allowed,
        )  # fmt: skip
        stack.enter_context(other)
        meet(nodes, GROUP)
        talk(nodes, GROUP, "with keys")
        for node, peer in pairs(nodes):
            (entered,) = node.said("ENTER", peer=peer.uuid)
            assert entered["headers"]["X-NUMBER"] == str(nodes.index(peer))
        nodes[0].tell("count")
        counters = nodes[0].wait_for("COUNTERS")
        assert counters["beacon_key"], "beacons of the key that is not allowed"
        for node in nodes:
            if node.kind == OURS:
                assert not node.said("ENTER", peer=other.uuid)
        nodes[1].stop()
        for node in (nodes[0], nodes[2]):
            node.wait_for("EXIT", peer=nodes[1].uuid)
