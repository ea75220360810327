"""ZeroDB servers for tests of the client: tables in memory, shared by several servers."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kelek.protocols.zerodb.tables import sums
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.requests import Request, RequestError, decode_request
from kelek.protocols.zerodb.wire.values import (
    KEYS_ONLY,
    NO_EXTENSION,
    PACKED,
    REVERSE,
    WITH_INDEX,
)
from kelek.protocols.zerodb.wire.writes import operations_of
from kelek.tests.clients.curve_gate import CurveGate
from kelek.tests.clients.router_thread import RouterThread
from kelek.tests.protocols.zerodb.wire import messages

FEATURES = 0x1A9FFFF  # Without increments and versions.
CHUNK_PAIRS = 3


class TableStore:
    """The tables of all servers, their writes, jobs and sessions."""

    def __init__(self) -> None:
        self.tables: dict[int, dict[bytes, bytes]] = {}
        self.options: dict[int, values.TableOptions] = {}
        self.writes: list[Request] = []  # Each once, as in the log.
        self.answers: dict[bytes, list[bytes]] = {}  # Answers to writes, by reqid.
        self.index_of: dict[bytes, int] = {}  # Of these writes.
        self.changes: list[tuple[int, bytes]] = []
        self.first_change = 1
        self.jobs: dict[int, list[tuple[bytes, bytes]]] = {}
        self.lost_jobs: set[int] = set()
        self.job_state = "done"
        self.job_request: Any = None  # The request of the last job.
        self.job_polls = 0  # Status requests before a job is done.
        self.sessions: set[int] = set()

    def table(self, number: int) -> dict[bytes, bytes]:
        return self.tables.setdefault(number, {})

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.table(table).get(key) for key in keys]

    def scan(self, table: int, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key, self.table(table)[key]) for key in self.within(table, start, end))

    def within(self, number: int, start: bytes, end: bytes, last: bytes = b"") -> list[bytes]:
        return [
            key
            for key in sorted(self.table(number))
            if key >= start and (not end or key < end) and (not last or key <= last)
        ]

    def apply(self, all_ops: Sequence[ops.Op]) -> None:
        for op in all_ops:
            table = self.table(op.table)
            match op:
                case ops.Put():
                    table.update(zip(op.keys, op.values, strict=True))
                case ops.Delete():
                    for key in op.keys:
                        table.pop(key, None)
                case ops.DeleteRange():
                    for key in self.within(op.table, op.start, op.end):
                        del table[key]
                case ops.DeleteLimited():
                    for key in self.within(op.table, op.start, b"")[: op.limit]:
                        del table[key]
                case ops.Truncate():
                    table.clear()
                case ops.Open():
                    self.options.setdefault(op.table, op.options)
        self.changes.append((len(self.changes) + 1, ops.pack(without_reads(all_ops))))


JOB = 77  # The number of each copy and map.


def job_status(apid: int, state: str) -> dict[str, str]:
    status = {"apid": apid, "request_type": 0x44, "table": 7, "target": 9, "state": state}
    status |= {"rows": 1200, "bytes": 24000, "chunks": 3, "started": 1_700_000_000_000}
    status |= {
        "ended": 0 if state == "running" else 1_700_000_002_000,
        "puts": 1100,
        "deletes": 100,
    }
    status["reason"] = "no space is left" if state == "failed" else ""
    return {name: str(value) for name, value in status.items()}


def without_reads(all_ops: Sequence[ops.Op]) -> list[ops.Op]:
    return [op for op in all_ops if not isinstance(op, ops.Get | ops.Expiry | ops.Attach)]


class FakeTableServer:
    """One server, with faults that tests switch on."""

    def __init__(self, store: TableStore, name: str, features: int = FEATURES) -> None:
        self.store = store
        self.name = name
        self.features = features
        self.requests: list[Request] = []  # Valid requests.
        self.silent = False  # It answers nothing.
        self.mute = 0  # Writes that it will execute without an answer.
        self.dies = False  # It is silent after the first of these.
        self.refuse_count = 0  # Requests that it will refuse with a hint to retry.
        self.mute_scans = False  # It answers no scan.
        self.read_max = 1 << 20  # Keys of a read.
        self.error: tuple[int, str] | None = None
        self.refuses_sums = ""  # The text for transactions that increment or append.

    def on_frames(self, frames: list[bytes]) -> list[list[bytes]]:
        """The answers to a message."""
        if self.silent:
            return []
        try:
            request = decode_request(frames)
        except RequestError as error:
            return [answers.encode_refusal(error)]
        if not self.features & values.FEATURE_PACKED:
            assert request.extension == NO_EXTENSION, "a foreign server got an extension of kelek"
        self.requests.append(request)
        if not isinstance(request, requests.ServerInfo):
            if self.refuse_count:
                self.refuse_count -= 1
                return [answers.encode_error(request, 1, "an election", retry=True)]
            if self.error is not None:
                return [answers.encode_error(request, *self.error)]
        answer = self._answer(request)
        if (
            answer
            and self.features & values.FEATURE_INDEXES
            and request.extension.flags & WITH_INDEX
        ):
            log_index = self.store.index_of.get(request.extension.reqid, len(self.store.changes))
            answer = [answers.tell_index(answer[0], log_index), *answer[1:]]
        else:
            assert not answer or not answers.lacks_index(answer[0]), "the server does not know it"
        if self.mute and isinstance(request, requests.Put | requests.Transaction):
            self.mute -= 1
            self.silent = self.dies
            return []
        return [answer] if answer else []

    def _answer(self, request: Any) -> list[bytes]:
        match request:
            case requests.ServerInfo():
                return answers.encode_server_info(request, self.features, self.name)
            case requests.Read() if len(request.keys) > self.read_max:
                return answers.encode_error(request, 0x10, "too much for one answer")
            case requests.Read():
                table = self.store.table(request.table)
                return answers.VALUES.encode(request, [table.get(key) for key in request.keys])
            case requests.Exists():
                table = self.store.table(request.table)
                return answers.EXISTS.encode(request, [key in table for key in request.keys])
            case requests.Count():
                keys = self.store.within(request.table, request.start, b"", request.end)
                return answers.COUNT.encode(request, len(keys))
            case requests.Scan():
                return [] if self.mute_scans else self._scan(request)
            case requests.Watch():
                return self._watch(request)
            case requests.SplitPoints():
                number, parts, start, end, _ = request
                keys = self.store.within(number, start, end)
                size = max(1, len(keys) // parts)
                return answers.SPLIT_POINTS.encode(request, keys[size::size][: parts - 1])
            case requests.TableInfo():
                return self._info(request)
            case requests.Lifetimes():
                table = self.store.table(request.table)
                told = [answers.Lifetime(1500, 9) if it in table else None for it in request.keys]
                return answers.LIFETIMES.encode(request, told)
            case requests.CompactTable() | requests.CloseTable() | requests.Lease():
                return answers.encode_ok(request)
            case _ if isinstance(
                request,
                requests.RangeJob | requests.ClientData | requests.JobStatus | requests.CopyTable
                | requests.MapTable | requests.ListJobs | requests.EndJob,
            ):  # fmt: skip
                return self._job(request)
            case _:
                return self._write(request)

    def _scan(self, request: requests.Scan) -> list[bytes]:
        keys = self.store.within(request.table, request.start, request.end)
        flags = request.extension.flags
        if flags & REVERSE:
            keys.reverse()
        table = self.store.table(request.table)
        page: list[bytes] = []
        size = 0
        for key in keys:
            if len(page) == request.limit:
                break
            size += len(key) + len(table[key])
            if page and flags & PACKED and 0 < request.extension.bytes_max < size:
                break
            page.append(key)
        rest = keys[len(page) :]
        resume = b""
        if rest:
            resume = rest[0] + b"\0" if flags & REVERSE else rest[0]
        found = [b"" if flags & KEYS_ONLY else table[key] for key in page]
        return answers.SCAN.encode(request, answers.Pairs(page, found, resume))

    def _watch(self, request: requests.Watch) -> list[bytes]:
        changes = self.store.changes
        if request.from_index == 0:
            return answers.WATCH.encode(request, (len(changes) + 1, []))
        if request.from_index < self.store.first_change:
            return answers.encode_error(request, values.GONE, "no longer kept")
        found = [(*it, None) for it in changes if it[0] >= request.from_index]
        return answers.WATCH.encode(request, (len(changes) + 1, found))

    def _info(self, request: requests.TableInfo) -> list[bytes]:
        numbers = self.store.tables if request.table is None else [request.table]
        found: dict[int, dict[str, object]] = {
            number: {"keys": len(self.store.tables[number])}
            for number in numbers
            if number in self.store.tables
        }
        if request.start or request.end:
            for number, info in found.items():
                keys = self.store.within(number, request.start, request.end)
                info |= {"range_keys": len(keys), "range_bytes": 0}
        return answers.TABLE_INFO.encode(request, found.items())

    def _job(self, request: Any) -> list[bytes]:
        jobs = self.store.jobs
        match request:
            case requests.RangeJob():
                apid = len(jobs) + 1
                self.store.job_request = request
                table = self.store.table(request.table)
                keys = self.store.within(request.table, request.start, b"", request.end)
                jobs[apid] = [(key, table[key]) for key in keys]
                lease = None
                if request.extension.flags & values.WITH_LEASE:
                    lease = answers.SnapshotLease(9, "lease.9", 5, 1)
                return answers.JOB.encode(request, (apid, lease))
            case requests.ClientData():
                assert request.apid is not None
                left = jobs.get(request.apid, [])
                chunk, jobs[request.apid] = left[:CHUNK_PAIRS], left[CHUNK_PAIRS:]
                flags = values.PARTIAL_DATA if 0 < len(chunk) < CHUNK_PAIRS else 0
                flags = flags if chunk else values.NO_MORE_DATA
                keys, found = [key for key, _ in chunk], [value for _, value in chunk]
                return messages.chunk(request, keys, found, flags)
            case requests.JobStatus():
                if request.apid in self.store.lost_jobs:
                    return answers.encode_error(request, 0x10, "no such job")
                state = self.store.job_state
                if self.store.job_polls:
                    self.store.job_polls -= 1
                    state = "running"
                return answers.STATUS.encode(request, job_status(request.apid, state))
            case requests.ListJobs():
                jobs_of = {8: job_status(8, "done"), JOB: job_status(JOB, "running")}
                listed = (JOB,) if request.running else (JOB, 8)
                return answers.JOBS.encode(request, ((apid, jobs_of[apid]) for apid in listed))
            case requests.EndJob():
                if request.apid != JOB:
                    return answers.encode_error(request, 1, "there is no data job 5")
                self.store.job_state = "cancelled"
                return answers.encode_ok(request)
            case _:
                self.store.job_request = request
                return answers.JOB.encode(request, (JOB, None))

    def _write(self, request: Any) -> list[bytes]:
        reqid = request.extension.reqid
        if reqid and reqid in self.store.answers:
            return self.store.answers[reqid]
        self.store.writes.append(request)
        session = 0 if isinstance(request, requests.Session) else request.extension.lease
        if session and session not in self.store.sessions:
            return answers.encode_error(request, values.SESSION_ENDED, "the session has ended")
        if isinstance(request, requests.Transaction):
            answer = self._transaction(request)
        elif isinstance(request, requests.Session):
            answer = self._session(request)
        else:
            for op in operations_of(request, 0):
                self.store.apply(op.then if isinstance(op, ops.Transaction) else [op])
            answer = answers.encode_ok(request)
        self.store.answers[reqid] = answer
        self.store.index_of[reqid] = len(self.store.changes)
        return answer

    def _session(self, request: requests.Session) -> list[bytes]:
        sessions = self.store.sessions
        session = request.session
        if request.action == requests.SESSION_OPEN:
            session = len(sessions) + 100
            sessions.add(session)
        elif session not in sessions:
            session = 0
        if request.action == requests.SESSION_END:
            sessions.discard(request.session)
        return answers.SESSION.encode(request, session)

    def _transaction(self, request: requests.Transaction) -> list[bytes]:
        holds = all(map(self._holds, request.compares))
        branch = request.then if holds else request.otherwise
        result = bytes((holds,)) + len(self.store.writes).to_bytes(8, "little")
        if self.refuses_sums and ops.is_gated([*request.then, *request.otherwise]):
            return answers.encode_error(request, 1, self.refuses_sums)
        try:
            branch, found = sums.resolved(self.store, branch)
        except sums.SumRefused as error:
            return answers.encode_error(request, 1, str(error))
        for op in branch if not found else []:
            if isinstance(op, ops.GetRange):
                table = sorted(self.store.table(op.table).items())
                pairs = [pair for pair in table if op.start <= pair[0] < (op.end or b"\xff" * 99)]
                packed = ops.pack_pairs(pairs[: op.limit or None])
                result += len(packed).to_bytes(4, "little") + packed
            if isinstance(op, ops.Get):
                value = self.store.table(op.table).get(op.keys[0])
                size = 0xFFFFFFFF if value is None else len(value)
                result += size.to_bytes(4, "little") + (value or b"")
        for sizes in found:
            result += b"".join(len(data).to_bytes(4, "little") + data for data in sizes)
        self.store.apply(branch)
        return answers.TRANSACTION.encode(request, result)

    def _holds(self, compare: ops.Compare) -> bool:
        value = self.store.table(compare.table).get(compare.key)
        match compare.kind:
            case ops.ABSENT:
                return value is None
            case ops.PRESENT:
                return value is not None
            case ops.EQUAL:
                return value == compare.operand
            case ops.NOT_EQUAL:
                return value != compare.operand
            case ops.LESS:
                return value is not None and value < compare.operand
            case ops.GREATER:
                return value is not None and value > compare.operand
            case _:
                return int.from_bytes(compare.key, "little") in self.store.sessions


class TableServers(RouterThread[FakeTableServer]):
    """Servers of the same tables, three on ipc."""

    def __init__(
        self,
        folder: Path,
        features: int = FEATURES,
        urls: Sequence[str] = (),
        gate: CurveGate | None = None,
    ) -> None:
        """urls: in place of those on ipc; gate: they have CURVE"""
        self.store = TableStore()
        self.servers = [FakeTableServer(self.store, f"s{i}", features) for i in range(3)]
        urls = urls or [f"ipc://{folder}/{server.name}" for server in self.servers]
        super().__init__(dict(zip(urls, self.servers, strict=False)), gate)
