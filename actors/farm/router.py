"""The interface to an I2P router: one file that the router writes, one that tells it what to
publish.

It never raises. A problem with a file appears in the farm server's status.
"""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ...protocols.errors import RemoteProtocolError
from ...protocols.garlicfarm.app.documents import DOCUMENT_BYTES_MAX, load_object, object_of
from ...protocols.garlicfarm.app.router import ROUTER_KEYS, Publication, RouterStatus

FARMS_KEY = "farms"  # In the router's file: values for single farms.
PUBLISHED_BYTES_MAX = 64 << 20


class RouterFiles:
    """The files of one router, which may serve several farms: a Router (app/router.py)."""

    def __init__(self, router_file: str, publish_file: str) -> None:
        """Paths; empty: no file.

        router_file    JSON written by the router, preferably under another name and then renamed:
                       an object with meta, router and destinations as in a status document;
                       `farms: {NAME: {...}}` overrides them for single farms. It is read for each
                       posted document. Remove it when the router ends.
        publish_file   JSON written by this process: an entry for each farm whose MetaLS the router
                       must publish: {NAME: {"order", "contents": [{"server", "hash",
                       "destination"}]}}. A new "order" means: publish once more.
        """
        self._router_file = router_file
        self._publish_file = publish_file
        self._published: dict[str, object] = {}
        self._problem = ""  # The problem of the last write.
        if publish_file:
            # Keep a farm's entry from before the start until the farm changes it.
            self._published, _ = _read(publish_file, PUBLISHED_BYTES_MAX)

    def status(self, cluster: str) -> RouterStatus:
        if not self._router_file:
            return RouterStatus({}, self._problem)
        document, problem = _read(self._router_file, DOCUMENT_BYTES_MAX)
        router_document: Mapping[str, object] = {}
        try:
            document |= object_of(object_of(document, FARMS_KEY), cluster)
            router_document = {key: document[key] for key in ROUTER_KEYS if key in document}
        except RemoteProtocolError as error:
            problem = f"{self._router_file}: {error}"
        return RouterStatus(router_document, problem or self._problem)

    def publish(self, cluster: str, publication: Publication | None) -> None:
        """Sets what the router publishes for a farm; None: nothing."""
        self._published.pop(cluster, None)
        if publication is not None:
            contents = [
                {"server": leaf.server_id, "hash": leaf.hash, "destination": leaf.document}
                for leaf in publication.contents
            ]
            self._published[cluster] = {"order": publication.log_index, "contents": contents}
        if not self._publish_file:
            return
        unfinished = f"{self._publish_file}.unfinished"
        try:
            Path(unfinished).write_text(json.dumps(self._published) + "\n", encoding="ascii")
            os.replace(unfinished, self._publish_file)
            self._problem = ""
        except OSError as error:
            self._problem = f"{self._publish_file}: {error.strerror}"


def _read(path: str, bytes_max: int) -> tuple[dict[str, object], str]:
    """The JSON object in a file; or an empty one and the problem."""
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}, f"{path}: not a plain file"
            return load_object(file.read(bytes_max + 1), bytes_max), ""
    except OSError as error:
        return {}, f"{path}: {error.strerror}"
    except RemoteProtocolError as error:
        return {}, f"{path}: {error}"


def _open_nonblocking(path: str, flags: int) -> int:
    """Opens a file without waiting for the writer of a pipe, which would block the server."""
    return os.open(path, flags | os.O_NONBLOCK)
