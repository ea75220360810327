"""The requests of a client that no answer has ended: in order, sent again after a failover."""

import heapq
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .limits import NEVER_MS

# Requests that have ended whose deadlines stay in the heap, besides as many as there are open ones.
DONE_MAX = 1000


@dataclass(slots=True, eq=False)
class ClientRequest:
    """Base of a service's requests: what a RequestWindow knows of each."""

    id: Hashable = field(init=False, default=b"")
    number: int = field(init=False, default=0)  # Its position in the order of requests.
    due_ms: int = field(init=False, default=0)  # It is not sent before this time.
    size: int = field(init=False, default=0)  # Of its frames, in bytes.

    @property
    def done(self) -> bool:
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
        self.unsent: OrderedDict[Hashable, RequestT] = OrderedDict()
        self.sent: dict[Hashable, RequestT] = {}
        self.deadlines: list[tuple[int, int, RequestT]] = []  # A heap.
        self._bytes_max = bytes_max
        self.added = 0

    def __len__(self) -> int:
        return len(self.unsent) + len(self.sent)

    def __iter__(self) -> Iterator[RequestT]:
        yield from self.sent.values()
        yield from self.unsent.values()

    def __contains__(self, id_: Hashable) -> bool:
        return id_ in self.sent or id_ in self.unsent

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent; one that is larger than the limit goes alone."""
        return len(self.sent) < self.sent_max and self.sent_bytes < self._bytes_max

    def add(self, id_: Hashable, request: RequestT, deadline_ms: int = NEVER_MS) -> None:
        """Adds a request behind all others. expired() returns it at its deadline."""
        self.added += 1
        request.id, request.number = id_, self.added
        self.unsent[id_] = request
        if deadline_ms < NEVER_MS:
            heapq.heappush(self.deadlines, (deadline_ms, self.added, request))

    def send_due(self, now_ms: int) -> Iterator[RequestT]:
        """The requests to send now, in order. Those that the caller did not end count as sent."""
        unsent, sent = self.unsent, self.sent
        while unsent and len(sent) < self.sent_max and self.sent_bytes < self._bytes_max:
            request = next(iter(unsent.values()))
            if request.due_ms > now_ms:
                return
            yield request
            if request.done:
                del unsent[request.id]
            else:
                self.mark_sent(request)

    def mark_sent(self, request: RequestT) -> None:
        del self.unsent[request.id]
        self.sent[request.id] = request
        self.sent_bytes += request.size

    def drop(self, request: RequestT) -> None:
        if self.sent.pop(request.id, None) is not None:
            self.sent_bytes -= request.size
        else:
            self.unsent.pop(request.id, None)

    def retry(self, request: RequestT, due_ms: int) -> None:
        request.due_ms = due_ms
        self.requeue([request])

    def rewind(self) -> None:
        """The server is left: all requests are sent again."""
        self.requeue(list(self.sent.values()))

    def requeue(self, requests: Collection[RequestT]) -> None:
        """Returns sent requests to their positions."""
        for request in requests:
            self.drop(request)
        in_order = sorted((*requests, *self.unsent.values()), key=lambda it: it.number)
        self.unsent = OrderedDict((it.id, it) for it in in_order if not it.done)

    def expired(self, now_ms: int) -> list[RequestT]:
        """The requests whose deadlines have come, each once; its owner ends and drops them."""
        found = []
        while self.deadlines and (self.deadlines[0][2].done or self.deadlines[0][0] <= now_ms):
            request = heapq.heappop(self.deadlines)[2]
            if not request.done:
                found.append(request)
        if len(self.deadlines) > 2 * len(self) + DONE_MAX:
            self.deadlines = [it for it in self.deadlines if not it[2].done]
            heapq.heapify(self.deadlines)
        return found

    @property
    def expiry_ms(self) -> int:
        """When expired() must be called at the latest."""
        return self.deadlines[0][0] if self.deadlines else NEVER_MS

    @property
    def due_ms(self) -> int:
        """When the next request may be sent; NEVER_MS: not before an answer."""
        if not self.unsent or not self.has_room:
            return NEVER_MS
        return next(iter(self.unsent.values())).due_ms
