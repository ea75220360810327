"""The gate of a process: it answers libzmq's questions about new connections (ZeroMQ RFC 27)."""

import struct
from collections.abc import Callable, Mapping

import zmq

from ...native.net.connections import NEW_MS
from ...net.access.keys import KeyDirectory
from ...net.access.zap import ZapSocket
from ...net.clock import monotonic_ms
from ...net.sockets import CurveClient, Socket, SocketOptions, allow_ipv6
from ...protocols.access.certificates import decode_key
from ...protocols.access.guards import row_of
from ...protocols.access.zap import (
    NULL,
    AllowedKey,
    KeyChange,
    Keyring,
    ProtectedEndpoint,
    ZapHandler,
)
from ..errors import OperatorError
from ..runtime.process_loop import ProcessLoop

# How long a start waits for the refusal of an unknown key. On a busy machine a handshake may reach
# its limit of 2 s, and libzmq begins another one.
CHECK_MS = 60_000
_REFUSED = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_EVENT = struct.Struct("=HI")
_PEERS: dict[int, int] = {
    zmq.ROUTER: zmq.DEALER,
    zmq.PULL: zmq.PUSH,
    zmq.SUB: zmq.PUB,
    zmq.PUB: zmq.SUB,
    zmq.XPUB: zmq.SUB,
}


class AccessGate:
    """The keys that a process allows, and its ZAP handler (net/access/zap.py).

    It must exist before the first endpoint with a domain is bound.
    """

    def __init__(
        self,
        loop: ProcessLoop,
        keys: KeyDirectory,
        endpoints: dict[bytes, ProtectedEndpoint],
        fixed: Mapping[bytes, AllowedKey] | None = None,
    ) -> None:
        """
        endpoints   by ZAP domain
        fixed       keys that are allowed without a file
        """
        self._loop, self._keys, self._fixed = loop, keys, fixed or {}
        self.audits_keys = False  # This process writes changes of keys to the node's audit file.
        self.on_refused: Callable[[str, str], None] = lambda address, problem: None
        self.keyring = Keyring()
        self._replace()
        self._revoked_ms: int | None = None  # Connections that were new then are checked again.
        self._endpoints = endpoints
        self._unknown_key = (
            "\n"  # Of check(), whose refusal is no event; no problem ends with "\n".
        )
        handler = ZapHandler(self.keyring, endpoints)
        self._zap = ZapSocket(loop, handler.answer, self._on_refused)

    def watch(self, on_changed: Callable[[], None]) -> None:
        """Calls on_changed() as soon as key files may have changed, where the system tells it."""
        fd = self._keys.watch()

        def on_event() -> None:
            self._keys.on_watched()
            on_changed()

        if fd is not None:
            self._loop.watch(fd, on_event)

    def close(self) -> None:
        """Ends watch(), after the loop."""
        self._keys.close()

    def protect(self, domain: str, endpoint: ProtectedEndpoint) -> None:
        """To be called before the endpoint is bound."""
        self._endpoints[domain.encode()] = endpoint

    @property
    def foreign_slot(self) -> int | None:
        """The slot of all that connect without CURVE; None: the node has no such endpoint."""
        slot = self.keyring.slot_of(NULL)
        return slot.number if slot else None

    def name_of(self, slot: int) -> str:
        """The name of the key in a slot."""
        return self.keyring.slots[slot].allowed.name

    def reload(self, now_ms: int) -> list[KeyChange]:
        """Loads changed key files, and ends the connections of revoked keys. Returns what has
        changed."""
        if self._revoked_ms is not None and now_ms >= self._revoked_ms + NEW_MS:
            self._loop.end_revoked(self._revoked_ms, now_ms)
            self._revoked_ms = None
        problems = self._keys.reload(now_ms)
        if problems is None:
            return []
        for problem in problems:
            self._loop.log("key-refused", problem=problem)
        changed = self._replace()
        for slot, name in changed:
            self._loop.log("key-allowed" if slot.key else "key-revoked", name=name)
        if any(not slot.key for slot, _ in changed):
            self._revoked_ms = monotonic_ms()
            self._loop.end_revoked(self._revoked_ms, self._revoked_ms)
        return changed

    def _replace(self) -> list[KeyChange]:
        allowed = {**self._keys.keys, **self._fixed}
        changed = self.keyring.replace(allowed)
        rows = self._loop.allowed_keys
        if rows.count == len(self.keyring.slots):
            for slot, _ in changed:
                rows.set_row(slot.number, row_of(slot))
        else:
            rows.replace(map(row_of, self.keyring.slots))
        return changed

    def check(self, kind: int, url: str, server_key: bytes, place: str) -> None:
        """Connects to an own endpoint with an unknown key. Raises OperatorError if it gets in.

        kind   of the endpoint's socket: libzmq may end a connection of two sockets that don't fit
               before it has asked the handler

        libzmq accepts every key where no handler answers.
        """
        keys = zmq.curve_keypair()
        public, secret = (decode_key(key.decode()) for key in keys)
        self._unknown_key = keys[0].decode()
        curve = CurveClient(server_key, public, secret)
        # Not as an option of socket(): the monitor must see the first event.
        socket = self._loop.socket(_PEERS[kind], SocketOptions(curve=curve))
        monitor: Socket = socket.get_monitor_socket()
        try:
            allow_ipv6(socket, url)
            socket.connect(url)
            until_ms = monotonic_ms() + CHECK_MS
            while (left_ms := until_ms - monotonic_ms()) > 0:
                self._zap.answer_waiting()
                if not monitor.poll(min(left_ms, 10)):
                    continue
                event, _value = _EVENT.unpack_from(monitor.recv_multipart()[0])
                if event == _REFUSED:
                    return
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    problem = f"{url} does not refuse unknown keys"
                    raise OperatorError(place, problem, "report this as a defect")
        finally:
            socket.disable_monitor()
            monitor.close()
            self._loop.close_socket(socket)
        problem = f"{url} does not end a handshake within {CHECK_MS // 1000} s"
        raise OperatorError(place, problem, "start it again when the machine is less busy")

    def _on_refused(self, address: str, problem: str) -> None:
        if not problem.endswith(self._unknown_key):
            self._loop.log_rarely("connection-refused", address=address, problem=problem)
            self.on_refused(address, problem)
