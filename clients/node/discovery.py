"""Discovery of kelek's services by ZRE, for `zre://NAME` urls and `kelek discover`.

Discovery runs an ordinary node, which beacons and greets others, for the time of the search.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ...net.clock import monotonic_ms
from ...protocols.zre import services
from ..errors import NodeError
from ..io.urls import SCHEME, check_url

if TYPE_CHECKING:
    # Every client imports this module; only a zre:// url needs a node.
    from ...protocols.zre.peers import PeerInfo
    from ..io.keys import KeyArguments, KeyPath
    from .access import AllowedNodes
    from .base import NodeTuning

ZRE_URL = r"zre://([^/?#,\s]+)(?:\?([^#\s]*))?"
DISCOVERY_MS = 3000
SETTLE_MS = 300  # After the first match, for other nodes of the cluster.
SETTLE_KEYS_MS = 1000  # With keys, unless all were found: a missed node's urls have no key.
NUMBER_KEYS = ("port", "timeout_ms")
TEXT_KEYS = ("interface", "broadcast")
SERVICES = (
    services.LOG,
    services.TABLES,
    services.BROKER,
    services.WORKERS,
    services.FARM,
    services.ZRE_LOG,
)


class DiscoveredNode(NamedTuple):
    """A node that offers kelek services."""

    cluster: str  # "" when the node names none.
    node: str
    uuid: bytes
    endpoint: str  # Of the node's mailbox.
    services: dict[str, tuple[str, ...]]  # By header: urls.
    public_key: str = ""  # That the node has proven; "": it has no CURVE.


class DiscoveryQuery(NamedTuple):
    """The cluster and network that a zre:// url names."""

    cluster: str
    tuning: "NodeTuning"
    timeout_ms: int


def parse_zre_url(url: str) -> DiscoveryQuery:
    """Parses zre://NAME with a cluster's ident and optionally ?interface=..&broadcast=..&port=..
    &timeout_ms=.. Raises ValueError."""
    from urllib.parse import parse_qsl

    from ...protocols.zre.values import BEACON_PORT
    from .base import NodeTuning

    match = re.fullmatch(ZRE_URL, url)
    if match is None:
        raise ValueError(f"{url!r} is no zre url; write zre://CLUSTER or zre://CLUSTER?port=5670")
    given = dict(parse_qsl(match[2] or "", keep_blank_values=True))
    for key, value in given.items():
        if key not in (*NUMBER_KEYS, *TEXT_KEYS):
            raise ValueError(f"{url!r}: no setting {key!r}; there are interface, broadcast, port")
        if key in NUMBER_KEYS and not (value.isascii() and value.isdigit() and len(value) <= 7):
            raise ValueError(f"{url!r}: {key} is a number, not {value!r}")
    tuning = NodeTuning(
        port=int(given.get("port", BEACON_PORT)),
        interface=given.get("interface", ""),
        broadcast_address=given.get("broadcast", ""),
    )
    return DiscoveryQuery(match[1], tuning, int(given.get("timeout_ms", DISCOVERY_MS)))


def discovered_node(peer: "PeerInfo") -> DiscoveredNode | None:
    """A peer's services; None: none of kelek's. Urls of other machines than the peer's own are left
    out, so that no node can redirect clients."""
    offered = {}
    for header in SERVICES:
        urls = peer.headers.get(header, "").split(services.URLS_SEPARATOR)
        fit = tuple(url for url in urls if _is_at(url, peer))
        if fit:
            offered[header] = fit
    cluster = peer.headers.get(services.CLUSTER, "")
    if not offered and not cluster:
        return None
    return DiscoveredNode(cluster, peer.name, peer.uuid, peer.endpoint, offered, peer.public_key)


def _is_at(url: str, peer: "PeerInfo") -> bool:
    if url.startswith("tls://"):  # Farms use it; host and port have the same form.
        url = f"tcp{url[3:]}"
    try:
        check_url(url)
    except ValueError:
        return False
    return url.rpartition(":")[0] == peer.endpoint.rpartition(":")[0]


def discover_nodes(
    tuning: "NodeTuning",
    timeout_ms: int,
    is_enough: Callable[[DiscoveredNode], bool] = lambda found: False,
    key: "KeyPath | None" = None,
    allow: "AllowedNodes | None" = None,
) -> list[DiscoveredNode]:
    """Nodes with services that are found within timeout_ms. After a node for which is_enough()
    holds, the search ends within SETTLE_MS.

    key, allow   see kelek.Node: with them it finds nodes with CURVE that have one of these keys

    Raises OSError: no such interface, or the port is taken; KeyUnusable.
    """

    def settle_ms(found: Collection[DiscoveredNode]) -> int | None:
        return SETTLE_MS if any(map(is_enough, found)) else None

    return _search(tuning, timeout_ms, settle_ms, key, allow)[0]


def _search(
    tuning: "NodeTuning",
    timeout_ms: int,
    settle_ms: Callable[[Collection[DiscoveredNode]], int | None],
    key: "KeyPath | None",
    allow: "AllowedNodes | None",
) -> tuple[list[DiscoveredNode], Mapping[str, int]]:
    """The nodes, and the counters of the search's own node.

    settle_ms   by the nodes found so far: how much longer to search; None: until timeout_ms
    """
    from ...protocols.zre.peers import EventKind
    from .node import Node

    until_ms = monotonic_ms() + timeout_ms
    found: dict[bytes, DiscoveredNode] = {}
    with Node("kelek", tuning=tuning, key=key, allow=allow) as node:
        while (left_ms := until_ms - monotonic_ms()) > 0:
            for event in node.receive(left_ms):
                if event.kind not in (EventKind.ENTER, EventKind.CHANGED) or event.peer is None:
                    continue
                one = discovered_node(event.peer)
                if one is not None:
                    found[one.uuid] = one
                    settle = settle_ms(found.values())
                    if settle is not None:
                        until_ms = min(until_ms, monotonic_ms() + settle)
        counters = node.counters
    return sorted(found.values(), key=lambda one: (one.cluster, one.node, one.uuid)), counters


def discovered_urls(
    urls: Iterable[str], service: str, keys: "KeyArguments | None"
) -> tuple[str, ...]:
    """resolve_urls() of urls with a zre:// among them."""
    if keys is None or keys.key is None:
        keys = None
    places: dict[str, None] = {}
    for url in urls:
        if url.startswith(SCHEME):
            places.update(dict.fromkeys(_discover_urls(url, service, keys)))
        else:
            places[url] = None
    return tuple(places)


def _discover_urls(url: str, service: str, keys: "KeyArguments | None") -> list[str]:
    wanted = parse_zre_url(url)
    allowed = keys.pinned if keys else frozenset[str]()

    def matching(found: Iterable[DiscoveredNode]) -> list[DiscoveredNode]:
        return [one for one in found if one.cluster == wanted.cluster and service in one.services]

    def settle_ms(found: Collection[DiscoveredNode]) -> int | None:
        has_all = {one.public_key for one in found} >= allowed
        return (SETTLE_MS if has_all else SETTLE_KEYS_MS) if matching(found) else None

    own = (keys.key, allowed) if keys else (None, None)
    nodes, counters = _search(wanted.tuning, wanted.timeout_ms, settle_ms, *own)
    if keys:
        of_service = {place: one for one in matching(nodes) for each in one.services.values()
                      for place in each}  # fmt: skip
        keys.add_found({place: one.public_key for place, one in of_service.items()})
    urls = [place for one in matching(nodes) for place in one.services[service]]
    if not urls:
        others = sorted({found.cluster for found in nodes if found.cluster})
        heard = f"found: {', '.join(others)}" if others else "no cluster was found"
        heard += "".join(f"; {text}" for text in _hints(keys is not None, counters))
        if "interface=" not in url:
            on_lo = f"{url}{'&' if '?' in url else '?'}interface=lo"
            heard += f"; nodes whose topology has zre: {{interface: lo}} are found by {on_lo}"
        raise NodeError(
            f"{url}: no node of the cluster offers {service} within {wanted.timeout_ms} ms; {heard}"
        )
    return urls


def _hints(has_keys: bool, counters: Mapping[str, int]) -> Iterator[str]:
    """Why nodes whose beacons were received were not found."""
    if has_keys:
        if counters.get("beacon_insecure"):
            yield "nodes without CURVE are there: a client with a key does not use them"
        if counters.get("beacon_key"):
            yield "nodes with other keys than server_keys are there"
        if counters.get("unready"):
            yield "nodes did not greet: they greet only keys with the grant zre"
    elif counters.get("beacon_secured"):
        yield "nodes with CURVE are there: give key and server_keys"
