"""Logins of a farm server's clients: roles, certificates, and delays after wrong passwords by
address.

A client that guesses passwords gets 429 for a delay that doubles with each wrong one. Its digests
are still verified, so an answer takes the same time, and the users of servers are let in: a
client at a server's address must not cut that server's links.
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
    """The addresses that have sent wrong passwords, oldest first."""

    def __init__(self) -> None:
        self._by_address: dict[str, _WrongPasswords] = {}

    def delay_ms(self, address: str, now_ms: int) -> int:
        """How long logins of an address are refused; 0: they are not."""
        found = self._by_address.get(address)
        return max(0, found.until_ms - now_ms) if found else 0

    def on_wrong(self, address: str, now_ms: int) -> None:
        """An address has sent a wrong password, or an unknown user."""
        before = self._by_address.pop(address, None)
        is_old = before is None or now_ms - before.last_ms >= FORGET_MS
        total = 1 if before is None or is_old else before.total + 1
        delay_ms = 0
        if total >= WRONG_MAX:
            delay_ms = min(DELAY_MS_FIRST << min(total - WRONG_MAX, 16), DELAY_MS_MAX)
        if len(self._by_address) >= ADDRESSES_MAX:
            del self._by_address[next(iter(self._by_address))]
        self._by_address[address] = _WrongPasswords(total, now_ms, now_ms + delay_ms)


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
        session = self._session(cluster, result.user) if is_valid else None
        delay_ms = self._delays.delay_ms(self._address, now_ms) if self._address else 0
        if delay_ms and not (session and session.acts_as_server):
            return AuthResult(429, retry_after_s=-(-delay_ms // 1000))
        if result.is_wrong and self._address:
            self._delays.on_wrong(self._address, now_ms)
        may = session is not None and bool(rights.FARM_PATHS[name] & session.rights)
        return AuthResult(403) if is_valid and not may else result
