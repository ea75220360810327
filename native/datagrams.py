"""The UDP socket of beacons: which interface, whom they reach, and what comes, by the batch."""

import errno
import fcntl
import ipaddress
import socket
import struct
import sys
from typing import NamedTuple

from .._native import ffi, lib
from . import _os_error

TAKEN_MAX = 1024  # Beacons of one take().
BURST, PER_S = 4096, 8192  # Of all beacons that come; what is beyond is dropped.
RECEIVE_BYTES = 1 << 20  # The kernel's buffer: about two thousand beacons.
LOOPBACK, LOOPBACK_BROADCAST = "127.0.0.1", "127.255.255.255"
_SOURCES_MAX = 4096  # Addresses whose text is kept.
# Linux: netdevice(7).
_SIOCGIFADDR, _SIOCGIFBRDADDR, _SIOCGIFFLAGS = 0x8915, 0x8919, 0x8913
_IFF_UP, _IFF_BROADCAST, _IFF_LOOPBACK = 0x1, 0x2, 0x8
_ROW = struct.Struct("=16s16sI")
_MAPPED = bytes(10) + b"\xff\xff"


class Interface(NamedTuple):
    """Where beacons go out: its own address and the one that reaches all."""

    name: str
    address: str
    broadcast: str


class Heard(NamedTuple):
    """A valid beacon, and the numeric address that it came from."""

    uuid: bytes
    port: int
    source: str


def interfaces() -> list[Interface]:
    """The interfaces of this machine that are up and have IPv4: those that can broadcast, then
    loopback. Only on Linux; elsewhere loopback alone."""
    loopback = Interface("lo", LOOPBACK, LOOPBACK_BROADCAST)
    if sys.platform != "linux":
        return [loopback]
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
    return [*found, loopback]


def _asked(asking: socket.socket, request: int, name: str) -> bytes:
    """What the kernel says of an interface, behind its name."""
    return fcntl.ioctl(asking, request, struct.pack("256s", name.encode()))[16:32]


def chosen(wish: str = "", broadcast: str = "") -> Interface:
    """The interface of that name or address; without a wish the first that can broadcast.

    broadcast   an address instead of the interface's own
    Raises OSError (ENODEV): there is none of that name, and it is no address either.
    """
    known = interfaces()
    found = known[0] if not wish else None
    for one in known:
        if wish in (one.name, one.address):
            found = one
            break
    if found is None:
        try:
            address = str(ipaddress.IPv4Address(wish))
        except ValueError:
            names = ", ".join(one.name for one in known)
            raise OSError(errno.ENODEV, f"no interface {wish!r}; there are {names}") from None
        loopback = address.startswith("127.")
        found = Interface("", address, LOOPBACK_BROADCAST if loopback else "255.255.255.255")
    return found._replace(broadcast=broadcast) if broadcast else found


class Datagrams:
    """One socket that hears beacons, one that sends them from the interface's own address.

    Any number of processes of a machine share the port: each hears all that is broadcast.
    """

    def __init__(self, interface: Interface, port: int) -> None:
        """Raises OSError: the port can't be bound, or the address is not of this machine."""
        self.interface, self.port = interface, port
        self.unsent = 0  # Beacons that the machine did not let out.
        self.more = False  # take() ended early: call it again before polling.
        self._in = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            for option in ("SO_REUSEADDR", "SO_REUSEPORT"):
                if hasattr(socket, option):
                    self._in.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
            self._in.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            # Bound to one address it would hear no broadcast.
            self._in.bind(("", port))
            self._out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            self._out.bind((interface.address, 0))
            self._in.setblocking(False)
            self._out.setblocking(False)
        except OSError:
            self.close()
            raise
        self._state = ffi.new("struct klk_beacons *")
        self._state.burst, self._state.per_s = BURST, PER_S
        self._state.left_micros = BURST * 1_000_000
        self._rows = ffi.new("struct klk_beacon[]", TAKEN_MAX)
        self._more = ffi.new("int32_t *")
        self._sources: dict[bytes, str] = {}

    def fileno(self) -> int:
        """Of the socket that hears."""
        return self._in.fileno()

    @property
    def malformed(self) -> int:
        """Datagrams that were no beacon."""
        return int(self._state.malformed)

    @property
    def flooded(self) -> int:
        """Beacons that came too fast."""
        return int(self._state.flooded)

    def take(self, now_ms: int) -> list[Heard]:
        """The beacons that wait, TAKEN_MAX at most; never blocks."""
        count = lib.klk_beacons_take(
            self._state, self._in.fileno(), now_ms, self._rows, TAKEN_MAX, self._more
        )
        if count < 0:
            raise _os_error("receiving beacons")
        self.more = bool(self._more[0])
        rows = ffi.buffer(self._rows, count * _ROW.size) if count else b""
        return [
            Heard(uuid, port, self._source(source)) for source, uuid, port in _ROW.iter_unpack(rows)
        ]

    def _source(self, packed: bytes) -> str:
        found = self._sources.get(packed)
        if found is None:
            if len(self._sources) >= _SOURCES_MAX:
                self._sources.clear()
            mapped = packed.startswith(_MAPPED)
            found = str(ipaddress.ip_address(packed[12:] if mapped else packed))
            self._sources[packed] = found
        return found

    def send(self, beacon: bytes) -> None:
        """Broadcasts it; what the machine does not let out is counted: the next one may leave."""
        try:
            self._out.sendto(beacon, (self.interface.broadcast, self.port))
        except OSError:
            self.unsent += 1

    def close(self) -> None:
        self._in.close()
        self._out.close()
