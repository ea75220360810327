"""A table worker's part in the snapshot barrier: it writes its state at the ordered entry."""

from typing import NamedTuple, NoReturn, Protocol

from ...errors import StorageFailure
from ...zmqraft.snapshots.barrier import BarrierMessage, BarrierParticipant, Phase
from ..tables.tables import LogPosition, Tables


class SnapshotUnusable(Exception):
    """The newest snapshot is damaged, or there is no space for its tables; the text says which."""


class RestoredTables(NamedTuple):
    """A snapshot's tables that are unpacked."""

    at: LogPosition  # Of its last entry.
    files: int
    size: int


class TableStore(Protocol):
    """The databases of one worker (storage/tables/directory.py)."""

    replicated: Tables
    local: Tables | None

    def write_state(self, at: LogPosition) -> str:
        """Makes a checkpoint of the replicated tables, to which exactly the entries up to `at` are
        applied; returns its path. Raises StorageFailure."""

    def drop_state(self) -> None:
        """Removes the checkpoint of write_state()."""

    def replace(self, restored: RestoredTables) -> None:
        """Makes the unpacked tables current. No scan may be open. Raises StorageFailure."""

    def refuse_log(self, applied: LogPosition, term: int) -> NoReturn:
        """Raises StorageFailure: the log has another term at the applied index."""


class SnapshotParticipant:
    """Limits how far the worker applies, and writes its state when it is there."""

    def __init__(self, store: TableStore) -> None:
        # To be sent by the owner, with the path of the state or an empty text; the owner clears it.
        self.replies = [(BarrierMessage(Phase.RESUME), "")]
        self._store = store
        self._stop_line = BarrierParticipant()
        self.apply_limit = self._stop_line.apply_limit

    def on_order(self, order: BarrierMessage, applied: LogPosition, now_ms: int) -> None:
        """Processes an order of the snapshot_sender."""
        reply = self._stop_line.on_order(order, applied, now_ms)
        if reply is not None:
            self.replies.append((reply, ""))
        if order.phase is Phase.RESUME and self.is_current(order):
            self._store.drop_state()

    def is_current(self, order: BarrierMessage) -> bool:
        """Whether an order is of the last attempt that this process has taken part in."""
        return order.attempt == self._stop_line.attempt

    def write_state(self, applied: LogPosition) -> str | None:
        """Writes the state if an order wants it now. Returns the problem or an empty text; None: no
        order wants it."""
        reply = self._stop_line.reply_when_written(applied[0])
        if reply is None:
            return None
        self._stop_line.resume()
        try:
            self.replies.append((reply, self._store.write_state(applied)))
        except StorageFailure as error:
            self.replies.append((BarrierMessage(Phase.RESUME), ""))
            return str(error)
        return ""

    @property
    def deadline_ms(self) -> int | None:
        """When the stop expires."""
        return self._stop_line.deadline_ms
