"""Requests for entries, to a leader or to any peer: they wait in one queue and take turns.

A small request can ask for very many entries, so one wake answers only some of them. The streams
are in entry_streams.py. The state below the first stored entry comes from snapshots.py.

A stream must never end before an index that its client has already seen. A leader therefore
confirms itself by a round of reads before it starts a stream. A follower must hold all that was
committed when it received a message of a leader with a commit of its own term; else it may have
forgotten entries that it has sent before.

A backup reads all data. While the log grows it gets one piece at a time and waits in between, so
that writes keep most of the machine; else it gets its pieces at once.
"""

from collections import deque
from typing import NamedTuple

from ...host.client_shares import ClientShares
from ...host.read_queue import ReadQueue
from ...raft.core import Raft, Role
from ...raft.messages import AppendEntries, EntryBatch, ReadIndex
from ..wire.client_codec import EntriesAnswer, EntriesStatus, ReplyAddress, RequestEntries
from ..wire.extensions import ENTRIES_ANSWERS
from .entry_streams import CLIENT_STREAMS_MAX, EntryStreams
from .snapshots import SnapshotManager
from .values import OwnLogReader

READERS_A_WAKE = 8  # Requests answered in one wake.
# The bytes after which a wake answers no more, because heartbeats must not wait.
READ_BYTES_A_WAKE = 4 << 20
BACKUP_REST_MS = 40  # Between two pieces (1 MiB) for backups, while the log grows.
READERS_MAX = 8000  # Waiting requests.
CLIENT_READERS_MAX = 2000  # Of one client.


class _EntryRequest(NamedTuple):
    """A request for entries that waits."""

    client: ReplyAddress
    request: RequestEntries
    confirmed: bool = False  # It may start a stream.


class EntryReaders:
    """All requests for entries to this peer."""

    def __init__(
        self,
        core: Raft,
        snapshots: SnapshotManager,
        reader: OwnLogReader,
        client_streams_max: int = CLIENT_STREAMS_MAX,
    ) -> None:
        self._core = core
        self._snapshots = snapshots
        self._reader = reader
        self._streams = EntryStreams(self._read, client_streams_max)
        self._unconfirmed: ReadQueue[_EntryRequest] = ReadQueue(core)
        self._queue: deque[_EntryRequest] = deque()
        self._backups: deque[_EntryRequest] = deque()  # Follow-ups.
        self._backups_due_ms = 0
        self._backup_index = 0  # The last index at the last answer to one.
        self._shares = ClientShares(CLIENT_READERS_MAX)
        # Everything that was committed before this peer started is at or below this index.
        self._committed_floor: int | None = None

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._backups) + len(self._unconfirmed)

    @property
    def waits_for_log(self) -> bool:
        """Whether answer_some() may have something to do before its deadline."""
        return bool(self._unconfirmed)

    @property
    def deadline_ms(self) -> int | None:
        """When answer_some() has something to do; 0: at once."""
        if self._queue:
            return 0
        due = self._unconfirmed.deadline_ms
        if not self._backups:
            return due
        return self._backups_due_ms if due is None else min(due, self._backups_due_ms)

    @property
    def refused(self) -> int:
        return self._streams.refused

    @property
    def refused_by_client(self) -> int:
        """Requests and streams of clients that had too many."""
        shares = self._shares, self._streams.shares, self._snapshots.state_streams.shares
        return sum(each.refused for each in shares)

    def on_request(self, client: ReplyAddress, request: RequestEntries, now_ms: int) -> None:
        """Queues a request or a follow-up. A peer that may not serve it refuses at once."""
        if not self._may_serve(request):
            self._refuse(client, request)
        elif self.waiting >= READERS_MAX:
            self._streams.refused += 1
        elif not self._shares.take(client.client):
            return
        elif self._streams.has_stream(client, request) or self._snapshots.state_streams.has_stream(
            client, request
        ):
            queue = self._backups if request.container else self._queue
            queue.append(_EntryRequest(client, request))
        else:
            self._await_confirmation(_EntryRequest(client, request, confirmed=True), now_ms)

    def _await_confirmation(self, reading: _EntryRequest, now_ms: int) -> None:
        if self._core.role is Role.LEADER or self._committed_floor is None:
            self._unconfirmed.push(reading, now_ms)
        else:
            self._unconfirmed.push_confirmed(reading, self._committed_floor, now_ms)

    @property
    def knows_commits(self) -> bool:
        """Whether on_append_entries() has nothing more to find out."""
        return self._committed_floor is not None

    def on_append_entries(self, message: AppendEntries) -> None:
        """The core has processed a message of its leader, which may show what is committed."""
        if self._committed_floor is not None:
            return
        core = self._core
        index = core.commit_index
        if message.commit_index <= index and core.log.term_at(index) == core.term:
            self._committed_floor = index
            self._unconfirmed.confirm_all(index)

    def on_elected(self) -> None:
        self._unconfirmed.on_elected()

    def on_read_index(self, read_index: ReadIndex) -> None:
        if self._committed_floor is None:
            self._committed_floor = read_index.log_index
        self._unconfirmed.confirm(read_index)

    def answer_some(self, last_index: int, now_ms: int) -> None:
        """Answers some requests with entries up to last_index, which is committed and durable
        here."""
        self._queue += self._unconfirmed.pop_ready(last_index)
        for reading, _ in self._unconfirmed.pop_expired(now_ms):
            self._shares.release(reading.client.client)
            self._refuse(reading.client, reading.request)
        if self._backups and now_ms >= self._backups_due_ms:
            self._queue.append(self._backups.popleft())
            if last_index > self._backup_index:
                self._backup_index = last_index
                self._backups_due_ms = now_ms + BACKUP_REST_MS
            else:
                self._queue += self._backups
                self._backups.clear()
        size = 0
        for _ in range(min(READERS_A_WAKE, len(self._queue))):
            reading = self._queue.popleft()
            self._shares.release(reading.client.client)
            size += self._answer(reading, last_index, now_ms)
            if size >= READ_BYTES_A_WAKE:
                return

    def _answer(self, reading: _EntryRequest, last_index: int, now_ms: int) -> int:
        """Answers a request. Returns the bytes of entries sent."""
        client, asked, confirmed = reading
        expected = self._streams.expects_request(client, asked)
        if (
            not expected
            and not confirmed
            and not self._snapshots.state_streams.has_stream(client, asked)
        ):
            # It starts its stream again.
            self._shares.take(client.client)
            self._await_confirmation(reading._replace(confirmed=True), now_ms)
            return 0
        request: RequestEntries | None = asked
        leads = self._core.role is Role.LEADER
        is_refused = not self._may_serve(asked) or (not expected and asked.prev_index > last_index)
        if not leads and is_refused:
            self._refuse(client, asked)
            return 0
        if not expected and (leads or asked.container):
            request = self._snapshots.on_entries_request(client, asked, now_ms)
        if request is None:
            return 0
        return self._streams.on_request(client, request, last_index, now_ms)

    def on_step_down(self) -> None:
        """Refuses the requests that need a leader, and ends their streams."""
        self._streams.on_step_down()
        leaders = self._unconfirmed.pop_if(lambda reading: not reading.request.any_peer)
        for queue in self._queue, self._backups:
            turns = list(queue)
            queue.clear()
            queue += [reading for reading in turns if reading.request.any_peer]
            leaders += [reading for reading in turns if not reading.request.any_peer]
        for reading in leaders:
            self._shares.release(reading.client.client)
            self._refuse(reading.client, reading.request)
        if self._committed_floor is not None:
            self._unconfirmed.confirm_all(self._committed_floor)

    def _may_serve(self, request: RequestEntries) -> bool:
        """Whether this peer may answer. Stored entries up to the commit index are the same on every
        peer, and so is what a snapshot includes; only a leader sends the state of one alone."""
        if self._core.role is Role.LEADER:
            return True
        stored = request.prev_index >= self._core.log.base_index or request.limit == 0
        return request.any_peer and (stored or request.container)

    def _refuse(self, client: ReplyAddress, request: RequestEntries) -> None:
        """Refuses a request and names the leader; none if this peer leads but is not confirmed."""
        leader = None if self._core.role is Role.LEADER else self._core.leader
        refusal = EntriesAnswer(EntriesStatus.NOT_LEADER, leader=leader)
        client.send(ENTRIES_ANSWERS[request.packed].encode(refusal, request.reqid))

    def _read(self, first_index: int, last_index: int, bytes_max: int) -> list[EntryBatch]:
        """Reads batches for a stream; none when the log cannot be read at the moment."""
        last_term = self._core.log.term_at(last_index)
        if last_term is None:
            return []
        return self._reader.batches(first_index, last_index, last_term, bytes_max)
