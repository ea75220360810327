"""The actor zerodb_server: which answers reach their clients.

The test acts as table_worker and job_server.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from kelek.actors.runtime import actor
from kelek.actors.tables.credit import BYTES_READ
from kelek.actors.tables.server import ZerodbServer
from kelek.actors.topology.settings import (
    NodeAddresses,
    RaftSettings,
    TableEndpoints,
    TableSettings,
)
from kelek.protocols.zerodb.wire import answers, requests, values
from kelek.protocols.zerodb.wire.requests import encode_request
from kelek.protocols.zerodb.wire.values import Extension
from kelek.protocols.zerodb.wire.worker_pipe import (
    ANSWER_TAG,
    COMPLETED,
    HELLO,
    JOB_SERVER,
    ONE_WAY_FAILURE,
    OWNERS,
    PIPE_HEADER,
    PROGRESS,
    TABLES,
    WRITE_STATUS,
)
from kelek.tests.actors.actor_harness import ActorHarness, Socket
from kelek.tests.actors.node_settings import node_settings
from kelek.tests.protocols.zerodb.wire.messages import chunk

EMPTY = b"\x80"  # No tables, in msgpack.
EPOCH = 11  # Of the worker.
URL = "inproc://tables"
SETTINGS = TableSettings(local_tables=(9,), response_bytes_max=1 << 20)
ENDPOINTS = TableEndpoints(url=URL)
LOCAL = (9).to_bytes(4, "little")


class TableServerHarness(ActorHarness):
    """A zerodb_server between clients, a worker and a job_server."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.work = self.bind("table_worker.work")
        self.jobs = self.bind("job_server.requests")
        self.read_bytes = self.bind("table_worker.taken")
        url = "inproc://raft"
        settings = node_settings(
            {"url": url, "zerodb": ENDPOINTS},
            zerodb=SETTINGS,
            members={"n1": NodeAddresses(url=url)},
            raft=RaftSettings(entry_bytes_max=1 << 20),
        )
        self.actor = self.start_actor(ZerodbServer, str(folder), 7, settings)
        self.done = self.connect("zerodb_server.done")
        self.reports = self.connect("zerodb_server.reports")
        self.report(PROGRESS)
        self.report(TABLES, *(5 * [EMPTY]))
        self.run_until(lambda: self.actor.session.channels[0].reported_kinds >= {PROGRESS, TABLES})

    def client(self) -> Socket:
        socket = self.socket(zmq.DEALER)
        socket.connect(URL)
        return socket

    def report(self, kind: int, *frames: bytes) -> None:
        self.reports.send_multipart([PIPE_HEADER.pack(kind, 0, 0, 0, 0, EPOCH), *frames])

    def next_request(self, pipe: Socket) -> list[bytes]:
        """The next request to the worker or job_server."""
        while True:
            self.run_until(lambda: pipe.poll(0))
            message = pipe.recv_multipart()
            if message[0][0] not in (HELLO, OWNERS):
                return message


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableServerHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # A report would wake the actor.
    harness = TableServerHarness(tmp_path)
    yield harness
    harness.close()


def job_request(harness: TableServerHarness, client: Socket) -> tuple[int, bytes]:
    """Sends a job request; returns its ticket and routing id."""
    client.send_multipart(encode_request(requests.JobStatus(5)))
    head, routing_id, *_ = harness.next_request(harness.jobs)
    return PIPE_HEADER.unpack(head)[5], routing_id


def test_a_job_request_has_one_answer(harness: TableServerHarness) -> None:
    client = harness.client()
    first, routing_id = job_request(harness, client)
    second, _ = job_request(harness, client)
    answer = answers.STATUS.encode(requests.JobStatus(5), {"rows": "1"})
    for ticket in (first, first, first - 1):  # A repeat, and one for an earlier server.
        harness.done.send_multipart(
            [ANSWER_TAG.pack(JOB_SERVER, 0, 0, 0, ticket), routing_id, *answer]
        )
    harness.run_until(lambda: harness.actor.counters["late_answers"] == 2)
    assert client.recv_multipart() == answer
    harness.actor.on_jobs_lost()  # Before its second answer.
    harness.run_until(lambda: client.poll(0))
    assert b"no job_server runs" in client.recv_multipart()[1]
    harness.done.send_multipart([ANSWER_TAG.pack(JOB_SERVER, 0, 0, 0, second), routing_id, *answer])
    harness.run_until(lambda: harness.actor.counters["late_answers"] == 3)
    assert not client.poll(0)


def test_memory_of_job_requests_is_bounded(
    harness: TableServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kelek.actors.tables.server.JOBS_BYTES_MAX", 1000)
    client = harness.client()
    routing_id = b""
    for _ in range(2):
        client.send_multipart([*encode_request(requests.JobStatus(5)), bytes(600)])
        head, routing_id, *_ = harness.next_request(harness.jobs)
    client.send_multipart(encode_request(requests.JobStatus(5)))
    harness.run_until(lambda: client.poll(0))
    assert b"too many requests" in client.recv_multipart()[1]
    answer = answers.STATUS.encode(requests.JobStatus(5), {"rows": "1"})
    tag = ANSWER_TAG.pack(JOB_SERVER, 0, 0, 0, PIPE_HEADER.unpack(head)[5])
    harness.done.send_multipart([tag, routing_id, *answer])
    harness.run_until(lambda: client.poll(0))
    assert client.recv_multipart() == answer
    job_request(harness, client)


def read_answer(harness: TableServerHarness, client: Socket, size: int, **extension: Any) -> None:
    """The worker answers a read of this client with a value of size bytes."""
    request = requests.Read(9, [b"k"], Extension(**extension))
    client.send_multipart(encode_request(request))
    head, routing_id, *_ = harness.next_request(harness.work)
    answer = answers.VALUES.encode(request, [bytes(size)])
    ticket = PIPE_HEADER.unpack(head)[5]
    harness.done.send_multipart([ANSWER_TAG.pack(0, 0, EPOCH, 0, ticket), routing_id, *answer])


def test_unread_answers_of_a_client_are_bounded_by_bytes(
    harness: TableServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets errors while others are served; after reading it is served again."""
    monkeypatch.setattr(harness.actor.budget, "bytes_max", 1 << 20)
    slow, quick = harness.client(), harness.client()
    for number in range(5):
        read_answer(harness, slow, 400_000, reqid=b"%012d" % number)
        read_answer(harness, quick, 400_000, reqid=b"%012d" % number)
        harness.run_until(lambda: quick.poll(0))
        assert answers.decode_answer(quick.recv_multipart()).code == 0
    harness.run_until(lambda: harness.actor.counters["answers_refused"] == 3)
    found = [answers.decode_answer(slow.recv_multipart()) for _ in range(5)]
    assert [it.reqid for it in found] == [b"%012d" % number for number in range(5)]
    assert [it.failed for it in found] == [False, False, True, True, True]
    assert all(it.retry and "unread" in it.text for it in found[2:])
    for _ in range(2):
        # Without unread bytes an answer may have any size.
        read_answer(harness, slow, 2_000_000, reqid=b"%012d" % 9)
        harness.run_until(lambda: slow.poll(0))
        assert not answers.decode_answer(slow.recv_multipart()).failed


def test_read_bytes_are_reported_to_workers(harness: TableServerHarness) -> None:
    client = harness.client()
    harness.run_until(lambda: harness.read_bytes.poll(0))
    assert BYTES_READ.unpack(harness.read_bytes.recv()) == (harness.actor.setup.epoch, 0)
    sizes = 0
    for size in (400_000, 0, 700_000):
        read_answer(harness, client, size)
        harness.run_until(lambda: client.poll(0))
        sizes += ANSWER_TAG.size + 5 + sum(map(len, client.recv_multipart()))
    assert BYTES_READ.unpack(harness.read_bytes.recv()) == (harness.actor.setup.epoch, sizes)
    assert not harness.read_bytes.poll(0)


def test_a_refused_chunk_does_not_end_its_job(harness: TableServerHarness) -> None:
    answer = chunk(requests.ClientData(5), [b"k"], [b"v"], 0)
    prefix, refusal = answers.too_much_unread([b"client", b"", *answer])
    assert prefix == [b"client", b""]
    assert answers.decode_answer(refusal).request_type == values.PROTOCOL_ERROR


def test_malformed_reports_are_dropped(harness: TableServerHarness) -> None:
    junk: list[list[bytes]] = [[], [b""], [b"\xc1"], [b"\x91\x01"] * 2, [b"\x81\x01\x02", EMPTY]]
    for kind in (TABLES, WRITE_STATUS, ONE_WAY_FAILURE, 77):
        for frames in junk:
            harness.reports.send_multipart([PIPE_HEADER.pack(kind, 1, 0, 0, 0, EPOCH), *frames])
    harness.reports.send_multipart([PIPE_HEADER.pack(PROGRESS, 0, 0, 0, 0, EPOCH), b"short"])
    of_second_worker = PIPE_HEADER.pack(PROGRESS, 0, 0, 1, 0, EPOCH)  # There is one worker.
    harness.reports.send(of_second_worker)
    harness.report(PROGRESS)
    harness.reports.send_multipart([PIPE_HEADER.pack(COMPLETED, 0, 0, 0, 0, EPOCH)])
    harness.run_until(lambda: COMPLETED in harness.actor.session.channels[0].reported_kinds)
    assert harness.actor.counters["malformed-dropped"] >= 9
    assert harness.actor.session.channels[0].status.tables == {}


def test_surplus_frames_reach_the_job_server(harness: TableServerHarness) -> None:
    client = harness.client()
    client.send_multipart([*encode_request(requests.JobStatus(5)), *[b""] * 10_000])
    assert len(harness.next_request(harness.jobs)) > 10_000
