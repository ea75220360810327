"""Data jobs on a real node: mappers that do what they should and such that do not, and a job_server
that is killed in the middle of everything."""

import os
import select
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import kelek
from kelek.bench.kelek_cluster import children_of
from kelek.tests.interop.conftest import new_folder
from kelek.tests.interop.zerodb.tables import NodeTables
from kelek.tests.waiting import wait_until

wasmtime = pytest.importorskip("wasmtime")
SWAP = Path(__file__).resolve().parents[3] / "examples" / "mappers" / "swap.wat"
DEADLINE_S = 60.0
TIMEOUT_MS = 60_000
ROWS = 100_000  # 25 batches of a mapper.
# Takes its time for each batch, and writes nothing.
SLOW = """(module
  (memory (export "memory") 32)
  (func (export "kelek_alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "kelek_output") (result i32) (i32.const 1024))
  (func (export "kelek_map") (param i32 i32) (result i32) (local $left i32)
    (local.set $left (i32.const {turns}))
    (loop $next
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $next (local.get $left)))
    (i32.const 0)))"""


def wait_ready(tables: NodeTables) -> None:
    """Until every process serves: before that a data job is refused, to be asked for again."""
    wait_until(lambda: {row["state"] for row in tables.cluster.status()} == {"ready"})


@pytest.fixture(scope="module")
def node() -> Iterator[NodeTables]:
    folder = new_folder()
    tables = NodeTables(folder, ("n1",), "mapper: wasm, request_timeout_ms: 20000")
    try:
        yield tables
    finally:
        tables.stop()
        shutil.rmtree(folder)


@pytest.fixture
def table(node: NodeTables) -> Iterator[kelek.Table]:
    with kelek.Table([node.endpoints["n1"]["url"]], 7, timeout_ms=TIMEOUT_MS) as table:
        if not table.exists(b"%06d" % (ROWS - 1)):
            table.put_many((b"%06d" % i, b"v%d" % i) for i in range(ROWS))
            wait_ready(node)
        yield table


def wasm(source: str) -> bytes:
    return bytes(wasmtime.wat2wasm(source))


def ended(table: kelek.Table, apid: int) -> dict[str, str]:
    wait_until(lambda: table.job_status(apid)["state"] != "running")
    return table.job_status(apid)


def test_an_index_is_made_by_two_mappers_at_once(table: kelek.Table, node: NodeTables) -> None:
    found = ended(table, table.map_into(8, wasm(SWAP.read_text()), threads=2))
    assert (found["state"], found["rows"], found["puts"]) == ("done", str(ROWS), str(ROWS))
    with kelek.Table([node.endpoints["n1"]["url"]], 8, timeout_ms=TIMEOUT_MS) as index:
        assert index.get(b"v77") == b"000077"
        assert index.count() == ROWS


def test_a_mapper_that_never_ends_is_ended(table: kelek.Table) -> None:
    found = ended(table, table.map_into(9, wasm(SLOW.format(turns=0))))  # 2^32 of them.
    assert found["state"] == "failed"
    assert "fuel" in found["reason"] or "longer than" in found["reason"]
    assert found["puts"] == "0"


def test_a_lease_of_all_nodes_outlives_its_job_server(table: kelek.Table, node: NodeTables) -> None:
    pid = node.cluster.pid("n1", "job_server")
    lease = table.open_snapshot()
    chunks = table.snapshot_chunks(lease.number, chunk_pairs=5000)
    found = [next(chunks) for _ in range(3)]
    os.kill(pid, signal.SIGKILL)
    found += chunks
    assert [key for chunk in found for key, _ in chunk] == [b"%06d" % i for i in range(ROWS)]
    table.release(lease.number)
    wait_until(lambda: not os.path.exists(lease.path), "it is released and stays")


def test_nothing_of_a_killed_job_server_is_left(table: kelek.Table, node: NodeTables) -> None:
    """Not its mappers, nor its snapshots; and no number of its jobs comes back."""
    pid = node.cluster.pid("n1", "job_server")
    job = table.range_job(lease=0)
    chunks = table.chunks(job)
    assert len(next(chunks)) == 1000
    slow = table.map_into(9, wasm(SLOW.format(turns=20_000_000)))
    mappers = [os.pidfd_open(child) for child in children_of(pid)]
    os.kill(pid, signal.SIGKILL)
    assert mappers
    for mapper in mappers:
        assert select.select([mapper], [], [], DEADLINE_S)[0], "a mapper lives on"
        os.close(mapper)
    with pytest.raises(kelek.TableError):  # Never the end of what it had.
        for _ in chunks:
            pass
    again = table.range_job()
    assert again.apid > max(slow, job.apid)
    assert sum(len(chunk) for chunk in table.chunks(again)) == ROWS
    assert not os.path.exists(job.path)
