"""Streams of entries, the server's side of RequestEntries (docs/protocols/zmq-raft.md).

A stream sends several messages ahead of the client's follow-ups. This module opens no file and
sends nothing: a function reads the blocks, and answers go into the client's outgoing frames.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ....native.log.entries import MessageLimits, add_entries, entries_fit
from ...host.client_shares import ClientShares
from ...raft.messages import EntryBatch
from ...record import slice_block
from ..wire.client_codec import EntriesAnswer, EntriesStatus, ReplyAddress, RequestEntries
from ..wire.extensions import (
    ENTRIES_ANSWERS,
    ENTRIES_BLOCKS_MAX,
    TOO_MANY_ANSWER,
    RequestDenied,
)
from ..wire.values import ENTRIES_PACKED

MESSAGE_BYTES_MAX = 64 << 10
MESSAGE_ENTRIES_MAX = 4096
# A full block (1 MiB of records) fits, with its header and its entries' prefixes.
PACKED_BYTES_MAX = (1 << 20) + (4 << 10)
PACKED_ENTRIES_MAX = 1 << 16
PIPELINES = 5  # REQUEST_ENTRIES_PIPELINES: messages sent ahead of their follow-ups.
SILENCE_MS_MAX = 5000
STREAMS_MAX = 8000
CLIENT_STREAMS_MAX = 1000  # Of one client.
READ_BYTES = 256 << 10  # The least size of a read; later messages use the rest.
RECENT_BYTES_MAX = 16 << 20  # Of recently read blocks of all streams.

# Reads (first index, last index, bytes at most): contiguous batches from the first index on,
# perhaps fewer; none when they cannot be read at the moment.
ReadBatches = Callable[[int, int, int], list[EntryBatch]]


@dataclass(slots=True)
class _Stream:
    """The state of one stream: what remains to be sent, and the messages without a follow-up."""

    next_index: int
    last_index: int
    anywhere: bool  # Any peer may serve it, so it survives a step-down.
    client: bytes | int
    heard_ms: int = 0
    # The last index of each message sent.
    unacknowledged: deque[int] = field(default_factory=deque)

    @property
    def all_sent(self) -> bool:
        return self.next_index > self.last_index


class _RecentBlocks:
    """Recently read blocks: a message takes a part of a block, and the next continues there.

    They are committed, so they never change.
    """

    def __init__(self, read: ReadBatches) -> None:
        self._read = read
        self._runs: deque[list[EntryBatch]] = deque()  # Each contiguous; the newest last.
        self._size = 0

    def batches(self, first_index: int, last_index: int, bytes_max: int) -> list[EntryBatch]:
        """Returns batches from the one with first_index on. They may end before or after
        last_index."""
        for run in reversed(self._runs):
            if run[0].first_index <= first_index <= run[-1].last_index:
                at = bisect_right(run, first_index, key=lambda batch: batch.first_index) - 1
                return run[at:]
        run = self._read(first_index, last_index, max(bytes_max, READ_BYTES))
        if run:
            self._runs.append(run)
            self._size += _size(run)
            while self._size > RECENT_BYTES_MAX:
                self._size -= _size(self._runs.popleft())
        return run

    def clear(self) -> None:
        self._runs.clear()
        self._size = 0


def _size(run: list[EntryBatch]) -> int:
    return sum(len(batch.block) for batch in run)


class EntryStreams:
    """The streams of one peer, by routing id and request id."""

    def __init__(self, read: ReadBatches, client_streams_max: int = CLIENT_STREAMS_MAX) -> None:
        self._recent = _RecentBlocks(read)
        self.shares = ClientShares(client_streams_max)
        self._streams: OrderedDict[tuple[bytes, bytes], _Stream] = OrderedDict()
        self.refused = 0

    def __len__(self) -> int:
        return len(self._streams)

    def has_stream(self, client: ReplyAddress, request: RequestEntries) -> bool:
        return (client.routing_id, request.reqid) in self._streams

    def expects_request(self, client: ReplyAddress, request: RequestEntries) -> bool:
        """Whether a request is the next follow-up of its stream, or ends it."""
        stream = self._streams.get((client.routing_id, request.reqid))
        if stream is None or request.limit == 0:
            return stream is not None
        return bool(stream.unacknowledged) and stream.unacknowledged[0] == request.prev_index

    def on_request(
        self, client: ReplyAddress, request: RequestEntries, last_index: int, now_ms: int
    ) -> int:
        """Answers a request or a follow-up. Returns the bytes of entries sent.

        last_index   the last entry of a stream that starts now. A request for entries after it gets
                     its own previous index as the last: its client may know more than this peer.
        """
        key = (client.routing_id, request.reqid)
        stream = self._streams.get(key)
        if request.limit == 0:
            self._drop(key)
            return 0
        prev = request.prev_index
        if stream is not None and stream.unacknowledged and stream.unacknowledged[0] == prev:
            stream.unacknowledged.popleft()
            self._streams.move_to_end(key)
        else:
            self._expire(now_ms)
            if stream is None and len(self._streams) >= STREAMS_MAX:
                self.refused += 1
                return 0
            if prev >= last_index:
                self._drop(key)
                client.send(_header_frames(request, EntriesStatus.LAST, prev))
                return 0
            if stream is None and not self.shares.take(client.client):
                refuse_too_many(client, request)
                return 0
            end = last_index
            if request.limit is not None:
                end = min(end, prev + request.limit)
            stream = self._streams[key] = _Stream(prev + 1, end, request.any_peer, client.client)
            self._streams.move_to_end(key)
        stream.heard_ms = now_ms
        size = self._send(client, request, stream)
        if stream.all_sent and not stream.unacknowledged:
            self._drop(key)
        return size

    def _drop(self, key: tuple[bytes, bytes]) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            self.shares.release(stream.client)

    def _send(self, client: ReplyAddress, request: RequestEntries, stream: _Stream) -> int:
        add = _add_packed if request.packed else _add_entries
        bytes_max = PACKED_BYTES_MAX if request.packed else MESSAGE_BYTES_MAX
        size = 0
        batches: list[EntryBatch] = []
        while not stream.all_sent and len(stream.unacknowledged) < PIPELINES:
            self._collect_batches(stream, batches, bytes_max)
            if not batches:
                break  # Not readable at the moment: the client's repeat starts the stream again.
            last, bytes_added = add(client, request, stream, batches)
            size += bytes_added
            stream.next_index = last + 1
            if not stream.all_sent:
                stream.unacknowledged.append(last)
        return size

    def _collect_batches(self, stream: _Stream, batches: list[EntryBatch], bytes_max: int) -> None:
        """Collects enough batches for one message; the first holds the stream's next index."""
        while batches and batches[0].last_index < stream.next_index:
            del batches[0]
        index, size = stream.next_index, 0
        for batch in batches:
            index, size = batch.last_index + 1, size + len(batch.block)
        while index <= stream.last_index and size <= bytes_max:
            free = PIPELINES - len(stream.unacknowledged)
            more = self._recent.batches(index, stream.last_index, free * bytes_max)
            if not more:
                return
            batches += more
            index, size = more[-1].last_index + 1, size + _size(more)

    def _expire(self, now_ms: int) -> None:
        """Drops the streams that were silent for SILENCE_MS_MAX."""
        while self._streams:
            key, stream = next(iter(self._streams.items()))
            if now_ms - stream.heard_ms < SILENCE_MS_MAX:
                return
            self._drop(key)

    def on_step_down(self) -> None:
        for key in [key for key, stream in self._streams.items() if not stream.anywhere]:
            self._drop(key)
        if not self._streams:
            self._recent.clear()


def refuse_too_many(client: ReplyAddress, request: RequestEntries) -> None:
    """Refuses a stream of a client that has too many. Only kelek clients know the answer; others
    repeat their request."""
    if request.packed:
        client.send(TOO_MANY_ANSWER.encode(RequestDenied(ENTRIES_PACKED), request.reqid))


def _header_frames(request: RequestEntries, status: EntriesStatus, last_index: int) -> list[bytes]:
    answer = EntriesAnswer(status, last_index)
    return ENTRIES_ANSWERS[request.packed].encode(answer, request.reqid)


def _status(stream: _Stream, last_index: int) -> EntriesStatus:
    return EntriesStatus.LAST if last_index == stream.last_index else EntriesStatus.MORE


_ENTRIES_LIMITS = MessageLimits(MESSAGE_BYTES_MAX, MESSAGE_ENTRIES_MAX)
_PACKED_LIMITS = MessageLimits(PACKED_BYTES_MAX, PACKED_ENTRIES_MAX)


def _add_entries(
    client: ReplyAddress, request: RequestEntries, stream: _Stream, batches: list[EntryBatch]
) -> tuple[int, int]:
    """Adds one message of entries. Returns its last index and the bytes of its entries."""
    blocks = [batch.block for batch in batches]
    fit = entries_fit(blocks, stream.next_index, stream.last_index, _ENTRIES_LIMITS)
    head = _header_frames(request, _status(stream, fit.last_index), fit.last_index)
    add_entries(client.out, [client.routing_id, *head], blocks, stream.next_index, fit.last_index)
    return fit.last_index, fit.bytes


def _add_packed(
    client: ReplyAddress, request: RequestEntries, stream: _Stream, batches: list[EntryBatch]
) -> tuple[int, int]:
    """Like _add_entries, with whole blocks: only the first and the last are cut where necessary."""
    parts: list[bytes] = []
    index, size = stream.next_index, 0
    for batch in batches[:ENTRIES_BLOCKS_MAX]:
        last = min(batch.last_index, stream.last_index)
        part = slice_block(batch, index, last)
        if size + len(part.block) > PACKED_BYTES_MAX:
            if parts:
                break
            last = entries_fit([batch.block], index, last, _PACKED_LIMITS).last_index
            part = slice_block(batch, index, last)
        parts.append(part.block)
        size += len(part.block)
        index = last + 1
        if index > stream.last_index:
            break
    head = _header_frames(request, _status(stream, index - 1), index - 1)
    client.send([*head, *parts])
    return index - 1, size
