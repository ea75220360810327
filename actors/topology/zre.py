"""The sections of a topology for ZRE discovery: `zre:` of the file and of a node."""

from contextlib import suppress
from ipaddress import ip_address, ip_network

from ...protocols.limits import PORT_MAX, TABLE_MAX
from .schema import (
    BOOLEAN,
    ChoiceType,
    ScalarType,
    Unfit,
    count,
    duration_ms,
    key,
    text,
    texts,
)
from .section import Section
from .yaml_values import Scalar


def _endpoint_problem(text: str) -> str:
    from ...protocols.zre.codec import parse_keyed_endpoint
    from ...protocols.zre.values import Malformed

    try:
        parse_keyed_endpoint(text)
    except Malformed:
        return "is not a mailbox's endpoint"
    return ""


def _subnet_problem(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        return f"is not a subnet: {error}"
    return ""


def _parse_broadcast_address(word: Scalar) -> str:
    with suppress(ValueError):
        address = ip_address(word.text)
        if address.version == 4 or address.is_multicast:
            return str(address)
    raise Unfit(
        f"'{word.text}' is neither an IPv4 address nor an IPv6 multicast group",
        "write a broadcast address, for example 10.0.0.255 or ff02::1",
    )


BROADCAST_ADDRESS = ScalarType(
    "an address",
    _parse_broadcast_address,
    {"type": "string", "pattern": "^[0-9A-Fa-f:.]+$"},
    "an IPv4 address or an IPv6 multicast group",
)


class NodeZreSettings(Section):
    """`nodes.NAME.zre:`"""

    interface: str = key(text("the name or address of an interface"), "")
    """other nodes connect to its address; without it the first interface that can broadcast, or
    else loopback"""
    broadcast_address: str = key(BROADCAST_ADDRESS, "", alias="broadcast")
    """where beacons go, if not to the interface's broadcast address; `127.255.255.255` reaches all
    processes of one machine; with an IPv6 multicast group, as `ff02::1`, all traffic uses IPv6"""
    log_service: str = key(ChoiceType("off", "log", "table"), "off")
    """other nodes report here which peers enter and leave; the node stores these reports in the
    cluster's log or in a table, for [Spark](../guides/spark/presence-and-farms.md#presence) and
    other readers"""


class ZreSettings(Section):
    """`zre:`"""

    port: int = key(count(1, PORT_MAX), 5670)
    """UDP port of beacons, the same for all nodes of the network"""
    greeting: str = key(ChoiceType("v1", "v2"), "v2")
    """version of the HELLO to an unknown node that has not sent one"""
    beacon_ms: int = key(duration_ms(10, 60_000), 1000)
    """time between two beacons"""
    greet_wait_ms: int = key(duration_ms(0, 60_000), 500)
    """a node of another implementation may send HELLO first within this time; the answer uses its
    version"""
    evasive_ms: int = key(duration_ms(10, 600_000), 5000)
    """a node sends PING to a peer that is silent for this time"""
    silent_ms: int = key(duration_ms(10, 3_600_000), 10_000)
    """a node reports a peer as silent after this time without an answer to PING"""
    expired_ms: int = key(duration_ms(20, 3_600_000), 30_000, alias="dead_ms")
    """a node removes a peer that is silent for this time"""
    static_peers: tuple[str, ...] = key(
        texts("tcp://ADDRESS:PORT", _endpoint_problem), (), alias="static"
    )
    """mailboxes that a node greets without a beacon, where UDP does not reach them; with
    `security:` each with its public key: `tcp://ADDRESS:PORT|KEY`"""
    subnets: tuple[str, ...] = key(texts("subnets, as 10.1.0.0/16", _subnet_problem), ())
    """a HELLO may name an address in one of these, besides its connection's own"""
    gossip: bool = key(BOOLEAN, False)
    """kelek nodes tell each other the peers that they know, and greet those within `subnets`: with
    one common `static_peers` node, all nodes find each other"""
    report: bool = key(BOOLEAN, True)
    """report to the log services that peers announce"""
    log_table: int = key(count(0, TABLE_MAX), 0)
    """table of `log_service: table`; no other client can write it"""
