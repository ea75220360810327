"""Whether the host of an url has an address. libzmq does not tell: it only tries again.

The system's resolver has only a blocking call, which may take many seconds: it has a thread.
"""

import socket
from ipaddress import ip_address
from threading import Thread

TCP = "tcp://"


def host_name(url: str) -> str:
    """The host of an url of tcp; "": it has an address for a host, or another transport."""
    host = url.removeprefix(TCP).rpartition(":")[0].strip("[]") if url.startswith(TCP) else ""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return ""


def name_problem(host: str) -> str:
    """Why a host name leads nowhere; "": it has an address. May block."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        return f"the name {host} has no address: {said}"
    return ""


class NameLookup(Thread):
    """Looks up one host name."""

    def __init__(self, host: str) -> None:
        super().__init__(name="resolver", daemon=True)
        self._host = host
        self._problem = ""
        self.start()

    def run(self) -> None:
        self._problem = name_problem(self._host)

    def result(self) -> str | None:
        """As name_problem(); None: not known yet."""
        return None if self.is_alive() else self._problem
