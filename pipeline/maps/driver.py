"""Runs maps of tables (0x41) on Spark, as the child of a node's spark_job.

It receives orders on standard input and reports on standard output; actors/jobs/spark_job.py
defines both. It ends when its input closes, and the JVM ends with it.
"""

import contextlib
import os
import secrets
import select
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...protocols.zerodb.server import map_orders
from ...protocols.zerodb.server.map_orders import (
    MapOrder,
    Mapped,
    MapProgress,
    Message,
    Setup,
    Trouble,
    decode,
    encode,
)
from ...protocols.zerodb.wire.values import OWNER_BYTES
from ..errors import PipelineError
from ..java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .task import Done

SIZE_BYTES = 4  # Length prefix of each message.
TICK_S = 0.5
REASON_CHARS_MAX = 1000
KILL_S = 5.0  # A cancelled task may run for so long (spark.python.task.killTimeout).
TASKS_A_CORE = 2
SMALL_BYTES = 4 << 20  # A smaller part does not deserve a task of its own.
# Limit of one task: it bounds what a failed task repeats, and makes progress visible.
LARGE_BYTES = 64 << 20


class DriverPipes:
    """This process's ends of the pipes to spark_job. Several threads may send."""

    def __init__(self, receive_fd: int, send_fd: int) -> None:
        self._in = receive_fd
        self._out = send_fd
        self._lock = threading.Lock()

    @classmethod
    def of_process(cls) -> "DriverPipes":
        """Takes standard input and output. Output of the JVM and of Spark goes to the log from now
        on, so it cannot mix with messages."""
        send_fd = os.dup(1)
        os.dup2(2, 1)
        return cls(0, send_fd)

    def send(self, message: bytes) -> None:
        view = memoryview(len(message).to_bytes(SIZE_BYTES, "little") + message)
        with self._lock:
            while view:
                view = view[os.write(self._out, view) :]

    def receive(self, wait_s: float | None = None) -> Message | None:
        """The next message, or None if none comes in that time. Raises EOFError at the end."""
        if not select.select([self._in], [], [], wait_s)[0]:
            return None
        return decode(self._read(int.from_bytes(self._read(SIZE_BYTES), "little")))

    def _read(self, size: int) -> bytes:
        parts = []
        while size > 0:
            data = os.read(self._in, size)
            if not data:
                raise EOFError
            parts.append(data)
            size -= len(data)
        return b"".join(parts)


class Stages:
    """The staging tables of this driver.

    A file named by the table's number holds its owner token while the table may hold rows. After a
    crash the next driver finds the file and empties the table.
    """

    def __init__(self, folder: Path, setup: Setup) -> None:
        self._folder = folder
        self._setup = setup
        folder.mkdir(exist_ok=True)

    def make(self) -> int:
        """Creates a staging table and returns its number. Raises PipelineError, TableError."""
        from ..table.write import fresh_number

        number = fresh_number()
        (self._folder / str(number)).write_text(secrets.token_hex(OWNER_BYTES))
        with self._table(number) as table:
            if table.info() is not None:
                (self._folder / str(number)).unlink()
                raise PipelineError(f"table {number} exists already; start the map again")
            table.open()
        return number

    def drop(self, number: int) -> None:
        """Empties a staging table. Raises TableError; the next start tries again."""
        with self._table(number) as table:
            table.truncate()
        (self._folder / str(number)).unlink(missing_ok=True)

    def left(self) -> Iterator[int]:
        """Yields the staging tables of an earlier driver."""
        for file in sorted(self._folder.iterdir()):
            if file.name.isdecimal():
                yield int(file.name)

    def owner(self, number: int) -> bytes:
        """Returns the owner token of a table; it is empty in files of older versions."""
        return bytes.fromhex((self._folder / str(number)).read_text())

    def _table(self, number: int) -> Any:
        from ...clients.table.operations import TableTuning
        from ...clients.table.table import Table

        tuning = TableTuning(owner=self.owner(number))
        return Table(self._setup.url, number, tuning=tuning, **self._setup.client_keys)


class Map:
    """One map, which runs in its own thread."""

    def __init__(self, driver: "Driver", apid: int, order: MapOrder) -> None:
        self._driver = driver
        self.apid = apid
        self.order = order
        self.stage: int | None = None
        self.told = MapProgress()
        self.done: Any = None  # Accumulator of the parts whose tasks have ended.
        self.parts = 0
        self.given_up = threading.Event()  # Set when spark_job drops the map.
        self.failed = False
        self.mapped = False

    @property
    def group(self) -> str:
        return f"kelek map {self.apid}"

    def run(self) -> None:
        """Runs the map and reports its result, then waits for the drop and empties the staging
        table."""
        from ...clients.errors import TableError
        from ...protocols.errors import ProtocolError

        try:
            self._map()
        except (TableError, PipelineError, ProtocolError) as error:
            self._fail(f"{type(error).__name__}: {error}")
        except (OSError, *self._driver.errors) as error:  # Spark's errors.
            if self._driver.lives:  # Without a JVM the driver ends and reports why.
                self._fail(error_line(error))
        self.given_up.wait()
        if self.stage is None:
            return
        if self.failed:
            time.sleep(KILL_S)
        with contextlib.suppress(TableError):  # The file stays, so the next start tries again.
            self._driver.stages.drop(self.stage)

    def _map(self) -> None:
        from .task import ROW, Done, ListParam, MapTask, mapped

        url, spark = self._driver.setup.url, self._driver.spark
        context = spark.sparkContext
        ranges = self._ranges(context.defaultParallelism)
        self.stage = self._driver.stages.make()
        self.done = context.accumulator([], ListParam())
        self.parts = len(ranges)
        owner = self._driver.stages.owner(self.stage)
        keys = self._driver.setup.client_keys
        task = MapTask(url, self.order, ranges, self.stage, owner, self.done, keys)
        context.setJobGroup(self.group, f"table {self.order.source}", interruptOnCancel=True)
        frame = spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(mapped(task), ROW)
        found = sorted(Done(*row) for row in frame.collect())
        reasons = [one.reason for one in found if one.reason]
        if reasons:
            self._fail(reasons[0])
            return
        done = progress_of(found, len(ranges))
        answer = Mapped(self.stage, [one.attempt for one in found], list(done))
        self.mapped = True
        self._driver.link.send(encode(map_orders.MAPPED, self.apid, answer))

    def _ranges(self, cores: int) -> list[tuple[bytes, bytes]]:
        """Returns the key ranges of the parts; one part unless the mapper allows several."""
        from ...clients.table.table import Table

        count = 1
        if self.order.parted:
            size = self.order.size
            count = max(min(size // SMALL_BYTES, TASKS_A_CORE * cores), size // LARGE_BYTES, 1)
        points: list[bytes] = []
        if count > 1:
            setup = self._driver.setup
            with Table(setup.url, self.order.source, **setup.client_keys) as table:
                points = table.split_points(min(count, map_orders.PARTS_MAX))
        return list(zip([b"", *points], [*points, b""], strict=True))

    def _fail(self, reason: str) -> None:
        self.failed = True
        trouble = Trouble(reason[:REASON_CHARS_MAX])
        self._driver.link.send(encode(map_orders.FAILED, self.apid, trouble))

    def look(self) -> None:
        """Reports the progress, and cancels the map if its mapper failed in a task."""
        if self.done is None or self.failed:
            return
        ended = list({one.part: one for one in self.done.value}.values())
        told = progress_of(ended, self.parts)
        if told != self.told:
            self.told = told
            self._driver.link.send(encode(map_orders.PROGRESS, self.apid, told))
        reasons = [one.reason for one in ended if one.reason]
        if reasons:
            self._fail(reasons[0])
            self.cancel()

    def cancel(self) -> None:
        if self.mapped:
            return
        self.failed = True
        context = self._driver.spark.sparkContext  # PySpark's own method cancels only running jobs.
        context._jsc.sc().cancelJobGroupAndFutureJobs(self.group)


class Driver:
    """The loop of the main thread. Long calls of Spark run in other threads."""

    def __init__(self, link: DriverPipes, setup: Setup) -> None:
        self.link = link
        self.setup = setup
        self.stages = Stages(Path(setup.folder) / "stages", setup)
        self.maps: dict[int, Map] = {}
        self.spark: SparkSession = self._session()
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        self.errors = (Py4JError, PySparkException)

    def _session(self) -> "SparkSession":
        from ..spark_session import session

        setup = self.setup
        local = setup.master.startswith("local")
        loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        config = {
            "spark.driver.memory": f"{setup.memory_bytes >> 20}m",
            "spark.local.dir": str(Path(setup.folder) / "scratch"),
            "spark.ui.enabled": "false",  # Spark's page would listen on all addresses.
            **(loopback if local else {}),
        }
        return session(app_name=setup.name, master=setup.master or None, config=config)

    def serve(self) -> None:
        """Serves until spark_job closes the pipe. Raises Py4JError if the JVM has ended."""
        self._run(self._drop_left)
        while True:
            try:
                message = self.link.receive(TICK_S)
            except EOFError:
                return
            if message is not None and message.kind == map_orders.MAP:
                one = Map(self, message.apid, map_orders.body_of(message, MapOrder))
                self.maps[message.apid] = one
                self._run(one.run)
            elif message is not None and message.kind == map_orders.DROP:
                self._drop(message.apid)
            self._look_at_jvm()
            for one in self.maps.values():
                one.look()
            self.link.send(encode(map_orders.ALIVE))

    def _look_at_jvm(self) -> None:
        self.spark.sparkContext._jvm.System.nanoTime()

    @property
    def lives(self) -> bool:
        """Whether the JVM still runs."""
        try:
            self._look_at_jvm()
        except (OSError, *self.errors):
            return False
        return True

    def _drop(self, apid: int) -> None:
        one = self.maps.pop(apid, None)
        if one is not None:
            one.given_up.set()
            one.cancel()

    def _drop_left(self) -> None:
        """Empties the staging tables of an earlier driver. The tables may not be served yet."""
        from ...clients.errors import TableError

        for number in list(self.stages.left()):
            with contextlib.suppress(TableError):
                self.stages.drop(number)

    @staticmethod
    def _run(work: Any) -> None:
        from pyspark import InheritableThread

        InheritableThread(target=work, daemon=True).start()


def progress_of(done: Sequence["Done"], tasks: int) -> MapProgress:
    """Returns the sums over the parts that are done."""
    names = "rows", "size", "chunks", "staged"
    return MapProgress(tasks, len(done), *(sum(getattr(one, it) for one in done) for it in names))


def error_line(error: Exception) -> str:
    """Returns the line of Spark's error that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("kelek.") and ": " in line]
    if own:
        return own[0].partition(" ")[0].rpartition(".")[2] + " " + own[0].partition(" ")[2]
    aborted = [line for line in lines if "Job aborted" in line or "cancelled" in line]
    return (aborted or lines or [type(error).__name__])[0]


def main() -> None:
    """Entry of `python -m kelek.pipeline.maps.driver`; standard input and output are pipes."""
    link = DriverPipes.of_process()
    first = link.receive()
    assert first is not None
    assert first.kind == map_orders.SETUP
    setup = map_orders.body_of(first, Setup)
    try:
        find_java()
        link.send(encode(map_orders.CHECKED))
        driver = Driver(link, setup)
    except (PipelineError, RuntimeError) as error:
        link.send(encode(map_orders.BROKEN, 0, Trouble(str(error)[:REASON_CHARS_MAX])))
        sys.exit(1)
    link.send(encode(map_orders.READY))
    try:
        driver.serve()
    except (OSError, *driver.errors) as error:
        reason = f"the JVM has ended: {error_line(error)}"[:REASON_CHARS_MAX]
        link.send(encode(map_orders.BROKEN, 0, Trouble(reason)))
        os._exit(1)
    # Threads that wait for the JVM would delay a normal exit. The JVM ends with its input.
    os._exit(0)


if __name__ == "__main__":
    main()
