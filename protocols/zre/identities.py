"""The CURVE keys of a node's peers: which may be nodes, and which key each UUID belongs to.

A UUID is bound to the key of its first HELLO, also for a while after the peer has gone: no other
key can take it over.
"""

from ..access.grants import Right
from ..access.zap import SLOTS_MAX, Keyring

HEADER = "X-PUBLICKEY"  # The sender's public key in HELLO, 40 characters of Z85; as zyre.
NO_SLOT = 0xFFFFFFFF  # Of a key without connections.
UUIDS_MAX = 64  # Bound to a key; the oldest is forgotten first.
KEYS_MAX = SLOTS_MAX  # With bound UUIDs.


class Identities:
    """The keys of the peers of one node."""

    def __init__(self, keyring: Keyring | None) -> None:
        """keyring: the keys that may connect; None: the node has no CURVE, its peers have no
        key."""
        self.keyring = keyring
        self._owners: dict[bytes, bytes] = {}  # The key of each bound UUID ...
        self._uuids: dict[bytes, dict[bytes, None]] = {}  # ... and the UUIDs of each key, by age.

    def allows(self, key: bytes) -> bool:
        """Whether a node may have this key."""
        return self.keyring is None or self.keyring.allows(key, Right.ZRE)

    def key_at(self, slot: int) -> bytes:
        """The key in a slot of the keyring."""
        return self.keyring.slots[slot].key if self.keyring is not None else b""

    def slot_of(self, key: bytes) -> int:
        slot = self.keyring.slot_of(key) if self.keyring is not None else None
        return NO_SLOT if slot is None else slot.number

    def is_free(self, uuid: bytes, key: bytes) -> bool:
        """Whether no other key has the UUID."""
        return self._owners.get(uuid, key) == key

    def bind(self, uuid: bytes, key: bytes) -> None:
        """The UUID belongs to this key from now on."""
        if not key:
            return
        uuids = self._uuids.pop(key, {})
        self._uuids[key] = uuids  # The key that was used last.
        uuids.pop(uuid, None)
        uuids[uuid] = None
        self._owners[uuid] = key
        if len(uuids) > UUIDS_MAX:
            oldest = next(iter(uuids))
            del uuids[oldest], self._owners[oldest]
        if len(self._uuids) > KEYS_MAX:
            self.forget(next(iter(self._uuids)))

    def forget(self, key: bytes) -> None:
        """Unbinds the UUIDs of a key."""
        for uuid in self._uuids.pop(key, {}):
            del self._owners[uuid]

    def forget_refused(self) -> None:
        """Unbinds the UUIDs of keys that are no longer allowed."""
        for key in [key for key in self._uuids if not self.allows(key)]:
            self.forget(key)
