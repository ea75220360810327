"""The jobs that write a table from a snapshot: through mappers (0x41) or as a copy (0x44).

They read through the job table and write by requests to zerodb_server. This module uses no socket.
"""

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...mapping import mapper
from ...mapping.mapper_process import (
    BATCH_BYTES,
    BATCH_PAIRS,
    CALLS_MAX,
    WRITES_MAX,
    Event,
    MapperProcess,
)
from ...native.tables.mapper import MalformedOutput, output_ops, pack_records
from ...net.clock import earliest, wall_ms
from ...net.poll_loop import Pipe, PollLoop
from ...protocols.zerodb.server.jobs import JobTable
from ...protocols.zerodb.wire.ops import Put, pack
from ...protocols.zerodb.wire.worker_pipe import CHECKPOINT, JOB_WRITE, PIPE_HEADER
from ...storage.errors import StorageError
from ...storage.worker.lease_folder import LeaseFolder

THREADS_MAX = 4  # Of one job.
PROCESSES_MAX = 16  # Of all jobs; also the limit of copies.
WRITE_RESEND_MS = 10_000  # A request may get lost with the process that had it.
WRITE_GIVE_UP_MS = 60_000  # Counts only while each answer is "try again".
RETRY_MS = 200


class StartReport:
    """Reports once: "", or the reason why the job cannot start."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report: Callable[[str], None] | None = report

    def __call__(self, problem: str) -> None:
        report, self._report = self._report, None
        if report is not None:
            report(problem)


class JobPort:
    """The requests of job_server and its parts to zerodb_server."""

    def __init__(self, requests: Pipe, folder: LeaseFolder, next_ticket: Callable[[], int]) -> None:
        self._requests = requests
        self._folder = folder
        self.next_ticket = next_ticket

    @property
    def full(self) -> bool:
        return self._requests.full

    def request(self, kind: int, ticket: int, table: int, *data: bytes) -> None:
        head = PIPE_HEADER.pack(kind, 0, 0, 0, 0, ticket)
        self._requests.send([head, table.to_bytes(4, "little"), *data])

    def request_snapshot(self, ticket: int, table: int) -> None:
        self.request(CHECKPOINT, ticket, table, os.fsencode(self._folder.path(ticket)))


class MapSpec(NamedTuple):
    """What a job writes, and where."""

    target: int
    engine: str = ""  # Engine of the mapper; "" if no mapper runs here.
    module: bytes = b""
    parameters: bytes = b""  # Packed records.
    threads: int = 1
    # Outputs of a mapper that ran elsewhere; None for a copy.
    staged: Iterator[bytes] | None = None


class MapWrite(NamedTuple):
    """One entry that the job asks zerodb_server to write."""

    entry: bytes
    puts: int
    deletes: int
    sent_ms: int  # Of the last request; earlier, so that RETRY_MS remain, after a refusal.
    give_up_ms: int
    refused: bool = False  # Refused; the job requests it again.


class MapJob:
    """One job: its mappers and its outstanding writes."""

    def __init__(self, apid: int, spec: MapSpec, report_start: StartReport) -> None:
        self.apid = apid
        self.spec = spec
        self.report_start = report_start
        self.processes: list[MapperProcess] = []
        self.starting = 0  # Processes that have not reported their start.
        self.running = 0  # Processes that have not sent their last output.
        self.reading = True
        self.writes: dict[int, MapWrite] = {}  # By ticket, oldest first.


class MapJobs:
    """All jobs that write. Every method may end jobs in the table."""

    def __init__(self, loop: PollLoop, table: JobTable, port: JobPort) -> None:
        self._loop = loop
        self._table = table
        self._port = port
        self._jobs: dict[int, MapJob] = {}
        self._by_ticket: dict[int, MapJob] = {}

    @property
    def processes(self) -> int:
        return sum(len(job.processes) for job in self._jobs.values())

    def refusal(self, threads: int) -> str:
        """Why no further job can start; "" if it can."""
        if self.processes + threads > PROCESSES_MAX or len(self._jobs) >= PROCESSES_MAX:
            return f"{self.processes} mappers run already; wait until a job has ended"
        return ""

    def start(self, apid: int, spec: MapSpec, report_start: Callable[[str], None]) -> None:
        """Starts the mappers of a job that is in the table. Raises OSError if no process can
        start."""
        job = self._jobs[apid] = MapJob(apid, spec, StartReport(report_start))
        if not spec.engine:
            job.report_start("")
            return
        try:
            for _ in range(min(max(spec.threads, 1), THREADS_MAX)):
                job.processes.append(MapperProcess(self._loop, spec.engine, self._on_event))
        except OSError as error:
            self._fail(job, f"no mapper can be started: {error.strerror}")
            return
        job.starting = job.running = len(job.processes)
        for process in job.processes:
            process.start(spec.module, spec.parameters)

    # ---- from the table to the mappers ----

    def pump(self, now_ms: int) -> None:
        """Continues every job. Call it once in a wake."""
        for job in list(self._jobs.values()):
            self._table.touch(job.apid, now_ms)
            self._resend_late_writes(job, now_ms)
            if job.apid in self._jobs:
                try:
                    self._feed(job)
                except (StorageError, OSError, MalformedOutput) as error:
                    self._fail(job, str(error))

    def _feed(self, job: MapJob) -> None:
        if job.spec.engine:
            for process in job.processes:
                while job.reading and process.calls < CALLS_MAX and len(job.writes) < WRITES_MAX:
                    frames = self._read_batch(job)
                    if frames:
                        process.map(pack_records(frames))
        elif job.spec.staged is not None:
            while job.reading and len(job.writes) < WRITES_MAX:
                output = next(job.spec.staged, None)
                if output is None:
                    job.reading = False
                else:
                    self._write_output(job, output)
        else:
            while job.reading and len(job.writes) < WRITES_MAX:
                frames = self._read_batch(job)
                if frames:
                    put = Put(job.spec.target, frames[::2], frames[1::2])
                    self._write(job, pack([put]), len(put.keys), 0)
        if not (job.reading or job.writes or job.running):
            self._end(job)
            self._table.finish(job.apid, wall_ms())

    def _read_batch(self, job: MapJob) -> list[bytes]:
        frames = self._table.next_pairs(job.apid, BATCH_PAIRS, BATCH_BYTES)
        if not frames:
            job.reading = False
            for process in job.processes:
                process.end()
        return frames

    def _on_event(self, process: MapperProcess, event: Event) -> None:
        job = next((job for job in self._jobs.values() if process in job.processes), None)
        if job is None:
            return
        if event.kind == mapper.FAILED:
            self._fail(job, event.data.decode("utf-8", "replace"))
        elif event.kind == mapper.STARTED:
            job.starting -= 1
            if not job.starting:
                job.report_start("")
        else:
            job.running -= event.end
            try:
                self._write_output(job, event.data)
            except (MalformedOutput, StorageError) as error:
                self._fail(job, str(error))

    # ---- from the mappers to the table ----

    def _write_output(self, job: MapJob, data: bytes) -> None:
        """Requests one output to be written.

        Raises MalformedOutput, and StorageError if no ticket can be stored because the disk is
        full.
        """
        output = output_ops(data, job.spec.target)
        if output.puts or output.deletes:
            self._write(job, output.entry, output.puts, output.deletes)

    def _write(self, job: MapJob, entry: bytes, puts: int, deletes: int) -> None:
        ticket = self._port.next_ticket()
        now_ms = self._loop.now_ms
        job.writes[ticket] = MapWrite(entry, puts, deletes, now_ms, now_ms + WRITE_GIVE_UP_MS)
        self._by_ticket[ticket] = job
        self._port.request(JOB_WRITE, ticket, job.spec.target, entry)

    def on_written(self, ticket: int) -> None:
        """Handles a completed write. A write that overtook a refused one is repeated after it, in
        order."""
        job = self._by_ticket.get(ticket)
        if job is None:
            return
        if any(write.refused for other, write in job.writes.items() if other < ticket):
            return
        write = job.writes.pop(ticket)
        del self._by_ticket[ticket]
        self._table.add_output(job.apid, write.puts, write.deletes)

    def on_refused(self, ticket: int, reason: str, retry: bool, now_ms: int) -> None:
        """Handles a refusal. retry: a later attempt may succeed, as when there is no leader for a
        moment."""
        job = self._by_ticket.get(ticket)
        if job is None:
            return
        write = job.writes[ticket]
        if not retry or now_ms >= write.give_up_ms:
            self._fail(job, reason)
            return
        due_ms = now_ms + RETRY_MS
        job.writes[ticket] = write._replace(sent_ms=due_ms - WRITE_RESEND_MS, refused=True)

    def _resend_late_writes(self, job: MapJob, now_ms: int) -> None:
        """Repeats writes without an answer, and all writes after them.

        The last write of a key must stay the last.
        """
        late = any(now_ms >= write.sent_ms + WRITE_RESEND_MS for write in job.writes.values())
        if not late:
            return
        for ticket, write in job.writes.items():
            if now_ms >= write.give_up_ms + WRITE_RESEND_MS:
                self._fail(job, "the output could not be written for a minute")
                return
            job.writes[ticket] = write._replace(sent_ms=now_ms, refused=False)
            self._port.request(JOB_WRITE, ticket, job.spec.target, write.entry)

    def resend_writes(self) -> None:
        """Repeats all outstanding writes, because they may have been lost."""
        for job in self._jobs.values():
            for ticket, write in job.writes.items():
                job.writes[ticket] = write._replace(sent_ms=-WRITE_RESEND_MS)

    # ---- ends ----

    def _fail(self, job: MapJob, reason: str) -> None:
        self._end(job)
        self._table.fail(job.apid, reason, wall_ms())
        job.report_start(reason)

    def cancel(self, apid: int) -> None:
        """Ends the mappers of a job that has left the table. Outstanding writes may still
        happen."""
        job = self._jobs.get(apid)
        if job is not None:
            self._end(job)
            job.report_start("it was ended")

    def _end(self, job: MapJob) -> None:
        for process in job.processes:
            process.kill()
        for ticket in job.writes:
            del self._by_ticket[ticket]
        del self._jobs[job.apid]

    def close(self) -> None:
        for job in list(self._jobs.values()):
            self._end(job)

    # ---- time ----

    def tick(self, now_ms: int) -> None:
        for job in list(self._jobs.values()):
            for process in list(job.processes):
                process.tick(now_ms)

    def deadline_ms(self) -> int | None:
        jobs = self._jobs.values()
        return earliest(
            *(write.sent_ms + WRITE_RESEND_MS for job in jobs for write in job.writes.values()),
            *(process.deadline_ms() for job in jobs for process in job.processes),
        )
