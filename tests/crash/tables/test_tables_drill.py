"""Tables on real disks: killed at random points, out of space."""

from pathlib import Path
from random import Random

import pytest

from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import open_tables
from kelek.tests.crash.programs import in_namespace, killed, started
from kelek.tests.crash.tables import tables_drill
from kelek.tests.storage.memory_tables import MemoryTables

DRILL = Path(__file__).with_name("tables_drill.py")
DEADLINE_S = 60
ROOM_BYTES = 4 << 20  # Left on the disk that gets full.
SHARED = Resources.of(1 << 20, 2 << 20)


class TablesTwin:
    """What the tables must hold behind an entry."""

    def __init__(self) -> None:
        self.memory = MemoryTables()

    def check(self, path: str, replicated: bool, durable: int) -> None:
        """Whole entries, all that were durable among them, and nothing else."""
        tables = open_tables(path, SHARED, replicated)
        reached = tables.applied[0]
        assert reached >= durable
        if reached < self.memory.applied[0]:
            self.memory = MemoryTables()  # What was written behind that was lost.
        for index in range(self.memory.applied[0] + 1, reached + 1):
            self.memory.write([tables_drill.entry(index)])
        assert tables.applied == self.memory.applied
        assert tables.tables() == self.memory.tables()
        assert tables.expires_ms == self.memory.expires_ms
        for table in tables.tables():
            assert tables.content_hash(table) == self.memory.content_hash(table)
        tables.close()


def durable_in(output: str) -> int:
    found = [int(line.split()[1]) for line in output.splitlines() if line.startswith("durable")]
    return max(found, default=0)


@pytest.mark.parametrize("kind", ["replicated", "local"])
def test_killed_at_random_points(tmp_path: Path, kind: str) -> None:
    random, path, twin, durable = Random(kind), str(tmp_path / "db"), TablesTwin(), 0
    for _ in range(8):
        process = started(DRILL, path, kind, 1_000_000)
        assert process.stdout is not None
        seen = "".join(process.stdout.readline() for _ in range(random.choice((1, 2, 30, 200))))
        durable = max(durable, durable_in(seen + "\n".join(killed(process))))
        twin.check(path, kind == "replicated", durable)
    assert durable > 50, "it got nowhere"


@pytest.mark.parametrize(
    ("kind", "size", "stuck_s"),
    [
        ("replicated", 64 << 20, 0.5),  # The engine wants 64 MiB free: it is opened anew.
        ("local", 160 << 20, 1000),  # It goes on by itself.
    ],
)
def test_full_disk(tmp_path: Path, kind: str, size: int, stuck_s: float) -> None:
    """The disk has room for a part of it until the ballast goes."""
    disk, after = tmp_path / "disk", tmp_path / "after"
    disk.mkdir()
    ballast = f"head -c {size - ROOM_BYTES} /dev/zero > {disk}/ballast"
    mount = f"mount -t tmpfs -o size={size} none {disk}"
    command = in_namespace(f'{mount}; {ballast}; "$@"; cp -r {disk}/db {after}; exit')
    arguments = disk / "db", kind, 600, disk / "ballast", stuck_s
    with started(DRILL, *arguments, command=command) as process:
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    told = [line for line in output.splitlines() if line.startswith(("full", "again"))]
    assert told, "the disk never was full"
    assert "no space is left" in told[0]
    assert told[1].startswith("again"), told
    TablesTwin().check(str(after), kind == "replicated", 600)
