"""The client sockets of a node's tables.

protocols/zerodb/server/session.py decides what happens to requests. Finished answers of workers are
forwarded without a copy in Python.
"""

import os
import struct
import time
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import zmq

from ...native.broker.budget import ANSWERS_BYTES_MAX, Budget, Unsent
from ...native.broker.relay import heads, send_messages
from ...native.broker.server import ServedRouter
from ...native.errors import NativeError
from ...native.latency import monotonic_us, sum_of
from ...native.net.messages import Arena, Frames
from ...native.net.sockets import DrainedSocket
from ...native.tables.server import Left, TableResult, TableServer
from ...net.clock import earliest, monotonic_ms, wall_ms
from ...net.poll_loop import Pipe
from ...net.sockets import SUBSCRIPTION_BYTES_MAX, Socket
from ...protocols.access.zap import KeyChange
from ...protocols.reqids import MACHINE_BYTES, make_reqids
from ...protocols.zerodb.server.context import Now, SessionSetup
from ...protocols.zerodb.server.outbox import INFO, KEY_PREFIX
from ...protocols.zerodb.server.session import Session
from ...protocols.zerodb.server.worker_channel import WorkerChannel
from ...protocols.zerodb.wire import answers
from ...protocols.zerodb.wire.values import (
    PAIR_BYTES_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_FRAMES_MAX,
)
from ...protocols.zerodb.wire.worker_pipe import (
    ANSWER_TAG,
    JOB_SERVER,
    KEY_CHANGED,
    PAIRS,
    PIPE_HEADER,
    REQUEST,
    encode_ranges,
)
from ...protocols.zmqraft.client.client import LogClientMachine, LogClientSetup, WindowLimits
from ...version import __version__
from ..raft.leader_link import LeaderLink
from ..raft.lease import open_lease
from ..runtime.actor import Actor
from ..runtime.setup import worker_names
from .credit import REPORT_BYTES, ReadBytes

REQUESTS_HWM = 256  # Unread requests of one client.
ANSWERS_HWM = 4096  # Unread answers of a slow client; further ones are dropped.
ANSWER_FRAMES_MAX = 1 << 22
WINDOW = WindowLimits(packs=64, updates=1 << 15, bytes=16 << 20)
JOBS_BYTES_MAX = 128 << 20  # Of requests that job_server has not answered.
LOG_HEAD = b"\x55\x01\x00"
# Of what C leaves, as plain numbers.
_LEADER, _INDEX = int(Left.LEADER), int(Left.INDEX)
_DONE, _CLIENTS = int(Left.DONE), int(Left.CLIENTS)
_FAILED = ~(_LEADER | _INDEX | _DONE | _CLIENTS)


class ZerodbServer(Actor):
    """Serves ZeroDB (docs/protocols/zerodb.md).

    clients    ROUTER  [request frames ..]                     from clients, at `url`
    pull       PULL    the same, unanswered                    from clients, at `pull_url`
    sub        SUB     the same, unanswered                    from any PUB, at `sub_url`
    logs       PUB     [55 01 00][level][ms][sender][text]     to subscribers, at `events_url`
    work       PUSH    [PIPE_HEADER][routing id][request frames ..]  to each table_worker
    taken      PUSH    [BYTES_READ]                            to each one: bytes read from `done`
    done       PULL    [ANSWER_TAG][routing id]([empty])[answer frames ..]  from table_workers and
                                                               job_server, whose PAIRS are columns
    reports    PULL    [PIPE_HEADER]([..])                     from each table_worker
    requests   PUSH    as work, or results of asks             to job_server
    asks       PULL    [PIPE_HEADER][table][..]                from job_server
    links      DEALER  as a client of the log                  to the peers (leader_link.py)
    """

    role = "zerodb_server"

    def on_start(self) -> None:
        self._machine = os.urandom(MACHINE_BYTES)
        self._numbers = count(int.from_bytes(os.urandom(3), "big"))
        self._leader: str | None = None
        self._names = {member.url: name for name, member in self.settings.members.items()}
        self._client_sockets: list[Socket] = []
        self._clients: Socket | None = None
        self._server: TableServer | None = None
        self.budget = Budget(ANSWERS_BYTES_MAX)
        self._logs: Socket | None = None
        setup = LogClientSetup(
            self.setup.cluster.encode(),
            tuple(self._names),
            __version__,
            limits=WINDOW,
            for_tables=True,
        )
        client = LogClientMachine(setup, lambda: self._new_reqids(1)[0], self.now_ms)
        self._lease = lease = open_lease(self)
        leased_index = (lambda: 0) if lease is None else lease.read
        self.session = Session(self._session_setup(), client, self._new_reqids, leased_index)
        self._link = LeaderLink(
            self,
            client,
            keys=self.client_keys,
            before_input=lambda: self.session.take_back(self._now()),
        )
        self._open_pipes()
        self._open_client_sockets()
        self.ready()

    def _session_setup(self) -> SessionSetup:
        settings = self.settings.zerodb
        return SessionSetup(
            f"kelek {__version__}",
            settings.workers,
            frozenset(settings.local_tables),
            settings.allow_stale_reads,
            settings.request_timeout_ms,
            settings.open_on_the_fly,
            self.settings.raft.entry_bytes_max,
            self.settings.node.url,
            self.setup.epoch,
            bytes.fromhex(self.setup.secret),
            frozenset(self.settings.reserved_tables),
            os.urandom(MACHINE_BYTES) + (os.getpid() & 0xFFFF).to_bytes(2, "big"),
        )

    def _new_reqids(self, number: int) -> list[bytes]:
        numbers = (next(self._numbers) for _ in range(number))
        return make_reqids(int(time.time()), self._machine, os.getpid(), numbers)

    # ---- sockets ----

    def _open_pipes(self) -> None:
        # First, so that a worker's last answers are read before the first report of its successor.
        largest = max(self.settings.zerodb.response_bytes_max, PAIR_BYTES_MAX) + (1 << 20)
        done = self.bind_pipe(
            zmq.PULL,
            "done",
            message_bytes_max=largest,
            message_frames_max=ANSWER_FRAMES_MAX,
            opens_bundles=True,
        )
        self._done = DrainedSocket(done, self.listen(done, self._on_done))
        self.pull("reports", self._on_reports, message_bytes_max=REQUEST_BYTES_MAX)
        self.pull("asks", self._on_asks, message_bytes_max=REQUEST_BYTES_MAX)
        self._jobs = self.push("job_server", "requests")
        # By ticket. Each request is answered once, by job_server or by this process.
        self._jobs_sent: dict[int, list[bytes]] = {}
        self._jobs_bytes = 0  # Of these.
        self._jobs_lost = False
        self.watch_connections(self._jobs, self.on_jobs_lost, self._on_jobs_back)
        self._work: list[tuple[WorkerChannel, Socket]] = []
        self._read_bytes: list[tuple[ReadBytes, Pipe]] = []
        for channel, name in zip(self.session.channels, worker_names(self.settings), strict=True):
            socket = self.push(name, "work")
            self._work.append((channel, socket))
            taken, report = ReadBytes(self.setup.epoch), self.pipe(self.push(name, "taken"))
            report.send([taken.announce()])
            self._read_bytes.append((taken, report))
            self.watch_connections(socket, partial(self._on_worker_lost, channel))

    def _on_worker_lost(self, channel: WorkerChannel) -> None:
        channel.on_lost(self.now_ms)

    def _open_client_sockets(self) -> None:
        endpoints = self.settings.table_endpoints
        if endpoints.url:
            self._clients = self._client_socket(
                zmq.ROUTER, "url", send_hwm=ANSWERS_HWM, router_mandatory=True
            )
            drain = self.listen(self._clients, self._on_clients)
            self._client_sockets.append(self._clients)
            self._router = ServedRouter(self._clients, drain, self.budget)
            session = self.session
            self._server = TableServer(
                *(self._poller, session.plain, session.read_channels, session.rounds),
                *(session.rows, self._router, self._done),
                *([socket for _, socket in self._work], REPORT_BYTES),
            )
        for key, kind in (("pull_url", zmq.PULL), ("sub_url", zmq.SUB)):
            if getattr(endpoints, key):
                topics = (b"",) if kind == zmq.SUB else ()
                socket = self._client_socket(kind, key, topics=topics)
                self.listen(socket, self._on_one_way)
                self._client_sockets.append(socket)
        if endpoints.events_url:
            self._logs = self._client_socket(
                zmq.PUB, "events_url", message_bytes_max=SUBSCRIPTION_BYTES_MAX
            )
        if self.access is not None and self.settings.security is not None:
            self.session.clients.enforces = self.settings.security.enforce
            self.session.clients.attach(self.access.keyring)

    def _client_socket(self, kind: int, key: str, **options: Any) -> Socket:
        limits = {
            "hwm": REQUESTS_HWM,
            "message_bytes_max": REQUEST_BYTES_MAX,
            "message_frames_max": REQUEST_FRAMES_MAX,
        }
        url = getattr(self.settings.table_endpoints, key)
        return self.bind_url(kind, url, f"zerodb.{key}", **{**limits, **options})

    # ---- plain requests in C ----

    def wait(self, timeout_ms: int) -> list[tuple[Socket | int, int]]:
        """Serves plain requests in C meanwhile, and handles what that leaves."""
        if self._server is None:
            return super().wait(timeout_ms)
        session, result, found = self.session, None, None
        is_free = not self._unread and self._clients not in self._paused
        url = session.plain_url if is_free else None
        if url is not None:
            found = self._link.drained(url)
        index_url, index = session.index_url if is_free else None, None
        if index_url is not None:
            index = self._link.drained(index_url)
        if (found is None and not session.plain.is_empty) or (
            index is None and not session.rounds.is_empty
        ):
            timeout_ms = self._take_back(timeout_ms)
        if is_free:
            session.open_channels()
            lease = self._lease if session.reads_in_c else None
            index = index if session.reads_in_c else None
            result = self._server.wait(timeout_ms, found, index, lease, session.answers_in_c)
        if result is None:
            return super().wait(self._take_back(timeout_ms))
        self.now_ms = monotonic_ms()
        for channel, (taken, report) in zip(session.channels, self._read_bytes, strict=True):
            taken.add(channel.reads.pop_bytes())
            self._report_bytes(taken, report)
        left = result.left
        if left & _FAILED:
            self._on_failed(result)
        if left & _LEADER and url is not None and found is not None:
            self._link.receive(url, found.drain.arena, result.leader_position)
        if left & _INDEX and index_url is not None and index is not None:
            self._link.receive(index_url, index.drain.arena, result.index_position)
        if left & _DONE:
            self._on_done(self._done.drain.arena)
        if left & _CLIENTS:
            self._on_clients(self._router.drain.arena)
        return result.ready

    def _take_back(self, timeout_ms: int) -> int:
        """Takes over what C has not finished. Returns how long to wait now: the next wake goes on
        with it."""
        session = self.session
        if session.plain.is_empty and session.rounds.is_empty:
            return timeout_ms
        session.take_back(self._now())
        return 0

    def _on_failed(self, result: TableResult) -> None:
        """Handles what C could not send or finish, and what clients may not ask."""
        if result.unsent is not None and result.answers is not None:
            self._on_unsent(result.unsent, result.answers, result.skip)
        if result.left & (Left.PACK | Left.LATE):
            self.session.take_back(self._now())
        if result.left & Left.READS:
            for channel in self.session.channels:
                channel.take_back_reads()
        if result.left & Left.DENIED:
            self.handle_denied(self._router.socket, self._router.drain)

    # ---- messages ----

    def _now(self) -> Now:
        return Now(self.now_ms, wall_ms(), monotonic_us())

    def _on_clients(self, arena: Arena) -> None:
        self.session.on_requests(arena, self._now())

    def _on_one_way(self, arena: Arena) -> None:
        self.session.on_one_way(arena, self._now())

    def on_denied(self, socket: Socket, arena: Arena) -> None:
        super().on_denied(socket, arena)
        for denial in self.session.on_denied(arena, socket is self._clients):
            self.log_rarely("request-denied", **denial.fields())

    def on_keys_changed(self, changes: Sequence[KeyChange]) -> None:
        """Ends sessions and jobs of keys that are no longer allowed."""
        clients = self.session.clients
        keys = [clients.current(name) for name in {name for _, name in changes}]
        self.session.writes.end_sessions([key.name for key in keys if not key.grants.rights])
        for key in keys:
            self.session.jobs.on_key_changed(key)
        for change in changes:  # Reads of workers last seconds if a message is lost.
            head = PIPE_HEADER.pack(KEY_CHANGED, 0, change.slot.number + 1, 0, 0, 0)
            for _, socket in self._work:
                self.send(socket, [head, encode_ranges(clients.readable(change))])

    def _on_asks(self, arena: Arena) -> None:
        for head, frames in self.unpacked(arena, PIPE_HEADER, "asks"):
            self.session.on_job_request(head, frames, self._now())

    def _on_done(self, arena: Arena) -> None:
        """Forwards finished answers in one call; only their tags are read."""
        try:
            tags = heads(arena, ANSWER_TAG.size)
        except NativeError:
            self.log_rarely("malformed-dropped", pipe="done", messages=arena.count)
            return
        self._count_read_bytes(arena, tags)
        now_us = monotonic_us()
        due = [self._is_due(now_us, *tag) for tag in ANSWER_TAG.iter_unpack(tags)]
        for channel, _ in self._work:
            channel.end_answered(now_us)
        messages = arena
        if (
            len(self.session.outbox.scatter_gather)
            or not all(due)
            or any(tags[2 :: ANSWER_TAG.size])
        ):
            messages = self._select_answers(arena, due)
        self._send_answers(messages, skip=1)

    def _count_read_bytes(self, arena: Arena, tags: bytes) -> None:
        """Counts the bytes by worker, and reports them to workers that may be waiting."""
        if len(self._read_bytes) == 1 and JOB_SERVER >> 8 not in tags[1 :: ANSWER_TAG.size]:
            self._read_bytes[0][0].add(arena.size)
        else:
            numbers = (tag[0] for tag in ANSWER_TAG.iter_unpack(tags))
            for number, size in zip(numbers, arena.sizes(), strict=True):
                if number < len(self._read_bytes):
                    self._read_bytes[number][0].add(size)
        for taken, pipe in self._read_bytes:
            self._report_bytes(taken, pipe)

    @staticmethod
    def _report_bytes(taken: ReadBytes, pipe: Pipe) -> None:
        report = taken.report()
        if report is not None:
            pipe.send([report])

    def _select_answers(self, arena: Arena, due: list[bool]) -> Frames:
        """The answers that clients still expect. Parts of a scatter-gather are left out, and
        columns become pairs."""
        messages = Frames()
        for position, is_due in enumerate(due):
            tag, *answer = message = arena.message(position)
            if not is_due:
                self.counters["late_answers"] += 1
            elif answer[0].startswith(KEY_PREFIX):
                self.session.outbox.on_part(ANSWER_TAG.unpack(tag)[0], answer)
            elif ANSWER_TAG.unpack(tag)[1] == PAIRS:
                self._add_pairs(messages, message)
            else:
                messages.add(message)
        return messages

    def _add_pairs(self, messages: Frames, message: list[bytes]) -> None:
        try:
            messages.add_pairs(message[:-4], message[-4:])
        except (NativeError, ValueError):
            self.log_rarely("malformed-dropped", pipe="done", messages=1)

    def _send_answers(self, messages: Arena, skip: int = 0) -> None:
        """Sends answers. Clients that do not read neither delay others nor fill the memory."""
        if self._clients is None:
            return
        if len(self.session.audit):
            self.session.audit.on_answers(messages, skip)
        unsent = self.budget.send(self._clients, messages, skip)
        self.recheck(self._clients)
        self._on_unsent(unsent, messages, skip)

    def _on_unsent(self, unsent: Unsent, messages: Arena, skip: int) -> None:
        self.counters["answers_dropped"] += len(unsent.full) + len(unsent.gone)
        self.counters["answers_refused"] += len(unsent.over)
        for position in unsent.over:
            too_much = answers.too_much_unread(messages.message(position)[skip:])
            self.session.outbox.answer(*too_much)

    def _is_due(
        self, now_us: int, number: int, _: int, epoch: int, place: int, ticket: int
    ) -> bool:
        channels = self.session.channels
        if number >= len(channels):
            return number == JOB_SERVER and self._complete_job(ticket)
        return channels[number].on_answer(epoch, place, ticket, now_us)

    def _complete_job(self, ticket: int) -> bool:
        """Whether the request was still open; it is closed now."""
        message = self._jobs_sent.pop(ticket, None)
        if message is None:
            return False
        self._jobs_bytes -= sum(map(len, message))
        self.session.jobs.is_full = self._jobs_bytes >= JOBS_BYTES_MAX
        return True

    def _on_reports(self, arena: Arena) -> None:
        for head, frames in self.unpacked(arena, PIPE_HEADER, "reports"):
            try:
                self.session.on_report(head, frames, self.now_ms, monotonic_us())
            except (ValueError, TypeError, IndexError, struct.error):
                self.log_rarely("malformed-dropped", pipe="reports", kind=head[0])

    # ---- one wake ----

    def on_wake(self, now_ms: int) -> None:
        session = self.session
        session.ready(Now(now_ms, wall_ms(), monotonic_us()))
        self._link.act(now_ms, session.has_log_requests)
        self._link.set_lazy(session.may_wait)
        for channel, notice in session.notices(now_ms):
            self.send(self._work[channel.number][1], notice)
        for channel, socket in self._work:
            self._send_requests(channel, socket)
        if len(session.outbox.jobs):
            self._send_jobs()
        for frames in session.outbox.pop_answers():
            self._send_answers(frames)
        self.report_own_bytes(session.inflight_bytes + self._jobs_bytes)
        self.write_audit(session.clients.trail)
        self._note_leader()
        self._publish_events()
        for socket in self._client_sockets:
            self.set_paused(socket, session.is_full or self.stopping)

    def _send_requests(self, channel: WorkerChannel, socket: Socket) -> None:
        def send(messages: Arena, position: int) -> int:
            position, _ = send_messages(socket, messages, position, "keep")
            self.recheck(socket)
            return position

        sent = channel.send(send)
        if sent == (socket in self._writers):
            self.watch_writable(
                socket, None if sent else lambda: self._send_requests(channel, socket)
            )

    def _send_jobs(self) -> None:
        """Sends requests to job_server. Those that do not fit are refused: it does not run, or
        hangs."""
        jobs = self.session.outbox.jobs
        position = 0
        if not self._jobs_lost:
            position, _ = send_messages(self._jobs, jobs, 0, "keep")
            self.recheck(self._jobs)
        for i, message in enumerate(jobs.messages()):
            kind, _, _, _, _, ticket = PIPE_HEADER.unpack(message[0])
            if i >= position:
                self.session.jobs.refuse(message)
            elif kind == REQUEST:
                self._jobs_sent[ticket] = message
                self._jobs_bytes += sum(map(len, message))
        jobs.clear()
        self.session.jobs.is_full = self._jobs_bytes >= JOBS_BYTES_MAX

    def on_jobs_lost(self) -> None:
        self._jobs_lost = True
        lost, self._jobs_sent = self._jobs_sent, {}
        self._jobs_bytes = 0
        for message in lost.values():
            self.session.jobs.refuse(message)

    def _on_jobs_back(self) -> None:
        self._jobs_lost = False
        self.session.jobs.send_owners()

    def _note_leader(self) -> None:
        leader = self.session.client.leader
        if leader != self._leader:
            self._leader = leader
            self.session.outbox.notice(
                INFO, f"the leader is at {leader}" if leader else "no leader"
            )

    def _publish_events(self) -> None:
        notices = self.session.outbox.notices
        if self._logs is not None:
            sender = f"{self.setup.node}/{self.role}".encode()
            now = (time.time_ns() // 1_000_000).to_bytes(8, "little")
            for level, text in notices:
                frames = [LOG_HEAD, bytes([level]), now, sender, text.encode()]
                self.send(self._logs, frames)
        notices.clear()

    def deadline_ms(self) -> int | None:
        return earliest(self.session.deadline_ms, self._link.deadline_ms)

    # ---- stop and status ----

    def drained(self) -> bool:
        return not self.session.inflight

    def on_stop(self) -> None:
        self._link.close()
        if self._lease is not None:
            self._lease.close()

    def status(self) -> dict[str, object]:
        session = self.session
        return {
            "leader": self._names.get(session.client.leader or ""),
            "inflight": session.inflight,
            "applied_index": min(each.status.applied_index for each in session.channels),
            "latency": {
                "read": sum_of(each.latency.values() for each in session.channels),
                "write": session.writes.proposals.latency.values(),
            },
            **session.counters,
        }
