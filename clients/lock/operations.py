"""The methods of locks, semaphores and elections, blocking and asyncio."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...net.client_keys import ServerKeys
from ...net.clock import monotonic_ms
from ...protocols.failover.limits import NEVER_MS
from ..errors import LockLost
from ..io.keys import KeyPath
from ..io.operations import Batches, Operation, items, operation
from ..table.arguments import milliseconds_or_never
from ..table.operations import TIMEOUT_MS
from .limits import LOCK_TABLE
from .session import KeptSession
from .slots import (
    Holder,
    Slots,
    checked_owner,
    default_owner,
    lost_text,
    prefix_of,
    wanted,
)

if TYPE_CHECKING:
    from .session import AnyTable

TTL_S = 10.0


class SessionHolder:
    """An object that holds something of the cluster under a session, and keeps that."""

    _table: "AnyTable"
    _kept: KeptSession

    def __init__(self, name: str, on_lost: Callable[[], object] | None) -> None:
        self._name, self._on_lost = name, on_lost

    @abstractmethod
    def _open(self, *arguments: Any, **settings: Any) -> "AnyTable":
        """A client of the table that holds the keys, with the arguments of kelek.Table."""

    @abstractmethod
    def _start_keeping(self) -> None:
        """Makes a thread or task keep the session while something is held."""

    @abstractmethod
    def _enter(self) -> Operation[None]:
        """What a `with` statement does first."""

    @abstractmethod
    def _exit(self, failed: bool) -> Operation[None]:
        """What a `with` statement does last. failed: its body raised an error, which counts."""

    def _lose(self) -> None:
        if self._on_lost is not None:
            self._on_lost()

    @property
    def name(self) -> str:
        """The name that it was made with."""
        return self._name


class SlotHolder(SessionHolder):
    """An object of the cluster that this one can hold: its name, table and session."""

    _kind = ""

    def __init__(
        self,
        urls: str | Iterable[str],
        name: str,
        *,
        ttl_s: float = TTL_S,
        owner: str | None = None,
        on_lost: Callable[[], object] | None = None,
        table: int = LOCK_TABLE,
        timeout_ms: int = TIMEOUT_MS,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        super().__init__(name, on_lost)
        owner = default_owner() if owner is None else owner
        asked = wanted(self._kind, name, self._limit(), ttl_s, owner)
        self._table = self._open(
            urls, table, timeout_ms=timeout_ms, key=key, server_keys=server_keys
        )
        self._slots = self._kept = Slots(self._table, asked)

    def _enter(self) -> Operation[None]:
        yield from self._acquire(None)

    def _exit(self, failed: bool) -> Operation[None]:
        if self._slots.slot or not failed:
            try:
                yield from self._release()
            except LockLost:
                if not failed:
                    raise

    def _limit(self) -> int:
        """How many may hold it at once."""
        return 1

    @property
    def held(self) -> bool:
        """Whether this object holds it now, by the clock of this machine."""
        return self._slots.held

    @property
    def token(self) -> int:
        """Its last fencing token; 0: none. Other systems refuse smaller ones."""
        return self._slots.token

    @property
    def session(self) -> int:
        """Its session, for when_alive() of a batch; 0: it is not held."""
        return self._slots.session if self._slots.slot else 0

    def check(self) -> None:
        """Raises LockLost unless it is held."""
        if not self.held:
            raise LockLost(lost_text(prefix_of(self._kind, self._name)))

    def _acquire(self, timeout_s: float | None) -> Operation[bool]:
        if self._slots.slot:
            self.check()
            raise RuntimeError(f"this object holds {self._kind}/{self._name} already")
        timeout_ms = milliseconds_or_never("timeout_s", timeout_s)
        return (yield from self._slots.acquire(min(timeout_ms, NEVER_MS - monotonic_ms())))

    def _release(self) -> Operation[None]:
        if not self._slots.slot:
            self.check()
        yield from self._slots.release()

    def _holders(self) -> Operation[list[Holder]]:
        _, view = yield from self._slots.look()
        holders = [Holder(value.decode(errors="replace")) for value in view.holders.values()]
        waiting = enumerate(view.waiters.values(), 1)
        return holders + [Holder(value.decode(errors="replace"), at) for at, value in waiting]


class LockOperations(SlotHolder):
    """The methods of a lock and of a semaphore."""

    _kind = "lock"

    @operation
    def acquire(self, timeout_s: float | None = None) -> Operation[bool]:
        """Takes it, after all that came before; False: not within timeout_s
        (None: wait for ever; 0: do not wait). Raises RuntimeError when this
        object holds it already.
        """
        return (yield from self._acquire(timeout_s))

    @operation
    def release(self) -> Operation[None]:
        """Gives it back. Raises LockLost when it was lost before."""
        yield from self._release()

    @operation
    def holders(self) -> Operation[list[Holder]]:
        """Who holds it, then who waits, in order."""
        return (yield from self._holders())


class SemaphoreOperations(LockOperations):
    """The methods of a semaphore."""

    _kind = "semaphore"

    def __init__(
        self,
        urls: str | Iterable[str],
        name: str,
        limit: int,
        *,
        ttl_s: float = TTL_S,
        owner: str | None = None,
        on_lost: Callable[[], object] | None = None,
        table: int = LOCK_TABLE,
        timeout_ms: int = TIMEOUT_MS,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        self._most = limit
        super().__init__(
            urls,
            name,
            ttl_s=ttl_s,
            owner=owner,
            on_lost=on_lost,
            table=table,
            timeout_ms=timeout_ms,
            key=key,
            server_keys=server_keys,
        )

    def _limit(self) -> int:
        return self._most


class ElectionOperations(SlotHolder):
    """The methods of an election."""

    _kind = "election"

    @operation
    def campaign(self, timeout_s: float | None = None) -> Operation[bool]:
        """Waits until this object leads; False: not within timeout_s (None:
        wait for ever). Raises RuntimeError when it leads already.
        """
        return (yield from self._acquire(timeout_s))

    @operation
    def resign(self) -> Operation[None]:
        """Ends the leadership. Raises LockLost when it had ended before."""
        yield from self._release()

    @operation
    def proclaim(self, owner: str) -> Operation[None]:
        """Changes the leader's name that others see. Raises LockLost."""
        self.check()
        yield from self._slots.rename(checked_owner(owner))

    @operation
    def leader(self) -> Operation[str | None]:
        """The name of the leader (`owner`); None: none leads."""
        holders = yield from self._holders()
        return next((each.name for each in holders if not each.waits), None)

    @operation
    def candidates(self) -> Operation[list[Holder]]:
        """The leader, then who waits, in order."""
        return (yield from self._holders())

    @items
    def observe(self) -> Batches[str | None]:
        """The leader's name now and after each change, for ever; None: none."""
        return self._slots.observe()
