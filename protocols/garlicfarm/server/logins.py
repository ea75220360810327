"""Logins of a farm server's clients: roles, certificates, and delays after wrong passwords by
address.

A client that guesses passwords gets 429 for a delay that doubles with each wrong one. Its digests
are still verified, so an answer takes the same time. A user of servers has a count of its own at
each address: guesses of its password delay it, those of other passwords do not, so that a client
which only shares a server's address does not cut that server's links.
"""

from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, ip_address
from typing import Any, NamedTuple

from ...access import rights
from ..wire.authenticator import AuthResult
from .inbound import PeerSession

WRONG_MAX = 5  # Wrong passwords of an address before the first delay.
DELAY_MS_FIRST = 1000
DELAY_MS_MAX = 30_000
FORGET_MS = 600_000  # An address without a wrong password for so long begins anew.
ADDRESSES_MAX = 4096  # Above it the address with the oldest wrong password is forgotten.
NETWORK_BITS_6 = 64  # A client of IPv6 may have all addresses of such a network.


def network_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or a network of IPv6."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    bits = 128 - NETWORK_BITS_6
    return str(ip_address(int(address) >> bits << bits))


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The names of a certificate, as ssl shows it: the common name, and the DNS names, e-mail
    addresses, URIs and IP addresses for which it was issued.
    """
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    found = {value for kind, value in subject if kind == "commonName"}
    for kind, value in certificate.get("subjectAltName", ()):
        if kind == "IP Address":
            found.add(str(ip_address(value.strip())))
        elif kind in ("DNS", "email", "URI"):
            found.add(value)
    return frozenset(found)


class _WrongPasswords(NamedTuple):
    total: int
    last_ms: int
    until_ms: int  # Logins are refused before.


class LoginDelays:
    """The addresses that have sent wrong passwords, oldest first.

    server_user   counts the wrong passwords of this user of servers alone; "": those of all users
    """

    def __init__(self) -> None:
        self._wrong: dict[tuple[str, str], _WrongPasswords] = {}

    def delay_ms(self, address: str, now_ms: int, server_user: str = "") -> int:
        """How long logins of an address are refused; 0: they are not."""
        found = self._wrong.get((address, server_user))
        return max(0, found.until_ms - now_ms) if found else 0

    def on_wrong(self, address: str, now_ms: int, server_user: str = "") -> None:
        """An address has sent a wrong password, or an unknown user."""
        before = self._wrong.pop((address, server_user), None)
        is_old = before is None or now_ms - before.last_ms >= FORGET_MS
        total = 1 if before is None or is_old else before.total + 1
        delay_ms = 0
        if total >= WRONG_MAX:
            delay_ms = min(DELAY_MS_FIRST << min(total - WRONG_MAX, 16), DELAY_MS_MAX)
        if len(self._wrong) >= ADDRESSES_MAX:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[address, server_user] = _WrongPasswords(total, now_ms, now_ms + delay_ms)


class LoginCheck:
    """Checks the logins of one connection beyond their digest: an Admission (handshake.py)."""

    def __init__(
        self, delays: LoginDelays, address: str, session: Callable[[str, str], PeerSession | None]
    ) -> None:
        """address   empty if it does not tell clients apart
        session   by farm and user; None if the client's certificate is of another user
        """
        self._delays, self._address, self._session = delays, address, session

    def check(self, cluster: str, name: str, result: AuthResult, now_ms: int) -> AuthResult:
        """The result for the client: the same, 403 or 429."""
        is_valid = result.status == 200
        session = self._session(cluster, result.user) if is_valid or result.is_wrong else None
        server_user = result.user if session and session.acts_as_server else ""
        delay_ms = self._delay_ms(server_user if is_valid else "", now_ms)
        if result.is_wrong and self._address:
            # Of each count that is not in a delay: others' guesses hide none of a server's user.
            for user in {"", server_user}:
                if not self._delay_ms(user, now_ms):
                    self._delays.on_wrong(self._address, now_ms, user)
        if delay_ms:
            return AuthResult(429, retry_after_s=-(-delay_ms // 1000))
        may = session is not None and bool(rights.FARM_PATHS[name] & session.rights)
        return AuthResult(403) if is_valid and not may else result

    def _delay_ms(self, server_user: str, now_ms: int) -> int:
        if not self._address:
            return 0
        return self._delays.delay_ms(self._address, now_ms, server_user)
