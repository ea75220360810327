"""Streams of a snapshot's state, for RequestEntries below the first stored entry.

A backup gets the container instead, with configuration and request ids. Either comes in chunks,
then the entries behind it. It reads no file: it orders chunks (snapshots/orders.py).
docs/protocols/zmq-raft.md, "RequestEntries".
"""

from collections import OrderedDict

from ...host.chunks import ChunkWindow
from ...host.client_shares import ClientShares
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
from .entry_streams import SILENCE_MS_MAX, refuse_too_many

CHUNKS_AHEAD = 2  # Chunks sent ahead of their follow-ups.
CONTAINER_CHUNKS_AHEAD = 4  # The same, of at most 1 MiB, for a backup.
STREAMS_MAX = 500
CLIENT_STREAMS_MAX = 125  # Of one client.
STREAM_PREFIX = "\0"  # The first character of a stream's name, which no PEER ID has.


class _StateStream(ChunkWindow):
    """One client's request, and how much state was ordered, sent and acknowledged."""

    def __init__(
        self, number: int, request: RequestEntries, snapshot: Snapshot, offset: int
    ) -> None:
        chunk_bytes_max = CHUNK_BYTES_MAX if request.packed else CHUNK_BYTES_PLAIN
        size = snapshot.size if request.container else snapshot.state_size
        ahead = CONTAINER_CHUNKS_AHEAD if request.container else CHUNKS_AHEAD
        super().__init__(size, chunk_bytes_max, ahead, offset)
        self.name = f"{STREAM_PREFIX}{number}"
        self.request = request
        self.snapshot = snapshot
        self.heard_ms = 0

    def next_reads(self) -> list[ReadChunk]:
        index, term = self.snapshot[:2]
        plain = not self.request.container
        return [ReadChunk(self.name, index, term, *chunk, plain) for chunk in self.next_chunks()]

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
    """The clients of one peer that read a snapshot: its state from a leader, its container from
    any peer."""

    def __init__(self) -> None:
        self.orders: list[ReadChunk] = []
        self.shares = ClientShares(CLIENT_STREAMS_MAX)
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
            if not self.shares.take(client.client):
                refuse_too_many(client, request)
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

    @property
    def needed(self) -> list[int]:
        """The indexes after which readers of a container will need entries."""
        streams = (stream for _, stream in self._streams.values())
        return [each.snapshot.last_index for each in streams if each.request.container]

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
            chunk=StateChunk(piece.offset, stream.size, term),
            data=piece.chunk,
        )
        client.send(ENTRIES_ANSWERS[request.packed].encode(answer, request.reqid))
        self._record_sent(client.routing_id, snapshot, piece.offset + len(piece.chunk))

    def _drop(self, key: tuple[bytes, bytes]) -> None:
        held = self._streams.pop(key, None)
        if held is not None:
            self.shares.release(held[0].client)
            del self._by_name[held[1].name]

    def _expire(self, now_ms: int) -> None:
        while self._streams:
            key, (_, stream) = next(iter(self._streams.items()))
            if now_ms - stream.heard_ms < SILENCE_MS_MAX:
                return
            self._drop(key)

    def on_step_down(self) -> None:
        """Forgets the streams that only a leader serves. A follower calls it in each wake."""
        if not self._streams:
            return
        for key, (_, stream) in list(self._streams.items()):
            if not (stream.request.container and stream.request.any_peer):
                self._drop(key)
        self.orders = [order for order in self.orders if order.to in self._by_name]
