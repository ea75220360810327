"""A queue of requests whose answers must include everything acknowledged before they arrived.

Each waits for a round of reads (protocols/raft/reads.py), and then until the confirmed index is
applied, at most HELD_MS_MAX. Kelek clients' read index requests use a queue in C instead
(protocols/zmqraft/server/reads.py).
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from ..raft.core import Raft, Role
from ..raft.messages import ReadIndex

HELD_MS_MAX = 400  # Less than SERVER_RESPONSE_TTL, after which a client asks another peer.

T = TypeVar("T")


class _Waiting(NamedTuple, Generic[T]):
    """A request, the round or index that it awaits, and its expiry."""

    awaited: int
    expires_ms: int
    request: T


class ReadQueue(Generic[T]):
    """The requests of one kind, in order of arrival."""

    def __init__(self, core: Raft) -> None:
        self._core = core
        self._unconfirmed: deque[_Waiting[T]] = deque()  # Each awaits a round, ...
        self._confirmed: deque[_Waiting[T]] = deque()  # ... and then an index.

    def __len__(self) -> int:
        return len(self._unconfirmed) + len(self._confirmed)

    @property
    def deadline_ms(self) -> int | None:
        heads = [queue[0].expires_ms for queue in (self._unconfirmed, self._confirmed) if queue]
        return min(heads, default=None)

    @property
    def awaited_index(self) -> int:
        """The index that the last confirmed request awaits; 0 for none."""
        return self._confirmed[-1].awaited if self._confirmed else 0

    def push(self, request: T, now_ms: int) -> None:
        """Appends a request. A round confirms it on a leader; confirm_all() or, after an election,
        a round of its own on a follower."""
        if self._core.role is Role.LEADER:
            self._core.start_read()
        self._unconfirmed.append(_Waiting(self._core.read_round, now_ms + HELD_MS_MAX, request))

    def push_confirmed(self, request: T, index: int, now_ms: int) -> None:
        """Appends a request that awaits an index only."""
        self._confirmed.append(_Waiting(index, now_ms + HELD_MS_MAX, request))

    def on_elected(self) -> None:
        """This peer leads from now on: a round of its own confirms the waiting requests."""
        if self._unconfirmed:
            self._core.start_read()

    def confirm(self, read_index: ReadIndex) -> None:
        """Registers that a round and all rounds before it are confirmed."""
        while self._unconfirmed and self._unconfirmed[0].awaited <= read_index.round:
            held = self._unconfirmed.popleft()
            self._confirmed.append(held._replace(awaited=read_index.log_index))

    def confirm_all(self, index: int) -> None:
        """Confirms all requests; they then await `index`."""
        while self._unconfirmed:
            self._confirmed.append(self._unconfirmed.popleft()._replace(awaited=index))

    def pop_ready(self, index: int) -> Iterator[T]:
        """Removes and returns the requests that await at most `index`."""
        while self._confirmed and self._confirmed[0].awaited <= index:
            yield self._confirmed.popleft().request

    def pop_expired(self, now_ms: int) -> Iterator[tuple[T, bool]]:
        """Removes and returns the expired requests, and whether each was confirmed."""
        for queue in (self._confirmed, self._unconfirmed):
            while queue and queue[0].expires_ms <= now_ms:
                yield queue.popleft().request, queue is self._confirmed

    def pop_if(self, is_wanted: Callable[[T], bool]) -> list[T]:
        """Removes and returns the requests for which is_wanted() is true."""
        matching = []
        for queue in (self._confirmed, self._unconfirmed):
            held = [*queue]
            queue.clear()
            queue += (each for each in held if not is_wanted(each.request))
            matching += [each.request for each in held if is_wanted(each.request)]
        return matching
