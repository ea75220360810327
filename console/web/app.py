"""The HTTP side of the page: its files, one stream of events for each open page, and the browser of
tables. Nothing here changes the cluster: there are only GET and HEAD.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from importlib import resources
from ipaddress import ip_address
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...actors.runtime.setup import ActorSetup
from ...protocols.garlicfarm.wire.values import parse_address
from ...version import __version__
from .browse import BrowseError, BrowseRequest
from .collector import HEARTBEAT, PAGES_MAX, Collector
from .documents import VIEWS

CONNECTIONS_MAX = 128  # At a time. A page has one for its stream, and a browser opens a few more.
HEAD_S_MAX = 10.0  # From the connection to the end of the first head.
HEAD_BYTES_MAX = 16 << 10
KEEP_ALIVE_S = 5
HEARTBEAT_S = 3.0  # The longest time without a byte on a stream.
FILES = {  # In static/: what a browser may have, and its type.
    "page.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "views.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "uplot/uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uplot/uPlot.min.css": "text/css; charset=utf-8",
    "uplot/LICENSE": "text/plain; charset=utf-8",
}
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
               Awaitable[None]]  # fmt: skip


class _FirstHead(H11Protocol):
    """Ends a connection whose first head does not come in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(HEAD_S_MAX, self._check_head)

    def _check_head(self) -> None:
        if getattr(self, "cycle", None) is None and not self.transport.is_closing():
            self.transport.close()


class PageServer(uvicorn.Server):
    """uvicorn without its signals, log and proxies."""

    def __init__(self, app: App) -> None:
        super().__init__(
            uvicorn.Config(
                app, http=_FirstHead, ws="none", loop="asyncio", lifespan="off", log_config=None,
                access_log=False, proxy_headers=False, server_header=False, date_header=False,
                limit_concurrency=CONNECTIONS_MAX, timeout_keep_alive=KEEP_ALIVE_S,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            )
        )  # fmt: skip

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The actor has the signals."""
        yield


class HostGuard:
    """Refuses requests to a host name that is not this server's.

    A page of another site can have its own name resolve to this address (DNS rebinding), and would
    then read everything here. Such a request has that name in its Host header; an IP address,
    `localhost` and the name in the topology can't be made to mean another server.
    """

    def __init__(self, app: App, own: str) -> None:
        self._app = app
        self._names = {"localhost", own.lower()}

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        answer: App = self._app
        if len(hosts) != 1 or not self._is_own(hosts[0].decode("latin-1")):
            answer = PlainTextResponse("this server has another name\n", 421)
        elif scope["method"] not in ("GET", "HEAD"):
            answer = PlainTextResponse("only GET\n", 405, {"allow": "GET, HEAD"})

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                more = {"cache-control": "no-store", **SECURITY_HEADERS}
                message["headers"] += [
                    (name.encode(), value.encode()) for name, value in more.items()
                    if name.encode() not in known
                ]  # fmt: skip
            await send(message)

        await answer(scope, receive, send_guarded)

    def _is_own(self, host: str) -> bool:
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:\d{1,5})?", host)
        if match is None:
            return False
        name = match[1].strip("[]").lower()
        try:
            ip_address(name)
        except ValueError:
            return name in self._names
        return True


class File(NamedTuple):
    body: bytes
    kind: str


def load_files() -> dict[str, File]:
    """The files by name. Raises FileNotFoundError if one is not installed."""
    folder = resources.files(__package__) / "static"
    return {name: File(folder.joinpath(name).read_bytes(), kind) for name, kind in FILES.items()}


def make_app(collector: Collector, setup: ActorSetup) -> App:
    files = load_files()
    # A new version has new addresses: a browser keeps what it has without a question.
    html = files["page.html"].body.decode().replace("{version}", __version__)

    async def page(_: Request) -> Response:
        return Response(html, media_type=FILES["page.html"])

    async def static(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None or request.path_params["version"] != __version__:
            return PlainTextResponse("no such file\n", 404)
        caching = {"cache-control": "max-age=31536000, immutable"}
        return Response(file.body, media_type=file.kind, headers=caching)

    async def events(request: Request) -> Response:
        view = request.query_params.get("view", "")
        if view not in VIEWS:
            return PlainTextResponse(f"view: one of {', '.join(VIEWS)}\n", 400)
        if collector.pages >= PAGES_MAX:
            return PlainTextResponse(f"{PAGES_MAX} pages are open\n", 503)
        return StreamingResponse(_stream(collector, view), media_type="text/event-stream")

    async def rows(request: Request) -> Response:
        try:
            asked = BrowseRequest.of(request.query_params)
            return JSONResponse(await collector.sources.browse(asked))
        except BrowseError as error:
            return JSONResponse({"problem": str(error)}, error.status)

    routes = [
        Route("/", page),
        Route("/static/{version}/{name:path}", static),
        Route("/events", events),
        Route("/rows", rows),
    ]
    settings = setup.settings.web
    assert settings is not None
    return HostGuard(Starlette(routes=routes), parse_address(settings.address).host)


async def _stream(collector: Collector, view: str) -> AsyncIterator[bytes]:
    """The events of one page, until its browser closes the connection."""
    with collector.open_page(view) as page:
        while not collector.stopped:
            try:
                yield await asyncio.wait_for(page.next(), HEARTBEAT_S)
            except TimeoutError:
                yield HEARTBEAT  # It finds out whether the browser is gone.
