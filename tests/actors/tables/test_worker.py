"""The process table_worker in a thread, while its server reads nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.actors.runtime import actor
from kelek.actors.tables import credit
from kelek.actors.tables.credit import BYTES_READ
from kelek.actors.tables.worker import TableWorker
from kelek.actors.topology.settings import NodeAddresses, TableEndpoints, TableSettings
from kelek.protocols.zerodb.wire import ops, requests
from kelek.protocols.zerodb.wire.client_codec import encode_request
from kelek.protocols.zerodb.wire.worker_pipe import ANSWER_TAG, JOB_WRITE, PIPE_HEADER, REQUEST
from kelek.storage.disk.disk import Disk
from kelek.storage.log.log import Log
from kelek.storage.log.segment import Identity
from kelek.tests.actors.actor_harness import ActorHarness
from kelek.tests.actors.node_settings import node_settings

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
    """A table_worker beside an empty log; the test is zerodb_server and job_server."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        (folder / "raft").mkdir()
        disk = Disk(folder / "raft")
        self.log = Log.open(disk, Identity("c", "n1"), epoch=1, segment_bytes=16 << 10)
        self.done = self.bound("zerodb_server.done")
        self.bound("zerodb_server.reports")
        self.jobs = self.bound("job_server.requests")
        self.actor = self.begin(TableWorker, str(folder / "raft"), EPOCH, SETTINGS)
        self.work = self.connected("table_worker.work")
        self.taken = self.connected("table_worker.taken")
        self.tickets = 0

    def ask(self, request: requests.Request) -> None:
        self.tickets += 1
        head = PIPE_HEADER.pack(REQUEST, 0, 0, EPOCH, 0, self.tickets)
        self.work.send_multipart([head, b"route", *encode_request(request)])

    def answer(self) -> list[bytes]:
        self.turn(lambda: self.done.poll(0))
        return self.done.recv_multipart()

    def take_all(self) -> list[list[bytes]]:
        """The answers once the worker is idle."""
        done = self.done
        found: list[list[bytes]] = []
        looks = 0

        def stands() -> bool:
            nonlocal looks
            looks = 0 if done.poll(0) else looks + 1
            while done.poll(0):
                found.append(done.recv_multipart())
            return looks == 3

        self.turn(stands)
        return found

    def end(self) -> None:
        super().end()
        self.log.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableWorkerHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # Reports wake it, too.
    made = TableWorkerHarness(tmp_path)
    yield made
    made.end()


def test_unread_answers_of_a_worker_are_bounded_by_bytes(
    rig: TableWorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credit, "UNREAD_BYTES_MAX", 1_000_000)
    monkeypatch.setattr("kelek.protocols.zerodb.worker.requests.OUT_BYTES", 200_000)
    rig.ask(requests.OpenTable(9))
    rig.ask(requests.Put(9, [b"k"], [bytes(100_000)], 1))
    assert [rig.answer()[2][2] for _ in range(2)] == [0x01, 0x20]
    for _ in range(40):
        rig.ask(requests.Read(9, [b"k"]))
    found = rig.take_all()
    assert 10 <= len(found) <= 14
    size = sum(len(frame) for message in found for frame in message)
    rig.taken.send(BYTES_READ.pack(1, 0))  # A new server: no bytes are unread.
    found += rig.take_all()
    assert 20 <= len(found) <= 28
    for _ in range(2):
        rig.taken.send(BYTES_READ.pack(1, size))
        found += rig.take_all()
    assert len(found) == 40
    places = [ANSWER_TAG.unpack(message[0])[4] for message in found]
    assert places == list(range(3, 43))


def test_a_job_writes_open_tables_only(rig: TableWorkerHarness) -> None:
    entry = ops.pack([ops.Put(9, [b"k"], [b"v"])])
    head = PIPE_HEADER.pack(JOB_WRITE, 0, 0, 0, 0, 55)
    rig.work.send_multipart([head, b"", b"\x09\0\0\0", entry])
    rig.turn(lambda: rig.jobs.poll(0))
    _, text = rig.jobs.recv_multipart()
    assert text == b"table 9 is not open"
