"""Serves data jobs: scans of snapshots in chunks, copies, and mappers that write tables.

It owns no table. A snapshot is a checkpoint that a table_worker makes and this actor opens for
reading. Jobs write through zerodb_server.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgpack
import zmq

from ...mapping.mapper_process import engine_of
from ...native.net.messages import Arena, Frames
from ...native.tables.mapper import pack_records
from ...net.clock import earliest, wall_ms
from ...net.libc import keep_freed_memory
from ...net.sockets import Socket
from ...protocols.access.grants import Right
from ...protocols.access.zap import AllowedKey, KeyChange
from ...protocols.zerodb.server import jobs as job
from ...protocols.zerodb.server.clients import Clients, decode_client, may_hold
from ...protocols.zerodb.server.context import features_of
from ...protocols.zerodb.server.jobs import (
    JobFailed,
    JobLimits,
    JobRefused,
    JobScan,
    JobTable,
    Lease,
)
from ...protocols.zerodb.server.map_orders import MapOrder
from ...protocols.zerodb.server.ownership import Ownership
from ...protocols.zerodb.wire import answers, ops, requests, values
from ...protocols.zerodb.wire import worker_pipe as pipe
from ...protocols.zerodb.wire.kept import KeptRow, encode_kept
from ...protocols.zerodb.wire.requests import decode_request, type_of
from ...protocols.zerodb.wire.worker_pipe import PIPE_HEADER
from ...storage.disk.disk import Disk
from ...storage.errors import StorageError
from ...storage.worker.job_store import ApidCounter, StatisticsFile
from ...storage.worker.lease_folder import FOLDER, LeaseFolder
from ...version import __version__
from ..runtime.actor import Actor
from .map_jobs import THREADS_MAX, JobPort, MapJobs, MapSpec
from .shared_leases import SharedLeases
from .spark_maps import JobServerParts, SparkMaps

CLIENTS_HWM = 32  # Chunks that a client may leave unread.
PIPE_HWM = 1024
ANSWER_BYTES_MAX = 32 << 20  # Of one wake; further requests wait for the next.
STORE_RETRY_MS = 1000
SWEEP_MS = 60_000


class Requester(NamedTuple):
    """The client of a request and the socket for its answer."""

    # None for a client at jobs_url; else the ticket of zerodb_server, which relays the answer.
    ticket: int | None
    routing_id: bytes
    envelope: bool  # Whether a REQ socket's empty frame follows the routing id.
    client: AllowedKey | None = None  # None: its endpoint has no CURVE.

    @property
    def owner(self) -> str | None:
        """The owner of what this client makes."""
        return None if self.client is None else self.client.name

    @property
    def limited(self) -> str | bytes:
        """What has limits: all connections of a key together, or this connection."""
        return self.routing_id if self.client is None else self.client.name


def _observes(requester: Requester) -> bool:
    return requester.client is None or requester.client.grants.may(Right.OBSERVE)


class WaitingRequest(NamedTuple):
    """A request whose job waits for its snapshot."""

    requester: Requester
    request: requests.Request
    table: int
    due_ms: int
    kept: KeptRow | None = None  # It waits until all nodes keep it.


class JobServer(Actor):
    """Runs the data jobs of one node.

    clients    ROUTER  requests 0x00, 0x40 to 0x46, 0x48, 0x50    at `jobs_url`, if there is one
    requests   PULL    [header][routing id][request frames ..]    the same, from zerodb_server
               PULL    [header][path][applied index and term]     a snapshot, from a table_worker
               PULL    [header] or [header][reason]               a write is done or failed
               PULL    [header]                                   a table_worker has applied an
                                                                  entry about a lease
    done       PUSH    [tag][routing id]([empty])[answer ..]      zerodb_server relays it
    asks       PUSH    [header][table][path]                      asks it for a snapshot
               PUSH    [header][table][packed operations]         asks it to write
               PUSH    [header][table][packed operations][reqid]  asks it for a log entry about a
                      ..[owner]                                   lease; both may be empty

    Headers and tags are PIPE_HEADER and ANSWER_TAG of protocols/zerodb.
    """

    role = "job_server"

    def on_start(self) -> None:
        keep_freed_memory()  # Chunks are large.
        settings, endpoints = self.settings.zerodb, self.settings.table_endpoints
        self.features = features_of(settings.open_on_the_fly)
        self._ownership = Ownership(b"", self.settings.reserved_tables, settings.local_tables)
        limits = JobLimits(
            idle_ms=1000 * settings.job_idle_s,
            chunk_pairs=settings.chunk_pairs,
            chunk_bytes_max=min(settings.response_bytes_max, JobLimits().chunk_bytes_max),
        )
        disk = Disk(self.setup.data_dir)
        self._apids = ApidCounter(disk, FOLDER)
        self._statistics = StatisticsFile(disk, FOLDER, limits.kept_max)
        self.table = JobTable(limits, self._apids.next)
        known = len(job.Statistics._fields)  # A later version may have stored more fields.
        self.table.restore([job.Statistics(*one[:known]) for one in self._statistics.loaded])
        self.lease_folder = LeaseFolder(disk.full_path(FOLDER))
        # zerodb_server relays keyed requests also where this process has no endpoint with CURVE.
        security = self.settings.security
        self.clients = Clients(security is None or security.enforce)
        self._waiting: dict[int, WaitingRequest] = {}
        self._requests: deque[tuple[Requester, list[bytes]]] = deque()
        self._unstored: list[job.Statistics] = []
        self._store_due_ms = 0
        self._open_pipes()
        self.shared = SharedLeases(self.table, self.lease_folder, self._port)
        self.maps = MapJobs(self, self.table, self._port)
        parts = JobServerParts(self.table, self.lease_folder, self.maps, self._port)
        self.spark = SparkMaps(self, settings.spark, parts)
        self._sweep()
        self._answers = Frames()
        self._clients: Socket | None = None
        if endpoints.jobs_url:
            self._open_client_socket(endpoints.jobs_url)
        self.ready()

    def _open_pipes(self) -> None:
        self._incoming = self.pull(
            "requests", self._on_incoming,
            message_bytes_max=values.REQUEST_BYTES_MAX + (1 << 20),
            message_frames_max=values.REQUEST_FRAMES_MAX + 8,
        )  # fmt: skip
        self._done = self.pipe(self.push("zerodb_server", "done", hwm=PIPE_HWM))
        asks = self.push("zerodb_server", "asks", hwm=PIPE_HWM)
        self._port = JobPort(self.pipe(asks), self.lease_folder, self._apids.next)
        self.watch_connections(asks, self._on_server_lost)

    def _open_client_socket(self, url: str) -> None:
        self._clients = self.bind_url(
            zmq.ROUTER, url, "zerodb.jobs_url", send_hwm=CLIENTS_HWM, router_mandatory=True,
            message_bytes_max=values.MAPPER_BYTES_MAX + (1 << 20),
        )  # fmt: skip
        self.listen(self._clients, self._on_clients)
        if self.access is not None:
            self.clients.attach(self.access.keyring)

    # ---- what comes in ----

    def _on_clients(self, arena: Arena) -> None:
        for number, (routing_id, *frames) in enumerate(arena.messages()):
            client = self.clients.of(arena, number)
            self._enqueue(Requester(None, routing_id, frames[:1] == [b""], client), frames)

    def on_denied(self, socket: Socket, arena: Arena) -> None:
        super().on_denied(socket, arena)
        for denial in self.clients.denials(arena, routed=True):
            if denial.answer:
                self._answers.add(denial.answer)
            self.log_rarely("request-denied", **denial.fields())

    def on_keys_changed(self, changes: Sequence[KeyChange]) -> None:
        for name in {name for _, name in changes}:
            self._on_key_changed(self.clients.current(name))

    def _on_incoming(self, arena: Arena) -> None:
        for head, frames in self.unpacked(arena, PIPE_HEADER, "requests"):
            kind, flags, _, code, log_index, ticket = head
            if kind == pipe.REQUEST and frames:
                client = decode_client(frames.pop()) if flags & pipe.KEYED else None
                requester = Requester(ticket, frames[0], bool(flags & pipe.ENVELOPE), client)
                self._enqueue(requester, frames[1:])
            elif kind == pipe.OWNERS and len(frames) in (1, 2):
                self.clients.owners = msgpack.unpackb(frames[0], strict_map_key=False)
                for kept in frames[1:]:
                    self.table.set_kept(frozenset(msgpack.unpackb(kept)), self.now_ms)
            elif kind == pipe.KEY_CHANGED and len(frames) == 1:
                self._on_key_changed(decode_client(frames[0]))
            elif (
                kind == pipe.CHECKPOINT
                and len(frames) == 2
                and len(frames[1]) == pipe.LOG_POSITION.size
            ):
                self._on_snapshot(ticket, frames[1])
            elif kind == pipe.JOB_WRITE:
                self._on_written(ticket, log_index)
            elif kind == pipe.LEASE:
                self._on_lease_applied(code, ticket)
            elif kind == pipe.FAILED and frames:
                retry = bool(flags & pipe.RETRYABLE)
                self._on_failed(ticket, frames[0].decode("utf-8", "replace"), retry)
            else:
                self.log_rarely("malformed-dropped", pipe="requests", size=len(frames))

    def _enqueue(self, requester: Requester, frames: list[bytes]) -> None:
        if requester.envelope and frames[:1] == [b""]:
            del frames[0]
        self._requests.append((requester, frames))

    def _answer(
        self,
        requester: Requester,
        frames: list[bytes],
        columns: Sequence[Any] = (),
        packed: bool = True,
    ) -> None:
        """Sends an answer, which may end with columns, or with their pairs."""
        head = [requester.routing_id, *([b""] if requester.envelope else []), *frames]
        if requester.ticket is not None:  # zerodb_server converts the columns to pairs.
            kind = 0 if packed else pipe.PAIRS
            mark = pipe.ANSWER_TAG.pack(pipe.JOB_SERVER, kind, 0, 0, requester.ticket)
            self._done.send([mark, *head, *columns])
        elif packed:
            self._answers.add([*head, *columns])
        else:
            self._answers.add_pairs(head, columns)

    @property
    def _is_full(self) -> bool:
        return self._done.full or self._port.full

    # ---- requests ----

    def _serve(self) -> None:
        """Serves waiting requests up to the limit of one wake."""
        size = 0
        while self._requests and size < ANSWER_BYTES_MAX and not self._is_full:
            requester, frames = self._requests.popleft()
            try:
                request = decode_request(frames)
                with self._refusals(requester, request):
                    if isinstance(request, requests.ClientData):
                        size += self._send_chunk(requester, request)
                    elif answer := self._on_request(requester, request):
                        self._answer(requester, answer)
            except requests.RequestError as error:
                self._answer(requester, answers.encode_refusal(error))

    @contextmanager
    def _refusals(self, requester: Requester, request: requests.Request) -> Iterator[None]:
        """Answers with the errors of what stands within."""
        try:
            yield
        except JobRefused as error:
            self._refuse(requester, request, str(error), retry=error.retry)
        except StorageError as error:
            # Another node may have the same snapshot.
            retry = values.is_shared(request.extension.lease)
            self._refuse(requester, request, str(error), database=True, retry=retry)

    def _on_request(self, requester: Requester, request: requests.Request) -> list[bytes] | None:
        """Serves a request; returns the answer, or None if it comes later.

        Raises JobRefused, RequestError, StorageError.
        """
        match request:
            case requests.RangeJob() | requests.ForwardRange():
                self._on_range_job(requester, request)
            case requests.MapTable():
                self._on_map(requester, request)
            case requests.CopyTable():
                self._on_copy(requester, request)
            case requests.Lease():
                return self._on_lease(requester, request)
            case requests.JobStatus(apid=apid):
                statistics = self.table.statistics(apid)
                if statistics is None:
                    raise JobRefused(job.UNKNOWN.format(apid=apid))
                if not _observes(requester):
                    self._check_job(requester, request, apid)
                return answers.STATUS.encode(request, statistics.fields())
            case requests.ListJobs():
                owner = None if _observes(requester) else requester.owner
                found = self.table.list_jobs(request.running, request.most, owner)
                return answers.JOBS.encode(request, ((one.apid, one.fields()) for one in found))
            case requests.EndJob():
                self._check_job(requester, request, request.apid)
                self._cancel(request.apid)
                return answers.encode_ok(request)
            case requests.ServerInfo():
                return answers.encode_server_info(request, self.features, f"kelek {__version__}")
            case _:
                text = "this endpoint serves data jobs alone; send this to the node's url"
                raise requests.RequestError(
                    values.PROTOCOL_ERROR, values.ERROR, text, request.extension
                )
        return None

    def _cancel(self, apid: int) -> None:
        self.table.cancel(apid, wall_ms())
        self.maps.cancel(apid)

    # ---- owners ----

    def _check_job(self, requester: Requester, request: requests.Request, apid: int) -> None:
        """Raises RequestError if the job, running or ended, is of another key."""
        found = self.table.statistics(apid)
        if found is not None:
            self._check_owner(requester, request, found.owner, f"data job {apid}")

    def _check_owner(
        self, requester: Requester, request: requests.Request, owner: str | None, what: str
    ) -> None:
        if not self.clients.may_use(requester.client, owner, what):
            text = f"{what} is of another key"
            raise answers.not_allowed(type_of(request), request.extension, text)

    def _on_key_changed(self, key: AllowedKey) -> None:
        """Ends what a key has and its grants no longer allow: as for a client that is lost."""
        for apid, one in list(self.table.jobs.items()):
            if one.owner == key.name and not may_hold(key, one.table, one.target):
                self._cancel(apid)
        for lease in self.table.leases:
            owner = self.clients.owners.get(lease.number, lease.owner)
            if owner == key.name and not may_hold(key, lease.table):
                self._release(lease.number)
        for ticket, (requester, request, table, *_) in list(self._waiting.items()):
            target = getattr(request, "target", None)
            if requester.owner == key.name and not may_hold(key, table, target):
                del self._waiting[ticket]
                error = answers.not_allowed(type_of(request), request.extension)
                self._answer(requester, answers.encode_refusal(error))

    def _release(self, number: int) -> None:
        if values.is_shared(number):
            self.shared.request(self._apids.next(), ops.LeaseEnd(0, number))
        else:
            self.table.release(number)

    def _refuse(
        self,
        requester: Requester,
        request: requests.Request,
        text: str,
        database: bool = False,
        retry: bool = False,
    ) -> None:
        """database: the engine reported it. retry: a later attempt may succeed."""
        code = values.DATABASE_ERROR if database else values.ERROR
        if isinstance(request, requests.RangeJob | requests.ForwardRange | requests.JobStatus):
            code = values.REQUEST_ERROR
        self._answer(requester, answers.encode_error(request, code, text, retry))

    def _send_chunk(self, requester: Requester, request: requests.ClientData) -> int:
        """Answers with a chunk; returns its size in bytes. Raises RequestError."""
        apid, extension = request.apid or 0, request.extension
        self._check_job(requester, request, apid)
        try:
            chunk = self.table.chunk(apid, self.now_ms, wall_ms(), extension.bytes_max)
        except (JobFailed, StorageError) as error:
            if isinstance(error, StorageError):
                self.table.fail(apid, str(error), wall_ms())
            raise requests.RequestError(
                values.PROTOCOL_ERROR, values.ERROR, str(error), extension
            ) from error
        head = answers.encode_head(values.CLIENT_DATA, chunk.flags, extension)
        packed = bool(extension.flags & values.PACKED) or not chunk.columns
        self._answer(requester, [head], chunk.columns, packed)
        return sum(map(len, chunk.columns))

    def _on_lease(self, requester: Requester, request: requests.Lease) -> list[bytes] | None:
        if request.action == requests.LEASE_OPEN:
            if request.table in self.settings.zerodb.local_tables:
                raise JobRefused(f"table {request.table} is local, each node's own")
            self.table.check_room(shared=True)
            self._check_client(requester, jobs=0, leases=1)
            ticket = self._add_waiting(requester, request, request.table)
            opened = ops.LeaseOpen(request.table, wall_ms())
            self.shared.request(ticket, opened, request.extension.reqid, requester.owner)
            return None
        if request.action == requests.SNAPSHOT_KEEP:
            self._keep_snapshot(requester, request)
            return None
        if request.action == requests.LEASE_RENEW:
            self._lease(requester, request, request.lease)
            self.table.renew(request.lease, self.now_ms)
        elif values.is_shared(request.lease):
            self._check_release(requester, request)
            ticket = self._add_waiting(requester, request, 0)
            self.shared.request(ticket, ops.LeaseEnd(0, request.lease), request.extension.reqid)
            return None
        else:
            self._lease(requester, request, request.lease)
            self.table.release(request.lease)
        return answers.encode_ok(request)

    def _keep_snapshot(self, requester: Requester, request: requests.Lease) -> None:
        """Asks for the entry that keeps a snapshot on all nodes, or keeps it no longer. Raises
        JobRefused, RequestError, StorageError."""
        number, table = request.lease, request.table
        if not values.is_shared(number):
            raise JobRefused(f"lease {number} belongs to one node, which can't keep it")
        self._check_release(requester, request)
        kept = KeptRow(table, number, request.name, owner=requester.owner or "")
        if request.ttl_ms:
            lease = self._lease(requester, request, number)
            if lease.table != table:
                raise JobRefused(f"lease {number} is of table {lease.table}, not {table}")
            if len({*self.table.kept} - {number}) >= values.KEPT_SNAPSHOTS_MAX:
                most = values.KEPT_SNAPSHOTS_MAX
                raise JobRefused(f"the nodes keep {most} snapshots already; release one")
            now_ms = wall_ms()
            kept = kept._replace(taken_ms=lease.unix_ms or now_ms, until_ms=now_ms + request.ttl_ms)
        ticket = self._add_waiting(requester, request, table)
        self._waiting[ticket] = self._waiting[ticket]._replace(kept=kept)
        self.shared.keep(ticket, request, kept)
        if not request.ttl_ms:
            self._release(number)  # Else it would stay until it has been idle.

    def _lease(
        self,
        requester: Requester,
        request: requests.Request,
        number: int,
        reads: int | None = None,
    ) -> Lease:
        """Returns the lease. Raises JobRefused if it does not exist, RequestError if it is of
        another key, and StorageError.

        reads   the table that a job is to read: each key that may do so can use a kept snapshot
        """
        if values.is_shared(number):
            self.shared.adopt(number, self.now_ms)
        lease = self.table.lease(number)
        if number in self.table.kept and reads == lease.table:
            return lease
        owner = self.clients.owners.get(number) if values.is_shared(number) else lease.owner
        if owner is not None or not values.is_shared(number):
            self._check_owner(requester, request, owner, f"lease {number}")
        return lease

    def _check_release(self, requester: Requester, request: requests.Lease) -> None:
        """Raises RequestError if a lease of all nodes is of another key, JobRefused if its owner is
        not known here yet."""
        owner, client = self.clients.owners.get(request.lease), requester.client
        is_admin = client is None or client.grants.may(Right.ADMIN)
        if owner is None and self.clients.enforces and not is_admin:
            raise JobRefused(f"the owner of lease {request.lease} is not known here", retry=True)
        self._check_owner(requester, request, owner, f"lease {request.lease}")

    def _on_lease_applied(self, what: int, number: int) -> None:
        with self._logged("lease-not-read"):
            self.shared.on_applied(what, number, self.now_ms)

    @contextmanager
    def _logged(self, event: str) -> Iterator[None]:
        """Logs an error of the disk."""
        try:
            yield
        except StorageError as error:
            self.log_rarely(event, reason=str(error))

    def _on_written(self, ticket: int, log_index: int) -> None:
        """Handles an entry that was requested and is now applied here."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is None:
            if not self.shared.on_written(ticket):
                self.maps.on_written(ticket)
        elif isinstance(waiting.request, requests.Lease):
            with self._refusals(waiting.requester, waiting.request):
                self._answer_lease(waiting, waiting.request, log_index)

    def _answer_lease(
        self, waiting: WaitingRequest, request: requests.Lease, log_index: int
    ) -> None:
        """Answers a lease request. The entry is applied here: the lease is open, kept or
        released everywhere."""
        if request.action == requests.LEASE_RELEASE:
            self.table.on_lease_released(request.lease)
            self._answer(waiting.requester, answers.encode_ok(request))
            return
        if waiting.kept is not None:
            answer = answers.KEPT.encode(request, encode_kept(waiting.kept))
            self._answer(waiting.requester, answer)
            return
        lease = self.shared.adopt(values.shared_lease(log_index), self.now_ms)
        if lease is None:
            # The client must not retry by itself: each attempt would cost all nodes a snapshot.
            raise JobRefused(
                f"entry {log_index} opens a lease, but this node has no snapshot of it"
            )
        if waiting.requester.owner is not None:
            self.clients.owners = {**self.clients.owners, lease.number: waiting.requester.owner}
        self.table.set_client(lease.number, waiting.requester.limited)
        self._answer(waiting.requester, answers.LEASE.encode(request, self._lease_answer(lease)))

    def _lease_answer(self, lease: Lease) -> answers.SnapshotLease:
        """Returns what a client receives about a lease. Raises StorageError."""
        place = lease.number, lease.path, lease.log_index, lease.term
        return answers.SnapshotLease(*place, self.lease_folder.nonce(lease.number))

    # ---- jobs begin ----

    def _on_range_job(
        self, requester: Requester, request: requests.RangeJob | requests.ForwardRange
    ) -> None:
        extension = request.extension
        if extension.flags & values.WITH_LEASE and extension.lease:
            lease = self._lease(requester, request, extension.lease, request.table)
            self.table.check_not_released(lease.number)
            if (
                request.table != lease.table
                and request.table not in self.lease_folder.tables(lease.number).tables()
            ):
                raise JobRefused(f"lease {lease.number} does not hold table {request.table}")
            self._check_client(requester, jobs=1, leases=0)
            self._scan(WaitingRequest(requester, request, request.table, 0), lease)
        else:
            self._request_snapshot(requester, request, request.table)

    def _on_map(self, requester: Requester, request: requests.MapTable) -> None:
        if self.settings.zerodb.mapper == "off":
            raise JobRefused(
                "mappers are switched off; zerodb: {mapper: wasm} in the topology allows them"
            )
        _, problem = engine_of(request.mapper, self.settings.zerodb.allow_native)
        if problem:
            raise JobRefused(problem)
        self._check_maps(min(max(request.threads, 1), THREADS_MAX))
        self._request_snapshot(requester, request, request.source)

    def _on_copy(self, requester: Requester, request: requests.CopyTable) -> None:
        if request.source == request.target:
            raise JobRefused(f"table {request.source} is not copied into itself")
        self._check_maps(0)
        self._request_snapshot(requester, request, request.source)

    def _check_maps(self, threads: int) -> None:
        problem = self.maps.refusal(threads)
        if problem:
            raise JobRefused(problem)

    def _request_snapshot(
        self, requester: Requester, request: requests.Request, table: int
    ) -> None:
        """Asks for a snapshot of the table as it is after this request."""
        self.table.check_room()
        self._check_client(requester, jobs=1, leases=1)
        self._port.request_snapshot(self._add_waiting(requester, request, table), table)

    def _check_client(self, requester: Requester, jobs: int, leases: int) -> None:
        """Raises JobRefused if a client can't have so many more jobs and leases here."""
        limits, client = self.settings.limits, requester.limited
        waiting = sum(each.requester.limited == client for each in self._waiting.values())
        named = {number for number, owner in self.clients.owners.items() if owner == client}
        held = waiting + len(named | self.table.leases_of(client))
        running = waiting + self.table.jobs_of(client)
        text = ""
        if held + leases > limits.client_leases_max:
            text = f"this client has {held} snapshots already; release one"
        elif running + jobs > limits.client_jobs_max:
            text = f"this client has {running} data jobs already; wait until one has ended"
        if text:
            self.counters["client_limit_refused"] += 1
            raise JobRefused(text)

    def _add_waiting(self, requester: Requester, request: requests.Request, table: int) -> int:
        """Stores the waiting request and returns the ticket of its snapshot."""
        if len(self._waiting) >= self.table.limits.leases_max or self._port.full:
            raise JobRefused(
                f"{len(self._waiting)} snapshots are being made already; wait for them"
            )
        ticket = self._apids.next()
        self._waiting[ticket] = WaitingRequest(
            requester, request, table, self.now_ms + 2 * self.settings.zerodb.request_timeout_ms
        )
        return ticket

    def _on_failed(self, ticket: int, reason: str, retry: bool) -> None:
        waiting = self._waiting.pop(ticket, None)
        if self.spark.on_failed(ticket, reason, retry, self.now_ms):
            return
        if waiting is None:
            if not self.shared.on_failed(ticket, self.now_ms):
                self.maps.on_refused(ticket, reason, retry, self.now_ms)
            return
        text = f"no snapshot of table {waiting.table} can be taken: {reason}"
        match waiting.request:
            case requests.Lease(lease=number, action=requests.LEASE_RELEASE):
                text = f"lease {number} is not released on all nodes: {reason}"
            case requests.Lease(lease=number, action=requests.SNAPSHOT_KEEP):
                text = f"the nodes were not told to keep, or to release, lease {number}: {reason}"
        self._refuse(waiting.requester, waiting.request, text, database=True, retry=retry)

    def _on_server_lost(self) -> None:
        """Handles the end of zerodb_server: its answers may never come."""
        for ticket in list(self._waiting):
            self._on_failed(ticket, "the node's zerodb_server has ended", retry=True)
        self.shared.on_server_lost(self.now_ms)
        self.maps.resend_writes()
        self.spark.request_snapshots()

    def _on_snapshot(self, ticket: int, place: bytes) -> None:
        waiting = self._waiting.pop(ticket, None)
        log_index, term = pipe.LOG_POSITION.unpack(place)
        if self.spark.on_snapshot(ticket, log_index, term):
            return
        if waiting is None:  # Too late: no request waits for it.
            self.lease_folder.remove(ticket)
            return
        path, owner = self.lease_folder.path(ticket), waiting.requester.owner
        client = waiting.requester.limited
        lease = Lease(ticket, waiting.table, path, log_index, term, owner, client)
        keeps = bool(waiting.request.extension.flags & values.WITH_LEASE)
        self.table.add_lease(lease, keeps, self.now_ms)
        try:
            self._start_job(waiting, lease)
        except (JobRefused, StorageError) as error:
            self.table.release(lease.number)
            failed = isinstance(error, StorageError)
            self._refuse(waiting.requester, waiting.request, str(error), database=failed)

    def _start_job(self, waiting: WaitingRequest, lease: Lease) -> None:
        match waiting.request:
            case requests.MapTable() as request:
                engine, _ = engine_of(request.mapper, self.settings.zerodb.allow_native)
                flat = [part for pair in request.parameters for part in pair]
                threads = min(max(request.threads, 1), THREADS_MAX)
                spec = MapSpec(request.target, engine, request.mapper, pack_records(flat), threads)
                self._start_map(waiting, lease, spec)
            case requests.CopyTable() as request:
                self._start_map(waiting, lease, MapSpec(request.target))
            case _:
                self._scan(waiting, lease)

    def _scan(self, waiting: WaitingRequest, lease: Lease) -> None:
        request = waiting.request
        assert isinstance(request, requests.RangeJob | requests.ForwardRange)
        chunk = request.chunk_pairs if isinstance(request, requests.RangeJob) else None
        limit = request.limit if isinstance(request, requests.ForwardRange) else None
        tables = self.lease_folder.tables(lease.number)
        range_ = request.table, request.start, job.end_exclusive(request.end)
        pairs = tables.pieces(*range_, not request.extension.flags & values.KEYS_ONLY)
        request_type = type_of(request)
        owner = waiting.requester.owner
        client = waiting.requester.limited
        scan = JobScan(
            request_type, request.table, lease.number, chunk, limit, owner=owner, client=client
        )
        apid = self.table.start(scan, pairs, self.now_ms, wall_ms())
        shown = None
        if request.extension.flags & values.WITH_LEASE:
            shown = self._lease_answer(lease)
        self._answer(waiting.requester, answers.JOB.encode(request, (apid, shown)))

    def _start_map(self, waiting: WaitingRequest, lease: Lease, spec: MapSpec) -> None:
        request = waiting.request
        assert isinstance(request, requests.MapTable | requests.CopyTable)
        if self._ownership.is_reserved(request.target):
            raise JobRefused(f"table {request.target} is reserved: no job writes to it")
        tables = self.lease_folder.tables(lease.number)
        info = tables.info(request.source)
        size = info.size if info is not None else 0
        on_spark = self.spark.accepts(spec, size)
        if on_spark and self.spark.full:
            raise JobRefused(self.spark.full)
        self._check_maps(spec.threads if spec.engine and not on_spark else 0)
        bounds = (request.start, request.end) if isinstance(request, requests.CopyTable) else ()
        pairs = tables.pieces(request.source, *bounds)
        kind = type_of(request)
        owner = waiting.requester.owner
        client = waiting.requester.limited
        scan = JobScan(
            kind, request.source, lease.number, target=spec.target, owner=owner, client=client
        )
        apid = self.table.start(scan, pairs, self.now_ms, wall_ms())

        def on_started(problem: str) -> None:
            if problem:
                self._refuse(waiting.requester, request, problem)
            else:
                self._answer(waiting.requester, answers.JOB.encode(request, (apid, None)))

        if on_spark:
            parted = spec.threads > 1
            order = MapOrder(
                request.source, lease.number, size, parted,
                spec.engine, spec.module, spec.parameters,
            )  # fmt: skip
            self.spark.start(apid, spec, order, on_started)
        else:
            self.maps.start(apid, spec, on_started)

    # ---- time ----

    def on_wake(self, now_ms: int) -> None:
        self._serve()
        self.maps.tick(now_ms)
        self.maps.pump(now_ms)
        self.spark.pump(now_ms)
        self.table.tick(now_ms, wall_ms())
        for ticket in [it for it, waiting in self._waiting.items() if now_ms >= waiting.due_ms]:
            self._on_failed(ticket, "no worker made it in time", retry=True)
        if not self._port.full:
            with self._logged("disk-not-read"):
                self.shared.tick(now_ms)
        if now_ms >= self._sweep_due_ms:
            self._sweep()
        for lease in self.table.pop_freed():
            self.lease_folder.remove(lease.number)
        self._store(now_ms)
        self.write_audit(self.clients.trail)
        if self._clients is not None:
            self.send_batch(self._clients, self._answers)
        for socket in (self._incoming, self._clients):
            if socket is not None:
                self.set_paused(socket, bool(self._requests) or self._is_full)

    def _sweep(self) -> None:
        self._sweep_due_ms = self.now_ms + SWEEP_MS
        with self._logged("lease-not-read"):
            self.shared.adopt_all(self.now_ms)
        held = {lease.number for lease in self.table.leases}
        self.lease_folder.sweep({*self._waiting, *self.spark.tickets, *held})

    def _store(self, now_ms: int) -> None:
        ended = self.table.pop_ended()
        for one in ended:
            if one.state == job.FAILED:
                self.log("job-failed", apid=one.apid, reason=one.reason)
        self._unstored += ended
        if not self._unstored or now_ms < self._store_due_ms:
            return
        try:
            self._statistics.add([list(one) for one in self._unstored])
        except StorageError as error:
            self.log_rarely("statistics-not-stored", reason=str(error))
            self._store_due_ms = now_ms + STORE_RETRY_MS
            return
        self._unstored = []

    def deadline_ms(self) -> int | None:
        parts = self.table, self.maps, self.spark
        return earliest(
            self._sweep_due_ms,
            0 if self._requests and not self._is_full else None,
            self._store_due_ms if self._unstored else None,
            None if self._port.full else self.shared.deadline_ms(),
            *(waiting.due_ms for waiting in self._waiting.values()),
            *(part.deadline_ms() for part in parts),
        )

    def on_stop(self) -> None:
        self.maps.close()
        self.spark.close()
        for lease in self.table.leases:
            if not values.is_shared(lease.number):  # The next job_server continues with these.
                self.lease_folder.remove(lease.number)

    def status(self) -> dict[str, object]:
        return {
            "jobs": len(self.table.jobs),
            "leases": len(self.table.leases),
            "shared_leases": len(self.table.shared),
            "mappers": self.maps.processes,
            "rows": sum(one.rows for one in self.table.jobs.values()),
            **self.spark.status(),
        }
