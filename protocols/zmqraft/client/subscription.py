"""A subscriber without IO: broadcasts as they come, and what they leave out from the leader's log.

Nothing is lost or doubled, whatever happens to broadcasts, leaders and connections: an index alone
says what comes next. The owner connects a SUB to `url`, and a Client carries the questions.
docs/protocols/zmq-raft.md, "StateBroadcast".
"""

from collections import deque
from typing import TYPE_CHECKING

from ..wire.client_codec import RequestBroadcastStateUrl, StateBroadcast
from .requests import Compacted, EntryRun, EntryStream, Query

if TYPE_CHECKING:
    from .client import LogClientMachine

SILENCE_MS_MAX = 750  # Half more than the text's heartbeat: the leader is asked what is wrong.
POLL_MS = 10, 160  # Pauses between two questions to a leader that does not broadcast.
QUEUED_BYTES_MAX = 8 << 20  # Of broadcasts that wait for the reader, or for what is missing.


class Subscription:
    """Entries from prev_index on, in order, each once, for ever."""

    def __init__(self, prev_index: int) -> None:
        self.prev_index = prev_index  # The last one queued for the reader, by broadcasts or stream.
        self.url: str | None = None  # Where to listen.
        self.stream: EntryStream | None = (
            None  # What is asked for, because no broadcast brought it.
        )
        self._runs: deque[EntryRun] = deque()
        self._queued_bytes = 0  # Bytes in it.
        self._ahead: deque[EntryRun] = deque()  # Broadcasts behind the stream.
        self._ahead_bytes = 0
        self._known_index = 0  # The leader has applied so much.
        self._leader: str | None = None
        self._url_query: Query | None = None
        self._check_ms: int | None = None  # When the leader is asked again; None: at once.
        self._pause_ms = POLL_MS[0]

    # ---- what arrives ----

    def on_broadcast(self, message: StateBroadcast, now_ms: int) -> None:
        """A broadcast of the SUB that is connected now."""
        self._check_ms = now_ms + SILENCE_MS_MAX
        last_index = message.applied_index
        self._known_index = max(self._known_index, last_index)
        if not message.entries or last_index <= self.prev_index:
            return
        part = EntryRun(last_index - len(message.entries) + 1, message.entries)
        if self.stream is None and part.first_index <= self.prev_index + 1:
            self._queue(part)
        else:
            self._buffer_ahead(part)

    def _queue(self, part: EntryRun) -> None:
        """The next entries; with too many in the queue they are asked for again later."""
        last_index = part.last_index
        if last_index <= self.prev_index or self._queued_bytes > QUEUED_BYTES_MAX:
            return
        fresh = part.entries[self.prev_index + 1 - part.first_index :]
        self._runs.append(EntryRun(self.prev_index + 1, fresh))
        self._queued_bytes += sum(map(len, fresh))
        self.prev_index = last_index

    def _buffer_ahead(self, part: EntryRun) -> None:
        self._ahead.append(part)
        self._ahead_bytes += sum(map(len, part.entries))
        while self._ahead_bytes > QUEUED_BYTES_MAX:
            self._ahead_bytes -= sum(map(len, self._ahead.popleft().entries))

    # ---- the reader ----

    @property
    def readable(self) -> bool:
        stream = self.stream
        return bool(self._runs or self.compacted or (stream is not None and stream.runs))

    @property
    def compacted(self) -> Compacted | None:
        """What comes next is no longer stored: this is as far as it goes."""
        return None if self.stream is None else self.stream.compacted

    def next_run(self, client: "LogClientMachine", now_ms: int) -> EntryRun | None:
        """The next entries, if there are any."""
        if self._runs:  # They were queued before there was a stream.
            part = self._runs.popleft()
            self._queued_bytes -= sum(map(len, part.entries))
            return part
        stream = self.stream
        if stream is None or not stream.runs:
            return None
        self._pause_ms = POLL_MS[0] // 2
        return client.next_run(stream, now_ms)

    # ---- what is to be done ----

    def step(self, client: "LogClientMachine", now_ms: int) -> None:
        """Asks where to listen and for what is missing; to be called before each wait."""
        if client.leader is not None and client.leader != self._leader:
            # Also after a failover to the same one: it may have been another process.
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
        if self.stream is None and self._known_index > self.prev_index and not self._queued_bytes:
            self.stream = client.open_stream(EntryStream(self.prev_index))

    def _end_stream(self, now_ms: int) -> None:
        """Goes on with broadcasts, once the reader has what the stream has brought."""
        stream = self.stream
        if stream is None or stream.runs or not stream.done or stream.compacted:
            return
        self.stream, self.prev_index = None, stream.prev_index
        if self.url is None and self._url_query is None:
            self._pause_ms = min(2 * self._pause_ms, POLL_MS[1])
            self._check_ms = now_ms + self._pause_ms
        ahead, self._ahead, self._ahead_bytes = self._ahead, deque(), 0
        for part in ahead:
            if part.first_index <= self.prev_index + 1:
                self._queue(part)
            else:
                self._buffer_ahead(part)

    def _check_leader(self, client: "LogClientMachine", now_ms: int) -> None:
        """A new leader, or silence: where does it broadcast, and what has it applied meanwhile?

        One that does not broadcast is asked for entries alone, from time to time.
        """
        first = self._check_ms is None
        if self._url_query is None and (first or self.url is not None):
            self._url_query = client.query(Query(RequestBroadcastStateUrl(client.new_id())))
            self._url_query.accepts_no_url = True  # Who leads is found out by asking for entries.
        if self.stream is None and not self._queued_bytes:
            self.stream = client.open_stream(EntryStream(self.prev_index))
        self._check_ms = now_ms + SILENCE_MS_MAX

    @property
    def deadline_ms(self) -> int | None:
        return self._check_ms

    def close(self, client: "LogClientMachine") -> None:
        self._drop_url_query(client)
        if self.stream is not None:
            client.close_stream(self.stream)
            self.stream = None

    def _drop_url_query(self, client: "LogClientMachine") -> None:
        if self._url_query is not None:
            client.drop_query(self._url_query)
            self._url_query = None
