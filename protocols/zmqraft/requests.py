"""What a client asks beside updates: questions with one answer, and streams of entries.

The objects are shared with the owner of the client machine: it makes them, the machine fills them.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import RemoteProtocolError
from .client_codec import (
    ClientRequest,
    ConfigAnswer,
    EntriesAnswer,
    EntriesStatus,
    LogInfo,
    RequestBroadcastStateUrl,
    RequestConfig,
    RequestEntries,
    RequestLogInfo,
    decode_config_answer,
    decode_log_info_answer,
    decode_state_url_answer,
)

PARTS_MAX = 64  # Of a stream, waiting for its reader; a peer sends 5 without a follow-up.


class Ask:
    """A question with one answer, for the leader or for the peer at url."""

    __slots__ = ("answer", "done", "request", "sent_ms", "tries", "url")

    def __init__(
        self,
        request: RequestConfig | RequestLogInfo | RequestBroadcastStateUrl,
        url: str | None = None,
    ) -> None:
        self.request = request
        self.url = url
        self.sent_ms: int | None = None
        self.tries = 0  # Answers that a leader would not give.
        self.done = False
        self.answer: ConfigAnswer | LogInfo | str | None = None

    def on_answer(self, frames: Sequence[bytes]) -> bool:
        """Takes the answer in; False: it is not a leader's, so the leader must be looked for."""
        answer: ConfigAnswer | LogInfo | str | None
        match self.request:
            case RequestConfig():
                answer = decode_config_answer(frames)[1]
                leads = answer.leading
            case RequestLogInfo():
                answer = decode_log_info_answer(frames)[1]
                leads = answer.leading
            case RequestBroadcastStateUrl():
                answer = decode_state_url_answer(frames)[1]
                leads = answer is not None or self.tries > 0
        if self.url is None and not leads:
            self.tries += 1
            self.sent_ms = None
            return False
        self.answer, self.done = answer, True
        return True


class Part(NamedTuple):
    """Consecutive entries, still in their frames."""

    first_index: int
    entries: tuple[bytes, ...]


class Stream:
    """Entries from prev_index on, up to what the leader has applied, or count of them."""

    __slots__ = ("_acks", "done", "heard_ms", "parts", "prev_index", "remaining", "reqid")

    def __init__(self, prev_index: int, count: int | None = None) -> None:
        self.prev_index = prev_index  # The last one received.
        self.remaining = count
        self.reqid: bytes | None = None  # None: to be asked for (again).
        self.parts: deque[Part] = deque()
        self.done = count == 0
        self.heard_ms = 0
        self._acks: deque[int] = deque()  # Of the parts that wait for their reader.

    @property
    def waits(self) -> bool:
        """Whether it is the peer's turn."""
        return self.reqid is not None and not self.done and not self._acks

    def begin(self, reqid: bytes) -> ClientRequest:
        """The first request, or the one that goes on after a failure."""
        self.reqid = reqid
        self._acks.clear()
        return RequestEntries(reqid, self.prev_index, self.remaining)

    def on_answer(self, answer: EntriesAnswer) -> ClientRequest | None:
        """Takes one answer in; returns the follow-up when nothing is left for the reader in it."""
        assert answer.status is not EntriesStatus.NOT_LEADER
        if len(self.parts) >= PARTS_MAX:
            return None  # A peer sends a few without a follow-up, never so many.
        first_index = answer.last_index - len(answer.entries) + 1
        if first_index > self.prev_index + 1 and answer.entries:
            return None  # Something is missing: silence follows, and a new request.
        if not answer.entries and answer.last_index > self.prev_index:
            raise RemoteProtocolError("an entries answer skips entries")
        entries = answer.entries[self.prev_index + 1 - first_index :] if answer.entries else ()
        if self.remaining is not None:
            entries = entries[: self.remaining]
            self.remaining -= len(entries)
        if entries:
            self.parts.append(Part(self.prev_index + 1, entries))
            self.prev_index += len(entries)
        if answer.status is EntriesStatus.LAST or self.remaining == 0:
            self.done = True
            return self.stop() if answer.status is EntriesStatus.MORE else None
        if entries:
            self._acks.append(answer.last_index)
            return None
        return self._follow_up(answer.last_index)

    def take(self) -> tuple[Part | None, ClientRequest | None]:
        """The next part for the reader, and the follow-up that lets the peer send more."""
        if not self.parts:
            return None, None
        part = self.parts.popleft()
        if self.done or self.reqid is None or not self._acks:
            return part, None
        return part, self._follow_up(self._acks.popleft())

    def stop(self) -> ClientRequest | None:
        """The request that ends it at the peer."""
        self.done = True
        if self.reqid is None:
            return None
        return RequestEntries(self.reqid, self.prev_index, 0)

    def _follow_up(self, last_index: int) -> ClientRequest:
        assert self.reqid is not None
        remaining = self.remaining
        if remaining is not None:
            remaining += self.prev_index - last_index
        return RequestEntries(self.reqid, last_index, remaining)
