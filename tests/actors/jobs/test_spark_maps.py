"""Maps that job_server passes to spark_job: which ones, their progress, and their output.

The test acts as spark_job and Spark: it maps the snapshot and fills the fresh table.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.actors.jobs import spark_maps
from kelek.actors.runtime import actor
from kelek.actors.topology.settings import SparkSettings
from kelek.mapping.mapper import WasmEngine
from kelek.mapping.mapper_process import BATCH_PAIRS
from kelek.native.tables.mapper import pack_records
from kelek.protocols.zerodb.server import map_orders
from kelek.protocols.zerodb.wire import requests, values
from kelek.protocols.zerodb.wire.ops import Put
from kelek.protocols.zerodb.wire.values import Extension
from kelek.protocols.zerodb.wire.worker_pipe import CHECKPOINT, FAILED, PIPE_HEADER, RETRYABLE
from kelek.tests.actors.jobs.job_server_harness import (
    DELETES,
    PUTS,
    REQID,
    SLOW,
    JobServerHarness,
    mapper,
)

THRESHOLD = 20_000
SMALL, LARGE, LOCAL, OUTPUT, FRESH = 7, 9, 20, 21, 3_221_225_500
ROWS = 3 * BATCH_PAIRS + 5
BEFORE = [(b"old/%d" % i, b"value") for i in range(3)]


class SparkMapsHarness(JobServerHarness):
    """A job_server whose large maps the test runs."""

    def __init__(self, folder: Path) -> None:
        spark = SparkSettings(threshold_bytes=THRESHOLD, master="local[2]")
        super().__init__(folder, {"spark": spark})
        self.orders = self.bind("spark_job.orders")
        self.reports = self.connect("job_server.spark")
        keys = [b"%06d" % i for i in range(ROWS)]
        self.write(Put(LARGE, keys, [b"value of %d" % i for i in range(ROWS)]))
        self.write(Put(OUTPUT, *map(list, zip(*BEFORE, strict=True))))

    def report(self, kind: int, apid: int, body: map_orders.AnyBody) -> None:
        self.reports.send(map_orders.encode(kind, apid, body))

    def ready(self, epoch: int = 1) -> None:
        self.report(map_orders.READY, 0, map_orders.DriverReady(epoch))

    def order(self) -> map_orders.Message:
        self.run_until(lambda: self.orders.poll(0))
        return map_orders.decode(self.orders.recv())

    def map(self, order: map_orders.MapOrder) -> list[bytes]:
        """The mapper's outputs for the job's snapshot, read as one part."""
        extension = Extension(values.WITH_LEASE, reqid=REQID, lease=order.lease)
        apid = self.start_job(requests.RangeJob(order.source, BATCH_PAIRS, extension=extension))
        loaded = WasmEngine().load(order.module)
        loaded.start(order.parameters)
        outputs = []
        flags = 0
        while not flags:
            flags, frames = self.chunk(apid)
            outputs += [loaded.map(pack_records(frames))] if frames else []
        return [*outputs, loaded.end()]

    def stage(self, attempt: int, outputs: list[bytes]) -> None:
        """Writes the outputs of a task attempt to the fresh table."""
        for position, output in enumerate(outputs):
            if output:
                self.write(Put(FRESH, [map_orders.stage_key(attempt, position)], [output]))

    def mapped(self, apid: int, attempts: list[int], staged: int = 0) -> None:
        progress = map_orders.MapProgress(len(attempts), len(attempts), ROWS, 123, 4, staged)
        self.report(map_orders.MAPPED, apid, map_orders.Mapped(FRESH, attempts, list(progress)))


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkMapsHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 20)  # Each report wakes the actor.
    harness = SparkMapsHarness(tmp_path)
    yield harness
    harness.close()


def start_map(
    harness: SparkMapsHarness, body: str = DELETES, source: int = LARGE, target: int = OUTPUT
) -> int:
    return harness.start_job(requests.MapTable(source, target, 1, [(b"name", b"x")], mapper(body)))


def start_on_spark(
    harness: SparkMapsHarness, body: str = DELETES, target: int = OUTPUT
) -> tuple[int, map_orders.MapOrder]:
    harness.ready()
    apid = start_map(harness, body, target=target)
    order = harness.order()
    assert (order.kind, order.apid) == (map_orders.MAP, apid)
    return apid, map_orders.body_of(order, map_orders.MapOrder)


def test_a_small_table_is_mapped_by_the_node(harness: SparkMapsHarness) -> None:
    harness.ready()
    found = harness.wait_job(start_map(harness, source=SMALL))
    assert (found["state"], found["deletes"]) == ("done", "1")
    assert "tasks" not in found
    assert not harness.orders.poll(0)


def test_spark_and_the_node_write_the_same_output(harness: SparkMapsHarness) -> None:
    """Outputs of lost task attempts are ignored."""
    harness.write(Put(LOCAL, *map(list, zip(*BEFORE, strict=True))))
    harness.actor.spark.threshold = None
    by_node = harness.wait_job(start_map(harness, PUTS, target=LOCAL))
    harness.actor.spark.threshold = THRESHOLD
    apid, order = start_on_spark(harness, PUTS)
    assert (order.source, order.parted, order.engine) == (LARGE, False, "wasm")
    assert order.size >= THRESHOLD
    outputs = harness.map(order)
    harness.stage(5, [*outputs[:2], outputs[0]])  # A lost attempt.
    harness.stage(6, outputs)
    harness.stage(7, outputs[:1])
    assert harness.pairs(OUTPUT) == BEFORE
    harness.mapped(apid, [6], staged=4)
    by_spark = harness.wait_job(apid)
    assert harness.pairs(OUTPUT) == harness.pairs(LOCAL)
    for name in ("state", "rows", "puts", "deletes", "reason"):
        assert by_spark[name] == by_node[name], name
    assert (by_spark["tasks"], by_spark["tasks_done"], by_spark["staged"]) == ("1", "1", "4")
    assert (harness.order(), harness.leases) == (map_orders.Message(map_orders.DROP, apid, b""), [])


def test_parts_are_written_in_the_order_of_their_keys(harness: SparkMapsHarness) -> None:
    """Not in the order of their completion: the last part to write a key wins."""
    apid, order = start_on_spark(harness, PUTS)
    outputs = harness.map(order)
    harness.stage(9, outputs[:2])
    harness.stage(3, outputs[2:])
    harness.mapped(apid, [9, 3])
    assert harness.wait_job(apid)["state"] == "done"
    assert dict(harness.pairs(OUTPUT))[b"k"] == b"value of %d" % (3 * BATCH_PAIRS)


def test_several_threads_split_the_table_into_parts(harness: SparkMapsHarness) -> None:
    harness.ready()
    harness.start_job(requests.MapTable(LARGE, OUTPUT, 3, [], mapper(DELETES)))
    assert map_orders.body_of(harness.order(), map_orders.MapOrder).parted


def test_progress_is_reported_and_never_decreases(harness: SparkMapsHarness) -> None:
    apid, order = start_on_spark(harness)
    extension = Extension(values.WITH_LEASE, reqid=REQID, lease=order.lease)
    part = harness.start_job(requests.RangeJob(order.source, BATCH_PAIRS, extension=extension))
    harness.chunk(part)
    table = harness.actor.table
    harness.run_until(lambda: table.jobs[apid].rows == BATCH_PAIRS)  # Without a report.
    harness.read(part)
    harness.run_until(lambda: part not in harness.actor.table.jobs)
    assert int(harness.state(apid)["rows"]) >= BATCH_PAIRS
    harness.report(map_orders.PROGRESS, apid, map_orders.MapProgress(2, 1, ROWS, 77_000, 3, 17))
    harness.run_until(lambda: harness.actor.table.jobs[apid].tasks_done)
    found = harness.state(apid)
    assert (found["state"], found["rows"]) == ("running", str(ROWS))
    assert (found["tasks"], found["tasks_done"], found["staged"]) == ("2", "1", "17")
    assert (found["puts"], found["deletes"]) == ("0", "0")


def test_a_failed_map_writes_no_output(harness: SparkMapsHarness) -> None:
    apid, order = start_on_spark(harness)
    harness.stage(1, harness.map(order))
    harness.report(map_orders.FAILED, apid, map_orders.Trouble("kelek_map: out of fuel"))
    found = harness.wait_job(apid)
    assert (found["state"], found["reason"]) == ("failed", "kelek_map: out of fuel")
    assert harness.order() == map_orders.Message(map_orders.DROP, apid, b"")
    assert (harness.pairs(OUTPUT), harness.leases) == (BEFORE, [])
    harness.mapped(apid, [1])  # Too late.
    assert harness.state(apid)["state"] == "failed"
    assert harness.pairs(OUTPUT) == BEFORE


def test_a_map_on_spark_is_cancelled_by_a_request(harness: SparkMapsHarness) -> None:
    apid, _ = start_on_spark(harness)
    assert not harness.ask(requests.EndJob(apid)).failed
    assert harness.order() == map_orders.Message(map_orders.DROP, apid, b"")
    assert (harness.state(apid)["state"], harness.leases) == ("cancelled", [])


def test_a_map_waits_for_spark_job_and_fails_with_it(harness: SparkMapsHarness) -> None:
    apid = start_map(harness)
    harness.run_until(lambda: harness.actor.spark.jobs[apid].state == spark_maps.WAITING)
    assert not harness.orders.poll(0)
    harness.ready(1)
    assert harness.order().kind == map_orders.MAP
    harness.ready(1)
    harness.ready(2)
    found = harness.wait_job(apid)
    assert found["state"] == "failed"
    assert "spark_job has ended" in found["reason"]
    assert harness.order().kind == map_orders.DROP


@pytest.mark.parametrize(("late_ms", "state"), [(0, "running"), (spark_maps.LOST_MS, "failed")])
def test_a_lost_spark_job_has_time_to_report_the_reason(
    harness: SparkMapsHarness, late_ms: int, state: str
) -> None:
    apid, _ = start_on_spark(harness)
    harness.actor.spark.on_lost()
    lost_ms = harness.actor.spark.lost_ms
    assert lost_ms is not None
    harness.actor.spark.pump(lost_ms + late_ms)
    found = harness.actor.table.statistics(apid)
    assert found is not None
    assert found.state == state


def test_the_wait_for_spark_job_is_limited(harness: SparkMapsHarness) -> None:
    apid = start_map(harness)
    harness.run_until(lambda: harness.actor.spark.jobs[apid].state == spark_maps.WAITING)
    since_ms = harness.actor.spark.jobs[apid].since_ms
    assert harness.actor.spark.deadline_ms() == since_ms + spark_maps.WAIT_MS
    harness.actor.spark.pump(since_ms + spark_maps.WAIT_MS)
    assert "spark_job is not there" in harness.state(apid)["reason"]


def test_a_bad_mapper_is_refused_at_once(harness: SparkMapsHarness) -> None:
    harness.ready()
    answer = harness.ask(requests.MapTable(LARGE, OUTPUT, 1, [], b"\0asm and no more"))
    assert "no WebAssembly module" in answer.text
    assert not harness.orders.poll(0)


def test_maps_on_spark_are_limited(
    harness: SparkMapsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_maps, "JOBS_MAX", 1)
    apid, _ = start_on_spark(harness)
    answer = harness.ask(requests.MapTable(LARGE, OUTPUT, 1, [], mapper(DELETES)))
    assert "on Spark already" in answer.text
    harness.ask(requests.EndJob(apid))
    assert harness.leases == []


def test_the_snapshot_of_the_fresh_table_is_requested_again(
    harness: SparkMapsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    apid, order = start_on_spark(harness)
    harness.stage(1, harness.map(order))
    refused: list[bytes] = []

    def refuse(message: list[bytes]) -> None:
        refused.append(message[2])
        flags = RETRYABLE if len(refused) == 1 else 0
        harness.reply(FAILED, PIPE_HEADER.unpack(message[0])[5], b"no leader", flags=flags)

    monkeypatch.setattr(harness, "on_ask", refuse)
    harness.mapped(apid, [1])
    harness.run_until(lambda: len(refused) == 2)
    found = harness.wait_job(apid)
    assert (found["state"], harness.pairs(OUTPUT)) == ("failed", BEFORE)
    assert "no leader" in found["reason"]


def test_malformed_output_in_the_fresh_table_fails_the_map(harness: SparkMapsHarness) -> None:
    apid, _ = start_on_spark(harness)
    harness.stage(1, [b"malformed"])
    harness.mapped(apid, [1])
    found = harness.wait_job(apid)
    assert (found["state"], harness.pairs(OUTPUT), harness.leases) == ("failed", BEFORE, [])
    assert "malformed" in found["reason"]


def test_malformed_reports_are_dropped(harness: SparkMapsHarness) -> None:
    apid, _ = start_on_spark(harness)
    junk = [
        b"",
        b"\x0c",
        map_orders.encode(99, apid),
        map_orders.encode(map_orders.MAPPED, apid, map_orders.Trouble("no")),
    ]
    junk += [
        map_orders.encode(map_orders.MAPPED, apid, map_orders.Mapped(FRESH, [1], [1, 2])),
        b"\xff" * 100,
    ]
    for message in junk:
        harness.reports.send(message)
    harness.run_until(lambda: harness.actor.counters["malformed-dropped"] == len(junk))
    assert harness.state(apid)["state"] == "running"


def test_a_map_can_be_cancelled_during_the_check_of_its_mapper(harness: SparkMapsHarness) -> None:
    """Its client gets an error."""
    harness.send(requests.MapTable(LARGE, OUTPUT, 1, [], mapper(SLOW)))
    while not harness.asks.poll(0):
        harness.actor.run_once()
    harness.on_ask(harness.asks.recv_multipart())
    harness.run_until(lambda: harness.actor.spark.jobs)
    [apid] = harness.actor.spark.jobs
    harness.actor.table.cancel(apid, 1)
    harness.actor.spark.pump(harness.actor.now_ms)
    assert b"it was ended" in harness.receive()[-1]


def test_the_snapshot_of_a_cancelled_map_is_removed(
    harness: SparkMapsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    apid, order = start_on_spark(harness)
    harness.stage(1, harness.map(order))
    late: list[list[bytes]] = []
    with monkeypatch.context() as patch:
        patch.setattr(harness, "on_ask", late.append)
        harness.mapped(apid, [1])
        harness.run_until(lambda: late)
        harness.ask(requests.EndJob(apid))
    assert PIPE_HEADER.unpack(late[0][0])[0] == CHECKPOINT
    harness.on_ask(late[0])
    harness.run_until(lambda: not harness.leases)
    assert harness.pairs(OUTPUT) == BEFORE
