"""The requests that a table server has received and not answered: it answers each once."""

from collections import Counter

from kelek.protocols.zerodb.wire.answers import decode_answer, request_of
from kelek.tests.sim.network import Frames
from kelek.tests.sim.tables.checker import TableChecker


class UnansweredRequests:
    """Those of one server process.

    A client that asks again with the same request id, over this or another connection, gets one
    more answer: requests of equal connection, type and id are counted.
    """

    def __init__(self, checker: TableChecker, name: str) -> None:
        self._checker = checker
        self._name = name
        self._counts: Counter[tuple[bytes, int, bytes]] = Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, message: Frames) -> None:
        """A request has arrived: [routing id][request frames ..]."""
        route, *frames = message
        request_type, extension = request_of(frames)
        self._counts[route, request_type, extension.reqid] += 1

    def end(self, message: Frames) -> None:
        """An answer leaves: [routing id][answer frames ..]."""
        route, *frames = message
        answer = decode_answer(frames)
        key = route, answer.request_type, answer.reqid
        is_due = self._counts[key] > 0
        self._checker.expect(is_due, self._name, "answers what is not asked, or twice:", *key)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
