"""HTTP Digest authentication, RFC 7616 and RFC 2617 before it: what both sides work out.

Only `qop=auth`, and only MD5 and SHA-256, each also as `-sess`. authenticator.py verifies.
"""

import hashlib
import re
from typing import NamedTuple

from ...errors import RemoteProtocolError

PARAMETERS_MAX = 32  # In one header.
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?=,|$)')
_SCHEME = re.compile(rf"({_TOKEN})(?=\s|,|$)\s*")
_BETWEEN = re.compile(r"[\s,]*")
_ESCAPED = re.compile(r"\\(.)")


class Algorithm(NamedTuple):
    """One way to work out a digest."""

    name: str  # As it stands in headers.
    hash_name: str  # hashlib's.
    is_session: bool  # A1 takes nonce and cnonce in.


SHA_256 = Algorithm("SHA-256", "sha256", False)
MD5 = Algorithm("MD5", "md5", False)
# The strongest first.
ALGORITHMS = (
    SHA_256,
    Algorithm("SHA-256-sess", "sha256", True),
    MD5,
    Algorithm("MD5-sess", "md5", True),
)
_BY_NAME = {algorithm.name.upper(): algorithm for algorithm in ALGORITHMS}


class DigestInput(NamedTuple):
    """What a digest is about."""

    method: str
    uri: str
    nonce: str
    nc: str  # 8 hexadecimal digits
    cnonce: str


class AuthParameters(NamedTuple):
    """A challenge, or the answer to one: a scheme and its parameters, names in lower case."""

    scheme: str
    values: dict[str, str]


def algorithm_of(parameters: AuthParameters) -> Algorithm | None:
    """The algorithm that is named, MD5 when none is, or None for one that is not known here."""
    return _BY_NAME.get(parameters.values.get("algorithm", MD5.name).upper())


def _hash(hash_name: str, text: str) -> str:
    return hashlib.new(hash_name, text.encode(), usedforsecurity=False).hexdigest()


def make_ha1(hash_name: str, user: str, realm: str, password: str) -> str:
    """H(user:realm:password) in hexadecimal digits: what password files hold."""
    return _hash(hash_name, f"{user}:{realm}:{password}")


def make_response(algorithm: Algorithm, ha1: str, terms: DigestInput) -> str:
    """The digest for `qop=auth` (RFC 7616, section 3.4.1)."""
    hash_name = algorithm.hash_name
    if algorithm.is_session:
        ha1 = _hash(hash_name, f"{ha1}:{terms.nonce}:{terms.cnonce}")
    ha2 = _hash(hash_name, f"{terms.method}:{terms.uri}")
    return _hash(hash_name, f"{ha1}:{terms.nonce}:{terms.nc}:{terms.cnonce}:auth:{ha2}")


def quoted(value: str) -> str:
    """A quoted-string (RFC 7230, section 3.2.6)."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_parameters(header: bytes) -> list[AuthParameters]:
    """Takes a WWW-Authenticate or Authorization header apart; the former may hold several.

    Raises RemoteProtocolError on what is not of the form `scheme name=value, ...`, a name that
    stands there twice, more than PARAMETERS_MAX of them, or a text that is not UTF-8.
    """
    try:
        text = header.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("an authentication header is not UTF-8") from None
    found: list[AuthParameters] = []
    count = 0
    at = _match_end(_BETWEEN, text, 0)
    while at < len(text):
        parameter = _PARAMETER.match(text, at)
        if parameter and found:
            name = parameter[1].lower()
            if name in found[-1].values or count == PARAMETERS_MAX:
                raise RemoteProtocolError(f"{name} stands twice, or behind too many others")
            in_quotes, bare = parameter[2], parameter[3]
            value = bare if in_quotes is None else _ESCAPED.sub(r"\1", in_quotes)
            found[-1].values[name] = value
            count += 1
            at = parameter.end()
        else:
            scheme = _SCHEME.match(text, at)
            if scheme is None or len(found) == PARAMETERS_MAX:
                raise RemoteProtocolError("an authentication header is malformed")
            found.append(AuthParameters(scheme[1].lower(), {}))
            at = scheme.end()
        at = _match_end(_BETWEEN, text, at)
    if not found:
        raise RemoteProtocolError("an authentication header is empty")
    return found


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
