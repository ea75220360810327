"""The client side of ZeroDB without I/O: it chooses a server, matches answers, and retries
elsewhere.

A connection is identified by its url. The owner reports events and messages, and carries out what
ready() returns. The machine reads headers only.

A kelek server answers in any order and echoes the reqid of the request (docs/protocols/zerodb.md,
"Extensions"). Another server gets one request at a time. When a server is lost, the next one gets
all unanswered requests again, in order and with the same reqids. The log accepts a reqid once, so
no write is doubled and no old copy follows a newer write.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...connections import ClientAction
from ...errors import RemoteProtocolError
from ...failover.limits import NEVER_MS, RETRY_MS, SILENCE_MS
from ...failover.requests import ClientRequest, RequestWindow
from ...failover.servers import Candidate, Failover, FailoverPolicy
from ..wire import values
from ..wire.answers import Answer, decode_answer, decode_server_info
from ..wire.requests import Request, encode_request, type_of
from ..wire.requests import ServerInfo as AskServerInfo

DEADLINE_MS_MAX = (1 << 32) - 1
NO_LEADER_TEXT = "its node knows no leader"
OUR_TYPES = frozenset(
    {values.SPLIT_POINTS, values.TABLE_INFO, values.WATCH, values.TRANSACTION, values.SESSION}
    | {values.LEASE, values.COPY_TABLE, values.LIST_JOBS, values.END_JOB, values.LIFETIMES}
)
# A server without them gives the same result.
OPTIONAL_FLAGS = values.PACKED | values.STALE | values.WITH_INDEX | values.WITH_VERSIONS


class TableClientSetup(NamedTuple):
    """Servers, limits of unanswered requests, and times of the search for a server."""

    urls: tuple[str, ...]
    requests_max: int = 64  # Sent and unanswered.
    bytes_max: int = 32 << 20  # Of these; a larger request is sent alone.
    silence_ms: int = SILENCE_MS  # Then the server is pinged; after the same time it is lost.
    retry_ms: int = RETRY_MS  # Delay before a retry of a request that the server could not serve.
    retries_max: int = 4  # After so many of these in a row another server is tried.
    owner: bytes = b""  # Owner token for reserved tables.
    notice: bool = False  # Warn of requests that wait without a server.
    reach_ms: int | None = NEVER_MS  # Of the failover.


class ServerInfo(NamedTuple):
    """The table server that a Table uses.

    url        its address
    features   FEATURE_* bits (docs/protocols/zerodb.md, "Extensions"); 0: it is not kelek
    software   name and version, for example "kelek 0.1.0"
    """

    url: str
    features: int
    software: str


@dataclass(slots=True, eq=False)
class Exchange(ClientRequest):
    """A request and, once it arrives, its answer.

    request      its deadline is kept, the rest of its extension is completed
    reqid        12 bytes, never used before
    deadline_ms  when the caller stops waiting
    bound        url of the only server that can serve it; if that is lost, the request fails
    """

    request: Request
    reqid: bytes
    deadline_ms: int
    bound: str = ""
    sent: Request = field(init=False)  # As sent last.
    url: str = field(init=False, default="")  # Of the server that it was sent to last.
    answer: Answer | None = field(init=False, default=None)
    refusal: str = field(init=False, default="")  # Why it cannot be sent.

    def __post_init__(self) -> None:
        self.sent = self.request

    @property
    def done(self) -> bool:
        return self.answer is not None or bool(self.refusal)


class TableClientMachine:
    """The client machine. Call ready() after methods that take now_ms."""

    def __init__(self, setup: TableClientSetup) -> None:
        self.setup = setup
        self.server: ServerInfo | None = None
        self.counters: Counter[str] = Counter()
        policy = FailoverPolicy(
            kind="table server",
            plural="servers",
            search_ms=setup.silence_ms,
            search_retry_ms=setup.silence_ms,
            silence_ms=setup.silence_ms,
            probes_max=1,
            notice=setup.notice,
            reach_ms=setup.reach_ms,
        )
        self.failover: Failover[Candidate] = Failover(policy, self, Candidate, self.counters)
        self._requests: RequestWindow[Exchange] = RequestWindow(setup.requests_max, setup.bytes_max)
        self._info = 0, ""  # Features and software of the server that answers.
        self._flags_known = -1  # Flags of extensions that the server knows.
        self.reason = ""  # Why the server could not serve the last request.
        self._refused = 0  # Number of such answers in a row.
        self.server_waits = 0  # Calls that wait for a server, before they have a request.
        self.failover.search(0)

    # ---- requests ----

    @property
    def has_room(self) -> bool:
        """Whether a further request would be sent at once."""
        return not self._requests.unsent and self._requests.has_room

    def add(self, exchange: Exchange) -> Exchange:
        """Adds a request behind all others."""
        self._requests.add(exchange.reqid, exchange)
        return exchange

    def leave(self, url: str, now_ms: int) -> None:
        """Leaves this server for another one, if there is any: it cannot continue something."""
        if self.server is not None and self.server.url == url and len(self.setup.urls) > 1:
            self.failover.leave("left", now_ms, avoids=True)

    def drop(self, exchange: Exchange) -> None:
        """Drops a request; the server may still do it."""
        self._requests.drop(exchange)

    # ---- events ----

    def on_connected(self, url: str, now_ms: int) -> None:
        """The connection is open."""
        self.failover.on_connected(url, now_ms)

    def on_disconnected(self, url: str, now_ms: int) -> None:
        """The connection is lost. If it is that of the server in use, the search begins at once."""
        self.failover.on_disconnected(url, now_ms)

    def on_refused(self, url: str, problem: str, way_out: str, may_pass: bool = False) -> None:
        """The connection is not made: a key is missing or refused, or the host has no address."""
        self.failover.on_refused(url, problem, way_out, may_pass)

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None:
        """A message has arrived; a malformed one is counted and dropped."""
        server = self.failover.servers.get(url)
        if server is None or not frames:
            return
        try:
            answer = decode_answer(frames)
            if answer.request_type == values.SERVER_INFO:
                self._on_info(server, answer, now_ms)
            elif server is self.failover.current:
                self._on_answer(server, answer, now_ms)
        except RemoteProtocolError:
            self.counters["junk"] += 1

    def _on_info(self, server: Candidate, answer: Answer, now_ms: int) -> None:
        """A server has sent its info, as an answer to the search or to a ping."""
        features, software = decode_server_info(answer)
        self.failover.on_heard(server, now_ms)
        if self.server is None:
            self._info = features & ~values.NO_LEADER, software
            self.failover.use(server, now_ms)
        elif server is self.failover.current and features & values.NO_LEADER:
            # Else its answer, some seconds later, would be the first word of it.
            self.reason = self.reason or NO_LEADER_TEXT
            self.failover.on_waiting_since(now_ms - self.setup.silence_ms)
        elif self.reason == NO_LEADER_TEXT:
            self.reason = ""  # It knows one again; the request may just take long.

    def _on_answer(self, server: Candidate, answer: Answer, now_ms: int) -> None:
        self.failover.on_heard(server, now_ms)
        sent = self._requests.sent
        reqid: Hashable = answer.reqid
        if not reqid and sent and not self._tagged:
            reqid = next(iter(sent))  # The only one.
        exchange = sent.get(reqid)
        if exchange is None:
            self.counters["strays"] += 1
        elif answer.retry and now_ms < exchange.deadline_ms:
            self._on_unavailable(exchange, answer.text, now_ms)
        else:
            self._refused, self.reason = 0, ""
            exchange.answer = answer
            self._requests.drop(exchange)

    def _on_unavailable(self, exchange: Exchange, text: str, now_ms: int) -> None:
        """The server cannot serve it now, for example during an election."""
        self.counters["again"] += 1
        self._refused += 1
        self.reason = text
        self._requests.retry(exchange, now_ms + self.setup.retry_ms)
        if self._refused >= self.setup.retries_max and len(self.setup.urls) > 1:
            self.failover.leave("refused", now_ms, avoids=True)

    @property
    def _tagged(self) -> bool:
        """Whether the server echoes reqids."""
        return self.server is not None and bool(self.server.features & values.FEATURE_PACKED)

    # ---- the service of the failover ----

    def candidates(self) -> Iterable[str]:
        return self.setup.urls

    def ask(self, server: Candidate, now_ms: int) -> None:
        self.failover.send(server.url, encode_request(AskServerInfo()))

    def on_used(self, server: Candidate, now_ms: int) -> None:
        self.server = ServerInfo(server.url, *self._info)
        features = self.server.features
        self._flags_known = -1 if features & values.FEATURE_INDEXES else ~values.WITH_INDEX
        if not features & values.FEATURE_VERSIONS:
            self._flags_known &= ~values.WITH_VERSIONS
        self._refused = 0
        self._requests.sent_max = self.setup.requests_max if self._tagged else 1

    def on_left(self, server: Candidate, why: str) -> None:
        self.server = None
        if why in ("lost", "silent"):
            self.reason = ""
        for exchange in self._requests:
            self._check_bound(exchange, "")
        self._requests.sent_max = self.setup.requests_max
        self._requests.rewind()

    def owed(self) -> tuple[int | None, int]:
        window = self._requests
        return (self.failover.heard_ms if window.sent else None), window.sent_bytes

    def waits(self) -> str | None:
        return self.reason if len(self._requests) or self.server_waits else None

    # ---- actions ----

    def ready(self, now_ms: int) -> list[ClientAction]:
        """The actions to carry out now, in order."""
        self.failover.step(now_ms)
        if self.server is not None:
            for exchange in self._requests.send_due(now_ms):
                self._send(self.server, exchange, now_ms)
        actions, self.failover.actions = self.failover.actions, []
        return actions

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
        """Sends a request, unless this server cannot serve it."""
        self._check_bound(exchange, server.url)
        self._check_known(exchange, server)
        if exchange.refusal:
            return
        extension = values.NO_EXTENSION
        if self._tagged:
            left_ms = exchange.deadline_ms - now_ms
            # The server can report its reason before the client's deadline.
            left_ms = min(max(left_ms - left_ms // 10, 1), DEADLINE_MS_MAX)
            extension = exchange.request.extension
            extension = extension._replace(
                flags=extension.flags & self._flags_known,
                reqid=exchange.reqid,
                deadline_ms=extension.deadline_ms or left_ms,
                owner=self.setup.owner,
            )
        exchange.sent, exchange.url = exchange.request._replace(extension=extension), server.url
        frames = encode_request(exchange.sent)
        exchange.size = sum(map(len, frames))
        if not self._requests.sent:
            self.failover.restart_silence(now_ms)
        self.failover.send(server.url, frames)

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        due_ms = NEVER_MS if self.server is None else self._requests.due_ms
        due_ms = min(due_ms, self.failover.deadline_ms)
        return due_ms if due_ms < NEVER_MS else None
