"""What all locks, semaphores and elections do: one holder that wants one of a few slots.

A slot is a key that its holder puts under a session, if it is absent. Who finds no free slot puts a
key of its own into a queue and watches both. The first in the queue takes the slot that becomes
free; if it does not (its process may be paused), the others try after a quarter of the session's
time. Keys of the object NAME, in its table:

    KIND/NAME 00 00 SLOT      a slot, u32 big endian; the value names the holder
    KIND/NAME 00 01 NUMBER    a place in the queue, u64 big endian; the value names who waits

Sources: docs/decisions/0042-locks.md; sessions and transactions of docs/protocols/zerodb.md; for
fencing tokens M. Kleppmann, "How to do distributed locking" (2016).
"""

import os
import random
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from ...net.clock import monotonic_ms
from ...protocols.failover.limits import NEVER_MS
from ...protocols.zerodb.wire import answers, requests
from ...protocols.zerodb.wire.values import GONE, Extension
from ..errors import LockLost, SessionEnded
from ..io.operations import Batches, Operation
from ..table.arguments import Range, behind_prefix, milliseconds
from ..table.batch import Batch
from ..table.changes import Change, changes_of
from ..table.operations import decoded
from ..table.reads import WATCH_MS, TableReads
from ..table.table import TableWrites
from .limits import LIMIT_MAX, NAME_BYTES_MAX, TTL_S_MIN
from .session import KeptSession

if TYPE_CHECKING:
    from .session import AnyTable

OWNER_BYTES_MAX = 64 << 10  # Of the name of a holder, the value of its keys.
SLOT, PLACE = b"\0\0", b"\0\1"
ANSWER_MS = 250  # An answer at its deadline may come so much later.
STALLED_MS = 50  # All that wait behind one that is paused try within so long.


class Holder(NamedTuple):
    """One that holds a slot, or waits for one.

    name    as it named itself; by default HOST:PROCESS
    waits   its place in the queue, from 1; 0: it holds
    """

    name: str
    waits: int = 0


def default_owner() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"


def prefix_of(kind: str, name: str) -> bytes:
    """The prefix of an object's keys. Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a name is a str, not {type(name).__name__}")
    data = name.encode()
    if not data or b"\0" in data or len(data) > NAME_BYTES_MAX:
        raise ValueError(f"a name has 1 to {NAME_BYTES_MAX} bytes without NUL: {name[:40]!r}")
    return kind.encode() + b"/" + data


def checked_owner(owner: str) -> bytes:
    """The value of a holder's keys. Raises TypeError, ValueError."""
    if not isinstance(owner, str):
        raise TypeError(f"a holder's name is a str, not {type(owner).__name__}")
    data = owner.encode()
    if len(data) > OWNER_BYTES_MAX:
        raise ValueError(f"a holder's name has at most {OWNER_BYTES_MAX} bytes, not {len(data)}")
    return data


def lost_text(prefix: bytes) -> str:
    return (
        f"{prefix.decode()}: its session ended before it was kept (a pause of this process, or no "
        "server for so long), so another may hold it now; what must not happen twice needs the "
        "token or when_alive(session)"
    )


class Wanted(NamedTuple):
    """What a holder wants.

    prefix   of the keys of the object
    limit    how many may hold it at once
    ttl_ms   the session's time to live
    owner    the holder's name
    """

    prefix: bytes
    limit: int
    ttl_ms: int
    owner: bytes


def wanted(kind: str, name: str, limit: int, ttl_s: float, owner: str) -> Wanted:
    """Raises TypeError, ValueError."""
    if not ttl_s >= TTL_S_MIN:
        raise ValueError(f"ttl_s is at least {TTL_S_MIN}, not {ttl_s}")
    if not 1 <= limit <= LIMIT_MAX:
        raise ValueError(f"limit is 1 to {LIMIT_MAX}, not {limit}")
    return Wanted(prefix_of(kind, name), limit, milliseconds(ttl_s), checked_owner(owner))


class SlotView:
    """The slots that are taken and the queue, as of one index of the log."""

    def __init__(self, prefix: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._slots, self._places = prefix + SLOT, prefix + PLACE
        self.holders: dict[bytes, bytes] = {}
        self.waiters: dict[bytes, bytes] = {}
        for key, value in pairs:
            self._set(key, value)

    def _set(self, key: bytes, value: bytes | None) -> None:
        found = self.holders if key.startswith(self._slots) else self.waiters
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value

    def apply(self, changes: Iterable[Change]) -> None:
        for _, key, value, end in changes:
            if end is None:
                self._set(key, value)
                continue
            for each in [*self.holders, *self.waiters]:
                if key <= each and (not end or each < end):
                    self._set(each, None)

    def free(self, limit: int) -> bytes:
        """The first free slot; b"": all are taken."""
        if len(self.holders) >= limit:
            return b""
        slots = (self._slots + number.to_bytes(4, "big") for number in range(limit))
        return next((each for each in slots if each not in self.holders), b"")

    def last_place(self) -> int:
        """The last number of the queue; 0: none waits."""
        last = max(self.waiters, default=b"")
        return int.from_bytes(last[len(self._places) :], "big")

    def ahead_of(self, place: bytes) -> int:
        """How many wait in front of this place."""
        return sum(each < place for each in self.waiters)


class Slots(KeptSession):
    """One holder: its session, and the slot that it holds under it.

    The steps run by the driver of `table`, one method at a time.
    """

    def __init__(self, table: "AnyTable", wanted: Wanted) -> None:
        super().__init__(table, wanted.ttl_ms)
        self._prefix, self._limit, _, self.owner = wanted
        self._range = Range(self._prefix + b"\0", behind_prefix(self._prefix + b"\0"))
        self.token = 0
        self.slot = b""  # b"": none is held.
        self._place = b""  # In the queue; b"": none.

    @property
    def is_needed(self) -> bool:
        return bool(self.slot)

    def forget(self) -> None:
        """The session has ended, and with it all that was put under it."""
        self.session, self.slot, self._place = 0, b"", b""

    # ---- the slot ----

    def acquire(self, timeout_ms: int) -> Operation[bool]:
        """Takes a slot, after those that came before; False: none within timeout_ms."""
        until_ms = monotonic_ms() + timeout_ms
        first = self._prefix + SLOT + random.randrange(self._limit).to_bytes(4, "big")
        while True:
            yield from self._fresh_session()
            with ExitStack() as failed:
                failed.callback(self.abandon)
                try:
                    taken: bool | None = yield from self._take(first)
                    if not taken and timeout_ms <= 0:
                        taken = yield from self._take_free()
                    elif not taken:
                        taken = yield from self._wait_in_queue(until_ms)
                except SessionEnded:
                    taken = None
                failed.pop_all()
            if taken is not None:
                return taken
            self.forget()  # The session ended while we waited; begin with another one.
            if monotonic_ms() >= until_ms:
                return False

    def _take(self, slot: bytes) -> Operation[bool]:
        """Takes this slot if it is free, and leaves the queue."""
        batch = Batch(self._table.number, session=self.session)
        batch.when_absent(slot).put(slot, self.owner)
        if self._place:
            batch.delete(self._place)
        result = yield from TableWrites.commit(self._table, batch)
        if result.succeeded:
            self.slot, self.token, self._place = slot, result.token, b""
        return result.succeeded

    def _take_free(self) -> Operation[bool]:
        """Takes any slot that is free now."""
        while self._limit > 1:
            _, view = yield from self.look()
            slot = view.free(self._limit)
            if not slot:
                break
            if (yield from self._take(slot)):
                return True
        return False

    def _wait_in_queue(self, until_ms: int) -> Operation[bool | None]:
        """Waits for a slot; None: the session has ended."""
        index, view = yield from self.look()
        yield from self._join(view)
        stalled_ms = NEVER_MS  # When a slot that is free is taken out of turn.
        changed = True
        while True:
            slot, ahead = view.free(self._limit), view.ahead_of(self._place)
            its_turn = ahead < self._limit - len(view.holders)
            now_ms = monotonic_ms()
            if slot and ((its_turn and changed) or now_ms >= stalled_ms):
                if (yield from self._take(slot)):
                    return True
                now_ms = monotonic_ms()
                stalled_ms = NEVER_MS
            if now_ms >= until_ms:
                yield from TableWrites.delete(self._table, self._place)
                self._place = b""
                return False
            if slot and stalled_ms == NEVER_MS:
                stalled_ms = now_ms + self.ttl_ms // 4 + random.randrange(STALLED_MS)
            elif not slot:
                stalled_ms = NEVER_MS
            keep_ms = self.keep_at_ms
            if now_ms >= keep_ms:
                if not (yield from self.keep()):
                    return None
                continue
            index, found = yield from self._changes(index, min(until_ms, stalled_ms, keep_ms))
            changed = bool(found)
            if found is None:
                index, view = yield from self.look()
                if self._place not in view.waiters:
                    return None
            else:
                view.apply(found)

    def _join(self, view: SlotView) -> Operation[None]:
        """Puts the own key behind the last one of the queue."""
        number = view.last_place()
        while not self._place:
            number += 1
            place = self._prefix + PLACE + number.to_bytes(8, "big")
            batch = Batch(self._table.number, session=self.session)
            batch.when_absent(place).put(place, self.owner)
            if (yield from TableWrites.commit(self._table, batch)).succeeded:
                self._place = place
                view.waiters[place] = self.owner

    def release(self) -> Operation[None]:
        """Gives the slot back. Raises LockLost when the session ended before."""
        slot, self.slot = self.slot, b""
        batch = Batch(self._table.number).when_alive(self.session).delete(slot)
        alive = bool(self.session)
        if alive:
            alive = (yield from TableWrites.commit(self._table, batch)).succeeded
        if not alive:
            self.forget()
            raise LockLost(lost_text(self._prefix))

    def rename(self, owner: bytes) -> Operation[None]:
        """Gives the held slot another value. Raises LockLost."""
        batch = Batch(self._table.number, session=self.session)
        try:
            yield from TableWrites.commit(self._table, batch.put(self.slot, owner))
        except SessionEnded:
            self.forget()
            raise LockLost(lost_text(self._prefix)) from None
        self.owner = owner

    # ---- what others see ----

    def look(self) -> Operation[tuple[int, SlotView]]:
        """The slots and the queue now, and the index after which changes are missing."""
        asked = requests.Watch(self._table.number, *self._range, 0)
        index, _ = yield from self._table._fetch(asked, answers.WATCH)
        pairs: list[tuple[bytes, bytes]] = []
        steps = TableReads.scan(self._table, start=self._range.start, end=self._range.end)
        for step in steps:
            if isinstance(step, list):
                pairs += step
            else:
                yield step
        return index, SlotView(self._prefix, pairs)

    def observe(self) -> Batches[str | None]:
        """The holder of the only slot, now and after each change. It keeps the own session, too."""
        index, view = yield from self.look()
        last: str | None = ""
        while True:
            holder = next(iter(view.holders.values()), None)
            name = None if holder is None else holder.decode(errors="replace")
            if name != last:
                last = name
                yield [name]
            keep_ms = self.keep_at_ms if self.slot else NEVER_MS
            if monotonic_ms() >= keep_ms:
                yield from self.keep()
            index, found = yield from self._changes(index, keep_ms)
            if found is None:
                index, view = yield from self.look()
            else:
                view.apply(found)

    def _changes(self, index: int, until_ms: int) -> Operation[tuple[int, list[Change] | None]]:
        """Changes from an index on, and the next index; None: they are no longer kept."""
        wait_ms = min(max(until_ms - monotonic_ms(), 1), WATCH_MS)
        asked = requests.Watch(
            self._table.number, *self._range, index, Extension(deadline_ms=wait_ms)
        )
        exchange = yield from self._ask(asked, monotonic_ms() + wait_ms + ANSWER_MS)
        if not exchange.done:
            return index, []
        if exchange.answer is not None and exchange.answer.code == GONE:
            return index, None
        answer = self._table._answer(exchange)
        index, entries = decoded(answers.WATCH.decode, answer)
        number, within = self._table.number, self._range
        return index, [each for entry in entries for each in changes_of(entry, number, within)]
