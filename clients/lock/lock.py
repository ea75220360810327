"""kelek.Lock, kelek.Semaphore and kelek.Election, which block."""

import threading
import weakref
from contextlib import ExitStack
from typing import Self, TypeVar

from ..io.operations import Operation
from ..io.public import public
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
        elif self._keeper.is_idle:  # Else it looks again in time, as sessions begin with all of it.
            self._keeper.is_idle = False
            self._keeper.wake.set()

    def _keep(self) -> float | None:
        """Keeps the session if that is due. Returns how long to pause then, in s; None: until the
        keeper is woken."""
        pause_s = None
        with self._mutex:
            is_needed = self._kept.is_needed
            if is_needed:
                pause_s = self._table._run(self._kept.keep_if_due())
            if pause_s is None and self._keeper is not None:
                self._keeper.is_idle = True
        if is_needed and pause_s is None:
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
        self.is_idle = False  # There is nothing to keep; wake it when that changes.
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


@public()
class Lock(LockOperations, SessionDriver):
    """A lock of the cluster: of all objects with this name one holds it.

        with kelek.Lock("tcp://127.0.0.1:7100", "report") as lock:
            print("the lock is ours, with fencing token", lock.token)

    urls         ZeroDB addresses of some nodes, a list or joined by commas
    name         the lock's name, at most 1024 bytes of UTF-8
    ttl_s        it is free so many seconds after its holder's death; >= 0.5
    owner        the name of this holder that others see; None: HOST:PROCESS
    on_lost      called when it is lost: in a thread, or in asyncio's loop
    table        number of the table that holds it; a key needs rw for it
    timeout_ms   a call without an answer for so long raises TableTimeout
    key          path of this client's CURVE key, NAME.key_secret; None: none
    server_keys  the servers' public keys by url, or one key of all servers

    acquire(timeout_s)   takes it; False: not within timeout_s seconds
    release()            gives it back; the next one has it at once
    check()              raises LockLost unless it is held
    holders()            who holds it, then who waits, in order
    close()              gives it back and closes the connections
    held, token          whether it is held; its last fencing token
    session, name        its session, for Batch.when_alive(); its name

    `with` takes the lock, gives it back and closes. To take it often, call
    acquire() and release(), then close(). It is kept while the process lives;
    who waits gets it in order. After a pause longer than ttl_s, or so long
    without a server, it is lost: `held` is false, release() and the end of
    `with` raise LockLost. What must not happen twice then needs `token`, or a
    batch with when_alive(session).
    """


@public()
class Semaphore(SemaphoreOperations, SessionDriver):
    """A lock that at most `limit` objects hold at once.

        with kelek.Semaphore("tcp://127.0.0.1:7100", "downloads", 3) as one:
            print("one of three, with fencing token", one.token)

    urls         ZeroDB addresses of some nodes, a list or joined by commas
    name         the semaphore's name, at most 1024 bytes of UTF-8
    limit        how many may hold it; all must give the same
    ttl_s        it is free so many seconds after its holder's death; >= 0.5
    owner        the name of this holder that others see; None: HOST:PROCESS
    on_lost      called when it is lost: in a thread, or in asyncio's loop
    table        number of the table that holds it; a key needs rw for it
    timeout_ms   a call without an answer for so long raises TableTimeout
    key          path of this client's CURVE key, NAME.key_secret; None: none
    server_keys  the servers' public keys by url, or one key of all servers

    acquire(timeout_s)   takes it; False: not within timeout_s seconds
    release()            gives it back; the next one has it at once
    check()              raises LockLost unless it is held
    holders()            who holds it, then who waits, in order
    close()              gives it back and closes the connections
    held, token          whether it is held; its last fencing token
    session, name        its session, for Batch.when_alive(); its name

    `with` takes one of its places, gives it back and closes. Loss is as of
    kelek.Lock: `held` is false then, release() and `with` raise LockLost.
    """


@public()
class Election(ElectionOperations, SessionDriver):
    """Of all objects with this name one leads; the others wait in order.

        with kelek.Election("tcp://127.0.0.1:7100", "jobs", owner="a") as one:
            print(one.leader(), "leads, with fencing token", one.token)

    urls         ZeroDB addresses of some nodes, a list or joined by commas
    name         the election's name, at most 1024 bytes of UTF-8
    ttl_s        it is free so many seconds after its holder's death; >= 0.5
    owner        the name of this holder that others see; None: HOST:PROCESS
    on_lost      called when it is lost: in a thread, or in asyncio's loop
    table        number of the table that holds it; a key needs rw for it
    timeout_ms   a call without an answer for so long raises TableTimeout
    key          path of this client's CURVE key, NAME.key_secret; None: none
    server_keys  the servers' public keys by url, or one key of all servers

    campaign(timeout_s)      waits until this one leads; False: not in time
    resign()                 the next candidate leads at once
    proclaim(owner)          changes the leader's name that others see
    leader() candidates()    the leader's name; also who waits, in order
    observe()                its name now and at each change, for ever
    check() close()          raises LockLost unless it leads; resigns
    held, token, session, name    whether it leads; its last fencing token

    `with` waits until this object leads, and resigns at its end. After a pause
    longer than ttl_s, or so long without a server, another one leads: `held` is
    false then, and resign() and the end of `with` raise LockLost.
    """
