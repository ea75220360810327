"""The tables by which C refuses messages that a key may not send (csrc/net/guard.c).

They come from the table of rights and from the declarations of requests. C compares the tables in
the first two frames of a request. Requests with tables in further frames are for internal keys.
"""

from typing import Any

from ...native.net.guard import (
    GUARD_LOG,
    GUARD_TABLES,
    TABLE_READ,
    TABLE_WRITE,
    KeyRow,
    MessageGuard,
)
from ..wire import Frame, Layout
from ..zerodb.wire import values
from ..zerodb.wire.requests import LAYOUTS
from . import rights
from .grants import Right
from .zap import Slot

READS, WRITES = TABLE_READ, TABLE_WRITE
UNSEEN = (values.WRITE_TABLES, values.TRANSACTION, values.LEASE)  # C does not see their tables.


def log_guard() -> MessageGuard:
    """For `url` and `peer_url`."""
    return MessageGuard(GUARD_LOG, {kind: int(needed) for kind, needed in rights.LOG.items()})


def tables_guard() -> MessageGuard:
    """For the endpoints of a table server."""
    needed = {bytes((kind,)): int(right) for kind, right in rights.TABLES.items()}
    needed |= {bytes((kind,)): int(Right.INTERNAL) for kind in UNSEEN}
    uses = {bytes((layout.kind,)): _uses(layout) for layout in LAYOUTS}
    return MessageGuard(GUARD_TABLES, needed, uses, all_tables=int(Right.OBSERVE))


def _uses(layout: Layout[Any]) -> int:
    """How a request uses the tables in its first two frames behind the header. Administrators may
    use all tables.
    """
    uses, needed = 0, rights.TABLES[layout.kind]  # type: ignore[attr-defined]
    if needed == Right.ADMIN:
        return 0
    for shift, part in zip((0, 2), layout.parts[1:], strict=False):
        field = part.field if isinstance(part, Frame) else ""
        if field == "target":
            uses |= WRITES << shift
        elif field == "source":
            uses |= READS << shift
        elif field == "table":
            uses |= (WRITES if needed == Right.TABLE_WRITE else READS) << shift
    return uses


def row_of(slot: Slot) -> KeyRow:
    """The grants of a slot's key, for C."""
    grants = slot.allowed.grants
    tables = [
        (each.first, each.last, READS | (WRITES if each.may_write else 0)) for each in grants.tables
    ]
    return KeyRow(slot.generation, int(grants.rights), tables)
