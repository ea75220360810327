"""Renews the snapshots of running queries from the driver's process.

Tasks renew them, too, but other stages of any length may run between two stages that read a table,
and a task may read its part long before it ends. Only the driver knows that a query still runs. It
finds the snapshots in the notes of the tasks (table/snapshot.py). The processes in which Spark
plans tell it the urls of the notes by files.
"""

import atexit
import json
import os
import shutil
import tempfile
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from ...clients.table.arguments import behind_prefix
from .snapshot import DRIVER, NOTES, RENEW_S, Snapshot, driver_prefix, execution_key, noted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...clients.table.table import Table

TIMEOUT_MS = 5000
ADVANCE_MAX = 1000  # Queries examined at once.


class DriverRenewal:
    """The renewal thread of a driver."""

    def __init__(self, spark: "SparkSession") -> None:
        self.folder = tempfile.mkdtemp(prefix="kelek-")
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self._prefix = driver_prefix(spark.conf.get(name) for name in DRIVER)
        self._queries = spark._jsparkSession.sharedState().statusStore()
        self._context = spark.sparkContext
        self._low = 0  # All queries with lower numbers have ended.
        self._highest = -1  # The highest number of a query that has read a table.
        self.thread = threading.Thread(target=self._run, name="kelek-driver", daemon=True)
        self.thread.start()

    @property
    def alive(self) -> bool:
        """Whether its session still runs."""
        return self.thread.is_alive() and self._context._jsc is not None

    def _run(self) -> None:
        from py4j.protocol import Py4JError

        from ...clients.errors import Error

        stopped = threading.Event()
        tables: dict[str, Table] = {}
        with ExitStack() as stack, suppress(Py4JError, OSError):  # The JVM has ended.
            while self._context._jsc is not None and not stopped.wait(RENEW_S):
                self._advance()
                for target in self._targets():
                    with suppress(Error):  # Its keys and its cluster may be there next time.
                        if target not in tables:
                            tables[target] = stack.enter_context(_open(target))
                        self._renew(target, tables[target])

    def _targets(self) -> list[str]:
        """Returns the urls and keys, in JSON, of the tables planned so far."""
        found = []
        for entry in os.scandir(self.folder):
            with open(entry.path, encoding="utf-8") as file:
                found.append(file.read())
        return [target for target in found if target]

    def _renew(self, target: str, notes: "Table") -> None:
        from ...clients.errors import Error

        place = len(self._prefix)
        start = self._prefix + execution_key(self._low)
        for key, note in list(notes.scan(start=start, end=behind_prefix(self._prefix))):
            snapshot = noted(note)
            number = int.from_bytes(key[place : place + 8], "big")
            self._highest = max(self._highest, number)
            if snapshot is not None and self._is_running(number):
                with suppress(Error):  # The snapshot's tasks report that it has ended.
                    _renew_one(target, notes, snapshot)

    def _advance(self) -> None:
        """Skips queries that have ended. Spark numbers queries consecutively."""
        for _ in range(ADVANCE_MAX):
            if self._low > self._highest or self._is_running(self._low):
                return
            self._low += 1

    def _is_running(self, number: int) -> bool:
        """A query missing in Spark's list ended long ago, unless the list lags behind the tasks."""
        query: Any = self._queries.execution(number)
        if query.isDefined():
            return not query.get().completionTime().isDefined()
        return not self._queries.execution(self._highest).isDefined()


_renewal: DriverRenewal | None = None


def renewal_of(spark: "SparkSession") -> DriverRenewal:
    """Returns the renewal of this process; starts it if needed."""
    global _renewal
    if _renewal is None or not _renewal.alive:
        _renewal = DriverRenewal(spark)
    return _renewal


def _open(target: str, url: str = "") -> "Table":
    """With url, at that server only."""
    from ...clients.table.table import Table

    arguments = json.loads(target)
    urls = arguments.pop("urls")
    return Table(url or urls, NOTES, timeout_ms=TIMEOUT_MS, **arguments)


def _renew_one(target: str, notes: "Table", snapshot: Snapshot) -> None:
    if not snapshot.url or snapshot.url == json.loads(target)["urls"]:
        notes.renew(snapshot.lease)
        return
    with _open(target, snapshot.url) as table:
        table.renew(snapshot.lease)
