"""Captures TCP on all interfaces of a network namespace: `capture.py FILE`; streams() reads it."""

import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ETH_P_ALL = 3
ETHERNET_BYTES, IPV6_BYTES = 14, 40
FRAME_BYTES_MAX = 1 << 17
BUFFER_BYTES = 64 << 20
SIZE = struct.Struct(">I")
TCP = 6


class TcpFlow(NamedTuple):
    """One direction of a connection."""

    source: str
    source_port: int
    target: str
    target_port: int


def main(file: str) -> None:
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as raw,
        open(file, "wb", buffering=0) as out,
    ):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        print("up", flush=True)
        while True:
            frame = raw.recv(FRAME_BYTES_MAX)
            out.write(SIZE.pack(len(frame)) + frame)


def frames(file: Path) -> Iterator[bytes]:
    data, at = file.read_bytes(), 0
    while at + SIZE.size <= len(data):
        (size,) = SIZE.unpack_from(data, at)
        yield data[at + SIZE.size : at + SIZE.size + size]
        at += SIZE.size + size


def segment(frame: bytes) -> tuple[TcpFlow, int, bytes] | None:
    """The flow, the sequence number and the payload of a frame with TCP."""
    kind, packet = frame[12:14], frame[ETHERNET_BYTES:]
    if kind == b"\x08\x00" and packet[9] == TCP:
        size = 4 * (packet[0] & 15)
        family, addresses = socket.AF_INET, (packet[12:16], packet[16:20])
        packet = packet[: int.from_bytes(packet[2:4], "big") or len(packet)]
    elif kind == b"\x86\xdd" and packet[6] == TCP:
        size = IPV6_BYTES
        family, addresses = socket.AF_INET6, (packet[8:24], packet[24:40])
    else:
        return None
    tcp = packet[size:]
    source_port, target_port, sequence = struct.unpack(">HHI", tcp[:8])
    source, target = (socket.inet_ntop(family, it) for it in addresses)
    is_syn = tcp[13] & 2 != 0
    payload = tcp[4 * (tcp[12] >> 4) :]
    return TcpFlow(source, source_port, target, target_port), sequence + is_syn, payload


def streams(file: Path) -> Mapping[TcpFlow, bytes]:
    """What each side of each connection sent, of connections that begin in the file.

    A stream ends where a frame is missing.
    """
    first: dict[TcpFlow, int] = {}
    parts: dict[TcpFlow, dict[int, bytes]] = defaultdict(dict)
    for frame in frames(file):
        found = segment(frame)
        if found is None:
            continue
        flow, sequence, payload = found
        first.setdefault(flow, sequence)
        if payload:
            known = parts[flow].get(sequence, b"")
            parts[flow][sequence] = max(payload, known, key=len)
    return {flow: joined(first[flow], of) for flow, of in parts.items()}


def joined(first: int, parts: Mapping[int, bytes]) -> bytes:
    data = bytearray()
    for sequence in sorted(parts, key=lambda it: (it - first) % (1 << 32)):
        offset = (sequence - first) % (1 << 32)
        if offset > len(data):
            break
        if offset + len(parts[sequence]) > len(data):
            data[offset:] = parts[sequence]
    return bytes(data)


if __name__ == "__main__":
    main(sys.argv[1])
