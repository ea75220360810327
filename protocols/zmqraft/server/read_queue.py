"""Requests whose answers may not be older than anything that was acknowledged before they came.

Each waits for a round of reads (protocols/raft/reads.py), then for the index that this round has
confirmed, and not for ever. Read index (reads.py) is the same for kelek's own clients, in C.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from ...raft.core import Raft, Role
from ...raft.messages import ReadIndex

HELD_MS_MAX = 400  # Below SERVER_RESPONSE_TTL, after which a client asks the next peer.

T = TypeVar("T")


class _Waiting(NamedTuple, Generic[T]):
    """A request, the round or the index that it waits for, and until when."""

    awaited: int
    expires_ms: int
    request: T


class ReadQueue(Generic[T]):
    """The requests of one kind, in the order in which they came."""

    def __init__(self, core: Raft) -> None:
        self._core = core
        self._unconfirmed: deque[_Waiting[T]] = deque()  # Each waits for a round, ...
        self._confirmed: deque[_Waiting[T]] = deque()  # ... and then for an index.

    def __len__(self) -> int:
        return len(self._unconfirmed) + len(self._confirmed)

    @property
    def deadline_ms(self) -> int | None:
        """When take_late() has something to take, at the earliest."""
        heads = [queue[0].expires_ms for queue in (self._unconfirmed, self._confirmed) if queue]
        return min(heads, default=None)

    @property
    def awaited_index(self) -> int:
        """The index that the last confirmed request waits for; 0 when none does."""
        return self._confirmed[-1].awaited if self._confirmed else 0

    def push(self, request: T, now_ms: int) -> None:
        """Puts a request behind the others. A leader's round confirms it; on a follower that is
        confirm_all(), or a round of its own, should it lead meanwhile."""
        if self._core.role is Role.LEADER:
            self._core.start_read()
        self._unconfirmed.append(_Waiting(self._core.read_round, now_ms + HELD_MS_MAX, request))

    def push_confirmed(self, request: T, index: int, now_ms: int) -> None:
        """Puts a request behind the others that waits for an index alone."""
        self._confirmed.append(_Waiting(index, now_ms + HELD_MS_MAX, request))

    def on_elected(self) -> None:
        """We lead from now on: a round of ours confirms what waits."""
        if self._unconfirmed:
            self._core.start_read()

    def confirm(self, read_index: ReadIndex) -> None:
        """A round is confirmed, and so are all before it."""
        while self._unconfirmed and self._unconfirmed[0].awaited <= read_index.round:
            held = self._unconfirmed.popleft()
            self._confirmed.append(held._replace(awaited=read_index.index))

    def confirm_all(self, index: int) -> None:
        """Whatever waits may be answered once that index is reached."""
        while self._unconfirmed:
            self._confirmed.append(self._unconfirmed.popleft()._replace(awaited=index))

    def pop_ready(self, index: int) -> Iterator[T]:
        """Takes out the requests that wait for no more than that index."""
        while self._confirmed and self._confirmed[0].awaited <= index:
            yield self._confirmed.popleft().request

    def pop_expired(self, now_ms: int) -> Iterator[tuple[T, bool]]:
        """Takes out the requests that have waited for too long, and whether they are confirmed."""
        for queue in (self._confirmed, self._unconfirmed):
            while queue and queue[0].expires_ms <= now_ms:
                yield queue.popleft().request, queue is self._confirmed

    def pop_if(self, is_wanted: Callable[[T], bool]) -> list[T]:
        """Takes out the requests of which this is so."""
        taken = []
        for queue in (self._confirmed, self._unconfirmed):
            held = [*queue]
            queue.clear()
            queue += (each for each in held if not is_wanted(each.request))
            taken += [each.request for each in held if is_wanted(each.request)]
        return taken
