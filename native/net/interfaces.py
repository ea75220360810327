"""The network interfaces of this machine and their broadcast addresses.

Over IPv6 a multicast group replaces the broadcast address.
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
# A line: address, index, prefix, scope, flags, name; the numbers are hexadecimal.
_IF_INET6 = Path("/proc/net/if_inet6")
_TENTATIVE_OR_FAILED = 0x40 | 0x08
_LINK_LOCAL = 0x20


class Interface(NamedTuple):
    """An interface for beacons: its own address, and the address that reaches all nodes."""

    name: str
    address: str  # A link-local IPv6 address has its zone: fe80::1%eth0.
    broadcast: str  # Of IPv4; or a multicast group of IPv6, when `address` is IPv6 too.

    @property
    def is_v6(self) -> bool:
        return ":" in self.broadcast

    @property
    def if_index(self) -> int:
        """Its number; 0: the system chooses. Raises OSError."""
        return socket.if_nametoindex(self.name) if self.name else 0


_LOOPBACK = Interface("lo", LOOPBACK, LOOPBACK_BROADCAST)


def interfaces() -> list[Interface]:
    """The interfaces that are up, have IPv4 and can broadcast, then loopback. On other systems than
    Linux loopback alone."""
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
    """The kernel's answer about an interface, without the name."""
    return fcntl.ioctl(asking, request, struct.pack("256s", name.encode()))[16:32]


def interfaces_v6(group: str) -> list[Interface]:
    """The IPv6 addresses of this machine: global, then link-local, then loopback. On other systems
    than Linux loopback alone."""
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


def chosen(name_or_address: str = "", broadcast: str = "") -> Interface:
    """The interface of that name or address; without one, the first that can broadcast.

    broadcast   replaces the interface's own; with an IPv6 multicast group everything uses IPv6
    Raises OSError: ENODEV when no interface has that name or address, EINVAL when broadcast is not
    an address.
    """
    try:
        reached = ipaddress.ip_address(broadcast) if broadcast else None
    except ValueError:
        raise OSError(errno.EINVAL, f"{broadcast!r} is not an address") from None
    if isinstance(reached, ipaddress.IPv6Address):
        if not reached.is_multicast:
            raise OSError(errno.EINVAL, f"{broadcast!r} is not a multicast group such as ff02::1")
        return _chosen(name_or_address, interfaces_v6(str(reached)), ipaddress.IPv6Address)
    # No query for loopback: listing all interfaces takes longer than sending a beacon.
    known = [_LOOPBACK] if name_or_address in (_LOOPBACK.name, _LOOPBACK.address) else interfaces()
    found = _chosen(name_or_address, known, ipaddress.IPv4Address)
    return found._replace(broadcast=broadcast) if broadcast else found


def _chosen(
    name_or_address: str,
    known: list[Interface],
    family: type[ipaddress.IPv4Address | ipaddress.IPv6Address],
) -> Interface:
    for one in known:
        if not name_or_address or name_or_address in (one.name, one.address):
            return one
    try:
        address = str(family(name_or_address))
    except ValueError:
        names = ", ".join(dict.fromkeys(one.name for one in known))
        raise OSError(
            errno.ENODEV, f"no interface {name_or_address!r}; there are {names}"
        ) from None
    if family is ipaddress.IPv6Address:
        return Interface(address.partition("%")[2], address, known[0].broadcast)
    loopback = address.startswith("127.")
    return Interface("", address, LOOPBACK_BROADCAST if loopback else "255.255.255.255")
