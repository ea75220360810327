"""Which network interfaces this machine has: where beacons go out, and what reaches all there.

IPv4 has broadcast addresses; over IPv6 a multicast group stands in their place.
"""

import errno
import fcntl
import ipaddress
import socket
import struct
import sys
from pathlib import Path
from typing import NamedTuple

LOOPBACK, LOOPBACK_BROADCAST = "127.0.0.1", "127.255.255.255"
LOOPBACK_V6 = "::1"
# Linux: netdevice(7).
_SIOCGIFADDR, _SIOCGIFBRDADDR, _SIOCGIFFLAGS = 0x8915, 0x8919, 0x8913
_IFF_UP, _IFF_BROADCAST, _IFF_LOOPBACK = 0x1, 0x2, 0x8
# A line of it: address, index, prefix, scope, flags, name; the numbers are hexadecimal.
_IF_INET6 = Path("/proc/net/if_inet6")
_TENTATIVE_OR_FAILED = 0x40 | 0x08
_LINK_LOCAL = 0x20


class Interface(NamedTuple):
    """Where beacons go out: its own address and the one that reaches all."""

    name: str
    address: str  # One of IPv6 that is good on its link alone has the zone behind it: fe80::1%eth0.
    broadcast: str  # Of IPv4; or a multicast group of IPv6, and then `address` is one of IPv6, too.

    @property
    def is_v6(self) -> bool:
        return ":" in self.broadcast

    @property
    def if_index(self) -> int:
        """Its number; 0: the machine chooses. Raises OSError."""
        return socket.if_nametoindex(self.name) if self.name else 0


_LOOPBACK = Interface("lo", LOOPBACK, LOOPBACK_BROADCAST)


def interfaces() -> list[Interface]:
    """The interfaces of this machine that are up and have IPv4: those that can broadcast, then
    loopback. Only on Linux; elsewhere loopback alone."""
    if sys.platform != "linux":
        return [_LOOPBACK]
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                flags = int.from_bytes(_asked(asking, _SIOCGIFFLAGS, name)[:2], sys.byteorder)
                if flags & (_IFF_UP | _IFF_BROADCAST) != _IFF_UP | _IFF_BROADCAST:
                    continue
                address = socket.inet_ntoa(_asked(asking, _SIOCGIFADDR, name)[4:8])
                broadcast = socket.inet_ntoa(_asked(asking, _SIOCGIFBRDADDR, name)[4:8])
            except OSError:
                continue  # It has no address.
            if not flags & _IFF_LOOPBACK:
                found.append(Interface(name, address, broadcast))
    return [*found, _LOOPBACK]


def _asked(asking: socket.socket, request: int, name: str) -> bytes:
    """What the kernel says of an interface, behind its name."""
    return fcntl.ioctl(asking, request, struct.pack("256s", name.encode()))[16:32]


def interfaces_v6(group: str) -> list[Interface]:
    """The addresses of IPv6 that this machine has, loopback last, those that are good on their link
    alone behind others. Only on Linux; elsewhere loopback alone."""
    loopback = Interface("lo", LOOPBACK_V6, group)
    lines = _IF_INET6.read_text().splitlines() if _IF_INET6.exists() else []
    found = []
    for line in lines:
        packed, _, _, scope, flags, name = line.split()
        if int(flags, 16) & _TENTATIVE_OR_FAILED or name == loopback.name:
            continue
        address = str(ipaddress.IPv6Address(bytes.fromhex(packed)))
        on_link = int(scope, 16) == _LINK_LOCAL
        found.append((on_link, Interface(name, f"{address}%{name}" if on_link else address, group)))
    return [*(one for _, one in sorted(found, key=lambda pair: pair[0])), loopback]


def chosen(wish: str = "", broadcast: str = "") -> Interface:
    """The interface of that name or address; without a wish the first that can broadcast.

    broadcast   an address instead of the interface's own; a multicast group of IPv6 has beacons go
                there, and all else over IPv6, too
    Raises OSError (ENODEV): there is none of that name, and it is no address either; (EINVAL):
    broadcast is neither.
    """
    try:
        reached = ipaddress.ip_address(broadcast) if broadcast else None
    except ValueError:
        raise OSError(errno.EINVAL, f"{broadcast!r} is no address") from None
    if isinstance(reached, ipaddress.IPv6Address):
        if not reached.is_multicast:
            raise OSError(errno.EINVAL, f"{broadcast!r} is no multicast group, as ff02::1 is")
        return _chosen(wish, interfaces_v6(str(reached)), ipaddress.IPv6Address)
    # Loopback is known unasked: the kernel takes longer to list them all than to send a beacon.
    known = [_LOOPBACK] if wish in (_LOOPBACK.name, _LOOPBACK.address) else interfaces()
    found = _chosen(wish, known, ipaddress.IPv4Address)
    return found._replace(broadcast=broadcast) if broadcast else found


def _chosen(
    wish: str, known: list[Interface], family: type[ipaddress.IPv4Address | ipaddress.IPv6Address]
) -> Interface:
    for one in known:
        if not wish or wish in (one.name, one.address):
            return one
    try:
        address = str(family(wish))
    except ValueError:
        names = ", ".join(dict.fromkeys(one.name for one in known))
        raise OSError(errno.ENODEV, f"no interface {wish!r}; there are {names}") from None
    if family is ipaddress.IPv6Address:
        return Interface(address.partition("%")[2], address, known[0].broadcast)
    loopback = address.startswith("127.")
    return Interface("", address, LOOPBACK_BROADCAST if loopback else "255.255.255.255")
