"""Which messages are administrative commands, and what the audit file says of each.

A command is administrative if its row in the table of rights (rights.py) is ADMIN. Where a row has
other rights, too, it is one if the sender uses what belongs to another key.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ...native.net.guard import GUARD_LOG, GUARD_TABLES
from ..zerodb.wire import values as zerodb
from ..zmqraft.wire import values as zmqraft
from .grants import Right

RECORDS_MAX = 1024  # That wait for their owner.
OK, DENIED = "ok", "denied"
ALLOWED = "allowed without a grant"  # By `security: {mode: allow}`.
ACKNOWLEDGED = "acknowledged"  # Before it was done.
UNANSWERED = "unanswered"
_IPC = "localhost:"

# The commands' names, by type.
LOG: Mapping[bytes, str] = MappingProxyType({
    zmqraft.CONFIG_UPDATE: "set-members",
    zmqraft.TRANSFER: "transfer",
    zmqraft.MAKE_SNAPSHOT: "make-snapshot",
})  # fmt: skip
TABLES: Mapping[int, str] = MappingProxyType({
    zerodb.OPEN_TABLE: "open-table",
    zerodb.CLOSE_TABLE: "close-table",
    zerodb.COMPACT_TABLE: "compact-table",
    zerodb.TRUNCATE_TABLE: "truncate-table",
})  # fmt: skip


class Sender(NamedTuple):
    """The sender of a command.

    key       its key's name; None: the endpoint has no CURVE
    address   as libzmq names it: of tcp an IP address, of ipc localhost:UID:GID:PID; '':
              unknown
    """

    key: str | None = None
    address: str = ""

    def fields(self) -> dict[str, str]:
        """`who` and `from` of a line. A user of ipc is known by the uid."""
        if not self.address.startswith(_IPC):
            return {"who": self.key or "-", "from": self.address or "-"}
        uid, _, pid = self.address.removeprefix(_IPC).split(":")
        return {"who": self.key or f"uid {uid}", "from": f"pid {pid}"}


class AuditRecord(NamedTuple):
    """A command that was decided.

    result      OK, DENIED, or why it failed
    arguments   those that matter: no values of tables, no secrets
    request     its request id; an entry that it appended to the log has the same
    log_index   of that entry, if it is known
    """

    command: str
    result: str
    sender: Sender
    arguments: Mapping[str, object] = MappingProxyType({})
    request: bytes = b""
    log_index: int | None = None


class AuditTrail:
    """Records until the owner writes them."""

    def __init__(self) -> None:
        self._records: deque[AuditRecord] = deque()
        self.lost = 0

    def __bool__(self) -> bool:
        return bool(self._records)

    def add(self, record: AuditRecord) -> None:
        if len(self._records) < RECORDS_MAX:
            self._records.append(record)
        else:
            self.lost += 1

    def pop(self) -> list[AuditRecord]:
        found, self._records = [*self._records], deque()
        return found


def is_administrative(right: Right) -> bool:
    """Whether a row of the table of rights is that of an administrative command."""
    return bool(right & Right.ADMIN) and not right & Right.INTERNAL


def denied_command(kind: int, unrouted: bool, frames: Sequence[bytes]) -> str:
    """The name of a refused message, by its first frames; its type if it has no name.

    kind   of its guard: GUARD_LOG, GUARD_TABLES or GUARD_BROKER
    """
    if kind == GUARD_LOG:
        type_ = frames[2] if len(frames) > 2 else b""
        return LOG.get(type_, f"log {type_[:2].hex()}")
    if kind == GUARD_TABLES:
        behind = 0 if unrouted else 2 if frames[1:2] == [b""] else 1
        header = b"".join(frames[behind : behind + 1])
        return TABLES.get(header[2] if len(header) > 2 else -1, f"tables {header[2:3].hex()}")
    return "broker request"
