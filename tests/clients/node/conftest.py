"""Nodes that discover each other on loopback."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import kelek
from kelek.bench.ports import free_udp_port
from kelek.tests.clients.node.nodes import Make, tuned


@pytest.fixture
def port() -> int:
    return free_udp_port()


@pytest.fixture
def make(port: int) -> Iterator[Make]:
    """Starts nodes that discover each other."""
    with ExitStack() as stack:

        def start(name: str, headers: dict[str, str] | None = None, **more: Any) -> kelek.Node:
            return stack.enter_context(kelek.Node(name, headers, tuning=tuned(port, **more)))

        yield start
