"""The tables by which C refuses messages that a key may not send (csrc/net/guard.c).

They come from the table of rights and from the declarations of requests. C compares all tables of a
request with the ranges of the key.
"""

from typing import Any

from ...native.net.guard import (
    GUARD_LOG,
    GUARD_TABLES,
    TABLE_READ,
    TABLE_WRITE,
    KeyRow,
    MessageGuard,
    OwnService,
)
from ..majordomo import values as majordomo
from ..wire import Constant, Frame, Layout
from ..zerodb.wire.requests import LAYOUTS
from ..zmqraft.wire import extensions, peer_codec, snapshot_codec, transfer_codec
from ..zmqraft.wire.values import REQUEST_UPDATE, UPDATE_PACK
from . import rights
from .certificates import KEY_BYTES
from .grants import Right
from .zap import Slot

READS, WRITES = TABLE_READ, TABLE_WRITE

# The broker's services whose requests name a service, and the right to name each.
NAME_ANOTHER = {majordomo.MMI_SERVICE: Right.OBSERVE, majordomo.TITANIC_REQUEST: Right(0)}

# Requests that name their sender.
PEER_REQUESTS: tuple[Layout[Any], ...] = (
    extensions.HELLO_REQUEST,
    extensions.PRE_VOTE_REQUEST,
    extensions.APPEND_PACKED_REQUEST,
    peer_codec.VOTE_REQUEST,
    peer_codec.APPEND_REQUEST,
    snapshot_codec.INSTALL_REQUEST,
    snapshot_codec.INSTALL_PACKED_REQUEST,
    transfer_codec.TRANSFER_VOTE_REQUEST,
    transfer_codec.TIMEOUT_NOW_REQUEST,
)
SENDERS = ("peer", "candidate", "leader")


def log_guard(of_peers: bool = False) -> MessageGuard:
    """For `url`; of_peers: for `peer_url`, where updates become operations on tables."""
    needed = {kind: int(right) for kind, right in rights.LOG.items()}
    if of_peers:
        needed |= dict.fromkeys((REQUEST_UPDATE, UPDATE_PACK), int(Right.INTERNAL))
    return MessageGuard(GUARD_LOG, needed, senders=_senders())


def _senders() -> dict[bytes, int]:
    """Where requests of the log have their sender's PEER ID, which must be the key's name."""
    found = {}
    for layout in PEER_REQUESTS:
        _id, kind, *_ = layout.parts
        assert isinstance(kind, Constant)
        for position, part in enumerate(layout.parts, 1):  # 0 is the routing id.
            if isinstance(part, Frame) and part.field in SENDERS:
                found[kind.data] = position
    return found


def tables_guard(unrouted: bool = False) -> MessageGuard:
    """For the endpoints of a table server; unrouted: for PULL and SUB."""
    needed = {bytes((kind,)): int(right) for kind, right in rights.TABLES.items()}
    uses = {bytes((layout.kind,)): _uses(layout) for layout in LAYOUTS}
    everything = int(Right.OBSERVE)
    return MessageGuard(GUARD_TABLES, needed, uses, all_tables=everything, unrouted=unrouted)


def broker_guard(headers: majordomo.Headers = majordomo.HEADERS) -> MessageGuard:
    """For `broker.clients_url` and `broker.workers_url`."""
    own = [
        OwnService(name, int(right), name in NAME_ANOTHER, int(NAME_ANOTHER.get(name, 0)))
        for name, right in rights.BROKER_SERVICES.items()
    ]
    own += [OwnService(prefix + b"*", 0) for prefix in majordomo.RESERVED]
    return MessageGuard.of_broker(headers, int(Right.CALL), int(rights.BROKER_WORKER), own)


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
    # Foreign peers have no keys of their own, which would have names.
    name = slot.allowed.name.encode() if len(slot.key) == KEY_BYTES else b""
    return KeyRow(slot.generation, int(grants.rights), tables, grants.services, grants.offers, name)
