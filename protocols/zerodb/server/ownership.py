"""Reserved tables: only their owners write them.

The broker's table, the table of ZRE's log service and Spark's fresh tables are reserved. A process
started by the node's supervisor knows its secret. A client that opens a fresh table presents a
token; a hash of it is stored in OWNER_TABLE. So all nodes know the owner, and a reader of the log
cannot impersonate it (docs/protocols/zerodb.md, "Reserved tables").
"""

import hashlib
import hmac
from collections.abc import Collection, Mapping, Sequence

from ..wire import ops
from ..wire.values import (
    FRESH_LAST,
    OWNER_TABLE,
    RESERVED_FIRST,
)


class Ownership:
    """The owners known to one server."""

    def __init__(
        self, secret: bytes, services: Collection[int] = (), local: Collection[int] = ()
    ) -> None:
        """Knows no owners yet.

        secret     of the node's own processes; empty: it has none
        services   tables that only these write, besides the reserved numbers
        local      tables that the topology names; they are never reserved
        """
        self._secret = secret
        self._services = frozenset(services)
        self._local = frozenset(local)
        self.owners: Mapping[int, bytes] = {}  # By table, as of the applied index.

    def is_reserved(self, table: int) -> bool:
        return table in self._services or (table >= RESERVED_FIRST and table not in self._local)

    def reserved(self, tables: Collection[int]) -> list[int]:
        """The reserved ones of these tables."""
        return sorted(filter(self.is_reserved, tables))

    def any_reserved(self, tables: Sequence[int]) -> bool:
        """Whether a table may be reserved; faster for many tables."""
        return max(tables) >= RESERVED_FIRST or not self._services.isdisjoint(tables)

    def is_known(self, token: bytes, tables: Collection[int]) -> bool:
        """Whether problem() can decide now. Otherwise the leader must be asked, since another node
        may have opened a table a moment ago."""
        if self._is_secret(token) or not token:
            return True
        return all(self._is_closed(table) or table in self.owners for table in tables)

    def problem(self, token: bytes, operations: Sequence[ops.Op], tables: Collection[int]) -> str:
        """Why these reserved tables do not accept these operations, or an empty text."""
        if self._is_secret(token):
            return ""
        opened = {op.table for op in operations if isinstance(op, ops.Open)}
        for table in tables:
            owner = self.owners.get(table)
            may_open = owner is None and table in opened and bool(token)
            if self._is_closed(table) or not (may_open or owner == digest(token)):
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

    def _is_closed(self, table: int) -> bool:
        """Whether no client can own the table."""
        return table > FRESH_LAST or table in self._services

    def _is_secret(self, token: bytes) -> bool:
        return bool(self._secret) and hmac.compare_digest(token, self._secret)


def digest(token: bytes) -> bytes:
    """The stored form of a token."""
    return hashlib.sha256(token).digest()
