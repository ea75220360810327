"""Tables on real processes: killed workers, wiped nodes, snapshots; equal content at the end."""

import contextlib
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kelek.clients.errors import TableCompacted, TableError
from kelek.clients.table.table import Table
from kelek.tests.crash.programs import own_disk
from kelek.tests.waiting import wait_until

DEADLINE_S = 120.0
TABLE = 5
LOCAL = 1000
DISK_BYTES = 64 << 20
ROOM_BYTES = 2 << 20  # Left on a disk that gets full.
NODES = ("n1", "n2", "n3")
# A snapshot each few hundred entries: the log soon lacks its beginning.
LOG = "segment_bytes: 64KiB, snapshot_entries: 150, snapshot_trailing_entries: 0"


class TablesCluster:
    """Nodes with tables, and what can be done to them."""

    def __init__(self, shell: Any, nodes: tuple[str, ...], **settings: str) -> None:
        """settings   prefix, options: before and behind `supervisor start`; zerodb: more of it"""
        self.shell = shell
        self.nodes = nodes
        self.command = "{prefix} supervisor start --detach {options} tables.yaml".format(
            **{"prefix": "", "options": "", **settings}
        )
        folder = shell.environment["XDG_RUNTIME_DIR"]
        self.urls = {node: f"ipc://{folder}/{node}.z" for node in nodes}
        lines = ["cluster: tables", "data: var", f"log: {{{LOG}}}", "nodes:"]
        for node, port in zip(nodes, (7201, 7202, 7203), strict=False):
            url, peer = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 20}"
            section = f"zerodb: {{url: '{self.urls[node]}'}}"
            lines.append(f"  {node}: {{url: '{url}', peer_url: '{peer}', {section}}}")
        lines.append("raft: {election_timeout_ms: [600, 1000]}")
        zerodb = settings.get("zerodb", "workers: 2")
        lines.append(f"zerodb: {{local_tables: [{LOCAL}], {zerodb}}}")
        text = shell.translate("\n".join(lines) + "\n")
        Path(shell.folder, "tables.yaml").write_text(text)
        self.start()

    def start(self) -> None:
        self.shell.ok(self.command)

    def stop(self) -> None:
        self.shell.run("supervisor stop tables.yaml")

    def rows(self, role: str) -> list[dict[str, Any]]:
        return [row for row in self.shell.status("tables.yaml") if row["role"] == role]

    def kill(self, node: str, role: str) -> None:
        pids = [row["pid"] for row in self.rows(role) if row["node"] == node and row["pid"]]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self, good: Callable[[], bool]) -> None:
        wait_until(good, lambda: self.shell.status("tables.yaml"), DEADLINE_S)

    def contents(self, table: int) -> dict[str, tuple[int, str]]:
        """For each node the index that it has applied and the hash of the table's content."""
        found = {}
        for node, url in self.urls.items():
            with Table([url], table, timeout_ms=60_000) as opened:
                info = opened.info(content=True) or {}
                found[node] = info.get("applied_index", 0), info.get("content", "")
        return found

    def check_equal(self, *tables: int) -> None:
        """Waits until all nodes have come to one index: there all content is equal."""
        for table in tables:
            while True:
                found = self.contents(table)
                by_index: dict[int, set[str]] = {}
                for index, content in found.values():
                    by_index.setdefault(index, set()).add(content)
                assert all(len(contents) == 1 for contents in by_index.values()), found
                if len(by_index) == 1:
                    break

    def log(self, node: str, name: str) -> str:
        return Path(self.shell.folder, "var", node, "logs", f"{name}.log").read_text()

    def table(self, number: int, nodes: tuple[str, ...] = ()) -> Table:
        return Table([self.urls[node] for node in nodes or self.nodes], number, timeout_ms=60_000)


@pytest.fixture
def cluster(shell: Any) -> Iterator[Callable[..., TablesCluster]]:
    made: list[TablesCluster] = []

    def make(nodes: tuple[str, ...], **settings: str) -> TablesCluster:
        made.append(TablesCluster(shell, nodes, **settings))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def put(table: Table, numbers: Any) -> None:
    """Acknowledged one after the other, ten rows each."""
    for number in numbers:
        table.put_many((b"%06d-%d" % (number, row), b"%d" % number * 20) for row in range(10))


@pytest.mark.timeout(400)
def test_nodes_that_lost_their_tables_get_them_again(cluster: Callable[..., TablesCluster]) -> None:
    running = cluster(NODES)
    with running.table(TABLE) as table, running.table(TABLE + 1) as other:
        put(table, range(250))
        put(other, range(50))
        running.wait(lambda: all(row.get("base_index", 0) for row in running.rows("raft_peer")))
        # The tables alone are lost: what the log has no more comes from the snapshot.
        data = Path(running.shell.folder, "var", "n2", "tables")
        pids = [row["pid"] for row in running.rows("table_worker") if row["node"] == "n2"]
        data.rename(data.with_name("lost"))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        # All of a node is lost.
        rows = [row for row in running.rows("raft_peer") if row["node"] == "n3"]
        wiped = Path(running.shell.folder, "var", "n3")
        for role in ("raft_peer", "snapshot_sender", "state_machine", "table_worker"):
            rows += [row for row in running.rows(role) if row["node"] == "n3"]
        for name in ("raft", "tables"):
            shutil.move(wiped / name, wiped / f"lost.{name}")
            (wiped / name).mkdir()
        for pid in {row["pid"] for row in rows}:
            os.kill(pid, signal.SIGKILL)
        put(table, range(250, 260))
        running.check_equal(TABLE, TABLE + 1)
        assert table.count() == 2600
    for node in ("n2", "n3"):
        assert "restored index=" in running.log(node, "table_worker.2")


@pytest.mark.timeout(400)
def test_killed_at_any_moment_nothing_is_lost_or_done_twice(
    cluster: Callable[..., TablesCluster],
) -> None:
    running = cluster(NODES)
    random = Random(7)
    numbers = count()
    acknowledged = 0
    roles = ("table_worker", "zerodb_server", "raft_peer", "snapshot_sender", "state_machine")
    with running.table(TABLE, ("n1", "n2")) as table:
        for round_ in range(6):
            node = random.choice(NODES)
            victim = "table_worker" if round_ % 2 else random.choice(roles)
            for _ in range(random.randint(1, 30)):
                acknowledged = next(numbers) + 1
                put(table, [acknowledged - 1])
            running.kill(node, victim)
        put(table, [next(numbers)])
        acknowledged += 1
        found = dict(table.scan())
        assert len(found) == 10 * acknowledged
        assert {int(key[:6]) for key in found} == set(range(acknowledged))
    running.check_equal(TABLE)


def test_local_tables_and_one_process(cluster: Callable[..., TablesCluster]) -> None:
    running = cluster(("n1",), options="--one-process")
    with running.table(LOCAL) as local, running.table(TABLE) as table:
        put(local, range(10))
        put(table, range(300))
        assert local.count() == 100
        running.wait(lambda: running.rows("raft_peer")[0].get("base_index", 0) > 0)
        replicated = [(opened.info() or {})["replicated"] for opened in (local, table)]
        assert replicated == [False, True]
    running.stop()
    shutil.rmtree(Path(running.shell.folder, "var", "n1", "tables", "table_worker.2"))
    running.start()
    with running.table(LOCAL) as local, running.table(TABLE) as table:
        assert local.count() == 100
        with pytest.raises(TableCompacted) as gone:  # No entry tells what became of a local table.
            next(local.watch(after=0))
        local.put(b"key", b"value")
        changes = local.watch(after=gone.value.after)
        assert next(changes) == (gone.value.index, b"key", b"value", None)
        assert table.count() == 3000
        put(table, [300])
        assert table.count() == 3010


def test_tables_with_damaged_files_are_rebuilt(
    cluster: Callable[..., TablesCluster],
) -> None:
    running = cluster(("n1",), zerodb="workers: 1")
    folder = Path(running.shell.folder, "var", "n1", "tables", "table_worker")
    with running.table(TABLE) as table:
        put(table, range(200))
        running.wait(lambda: running.rows("raft_peer")[0].get("base_index", 0) > 0)
        for path in (folder / "replicated").glob("*.sst"):
            with path.open("r+b") as file:
                file.write(b"nothing good" * 40)
        until = time.monotonic() + DEADLINE_S
        while True:  # An answer to a read that meets the damage says so.
            with contextlib.suppress(TableError):
                if table.count() == 2000 and (folder / "replicated.damaged").exists():
                    break
            assert time.monotonic() < until
        put(table, [200])
        assert len(dict(table.scan())) == 2010


def test_a_full_disk_makes_tables_read_only_until_there_is_room(
    shell: Any, cluster: Callable[..., TablesCluster]
) -> None:
    folder = Path(shell.folder, "var", "n1", "tables")
    folder.mkdir(parents=True)
    prefix = shlex.join(own_disk(folder, DISK_BYTES))
    running = cluster(("n1",), prefix=prefix, zerodb="write_buffer_bytes: 1 MiB, workers: 1")
    with running.table(TABLE) as table:
        put(table, range(10))
        (row,) = running.rows("table_worker")
        disk = Path(f"/proc/{row['pid']}/root{folder}")
        space = os.statvfs(disk)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(space.f_bavail * space.f_frsize - ROOM_BYTES))
        table.timeout_ms = 3000  # It asks again, as what the log has is applied one day.
        acknowledged = 0
        with contextlib.suppress(TableError):
            for _ in range(1000):
                table.put(b"large %04d" % acknowledged, os.urandom(32 << 10))
                acknowledged += 1
        table.timeout_ms = 60_000
        assert 0 < acknowledged < 1000
        assert table.get(b"000003-4") == b"3" * 20
        assert table.get(b"large 0000") is not None
        running.wait(lambda: "no space" in running.rows("table_worker")[0].get("read_only", ""))
        ballast.unlink()
        running.wait(lambda: "read_only" not in running.rows("table_worker")[0])
        table.put(b"later", b"1")
        keys = set(table.keys())
        assert {b"large %04d" % number for number in range(acknowledged)} <= keys
        assert len([key for key in keys if key.startswith(b"0")]) == 100
