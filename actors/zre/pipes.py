"""The pipes between zre_beacon, zre_node and zre_log of a node, and their interface.

zre_node.heard     PULL  [UUID 16, port 2, key 32 (zeros: none), address]*   from zre_beacon
zre_beacon.sends   PULL  [datagram]              from zre_node, to broadcast
zre_node.services  PULL  [header][value]         for the node to announce
"""

import struct
from collections.abc import Iterable

from ...native.net.datagrams import NO_KEY, ReceivedBeacon
from ...native.net.interfaces import Interface, chosen
from ..errors import OperatorError
from ..runtime.setup import ActorSetup

NODE, BEACON, LOG = "zre_node", "zre_beacon", "zre_log"
HWM = 1000
_HEARD = struct.Struct(">16sH32s")


def encode_heard(beacons: Iterable[ReceivedBeacon]) -> list[bytes]:
    return [_HEARD.pack(one.uuid, one.port, one.key) + one.source.encode() for one in beacons]


def decode_heard(frames: Iterable[bytes]) -> list[ReceivedBeacon]:
    found = []
    for frame in frames:
        uuid, port, key = _HEARD.unpack_from(frame)
        source = frame[_HEARD.size :].decode("ascii")
        found.append(ReceivedBeacon(uuid, port, source, b"" if key == NO_KEY else key))
    return found


def interface_of(setup: ActorSetup) -> Interface:
    """The interface for this node's beacons. OperatorError: it does not exist."""
    settings = setup.settings.node_zre
    try:
        return chosen(settings.interface, settings.broadcast_address)
    except OSError as error:
        place = setup.places["zre.interface"]
        raise OperatorError(place, str(error.strerror), "name one of these") from error
