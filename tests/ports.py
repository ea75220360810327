"""Ports for what the tests start."""

import os
import socket
from itertools import count, islice

PORTS = range(20_000, 32_768)  # Below what outgoing connections get: none is taken in between.


def _share() -> range:
    """The ports of this process: each of xdist's workers has its own part of all."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(PORTS) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return PORTS[worker * size : (worker + 1) * size]


# What was given is not given again before all others were: who got it may not have bound it yet.
# Another run of the tests, at the same time, begins elsewhere.
_NEXT = count(os.getpid() * 97)


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on."""
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
    """A port that nobody listens on."""
    return free_ports(1)[0]


def free_udp_port() -> int:
    """A port of UDP on which nobody listens, not even one who shares it."""
    share = _share()
    for i in islice(_NEXT, len(share)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("", share[i % len(share)]))
            except OSError:
                continue
        return share[i % len(share)]
    raise AssertionError("no free ports")
