"""Connections that others have opened to us: requests in, answers out in the same order.

An answer may be ready before that of an earlier request: it waits in its slot.
"""

from collections import deque
from typing import NamedTuple

from ..wire.codec import ENTRY_HEADER, RequestStream, encode_response
from ..wire.messages import Request, Response
from ..wire.packed import PackedEntries


class PeerSession(NamedTuple):
    """What the other end of a connection may do, by the user that the handshake has let in.

    server_id   the user is bound to this server: it speaks for it, and for no other
    is_admin    it may change the members, and give orders
    is_server   it is the user of servers: unless it is bound, it speaks for each of them
    """

    user: str = ""
    server_id: int | None = None
    is_admin: bool = True
    is_server: bool = False

    def speaks_for(self, server_id: int) -> bool:
        """Whether this server's requests, and its status documents, may come from the user."""
        return self.is_server if self.server_id is None else self.server_id == server_id

    @property
    def speaks_for_all(self) -> bool:
        """Whether that is so for each server."""
        return self.is_server and self.server_id is None


class PendingResponse:
    """A request and, some time, its answer."""

    __slots__ = ("deadline_ms", "end", "inbound", "request", "response", "size")

    def __init__(
        self, inbound: "InboundConnection", request: Request, deadline_ms: int | None
    ) -> None:
        self.inbound = inbound
        self.request = request
        self.response: Response | None = None
        self.end = (
            request.last_log_index
        )  # What it speaks of ends here: an index, or of a snapshot a byte.
        self.deadline_ms = deadline_ms  # None: it takes as long as a commit takes.
        self.size = _entries_size(request)

    def release_entries(self) -> None:
        """They are where they belong: what waits keeps only what its answer is made of."""
        if self.size:
            self.request = Request(self.request.type, self.request.source)


def _entries_size(request: Request) -> int:
    """What its entries took on the wire."""
    entries = request.entries
    if isinstance(entries, PackedEntries):
        return len(entries.data)
    return sum(ENTRY_HEADER.size + len(entry.value) for entry in entries)


class PartialRequest(NamedTuple):
    """A request that has begun to arrive.

    number   of those on its connection, to tell one from the next
    here     so many bytes of it
    size     so many bytes it will have
    """

    number: int
    received: int
    size: int


class InboundConnection:
    """One connection."""

    __slots__ = (
        "_bytes_max",
        "_pending_bytes",
        "_request_count",
        "failure",
        "out",
        "pending",
        "session",
        "stream",
    )

    def __init__(self, session: PeerSession, entries_bytes_max: int) -> None:
        self.session = session
        self._bytes_max = entries_bytes_max
        self._request_count = 0  # Requests.
        self._pending_bytes = 0  # Bytes of entries of those that are not answered.
        self.stream = RequestStream(entries_bytes_max)
        self.pending: deque[PendingResponse] = deque()
        self.out = bytearray()  # To be sent, and then cleared, by the owner.
        self.failure = ""  # Why it is to be closed once `out` is sent.

    def add(self, request: Request, deadline_ms: int | None) -> PendingResponse:
        """A request is here; where its answer belongs."""
        pending = PendingResponse(self, request, deadline_ms)
        self.pending.append(pending)
        self._request_count += 1
        self._pending_bytes += pending.size
        return pending

    def flush(self) -> None:
        """Moves the answers that are next to `out`."""
        pending = self.pending
        while pending and (response := pending[0].response) is not None:
            self._pending_bytes -= pending.popleft().size
            self.out += encode_response(response)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be read before some of it is answered."""
        return self._pending_bytes >= self._bytes_max

    @property
    def partial(self) -> PartialRequest | None:
        """The request that is here in part."""
        received, size = self.stream.partial
        return PartialRequest(self._request_count, received, size) if received else None

    def is_overdue(self, now_ms: int) -> bool:
        """Whether a request was not answered in time: its connection is to be closed, as whoever
        asked would wait for ever."""
        return any(
            pending.deadline_ms is not None and now_ms >= pending.deadline_ms
            for pending in self.pending
            if pending.response is None
        )
