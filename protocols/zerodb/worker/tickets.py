"""Requests of a worker as they arrive, and their tickets: zerodb_server learns up to which one all
are answered."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class QueuedRequest(NamedTuple):
    """A request as it arrived."""

    route: bytes  # Routing id of the connection.
    frames: Sequence[bytes]  # Beginning with the header.
    log_index: int = 0  # Must be applied before the request is answered.
    ticket: int = 0  # Grows; many requests may share it.
    answered: bool = True  # False: the client expects no answer.
    envelope: bool = False  # The answer needs a REQ socket's empty frame.
    tag: bytes = b""  # ANSWER_TAG, the first frame of the answer.
    client: int = 0  # The slot of its key + 1; 0: without CURVE.


class OpenTickets:
    """Tickets whose requests are not all answered."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()  # Number of unanswered requests by ticket.
        self.last = 0

    def add(self, ticket: int) -> None:
        """A request of the ticket has arrived."""
        self.last = max(self.last, ticket)
        self.requests[ticket] += 1

    def on_answered(self, ticket: int) -> None:
        """A request of the ticket is answered."""
        self.requests[ticket] -= 1
        if not self.requests[ticket]:
            del self.requests[ticket]
