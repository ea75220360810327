"""Leases of snapshots that every node has, as one node's job_server keeps them.

A table_worker takes the snapshot when it applies the log entry, and stores it in the folder. The
folder is authoritative, whether or not messages arrive. Log entries tell all nodes that a lease is
in use on a node or was released. No node ends a lease as unused while another node reads it.
"""

from ...net.clock import earliest
from ...protocols.zerodb.server.jobs import ROWS_LATE_MS, JobTable, Lease
from ...protocols.zerodb.wire import ops, requests
from ...protocols.zerodb.wire.kept import KeptRow, encode_kept, kept_key
from ...protocols.zerodb.wire.values import SNAPSHOT_TABLE, Extension
from ...protocols.zerodb.wire.worker_pipe import LEASE, LEASE_ENDED, LEASE_OPENED, LEASE_RENEWED
from ...protocols.zerodb.wire.writes import operations_of
from ...storage.worker.lease_folder import LeaseFolder
from ...storage.worker.shared_lease import FREE_BYTES_MIN
from .map_jobs import JobPort

LeaseOperation = ops.LeaseOpen | ops.LeaseKeep | ops.LeaseEnd
DISK_CHECK_MS = 1000  # Interval of checking the disk's free space while leases exist.


class SharedLeases:
    """The shared leases of one node, beside its job table and its folder."""

    def __init__(self, table: JobTable, folder: LeaseFolder, port: JobPort) -> None:
        self._table = table
        self._folder = folder
        self._port = port
        self.renewals: dict[int, int] = {}  # By ticket: leases that a log entry is to renew.
        self._disk_check_due_ms = 0

    # ---- what is in the folder ----

    def adopt(self, number: int, now_ms: int, idle_ms: int = 0) -> Lease | None:
        """Opens a snapshot of the folder; returns None if it is not there. Raises StorageError.

        idle_ms   as of JobTable.add_lease()
        """
        if number in self._table.shared:
            return self._table.lease(number)
        description = self._folder.description(number)
        if description is None:
            return None
        lease = Lease(
            number,
            description.table,
            self._folder.path(number),
            description.log_index,
            description.term,
            unix_ms=description.unix_ms,
        )
        self._table.add_lease(lease, True, now_ms, idle_ms)
        return lease

    def adopt_all(self, now_ms: int) -> None:
        """Opens every snapshot of the folder, also those that no message announced.

        After a start some may be kept: the worker reports that once it has applied the log.
        """
        for number in self._folder.shared():
            if self.adopt(number, now_ms, ROWS_LATE_MS) is None:
                self._folder.remove(number)

    # ---- what the log says ----

    def on_applied(self, event: int, number: int, now_ms: int) -> None:
        """A worker has applied an entry about a lease. Raises StorageError."""
        if event == LEASE_OPENED:
            self.adopt(number, now_ms)
        elif event == LEASE_RENEWED:
            self._table.on_lease_renewed(number, now_ms)
        elif event == LEASE_ENDED:
            self._table.on_lease_released(number)

    def request(
        self, ticket: int, op: LeaseOperation, reqid: bytes = b"", owner: str | None = None
    ) -> None:
        """Requests an entry about a lease; this node need not hold the lease.

        owner   the key that owns an opened lease; None: it has no owner
        """
        self._port.request(LEASE, ticket, op.table, ops.pack([op]), reqid, (owner or "").encode())

    def keep(self, ticket: int, request: requests.Lease, kept: KeptRow) -> None:
        """Requests the row of a kept snapshot, which ends with its time to live, or its end."""
        keys, extension = [kept_key(kept.table, kept.lease)], Extension(ttl_ms=request.ttl_ms)
        operations: list[ops.Op] = [ops.Delete(SNAPSHOT_TABLE, keys)]
        if request.ttl_ms:
            put = requests.Put(SNAPSHOT_TABLE, keys, [encode_kept(kept)], extension=extension)
            operations = operations_of(put, kept.until_ms - request.ttl_ms)
        data, reqid = ops.pack(operations), request.extension.reqid
        self._port.request(LEASE, ticket, SNAPSHOT_TABLE, data, reqid, b"")

    def on_written(self, ticket: int) -> bool:
        """Handles an applied entry; returns False if this object did not request it."""
        return self.renewals.pop(ticket, None) is not None

    def on_failed(self, ticket: int, now_ms: int) -> bool:
        """Handles an entry that may not be applied; returns False if this object did not request
        it."""
        number = self.renewals.pop(ticket, None)
        if number is not None:
            self._table.on_renewal_failed(number, now_ms)
        return number is not None

    def on_server_lost(self, now_ms: int) -> None:
        """Forgets all requests, because zerodb_server has ended."""
        for ticket in list(self.renewals):
            self.on_failed(ticket, now_ms)

    # ---- time ----

    def tick(self, now_ms: int) -> None:
        """Reports leases in use and frees disk space. Raises StorageError."""
        for number in self._table.due_renewals(now_ms):
            ticket = self._port.next_ticket()
            self.renewals[ticket] = number
            self.request(ticket, ops.LeaseKeep(0, number))
        if self._table.shared and now_ms >= self._disk_check_due_ms:
            self._disk_check_due_ms = now_ms + DISK_CHECK_MS
            if self._folder.free() < FREE_BYTES_MIN:
                self._table.drop_idle_lease()

    def deadline_ms(self) -> int | None:
        """Time of the next tick()."""
        if not self._table.shared:
            return None
        return earliest(self._disk_check_due_ms, self._table.renewals_due_ms)
