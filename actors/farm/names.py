"""Addresses by name, for a process that must not wait for a name server."""

import socket
from threading import Thread

from ...protocols.garlicfarm.wire.values import Address

SocketAddress = tuple[int, tuple[str, int]]  # Family, and what connect() takes.


class _Lookup(Thread):
    """One question, in a thread of its own: the system's resolver has no other way not to wait."""

    def __init__(self, address: Address) -> None:
        super().__init__(name="names", daemon=True)
        self._address = address
        self._found: list[SocketAddress] = []
        self._error: OSError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._found = _lookup(self._address, 0)
        except OSError as error:
            self._error = error

    def result(self) -> list[SocketAddress]:
        """Once it has ended."""
        if self._error is not None:
            raise self._error
        return self._found


class Names:
    """Finds addresses; a name server that is gone must not hold up a heartbeat."""

    def __init__(self) -> None:
        self._asked: dict[Address, _Lookup] = {}

    def find(self, address: Address) -> list[SocketAddress] | None:
        """Where that is; None: ask again in a moment. Raises OSError when there is none such."""
        try:
            return _lookup(address, socket.AI_NUMERICHOST)
        except OSError:
            pass  # It is a name.
        asked = self._asked.get(address)
        if asked is None:
            self._asked[address] = _Lookup(address)
            return None
        if asked.is_alive():
            return None
        del self._asked[address]
        return asked.result()


def _lookup(address: Address, flags: int) -> list[SocketAddress]:
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=flags)
    return [(int(family), (str(where[0]), int(where[1]))) for family, _, _, _, where in found]
