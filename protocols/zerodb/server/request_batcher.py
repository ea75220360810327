"""The usual requests of one arena, sorted by where they go; their bytes are moved in C.

It decides nothing: the session says of each row what it is (native/tables/requests.py).
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
    heard: list[int]  # Places among them of those whose clients wait.


PositionsByWorker = dict[
    int, list[tuple[int, list[int]]]
]  # By worker: (kind, positions) one after the other.


class RowBatch:
    """Positions of rows, in the order of arrival."""

    def __init__(self, taken: Requests, workers: int) -> None:
        self.taken = taken
        self._workers = workers
        self._entries: dict[int, bytes] | None = None
        self.clear()

    def clear(self) -> None:
        """Everything so far is taken."""
        self.straight: PositionsByWorker = {}
        self.reads: PositionsByWorker = {}
        self.acknowledged: list[int] = []
        self.writes: list[Writes] = []

    def read_all(self) -> None:
        """Every row is a read that waits for the leader's word."""
        for position, table in enumerate(self.taken.tables):
            _positions(self.reads, table % self._workers, REQUEST).append(position)

    def write_all(self, deadline_ms: int) -> None:
        """Every row is a write of a replicated table, and its client waits."""
        places = list(range(len(self.taken)))
        self.writes.append(Writes(deadline_ms, places, places))

    def read(self, position: int, worker: int, straight: bool) -> None:
        """A read; straight: it needs no word of the leader's."""
        _positions(self.straight if straight else self.reads, worker, REQUEST).append(position)

    def hand(self, position: int, worker: int, kind: int) -> None:
        """A write of a local table."""
        _positions(self.straight, worker, kind).append(position)

    def write(self, position: int, deadline_ms: int, heard: bool) -> None:
        """A write of a replicated table; heard: its client waits."""
        if not self.writes or self.writes[-1].deadline_ms != deadline_ms:
            self.writes.append(Writes(deadline_ms, [], []))
        writes = self.writes[-1]
        if heard:
            writes.heard.append(len(writes.positions))
        writes.positions.append(position)

    def run(self, writes: Writes, new_reqids: Callable[[int], list[bytes]]) -> WriteRun:
        """The entries of writes; who has no reqid gets one."""
        taken = self.taken
        if self._entries is None:
            positions = [at for at, shape in enumerate(taken.shapes) if shape == WRITE]
            self._entries = dict(zip(positions, taken.entries(), strict=True))
        own = [taken.reqids[position] for position in writes.positions]
        made = iter(new_reqids(own.count(NO_REQID)))
        reqids = [next(made) if reqid == NO_REQID else reqid for reqid in own]
        entries = [self._entries[position] for position in writes.positions]
        places = [writes.positions[place] for place in writes.heard]

        def acknowledge(begin: int, end: int, out: Frames) -> None:
            self.taken.acknowledge(places[begin:end], out)

        workers = {taken.tables[position] % self._workers for position in writes.positions}
        return WriteRun(reqids, entries, writes.deadline_ms, workers, writes.heard, acknowledge)


def _positions(piles: PositionsByWorker, worker: int, kind: int) -> list[int]:
    runs = piles.setdefault(worker, [])
    if not runs or runs[-1][0] != kind:
        runs.append((kind, []))
    return runs[-1][1]
