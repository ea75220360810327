"""The pipes between zre_beacon, zre_node and zre_log of a node, and their interface.

zre_node.heard     PULL  [16 octets of UUID, port 2, address]*   beacons, from zre_beacon
zre_beacon.sends   PULL  [datagram]                              from zre_node, to broadcast
zre_node.services  PULL  [header][value]                         for the node to announce
"""

import struct
from collections.abc import Iterable

from ...native.net.datagrams import ReceivedBeacon
from ...native.net.interfaces import Interface, chosen
from ..errors import OperatorError
from ..runtime.setup import ActorSetup

NODE, BEACON, LOG = "zre_node", "zre_beacon", "zre_log"
HWM = 1000
_HEARD = struct.Struct(">16sH")


def encode_heard(beacons: Iterable[ReceivedBeacon]) -> list[bytes]:
    return [_HEARD.pack(one.uuid, one.port) + one.source.encode() for one in beacons]


def decode_heard(frames: Iterable[bytes]) -> list[ReceivedBeacon]:
    found = []
    for frame in frames:
        uuid, port = _HEARD.unpack_from(frame)
        found.append(ReceivedBeacon(uuid, port, frame[_HEARD.size :].decode("ascii")))
    return found


def interface_of(setup: ActorSetup) -> Interface:
    """The interface for this node's beacons. OperatorError: it does not exist."""
    settings = setup.settings.node_zre
    try:
        return chosen(settings.interface, settings.broadcast_address)
    except OSError as error:
        place = setup.places["zre.interface"]
        raise OperatorError(place, str(error.strerror), "name one of these") from error
