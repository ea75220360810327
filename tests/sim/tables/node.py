"""One node with tables: the processes of a node of the log, a server and its workers.

Each may be killed alone. They exchange what the actors exchange, over pipes that take time.
"""

from collections import Counter
from functools import partial
from itertools import count
from random import Random
from typing import Any, NamedTuple

from kelek.native.net.messages import Arena
from kelek.native.tables.plain import LATE_MS, PlainKinds
from kelek.native.tables.row_cache import BYTES_MIN, RowCache
from kelek.protocols.connections import Send
from kelek.protocols.raft.messages import EntryBatch
from kelek.protocols.record import decode_block
from kelek.protocols.reqids import MACHINE_BYTES, make_reqids
from kelek.protocols.zerodb.server.context import Now, SessionSetup
from kelek.protocols.zerodb.server.outbox import KEY_PREFIX
from kelek.protocols.zerodb.server.session import Session
from kelek.protocols.zerodb.tables.tables import TablePartition
from kelek.protocols.zerodb.wire.worker_pipe import ANSWER_TAG, PIPE_HEADER
from kelek.protocols.zerodb.worker.requests import Databases, TableRequestLimits
from kelek.protocols.zerodb.worker.worker import Worker, WorkerParts
from kelek.protocols.zmqraft.client.client import LogClientMachine, LogClientSetup, WindowLimits
from kelek.protocols.zmqraft.server.commits import CommitNotice, NotifyScope
from kelek.protocols.zmqraft.server.values import Applied
from kelek.storage.errors import StorageError
from kelek.storage.log.reader import LogReader
from kelek.storage.snapshot.work import STATE_PART
from kelek.tests.sim.checker import AppliedEntry
from kelek.tests.sim.log.client import ClientHost, MachineLinks
from kelek.tests.sim.log.disk import Halt
from kelek.tests.sim.log.node import CLUSTER, SimNode, drain
from kelek.tests.sim.network import Connection, Frames, Network
from kelek.tests.sim.simulation import US_PER_MS, Process
from kelek.tests.sim.tables.checker import TableChecker
from kelek.tests.sim.tables.snapshot import BarrierStateMachine, TableSender
from kelek.tests.sim.tables.store import SimTableStore, WorkerDisk
from kelek.tests.sim.tables.unanswered import UnansweredRequests

AGAIN_US = 50  # Before the next wake, while there is work.
SERVER = "server"


class RunSettings(NamedTuple):
    """What all nodes of a run share."""

    workers: int
    page_bytes: int  # Of the log, that a worker reads at once.
    request_ms: int  # Timeout of servers and workers.
    entry_bytes_max: int  # Of a server; larger writes are cut.
    window_packs: int  # That a server has sent to the leader.
    plain: bool  # C packs and answers plain writes, where it can.


class CheckedLog:
    """The log as a worker reads it: in small pages, each entry of which is checked."""

    def __init__(self, node: "TableNode", reader: LogReader) -> None:
        self._node = node
        self._reader = reader
        self.base = reader.base

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        size = min(bytes_max, self._node.run_settings.page_bytes)
        found = self._reader.batches(first_index, last_index, last_term, size)
        for batch in found:
            for index, record in enumerate(decode_block(batch.block)[1], batch.first_index):
                entry = AppliedEntry(batch.term, record.kind, record.reqid, record.data)
                self._node.checker.on_applied(self._node.name, index, entry)
        return found


class WorkerProcess(Process):
    """Does the work of actors/tables/worker.py."""

    def __init__(self, node: "TableNode", number: int) -> None:
        super().__init__(node.simulation, f"{node.name}.worker{number}")
        self.node = node
        self.number = number
        self.own = f"worker{number}"
        self.counters: Counter[str] = Counter()
        files = node.disk.open_process(self)
        self.reader = LogReader(files, node.identity)
        store = SimTableStore(self.own, node.table_disks[number], files, node.identity)
        owner = TablePartition(number, node.run_settings.workers)
        databases = Databases(self.own, owner, store.replicated, None)
        limits = TableRequestLimits(8 << 20, node.run_settings.request_ms, True)
        source = CheckedLog(node, self.reader)
        epoch = node.new_epoch()
        rows = node.new_rows(f"{self.own}/{epoch}", epoch) if node.run_settings.plain else None
        parts = WorkerParts(store, source, self, lambda op, at: "", store.unpack_snapshot, rows)
        self.worker = Worker(databases, limits, epoch, parts)
        self._send_barrier_replies()

    # The lines of its log.

    def log(self, event: str, **values: object) -> None:
        self.simulation.counters[f"worker: {event}"] += 1
        self.simulation.trace_event(self.name, event, *values.items())

    log_rarely = log

    def on_wake(self) -> None:
        try:
            self._step()
        except Halt as halt:
            self.node.on_halt(halt)
        except StorageError as error:
            self.simulation.trace_event(self.name, "ends:", error)
            self.node.kill_table_process(self.own)

    def _step(self) -> None:
        worker, node, now_ms = self.worker, self.node, self.node.now_ms
        inbox, self.inbox = self.inbox, []
        messages: list[Frames] = []
        for kind, *item in inbox:
            if kind == "commit":
                worker.on_commit((item[0], item[1]), item[2])
            elif kind == "barrier":
                worker.on_barrier(item[0], now_ms, "")
            else:
                messages.append(item[0])
        if messages and not worker.on_gets(Arena.from_messages(messages), now_ms):
            work = [(PIPE_HEADER.unpack(head), frames) for head, *frames in messages]
            assert not worker.on_work(work, now_ms), "a malformed message of the server"
        worker.run(now_ms, node.unix_ms)
        self._send_barrier_replies()
        worker.answer(now_ms, node.unix_ms)
        assert not worker.damage, worker.damage
        for message in drain(worker.requests.out):
            node.send(f"{self.own} done", SERVER, "done", message)
        worker.requests.release_out()
        for report in worker.reports(False, now_ms):
            node.send(f"{self.own} reports", SERVER, "report", report)
        self._report_applied(now_ms)
        deadline_ms = worker.deadline_ms(False)
        if deadline_ms is not None:
            self.wake_after(max(AGAIN_US, node.at_us(deadline_ms) - self.simulation.now_us))

    def _send_barrier_replies(self) -> None:
        participant = self.worker.participant
        for reply, path in participant.replies:
            files = self.node.table_disks[self.number].states.get(path)
            self.node.send("states", "sender", "state", self.own, reply, files)
        participant.replies.clear()

    def _report_applied(self, now_ms: int) -> None:
        report = self.worker.applied_report(now_ms)
        if report is not None:
            self.node.report_applied(self.own, *report)
            self.worker.applied_reporter.on_sent(report)


class ServerProcess(Process):
    """Does the work of actors/tables/server.py."""

    def __init__(self, node: "TableNode") -> None:
        super().__init__(node.simulation, f"{node.name}.{SERVER}")
        self.node = node
        self.routes: dict[bytes, Connection] = {}
        self._unread: list[list[bytes]] = []  # Requests, while C has no room for more.
        self.unanswered = UnansweredRequests(node.checker, self.name)
        epoch = node.new_epoch()
        random = Random(f"{self.simulation.seed} {self.name} {epoch}")
        self._new_reqids = partial(_make_reqids, node, random.randbytes(MACHINE_BYTES), count(1))
        nodes = node, *node.others.values()
        urls = tuple(each.url for each in nodes)
        limits = WindowLimits(node.run_settings.window_packs, updates=1 << 15, bytes=16 << 20)
        setup = LogClientSetup(CLUSTER.encode(), urls, limits=limits, for_tables=True)
        client = LogClientMachine(setup, lambda: self._new_reqids(1)[0], node.now_ms)
        session = SessionSetup(
            "simulated",
            node.run_settings.workers,
            request_timeout_ms=node.run_settings.request_ms,
            entry_bytes_max=node.run_settings.entry_bytes_max,
            own_url=node.url,
            first_ticket=epoch,
            secret=node.secret,
            maker=random.randbytes(MACHINE_BYTES + 2),
        )
        self.session = Session(session, client, self._new_reqids, lambda: node.leased_index)
        self.session.rows.map_memory = node.row_memory
        listeners = {each.url: each.client_door for each in nodes}
        listeners |= {each.setup.peer_urls[each.name]: each.peer_door for each in nodes}
        self.links = MachineLinks(ClientHost(node.network, listeners, self, self.name))
        self.wake_after(0)

    @property
    def now(self) -> Now:
        node = self.node
        return Now(node.now_ms, node.unix_ms, node.now_ms * US_PER_MS)

    @property
    def requests_left(self) -> int:
        """What it owes answers to, and what its machine still holds."""
        return max(self.session.inflight, len(self.unanswered))

    def on_wake(self) -> None:
        inbox, self.inbox = self.inbox, []
        session, client, now = self.session, self.session.client, self.now
        by_kind: dict[str, list[Any]] = {}
        for kind, *item in inbox:
            by_kind.setdefault(kind, []).append(item)
        for (message,) in by_kind.pop("done", ()):  # Before the reports of a worker's successor.
            self._on_done(message)
        for (message,) in by_kind.pop("report", ()):
            session.on_report(PIPE_HEADER.unpack(message[0]), message[1:], now.ms, now.us)
        for (number,) in by_kind.pop("worker lost", ()):
            session.channels[number].on_lost(now.ms)
        for (message,) in by_kind.pop("request", ()):
            self.unanswered.add(message)
            self._unread.append(message)
        self._serve_plain(by_kind)
        if self._unread and not session.plain.is_stalled:
            requests, self._unread = Arena.from_messages(self._unread), []
            session.on_requests(requests, now)
        if any(by_kind.values()) or (client.deadline_ms or now.ms + 1) <= now.ms:
            session.take_back(now)
        for kind, events in by_kind.items():
            for event in events:
                self.links.receive(client, (kind, *event), now.ms)
        session.ready(now)
        self.links.carry_out(client.ready(now.ms))
        for channel, notice in session.notices(now.ms):
            self._send_work(channel.number, notice)
        for channel in session.channels:
            channel.send(partial(self._send_requests, channel.number))
        for frames in session.outbox.pop_answers():
            for message in frames.messages():
                self._answer(message)
        session.outbox.notices.clear()
        dues = [due for due in (session.deadline_ms, client.deadline_ms) if due is not None]
        if session.plain.late_us is not None:
            dues.append(session.plain.late_us // US_PER_MS)
        if not session.rounds.is_empty:
            dues.append(self._rounds_late_us() // US_PER_MS)
        if dues:
            self.wake_after(max(AGAIN_US, self.node.at_us(min(dues)) - self.simulation.now_us))

    def _serve_plain(self, by_kind: dict[str, list[Any]]) -> None:
        """Does the work of klk_plain_wait(); leaves in by_kind and _unread what is not its own."""
        session, plain, now = self.session, self.session.plain, self.now
        if not self.node.run_settings.plain:
            return
        session.open_channels()
        url = session.plain_url
        late_us = plain.late_us or now.us + 1
        if (
            (url is None and not plain.is_empty)
            or (session.index_url is None and not session.rounds.is_empty)
            or min(late_us, self._rounds_late_us()) <= now.us
        ):
            session.take_back(now)
        index_url = session.index_url
        self._read_index(index_url, by_kind)
        events = by_kind.pop("frames", [])
        while events and events[0][0] == url:
            arena = Arena.from_messages([events[0][1]])
            done = plain.answer(arena, 0, now.us, session.read_channels)
            if done is None:
                break
            del events[0]
            for message in done.answers.messages():
                self._answer(message)
            for number, questions in done.questions.items():
                for message in questions.messages():
                    self._send_work(number, message)
                self.simulation.counters["results asked in C"] += questions.count
        by_kind["frames"] = events
        if events and url is not None:
            return
        if self._unread and not plain.is_stalled:
            self._receive_plain(Arena.from_messages(self._unread), can_write=url is not None)
        question = None if index_url is None else session.rounds.ask()
        if index_url is not None and question is not None:
            self.links.carry_out([Send(index_url, question)])
        if url is None:
            return
        packs = plain.packs(now.us).messages()
        self.links.carry_out(Send(url, frames) for frames in packs)

    def _rounds_late_us(self) -> int:
        since_us = self.session.rounds.since_us
        return self.now.us + 1 if since_us is None else since_us + LATE_MS * US_PER_MS

    def _read_index(self, url: str | None, by_kind: dict[str, list[Any]]) -> None:
        """Serves the asked reads if the first message of the leader answers them."""
        session, rounds, events = self.session, self.session.rounds, by_kind.get("frames", [])
        if url is None or not events or events[0][0] != url:
            return
        index = rounds.answer(Arena.from_messages([events[0][1]]), 0)
        if index is None or (index and not session.read_channels.fits(rounds.asked)):
            return
        del events[0]
        if index:
            self.simulation.counters["reads asked in C"] += rounds.asked.count
            self._serve_reads(rounds.asked, rounds.rows, index)
            rounds.end()

    def _receive_plain(self, requests: Arena, can_write: bool) -> None:
        session, plain, now = self.session, self.session.plain, self.now
        found, channels = plain.read(requests), session.read_channels
        if found & PlainKinds.OTHERS or (found & PlainKinds.WRITES and not can_write):
            return
        index = self.node.leased_index if session.reads_in_c and session.rounds.is_empty else 0
        if found & PlainKinds.READS:
            if index and channels.fits(requests):
                self._serve_reads(requests, plain.rows, index)
            elif (
                index
                or session.index_url is None
                or not session.rounds.add(requests, plain, now.us)
            ):
                return
        self._unread = []
        writes = plain.taken
        plain.receive(requests, now.us, self.node.unix_ms // 1000)
        self.simulation.counters["writes in C"] += plain.taken - writes

    def _serve_reads(self, requests: Arena, rows: Any, index: int) -> None:
        session, channels, now_us = self.session, self.session.read_channels, self.now.us
        counters = self.simulation.counters
        for message in session.rows.answer(channels, rows, requests, index, now_us).messages():
            counters["reads of cached rows"] += 1
            self._answer(message)
        for number, channel in enumerate(channels.all):
            taken = channel.taken
            for message in channels.add(number, requests, index, now_us, rows).messages():
                self._send_work(number, message)
            counters["reads in C"] += channel.taken - taken

    def _on_done(self, message: Frames) -> None:
        tag, *answer = message
        arena = Arena.from_messages([message])
        if self.session.answers_in_c and self.session.read_channels.done(arena, self.now.us):
            self._answer(answer)
            return
        number, _, epoch, place, ticket = ANSWER_TAG.unpack(tag)
        channel = self.session.channels[number]
        is_due = channel.on_answer(epoch, place, ticket)
        channel.end_answered(self.now.us)
        if not is_due:
            self.simulation.counters["late answers"] += 1
        elif answer[0].startswith(KEY_PREFIX):
            self.session.outbox.on_part(number, answer)
        else:
            self._answer(answer)

    def _send_requests(self, number: int, messages: Arena, position: int) -> int:
        for at in range(position, messages.count):
            self._send_work(number, messages.message(at))
        return messages.count

    def _send_work(self, number: int, message: Frames) -> None:
        self.node.send(f"work{number}", f"worker{number}", "work", message)

    def _answer(self, message: Frames) -> None:
        self.unanswered.end(message)
        route, *frames = message
        connection = self.routes.get(route)
        if connection is None or not connection.open:
            self.simulation.counters["lost: no route"] += 1
        else:
            connection.answer(frames)


def _make_reqids(
    node: "TableNode", machine: bytes, numbers: "count[int]", many: int
) -> list[bytes]:
    return make_reqids(node.unix_ms // 1000, machine, 1, [next(numbers) for _ in range(many)])


class ServerRouter:
    """The ROUTER of a table server."""

    def __init__(self, node: "TableNode") -> None:
        self.node = node
        self.host = f"{node.name}.{SERVER}"

    def is_open(self) -> bool:
        return self.node.process(SERVER) is not None

    def on_request(self, connection: Connection, frames: Frames) -> None:
        server = self.node.process(SERVER)
        assert isinstance(server, ServerProcess)
        server.routes[connection.route] = connection
        server.post("request", [connection.route, *frames])


class TableNode(SimNode):
    """A machine whose tables survive as far as they were flushed."""

    checker: TableChecker
    secret = b""  # Of the node's own processes.

    def __init__(
        self,
        name: str,
        names: list[str],
        network: Network,
        checker: TableChecker,
        options: Any,
        run_settings: RunSettings,
    ) -> None:
        super().__init__(name, names, network, checker, options)
        self.skew_s //= 10  # Keys and sessions end by these clocks, within a run.
        self.run_settings = run_settings
        self.server_router = ServerRouter(self)
        self.server_url = f"tcp://{name}:3"
        self._workers = [f"worker{number}" for number in range(run_settings.workers)]
        self.tables: dict[str, Process | None] = dict.fromkeys([SERVER, *self._workers])
        self.table_disks: list[WorkerDisk] = []
        self._make_disks()
        self._applied_reports: dict[str, tuple[int, bool]] = {}
        self._last_epoch = 0
        self._row_memories: dict[str, bytearray] = {}

    def _make_disks(self) -> None:
        self.table_disks = [
            WorkerDisk(
                Random(f"{self.simulation.seed} {self.name} {number} {self.simulation.now_us}"),
                partial(self.checker.on_tables, self.name, number),
            )
            for number in range(self.run_settings.workers)
        ]

    def new_epoch(self) -> int:
        self._last_epoch = max(self._last_epoch + 1, self._new_epoch())
        return self._last_epoch

    def new_rows(self, place: str, epoch: int) -> RowCache:
        """Rows that the server reads, too; so few that new ones replace others soon."""
        self._row_memories[place] = memory = bytearray(BYTES_MIN)
        return RowCache(memory, place, epoch)

    def row_memory(self, place: str) -> bytearray:
        return self._row_memories[place]

    def _make_state_machine(self) -> BarrierStateMachine:
        return BarrierStateMachine(self)

    def _make_sender(self) -> TableSender:
        return TableSender(self, [STATE_PART, *self._workers])

    # The supervisor.

    def start(self) -> None:
        super().start()
        for name in self.tables:
            self._start_table_process(name)

    def start_unit(self) -> None:
        self._applied_reports = dict.fromkeys([STATE_PART, *self._workers], (0, False))
        super().start_unit()

    def _start_table_process(self, name: str) -> None:
        if self.off or self.tables[name] is not None:
            return
        try:
            if name == SERVER:
                self.tables[name] = ServerProcess(self)
                return
            worker = WorkerProcess(self, self._workers.index(name))
        except Halt as halt:
            self.on_halt(halt)
            return
        except StorageError as error:
            self.simulation.trace_event(self.name, name, "can't start:", error)
            self.simulation.after(50 * US_PER_MS, self._start_table_process, name)
            return
        self.tables[name] = worker
        worker.wake_after(0)
        if self._published is not None:
            self._send_commit(name, self._published)

    def kill_table_process(self, name: str) -> None:
        """The server or a worker ends, and is started again."""
        if self._end_table_process(name):
            delay_us = self.simulation.between(5, 300) * US_PER_MS
            self.simulation.after(delay_us, self._start_table_process, name)

    def _end_table_process(self, name: str) -> bool:
        process, self.tables[name] = self.tables[name], None
        if process is None:
            return False
        process.kill()
        if name == SERVER:
            self.network.close_host(self.server_router.host)
        else:
            self.disk.close_process(process)
            number = self._workers.index(name)
            self.send(f"work{number}", SERVER, "worker lost", number)
        return True

    def kill_all(self) -> None:
        for name in self.tables:
            self._end_table_process(name)
        super().kill_all()

    def free_tables(self) -> None:
        """There is room for tables again."""
        for disk in self.table_disks:
            disk.is_full = False

    def wipe(self) -> None:
        super().wipe()
        self._make_disks()

    def processes(self) -> list[Process]:
        return super().processes() + [it for it in self.tables.values() if it is not None]

    # The pipes between the processes.

    def process(self, name: str) -> Process | None:
        return self.tables[name] if name in self.tables else super().process(name)

    def worker_process(self, number: int) -> WorkerProcess | None:
        found = self.tables[self._workers[number]]
        assert found is None or isinstance(found, WorkerProcess)
        return found

    def publish(self, commit: CommitNotice) -> None:
        super().publish(commit)
        for name in self._workers:
            if commit.scope is NotifyScope.ALL or self._applied_reports[name][1]:
                self._send_commit(name, commit)

    def _send_commit(self, name: str, commit: CommitNotice) -> None:
        at = commit.commit_index, commit.term, commit.tables_from
        self.send(f"{name} commits", name, "commit", *at)

    def report_applied(self, name: str, applied: int, urgent: bool) -> None:
        """A process that applies the log reports to the peer how far it is."""
        reports = self._applied_reports
        reports[name] = applied, urgent
        waits = any(is_urgent for _, is_urgent in reports.values())
        by_all = min(index for index, _ in reports.values())
        message = Applied(reports[STATE_PART][0], by_all, urgent=waits, clients_wait=waits)
        self.send("applied", "peer", message)
