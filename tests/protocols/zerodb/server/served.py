"""A session in virtual time: the cluster of the log client, and workers that record requests."""

from itertools import count

from kelek.native.net.messages import Arena
from kelek.protocols.zerodb.server.context import Now, SessionSetup
from kelek.protocols.zerodb.server.session import Session
from kelek.protocols.zerodb.wire import answers, ops
from kelek.protocols.zerodb.wire.values import Extension, encode_extension
from kelek.protocols.zerodb.wire.worker_pipe import PIPE_HEADER, PROGRESS, TABLES
from kelek.tests.protocols.zmqraft.fake_cluster import FakeCluster

UNIX_MS = 1_700_000_000_000
TABLE = (7).to_bytes(4, "little")


class FakeWorker:
    """A worker's requests: (kind, flags, epoch, index, ticket, routing id, frames)."""

    def __init__(self, session: Session, number: int) -> None:
        self.channel = session.channels[number]
        self.session = session
        self.taken: list[tuple[int, int, int, int, int, bytes, list[bytes]]] = []
        self.room = 1 << 30  # Messages that its pipe accepts.

    def take(self, messages: Arena, position: int) -> int:
        while position < messages.count and self.room:
            head, routing_id, *frames = messages.message(position)
            kind, flags, _, epoch, index, ticket = PIPE_HEADER.unpack(head)
            self.taken.append((kind, flags, epoch, index, ticket, routing_id, frames))
            position += 1
            self.room -= 1
        return position

    def report(self, epoch: int, applied_index: int, now_ms: int) -> None:
        self.session.on_epoch(self.channel, epoch, now_ms)
        self.channel.reported_kinds |= {PROGRESS, TABLES}
        self.channel.status = self.channel.status._replace(applied_index=applied_index)


class SessionHarness(FakeCluster):
    """The cluster of the log client, and a session that uses it."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        setup = SessionSetup("kelek test")._replace(**settings)  # type: ignore[arg-type]
        numbers = count(1 << 40)
        self.leased_index = 0  # By the lease of the node's peer.
        self.session = Session(
            setup,
            self.client,
            lambda n: [next(numbers).to_bytes(12, "big") for _ in range(n)],
            lambda: self.leased_index,
        )
        self.answers: list[list[bytes]] = []
        self.jobs: list[list[bytes]] = []
        self.workers = [FakeWorker(self.session, number) for number in range(setup.workers)]
        for worker in self.workers:
            worker.report(1, 0, self.now_ms)
        self.applies = True  # The workers apply the log at once.
        self._due: set[int] = set()

    @property
    def now(self) -> Now:
        return Now(self.now_ms, UNIX_MS + self.now_ms)

    def ask(self, routing_id: bytes, *frames: bytes) -> None:
        """A request at the ROUTER, from a DEALER."""
        self.session.on_requests(Arena.from_messages([[routing_id, *frames]]), self.now)

    def heard(self, routing_id: bytes) -> list[answers.Answer]:
        """The answers to a client."""
        return [answers.decode_answer(each[1:]) for each in self.answers if each[0] == routing_id]

    def act(self) -> None:
        for worker in self.workers:
            if self.applies:
                # The leader's read index is one above the last write, because of the entry of its
                # term.
                applied = len(self.log.records) + 1
                worker.report(worker.channel.epoch or 1, applied, self.now_ms)
        self.session.ready(self.now)
        super().act()
        for worker in self.workers:
            worker.channel.must_send_hello(self.now_ms)  # The message goes nowhere here.
            worker.channel.send(worker.take)
        for frames in self.session.outbox.batches:
            self.answers += frames.messages()
        self.session.outbox.batches.clear()
        self.jobs += self.session.outbox.jobs.messages()
        self.session.outbox.jobs.clear()
        due_ms = self.session.deadline_ms
        if due_ms is not None and due_ms not in self._due:
            self._due.add(due_ms)
            self._later(max(0, due_ms - self.now_ms), lambda: None)


def head(request_type: int, flags: int, extension: Extension) -> bytes:
    return bytes([0x31, 1, request_type, flags]) + encode_extension(extension)


def entries(harness: SessionHarness) -> list[list[ops.Op]]:
    return [ops.unpack(data) for _, data in harness.log.records]


def led(**settings: object) -> SessionHarness:
    harness = SessionHarness(**settings)
    harness.lead("n1")
    return harness
