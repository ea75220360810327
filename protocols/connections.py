"""What a client's machine wants done with its connections, which are named by their urls."""

from typing import Any, NamedTuple


class Connect(NamedTuple):
    url: str


class Disconnect(NamedTuple):
    """Also drops what was queued for it and not yet sent."""

    url: str


class Send(NamedTuple):
    url: str
    frames: list[bytes]


class Listen(NamedTuple):
    """Subscribe to a topic at url, and tell the machine's on_broadcast() of what comes."""

    subscription: Any  # The machine's name for it.
    url: str
    topic: bytes


class Unlisten(NamedTuple):
    """End that; what has not been told yet never will be."""

    subscription: Any
