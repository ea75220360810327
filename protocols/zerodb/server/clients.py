"""The keys of a server's clients: what they may not send, and their sessions, leases and jobs.

The owner is the key's name. So the keys of one name, by which an operator replaces a key, are one
client, on all nodes. Clients of an endpoint without CURVE have no key; they may use everything.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import or_
from typing import NamedTuple

import msgpack

from ....native.net.messages import Arena
from ...access.audit import ALLOWED, DENIED, OK, AuditRecord, AuditTrail, Sender
from ...access.grants import EVERYTHING, Grants, Right, TableRange
from ...access.zap import AllowedKey, KeyChange, Keyring, Slot
from ..wire import answers
from ..wire.kept import KeptRow
from ..wire.requests import peek
from ..wire.values import is_shared
from ..wire.worker_pipe import Message

KEY_SESSIONS_MAX = 10_000  # Open sessions of a key.


class Denial(NamedTuple):
    """A request that its client's key does not allow."""

    answer: Message  # With the routing id; empty: the client expects none.
    client: str  # The key's name.
    request_type: int
    table: int | None

    def fields(self) -> dict[str, object]:
        """For the log."""
        return {"key": self.client, "type": f"{self.request_type:#04x}", "table": self.table}


class ConnectedKey(AllowedKey):
    """A key, and the address from which it sends an administrative command."""

    address: str = ""

    @classmethod
    def at(cls, key: AllowedKey, address: str) -> AllowedKey:
        found = cls(*key)
        found.address = address
        return found


class Clients:
    """The keys of one process."""

    def __init__(self, enforces: bool = True) -> None:
        """enforces: False: what is not allowed is noted alone"""
        self._slots: Sequence[Slot] = ()
        self.enforces = enforces
        # The keys' names by session, or lease of all nodes; as of the applied index.
        self.owners: Mapping[int, str] = {}
        # By lease, as of the applied index; None: no worker has reported them yet.
        self.kept: Mapping[int, KeptRow] | None = None
        self.trail = AuditTrail()  # The owner writes it.
        self._sessions: Counter[str] = Counter()  # By owner, with those that were asked for since.
        self._counted: Mapping[int, str] = self.owners

    def may_open_session(self, client: AllowedKey | None) -> bool:
        """Whether a client may have one more session; counts it if so. Clients without a key have
        no limit."""
        if client is None:
            return True
        if self._counted is not self.owners:
            self._counted, owners = self.owners, self.owners.items()
            self._sessions = Counter(name for number, name in owners if not is_shared(number))
        if self._sessions[client.name] >= KEY_SESSIONS_MAX:
            return False
        self._sessions[client.name] += 1
        return True

    def attach(self, keyring: Keyring) -> None:
        """An endpoint has CURVE, and its keys are in this keyring."""
        self._slots = keyring.slots

    def of(self, arena: Arena, number: int) -> AllowedKey | None:
        """The key that has sent message `number`; None: the endpoint has no CURVE."""
        slot = arena.slot(number)
        if slot is None:
            return None
        allowed, address = self._slots[slot].allowed, arena.address(number)
        return ConnectedKey.at(allowed, address) if address else allowed

    def sender_of(self, arena: Arena, number: int) -> Sender:
        """Who has sent message `number`."""
        slot = arena.slot(number)
        name = None if slot is None else self._slots[slot].allowed.name
        return Sender(name, arena.address(number))

    def may_use(self, client: AllowedKey | None, owner: str | None, what: str) -> bool:
        """Whether a client may use what belongs to a key.

        owner   the key's name; None: it has no owner
        what    a session, lease or data job, and its number
        """
        if client is None or client.name == owner:
            return True
        may_all = client.grants.may(Right.ADMIN)
        result = OK if may_all else DENIED if self.enforces else ALLOWED
        address = client.address if isinstance(client, ConnectedKey) else ""
        kind, _, number = what.rpartition(" ")
        arguments = {"number": number, "owner": owner}
        command = f"use {kind}".replace(" ", "-")
        self.trail.add(AuditRecord(command, result, Sender(client.name, address), arguments))
        return result != DENIED

    def current(self, name: str) -> AllowedKey:
        """All that the keys of a name may do now together: everything if that is only noted."""
        found = [slot.allowed.grants for slot in self._slots if slot.allowed.name == name]
        if found and not self.enforces:
            return AllowedKey(name, EVERYTHING)
        rights = reduce(or_, (each.rights for each in found), Right(0))
        return AllowedKey(name, Grants(rights, tuple(chain(*(each.tables for each in found)))))

    def is_allowed(self, client: AllowedKey | None) -> bool:
        """Whether a key has the grants that it had when it sent a request."""
        return client is None or any(slot.allowed == client for slot in self._slots)

    def unknown(self, client: AllowedKey | None, sessions: Collection[int]) -> bool:
        """Whether the leader must be asked for the owner of a session that a client uses: another
        node may have opened it a moment ago."""
        if client is None or client.grants.may(Right.ADMIN):
            return False
        return any(session not in self.owners for session in sessions)

    def foreign(self, client: AllowedKey | None, sessions: Collection[int]) -> int | None:
        """A session of another key, which the client may not use. One without an owner may
        have ended."""
        for session in sessions:
            owner = self.owners.get(session)
            if owner is not None and not self.may_use(client, owner, f"session {session}"):
                return session
        return None

    def readable(self, changed: KeyChange) -> list[tuple[int, int]]:
        """First and last table of each range that a key may read after a change."""
        grants = self.current(changed.name).grants
        if not (changed.slot.key and grants.may(Right.TABLE_READ)):
            return []
        return [(each.first, each.last) for each in grants.tables]

    def denials(self, arena: Arena, routed: bool) -> Iterator[Denial]:
        """What to do about messages that C has refused, by their first frames."""
        for number, message in enumerate(arena.messages()):
            behind = (2 if message[1:2] == [b""] else 1) if routed else 0
            prefix, frames = message[:behind], message[behind:]
            request_type, table = peek(frames)
            answer: Message = []
            if prefix and frames:
                error = answers.not_allowed(*answers.request_of(frames))
                answer = [*prefix, *answers.encode_refusal(error)]
            client = self.of(arena, number)
            yield Denial(answer, client.name if client else "", request_type, table)


def may_hold(client: AllowedKey, reads: int, writes: int | None = None) -> bool:
    """Whether a key's grants allow a job or a lease of these tables.

    reads    the table of its snapshot
    writes   the table that the job writes; None: none
    """
    grants = client.grants
    if not (grants.may(Right.JOBS) and grants.may_use_table(reads, False)):
        return False
    return writes is None or grants.may_use_table(writes, True)


def encode_client(client: AllowedKey) -> bytes:
    """What another process of the node needs to know of a key."""
    grants = client.grants
    address = client.address if isinstance(client, ConnectedKey) else ""
    tables = [*map(list, grants.tables)]
    return bytes(msgpack.packb([client.name, int(grants.rights), tables, address]))


def decode_client(packed: bytes) -> AllowedKey:
    """Raises ValueError, TypeError."""
    name, rights, tables, address = msgpack.unpackb(packed)
    ranges = tuple(TableRange(*each) for each in tables)
    return ConnectedKey.at(AllowedKey(name, Grants(Right(rights), ranges)), address)
