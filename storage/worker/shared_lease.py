"""Takes the snapshots that entries of the log ask for, on each node at the same place of the log.

Whether a node can take one changes no table: it says why not, and applies what follows.
"""

from ...protocols.zerodb.wire.ops import LeaseOpen
from ...protocols.zerodb.wire.values import shared_lease
from ..errors import StorageError
from ..tables.directory import TableDirectory
from .lease_folder import MARK, LeaseFolder, Mark, encode_mark

LATE_MS_MIN = 60_000  # So late a node takes a snapshot still, however short leases live.
SHARED_MAX = 192  # Snapshots of a node, if nobody removes any.
FREE_BYTES_MIN = 128 << 20  # On the disk: what a snapshot holds can't be freed by a compaction.


class SharedLeases:
    """The shared leases that one worker takes."""

    def __init__(self, home: TableDirectory, folder: LeaseFolder, idle_ms: int) -> None:
        self._home = home
        self._folder = folder
        self._late_ms = max(idle_ms, LATE_MS_MIN)

    def take(self, op: LeaseOpen, at: tuple[int, int], unix_ms: int) -> str:
        """Everything before `at`, index and term of the entry of op, is applied, and nothing else.
        Returns why there is no snapshot of it; empty: there is one, also if it was there already.

        The tables must not know of that entry yet: so whoever is killed in here comes to it again.
        """
        number = shared_lease(at[0])
        try:
            if self._folder.mark(number) is not None:
                return ""  # The entry is applied once more: the tables have lost it in a crash.
            self._check(op, unix_ms)
            mark = MARK, encode_mark(Mark(op.table, *at))
            self._home.write_lease(self._folder.path(number), mark)
        except StorageError as error:
            return str(error)
        return ""

    def _check(self, op: LeaseOpen, unix_ms: int) -> None:
        """Raises StorageError."""
        folder = self._folder.path(0)
        late_s = (unix_ms - op.now_ms) // 1000
        if 1000 * late_s > self._late_ms:
            problem = f"the entry is {late_s} s old: whoever wanted this snapshot has gone"
            raise StorageError(folder, problem, "ask for another one; compare the nodes' clocks")
        if len(self._folder.shared()) >= SHARED_MAX:
            problem = f"{SHARED_MAX} snapshots are shared by the nodes already"
            raise StorageError(folder, problem, "release some")
        free = self._folder.free()
        if free < FREE_BYTES_MIN:
            problem = f"{free >> 20} MiB are free, a snapshot wants {FREE_BYTES_MIN >> 20}"
            raise StorageError(folder, problem, "free some")
