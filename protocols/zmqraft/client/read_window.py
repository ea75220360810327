"""The read window: a client's linearizable reads that are not yet answered.

Reads that start before a request is sent share it. After a failure they are requested again until a
leader answers; an answer is valid for every read that started before its request.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..wire.read_codec import READ_ANSWER, READ_NOT_LEADER, READ_REQUEST, RequestRead

REQUESTS_MAX = 64  # Unanswered requests; further reads share the next one.


@dataclass(slots=True, eq=False)
class PendingRead:
    wait: int  # What the answer waits for (WAIT_* of native.log.reads).
    index: int = 0  # The answer.
    refusal: str = ""  # The reason of a refusal.
    is_denied: bool = False  # It is refused for want of a grant.

    @property
    def done(self) -> bool:
        return bool(self.index or self.refusal)


@dataclass(slots=True)
class _Request:
    """A request, and the reads that wait for its answer."""

    reads: list[PendingRead]
    heard_ms: int


class ReadWindow:
    def __init__(self, cluster: bytes, new_id: Callable[[], bytes]) -> None:
        self._cluster = cluster
        self._new_id = new_id
        self._unsent: list[PendingRead] = []
        self._requests: dict[bytes, _Request] = {}

    def __len__(self) -> int:
        return len(self._unsent) + sum(len(each.reads) for each in self._requests.values())

    def add(self, read: PendingRead) -> PendingRead:
        self._unsent.append(read)
        return read

    def drop(self, read: PendingRead) -> None:
        """Forgets a read that no caller waits for."""
        if read in self._unsent:
            self._unsent.remove(read)

    def rewind(self) -> None:
        """The leader is lost: all unanswered reads are requested again."""
        for request in self._requests.values():
            self._unsent += request.reads
        self._requests.clear()

    def refuse(self, reason: str) -> None:
        """The leader does not know such reads."""
        for read in self._unsent:
            read.refusal = reason
        self._unsent.clear()

    def on_denied(self, id_: bytes, reason: str) -> None:
        """The key of this client may not read."""
        for read in self._requests.pop(id_).reads:
            read.refusal, read.is_denied = reason, True

    def awaits(self, id_: bytes) -> bool:
        return id_ in self._requests

    def unsent(self, now_ms: int) -> Iterable[list[bytes]]:
        """Yields the requests for all reads that were not sent, one for each kind."""
        if not self._unsent or len(self._requests) >= REQUESTS_MAX:
            return
        reads, self._unsent = self._unsent, []
        for wait in sorted({read.wait for read in reads}):
            id_ = self._new_id()
            sharing = [read for read in reads if read.wait == wait]
            self._requests[id_] = _Request(sharing, now_ms)
            yield READ_REQUEST.encode(RequestRead(id_, wait), cluster=self._cluster)

    def on_answer(self, frames: Sequence[bytes], now_ms: int) -> bool:
        """Processes the answer to a known request. Returns False when the peer does not lead."""
        answer = READ_ANSWER.decode(frames)
        request = self._requests[frames[0]]
        if answer.status == READ_NOT_LEADER:
            return False
        request.heard_ms = now_ms
        if answer.log_index:
            del self._requests[frames[0]]
            for read in request.reads:
                read.index = answer.log_index
        return True

    @property
    def heard_ms(self) -> int | None:
        """Since when the leader owes an answer."""
        return min((each.heard_ms for each in self._requests.values()), default=None)
