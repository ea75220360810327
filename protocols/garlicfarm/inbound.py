"""Connections that others have opened to us: requests in, answers out in the same order.

An answer may be ready before that of an earlier request: it waits in its slot.
"""

from collections import deque
from typing import NamedTuple

from .codec import RequestStream, encode_response
from .messages import Request, Response


class Grant(NamedTuple):
    """What the one at the other end may do, by whom the handshake has let in.

    server_id   the only server that it may speak for; None: any
    is_admin    it may change the members
    """

    user: str = ""
    server_id: int | None = None
    is_admin: bool = True


class Slot:
    """A request and, some time, its answer."""

    __slots__ = ("deadline_ms", "end", "inbound", "request", "response")

    def __init__(self, inbound: "Inbound", request: Request, deadline_ms: int | None) -> None:
        self.inbound = inbound
        self.request = request
        self.response: Response | None = None
        self.end = (
            request.last_log_index
        )  # What it speaks of ends here: an index, or of a snapshot a byte.
        self.deadline_ms = deadline_ms  # None: it takes as long as a commit takes.


class Inbound:
    """One connection."""

    __slots__ = ("failure", "grant", "out", "slots", "stream")

    def __init__(self, grant: Grant, entries_bytes_max: int) -> None:
        self.grant = grant
        self.stream = RequestStream(entries_bytes_max)
        self.slots: deque[Slot] = deque()
        self.out = bytearray()  # To be sent, and then cleared, by the owner.
        self.failure = ""  # Why it is to be closed once `out` is sent.

    def flush(self) -> None:
        """Moves the answers that are next to `out`."""
        slots = self.slots
        while slots and (response := slots[0].response) is not None:
            slots.popleft()
            self.out += encode_response(response)

    def overdue(self, now_ms: int) -> bool:
        """Whether a request was not answered in time: its connection is to be closed, as whoever
        asked would wait for ever."""
        return any(
            slot.deadline_ms is not None and now_ms >= slot.deadline_ms
            for slot in self.slots
            if slot.response is None
        )
