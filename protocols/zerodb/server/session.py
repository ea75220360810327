"""The ZeroDB server without I/O: it decides where each request goes and answers clients.

The way of a put of a replicated table:

1. on_requests() receives it. C code recognises the common requests (`Requests`), and the request
   batcher sorts them by destination. Other requests are decoded one by one (_on_request()).
2. TableExistence checks the number of tables, and whether the table is open; Ownership checks
   reserved tables; RetryFence keeps the order of a connection behind a failed write.
3. Proposals collects writes in packs and gives them to the log client, which sends them to the
   leader. The answer header of each write is made at once and waits in its pack.
4. Workers report their applied index. ready() answers a pack that is committed and applied here
   (_collect_proposals()). A write without PARTSYNC or FULLSYNC was acknowledged after step 2.

The way of a read:

1. on_requests() receives it and adds it to the read round of this wake.
2. ready() asks the leader for the index to read at, once for the round (ReadRounds). Stale reads
   and requests to local tables skip this step.
3. WorkerChannel gives the request to the worker and keeps it until the worker has answered it.
4. The worker answers when it has applied the index. The answer passes the owner unread.
   ScatterGather joins the answers of all workers to one info of all tables.

Requests for data jobs go to job_server.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ....native.net.messages import Arena, Frames
from ....native.tables.requests import READ, WRITE, Requests, Row
from ...zmqraft.client.client import LogClientMachine
from ..wire import answer_headers as answer_headers
from ..wire import answers, ops, requests, values
from ..wire.codec import decode_request, error_code, peek
from ..wire.requests import Request, RequestError
from ..wire.worker_pipe import (
    CHECKPOINT,
    ENVELOPE,
    FAILED,
    JOB_WRITE,
    LEASE,
    ONE_WAY,
    PIPE_HEADER,
    REQUEST,
    RESULT_QUERY,
    RETRYABLE,
    Message,
)
from .ownership import Ownership
from .proposals import ALL_WORKERS, Failure, Proposals, ProposedWrite, ResultLost
from .read_rounds import ReadRound, ReadRounds
from .refusals import (
    SYNC_FLAGS,
    FencedError,
    UnacknowledgedError,
    is_acknowledged_first,
    mixed_batch,
    not_open,
    refusal_of,
    unacknowledged,
)
from .request_batcher import RowBatch
from .retry_fence import RetryFence
from .scatter_gather import KEY_PREFIX, ScatterGather
from .table_existence import TableExistence, WaitingWrite
from .worker_channel import WorkerChannel

FEATURES = (
    values.FEATURE_PARTSYNC
    | values.FEATURE_FULLSYNC
    | values.FEATURE_PACKED
    | values.FEATURE_STALE
    | values.FEATURE_TABLE_INFO
    | values.FEATURE_SPLIT_POINTS
    | values.FEATURE_TRANSACTIONS
    | values.FEATURE_WATCH
    | values.FEATURE_TTL
    | values.FEATURE_LEASES
    | values.FEATURE_COPY
    | values.FEATURE_JOBS
    | values.FEATURE_SHARED_LEASES
)


def features_of(open_on_the_fly: bool) -> int:
    """The features in the answer to a server info request, on any endpoint."""
    return FEATURES | values.FEATURE_OPEN * open_on_the_fly


# They concern a node, not a table.
LOCAL_TYPES = frozenset({values.CLOSE_TABLE, values.COMPACT_TABLE})
WAITING_FLAGS = {values.PARTSYNC, values.FULLSYNC, values.PARTSYNC | values.FULLSYNC}
INFLIGHT_MAX = 1 << 17  # Unanswered requests; above this the server reads no client sockets.
INFLIGHT_BYTES_MAX = 256 << 20
PART_BYTES_MAX = 1 << 20  # Of a large write: larger messages would delay heartbeats.
EXPIRE_RETRY_MS = 100
EXPIRE_DEPUTY_MS = 2000
NOTICES_MAX = 64  # In one wake; further events are only counted.

# Levels of the events PUB.
ERROR, WARN, INFO = 1, 2, 3


class SessionSetup(NamedTuple):
    """Settings of the topology (docs/topology.md, `zerodb`)."""

    software: str
    workers: int = 1
    local: frozenset[int] = frozenset()
    stale_allowed: bool = False
    request_timeout_ms: int = 5000
    open_on_the_fly: bool = True
    entry_bytes_max: int = 10 << 20
    own_url: str = ""  # Of this node's raft_peer.
    first_ticket: int = 1  # Above all earlier ones: workers may still know those.
    secret: bytes = b""  # Identifies processes of this node (ownership.py).
    reserved: frozenset[int] = frozenset()  # More tables that only these processes write.


class Now(NamedTuple):
    """The two clocks."""

    ms: int  # Monotonic.
    unix_ms: int


class Session:
    """All requests of one server.

    The owner passes in messages. After ready() it sends `answers`, `jobs`, and the batches of the
    channels.
    """

    def __init__(
        self,
        setup: SessionSetup,
        client: LogClientMachine,
        new_reqids: Callable[[int], list[bytes]],
    ) -> None:
        self.setup = setup
        self.client = client
        self.proposals = Proposals(client)
        self.channels = [
            WorkerChannel(number, setup.request_timeout_ms, setup.first_ticket)
            for number in range(setup.workers)
        ]
        self.answers: list[Frames] = []  # For the ROUTER.
        self.jobs = Frames()  # For job_server.
        self.jobs_full = False  # job_server has too many requests.
        self._job_ticket = setup.first_ticket
        self.notices: list[tuple[int, str]] = []  # For the events PUB: (level, text).
        self.counters: Counter[str] = Counter()
        self._new_reqids = new_reqids
        self._entry_bytes_max = min(setup.entry_bytes_max, PART_BYTES_MAX)
        self._now = Now(0, 0)
        self._backlog_ms = 0  # Added to deadlines for the writes that wait already.
        self._out = Frames()
        # By worker: requests that do not wait for the leader.
        self._immediate: dict[int, Frames] = {}
        self.read_rounds = ReadRounds(client, self.channels)
        self._expiries: dict[int, int] = {}  # Unix ms by worker.
        self._first_expiry = 0
        self._expire_retry_ms = 0
        self.has_log_requests = True  # The log client has requests to send in this wake.
        self.is_full = False  # The owner must not read client sockets.
        self._has_received = False  # Requests have arrived since is_full was computed.
        self.retry_fence = RetryFence()
        self.table_existence = TableExistence(client, self.channels)
        self.ownership = Ownership(setup.secret, setup.reserved, setup.local)
        self.scatter_gather = ScatterGather(setup.workers)

    # ---- arrival ----

    def on_requests(self, arena: Arena, now: Now) -> None:
        """Handles messages of the ROUTER: [routing id]([empty])[request frames ..]."""
        self._start_receive(now)
        self.counters["requests"] += arena.count
        rows = Requests(arena, True, self._entry_bytes_max)
        batch = RowBatch(rows, self.setup.workers)
        if self._is_uniform(rows):
            if rows.shapes[0] == READ:
                batch.read_all()
            else:
                batch.write_all(self._deadline(rows.deadlines_ms[0]))
            self._dispatch(batch)
            return
        for position, row in enumerate(rows.rows):
            if row.shape == READ:
                immediate = self._is_stale(row.extension) or row.table in self.setup.local
                batch.read(position, row.table % self.setup.workers, immediate)
            elif row.shape == WRITE and not (self.retry_fence or self._needs_check(row)):
                awaited = bool(row.flags & SYNC_FLAGS)
                if row.table in self.setup.local:
                    kind = REQUEST if awaited else ONE_WAY
                    batch.forward(position, row.table % self.setup.workers, kind)
                else:
                    batch.write(position, self._deadline(row.deadline_ms), awaited)
                if not awaited:
                    batch.acknowledged.append(position)
            else:
                self._dispatch(batch)
                message = arena.message(row.message)
                behind = 2 if len(message) > 1 and not message[1] else 1
                self._on_request(message[:behind], message[behind:])
        self._dispatch(batch)

    def on_one_way(self, arena: Arena, now: Now) -> None:
        """Handles messages of PULL and SUB: [request frames ..]. They are not answered."""
        self._start_receive(now)
        rows = Requests(arena, False, self._entry_bytes_max)
        batch = RowBatch(rows, self.setup.workers)
        for position, row in enumerate(rows.rows):
            if row.shape == WRITE and not self._needs_check(row):
                if row.table in self.setup.local:
                    batch.forward(position, row.table % self.setup.workers, ONE_WAY)
                else:
                    batch.write(position, self._deadline(0), False)
            else:
                self._dispatch(batch)
                self._on_one_way_request(arena.message(row.message))
        self._dispatch(batch)

    def _start_receive(self, now: Now) -> None:
        self._now, self._has_received = now, True
        self._backlog_ms = self.proposals.size // values.BYTES_A_MS
        self.retry_fence.expire(now.ms)

    def _is_uniform(self, rows: Requests) -> bool:
        """Whether all rows have the same destination: reads that ask the leader, or answered writes
        with one deadline to existing tables. Under load this is the common case."""
        if self.retry_fence or self.setup.local or not self.setup.open_on_the_fly or not len(rows):
            return False
        shape, count = rows.shapes[0], len(rows)
        if rows.shapes.count(shape) != count:
            return False
        if shape == READ:
            return not self.setup.stale_allowed and not any(rows.extensions)
        if shape != WRITE or self.ownership.any_reserved(rows.tables):
            return False
        if not (set(rows.flags) <= WAITING_FLAGS and len(set(rows.deadlines_ms)) == 1):
            return False
        return not self.table_existence.unknown(set(rows.tables), self._now.ms)

    def _dispatch(self, batch: RowBatch) -> None:
        """Sends the rows of the batch to their destinations, in order."""
        for by_worker, to in (
            (batch.immediate, self._immediate),
            (batch.reads, self.read_rounds.new_frames),
        ):
            for worker, runs in by_worker.items():
                frames = to.get(worker)
                if frames is None:
                    frames = to[worker] = Frames()
                for kind, positions in runs:
                    batch.rows.forward(positions, kind, frames)
        if batch.acknowledged:
            batch.rows.acknowledge(batch.acknowledged, self._out)
        for writes in batch.writes:
            self.counters["writes"] += len(writes.positions)
            self.proposals.add_run(batch.write_run(writes, self._new_reqids))
        batch.clear()

    def _on_one_way_request(self, frames: Message) -> None:
        request_type, table = peek(frames)
        if request_type not in values.ONE_WAY_TYPES:
            self._drop_write(f"a request of type {request_type:#04x} over PULL or SUB")
        elif table is not None and self._bypasses_log(request_type, table):
            self._forward(self._immediate, table, ONE_WAY, [b""], frames)
        else:
            self._handle_frames([], frames)

    def on_job_request(self, head: Sequence[int], frames: Message, now: Now) -> None:
        """Handles a request of job_server: a checkpoint, a write, or an entry about a lease
        (docs/internals/tables.md)."""
        self._now = now
        kind, ticket = head[0], head[5]
        known = {CHECKPOINT: 2, JOB_WRITE: 2, LEASE: 3}
        if len(frames) != known.get(kind) or len(frames[0]) != 4:
            self.counters["malformed_asks"] += 1
            return
        table = int.from_bytes(frames[0], "little")
        if kind == LEASE:
            # With the client's reqid, so that a repeat at another node gets the same lease.
            write = ProposedWrite(
                frames[2:], [], self._deadline(0), None, ALL_WORKERS, job_ticket=ticket
            )
            self._propose(frames[1], table, write)
        elif table in self.setup.local:
            self._channel_of(table).add_job_request(
                [PIPE_HEADER.pack(kind, 0, 0, 0, 0, ticket), b"", *frames], now.ms
            )
        elif kind == CHECKPOINT:
            self.read_rounds.add_checkpoint(self._worker_of(table), ticket, [b"", *frames])
        elif self._is_unknown(table):
            self.table_existence.add(
                WaitingWrite(
                    {table}, len(frames[1]), partial(self._propose_job_write, ticket, frames)
                )
            )
        else:
            self._propose_job_write(ticket, frames)

    def _propose_job_write(self, ticket: int, frames: Message, problem: str = "") -> None:
        """Proposes a write of job_server.

        problem   why its table cannot be checked, or an empty text
        """
        table = int.from_bytes(frames[0], "little")
        if problem:
            self._answer_failure(Failure(None, ticket, problem, True))
        elif self._is_unknown(table):
            self._answer_failure(Failure(None, ticket, not_open(table), False))
        elif problem := self._register_tables({table}):
            self._answer_failure(Failure(None, ticket, problem, False))
        else:
            write = ProposedWrite(
                [], [], self._deadline(0), None, self._worker_of(table), job_ticket=ticket
            )
            self._propose(frames[1], table, write)

    # ---- requests ----

    def _on_request(self, prefix: Message, frames: Message) -> None:
        request_type, table = peek(frames)
        if table is not None and self._bypasses_log(request_type, table):
            kind = REQUEST
            if request_type in values.WRITE_TYPES and is_acknowledged_first(
                request_type, frames[0]
            ):
                self._answer(prefix, answer_headers.acknowledgement(frames[0]))
                kind = ONE_WAY
            self._forward(self._immediate, table, kind, prefix, frames)
        elif request_type in values.JOB_TYPES:
            envelope = ENVELOPE if len(prefix) > 1 else 0
            head = PIPE_HEADER.pack(REQUEST, envelope, 0, 0, 0, self._job_ticket)
            self._job_ticket += 1
            if self.jobs_full:
                text = "the job_server has too many requests to do already"
                self._fail_forwarded([head, prefix[0], *frames], text)
            else:
                self.jobs.add([head, prefix[0], *frames])
        else:
            self._handle_frames(prefix, frames)

    def _bypasses_log(self, request_type: int, table: int) -> bool:
        """Whether the worker handles the request alone, without the log and the leader."""
        if request_type in LOCAL_TYPES:
            return True
        writes = request_type in values.ONE_WAY_TYPES or request_type in values.WRITE_TYPES
        return writes and request_type != values.WRITE_TABLES and table in self.setup.local

    def _is_stale(self, extension_flags: int) -> bool:
        return self.setup.stale_allowed or bool(extension_flags & values.STALE)

    def _needs_check(self, row: Row) -> bool:
        """Whether a write needs checks: its table is reserved or does not exist."""
        if row.table in self.setup.local:
            return False
        if self.ownership.is_reserved(row.table):
            return True
        if row.type != values.PUT or self.table_existence.is_open(row.table, self._now.ms):
            return self._is_unknown(row.table)
        return not self.setup.open_on_the_fly or bool(self._register_tables({row.table}))

    def _is_unknown(self, table: int) -> bool:
        """Whether the table must be opened first."""
        return not (
            self.setup.open_on_the_fly
            or table in self.setup.local
            or self.table_existence.is_known(table, self._now.ms)
        )

    def _register_tables(self, tables: set[int]) -> str:
        """Notes that a write makes the tables that do not exist. Returns why it must not, or an
        empty text."""
        new = self.table_existence.unknown(tables, self._now.ms)
        return self.table_existence.register(new, self._now.ms, self._deadline(0)) if new else ""

    def _forward(
        self, to: dict[int, Frames], table: int, kind: int, prefix: Message, frames: Message
    ) -> None:
        worker = table % self.setup.workers
        out = to.get(worker)
        if out is None:
            out = to[worker] = Frames()
        envelope = ENVELOPE if len(prefix) > 1 else 0
        out.add([PIPE_HEADER.pack(kind, envelope, 0, 0, 0, 0), prefix[0], *frames])

    def _worker_of(self, table: int) -> int:
        """The worker of a table."""
        return table % self.setup.workers

    def _channel_of(self, table: int) -> WorkerChannel:
        return self.channels[self._worker_of(table)]

    def _handle_frames(self, prefix: Message, frames: Message) -> None:
        """Handles a decoded request. Without a prefix the client gets no answer."""
        try:
            request = decode_request(frames)
            self._handle(prefix, frames, request)
        except RequestError as error:
            self._refuse(prefix, frames, error)

    def _handle(self, prefix: Message, frames: Message, request: Request) -> None:
        match request:
            case requests.ServerInfo():
                features = features_of(self.setup.open_on_the_fly)
                self._answer(
                    prefix, answers.encode_server_info(request, features, self.setup.software)
                )
            case requests.TableInfo(table=None) if self.setup.workers > 1:
                to = (
                    self._immediate
                    if self._is_stale(request.extension.flags)
                    else self.read_rounds.new_frames
                )
                key = self.scatter_gather.start(prefix, request)
                for number in range(self.setup.workers):
                    self._forward(to, number, REQUEST, [key], frames)
            case (
                requests.Read()
                | requests.Count()
                | requests.Exists()
                | requests.Scan()
                | requests.SplitPoints()
                | requests.TableInfo()
                | requests.Watch()
            ):
                table = request.table or 0
                immediate = self._is_stale(request.extension.flags) or table in self.setup.local
                to = self._immediate if immediate else self.read_rounds.new_frames
                self._forward(to, table, REQUEST, prefix, frames)
            case _:
                self._handle_write(prefix, frames, request)

    def _handle_write(self, prefix: Message, frames: Message, request: Request) -> None:
        operations = requests.operations(request, self._now.unix_ms)
        is_session = isinstance(request, requests.Session)
        tables = set() if is_session else ops.tables_of(operations)
        local = tables & self.setup.local
        if len(tables) > 1:
            self._check_one_batch(request, tables, local)
        is_for_all = is_session
        reserved = self.ownership.reserved(tables)
        if reserved:
            if self._must_ask_owner(request, reserved):
                resume = partial(self._resume_write, prefix, frames)
                self.table_existence.add(WaitingWrite(tables, sum(map(len, frames)), resume))
                return
            problem = self.ownership.problem(request.extension.owner, operations, reserved)
            if problem:
                raise unacknowledged(request, problem)
            noted = self.ownership.noted(request.extension.owner, operations)
            is_for_all, operations = len(noted) > len(operations), noted
        if tables and not (local or self.setup.open_on_the_fly):
            if self.table_existence.must_wait(operations, tables, self._now.ms):
                resume = partial(self._resume_write, prefix, frames)
                self.table_existence.add(WaitingWrite(tables, sum(map(len, frames)), resume))
                return
            missing = self.table_existence.missing(operations, tables, self._now.ms)
            if missing:
                raise refusal_of(request, not_open(missing[0]))
        acknowledged_first = not prefix or is_acknowledged_first(frames[0][2], frames[0])
        if prefix and not self.retry_fence.admits(prefix[0], request.extension.reqid):
            text = "an earlier write of this connection was given up: repeat that first"
            raise FencedError(requests.type_of(request), values.ERROR, text, request.extension)
        problem = "" if local else self._register_tables(ops.tables_made(operations))
        if problem:
            raise refusal_of(request, problem)
        if acknowledged_first and prefix:
            self._answer(prefix, answers.encode_ok(request))
        table = min(tables, default=0)
        if local:
            kind = ONE_WAY if acknowledged_first else REQUEST
            self._forward(self._immediate, table, kind, prefix or [b""], frames)
        elif operations:
            answer = None if acknowledged_first else [*prefix, *answer_headers.success(request)]
            has_result = isinstance(operations[0], ops.Transaction) or is_session
            worker = ALL_WORKERS if is_for_all else self._worker_of(table)
            data = ops.pack(operations)
            deadline_ms = self._deadline(request.extension.deadline_ms, len(data))
            write = ProposedWrite(
                [request.extension.reqid], [], deadline_ms, answer, worker, has_result
            )
            self._propose(data, table, write)
        elif not acknowledged_first:  # Nothing is to be done: that is done.
            self._answer(prefix, answers.encode_ok(request))

    def _must_ask_owner(self, request: Request, reserved: list[int]) -> bool:
        """Whether the owner of these tables is unknown until the leader is asked."""
        if self.table_existence.is_resuming:
            return False
        known = self.ownership.is_known(request.extension.owner, reserved)
        return not known or self.table_existence.is_waiting_for(reserved)

    def _check_one_batch(self, request: Request, tables: set[int], local: set[int]) -> None:
        """A batch is atomic only within one worker, and either in the log or outside of it."""
        names = ", ".join(map(str, sorted(tables)))
        if local and local != tables:
            these = ", ".join(map(str, sorted(local)))
            raise mixed_batch(request, f"the tables {names}: {these} are local, the others not")
        if len({table % self.setup.workers for table in tables}) > 1:
            raise mixed_batch(request, f"the tables {names} are of several workers")

    def _resume_write(self, prefix: Message, frames: Message, problem: str) -> None:
        """Continues a write that has waited for the existence of its tables.

        problem   why that is unknown, or an empty text
        """
        if not problem:
            self._handle_frames(prefix, frames)
        elif not prefix or is_acknowledged_first(frames[0][2], frames[0]):
            self._refuse(prefix, frames, refusal_of(decode_request(frames), problem))
        else:
            self._answer(
                prefix, answers.encode_refusal(refusal_of(decode_request(frames), problem), True)
            )

    def _propose(self, data: bytes, table: int, write: ProposedWrite) -> None:
        reqid = next((each for each in write.reqids if each and each != values.NO_REQID), b"")
        if len(data) <= self._entry_bytes_max:
            reqids, entries = [reqid or self._new_reqids(1)[0]], [data]
        else:
            whole = reqid or self._new_reqids(1)[0]
            entries = ops.cut(data, table, whole, self._entry_bytes_max)
            reqids = [*self._new_reqids(len(entries) - 1), whole]
        self.proposals.add(write._replace(reqids=reqids, entries=entries))
        self.counters["writes"] += 1

    def _deadline(self, asked_ms: int, size: int = 0) -> int:
        """The deadline of a request. Larger requests get more time, since clients would only retry
        them."""
        timeout_ms = self.setup.request_timeout_ms + self._backlog_ms + size // values.BYTES_A_MS
        return self._now.ms + (min(asked_ms, timeout_ms) if asked_ms else timeout_ms)

    # ---- answers ----

    def _answer(self, prefix: Message, frames: Message) -> None:
        if prefix:
            self._out.add([*prefix, *frames])

    def _refuse(self, prefix: Message, frames: Message, error: RequestError) -> None:
        """Answers with the specification's code. A write without sync flags is acknowledged
        nevertheless, and the error goes to the events PUB."""
        self.counters["malformed"] += 1
        header = frames[0] if frames else b""
        text = f"request {error.request_type:#04x}: {error.text}"
        if error.request_type == values.PROTOCOL_ERROR:
            text = error.text
        if not prefix:
            self._drop_write(text)
        elif isinstance(error, FencedError):
            self._answer(prefix, answers.encode_refusal(error, retry=True))
        elif not isinstance(error, UnacknowledgedError) and is_acknowledged_first(
            error.request_type, header
        ):
            self._answer(prefix, [answers.encode_head(error.request_type, 0, error.extension)])
            self._drop_write(text)
        else:
            self._answer(prefix, answers.encode_refusal(error))

    def _drop_write(self, text: str) -> None:
        """Notes an unanswered write that fails, on the events PUB."""
        self.counters["dropped"] += 1
        self.notice(WARN, f"dropped: {text}")

    def notice(self, level: int, text: str) -> None:
        """Adds an event for the events PUB."""
        if len(self.notices) < NOTICES_MAX:
            self.notices.append((level, text))

    def _answer_failure(self, failure: Failure) -> None:
        if failure.job_ticket is not None:
            code = values.DATABASE_ERROR if failure.database else values.ERROR
            head = PIPE_HEADER.pack(
                FAILED, RETRYABLE * failure.retry, 0, code, 0, failure.job_ticket
            )
            self.jobs.add([head, failure.text.encode()])
        if failure.answer is None:
            if failure.job_ticket is None:
                self._drop_write(failure.text)
            return
        prefix, header = answer_headers.split(failure.answer)
        code = values.DATABASE_ERROR if failure.database else error_code(header[2])
        error = RequestError(header[2], code, failure.text, answer_headers.echoed(header))
        reqid = error.extension.reqid
        if failure.unproposed and reqid and self.retry_fence.add(prefix[0], reqid, self._now.ms):
            self.proposals.withdraw(prefix[0], f"nothing was written: {self.reason}")
        self._answer(prefix, answers.encode_refusal(error, failure.retry))
        self.counters["failed"] += 1

    def _fail_forwarded(self, message: Message, text: str, retry: bool = True) -> None:
        """Answers a request that cannot be forwarded, or whose worker is lost:
        [PIPE_HEADER][routing id][..]."""
        kind, flags, *_ = PIPE_HEADER.unpack(message[0])
        if kind == ONE_WAY:
            self._drop_write(text)
            return
        prefix = message[1:2] + [b""] * (flags & ENVELOPE)
        if message[1].startswith(KEY_PREFIX):
            found = self.scatter_gather.cancel(message[1])
            if found is None:
                return
            prefix = found
        if kind == RESULT_QUERY:
            request_type, extension = message[3][2], answer_headers.echoed(message[3])
        else:
            request_type, extension = answer_headers.request_of(message[2:])
        refusal = RequestError(request_type, error_code(request_type), text, extension)
        self._answer(prefix, answers.encode_refusal(refusal, retry))
        self.counters["failed"] += 1

    def refuse_job(self, message: Message) -> None:
        """A message of `jobs` cannot be sent, or was lost. A client gets an error; a request of
        job_server itself needs none."""
        if message[0][0] == REQUEST:
            self._fail_forwarded(message, "no job_server runs on this node now")

    def refuse_answer(self, answer: Message) -> None:
        """Answers with an error when the client's limit of unread answers is reached."""
        self._answer(*answer_headers.too_much_unread(answer))

    def on_part(self, worker: int, answer: Message) -> None:
        """Adds a worker's part of an answer: [key][header][frames ..]."""
        whole = self.scatter_gather.add_part(answer[0], worker, answer[1:])
        if whole is not None:
            self._out.add(whole)

    def pop_answers(self) -> list[Frames]:
        """The finished answers of all wakes so far, to be sent."""
        rows, self.answers = self.answers, []
        if self._out.count:
            rows.append(self._out)
            self._out = Frames()
        return rows

    def on_epoch(self, channel: WorkerChannel, epoch: int, now_ms: int) -> None:
        """A worker has reported. If it is a new one, requests of its predecessor may or may not be
        done."""
        for message in channel.on_epoch(epoch, now_ms):
            self._fail_forwarded(
                message, "the table_worker has ended; it may have been done", False
            )
        self._fail_lost_tickets(channel)

    def _fail_lost_tickets(self, channel: WorkerChannel) -> None:
        """Fails requests of job_server. It retries them, and ignores failures of completed ones."""
        for ticket in channel.lost_tickets:
            text = f"table_worker {channel.number + 1} has ended, or takes nothing in"
            self._answer_failure(Failure(None, ticket, text, True))
        channel.lost_tickets.clear()

    # ---- in step ----

    def ready(self, now: Now) -> None:
        """Acts once a wake, after all messages were received."""
        self._now, now_ms = now, now.ms
        self._propose_expiry()
        self.table_existence.resume(now_ms, self.reason)
        self.has_log_requests = self.read_rounds.start(
            self._deadline(0)
        ) | self.table_existence.ask_leader(self._deadline(0))
        for round_ in self.read_rounds.finish(now_ms):
            self._fail_round(round_)
        for worker, frames in self._immediate.items():
            self.channels[worker].add(frames, 0, now_ms)
        self._immediate = {}
        if not self.proposals.is_idle:
            self._collect_proposals(now_ms)
            self.has_log_requests |= self.proposals.propose()
        for channel in self.channels:
            for message in channel.expire(now_ms):
                self._fail_forwarded(message, f"table_worker {channel.number + 1} does not answer")
            self._fail_lost_tickets(channel)
        if self._out.count:
            self.answers.append(self._out)
            self._out = Frames()
        if self._has_received or self.is_full:
            self._has_received = False
            self.is_full = (
                self.inflight >= INFLIGHT_MAX or self.inflight_bytes >= INFLIGHT_BYTES_MAX
            )

    def _fail_round(self, round_: ReadRound) -> None:
        text = f"not read: {round_.read.refusal or self.reason}"
        for frames in round_.frames.values():
            for position in range(frames.count):
                self._fail_forwarded(frames.message(position), text)
        for _, ticket, _ in round_.checkpoints:
            self._answer_failure(Failure(None, ticket, text, True))

    @property
    def reason(self) -> str:
        """Why the log does not commit, for errors of expired requests."""
        if self.client.leader is None:
            return "no leader was found: an election goes on, or no majority of the nodes runs"
        return (
            f"the leader at {self.client.leader} did not commit: it has no majority, or its disk"
            " takes no writes"
        )

    def _collect_proposals(self, now_ms: int) -> None:
        """Answers writes that are committed and applied, and writes that have expired."""
        proposals = self.proposals
        proposals.collect([channel.status for channel in self.channels])
        if proposals.deadline_ms is not None and proposals.deadline_ms <= now_ms:
            proposals.expire(now_ms, self.reason)
        for done in proposals.found_results:
            self._answer_result(done.answer, [result.data for result in done.results])
        while proposals.failures:
            failures, proposals.failures = proposals.failures, []
            for failure in failures:
                self._answer_failure(failure)
        for lost in proposals.lost_results:
            self._query_result(lost, now_ms)
        for ticket, index, results in proposals.job_results:
            refused = next((result for result in results if result.code), None)
            if refused is None:
                self.jobs.add([PIPE_HEADER.pack(JOB_WRITE, 0, 0, 0, index, ticket)])
            else:
                text = refused.data.decode(errors="replace")
                self._answer_failure(Failure(None, ticket, text, False, database=True))
        self.answers += proposals.answers
        proposals.clear_results()

    def _query_result(self, lost: ResultLost, now_ms: int) -> None:
        """Asks the worker for the stored result of a repeated transaction."""
        prefix, header = answer_headers.split(lost.answer)
        if header[2] != values.SESSION:
            frames = Frames(1 << 10, 8)
            envelope = ENVELOPE if len(prefix) > 1 else 0
            head = PIPE_HEADER.pack(RESULT_QUERY, envelope, 0, 0, 0, 0)
            frames.add([head, prefix[0], lost.reqid, header])
            self.channels[lost.worker].add(frames, lost.index, now_ms)
        else:
            text = f"entry {lost.index} is applied, what came of it is no longer known"
            self._answer_failure(Failure(lost.answer, None, text, False))

    def on_expiry(self, worker: int, unix_ms: int) -> None:
        """A worker has reported when its next key or session ends; 0: none does."""
        self._expiries[worker] = unix_ms
        self._first_expiry = min((at for at in self._expiries.values() if at), default=0)

    def _propose_expiry(self) -> None:
        """Proposes an entry that ends keys and sessions. The leader's server does it; others do it
        2 s later in case that server has stopped."""
        due_ms = self._expires_ms
        if due_ms is None or due_ms > self._now.ms:
            return
        entry = ops.pack([ops.Expire(0, self._now.unix_ms)])
        self._propose(entry, 0, ProposedWrite([], [], self._deadline(0), None, 0))
        self._expire_retry_ms = self._now.ms + EXPIRE_RETRY_MS

    @property
    def _expires_ms(self) -> int | None:
        """When _propose_expiry() has work."""
        due = self._first_expiry
        if not due:
            return None
        leads = self.client.leader == self.setup.own_url
        late_ms = 0 if leads else EXPIRE_DEPUTY_MS
        return max(self._expire_retry_ms, self._now.ms + due - self._now.unix_ms + late_ms)

    def _answer_result(self, answer: Message, results: list[bytes]) -> None:
        """Answers with a worker's result; the first one is that of the request."""
        prefix, header = answer_headers.split(answer)
        found = results[0]
        if header[2] != values.SESSION:
            self._answer(prefix, answer_headers.result_answer(header, found))
            return
        if len(found) == 1:  # It was kept, or is ended: 1 or 0.
            found = answer[-1] if found == b"\1" else bytes(8)
        self._answer(prefix, [header, found])

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        times = [it.deadline_ms for it in self.channels]
        times += [self.proposals.deadline_ms, self._expires_ms]
        times += [self.table_existence.deadline_ms, self.read_rounds.deadline_ms]
        return min((each for each in times if each is not None), default=None)

    # ---- limits ----

    @property
    def inflight(self) -> int:
        """Number of unanswered requests."""
        waiting = self.read_rounds.count + self.table_existence.count
        return waiting + self.proposals.count + sum(it.count for it in self.channels)

    @property
    def inflight_bytes(self) -> int:
        waiting = self.read_rounds.size + self.table_existence.size
        return waiting + self.proposals.size + sum(it.size for it in self.channels)
