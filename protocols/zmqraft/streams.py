"""RequestEntries as the server sees it: pipelines of entry messages, each awaiting its follow-up.

It never reads a file and never sends: entries come from a function given to it, answers go back as
frames. docs/protocols/zmq-raft.md, "RequestEntries".
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import accumulate

from .client_codec import (
    EntriesAnswer,
    EntriesStatus,
    RequestEntries,
    encode_entries_answer,
)

MESSAGE_BYTES_MAX = 64 << 10
MESSAGE_ENTRIES_MAX = 4096
PIPELINES = 5  # REQUEST_ENTRIES_PIPELINES: messages sent ahead of their follow-ups.
SILENCE_MS_MAX = 5000
STREAMS_MAX = 8000

# (first index, last index, bytes at most) -> entry frames from the first index on, maybe fewer.
ReadEntries = Callable[[int, int, int], list[bytes]]


class _Stream:
    """One client's request: what is still to be sent, and which messages wait for a follow-up."""

    __slots__ = ("heard_ms", "last_index", "next_index", "unacknowledged")

    def __init__(self, next_index: int, last_index: int) -> None:
        self.next_index = next_index
        self.last_index = last_index
        self.unacknowledged: deque[int] = deque()  # The last index of each message sent.
        self.heard_ms = 0

    @property
    def all_sent(self) -> bool:
        return self.next_index > self.last_index


class EntryStreams:
    """All RequestEntries streams of one peer, keyed by routing id and request id."""

    def __init__(self, read: ReadEntries) -> None:
        self._read = read
        self._streams: OrderedDict[tuple[bytes, bytes], _Stream] = OrderedDict()
        self.refused = 0

    def __len__(self) -> int:
        return len(self._streams)

    def on_request(
        self, routing_id: bytes, request: RequestEntries, last_applied: int, now_ms: int
    ) -> list[list[bytes]]:
        """Takes a request or a follow-up; returns the messages to send, routing id first."""
        key = (routing_id, request.reqid)
        stream = self._streams.get(key)
        if request.count == 0:
            self._streams.pop(key, None)
            return []
        prev = request.prev_index
        if stream is not None and stream.unacknowledged and stream.unacknowledged[0] == prev:
            stream.unacknowledged.popleft()
            self._streams.move_to_end(key)
        else:
            self._expire(now_ms)
            if stream is None and len(self._streams) >= STREAMS_MAX:
                self.refused += 1
                return []
            if prev >= last_applied:
                self._streams.pop(key, None)
                return [_answer(routing_id, request, EntriesStatus.LAST, last_applied, [])]
            end = last_applied
            if request.count is not None:
                end = min(end, prev + request.count)
            stream = self._streams[key] = _Stream(prev + 1, end)
            self._streams.move_to_end(key)
        stream.heard_ms = now_ms
        messages = self._send(routing_id, request, stream)
        if stream.all_sent and not stream.unacknowledged:
            self._streams.pop(key, None)
        return messages

    def _send(
        self, routing_id: bytes, request: RequestEntries, stream: _Stream
    ) -> list[list[bytes]]:
        messages: list[list[bytes]] = []
        while not stream.all_sent and len(stream.unacknowledged) < PIPELINES:
            entries = self._read(stream.next_index, stream.last_index, MESSAGE_BYTES_MAX)
            if not entries:
                break  # Not readable just now: the client's own repeat starts the stream again.
            fit = bisect_right(list(accumulate(map(len, entries))), MESSAGE_BYTES_MAX)
            del entries[max(1, min(fit, MESSAGE_ENTRIES_MAX)) :]
            stream.next_index += len(entries)
            last = stream.next_index - 1
            status = EntriesStatus.LAST if stream.all_sent else EntriesStatus.MORE
            if status is EntriesStatus.MORE:
                stream.unacknowledged.append(last)
            messages.append(_answer(routing_id, request, status, last, entries))
        return messages

    def _expire(self, now_ms: int) -> None:
        """Drops the streams that were silent for too long; the oldest come first."""
        while self._streams:
            key, stream = next(iter(self._streams.items()))
            if now_ms - stream.heard_ms < SILENCE_MS_MAX:
                return
            del self._streams[key]

    def clear(self) -> None:
        """Forgets all streams: we no longer lead."""
        self._streams.clear()


def _answer(
    routing_id: bytes,
    request: RequestEntries,
    status: EntriesStatus,
    last_index: int,
    entries: list[bytes],
) -> list[bytes]:
    answer = EntriesAnswer(status, last_index, tuple(entries))
    return [routing_id, *encode_entries_answer(request.reqid, answer)]
