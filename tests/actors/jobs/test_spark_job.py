"""The process spark_job without a process, and a driver without Spark: what it passes on, and what
it says when that ends."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from kelek.actors.errors import OperatorError, UnitBroken
from kelek.actors.jobs import spark_job
from kelek.actors.jobs.spark_job import SparkJob
from kelek.actors.topology.settings import SparkSettings, TableEndpoints, TableSettings
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
)
from kelek.tests.actors.actor_harness import ActorHarness
from kelek.tests.actors.fakes import spark_driver as fake
from kelek.tests.actors.node_settings import node_settings

EPOCH = 11
MODULE = bytes(3 << 20)  # More than a pipe holds.


class SparkJobHarness(ActorHarness):
    """A spark_job between job_server and the fake."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.reports = self.bound("job_server.spark")
        self.orders = self.connected("spark_job.orders")
        self.folder = folder

    def start(self, master: str) -> None:
        spark = SparkSettings(master=master)
        settings = node_settings(
            {"zerodb": TableEndpoints(url="inproc://tables")}, zerodb=TableSettings(spark=spark)
        )
        self.actor: SparkJob = self.begin(SparkJob, str(self.folder), EPOCH, settings)

    def map(self, apid: int, source: int) -> None:
        order = MapOrder(source, 3, 1 << 30, False, "wasm", MODULE, b"")
        self.orders.send(encode(map_orders.MAP, apid, order))

    def report(self) -> Message:
        """The next one that is not about being ready."""
        while True:
            self.turn(lambda: self.reports.poll(0))
            message = decode(self.reports.recv())
            if message.kind != map_orders.READY:
                return message

    def break_(self) -> str:
        """It ends as a process would; the reason."""
        with pytest.raises(UnitBroken) as error:
            self.turn(lambda: False)
        return str(error.value)


Start = Callable[..., SparkJobHarness]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Start:
    monkeypatch.setattr(spark_job, "DRIVER", fake.__name__)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)

    def begin(master: str = "local[2]") -> SparkJobHarness:
        made = SparkJobHarness(tmp_path)
        request.addfinalizer(made.end)
        made.start(master)
        return made

    return begin


def test_orders_and_reports_pass(start: Start) -> None:
    rig = start()
    rig.turn(lambda: rig.reports.poll(0))
    ready = decode(rig.reports.recv())
    assert body_of(ready, DriverReady) == DriverReady(EPOCH)
    assert rig.actor.status()["spark"] == "ready"
    rig.map(5, fake.MAPS)
    rig.map(6, fake.FAILS)
    found = [rig.report() for _ in range(3)]
    assert [one.apid for one in found] == [5, 5, 6]
    assert body_of(found[0], MapProgress) == MapProgress(2, 1, 3)
    assert body_of(found[1], Mapped).progress[2] == len(MODULE)
    assert body_of(found[2], Trouble).reason == "the mapper failed"
    assert (rig.folder / "spark").is_dir()


def test_of_what_was_dropped_nothing_is_heard(start: Start) -> None:
    rig = start()
    rig.map(5, fake.MAPS)
    assert [rig.report().kind for _ in range(2)] == [map_orders.PROGRESS, map_orders.MAPPED]
    rig.orders.send(encode(map_orders.DROP, 5))
    rig.orders.send(encode(map_orders.DROP, 5))  # And what is unknown.
    rig.orders.send(b"junk")
    rig.orders.send(encode(map_orders.MAP, 9, Trouble("no order")))
    rig.map(6, fake.FAILS)
    assert rig.report().apid == 6
    assert rig.actor.counters["malformed-dropped"] == 2


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (fake.DIES, "it has ended"),
        (fake.JUNK, "a message of"),
        (fake.GIVES_UP, "the JVM has ended"),
    ],
)
def test_all_maps_fail_with_the_driver(start: Start, source: int, reason: str) -> None:
    rig = start()
    rig.map(5, source)
    assert reason in rig.break_()
    messages = [decode(rig.reports.recv()) for _ in range(9) if rig.reports.poll(100)]
    [failed] = [it for it in messages if it.kind == map_orders.FAILED]
    assert failed.apid == 5
    assert reason in body_of(failed, Trouble).reason


def test_a_driver_that_hangs(start: Start) -> None:
    rig = start()
    rig.turn(lambda: rig.reports.poll(0))
    with pytest.raises(UnitBroken, match="said nothing for 120 s"):
        rig.actor.on_wake(rig.actor.received_ms + spark_job.SILENT_MS)


@pytest.mark.parametrize(
    ("master", "problem"),
    [
        (fake.NO_JAVA, "Spark can't be started here: there is no Java; mend that, or remove"),
        (fake.SILENT, "Spark's driver ends as it starts; see the log"),
    ],
)
def test_what_can_not_start_says_so(start: Start, master: str, problem: str) -> None:
    with pytest.raises(OperatorError, match=problem):
        start(master)


def test_without_the_extra(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OperatorError, match=r"Spark is not installed here; pip install 'kelek\[sp"):
        start()


def test_a_job_server_that_ends_takes_its_maps_along(start: Start) -> None:
    rig = start()
    rig.map(5, fake.MAPS)
    assert rig.report().kind == map_orders.PROGRESS
    rig.actor.on_connection_lost()
    assert rig.actor.status()["maps"] == 0
    rig.map(6, fake.FAILS)
    while rig.report().apid != 6:  # What was on its way may come.
        pass
