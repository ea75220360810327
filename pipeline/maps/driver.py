"""Runs maps of tables (0x41) on Spark, as the child of a node's spark_job.

What it is told comes in by standard input, what it has to say goes out by standard output, both as
actors/jobs/spark_job.py says. It ends with its input, and the JVM with it.
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

SIZE_BYTES = 4  # In front of each message.
TICK_S = 0.5
REASON_CHARS_MAX = 1000
KILL_S = 5.0  # So long may a task that Spark has given up go on (spark.python.task.killTimeout).
TASKS_A_CORE = 2
SMALL_BYTES = 4 << 20  # Less is not worth a task of its own.
LARGE_BYTES = 64 << 20  # Of one task: for the progress, and for what is done again when it dies.


class DriverPipes:
    """The ends of pipes to spark_job. Many threads may send."""

    _in = 0  # Standard input.

    def __init__(self) -> None:
        # Whatever the JVM and Spark print goes to the log, instead of between our messages.
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, message: bytes) -> None:
        view = memoryview(len(message).to_bytes(SIZE_BYTES, "little") + message)
        with self._lock:
            while view:
                view = view[os.write(self._out, view) :]

    def receive(self, wait_s: float | None = None) -> Message | None:
        """The next one; None: nothing came in that time. Raises EOFError at the end."""
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
    """Fresh tables. Each has a file of its name for as long as it may hold something, with its
    token: the driver that comes after a crash finds what is left, and may empty it."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        folder.mkdir(exist_ok=True)

    def make(self) -> int:
        """Opens one. Raises PipelineError, TableError."""
        from ..table.write import fresh_number

        number = fresh_number()
        (self._folder / str(number)).write_text(secrets.token_hex(OWNER_BYTES))
        with self._table(number) as table:
            if table.info() is not None:
                (self._folder / str(number)).unlink()
                raise PipelineError(f"table {number} is somebody's; begin the map again")
            table.open()
        return number

    def drop(self, number: int) -> None:
        """Empties one. Raises TableError; it is tried again at the next start."""
        with self._table(number) as table:
            table.truncate()
        (self._folder / str(number)).unlink(missing_ok=True)

    def left(self) -> Iterator[int]:
        """Those of an earlier driver."""
        for file in sorted(self._folder.iterdir()):
            if file.name.isdecimal():
                yield int(file.name)

    def owner(self, number: int) -> bytes:
        """The token of one; that of a driver of before there were any is empty."""
        return bytes.fromhex((self._folder / str(number)).read_text())

    def _table(self, number: int) -> Any:
        from ...clients.table.operations import TableTuning
        from ...clients.table.table import Table

        return Table(self._url, number, tuning=TableTuning(owner=self.owner(number)))


class Map:
    """One map, in a thread of its own."""

    def __init__(self, driver: "Driver", apid: int, order: MapOrder) -> None:
        self._driver = driver
        self.apid = apid
        self.order = order
        self.stage: int | None = None
        self.told = MapProgress()
        self.done: Any = None  # The accumulator of tasks that have ended.
        self.parts = 0
        self.given_up = threading.Event()  # Nobody wants it any more.
        self.failed = False
        self.mapped = False

    @property
    def group(self) -> str:
        """Its name among Spark's jobs."""
        return f"kelek map {self.apid}"

    def run(self) -> None:
        """From the order to the answer; then waits until it may drop the fresh table."""
        from ...clients.errors import TableError
        from ...protocols.errors import ProtocolError

        try:
            self._map()
        except (TableError, PipelineError, ProtocolError) as error:
            self._fail(f"{type(error).__name__}: {error}")
        except (OSError, *self._driver.errors) as error:  # Spark's own.
            if self._driver.lives:  # Else the driver ends, and says why.
                self._fail(short(error))
        self.given_up.wait()
        if self.stage is None:
            return
        if self.failed:
            time.sleep(KILL_S)
        with contextlib.suppress(TableError):  # Its file stays: it is tried again.
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
        task = MapTask(url, self.order, ranges, self.stage, owner, self.done)
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
        """The parts: one, unless the mapper bears several at once."""
        from ...clients.table.table import Table

        count = 1
        if self.order.parted:
            size = self.order.size
            count = max(min(size // SMALL_BYTES, TASKS_A_CORE * cores), size // LARGE_BYTES, 1)
        points: list[bytes] = []
        if count > 1:
            with Table(self._driver.setup.url, self.order.source) as table:
                points = table.split_points(min(count, map_orders.PARTS_MAX))
        return list(zip([b"", *points], [*points, b""], strict=True))

    def _fail(self, reason: str) -> None:
        self.failed = True
        trouble = Trouble(reason[:REASON_CHARS_MAX])
        self._driver.link.send(encode(map_orders.FAILED, self.apid, trouble))

    def look(self) -> None:
        """Says how far it is; ends it when the mapper has failed in a task."""
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
        """Ends its tasks, if there are any."""
        if self.mapped:
            return
        self.failed = True
        context = self._driver.spark.sparkContext  # Python's own ends only what runs already.
        context._jsc.sc().cancelJobGroupAndFutureJobs(self.group)


class Driver:
    """The loop of the main thread; Spark's calls that take long are in others."""

    def __init__(self, link: DriverPipes, setup: Setup) -> None:
        self.link = link
        self.setup = setup
        self.stages = Stages(Path(setup.folder) / "stages", setup.url)
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
            "spark.ui.enabled": "false",  # It would listen on all addresses.
            **(loopback if local else {}),
        }
        return session(app_name=setup.name, master=setup.master or None, config=config)

    def serve(self) -> None:
        """Until spark_job is gone. Raises Py4JError when the JVM is."""
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
        """Whether there still is a JVM."""
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
        """Whatever an earlier driver has not dropped; the tables may not be there yet."""
        from ...clients.errors import TableError

        for number in list(self.stages.left()):
            with contextlib.suppress(TableError):
                self.stages.drop(number)

    @staticmethod
    def _run(work: Any) -> None:
        from pyspark import InheritableThread

        InheritableThread(target=work, daemon=True).start()


def progress_of(done: Sequence["Done"], tasks: int) -> MapProgress:
    """Of the parts that are done."""
    names = "rows", "size", "chunks", "staged"
    return MapProgress(tasks, len(done), *(sum(getattr(one, it) for one in done) for it in names))


def short(error: Exception) -> str:
    """What went wrong, of the pages that Spark says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("kelek.") and ": " in line]
    if own:
        return own[0].partition(" ")[0].rpartition(".")[2] + " " + own[0].partition(" ")[2]
    aborted = [line for line in lines if "Job aborted" in line or "cancelled" in line]
    return (aborted or lines or [type(error).__name__])[0]


def main() -> None:
    """`python -m kelek.pipeline.maps.driver`, with pipes at its standard input and output."""
    link = DriverPipes()
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
        reason = f"the JVM has ended: {short(error)}"[:REASON_CHARS_MAX]
        link.send(encode(map_orders.BROKEN, 0, Trouble(reason)))
        os._exit(1)
    os._exit(0)  # Threads that wait for the JVM would hold it up; the JVM ends with its input.


if __name__ == "__main__":
    main()
