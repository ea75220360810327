"""The way of a write: checked, acknowledged or proposed, answered once it is applied here.

1. WriteChecks admits a write, lets it wait, or refuses it. Common writes to existing tables need no
   check: add_row(), add_all().
2. A write to a local table goes to its worker. Another write becomes an entry: Proposals packs
   entries and gives them to the log client, which sends them to the leader.
3. collect() answers packs that are committed and applied here. A write without PARTSYNC or FULLSYNC
   was acknowledged after step 1.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from ....native.net.messages import Frames
from ....native.tables.requests import WRITE, Requests, Row
from ...access.zap import AllowedKey
from ..wire import answers, ops, requests, values
from ..wire import worker_pipe as pipe
from ..wire.kept import kept_key
from ..wire.requests import Request, RequestError, decode_request, error_code, type_of
from ..wire.worker_pipe import PIPE_HEADER, Message
from ..wire.writes import operations_of
from .context import ServerContext
from .proposals import ALL_WORKERS, AppliedWrite, Failure, Proposals, ProposedWrite, WriteRun
from .worker_channel import add_request
from .write_checks import AdmittedWrite, WriteChecks, refusal_of

WAITING_FLAGS = {values.PARTSYNC, values.FULLSYNC, values.PARTSYNC | values.FULLSYNC}
PLAIN_TYPES = {values.PUT, values.DELETE}  # Tables never refuse them.
_WITHOUT_INDEX = bytes(flags for flags in range(256) if not flags & values.WITH_INDEX)
PART_BYTES_MAX = 1 << 20  # Of a large write: larger messages would delay heartbeats.
EXPIRE_RETRY_MS = 100
EXPIRE_DEPUTY_MS = 2000
LEASE_OWNER_TTL_MS = 24 * 3600 * 1000  # Leases that no client releases end within minutes.


class WriteRows(NamedTuple):
    """Rows that become entries, with one deadline."""

    deadline_ms: int
    positions: list[int]
    awaited: list[int]  # Positions in `positions` of the writes whose clients expect answers.


class WriteRequests:
    """The writes of one server."""

    def __init__(
        self,
        context: ServerContext,
        new_reqids: Callable[[int], list[bytes]],
        take_back: Callable[[], None],
    ) -> None:
        """take_back: as for Proposals"""
        self._context = context
        self._outbox = context.outbox
        self.checks = WriteChecks(context)
        self.proposals = Proposals(context.client, take_back)
        self._new_reqids = new_reqids
        self.entry_bytes_max = min(context.setup.entry_bytes_max, PART_BYTES_MAX)
        self._rows: list[WriteRows] = []
        self._acknowledged: list[int] = []  # Rows to be acknowledged at once.
        self._entries: dict[int, bytes] | None = None  # Of all rows of this receive.
        self._expiries: dict[int, int] = {}  # Unix ms by worker.
        self._first_expiry = 0
        self._expire_retry_ms = 0
        self._lease_owners: dict[int, bytes] = {}  # By ticket, of leases that entries open.

    # ---- arrival ----

    def start_receive(self) -> None:
        """Messages have arrived."""
        self._context.backlog_ms = self.proposals.size // values.BYTES_A_MS
        self.proposals.now_us = self._context.now.us
        self.checks.fence.expire(self._context.now.ms)
        self._entries = None

    def add_all(self, rows: Requests) -> bool:
        """Adds rows that are all writes. False: they differ, or some need a check."""
        setup, checks, now_ms = self._context.setup, self.checks, self._context.now.ms
        if checks.fence or setup.local or not setup.open_on_the_fly:
            return False
        if checks.ownership.any_reserved(rows.tables):
            return False
        if not (set(rows.flags) <= WAITING_FLAGS and len(set(rows.deadlines_ms)) == 1):
            return False
        if checks.existence.unknown(set(rows.tables), now_ms):
            return False
        positions = list(range(len(rows)))
        deadline_ms = self._context.deadline(rows.deadlines_ms[0])
        self._rows.append(WriteRows(deadline_ms, positions, positions))
        self.end_rows(rows)
        return True

    def add_row(self, position: int, row: Row, answered: bool) -> bool:
        """Adds a common write. False: it must be decoded and checked."""
        if (answered and self.checks.fence) or self._needs_check(row):
            return False
        awaited = answered and bool(row.flags & answers.SYNC_FLAGS)
        if row.table in self._context.setup.local:
            kind = pipe.REQUEST if awaited else pipe.ONE_WAY
            self._context.channel_of(row.table).add_row(position, kind)
        else:
            deadline_ms = self._context.deadline(row.deadline_ms if answered else 0)
            if not self._rows or self._rows[-1].deadline_ms != deadline_ms:
                self._rows.append(WriteRows(deadline_ms, [], []))
            writes = self._rows[-1]
            if awaited:
                writes.awaited.append(len(writes.positions))
            writes.positions.append(position)
        if answered and not awaited:
            self._acknowledged.append(position)
        return True

    def _needs_check(self, row: Row) -> bool:
        """Whether a write needs checks: its table is reserved or does not exist."""
        setup, checks = self._context.setup, self.checks
        if row.table in setup.local:
            return False
        if checks.ownership.is_reserved(row.table):
            return True
        if row.type != values.PUT or checks.existence.is_open(row.table, self._context.now.ms):
            return checks.is_unknown(row.table)
        return not setup.open_on_the_fly or bool(checks.register({row.table}))

    def end_rows(self, rows: Requests) -> None:
        """Acknowledges and proposes the added rows."""
        if self._acknowledged:
            rows.acknowledge(self._acknowledged, self._outbox.out)
            self._acknowledged.clear()
        for writes in self._rows:
            self._outbox.counters["writes"] += len(writes.positions)
            self.proposals.add_run(self._run_of(rows, writes))
        self._rows.clear()

    def _run_of(self, rows: Requests, writes: WriteRows) -> WriteRun:
        """The entries of writes. Writes without a reqid get one."""
        if self._entries is None:
            positions = [at for at, shape in enumerate(rows.shapes) if shape == WRITE]
            self._entries = dict(zip(positions, rows.entries(), strict=True))
        own = [rows.reqids[position] for position in writes.positions]
        made = iter(self._new_reqids(own.count(values.NO_REQID)))
        reqids = [next(made) if reqid == values.NO_REQID else reqid for reqid in own]
        entries = [self._entries[position] for position in writes.positions]
        positions = [writes.positions[position] for position in writes.awaited]

        def acknowledge(begin: int, end: int, out: Frames) -> None:
            rows.acknowledge(positions[begin:end], out)

        count = self._context.setup.workers
        workers = {rows.tables[position] % count for position in writes.positions}
        types = {rows.types[position] for position in writes.positions}
        asks_index = bool(rows.extensions.translate(None, _WITHOUT_INDEX))
        return WriteRun(
            *(reqids, entries, writes.deadline_ms, workers, types <= PLAIN_TYPES),
            *(writes.awaited, acknowledge, asks_index),
        )

    def on_write(
        self, prefix: Message, frames: Message, request: Request, client: AllowedKey | None = None
    ) -> None:
        """Handles a decoded write. Without a prefix the client gets no answer."""
        try:
            resume = partial(self._resume, prefix, frames, client)
            write = self.checks.check_write(prefix, frames, request, client, resume)
        except RequestError as error:
            self._outbox.refuse(prefix, frames, error)
            return
        if write is None:
            return
        if write.acknowledged_first or not (write.is_local or write.operations):
            self._outbox.answer(prefix, answers.encode_ok(request))
        if write.is_local:
            kind = pipe.ONE_WAY if write.acknowledged_first else pipe.REQUEST
            out = self._context.channel_of(write.table).new_frames()
            add_request(out, kind, prefix or [b""], frames)
        elif write.operations:
            self._propose_request(prefix, request, write, client)

    def _resume(
        self, prefix: Message, frames: Message, client: AllowedKey | None, problem: str
    ) -> None:
        """Continues a write that has waited for the existence of its tables.

        problem   why that is unknown, or an empty text
        """
        request = decode_request(frames)
        if not self._context.clients.is_allowed(client):
            error = answers.not_allowed(type_of(request), request.extension)
            self._outbox.answer(prefix, answers.encode_refusal(error))
        elif not problem:
            self.on_write(prefix, frames, request, client)
        elif not prefix or answers.is_acknowledged_first(frames[0]):
            self._outbox.refuse(prefix, frames, refusal_of(request, problem))
        else:
            refusal = answers.encode_refusal(refusal_of(request, problem), True)
            self._outbox.answer(prefix, refusal)

    # ---- proposals ----

    def _propose_request(
        self, prefix: Message, request: Request, write: AdmittedWrite, client: AllowedKey | None
    ) -> None:
        answer = None
        if not write.acknowledged_first:
            answer = [*prefix, *answers.success(request)]
            if client is not None and isinstance(request, requests.Session):
                answer.append(client.name.encode())  # For _note_owner().
        first = write.operations[0]
        has_result = isinstance(first, ops.Transaction) or isinstance(request, requests.Session)
        worker = ALL_WORKERS if write.is_for_all else write.table % self._context.setup.workers
        data = ops.pack(write.operations)
        if len(data) > self.entry_bytes_max and ops.is_gated(write.operations):
            text = (
                "a chunk of a load, or a transaction with increments, appends, reads of ranges or"
                f" compares of versions, has {self.entry_bytes_max} bytes at most"
            )
            self._outbox.answer(prefix, answers.encode_refusal(refusal_of(request, text)))
            return
        deadline_ms = self._context.deadline(request.extension.deadline_ms, len(data))
        reqids = [request.extension.reqid]
        asks_index = bool(request.extension.flags & values.WITH_INDEX)
        proposed = ProposedWrite(
            reqids, [], deadline_ms, answer, worker, has_result, asks_index=asks_index
        )
        self.propose(data, write.table, proposed)

    def propose(self, data: bytes, table: int, write: ProposedWrite) -> None:
        """Adds a write of packed operations, which may be cut into several entries."""
        reqid = next((each for each in write.reqids if each and each != values.NO_REQID), b"")
        if len(data) <= self.entry_bytes_max:
            reqids, entries = [reqid or self._new_reqids(1)[0]], [data]
        else:
            whole = reqid or self._new_reqids(1)[0]
            entries = ops.cut(data, table, whole, self.entry_bytes_max)
            reqids = [*self._new_reqids(len(entries) - 1), whole]
        self.proposals.add(write._replace(reqids=reqids, entries=entries))
        self._outbox.counters["writes"] += 1

    def _note_owner(self, number: int, owner: bytes, answer: Message | None = None) -> None:
        """Proposes the owner of a session, or of a lease of all nodes: a key of OWNER_TABLE, which
        ends with the session.

        owner    the name of the client's key
        answer   for the client, when all nodes know the owner
        """
        extension = values.Extension(lease=number)
        if values.is_shared(number):
            extension = values.Extension(ttl_ms=LEASE_OWNER_TTL_MS)
        name = number.to_bytes(8, "big")
        put = requests.Put(values.OWNER_TABLE, [name], [owner], extension=extension)
        self._propose_owner(operations_of(put, self._context.now.unix_ms), answer)

    def on_lease(self, ticket: int, data: bytes, owner: bytes) -> None:
        """job_server has proposed an entry about a lease; the owner of one that it opens."""
        if owner:
            self._lease_owners[ticket] = owner
        ended = [op.lease for op in ops.unpack(data) if isinstance(op, ops.LeaseEnd)]
        known = [lease for lease in ended if lease in self._context.clients.owners]
        if known:
            keys = [lease.to_bytes(8, "big") for lease in known]
            self._propose_owner([ops.Delete(values.OWNER_TABLE, keys)], None)
        rows = self._context.clients.kept or {}
        kept = [rows[lease] for lease in ended if lease in rows]
        if kept:  # They end with their leases: of a key that was revoked, say.
            keys = [kept_key(each.table, each.lease) for each in kept]
            self._propose_owner([ops.Delete(values.SNAPSHOT_TABLE, keys)], None)

    def _propose_owner(self, operations: list[ops.Op], answer: Message | None) -> None:
        """Proposes operations on one of the server's own tables."""
        table = operations[0].table
        worker = table % self._context.setup.workers
        write = ProposedWrite([], [], self._context.deadline(), answer, worker)
        self.propose(ops.pack(operations), table, write)

    def end_sessions(self, owners: Collection[str]) -> None:
        """Ends the sessions of keys that are no longer allowed."""
        found = self._context.clients.owners.items()
        for number in [it for it, owner in found if owner in owners and not values.is_shared(it)]:
            write = ProposedWrite([], [], self._context.deadline(), None, ALL_WORKERS)
            self.propose(ops.pack([ops.SessionEnd(0, number)]), 0, write)

    def on_expiry(self, worker: int, unix_ms: int) -> None:
        """A worker has reported when its next key or session ends; 0: none does."""
        self._expiries[worker] = unix_ms
        self._first_expiry = min((at for at in self._expiries.values() if at), default=0)

    def propose_expiry(self) -> None:
        """Proposes an entry that ends keys and sessions. The leader's server does it; others do it
        2 s later in case that server has stopped."""
        due_ms, now = self._expires_ms, self._context.now
        if due_ms is None or due_ms > now.ms:
            return
        entry = ops.pack([ops.Expire(0, now.unix_ms)])
        self.propose(entry, 0, ProposedWrite([], [], self._context.deadline(), None, 0))
        self._expire_retry_ms = now.ms + EXPIRE_RETRY_MS

    @property
    def _expires_ms(self) -> int | None:
        """When propose_expiry() has work."""
        due, now, context = self._first_expiry, self._context.now, self._context
        if not due:
            return None
        late_ms = 0 if context.client.leader == context.setup.own_url else EXPIRE_DEPUTY_MS
        return max(self._expire_retry_ms, now.ms + due - now.unix_ms + late_ms)

    # ---- answers ----

    def collect(self) -> None:
        """Answers writes that are committed and applied, and writes that have expired."""
        proposals, context = self.proposals, self._context
        proposals.now_us = context.now.us
        proposals.collect([channel.status for channel in context.channels])
        if proposals.deadline_ms is not None and proposals.deadline_ms <= context.now.ms:
            proposals.expire(context.now.ms, context.reason)
        for write in proposals.applied:
            if write.results:  # The first one is that of the request.
                self._answer_result(write.answer, write.results[0].data)
            else:
                self._query_result(write)
        while proposals.failures:
            failures, proposals.failures = proposals.failures, []
            for failure in failures:
                self._answer_failure(failure)
        for ticket, index, results in proposals.job_results:
            refused = next((result for result in results if result.code), None)
            owner = self._lease_owners.pop(ticket, b"")
            if refused is None:
                if owner:
                    self._note_owner(values.shared_lease(index), owner)
                self._outbox.jobs.add([PIPE_HEADER.pack(pipe.JOB_WRITE, 0, 0, 0, index, ticket)])
            else:
                text = refused.data.decode(errors="replace")
                self._outbox.fail_job(ticket, text, False, values.DATABASE_ERROR)
        self._outbox.batches += proposals.answers
        proposals.clear_results()

    def _answer_failure(self, failure: Failure) -> None:
        code = values.DATABASE_ERROR if failure.database else values.ERROR
        if failure.job_ticket is not None:
            self._lease_owners.pop(failure.job_ticket, None)
            self._outbox.fail_job(failure.job_ticket, failure.text, failure.retry, code)
        elif failure.answer is None:
            self._outbox.drop_write(failure.text)
        else:
            self._refuse_proposed(failure, failure.answer)

    def _refuse_proposed(self, failure: Failure, answer: Message) -> None:
        prefix, header = answers.split(answer)
        code = values.DATABASE_ERROR if failure.database else error_code(header[2])
        error = RequestError(header[2], code, failure.text, answers.echoed(header))
        reqid, now_ms = error.extension.reqid, self._context.now.ms
        if failure.unproposed and reqid and self.checks.fence.add(prefix[0], reqid, now_ms):
            text = f"nothing was written: {self._context.reason}"
            self.proposals.withdraw(prefix[0], text)
        self._outbox.answer(prefix, answers.encode_refusal(error, failure.retry))
        self._outbox.counters["failed"] += 1

    def _query_result(self, lost: AppliedWrite) -> None:
        """Asks the worker for the stored result of a repeated transaction."""
        prefix, header = answers.split(lost.answer)
        if header[2] != values.SESSION:
            frames = Frames(1 << 10, 8)
            envelope = pipe.ENVELOPE if len(prefix) > 1 else 0
            head = PIPE_HEADER.pack(pipe.RESULT_QUERY, envelope, 0, 0, 0, 0)
            frames.add([head, prefix[0], lost.reqid, header])
            channel = self._context.channels[lost.worker]
            now = self._context.now
            channel.add(frames, lost.log_index, now.ms, now.us)
        else:
            text = f"entry {lost.log_index} is applied, what came of it is no longer known"
            self._answer_failure(Failure(lost.answer, None, text, False))

    def _answer_result(self, answer: Message, found: bytes) -> None:
        """Answers with a worker's result."""
        prefix, header = answers.split(answer)
        if header[2] != values.SESSION:
            self._outbox.answer(prefix, answers.result_answer(header, found))
            return
        _, session, *owner = answer[len(prefix) :]
        if len(found) == 1:  # It was kept, or is ended: 1 or 0.
            found = session if found == b"\1" else bytes(8)
        elif owner:
            opened = int.from_bytes(found, "little")
            self._note_owner(opened, owner[0], [*prefix, header, found])
            return
        self._outbox.answer(prefix, [header, found])

    @property
    def deadline_ms(self) -> int | None:
        """When a write expires, or an expiry is due."""
        times = (self.proposals.deadline_ms, self._expires_ms, self.checks.existence.deadline_ms)
        return min((each for each in times if each is not None), default=None)
