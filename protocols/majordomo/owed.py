"""Errors that a broker owes to clients whose sockets have no room; it sends them until they have.

It never keeps answers: an error stands for each answer that was dropped.
"""

from collections import OrderedDict, deque

RETRY_MS = 100  # Between two attempts.
RETRY_MAX = 1024  # Errors of an attempt; those of other clients are next.
RETRY_CLIENT_MAX = 64  # Errors of one client in an attempt.
OWED_MAX = 65_536  # Errors of all clients; beyond that they are dropped.
OWED_CLIENT_MAX = 4096  # Errors of one client.


class OwedErrors:
    """Whole messages for clients, with the routing id first."""

    def __init__(self) -> None:
        self.deadline_ms: int | None = None  # Of the next attempt; None: nothing is owed.
        self.count = 0
        self._errors: OrderedDict[bytes, deque[list[bytes]]] = OrderedDict()

    def add(self, error: list[bytes], now_ms: int) -> bool:
        """Keeps an error that was not sent. False: there is no room, it is lost."""
        errors = self._errors.get(error[0])
        if self.count >= OWED_MAX or (errors is not None and len(errors) >= OWED_CLIENT_MAX):
            return False
        if errors is None:
            errors = self._errors[error[0]] = deque()
        errors.append(error)
        self.count += 1
        if self.deadline_ms is None:
            self.deadline_ms = now_ms + RETRY_MS
        return True

    def pop_due(self, now_ms: int) -> list[list[bytes]]:
        """The errors to send now; what is not sent is added again. Clients take turns."""
        due: list[list[bytes]] = []
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return due
        for routing_id in list(self._errors):
            if len(due) >= RETRY_MAX:
                break
            errors = self._errors[routing_id]
            due += [errors.popleft() for _ in range(min(len(errors), RETRY_CLIENT_MAX))]
            if errors:
                self._errors.move_to_end(routing_id)
            else:
                del self._errors[routing_id]
        self.count -= len(due)
        self.deadline_ms = now_ms + RETRY_MS if self._errors else None
        return due

    def remove_client(self, routing_id: bytes) -> None:
        """The client is not connected."""
        self.count -= len(self._errors.pop(routing_id, ()))
        if not self._errors:
            self.deadline_ms = None
