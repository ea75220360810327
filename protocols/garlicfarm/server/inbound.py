"""Inbound connections: requests arrive, and answers leave in the same order.

An answer that is ready before an earlier one waits in its PendingResponse.
"""

from collections import deque
from typing import NamedTuple

from ...access.grants import Right
from ..wire.codec import ENTRY_HEADER, RequestStream, encode_response
from ..wire.messages import Request, Response
from ..wire.packed import PackedEntries


class PeerSession(NamedTuple):
    """What a connection may do, by the user of its handshake.

    server_id    the user is bound to this server and may act as no other
    is_admin     the user may change the members and give orders
    is_server    the user belongs to servers; unless bound, it may act as any of them
    may_read     the user may read the log
    may_append   the user may append entries
    address      where the connection comes from; empty if unknown
    """

    user: str = ""
    server_id: int | None = None
    is_admin: bool = True
    is_server: bool = False
    may_read: bool = True
    may_append: bool = True
    address: str = ""

    @property
    def rights(self) -> Right:
        """The rights as the table of rights names them (protocols/access/rights.py)."""
        found = Right(0)
        for is_granted, right in (
            (self.is_admin, Right.ADMIN),
            (self.acts_as_server, Right.PEER),
            (self.may_read, Right.LOG_READ),
            (self.may_append, Right.LOG_APPEND),
        ):
            found |= right if is_granted else Right(0)
        return found

    @property
    def acts_as_server(self) -> bool:
        """Whether the user may act as a server."""
        return self.is_server or self.server_id is not None

    def may_act_as(self, server_id: int) -> bool:
        """Whether the user may send this server's requests and status documents."""
        return self.is_server if self.server_id is None else self.server_id == server_id

    @property
    def may_act_as_any(self) -> bool:
        return self.is_server and self.server_id is None


class PendingResponse:
    """A request, and its answer once that is known."""

    __slots__ = ("deadline_ms", "end", "inbound", "request", "response", "size")

    def __init__(
        self, inbound: "InboundConnection", request: Request, deadline_ms: int | None
    ) -> None:
        self.inbound = inbound
        self.request = request
        self.response: Response | None = None
        # Where the request's data ends: a log index, or a byte of a snapshot.
        self.end = request.last_log_index
        self.deadline_ms = deadline_ms  # None: it waits for a commit.
        self.size = _entries_size(request)

    def release_entries(self) -> None:
        """Drops the entries once the log has them; the answer does not need them."""
        if self.size:
            self.request = Request(self.request.type, self.request.source)


def _entries_size(request: Request) -> int:
    entries = request.entries
    if isinstance(entries, PackedEntries):
        return len(entries.data)
    return sum(ENTRY_HEADER.size + len(entry.value) for entry in entries)


class PartialRequest(NamedTuple):
    """A request that has not arrived completely.

    number     its position on the connection
    received   bytes so far
    size       its total bytes
    """

    number: int
    received: int
    size: int


class InboundConnection:
    __slots__ = (
        "_bytes_max", "_pending_bytes", "_request_count", "failure", "number", "out", "pending",
        "session", "stream",
    )  # fmt: skip

    def __init__(self, session: PeerSession, entries_bytes_max: int, number: int = 0) -> None:
        self.session = session
        self.number = number
        self._bytes_max = entries_bytes_max
        self._request_count = 0  # Requests received.
        self._pending_bytes = 0  # Bytes of entries of unanswered requests.
        self.stream = RequestStream(entries_bytes_max)
        self.pending: deque[PendingResponse] = deque()
        self.out = bytearray()  # The owner sends and clears it.
        self.failure = ""  # If not empty, the owner closes the connection after sending `out`.

    def add(self, request: Request, deadline_ms: int | None) -> PendingResponse:
        pending = PendingResponse(self, request, deadline_ms)
        self.pending.append(pending)
        self._request_count += 1
        self._pending_bytes += pending.size
        return pending

    def flush(self) -> None:
        """Moves answers that are next in order to `out`."""
        pending = self.pending
        while pending and (response := pending[0].response) is not None:
            self._pending_bytes -= pending.popleft().size
            self.out += encode_response(response)

    @property
    def is_full(self) -> bool:
        """Whether the owner must stop reading until requests are answered."""
        return self._pending_bytes >= self._bytes_max

    @property
    def partial(self) -> PartialRequest | None:
        """The request that has arrived in part."""
        received, size = self.stream.partial
        return PartialRequest(self._request_count, received, size) if received else None

    def is_overdue(self, now_ms: int) -> bool:
        """Whether a request was not answered in time. Its connection must close, because the
        sender waits without a limit.
        """
        return any(
            pending.deadline_ms is not None and now_ms >= pending.deadline_ms
            for pending in self.pending
            if pending.response is None
        )
