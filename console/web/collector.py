"""Collects what the pages show: once a second for any number of pages, and never without one."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from .documents import Picture, document
from .history import ChartHistory
from .sources import Sources

PAGES_MAX = 64
PERIOD_S = 1.0
FRESH_S = 2.5  # A new page gets the last picture at once if it is not older.
HEARTBEAT = b": no news\n\n"


class OpenPage:
    """The stream of one page. A slow browser gets the newest message, and misses those between."""

    def __init__(self, view: str) -> None:
        self.view = view
        self.has_history = False
        self._message = b""
        self._is_there = asyncio.Event()

    def put(self, message: bytes) -> None:
        self._message = message
        self._is_there.set()

    async def next(self) -> bytes:
        await self._is_there.wait()
        self._is_there.clear()
        return self._message


class Collector:
    """Collects while a page is open, and sends each page the document of its view."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._stopped = asyncio.Event()
        self._history = ChartHistory()
        self._picture: Picture | None = None
        self._open: set[OpenPage] = set()
        self._changed = asyncio.Event()  # A page was opened, or the end has come.

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def pages(self) -> int:
        return len(self._open)

    @contextlib.contextmanager
    def open_page(self, view: str) -> Iterator[OpenPage]:
        page = OpenPage(view)
        self._open.add(page)
        self._changed.set()
        if self._picture is not None and time.time() - self._picture.at < FRESH_S:
            self._send(page, self._document(view))
        try:
            yield page
        finally:
            self._open.discard(page)

    async def run(self) -> None:
        while not self.stopped:
            if not self._open:
                await self.sources.close()
                self._changed.clear()
                await self._changed.wait()
                continue
            began = time.monotonic()
            await self._collect()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S - (time.monotonic() - began)):
                    await self._stopped.wait()

    async def _collect(self) -> None:
        views = {page.view for page in self._open}
        self._picture = await self.sources.picture(views)
        if self._picture.rows:
            self._history.add(self._picture.rows, self._picture.at)
        documents = {view: self._document(view) for view in views}
        for page in [*self._open]:
            if page.view in documents:
                self._send(page, documents[page.view])

    def _document(self, view: str) -> bytes:
        assert self._picture is not None
        found = document(view, self._picture)
        return _event("view", {**found, "sample": self._history.newest()})

    def _send(self, page: OpenPage, message: bytes) -> None:
        if not page.has_history:
            page.has_history = True
            message = _event("history", self._history.columns()) + message
        page.put(message)

    def stop(self) -> None:
        self._stopped.set()
        self._changed.set()
        for page in self._open:
            page.put(b"")

    async def close(self) -> None:
        await self.sources.close()


def _event(name: str, value: Any) -> bytes:
    """One event of the stream. JSON has no line ends, which would end it."""
    return f"event: {name}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n".encode()
