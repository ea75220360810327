"""The client side of ZeroDB without I/O: it chooses a server, matches answers, and retries
elsewhere.

A connection is identified by its url. The owner reports events and messages, and carries out what
ready() returns. The machine reads headers only.

A kelek server answers in any order and echoes the reqid of the request (docs/protocols/zerodb.md,
"Extensions"). Another server gets one request at a time. When a server is lost, the next one gets
all unanswered requests again, in order and with the same reqids. The log accepts a reqid once, so
no write is doubled and no old copy follows a newer write.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...connections import Connect, Disconnect, Send
from ...errors import RemoteProtocolError
from ..wire.answers import Answer, decode_answer, decode_server_info
from ..wire.client_codec import encode_request
from ..wire.requests import Request, type_of
from ..wire.requests import ServerInfo as AskServerInfo
from ..wire.values import (
    BYTES_A_MS,
    COPY_TABLE,
    END_JOB,
    FEATURE_PACKED,
    LEASE,
    LIST_JOBS,
    NO_EXTENSION,
    PACKED,
    SERVER_INFO,
    SESSION,
    SPLIT_POINTS,
    STALE,
    TABLE_INFO,
    TRANSACTION,
    WATCH,
)

DEADLINE_MS_MAX = (1 << 32) - 1
OUR_TYPES = frozenset(
    (
        SPLIT_POINTS,
        TABLE_INFO,
        WATCH,
        TRANSACTION,
        SESSION,
        LEASE,
        COPY_TABLE,
        LIST_JOBS,
        END_JOB,
    )
)
OPTIONAL_FLAGS = PACKED | STALE  # A server without them gives the same result.


class TableClientSetup(NamedTuple):
    """Servers, limits of unanswered requests, and times of the search for a server."""

    urls: tuple[str, ...]
    requests_max: int = 64  # Sent and unanswered.
    bytes_max: int = 32 << 20  # Of these; a larger request is sent alone.
    silence_ms: int = 1000  # Then the server is pinged; after the same time again it is lost.
    retry_ms: int = 50  # Delay before a retry of a request that the server could not serve.
    retries_max: int = 4  # After so many of these in a row another server is tried.
    owner: bytes = b""  # Owner token for reserved tables.


class ServerInfo(NamedTuple):
    """The table server that a Table uses.

    url        its address
    features   FEATURE_* bits (docs/protocols/zerodb.md, "Extensions"); 0: it is not kelek
    software   name and version, for example "kelek 0.1.0"
    """

    url: str
    features: int
    software: str


class Exchange:
    """A request and, once it arrives, its answer.

    request      its deadline is kept, the rest of its extension is completed
    reqid        12 bytes, never used before
    deadline_ms  when the caller stops waiting
    bound        url of the only server that can serve it; if that is lost, the request fails
    """

    __slots__ = (
        "answer",
        "bound",
        "deadline_ms",
        "due_ms",
        "number",
        "refusal",
        "reqid",
        "request",
        "sent",
        "size",
        "url",
    )

    def __init__(self, request: Request, reqid: bytes, deadline_ms: int, bound: str = "") -> None:
        self.request = request
        self.reqid = reqid
        self.deadline_ms = deadline_ms
        self.bound = bound
        self.number = 0  # Position in the order of requests.
        self.due_ms = 0  # Not sent before this time.
        self.sent = request  # As sent last.
        self.url = ""  # Of the server that it was sent to last.
        self.size = 0  # Of its frames.
        self.answer: Answer | None = None
        self.refusal = ""  # Why it cannot be sent.

    @property
    def done(self) -> bool:
        return self.answer is not None or bool(self.refusal)


class _ServerConnection:
    """A connection to one server."""

    __slots__ = ("info_sent_ms", "up", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.up = False
        self.info_sent_ms: int | None = None  # When its server info was requested.


class TableClientMachine:
    """The client machine. Call ready() after methods that take now_ms."""

    def __init__(self, setup: TableClientSetup) -> None:
        self.setup = setup
        self.server: ServerInfo | None = None
        self.counters: Counter[str] = Counter()
        self._peers: dict[str, _ServerConnection] = {}
        self._actions: list[Connect | Disconnect | Send] = []
        self._added = 0  # Number of all exchanges so far.
        self._waiting: OrderedDict[bytes, Exchange] = OrderedDict()  # Unsent, in order.
        self._sent: dict[bytes, Exchange] = {}  # Sent and unanswered.
        self._sent_bytes = 0
        self._last_answer_ms = 0  # Or when it got the first unanswered request.
        self._pinged = False  # The server was pinged since.
        self.reason = ""  # Why the server could not serve the last request.
        self._refused = 0  # Number of such answers in a row.
        self._avoided = ""  # A server that is chosen last.
        self._search()

    # ---- requests ----

    @property
    def has_room(self) -> bool:
        """Whether a further request would be sent at once."""
        return not self._waiting and self._fits

    @property
    def _fits(self) -> bool:
        tagged = self.server is None or bool(self.server.features & FEATURE_PACKED)
        count = self.setup.requests_max if tagged else 1
        return len(self._sent) < count and self._sent_bytes < self.setup.bytes_max

    def add(self, exchange: Exchange) -> Exchange:
        """Adds a request behind all others."""
        self._added += 1
        exchange.number = self._added
        self._waiting[exchange.reqid] = exchange
        return exchange

    def leave(self, url: str) -> None:
        """Leaves this server for another one, if there is any: it cannot continue something."""
        if self.server is not None and self.server.url == url and len(self.setup.urls) > 1:
            self._avoided = url
            self._leave()

    def drop(self, exchange: Exchange) -> None:
        """Drops a request; the server may still do it."""
        self._waiting.pop(exchange.reqid, None)
        self._forget(exchange.reqid)

    # ---- events ----

    def on_connected(self, url: str, now_ms: int) -> None:
        """The connection is open."""
        peer = self._peers.get(url)
        if peer is not None:
            peer.up, peer.info_sent_ms = True, None

    def on_disconnected(self, url: str, now_ms: int) -> None:
        """The connection is lost. If it is that of the server in use, the search begins at once."""
        peer = self._peers.get(url)
        if peer is None or not peer.up:
            return
        peer.up = False
        if self.server is not None and url == self.server.url:
            self.reason = ""
            self._leave()

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None:
        """A message has arrived; a malformed one is counted and dropped."""
        peer = self._peers.get(url)
        if peer is None or not frames:
            return
        try:
            answer = decode_answer(frames)
            if answer.request_type == SERVER_INFO:
                self._on_info(peer, answer, now_ms)
            elif self.server is not None and url == self.server.url:
                self._on_answer(answer, now_ms)
        except RemoteProtocolError:
            self.counters["junk"] += 1

    def _on_info(self, peer: _ServerConnection, answer: Answer, now_ms: int) -> None:
        """A server has sent its info, as an answer to the search or to a ping."""
        features, software = decode_server_info(answer)
        self._last_answer_ms, self._pinged = now_ms, False
        if self.server is not None:
            return
        others = any(other.up for other in self._peers.values() if other is not peer)
        if peer.url == self._avoided and others:
            # It is chosen at its next info, unless another server answers first.
            self._avoided = ""
            return
        self.server = ServerInfo(peer.url, features, software)
        self.counters["servers"] += 1
        self._refused, self._avoided = 0, ""
        for url in [url for url in self._peers if url != peer.url]:
            self._disconnect(url)

    def _on_answer(self, answer: Answer, now_ms: int) -> None:
        self._last_answer_ms, self._pinged = now_ms, False
        reqid = answer.reqid
        if not reqid and self._sent and not self._tagged:
            reqid = next(iter(self._sent))  # The only one.
        exchange = self._sent.get(reqid)
        if exchange is None:
            self.counters["strays"] += 1
        elif answer.retry and now_ms < exchange.deadline_ms:
            self._on_unavailable(exchange, answer.text, now_ms)
        else:
            self._refused, self.reason = 0, ""
            exchange.answer = answer
            self._forget(reqid)

    def _on_unavailable(self, exchange: Exchange, text: str, now_ms: int) -> None:
        """The server cannot serve it now, for example during an election."""
        self.counters["again"] += 1
        self._refused += 1
        self.reason = text
        self._forget(exchange.reqid)
        exchange.due_ms = now_ms + self.setup.retry_ms
        self._requeue([exchange])
        if self._refused >= self.setup.retries_max and len(self.setup.urls) > 1:
            assert self.server is not None
            self._avoided = self.server.url
            self._leave()

    def _requeue(self, exchanges: Iterable[Exchange]) -> None:
        """Requests get their old positions, so that no write overtakes an earlier one."""
        everyone = sorted((*exchanges, *self._waiting.values()), key=lambda it: it.number)
        self._waiting = OrderedDict((it.reqid, it) for it in everyone if not it.done)

    def _forget(self, reqid: bytes) -> None:
        exchange = self._sent.pop(reqid, None)
        if exchange is not None:
            self._sent_bytes -= exchange.size

    # ---- the server ----

    @property
    def _tagged(self) -> bool:
        """Whether the server echoes reqids."""
        return self.server is not None and bool(self.server.features & FEATURE_PACKED)

    def _leave(self) -> None:
        """Leaves the server; unanswered requests go to the next one."""
        assert self.server is not None
        # A new socket, because requests queued in the old one must not be sent later.
        self._disconnect(self.server.url)
        self.server = None
        for exchange in (*self._sent.values(), *self._waiting.values()):
            self._check_bound(exchange, "")
        self._requeue(self._sent.values())
        self._sent.clear()
        self._sent_bytes = 0
        self._search()

    def _search(self) -> None:
        """Connects to all servers; the first one that answers is chosen."""
        self.counters["searches"] += 1
        for url in self.setup.urls:
            if url not in self._peers:
                self._peers[url] = _ServerConnection(url)
                self._actions.append(Connect(url))

    def _disconnect(self, url: str) -> None:
        del self._peers[url]
        self._actions.append(Disconnect(url))

    # ---- actions ----

    def ready(self, now_ms: int) -> list[Connect | Disconnect | Send]:
        """The actions to carry out now, in order."""
        if self.server is not None and self._silent_ms <= now_ms:
            self._on_silence(self.server, now_ms)
        if self.server is None:
            for peer in self._peers.values():
                if peer.up and self._info_due_ms(peer) <= now_ms:
                    peer.info_sent_ms = now_ms
                    self._actions.append(Send(peer.url, encode_request(AskServerInfo())))
        else:
            self._send_waiting(self.server, now_ms)
        actions, self._actions = self._actions, []
        return actions

    def _on_silence(self, server: ServerInfo, now_ms: int) -> None:
        if self._pinged:
            self.counters["silent"] += 1
            self.reason = ""
            self._leave()
            return
        self._pinged, self._last_answer_ms = True, now_ms
        self._actions.append(Send(server.url, encode_request(AskServerInfo())))

    def _send_waiting(self, server: ServerInfo, now_ms: int) -> None:
        while self._waiting and self._fits:
            exchange = next(iter(self._waiting.values()))
            if exchange.due_ms > now_ms:
                return
            del self._waiting[exchange.reqid]
            self._check_bound(exchange, server.url)
            self._check_known(exchange, server)
            if not exchange.refusal:
                self._send(server, exchange, now_ms)

    def _check_bound(self, exchange: Exchange, url: str) -> None:
        if exchange.bound not in ("", url):
            exchange.refusal = f"the server at {exchange.bound} that it is bound to was lost"

    def _check_known(self, exchange: Exchange, server: ServerInfo) -> None:
        request = exchange.request
        extension = request.extension
        ours = type_of(request) in OUR_TYPES or extension.flags & ~OPTIONAL_FLAGS
        if not self._tagged and (ours or extension.ttl_ms or extension.lease):
            name = server.software or "no name"
            exchange.refusal = f"the server at {server.url} ({name}) does not know such requests"

    def _send(self, server: ServerInfo, exchange: Exchange, now_ms: int) -> None:
        extension = NO_EXTENSION
        if self._tagged:
            left_ms = exchange.deadline_ms - now_ms
            # The server can report its reason before the client's deadline.
            left_ms = min(max(left_ms - left_ms // 10, 1), DEADLINE_MS_MAX)
            extension = exchange.request.extension
            extension = extension._replace(
                reqid=exchange.reqid,
                deadline_ms=extension.deadline_ms or left_ms,
                owner=self.setup.owner,
            )
        exchange.sent, exchange.url = exchange.request._replace(extension=extension), server.url
        frames = encode_request(exchange.sent)
        exchange.size = sum(map(len, frames))
        if not self._sent:
            self._last_answer_ms, self._pinged = now_ms, False
        self._sent[exchange.reqid] = exchange
        self._sent_bytes += exchange.size
        self._actions.append(Send(server.url, frames))

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        if self.server is None:
            return min(
                (self._info_due_ms(it) for it in self._peers.values() if it.up), default=None
            )
        times = [self._silent_ms] if self._silent_ms < _NEVER else []
        first = next(iter(self._waiting.values()), None)
        if first is not None and self._fits:
            times.append(first.due_ms)
        return min(times, default=None)

    @property
    def _silent_ms(self) -> int:
        """When silence means that the server is lost. Many unanswered bytes extend it: a busy
        server needs time."""
        if not self._sent:
            return _NEVER
        return self._last_answer_ms + self.setup.silence_ms + self._sent_bytes // BYTES_A_MS

    def _info_due_ms(self, peer: _ServerConnection) -> int:
        return 0 if peer.info_sent_ms is None else peer.info_sent_ms + self.setup.silence_ms


_NEVER = 1 << 62
