"""Actions that a client's state machine asks of the owner of its connections. A connection is named
by its URL."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Connect(NamedTuple):
    url: str


class Disconnect(NamedTuple):
    """Closes the connection and drops the messages that wait to be sent on it."""

    url: str


class Send(NamedTuple):
    url: str
    frames: list[bytes]


class Listen(NamedTuple):
    """Subscribes to a topic at a URL. The owner passes received messages to the machine's
    on_broadcast()."""

    subscription: Any  # The key that the machine gets back with each message.
    url: str
    topic: bytes
    named_by: str = ""  # The url of the server that gave this one, as an address of its own.


class Unlisten(NamedTuple):
    """Ends a subscription. The owner drops messages of it that it has not yet passed on."""

    subscription: Any


class Warn(NamedTuple):
    """Logs why requests wait, for a user whose calls do not return."""

    text: str


ClientAction = Connect | Disconnect | Listen | Send | Unlisten | Warn


class ClientMachine(Protocol):
    """The state machine of a client: ready() returns actions, and the owner reports every event."""

    @property
    def deadline_ms(self) -> int | None: ...
    def ready(self, now_ms: int) -> Sequence[ClientAction]: ...
    def on_connected(self, url: str, now_ms: int) -> None: ...
    def on_disconnected(self, url: str, now_ms: int) -> None: ...
    def on_refused(self, url: str, problem: str, way_out: str, may_pass: bool = False) -> None:
        """The connection is not made, and why. may_pass: that may end by itself"""

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None: ...
