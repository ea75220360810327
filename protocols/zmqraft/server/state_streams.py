"""Streams of a snapshot's state, for RequestEntries below the first stored entry.

The state comes in chunks, then the entries behind it. It reads no file: it orders chunks
(snapshots/orders.py). docs/protocols/zmq-raft.md, "RequestEntries".
"""

from collections import OrderedDict

from ...host.chunks import ChunkWindow
from ..snapshots.orders import ChunkRead, ReadChunk, Snapshot
from ..wire.client_codec import (
    EntriesAnswer,
    EntriesStatus,
    ReplyAddress,
    RequestEntries,
    StateChunk,
)
from ..wire.extensions import ENTRIES_ANSWERS
from ..wire.snapshot_codec import CHUNK_BYTES_MAX, CHUNK_BYTES_PLAIN
from .entry_streams import SILENCE_MS_MAX

CHUNKS_AHEAD = 2  # Chunks sent ahead of their follow-ups.
STREAMS_MAX = 1000
STREAM_PREFIX = "\0"  # The first character of a stream's name, which no PEER ID has.


class _StateStream(ChunkWindow):
    """One client's request, and how much state was ordered, sent and acknowledged."""

    def __init__(
        self, number: int, request: RequestEntries, snapshot: Snapshot, offset: int
    ) -> None:
        chunk_bytes_max = CHUNK_BYTES_MAX if request.packed else CHUNK_BYTES_PLAIN
        super().__init__(snapshot.state_size, chunk_bytes_max, CHUNKS_AHEAD, offset)
        self.name = f"{STREAM_PREFIX}{number}"
        self.request = request
        self.snapshot = snapshot
        self.heard_ms = 0

    def next_reads(self) -> list[ReadChunk]:
        index, term = self.snapshot[:2]
        return [ReadChunk(self.name, index, term, *chunk, True) for chunk in self.next_chunks()]

    def on_request(self, request: RequestEntries) -> bool:
        """Processes a follow-up. Returns False if the request is none, but starts again.

        In node form it names the next offset; in text form it names the snapshot's index, once for
        each chunk.
        """
        if request.offset is not None:
            self.acknowledge(request.offset)
            return True
        if request.prev_index != self.snapshot.last_index or not self.in_flight:
            return False
        self.in_flight.popleft()
        return True


class StateStreams:
    """The clients of one leader that read a snapshot's state."""

    def __init__(self) -> None:
        self.orders: list[ReadChunk] = []
        self._streams: OrderedDict[tuple[bytes, bytes], tuple[ReplyAddress, _StateStream]] = (
            OrderedDict()
        )
        self._by_name: dict[str, tuple[bytes, bytes]] = {}
        self._number = 0
        # What each connection was sent last: the snapshot's index and term, and the number of
        # bytes.
        self._sent: OrderedDict[bytes, tuple[int, int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._streams)

    def on_request(
        self, client: ReplyAddress, request: RequestEntries, newest: Snapshot, now_ms: int
    ) -> RequestEntries | None:
        """Processes a request for entries that are no longer stored, or a follow-up.

        Once the client has the whole state, it returns the request for the entries behind it.
        """
        key = client.routing_id, request.reqid
        if request.limit == 0:
            self._drop(key)
            return None
        held = self._streams.get(key)
        if held is None or not held[1].on_request(request):
            self._drop(key)
            self._expire(now_ms)
            if len(self._streams) >= STREAMS_MAX:
                return None
            self._number += 1
            offset = self._offset(client.routing_id, request, newest)
            held = self._streams[key] = client, _StateStream(self._number, request, newest, offset)
            self._by_name[held[1].name] = key
        stream = held[1]
        stream.heard_ms = now_ms
        self._streams.move_to_end(key)
        if stream.is_done:
            self._drop(key)
            return request._replace(prev_index=stream.snapshot.last_index, offset=None)
        self.orders += stream.next_reads()
        return None

    def _offset(self, routing_id: bytes, request: RequestEntries, newest: Snapshot) -> int:
        """Returns the offset at which a new stream starts.

        A slow client of the npm package, or one without an answer in time, requests the rest of the
        state under a new id without a name of the snapshot. It gets the rest only if its connection
        was sent so much of the same snapshot.
        """
        index, term, sent = self._sent.get(routing_id, (0, 0, 0))
        offset = request.offset or 0
        return offset if (index, term) == newest[:2] and offset <= sent else 0

    def _record_sent(self, routing_id: bytes, snapshot: Snapshot, end: int) -> None:
        before = self._sent.pop(routing_id, (0, 0, 0))
        if before[:2] == snapshot[:2]:
            end = max(end, before[2])
        self._sent[routing_id] = (*snapshot[:2], end)
        if len(self._sent) > STREAMS_MAX:
            self._sent.popitem(last=False)

    def has_stream(self, client: ReplyAddress, request: RequestEntries) -> bool:
        return (client.routing_id, request.reqid) in self._streams

    def on_chunk_read(self, piece: ChunkRead) -> None:
        key = self._by_name.get(piece.to)
        if key is None:
            return
        if not piece.found:
            self._drop(key)  # A newer snapshot has replaced it; the client repeats its request.
            return
        client, stream = self._streams[key]
        request, snapshot = stream.request, stream.snapshot
        term = None if request.text else snapshot.last_term
        answer = EntriesAnswer(
            EntriesStatus.SNAPSHOT,
            snapshot.last_index,
            chunk=StateChunk(piece.offset, snapshot.state_size, term),
            data=piece.chunk,
        )
        client.send(ENTRIES_ANSWERS[request.packed].encode(answer, request.reqid))
        self._record_sent(client.routing_id, snapshot, piece.offset + len(piece.chunk))

    def _drop(self, key: tuple[bytes, bytes]) -> None:
        held = self._streams.pop(key, None)
        if held is not None:
            del self._by_name[held[1].name]

    def _expire(self, now_ms: int) -> None:
        while self._streams:
            key, (_, stream) = next(iter(self._streams.items()))
            if now_ms - stream.heard_ms < SILENCE_MS_MAX:
                return
            self._drop(key)

    def clear(self) -> None:
        """Forgets all streams: this peer no longer leads."""
        self._streams.clear()
        self._by_name.clear()
        self.orders.clear()
