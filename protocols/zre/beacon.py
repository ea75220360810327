"""The beacon, 22 or 54 octets of UDP, and the UUIDs by which kelek nodes recognise each other."""

from typing import NamedTuple

from ...native.log.blocks import crc32c
from ..access.certificates import KEY_BYTES
from .values import UUID_BYTES, Malformed, Reason

HEADER = b"ZRE\x01"  # RFC 20: the letters Z, R, E, then the beacon's version, 01.
KEYED_HEADER = b"ZRE\x03"  # zyre's beacon version 3, with a CURVE key.
BEACON_BYTES = len(HEADER) + UUID_BYTES + 2
KEYED_BYTES = BEACON_BYTES + KEY_BYTES
_MARKED = UUID_BYTES - 2


class Beacon(NamedTuple):
    """A node and the port of its mailbox; port 0 is a goodbye (v2)."""

    uuid: bytes
    port: int
    key: bytes = b""  # CURVE public key, 32 octets; empty: a node without CURVE.


def encode_beacon(beacon: Beacon) -> bytes:
    """Encodes a beacon (RFC 20, "Node Discovery"; with a key as zyre's zyre_node.c).

    octets   0-3     `ZRE`, 01; with a key 03
             4-19    the sender's UUID
             20-21   its mailbox's port, big-endian
             22-53   with 03: its CURVE public key
    """
    assert len(beacon.uuid) == UUID_BYTES
    assert len(beacon.key) in (0, KEY_BYTES)
    header = KEYED_HEADER if beacon.key else HEADER
    return header + beacon.uuid + beacon.port.to_bytes(2) + beacon.key


def decode_beacon(data: bytes) -> Beacon:
    """Decodes a datagram. The port may be 0; the caller decides whether that is a goodbye.

    The batch decoder in C (csrc/net/beacons.c) accepts the same datagrams. RFC 20: an invalid
    beacon SHALL be discarded silently. Raises Malformed with the reason that is counted.
    """
    is_keyed = data[:4] == KEYED_HEADER
    if not is_keyed and (data[:4] != HEADER[: len(data[:4])] or len(data) < 3):
        raise Malformed(Reason.SIGNATURE, "a datagram that is no beacon")
    size = KEYED_BYTES if is_keyed else BEACON_BYTES
    if len(data) != size:
        raise Malformed(Reason.SHORT, f"this beacon has {size} octets, got {len(data)}")
    key = data[BEACON_BYTES:]
    if is_keyed and not any(key):
        raise Malformed(Reason.KEY, "a key of zeros")
    uuid = data[4:20]
    if uuid[0] == 0:  # libzmq refuses such a routing id, so a v1 node could never connect.
        raise Malformed(Reason.ROUTING_ID, "a UUID that begins with 00")
    return Beacon(uuid, int.from_bytes(data[20:BEACON_BYTES]), key)


def own_uuid(random: bytes) -> bytes:
    """A kelek node's UUID: octets 14-15 are the low 16 bits of the CRC32C of octets 0-13.

    random   14 octets; a first octet of 00 becomes 01, because libzmq refuses such a routing id
    """
    assert len(random) == _MARKED
    head = random if random[0] else b"\x01" + random[1:]
    return head + (crc32c(head) & 0xFFFF).to_bytes(2)


def is_own_uuid(uuid: bytes) -> bool:
    """Whether own_uuid() may have made the UUID. Others match once in 65,536 times; kelek then
    greets such a node without the usual wait."""
    return uuid[_MARKED:] == (crc32c(uuid[:_MARKED]) & 0xFFFF).to_bytes(2)
