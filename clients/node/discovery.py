"""Finds kelek's own services by ZRE: what `zre://NAME` stands for, and what `kelek discover` lists.

For as long as it looks it is a node like others: it beacons, and greets whom it hears.
"""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

from ...protocols.zre import services, values
from ..errors import NodeError
from ..io.links import monotonic_ms
from ..io.urls import SCHEME, check_url

if TYPE_CHECKING:
    # Every client imports this module, and few look for a zre://: a node is loaded for them alone.
    from ...protocols.zre.peers import PeerInfo
    from .base import NodeTuning

PLACE = re.compile(r"zre://([^/?#,\s]+)(?:\?([^#\s]*))?")
LOOK_MS = 3000
SETTLE_MS = 300  # For the others of a cluster, when the first one was heard.
NUMBERS = ("port", "timeout_ms")
WORDS = ("interface", "broadcast")
SERVICES = (
    services.LOG,
    services.TABLES,
    services.BROKER,
    services.WORKERS,
    services.FARM,
    values.LOG_SERVICE,
)


class Found(NamedTuple):
    """A node that offers something of kelek's."""

    cluster: str  # "" for those that say none.
    node: str
    uuid: bytes
    endpoint: str  # Of its mailbox.
    services: dict[str, tuple[str, ...]]  # Header, urls.


class DiscoveryQuery(NamedTuple):
    """What a zre:// names, and where it is looked for."""

    cluster: str
    tuning: "NodeTuning"
    timeout_ms: int


def parse_place(url: str) -> DiscoveryQuery:
    """From zre://NAME, where NAME is a cluster's ident, and maybe ?interface=..&broadcast=..&
    port=..&timeout_ms=.. Raises ValueError."""
    from .base import NodeTuning

    match = PLACE.fullmatch(url)
    if match is None:
        raise ValueError(f"{url!r} is not a place; write zre://CLUSTER or zre://CLUSTER?port=5670")
    given = dict(parse_qsl(match[2] or "", keep_blank_values=True))
    for key, value in given.items():
        if key not in (*NUMBERS, *WORDS):
            raise ValueError(f"{url!r}: no setting {key!r}; there are interface, broadcast, port")
        if key in NUMBERS and not (value.isascii() and value.isdigit() and len(value) <= 7):
            raise ValueError(f"{url!r}: {key} is a number, not {value!r}")
    words = {key: given[key] for key in WORDS if key in given}
    tuning = NodeTuning(port=int(given.get("port", values.BEACON_PORT)), **words)
    return DiscoveryQuery(match[1], tuning, int(given.get("timeout_ms", LOOK_MS)))


def found_in(peer: "PeerInfo") -> Found | None:
    """What a peer offers; None: nothing of ours. What it says of other machines than its own is
    left out: nobody makes us connect there."""
    offered = {}
    for header in SERVICES:
        urls = peer.headers.get(header, "").split(services.URLS_SEPARATOR)
        fit = tuple(url for url in urls if _is_at(url, peer))
        if fit:
            offered[header] = fit
    cluster = peer.headers.get(services.CLUSTER, "")
    if not offered and not cluster:
        return None
    return Found(cluster, peer.name, peer.uuid, peer.endpoint, offered)


def _is_at(url: str, peer: "PeerInfo") -> bool:
    if url.startswith("tls://"):  # A farm's; hosts and ports are alike.
        url = f"tcp{url[3:]}"
    try:
        check_url(url)
    except ValueError:
        return False
    return url.rpartition(":")[0] == peer.endpoint.rpartition(":")[0]


def look(
    tuning: "NodeTuning", timeout_ms: int, is_enough: Callable[[Found], bool] = lambda found: False
) -> list[Found]:
    """Those that offer something, as they are heard within that time; when one is enough, a moment
    longer for others. Raises OSError: there is no such interface, or the port can't be had."""
    from ...protocols.zre.peers import EventKind
    from .node import Node

    until_ms = monotonic_ms() + timeout_ms
    found: dict[bytes, Found] = {}
    with Node("kelek", tuning=tuning) as node:
        while (left_ms := until_ms - monotonic_ms()) > 0:
            for event in node.receive(left_ms):
                if event.kind not in (EventKind.ENTER, EventKind.CHANGED) or event.peer is None:
                    continue
                one = found_in(event.peer)
                if one is not None:
                    found[one.uuid] = one
                    if is_enough(one):
                        until_ms = min(until_ms, monotonic_ms() + SETTLE_MS)
    return sorted(found.values(), key=lambda one: (one.cluster, one.node, one.uuid))


def resolved(urls: str | Iterable[str], service: str) -> tuple[str, ...]:
    """The urls, and for each zre://NAME among them those of that cluster's nodes that offer the
    service (protocols/zre/services.py). It looks for 3 s at most, 0.3 s when one was heard.

    Raises NodeError: nobody was heard that offers it; ValueError, OSError.
    """
    known = tuple(urls.split(",")) if isinstance(urls, str) else tuple(urls)
    if not any(isinstance(url, str) and url.startswith(SCHEME) for url in known):
        return known
    places: dict[str, None] = {}
    for url in known:
        if url.startswith(SCHEME):
            places.update(dict.fromkeys(_looked_up(url, service)))
        else:
            places[url] = None
    return tuple(places)


def cluster_of(urls: str | Iterable[str]) -> str:
    """The ident that a zre:// among them names; "": there is none."""
    for url in urls.split(",") if isinstance(urls, str) else urls:
        if isinstance(url, str) and url.startswith(SCHEME):
            return parse_place(url).cluster
    return ""


def _looked_up(url: str, service: str) -> list[str]:
    wanted = parse_place(url)

    def is_wanted(found: Found) -> bool:
        return found.cluster == wanted.cluster and service in found.services

    nodes = look(wanted.tuning, wanted.timeout_ms, is_wanted)
    urls = [place for found in nodes if is_wanted(found) for place in found.services[service]]
    if not urls:
        others = sorted({found.cluster for found in nodes if found.cluster})
        heard = f"heard of: {', '.join(others)}" if others else "no cluster was heard of"
        if "interface=" not in url:
            on_lo = f"{url}{'&' if '?' in url else '?'}interface=lo"
            heard += f"; nodes whose topology has zre: {{interface: lo}} are found by {on_lo}"
        raise NodeError(
            f"{url}: nobody of it offers {service} within {wanted.timeout_ms} ms; {heard}"
        )
    return urls
