"""The way of a read: from its arrival to its worker. Workers answer reads themselves.

All reads of a wake share one round, that is one question to the leader (ReadIndex): how far must a
worker have applied the log? Where the leader is this node's peer, its lease in shared memory is the
answer. Stale reads and reads of local tables skip the round.
"""

from collections import deque

from ....native.log.reads import WAIT_CONFIRMED
from ....native.net.messages import Frames
from ....native.tables.requests import Requests, Row
from ...zmqraft.client.client import PendingRead
from ..wire import requests, values
from ..wire.worker_pipe import CHECKPOINT, PIPE_HEADER, REQUEST, Message
from .context import ServerContext
from .worker_channel import add_request


class ReadRound:
    """The reads and checkpoints of one question."""

    __slots__ = ("arrived_us", "checkpoints", "deadline_ms", "frames", "read")

    def __init__(self) -> None:
        self.frames: dict[int, Frames] = {}  # Reads by worker.
        self.checkpoints: list[tuple[int, int, Message]] = []  # (worker, ticket, frames)
        self.read = PendingRead(WAIT_CONFIRMED)
        self.deadline_ms = 0
        self.arrived_us = 0  # When they have arrived.

    def frames_of(self, worker: int) -> Frames:
        """Where the worker's reads are added."""
        found = self.frames.get(worker)
        if found is None:
            found = self.frames[worker] = Frames()
        return found


class ReadRequests:
    """The reads of one server that wait for the leader, in order."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self.new = ReadRound()  # Of this wake.
        self._rows: dict[int, list[int]] = {}  # By worker: rows to be added to it.
        self.rounds: deque[ReadRound] = deque()

    def add_all(self, rows: Requests) -> bool:
        """Adds rows that are all reads. False: some may skip the round."""
        setup = self._context.setup
        if setup.stale_allowed or setup.local or any(rows.extensions):
            return False
        for position, table in enumerate(rows.tables):
            self._rows.setdefault(table % setup.workers, []).append(position)
        self.end_rows(rows)
        return True

    def add_row(self, position: int, row: Row) -> None:
        """Adds a common read."""
        channel = self._context.channel_of(row.table)
        if self._is_stale(row.extension) or row.table in self._context.setup.local:
            channel.add_row(position, REQUEST)
        else:
            self._rows.setdefault(channel.number, []).append(position)

    def end_rows(self, rows: Requests) -> None:
        """Moves the messages of the added rows."""
        for worker, positions in self._rows.items():
            rows.forward(positions, REQUEST, self._frames_of(worker))
        self._rows.clear()

    def _frames_of(self, worker: int) -> Frames:
        """Where the worker's reads of this wake are added."""
        if not self.new.frames:
            self.new.arrived_us = self._context.now.us
        return self.new.frames_of(worker)

    def _is_stale(self, extension_flags: int) -> bool:
        """Whether a read skips the round."""
        return self._context.setup.stale_allowed or bool(extension_flags & values.STALE)

    def on_read(self, prefix: Message, frames: Message, request: requests.ReadRequest) -> None:
        """Gives a decoded read to its worker, or the info of all tables to all workers."""
        setup, table = self._context.setup, request.table or 0
        workers, immediate = [table % setup.workers], self._is_stale(request.extension.flags)
        if isinstance(request, requests.TableInfo) and request.table is None and setup.workers > 1:
            prefix = [self._context.outbox.scatter_gather.start(prefix, request)]
            workers = list(range(setup.workers))
        elif table in setup.local:
            immediate = True
        for worker in workers:
            channel = self._context.channels[worker]
            out = channel.new_frames() if immediate else self._frames_of(worker)
            add_request(out, REQUEST, prefix, frames)

    def start(self) -> bool:
        """Asks the leader for the reads of this wake. False: there are none, or a lease of this
        node's peer tells the index."""
        new = self.new
        if not (new.frames or new.checkpoints):
            return False
        if not self.rounds:
            new.read.index = self._context.leased_index()
        if not new.read.index:
            self._context.client.reads.add(new.read)
        new.deadline_ms = self._context.deadline()
        self.rounds.append(new)
        self.new = ReadRound()
        return not new.read.index

    def finish(self) -> None:
        """Gives confirmed reads to their workers; fails refused and expired rounds.

        The leader's answer to a later round confirms earlier rounds, too.
        """
        rounds, channels, now_ms = self.rounds, self._context.channels, self._context.now.ms
        done = [position for position, round_ in enumerate(rounds) if round_.read.index]
        for _ in range(done[-1] + 1 if done else 0):
            round_ = rounds.popleft()
            index = round_.read.index or next(it.read.index for it in rounds if it.read.index)
            for worker, frames in round_.frames.items():
                channels[worker].add(frames, index, now_ms, round_.arrived_us)
            for worker, ticket, rest in round_.checkpoints:
                header = PIPE_HEADER.pack(CHECKPOINT, 0, 0, 0, index, ticket)
                channels[worker].add_job_request([header, *rest], now_ms)
        while rounds and (rounds[0].read.refusal or rounds[0].deadline_ms <= now_ms):
            self._context.client.reads.drop(rounds[0].read)
            self._fail(rounds.popleft())

    def _fail(self, round_: ReadRound) -> None:
        outbox = self._context.outbox
        text = f"not read: {round_.read.refusal or self._context.reason}"
        for frames in round_.frames.values():
            for message in frames.messages():
                outbox.fail_forwarded(message, text)
        for _, ticket, _ in round_.checkpoints:
            outbox.fail_job(ticket, text, retry=True)

    @property
    def deadline_ms(self) -> int | None:
        """When the first round expires."""
        return self.rounds[0].deadline_ms if self.rounds else None

    @property
    def count(self) -> int:
        """Number of reads that wait for the leader."""
        return sum(each.count for round_ in self.rounds for each in round_.frames.values())

    @property
    def size(self) -> int:
        """Size of these reads in bytes."""
        return sum(each.size for round_ in self.rounds for each in round_.frames.values())
