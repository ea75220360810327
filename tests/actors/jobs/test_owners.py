"""Jobs and leases belong to the key that made them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from kelek.actors.runtime import actor
from kelek.actors.topology.security import NodeSecurity
from kelek.actors.topology.settings import LimitSettings
from kelek.protocols.access.grants import parse_grants
from kelek.protocols.access.zap import AllowedKey
from kelek.protocols.zerodb.server.clients import encode_client
from kelek.protocols.zerodb.wire import answers, requests, values
from kelek.protocols.zerodb.wire import worker_pipe as pipe
from kelek.protocols.zerodb.wire.ops import LeaseEnd, unpack
from kelek.protocols.zerodb.wire.requests import encode_request
from kelek.protocols.zerodb.wire.values import Extension
from kelek.tests.actors.jobs.job_server_harness import REQID, JobServerHarness

ALL_READ = "jobs tables:*:r"
GRANTS = {
    "ann": ALL_READ,
    "bob": ALL_READ,
    "olga": "observer jobs",
    "eve": f"{ALL_READ} admin",
}
LEASED = Extension(flags=values.WITH_LEASE, reqid=REQID)
SHARED = values.shared_lease(5)


class KeyedJobServer(JobServerHarness):
    """A job_server whose requests come by zerodb_server, with the keys of their clients."""

    def by(self, name: str, request: requests.Request, ticket: int = 1) -> list[bytes]:
        """The answer to a request of a key."""
        self.relay(name, request, ticket)
        self.run_until(lambda: self.done.poll(0))
        tag, routing_id, *answer = self.done.recv_multipart()
        assert (pipe.ANSWER_TAG.unpack(tag)[4], routing_id) == (ticket, b"client")
        return answer

    def relay(self, name: str, request: requests.Request, ticket: int = 1) -> None:
        client = encode_client(AllowedKey(name, parse_grants(GRANTS[name])))
        frames = [b"client", *encode_request(request), client]
        self.reply(pipe.REQUEST, ticket, *frames, flags=pipe.KEYED)

    def code(self, name: str, request: requests.Request) -> int:
        return answers.decode_answer(self.by(name, request)).code

    def change(self, name: str, grants: str) -> None:
        key = AllowedKey(name, parse_grants(grants))
        self.reply(pipe.KEY_CHANGED, 0, encode_client(key))

    def begin(
        self, name: str, request: requests.Request
    ) -> tuple[int, answers.SnapshotLease | None]:
        return answers.JOB.decode(answers.decode_answer(self.by(name, request)))


class ReportingJobServer(KeyedJobServer):
    """`security: {mode: allow}`."""

    sections = {
        "security": NodeSecurity(
            allow="", enforce=False, key_file="", node_keys={}, server_keys={}, insecure=(),
            foreign_grants="",
        )
    }  # fmt: skip


@pytest.fixture(params=[KeyedJobServer])
def harness(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KeyedJobServer]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # A report would wake the actor.
    harness = request.param(tmp_path, {})
    yield harness
    harness.close()


def test_a_job_belongs_to_its_key(harness: KeyedJobServer) -> None:
    apid, _ = harness.begin("ann", requests.RangeJob(7))
    status, end = requests.JobStatus(apid), requests.EndJob(apid)
    assert harness.code("bob", status) == values.NOT_ALLOWED
    assert harness.code("bob", end) == values.NOT_ALLOWED
    assert harness.code("olga", end) == values.NOT_ALLOWED
    (head, text) = harness.by("bob", requests.ClientData(apid))
    assert (head, text) == (b"\x31\x01\xff", b"data job %d is of another key\0" % apid)
    assert [harness.code(name, status) for name in ("ann", "olga", "eve")] == [0, 0, 0]
    assert harness.by("ann", requests.ClientData(apid))[0] == b"\x31\x01\x50\0"
    assert harness.by("eve", requests.ClientData(apid))[0] == b"\x31\x01\x50\0"
    assert harness.code("eve", end) == 0
    assert harness.code("bob", status) == values.NOT_ALLOWED  # Ended jobs, too.
    assert harness.state(apid)["owner"] == "ann"  # A client without a key sees all.


def test_a_list_has_the_jobs_of_the_key(harness: KeyedJobServer) -> None:
    by_ann, _ = harness.begin("ann", requests.RangeJob(7))
    by_bob, _ = harness.begin("bob", requests.RangeJob(7))
    by_none = harness.start_job(requests.RangeJob(7))

    def listed(name: str) -> list[int]:
        answer = answers.decode_answer(harness.by(name, requests.ListJobs(False, 9)))
        return [*answers.JOBS.decode(answer)]

    assert listed("ann") == [by_ann]
    assert listed("bob") == [by_bob]
    assert listed("olga") == listed("eve") == [by_none, by_bob, by_ann]


def test_a_lease_belongs_to_its_key(harness: KeyedJobServer) -> None:
    _, lease = harness.begin("ann", requests.RangeJob(7, extension=LEASED))
    assert lease is not None
    number = lease.lease
    use = requests.RangeJob(7, extension=LEASED._replace(lease=number))
    renew = requests.Lease(number, requests.LEASE_RENEW)
    release = requests.Lease(number, requests.LEASE_RELEASE)
    for request in (use, renew, release):
        assert harness.code("bob", request) == values.NOT_ALLOWED
    assert [harness.code("ann", request) for request in (use, renew)] == [0, 0]
    assert harness.code("eve", release) == 0


def test_a_lease_of_all_nodes_is_released_by_its_owner(harness: KeyedJobServer) -> None:
    release = requests.Lease(SHARED, requests.LEASE_RELEASE)
    answer = answers.decode_answer(
        harness.by("ann", release._replace(extension=Extension(reqid=REQID)))
    )
    assert (answer.failed, answer.retry) == (True, True)
    assert answer.text == f"the owner of lease {SHARED} is not known here"
    harness.reply(pipe.OWNERS, 0, msgpack.packb({SHARED: "ann"}))
    assert harness.code("bob", release) == values.NOT_ALLOWED
    harness.relay("ann", release)
    entry: list[bytes] = []
    harness.on_ask = lambda message: entry.extend(message)  # type: ignore[method-assign]
    harness.run_until(lambda: entry)
    assert unpack(entry[2]) == [LeaseEnd(0, SHARED)]


@pytest.mark.parametrize("harness", [ReportingJobServer], indirect=True)
def test_jobs_of_other_keys_may_be_used_while_this_is_only_reported(
    harness: KeyedJobServer,
) -> None:
    apid, _ = harness.begin("ann", requests.RangeJob(7))
    assert harness.code("bob", requests.EndJob(apid)) == 0
    harness.relay("bob", requests.Lease(SHARED, requests.LEASE_RELEASE))
    entry: list[bytes] = []
    harness.on_ask = lambda message: entry.extend(message)  # type: ignore[method-assign]
    harness.run_until(lambda: entry)
    assert unpack(entry[2]) == [LeaseEnd(0, SHARED)]


def test_a_revoked_key_loses_its_jobs_and_leases(harness: KeyedJobServer) -> None:
    first, lease = harness.begin("ann", requests.RangeJob(7, extension=LEASED))
    other, _ = harness.begin("bob", requests.RangeJob(7))
    assert lease is not None
    assert len(harness.leases) == 2
    harness.change("ann", "")
    harness.run_until(lambda: first not in harness.actor.table.jobs)
    harness.run_until(lambda: len(harness.leases) == 1)
    assert [*harness.actor.table.jobs] == [other]
    assert harness.state(first)["state"] == "cancelled"


def test_a_job_ends_when_its_table_is_no_longer_granted(harness: KeyedJobServer) -> None:
    first, _ = harness.begin("ann", requests.RangeJob(7))
    second, _ = harness.begin("ann", requests.RangeJob(9))
    harness.change("ann", "jobs tables:9:r")
    harness.run_until(lambda: first not in harness.actor.table.jobs)
    assert [*harness.actor.table.jobs] == [second]


def test_jobs_and_snapshots_of_a_key_are_limited(tmp_path: Path) -> None:
    """Connections without keys count alone."""

    class Limited(KeyedJobServer):
        sections = {"limits": LimitSettings(client_jobs_max=3, client_leases_max=2)}

    with contextlib.closing(Limited(tmp_path, {})) as harness:
        _, lease = harness.begin("ann", requests.RangeJob(7, extension=LEASED))
        assert lease is not None
        harness.begin("ann", requests.RangeJob(7))
        third = answers.decode_answer(harness.by("ann", requests.RangeJob(7)))
        assert third.text == "this client has 2 snapshots already; release one"
        use = requests.RangeJob(7, extension=LEASED._replace(lease=lease.lease))
        harness.begin("ann", use)
        fourth = answers.decode_answer(harness.by("ann", use))
        text = "this client has 3 data jobs already; wait until one has ended"
        assert (fourth.failed, fourth.text) == (True, text)
        shared = requests.Lease(0, requests.LEASE_OPEN, 7, Extension(reqid=REQID))
        assert "2 snapshots" in answers.decode_answer(harness.by("ann", shared)).text
        for _ in range(2):
            harness.begin("bob", requests.RangeJob(7))
            harness.start_job(requests.RangeJob(7))
        assert "2 snapshots" in harness.ask(requests.RangeJob(7)).text
        assert harness.actor.counters["client_limit_refused"] == 4
        harness.reply(pipe.OWNERS, 0, msgpack.packb({SHARED: "eve", SHARED + 1: "eve"}))
        assert "2 snapshots" in answers.decode_answer(harness.by("eve", shared)).text
        assert harness.code("ann", requests.Lease(lease.lease, requests.LEASE_RELEASE)) == 0
        for apid in [*harness.actor.table.jobs]:
            if harness.actor.table.jobs[apid].owner == "ann":
                assert harness.code("ann", requests.EndJob(apid)) == 0
        harness.begin("ann", requests.RangeJob(7))


def test_a_waiting_request_of_a_revoked_key_is_refused(harness: KeyedJobServer) -> None:
    asked: list[bytes] = []
    harness.on_ask = lambda message: asked.extend(message)  # type: ignore[method-assign]
    harness.relay("ann", requests.RangeJob(7))
    harness.run_until(lambda: asked)
    harness.change("ann", "")
    harness.run_until(lambda: harness.done.poll(0))
    assert answers.decode_answer(harness.done.recv_multipart()[2:]).code == values.NOT_ALLOWED
    assert not harness.actor.table.jobs
