"""The process job_server without a process: jobs over its sockets, on a real engine's snapshots.

The test plays zerodb_server and table_worker: it makes the checkpoints and takes the writes.
"""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from kelek.actors.jobs.server import JobServer
from kelek.actors.runtime import actor
from kelek.actors.runtime.setup import ActorSetup, Host
from kelek.actors.topology.settings import TableEndpoints, TableSettings
from kelek.bench.kelek_cluster import children_of
from kelek.mapping.mapper_process import BATCH_PAIRS
from kelek.net.clock import monotonic_ms
from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire import answers, columns, requests, values
from kelek.protocols.zerodb.wire.client_codec import encode_request
from kelek.protocols.zerodb.wire.ops import DeleteRange, Put, unpack
from kelek.protocols.zerodb.wire.values import Extension
from kelek.protocols.zerodb.wire.worker_pipe import (
    ANSWER_TAG,
    CHECKPOINT,
    ENVELOPE,
    FAILED,
    JOB_SERVER,
    JOB_WRITE,
    LOG_POSITION,
    PIPE_HEADER,
    REQUEST,
    RETRYABLE,
)
from kelek.storage.disk.disk import Disk
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import open_tables
from kelek.storage.errors import StorageFull
from kelek.storage.worker.job_store import StatisticsFile
from kelek.tests.actors.node_settings import node_settings

SETTINGS = TableSettings(mapper="wasm", local_tables=(9,), chunk_pairs=10)
REQID = b"request-id-1"
ROWS = 25


class JobServerHarness:
    """A job_server between a client and the tables, all in one thread."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.stop_in, self.stop_out = os.pipe()
        self.control = self.bound(zmq.ROUTER, "inproc://control")
        self.asks = self.bound(zmq.PULL, "inproc://rig/n1/zerodb_server.asks")
        self.done = self.bound(zmq.PULL, "inproc://rig/n1/zerodb_server.done")
        self.tables = open_tables(str(folder / "tables"), Resources.of(8 << 20, 64 << 20), True)
        self.index = 0
        self.write(Put(7, [b"%05d" % i for i in range(ROWS)], [b"v%d" % i for i in range(ROWS)]))
        self.settings = replace(SETTINGS, **settings)
        self.start("inproc://jobs")

    def start(self, jobs_url: str) -> None:
        endpoints = TableEndpoints(jobs_url=jobs_url)
        settings = node_settings({"zerodb": endpoints}, zerodb=self.settings)
        setup = ActorSetup(
            "n1", "job_server", "job_server", "c", "inproc://rig", str(self.folder),
            "inproc://control", 7, False, settings, {},
        )  # fmt: skip
        self.actor = JobServer(setup, Host(self.stop_in, 2, self.context))
        self.actor.start()
        self.client = self.context.socket(zmq.DEALER)
        self.client.connect(jobs_url)
        self.requests = self.context.socket(zmq.PUSH)
        self.requests.connect("inproc://rig/n1/job_server.requests")

    def bound(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.bind(address)
        return socket

    def write(self, *operations: Any) -> None:
        self.index += 1
        self.tables.write([TableEntry(self.index, 1, operations)])

    # ---- the other processes ----

    def turn(self, until: Callable[[], object]) -> None:
        """Runs the job_server, and answers what it asks for, until something is so."""
        while not until():
            self.actor.run_once()
            while self.asks.poll(0):
                self.on_ask(self.asks.recv_multipart())

    def on_ask(self, message: list[bytes]) -> None:
        kind, *_, ticket = PIPE_HEADER.unpack(message[0])
        table, data = message[1:]
        if kind == CHECKPOINT:
            place = LOG_POSITION.pack(*self.tables.checkpoint(os.fsdecode(data)))
            self.reply(CHECKPOINT, ticket, data, place)
        else:
            assert kind == JOB_WRITE
            operations = unpack(data)
            assert {op.table for op in operations} == {int.from_bytes(table, "little")}
            self.write(*operations)
            self.reply(JOB_WRITE, ticket)

    def reply(self, kind: int, ticket: int, *frames: bytes, flags: int = 0, index: int = 0) -> None:
        self.requests.send_multipart([PIPE_HEADER.pack(kind, flags, 0, 0, index, ticket), *frames])

    # ---- the client ----

    def send(self, *these: requests.Request) -> None:
        for request in these:
            self.client.send_multipart(encode_request(request))

    def receive(self) -> list[bytes]:
        self.turn(lambda: self.client.poll(0))
        return self.client.recv_multipart()

    def ask(self, request: requests.Request) -> answers.Answer:
        self.send(request)
        return answers.decode_answer(self.receive())

    def begin(self, request: requests.Request) -> int:
        return answers.decode_apid(self.ask(request))[0]

    def chunk(self, apid: int) -> tuple[int, list[bytes]]:
        head, *frames = self.raw(requests.ClientData(apid))
        assert head[:3] == b"\x31\x01\x50"
        return head[3], frames

    def raw(self, request: requests.Request) -> list[bytes]:
        self.send(request)
        return self.receive()

    def read(self, apid: int) -> list[tuple[bytes, bytes]]:
        """Everything that a job hands out."""
        frames: list[bytes] = []
        flags = 0
        while not flags:
            flags, chunk = self.chunk(apid)
            frames += chunk
        return list(zip(frames[::2], frames[1::2], strict=True))

    def state(self, apid: int) -> dict[str, str]:
        return answers.decode_status(self.ask(requests.JobStatus(apid)))

    def ended(self, apid: int) -> dict[str, str]:
        self.turn(lambda: apid not in self.actor.table.jobs)
        return self.state(apid)

    @property
    def leases(self) -> list[str]:
        return sorted(it.name for it in (self.folder / "jobs").glob("lease.*"))

    def pairs(self, table: int) -> list[tuple[bytes, bytes]]:
        return list(self.tables.scan(table))

    def end(self) -> None:
        self.actor.on_stop()
        self.actor.close_sockets()
        self.context.destroy(linger=0)
        self.tables.close()
        os.close(self.stop_in)
        os.close(self.stop_out)


@pytest.fixture
def rig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[JobServerHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # Reports wake it, too.
    made = JobServerHarness(tmp_path, getattr(request, "param", {}))
    yield made
    made.end()


def test_a_range_is_handed_out_as_it_was_when_asked_for(rig: JobServerHarness) -> None:
    before = rig.pairs(7)
    apid = rig.begin(requests.RangeJob(7))
    rig.write(DeleteRange(7, b"", b""))
    assert rig.read(apid) == before
    assert rig.chunk(apid) == (values.NO_MORE_DATA, [])
    assert rig.chunk(apid + 1000) == (values.NO_MORE_DATA, [])
    found = rig.state(apid)
    assert (found["state"], found["rows"], found["chunks"]) == ("done", str(ROWS), "3")
    assert rig.leases == []


def test_the_end_of_a_range_counts_and_the_start_does(rig: JobServerHarness) -> None:
    apid = rig.begin(requests.RangeJob(7, None, b"00003", b"00006"))
    assert [key for key, _ in rig.read(apid)] == [b"%05d" % i for i in (3, 4, 5, 6)]
    apid = rig.begin(requests.ForwardRange(7, b"00003", b"", 2))
    assert [key for key, _ in rig.read(apid)] == [b"00003", b"00004"]
    assert rig.read(rig.begin(requests.RangeJob(99))) == []


def test_a_job_of_keys_has_empty_values(rig: JobServerHarness) -> None:
    keys = Extension(values.KEYS_ONLY, reqid=REQID)
    apid = rig.begin(requests.RangeJob(7, None, b"00003", b"00005", keys))
    assert rig.read(apid) == [(b"%05d" % i, b"") for i in (3, 4, 5)]


def test_the_answer_has_the_form_that_clients_demand(rig: JobServerHarness) -> None:
    header, apid = rig.raw(requests.RangeJob(7))
    assert (header, len(apid)) == (bytes.fromhex("31014200"), 8)
    header, text = rig.raw(requests.JobStatus(12345))
    assert header[:3] == b"\x31\x01\x48"
    assert header[3] != 0
    assert b"no data job 12345" in text
    header, text = rig.raw(requests.Read(7, [b"key"]))
    assert header == b"\x31\x01\xff"
    assert b"data jobs alone" in text
    rig.client.send_multipart([b""])  # The envelope of a REQ socket, and nothing in it.
    assert rig.receive()[:2] == [b"", b"\x31\x01\xff"]
    rig.client.send_multipart([b"", *encode_request(requests.ServerInfo())])
    assert rig.receive()[1][:3] == b"\x31\x01\x00"


def test_what_came_in_elsewhere_is_answered_there(rig: JobServerHarness) -> None:
    head = PIPE_HEADER.pack(REQUEST, ENVELOPE, 0, 0, 0, 55)
    rig.requests.send_multipart([head, b"route", *encode_request(requests.RangeJob(7))])
    rig.turn(lambda: rig.done.poll(0))
    mark, route, empty, header, apid = rig.done.recv_multipart()
    assert ANSWER_TAG.unpack(mark) == (JOB_SERVER, 0, 0, 0, 55)
    assert (route, empty, header) == (b"route", b"", bytes.fromhex("31014200"))
    assert len(rig.read(int.from_bytes(apid, "little"))) == ROWS


def test_jobs_share_a_lease(rig: JobServerHarness) -> None:
    extension = Extension(values.WITH_LEASE, reqid=REQID)
    apid, lease = answers.decode_apid(rig.ask(requests.RangeJob(7, extension=extension)))
    assert lease is not None
    assert (lease.index, lease.term) == (1, 1)
    assert Path(lease.path).name in rig.leases
    rig.write(DeleteRange(7, b"", b""))
    shared = Extension(values.WITH_LEASE, reqid=REQID, lease=lease.lease)
    second = rig.begin(requests.RangeJob(7, None, b"00010", extension=shared))
    assert len(rig.read(second)) == 15
    assert len(rig.read(apid)) == ROWS
    assert rig.leases == [f"lease.{lease.lease}"]  # Without jobs, but not idle for long yet.
    other = rig.ask(requests.RangeJob(8, extension=shared))
    assert f"lease {lease.lease} does not hold table 8" in other.text
    assert not rig.ask(requests.Lease(lease.lease, requests.LEASE_RENEW)).failed
    assert not rig.ask(requests.Lease(lease.lease, requests.LEASE_RELEASE)).failed
    assert rig.leases == []
    assert rig.ask(requests.Lease(lease.lease, requests.LEASE_RENEW)).failed
    assert "no lease" in rig.ask(requests.RangeJob(7, extension=shared)).text


def test_a_packed_chunk(rig: JobServerHarness) -> None:
    apid = rig.begin(requests.RangeJob(7, 20))
    extension = Extension(values.PACKED, reqid=REQID, bytes_max=40)
    answer = rig.ask(requests.ClientData(apid, extension))
    keys = columns.split(answer.frames[0], answer.frames[1], 1)
    assert answer.reqid == REQID
    assert keys == [b"%05d" % i for i in range(6)]  # The sixth reaches 40 bytes.


def test_what_can_not_be_is_said(rig: JobServerHarness) -> None:
    rig.send(requests.RangeJob(7))
    while not rig.asks.poll(0):
        rig.actor.run_once()
    [head, _, path] = rig.asks.recv_multipart()
    ticket = PIPE_HEADER.unpack(head)[5]
    rig.reply(FAILED, ticket, b"no leader was found")
    header, text = rig.receive()
    assert header == bytes.fromhex("31014210")
    assert b"no leader was found" in text
    Path(os.fsdecode(path)).mkdir()  # It was made all the same, too late.
    rig.reply(CHECKPOINT, ticket, path, LOG_POSITION.pack(1, 1))
    rig.turn(lambda: not rig.leases)


def test_nothing_of_an_earlier_job_server_is_left(rig: JobServerHarness) -> None:
    first = rig.begin(requests.RangeJob(7))
    ended = rig.begin(requests.RangeJob(7))
    rig.read(ended)
    rig.actor.close_sockets()  # Killed: its snapshots and its open job stay where they are.
    rig.client.close()
    rig.requests.close()
    assert len(rig.leases) == 1
    kept = StatisticsFile(Disk(str(rig.folder)), "jobs", 10)
    kept.add([[*kept.loaded[0], "what a later version knows besides"]])
    rig.start("inproc://again")
    assert rig.leases == []
    assert rig.chunk(first) == (values.NO_MORE_DATA, [])
    assert rig.state(ended)["state"] == "done"
    assert rig.begin(requests.RangeJob(7)) > ended


# ---- jobs that write ----

WAT = """(module
  (memory (export "memory") 64)
  (func (export "kelek_alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "kelek_output") (result i32) (i32.const 2097152))
  (func (export "kelek_map") (param $at i32) (param $size i32) (result i32) {body}))"""
# Deletes the first key of each batch.
DELETES = """
  (local $key i32)
  (local.set $key (i32.load (local.get $at)))
  (i32.store8 (i32.const 2097152) (i32.const 1))
  (i32.store offset=1 (i32.const 2097152) (local.get $key))
  (i32.store offset=5 (i32.const 2097152) (i32.const 0))
  (memory.copy (i32.const 2097161) (i32.add (local.get $at) (i32.const 8)) (local.get $key))
  (i32.add (i32.const 9) (local.get $key))"""

# Puts the value of the first pair of each batch under the key "k".
PUTS = """
  (local $key i32)
  (local $value i32)
  (local.set $key (i32.load (local.get $at)))
  (local.set $value (i32.load offset=4 (local.get $at)))
  (i32.store8 (i32.const 2097152) (i32.const 0))
  (i32.store offset=1 (i32.const 2097152) (i32.const 1))
  (i32.store offset=5 (i32.const 2097152) (local.get $value))
  (i32.store8 (i32.const 2097161) (i32.const 107))
  (memory.copy
    (i32.const 2097162)
    (i32.add (i32.add (local.get $at) (i32.const 8)) (local.get $key))
    (local.get $value))
  (i32.add (i32.const 10) (local.get $value))"""


# A fifth of a second for each batch.
SLOW = """
  (local $count i32)
  (loop $again
    (local.set $count (i32.add (local.get $count) (i32.const 1)))
    (br_if $again (i32.lt_u (local.get $count) (i32.const 100000000))))
  (i32.const 0)"""


def mapper(body: str) -> bytes:
    wasmtime = pytest.importorskip("wasmtime")
    return bytes(wasmtime.wat2wasm(WAT.format(body=body)))


def test_a_copy(rig: JobServerHarness) -> None:
    many = 2 * BATCH_PAIRS + 3
    rig.write(Put(9, [b"%06d" % i for i in range(many)], [b"x"] * many))
    apid = rig.begin(requests.CopyTable(9, 10, b"000001"))
    found = rig.ended(apid)
    assert (found["state"], found["puts"], found["chunks"]) == ("done", str(many - 1), "3")
    assert rig.pairs(10) == rig.pairs(9)[1:]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_mapper_writes_into_its_own_input(rig: JobServerHarness, threads: int) -> None:
    many = 5 * BATCH_PAIRS
    rig.write(Put(9, [b"%06d" % i for i in range(many)], [b"x"] * many))
    apid = rig.begin(requests.MapTable(9, 9, threads, [(b"name", b"value")], mapper(DELETES)))
    found = rig.ended(apid)
    assert (found["state"], found["rows"], found["deletes"]) == ("done", str(many), "5")
    gone = {b"%06d" % i for i in range(0, many, BATCH_PAIRS)}
    assert gone.isdisjoint(key for key, _ in rig.pairs(9))
    assert len(rig.pairs(9)) == many - 5
    assert rig.leases == []


def test_a_job_whose_output_gets_no_number_ends_alone(rig: JobServerHarness) -> None:
    """The file that numbers are reserved in can't be written: the disk is full."""

    def full() -> int:
        raise StorageFull("jobs/apids")

    maps = rig.actor.maps
    maps._door = maps._door._replace(next_ticket=full)
    found = rig.ended(rig.begin(requests.MapTable(7, 8, 1, [], mapper(PUTS))))
    assert found["state"] == "failed"
    assert "jobs/apids" in found["reason"]


def test_a_mapper_that_fails_ends_its_job_alone(rig: JobServerHarness) -> None:
    other = rig.begin(requests.RangeJob(7))
    apid = rig.begin(requests.MapTable(7, 8, 1, [], mapper("unreachable")))
    found = rig.ended(apid)
    assert found["state"] == "failed"
    assert "unreachable" in found["reason"]
    assert len(rig.read(other)) == ROWS
    assert rig.actor.status()["mappers"] == 0


@pytest.mark.parametrize(
    ("rig", "payload", "reason"),
    [
        ({"mapper": "off"}, b"\0asm", "mapper: wasm"),
        ({}, b"BC\xc0\xde", "allow_native: true"),
        ({}, b"#!/bin/sh", "neither WebAssembly"),
        ({}, b"\0asm junk", "no WebAssembly module"),
    ],
    indirect=["rig"],
)
def test_a_mapper_that_can_not_begin_is_refused(
    rig: JobServerHarness, payload: bytes, reason: str
) -> None:
    header, apid, text = rig.raw(requests.MapTable(7, 8, 1, [], payload))
    assert (header, apid) == (bytes.fromhex("31014101"), bytes(8))
    assert reason in text.decode()
    assert rig.leases == []


def test_output_is_written_again_when_there_was_no_leader(rig: JobServerHarness) -> None:
    """The entries keep their order, whichever of them was refused: the last one has its way."""
    many = 3 * BATCH_PAIRS
    rig.write(Put(9, [b"%06d" % i for i in range(many)], [b"%d" % i for i in range(many)]))
    refused: list[bytes] = []
    serve = rig.on_ask

    def on_ask(message: list[bytes]) -> None:
        kind, *_, ticket = PIPE_HEADER.unpack(message[0])
        if kind == JOB_WRITE and len(refused) < 2:
            refused.append(message[2])
            rig.reply(FAILED, ticket, b"no leader", flags=RETRYABLE)
        else:
            serve(message)

    rig.on_ask = on_ask  # type: ignore[method-assign]
    found = rig.ended(rig.begin(requests.MapTable(9, 10, 1, [], mapper(PUTS))))
    assert len(refused) == 2
    assert found["state"] == "done"
    assert rig.pairs(10) == [(b"k", rig.pairs(9)[2 * BATCH_PAIRS][1])]


def test_jobs_are_listed_the_newest_first(rig: JobServerHarness) -> None:
    jobs = [rig.begin(requests.RangeJob(7)) for _ in range(3)]
    copy = rig.begin(requests.CopyTable(7, 10))
    assert rig.ended(copy)["target"] == "10"
    rig.read(jobs[1])

    def listed(*asked: Any) -> list[tuple[int, str]]:
        found = answers.decode_jobs(rig.ask(requests.ListJobs(*asked)))
        return [(int(one["apid"]), one["state"]) for one in found]

    first, _, third = ((apid, "running") for apid in jobs)
    assert listed() == [(copy, "done"), third, (jobs[1], "done"), first]
    assert listed(True) == [third, first]
    assert listed(False, 2) == [(copy, "done"), third]
    assert answers.decode_jobs(rig.ask(requests.ListJobs()))[0] == rig.state(copy)


def test_a_job_is_ended(rig: JobServerHarness) -> None:
    apid = rig.begin(requests.RangeJob(7))
    rig.chunk(apid)
    assert rig.ask(requests.EndJob(apid)) == answers.Answer(values.END_JOB, 0, b"", False, [])
    assert rig.state(apid)["state"] == "cancelled"
    assert rig.leases == []
    refused = rig.ask(requests.ClientData(apid, Extension(reqid=REQID)))
    assert (refused.request_type, refused.reqid) == (values.PROTOCOL_ERROR, REQID)
    assert refused.text == f"data job {apid} was cancelled by a request"
    again = rig.ask(requests.EndJob(apid))
    assert (again.code, again.text) == (1, f"data job {apid} has ended already: it is cancelled")
    assert "there is no data job 99" in rig.ask(requests.EndJob(99)).text


def test_a_job_whose_mapper_hangs_fails_within_a_second(rig: JobServerHarness) -> None:
    many = 9 * BATCH_PAIRS
    rig.write(Put(9, [b"%06d" % i for i in range(many)], [b"x"] * many))
    apid = rig.begin(requests.MapTable(9, 10, 2, [], mapper(SLOW)))
    pids = children_of(os.getpid())
    assert len(pids) == rig.actor.status()["mappers"] == 2
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    while rig.actor.status()["mappers"]:
        due_ms = rig.actor.deadline_ms()
        assert due_ms is not None
        assert due_ms <= monotonic_ms() + 1000
        rig.actor.on_wake(due_ms)
    found = rig.state(apid)
    assert found["state"] == "failed"
    assert "longer than" in found["reason"]
    assert rig.actor.status()["mappers"] == 0
    assert not children_of(os.getpid())


def test_a_mapper_is_ended_while_it_writes(rig: JobServerHarness) -> None:
    """What was asked for and comes to be written later is nobody's any more."""
    many = 3 * BATCH_PAIRS
    rig.write(Put(9, [b"%06d" % i for i in range(many)], [b"x"] * many))
    held: list[list[bytes]] = []
    serve = rig.on_ask

    def on_ask(message: list[bytes]) -> None:
        is_write = PIPE_HEADER.unpack(message[0])[0] == JOB_WRITE
        (held.append if is_write else serve)(message)

    rig.on_ask = on_ask  # type: ignore[method-assign]
    apid = rig.begin(requests.MapTable(9, 10, 1, [], mapper(PUTS)))
    rig.turn(lambda: held)
    assert not rig.ask(requests.EndJob(apid)).failed
    assert rig.actor.status()["mappers"] == 0
    assert rig.leases == []
    for message in held:
        serve(message)
    found = rig.state(apid)
    assert (found["state"], found["puts"]) == ("cancelled", "0")


def test_an_engine_that_takes_no_writes_fails_the_job(rig: JobServerHarness) -> None:
    serve = rig.on_ask

    def on_ask(message: list[bytes]) -> None:
        kind, *_, ticket = PIPE_HEADER.unpack(message[0])
        if kind == JOB_WRITE:
            rig.reply(FAILED, ticket, b"no space is left on the disk")
        else:
            serve(message)

    rig.on_ask = on_ask  # type: ignore[method-assign]
    found = rig.ended(rig.begin(requests.CopyTable(7, 10)))
    assert (found["state"], found["reason"]) == ("failed", "no space is left on the disk")
