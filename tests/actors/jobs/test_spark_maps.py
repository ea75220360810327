"""Maps that job_server hands over to spark_job: which, how far they are, and what is written.

The test plays spark_job and Spark: it maps the snapshot itself, and fills the fresh table.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from kelek.actors.jobs import spark_maps
from kelek.actors.runtime import actor
from kelek.actors.topology.settings import SparkSettings
from kelek.mapping.mapper import WasmEngine
from kelek.mapping.mapper_process import BATCH_PAIRS
from kelek.native.tables.mapper import pack_records
from kelek.protocols.zerodb.server import map_orders
from kelek.protocols.zerodb.server.map_orders import (
    DriverReady,
    MapOrder,
    Mapped,
    MapProgress,
    Message,
    Trouble,
    body_of,
    decode,
    encode,
    stage_key,
)
from kelek.protocols.zerodb.wire import requests, values
from kelek.protocols.zerodb.wire.ops import Put
from kelek.protocols.zerodb.wire.values import Extension
from kelek.protocols.zerodb.wire.worker_pipe import CHECKPOINT, FAILED, PIPE_HEADER, RETRYABLE
from kelek.tests.actors.jobs.test_server import DELETES, PUTS, REQID, SLOW, JobServerHarness, mapper

THRESHOLD = 20_000
SMALL, LARGE, LOCAL, OUTPUT, FRESH = 7, 9, 20, 21, 3_221_225_500
ROWS = 3 * BATCH_PAIRS + 5
BEFORE = [(b"was/%d" % i, b"there") for i in range(3)]


class SparkMapsHarness(JobServerHarness):
    """A job_server whose large maps are the test's to run."""

    def __init__(self, folder: Path) -> None:
        spark = SparkSettings(threshold_bytes=THRESHOLD, master="local[2]")
        super().__init__(folder, {"spark": spark})
        self.orders = self.bound(zmq.PULL, "inproc://rig/n1/spark_job.orders")
        self.reports = self.context.socket(zmq.PUSH)
        self.reports.connect("inproc://rig/n1/job_server.spark")
        keys = [b"%06d" % i for i in range(ROWS)]
        self.write(Put(LARGE, keys, [b"value of %d" % i for i in range(ROWS)]))
        self.write(Put(OUTPUT, *map(list, zip(*BEFORE, strict=True))))

    def say(self, kind: int, apid: int, body: map_orders.AnyBody) -> None:
        self.reports.send(encode(kind, apid, body))

    def ready(self, epoch: int = 1) -> None:
        self.say(map_orders.READY, 0, DriverReady(epoch))

    def order(self) -> Message:
        self.turn(lambda: self.orders.poll(0))
        return decode(self.orders.recv())

    def map(self, order: MapOrder) -> list[bytes]:
        """What the mapper returns: of one part, read from the job's snapshot."""
        asked = Extension(values.WITH_LEASE, reqid=REQID, lease=order.lease)
        apid = self.begin(requests.RangeJob(order.source, BATCH_PAIRS, extension=asked))
        one = WasmEngine().load(order.module)
        one.start(order.parameters)
        found = []
        flags = 0
        while not flags:
            flags, frames = self.chunk(apid)
            found += [one.map(pack_records(frames))] if frames else []
        return [*found, one.end()]

    def stage(self, attempt: int, outputs: list[bytes]) -> None:
        """What a task attempt leaves in the fresh table."""
        for place, output in enumerate(outputs):
            if output:
                self.write(Put(FRESH, [stage_key(attempt, place)], [output]))

    def mapped(self, apid: int, attempts: list[int], staged: int = 0) -> None:
        done = MapProgress(len(attempts), len(attempts), ROWS, 123, 4, staged)
        self.say(map_orders.MAPPED, apid, Mapped(FRESH, attempts, list(done)))


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkMapsHarness]:
    monkeypatch.setattr(actor, "REPORT_MS", 20)  # Reports wake it: jobs go on by the wake.
    made = SparkMapsHarness(tmp_path)
    yield made
    made.end()


def begin(
    rig: SparkMapsHarness, body: str = DELETES, source: int = LARGE, target: int = OUTPUT
) -> int:
    return rig.begin(requests.MapTable(source, target, 1, [(b"name", b"x")], mapper(body)))


def handed_over(
    rig: SparkMapsHarness, body: str = DELETES, target: int = OUTPUT
) -> tuple[int, MapOrder]:
    rig.ready()
    apid = begin(rig, body, target=target)
    order = rig.order()
    assert (order.kind, order.apid) == (map_orders.MAP, apid)
    return apid, body_of(order, MapOrder)


def test_a_small_table_is_mapped_here(rig: SparkMapsHarness) -> None:
    rig.ready()
    found = rig.ended(begin(rig, source=SMALL))
    assert (found["state"], found["deletes"]) == ("done", "1")
    assert "tasks" not in found
    assert not rig.orders.poll(0)


def test_a_large_one_becomes_what_it_becomes_here(rig: SparkMapsHarness) -> None:
    """Batch by batch, whatever attempts that do not count have left."""
    rig.write(Put(LOCAL, *map(list, zip(*BEFORE, strict=True))))
    rig.actor.spark.threshold = None
    here = rig.ended(begin(rig, PUTS, target=LOCAL))
    rig.actor.spark.threshold = THRESHOLD
    apid, order = handed_over(rig, PUTS)
    assert (order.source, order.parted, order.engine) == (LARGE, False, "wasm")
    assert order.size >= THRESHOLD
    outputs = rig.map(order)
    rig.stage(5, [*outputs[:2], outputs[0]])  # It died on the way.
    rig.stage(6, outputs)
    rig.stage(7, outputs[:1])
    assert rig.pairs(OUTPUT) == BEFORE
    rig.mapped(apid, [6], staged=4)
    found = rig.ended(apid)
    assert rig.pairs(OUTPUT) == rig.pairs(LOCAL)
    for name in ("state", "rows", "puts", "deletes", "reason"):
        assert found[name] == here[name], name
    assert (found["tasks"], found["tasks_done"], found["staged"]) == ("1", "1", "4")
    assert (rig.order(), rig.leases) == (Message(map_orders.DROP, apid, b""), [])


def test_parts_are_written_in_the_order_of_their_keys(rig: SparkMapsHarness) -> None:
    """However they ended: the last one to write a key is the last one here, too."""
    apid, order = handed_over(rig, PUTS)
    outputs = rig.map(order)
    rig.stage(9, outputs[:2])
    rig.stage(3, outputs[2:])
    rig.mapped(apid, [9, 3])
    assert rig.ended(apid)["state"] == "done"
    assert dict(rig.pairs(OUTPUT))[b"k"] == b"value of %d" % (3 * BATCH_PAIRS)


def test_threads_let_the_table_be_parted(rig: SparkMapsHarness) -> None:
    rig.ready()
    rig.begin(requests.MapTable(LARGE, OUTPUT, 3, [], mapper(DELETES)))
    assert body_of(rig.order(), MapOrder).parted


def test_progress_is_told_and_never_goes_back(rig: SparkMapsHarness) -> None:
    apid, order = handed_over(rig)
    asked = Extension(values.WITH_LEASE, reqid=REQID, lease=order.lease)
    part = rig.begin(requests.RangeJob(order.source, BATCH_PAIRS, extension=asked))
    rig.chunk(part)
    rig.turn(lambda: rig.actor.table.jobs[apid].rows == BATCH_PAIRS)  # Nobody has said so.
    rig.read(part)
    rig.turn(lambda: part not in rig.actor.table.jobs)
    assert int(rig.state(apid)["rows"]) >= BATCH_PAIRS
    rig.say(map_orders.PROGRESS, apid, MapProgress(2, 1, ROWS, 77_000, 3, 17))
    rig.turn(lambda: rig.actor.table.jobs[apid].tasks_done)
    found = rig.state(apid)
    assert (found["state"], found["rows"]) == ("running", str(ROWS))
    assert (found["tasks"], found["tasks_done"], found["staged"]) == ("2", "1", "17")
    assert (found["puts"], found["deletes"]) == ("0", "0")


def test_a_map_that_fails_leaves_the_output_as_it_was(rig: SparkMapsHarness) -> None:
    apid, order = handed_over(rig)
    rig.stage(1, rig.map(order))
    rig.say(map_orders.FAILED, apid, Trouble("kelek_map: out of fuel"))
    found = rig.ended(apid)
    assert (found["state"], found["reason"]) == ("failed", "kelek_map: out of fuel")
    assert rig.order() == Message(map_orders.DROP, apid, b"")
    assert (rig.pairs(OUTPUT), rig.leases) == (BEFORE, [])
    rig.mapped(apid, [1])  # Too late.
    assert rig.state(apid)["state"] == "failed"
    assert rig.pairs(OUTPUT) == BEFORE


def test_a_map_that_somebody_ends(rig: SparkMapsHarness) -> None:
    apid, _ = handed_over(rig)
    assert not rig.ask(requests.EndJob(apid)).failed
    assert rig.order() == Message(map_orders.DROP, apid, b"")
    assert (rig.state(apid)["state"], rig.leases) == ("cancelled", [])


def test_it_waits_for_a_spark_job_and_fails_with_it(rig: SparkMapsHarness) -> None:
    apid = begin(rig)
    rig.turn(lambda: rig.actor.spark.jobs[apid].state == spark_maps.WAITING)
    assert not rig.orders.poll(0)
    rig.ready(1)
    assert rig.order().kind == map_orders.MAP
    rig.ready(1)
    rig.ready(2)
    found = rig.ended(apid)
    assert found["state"] == "failed"
    assert "spark_job has ended" in found["reason"]
    assert rig.order().kind == map_orders.DROP


@pytest.mark.parametrize(("late_ms", "state"), [(0, "running"), (spark_maps.LOST_MS, "failed")])
def test_a_lost_spark_job_has_a_moment_to_say_why(
    rig: SparkMapsHarness, late_ms: int, state: str
) -> None:
    apid, _ = handed_over(rig)
    rig.actor.spark.on_lost()
    lost_ms = rig.actor.spark.lost_ms
    assert lost_ms is not None
    rig.actor.spark.pump(lost_ms + late_ms)
    found = rig.actor.table.statistics(apid)
    assert found is not None
    assert found.state == state


def test_nobody_waits_for_ever_for_a_spark_job(rig: SparkMapsHarness) -> None:
    apid = begin(rig)
    rig.turn(lambda: rig.actor.spark.jobs[apid].state == spark_maps.WAITING)
    since_ms = rig.actor.spark.jobs[apid].since_ms
    assert rig.actor.spark.deadline_ms() == since_ms + spark_maps.WAIT_MS
    rig.actor.spark.pump(since_ms + spark_maps.WAIT_MS)
    assert "spark_job is not there" in rig.state(apid)["reason"]


def test_a_bad_mapper_is_refused_at_once(rig: SparkMapsHarness) -> None:
    rig.ready()
    answer = rig.ask(requests.MapTable(LARGE, OUTPUT, 1, [], b"\0asm and no more"))
    assert "no WebAssembly module" in answer.text
    assert not rig.orders.poll(0)


def test_no_more_than_so_many_at_once(
    rig: SparkMapsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_maps, "JOBS_MAX", 1)
    apid, _ = handed_over(rig)
    answer = rig.ask(requests.MapTable(LARGE, OUTPUT, 1, [], mapper(DELETES)))
    assert "on Spark already" in answer.text
    rig.ask(requests.EndJob(apid))
    assert rig.leases == []


def test_the_fresh_tables_snapshot_is_asked_for_again(
    rig: SparkMapsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    apid, order = handed_over(rig)
    rig.stage(1, rig.map(order))
    refused: list[bytes] = []

    def refuse(message: list[bytes]) -> None:
        refused.append(message[2])
        flags = RETRYABLE if len(refused) == 1 else 0
        rig.reply(FAILED, PIPE_HEADER.unpack(message[0])[5], b"no leader", flags=flags)

    monkeypatch.setattr(rig, "on_ask", refuse)
    rig.mapped(apid, [1])
    rig.turn(lambda: len(refused) == 2)
    found = rig.ended(apid)
    assert (found["state"], rig.pairs(OUTPUT)) == ("failed", BEFORE)
    assert "no leader" in found["reason"]


def test_an_output_in_the_fresh_table_that_is_none(rig: SparkMapsHarness) -> None:
    apid, _ = handed_over(rig)
    rig.stage(1, [b"what no mapper may return"])
    rig.mapped(apid, [1])
    found = rig.ended(apid)
    assert (found["state"], rig.pairs(OUTPUT), rig.leases) == ("failed", BEFORE, [])
    assert "malformed" in found["reason"]


def test_what_is_no_report_is_dropped(rig: SparkMapsHarness) -> None:
    apid, _ = handed_over(rig)
    junk = [b"", b"\x0c", encode(99, apid), encode(map_orders.MAPPED, apid, Trouble("no"))]
    junk += [encode(map_orders.MAPPED, apid, Mapped(FRESH, [1], [1, 2])), b"\xff" * 100]
    for one in junk:
        rig.reports.send(one)
    rig.turn(lambda: rig.actor.counters["malformed-dropped"] == len(junk))
    assert rig.state(apid)["state"] == "running"


def test_a_mapper_that_is_checked_may_be_ended(rig: SparkMapsHarness) -> None:
    """Whoever asked for it is told so."""
    rig.send(requests.MapTable(LARGE, OUTPUT, 1, [], mapper(SLOW)))
    while not rig.asks.poll(0):
        rig.actor.run_once()
    rig.on_ask(rig.asks.recv_multipart())
    rig.turn(lambda: rig.actor.spark.jobs)
    [apid] = rig.actor.spark.jobs
    rig.actor.table.cancel(apid, 1)
    rig.actor.spark.pump(rig.actor.now_ms)
    assert b"it was ended" in rig.receive()[-1]


def test_a_snapshot_that_nobody_waits_for_goes(
    rig: SparkMapsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    apid, order = handed_over(rig)
    rig.stage(1, rig.map(order))
    late: list[list[bytes]] = []
    with monkeypatch.context() as patch:
        patch.setattr(rig, "on_ask", late.append)
        rig.mapped(apid, [1])
        rig.turn(lambda: late)
        rig.ask(requests.EndJob(apid))
    assert PIPE_HEADER.unpack(late[0][0])[0] == CHECKPOINT
    rig.on_ask(late[0])
    rig.turn(lambda: not rig.leases)
    assert rig.pairs(OUTPUT) == BEFORE
