"""job_server's side of the maps that run on Spark: their state, progress and commit.

Spark fills a staging table with the mapper's outputs. When it is complete, job_server takes a
snapshot of that table and writes it to the output like any mapper's output. This module does not
import Spark.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...mapping import mapper
from ...mapping.mapper_process import Event, MapperProcess
from ...native.net.messages import Arena
from ...net.clock import earliest, wall_ms
from ...protocols.errors import RemoteProtocolError
from ...protocols.zerodb.server import map_orders
from ...protocols.zerodb.server.jobs import JobTable, Lease
from ...protocols.zerodb.server.map_orders import MapOrder, Mapped, MapProgress
from ...protocols.zerodb.tables.tables import Tables
from ...storage.errors import StorageError
from ...storage.worker.lease_folder import LeaseFolder
from ..runtime.actor import Actor
from ..topology.settings import SparkSettings
from .map_jobs import RETRY_MS, JobPort, MapJobs, MapSpec, StartReport

SPARK_JOB = "spark_job"
JOBS_MAX = 16
WAIT_MS = 300_000  # For a spark_job whose JVM starts.
LOST_MS = 1000  # After spark_job has disconnected: its reason may still arrive.
SNAPSHOT_MS = 60_000  # Limit for the snapshot of the staging table; a new leader may delay it.
REPORTS_HWM = 1024

CHECKING = "checking"  # This node starts the mapper once, to refuse a bad one at once.
WAITING = "waiting"  # For a spark_job.
MAPPING = "mapping"
SNAPSHOT = "snapshot"  # A worker makes the snapshot of the staging table.
COMMITTING = "committing"  # MapJobs writes the output.


class JobServerParts(NamedTuple):
    """The parts of job_server that this module uses."""

    table: JobTable
    folder: LeaseFolder
    maps: MapJobs
    port: JobPort


class SparkMap:
    """One map on Spark."""

    def __init__(self, spec: MapSpec, order: MapOrder, report_start: StartReport) -> None:
        self.spec = spec
        self.order = order
        self.report_start = report_start
        self.state = CHECKING
        self.process: MapperProcess | None = None
        self.since_ms = 0  # Start of the wait for spark_job or for the snapshot.
        self.epoch = 0  # Epoch of the spark_job that runs it.
        self.tasks_progress = MapProgress()
        self.rows = self.size = 0  # Last reported progress.
        self.mapped: Mapped | None = None
        self.ticket = 0  # Ticket of the requested snapshot, later the number of its lease.
        self.due_ms = 0  # Time of the next request for the snapshot.


class SparkMaps:
    """All maps on Spark; none without `zerodb: {spark: ...}` in the topology.

    orders    PUSH    map_orders: MAP, DROP                                    to spark_job
    reports   PULL    map_orders: READY, PROGRESS, MAPPED, FAILED              from it
    """

    def __init__(self, actor: Actor, settings: SparkSettings | None, parts: JobServerParts) -> None:
        self._actor = actor
        self._parts = parts
        self.threshold: int | None = settings.threshold_bytes if settings else None
        self.jobs: dict[int, SparkMap] = {}
        self._epoch = 0  # Epoch of the spark_job that accepts maps; 0 if there is none.
        self.lost_ms: int | None = None
        if settings is None:
            return
        actor.pull("spark", self._on_reports, hwm=REPORTS_HWM)
        orders = actor.push(SPARK_JOB, "orders")
        self._orders = actor.pipe(orders)
        actor.watch_connections(orders, self.on_lost)

    def accepts(self, spec: MapSpec, size: int) -> bool:
        """Whether Spark runs a map over so many bytes."""
        return bool(spec.engine) and self.threshold is not None and size >= self.threshold

    @property
    def full(self) -> str:
        """Why no further job can start; "" if it can."""
        if len(self.jobs) < JOBS_MAX:
            return ""
        return f"{len(self.jobs)} maps run on Spark already; wait until one has ended"

    def start(
        self, apid: int, spec: MapSpec, order: MapOrder, report_start: Callable[[str], None]
    ) -> None:
        """Starts a job that is in the table. It ends when it leaves the table."""
        one = self.jobs[apid] = SparkMap(spec, order, StartReport(report_start))
        try:
            process = one.process = MapperProcess(
                self._actor, spec.engine, lambda _, event: self._on_checked(apid, event)
            )
        except OSError as error:
            self._fail(apid, f"no mapper can be started: {error.strerror}")
            return
        process.start(spec.module, spec.parameters)

    def _on_checked(self, apid: int, event: Event) -> None:
        one = self.jobs[apid]
        assert one.process is not None
        one.process.kill()
        if event.kind == mapper.FAILED:
            self._fail(apid, event.data.decode("utf-8", "replace"))
            return
        one.state, one.since_ms = WAITING, self._actor.now_ms
        one.report_start("")

    # ---- what spark_job says ----

    def _on_reports(self, arena: Arena) -> None:
        for frames in arena.messages():
            try:
                self._on_report(map_orders.decode(b"".join(frames)))
            except RemoteProtocolError as error:
                self._actor.log_rarely("malformed-dropped", pipe="spark", problem=str(error))

    def _on_report(self, message: map_orders.Message) -> None:
        if message.kind == map_orders.READY:
            self._on_ready(map_orders.body_of(message, map_orders.DriverReady).epoch)
            return
        one = self.jobs.get(message.apid)
        if one is None or one.state != MAPPING:  # The map has ended here.
            return
        if message.kind == map_orders.PROGRESS:
            one.tasks_progress = map_orders.body_of(message, MapProgress)
        elif message.kind == map_orders.MAPPED:
            self._on_mapped(message.apid, map_orders.body_of(message, Mapped))
        elif message.kind == map_orders.FAILED:
            self._fail(message.apid, map_orders.body_of(message, map_orders.Trouble).reason)

    def _on_ready(self, epoch: int) -> None:
        self._epoch, self.lost_ms = epoch, None
        self._fail_lost(lambda one: one.epoch != epoch)

    def on_lost(self) -> None:
        self._epoch, self.lost_ms = 0, self._actor.now_ms

    def _fail_lost(self, is_lost: Callable[[SparkMap], bool]) -> None:
        for apid, one in list(self.jobs.items()):
            if one.state == MAPPING and is_lost(one):
                self._fail(apid, "the node's spark_job has ended while it ran this map")

    # ---- the commit ----

    def _on_mapped(self, apid: int, mapped: Mapped) -> None:
        if len(mapped.progress) != len(MapProgress._fields):
            raise RemoteProtocolError("a Mapped without its progress")
        one = self.jobs[apid]
        one.mapped, one.tasks_progress = mapped, MapProgress(*mapped.progress)
        one.state, one.since_ms = SNAPSHOT, self._actor.now_ms
        self._parts.table.progress(apid, one.tasks_progress)
        self._request_snapshot(apid)

    def _request_snapshot(self, apid: int) -> None:
        one = self.jobs[apid]
        assert one.mapped is not None
        try:
            one.ticket = self._parts.port.next_ticket()
        except StorageError as error:
            self._fail(apid, str(error))
            return
        one.due_ms = one.since_ms + SNAPSHOT_MS
        self._parts.port.request_snapshot(one.ticket, one.mapped.table)

    def _job_of(self, ticket: int) -> int | None:
        found = (it for it, one in self.jobs.items() if one.ticket == ticket)
        return next((it for it in found if self.jobs[it].state == SNAPSHOT), None)

    def on_snapshot(self, ticket: int, log_index: int, term: int) -> bool:
        """Handles a snapshot; returns False if this object did not request it."""
        apid = self._job_of(ticket)
        if apid is None:
            return False
        one = self.jobs[apid]
        assert one.mapped is not None
        path = self._parts.folder.path(ticket)
        lease = Lease(ticket, one.mapped.table, path, log_index, term)
        self._parts.table.add_lease(lease, True, self._actor.now_ms)
        one.state = COMMITTING
        try:
            tables = self._parts.folder.tables(ticket)
        except StorageError as error:
            self._fail(apid, str(error))
            return True
        staged = outputs(tables, one.mapped.table, one.mapped.attempts)
        self._parts.maps.start(apid, MapSpec(one.spec.target, staged=staged), lambda _: None)
        return True

    def on_failed(self, ticket: int, reason: str, retry: bool, now_ms: int) -> bool:
        """Handles a failed snapshot; returns False if this object did not request it."""
        apid = self._job_of(ticket)
        if apid is None:
            return False
        one = self.jobs[apid]
        if retry and now_ms < one.since_ms + SNAPSHOT_MS:
            one.ticket, one.due_ms = 0, now_ms + RETRY_MS
        else:
            self._fail(apid, f"no snapshot of what Spark has mapped can be taken: {reason}")
        return True

    @property
    def tickets(self) -> set[int]:
        """Tickets of outstanding snapshots."""
        return {one.ticket for one in self.jobs.values() if one.state == SNAPSHOT}

    def request_snapshots(self) -> None:
        """Requests outstanding snapshots again, because the requests may have been lost."""
        for one in self.jobs.values():
            if one.state == SNAPSHOT:
                one.due_ms = 0

    # ---- time and ends ----

    def pump(self, now_ms: int) -> None:
        """Continues every job. Call it once in a wake."""
        if self.lost_ms is not None and now_ms >= self.lost_ms + LOST_MS:
            self.lost_ms = None
            self._fail_lost(lambda one: True)
        for apid, one in list(self.jobs.items()):
            if apid not in self._parts.table.jobs:
                self._end(apid)
                continue
            self._parts.table.touch(apid, now_ms)
            if one.state == CHECKING and one.process is not None:
                one.process.tick(now_ms)
            elif one.state == WAITING:
                self._send_order(apid, now_ms)
            elif one.state == MAPPING:
                self._report_progress(apid)
            elif one.state == SNAPSHOT and now_ms >= one.due_ms:
                self._retry_snapshot(apid, now_ms)
            elif one.state == COMMITTING:
                self._parts.table.renew(one.ticket, now_ms)

    def _report_progress(self, apid: int) -> None:
        """Reports the progress of ended and running tasks.

        The progress never decreases, although a task that ends is in neither group for a moment.
        """
        one = self.jobs[apid]
        rows, size = self._parts.table.read_by_jobs(one.order.lease)
        rows, size = one.tasks_progress.rows + rows, one.tasks_progress.size + size
        one.rows, one.size = max(one.rows, rows), max(one.size, size)
        self._parts.table.progress(apid, one.tasks_progress._replace(rows=one.rows, size=one.size))

    def _send_order(self, apid: int, now_ms: int) -> None:
        one = self.jobs[apid]
        if self._epoch and not self._orders.full:
            one.state, one.epoch = MAPPING, self._epoch
            self._orders.send([map_orders.encode(map_orders.MAP, apid, one.order)])
        elif now_ms >= one.since_ms + WAIT_MS:
            self._fail(apid, "the node's spark_job is not there; see `supervisor status`")

    def _retry_snapshot(self, apid: int, now_ms: int) -> None:
        if now_ms >= self.jobs[apid].since_ms + SNAPSHOT_MS:
            self._fail(apid, "no worker made a snapshot of what Spark has mapped in time")
        else:
            self._request_snapshot(apid)

    def _fail(self, apid: int, reason: str) -> None:
        self._parts.table.fail(apid, reason, wall_ms())
        self.jobs[apid].report_start(reason)
        self._end(apid)

    def _end(self, apid: int) -> None:
        """Ends a job that has left the table."""
        one = self.jobs.pop(apid)
        one.report_start("it was ended")
        if one.process is not None:
            one.process.kill()
        if one.state == COMMITTING:
            self._parts.table.release(one.ticket)
        if one.epoch:
            self._orders.send([map_orders.encode(map_orders.DROP, apid)])

    def close(self) -> None:
        for one in self.jobs.values():
            if one.process is not None:
                one.process.kill()

    def deadline_ms(self) -> int | None:
        """Time of the next pump()."""
        due = [None if self.lost_ms is None else self.lost_ms + LOST_MS]
        for one in self.jobs.values():
            if one.state == CHECKING and one.process is not None:
                due.append(one.process.deadline_ms())
            elif one.state == WAITING:
                due.append(one.since_ms + WAIT_MS)
            elif one.state == SNAPSHOT:
                due.append(one.due_ms)
        return earliest(*due)

    def status(self) -> dict[str, object]:
        """Returns the fields for `supervisor status`."""
        return {} if self.threshold is None else {"on_spark": len(self.jobs)}


def outputs(tables: Tables, table: int, attempts: Sequence[int]) -> Iterator[bytes]:
    """Yields the mapper's outputs of the task attempts that count, batch by batch.

    Failed or cancelled attempts may have left other rows.
    """
    for attempt in attempts:
        for _, output in tables.scan(table, *map_orders.stage_bounds(attempt)):
            yield output
