"""The process that serves the page of a cluster (docs/operations/page.md).

An actor whose poll loop runs inside an asyncio loop, beside the HTTP server and the clients that
ask for tables and services.
"""

import asyncio
import contextlib
import socket
from typing import Any

import msgpack
import zmq

from ...actors.errors import OperatorError
from ...actors.runtime.actor import Actor
from ...actors.runtime.cluster_status import Row
from ...native.net.messages import Arena
from ...net.sockets import SocketOptions
from ...protocols.garlicfarm.wire.values import parse_address

WAKE_S = 0.2  # The longest time between two wakes: an actor reports to the supervisor each 250 ms.
BACKLOG = 64


class WebServer(Actor):
    """Serves the page, and collects what it shows while a page is open.

    reports   DEALER   [ask-status] -> [list of rows]   of the supervisor, as `supervisor status`
    listener  TCP      HTTP/1.1
    """

    role = "web"

    def on_start(self) -> None:
        place = self.setup.places.get("web.address", "web.address")
        settings = self.settings.web
        assert settings is not None
        self._answer: asyncio.Future[list[Row]] | None = None
        self._pages = 0
        self._reports = self.socket(zmq.DEALER, SocketOptions(connect=(self.setup.control,), hwm=4))
        self.listen(self._reports, self._on_report)
        self._woken = asyncio.Event()
        try:
            self._listener = _listen(settings.address)
        except OSError as error:
            raise OperatorError(
                place, f"{settings.address} cannot be bound: {error.strerror}",
                "end the program that holds it, or choose another address",
            ) from error  # fmt: skip
        self.log("listens", address=settings.address)

    def _on_report(self, arena: Arena) -> None:
        *_, (packed,) = arena.messages()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(msgpack.unpackb(packed, strict_map_key=False))

    async def report(self) -> list[Row]:
        """The rows of all processes of this supervisor. Raises TimeoutError."""
        self._answer = asyncio.get_running_loop().create_future()
        self.send(self._reports, [b"ask-status"])
        async with asyncio.timeout(2.0):
            return await self._answer

    # ---- the loop ----

    def run_loop(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        # Imported here: the fork server, which imports this module for all actors, needs neither.
        from .app import PageServer, make_app
        from .collector import Collector
        from .sources import Sources

        self._sources = Sources(self.setup, self.report)
        collector = Collector(self._sources)
        server = PageServer(make_app(collector, self.setup))
        tasks = [
            asyncio.create_task(collector.run()),
            asyncio.create_task(server.serve([self._listener])),
        ]
        self._watch_files(asyncio.get_running_loop())
        self.ready()
        try:
            while self.running:
                self._woken.clear()
                self.run_once(0)
                self._pages = collector.pages
                ended = next((task for task in tasks if task.done()), None)
                if ended is not None:
                    ended.result()  # Raises what ended it.
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WAKE_S):
                        await self._woken.wait()
        finally:
            collector.stop()
            server.should_exit = server.force_exit = True
            await asyncio.gather(*tasks, return_exceptions=True)
            await collector.close()

    def on_settings_changed(self) -> None:
        self._sources.adopt(self.setup)

    def _watch_files(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wakes the loop for what the supervisor sends; what can't be watched waits WAKE_S."""
        signals: list[Any] = [] if self._threaded else [self._signal_in]
        for file in (self._stop_fd, self._control, self._reports, *signals):
            with contextlib.suppress(OSError):
                loop.add_reader(file, self._woken.set)

    def on_stop(self) -> None:
        self._listener.close()

    def status(self) -> dict[str, object]:
        return {"pages": self._pages}


def _listen(address: str) -> socket.socket:
    found = parse_address(address)
    family, *_, where = socket.getaddrinfo(found.host, found.port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made
