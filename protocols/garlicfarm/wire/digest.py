"""HTTP Digest authentication by RFC 7616 and RFC 2617: what both sides compute.

Only `qop=auth`, with MD5 and SHA-256, each also as `-sess`. authenticator.py verifies requests.
"""

import hashlib
import re
from typing import NamedTuple

from ...errors import RemoteProtocolError

PARAMETERS_MAX = 32  # Per header.
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?=,|$)')
_SCHEME = re.compile(rf"({_TOKEN})(?=\s|,|$)\s*")
_BETWEEN = re.compile(r"[\s,]*")
_ESCAPED = re.compile(r"\\(.)")


class Algorithm(NamedTuple):
    name: str  # Its name in headers.
    hash_name: str  # Its name in hashlib.
    is_session: bool  # A1 includes nonce and cnonce.


SHA_256 = Algorithm("SHA-256", "sha256", False)
MD5 = Algorithm("MD5", "md5", False)
# Strongest first.
ALGORITHMS = (
    SHA_256,
    Algorithm("SHA-256-sess", "sha256", True),
    MD5,
    Algorithm("MD5-sess", "md5", True),
)
_BY_NAME = {algorithm.name.upper(): algorithm for algorithm in ALGORITHMS}


class DigestInput(NamedTuple):
    """The request values that a digest covers."""

    method: str
    uri: str
    nonce: str
    nc: str  # 8 hexadecimal digits
    cnonce: str


class AuthParameters(NamedTuple):
    """A challenge or a response: its scheme and parameters, names in lower case."""

    scheme: str
    values: dict[str, str]


def algorithm_of(parameters: AuthParameters) -> Algorithm | None:
    """The named algorithm, MD5 by default; None if it is unknown."""
    return _BY_NAME.get(parameters.values.get("algorithm", MD5.name).upper())


def _hash(hash_name: str, text: str) -> str:
    return hashlib.new(hash_name, text.encode(), usedforsecurity=False).hexdigest()


def make_ha1(hash_name: str, user: str, realm: str, password: str) -> str:
    """H(user:realm:password) in hexadecimal digits, as password files hold it."""
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
    """Parses a WWW-Authenticate header, which may hold several challenges, or an Authorization
    header.

    Raises RemoteProtocolError if it is not `scheme name=value, ...` in UTF-8, repeats a name, or
    has more than PARAMETERS_MAX parameters.
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
                raise RemoteProtocolError(
                    f"parameter {name} is repeated, or there are over {PARAMETERS_MAX}"
                )
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
