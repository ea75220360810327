"""The actor table_worker: limits of unread answers, and writes of jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.actors.runtime import actor
from kelek.actors.tables import credit
from kelek.actors.tables.credit import BYTES_READ
from kelek.actors.tables.worker import TableWorker
from kelek.actors.topology.settings import NodeAddresses, TableEndpoints, TableSettings
from kelek.net.links import NEVER_MS
from kelek.protocols.zerodb.wire import ops, requests
from kelek.protocols.zerodb.wire.requests import encode_request
from kelek.protocols.zerodb.wire.worker_pipe import ANSWER_TAG, JOB_WRITE, PIPE_HEADER, REQUEST
from kelek.storage.disk.disk import Disk
from kelek.storage.log.log import Log
from kelek.storage.log.segment import Identity
from kelek.tests.actors.actor_harness import ActorHarness
from kelek.tests.actors.node_settings import node_settings
from kelek.tests.native.broker.bundle_twin import opened

EPOCH = 7
SETTINGS = node_settings(
    {"zerodb": TableEndpoints()},
    members={"n1": NodeAddresses(url="")},
    zerodb=TableSettings(
        local_tables=(9,),
        cache_bytes=8 << 20,
        write_buffer_bytes=8 << 20,
        response_bytes_max=1 << 20,
        open_on_the_fly=False,
    ),
)


class TableWorkerHarness(ActorHarness):
    """A table_worker with an empty log; the test acts as zerodb_server and job_server."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        (folder / "raft").mkdir()
        disk = Disk(folder / "raft")
        self.log = Log(disk, Identity("c", "n1"), epoch=1, segment_bytes=16 << 10)
        self.done = self.bind("zerodb_server.done")
        self.bind("zerodb_server.reports")
        self.jobs = self.bind("job_server.requests")
        self.actor = self.start_actor(TableWorker, str(folder / "raft"), EPOCH, SETTINGS)
        self.work = self.connect("table_worker.work")
        self.read_bytes = self.connect("table_worker.taken")
        self.tickets = 0
        self.opened: list[list[bytes]] = []  # Answers of a bundle that are not read yet.

    def ask(self, request: requests.Request) -> None:
        self.tickets += 1
        head = PIPE_HEADER.pack(REQUEST, 0, 0, EPOCH, 0, self.tickets)
        self.work.send_multipart([head, b"route", *encode_request(request)])

    def answer(self) -> list[bytes]:
        """The next answer; some come in bundles."""
        if not self.opened:
            self.run_until(lambda: self.done.poll(0))
            self.opened = opened([self.done.recv_multipart()])
        return self.opened.pop(0)

    def all_answers(self) -> list[list[bytes]]:
        """The answers until the worker is idle: three wakes bring no further one."""
        answers: list[list[bytes]] = []
        idle_wakes = 0

        def is_idle() -> bool:
            nonlocal idle_wakes
            idle_wakes = 0 if self.done.poll(0) else idle_wakes + 1
            while self.done.poll(0):
                answers.extend(opened([self.done.recv_multipart()]))
            return idle_wakes == 3

        self.run_until(is_idle)
        return answers

    def close(self) -> None:
        super().close()
        self.log.close()


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableWorkerHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # A report would wake the actor.
    harness = TableWorkerHarness(tmp_path)
    yield harness
    harness.close()


def test_unread_answers_of_a_worker_are_bounded_by_bytes(
    harness: TableWorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credit, "UNREAD_BYTES_MAX", 1_000_000)
    monkeypatch.setattr("kelek.protocols.zerodb.worker.requests.OUT_BYTES", 200_000)
    harness.ask(requests.OpenTable(9))
    harness.ask(requests.Put(9, [b"k"], [bytes(100_000)], 1))
    assert [harness.answer()[2][2] for _ in range(2)] == [0x01, 0x20]
    for _ in range(40):
        harness.ask(requests.Read(9, [b"k"]))
    found = harness.all_answers()
    assert 10 <= len(found) <= 14
    size = sum(len(frame) for message in found for frame in message)
    harness.read_bytes.send(BYTES_READ.pack(1, 0))  # A new server: no bytes are unread.
    found += harness.all_answers()
    assert 20 <= len(found) <= 28
    for _ in range(2):
        harness.read_bytes.send(BYTES_READ.pack(1, size))
        found += harness.all_answers()
    assert len(found) == 40
    tickets = [ANSWER_TAG.unpack(message[0])[4] for message in found]
    assert tickets == list(range(3, 43))


def test_a_job_can_write_to_open_tables_only(harness: TableWorkerHarness) -> None:
    entry = ops.pack([ops.Put(9, [b"k"], [b"v"])])
    head = PIPE_HEADER.pack(JOB_WRITE, 0, 0, 0, 0, 55)
    harness.work.send_multipart([head, b"", b"\x09\0\0\0", entry])
    harness.run_until(lambda: harness.jobs.poll(0))
    _, text = harness.jobs.recv_multipart()
    assert text == b"table 9 is not open"


def test_gets_alone_have_no_whole_wake_each(
    harness: TableWorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kelek.actors.tables.worker.UNHURRIED_MS", 3_600_000)
    harness.ask(requests.OpenTable(9))
    harness.ask(requests.Put(9, [b"k"], [b"v"], 1))
    assert [harness.answer()[2][2] for _ in range(2)] == [0x01, 0x20]
    harness.run_until(lambda: harness.actor.deadline_ms() == NEVER_MS)
    wakes: list[int] = []
    whole = harness.actor.whole_wake

    def counted(now_ms: int) -> None:
        wakes.append(now_ms)
        whole(now_ms)

    monkeypatch.setattr(harness.actor, "whole_wake", counted)
    for _ in range(50):
        harness.ask(requests.Read(9, [b"k"]))
        assert harness.answer()[-1] == b"v"
    assert not wakes
    due_ms = harness.actor.deadline_ms()
    assert due_ms is not None
    assert due_ms < NEVER_MS, "others learn that they are done"
    harness.ask(requests.Put(9, [b"k"], [b"w"], 1))
    harness.answer()
    assert wakes
