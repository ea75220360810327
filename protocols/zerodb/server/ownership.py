"""Which tables take writes from their owners alone, and by what an owner is known.

The broker's table, the table of ZRE's log service and Spark's fresh tables are reserved. A process
that the node's supervisor has started knows its secret. Whoever opens a fresh table names a token
of its own: a hash of it is kept in the table OWNER_TABLE: every node knows the owner, and none
that reads the log can write in its place (docs/protocols/zerodb.md, "Reserved tables").
"""

import hashlib
import hmac
from collections.abc import Collection, Mapping, Sequence

from ..wire import ops
from ..wire.values import BROKER_TABLE, OWNER_TABLE, RESERVED_FIRST


class Ownership:
    """The rule, as one server knows it."""

    def __init__(
        self, secret: bytes, services: Collection[int] = (), local: Collection[int] = ()
    ) -> None:
        """
        secret     of the node's own processes; empty: they have none
        services   tables that only those write, beside the reserved numbers
        local      tables that are never reserved: the topology names them one by one
        """
        self._secret = secret
        self._services = frozenset(services)
        self._local = frozenset(local)
        self._closed = self._services | {OWNER_TABLE, BROKER_TABLE}
        self.owners: Mapping[int, bytes] = {}  # By table, as far as this node has applied the log.

    def is_reserved(self, table: int) -> bool:
        return table in self._services or (table >= RESERVED_FIRST and table not in self._local)

    def reserved(self, tables: Collection[int]) -> list[int]:
        """Those of the tables that are."""
        return sorted(filter(self.is_reserved, tables))

    def any_reserved(self, tables: Sequence[int]) -> bool:
        """The same, for many at once."""
        return max(tables) >= RESERVED_FIRST or not self._services.isdisjoint(tables)

    def is_known(self, token: bytes, tables: Collection[int]) -> bool:
        """Whether problem() can say something about these already: else the leader has to be asked
        how far a look must reach, as another node may have opened one of them a moment ago."""
        if self._is_secret(token) or not token:
            return True
        return all(table in self._closed or table in self.owners for table in tables)

    def problem(self, token: bytes, operations: Sequence[ops.Op], tables: Collection[int]) -> str:
        """Why these reserved tables don't take these operations; empty: they do."""
        if self._is_secret(token):
            return ""
        opened = {op.table for op in operations if isinstance(op, ops.Open)}
        for table in tables:
            owner = self.owners.get(table)
            may_open = owner is None and table in opened and bool(token)
            if table in self._closed or not (may_open or owner == digest(token)):
                return f"table {table} is reserved: it takes writes from its owner alone"
        return ""

    def noted(self, token: bytes, operations: Sequence[ops.Op]) -> list[ops.Op]:
        """The operations with the changes of OWNER_TABLE that they cause: a client that opens a
        reserved table becomes its owner, and a removed table has no owner."""
        noted: list[ops.Op] = []
        for op in operations:
            key = op.table.to_bytes(4, "big")
            if isinstance(op, ops.Open) and op.table not in self.owners:
                if not self._is_secret(token):
                    noted.append(ops.Put(OWNER_TABLE, [key], [digest(token)]))
            elif isinstance(op, ops.Truncate) and op.table in self.owners:
                noted.append(ops.Delete(OWNER_TABLE, [key]))
            noted.append(op)
        return noted

    def _is_secret(self, token: bytes) -> bool:
        return bool(self._secret) and hmac.compare_digest(token, self._secret)


def digest(token: bytes) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token).digest()
