"""The difference between two readings of a topology, and what a running cluster can't adopt."""

import hashlib
import json
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from .json_values import encode
from .schema import Problem, keys_of
from .settings import TopologyFile
from .topology import Topology

FIXED = {
    "cluster": (
        "the nodes' data belongs to this cluster",
        "write the former ident, or see `kelek recover --cluster`",
    ),
    "data": (
        "the processes that run hold files there",
        "write the former one, or `supervisor stop`, move the directory, `supervisor start`",
    ),
    "zerodb.workers": ("it is fixed while tables exist", "write the former number"),
    "security": (
        "nodes with keys and nodes without do not connect to each other",
        "see `keys for a running cluster` in docs/security.md, or stop all nodes, then start them",
    ),
}
# Of a member: other nodes know it by these.
FIXED_OF_MEMBERS = ("url", "peer_url", "dialect", "server_key")


class Change(NamedTuple):
    """One key whose value differs; None: it is absent. A section that is new is one change.

    place   FILE:LINE:COL of the new value, or the file
    """

    key: str
    old: Any
    new: Any
    place: str


def values_of(topology: Topology) -> dict[str, Any]:
    """All settings of a topology as JSON values, with defaults."""
    return {name: encode(getattr(topology, name)) for name in keys_of(TopologyFile)}


def fingerprint(topology: Topology) -> str:
    """Equal for readings with the same settings, whatever the comments and the order of keys."""
    text = json.dumps(values_of(topology), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changes(old: Topology, new: Topology) -> list[Change]:
    """The keys that differ, in the order of the topology's sections."""
    found = differences(values_of(old), values_of(new))
    places = new.places
    return [Change(key, was, now, places.get(key, new.path)) for key, was, now in found]


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key.path, old, new) of each difference between JSON values. Lists are compared whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            below = f"{path}.{key}" if path else key
            yield from differences(old.get(key), new.get(key), below)
    elif old != new:
        yield path, old, new


def refusals(found: Collection[Change], members: Collection[str]) -> list[Problem]:
    """The changes that nodes which run can't adopt: key.path, problem, way out.

    members   the members of the cluster by its log
    """
    return [problem for change in found for problem in _refusals(change, members)]


def _refusals(change: Change, members: Collection[str]) -> Iterator[Problem]:
    section, _, rest = change.key.partition(".")
    if change.key in FIXED:
        yield change.key, *FIXED[change.key]
        return
    name, key = next(
        ((it, rest[len(it) + 1 :]) for it in members if f"{rest}.".startswith(f"{it}.")), ("", "")
    )
    if section != "nodes" or not name:
        return
    if not key and change.new is None:
        yield change.key, f"{name} is a member", f"first `kelek log members remove {name}`"
    elif key in FIXED_OF_MEMBERS:
        yield (
            change.key,
            f"the other members reach {name} by it",
            f"`kelek log members remove {name}`, reload, then restart {name} and add it again",
        )
