"""Host name look-ups that do not block: a name server that is down must not delay heartbeats."""

import socket
from threading import Thread

from ...protocols.garlicfarm.wire.values import Address

SocketAddress = tuple[int, tuple[str, int]]  # Address family, argument of connect().


class _LookupThread(Thread):
    """One look-up, in a thread of its own because the system's resolver only has a blocking
    call.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(name="resolver", daemon=True)
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
        """The addresses, once the thread has ended."""
        if self._error is not None:
            raise self._error
        return self._found


class AddressResolver:
    """Resolves addresses in the background."""

    def __init__(self) -> None:
        self._lookups: dict[Address, _LookupThread] = {}

    def resolve(self, address: Address) -> list[SocketAddress] | None:
        """The socket addresses; None: not known yet, call again. Raises OSError if the name is
        unknown.
        """
        try:
            return _lookup(address, socket.AI_NUMERICHOST)
        except OSError:
            pass  # It is a host name.
        lookup = self._lookups.get(address)
        if lookup is None:
            self._lookups[address] = _LookupThread(address)
            return None
        if lookup.is_alive():
            return None
        del self._lookups[address]
        return lookup.result()


def _lookup(address: Address, flags: int) -> list[SocketAddress]:
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=flags)
    return [
        (int(family), (str(socket_address[0]), int(socket_address[1])))
        for family, _, _, _, socket_address in found
    ]
