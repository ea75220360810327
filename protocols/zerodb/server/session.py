"""The server of ZeroDB without IO: what becomes of each request, who does it, what is answered.

Writes of replicated tables go through the log (proposals.py), reads of them to this node's worker
once a leader has said how far they must look, everything else to the worker or the job_server at
once (server/worker_channel.py). Finished answers of those come back past this machine.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ....native.log.reads import WAIT_CONFIRMED
from ....native.net.messages import Arena, Frames
from ....native.tables.requests import READ, WRITE, Requests, Row
from ...zmqraft.client.client import LogClientMachine, PendingRead
from ..wire import answer_headers as finished
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
from .scatter_gather import PREFIX, ScatterGather
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
    """What a server info request is answered, at any endpoint."""
    return FEATURES | values.FEATURE_OPEN * open_on_the_fly


LOCAL_TYPES = frozenset({values.CLOSE_TABLE, values.COMPACT_TABLE})  # Of a node, not of a table.
WAITING_FLAGS = {values.PARTSYNC, values.FULLSYNC, values.PARTSYNC | values.FULLSYNC}
INFLIGHT_MAX = 1 << 17  # Requests that are not answered; beyond them the doors are not read.
INFLIGHT_BYTES_MAX = 256 << 20
PART_BYTES_MAX = 1 << 20  # Of a large write: heartbeats wait behind no larger message.
EXPIRE_AGAIN_MS = 100
EXPIRE_DEPUTY_MS = 2000
NOTICES_MAX = 64  # In one wake; the others are only counted.

# Levels of the log PUB.
ERROR, WARN, INFO = 1, 2, 3


class SessionSetup(NamedTuple):
    """What the topology says (docs/topology.md, `zerodb`)."""

    software: str
    workers: int = 1
    local: frozenset[int] = frozenset()
    stale_allowed: bool = False
    request_timeout_ms: int = 5000
    open_on_the_fly: bool = True
    entry_bytes_max: int = 10 << 20
    own_url: str = ""  # Of this node's raft_peer.
    first_ticket: int = 1  # Larger than any of the servers before: workers may still know those.
    secret: bytes = b""  # By which processes of this node are known (ownership.py).
    reserved: frozenset[int] = frozenset()  # Tables that they alone write, beside those that are.


class Now(NamedTuple):
    """The two clocks."""

    ms: int  # Monotonic.
    unix_ms: int


class _ReadRound:
    """Reads that wait for the same word of the leader's."""

    __slots__ = ("asks", "deadline_ms", "frames", "read")

    def __init__(self, read: PendingRead, frames: dict[int, Frames], deadline_ms: int) -> None:
        self.read = read
        self.frames = frames  # By worker.
        self.asks: list[tuple[int, int, Message]] = []  # (worker, ticket, frames behind the head)
        self.deadline_ms = deadline_ms


class Session:
    """All requests of one server.

    The owner hands in what arrives, and after ready() sends what is in `answers` and `jobs` and
    what the handoffs hold.
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
        self.handoffs = [
            WorkerChannel(number, setup.request_timeout_ms, setup.first_ticket)
            for number in range(setup.workers)
        ]
        self.answers: list[Frames] = []  # For the ROUTER.
        self.jobs = Frames()  # For the job_server.
        self.jobs_full = False  # It has too much to do already.
        self._job_ticket = setup.first_ticket
        self.notices: list[tuple[int, str]] = []  # For the log PUB: (level, text).
        self.counters: Counter[str] = Counter()
        self._new_reqids = new_reqids
        self._entry_bytes_max = min(setup.entry_bytes_max, PART_BYTES_MAX)
        self._now = Now(0, 0)
        self._backlog_ms = 0  # How much longer a request may take, for what is in front of it.
        self._out = Frames()
        self._direct: dict[int, Frames] = {}  # By worker: what needs no word of the leader's.
        self._reads: dict[int, Frames] = {}  # By worker: what waits for one.
        self._asks: list[tuple[int, int, Message]] = []
        self._rounds: deque[_ReadRound] = deque()
        self._expiries: dict[int, int] = {}  # By worker.
        self._first_expiry = 0
        self._expire_again_ms = 0
        self.asked_client = True  # The client machine has got something to do in this wake.
        self.is_full = False  # Nothing more is to be taken in for now.
        self._taken = False  # Something was, since that was looked at.
        self._gates = RetryFence()
        self._openings = TableExistence(client, self.handoffs)
        self.ownership = Ownership(setup.secret, setup.reserved, setup.local)
        self.gathering = ScatterGather(setup.workers)

    # ---- what arrives ----

    def on_requests(self, arena: Arena, now: Now) -> None:
        """From the ROUTER: [routing id]([empty])[request frames ..] each."""
        self._begin(now)
        self.counters["requests"] += arena.count
        taken = Requests(arena, True, self._entry_bytes_max)
        batch = RowBatch(taken, self.setup.workers)
        if self._is_uniform(taken):
            if taken.shapes[0] == READ:
                batch.read_all()
            else:
                batch.write_all(self._deadline(taken.deadlines_ms[0]))
            self._take(batch)
            return
        for position, row in enumerate(taken.rows):
            if row.shape == READ:
                straight = self._is_stale(row.extension) or row.table in self.setup.local
                batch.read(position, row.table % self.setup.workers, straight)
            elif row.shape == WRITE and not (self._gates or self._must_look(row)):
                heard = bool(row.flags & SYNC_FLAGS)
                if row.table in self.setup.local:
                    kind = REQUEST if heard else ONE_WAY
                    batch.hand(position, row.table % self.setup.workers, kind)
                else:
                    batch.write(position, self._deadline(row.deadline_ms), heard)
                if not heard:
                    batch.acknowledged.append(position)
            else:
                self._take(batch)
                message = arena.message(row.message)
                behind = 2 if len(message) > 1 and not message[1] else 1
                self._on_request(message[:behind], message[behind:])
        self._take(batch)

    def on_one_way(self, arena: Arena, now: Now) -> None:
        """From the PULL or the SUB: [request frames ..] each. Nobody is answered."""
        self._begin(now)
        taken = Requests(arena, False, self._entry_bytes_max)
        batch = RowBatch(taken, self.setup.workers)
        for position, row in enumerate(taken.rows):
            if row.shape == WRITE and not self._must_look(row):
                if row.table in self.setup.local:
                    batch.hand(position, row.table % self.setup.workers, ONE_WAY)
                else:
                    batch.write(position, self._deadline(0), False)
            else:
                self._take(batch)
                self._on_silent(arena.message(row.message))
        self._take(batch)

    def _begin(self, now: Now) -> None:
        self._now, self._taken = now, True
        self._backlog_ms = self.proposals.size // values.BYTES_A_MS
        self._gates.expire(now.ms)

    def _is_uniform(self, taken: Requests) -> bool:
        """Whether all rows go the same way: reads by the leader's word, or writes whose clients
        wait, with the same deadline and to tables that are there. Under load they mostly do."""
        if self._gates or self.setup.local or not self.setup.open_on_the_fly or not len(taken):
            return False
        shape, count = taken.shapes[0], len(taken)
        if taken.shapes.count(shape) != count:
            return False
        if shape == READ:
            return not self.setup.stale_allowed and not any(taken.extensions)
        if shape != WRITE or self.ownership.any_reserved(taken.tables):
            return False
        if not (set(taken.flags) <= WAITING_FLAGS and len(set(taken.deadlines_ms)) == 1):
            return False
        return not self._openings.unknown(set(taken.tables), self._now.ms)

    def _take(self, batch: RowBatch) -> None:
        """What the batch holds so far, in order."""
        for piles, to in ((batch.straight, self._direct), (batch.reads, self._reads)):
            for worker, pile in piles.items():
                frames = to.get(worker)
                if frames is None:
                    frames = to[worker] = Frames()
                for kind, positions in pile:
                    batch.taken.forward(positions, kind, frames)
        if batch.acknowledged:
            batch.taken.acknowledge(batch.acknowledged, self._out)
        for writes in batch.writes:
            self.counters["writes"] += len(writes.positions)
            self.proposals.add_run(batch.run(writes, self._new_reqids))
        batch.clear()

    def _on_silent(self, frames: Message) -> None:
        request_type, table = peek(frames)
        if request_type not in values.ONE_WAY_TYPES:
            self._drop(f"a request of type {request_type:#04x} over PULL or SUB")
        elif table is not None and self._goes_straight(request_type, table):
            self._hand(self._direct, table, ONE_WAY, [b""], frames)
        else:
            self._write([], frames)

    def on_ask(self, head: Sequence[int], frames: Message, now: Now) -> None:
        """From the job_server: a checkpoint of a table, a write, or an entry about a lease
        (docs/internals/tables.md)."""
        self._now = now
        kind, ticket = head[0], head[5]
        known = {CHECKPOINT: 2, JOB_WRITE: 2, LEASE: 3}
        if len(frames) != known.get(kind) or len(frames[0]) != 4:
            self.counters["malformed_asks"] += 1
            return
        table = int.from_bytes(frames[0], "little")
        if kind == LEASE:
            # Under its client's reqid: who asks again elsewhere gets the same one.
            write = ProposedWrite(frames[2:], [], self._deadline(0), None, ALL_WORKERS, ask=ticket)
            self._propose(frames[1], table, write)
        elif table in self.setup.local:
            self._worker(table).add_loose(
                [PIPE_HEADER.pack(kind, 0, 0, 0, 0, ticket), b"", *frames], now.ms
            )
        elif kind == CHECKPOINT:
            self._asks.append((table % self.setup.workers, ticket, [b"", *frames]))
        elif self._is_unknown(table):
            self._openings.wait(
                WaitingWrite({table}, len(frames[1]), partial(self._ask, ticket, frames))
            )
        else:
            self._ask(ticket, frames)

    def _ask(self, ticket: int, frames: Message, problem: str = "") -> None:
        """A write that the job_server asks for; problem: why nobody can judge it."""
        table = int.from_bytes(frames[0], "little")
        if problem:
            self._tell(Failure(None, ticket, problem, True))
        elif self._is_unknown(table):
            self._tell(Failure(None, ticket, not_open(table), False))
        elif problem := self._make({table}):
            self._tell(Failure(None, ticket, problem, False))
        else:
            write = ProposedWrite([], [], self._deadline(0), None, self._number(table), ask=ticket)
            self._propose(frames[1], table, write)

    # ---- requests ----

    def _on_request(self, prefix: Message, frames: Message) -> None:
        request_type, table = peek(frames)
        if table is not None and self._goes_straight(request_type, table):
            kind = REQUEST
            if request_type in values.WRITE_TYPES and is_acknowledged_first(
                request_type, frames[0]
            ):
                self._answer(prefix, finished.acknowledgement(frames[0]))
                kind = ONE_WAY
            self._hand(self._direct, table, kind, prefix, frames)
        elif request_type in values.JOB_TYPES:
            envelope = ENVELOPE if len(prefix) > 1 else 0
            head = PIPE_HEADER.pack(REQUEST, envelope, 0, 0, 0, self._job_ticket)
            self._job_ticket += 1
            if self.jobs_full:
                text = "the job_server has too many requests to do already"
                self._tell_reader([head, prefix[0], *frames], text)
            else:
                self.jobs.add([head, prefix[0], *frames])
        else:
            self._write(prefix, frames)

    def _goes_straight(self, request_type: int, table: int) -> bool:
        """Whether the worker alone does it: it judges the frames, too."""
        if request_type in LOCAL_TYPES:
            return True
        writes = request_type in values.ONE_WAY_TYPES or request_type in values.WRITE_TYPES
        return writes and request_type != values.WRITE_TABLES and table in self.setup.local

    def _is_stale(self, extension_flags: int) -> bool:
        return self.setup.stale_allowed or bool(extension_flags & values.STALE)

    def _must_look(self, row: Row) -> bool:
        """Whether a write is of a table that it may not make, or that is reserved."""
        if row.table in self.setup.local:
            return False
        if self.ownership.is_reserved(row.table):
            return True
        if row.type != values.PUT or self._openings.is_open(row.table, self._now.ms):
            return self._is_unknown(row.table)
        return not self.setup.open_on_the_fly or bool(self._make({row.table}))

    def _is_unknown(self, table: int) -> bool:
        """Whether a write has to open it, and may not."""
        return not (
            self.setup.open_on_the_fly
            or table in self.setup.local
            or self._openings.is_known(table, self._now.ms)
        )

    def _make(self, tables: set[int]) -> str:
        """A write makes these tables where they are not there; why it may not, if so."""
        new = self._openings.unknown(tables, self._now.ms)
        return self._openings.make(new, self._now.ms, self._deadline(0)) if new else ""

    def _hand(
        self, to: dict[int, Frames], table: int, kind: int, prefix: Message, frames: Message
    ) -> None:
        worker = table % self.setup.workers
        out = to.get(worker)
        if out is None:
            out = to[worker] = Frames()
        envelope = ENVELOPE if len(prefix) > 1 else 0
        out.add([PIPE_HEADER.pack(kind, envelope, 0, 0, 0, 0), prefix[0], *frames])

    def _number(self, table: int) -> int:
        """The worker of a table."""
        return table % self.setup.workers

    def _worker(self, table: int) -> WorkerChannel:
        return self.handoffs[self._number(table)]

    def _write(self, prefix: Message, frames: Message) -> None:
        """Whatever is decided here; without a prefix nobody is answered."""
        try:
            request = decode_request(frames)
            self._decide(prefix, frames, request)
        except RequestError as error:
            self._refuse(prefix, frames, error)

    def _decide(self, prefix: Message, frames: Message, request: Request) -> None:
        match request:
            case requests.ServerInfo():
                features = features_of(self.setup.open_on_the_fly)
                self._answer(
                    prefix, answers.encode_server_info(request, features, self.setup.software)
                )
            case requests.TableInfo(table=None) if self.setup.workers > 1:
                to = self._direct if self._is_stale(request.extension.flags) else self._reads
                key = self.gathering.begin(prefix, request)
                for number in range(self.setup.workers):
                    self._hand(to, number, REQUEST, [key], frames)
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
                straight = self._is_stale(request.extension.flags) or table in self.setup.local
                to = self._direct if straight else self._reads
                self._hand(to, table, REQUEST, prefix, frames)
            case _:
                self._modify(prefix, frames, request)

    def _modify(self, prefix: Message, frames: Message, request: Request) -> None:
        operations = requests.operations(request, self._now.unix_ms)
        is_session = isinstance(request, requests.Session)
        tables = set() if is_session else ops.tables_of(operations)
        local = tables & self.setup.local
        if len(tables) > 1:
            self._check_together(request, tables, local)
        spreads = is_session
        reserved = self.ownership.reserved(tables)
        if reserved:
            if self._must_ask_owner(request, reserved):
                go_on = partial(self._judge, prefix, frames)
                self._openings.wait(WaitingWrite(tables, sum(map(len, frames)), go_on))
                return
            problem = self.ownership.problem(request.extension.owner, operations, reserved)
            if problem:
                raise unacknowledged(request, problem)
            noted = self.ownership.noted(request.extension.owner, operations)
            spreads, operations = len(noted) > len(operations), noted
        if tables and not (local or self.setup.open_on_the_fly):
            if self._openings.must_wait(operations, tables, self._now.ms):
                go_on = partial(self._judge, prefix, frames)
                self._openings.wait(WaitingWrite(tables, sum(map(len, frames)), go_on))
                return
            missing = self._openings.missing(operations, tables, self._now.ms)
            if missing:
                raise refusal_of(request, not_open(missing[0]))
        unheard = not prefix or is_acknowledged_first(frames[0][2], frames[0])
        if prefix and not self._gates.passes(prefix[0], request.extension.reqid):
            text = "an earlier write of this connection was given up: repeat that first"
            raise FencedError(requests.type_of(request), values.ERROR, text, request.extension)
        problem = "" if local else self._make(ops.tables_made(operations))
        if problem:
            raise refusal_of(request, problem)
        if unheard and prefix:
            self._answer(prefix, answers.encode_ok(request))
        table = min(tables, default=0)
        if local:
            kind = ONE_WAY if unheard else REQUEST
            self._hand(self._direct, table, kind, prefix or [b""], frames)
        elif operations:
            answer = None if unheard else [*prefix, *finished.success(request)]
            has_result = isinstance(operations[0], ops.Transaction) or is_session
            worker = ALL_WORKERS if spreads else self._number(table)
            data = ops.pack(operations)
            deadline_ms = self._deadline(request.extension.deadline_ms, len(data))
            write = ProposedWrite(
                [request.extension.reqid], [], deadline_ms, answer, worker, has_result
            )
            self._propose(data, table, write)
        elif not unheard:  # Nothing is to be done: that is done.
            self._answer(prefix, answers.encode_ok(request))

    def _must_ask_owner(self, request: Request, reserved: list[int]) -> bool:
        """Whether nobody here can say yet who owns these tables."""
        if self._openings.is_judging:
            return False
        known = self.ownership.is_known(request.extension.owner, reserved)
        return not known or self._openings.is_held(reserved)

    def _check_together(self, request: Request, tables: set[int], local: set[int]) -> None:
        """One atomic batch is of one worker, and replicated or not."""
        names = ", ".join(map(str, sorted(tables)))
        if local and local != tables:
            these = ", ".join(map(str, sorted(local)))
            raise mixed_batch(request, f"the tables {names}: {these} are local, the others not")
        if len({table % self.setup.workers for table in tables}) > 1:
            raise mixed_batch(request, f"the tables {names} are of several workers")

    def _judge(self, prefix: Message, frames: Message, problem: str) -> None:
        """A write that has waited to hear whether its tables are open; problem: why nobody can
        tell."""
        if not problem:
            self._write(prefix, frames)
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
        """Of a request of this size; given up too early, it would only come again."""
        timeout_ms = self.setup.request_timeout_ms + self._backlog_ms + size // values.BYTES_A_MS
        return self._now.ms + (min(asked_ms, timeout_ms) if asked_ms else timeout_ms)

    # ---- answers ----

    def _answer(self, prefix: Message, frames: Message) -> None:
        if prefix:
            self._out.add([*prefix, *frames])

    def _refuse(self, prefix: Message, frames: Message, error: RequestError) -> None:
        """The text's code; an unflagged write is acknowledged whatever it holds, and told of."""
        self.counters["malformed"] += 1
        header = frames[0] if frames else b""
        text = f"request {error.request_type:#04x}: {error.text}"
        if error.request_type == values.PROTOCOL_ERROR:
            text = error.text
        if not prefix:
            self._drop(text)
        elif isinstance(error, FencedError):
            self._answer(prefix, answers.encode_refusal(error, retry=True))
        elif not isinstance(error, UnacknowledgedError) and is_acknowledged_first(
            error.request_type, header
        ):
            self._answer(prefix, [answers.encode_head(error.request_type, 0, error.extension)])
            self._drop(text)
        else:
            self._answer(prefix, answers.encode_refusal(error))

    def _drop(self, text: str) -> None:
        """A write that does nothing, of which nobody is told but who reads the log PUB."""
        self.counters["dropped"] += 1
        self.notice(WARN, f"dropped: {text}")

    def notice(self, level: int, text: str) -> None:
        """Something for the log PUB."""
        if len(self.notices) < NOTICES_MAX:
            self.notices.append((level, text))

    def _tell(self, failure: Failure) -> None:
        if failure.ask is not None:
            code = values.DATABASE_ERROR if failure.database else values.ERROR
            head = PIPE_HEADER.pack(FAILED, RETRYABLE * failure.retry, 0, code, 0, failure.ask)
            self.jobs.add([head, failure.text.encode()])
        if failure.answer is None:
            if failure.ask is None:
                self._drop(failure.text)
            return
        prefix, header = finished.split(failure.answer)
        code = values.DATABASE_ERROR if failure.database else error_code(header[2])
        error = RequestError(header[2], code, failure.text, finished.echoed(header))
        reqid = error.extension.reqid
        if failure.unproposed and reqid and self._gates.close(prefix[0], reqid, self._now.ms):
            self.proposals.withdraw(prefix[0], f"nothing was written: {self.reason}")
        self._answer(prefix, answers.encode_refusal(error, failure.retry))
        self.counters["failed"] += 1

    def _tell_reader(self, message: Message, text: str, retry: bool = True) -> None:
        """Answers a request that was to go, or has gone, to a worker: [HEAD][routing id][..]."""
        kind, flags, *_ = PIPE_HEADER.unpack(message[0])
        if kind == ONE_WAY:
            self._drop(text)
            return
        prefix = message[1:2] + [b""] * (flags & ENVELOPE)
        if message[1].startswith(PREFIX):
            found = self.gathering.fail(message[1])
            if found is None:
                return
            prefix = found
        if kind == RESULT_QUERY:
            request_type, extension = message[3][2], finished.echoed(message[3])
        else:
            request_type, extension = finished.request_of(message[2:])
        told = RequestError(request_type, error_code(request_type), text, extension)
        self._answer(prefix, answers.encode_refusal(told, retry))
        self.counters["failed"] += 1

    def refuse_job(self, message: Message) -> None:
        """What was in `jobs` and can't go there, or was lost there: a client is told, an ask comes
        again."""
        if message[0][0] == REQUEST:
            self._tell_reader(message, "no job_server runs on this node now")

    def refuse_answer(self, answer: Message) -> None:
        """A finished answer that its client has no room for: it is told so."""
        self._answer(*finished.too_much_unread(answer))

    def on_part(self, worker: int, answer: Message) -> None:
        """A worker's part of an answer: [key][header][frames ..]."""
        whole = self.gathering.take(answer[0], worker, answer[1:])
        if whole is not None:
            self._out.add(whole)

    def take_answers(self) -> list[Frames]:
        """What ready() and those before it have made, to be sent."""
        taken, self.answers = self.answers, []
        if self._out.count:
            taken.append(self._out)
            self._out = Frames()
        return taken

    def on_epoch(self, handoff: WorkerChannel, epoch: int, now_ms: int) -> None:
        """A worker has reported; if it is a new one, some requests are not known to be done."""
        for message in handoff.on_epoch(epoch, now_ms):
            self._tell_reader(message, "the table_worker has ended; it may have been done", False)
        self._tell_lost(handoff)

    def _tell_lost(self, handoff: WorkerChannel) -> None:
        """The job_server tells its client, or asks again; what it has got already it ignores."""
        for ticket in handoff.lost:
            text = f"table_worker {handoff.number + 1} has ended, or takes nothing in"
            self._tell(Failure(None, ticket, text, True))
        handoff.lost.clear()

    # ---- in step ----

    def ready(self, now: Now) -> None:
        """Acts once a wake, behind all that has arrived."""
        self._now, now_ms = now, now.ms
        self._expire()
        self._openings.end(now_ms, self.reason)
        self.asked_client = self._begin_round() | self._openings.begin(self._deadline(0))
        if self._rounds:
            self._end_rounds(now_ms)
        for worker, frames in self._direct.items():
            self.handoffs[worker].add(frames, 0, now_ms)
        self._direct = {}
        if not self.proposals.is_idle:
            self._collect(now_ms)
            self.asked_client |= self.proposals.propose()
        for handoff in self.handoffs:
            for message in handoff.fail(now_ms):
                self._tell_reader(message, f"table_worker {handoff.number + 1} does not answer")
            self._tell_lost(handoff)
        if self._out.count:
            self.answers.append(self._out)
            self._out = Frames()
        if self._taken or self.is_full:
            self._taken = False
            self.is_full = (
                self.inflight >= INFLIGHT_MAX or self.inflight_bytes >= INFLIGHT_BYTES_MAX
            )

    def _begin_round(self) -> bool:
        if not (self._reads or self._asks):
            return False
        read = self.client.reads.add(PendingRead(WAIT_CONFIRMED))
        round_ = _ReadRound(read, self._reads, self._deadline(0))
        round_.asks = self._asks
        self._rounds.append(round_)
        self._reads, self._asks = {}, []
        return True

    def _end_rounds(self, now_ms: int) -> None:
        """In their order: what the leader says to a later one holds for those before it, too."""
        done = [place for place, round_ in enumerate(self._rounds) if round_.read.index]
        for _ in range(done[-1] + 1 if done else 0):
            round_ = self._rounds.popleft()
            index = round_.read.index or next(it.read.index for it in self._rounds if it.read.index)
            for worker, frames in round_.frames.items():
                self.handoffs[worker].add(frames, index, now_ms)
            for worker, ticket, rest in round_.asks:
                head = PIPE_HEADER.pack(CHECKPOINT, 0, 0, 0, index, ticket)
                self.handoffs[worker].add_loose([head, *rest], now_ms)
        while self._rounds and (
            self._rounds[0].read.refusal or self._rounds[0].deadline_ms <= now_ms
        ):
            self._fail_round(self._rounds.popleft())

    def _fail_round(self, round_: _ReadRound) -> None:
        self.client.reads.drop(round_.read)
        text = f"not read: {round_.read.refusal or self.reason}"
        for frames in round_.frames.values():
            for position in range(frames.count):
                self._tell_reader(frames.message(position), text)
        for _, ticket, _ in round_.asks:
            self._tell(Failure(None, ticket, text, True))

    @property
    def reason(self) -> str:
        """Why a request has waited for too long."""
        if self.client.leader is None:
            return "no leader was found: an election goes on, or no majority of the nodes runs"
        return (
            f"the leader at {self.client.leader} did not commit: it has no majority, or its disk"
            " takes no writes"
        )

    def _collect(self, now_ms: int) -> None:
        """What is committed and applied is answered; what has waited for too long, too."""
        proposals = self.proposals
        proposals.collect([handoff.standing for handoff in self.handoffs])
        if proposals.deadline_ms is not None and proposals.deadline_ms <= now_ms:
            proposals.expire(now_ms, self.reason)
        for done in proposals.done:
            self._finish(done.answer, [result.data for result in done.results])
        while proposals.failures:
            told, proposals.failures = proposals.failures, []
            for failure in told:
                self._tell(failure)
        for lost in proposals.lost:
            self._ask_result(lost, now_ms)
        for ticket, index, results in proposals.asks:
            refused = next((result for result in results if result.code), None)
            if refused is None:
                self.jobs.add([PIPE_HEADER.pack(JOB_WRITE, 0, 0, 0, index, ticket)])
            else:
                text = refused.data.decode(errors="replace")
                self._tell(Failure(None, ticket, text, False, database=True))
        self.answers += proposals.answers
        proposals.clear_told()

    def _ask_result(self, lost: ResultLost, now_ms: int) -> None:
        """A transaction that was repeated: its worker has kept what came of it."""
        prefix, header = finished.split(lost.answer)
        if header[2] != values.SESSION:
            frames = Frames(1 << 10, 8)
            envelope = ENVELOPE if len(prefix) > 1 else 0
            head = PIPE_HEADER.pack(RESULT_QUERY, envelope, 0, 0, 0, 0)
            frames.add([head, prefix[0], lost.reqid, header])
            self.handoffs[lost.worker].add(frames, lost.index, now_ms)
        else:
            text = f"entry {lost.index} is applied, what came of it is no longer known"
            self._tell(Failure(lost.answer, None, text, False))

    def on_expiry(self, worker: int, unix_ms: int) -> None:
        """When the next key or session of a worker ends; 0: none does."""
        self._expiries[worker] = unix_ms
        self._first_expiry = min((at for at in self._expiries.values() if at), default=0)

    def _expire(self) -> None:
        """Ends keys and sessions whose time has come, by an entry: the leader's server proposes it,
        another one should that be gone."""
        due_ms = self._expires_ms
        if due_ms is None or due_ms > self._now.ms:
            return
        entry = ops.pack([ops.Expire(0, self._now.unix_ms)])
        self._propose(entry, 0, ProposedWrite([], [], self._deadline(0), None, 0))
        self._expire_again_ms = self._now.ms + EXPIRE_AGAIN_MS

    @property
    def _expires_ms(self) -> int | None:
        """When _expire() has something to do."""
        due = self._first_expiry
        if not due:
            return None
        leads = self.client.leader == self.setup.own_url
        late_ms = 0 if leads else EXPIRE_DEPUTY_MS
        return max(self._expire_again_ms, self._now.ms + due - self._now.unix_ms + late_ms)

    def _finish(self, answer: Message, results: list[bytes]) -> None:
        """Makes an answer of what a worker has reported: the first result is the request's own."""
        prefix, header = finished.split(answer)
        found = results[0]
        if header[2] != values.SESSION:
            self._answer(prefix, finished.result_answer(header, found))
            return
        if len(found) == 1:  # It was kept, or is ended: 1 or 0.
            found = answer[-1] if found == b"\1" else bytes(8)
        self._answer(prefix, [header, found])

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        times = [it.deadline_ms for it in self.handoffs]
        times += [self.proposals.deadline_ms, self._expires_ms, self._openings.deadline_ms]
        if self._rounds:
            times.append(self._rounds[0].deadline_ms)
        return min((each for each in times if each is not None), default=None)

    # ---- limits ----

    @property
    def inflight(self) -> int:
        """Requests that are not answered yet."""
        waiting = sum(frames.count for round_ in self._rounds for frames in round_.frames.values())
        waiting += self._openings.count
        return waiting + self.proposals.count + sum(it.count for it in self.handoffs)

    @property
    def inflight_bytes(self) -> int:
        waiting = sum(frames.size for round_ in self._rounds for frames in round_.frames.values())
        waiting += self._openings.size
        return waiting + self.proposals.size + sum(it.size for it in self.handoffs)
