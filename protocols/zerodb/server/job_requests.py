"""Requests of clients for job_server, and requests of job_server itself: checkpoints, writes and
entries about leases (docs/internals/tables.md)."""

from collections.abc import Sequence
from functools import partial

import msgpack

from ...access.zap import AllowedKey
from ..wire import worker_pipe as pipe
from ..wire.values import is_shared
from ..wire.worker_pipe import PIPE_HEADER, Message
from .clients import encode_client
from .context import ServerContext
from .proposals import ALL_WORKERS, ProposedWrite
from .reads import ReadRequests
from .worker_channel import WorkerChannel
from .write_checks import WaitingWrite, not_open
from .writes import WriteRequests

_FRAMES = {
    pipe.CHECKPOINT: 2,
    pipe.JOB_WRITE: 2,
    pipe.LEASE: 4,
}  # Of a request of job_server, by its kind.


class JobRequests:
    """What clients and job_server ask of each other through one server."""

    def __init__(self, context: ServerContext, writes: WriteRequests, reads: ReadRequests) -> None:
        self._context = context
        self._outbox = context.outbox
        self._writes = writes
        self._reads = reads
        self.is_full = False  # job_server has too many requests.
        self._ticket = context.setup.first_ticket

    def forward_to_jobs(self, prefix: Message, frames: Message, client: AllowedKey | None) -> None:
        """Gives a client's request to job_server."""
        flags = pipe.ENVELOPE if len(prefix) > 1 else 0
        keyed = [] if client is None else [encode_client(client)]
        head = PIPE_HEADER.pack(
            pipe.REQUEST, flags | pipe.KEYED * len(keyed), 0, 0, 0, self._ticket
        )
        self._ticket += 1
        message = [head, prefix[0], *frames, *keyed]
        if self.is_full:
            text = "the job_server has too many requests to do already"
            self._outbox.fail_forwarded(message, text)
        else:
            self._outbox.jobs.add(message)

    def refuse(self, message: Message) -> None:
        """A message cannot be sent to job_server, or was lost. A client gets an error; a request of
        job_server itself needs none."""
        if message[0][0] == pipe.REQUEST:
            self._outbox.fail_forwarded(message, "no job_server runs on this node now")

    def on_key_changed(self, client: AllowedKey) -> None:
        """A key's grants have changed: job_server ends what it may no longer have."""
        head = PIPE_HEADER.pack(pipe.KEY_CHANGED, 0, 0, 0, 0, 0)
        self._outbox.jobs.add([head, encode_client(client)])

    def send_owners(self) -> None:
        """Gives job_server the owners of the leases of all nodes, and the leases that are kept."""
        clients = self._context.clients
        kept = clients.kept
        leases = {number: name for number, name in clients.owners.items() if is_shared(number)}
        leases |= {each.lease: each.owner for each in (kept or {}).values() if each.owner}
        head = PIPE_HEADER.pack(pipe.OWNERS, 0, 0, 0, 0, 0)
        known = [] if kept is None else [msgpack.packb([*kept])]
        self._outbox.jobs.add([head, msgpack.packb(leases), *known])

    def on_job_request(self, head: Sequence[int], frames: Message) -> None:
        """Handles a request of job_server."""
        kind, ticket = head[0], head[5]
        if len(frames) != _FRAMES.get(kind) or len(frames[0]) != 4:
            self._outbox.counters["malformed_asks"] += 1
            return
        context, table = self._context, int.from_bytes(frames[0], "little")
        if kind == pipe.LEASE:
            # With the client's reqid, so that a repeat at another node gets the same lease.
            write = ProposedWrite(
                frames[2:3], [], context.deadline(), None, ALL_WORKERS, job_ticket=ticket
            )
            self._writes.propose(frames[1], table, write)
            self._writes.on_lease(ticket, frames[1], frames[3])
        elif table in context.setup.local:
            header = PIPE_HEADER.pack(kind, 0, 0, 0, 0, ticket)
            context.channel_of(table).add_job_request([header, b"", *frames], context.now.ms)
        elif kind == pipe.CHECKPOINT:
            worker = context.channel_of(table).number
            self._reads.new.checkpoints.append((worker, ticket, [b"", *frames]))
        elif self._writes.checks.is_unknown(table):
            resume = partial(self._write, ticket, frames)
            self._writes.checks.existence.add(WaitingWrite({table}, len(frames[1]), resume))
        else:
            self._write(ticket, frames)

    def _write(self, ticket: int, frames: Message, problem: str = "") -> None:
        """Proposes a write.

        problem   why its table cannot be checked, or an empty text
        """
        checks, table = self._writes.checks, int.from_bytes(frames[0], "little")
        retry = bool(problem)
        if not problem:
            problem = not_open(table) if checks.is_unknown(table) else checks.register({table})
        if problem:
            self._outbox.fail_job(ticket, problem, retry)
            return
        worker = self._context.channel_of(table).number
        deadline_ms = self._context.deadline()
        write = ProposedWrite([], [], deadline_ms, None, worker, job_ticket=ticket)
        self._writes.propose(frames[1], table, write)

    def fail_lost(self, channel: WorkerChannel) -> None:
        """Fails requests that a worker has lost. job_server retries them, and ignores failures of
        completed ones."""
        text = f"table_worker {channel.number + 1} has ended, or takes nothing in"
        for ticket in channel.lost_tickets:
            self._outbox.fail_job(ticket, text, retry=True)
        channel.lost_tickets.clear()
