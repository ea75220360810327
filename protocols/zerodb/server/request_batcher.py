"""Sorts the common requests of one receive by destination; C code moves their bytes.

The session decides what each row is (native/tables/requests.py).
"""

from collections.abc import Callable
from typing import NamedTuple

from ....native.net.messages import Frames
from ....native.tables.requests import WRITE, Requests
from ..wire.values import NO_REQID
from ..wire.worker_pipe import REQUEST
from .proposals import WriteRun


class Writes(NamedTuple):
    """Rows that become entries, with one deadline."""

    deadline_ms: int
    positions: list[int]
    awaited: list[int]  # Positions in `positions` of the writes whose clients expect answers.


# By worker: runs of one kind, as (kind, positions of rows).
PositionsByWorker = dict[int, list[tuple[int, list[int]]]]


class RowBatch:
    """Positions of rows by destination, in order of arrival."""

    def __init__(self, rows: Requests, workers: int) -> None:
        self.rows = rows
        self._workers = workers
        self._entries: dict[int, bytes] | None = None
        self.clear()

    def clear(self) -> None:
        """Starts again without positions."""
        self.immediate: PositionsByWorker = {}
        self.reads: PositionsByWorker = {}
        self.acknowledged: list[int] = []
        self.writes: list[Writes] = []

    def read_all(self) -> None:
        """All rows are reads that wait for the leader."""
        for position, table in enumerate(self.rows.tables):
            _positions(self.reads, table % self._workers, REQUEST).append(position)

    def write_all(self, deadline_ms: int) -> None:
        """All rows are writes of replicated tables whose clients expect answers."""
        positions = list(range(len(self.rows)))
        self.writes.append(Writes(deadline_ms, positions, positions))

    def read(self, position: int, worker: int, immediate: bool) -> None:
        """Adds a read; an immediate one does not wait for the leader."""
        _positions(self.immediate if immediate else self.reads, worker, REQUEST).append(position)

    def forward(self, position: int, worker: int, kind: int) -> None:
        """Adds a write of a local table."""
        _positions(self.immediate, worker, kind).append(position)

    def write(self, position: int, deadline_ms: int, awaited: bool) -> None:
        """Adds a write of a replicated table."""
        if not self.writes or self.writes[-1].deadline_ms != deadline_ms:
            self.writes.append(Writes(deadline_ms, [], []))
        writes = self.writes[-1]
        if awaited:
            writes.awaited.append(len(writes.positions))
        writes.positions.append(position)

    def write_run(self, writes: Writes, new_reqids: Callable[[int], list[bytes]]) -> WriteRun:
        """The entries of writes. Writes without a reqid get one."""
        rows = self.rows
        if self._entries is None:
            positions = [at for at, shape in enumerate(rows.shapes) if shape == WRITE]
            self._entries = dict(zip(positions, rows.entries(), strict=True))
        own = [rows.reqids[position] for position in writes.positions]
        made = iter(new_reqids(own.count(NO_REQID)))
        reqids = [next(made) if reqid == NO_REQID else reqid for reqid in own]
        entries = [self._entries[position] for position in writes.positions]
        positions = [writes.positions[position] for position in writes.awaited]

        def acknowledge(begin: int, end: int, out: Frames) -> None:
            self.rows.acknowledge(positions[begin:end], out)

        workers = {rows.tables[position] % self._workers for position in writes.positions}
        return WriteRun(reqids, entries, writes.deadline_ms, workers, writes.awaited, acknowledge)


def _positions(by_worker: PositionsByWorker, worker: int, kind: int) -> list[int]:
    runs = by_worker.setdefault(worker, [])
    if not runs or runs[-1][0] != kind:
        runs.append((kind, []))
    return runs[-1][1]
