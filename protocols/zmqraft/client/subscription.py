"""A subscription without I/O: broadcasts, and what they lack from the leader's log.

No entry is lost or doubled by failures of broadcasts, leaders and connections: an index alone says
which entry comes next. The owner connects a SUB to `url`, and a LogClientMachine sends the
requests. docs/protocols/zmq-raft.md, "StateBroadcast".
"""

from collections import deque
from typing import TYPE_CHECKING

from ..wire.client_codec import RequestBroadcastStateUrl, StateBroadcast
from .requests import Compacted, EntryRun, EntryStream, Query

if TYPE_CHECKING:
    from .client import LogClientMachine

# 1.5 heartbeats of the specification: after this silence the leader is queried.
SILENCE_MS_MAX = 750
# Shortest and longest pause between requests to a leader that does not broadcast.
POLL_MS = 10, 160
QUEUED_BYTES_MAX = 8 << 20  # Of broadcasts that wait for the reader, or for missing entries.


class Subscription:
    """All entries after prev_index, in order, each once."""

    def __init__(self, prev_index: int) -> None:
        self.prev_index = prev_index  # The last index queued for the reader.
        self.url: str | None = None  # The URL to listen at.
        # What is asked for, because no broadcast brought it.
        self.stream: EntryStream | None = None
        self._runs: deque[EntryRun] = deque()
        self.queued_bytes = 0  # The bytes in _runs.
        self._ahead: deque[EntryRun] = deque()  # Broadcasts after the stream's entries.
        self.ahead_bytes = 0
        self._known_index = 0  # The highest index known to be applied by the leader.
        self._leader: str | None = None
        self._url_query: Query | None = None
        self._check_ms: int | None = None  # When the leader is queried again; None: at once.
        self._pause_ms = POLL_MS[0]

    # ---- events ----

    def on_broadcast(self, message: StateBroadcast, now_ms: int) -> None:
        """A broadcast of the connected SUB has arrived."""
        self._check_ms = now_ms + SILENCE_MS_MAX
        last_index = message.applied_index
        self._known_index = max(self._known_index, last_index)
        if not message.entries or last_index <= self.prev_index:
            return
        run = EntryRun(last_index - len(message.entries) + 1, message.entries)
        if self.stream is None and run.first_index <= self.prev_index + 1:
            self._queue(run)
        else:
            self._buffer_ahead(run)

    def _queue(self, run: EntryRun) -> None:
        """Queues the next entries. If the queue is full they are dropped and requested later."""
        last_index = run.last_index
        if last_index <= self.prev_index or self.queued_bytes > QUEUED_BYTES_MAX:
            return
        fresh = run.entries[self.prev_index + 1 - run.first_index :]
        self._runs.append(EntryRun(self.prev_index + 1, fresh))
        self.queued_bytes += sum(map(len, fresh))
        self.prev_index = last_index

    def _buffer_ahead(self, run: EntryRun) -> None:
        self._ahead.append(run)
        self.ahead_bytes += sum(map(len, run.entries))
        while self.ahead_bytes > QUEUED_BYTES_MAX:
            self.ahead_bytes -= sum(map(len, self._ahead.popleft().entries))

    # ---- the reader ----

    @property
    def readable(self) -> bool:
        stream = self.stream
        has_runs = self._runs or (stream is not None and stream.runs)
        return bool(has_runs or self.compacted or self.denial)

    @property
    def denial(self) -> str:
        """The grant that the client's key lacks: the subscription cannot continue."""
        requests = (self._url_query, self.stream)
        return next((each.denial for each in requests if each is not None and each.denial), "")

    @property
    def compacted(self) -> Compacted | None:
        """Set when the next entries are no longer stored: the subscription cannot continue."""
        return None if self.stream is None else self.stream.compacted

    def next_run(self, client: "LogClientMachine", now_ms: int) -> EntryRun | None:
        """Returns the next entries, if there are any."""
        if self._runs:  # They were queued before the stream started.
            run = self._runs.popleft()
            self.queued_bytes -= sum(map(len, run.entries))
            return run
        stream = self.stream
        if stream is None or not stream.runs:
            return None
        self._pause_ms = POLL_MS[0] // 2
        return client.next_run(stream, now_ms)

    # ---- actions ----

    def step(self, client: "LogClientMachine", now_ms: int) -> None:
        """Queries the broadcast URL and requests missing entries. Call it before each wait."""
        if self.denial:
            return
        if client.leader is not None and client.leader != self._leader:
            # Also after a failover to the same URL, where another process may run.
            self._leader, self._check_ms = client.leader, None
            self._drop_url_query(client)
        elif client.leader is None:
            self._leader = None
        self._end_stream(now_ms)
        ask = self._url_query
        if ask is not None and ask.done:
            assert ask.answer is None or isinstance(ask.answer, str)
            self.url, self._url_query = ask.answer, None
            if self.url is None:
                self._check_ms = now_ms + self._pause_ms
        if client.leader is not None and (self._check_ms is None or now_ms >= self._check_ms):
            self._check_leader(client, now_ms)
        if self.stream is None and self._known_index > self.prev_index and not self.queued_bytes:
            self.stream = client.open_stream(EntryStream(self.prev_index))

    def _end_stream(self, now_ms: int) -> None:
        """Continues with broadcasts once the reader has the entries of the stream."""
        stream = self.stream
        if stream is None or stream.runs or not stream.done or stream.compacted:
            return
        self.stream, self.prev_index = None, stream.prev_index
        if self.url is None and self._url_query is None:
            self._pause_ms = min(2 * self._pause_ms, POLL_MS[1])
            self._check_ms = now_ms + self._pause_ms
        ahead, self._ahead, self.ahead_bytes = self._ahead, deque(), 0
        for run in ahead:
            if run.first_index <= self.prev_index + 1:
                self._queue(run)
            else:
                self._buffer_ahead(run)

    def _check_leader(self, client: "LogClientMachine", now_ms: int) -> None:
        """After a new leader or a silence: queries its broadcast URL and its latest entries.

        A leader that does not broadcast is only asked for entries, from time to time.
        """
        first = self._check_ms is None
        if self._url_query is None and (first or self.url is not None):
            self._url_query = client.query(Query(RequestBroadcastStateUrl(client.new_id())))
            self._url_query.accepts_no_url = True  # The request for entries finds the leader.
        if self.stream is None and not self.queued_bytes:
            self.stream = client.open_stream(EntryStream(self.prev_index))
        self._check_ms = now_ms + SILENCE_MS_MAX

    @property
    def deadline_ms(self) -> int | None:
        return None if self.denial else self._check_ms

    def close(self, client: "LogClientMachine") -> None:
        self._drop_url_query(client)
        if self.stream is not None:
            client.close_stream(self.stream)
            self.stream = None

    def _drop_url_query(self, client: "LogClientMachine") -> None:
        if self._url_query is not None:
            client.drop_query(self._url_query)
            self._url_query = None
