"""Reports of a table worker: only changes, and bounded while the server reads none."""

import pytest

from kelek.protocols.zerodb.tables.tables import Outcome, TablePartition
from kelek.protocols.zerodb.wire.worker_pipe import (
    ANSWER_TAG,
    COMPLETED,
    NEXT_EXPIRY,
    PIPE_HEADER,
    PROGRESS,
    TABLES,
    WRITE_STATUS,
    Message,
    decode_outcomes,
)
from kelek.protocols.zerodb.worker import reporter as reporter_module
from kelek.protocols.zerodb.worker.reporter import AWAITED_MS, UNHURRIED_MS, Reporter
from kelek.protocols.zerodb.worker.requests import (
    Databases,
    TableRequestLimits,
    TableRequests,
)
from kelek.protocols.zerodb.worker.tickets import QueuedRequest
from kelek.tests.storage.memory_tables import MemoryTables


def table_requests() -> TableRequests:
    databases = Databases("table_worker", TablePartition(0, 1), MemoryTables(), None)
    limits = TableRequestLimits(1 << 20, 5000, True)
    return TableRequests(databases, limits, lambda index: [], {})


def kinds(reports: list[Message]) -> list[int]:
    return [PIPE_HEADER.unpack(report[0])[0] for report in reports]


def test_only_changes_are_reported_until_a_reset() -> None:
    reporter, requests = Reporter(0, 7), table_requests()
    everything = [TABLES, WRITE_STATUS, PROGRESS, NEXT_EXPIRY, COMPLETED]
    assert kinds(reporter.reports(requests, 1, "", 0)) == everything
    assert reporter.reports(requests, 1, "", 0) == []
    assert kinds(reporter.reports(requests, 2, "no space", 20)) == [WRITE_STATUS, PROGRESS]
    reporter.add_outcomes([Outcome(2, 0, b"data")], 0)
    (progress,) = reporter.reports(requests, 2, "no space", 0)
    assert decode_outcomes(progress[1]) == [(2, (0, b"data"))]
    reporter.reset()
    assert kinds(reporter.reports(requests, 2, "", 0)) == everything


def test_completed_requests_are_reported_once_in_a_while() -> None:
    """The server knows of most of them from their answers."""
    reporter, requests = Reporter(0, 7), table_requests()
    reporter.reports(requests, 1, "", 1000)
    assert reporter.due_ms(requests, 1) is None
    for ticket in (1, 2):
        tag = ANSWER_TAG.pack(0, 0, 7, 0, ticket)
        read = [b"\x31\x01\x10", bytes(4), b"key"]
        requests.add(QueuedRequest(b"a", read, 0, ticket, True, False, tag), 1000)
        requests.run(1, 1000, 0)
        requests.out.clear()
    assert requests.completed_ticket == 2
    assert reporter.reports(requests, 1, "", 1001) == []
    assert reporter.due_ms(requests, 1) == 1000 + UNHURRIED_MS
    (report,) = reporter.reports(requests, 1, "", 1000 + UNHURRIED_MS)
    assert PIPE_HEADER.unpack(report[0])[0::4] == (COMPLETED, 2)
    assert reporter.due_ms(requests, 1) is None


def test_the_applied_index_is_reported_at_once_to_a_server_that_waits() -> None:
    reporter, requests = Reporter(0, 7), table_requests()
    reporter.reports(requests, 1, "", 1000)
    assert reporter.reports(requests, 2, "", 1001) == []
    assert reporter.due_ms(requests, 2) == 1000 + UNHURRIED_MS
    reporter.on_awaited(1002)
    assert kinds(reporter.reports(requests, 2, "", 1002)) == [PROGRESS]
    assert reporter.due_ms(requests, 2) is None
    assert kinds(reporter.reports(requests, 3, "", 1003)) == [PROGRESS]
    late_ms = 1002 + AWAITED_MS
    assert kinds(reporter.reports(requests, 4, "", late_ms)) == [PROGRESS]
    assert reporter.reports(requests, 5, "", late_ms + 1) == []
    assert kinds(reporter.reports(requests, 5, "", late_ms + UNHURRIED_MS)) == [PROGRESS]


def test_results_that_are_kept_are_reported_only_to_a_server_that_waits() -> None:
    """Most are of other nodes; the server asks for its own by their reqids."""
    reporter, requests = Reporter(0, 7), table_requests()
    reporter.reports(requests, 1, "", 1000)
    kept = Outcome(2, 0, b"result", is_kept=True)
    others = [Outcome(2, 1, b"session"), Outcome(3, 0, b"", "refused")]
    reporter.add_outcomes([kept, *others], 1000)
    (progress,) = reporter.reports(requests, 3, "", 1000)
    assert [found.data for _, found in decode_outcomes(progress[1])] == [b"session", b"refused"]
    reporter.on_awaited(1000)
    reporter.add_outcomes([kept._replace(log_index=4)], 1000)
    (progress,) = reporter.reports(requests, 4, "", 1000)
    assert decode_outcomes(progress[1]) == [(4, (0, b"result"))]


def test_outcomes_are_bounded_but_refusals_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter_module, "OUTCOMES_BYTES_MAX", 100_000)
    reporter = Reporter(0, 7)
    reporter.add_outcomes([Outcome(1, 0, b"", "refused")], 0)
    reporter.add_outcomes([Outcome(index, 0, bytes(1000)) for index in range(2, 500)], 0)
    reporter.limit_outcomes()
    reports = reporter.reports(table_requests(), 500, "", 0)
    (progress,) = (report for report in reports if kinds([report]) == [PROGRESS])
    assert len(progress[1]) < 60_000
    first, *others = decode_outcomes(progress[1])
    assert (first[0], first[1].data) == (1, b"refused")
    assert [index for index, _ in others] == list(range(458, 500))
