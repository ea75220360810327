"""Checkpoints and local writes for job_server, once the index that they wait for is applied."""

from typing import NamedTuple

from ...errors import StorageFailure
from ..tables.tables import LogPosition, TableEntry, store_applied
from ..wire import ops
from ..wire.values import DATABASE_ERROR
from ..wire.worker_pipe import CHECKPOINT, FAILED, LOG_POSITION, PIPE_HEADER, Message
from .requests import Databases


class JobRequest(NamedTuple):
    """A checkpoint or a write that waits for an index."""

    kind: int
    log_index: int
    ticket: int
    table: int
    data: bytes  # The path of the checkpoint, or packed operations.


class JobRequestQueue:
    """The unfinished requests of job_server."""

    def __init__(self, open_on_the_fly: bool) -> None:
        self._open_on_the_fly = open_on_the_fly
        self._waiting: list[JobRequest] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: JobRequest) -> None:
        self._waiting.append(request)

    def run(self, databases: Databases, applied: LogPosition) -> list[Message]:
        """Does what needs no index above `applied`. Returns messages for job_server."""
        due = [request for request in self._waiting if request.log_index <= applied[0]]
        if due:
            self._waiting = [each for each in self._waiting if each.log_index > applied[0]]
        return [self._run(request, databases, applied) for request in due]

    def _run(self, request: JobRequest, databases: Databases, applied: LogPosition) -> Message:
        kind, code = request.kind, 0
        try:
            if kind == CHECKPOINT:
                frames = _make_checkpoint(request, databases, applied)
            else:
                frames = self._write(request, databases)
        except (StorageFailure, ValueError) as error:
            kind, code, frames = FAILED, DATABASE_ERROR, [str(error).encode()]
        return [PIPE_HEADER.pack(kind, 0, 0, code, request.log_index, request.ticket), *frames]

    def _write(self, request: JobRequest, databases: Databases) -> Message:
        """Raises StorageFailure, ValueError."""
        local, table = databases.local, request.table
        if table not in databases.owner.local or local is None:
            raise ValueError(f"table {table} is not local")
        if not self._open_on_the_fly and table not in local.tables():
            raise ValueError(f"table {table} is not open")
        outcomes = local.write([TableEntry(0, 0, ops.unpack(request.data))], sync=True)
        if outcomes and outcomes[0].problem:
            raise ValueError(outcomes[0].problem)
        return []


def _make_checkpoint(request: JobRequest, databases: Databases, applied: LogPosition) -> Message:
    """Raises StorageFailure, ValueError."""
    tables, position = databases.replicated, applied
    if request.table in databases.owner.local:
        if databases.local is None:
            raise ValueError(f"table {request.table} is another worker's")
        tables, position = databases.local, (0, 0)
    else:
        store_applied(tables, position)
    tables.checkpoint(request.data.decode())
    return [request.data, LOG_POSITION.pack(*position)]
