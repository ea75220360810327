"""What a server of a farm asks of its I2P router, and tells it (text, "Router Interface").

The text's getLocalRouterStatus, getLocalLeafHash and getLocalLeafStatus are Router.status();
publishMetaLS is publish(), stopPublishingMetaLS is stop(). Remote measurements are keys of a
status like any other.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from .state import Leaf

ROUTER_KEYS = (
    "meta",
    "router",
    "destinations",
)  # Of a status document that are the router's to say.


class RouterStatus(NamedTuple):
    """What a router says of itself.

    document   of KEYS those that it has something to say about
    error      why there is nothing, or nothing new; empty when all is well
    """

    document: Mapping[str, object]
    error: str = ""


class Publication(NamedTuple):
    """What the router of the publisher is to publish.

    log_index   of the last order to publish: a new one means that it has to be done once more
    contents    the destinations of the MetaLS
    """

    cluster: str
    log_index: int
    contents: tuple[Leaf, ...]


class Router(Protocol):
    """A router. It never raises: what goes wrong stands in the next status."""

    def status(self) -> RouterStatus:
        """As it is now."""
        ...

    def publish(self, publication: Publication) -> None:
        """We are the publisher, with this; said again whenever it is something else."""
        ...

    def stop(self) -> None:
        """We are not the publisher, or no longer; also said once at the start."""
        ...
