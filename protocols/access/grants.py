"""What a key may do: its grants, as an operator writes them.

    log.read                 entries, events, the cluster's configuration
    log.append               updates
    tables:RANGES:r          reads of tables; RANGES is 7, 7-9, 7-9,12 or *
    tables:RANGES:rw         reads and writes of tables
    services:PATTERNS        requests to services; PATTERNS is mail, mail.*, mail.*,echo or *
    jobs                     data jobs: copies and maps, leases of snapshots, and kept ones
    worker:PATTERNS          offers services
    observer                 status, counters, lists of services and workers
    admin                    members, transfer, snapshots, truncate, open, compact, and the jobs,
                             leases and sessions of others
    zre                      a node of the ZRE network: greets, whispers and shouts
    peer                     Raft messages of the member that has the key's name
    internal                 all of it: the processes of a node

A key has no right that it is not granted.
"""

from enum import IntFlag
from typing import NamedTuple

from ...native.net.guard import TABLE_RANGES_MAX
from ..errors import ProtocolError
from ..zerodb.wire.values import TABLE_MAX

PATTERNS_MAX = 64  # Service patterns of a key.
PATTERN_BYTES_MAX = 255  # As a service's name.


class Right(IntFlag):
    """The rights that a message can need. C compares their bits (csrc/net/guard.c)."""

    LOG_READ = 1
    LOG_APPEND = 2
    TABLE_READ = 4  # Of tables in the grants' ranges.
    TABLE_WRITE = 8
    CALL = 16  # Of services in the grants' patterns.
    WORK = 32
    JOBS = 64
    OBSERVE = 128
    ADMIN = 256
    PEER = 512
    ZRE = 1024
    INTERNAL = 2048


ALL = Right(2 * Right.INTERNAL - 1)
_FIXED = {
    "log.read": Right.LOG_READ,
    "log.append": Right.LOG_APPEND,
    "jobs": Right.JOBS,
    "observer": Right.OBSERVE,
    "admin": Right.ADMIN | Right.OBSERVE,
    "zre": Right.ZRE,
    "peer": Right.PEER,
    "internal": ALL,
}
_WAY_OUT = (
    "use log.read, log.append, tables:RANGES:r or :rw, services:PATTERNS, jobs, worker:PATTERNS, "
    "observer, admin, zre, peer or internal"
)


class GrantError(ProtocolError):
    """A grant that can't be understood: names it and the forms that can."""


class TableRange(NamedTuple):
    """Tables from first to last."""

    first: int
    last: int
    may_write: bool


class Grants(NamedTuple):
    """All grants of a key. Patterns end with * if they are prefixes."""

    rights: Right = Right(0)
    tables: tuple[TableRange, ...] = ()
    services: tuple[bytes, ...] = ()
    offers: tuple[bytes, ...] = ()

    def may(self, right: Right) -> bool:
        """Whether the rights include all bits of this one."""
        return right & ~self.rights == 0

    def may_use_table(self, table: int, write: bool) -> bool:
        if not self.may(Right.TABLE_WRITE if write else Right.TABLE_READ):
            return False
        return any(
            each.first <= table <= each.last and (each.may_write or not write)
            for each in self.tables
        )

    def may_call(self, service: bytes) -> bool:
        return self.may(Right.CALL) and _matches(service, self.services)

    def may_offer(self, service: bytes) -> bool:
        return self.may(Right.WORK) and _matches(service, self.offers)


EVERYTHING = Grants(ALL, (TableRange(0, TABLE_MAX, True),), (b"*",), (b"*",))


def _matches(service: bytes, patterns: tuple[bytes, ...]) -> bool:
    return any(
        service.startswith(pattern[:-1]) if pattern.endswith(b"*") else service == pattern
        for pattern in patterns
    )


def parse_grants(text: str) -> Grants:
    """Parses grants that are separated by spaces. Raises GrantError."""
    rights = Right(0)
    tables: list[TableRange] = []
    services: dict[bytes, None] = {}
    offers: dict[bytes, None] = {}
    for word in text.split():
        kind, _, rest = word.partition(":")
        if word in _FIXED:
            rights |= _FIXED[word]
        elif kind == "tables":
            ranges, _, mode = rest.rpartition(":")
            if mode not in ("r", "rw"):
                raise GrantError(f"{word}: a grant of tables ends with :r or :rw")
            tables += (_range(each, word, mode == "rw") for each in ranges.split(","))
            rights |= Right.TABLE_READ | (Right.TABLE_WRITE if mode == "rw" else Right(0))
        elif kind == "services":
            services |= dict.fromkeys(_pattern(each, word) for each in rest.split(","))
            rights |= Right.CALL
        elif kind == "worker":
            offers |= dict.fromkeys(_pattern(each, word) for each in rest.split(","))
            rights |= Right.WORK
        else:
            raise GrantError(f"{word}: no such grant; {_WAY_OUT}")
    if Right.INTERNAL in rights:
        return EVERYTHING
    if len(tables) > TABLE_RANGES_MAX:
        problem = f"a key has at most {TABLE_RANGES_MAX} ranges of tables, got {len(tables)}"
        raise GrantError(problem)
    if max(len(services), len(offers)) > PATTERNS_MAX:
        raise GrantError(f"a key has at most {PATTERNS_MAX} patterns of services")
    return Grants(rights, tuple(tables), tuple(services), tuple(offers))


def _range(text: str, word: str, may_write: bool) -> TableRange:
    if text == "*":
        return TableRange(0, TABLE_MAX, may_write)
    first, _, last = text.partition("-")
    try:
        if not (text.isascii() and 0 <= (low := int(first)) <= (high := int(last or first))):
            raise ValueError
    except ValueError:
        raise GrantError(f"{word}: {text!r} is no range of tables; use 7, 7-9 or *") from None
    if high > TABLE_MAX:
        raise GrantError(f"{word}: a table is at most {TABLE_MAX}")
    return TableRange(low, high, may_write)


def _pattern(text: str, word: str) -> bytes:
    pattern = text.encode()
    if not 1 <= len(pattern) <= PATTERN_BYTES_MAX or b"*" in pattern[:-1]:
        raise GrantError(f"{word}: {text!r} is no pattern; use a name, or a prefix and *")
    return pattern
