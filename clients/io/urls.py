"""Checks the urls of nodes."""

import os
import re

from ...protocols.limits import IPC_PATH_BYTES_MAX, PORT_MAX

SCHEME = "zre://"  # Of a cluster to be discovered by name (clients/node/discovery.py).
URL = re.compile(r"tcp://(?:\[[^\s/\[\]]+\]|[^\s/:*\[\]]+):([0-9]{1,5})|ipc://(/[^\0]+)")


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
