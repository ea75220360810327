"""Reports of a table worker: only changes, and bounded while the server reads none."""

import pytest

from kelek.protocols.zerodb.tables.tables import Outcome, TablePartition
from kelek.protocols.zerodb.wire.worker_pipe import (
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
from kelek.protocols.zerodb.worker.reporter import Reporter
from kelek.protocols.zerodb.worker.requests import Databases, TableRequestLimits, TableRequests
from kelek.tests.storage.memory_tables import MemoryTables


def table_requests() -> TableRequests:
    databases = Databases("table_worker", TablePartition(0, 1), MemoryTables(), None)
    return TableRequests(databases, TableRequestLimits(1 << 20, 5000, True), lambda index: [])


def kinds(reports: list[Message]) -> list[int]:
    return [PIPE_HEADER.unpack(report[0])[0] for report in reports]


def test_only_changes_are_reported_until_a_reset() -> None:
    reporter, requests = Reporter(0, 7), table_requests()
    everything = [TABLES, WRITE_STATUS, PROGRESS, NEXT_EXPIRY, COMPLETED]
    assert kinds(reporter.reports(requests, 1, "")) == everything
    assert reporter.reports(requests, 1, "") == []
    assert kinds(reporter.reports(requests, 2, "no space")) == [WRITE_STATUS, PROGRESS]
    reporter.add_outcomes([Outcome(2, 0, b"data")])
    (progress,) = reporter.reports(requests, 2, "no space")
    assert decode_outcomes(progress[1]) == [(2, (0, b"data"))]
    reporter.reset()
    assert kinds(reporter.reports(requests, 2, "")) == everything


def test_outcomes_are_bounded_but_refusals_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter_module, "OUTCOMES_BYTES_MAX", 100_000)
    reporter = Reporter(0, 7)
    reporter.add_outcomes([Outcome(1, 0, b"", "refused")])
    reporter.add_outcomes([Outcome(index, 0, bytes(1000)) for index in range(2, 500)])
    reporter.limit_outcomes()
    reports = reporter.reports(table_requests(), 500, "")
    (progress,) = (report for report in reports if kinds([report]) == [PROGRESS])
    assert len(progress[1]) < 60_000
    first, *others = decode_outcomes(progress[1])
    assert (first[0], first[1].data) == (1, b"refused")
    assert [index for index, _ in others] == list(range(458, 500))
