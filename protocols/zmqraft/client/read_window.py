"""The linearizable reads of one client that are on their way: shared, sent again, answered.

Reads that begin before a request is sent share it. Whatever becomes of the leader, a read is asked
again until a leader has answered it: the answer counts from the moment it was begun.
"""

from collections.abc import Callable, Iterable, Sequence

from ..wire.read_codec import decode_read_answer, encode_read_index

REQUESTS_MAX = 64  # On their way; reads beyond share the next one.


class PendingRead:
    """A read that has begun."""

    __slots__ = ("index", "refusal", "wait")

    def __init__(self, wait: int) -> None:
        self.wait = wait  # For what (native.reads.WAIT_*).
        self.index = 0  # The answer.
        self.refusal = ""  # Why there will be none.

    @property
    def done(self) -> bool:
        return bool(self.index or self.refusal)


class _Request:
    """What was sent, and who waits for its answer."""

    __slots__ = ("heard_ms", "reads")

    def __init__(self, reads: list[PendingRead], now_ms: int) -> None:
        self.reads = reads
        self.heard_ms = now_ms


class ReadWindow:
    """All reads that are not answered yet."""

    def __init__(self, cluster: bytes, new_id: Callable[[], bytes]) -> None:
        self._cluster = cluster
        self._new_id = new_id
        self._unsent: list[PendingRead] = []
        self._requests: dict[bytes, _Request] = {}

    def __len__(self) -> int:
        return len(self._unsent) + sum(len(each.reads) for each in self._requests.values())

    def add(self, read: PendingRead) -> PendingRead:
        """Begins a read."""
        self._unsent.append(read)
        return read

    def drop(self, read: PendingRead) -> None:
        """Forgets a read that nobody waits for any more."""
        if read in self._unsent:
            self._unsent.remove(read)

    def rewind(self) -> None:
        """The leader is lost: everything unanswered is asked again."""
        for request in self._requests.values():
            self._unsent += request.reads
        self._requests.clear()

    def refuse(self, reason: str) -> None:
        """The leader knows no such reads."""
        for read in self._unsent:
            read.refusal = reason
        self._unsent.clear()

    def awaits(self, id_: bytes) -> bool:
        return id_ in self._requests

    def unsent(self, now_ms: int) -> Iterable[list[bytes]]:
        """The requests for everything that has begun and was not sent, one for each kind."""
        if not self._unsent or len(self._requests) >= REQUESTS_MAX:
            return
        reads, self._unsent = self._unsent, []
        for wait in sorted({read.wait for read in reads}):
            id_ = self._new_id()
            sharing = [read for read in reads if read.wait == wait]
            self._requests[id_] = _Request(sharing, now_ms)
            yield encode_read_index(id_, self._cluster, wait)

    def on_answer(self, frames: Sequence[bytes], now_ms: int) -> bool:
        """Takes in the answer to a request that it knows; False: the peer is not the leader."""
        id_, answer = decode_read_answer(frames)
        request = self._requests[id_]
        if not isinstance(answer, int):
            return False
        request.heard_ms = now_ms
        if answer:
            del self._requests[id_]
            for read in request.reads:
                read.index = answer
        return True

    @property
    def heard_ms(self) -> int | None:
        """Since when the leader owes an answer."""
        return min((each.heard_ms for each in self._requests.values()), default=None)
