"""What the keys of a process may send: drains refuse messages in C, before a codec sees them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..._native import ffi, lib
from .messages import Arena

GUARD_LOG: int = lib.KLK_GUARD_LOG
GUARD_TABLES: int = lib.KLK_GUARD_TABLES
GUARD_BROKER: int = lib.KLK_GUARD_BROKER
RIGHT_ADMIN: int = lib.KLK_RIGHT_ADMIN
RIGHT_INTERNAL: int = lib.KLK_RIGHT_INTERNAL
TABLE_READ: int = lib.KLK_TABLE_READ
TABLE_WRITE: int = lib.KLK_TABLE_WRITE
TABLE_RANGES_MAX: int = lib.KLK_TABLE_RANGES_MAX
_OWN_TYPES = 0x6B


class KeyRow(NamedTuple):
    """The grants of the key in a slot.

    tables     first, last, and TABLE_READ | TABLE_WRITE; at most TABLE_RANGES_MAX
    services   names, and prefixes that end with *, that it may call, of at most 255 bytes
    offers     the same, of services that it may offer
    name       of the key, at most 128 bytes
    """

    generation: int
    rights: int = 0
    tables: Sequence[tuple[int, int, int]] = ()
    services: Sequence[bytes] = ()
    offers: Sequence[bytes] = ()
    name: bytes = b""


class OwnService(NamedTuple):
    """A service of the broker itself, or all with a prefix.

    needed          one of these rights
    names_another   the first frame of a request's body is a service that the key needs, too, ..
    sees_all        .. if it has none of these rights
    """

    name: bytes
    needed: int
    names_another: bool = False
    sees_all: int = 0


class AllowedKeys:
    """The keys of a process, by slot."""

    def __init__(self, rows: Iterable[KeyRow] = ()) -> None:
        self.state = ffi.new("struct klk_keys *")
        self.replace(rows)

    def replace(self, rows: Iterable[KeyRow]) -> None:
        """Replaces all rows. Messages of other generations are dropped from now on."""
        rows = list(rows)
        patterns = [list(map(_patterns, (row.services, row.offers))) for row in rows]
        values = [_key(row, both) for row, both in zip(rows, patterns, strict=True)]
        self._keys = ffi.new("struct klk_key[]", values or 1)
        self._patterns = patterns  # C refers to their memory.
        self.state.keys, self.state.count = self._keys, len(values)

    @property
    def count(self) -> int:
        return int(self.state.count)

    def set_row(self, slot: int, row: KeyRow) -> None:
        """Replaces the row of a slot."""
        if not 0 <= slot < self.state.count:
            raise IndexError(f"slot {slot} of {self.state.count}")
        patterns = list(map(_patterns, (row.services, row.offers)))
        self._keys[slot] = ffi.new("struct klk_key *", _key(row, patterns))[0]
        self._patterns[slot] = patterns

    def set_generation(self, slot: int, generation: int) -> None:
        """Another key is in a slot."""
        if not 0 <= slot < self.state.count:
            raise IndexError(f"slot {slot} of {self.state.count}")
        self._keys[slot].generation = generation

    @property
    def revoked(self) -> int:
        """Messages of keys that are no longer allowed, which were dropped."""
        return int(self.state.revoked)


def _pattern(pattern: bytes) -> tuple[int, int, bytes]:
    name = pattern.removesuffix(b"*")
    return len(name), name != pattern, name


def _key(row: KeyRow, patterns: Sequence[Any]) -> tuple[Any, ...]:
    """The fields of a struct klk_key."""
    tables = [*row.tables] or [(0, 0, 0)]
    return row.generation, row.rights, len(row.tables), tables, *patterns, len(row.name), row.name


def _patterns(patterns: Sequence[bytes]) -> tuple[Any, int]:
    return ffi.new("struct klk_pattern[]", [*map(_pattern, patterns)] or 1), len(patterns)


class MessageGuard:
    """What the messages of an endpoint need."""

    def __init__(
        self,
        kind: int,
        needed: Mapping[bytes, int],
        uses: Mapping[bytes, int] | None = None,
        all_tables: int = 0,
        unrouted: bool = False,
        senders: Mapping[bytes, int] | None = None,
    ) -> None:
        """
        kind         GUARD_LOG, GUARD_TABLES or GUARD_BROKER (of_broker)
        needed       by type, of one byte, or of two if the first is 0x6b: one of these rights
        uses         by type: how it uses the first two tables; the second's bits are shifted by 2
        all_tables   the right to leave out a table that a type uses
        unrouted     messages have no routing id: of PULL and SUB
        senders      by type as in `needed`: the frame that must be empty or the key's name
        """
        self.state = ffi.new("struct klk_guard *")
        self.state.unrouted = unrouted
        self._broker: Any = None  # C refers to its memory.
        self.state.kind, self.state.all_tables = kind, all_tables
        for type_, rights in needed.items():
            if len(type_) == 2 and type_[0] != _OWN_TYPES:
                raise ValueError(f"type {type_.hex()}")
            self.state.needed[len(type_) - 1][type_[-1]] = rights
        for type_, use in (uses or {}).items():
            self.state.uses[type_[0]] = use
        for type_, frame in (senders or {}).items():
            self.state.senders[len(type_) - 1][type_[-1]] = frame

    @property
    def kind(self) -> int:
        return int(self.state.kind)

    @property
    def unrouted(self) -> bool:
        return bool(self.state.unrouted)

    @property
    def reports_only(self) -> bool:
        """Whether messages that a key may not send are received all the same, and reported."""
        return bool(self.state.reports_only)

    @reports_only.setter
    def reports_only(self, value: bool) -> None:
        self.state.reports_only = value

    @classmethod
    def of_broker(
        cls, headers: Sequence[bytes], call: int, work: int, own: Sequence[OwnService]
    ) -> "MessageGuard":
        """
        headers     of the broker's own framing: client, worker, deadline, named
        call, work  the rights of clients and of workers
        own         the first that matches counts; no name of them is empty
        """
        made = cls(GUARD_BROKER, {})
        services = [(_pattern(it.name), it.needed, it.names_another, it.sees_all) for it in own]
        heads = [(len(header), 0, header) for header in headers]
        first = {it.name[0] for it in own}
        begins = [octet in first for octet in range(256)]
        made._broker = ffi.new(
            "struct klk_broker_guard *", (heads, call, work, len(services), begins, services)
        )
        made.state.broker = made._broker
        return made

    def allows(self, keys: AllowedKeys, slot: int, arena: Arena, number: int) -> bool:
        """Whether the key in a slot may send message `number` of an arena."""
        messages = arena._struct
        first, end = messages.firsts[number], messages.firsts[number + 1]
        key = keys.state.keys + slot
        return bool(lib.klk_guard_allows(self.state, key, messages, first, end))

    def audits(self, arena: Arena, number: int, keys: AllowedKeys | None, slot: int) -> bool:
        """Whether message `number` of an arena is an administrative command of the key in a slot.

        keys   None: the endpoint has none
        """
        messages = arena._struct
        first, end = messages.firsts[number], messages.firsts[number + 1]
        key = ffi.NULL if keys is None else keys.state.keys + slot
        return bool(lib.klk_guard_audits(self.state, key, messages, first, end))
