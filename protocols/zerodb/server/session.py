"""The ZeroDB server without I/O: it gives each request to the module of its class.

WriteRequests (writes.py), ReadRequests (reads.py) and JobRequests (job_requests.py) hold a request
from its arrival to its answer; Outbox has the answers. Local writes and stale reads go to a worker
at once. WorkerChannel keeps what a worker was given until the worker has answered it, and finished
answers of workers pass the owner unread.

C code recognises the common requests of a receive: rows of `Requests`, whose messages C code moves,
too. Other requests are decoded one by one. While all writes are plain, C code also packs, sends and
answers them (`plain`), and the owner calls take_back() before anything else concerns them.
"""

from collections.abc import Callable, Sequence

from ....native.net.messages import Arena
from ....native.tables.channels import ReadChannels
from ....native.tables.plain import PACKS, WORKERS_MAX, PlainWrites
from ....native.tables.requests import READ, WRITE, Requests
from ....native.tables.rounds import ReadRounds
from ....native.tables.row_cache import RowReaders
from ...access.table_audit import TableAudit, is_audited
from ...access.zap import AllowedKey
from ...zmqraft.client.client import LogClientMachine
from ..wire import answers, requests, values
from ..wire import worker_pipe as pipe
from ..wire.requests import RequestError, decode_request, peek
from ..wire.worker_pipe import ONE_WAY, PIPE_HEADER, REQUEST, Message
from .clients import Denial
from .context import Now, ServerContext, SessionSetup, features_of
from .job_requests import JobRequests
from .proposals import UNAPPLIED_MAX
from .reads import ReadRequests
from .worker_channel import WorkerChannel, add_request
from .writes import WriteRequests

# They concern a node, not a table.
LOCAL_TYPES = frozenset({values.CLOSE_TABLE, values.COMPACT_TABLE})
INFLIGHT_MAX = 1 << 17  # Unanswered requests; above this the server reads no client sockets.
INFLIGHT_BYTES_MAX = 256 << 20


class Session:
    """All requests of one server.

    The owner passes in messages. After ready() it sends what the outbox has, and the batches of the
    channels.
    """

    def __init__(
        self,
        setup: SessionSetup,
        client: LogClientMachine,
        new_reqids: Callable[[int], list[bytes]],
        leased_index: Callable[[], int] = lambda: 0,
    ) -> None:
        """leased_index: as in ServerContext"""
        self.setup = setup
        self.client = client
        self._context = ServerContext(setup, client, leased_index)
        self.channels = self._context.channels
        self.outbox = self._context.outbox
        self.clients = self._context.clients
        self.audit = TableAudit(self.clients.trail)
        self.writes = WriteRequests(self._context, new_reqids, self._take_back_writes)
        self.plain = PlainWrites(
            client.setup.cluster,
            self.writes.proposals.latency,
            maker=setup.maker,
            entry_bytes_max=self.writes.entry_bytes_max,
            workers=setup.workers,
            timeout_ms=setup.request_timeout_ms,
        )
        self.rounds = ReadRounds(client.setup.cluster, setup.maker)
        self._plain_noticed = 0  # Of plain.taken, when workers were last told that it waits.
        self.reads = ReadRequests(self._context)
        self.jobs = JobRequests(self._context, self.writes, self.reads)
        self.has_log_requests = True  # The log client has requests to send in this wake.
        self.is_full = False  # The owner must not read client sockets.
        self._has_received = False  # Requests have arrived since is_full was computed.

    @property
    def may_wait(self) -> bool:
        """Whether what the leader sends may come with another event."""
        return self.writes.proposals.may_wait and not len(self._context.client.reads)

    # ---- plain writes and reads in C ----

    @property
    def read_channels(self) -> ReadChannels:
        return self._context.reads

    @property
    def rows(self) -> RowReaders:
        """What C answers reads from."""
        return self._context.rows

    def open_channels(self) -> None:
        """Lets C send to those workers that take requests."""
        for channel in self.channels:
            channel.open_reads()

    @property
    def reads_in_c(self) -> bool:
        """Whether C may serve plain reads now. It needs the lease of the node's peer or index_url,
        and open channels."""
        return not (self.setup.stale_allowed or self.reads.rounds or self.reads.new.frames)

    @property
    def answers_in_c(self) -> bool:
        """Whether C may pass answers of workers unseen."""
        return not (len(self.outbox.scatter_gather) or len(self.audit))

    @property
    def index_url(self) -> str | None:
        """Where plain reads may ask for their index in C; None: not now."""
        return self.client.index_url if self.reads_in_c else None

    @property
    def plain_url(self) -> str | None:
        """Where C may send plain writes to now; None: not now."""
        checks, client = self.writes.checks, self.client
        url = client.packs_url
        if (
            url is None
            or not (self.plain.has_tables and self.writes.proposals.is_idle)
            or client.window.packs_allowed < min(PACKS, client.setup.limits.packs)
            or len(checks.fence)
            or checks.existence.count
            or any(channel.status.refusal for channel in self.channels)
        ):
            return None
        return url

    def take_back(self, now: Now | None = None) -> None:
        """Takes over what C has not finished: before other writes follow, and before the log client
        learns anything about the leader."""
        self._take_back_reads(self._context.now if now is None else now)
        self._take_back_writes(now)

    def _take_back_writes(self, now: Now | None = None) -> None:
        now = self._context.now if now is None else now
        if self.plain.is_empty:
            return
        packs, rest = self.plain.take_back()
        self.writes.proposals.take_over(packs, now.ms)
        if rest is not None:
            self.on_requests(rest[0], now, rest[1])

    def _take_back_reads(self, now: Now) -> None:
        """Takes over reads that C has asked the leader for."""
        if not self.rounds.is_empty:
            for frames in self.rounds.take_back():
                self.on_requests(frames, now)

    def _on_applied(self) -> None:
        """What the workers have applied, or whether they refuse writes, has changed."""
        statuses = [channel.status for channel in self.channels]
        ahead = 0 if any(each.refusal for each in statuses) else UNAPPLIED_MAX
        self.plain.set_applied_max(min(each.applied_index for each in statuses) + ahead)

    # ---- arrival ----

    def on_requests(self, arena: Arena, now: Now, taken: int | None = None) -> None:
        """Handles messages of the ROUTER: [routing id]([empty])[request frames ..].

        taken   C has taken the writes before this one, and has forwarded all reads
        """
        self._take_back_reads(now)  # They came first, perhaps from a client that counts on that.
        rows = self._start_receive(arena, now, routed=True)
        is_rest = taken is not None
        count = rows.shapes[taken:].count(WRITE) if is_rest else arena.count
        self.outbox.counters["requests"] += count
        if not is_rest and self._add_all(rows):
            return
        for position, row in enumerate(rows.rows):
            if taken is not None and (position < taken or row.shape == READ):
                continue
            if row.shape == READ:
                self.reads.add_row(position, row)
            elif row.shape != WRITE or not self.writes.add_row(position, row, True):
                self._end_rows(rows)
                message = arena.message(row.message)
                behind = 2 if len(message) > 1 and not message[1] else 1
                client = self.clients.of(arena, row.message)
                if is_audited(message[behind:]):
                    sender = self.clients.sender_of(arena, row.message)
                    self.audit.begin(message[:behind], message[behind:], sender)
                self._on_request(message[:behind], message[behind:], client)
        self._end_rows(rows)

    def on_one_way(self, arena: Arena, now: Now) -> None:
        """Handles messages of PULL and SUB: [request frames ..]. They are not answered."""
        self.take_back(now)  # Not in the middle of these.
        rows = self._start_receive(arena, now, routed=False)
        for position, row in enumerate(rows.rows):
            if row.shape != WRITE or not self.writes.add_row(position, row, False):
                self._end_rows(rows)
                frames = arena.message(row.message)
                request_type = peek(frames)[0]
                if request_type in values.ONE_WAY_TYPES:
                    if is_audited(frames):
                        self.audit.begin([], frames, self.clients.sender_of(arena, row.message))
                    self._on_request([], frames, self.clients.of(arena, row.message))
                else:
                    text = f"a request of type {request_type:#04x} over PULL or SUB"
                    self.outbox.drop_write(text)
        self._end_rows(rows)

    def on_denied(self, arena: Arena, routed: bool) -> list[Denial]:
        """Answers messages that their clients' keys do not allow. PULL and SUB get no answer."""
        denials = list(self.clients.denials(arena, routed))
        for denial in denials:
            if denial.answer:
                self.outbox.answer(denial.answer[:1], denial.answer[1:])
            elif not routed:
                self.outbox.drop_write("the key has no grant for it")
        return denials

    def on_job_request(self, head: Sequence[int], frames: Message, now: Now) -> None:
        """Handles a request of job_server."""
        self._context.now = now
        self.jobs.on_job_request(head, frames)

    def _start_receive(self, arena: Arena, now: Now, routed: bool) -> Requests:
        self._context.now, self._has_received = now, True
        self.writes.start_receive()
        return Requests(arena, routed, self.writes.entry_bytes_max)

    def _add_all(self, rows: Requests) -> bool:
        """Adds rows with one destination together: reads that ask the leader, or answered writes to
        existing tables. Under load this is the common case. False: the rows differ."""
        if not len(rows) or rows.shapes.count(rows.shapes[0]) != len(rows):
            return False
        if rows.shapes[0] == READ:
            return self.reads.add_all(rows)
        return rows.shapes[0] == WRITE and self.writes.add_all(rows)

    def _end_rows(self, rows: Requests) -> None:
        """Hands on the rows that were added so far."""
        for channel in self.channels:
            channel.end_rows(rows)
        self.reads.end_rows(rows)
        self.writes.end_rows(rows)

    def _on_request(self, prefix: Message, frames: Message, client: AllowedKey | None) -> None:
        """Handles a request that C code does not recognise. Without a prefix it is not answered."""
        request_type, table = peek(frames)
        if table is not None and self._bypasses_log(request_type, table):
            one_way = not prefix
            if answers.is_acknowledged_first(frames[0]):
                self.outbox.answer(prefix, answers.acknowledgement(frames[0]))
                one_way = True
            out = self._context.channel_of(table).new_frames()
            add_request(out, ONE_WAY if one_way else REQUEST, prefix or [b""], frames)
        elif request_type in values.JOB_TYPES:
            self.jobs.forward_to_jobs(prefix, frames, client)
        else:
            try:
                request = decode_request(frames)
            except RequestError as error:
                self.outbox.refuse(prefix, frames, error)
                return
            if isinstance(request, requests.ServerInfo):
                features = features_of(self.setup.open_on_the_fly)
                features |= values.NO_LEADER * (self.client.leader is None)
                info = answers.encode_server_info(request, features, self.setup.software)
                self.outbox.answer(prefix, info)
            elif isinstance(request, requests.ReadRequest):
                self.reads.on_read(prefix, frames, request)
            else:
                self.writes.on_write(prefix, frames, request, client)

    def _bypasses_log(self, request_type: int, table: int) -> bool:
        """Whether the worker handles the request alone, without the log and the leader."""
        if request_type in LOCAL_TYPES:
            return True
        writes = request_type in values.ONE_WAY_TYPES or request_type in values.WRITE_TYPES
        return writes and request_type != values.WRITE_TABLES and table in self.setup.local

    # ---- reports of workers ----

    def on_report(self, head: Sequence[int], frames: Message, now_ms: int, now_us: int) -> None:
        """Handles a report of a worker: [PIPE_HEADER]([..]). Raises ValueError, TypeError,
        IndexError, struct.error: it is malformed."""
        kind, code, _, number, index, epoch = head
        channel = self.channels[number]
        self.on_epoch(channel, epoch, now_ms)
        status = channel.status
        if kind == pipe.PROGRESS:
            found = pipe.decode_outcomes(frames[0]) if frames else ()
            self.writes.proposals.on_results(found)
            channel.status = status._replace(applied_index=index)
            self._on_applied()
        elif kind == pipe.TABLES:
            self._on_tables(channel, frames)
        elif kind == pipe.WRITE_STATUS:
            refusal = frames[0].decode(errors="replace") if code else ""
            channel.status = status._replace(refusal=refusal)
            self._on_applied()
        elif kind == pipe.ONE_WAY_FAILURE:
            self.outbox.notice(code, frames[0].decode(errors="replace"))
        elif kind == pipe.NEXT_EXPIRY:
            self.writes.on_expiry(number, index)
        elif kind == pipe.ROWS:
            self.rows.open(number, frames[0].decode())
        elif kind == pipe.COMPLETED:
            channel.on_handled(index, now_us)
        channel.reported_kinds.add(kind)

    def _on_tables(self, channel: WorkerChannel, frames: Message) -> None:
        """A worker lists its tables, the owners of reserved ones, of sessions and of leases, and
        kept snapshots."""
        tables, local = (pipe.decode_tables(frame) for frame in frames[:2])
        owners = pipe.decode_owners(frames[2])
        channel.status = channel.status._replace(tables=tables, local=local)
        known = set().union(*(each.status.tables for each in self.channels)) - self.setup.local
        known -= set(self.writes.checks.ownership.reserved(known))
        self.plain.set_tables(sorted(known) if self.setup.workers <= WORKERS_MAX else ())
        if channel.number == values.OWNER_TABLE % len(self.channels):
            self.writes.checks.ownership.owners = owners
            names = {at: name.decode() for at, name in pipe.decode_owners(frames[3]).items()}
            if names != self.clients.owners:
                self.clients.owners = names
                self.plain.set_sessions(names)
                self.jobs.send_owners()
        if channel.number == values.SNAPSHOT_TABLE % len(self.channels):
            kept = pipe.decode_kept_rows(frames[4])
            if kept != self.clients.kept:
                self.clients.kept = kept
                self.jobs.send_owners()

    def on_epoch(self, channel: WorkerChannel, epoch: int, now_ms: int) -> None:
        """A worker has reported. If it is a new one, requests of its predecessor may or may not be
        done."""
        text = "the table_worker has ended; it may have been done"
        for message in channel.on_epoch(epoch, now_ms):
            self.outbox.fail_forwarded(message, text, False)
        self.jobs.fail_lost(channel)

    # ---- once a wake ----

    def ready(self, now: Now) -> None:
        """Acts once a wake, after all messages were received."""
        self._context.now, now_ms = now, now.ms
        writes, existence = self.writes, self.writes.checks.existence
        writes.propose_expiry()
        existence.resume(now_ms, self._context.reason)
        asks_reads = self.reads.start()
        self.has_log_requests = existence.ask_leader(self._context.deadline()) or asks_reads
        self.reads.finish()
        for channel in self.channels:
            channel.end_batch(now_ms, now.us)
        if not writes.proposals.is_idle:
            writes.collect()
            self.has_log_requests |= writes.proposals.propose()
        for channel in self.channels:
            text = f"table_worker {channel.number + 1} does not answer"
            for message in channel.expire(now_ms):
                self.outbox.fail_forwarded(message, text)
            self.jobs.fail_lost(channel)
        self.outbox.flush()
        if self._has_received or self.is_full:
            self._has_received = False
            self.is_full = (
                self.inflight >= INFLIGHT_MAX or self.inflight_bytes >= INFLIGHT_BYTES_MAX
            )

    def notices(self, now_ms: int) -> list[tuple[WorkerChannel, Message]]:
        """HELLO and SERVER_WAITS messages to send to workers now."""
        proposals = self.writes.proposals
        awaits = self.writes.checks.existence.count > 0 or proposals.awaits_apply
        is_waiting = awaits or not proposals.is_idle or self.plain.taken != self._plain_noticed
        found = []
        for channel in self.channels:
            if channel.must_send_hello(now_ms):
                found.append((channel, [PIPE_HEADER.pack(pipe.HELLO, 0, 0, 0, 0, 0)]))
            if is_waiting and channel.must_send_waiting(now_ms, awaits):
                self._plain_noticed = self.plain.taken
                head = PIPE_HEADER.pack(pipe.SERVER_WAITS, awaits, 0, 0, 0, 0)
                found.append((channel, [head]))
        return found

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        times = [it.deadline_ms for it in self.channels]
        times += [self.writes.deadline_ms, self.reads.deadline_ms]
        return min((each for each in times if each is not None), default=None)

    # ---- limits ----

    @property
    def inflight(self) -> int:
        """Number of unanswered requests."""
        waiting = self.reads.count + self.rounds.count + self.writes.checks.existence.count
        proposed = self.writes.proposals.count + self.plain.count
        return waiting + proposed + sum(it.count for it in self.channels)

    @property
    def inflight_bytes(self) -> int:
        waiting = self.reads.size + self.rounds.size + self.writes.checks.existence.size
        proposed = self.writes.proposals.size + self.plain.size
        return waiting + proposed + sum(it.size for it in self.channels)

    @property
    def counters(self) -> dict[str, int]:
        """What has happened so often."""
        found, writes = self.outbox.counters, self.plain.taken
        reads = sum(channel.reads.taken for channel in self.channels)
        plain = {
            "requests": found["requests"] + writes + reads,
            "writes": found["writes"] + writes,
        }
        return {**found, **plain, "reads_cached": self.rows.answered}
