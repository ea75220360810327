"""The keys of a kelek.Node with CURVE: its own, and those of the nodes that it greets."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...native.net.guard import AllowedKeys, KeyRow
from ...net.access.keys import CHECK_INTERVAL_MS, KeyDirectory, load_key
from ...net.access.zap import ZapSocket
from ...net.errors import OperatorError
from ...net.poll_loop import PollLoop
from ...net.sockets import CurveServer
from ...protocols.access.certificates import CertificateError, decode_key
from ...protocols.access.grants import Grants, Right
from ...protocols.access.guards import row_of
from ...protocols.access.zap import (
    CURVE,
    SLOTS_MAX,
    ZAP_REQUEST,
    AllowedKey,
    Keyring,
    OpenKeyring,
    ProtectedEndpoint,
    Slot,
    ZapHandler,
)
from ..errors import KeyUnusable
from ..io.keys import KeyPath

ANY_KEY = "*"
OPEN_SLOTS = 2048  # Of a node that allows any key: the keys with connections that it knows.
_NODE = Grants(Right.ZRE)

AllowedNodes = str | os.PathLike[str] | Iterable[str]
_REFUSE_ALL = ZapHandler(Keyring(), {})


class NodeAccess:
    """A node's own key, the keys that may connect to it, and its part of the ZAP handler."""

    def __init__(self, key: KeyPath, allow: AllowedNodes, domain: str) -> None:
        """
        key      path of the node's secret key
        allow    a directory of public keys with the grant `zre`, public keys in Z85, or "*"
        domain   of ZAP; another one for each node of the process

        Raises KeyUnusable.
        """
        self.domain = domain
        self.refused = 0  # Connections.
        self.allowed_keys = AllowedKeys()  # The keyring as C sees it.
        self._directory: KeyDirectory | None = None
        self.keyring = Keyring()
        try:
            own = load_key(os.fspath(key), "key")
            self.public_key, self._secret_key = own.public_key, own.secret_key
            if allow == ANY_KEY:
                self.keyring = OpenKeyring(OPEN_SLOTS, AllowedKey("any key", _NODE), self._on_slot)
                self.allowed_keys.replace([KeyRow(0)] * OPEN_SLOTS)
            elif isinstance(allow, str | os.PathLike):
                self._directory = KeyDirectory(os.fspath(allow), "allow")
                self._replace(self._directory.keys)
            else:
                keys = {decode_key(text): AllowedKey(text, _NODE) for text in allow}
                if len(keys) > SLOTS_MAX:
                    raise KeyUnusable(f"allow: at most {SLOTS_MAX} keys, got {len(keys)}")
                self._replace(keys)
        except CertificateError as error:
            raise KeyUnusable(f"allow: {error}; write what `kelek keys show` prints") from error
        except OperatorError as error:
            raise KeyUnusable(str(error)) from error
        endpoint = ProtectedEndpoint(CURVE, Right.ZRE)
        self._handler = ZapHandler(self.keyring, {domain.encode(): endpoint})

    @property
    def curve(self) -> CurveServer:
        """Of the node's mailbox."""
        return CurveServer(self._secret_key, self.domain)

    def answer(self, frames: Sequence[bytes]) -> tuple[list[bytes], str]:
        """As ZapHandler.answer; counts refused connections."""
        answer, problem = self._handler.answer(frames)
        self.refused += bool(problem)
        return answer, problem

    @property
    def reloads(self) -> bool:
        """Whether the keys may change."""
        return self._directory is not None

    def reload(self, now_ms: int) -> bool:
        """Loads changed key files; returns whether keys have changed. A malformed file allows no
        key."""
        if self._directory is None or self._directory.reload(now_ms) is None:
            return False
        return self._replace(self._directory.keys)

    def set_used(self, used: Callable[[], Iterable[bytes]]) -> None:
        """used: the keys of the node's peers, which keep their slots"""
        if isinstance(self.keyring, OpenKeyring):
            self.keyring.used = used

    def _replace(self, keys: Mapping[bytes, AllowedKey]) -> bool:
        changed = self.keyring.replace(keys)
        self.allowed_keys.replace(map(row_of, self.keyring.slots))
        return bool(changed)

    def _on_slot(self, slot: Slot) -> None:
        self.allowed_keys.set_generation(slot.number, slot.generation)


class NodeGate:
    """The ZAP handler of all nodes of a process. Under the reactor's lock."""

    def __init__(self, loop: PollLoop) -> None:
        self._loop = loop
        self._zap: ZapSocket | None = None  # From the first node with CURVE on.
        self._accesses: dict[bytes, NodeAccess] = {}  # By domain.
        self._next_reload_ms = 0

    def open(self, access: NodeAccess) -> None:
        """To be called before the node's mailbox is bound."""
        self._accesses[access.domain.encode()] = access
        if self._zap is None:
            self._zap = ZapSocket(self._loop, self._answer, lambda address, problem: None)

    def close(self, access: NodeAccess | None) -> None:
        if access is not None:
            self._accesses.pop(access.domain.encode(), None)

    def close_socket(self) -> None:
        """With the context."""
        if self._zap is not None:
            self._loop.close_socket(self._zap.socket)

    def _answer(self, frames: Sequence[bytes]) -> tuple[list[bytes], str]:
        access = self._accesses.get(ZAP_REQUEST.decode(frames).domain)
        return (access or _REFUSE_ALL).answer(frames)

    @property
    def deadline_ms(self) -> int | None:
        """When to call reload()."""
        reloads = any(access.reloads for access in self._accesses.values())
        return self._next_reload_ms if reloads else None

    def reload(self, now_ms: int) -> list[NodeAccess]:
        """Loads changed key files, at most once a second; returns those whose keys have changed."""
        if now_ms < self._next_reload_ms:
            return []
        self._next_reload_ms = now_ms + CHECK_INTERVAL_MS
        return [access for access in self._accesses.values() if access.reload(now_ms)]
