"""The actor job_server: data jobs over its sockets, on snapshots of a real engine."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kelek.actors.runtime import actor
from kelek.bench.kelek_cluster import children_of
from kelek.mapping.mapper_process import BATCH_PAIRS
from kelek.net.clock import monotonic_ms
from kelek.protocols.zerodb.wire import answers, columns, requests, values
from kelek.protocols.zerodb.wire import worker_pipe as pipe
from kelek.protocols.zerodb.wire.ops import DeleteRange
from kelek.protocols.zerodb.wire.requests import encode_request
from kelek.protocols.zerodb.wire.values import Extension
from kelek.storage.disk import files
from kelek.storage.disk.disk import Disk
from kelek.storage.disk.files import Files
from kelek.storage.errors import StorageFull
from kelek.storage.worker import job_store
from kelek.storage.worker.job_store import StatisticsFile
from kelek.tests.actors.jobs.job_server_harness import (
    DELETES,
    PUTS,
    REQID,
    ROWS,
    SLOW,
    JobServerHarness,
    mapper,
)


@pytest.fixture
def harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[JobServerHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # A report would wake the actor.
    harness = JobServerHarness(tmp_path, getattr(request, "param", {}))
    yield harness
    harness.close()


def test_a_range_job_returns_the_pairs_at_its_start(harness: JobServerHarness) -> None:
    before = harness.pairs(7)
    apid = harness.start_job(requests.RangeJob(7))
    harness.write(DeleteRange(7, b"", b""))
    assert harness.read(apid) == before
    assert harness.chunk(apid) == (values.NO_MORE_DATA, [])
    assert harness.chunk(apid + 1000) == (values.NO_MORE_DATA, [])
    state = harness.state(apid)
    assert (state["state"], state["rows"], state["chunks"]) == ("done", str(ROWS), "3")
    assert harness.leases == []


def test_a_range_includes_its_start_and_its_end(harness: JobServerHarness) -> None:
    apid = harness.start_job(requests.RangeJob(7, None, b"00003", b"00006"))
    assert [key for key, _ in harness.read(apid)] == [b"%05d" % i for i in (3, 4, 5, 6)]
    apid = harness.start_job(requests.ForwardRange(7, b"00003", b"", 2))
    assert [key for key, _ in harness.read(apid)] == [b"00003", b"00004"]
    assert harness.read(harness.start_job(requests.RangeJob(99))) == []


def test_a_job_for_keys_returns_empty_values(harness: JobServerHarness) -> None:
    keys = Extension(values.KEYS_ONLY, reqid=REQID)
    apid = harness.start_job(requests.RangeJob(7, None, b"00003", b"00005", keys))
    assert harness.read(apid) == [(b"%05d" % i, b"") for i in (3, 4, 5)]


def test_answers_have_the_layout_of_the_specification(harness: JobServerHarness) -> None:
    header, apid = harness.ask_raw(requests.RangeJob(7))
    assert (header, len(apid)) == (bytes.fromhex("31014200"), 8)
    header, text = harness.ask_raw(requests.JobStatus(12345))
    assert header[:3] == b"\x31\x01\x48"
    assert header[3] != 0
    assert b"no data job 12345" in text
    header, text = harness.ask_raw(requests.Read(7, [b"key"]))
    assert header == b"\x31\x01\xff"
    assert b"data jobs alone" in text
    harness.client.send_multipart([b""])  # Only the empty frame of a REQ socket.
    assert harness.receive()[:2] == [b"", b"\x31\x01\xff"]
    harness.client.send_multipart([b"", *encode_request(requests.ServerInfo())])
    assert harness.receive()[1][:3] == b"\x31\x01\x00"


def test_a_request_from_zerodb_server_is_answered_through_it(harness: JobServerHarness) -> None:
    head = pipe.PIPE_HEADER.pack(pipe.REQUEST, pipe.ENVELOPE, 0, 0, 0, 55)
    harness.requests.send_multipart([head, b"route", *encode_request(requests.RangeJob(7))])
    harness.run_until(lambda: harness.done.poll(0))
    tag, route, empty, header, apid = harness.done.recv_multipart()
    assert pipe.ANSWER_TAG.unpack(tag) == (pipe.JOB_SERVER, 0, 0, 0, 55)
    assert (route, empty, header) == (b"route", b"", bytes.fromhex("31014200"))
    assert len(harness.read(int.from_bytes(apid, "little"))) == ROWS


def test_jobs_share_a_lease(harness: JobServerHarness) -> None:
    extension = Extension(values.WITH_LEASE, reqid=REQID)
    apid, lease = answers.JOB.decode(harness.ask(requests.RangeJob(7, extension=extension)))
    assert lease is not None
    assert (lease.index, lease.term) == (1, 1)
    assert Path(lease.path).name in harness.leases
    harness.write(DeleteRange(7, b"", b""))
    shared = Extension(values.WITH_LEASE, reqid=REQID, lease=lease.lease)
    second = harness.start_job(requests.RangeJob(7, None, b"00010", extension=shared))
    assert len(harness.read(second)) == 15
    assert len(harness.read(apid)) == ROWS
    assert harness.leases == [f"lease.{lease.lease}"]  # It has no jobs and is not idle for long.
    other = harness.ask(requests.RangeJob(8, extension=shared))
    assert f"lease {lease.lease} does not hold table 8" in other.text
    assert not harness.ask(requests.Lease(lease.lease, requests.LEASE_RENEW)).failed
    assert not harness.ask(requests.Lease(lease.lease, requests.LEASE_RELEASE)).failed
    assert harness.leases == []
    assert harness.ask(requests.Lease(lease.lease, requests.LEASE_RENEW)).failed
    assert "no lease" in harness.ask(requests.RangeJob(7, extension=shared)).text


def test_a_packed_chunk_ends_at_its_byte_limit(harness: JobServerHarness) -> None:
    apid = harness.start_job(requests.RangeJob(7, 20))
    extension = Extension(values.PACKED, reqid=REQID, bytes_max=40)
    answer = harness.ask(requests.ClientData(apid, extension))
    keys = columns.split(answer.frames[0], answer.frames[1])
    assert answer.reqid == REQID
    assert keys == [b"%05d" % i for i in range(6)]  # The sixth reaches 40 bytes.


def test_a_snapshot_that_fails_refuses_the_job(harness: JobServerHarness) -> None:
    harness.send(requests.RangeJob(7))
    while not harness.asks.poll(0):
        harness.actor.run_once()
    [head, _, path] = harness.asks.recv_multipart()
    ticket = pipe.PIPE_HEADER.unpack(head)[5]
    harness.reply(pipe.FAILED, ticket, b"no leader was found")
    header, text = harness.receive()
    assert header == bytes.fromhex("31014210")
    assert b"no leader was found" in text
    Path(os.fsdecode(path)).mkdir()  # The worker makes the snapshot too late.
    harness.reply(pipe.CHECKPOINT, ticket, path, pipe.LOG_POSITION.pack(1, 1))
    harness.run_until(lambda: not harness.leases)


def test_a_restart_removes_snapshots_and_keeps_statistics(harness: JobServerHarness) -> None:
    first = harness.start_job(requests.RangeJob(7))
    ended = harness.start_job(requests.RangeJob(7))
    harness.read(ended)
    harness.kill()
    assert len(harness.leases) == 1
    stored = StatisticsFile(Disk(str(harness.folder)), "jobs", 10)
    stored.add([[*stored.loaded[0], "a field of a later version"]])
    harness.start("inproc://jobs2")
    assert harness.leases == []
    assert harness.chunk(first) == (values.NO_MORE_DATA, [])
    assert harness.state(ended)["state"] == "done"
    assert harness.start_job(requests.RangeJob(7)) > ended


# ---- jobs that write ----


def test_a_copy_writes_all_pairs_of_its_range(harness: JobServerHarness) -> None:
    many = 2 * BATCH_PAIRS + 3
    harness.fill(many)
    apid = harness.start_job(requests.CopyTable(9, 10, b"000001"))
    found = harness.wait_job(apid)
    assert (found["state"], found["puts"], found["chunks"]) == ("done", str(many - 1), "3")
    assert harness.pairs(10) == harness.pairs(9)[1:]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_mapper_may_write_to_its_input_table(harness: JobServerHarness, threads: int) -> None:
    many = 5 * BATCH_PAIRS
    harness.fill(many)
    apid = harness.start_job(
        requests.MapTable(9, 9, threads, [(b"name", b"value")], mapper(DELETES))
    )
    found = harness.wait_job(apid)
    assert (found["state"], found["rows"], found["deletes"]) == ("done", str(many), "5")
    gone = {b"%06d" % i for i in range(0, many, BATCH_PAIRS)}
    assert gone.isdisjoint(key for key, _ in harness.pairs(9))
    assert len(harness.pairs(9)) == many - 5
    assert harness.leases == []


def test_a_full_disk_fails_the_job_whose_output_needs_a_number(
    harness: JobServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tickets of writes are numbers of the APID counter, whose file cannot be written."""

    def replace_or_fail(disk: Files, path: str, data: bytes) -> None:
        if harness.actor.table.jobs:
            raise StorageFull("jobs/apids")
        files.replace(disk, path, data)

    monkeypatch.setattr(job_store, "RESERVED", 1)  # Each number needs a write.
    monkeypatch.setattr(job_store, "replace", replace_or_fail)
    found = harness.wait_job(harness.start_job(requests.MapTable(7, 8, 1, [], mapper(PUTS))))
    assert found["state"] == "failed"
    assert "jobs/apids" in found["reason"]


def test_a_failed_mapper_fails_its_job_only(harness: JobServerHarness) -> None:
    other = harness.start_job(requests.RangeJob(7))
    apid = harness.start_job(requests.MapTable(7, 8, 1, [], mapper("unreachable")))
    found = harness.wait_job(apid)
    assert found["state"] == "failed"
    assert "unreachable" in found["reason"]
    assert len(harness.read(other)) == ROWS
    assert harness.actor.status()["mappers"] == 0


@pytest.mark.parametrize(
    ("harness", "payload", "reason"),
    [
        ({"mapper": "off"}, b"\0asm", "mapper: wasm"),
        ({}, b"BC\xc0\xde", "allow_native: true"),
        ({}, b"#!/bin/sh", "neither WebAssembly"),
        ({}, b"\0asm junk", "no WebAssembly module"),
    ],
    indirect=["harness"],
)
def test_a_mapper_that_cannot_start_is_refused(
    harness: JobServerHarness, payload: bytes, reason: str
) -> None:
    header, apid, text = harness.ask_raw(requests.MapTable(7, 8, 1, [], payload))
    assert (header, apid) == (bytes.fromhex("31014101"), bytes(8))
    assert reason in text.decode()
    assert harness.leases == []


def test_refused_output_is_written_again_in_order(harness: JobServerHarness) -> None:
    """The entries keep their order: the value of the last batch remains."""
    harness.fill(3 * BATCH_PAIRS)
    refused: list[bytes] = []

    def refuse(message: list[bytes], ticket: int) -> bool:
        if len(refused) == 2:
            return False
        refused.append(message[2])
        harness.reply(pipe.FAILED, ticket, b"no leader", flags=pipe.RETRYABLE)
        return True

    harness.take_write = refuse
    found = harness.wait_job(harness.start_job(requests.MapTable(9, 10, 1, [], mapper(PUTS))))
    assert len(refused) == 2
    assert found["state"] == "done"
    assert harness.pairs(10) == [(b"k", harness.pairs(9)[2 * BATCH_PAIRS][1])]


def test_jobs_are_listed_newest_first(harness: JobServerHarness) -> None:
    jobs = [harness.start_job(requests.RangeJob(7)) for _ in range(3)]
    copy = harness.start_job(requests.CopyTable(7, 10))
    assert harness.wait_job(copy)["target"] == "10"
    harness.read(jobs[1])

    def listed(*arguments: Any) -> list[tuple[int, str]]:
        found = answers.JOBS.decode(harness.ask(requests.ListJobs(*arguments)))
        return [(int(one["apid"]), one["state"]) for one in found.values()]

    first, _, third = ((apid, "running") for apid in jobs)
    assert listed() == [(copy, "done"), third, (jobs[1], "done"), first]
    assert listed(True) == [third, first]
    assert listed(False, 2) == [(copy, "done"), third]
    found = answers.JOBS.decode(harness.ask(requests.ListJobs()))
    assert found[copy] == harness.state(copy)


def test_a_request_cancels_a_job(harness: JobServerHarness) -> None:
    apid = harness.start_job(requests.RangeJob(7))
    harness.chunk(apid)
    assert harness.ask(requests.EndJob(apid)) == answers.Answer(values.END_JOB, 0, b"", False, [])
    assert harness.state(apid)["state"] == "cancelled"
    assert harness.leases == []
    refused = harness.ask(requests.ClientData(apid, Extension(reqid=REQID)))
    assert (refused.request_type, refused.reqid) == (values.PROTOCOL_ERROR, REQID)
    assert refused.text == f"data job {apid} was cancelled by a request"
    repeated = harness.ask(requests.EndJob(apid))
    assert (repeated.code, repeated.text) == (
        1,
        f"data job {apid} has ended already: it is cancelled",
    )
    assert "there is no data job 99" in harness.ask(requests.EndJob(99)).text


def test_a_hanging_mapper_fails_its_job_within_a_second(harness: JobServerHarness) -> None:
    harness.fill(9 * BATCH_PAIRS)
    others = {*children_of(os.getpid())}  # Of other tests.
    apid = harness.start_job(requests.MapTable(9, 10, 2, [], mapper(SLOW)))
    pids = {*children_of(os.getpid())} - others
    assert len(pids) == harness.actor.status()["mappers"] == 2
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    while harness.actor.status()["mappers"]:
        due_ms = harness.actor.deadline_ms()
        assert due_ms is not None
        assert due_ms <= monotonic_ms() + 1000
        harness.actor.on_wake(due_ms)
    found = harness.state(apid)
    assert found["state"] == "failed"
    assert "longer than" in found["reason"]
    assert harness.actor.status()["mappers"] == 0
    assert not pids & {*children_of(os.getpid())}


def test_a_job_can_be_cancelled_during_its_writes(harness: JobServerHarness) -> None:
    """Later answers to its writes are ignored."""
    harness.fill(3 * BATCH_PAIRS)
    held: list[list[bytes]] = []
    holds = True

    def hold(message: list[bytes], ticket: int) -> bool:
        held.extend([message] * holds)
        return holds

    harness.take_write = hold
    apid = harness.start_job(requests.MapTable(9, 10, 1, [], mapper(PUTS)))
    harness.run_until(lambda: held)
    assert not harness.ask(requests.EndJob(apid)).failed
    assert harness.actor.status()["mappers"] == 0
    assert harness.leases == []
    holds = False
    for message in held:
        harness.on_ask(message)
    found = harness.state(apid)
    assert (found["state"], found["puts"]) == ("cancelled", "0")


def test_a_failed_write_fails_the_job(harness: JobServerHarness) -> None:
    def fail(message: list[bytes], ticket: int) -> bool:
        harness.reply(pipe.FAILED, ticket, b"no space is left on the disk")
        return True

    harness.take_write = fail
    found = harness.wait_job(harness.start_job(requests.CopyTable(7, 10)))
    assert (found["state"], found["reason"]) == ("failed", "no space is left on the disk")
