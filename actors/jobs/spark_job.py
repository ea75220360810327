"""Runs maps of large tables on Spark: keeps a Spark driver running and passes orders to it.

It never imports Spark. The driver is a child process (pipeline/maps/driver.py), because Spark's
calls may block for minutes. This actor ends when the driver or its JVM ends, and the supervisor
restarts it.
"""

import contextlib
import importlib.util
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from ...native.net.messages import Arena
from ...net.child_pipes import ChildPipes
from ...net.clock import monotonic_ms
from ...protocols.errors import RemoteProtocolError
from ...protocols.zerodb.server import map_orders
from ...protocols.zerodb.server.map_orders import DriverReady, Setup, Trouble
from ..errors import OperatorError, UnitBroken
from ..runtime.actor import Actor

DRIVER = f"{__package__.split('.')[0]}.pipeline.maps.driver"
FOLDER = "spark"  # In the node's data directory.
CHECK_MS = 60_000  # Until the driver reports that it found Spark and a Java.
START_MS = 600_000  # Until the driver's JVM runs.
SILENT_MS = 120_000  # A running driver reports each second.
READY_MS = 1000
END_S = 2.0
SIZE_BYTES = 4  # Length prefix of each message, little endian.


class SparkJob(Actor):
    """Connects the node with its Spark driver.

        orders    PULL   map_orders: MAP, DROP                                     from job_server
        reports   PUSH   map_orders: READY, PROGRESS, MAPPED, FAILED               to it

    The driver receives SETUP and the orders on standard input, and sends all other messages of
    map_orders on standard output. Each message has its size as u32 before it.
    """

    role = "spark_job"

    def on_start(self) -> None:
        if importlib.util.find_spec("pyspark") is None:
            self._refuse("Spark is not installed here", "pip install 'kelek[spark]'")
        self._jobs: set[int] = set()  # Jobs of the driver.
        self._received = bytearray()
        self._driver_ready = False
        self._ready_ms = self.received_ms = monotonic_ms()
        self.pull("orders", self._on_orders, message_bytes_max=map_orders.MESSAGE_BYTES_MAX)
        reports = self.push("job_server", "spark", linger_ms=1000)
        self._reports = self.pipe(reports)
        self._start_driver()
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_driver)
            self._await_check()
            stack.pop_all()
        self.watch_connections(reports, self.on_connection_lost)
        self.watch(self._pipes.stdout, self._on_readable)
        self.ready()

    def _refuse(self, problem: str, way_out: str) -> None:
        place = self.setup.places.get("zerodb.spark", "zerodb.spark")
        raise OperatorError(place, problem, f"{way_out}, or remove this key")

    # ---- the driver ----

    def _start_driver(self) -> None:
        spark = self.settings.zerodb.spark
        assert spark is not None
        folder = Path(self.setup.data_dir) / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_fd,
            env={**os.environ, "PYTHONPATH": path},  # The tasks need it, too.
            cwd=folder,
            bufsize=0,
            process_group=0,  # Only the supervisor handles Ctrl-C.
        )
        self._pipes = ChildPipes(self, self._process)
        name = f"kelek {self.setup.cluster} {self.setup.node}"
        url = self.settings.table_endpoints.url
        security = self.settings.security
        server_key = security.server_keys[url] if security else ""
        key_file = security.key_file if security and server_key else ""
        setup = Setup(
            name, url, str(folder), spark.master, spark.memory_bytes, key_file, server_key
        )
        self._send_to_driver(map_orders.encode(map_orders.SETUP, 0, setup))

    def _await_check(self) -> None:
        """Waits for the driver's check. Raises OperatorError if Spark cannot start here."""
        until_ms = monotonic_ms() + CHECK_MS
        checked = False
        while not checked:
            left_ms = until_ms - monotonic_ms()
            if left_ms <= 0:
                self._refuse("Spark's driver does not start", "see the log")
            select.select([self._pipes.stdout], [], [], left_ms / 1000)
            data = self._pipes.read()
            if data is None:
                continue
            for message in self._messages(data):
                if message.kind == map_orders.BROKEN:
                    reason = map_orders.body_of(message, Trouble).reason
                    self._refuse(f"Spark can't be started here: {reason}", "mend that")
                if message.kind == map_orders.CHECKED:
                    checked = True
                else:  # Both messages may arrive together.
                    self._on_message(message)
            if not data:
                self._refuse("Spark's driver ends as it starts", "see the log")

    def _send_to_driver(self, message: bytes) -> None:
        self._pipes.write(len(message).to_bytes(SIZE_BYTES, "little") + message)

    def _messages(self, data: bytes) -> list[map_orders.Message]:
        """Returns the messages that data completes. Raises RemoteProtocolError."""
        self._received += data
        found = []
        while len(self._received) >= SIZE_BYTES:
            size = int.from_bytes(self._received[:SIZE_BYTES], "little")
            if size > map_orders.MESSAGE_BYTES_MAX:
                raise RemoteProtocolError(f"a message of {size} bytes")
            if len(self._received) < SIZE_BYTES + size:
                break
            found.append(map_orders.decode(bytes(self._received[SIZE_BYTES : SIZE_BYTES + size])))
            del self._received[: SIZE_BYTES + size]
        return found

    def _on_readable(self) -> None:
        data = self._pipes.read()
        if data is None:
            return
        if not data:
            self._fail("it has ended; its last words are in the log")
        self.received_ms = self.now_ms
        try:
            for message in self._messages(data):
                self._on_message(message)
        except RemoteProtocolError as error:
            self._fail(str(error))

    def _on_message(self, message: map_orders.Message) -> None:
        if message.kind == map_orders.READY:
            self._driver_ready = True
            self.log("spark-ready")
        elif message.kind == map_orders.BROKEN:
            self._fail(map_orders.body_of(message, Trouble).reason)
        elif message.apid in self._jobs:
            self._reports.send([map_orders.HEAD.pack(*message[:2]) + message.data])

    def _fail(self, problem: str) -> None:
        """Reports the problem to all waiting maps and ends this actor."""
        reason = f"Spark's driver has failed: {problem}"
        for apid in self._jobs:
            self._reports.send([map_orders.encode(map_orders.FAILED, apid, Trouble(reason))])
        self._jobs.clear()
        raise UnitBroken(reason)

    # ---- orders ----

    def _on_orders(self, arena: Arena) -> None:
        for frames in arena.messages():
            try:
                message = map_orders.decode(b"".join(frames))
                if message.kind == map_orders.MAP:
                    map_orders.body_of(message, map_orders.MapOrder)
            except RemoteProtocolError as error:
                self.log_rarely("malformed-dropped", pipe="orders", problem=str(error))
                continue
            if message.kind == map_orders.MAP:
                self._jobs.add(message.apid)
                self._send_to_driver(b"".join(frames))
            elif message.kind == map_orders.DROP and message.apid in self._jobs:
                self._drop(message.apid)

    def _drop(self, apid: int) -> None:
        self._jobs.discard(apid)
        self._send_to_driver(map_orders.encode(map_orders.DROP, apid))

    def on_connection_lost(self) -> None:
        """Drops all jobs, because job_server has ended."""
        for apid in list(self._jobs):
            self._drop(apid)

    # ---- time and end ----

    def on_wake(self, now_ms: int) -> None:
        most_ms = SILENT_MS if self._driver_ready else START_MS
        if now_ms >= self.received_ms + most_ms:
            self._fail(f"it has said nothing for {most_ms // 1000} s")
        if self._driver_ready and now_ms >= self._ready_ms and not self._reports.full:
            self._ready_ms = now_ms + READY_MS
            ready = DriverReady(self.setup.epoch)
            self._reports.send([map_orders.encode(map_orders.READY, 0, ready)])

    def deadline_ms(self) -> int | None:
        return self._ready_ms if self._driver_ready and not self._reports.full else None

    def on_stop(self) -> None:
        self._end_driver()

    def _end_driver(self) -> None:
        """Closes the driver's input; the driver and its JVM then end."""
        self._pipes.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
            return
        self._process.kill()
        self._process.wait()

    def status(self) -> dict[str, Any]:
        return {"spark": "ready" if self._driver_ready else "starting", "maps": len(self._jobs)}
