"""The actor spark_job with a driver that runs no Spark: relayed messages and errors."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from kelek.actors.errors import OperatorError, UnitBroken
from kelek.actors.jobs import spark_job
from kelek.actors.jobs.spark_job import SparkJob
from kelek.actors.topology.settings import SparkSettings, TableEndpoints, TableSettings
from kelek.protocols.zerodb.server import map_orders
from kelek.tests.actors.actor_harness import ActorHarness
from kelek.tests.actors.fakes import spark_driver as fake
from kelek.tests.actors.node_settings import node_settings

EPOCH = 11
MODULE = bytes(3 << 20)  # More than a pipe holds.


class SparkJobHarness(ActorHarness):
    """A spark_job between the test, as job_server, and the fake driver."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.reports = self.bind("job_server.spark")
        self.orders = self.connect("spark_job.orders")
        self.folder = folder

    def start(self, master: str) -> None:
        spark = SparkSettings(master=master)
        settings = node_settings(
            {"zerodb": TableEndpoints(url="inproc://tables")}, zerodb=TableSettings(spark=spark)
        )
        self.actor: SparkJob = self.start_actor(SparkJob, str(self.folder), EPOCH, settings)

    def map(self, apid: int, source: int) -> None:
        order = map_orders.MapOrder(source, 3, 1 << 30, False, "wasm", MODULE, b"")
        self.orders.send(map_orders.encode(map_orders.MAP, apid, order))

    def report(self) -> map_orders.Message:
        """The next report other than READY."""
        while True:
            self.run_until(lambda: self.reports.poll(0))
            message = map_orders.decode(self.reports.recv())
            if message.kind != map_orders.READY:
                return message

    def wait_broken(self) -> str:
        """Runs spark_job until it breaks; returns the reason."""
        with pytest.raises(UnitBroken) as error:
            self.run_until(lambda: False)
        return str(error.value)


Start = Callable[..., SparkJobHarness]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Start:
    monkeypatch.setattr(spark_job, "DRIVER", fake.__name__)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)

    def start_harness(master: str = "local[2]") -> SparkJobHarness:
        harness = SparkJobHarness(tmp_path)
        request.addfinalizer(harness.close)
        harness.start(master)
        return harness

    return start_harness


def test_orders_and_reports_are_relayed(start: Start) -> None:
    harness = start()
    harness.run_until(lambda: harness.reports.poll(0))
    ready = map_orders.decode(harness.reports.recv())
    assert map_orders.body_of(ready, map_orders.DriverReady) == map_orders.DriverReady(EPOCH)
    assert harness.actor.status()["spark"] == "ready"
    harness.map(5, fake.MAPS)
    harness.map(6, fake.FAILS)
    reports = [harness.report() for _ in range(3)]
    assert [report.apid for report in reports] == [5, 5, 6]
    assert map_orders.body_of(reports[0], map_orders.MapProgress) == map_orders.MapProgress(2, 1, 3)
    assert map_orders.body_of(reports[1], map_orders.Mapped).progress[2] == len(MODULE)
    assert map_orders.body_of(reports[2], map_orders.Trouble).reason == "the mapper failed"
    assert (harness.folder / "spark").is_dir()


def test_reports_of_dropped_maps_are_ignored(start: Start) -> None:
    harness = start()
    harness.map(5, fake.MAPS)
    assert [harness.report().kind for _ in range(2)] == [map_orders.PROGRESS, map_orders.MAPPED]
    harness.orders.send(map_orders.encode(map_orders.DROP, 5))
    harness.orders.send(map_orders.encode(map_orders.DROP, 5))  # An unknown map.
    harness.orders.send(b"junk")
    harness.orders.send(map_orders.encode(map_orders.MAP, 9, map_orders.Trouble("no order")))
    harness.map(6, fake.FAILS)
    assert harness.report().apid == 6
    assert harness.actor.counters["malformed-dropped"] == 2


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (fake.DIES, "it has ended"),
        (fake.JUNK, "a message of"),
        (fake.GIVES_UP, "the JVM has ended"),
    ],
)
def test_all_maps_fail_when_the_driver_ends(start: Start, source: int, reason: str) -> None:
    harness = start()
    harness.map(5, source)
    assert reason in harness.wait_broken()
    messages = [
        map_orders.decode(harness.reports.recv()) for _ in range(9) if harness.reports.poll(100)
    ]
    [failed] = [it for it in messages if it.kind == map_orders.FAILED]
    assert failed.apid == 5
    assert reason in map_orders.body_of(failed, map_orders.Trouble).reason


def test_a_silent_driver_breaks_the_unit(start: Start) -> None:
    harness = start()
    harness.run_until(lambda: harness.reports.poll(0))
    with pytest.raises(UnitBroken, match="said nothing for 120 s"):
        harness.actor.on_wake(harness.actor.received_ms + spark_job.SILENT_MS)


@pytest.mark.parametrize(
    ("master", "problem"),
    [
        (fake.NO_JAVA, "Spark can't be started here: there is no Java; mend that, or remove"),
        (fake.SILENT, "Spark's driver ends as it starts; see the log"),
    ],
)
def test_a_failed_start_tells_the_operator_why(start: Start, master: str, problem: str) -> None:
    with pytest.raises(OperatorError, match=problem):
        start(master)


def test_a_missing_spark_package_is_reported(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OperatorError, match=r"Spark is not installed here; pip install 'kelek\[sp"):
        start()


def test_the_maps_of_a_lost_job_server_are_dropped(start: Start) -> None:
    harness = start()
    harness.map(5, fake.MAPS)
    assert harness.report().kind == map_orders.PROGRESS
    harness.actor.on_connection_lost()
    assert harness.actor.status()["maps"] == 0
    harness.map(6, fake.FAILS)
    while harness.report().apid != 6:  # Earlier reports may arrive first.
        pass
