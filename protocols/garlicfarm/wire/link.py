"""A connection of ours to another server: requests out, their answers in the same order."""

from collections import deque
from typing import NamedTuple

from ...errors import RemoteProtocolError
from ...raft.messages import AppendResponse
from .codec import ResponseStream, encode_request
from .messages import RESPONSE_TYPES, Request, Response

OUTSTANDING_MAX = 64  # Requests; what the core says beyond them it says again later.


class PendingRequest(NamedTuple):
    """A request that is under way."""

    request: Request
    round: int  # Of reads, that the core wants to hear of again.
    deadline_ms: int


class Link:
    """What is known of one server's connection; its owner opens it, and again when it is lost."""

    __slots__ = ("_pending", "_stream", "endpoint", "failure", "is_up", "out")

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.is_up = False
        self.out = bytearray()  # To be sent, and then cleared, by the owner.
        self.failure = ""  # Why it is to be closed and opened anew.
        self._stream = ResponseStream()
        self._pending: deque[PendingRequest] = deque()

    def on_connected(self) -> None:
        """The handshake is over."""
        self.on_lost()
        self.is_up = True

    def on_lost(self) -> None:
        """The connection has ended, and what was on it."""
        self.is_up = False
        self.failure = ""
        self.out.clear()
        self._pending.clear()
        self._stream = ResponseStream()

    @property
    def outstanding(self) -> int:
        return len(self._pending)

    def is_pending(self, request: Request) -> bool:
        """Whether the very same is under way."""
        return any(pending.request == request for pending in self._pending)

    def send(self, request: Request, deadline_ms: int, round_: int = 0) -> bool:
        """Sends a request, unless there is no connection or too much is under way on it."""
        if not self.is_up or self.failure or len(self._pending) >= OUTSTANDING_MAX:
            return False
        self.out += encode_request(request)
        self._pending.append(PendingRequest(request, round_, deadline_ms))
        return True

    def feed(self, data: bytes) -> list[tuple[PendingRequest, Response]]:
        """Takes in what has arrived; answers, each with what it answers.

        Raises RemoteProtocolError on what is none, or answers nothing.
        """
        answered = []
        for response in self._stream.feed(data):
            if not self._pending:
                raise RemoteProtocolError(f"a {response.type.name} that nobody asked for")
            pending = self._pending.popleft()
            if response.type is not RESPONSE_TYPES[pending.request.type]:
                raise RemoteProtocolError(
                    f"{pending.request.type.name} is answered by a {response.type.name}"
                )
            answered.append((pending, response))
        return answered

    @property
    def deadline_ms(self) -> int | None:
        """When the next answer must be there."""
        return self._pending[0].deadline_ms if self._pending else None


def append_response(pending: PendingRequest, response: Response) -> AppendResponse:
    """The answer to an AppendEntries as the core has it.

    Raises RemoteProtocolError when it accepts something else than it was sent.
    """
    request = pending.request
    if response.is_accepted:
        end = request.last_log_index + len(request.entries)
        if response.next_index != end + 1:
            raise RemoteProtocolError(f"accepted up to {response.next_index}, sent up to {end}")
        return AppendResponse(response.term, True, end, round=pending.round)
    # One step back at least: what it names may be where we are already.
    hint = min(response.next_index, request.last_log_index)
    return AppendResponse(response.term, False, 0, hint, round=pending.round)
