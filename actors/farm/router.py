"""A router of I2P by two files: one that it keeps about itself, one that says what to publish.

It never raises: what is wrong with a file stands in the status of the farm's server, and nothing
ends for it.
"""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ...protocols.errors import RemoteProtocolError
from ...protocols.garlicfarm.app.documents import DOCUMENT_BYTES_MAX, load_object, object_of
from ...protocols.garlicfarm.app.router import ROUTER_KEYS, Publication, RouterStatus

FARMS = "farms"  # In the router's file: what it says to one farm alone.
PUBLISHED_BYTES_MAX = 64 << 20


class RouterFiles:
    """The files of one router, which may serve several farms."""

    def __init__(self, router_file: str, publish_file: str) -> None:
        """Paths; empty: there is none.

        router_file    JSON, written by the router, best under another name and then renamed: an
                       object with meta, router and destinations as in a status document, and for a
                       farm that is to see something else `farms: {NAME: {...}}`. Read each time
                       a document is posted; when the router ends, it is to be removed.
        publish_file   JSON, written by us: an object with an entry for each farm whose MetaLS this
                       router is to publish: {NAME: {"order", "contents": [{"server", "hash",
                       "destination"}]}}; "order" is another number when it has to be done again
        """
        self._router_file = router_file
        self._publish_file = publish_file
        self._published: dict[str, object] = {}
        self._problem = ""  # With what we have written.
        if publish_file:
            # Of a farm that has told us nothing yet, what it said before we were started stays.
            self._published, _ = _read(publish_file, PUBLISHED_BYTES_MAX)

    def of(self, cluster: str) -> "FarmRouter":
        """The router as one farm sees it."""
        return FarmRouter(self, cluster)

    def status(self, cluster: str) -> RouterStatus:
        """What the router says to a farm."""
        if not self._router_file:
            return RouterStatus({}, self._problem)
        document, problem = _read(self._router_file, DOCUMENT_BYTES_MAX)
        said: Mapping[str, object] = {}
        try:
            own = object_of(object_of(document, FARMS), cluster)
            said = {
                key: {**document, **own}[key] for key in ROUTER_KEYS if key in {**document, **own}
            }
        except RemoteProtocolError as error:
            problem = f"{self._router_file}: {error}"
        return RouterStatus(said, problem or self._problem)

    def tell(self, cluster: str, publication: Publication | None) -> None:
        """What the router is to publish of a farm; None: nothing."""
        if publication is None:
            self._published.pop(cluster, None)
        else:
            contents = [
                {"server": leaf.server_id, "hash": leaf.hash, "destination": leaf.document}
                for leaf in publication.contents
            ]
            self._published[cluster] = {"order": publication.log_index, "contents": contents}
        if self._publish_file:
            self._problem = self._write()

    def _write(self) -> str:
        """Puts a new file in the place of the one before; what is wrong."""
        unfinished = f"{self._publish_file}.unfinished"
        try:
            Path(unfinished).write_text(json.dumps(self._published) + "\n", encoding="ascii")
            os.replace(unfinished, self._publish_file)
        except OSError as error:
            return f"{self._publish_file}: {error.strerror}"
        return ""


class FarmRouter:
    """A protocols.garlicfarm.router.Router."""

    def __init__(self, files: RouterFiles, cluster: str) -> None:
        self._files = files
        self._cluster = cluster

    def status(self) -> RouterStatus:
        return self._files.status(self._cluster)

    def publish(self, publication: Publication) -> None:
        self._files.tell(self._cluster, publication)

    def stop(self) -> None:
        self._files.tell(self._cluster, None)


def _read(path: str, bytes_max: int) -> tuple[dict[str, object], str]:
    """A file that holds an object of JSON; or an empty one, and what is wrong with it."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}, f"{path}: not a plain file"
            return load_object(file.read(bytes_max + 1), bytes_max), ""
    except OSError as error:
        return {}, f"{path}: {error.strerror}"
    except RemoteProtocolError as error:
        return {}, f"{path}: {error}"


def _open_at_once(path: str, flags: int) -> int:
    """Without waiting for whoever writes to a pipe: a farm's server does nothing else meanwhile."""
    return os.open(path, flags | os.O_NONBLOCK)
