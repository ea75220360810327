"""Checks the urls of nodes."""

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...protocols.limits import IPC_PATH_BYTES_MAX, PORT_MAX

if TYPE_CHECKING:
    from .keys import KeyArguments

SCHEME = "zre://"  # Of a cluster to be discovered by name (clients/node/discovery.py).
URL = re.compile(r"tcp://(?:\[[^\s/\[\]]+\]|[^\s/:*\[\]]+):([0-9]{1,5})|ipc://(/[^\0]+)")


def resolve_urls(
    urls: str | Iterable[str], service: str, keys: "KeyArguments | None" = None
) -> tuple[str, ...]:
    """The urls, each zre://NAME replaced by the urls that the cluster's nodes offer for the service
    (protocols/zre/services.py). A search takes 3 s at most, 0.3 s after the first match.

    keys   with a key of the client the search finds only nodes that have proven one of the pinned
           server keys, and adds their urls to keys. No key is learnt from the network: what a node
           says selects one of those that the caller has given.

    Raises NodeError: no node offers the service; ValueError, OSError, KeyUnusable.
    """
    known = tuple(urls.split(",")) if isinstance(urls, str) else tuple(urls)
    if not any(isinstance(url, str) and url.startswith(SCHEME) for url in known):
        return known
    from ..node.discovery import discovered_urls  # Few urls need a node.

    return discovered_urls(known, service, keys)


def cluster_of(urls: str | Iterable[str]) -> str:
    """The ident of the first zre:// url; "": there is none."""
    for url in urls.split(",") if isinstance(urls, str) else urls:
        if isinstance(url, str) and url.startswith(SCHEME):
            from ..node.discovery import parse_zre_url

            return parse_zre_url(url).cluster
    return ""


def check_url(url: str) -> None:
    """Raises ValueError or TypeError for a bad url; libzmq would fail only when it connects."""
    if not isinstance(url, str):
        raise TypeError(f"a url is str, not {type(url).__name__}")
    match = URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{url!r} is not a url; write tcp://HOST:PORT or ipc:///PATH")
    port, path = match.groups()
    if port is not None and not 1 <= int(port) <= PORT_MAX:
        raise ValueError(f"{url!r}: port {port} is out of range; it is 1 to {PORT_MAX}")
    if path is not None and len(os.fsencode(path)) > IPC_PATH_BYTES_MAX:
        raise ValueError(
            f"{url!r}: the path has over {IPC_PATH_BYTES_MAX} bytes; use a shorter one"
        )
