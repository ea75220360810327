"""Reports of a table worker to zerodb_server: only what has changed since the last report.

wire/worker_pipe.py lists the kinds of reports.
"""

from collections.abc import Sequence

from ..tables.tables import Outcome, Tables
from ..wire import worker_pipe as pipe
from ..wire.values import OWNER_TABLE, SNAPSHOT_TABLE
from ..wire.worker_pipe import PIPE_HEADER, Message
from .requests import TableRequests

OUTCOMES_BYTES_MAX = 64 << 20  # Kept while the server reads no reports.
OUTCOME_BYTES = 200  # Memory of an outcome besides its data.
LEVEL_ERROR = 1  # Of the events PUB.


ACTIVE_MS = 1000  # The peer reports commits at once for so long after a message of the server.
APPLIED_MS = 100  # Interval between reports of the applied index to the peer, at least.
# Interval between reports for which no request waits: of the applied index, and of completed
# requests, which the server mostly knows from the answers. Each would wake it once more.
UNHURRIED_MS = 20
AWAITED_MS = 1000  # The applied index is reported at once for so long after the server has asked.


class AppliedReporter:
    """Reports the applied index to the peer every 100 ms, since it only drives compaction, and a
    change of urgency at once."""

    def __init__(self) -> None:
        self._reported: tuple[int, bool] | None = None
        self._due_ms = 0
        self._server_active_ms = -ACTIVE_MS

    def on_server_active(self, now_ms: int) -> None:
        """The server has sent a message, and may soon wait for commits."""
        self._server_active_ms = now_ms

    def report(self, applied: int, is_waiting: bool, now_ms: int) -> tuple[int, bool] | None:
        """The applied index and whether commits are urgent, to be sent now."""
        urgent = is_waiting or now_ms - self._server_active_ms < ACTIVE_MS
        now, last = (applied, urgent), self._reported
        if now == last or (last and urgent == last[1] and now_ms < self._due_ms):
            return None
        self._due_ms = now_ms + APPLIED_MS
        return now

    def is_news(self, report: tuple[int, bool]) -> bool:
        """Whether the peer must read it at once."""
        return self._reported is None or self._reported[1] != report[1]

    def on_sent(self, report: tuple[int, bool]) -> None:
        """The pipe to the peer had room for the report."""
        self._reported = report

    def reset(self) -> None:
        """The peer has restarted, and does not have the last report."""
        self._reported = None

    def due_ms(self, applied: int) -> int | None:
        """When report() has an applied index to report."""
        is_known = self._reported is not None and self._reported[0] == applied
        return None if is_known else self._due_ms


class Reporter:
    """What zerodb_server does not know yet."""

    def __init__(self, number: int, epoch: int, rows: str = "") -> None:
        """rows: where the memory with the worker's rows is"""
        self._rows = rows
        self._number = number
        self._epoch = epoch
        self._reported: dict[int, object] = {}  # The last report of each kind.
        self.tables_due = True  # The next reports list the tables.
        self._completed_requests = 0  # As of the last report of local tables.
        self._unhurried_due_ms = 0
        self._awaited_until_ms = 0
        self._outcomes: list[Outcome] = []
        self._outcomes_bytes = 0

    def reset(self) -> None:
        """The server has restarted: everything is reported again, except old outcomes."""
        self._reported.clear()
        self.tables_due = True
        self._unhurried_due_ms = 0
        self._outcomes, self._outcomes_bytes = [], 0

    def on_awaited(self, now_ms: int) -> None:
        """The server waits until writes are applied."""
        self._awaited_until_ms = now_ms + AWAITED_MS

    def is_awaited(self, now_ms: int) -> bool:
        """Whether it may still wait."""
        return now_ms < self._awaited_until_ms

    def add_outcomes(self, outcomes: Sequence[Outcome], now_ms: int) -> None:
        """Takes outcomes of applied operations. Results that are kept are left out while the server
        does not wait: most belong to other nodes, and it asks for its own."""
        if not self.is_awaited(now_ms):
            outcomes = [outcome for outcome in outcomes if not outcome.is_kept]
        self._outcomes += outcomes
        self._outcomes_bytes += sum(OUTCOME_BYTES + len(outcome.data) for outcome in outcomes)

    def limit_outcomes(self) -> None:
        """Drops the oldest outcomes beyond OUTCOMES_BYTES_MAX, while the server reads no reports.

        Refusals stay, because the server acknowledges an operation without an outcome. The server
        can ask again for the results of transactions.
        """
        if self._outcomes_bytes <= OUTCOMES_BYTES_MAX:
            return
        kept: list[Outcome] = []
        size = 0
        for outcome in reversed(self._outcomes):
            if outcome.problem or size < OUTCOMES_BYTES_MAX // 2:
                kept.append(outcome)
                size += OUTCOME_BYTES + len(outcome.data)
        kept.reverse()
        self._outcomes, self._outcomes_bytes = kept, size

    def reports(
        self, requests: TableRequests, applied: int, problem: str, now_ms: int
    ) -> list[Message]:
        """Reports to send now.

        applied   index of the last applied entry
        problem   why the replicated tables refuse writes, or an empty text
        """
        reports: list[Message] = []
        databases = requests.databases
        local = databases.local
        done, is_due = requests.counts["done"], self._unhurried_due_ms <= now_ms
        if self.tables_due or (is_due and local is not None and done != self._completed_requests):
            self.tables_due, self._completed_requests = False, done
            tables = [
                pipe.encode_tables(databases.replicated.tables()),
                pipe.encode_tables({} if local is None else local.tables()),
                *self._owners(requests),
            ]
            self._add(reports, pipe.TABLES, tuple(tables), applied, tables)
        if self._rows:
            self._add(reports, pipe.ROWS, self._rows, 0, [self._rows.encode()])
        problem = problem or ("" if local is None else local.problem)
        self._add(
            reports, pipe.WRITE_STATUS, problem, applied, [problem.encode()], int(bool(problem))
        )
        outcomes, self._outcomes, self._outcomes_bytes = self._outcomes, [], 0
        if outcomes:
            self._reported.pop(pipe.PROGRESS, None)
        packed = [b"".join(map(_encoded, outcomes))] if outcomes else []
        if outcomes or is_due or self.is_awaited(now_ms):
            self._add(reports, pipe.PROGRESS, applied, applied, packed)
        expires_ms = databases.replicated.expires_ms
        self._add(reports, pipe.NEXT_EXPIRY, expires_ms, expires_ms, [])
        for text in requests.one_way_failures:
            reports.append([self._header(pipe.ONE_WAY_FAILURE, 0, LEVEL_ERROR), text.encode()])
        requests.one_way_failures.clear()
        if is_due and not len(requests.out):
            ticket = requests.completed_ticket
            self._add(reports, pipe.COMPLETED, ticket, ticket, [])
        if is_due and reports:
            self._unhurried_due_ms = now_ms + UNHURRIED_MS
        return reports

    def due_ms(self, requests: TableRequests, applied: int) -> int | None:
        """When reports() has something to report for which no request waits."""
        known = self._reported.get(pipe.COMPLETED), self._reported.get(pipe.PROGRESS)
        return None if known == (requests.completed_ticket, applied) else self._unhurried_due_ms

    def _owners(self, requests: TableRequests) -> list[bytes]:
        """Owners of reserved tables, and of sessions and leases, and kept snapshots, if this worker
        holds the tables that list them."""
        databases = requests.databases
        tables: Tables = databases.replicated
        pairs, kept = (
            list(tables.scan(table)) if databases.owner.owns(table) else []
            for table in (OWNER_TABLE, SNAPSHOT_TABLE)
        )
        owners = [pipe.encode_owners(pairs, 4), pipe.encode_owners(pairs, 8)]
        return [*owners, pipe.encode_kept_rows(kept)]

    def _add(
        self,
        reports: list[Message],
        kind: int,
        value: object,
        index: int,
        frames: list[bytes],
        code: int = 0,
    ) -> None:
        """Adds a report unless its value is the one reported last."""
        if self._reported.get(kind) != value:
            self._reported[kind] = value
            reports.append([self._header(kind, index, code), *frames])

    def _header(self, kind: int, index: int, code: int) -> bytes:
        return PIPE_HEADER.pack(kind, code, 0, self._number, index, self._epoch)


def _encoded(outcome: Outcome) -> bytes:
    return pipe.encode_outcome(outcome.log_index, outcome.position, outcome.data, outcome.problem)
