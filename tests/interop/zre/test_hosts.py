"""Nodes of ZRE on hosts of their own, one of which is cut off and comes back."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kelek.tests.hosts import BROADCAST, Hosts, HostsMissing
from kelek.tests.interop.zre.zre_nodes import OURS, PLAIN, PYRE, NodeProcess, meet, pairs, talk

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
