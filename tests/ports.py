"""Free ports for the processes of tests."""

import os
import socket
from itertools import count, islice

PORTS = range(20_000, 32_768)  # Below the ports of outgoing connections.


def _share() -> range:
    """The ports of this process: each worker of xdist has its own part."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(PORTS) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return PORTS[worker * size : (worker + 1) * size]


# A port is reused only after all others: its test may not have bound it yet. The process id makes
# concurrent runs of the tests start at different ports.
_NEXT = count(os.getpid() * 97)


def free_ports(number: int) -> list[int]:
    """Ports without a listener."""
    share = _share()
    ports: list[int] = []
    for i in islice(_NEXT, len(share)):
        port = share[i % len(share)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == number:
            return ports
    raise AssertionError("no free ports")


def free_port() -> int:
    """A port without a listener."""
    return free_ports(1)[0]


def free_udp_port() -> int:
    """A UDP port without a listener, also without one that shares it (SO_REUSEPORT)."""
    share = _share()
    for i in islice(_NEXT, len(share)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("", share[i % len(share)]))
            except OSError:
                continue
        return share[i % len(share)]
    raise AssertionError("no free ports")
