"""Who asks for entries, of a leader or of any peer: all wait in one queue and are answered in turn.

A small request may ask for very much; so one wake serves only some of them. What a stream is, is in
streams.py, and what is below the first stored entry comes from snapshots.py.
"""

from collections import deque
from typing import NamedTuple

from ..raft.core import Raft, Role
from ..raft.messages import Batch
from .client_codec import EntriesAnswer, EntriesStatus, RequestEntries, encode_entries_answer
from .extensions import encode_entries_packed_answer
from .peer_values import Reader
from .snapshots import SnapshotDesk
from .streams import Asker, EntryStreams

READERS_A_WAKE = 8  # Readers served in one wake, and ...
READ_BYTES_A_WAKE = 4 << 20  # ... the bytes after which no further one is: heartbeats can't wait.
READERS_MAX = 8000  # Readers that wait for their turn.


class _Reading(NamedTuple):
    """A request for entries that waits for its turn."""

    asker: Asker
    request: RequestEntries


class EntryReaders:
    """All requests for entries to this peer."""

    def __init__(self, core: Raft, snapshots: SnapshotDesk, reader: Reader) -> None:
        self._core = core
        self._snapshots = snapshots
        self._reader = reader
        self._streams = EntryStreams(self._read)
        self._waiting: deque[_Reading] = deque()

    @property
    def waiting(self) -> bool:
        """Whether anybody waits for a turn."""
        return bool(self._waiting)

    @property
    def refused(self) -> int:
        """How many requests were dropped because there were too many."""
        return self._streams.refused

    def on_request(self, asker: Asker, request: RequestEntries) -> None:
        """Takes a request or a follow-up in; whoever doesn't lead says so at once, unless it is
        asked to answer all the same."""
        if not self._may_serve(request):
            self._refuse(asker, request)
        elif len(self._waiting) < READERS_MAX:
            self._waiting.append(_Reading(asker, request))
        else:
            self._streams.refused += 1

    def serve(self, last_applied: int, now_ms: int) -> None:
        """Answers some of those who wait, from entries up to last_applied."""
        size = 0
        for _ in range(min(READERS_A_WAKE, len(self._waiting))):
            asker, asked = self._waiting.popleft()
            request: RequestEntries | None = asked
            if self._core.role is not Role.LEADER:
                if not self._may_serve(asked):
                    self._refuse(asker, asked)
                    continue
            elif not self._streams.expects(asker, asked):
                request = self._snapshots.on_entries_request(asker, asked, now_ms)
            if request is not None:
                size += self._streams.on_request(asker, request, last_applied, now_ms)
            if size >= READ_BYTES_A_WAKE:
                return

    def refuse(self) -> None:
        """We don't lead: whoever waits for a leader is told, and the streams that only it serves
        end."""
        self._streams.clear()
        waiting, self._waiting = self._waiting, deque()
        for reading in waiting:
            if reading.request.anywhere:
                self._waiting.append(reading)
            else:
                self._refuse(*reading)

    def _may_serve(self, request: RequestEntries) -> bool:
        """What is stored here is committed, whoever leads; a snapshot's state is the leader's to
        send."""
        if self._core.role is Role.LEADER:
            return True
        stored = request.prev_index >= self._core.log.base_index or request.count == 0
        return request.anywhere and stored

    def _refuse(self, asker: Asker, request: RequestEntries) -> None:
        refusal = EntriesAnswer(EntriesStatus.NOT_LEADER, leader=self._core.leader)
        encode = encode_entries_packed_answer if request.packed else encode_entries_answer
        asker.out.add([asker.routing_id, *encode(request.reqid, refusal)])

    def _read(self, first_index: int, last_index: int, bytes_max: int) -> list[Batch]:
        """Blocks for a stream; none when the log can't be read just now."""
        last_term = self._core.log.term_at(last_index)
        if last_term is None:
            return []
        return self._reader.batches(first_index, last_index, last_term, bytes_max)
