"""Free ports of 127.0.0.1 for the processes of tests and benchmarks.

Processes that run at once take them from different blocks, so that none gets a port that another
one has chosen and not bound yet. A block is held by a lock on a file, as long as its process lives.
"""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

from kelek.bench.machine import BenchError

PORTS = range(10_000, 32_768)  # Below the ports of outgoing connections.
BLOCK = 256

_locks: list[int] = []  # Descriptors of locked files.
_owner = 0  # The process that holds them; a child that was forked takes a block of its own.
_ports: Iterator[int] = iter(())


def _next_port() -> int:
    """The process's next port, used or not. One is reused only after all others of the block."""
    global _owner, _ports
    if _owner != os.getpid():
        _ports, _owner = cycle(_take_block()), os.getpid()
    return next(_ports)


def _take_block() -> range:
    folder = Path(tempfile.gettempdir()) / f"kelek-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    firsts = range(PORTS.start, PORTS.stop - BLOCK + 1, BLOCK)
    for first in random.Random().sample(firsts, len(firsts)):
        file = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            continue
        _locks.append(file)
        return range(first, first + BLOCK)
    raise BenchError(f"other processes hold all ports: {folder}")


def free_ports(count: int) -> list[int]:
    """Different TCP ports without a listener. Raises BenchError."""
    return _free(count, socket.SOCK_STREAM, "127.0.0.1")


def free_port() -> int:
    """A TCP port without a listener. Raises BenchError."""
    return free_ports(1)[0]


def free_udp_port() -> int:
    """A UDP port without a listener, also without one that shares it (SO_REUSEPORT)."""
    return _free(1, socket.SOCK_DGRAM, "")[0]


def free_port_block(count: int) -> int:
    """The first of `count` consecutive free TCP ports."""
    while True:
        ports = free_ports(count)
        if ports == [*range(ports[0], ports[0] + count)]:
            return ports[0]


def _free(count: int, kind: socket.SocketKind, address: str) -> list[int]:
    found: list[int] = []
    for _ in range(2 * BLOCK):
        port = _next_port()
        with socket.socket(socket.AF_INET, kind) as probe:
            if kind == socket.SOCK_STREAM:  # Connections that have ended do not count.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
        if len(found) == count:
            return found
    raise BenchError(f"no {count} free ports")
