"""kelek.Lock, kelek.Semaphore and kelek.Election, which block."""

import threading
import weakref
from contextlib import ExitStack
from typing import Self, TypeVar

from ..io.operations import Operation
from ..table.table import Table
from .operations import ElectionOperations, LockOperations, SemaphoreOperations, SessionHolder
from .shared_table import SharedTable

T = TypeVar("T")


class SessionDriver(SharedTable, SessionHolder):
    """Starts the keeper when there is something to keep."""

    _table: Table
    _keeper: "Keeper | None" = None

    def _run(self, operation: Operation[T]) -> T:
        result = super()._run(operation)
        if self._kept.is_needed:
            self._start_keeping()
        return result

    def _start_keeping(self) -> None:
        if self._keeper is None:
            self._keeper = Keeper(self)
            self._keeper.start()
        self._keeper.wake.set()

    def _keep(self) -> float | None:
        """Keeps the session if that is due. Returns how long to pause then, in s; None: until the
        keeper is woken."""
        with self._mutex:
            if not self._kept.is_needed:
                return None
            pause_s = self._table._run(self._kept.keep_if_due())
        if pause_s is None:
            self._lose()
        return pause_s

    def close(self) -> None:
        """Gives it back, if it is held, and closes the connections."""
        if self._keeper is not None:
            self._keeper.stop()
        with self._mutex:
            if self._table._links is not None:
                self._table._run(self._kept.end())
            self._table.close()

    def __enter__(self) -> Self:
        with ExitStack() as failed:
            failed.callback(self.close)
            self._run(self._enter())
            failed.pop_all()
        return self

    def _leave(self, failed: bool) -> None:
        try:
            self._run(self._exit(failed))
        finally:
            self.close()


class Keeper(threading.Thread):
    """Keeps the session while something is held. It ends with the object that it serves."""

    def __init__(self, holder: SessionDriver) -> None:
        super().__init__(name=f"kelek {holder.name}", daemon=True)
        self.wake = threading.Event()
        self._ended = False
        self._holder = weakref.ref(holder, lambda _: self.wake.set())

    def stop(self) -> None:
        self._ended = True
        self.wake.set()

    def run(self) -> None:
        pause_s: float | None = 0.0
        while True:
            self.wake.wait(pause_s)
            self.wake.clear()
            holder = self._holder()
            if holder is None or self._ended:
                return
            pause_s = holder._keep()
            del holder


class Lock(LockOperations, SessionDriver):
    """A lock of the cluster: of all objects with this name one holds it, in any process.

        with kelek.Lock("tcp://127.0.0.1:7100,tcp://127.0.0.1:7110", "report") as lock:
            write_report(lock.token)

    urls         ZeroDB addresses of some nodes, as of kelek.Table
    name         the lock's name, at most 1024 bytes of UTF-8
    ttl_s        the lock is free so long after its holder has died; a thread of this object keeps
                 it while the process lives. At least 0.5
    owner        the name of this holder that others see; by default HOST:PROCESS
    on_lost      called in the keeper's thread when the lock is lost while it is held
    table        the number of the table that holds the locks; a key needs rw for it
    timeout_ms, key, server_keys   as of kelek.Table

    `with` takes the lock, gives it back and closes. To take it often, call acquire() and release(),
    then close(). Who waits gets it in order. When a process pauses longer than ttl_s, or reaches no
    server so long, the lock is lost: `held` is false, and release() and the end of `with` raise
    LockLost. What must not happen twice then needs `token`, or a batch with when_alive(session).
    """


class Semaphore(SemaphoreOperations, SessionDriver):
    """As kelek.Lock, for at most `limit` holders at once; all must give the same limit.

        with kelek.Semaphore("tcp://127.0.0.1:7100", "downloads", 3):
            download()

    Further arguments are those of kelek.Lock.
    """


class Election(ElectionOperations, SessionDriver):
    """Of all objects with this name one leads; the others wait in order.

        with kelek.Election("tcp://127.0.0.1:7100", "scheduler", owner="host-1") as election:
            while election.held:
                work(election.token)

    `with` waits until this object leads, and resigns at its end. The arguments are those of
    kelek.Lock; `owner` is the name that leader() and observe() show.
    """
