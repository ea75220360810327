"""A session of a table that its object keeps, as long as it needs it (docs/decisions/0042).

The time of a session is counted from before the last message that kept it, by a clock that goes on
while the machine sleeps. So it has ended at the servers no sooner than here.
"""

from typing import TYPE_CHECKING

from ...net.clock import monotonic_ms, suspended_ms
from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import answers, requests
from ...protocols.zerodb.wire.requests import Request
from ...protocols.zerodb.wire.values import PARTSYNC
from ..errors import TableError
from ..io.operations import Operation, Wait
from ..table.operations import decoded
from ..table.table import TableWrites

if TYPE_CHECKING:
    from ..table.async_table import AsyncTable
    from ..table.table import Table

    AnyTable = Table | AsyncTable

RETRY_S = 0.1  # Between two attempts to keep a session without success.
END_MS = 1000


def boot_ms() -> int:
    """A clock that goes on while the machine sleeps, as the session's does."""
    return monotonic_ms() + suspended_ms()


class KeptSession:
    """A session, and what its object holds under it. Steps run by the driver of `table`."""

    def __init__(self, table: "AnyTable", ttl_ms: int) -> None:
        self._table = table
        self.ttl_ms = ttl_ms
        self.session = 0
        self._expires_ms = 0  # The session lives until then at least, boot_ms().

    @property
    def is_needed(self) -> bool:
        """Whether something is held under it, so that it has to be kept."""
        return bool(self.session)

    @property
    def left_ms(self) -> int:
        """How long the session lives at least, by this machine's clock."""
        return self._expires_ms - boot_ms() if self.session else 0

    @property
    def held(self) -> bool:
        return self.is_needed and self.left_ms > 0

    @property
    def keep_at_ms(self) -> int:
        """When to keep the session, by monotonic_ms(): each third of its time."""
        return monotonic_ms() + max(self.left_ms - 2 * self.ttl_ms // 3, 0)

    def keep(self) -> Operation[bool]:
        """Restarts the session's time; False: it has ended, or no answer came in its time."""
        sent_ms = boot_ms()
        until_ms = monotonic_ms() + self.left_ms
        asked = requests.Session(requests.SESSION_KEEP, self.session, 0, PARTSYNC)
        exchange = yield from self._ask(asked, until_ms)
        if exchange.done:
            answer = self._table._answer(exchange)
            if decoded(answers.SESSION.decode, answer, exchange.sent):
                self._expires_ms = sent_ms + self.ttl_ms
                return True
        self.forget()
        return False

    def keep_if_due(self) -> Operation[float | None]:
        """Keeps the session if that is due. Returns how long to pause then, in s; None: what was
        held is lost."""
        left_ms = self.keep_at_ms - monotonic_ms()
        if left_ms > 0:
            return left_ms / 1000
        try:
            kept = yield from self.keep()
        except TableError:
            if self.held:
                return RETRY_S
            self.forget()
            kept = False
        return self.ttl_ms / 3000 if kept else None

    def forget(self) -> None:
        """The session has ended, and with it all that was put under it."""
        self.session = 0

    def _fresh_session(self) -> Operation[None]:
        """A session that lives for half of its time at least."""
        if self.left_ms > self.ttl_ms // 2:
            return
        if self.left_ms > 0 and (yield from self.keep()):
            return
        sent_ms = boot_ms()
        self.session = yield from TableWrites.open_session(self._table, self.ttl_ms / 1000)
        self._expires_ms = sent_ms + self.ttl_ms

    def abandon(self) -> None:
        """Asks the cluster to end the session, without waiting for it: what was sent under it may
        take effect later."""
        if self.session:
            self._table._begin(self._end_request())
            self.forget()
            self._table._on_iterated()

    def end(self) -> Operation[None]:
        """Ends the session, and with it what is held. Without an answer for END_MS it ends by its
        time."""
        if self.session:
            asked = self._end_request()
            self.forget()
            yield from self._ask(asked, monotonic_ms() + END_MS)

    def _end_request(self) -> Request:
        return requests.Session(requests.SESSION_END, self.session, 0, PARTSYNC)

    def _ask(self, request: Request, until_ms: int) -> Operation[Exchange]:
        """Waits for an answer, no longer than until a time of monotonic_ms()."""
        exchange = self._table._begin(request, limited=False)
        try:
            yield Wait(lambda: exchange.done, False, until_ms)
        finally:
            self._table._client.drop(exchange)
        return exchange
