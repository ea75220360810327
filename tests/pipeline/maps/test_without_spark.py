"""Parts of the maps on Spark that need no JVM."""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kelek.clients.table.operations import TableTuning
from kelek.pipeline.maps.driver import DriverPipes, Stages, error_line
from kelek.protocols.zerodb.server import map_orders
from kelek.protocols.zerodb.server.jobs import JobLimits, JobScan, JobTable, Lease
from kelek.protocols.zerodb.server.map_orders import MapOrder, Setup, Trouble, encode
from kelek.protocols.zerodb.server.scan_chunks import PairChunks
from kelek.protocols.zerodb.wire.values import MAP_TABLE

PAGES = """An error occurred while calling o73.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed
Traceback (most recent call last):
  File "maps/task.py", line 1, in run_part
kelek.clients.errors.TableJobLost: data job 5 is unknown: not all of its chunks were handed out

\tat org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PAGES, "TableJobLost: data job 5 is unknown: not all of its chunks were handed out"),
        ("one\norg.apache.Foo: Job aborted: disk full\n", "org.apache.Foo: Job aborted: disk full"),
        ("\n only this\n", "only this"),
        ("", "ValueError"),
    ],
)
def test_an_error_of_spark_is_one_line(text: str, line: str) -> None:
    assert error_line(ValueError(text)) == line


def table_of(pairs: list[tuple[bytes, bytes]]) -> JobTable:
    """A node's own jobs: the first one, 2, reads these pairs."""
    numbers = iter(range(1, 99))
    table = JobTable(JobLimits(), lambda: next(numbers))
    table.add_lease(Lease(next(numbers), 7, "", 0, 0), True, 0)
    table.start(JobScan(MAP_TABLE, 7, 1), PairChunks(iter(pairs)), 0, 0)
    return table


@pytest.mark.parametrize("size", [0, 10, 63, 64, 65, 300, 70_000, 300_000])
def test_a_task_cuts_batches_as_the_node_does(size: int) -> None:
    map_task = pytest.importorskip("kelek.pipeline.maps.task", exc_type=ImportError)
    rng = Random(size)
    count = 9000 if size < 1000 else 20
    pairs = [(b"%06d" % i, rng.randbytes(rng.randint(size // 2, size))) for i in range(count)]
    node = table_of(pairs)
    expected = iter(lambda: node.next_pairs(2, map_task.BATCH_PAIRS, map_task.BATCH_BYTES), [])
    assert list(map_task.batches(iter(pairs))) == list(expected)


def test_a_mapper_runs_as_on_the_node() -> None:
    """Outputs come in order, the end's last; a failure is the text that a node would give."""
    map_task = pytest.importorskip("kelek.pipeline.maps.task", exc_type=ImportError)
    wasmtime = pytest.importorskip("wasmtime")
    text = """(module
      (memory (export "memory") 2)
      (func (export "kelek_alloc") (param i32) (result i32) (i32.const 65536))
      (func (export "kelek_output") (result i32) (i32.const 65536))
      (func (export "kelek_map") (param i32 i32) (result i32) {body})
      (func (export "kelek_end") (result i32) (i32.const 1)))"""

    def outputs(body: str, batches: list[bytes]) -> list[bytes]:
        module = bytes(wasmtime.wat2wasm(text.format(body=body)))
        with map_task.MapperRun(MapOrder(7, 1, 0, False, "wasm", module, b"")) as run:
            return list(run.outputs(iter(batches)))

    batches = [bytes([i]) * size for i, size in enumerate((1, 60_000, 5, 65_536))]
    assert outputs("(local.get 1)", batches) == [*batches, b"\3"]
    assert outputs("(local.get 1)", [])[1:] == []
    with pytest.raises(map_task.MapperFailed, match="unreachable"):
        outputs("unreachable", [b"x"])


@pytest.fixture
def link() -> Iterator[tuple[DriverPipes, int, int]]:
    """The driver's, with what writes to it and what reads of it."""
    stdin, to = os.pipe()
    of, stdout = os.pipe()
    yield DriverPipes(stdin, stdout), to, of
    for fd in (stdin, of, stdout):
        os.close(fd)


def test_messages_over_pipes(link: tuple[DriverPipes, int, int]) -> None:
    one, to, of = link
    message = encode(map_orders.FAILED, 7, Trouble("why"))
    one.send(message)
    framed = os.read(of, 1000)
    assert framed == len(message).to_bytes(4, "little") + message
    assert one.receive(0) is None
    os.write(to, framed)
    assert one.receive() == map_orders.decode(message)
    os.write(to, framed[:9])
    os.close(to)
    with pytest.raises(EOFError):
        one.receive()


class FakeTables:
    """Stands for the tables of a node."""

    def __init__(self) -> None:
        self.there: dict[int, str] = {}

    def __call__(self, url: str, number: int, tuning: TableTuning, **keys: Any) -> Any:
        tables = self.there
        assert len(tuning.owner) == 16

        class Table:
            def __enter__(self) -> "Table":
                return self

            def __exit__(self, *_: object) -> None: ...

            def info(self) -> str | None:
                return tables.get(number)

            def open(self) -> None:
                tables[number] = "open"

            def truncate(self) -> None:
                tables[number] = "empty"

        return Table()


def test_fresh_tables_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = FakeTables()
    monkeypatch.setattr("kelek.clients.table.table.Table", tables)
    pytest.importorskip("pyspark")
    setup = Setup("test", "url", str(tmp_path), "", 0)
    first, second = Stages(tmp_path / "stages", setup), Stages(tmp_path / "stages", setup)
    number = first.make()
    assert number >= 3_221_225_472
    assert list(second.left()) == [number]
    second.drop(number)
    assert (list(first.left()), tables.there) == ([], {number: "empty"})
