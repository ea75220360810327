"""Helpers of the tests of nodes: tuning, and waiting for events."""

from collections.abc import Callable
from typing import Any

import kelek

DEADLINE_MS = 60_000
Kind = kelek.EventKind
Make = Callable[..., kelek.Node]


def tuned(port: int, **settings: Any) -> kelek.NodeTuning:
    return kelek.NodeTuning(port=port, interface="127.0.0.1", **settings)


def wait_for(node: kelek.Node, kind: kelek.EventKind, name: str = "") -> kelek.Event:
    """The next event of this kind, of a peer of this name; drops those before it."""
    seen = []
    for event in node.events(DEADLINE_MS):
        seen.append(event)
        if event.kind is kind and (not name or (event.peer and event.peer.name == name)):
            return event
    raise AssertionError(f"no {kind} of {name}; there was {seen[-20:]}")


def peer_of(node: kelek.Node, name: str) -> kelek.PeerInfo:
    found = wait_for(node, Kind.ENTER, name).peer
    assert found is not None
    return found
