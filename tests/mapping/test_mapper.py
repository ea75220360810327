"""Mappers in their processes: their output, and the limits of hostile mappers."""

import ctypes
import os
import re
import resource
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kelek.mapping import mapper, sandbox
from kelek.mapping.mapper_process import Event, MapperProcess, engine_of
from kelek.native.tables.mapper import output_ops, pack_records
from kelek.net.clock import monotonic_ms
from kelek.net.poll_loop import PollLoop
from kelek.protocols.zerodb.wire.ops import Delete, Op, Put, unpack

wasmtime = pytest.importorskip("wasmtime")
DEADLINE_S = 60.0
SECOND_MS = 1000  # A hostile mapper ends within this time.
# A mapper whose output is at 65536: its input, unless the body writes something else.
WAT = """(module
  (memory (export "memory") 2)
  (global $calls (mut i32) (i32.const 0))
  (func (export "kelek_alloc") (param i32) (result i32) (i32.const 65536))
  (func (export "kelek_output") (result i32) (i32.const 65536))
  (func (export "kelek_map") (param $records i32) (param $size i32) (result i32) {body}))"""
IR = """
@room = global [65536 x i8] zeroinitializer
declare i32 @socket(i32, i32, i32)
declare i32 @open(ptr, i32)
declare i32 @kill(i32, i32)
declare i32 @fork()
declare ptr @malloc(i64)
define ptr @kelek_alloc(i32 %size) {{ ret ptr @room }}
define ptr @kelek_output() {{ ret ptr @room }}
define i32 @kelek_map(ptr %records, i32 %size) {{ {body} }}
"""


def wasm(body: str) -> bytes:
    return bytes(wasmtime.wat2wasm(WAT.format(body=body)))


def bitcode(body: str) -> bytes:
    binding = pytest.importorskip("llvmlite.binding")
    module: bytes = binding.parse_assembly(IR.format(body=body)).as_bitcode()
    return module


def children_s() -> float:
    """The CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


class MapperRun(PollLoop):
    """The process of one mapper, with its own poll loop."""

    def __init__(self, module: bytes, parameters: bytes = b"") -> None:
        super().__init__()
        self.events: list[Event] = []
        engine, problem = engine_of(module, allow_native=True)
        assert not problem
        self.process = MapperProcess(self, engine, lambda _, event: self.events.append(event))
        self.process.start(module, parameters)

    def on_wake(self, now_ms: int) -> None:
        self.process.tick(now_ms)

    def run_until(self, is_done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_done():
            assert time.monotonic() < deadline_s, self.events
            self.run_once(20)

    def event(self) -> Event:
        self.run_until(lambda: bool(self.events))
        return self.events.pop(0)

    def failure(self) -> str:
        """Maps one batch if the mapper starts; returns the reason of its failure."""
        ended_s = children_s()
        event = self.event()
        if event.kind == mapper.STARTED:
            started_s = self.cpu_s()
            self.process.map(pack_records([b"key", b"value"]))
            event = self.event()
            # CPU time does not depend on the load. A mapper that is killed for its running time is
            # measured by the clock: test_a_hanging_mapper_is_killed_within_a_second.
            took_s = children_s() - ended_s - started_s
            assert took_s <= SECOND_MS / 1000 or b"longer than" in event.data
        assert event.kind == mapper.FAILED, event
        assert is_gone(self.process.pid)
        return event.data.decode()

    def cpu_s(self) -> float:
        """The CPU seconds of the mapper's process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.kill()
        self.close_sockets()


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Callable[..., MapperRun]:
    def start(module: bytes, parameters: bytes = b"") -> MapperRun:
        mapper_run = MapperRun(module, parameters)
        request.addfinalizer(mapper_run.close)
        return mapper_run

    return start


def test_batches_are_mapped_in_order(run: Callable[..., MapperRun]) -> None:
    """A batch larger than a pipe holds, several before the first answer, and the end."""
    mapper_run = run(wasm("(local.get $size)"))
    batches = [bytes([i]) * size for i, size in enumerate((1, 60_000, 0, 65_536))]
    for batch in batches:
        mapper_run.process.map(batch)
    mapper_run.process.end()
    assert mapper_run.event() == Event(mapper.STARTED, b"")
    assert [mapper_run.event().data for _ in batches] == batches
    assert mapper_run.event() == Event(mapper.OUTPUT, b"", end=True)


def test_parameters_come_before_the_first_batch(run: Callable[..., MapperRun]) -> None:
    starts = """(local.get $size))
      (func (export "kelek_start") (param i32 i32) (result i32)
        (i32.load8_u offset=8 (local.get 0)))
      (func (export "kelek_end") (result i32) (i32.const 3)"""
    mapper_run = run(wasm(starts), pack_records([b"\0", b"v"]))
    mapper_run.process.end()
    assert mapper_run.event().kind == mapper.STARTED
    assert mapper_run.event() == Event(mapper.OUTPUT, struct.pack("<I", 1)[:3], end=True)
    other = run(wasm(starts), pack_records([b"\7", b"v"]))
    assert other.failure() == "kelek_start refused its parameters with 7"


def test_a_hanging_mapper_is_killed_within_a_second(run: Callable[..., MapperRun]) -> None:
    """Here the process is stopped by a signal."""
    mapper_run = run(wasm("(local.get $size)"))
    assert mapper_run.event().kind == mapper.STARTED
    os.kill(mapper_run.process.pid, signal.SIGSTOP)
    mapper_run.process.map(b"batch")
    due_ms = mapper_run.process.deadline_ms()
    assert due_ms is not None
    assert due_ms <= monotonic_ms() + SECOND_MS
    mapper_run.process.tick(due_ms - 1)
    assert not mapper_run.events
    mapper_run.process.tick(due_ms)
    assert [event.kind for event in mapper_run.events] == [mapper.FAILED]
    assert is_gone(mapper_run.process.pid)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("(loop br 0) (i32.const 0)", "fuel|longer than"),
        ("unreachable", "unreachable"),
        ("(i32.const -7)", "gave up with -7"),
        ("(memory.grow (i32.const 60000))", "gave up with -1"),  # The memory is refused.
        ("(i32.const 100000)", "points behind the module's memory"),
        ("(i32.const 2147483647)", "at most"),
        ("(i32.load (i32.const -4))", "out of bounds"),
        ("(call 2 (i32.const 0) (i32.const 0))", "stack|fuel"),
    ],
)
def test_a_hostile_module_fails_only_its_job(
    run: Callable[..., MapperRun], body: str, reason: str
) -> None:
    text = run(wasm(body)).failure()
    assert re.search(reason, text), text


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (b"\0asm junk and more", "no WebAssembly module"),
        ('(module (import "env" "open" (func)))', "imports env.open; a mapper has no imports"),
        ("(module)", "does not export the memory 'memory'"),
        ('(module (memory (export "memory") 1))', "does not export the func 'kelek_alloc'"),
        ('(module (memory (export "memory") 9000))', "can't be begun"),
        ("(module (func $f (loop br 0)) (start $f))", "can't be begun|longer"),
    ],
)
def test_an_invalid_module_does_not_start(
    run: Callable[..., MapperRun], module: bytes | str, reason: str
) -> None:
    text = run(wasmtime.wat2wasm(module) if isinstance(module, str) else module).failure()
    assert re.search(reason, text), text


needs_lock = pytest.mark.skipif(not sandbox.can_lock(), reason="no system call filter here")


@needs_lock
def test_native_code_maps_batches(run: Callable[..., MapperRun]) -> None:
    mapper_run = run(bitcode("ret i32 %size"))
    mapper_run.process.map(b"batch")
    mapper_run.process.end()
    assert [mapper_run.event().data for _ in range(3)] == [b"", b"batch", b""]


@needs_lock
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("%s = call i32 @socket(i32 2, i32 1, i32 0) ret i32 %s", "system call"),
        ("%s = call i32 @open(ptr @room, i32 0) ret i32 %s", "system call"),
        ("%s = call i32 @kill(i32 -1, i32 0) ret i32 %s", "system call"),
        ("%s = call i32 @fork() ret i32 %s", "system call"),
        ("store i32 1, ptr null ret i32 0", "SIGSEGV|crashed"),
        ("br label %x x: br label %x", "longer than"),
        ("%m = call ptr @malloc(i64 4000000000) store i8 1, ptr %m ret i32 0", "SIGSEGV|crashed"),
    ],
)
def test_hostile_native_code_fails_only_its_job(
    run: Callable[..., MapperRun], body: str, reason: str
) -> None:
    text = run(bitcode(body)).failure()
    assert re.search(reason, text), text


@needs_lock
def test_hostile_bitcode_is_parsed_in_the_child(run: Callable[..., MapperRun]) -> None:
    """Some of it crashes the process that parses it."""
    good = bitcode("ret i32 %size")
    for cut in (100, 700, len(good) - 40):
        assert run(good[:cut] + good[cut + 8 :]).failure()


def test_the_payload_selects_the_engine() -> None:
    assert engine_of(b"\0asm\1\0\0\0", allow_native=False) == ("wasm", "")
    assert "allow_native: true" in engine_of(mapper.BITCODE_MAGIC, allow_native=False)[1]
    assert "neither WebAssembly" in engine_of(b"#!/bin/sh", allow_native=True)[1]


# ---- the examples and the documentation ----

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "mappers"
RECORDS = [b"a/1", b"one", b"b", b"two", b"a/2", b""]


def mapped(source: str) -> list[Op]:
    loaded = mapper.WasmEngine().load(bytes(wasmtime.wat2wasm(source)))
    loaded.start(b"")
    return unpack(output_ops(loaded.map(pack_records(RECORDS)), 7).entry)


def test_the_mapper_of_the_documentation() -> None:
    page = (ROOT / "docs" / "guides" / "mapper.md").read_text(encoding="utf-8")
    source = page.split("```wat\n")[1].split("```")[0]
    assert mapped(source) == [Put(7, [b"a/1", b"b"], [b"one", b"two"]), Delete(7, [b"a/2"])]


def test_the_example_swap() -> None:
    source = (EXAMPLES / "swap.wat").read_text(encoding="utf-8")
    assert mapped(source) == [Put(7, [b"one", b"two"], [b"a/1", b"b"])]
    large = [part for i in range(900) for part in (b"%d" % i, bytes(290))]
    loaded = mapper.WasmEngine().load(bytes(wasmtime.wat2wasm(source)))
    assert output_ops(loaded.map(pack_records(large)), 7).puts == 900


def test_the_example_prefix(tmp_path: Path) -> None:
    """As a shared library: the interface is the same for all targets."""
    library = tmp_path / "prefix.so"
    compiler = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O1"]
    subprocess.run([*compiler, "-o", library, EXAMPLES / "prefix.c"], check=True, timeout=60)
    loaded = ctypes.CDLL(str(library))
    for name in ("kelek_alloc", "kelek_output"):
        getattr(loaded, name).restype = ctypes.c_void_p

    def call(name: str, data: bytes) -> int:
        address = loaded.kelek_alloc(len(data))
        ctypes.memmove(address, data, len(data))
        return int(getattr(loaded, name)(ctypes.c_void_p(address), len(data)))

    def output(size: int) -> list[Op]:
        return unpack(output_ops(ctypes.string_at(loaded.kelek_output(), size), 7).entry)

    assert call("kelek_start", pack_records([b"other", b"x"])) == 1
    assert call("kelek_start", pack_records([b"prefix", b"a/"])) == 0
    assert output(call("kelek_map", pack_records(RECORDS))) == [
        Put(7, [b"a/1"], [b"one"]),
        Delete(7, [b"b"]),
        Put(7, [b"a/2"], [b""]),
    ]
    assert output(loaded.kelek_end()) == [Put(7, [b"count"], [struct.pack("<Q", 2)])]
