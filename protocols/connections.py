"""What a client's machine wants done with its connections, which are named by their urls."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


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


class ClientMachine(Protocol):
    """What decides: it says which connections there are, and is told all that befalls them."""

    @property
    def deadline_ms(self) -> int | None: ...
    def ready(self, now_ms: int) -> Sequence[NamedTuple]: ...
    def on_connected(self, url: str, now_ms: int) -> None: ...
    def on_disconnected(self, url: str, now_ms: int) -> None: ...
    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None: ...
