"""The doors to the tables of a node: takes requests in, sees to it that each is answered.

What is decided is in protocols/zerodb/server/session.py. Answers that workers have finished are
sent on from where they lie.
"""

import os
import struct
import time
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import zmq

from ...native.broker.budget import Budget
from ...native.broker.relay import heads, send_messages
from ...native.errors import NativeError
from ...native.net.messages import Arena, Frames
from ...net.poll_loop import Pipe
from ...net.sockets import SUBSCRIPTION_BYTES_MAX, Socket, SocketOptions
from ...protocols.zerodb.server.scatter_gather import KEY_PREFIX
from ...protocols.zerodb.server.session import INFO, Now, Session, SessionSetup
from ...protocols.zerodb.server.worker_channel import WorkerChannel
from ...protocols.zerodb.wire.values import (
    OWNER_TABLE,
    PAIR_BYTES_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_FRAMES_MAX,
)
from ...protocols.zerodb.wire.worker_pipe import (
    ANSWER_TAG,
    COMPLETED,
    HELLO,
    JOB_SERVER,
    NEXT_EXPIRY,
    ONE_WAY_FAILURE,
    PAIRS,
    PIPE_HEADER,
    PROGRESS,
    REQUEST,
    SERVER_WAITS,
    TABLES,
    WRITE_STATUS,
    decode_outcomes,
    decode_owners,
    decode_tables,
)
from ...protocols.zmqraft.client.client import LogClientMachine, LogClientSetup, WindowLimits
from ...protocols.zmqraft.wire.values import MACHINE_BYTES, make_reqids
from ...version import __version__
from ..raft.leader_link import LeaderLink
from ..runtime.actor import Actor, main
from ..runtime.participants import worker_names
from .credit import ConsumedBytes

REQUESTS_HWM = 256  # Of one client, that wait to be taken in.
ANSWERS_HWM = 4096  # That a slow client may leave lying; what is beyond is dropped.
ANSWERS_BYTES_MAX = 128 << 20  # That it may leave lying; beyond it is told so instead.
ANSWER_FRAMES_MAX = 1 << 22
WINDOW = WindowLimits(packs=64, updates=1 << 15, bytes=16 << 20)
JOBS_BYTES_MAX = 128 << 20  # Of requests that the job_server has and has not answered.
LOG_HEAD = b"\x55\x01\x00"


class ZerodbServer(Actor):
    """Serves ZeroDB (docs/protocols/zerodb.md).

    clients    ROUTER  [request frames ..]                     of clients, at `url`
    pull       PULL    the same, unanswered                    of clients, at `pull_url`
    sub        SUB     the same, unanswered                    of any PUB, at `sub_url`
    logs       PUB     [55 01 00][level][ms][sender][text]     to whoever listens, at `log_url`
    work       PUSH    [HEAD][routing id][request frames ..]   to each table_worker
    taken      PUSH    [TAKEN]                                 to each, of what came over `done`
    done       PULL    [MARK][routing id]([empty])[answer frames ..]  of them and the job_server,
                                                                  whose PAIRS come as columns
    reports    PULL    [HEAD]([..])                            of each table_worker
    requests   PUSH    as work, or what came of an ask         to the job_server
    asks       PULL    [HEAD][table][..]                       of the job_server
    links      DEALER  as a client of the log                  to the peers (leader_link.py)
    """

    role = "zerodb_server"

    def on_start(self) -> None:
        self._settings: dict[str, Any] = self.options["zerodb"]
        self._machine = os.urandom(MACHINE_BYTES)
        self._numbers = count(int.from_bytes(os.urandom(3), "big"))
        self._leader: str | None = None
        members: dict[str, dict[str, str]] = self.options["members"]
        self._names = {member["url"]: name for name, member in members.items()}
        self._doors: list[Socket] = []
        self._clients: Socket | None = None
        self._budget = Budget(ANSWERS_BYTES_MAX)
        self._logs: Socket | None = None
        setup = LogClientSetup(
            self.setup.cluster.encode(),
            tuple(self._names),
            __version__,
            limits=WINDOW,
            for_tables=True,
        )
        client = LogClientMachine(setup, lambda: self._new_reqids(1)[0], self.now_ms)
        self.session = Session(self._session_setup(), client, self._new_reqids)
        self._link = LeaderLink(self, client)
        self._open_pipes()
        self._open_doors()
        self.ready()

    def _session_setup(self) -> SessionSetup:
        settings = self._settings
        return SessionSetup(
            f"kelek {__version__}",
            settings["workers"],
            frozenset(settings["local"]),
            settings["stale"] == "allowed",
            settings["request_timeout_ms"],
            settings["open_on_the_fly"],
            self.options["entry_bytes_max"],
            self.options["url"],
            self.setup.epoch,
            bytes.fromhex(self.options.get("secret", "")),
            frozenset(settings["reserved"]),
        )

    def _new_reqids(self, number: int) -> list[bytes]:
        numbers = (next(self._numbers) for _ in range(number))
        return make_reqids(int(time.time()), self._machine, os.getpid(), numbers)

    # ---- sockets ----

    def _open_pipes(self) -> None:
        done = SocketOptions(
            bind=(self.endpoint(self.role, "done"),),
            message_bytes_max=max(self._settings["response_bytes_max"], PAIR_BYTES_MAX) + (1 << 20),
            message_frames_max=ANSWER_FRAMES_MAX,
        )
        # First: a worker's last answers are taken in before the first report of its successor.
        self.listen(self.socket(zmq.PULL, done), self._on_done)
        for name, on_arena in (("reports", self._on_reports), ("asks", self._on_asks)):
            pipe = SocketOptions(
                bind=(self.endpoint(self.role, name),), message_bytes_max=REQUEST_BYTES_MAX
            )
            self.listen(self.socket(zmq.PULL, pipe), on_arena)
        self._jobs = self._push("job_server", "requests")
        # By ticket, what clients wait for: each is answered once, by the job_server or by us.
        self._jobs_sent: dict[int, list[bytes]] = {}
        self._jobs_bytes = 0  # Of these.
        self._jobs_lost = False
        self.watch_connections(self._jobs, self._on_jobs_lost, self._on_jobs_back)
        self._work: list[tuple[WorkerChannel, Socket]] = []
        self._taken: list[tuple[ConsumedBytes, Pipe]] = []
        for channel, name in zip(self.session.channels, worker_names(self.options), strict=True):
            socket = self._push(name, "work")
            self._work.append((channel, socket))
            taken, told = ConsumedBytes(self.setup.epoch), self.pipe(self._push(name, "taken"))
            told.send([taken.first()])
            self._taken.append((taken, told))
            self.watch_connections(socket, partial(self._on_worker_lost, channel))

    def _push(self, actor: str, name: str) -> Socket:
        options = SocketOptions(connect=(self.endpoint(actor, name),), immediate=True)
        return self.socket(zmq.PUSH, options)

    def _on_worker_lost(self, channel: WorkerChannel) -> None:
        channel.on_lost(self.now_ms)

    def _open_doors(self) -> None:
        url = self._settings["url"]
        if url:
            options = self._door("url")._replace(send_hwm=ANSWERS_HWM, router_mandatory=True)
            self._clients = self.socket(zmq.ROUTER, options)
            self.listen(self._clients, self._on_clients)
            self._doors.append(self._clients)
        for key, kind in (("pull_url", zmq.PULL), ("sub_url", zmq.SUB)):
            if self._settings[key]:
                topics = (b"",) if kind == zmq.SUB else ()
                socket = self.socket(kind, self._door(key)._replace(topics=topics))
                self.listen(socket, self._on_one_way)
                self._doors.append(socket)
        if self._settings["log_url"]:
            options = self._door("log_url")._replace(message_bytes_max=SUBSCRIPTION_BYTES_MAX)
            self._logs = self.socket(zmq.PUB, options)

    def _door(self, key: str) -> SocketOptions:
        return SocketOptions(
            bind=(self._settings[key],),
            place=self.setup.places.get(f"zerodb.{key}", ""),
            hwm=REQUESTS_HWM,
            message_bytes_max=REQUEST_BYTES_MAX,
            message_frames_max=REQUEST_FRAMES_MAX,
        )

    # ---- what arrives ----

    def _now(self) -> Now:
        return Now(self.now_ms, time.time_ns() // 1_000_000)

    def _on_clients(self, arena: Arena) -> None:
        self.session.on_requests(arena, self._now())

    def _on_one_way(self, arena: Arena) -> None:
        self.session.on_one_way(arena, self._now())

    def _on_asks(self, arena: Arena) -> None:
        for head, frames in self.unpacked(arena, PIPE_HEADER, "asks"):
            self.session.on_job_request(head, frames, self._now())

    def _on_done(self, arena: Arena) -> None:
        """Finished answers go on as they are, in one call, but for their marks."""
        try:
            marks = heads(arena, ANSWER_TAG.size)
        except NativeError:
            self.log_rarely("malformed-dropped", pipe="done", messages=arena.count)
            return
        self._count_taken(arena, marks)
        due = [self._is_due(*mark) for mark in ANSWER_TAG.iter_unpack(marks)]
        messages = arena
        if len(self.session.scatter_gather) or not all(due) or any(marks[2 :: ANSWER_TAG.size]):
            messages = self._sorted(arena, due)
        self._send_answers(messages, skip=1)

    def _count_taken(self, arena: Arena, marks: bytes) -> None:
        """Whose answers these are: who waits for it is told that they were taken."""
        if len(self._taken) == 1 and JOB_SERVER >> 8 not in marks[1 :: ANSWER_TAG.size]:
            self._taken[0][0].add(arena.size)
        else:
            numbers = (mark[0] for mark in ANSWER_TAG.iter_unpack(marks))
            for number, size in zip(numbers, arena.sizes(), strict=True):
                if number < len(self._taken):
                    self._taken[number][0].add(size)
        for taken, pipe in self._taken:
            told = taken.due()
            if told is not None:
                pipe.send([told])

    def _sorted(self, arena: Arena, due: list[bool]) -> Frames:
        """The answers that are due; parts of one that all workers give are not among them. What
        came as columns becomes pairs."""
        messages = Frames()
        for position, is_due in enumerate(due):
            mark, *answer = message = arena.message(position)
            if not is_due:
                self.counters["late_answers"] += 1
            elif answer[0].startswith(KEY_PREFIX):
                self.session.on_part(ANSWER_TAG.unpack(mark)[0], answer)
            elif ANSWER_TAG.unpack(mark)[1] == PAIRS:
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
        """Who does not read holds up nobody and fills no memory."""
        if self._clients is None:
            return
        unsent = self._budget.send(self._clients, messages, skip)
        self.recheck(self._clients)
        self.counters["answers_dropped"] += len(unsent.full) + len(unsent.gone)
        self.counters["answers_refused"] += len(unsent.over)
        for position in unsent.over:
            self.session.refuse_answer(messages.message(position)[skip:])

    def _is_due(self, number: int, _: int, epoch: int, place: int, ticket: int) -> bool:
        channels = self.session.channels
        if number >= len(channels):
            return number == JOB_SERVER and self._take_job(ticket)
        return channels[number].on_answer(epoch, place, ticket)

    def _take_job(self, ticket: int) -> bool:
        """Whether somebody still waits for the answer to this request; now nobody does."""
        message = self._jobs_sent.pop(ticket, None)
        if message is None:
            return False
        self._jobs_bytes -= sum(map(len, message))
        self.session.jobs_full = self._jobs_bytes >= JOBS_BYTES_MAX
        return True

    def _on_reports(self, arena: Arena) -> None:
        for head, frames in self.unpacked(arena, PIPE_HEADER, "reports"):
            try:
                self._on_report(head, frames)
            except (ValueError, TypeError, IndexError, struct.error):
                self.log_rarely("malformed-dropped", pipe="reports", kind=head[0])

    def _on_report(self, head: Sequence[int], frames: list[bytes]) -> None:
        """Raises ValueError, TypeError, IndexError, struct.error: it is none."""
        kind, code, _, number, index, epoch = head
        channel = self.session.channels[number]
        self.session.on_epoch(channel, epoch, self.now_ms)
        status = channel.status
        if kind == PROGRESS:
            self.session.proposals.on_results(decode_outcomes(frames[0]) if frames else ())
            channel.status = status._replace(applied_index=index)
        elif kind == TABLES:
            tables, local = (decode_tables(frame) for frame in frames[:2])
            owners = decode_owners(frames[2])
            channel.status = status._replace(tables=tables, local=local)
            if number == OWNER_TABLE % len(self.session.channels):
                self.session.ownership.owners = owners
        elif kind == WRITE_STATUS:
            refusal = frames[0].decode(errors="replace") if code else ""
            channel.status = status._replace(refusal=refusal)
        elif kind == ONE_WAY_FAILURE:
            self.session.notice(code, frames[0].decode(errors="replace"))
        elif kind == NEXT_EXPIRY:
            self.session.on_expiry(number, index)
        elif kind == COMPLETED:
            channel.on_handled(index)
        channel.reported_kinds.add(kind)

    # ---- in step ----

    def on_wake(self, now_ms: int) -> None:
        session = self.session
        session.ready(Now(now_ms, time.time_ns() // 1_000_000))
        self._link.act(now_ms, session.has_log_requests)
        for channel, socket in self._work:
            if channel.must_send_hello(now_ms):
                self.send(socket, [PIPE_HEADER.pack(HELLO, 0, 0, 0, 0, 0)])
            if not session.proposals.is_idle and channel.must_send_waiting(now_ms):
                self.send(socket, [PIPE_HEADER.pack(SERVER_WAITS, 0, 0, 0, 0, 0)])
            self._hand_over(channel, socket)
        if len(session.jobs):
            self._send_jobs()
        for frames in session.pop_answers():
            self._send_answers(frames)
        self._tell_leader()
        self._publish()
        for door in self._doors:
            if session.is_full or self.stopping:
                self.pause(door)
            else:
                self.resume(door)

    def _hand_over(self, channel: WorkerChannel, socket: Socket) -> None:
        def send(messages: Arena, position: int) -> int:
            position, _ = send_messages(socket, messages, position, "keep")
            self.recheck(socket)
            return position

        sent = channel.send(send)
        if sent == (socket in self._writers):
            self.watch_writable(socket, None if sent else lambda: self._hand_over(channel, socket))

    def _send_jobs(self) -> None:
        """What finds no room there is answered at once: the job_server does not run, or hangs."""
        jobs = self.session.jobs
        position = 0
        if not self._jobs_lost:
            position, _ = send_messages(self._jobs, jobs, 0, "keep")
            self.recheck(self._jobs)
        for i, message in enumerate(jobs.messages()):
            kind, _, _, _, _, ticket = PIPE_HEADER.unpack(message[0])
            if i >= position:
                self.session.refuse_job(message)
            elif kind == REQUEST:
                self._jobs_sent[ticket] = message
                self._jobs_bytes += sum(map(len, message))
        jobs.clear()
        self.session.jobs_full = self._jobs_bytes >= JOBS_BYTES_MAX

    def _on_jobs_lost(self) -> None:
        self._jobs_lost = True
        lost, self._jobs_sent = self._jobs_sent, {}
        self._jobs_bytes = 0
        for message in lost.values():
            self.session.refuse_job(message)

    def _on_jobs_back(self) -> None:
        self._jobs_lost = False

    def _tell_leader(self) -> None:
        leader = self.session.client.leader
        if leader != self._leader:
            self._leader = leader
            self.session.notice(INFO, f"the leader is at {leader}" if leader else "no leader")

    def _publish(self) -> None:
        notices = self.session.notices
        if self._logs is not None:
            sender = f"{self.setup.node}/{self.role}".encode()
            now = (time.time_ns() // 1_000_000).to_bytes(8, "little")
            for level, text in notices:
                frames = [LOG_HEAD, bytes([level]), now, sender, text.encode()]
                self.send(self._logs, frames)
        notices.clear()

    def deadline_ms(self) -> int | None:
        times = (self.session.deadline_ms, self._link.deadline_ms)
        return min((each for each in times if each is not None), default=None)

    # ---- the end ----

    def drained(self) -> bool:
        return not self.session.inflight

    def on_stop(self) -> None:
        self._link.close()

    def status(self) -> dict[str, object]:
        session = self.session
        return {
            "leader": self._names.get(session.client.leader or ""),
            "inflight": session.inflight,
            "applied_index": min(each.status.applied_index for each in session.channels),
            **session.counters,
        }


if __name__ == "__main__":
    main(ZerodbServer)
