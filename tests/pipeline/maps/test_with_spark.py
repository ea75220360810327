"""Maps (0x41) on Spark: a real node whose spark_job has a JVM of its own, beside a node without."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import kelek
from kelek.mapping import sandbox
from kelek.tests.conftest import ROOT, Shell
from kelek.tests.pipeline.conftest import NODE, running
from kelek.tests.waiting import wait_until

wasmtime = pytest.importorskip("wasmtime")
pytestmark = pytest.mark.spark
PAGE = ROOT / "docs" / "guides" / "mapper.md"
DEADLINE_S = 250  # A JVM took 100 s to start on a very busy machine.
ROWS = 30_000
# Some ms for each batch; of the first record the key becomes the value.
SLOW = """(module
  (memory (export "memory") 64)
  (func (export "kelek_alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "kelek_output") (result i32) (i32.const 2097152))
  (func (export "kelek_map") (param $at i32) (param $size i32) (result i32)
    (local $count i32)
    (local $key i32)
    (loop $again
      (local.set $count (i32.add (local.get $count) (i32.const 1)))
      (br_if $again (i32.lt_u (local.get $count) (i32.const 3000000))))
    (local.set $key (i32.load (local.get $at)))
    (i32.store8 (i32.const 2097152) (i32.const 0))
    (i32.store (i32.const 2097153) (local.get $key))
    (i32.store (i32.const 2097157) (local.get $key))
    (local.set $at (i32.add (local.get $at) (i32.const 8)))
    (memory.copy (i32.const 2097161) (local.get $at) (local.get $key))
    (memory.copy
      (i32.add (i32.const 2097161) (local.get $key)) (local.get $at) (local.get $key))
    (i32.add (i32.const 9) (i32.mul (i32.const 2) (local.get $key)))))"""
# How many batches there were, and how many bytes: it keeps both from one call to the next.
COUNTS = """(module
  (memory (export "memory") 64)
  (global $calls (mut i32) (i32.const 0))
  (global $bytes (mut i32) (i32.const 0))
  (func (export "kelek_alloc") (param i32) (result i32) (i32.const 2048))
  (func (export "kelek_output") (result i32) (i32.const 1024))
  (func (export "kelek_map") (param i32 i32) (result i32)
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    (global.set $bytes (i32.add (global.get $bytes) (local.get 1)))
    (i32.const 0))
  (func (export "kelek_end") (result i32)
    (i32.store8 (i32.const 1024) (i32.const 0))
    (i32.store (i32.const 1025) (i32.const 1))
    (i32.store (i32.const 1029) (i32.const 8))
    (i32.store8 (i32.const 1033) (i32.const 107))
    (i32.store (i32.const 1034) (global.get $calls))
    (i32.store (i32.const 1038) (global.get $bytes))
    (i32.const 18)))"""
TRAPS = """(module
  (memory (export "memory") 64)
  (func (export "kelek_alloc") (param i32) (result i32) (i32.const 2048))
  (func (export "kelek_output") (result i32) (i32.const 1024))
  (func (export "kelek_map") (param i32 i32) (result i32) unreachable))"""
IR = """
@room = global [4194304 x i8] zeroinitializer
@out = global [11 x i8] c"\\00\\01\\00\\00\\00\\01\\00\\00\\00kv"
define ptr @kelek_alloc(i32 %size) { ret ptr @room }
define ptr @kelek_output() { ret ptr @out }
define i32 @kelek_map(ptr %records, i32 %size) { ret i32 11 }
"""
TOPOLOGY = f"""\
cluster: maps
{NODE}zerodb:
  local_tables: [900-999]
  mapper: wasm
  allow_native: true
"""
SPARK = '  spark: {threshold_bytes: 100 KiB, master: "local[2,4]", memory_bytes: 512 MiB}\n'


def wasm(text: str) -> bytes:
    return bytes(wasmtime.wat2wasm(text))


def example(name: str) -> str:
    if name == "documented":
        return PAGE.read_text(encoding="utf-8").split("```wat\n")[1].split("```")[0]
    return (ROOT / "examples" / "mappers" / name).read_text(encoding="utf-8")


class MapNodes:
    """One that has Spark, and one that maps by itself."""

    def __init__(self, spark: Shell, plain: Shell) -> None:
        self.shell = spark
        self.spark, self.plain = (
            f"tcp://{one.addresses['127.0.0.1:7100']}" for one in (spark, plain)
        )
        for url in (self.spark, self.plain):
            for number in (1, 901):
                with kelek.Table(url, number) as table:
                    table.put_many(
                        (b"%06d" % i, b"" if i % 9 == 0 else b"value %d" % (i * 7 % 100_003))
                        for i in range(ROWS)
                    )
            with kelek.Table(url, BIG) as table:
                dice = Random(1)
                table.put_many((b"%06d" % i, dice.randbytes(8192)) for i in range(1400))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapNodes]:
    pytest.importorskip("pyspark", reason="the extra kelek[spark] is not installed")
    places = [tmp_path_factory.mktemp(name) for name in ("spark", "plain")]
    with running(places[0], TOPOLOGY + SPARK) as spark, running(places[1], TOPOLOGY) as plain:
        yield MapNodes(spark, plain)


def mapped(
    url: str, target: int, mapper: bytes, source: int = 1, threads: int = 1
) -> dict[str, str]:
    """Into a table that has rows of its own already; the statistics at the end."""
    with kelek.Table(url, target) as table:
        table.put_many((b"%06d" % i, b"was there") for i in range(0, ROWS, 1000))
    with kelek.Table(url, source, timeout_ms=1000 * DEADLINE_S) as table:
        return table.wait_job(table.map_into(target, mapper, threads=threads))


def pairs(url: str, number: int) -> list[tuple[bytes, bytes]]:
    with kelek.Table(url, number) as table:
        return list(table.scan())


def until(done: Callable[[], Any]) -> Any:
    return wait_until(done, deadline_s=DEADLINE_S)


def spark_job(shell: Shell) -> Any:
    """What the supervisor says of it."""
    status = json.loads(shell.run("supervisor status topology.yaml -o json").stdout)["processes"]
    return next(one for one in status if one["role"] == "spark_job")


def below_spark(nodes: MapNodes, word: str) -> list[int]:
    """Spark's processes of this node whose command line has a word: they are where the driver
    began."""
    place = str(nodes.shell.folder / "var" / "n1" / "spark")
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in found if is_at(pid, place) and word in command_of(pid)]


def is_at(pid: int, place: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd") == place
    except OSError:
        return False


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def worker(nodes: MapNodes) -> int:
    """A worker of Spark that has started a mapper; 0: none has."""
    found = below_spark(nodes, "pyspark.worker")
    return next((pid for pid in found if is_parent(pid)), 0)


def is_parent(pid: int) -> bool:
    """Of a mapper itself, which the daemon of the workers is not."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return False
    return any("kelek.mapping.mapper " in command_of(int(child)) for child in children)


def at_work(nodes: MapNodes, table: kelek.Table, job: int) -> int:
    """Such a worker, while the job runs."""

    def look() -> int:
        told = table.job_status(job)
        assert told["state"] == "running", told
        return worker(nodes)

    return int(until(look))


NUMBERS = iter(range(10, 90))
BIG = 902  # Incompressible, so that it is parted; local.


@pytest.mark.parametrize(
    ("name", "source"), [("documented", 1), ("swap.wat", 1), ("swap.wat", 901)]
)
def test_spark_makes_the_same_of_the_examples(nodes: MapNodes, name: str, source: int) -> None:
    target = next(NUMBERS)
    target += source - source % 100
    mapper = wasm(example(name))
    found = mapped(nodes.spark, target, mapper, source)
    wanted = mapped(nodes.plain, target, mapper, source)
    assert (found["state"], found["tasks"], found["tasks_done"]) == ("done", "1", "1")
    assert "tasks" not in wanted
    for word in ("rows", "bytes", "chunks", "puts", "deletes"):
        assert found[word] == wanted[word], word
    assert pairs(nodes.spark, target) == pairs(nodes.plain, target)


def test_a_mapper_that_remembers_sees_the_same_batches(nodes: MapNodes) -> None:
    target = next(NUMBERS)
    for url in (nodes.spark, nodes.plain):
        assert mapped(url, target, wasm(COUNTS))["puts"] == "1"
    assert pairs(nodes.spark, target) == pairs(nodes.plain, target)


def test_native_code_is_locked_in_there_too(nodes: MapNodes) -> None:
    binding = pytest.importorskip("llvmlite.binding")
    if not sandbox.can_lock():
        pytest.skip("no filter of system calls here")
    target = next(NUMBERS)
    assert mapped(nodes.spark, target, binding.parse_assembly(IR).as_bitcode())["state"] == "done"
    assert dict(pairs(nodes.spark, target))[b"k"] == b"v"


def test_a_mapper_that_fails_leaves_the_output_as_it_was(nodes: MapNodes) -> None:
    target = next(NUMBERS)
    found, wanted = (mapped(url, target, wasm(TRAPS)) for url in (nodes.spark, nodes.plain))
    assert (found["state"], found["reason"]) == ("failed", wanted["reason"])
    assert "unreachable" in found["reason"]
    assert len(pairs(nodes.spark, target)) == ROWS // 1000


def test_a_task_that_is_killed_doubles_nothing(nodes: MapNodes) -> None:
    """It reads and maps its part again; the other one goes on."""
    target = 100 * (BIG // 100) + next(NUMBERS)
    with kelek.Table(nodes.spark, BIG) as table:
        job = table.map_into(target, wasm(SLOW), threads=2)
        os.kill(at_work(nodes, table, job), signal.SIGKILL)
        found = table.wait_job(job)
    wanted = mapped(nodes.plain, target, wasm(SLOW), BIG)
    assert (found["state"], found["tasks"], found["tasks_done"]) == ("done", "2", "2")
    made = dict(pairs(nodes.spark, target))
    assert len(made) == int(found["puts"]) == int(found["staged"])
    assert found["rows"] == wanted["rows"]
    assert all(key == value for key, value in made.items())


def test_a_map_that_another_client_ends(nodes: MapNodes) -> None:
    target = 100 * (BIG // 100) + next(NUMBERS)
    with kelek.Table(nodes.spark, BIG) as table:
        job = table.map_into(target, wasm(SLOW), threads=2)
        at_work(nodes, table, job)
        table.end_job(job)
        assert table.job_status(job)["state"] == "cancelled"
        until(lambda: not worker(nodes))
    assert pairs(nodes.spark, target) == []


def test_the_documented_program(nodes: MapNodes) -> None:
    text = PAGE.read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    wanted = re.findall(r"^ *print\(.*\)  # (.+)$", program, re.M)
    said = nodes.shell.ok("python -", nodes.shell.translate(program).encode())
    assert said.splitlines()[-len(wanted) :] == wanted


def test_a_jvm_that_is_killed(nodes: MapNodes) -> None:
    """The last one here: its successor takes its time."""
    target = 100 * (BIG // 100) + next(NUMBERS)
    with kelek.Table(nodes.spark, BIG) as table:
        job = table.map_into(target, wasm(SLOW), threads=2)
        at_work(nodes, table, job)
        [jvm] = below_spark(nodes, "org.apache.spark.deploy.SparkSubmit")
        os.kill(jvm, signal.SIGKILL)
        found = table.wait_job(job)
    assert found["state"] == "failed"
    assert re.search("Spark's driver has failed|spark_job has ended", found["reason"])
    assert pairs(nodes.spark, target) == []
    until(lambda: spark_job(nodes.shell)["restarts"] == 1)
