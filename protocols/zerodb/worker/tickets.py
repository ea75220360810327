"""The tickets of a worker's requests: zerodb_server learns up to which one all are answered."""

from collections import Counter


class OpenTickets:
    """Tickets whose requests are not all answered."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()  # Number of unanswered requests by ticket.
        self.last = 0

    def on_answered(self, ticket: int) -> None:
        """A request of the ticket is answered."""
        self.requests[ticket] -= 1
        if not self.requests[ticket]:
            del self.requests[ticket]
