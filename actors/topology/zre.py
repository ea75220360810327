"""The keys of the topology that are ZRE's: `zre:` of the file, and of a node."""

from ipaddress import ip_address, ip_network

from ...protocols.zre.codec import parse_endpoint
from ...protocols.zre.errors import Malformed
from .schema import (
    PORT_MAX,
    TABLE_MAX,
    Key,
    SchemaReader,
    boolean_key,
    choice_key,
    count_key,
    duration_ms_key,
    list_key,
    text_key,
)
from .yaml_tree import Node


def _endpoint_problem(text: str) -> str:
    try:
        parse_endpoint(text)
    except Malformed:
        return "is no endpoint of a mailbox"
    return ""


def _subnet_problem(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        return f"is no subnet: {error}"
    return ""


def _address_key() -> Key:
    def read(reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, "an address")
        try:
            address = ip_address(scalar.text)
        except ValueError:
            address = None
        if address is None or (address.version == 6 and not address.is_multicast):
            reader.fail(
                scalar.mark,
                key,
                f"'{scalar.text}' is no IPv4 address, nor a multicast group of IPv6",
                "write the address that reaches all, as 10.0.0.255 or ff02::1",
            )
        return str(address)

    return Key(read, "")


NODE_ZRE_KEYS = {
    "interface": text_key("the name or address of an interface", ""),
    "broadcast": _address_key(),
    "log_service": choice_key("off", "log", "table", default="off"),
}

ZRE_KEYS = {
    "port": count_key(1, PORT_MAX, 5670),
    "greeting": choice_key("v1", "v2", default="v2"),
    "beacon_ms": duration_ms_key(10, 60_000, 1000),
    "greet_wait_ms": duration_ms_key(0, 60_000, 500),
    "evasive_ms": duration_ms_key(10, 600_000, 5000),
    "silent_ms": duration_ms_key(10, 3_600_000, 10_000),
    "dead_ms": duration_ms_key(20, 3_600_000, 30_000),
    "static": list_key("tcp://ADDRESS:PORT", _endpoint_problem),
    "subnets": list_key("subnets, as 10.1.0.0/16", _subnet_problem),
    "gossip": boolean_key(False),
    "report": boolean_key(True),
    "log_table": count_key(0, TABLE_MAX, 0),
}
