"""The sections of a topology for ZRE discovery: `zre:` of the file and of a node."""

from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

from ...protocols.zmqraft.wire.values import PORT_MAX
from .schema import (
    TABLE_MAX,
    BooleanType,
    ChoiceType,
    SchemaReader,
    TextListType,
    TextType,
    ValueType,
    count,
    duration_ms,
    key,
)
from .yaml_values import Node


def _endpoint_problem(text: str) -> str:
    from ...protocols.zre.codec import parse_endpoint
    from ...protocols.zre.values import Malformed

    try:
        parse_endpoint(text)
    except Malformed:
        return "is not a mailbox's endpoint"
    return ""


def _subnet_problem(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        return f"is not a subnet: {error}"
    return ""


class BroadcastAddressType(ValueType):
    """A broadcast address of IPv4, or a multicast group of IPv6."""

    def read(self, reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, "an address")
        try:
            address = ip_address(scalar.text)
        except ValueError:
            address = None
        if address is None or (address.version == 6 and not address.is_multicast):
            reader.fail(
                scalar.mark,
                key,
                f"'{scalar.text}' is neither an IPv4 address nor an IPv6 multicast group",
                "write a broadcast address, for example 10.0.0.255 or ff02::1",
            )
        return str(address)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[0-9A-Fa-f:.]+$"}

    def describe(self) -> str:
        return "an IPv4 address or an IPv6 multicast group"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeZreSettings:
    """`nodes.NAME.zre:`"""

    interface: str = key(
        TextType("the name or address of an interface"),
        "other nodes connect to its address; without it the first interface that can broadcast, "
        "or else loopback",
        "",
    )
    broadcast_address: str = key(
        BroadcastAddressType(),
        "where beacons go, if not to the interface's broadcast address; `127.255.255.255` reaches "
        "all processes of one machine; with an IPv6 multicast group, as `ff02::1`, all traffic "
        "uses IPv6",
        "",
        alias="broadcast",
    )
    log_service: str = key(
        ChoiceType("off", "log", "table"),
        "other nodes report here which peers enter and leave; the node stores these reports in "
        "the cluster's log or in a table, for [Spark](pipeline.md#presence) and other readers",
        "off",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ZreSettings:
    """`zre:`"""

    port: int = key(
        count(1, PORT_MAX), "UDP port of beacons, the same for all nodes of the network", 5670
    )
    greeting: str = key(
        ChoiceType("v1", "v2"),
        "version of the HELLO to an unknown node that has not sent one",
        "v2",
    )
    beacon_ms: int = key(duration_ms(10, 60_000), "time between two beacons", 1000)
    greet_wait_ms: int = key(
        duration_ms(0, 60_000),
        "a node of another implementation may send HELLO first within this time; the answer uses "
        "its version",
        500,
    )
    evasive_ms: int = key(
        duration_ms(10, 600_000), "a node sends PING to a peer that is silent for this time", 5000
    )
    silent_ms: int = key(
        duration_ms(10, 3_600_000),
        "a node reports a peer as silent after this time without an answer to PING",
        10_000,
    )
    expired_ms: int = key(
        duration_ms(20, 3_600_000),
        "a node removes a peer that is silent for this time",
        30_000,
        alias="dead_ms",
    )
    static_peers: tuple[str, ...] = key(
        TextListType("tcp://ADDRESS:PORT", _endpoint_problem),
        "mailboxes that a node greets without a beacon, where UDP does not reach them",
        (),
        alias="static",
    )
    subnets: tuple[str, ...] = key(
        TextListType("subnets, as 10.1.0.0/16", _subnet_problem),
        "a HELLO may name an address in one of these, besides its connection's own",
        (),
    )
    gossip: bool = key(
        BooleanType(),
        "kelek nodes tell each other the peers that they know, and greet those within `subnets`: "
        "with one common `static_peers` node, all nodes find each other",
        False,
    )
    report: bool = key(BooleanType(), "report to the log services that peers announce", True)
    log_table: int = key(
        count(0, TABLE_MAX), "table of `log_service: table`; no other client can write it", 0
    )
