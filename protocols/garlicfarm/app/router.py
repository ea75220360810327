"""The interface between a farm server and its I2P router (specification, "Router Interface").

Router.status() covers getLocalRouterStatus, getLocalLeafHash and getLocalLeafStatus. publish() is
publishMetaLS, stop() is stopPublishingMetaLS. Remote measurements are keys of a status.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from .state import Leaf

ROUTER_KEYS = (
    "meta",
    "router",
    "destinations",
)  # Keys of a status document that the router provides.


class RouterStatus(NamedTuple):
    """A router's part of the status document.

    document   the ROUTER_KEYS that it provides
    error      why the document is missing or old; empty: no problem
    """

    document: Mapping[str, object]
    error: str = ""


class Publication(NamedTuple):
    """What the publisher's router publishes.

    log_index   index of the last order to publish; a new one means: publish once more
    contents    the destinations of the MetaLS
    """

    cluster: str
    log_index: int
    contents: tuple[Leaf, ...]


class Router(Protocol):
    """A router. It never raises; problems appear in the next status."""

    def status(self) -> RouterStatus:
        """The current status."""
        ...

    def publish(self, publication: Publication) -> None:
        """This server is the publisher. Called again when the publication changes."""
        ...

    def stop(self) -> None:
        """This server is not the publisher. Also called once at the start."""
        ...
