"""Decides which ClientRequests a leader may append, by their user, and audits the decisions.

Only the leader decides. Followers accept every entry that a leader sends.
"""

from collections import deque
from collections.abc import Sequence

from ...errors import RemoteProtocolError
from ..app.documents import DOCUMENT_BYTES_MAX, decode_status, may_hold_document
from ..app.orders import ORDER_PREFIX, Audit, audit_orders
from ..app.posters import POSTER_PREFIX, PosterWriter
from ..wire.messages import FarmLogEntry, ValueType
from ..wire.packed import PackedEntries
from .inbound import PeerSession

AUDITS_MAX = 1024  # Audits that wait for the owner; a request that needs another one is refused.
CHECKED_BYTES_MAX = 8 << 20  # JSON in one request that is parsed to find status documents.


class AppendPolicy:
    """Checks ClientRequests, names their users, and keeps audits until the owner logs them."""

    def __init__(self, cluster: str, entry_bytes_max: int) -> None:
        self.audits: deque[Audit] = deque()  # The owner takes and logs them.
        self.posters = PosterWriter()
        self.audits_lost = 0  # Refusals without room for an audit; the owner logs and resets it.
        self._cluster = cluster
        self._entry_bytes_max = entry_bytes_max

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another audit."""
        return len(self.audits) >= AUDITS_MAX

    def audit(self, audits: list[Audit]) -> bool:
        """Stores audits. Returns False if there is no room: then the request must be refused."""
        if len(self.audits) + len(audits) > AUDITS_MAX:
            self.audits_lost += len(audits)
            return False
        self.audits += audits
        return True

    def allows(self, session: PeerSession, entries: Sequence[FarmLogEntry]) -> bool:
        """Whether all entries of a ClientRequest may be appended. It audits orders and
        violations.
        """
        if isinstance(entries, PackedEntries) and not self._needs_check(session, entries.data):
            return True
        if any(entry.value_type is not ValueType.APPLICATION for entry in entries):
            return False
        values = [entry.value for entry in entries]
        is_order = [value.startswith(ORDER_PREFIX) for value in values]
        if not session.may_append and not all(is_order):
            return False
        if any(len(value) > self._entry_bytes_max for value in values):
            return False
        audits = audit_orders(values, self._cluster, session.user, session.is_admin)
        problem = self._find_violation(session, values)
        if problem:
            audits.append(Audit(session.user, problem, False))
        accepted = all(audit.is_accepted for audit in audits)
        address = session.address
        audits = [audit._replace(is_accepted=accepted, address=address) for audit in audits]
        return self.audit(audits) and accepted

    def _needs_check(self, session: PeerSession, data: bytes) -> bool:
        """Whether these packed entries may hold an entry that the user must not append."""
        return (
            len(data) > self._entry_bytes_max
            or not session.may_append
            or ORDER_PREFIX in data
            or POSTER_PREFIX in data
            or (not session.may_act_as_any and may_hold_document(data))
        )

    def _find_violation(self, session: PeerSession, values: list[bytes]) -> str:
        """What this user may not append, apart from orders; empty: nothing."""
        checked_bytes = 0
        for value in values:
            if value.startswith(POSTER_PREFIX):
                return "a poster entry, which only a leader writes"
            is_order = value.startswith(ORDER_PREFIX)
            if session.may_act_as_any or is_order or not may_hold_document(value):
                continue
            if len(value) > DOCUMENT_BYTES_MAX:
                continue
            checked_bytes += len(value)
            if checked_bytes > CHECKED_BYTES_MAX:
                return f"more than {CHECKED_BYTES_MAX} bytes of JSON in one request"
            try:
                status = decode_status(value)
            except RemoteProtocolError:
                continue
            if status.cluster == self._cluster and not session.may_act_as(status.server_id):
                return f"status of server {status.server_id}"
        return ""
