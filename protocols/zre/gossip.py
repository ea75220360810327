"""Gossip, for networks without UDP: nodes tell each other which nodes they know.

It is an extension of kelek: WHISPERs between nodes that both announce it in a header.

    content   8 octets     MARK
              then each    16 octets of UUID, 1 of size, so many of endpoint:
                           tcp://ADDRESS:PORT, with CURVE tcp://ADDRESS:PORT|KEY in Z85

A node connects only to gossiped addresses within its subnets (node.py).
"""

from collections.abc import Iterable
from typing import NamedTuple

from . import codec
from .values import UUID_BYTES, Malformed, Reason

HEADER = "X-KELEK-GOSSIP"
VALUE = "1"
MARK = b"\x00KLKG\x01\x00\x00"
SIGHTINGS_MAX = 1000  # In one message.


class Sighting(NamedTuple):
    """A node that the sender knows."""

    uuid: bytes
    address: str
    port: int
    key: bytes = b""  # CURVE public key; empty: without CURVE.


def encode_sightings(sightings: Iterable[Sighting]) -> bytes:
    """Encodes the first SIGHTINGS_MAX of them."""
    pieces = [MARK]
    for uuid, address, port, key in list(sightings)[:SIGHTINGS_MAX]:
        endpoint = codec.keyed_endpoint(address, port, key).encode()
        pieces += (uuid, bytes([len(endpoint)]), endpoint)
    return b"".join(pieces)


def decode_sightings(data: bytes) -> list[Sighting]:
    """Decodes a content that begins with MARK. Raises Malformed."""
    found: list[Sighting] = []
    at = len(MARK)
    while at < len(data):
        end = at + UUID_BYTES + 1
        size = data[end - 1] if end <= len(data) else 0
        if not size or end + size > len(data) or len(found) == SIGHTINGS_MAX:
            raise Malformed(Reason.SHORT, "sightings that are cut, or too many")
        endpoint = data[end : end + size].decode("ascii", "replace")
        found.append(Sighting(data[at : end - 1], *codec.parse_keyed_endpoint(endpoint)))
        at = end + size
    return found
