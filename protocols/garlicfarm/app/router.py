"""The interface between a farm server and its I2P router (specification, "Router Interface").

Router.status() covers getLocalRouterStatus, getLocalLeafHash and getLocalLeafStatus. publish() is
publishMetaLS and stopPublishingMetaLS. Remote measurements are keys of a status.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from .state import Leaf

# Keys of a status document that the router provides.
ROUTER_KEYS = ("meta", "router", "destinations")


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

    log_index: int
    contents: tuple[Leaf, ...]


class Router(Protocol):
    """The router of any number of farms. It never raises; problems appear in the next status."""

    def status(self, cluster: str) -> RouterStatus:
        """The current status for one farm."""
        ...

    def publish(self, cluster: str, publication: Publication | None) -> None:
        """This server publishes this for a farm; None: it is not the publisher. Called at the
        start, and when the publication changes.
        """
        ...
