"""One snapshot for all tasks of a query, and a thread that keeps it.

Spark plans a source in Python once for all queries of a frame or view, and tells it neither that a
query begins nor that it ends. So the tasks agree among themselves: the first task of a query takes
the snapshot and notes it in a table of the cluster, where the others find it.
"""

import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import msgpack
from pyspark import TaskContext

from ..errors import PipelineError
from .connection import open_table
from .options import PER_QUERY, TableReadOptions

if TYPE_CHECKING:
    from ...clients.table.table import Table

NOTES = 0xBFFF_FFFF  # The table: the number below those of the tables that an overwrite fills.
NOTE_S = 2 * 86_400  # A note lives so long after it was last refreshed, ...
REFRESH_S = 3600  # ... which a task that reads does so often.
POLL_S = 0.05  # Until the task that takes the snapshot has noted it.
RENEW_S = 0.3  # The shortest job_idle_s is 1 s.
LINGER_S = 600  # So long a worker of Spark keeps the last snapshot that it has read.
TAKING, TAKEN = b"?", b"="  # What a note begins with.
EXECUTION = "spark.sql.execution.id"  # Spark's number of a query; jobs of an RDD have none.
DRIVER = ("spark.app.id", "spark.driver.host", "spark.driver.port")
# Where the driver looks for the urls whose snapshots it renews (driver_renewal.py).
FOLDER = "KELEK_SNAPSHOTS"


class Snapshot(NamedTuple):
    """A snapshot of a table."""

    url: str  # Of the server that alone has it; empty: every node has it.
    lease: int
    path: str  # Where it lies, on the machine of the server that was asked for it.
    nonce: bytes  # What tells it from another machine's at the same path.


class Asked(NamedTuple):
    """Which snapshot a task wants."""

    options: TableReadOptions
    load: str  # What all plans of one load(), or view, have in common.
    url: str  # Of the node whose own table is read; empty: it is replicated.
    planned_s: float  # Unix time.

    @property
    def query(self) -> bytes:
        """What the keys of the notes of this task's query begin with; empty: it reads the snapshot
        of its frame."""
        task = TaskContext.get()
        if task is None or self.options.snapshot != PER_QUERY:
            return b""
        number = task.getLocalProperty(EXECUTION)
        if number is None:
            return b""
        driver = [task.getLocalProperty(name) for name in DRIVER]
        return driver_prefix(driver if all(driver) else [self.load]) + execution_key(int(number))

    @property
    def key(self) -> bytes:
        """Of its note."""
        where = f"{self.options.table} {self.url}"
        if query := self.query:
            return query + _digest(where)
        return b"f" + _digest(self.load) + _digest(where)

    @property
    def again(self) -> str:
        """What to do once it is gone."""
        if self.query:
            return "run the query again"
        return "load the table again: an RDD, and option snapshot=frame, keep to one snapshot"

    def notes(self) -> "Table":
        return open_table(self.options._replace(table=NOTES), self.url)


def driver_prefix(driver: Iterable[str | None]) -> bytes:
    """What the keys of the notes of a driver's queries begin with."""
    return b"q" + _digest(" ".join(map(str, driver)))


def execution_key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def prepare(asked: Asked) -> None:
    """In the driver: makes the table of notes, and has its snapshots renewed. Raises PipelineError
    and TableError."""
    if folder := os.environ.get(FOLDER):
        urls = ",".join([asked.url] if asked.url else asked.options.urls)
        with suppress(OSError), open(os.path.join(folder, _digest(urls).hex()), "w") as file:
            file.write(urls)
    with asked.notes() as notes:
        info = notes.info()
        if info is None:
            notes.open()
        elif not asked.url and not info.get("replicated"):
            raise PipelineError(
                f"table {NOTES}, in which Spark's tasks note their snapshots, is local at "
                f"{notes.server().url}: take it out of the topology's zerodb: local"
            )


def agreed(asked: Asked) -> Snapshot:
    """The snapshot that all tasks of this query read. Raises PipelineError and TableError."""
    key, claim = asked.key, TAKING + os.urandom(16)
    timeout_s = asked.options.timeout_ms / 1000
    until = time.monotonic() + 3 * timeout_s  # A task that was killed meanwhile holds up others.
    with asked.notes() as notes:
        while True:
            note = notes.get(key)
            if note is not None and (snapshot := noted(note)) is not None:
                return snapshot
            if time.monotonic() > until:
                raise PipelineError(
                    f"no task has taken a snapshot of table {asked.options.table} in "
                    f"{3 * timeout_s:g} s; {asked.again}"
                )
            if note is not None:
                time.sleep(POLL_S)
            elif _note(notes, key, None, claim, timeout_s):
                snapshot = _taken(asked, notes, claim)
                if _note(notes, key, claim, TAKEN + msgpack.packb(snapshot), NOTE_S):
                    return snapshot


def noted(note: bytes) -> Snapshot | None:
    """The snapshot that a note names; None: it is being taken, or that is no note of a task's."""
    if not note.startswith(TAKEN):
        return None
    try:
        found = Snapshot(*msgpack.unpackb(note[1:]))
    except (TypeError, ValueError, msgpack.UnpackException):
        return None
    return found if [type(it) for it in found] == [str, int, str, bytes] else None


def _note(notes: "Table", key: bytes, before: bytes | None, note: bytes, ttl_s: float) -> bool:
    """Whether the note was what it is expected to be, and is another one now."""
    batch = notes.batch(ttl_s=ttl_s)
    if before is None:
        batch.when_absent(key)
    else:
        batch.when_equal(key, before)
    return notes.commit(batch.put(key, note)).succeeded


def _taken(asked: Asked, notes: "Table", claim: bytes) -> Snapshot:
    """Takes the snapshot of all; where that fails the next task may try."""
    from ...clients.errors import TableError

    try:
        if not asked.query and time.time() - asked.planned_s > NOTE_S / 2:
            # The note of this frame's snapshot may have been forgotten: there was one perhaps.
            raise gone(asked, "", "nothing has read it for long")
        with open_table(asked.options, asked.url) as table:
            return _take(table, not asked.url)
    except (TableError, PipelineError):
        with suppress(TableError):
            notes.commit(notes.batch().when_equal(asked.key, claim).delete(asked.key))
        raise


def _take(table: "Table", replicated: bool) -> Snapshot:
    """On all nodes, so that a task that loses one goes on at another; where they have it not, or
    refuse it, on the one that is asked."""
    from ...clients.errors import TableRefused
    from ...protocols.zerodb.wire.values import FEATURE_SHARED_LEASES

    if replicated and table.server().features & FEATURE_SHARED_LEASES:
        with suppress(TableRefused):  # Too many are held, say: one node may have room.
            lease = table.open_lease()
            return Snapshot("", lease.number, lease.path, lease.nonce)
    # Of one key, which few tables have: what counts is the snapshot.
    job = table.range_job(end=b"\0\0", lease=0)
    for _ in table.chunks(job):
        pass
    return Snapshot(job.url, job.lease, job.path, job.nonce)


def gone(asked: Asked, url: str, why: object) -> PipelineError:
    """What is raised when a snapshot has ended."""
    where, ended = (f" at {url}", "its server ended or ") if url else ("", "")
    return PipelineError(
        f"the snapshot of table {asked.options.table}{where} is gone, as {ended}no task read it "
        f"for longer than the topology's job_idle_s: {why}; {asked.again}"
    )


# ---- keeping it ----


class Renewal:
    """Renews a snapshot from a thread, whatever the task that reads it waits for."""

    def __init__(self, asked: Asked, snapshot: Snapshot) -> None:
        self.key = asked.key
        self.until = float("inf")  # By the monotonic clock.
        self._asked = asked
        self._snapshot = snapshot
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kelek-renewal", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        from ...clients.errors import TableError

        asked, snapshot = self._asked, self._snapshot
        refresh = time.monotonic() + REFRESH_S
        with open_table(asked.options, snapshot.url) as table:
            while not self._stopped.wait(RENEW_S) and time.monotonic() < self.until:
                with suppress(TableError):  # That it is gone is said to those that read it.
                    table.renew(snapshot.lease)
                    if time.monotonic() > refresh:
                        refresh = time.monotonic() + REFRESH_S
                        with asked.notes() as notes:
                            note = TAKEN + msgpack.packb(snapshot)
                            notes.put(self.key, note, ttl_s=NOTE_S)


_last: Renewal | None = None  # Of this worker of Spark.


@contextmanager
def kept(asked: Asked, snapshot: Snapshot) -> Iterator[None]:
    """Within it a snapshot is renewed; a worker of Spark goes on with that for a while, as stages
    that do not read it may lie between two that do."""
    global _last
    lingers = TaskContext.get() is not None
    before, _last = (_last, None) if lingers else (None, _last)
    if before is not None and before.key == asked.key:
        renewal = before
        renewal.until = float("inf")
    else:
        if before is not None:
            before.stop()
        renewal = Renewal(asked, snapshot)
    try:
        yield
    finally:
        if lingers:
            renewal.until = time.monotonic() + LINGER_S
            _last = renewal
        else:
            renewal.stop()
