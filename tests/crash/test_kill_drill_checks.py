"""What kill_drill.py would find, if it were there: it is shown nodes that do something wrong."""

from pathlib import Path

import pytest

from kelek.bench.kelek_cluster import NODES
from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire.ops import Put
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import open_tables
from kelek.tests.crash.kill_drill import SHARED_BYTES, Broken, Drill, Held, Rows
from kelek.tests.interop.zerodb import zerodb_plain as plain
from kelek.tests.interop.zerodb.zerodb_plain import Frames, Pair, PlainTableClient, in_pairs, number

TURNS = 40  # Of each writer.
FAULT = 40  # Which of the writes that it could happen to it happens to.


class FakeNodes:
    """All tables of the three nodes, and a fault that happens once."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.tables: list[Held] = [{} for _ in NODES]
        self.writes = 0

    def write(self, node: int, frames: Frames) -> bool:
        """Applies a write; returns whether it is answered."""
        local = table_of(frames) <= 100
        targets = [self.tables[node]] if local else self.tables
        happens = self.counts(frames, local) and self.writes == FAULT
        if happens and self.fault == "lost":
            return True
        if happens and self.fault in {"stale", "parted"}:
            targets = targets[: 2 if self.fault == "stale" else 1]
        for tables in targets:
            apply(tables, frames, half=happens and self.fault == "half")
            if happens and self.fault == "twice":
                apply(tables, frames)
        return not (happens and self.fault in {"silent", "parted"})

    def counts(self, frames: Frames, local: bool) -> bool:
        """Whether this write could reveal the fault."""
        kind = frames[0][2]
        could = {
            "lost": kind == plain.PUT,
            "twice": kind == plain.DELETE_LIMITED,
            "half": kind == plain.WRITE_TABLES and frames[-1] != b"nothing",
            "stale": kind == plain.PUT and not local,
            "parted": kind == plain.PUT and not local,
        }
        self.writes += could.get(self.fault, True)
        return could.get(self.fault, True)


class OneNode(PlainTableClient):
    """A connection to a node, which answers at once."""

    def __init__(self, nodes: FakeNodes, node: int) -> None:
        self.nodes, self.node = nodes, node
        self.header: bytes | None = None

    def send(self, *frames: bytes) -> None:
        answered = self.nodes.write(self.node, list(frames))
        self.header = frames[0][:3] + b"\0" if answered else None

    def receive(self) -> Frames:
        assert self.header is not None
        return [self.header]

    def scan(
        self, table: int, limit: int | None = None, start: bytes = b"", end: bytes = b""
    ) -> list[Pair]:
        return sorted(self.nodes.tables[self.node].get(table, {}).items())

    def close(self) -> None:
        pass


class DrillWithoutProcesses(Drill):
    """The drill's writers and checker without processes."""

    def __init__(self, folder: Path, fault: str) -> None:
        super().__init__(folder / "d", seed=1)
        self.context.destroy(0)  # There are no connections.
        self.nodes = FakeNodes(fault)

    def connect(self, node: int) -> PlainTableClient:
        return OneNode(self.nodes, node)

    def play(self) -> None:
        writers = self.writers()
        for _ in range(TURNS):
            for writer in writers:
                client = writer.client
                assert isinstance(client, OneNode)
                if client.header is None:
                    writer.leave()
                else:
                    writer.on_answer()
        for writer in writers:
            writer.leave()
        assert self.nodes.writes > FAULT
        self.check_everybody()


def table_of(frames: Frames) -> int:
    return number(frames[1][:4])


def apply(tables: Held, frames: Frames, half: bool = False) -> None:
    """Applies a request of a writer; half: only the first of several parts."""
    header, first, *rest = frames
    rows = tables.setdefault(number(first[:4]), {})
    match header[2]:
        case plain.PUT:
            rows.update(in_pairs(rest))
        case plain.DELETE:
            remove(rows, rest)
        case plain.DELETE_LIMITED:
            remove(rows, sorted(rows)[: number(rest[1])])
        case plain.WRITE_TABLES:
            puts = 2 * number(first[4:8])
            rows.update(in_pairs(rest[:puts]))
            part, *keys = rest[puts:]
            if not half:
                remove(tables.setdefault(number(part[:4]), {}), keys)


def remove(rows: Rows, keys: list[bytes]) -> None:
    for key in keys:
        rows.pop(key, None)


@pytest.mark.parametrize("fault", ["none", "silent"])
def test_correct_nodes_pass(tmp_path: Path, fault: str) -> None:
    """Also if an answer is lost: its write is applied or not."""
    drill = DrillWithoutProcesses(tmp_path, fault)
    drill.play()
    assert drill.acknowledged > 0.9 * TURNS * 9


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("lost", "lacks|should not have"),
        ("twice", "lacks"),
        ("half", "should not have"),
        ("stale", "n3: .*lacks"),
        ("parted", "is not the same on all nodes"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, fault: str, found: str) -> None:
    with pytest.raises(Broken, match=found):
        DrillWithoutProcesses(tmp_path, fault).play()


def databases(folder: Path, contents: list[tuple[int, bytes]]) -> None:
    """The databases of three nodes: the applied index, and a value."""
    for name, (index, value) in zip(NODES, contents, strict=True):
        path = folder / "d" / "data" / name / "tables" / "table_worker" / "replicated"
        tables = open_tables(str(path), Resources.of(SHARED_BYTES, SHARED_BYTES), replicated=True)
        tables.write([TableEntry(index, 1, [Put(7, [b"k"], [value])])])
        tables.close()


def test_equal_indexes_hold_equal_bytes(tmp_path: Path) -> None:
    databases(tmp_path, [(5, b"v"), (5, b"v"), (6, b"later")])
    drill = DrillWithoutProcesses(tmp_path, "none")
    drill.check_hashes()
    assert drill.seen["databases compared"] == 1


def test_a_node_that_holds_other_bytes_is_found(tmp_path: Path) -> None:
    databases(tmp_path, [(5, b"v"), (4, b"earlier"), (5, b"w")])
    with pytest.raises(Broken, match="differs from another node's at index 5"):
        DrillWithoutProcesses(tmp_path, "none").check_hashes()


def test_an_answer_for_another_request_is_found(tmp_path: Path) -> None:
    drill = DrillWithoutProcesses(tmp_path, "none")
    (writer, *_) = drill.writers()
    assert isinstance(writer.client, OneNode)
    writer.client.header = b"\x31\x01\x10\0"
    with pytest.raises(Broken, match="was answered with"):
        writer.on_answer()
