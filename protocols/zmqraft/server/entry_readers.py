"""Who asks for entries, of a leader or of any peer: all wait in one queue and are answered in turn.

A small request may ask for very much; so one wake serves only some of them. What a stream is, is in
server/entry_streams.py, and what is below the first stored entry comes from snapshots.py.

A stream begins only when it can't end before what a client has seen already. A leader confirms
itself by a round of reads. A follower must have heard from a leader that had committed an entry of
its own term, and have all that was committed then: else it may have forgotten what it has served.
"""

from collections import deque
from typing import NamedTuple

from ...raft.core import Raft, Role
from ...raft.messages import AppendEntries, EntryBatch, ReadIndex
from ..wire.client_codec import (
    EntriesAnswer,
    EntriesStatus,
    ReplyAddress,
    RequestEntries,
    encode_entries_answer,
)
from ..wire.extensions import encode_entries_packed_answer
from .entry_streams import EntryStreams
from .read_queue import ReadQueue
from .snapshots import SnapshotManager
from .values import OwnLogReader

READERS_A_WAKE = 8  # Readers served in one wake, and ...
READ_BYTES_A_WAKE = 4 << 20  # ... the bytes after which no further one is: heartbeats can't wait.
READERS_MAX = 8000  # Readers that wait.


class _EntryRequest(NamedTuple):
    """A request for entries that waits."""

    client: ReplyAddress
    request: RequestEntries
    confirmed: bool = False  # A stream may begin with it.


class EntryReaders:
    """All requests for entries to this peer."""

    def __init__(self, core: Raft, snapshots: SnapshotManager, reader: OwnLogReader) -> None:
        self._core = core
        self._snapshots = snapshots
        self._reader = reader
        self._streams = EntryStreams(self._read)
        self._unconfirmed: ReadQueue[_EntryRequest] = ReadQueue(core)
        self._queue: deque[_EntryRequest] = deque()
        # Everything that was committed before this peer started is at or below this index.
        self._committed_floor: int | None = None

    @property
    def waiting(self) -> int:
        """How many requests are not answered yet."""
        return len(self._queue) + len(self._unconfirmed)

    @property
    def deadline_ms(self) -> int | None:
        """When serve() has something to do; 0: at once."""
        return 0 if self._queue else self._unconfirmed.deadline_ms

    @property
    def refused(self) -> int:
        """How many requests were dropped because there were too many."""
        return self._streams.refused

    def on_request(self, client: ReplyAddress, request: RequestEntries, now_ms: int) -> None:
        """Takes a request or a follow-up in; whoever doesn't lead says so at once, unless it is
        asked to answer all the same."""
        if not self._may_serve(request):
            self._refuse(client, request)
        elif self.waiting >= READERS_MAX:
            self._streams.refused += 1
        elif self._streams.has_stream(client, request) or self._snapshots.state_streams.has_stream(
            client, request
        ):
            self._queue.append(_EntryRequest(client, request))
        else:
            self._await_confirmation(_EntryRequest(client, request, confirmed=True), now_ms)

    def _await_confirmation(self, reading: _EntryRequest, now_ms: int) -> None:
        if self._core.role is Role.LEADER or self._committed_floor is None:
            self._unconfirmed.push(reading, now_ms)
        else:
            self._unconfirmed.push_confirmed(reading, self._committed_floor, now_ms)

    def on_append_entries(self, message: AppendEntries) -> None:
        """The core has taken in a message of its leader's: perhaps it shows what is committed."""
        if self._committed_floor is not None:
            return
        core = self._core
        index = core.commit_index
        if message.commit_index <= index and core.log.term_at(index) == core.term:
            self._committed_floor = index
            self._unconfirmed.confirm_all(index)

    def on_elected(self) -> None:
        """We lead from now on."""
        self._unconfirmed.on_elected()

    def on_ready(self, read_index: ReadIndex | None) -> None:
        """Takes in that a round of reads is confirmed."""
        if read_index is not None:
            if self._committed_floor is None:
                self._committed_floor = read_index.index
            self._unconfirmed.confirm(read_index)

    def answer_some(self, last_index: int, now_ms: int) -> None:
        """Answers some of those who wait, from entries up to last_index: committed, and on our own
        disk."""
        self._queue += self._unconfirmed.pop_ready(last_index)
        for reading, _ in self._unconfirmed.pop_expired(now_ms):
            self._refuse(reading.client, reading.request)
        size = 0
        for _ in range(min(READERS_A_WAKE, len(self._queue))):
            size += self._answer(self._queue.popleft(), last_index, now_ms)
            if size >= READ_BYTES_A_WAKE:
                return

    def _answer(self, reading: _EntryRequest, last_index: int, now_ms: int) -> int:
        """Answers a request; returns the bytes of entries in that."""
        client, asked, confirmed = reading
        expected = self._streams.expects_request(client, asked)
        if (
            not expected
            and not confirmed
            and not self._snapshots.state_streams.has_stream(client, asked)
        ):
            self._await_confirmation(
                reading._replace(confirmed=True), now_ms
            )  # It begins its stream anew.
            return 0
        request: RequestEntries | None = asked
        if self._core.role is not Role.LEADER:
            if not self._may_serve(asked) or (not expected and asked.prev_index > last_index):
                self._refuse(client, asked)
                return 0
        elif not expected:
            request = self._snapshots.on_entries_request(client, asked, now_ms)
        if request is None:
            return 0
        return self._streams.on_request(client, request, last_index, now_ms)

    def on_step_down(self) -> None:
        """We don't lead: whoever waits for a leader is told, and the streams that only it serves
        end."""
        self._streams.on_step_down()
        turns, self._queue = self._queue, deque()
        self._queue += [reading for reading in turns if reading.request.any_peer]
        leaders = [reading for reading in turns if not reading.request.any_peer]
        leaders += self._unconfirmed.pop_if(lambda reading: not reading.request.any_peer)
        for reading in leaders:
            self._refuse(reading.client, reading.request)
        if self._committed_floor is not None:
            self._unconfirmed.confirm_all(self._committed_floor)

    def _may_serve(self, request: RequestEntries) -> bool:
        """What is stored here is committed, whoever leads; a snapshot's state is the leader's to
        send."""
        if self._core.role is Role.LEADER:
            return True
        stored = request.prev_index >= self._core.log.base_index or request.count == 0
        return request.any_peer and stored

    def _refuse(self, client: ReplyAddress, request: RequestEntries) -> None:
        """Sends the client to the leader; to whoever it finds when we lead and could not answer."""
        leader = None if self._core.role is Role.LEADER else self._core.leader
        refusal = EntriesAnswer(EntriesStatus.NOT_LEADER, leader=leader)
        encode = encode_entries_packed_answer if request.packed else encode_entries_answer
        client.out.add([client.routing_id, *encode(request.reqid, refusal)])

    def _read(self, first_index: int, last_index: int, bytes_max: int) -> list[EntryBatch]:
        """Blocks for a stream; none when the log can't be read just now."""
        last_term = self._core.log.term_at(last_index)
        if last_term is None:
            return []
        return self._reader.batches(first_index, last_index, last_term, bytes_max)
