"""The process that serves a node's metrics and health by HTTP.

It asks the supervisor for its report each second. A request costs other processes nothing: the
process answers it from the last report.
"""

import contextlib
import os

import msgpack
import zmq

from ...native.net.messages import Arena
from ...net.sockets import SocketOptions
from ...net.streams import StreamPoll
from ...protocols.garlicfarm.wire.values import parse_address
from ...protocols.metrics.pages import Page, PageRequest
from ..errors import OperatorError
from ..farm.listener import AdmittedConnection, ConnectionLimits, FarmListener, InboundStream
from ..runtime.actor import Actor
from .health import Health, NodeHealth

ASK_MS = 1000  # Between two questions to the supervisor.
ROWS_BYTES_MAX = 16 << 20  # Of a report.
CONNECTIONS_MAX = 32  # At a time: a scraper has one.
LIMITS = ConnectionLimits(CONNECTIONS_MAX, 1 << 20, CONNECTIONS_MAX)


class MetricsServer(Actor):
    """Serves `/metrics`, `/livez` and `/readyz` (docs/operations/monitoring.md).

    reports   DEALER   [ask-status] -> [list of rows]   of the supervisor, as `supervisor status`
    listener  TCP      HTTP/1.0 and 1.1, one request a connection
    """

    role = "metrics"

    def on_start(self) -> None:
        place = self.setup.places.get("metrics", "metrics")
        from .exposition import CONTENT_TYPE, Exposition

        self._content_type = CONTENT_TYPE
        self._exposition = Exposition(self.setup.node)
        self._health = NodeHealth(self.now_ms)
        self._ask_ms = 0
        self._reports = self.socket(zmq.DEALER, SocketOptions(connect=(self.setup.control,), hwm=4))
        self.listen(self._reports, self._on_report)
        self._streams = StreamPoll(self)
        self._listener = FarmListener(self, self._streams, None, LIMITS)
        self._pages = {
            "/metrics": self._metrics_page,
            "/livez": self._live_page,
            "/readyz": self._ready_page,
        }
        address = self.settings.node.metrics
        try:
            self._listener.listen(parse_address(address))
        except OSError as error:
            raise OperatorError(
                place, f"{address} cannot be bound: {error.strerror}",
                "end the program that holds it, or choose another address",
            ) from error  # fmt: skip
        self.log("listens", address=address)
        self.ready()

    # ---- reports ----

    def _on_report(self, arena: Arena) -> None:
        *_, (packed,) = arena.messages()
        report = msgpack.unpackb(packed, strict_map_key=False)
        rows = [row for row in report if row["node"] == self.setup.node]
        self._health.on_report(rows, self.now_ms)
        self._exposition.update(rows)

    # ---- pages ----

    def _metrics_page(self) -> Page:
        return Page(200, self._exposition.text(), self._content_type)

    def _live_page(self) -> Page:
        return _health_page(self._health.alive(self.now_ms))

    def _ready_page(self) -> Page:
        return _health_page(self._health.ready(self.now_ms))

    # ---- connections (FarmListener's host) ----

    def make_handshake(self, connection: InboundStream) -> PageRequest:
        return PageRequest(self._pages, self.now_ms)

    def admit(self, cluster: str, user: str, connection: InboundStream) -> AdmittedConnection:
        raise AssertionError("no page switches protocols")

    # ---- the loop ----

    def on_wake(self, now_ms: int) -> None:
        self._streams.read_on()
        self._listener.check(now_ms)
        if now_ms >= self._ask_ms:
            self._ask_ms = now_ms + ASK_MS
            self.send(self._reports, [b"ask-status"])

    def deadline_ms(self) -> int | None:
        return self.now_ms if self._streams.has_more else self._ask_ms

    def on_stop_requested(self) -> None:
        self._listener.stop_accepting()

    def on_stop(self) -> None:
        self._listener.close_all()
        self._streams.close()

    def status(self) -> dict[str, object]:
        status: dict[str, object] = {"connections": len(self._listener.connections)}
        with contextlib.suppress(OSError):
            found = os.statvfs(self.setup.data_dir)
            status["disk_bytes"] = found.f_frsize * found.f_blocks
            status["disk_free_bytes"] = found.f_frsize * found.f_bavail
        return status


def _health_page(health: Health) -> Page:
    return Page(503 if health.problems else 200, health.text.encode())
