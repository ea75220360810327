"""The requests of a client that no answer has ended: in order, sent again after a failover."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .limits import NEVER_MS


@dataclass(slots=True, eq=False)
class ClientRequest:
    """Base of a service's requests: what a RequestWindow knows of each."""

    id: bytes = field(init=False, default=b"")
    number: int = field(init=False, default=0)  # Its position in the order of requests.
    due_ms: int = field(init=False, default=0)  # It is not sent before this time.
    size: int = field(init=False, default=0)  # Of its frames, in bytes.

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        raise NotImplementedError


RequestT = TypeVar("RequestT", bound=ClientRequest)


class RequestWindow(Generic[RequestT]):
    """Unsent requests in order, and a bounded number of sent ones without an answer.

    A request that is sent again returns to its old position, so no request overtakes an earlier
    one.
    """

    def __init__(self, sent_max: int, bytes_max: int) -> None:
        self.sent_max = sent_max
        self.sent_bytes = 0
        self.unsent: OrderedDict[bytes, RequestT] = OrderedDict()
        self.sent: dict[bytes, RequestT] = {}
        self._bytes_max = bytes_max
        self._added = 0

    def __len__(self) -> int:
        return len(self.unsent) + len(self.sent)

    def __iter__(self) -> Iterator[RequestT]:
        yield from self.sent.values()
        yield from self.unsent.values()

    def __contains__(self, id_: bytes) -> bool:
        return id_ in self.sent or id_ in self.unsent

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent; one that is larger than the limit goes alone."""
        return len(self.sent) < self.sent_max and self.sent_bytes < self._bytes_max

    def add(self, id_: bytes, request: RequestT) -> None:
        """Adds a request behind all others."""
        self._added += 1
        request.id, request.number = id_, self._added
        self.unsent[id_] = request

    def pop_due(self, now_ms: int) -> RequestT | None:
        """The next request to send, if there is room and its time has come."""
        if not self.unsent or not self.has_room:
            return None
        request = next(iter(self.unsent.values()))
        if request.due_ms > now_ms:
            return None
        del self.unsent[request.id]
        return request

    def mark_sent(self, request: RequestT) -> None:
        self.sent[request.id] = request
        self.sent_bytes += request.size

    def drop(self, request: RequestT) -> None:
        """Forgets a request that has ended."""
        self.unsent.pop(request.id, None)
        if self.sent.pop(request.id, None) is not None:
            self.sent_bytes -= request.size

    def retry(self, request: RequestT, due_ms: int) -> None:
        """Sends a request again at due_ms."""
        self.drop(request)
        request.due_ms = due_ms
        self._requeue([request])

    def rewind(self) -> None:
        """The server is left: all requests are sent again."""
        self._requeue(self.sent.values())
        self.sent.clear()
        self.sent_bytes = 0

    def _requeue(self, requests: Iterable[RequestT]) -> None:
        in_order = sorted((*requests, *self.unsent.values()), key=lambda it: it.number)
        self.unsent = OrderedDict((it.id, it) for it in in_order if not it.done)

    @property
    def due_ms(self) -> int:
        """When the next request may be sent; NEVER_MS: not before an answer."""
        if not self.unsent or not self.has_room:
            return NEVER_MS
        return next(iter(self.unsent.values())).due_ms
