"""Settings of a node without a topology file."""

from collections.abc import Mapping
from typing import Any

from kelek.actors.topology.settings import NodeSettings, NodeTopology


def node_settings(node: Mapping[str, Any] | None = None, **sections: Any) -> NodeSettings:
    """Default settings with these changes.

    node       keys of the node
    sections   fields of NodeSettings
    """
    return NodeSettings(node=NodeTopology(**{"url": "", **(node or {})}), **sections)
