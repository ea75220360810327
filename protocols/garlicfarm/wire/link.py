"""An outgoing connection to another server: sends requests and matches answers in their order."""

from collections import deque
from typing import NamedTuple

from ...errors import RemoteProtocolError
from ...raft.messages import AppendResponse
from .codec import ResponseStream, encode_request
from .messages import RESPONSE_TYPES, Request, Response

OUTSTANDING_MAX = 64  # Requests under way. The core repeats messages that exceed it.


class PendingRequest(NamedTuple):
    request: Request
    round: int  # The read round of an AppendEntries, which its answer returns to the core.
    deadline_ms: int


class Link:
    """The connection to one server. Its owner opens it, and reopens it when it is lost."""

    __slots__ = ("_pending", "_stream", "endpoint", "failure", "is_up", "out")

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.is_up = False
        self.out = bytearray()  # The owner sends and clears it.
        self.failure = ""  # If not empty, the owner must close and reopen the connection.
        self._stream = ResponseStream()
        self._pending: deque[PendingRequest] = deque()

    def on_connected(self) -> None:
        """The handshake is complete."""
        self.on_lost()
        self.is_up = True

    def on_lost(self) -> None:
        """The connection has ended; its pending requests are dropped."""
        self.is_up = False
        self.failure = ""
        self.out.clear()
        self._pending.clear()
        self._stream = ResponseStream()

    @property
    def outstanding(self) -> int:
        return len(self._pending)

    def is_pending(self, request: Request) -> bool:
        """Whether an equal request is under way."""
        return any(pending.request == request for pending in self._pending)

    def send(self, request: Request, deadline_ms: int, round_: int = 0) -> bool:
        """Sends a request. Returns False if the link is down or has OUTSTANDING_MAX requests under
        way.
        """
        if not self.is_up or self.failure or len(self._pending) >= OUTSTANDING_MAX:
            return False
        self.out += encode_request(request)
        self._pending.append(PendingRequest(request, round_, deadline_ms))
        return True

    def feed(self, data: bytes) -> list[tuple[PendingRequest, Response]]:
        """Adds bytes; returns complete answers with their requests.

        Raises RemoteProtocolError on a malformed, unexpected or mismatched answer.
        """
        answered = []
        for response in self._stream.feed(data):
            if not self._pending:
                raise RemoteProtocolError(f"a {response.type.name} without a request")
            pending = self._pending.popleft()
            if response.type is not RESPONSE_TYPES[pending.request.type]:
                raise RemoteProtocolError(
                    f"{pending.request.type.name} is answered by a {response.type.name}"
                )
            answered.append((pending, response))
        return answered

    @property
    def deadline_ms(self) -> int | None:
        return self._pending[0].deadline_ms if self._pending else None


def append_response(pending: PendingRequest, response: Response) -> AppendResponse:
    """The answer to an AppendEntries in the core's form.

    Raises RemoteProtocolError if it acknowledges other entries than were sent.
    """
    request = pending.request
    if response.is_accepted:
        end = request.last_log_index + len(request.entries)
        if response.next_index != end + 1:
            raise RemoteProtocolError(f"accepted up to {response.next_index}, sent up to {end}")
        return AppendResponse(response.term, True, end, read_round=pending.round)
    # Step back by one at least: the follower may name the index that was sent.
    hint = min(response.next_index, request.last_log_index)
    return AppendResponse(response.term, False, 0, hint, read_round=pending.round)
