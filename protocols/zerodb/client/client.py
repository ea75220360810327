"""The client's side of ZeroDB without IO: takes a server, matches answers, asks again elsewhere.

Connections are named by their url. The owner tells what happens to them and what arrives, then does
what ready() returns. It knows headers only: what a request asks for is its maker's business.

A server of ours answers in any order, and names the reqid of the request (docs/protocols/zerodb.md,
"Extensions"). Any other is asked one thing at a time. When a server is lost the next one is sent
everything that is unanswered again, in the same order and under the same reqids: by these the log
takes a write once, so neither is it doubled nor does an old copy overtake a newer write.
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
OPTIONAL_FLAGS = PACKED | STALE  # Without them a request says the same to a foreign server.


class TableClientSetup(NamedTuple):
    """The servers, how much may be on its way, and the times of the search for one."""

    urls: tuple[str, ...]
    requests_max: int = 64  # Sent and not answered.
    bytes_max: int = 32 << 20  # Of these; a larger request goes alone.
    silence_ms: int = 1000  # Then a server is asked whether it is there; as long again: it is not.
    again_ms: int = 50  # Before a request is repeated that the server could not serve now.
    patience: int = 4  # So many of these in a row, and another server is tried.
    owner: bytes = b""  # By which reserved tables know us.


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
    """A request and, in the end, its answer.

    request      a deadline in its extension is kept, the rest of the extension is completed
    reqid        12 bytes, never used before
    deadline_ms  when its owner gives up
    bound        the url of the one server that it means something to: with that it is lost
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
        self.number = 0  # Its place in the order.
        self.due_ms = 0  # Not to be sent before.
        self.sent = request  # As it was sent last.
        self.url = ""  # Of the server that it was sent to last.
        self.size = 0  # Bytes of its frames, when it was sent.
        self.answer: Answer | None = None
        self.refusal = ""  # Why it can't be sent.

    @property
    def done(self) -> bool:
        return self.answer is not None or bool(self.refusal)


class _ServerConnection:
    """One connection."""

    __slots__ = ("asked_ms", "up", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.up = False
        self.asked_ms: int | None = None  # When it was asked who it is.


class TableClientMachine:
    """The machine. Every method that takes now_ms may be followed by ready()."""

    def __init__(self, setup: TableClientSetup) -> None:
        self.setup = setup
        self.server: ServerInfo | None = None
        self.counters: Counter[str] = Counter()
        self._peers: dict[str, _ServerConnection] = {}
        self._actions: list[Connect | Disconnect | Send] = []
        self._added = 0  # Exchanges, ever.
        self._waiting: OrderedDict[bytes, Exchange] = OrderedDict()  # Not sent, in order.
        self._sent: dict[bytes, Exchange] = {}  # And not answered.
        self._sent_bytes = 0
        self._heard_ms = 0  # When the server last said something, or began to owe it.
        self._pinged = False  # And was asked whether it is there since.
        self.reason = ""  # Why the server can't serve a request now, if it has just said so.
        self._refused = 0  # Times in a row that it could not serve now.
        self._avoided = ""  # Of two servers that answer the other one is taken.
        self._search()

    # ---- what the owner wants ----

    @property
    def has_room(self) -> bool:
        """Whether another request would be sent at once."""
        return not self._waiting and self._fits

    @property
    def _fits(self) -> bool:
        tagged = self.server is None or bool(self.server.features & FEATURE_PACKED)
        count = self.setup.requests_max if tagged else 1
        return len(self._sent) < count and self._sent_bytes < self.setup.bytes_max

    def add(self, exchange: Exchange) -> Exchange:
        """Puts a request behind those that are on their way."""
        self._added += 1
        exchange.number = self._added
        self._waiting[exchange.reqid] = exchange
        return exchange

    def leave(self, url: str) -> None:
        """Takes another server than this one, if there is one: it can't go on with something."""
        if self.server is not None and self.server.url == url and len(self.setup.urls) > 1:
            self._avoided = url
            self._leave()

    def drop(self, exchange: Exchange) -> None:
        """Forgets a request; what was sent may still be done."""
        self._waiting.pop(exchange.reqid, None)
        self._forget(exchange.reqid)

    # ---- what happens ----

    def on_connected(self, url: str, now_ms: int) -> None:
        """The connection is made, or made again: it can be sent to."""
        peer = self._peers.get(url)
        if peer is not None:
            peer.up, peer.asked_ms = True, None

    def on_disconnected(self, url: str, now_ms: int) -> None:
        """The connection is lost. Of the server's: another one is looked for at once."""
        peer = self._peers.get(url)
        if peer is None or not peer.up:
            return
        peer.up = False
        if self.server is not None and url == self.server.url:
            self.reason = ""
            self._leave()

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None:
        """A message arrived; junk is dropped and counted."""
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
        """A server says who it is: because it is to be chosen, or to show that it is there."""
        features, software = decode_server_info(answer)
        self._heard_ms, self._pinged = now_ms, False
        if self.server is not None:
            return
        others = any(other.up for other in self._peers.values() if other is not peer)
        if peer.url == self._avoided and others:
            self._avoided = ""  # It is taken when it says so once more, before the others do.
            return
        self.server = ServerInfo(peer.url, features, software)
        self.counters["servers"] += 1
        self._refused, self._avoided = 0, ""
        for url in [url for url in self._peers if url != peer.url]:
            self._disconnect(url)

    def _on_answer(self, answer: Answer, now_ms: int) -> None:
        self._heard_ms, self._pinged = now_ms, False
        reqid = answer.reqid
        if not reqid and self._sent and not self._tagged:
            reqid = next(iter(self._sent))  # The only one.
        exchange = self._sent.get(reqid)
        if exchange is None:
            self.counters["strays"] += 1
        elif answer.retry and now_ms < exchange.deadline_ms:
            self._on_again(exchange, answer.text, now_ms)
        else:
            self._refused, self.reason = 0, ""
            exchange.answer = answer
            self._forget(reqid)

    def _on_again(self, exchange: Exchange, text: str, now_ms: int) -> None:
        """The server could not serve it now: an election, a follower that is cut off."""
        self.counters["again"] += 1
        self._refused += 1
        self.reason = text
        self._forget(exchange.reqid)
        exchange.due_ms = now_ms + self.setup.again_ms
        self._wait_again([exchange])
        if self._refused >= self.setup.patience and len(self.setup.urls) > 1:
            assert self.server is not None
            self._avoided = self.server.url
            self._leave()

    def _wait_again(self, exchanges: Iterable[Exchange]) -> None:
        """Each gets its old place: no write may overtake one that was begun before it."""
        everyone = sorted((*exchanges, *self._waiting.values()), key=lambda it: it.number)
        self._waiting = OrderedDict((it.reqid, it) for it in everyone if not it.done)

    def _forget(self, reqid: bytes) -> None:
        exchange = self._sent.pop(reqid, None)
        if exchange is not None:
            self._sent_bytes -= exchange.size

    # ---- the server ----

    @property
    def _tagged(self) -> bool:
        """Whether the server names the request in its answer."""
        return self.server is not None and bool(self.server.features & FEATURE_PACKED)

    def _leave(self) -> None:
        """Gives the server up: whatever it owes is sent to the next one."""
        assert self.server is not None
        # A new socket: what waits in the old one must not be sent later.
        self._disconnect(self.server.url)
        self.server = None
        for exchange in (*self._sent.values(), *self._waiting.values()):
            self._check_bound(exchange, "")
        self._wait_again(self._sent.values())
        self._sent.clear()
        self._sent_bytes = 0
        self._search()

    def _search(self) -> None:
        """Connects to all of them: the first one that answers is taken."""
        self.counters["searches"] += 1
        for url in self.setup.urls:
            if url not in self._peers:
                self._peers[url] = _ServerConnection(url)
                self._actions.append(Connect(url))

    def _disconnect(self, url: str) -> None:
        del self._peers[url]
        self._actions.append(Disconnect(url))

    # ---- what is to be done ----

    def ready(self, now_ms: int) -> list[Connect | Disconnect | Send]:
        """Everything to be done now, in order."""
        if self.server is not None and self._silent_ms <= now_ms:
            self._on_silence(self.server, now_ms)
        if self.server is None:
            for peer in self._peers.values():
                if peer.up and self._ask_due_ms(peer) <= now_ms:
                    peer.asked_ms = now_ms
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
        self._pinged, self._heard_ms = True, now_ms
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
            # The server says why it could not before its client has given up.
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
            self._heard_ms, self._pinged = now_ms, False
        self._sent[exchange.reqid] = exchange
        self._sent_bytes += exchange.size
        self._actions.append(Send(server.url, frames))

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest, whatever happens."""
        if self.server is None:
            return min((self._ask_due_ms(it) for it in self._peers.values() if it.up), default=None)
        times = [self._silent_ms] if self._silent_ms < _NEVER else []
        first = next(iter(self._waiting.values()), None)
        if first is not None and self._fits:
            times.append(first.due_ms)
        return min(times, default=None)

    @property
    def _silent_ms(self) -> int:
        """When the server has been silent for too long about what it owes: that it is busy with
        much is no reason to send it all once more elsewhere."""
        if not self._sent:
            return _NEVER
        return self._heard_ms + self.setup.silence_ms + self._sent_bytes // BYTES_A_MS

    def _ask_due_ms(self, peer: _ServerConnection) -> int:
        return 0 if peer.asked_ms is None else peer.asked_ms + self.setup.silence_ms


_NEVER = 1 << 62
