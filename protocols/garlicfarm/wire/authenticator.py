"""The server side of HTTP Digest: makes nonces and verifies Authorization headers.

The server stores no nonces: each contains its creation time and a MAC. It stores only the used
counts of a nonce, and only after a valid digest, so clients without a password use no memory.
"""

import hmac
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from ...errors import RemoteProtocolError
from .digest import (
    MD5,
    SHA_256,
    AuthParameters,
    DigestInput,
    algorithm_of,
    make_response,
    parse_parameters,
    quoted,
)
from .htdigest import Users

NONCE_TTL_MS = 2 * 3600 * 1000
NONCES_MAX = 4096  # Nonces with stored counts; above it the older half becomes stale.
# Counts below the largest that are remembered: concurrent connections may overtake each other.
NONCE_COUNT_WINDOW = 128
_NONCE = Struct(">q8s16s")  # Creation time, random bytes, MAC.
_REQUIRED = ("username", "realm", "nonce", "uri", "response", "qop", "nc", "cnonce")
OFFERED = (SHA_256, MD5)  # One header each, in this order.
_HA1_DIGITS = {SHA_256.hash_name: 64, MD5.hash_name: 32}


class AuthResult(NamedTuple):
    """The result of a verification.

    status          200 authenticated, 400 malformed, 401 refused; of an Admission also 403 and 429
    user            the authenticated user; with is_wrong the one that the client named
    stale           the digest is valid but its nonce is not: the client needs a new one
    is_wrong        the password is wrong, or the user unknown
    retry_after_s   with 429: when the client may try again
    """

    status: int
    user: str = ""
    stale: bool = False
    is_wrong: bool = False
    retry_after_s: int = 0


REFUSED = AuthResult(401)
WRONG = AuthResult(401, is_wrong=True)
STALE = AuthResult(401, stale=True)
MALFORMED = AuthResult(400)


class _NonceCounts:
    """The used counts of one nonce: the largest, and a bit for each count below it."""

    __slots__ = ("bits", "largest")

    def __init__(self) -> None:
        self.largest = 0
        self.bits = 0

    def accept(self, count: int) -> bool:
        """Marks a count as used; returns whether it was unused. Counts below the window are
        used.
        """
        ahead = count - self.largest
        if ahead > 0:
            shifted = self.bits << ahead if ahead < NONCE_COUNT_WINDOW else 0
            self.bits = shifted & ((1 << NONCE_COUNT_WINDOW) - 1) | 1
            self.largest = count
            return True
        if -ahead >= NONCE_COUNT_WINDOW or self.bits >> -ahead & 1:
            return False
        self.bits |= 1 << -ahead
        return True


class DigestAuthenticator:
    """Makes challenges and verifies their answers, for any number of realms."""

    def __init__(self, key: bytes, random_bytes: Callable[[int], bytes]) -> None:
        """key            secret key of the MACs, at least 16 bytes
        random_bytes   returns that many random bytes
        """
        assert len(key) >= 16, "a key of 16 bytes or more"
        self._key = key
        self._random_bytes = random_bytes
        self._counts: dict[str, _NonceCounts] = {}
        self._made_ms: dict[str, int] = {}  # Creation times of the nonces in _counts.
        # Nonces made up to here are stale, as their counts may be lost.
        self._evicted_up_to_ms = -1

    # ---- challenges ----

    def challenges(self, users: Users, now_ms: int, stale: bool = False) -> list[bytes]:
        """The WWW-Authenticate headers of a 401, strongest first: one per algorithm that some
        user has a line for.
        """
        nonce = self._make_nonce(users.realm, now_ms)
        return [
            ", ".join(
                (
                    f"Digest realm={quoted(users.realm)}",
                    'qop="auth"',
                    f"algorithm={algorithm.name}",
                    f"nonce={quoted(nonce)}",
                    f"opaque={quoted(self._opaque(users.realm))}",
                    *(("stale=true",) if stale else ()),
                )
            ).encode()
            for algorithm in OFFERED
            if algorithm.hash_name in users.hash_names
        ]

    def _make_nonce(self, realm: str, now_ms: int) -> str:
        random = self._random_bytes(8)
        return b64encode(_NONCE.pack(now_ms, random, self._mac(now_ms, random, realm))).decode()

    def _mac(self, made_ms: int, random: bytes, realm: str) -> bytes:
        text = b"nonce" + made_ms.to_bytes(8, "big") + random + realm.encode()
        return hmac.digest(self._key, text, "sha256")[:16]

    def _opaque(self, realm: str) -> str:
        return hmac.digest(self._key, b"opaque" + realm.encode(), "sha256")[:12].hex()

    def _nonce_time(self, nonce: str, realm: str) -> int | None:
        """When we made a nonce; None if we did not."""
        try:
            data = b64decode(nonce, validate=True)
        except (BinasciiError, ValueError):  # ValueError: not ASCII.
            return None
        if len(data) != _NONCE.size:
            return None
        made_ms, random, mac = _NONCE.unpack(data)
        if made_ms < 0 or not hmac.compare_digest(mac, self._mac(made_ms, random, realm)):
            return None
        return int(made_ms)

    # ---- verification ----

    def verify(self, users: Users, header: bytes, line: tuple[str, str], now_ms: int) -> AuthResult:
        """Verifies an Authorization header.

        line   method and target of its request. The digest's uri may be the target, or the path
               of a target in absolute form
        """
        try:
            parameters = parse_parameters(header)[0]
        except RemoteProtocolError:
            return MALFORMED
        if parameters.scheme != "digest":
            return REFUSED
        values = parameters.values
        if any(not values.get(name) for name in _REQUIRED):
            return MALFORMED
        count = _parse_nonce_count(values["nc"])
        if values["qop"] != "auth" or count is None or not _matches_target(values["uri"], line[1]):
            return MALFORMED
        if not self._is_ours(users, parameters):
            return REFUSED  # A challenge from before our start, or of another server.
        if not self._is_valid_digest(users, parameters, line[0]):
            return WRONG._replace(user=values["username"])
        made_ms = self._nonce_time(values["nonce"], users.realm)
        if made_ms is None or not 0 <= now_ms - made_ms < NONCE_TTL_MS:
            return STALE
        if made_ms <= self._evicted_up_to_ms or not self._accept_count(
            values["nonce"], made_ms, count
        ):
            return STALE
        return AuthResult(200, values["username"])

    def _is_ours(self, users: Users, parameters: AuthParameters) -> bool:
        """Whether the request answers a challenge that we made."""
        values, algorithm = parameters.values, algorithm_of(parameters)
        is_offered = algorithm in OFFERED and algorithm.hash_name in users.hash_names
        is_here = values["realm"] == users.realm
        return is_offered and is_here and values.get("opaque", "") == self._opaque(users.realm)

    def _is_valid_digest(self, users: Users, parameters: AuthParameters, method: str) -> bool:
        """Whether the digest is a user's. An unknown user costs as much time as a known one."""
        values, algorithm = parameters.values, algorithm_of(parameters)
        assert algorithm is not None, "it was offered"
        user = values["username"]
        decoy = hmac.digest(self._key, b"decoy" + user.encode(), "sha256").hex()
        decoy = decoy[: _HA1_DIGITS[algorithm.hash_name]]
        known = users.secrets.get(user, {}).get(algorithm.hash_name)
        former = users.former.get(user, {}).get(algorithm.hash_name)
        terms = DigestInput(method, values["uri"], values["nonce"], values["nc"], values["cnonce"])
        is_equal = False
        for ha1 in (known or decoy, former or decoy):
            expected = make_response(algorithm, ha1, terms).encode()
            is_equal |= hmac.compare_digest(expected, values["response"].lower().encode())
        return is_equal and known is not None

    def _accept_count(self, nonce: str, made_ms: int, count: int) -> bool:
        """Marks a count of our nonce as used; returns whether it was unused."""
        counts = self._counts.get(nonce)
        if counts is None:
            if len(self._counts) >= NONCES_MAX:
                self._evict_nonces()
            counts = self._counts[nonce] = _NonceCounts()
            self._made_ms[nonce] = made_ms
        return counts.accept(count)

    def _evict_nonces(self) -> None:
        """Makes the older half of the nonces stale."""
        ages = sorted(self._made_ms.values())
        self._evicted_up_to_ms = ages[len(ages) // 2]
        for nonce in [each for each, at in self._made_ms.items() if at <= self._evicted_up_to_ms]:
            del self._made_ms[nonce], self._counts[nonce]


def _parse_nonce_count(nc: str) -> int | None:
    """The value of 8 hexadecimal digits from 1 on; otherwise None."""
    if len(nc) != 8 or not all(digit in "0123456789abcdefABCDEF" for digit in nc):
        return None
    return int(nc, 16) or None


def path_of(target: str) -> str:
    """The path of a request target, which has the absolute form behind a proxy."""
    for scheme in ("http://", "https://"):
        if target.lower().startswith(scheme):
            _, slash, path = target[len(scheme) :].partition("/")
            return slash + path
    return target


def _matches_target(uri: str, target: str) -> bool:
    """Whether a digest's uri is the request's target."""
    return uri in (target, path_of(target)) or path_of(uri) == target
