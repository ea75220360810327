"""What a client's machine wants done with its connections, which are named by their urls."""

from typing import NamedTuple


class Connect(NamedTuple):
    url: str


class Disconnect(NamedTuple):
    """Also drops what was queued for it and not yet sent."""

    url: str


class Send(NamedTuple):
    url: str
    frames: list[bytes]
