"""Makes the snapshots of shared leases, at the same entry of the log on each node.

A node that cannot make one reports why and applies further entries; no table depends on it.
"""

from ...protocols.zerodb.wire.ops import LeaseOpen
from ...protocols.zerodb.wire.values import shared_lease
from ..errors import StorageError
from ..tables.directory import TableDirectory
from .lease_folder import DESCRIPTION, LeaseDescription, LeaseFolder, encode_description

LATE_MS_MIN = 60_000  # A node makes the snapshot up to this late, however short leases live.
SHARED_MAX = 192  # Snapshots of a node, if none is removed.
FREE_BYTES_MIN = 128 << 20  # On the disk: compaction cannot free what a snapshot holds.


class SharedLeases:
    """Makes the snapshots of one worker."""

    def __init__(self, directory: TableDirectory, folder: LeaseFolder, idle_ms: int) -> None:
        self._directory = directory
        self._folder = folder
        self._late_ms = max(idle_ms, LATE_MS_MIN)

    def make_snapshot(self, op: LeaseOpen, at: tuple[int, int], unix_ms: int) -> str:
        """Makes the snapshot of an entry at position `at`; exactly the entries before it are
        applied. Returns why there is none, or an empty text; a snapshot that exists already is
        fine.

        The tables must not know of that entry yet, so that a worker killed in here repeats it.
        """
        number = shared_lease(at[0])
        try:
            if self._folder.description(number) is not None:
                return ""  # The entry is applied again, since the tables have lost it in a crash.
            self._check(op, unix_ms)
            description = (
                DESCRIPTION,
                encode_description(LeaseDescription(op.table, *at, op.now_ms)),
            )
            self._directory.write_lease(self._folder.path(number), description)
        except StorageError as error:
            return str(error)
        return ""

    def _check(self, op: LeaseOpen, unix_ms: int) -> None:
        """Raises StorageError."""
        folder = self._folder.path(0)
        late_s = (unix_ms - op.now_ms) // 1000
        if 1000 * late_s > self._late_ms:
            problem = f"the entry is {late_s} s old: its client has given up"
            raise StorageError(folder, problem, "open another lease; compare the nodes' clocks")
        if len(self._folder.shared()) >= SHARED_MAX:
            problem = f"the nodes share {SHARED_MAX} snapshots already"
            raise StorageError(folder, problem, "release some")
        free = self._folder.free()
        if free < FREE_BYTES_MIN:
            problem = f"{free >> 20} MiB are free, a snapshot needs {FREE_BYTES_MIN >> 20}"
            raise StorageError(folder, problem, "free some")
