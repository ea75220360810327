"""One snapshot for all tasks of a query, and a thread that renews it.

Spark plans a source in Python once for all queries of a frame or view. It reports neither the start
nor the end of a query. So the tasks agree among themselves: the first task of a query takes the
snapshot and writes a note into a table of the cluster, where the other tasks find it.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from ..errors import PipelineError
from ..tasks import in_task, local_property
from .connection import open_table
from .options import PER_QUERY, TableReadOptions

if TYPE_CHECKING:
    from ...clients.table.table import Table
    from ...clients.table.views.kept import AsOf

NOTES = 0xBFFF_FFFF  # Number of the notes table: just below the staging tables of overwrites.
NOTE_S = 2 * 86_400  # A note expires so long after its last refresh.
REFRESH_S = 3600  # A task that reads refreshes its note at this interval.
# Interval of looking for the note of the task that takes the snapshot: at first, and at most.
POLL_S, POLL_S_MAX = 0.002, 0.05
RENEW_S = 0.3  # The shortest job_idle_s is 1 s.
LINGER_S = 600  # A Spark worker renews the last snapshot that it has read for so long.
TAKING, TAKEN = b"?", b"="  # First byte of a note.
EXECUTION = "spark.sql.execution.id"  # Spark's number of a query; jobs of an RDD have none.
DRIVER = ("spark.app.id", "spark.driver.host", "spark.driver.port")
# The driver finds here the urls whose snapshots it renews (driver_renewal.py).
FOLDER = "KELEK_SNAPSHOTS"


class Snapshot(NamedTuple):
    """A snapshot of a table."""

    url: str  # The only server that has it; empty if every node has it.
    lease: int
    path: str  # Path on the machine of the server that reported it.
    nonce: bytes  # Distinguishes it from another machine's at the same path.


class SnapshotQuery(NamedTuple):
    """The snapshot that a task wants."""

    options: TableReadOptions
    load: str  # Token that all plans of one load() or view share.
    url: str  # The node that holds the local table; empty for a replicated table.
    planned_s: float  # Unix time in seconds.

    @property
    def note_prefix(self) -> bytes:
        """Key prefix of the notes of this task's query; empty if it reads its frame's snapshot."""
        number = local_property(EXECUTION)
        if number is None or self.options.snapshot != PER_QUERY:
            return b""
        driver = [local_property(name) for name in DRIVER]
        return driver_prefix(driver if all(driver) else [self.load]) + execution_key(int(number))

    @property
    def key(self) -> bytes:
        where = f"{self.options.table} {self.url}"
        if prefix := self.note_prefix:
            return prefix + _digest(where)
        return b"f" + _digest(self.load) + _digest(where)

    @property
    def again(self) -> str:
        """The way out once the snapshot is gone."""
        if self.note_prefix:
            return "run the query again"
        return "load the table again: an RDD, and option snapshot=frame, keep to one snapshot"

    def notes(self) -> AbstractContextManager["Table"]:
        return open_table(replace(self.options, table=NOTES), self.url)


def driver_prefix(driver: Iterable[str | None]) -> bytes:
    """Returns the key prefix of the notes of a driver's queries."""
    return b"q" + _digest(" ".join(map(str, driver)))


def execution_key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def prepare(query: SnapshotQuery) -> None:
    """Creates the notes table in the driver, and has its snapshots renewed.

    Raises PipelineError and TableError.
    """
    if folder := os.environ.get(FOLDER):
        urls = ",".join([query.url] if query.url else query.options.urls)
        target = json.dumps({"urls": urls, **query.options.client_keys})
        with suppress(OSError), open(os.path.join(folder, _digest(target).hex()), "w") as file:
            file.write(target)
    from ...clients.errors import NotAllowed

    with query.notes() as notes:
        info = notes.info()
        if info is None:
            with suppress(NotAllowed):  # A key without `admin`: the first note makes the table.
                notes.open()
        elif not query.url and not info.get("replicated"):
            raise PipelineError(
                f"table {NOTES}, in which Spark's tasks note their snapshots, is local at "
                f"{notes.server().url}: take it out of the topology's zerodb: local_tables"
            )


def agreed(query: SnapshotQuery) -> Snapshot:
    """The snapshot that all tasks of this query read. Raises PipelineError and TableError."""
    key, claim, poll_s = query.key, TAKING + os.urandom(16), POLL_S
    if _last is not None and _last.key == key:
        return _last.snapshot  # A note does not change once it names one.
    timeout_s = query.options.timeout_ms / 1000
    # If the task that takes it was killed, the others wait until its claim expires.
    until = time.monotonic() + 3 * timeout_s
    with query.notes() as notes:
        while True:
            note = notes.get(key)
            if note is not None and (snapshot := noted(note)) is not None:
                return snapshot
            if time.monotonic() > until:
                raise PipelineError(
                    f"no task has taken a snapshot of table {query.options.table} in "
                    f"{3 * timeout_s:g} s; {query.again}"
                )
            if note is not None:
                time.sleep(poll_s)
                poll_s = min(2 * poll_s, POLL_S_MAX)
            elif _replace_note(notes, key, None, claim, timeout_s):
                snapshot = _take_for_all(query, notes, claim)
                if _replace_note(notes, key, claim, TAKEN + msgpack.packb(snapshot), NOTE_S):
                    return snapshot


def noted(note: bytes) -> Snapshot | None:
    """The snapshot that a note names; None if it is being taken or the note is malformed."""
    if not note.startswith(TAKEN):
        return None
    try:
        found = Snapshot(*msgpack.unpackb(note[1:]))
    except (TypeError, ValueError, msgpack.UnpackException):
        return None
    return found if [type(it) for it in found] == [str, int, str, bytes] else None


def _replace_note(
    notes: "Table", key: bytes, before: bytes | None, note: bytes, ttl_s: float
) -> bool:
    """Replaces a note if it has the expected value; returns whether it did."""
    batch = notes.batch(ttl_s=ttl_s)
    if before is None:
        batch.when_absent(key)
    else:
        batch.when_equal(key, before)
    return notes.commit(batch.put(key, note)).succeeded


def _take_for_all(query: SnapshotQuery, notes: "Table", claim: bytes) -> Snapshot:
    """Takes the snapshot for all tasks. If that fails, the next task may try."""
    from ...clients.errors import TableError

    try:
        if not query.note_prefix and time.time() - query.planned_s > NOTE_S / 2:
            # The note of this frame's snapshot may have expired.
            raise snapshot_gone(query, "", "nothing has read it for long")
        with open_table(query.options, query.url) as table:
            return _take_snapshot(table, not query.url)
    except (TableError, PipelineError):
        with suppress(TableError):
            notes.commit(notes.batch().when_equal(query.key, claim).delete(query.key))
        raise


def _take_snapshot(table: "Table", replicated: bool) -> Snapshot:
    """Takes the snapshot on all nodes, so that a task that loses one continues at another.

    If the cluster cannot or refuses, it takes the snapshot on one node.
    """
    from ...clients.errors import TableRefused
    from ...protocols.zerodb.wire.values import FEATURE_SHARED_LEASES

    if replicated and table.server().features & FEATURE_SHARED_LEASES:
        with suppress(TableRefused):  # The cluster may hold too many; a single node may have room.
            lease = table.open_snapshot()
            return Snapshot("", lease.number, lease.path, lease.nonce)
    return _place_of(table, 0)


def kept_snapshot(table: "Table", as_of: "AsOf") -> Snapshot:
    """The kept snapshot that a query names. Raises PipelineError and TableError."""
    from ...clients.errors import SnapshotNotKept

    try:
        kept = table.find_snapshot(as_of)
    except SnapshotNotKept as error:
        raise PipelineError(f"{error} (options asOfIndex and asOfTimestamp)") from error
    return _place_of(table, kept.number)


def _place_of(table: "Table", lease: int) -> Snapshot:
    """Where the files of a lease are; 0: of a new one."""
    # A range that few tables have; the job is only needed for its snapshot.
    job = table.range_job(end=b"\0\0", lease=lease)
    for _ in table.chunks(job):
        pass
    return Snapshot("" if lease else job.url, job.lease, job.path, job.nonce)


def snapshot_gone(query: SnapshotQuery, url: str, why: object) -> PipelineError:
    """Returns the error for a snapshot that has ended."""
    if query.options.as_of is not None:
        return PipelineError(
            f"the kept snapshot of table {query.options.table} is gone: it was released, or no "
            f"node of urls has it: {why}"
        )
    where, ended = (f" at {url}", "its server ended or ") if url else ("", "")
    return PipelineError(
        f"the snapshot of table {query.options.table}{where} is gone, as {ended}no task read it "
        f"for longer than the topology's job_idle_s: {why}; {query.again}"
    )


# ---- keeping it ----


class LeaseRenewal:
    """A thread that renews a snapshot while its process is busy or waits."""

    def __init__(self, connect: Callable[[], AbstractContextManager["Table"]], lease: int) -> None:
        self.until = float("inf")  # Monotonic time in seconds.
        self._connect = connect
        self._lease = lease
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kelek-renewal", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        from ...clients.errors import TableError

        if self._stopped.wait(RENEW_S):
            return  # Most reads of a few rows end here, without a connection.
        with self._connect() as table:
            while time.monotonic() < self.until:
                with suppress(TableError):  # The reading tasks report that it has ended.
                    table.renew(self._lease)
                    self._refresh()
                if self._stopped.wait(RENEW_S):
                    return

    def _refresh(self) -> None:
        """Keeps what else belongs to the snapshot."""


class Renewal(LeaseRenewal):
    """Renews the snapshot that tasks read, and their note."""

    def __init__(self, query: SnapshotQuery, snapshot: Snapshot) -> None:
        self.key = query.key
        self._query = query
        self.snapshot = snapshot
        self._refresh_due = time.monotonic() + REFRESH_S
        super().__init__(lambda: open_table(query.options, snapshot.url), snapshot.lease)

    def _refresh(self) -> None:
        if time.monotonic() > self._refresh_due:
            self._refresh_due = time.monotonic() + REFRESH_S
            with self._query.notes() as notes:
                note = TAKEN + msgpack.packb(self.snapshot)
                notes.put(self.key, note, ttl_s=NOTE_S)


_last: Renewal | None = None  # The renewal of this Spark worker.


@contextmanager
def renewed(query: SnapshotQuery, snapshot: Snapshot) -> Iterator[None]:
    """Context in which a snapshot is renewed.

    A Spark worker continues for LINGER_S afterwards, because other stages may lie between two
    stages that read it.
    """
    global _last
    lingers = in_task()
    before, _last = (_last, None) if lingers else (None, _last)
    if before is not None and before.key == query.key:
        renewal = before
        renewal.until = float("inf")
    else:
        if before is not None:
            before.stop()
        renewal = Renewal(query, snapshot)
    try:
        yield
    finally:
        if lingers:
            renewal.until = time.monotonic() + LINGER_S
            _last = renewal
        else:
            renewal.stop()
