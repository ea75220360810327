"""ZAP: which connections an endpoint accepts (ZeroMQ RFC 27).

libzmq asks a process's handler about each connection to an endpoint with a ZAP domain. The answer's
User-Id names the key's slot and its generation; libzmq attaches it to each message of the
connection. Removing a key changes the generation, so that messages of its open connections are
recognised.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import RemoteProtocolError
from ..wire import Constant, Frame, FrameType, Id, Layout, Rest, RestType
from .certificates import KEY_BYTES, encode_key
from .grants import Grants, Right

KEYS_MAX = 4096  # Of a directory.
SLOTS_MAX = KEYS_MAX + 128  # Of a process: also those of its cluster's nodes.
FRAME_BYTES_MAX = 255
CREDENTIALS_MAX = 3

NULL, CURVE = b"NULL", b"CURVE"
ACCEPTED, REFUSED = b"200", b"400"
NO_RIGHTS = Grants()


def _decode_short(frame: bytes) -> bytes:
    if len(frame) > FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a frame has at most {FRAME_BYTES_MAX} bytes")
    return frame


SHORT = FrameType("bytes", bytes, _decode_short)
CREDENTIALS = RestType(
    "bytes", lambda value: value, lambda frames: tuple(map(_decode_short, frames))
)
VERSION = Constant(b"1.0", "version")
REQUEST_ID = Id(SHORT, "request id, repeated in the answer")


class ZapRequest(NamedTuple):
    """libzmq's question about one connection."""

    domain: bytes
    address: bytes
    identity: bytes
    mechanism: bytes
    credentials: Sequence[bytes] = ()


class ZapAnswer(NamedTuple):
    """Whether the connection is accepted."""

    status: bytes
    text: bytes = b""
    user_id: bytes = b""
    metadata: bytes = b""


ZAP_REQUEST = Layout(
    "ZAP request", ZapRequest,
    VERSION, REQUEST_ID,
    Frame("domain", SHORT, "the endpoint's domain"),
    Frame("address", SHORT, "the connection's address"),
    Frame("identity", SHORT, "the socket's routing id"),
    Frame("mechanism", SHORT, "`NULL`, `PLAIN`, `CURVE` or `GSSAPI`"),
    Rest("credentials", CREDENTIALS, "CURVE: the client's public key", CREDENTIALS_MAX),
)  # fmt: skip
ZAP_ANSWER = Layout(
    "ZAP answer", ZapAnswer,
    VERSION, REQUEST_ID,
    Frame("status", SHORT, "`200`: accepted, `400`: refused"),
    Frame("text", SHORT, "the reason"),
    Frame("user_id", SHORT, "SLOT.GENERATION, decimal"),
    Frame("metadata", SHORT, "empty"),
)  # fmt: skip


class AllowedKey(NamedTuple):
    """A public key that may connect: its name, and what it may do."""

    name: str
    grants: Grants


class Slot:
    """The place of a key in a process. A generation is never used twice."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.generation = 0
        self.key = b""  # Empty: free.
        self.allowed = AllowedKey("", NO_RIGHTS)

    @property
    def user_id(self) -> bytes:
        return b"%d.%d" % (self.number, self.generation)


class KeyChange(NamedTuple):
    """A slot whose key was allowed, changed or removed; the key's name."""

    slot: Slot
    name: str


class Keyring:
    """The public keys that may connect to a process, each in a slot."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self._by_key: dict[bytes, Slot] = {}
        self._free: list[Slot] = []

    def slot_of(self, key: bytes) -> Slot | None:
        return self._by_key.get(key)

    def admit(self, key: bytes) -> Slot | None:
        """The slot of a key that connects; None: it is not allowed."""
        return self._by_key.get(key)

    def allows(self, key: bytes, right: Right) -> bool:
        """Whether a key has a right."""
        slot = self._by_key.get(key)
        return slot is not None and slot.allowed.grants.may(right)

    def user_ids(self, right: Right) -> set[bytes]:
        """The User-Ids of all keys with a right."""
        return {slot.user_id for slot in self.slots if slot.allowed.grants.may(right)}

    def user_id(self, key: bytes) -> bytes:
        """What the connections of an allowed key have as User-Id."""
        return self._by_key[key].user_id

    def replace(self, allowed: Mapping[bytes, AllowedKey]) -> list[KeyChange]:
        """Replaces all keys. Open connections of keys that stay keep their slots.

        Returns what has changed. Raises ValueError if there are
        more than SLOTS_MAX keys.
        """
        if len(allowed) > SLOTS_MAX:
            raise ValueError(f"at most {SLOTS_MAX} keys, got {len(allowed)}")
        changed, freed = [], []
        for key in self._by_key.keys() - allowed.keys():
            slot = self._by_key.pop(key)
            changed.append(KeyChange(slot, slot.allowed.name))
            freed.append(slot)
            slot.key, slot.allowed = b"", AllowedKey("", NO_RIGHTS)
            slot.generation += 1
        for key, value in allowed.items():
            known = self._by_key.get(key)
            if known is None:
                self._by_key[key] = known = self._take_slot()
                known.key = key
            if known.allowed != value:
                known.allowed = value
                changed.append(KeyChange(known, value.name))
        self._free += freed  # Not before: a slot changes once.
        return changed

    def _take_slot(self) -> Slot:
        if self._free:
            return self._free.pop()
        self.slots.append(Slot(len(self.slots)))
        return self.slots[-1]


class OpenKeyring(Keyring):
    """Allows every key: the connections are encrypted, and each key is known by its slot.

    Each key that connects takes the slot of the one that connected longest ago and is not used.
    """

    def __init__(self, slots: int, allowed: AllowedKey, on_slot: Callable[[Slot], None]) -> None:
        """
        slots     how many keys it knows at a time
        allowed   of all keys
        on_slot   called when a slot has another key
        """
        super().__init__()
        self._slots_max, self._allowed, self._on_slot = slots, allowed, on_slot
        self.used: Callable[[], Iterable[bytes]] = tuple  # Keys that keep their slots.

    def allows(self, key: bytes, right: Right) -> bool:
        return self._allowed.grants.may(right)

    def admit(self, key: bytes) -> Slot | None:
        slot = self._by_key.pop(key, None)
        if slot is None:
            slot = self._take_slot() if len(self.slots) < self._slots_max else self._evict()
            if slot is None:
                return None
            slot.key, slot.allowed = key, self._allowed
            slot.generation += 1
            self._on_slot(slot)
        self._by_key[key] = slot  # The last.
        return slot

    def _evict(self) -> Slot | None:
        used = set(self.used())
        oldest = next((key for key in self._by_key if key not in used), None)
        return None if oldest is None else self._by_key.pop(oldest)


class ProtectedEndpoint(NamedTuple):
    """What an endpoint asks of a connection.

    mechanism   CURVE, or NULL for foreign peers
    serves      a key needs one of these rights
    key         NULL: the entry in the keyring that all peers have
    """

    mechanism: bytes
    serves: Right
    key: bytes = b""


class ZapHandler:
    """Answers libzmq's questions about the connections of one process."""

    def __init__(self, keyring: Keyring, endpoints: Mapping[bytes, ProtectedEndpoint]) -> None:
        """endpoints: by ZAP domain"""
        self._keyring = keyring
        self._endpoints = endpoints

    def answer(self, frames: Sequence[bytes]) -> tuple[list[bytes], str]:
        """The answer to a request, and why the connection is refused: "" if it is not.

        Raises RemoteProtocolError if the request is malformed.
        """
        request = ZAP_REQUEST.decode(frames)
        slot, problem = self._check(request)
        if problem:
            answer = ZapAnswer(REFUSED, problem.encode())
        else:
            assert slot is not None
            # Without it, libzmq would believe the User-Id that a peer without CURVE claims.
            answer = ZapAnswer(ACCEPTED, user_id=slot.user_id)
        return ZAP_ANSWER.encode(answer, message_id=frames[1]), problem

    def _check(self, request: ZapRequest) -> tuple[Slot | None, str]:
        endpoint = self._endpoints.get(request.domain)
        if endpoint is None:
            return None, "unknown ZAP domain"
        if request.mechanism != endpoint.mechanism:
            return None, f"the endpoint needs {endpoint.mechanism.decode()}"
        if endpoint.mechanism == NULL:
            slot = self._keyring.slot_of(endpoint.key)
            return slot, "" if slot else "foreign peers have no grants"
        key = b"".join(request.credentials)
        if len(request.credentials) != 1 or len(key) != KEY_BYTES:
            return None, "no CURVE key"
        slot = self._keyring.admit(key)
        if slot is None:
            return None, f"unknown key {encode_key(key)}"
        if not slot.allowed.grants.rights & endpoint.serves:
            return None, f"{slot.allowed.name} has no grant for this endpoint"
        return slot, ""
