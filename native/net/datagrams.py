"""The UDP sockets of beacons: broadcasts, and receives batches of valid beacons."""

import ipaddress
import os
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

from ..._native import ffi, lib
from ..errors import os_error
from .interfaces import Interface

MICROS = 1_000_000
RECEIVED_MAX = 1024  # Beacons of one receive().
BURST, PER_S = 4096, 8192  # Of all received beacons; beacons over the rate are dropped.
SOURCE_PART = 2  # One source has at most half of that.
RECEIVE_BYTES = 1 << 20  # The kernel's buffer: about 2,000 beacons.
_IPV6_MULTICAST_ALL = 29  # Linux 4.20; Python has no name for it.
_SOURCES_MAX = 4096  # Addresses whose text is cached.
_ROW = struct.Struct("=16s16s32sI")
NO_KEY = bytes(32)
_MAPPED = bytes(10) + b"\xff\xff"


class ReceivedBeacon(NamedTuple):
    """A valid beacon and its numeric source address."""

    uuid: bytes
    port: int
    source: str
    key: bytes = b""  # CURVE public key, 32 octets; empty without one.


class Datagrams:
    """A socket that receives beacons, and one that sends them from the interface's own address.

    Any number of processes of a machine share the port: each receives all broadcasts.
    """

    def __init__(self, interface: Interface, port: int) -> None:
        """Raises OSError: the port can't be bound, or the address is not of this machine."""
        self.interface, self.port = interface, port
        self.unsent = 0  # Beacons that the machine refused to send.
        self.more = False  # receive() ended early: call it again before polling.
        family = socket.AF_INET6 if interface.is_v6 else socket.AF_INET
        self._in = socket.socket(family, socket.SOCK_DGRAM)
        self._out = socket.socket(family, socket.SOCK_DGRAM)
        try:
            index = interface.if_index if interface.is_v6 else 0
            self._target = (
                (interface.broadcast, port, 0, index)
                if interface.is_v6
                else (interface.broadcast, port)
            )
            for option in ("SO_REUSEADDR", "SO_REUSEPORT"):
                if hasattr(socket, option):
                    self._in.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
            self._in.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            if interface.is_v6:
                self._join(index)
            # Bound to one address it would receive no broadcast.
            self._in.bind(("", port))
            self._out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            address = interface.address.partition("%")[0]
            self._out.bind((address, 0, 0, index) if interface.is_v6 else (address, 0))
            self._in.setblocking(False)
            self._out.setblocking(False)
        except OSError:
            self.close()
            raise
        self.state = ffi.new("struct klk_beacons *")
        self.state.seed = int.from_bytes(os.urandom(8))
        self.set_rates(BURST, PER_S, BURST // SOURCE_PART, PER_S // SOURCE_PART)
        self._rows = ffi.new("struct klk_beacon[]", RECEIVED_MAX)
        self._more = ffi.new("int32_t *")
        self._sources: dict[bytes, str] = {}

    def _join(self, index: int) -> None:
        """Joins the group on this interface alone, and lets our datagrams reach local processes."""
        self._in.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 may share the port.
        group = socket.inet_pton(socket.AF_INET6, self.interface.broadcast)
        wanted = group + struct.pack("@I", index)
        self._in.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, wanted)
        with suppress(
            OSError
        ):  # Otherwise groups that other processes joined on other links arrive too.
            self._in.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
        self._out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        self._out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)

    def set_rates(self, burst: int, per_s: int, source_burst: int, source_per_s: int) -> None:
        """Sets the burst and the rate per second, of all sources and of one."""
        state = self.state
        state.burst, state.per_s = burst, per_s
        state.source_burst, state.source_per_s = source_burst, source_per_s
        state.all.left_micros = burst * MICROS
        for bucket in state.sources:
            bucket.left_micros = source_burst * MICROS

    def fileno(self) -> int:
        """The descriptor of the receiving socket."""
        return self._in.fileno()

    @property
    def malformed(self) -> int:
        """Datagrams that were not beacons."""
        return int(self.state.malformed)

    @property
    def flooded(self) -> int:
        """Beacons over the rate."""
        return int(self.state.flooded)

    def receive(self, now_ms: int) -> list[ReceivedBeacon]:
        """Receives waiting beacons, RECEIVED_MAX at most, without blocking."""
        count = lib.klk_beacons_receive(
            self.state, self._in.fileno(), now_ms, self._rows, RECEIVED_MAX, self._more
        )
        if count < 0:
            raise os_error("receiving beacons")
        self.more = bool(self._more[0])
        rows = ffi.buffer(self._rows, count * _ROW.size) if count else b""
        return [
            ReceivedBeacon(uuid, port, self._source(source), b"" if key == NO_KEY else key)
            for source, uuid, key, port in _ROW.iter_unpack(rows)
        ]

    def _source(self, packed: bytes) -> str:
        found = self._sources.get(packed)
        if found is None:
            if len(self._sources) >= _SOURCES_MAX:
                self._sources.clear()
            mapped = packed.startswith(_MAPPED)
            address = ipaddress.ip_address(packed[12:] if mapped else packed)
            # Connecting to a link-local address needs its link.
            zoned = address.version == 6 and address.is_link_local
            found = f"{address}%{self.interface.name}" if zoned else str(address)
            self._sources[packed] = found
        return found

    def send(self, beacon: bytes) -> None:
        """Broadcasts a beacon; counts it in `unsent` if the machine refuses to send it."""
        try:
            self._out.sendto(beacon, self._target)
        except OSError:
            self.unsent += 1

    def close(self) -> None:
        self._in.close()
        self._out.close()
