"""Who is let in: nonces, their counts, and the judgement of an Authorization header.

Nonces are not kept: each holds its time, and a mac shows that it is ours. What is kept is which
counts of a nonce were used, and only after a right digest, so strangers make nothing grow.
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
NONCES_MAX = 4096  # Of which counts are kept; when there are more, the oldest are stale.
NONCE_COUNT_WINDOW = 128  # Of one nonce: connections that are made at once may overtake each other.
_NONCE = Struct(">q8s16s")  # When it was made, dice, mac.
_REQUIRED = ("username", "realm", "nonce", "uri", "response", "qop", "nc", "cnonce")
OFFERED = (SHA_256, MD5)  # Each in a header of its own, in this order.


class AuthResult(NamedTuple):
    """What becomes of a request.

    status   200 let in, 400 malformed, 401 refused
    user     who is let in
    stale    the digest is right, only its nonce is not: a new one is all that it takes
    """

    status: int
    user: str = ""
    stale: bool = False


REFUSED = AuthResult(401)
STALE = AuthResult(401, stale=True)
MALFORMED = AuthResult(400)


class _NonceCounts:
    """Which counts of one nonce were used: the largest, and a bit for each of those below."""

    __slots__ = ("bits", "largest")

    def __init__(self) -> None:
        self.largest = 0
        self.bits = 0

    def accept(self, count: int) -> bool:
        """Whether the count is a new one; it is not from now on. One that is too far below the
        largest to be remembered was used."""
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
    """Makes challenges and judges what comes back, for any number of realms."""

    def __init__(self, key: bytes, random_bytes: Callable[[int], bytes]) -> None:
        """key            of the macs: at least 16 bytes that nobody else knows
        random_bytes   that many, each time others
        """
        assert len(key) >= 16, "a key of 16 bytes or more"
        self._key = key
        self._random_bytes = random_bytes
        self._counts: dict[str, _NonceCounts] = {}
        self._made_ms: dict[str, int] = {}  # Of the nonces whose counts are kept.
        self._evicted_up_to_ms = -1  # Nonces made up to here are stale: some counts are forgotten.

    # Challenges.

    def challenges(self, users: Users, now_ms: int, stale: bool = False) -> list[bytes]:
        """The WWW-Authenticate headers of a 401, the best first: one for each algorithm that some
        user has a line for."""
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
        """When we made a nonce; None when we did not."""
        try:
            data = b64decode(nonce, validate=True)
        except (BinasciiError, ValueError):  # The latter when it is not ASCII.
            return None
        if len(data) != _NONCE.size:
            return None
        made_ms, random, mac = _NONCE.unpack(data)
        if made_ms < 0 or not hmac.compare_digest(mac, self._mac(made_ms, random, realm)):
            return None
        return int(made_ms)

    # Judgements.

    def verify(self, users: Users, header: bytes, line: tuple[str, str], now_ms: int) -> AuthResult:
        """Judges an Authorization header.

        line   method and target of the request that it came with; the digest's uri may be the
               target itself or, when that is of the absolute form, its path
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
        if not self._is_valid_digest(users, parameters, line[0]):
            return REFUSED
        made_ms = self._nonce_time(values["nonce"], users.realm)
        if made_ms is None or not 0 <= now_ms - made_ms < NONCE_TTL_MS:
            return STALE
        if made_ms <= self._evicted_up_to_ms or not self._accept_count(
            values["nonce"], made_ms, count
        ):
            return STALE
        return AuthResult(200, values["username"])

    def _is_valid_digest(self, users: Users, parameters: AuthParameters, method: str) -> bool:
        """Whether the digest is that of a user; as much work for one whom we don't know."""
        values, algorithm = parameters.values, algorithm_of(parameters)
        if algorithm not in OFFERED or algorithm.hash_name not in users.hash_names:
            return False
        user = values["username"]
        decoy = hmac.digest(self._key, b"nobody" + user.encode(), "sha256").hex()
        known = users.secrets.get(user, {}).get(algorithm.hash_name)
        former = users.former.get(user, {}).get(algorithm.hash_name)
        terms = DigestInput(method, values["uri"], values["nonce"], values["nc"], values["cnonce"])
        is_equal = False
        for ha1 in (known or decoy, former or decoy):
            expected = make_response(algorithm, ha1, terms).encode()
            is_equal |= hmac.compare_digest(expected, values["response"].lower().encode())
        is_here = values["realm"] == users.realm
        is_ours = values.get("opaque", "") == self._opaque(users.realm)
        return is_equal and is_here and is_ours and known is not None

    def _accept_count(self, nonce: str, made_ms: int, count: int) -> bool:
        """Whether this count of a nonce of ours was not used before."""
        counts = self._counts.get(nonce)
        if counts is None:
            if len(self._counts) >= NONCES_MAX:
                self._evict_nonces()
            counts = self._counts[nonce] = _NonceCounts()
            self._made_ms[nonce] = made_ms
        return counts.accept(count)

    def _evict_nonces(self) -> None:
        """Makes room: the older half of the nonces is stale from now on."""
        ages = sorted(self._made_ms.values())
        self._evicted_up_to_ms = ages[len(ages) // 2]
        for nonce in [each for each, at in self._made_ms.items() if at <= self._evicted_up_to_ms]:
            del self._made_ms[nonce], self._counts[nonce]


def _parse_nonce_count(nc: str) -> int | None:
    """The number that 8 hexadecimal digits are, from 1 on; None for anything else."""
    if len(nc) != 8 or not all(digit in "0123456789abcdefABCDEF" for digit in nc):
        return None
    return int(nc, 16) or None


def path_of(target: str) -> str:
    """The path of a request's target, which is of the absolute form when a proxy is to see it."""
    for scheme in ("http://", "https://"):
        if target.lower().startswith(scheme):
            _, slash, path = target[len(scheme) :].partition("/")
            return slash + path
    return target


def _matches_target(uri: str, target: str) -> bool:
    """Whether a digest's uri is that of the request."""
    return uri in (target, path_of(target)) or path_of(uri) == target
