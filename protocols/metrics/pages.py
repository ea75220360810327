"""The HTTP pages of a node: one GET or HEAD a connection, which then closes.

A head has at most HEAD_BYTES_MAX bytes and must arrive within HEAD_TIMEOUT_MS.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import h11

from ..garlicfarm.wire.handshake import HeadReader, Reply
from ..garlicfarm.wire.http_api import METHODS, respond

TEXT = b"text/plain; charset=utf-8"


class Page(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    content_type: bytes = TEXT


Pages = Mapping[str, Callable[[], Page]]  # By path.


class PageRequest(HeadReader):
    """One connection until its request is answered."""

    def __init__(self, pages: Pages, now_ms: int) -> None:
        super().__init__(h11.SERVER, now_ms)
        self._pages = pages

    def feed(self, data: bytes, now_ms: int) -> Reply | None:
        """Adds bytes; returns the reply once the head is complete or malformed."""
        try:
            request, _ = self._read_head(data)
        except h11.RemoteProtocolError as error:
            return _refuse(error.error_status_hint)
        return self._answer(request) if isinstance(request, h11.Request) else None

    def on_timeout(self) -> Reply:
        """The head did not arrive in time."""
        return _refuse(408)

    def _answer(self, request: h11.Request) -> Reply:
        path = request.target.decode("ascii").partition("?")[0]
        is_head = request.method == b"HEAD"
        if path not in self._pages:
            paths = "\n".join(self._pages).encode() + b"\n"
            return Reply(respond(404, paths, is_head=is_head, content_type=TEXT), 404)
        if request.method.decode("ascii") not in METHODS:
            return Reply(respond(405, more=[(b"Allow", ", ".join(METHODS).encode())]), 405)
        page = self._pages[path]()
        data = respond(page.status, page.body, is_head=is_head, content_type=page.content_type)
        return Reply(data, page.status)


def _refuse(status: int) -> Reply:
    return Reply(respond(status), status)
