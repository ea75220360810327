"""Certificates: files with a CURVE key, in the format of czmq and pyzmq (ZeroMQ RFC 4, ZPL).

    metadata
        name = "orders"
        grants = "log.read tables:7-9:rw"
    curve
        public-key = "40 characters of Z85"
        secret-key = "40 characters of Z85"

A public certificate has no secret-key. The caller reads and writes the files.
"""

import base64
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ..errors import ProtocolError

FILE_BYTES_MAX = 16 << 10
KEY_BYTES = 32
NAME_BYTES_MAX = 128

# Z85 (ZeroMQ RFC 32) and Python's base 85 differ in their digits alone.
_PYTHON = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_FROM_PYTHON, _TO_PYTHON = bytes.maketrans(_PYTHON, _Z85), bytes.maketrans(_Z85, _PYTHON)
_KEY = re.compile(rf"[{re.escape(_Z85.decode())}]{{40}}")
_NAME = re.compile(rf"[\w][\w.@-]{{0,{NAME_BYTES_MAX - 1}}}", re.ASCII)
_VALUE = re.compile(
    r"""\s+([\w.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'#]+))\s*(?:#.*)?""", re.ASCII
)
_SECTIONS = ("metadata", "curve")


class CertificateError(ProtocolError):
    """A malformed certificate. Names the line if one is wrong, and no part of a secret key."""


class Certificate(NamedTuple):
    """A CURVE key and what its file says about it.

    public_key, secret_key   32 bytes; secret_key is empty in a public certificate
    metadata                 by name; `name` is the key's name
    """

    public_key: bytes
    secret_key: bytes = b""
    metadata: Mapping[str, str] = MappingProxyType({})

    @property
    def name(self) -> str:
        return self.metadata.get("name", "")

    def __repr__(self) -> str:  # Without the secret key, which tracebacks and logs would show.
        return f"Certificate({encode_key(self.public_key)!r}, name={self.name!r})"


def encode_key(key: bytes) -> str:
    """A key as 40 characters of Z85."""
    return base64.b85encode(key).translate(_FROM_PYTHON).decode()


def decode_key(text: str) -> bytes:
    """The 32 bytes of 40 characters of Z85. Raises CertificateError."""
    if _KEY.fullmatch(text):
        try:
            return base64.b85decode(text.encode().translate(_TO_PYTHON))
        except ValueError:
            pass  # Five characters can exceed 32 bits.
    raise CertificateError("a key has 40 characters of Z85")


def check_name(name: str) -> str:
    """Returns a valid name of a key. Raises CertificateError."""
    if not _NAME.fullmatch(name):
        raise CertificateError(
            f"a key's name has 1 to {NAME_BYTES_MAX} of the characters A-Z a-z 0-9 . _ @ -, "
            "and begins with a letter or digit"
        )
    return name


def parse_certificate(text: str) -> Certificate:
    """Parses a file. Raises CertificateError."""
    if len(text) > FILE_BYTES_MAX:
        raise CertificateError(f"a certificate has at most {FILE_BYTES_MAX} bytes")
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    section: dict[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line[0].isspace():
            section = sections.get(line.strip())
            continue  # Other sections belong to others.
        if section is None:
            continue
        found = _VALUE.fullmatch(line)
        if found is None:
            raise CertificateError(f'line {number}: expected name = "value"')
        if found[1] in section:
            raise CertificateError(f"line {number}: {found[1]} stands twice")
        section[found[1]] = next(value for value in found.groups()[1:] if value is not None)
    keys = sections["curve"]
    if "public-key" not in keys:
        raise CertificateError("it has no public-key in a section curve")
    metadata = sections["metadata"]
    check_name(metadata.get("name", ""))
    secret = keys.get("secret-key")
    return Certificate(
        decode_key(keys["public-key"]), decode_key(secret) if secret else b"", metadata
    )


def format_certificate(certificate: Certificate) -> str:
    """The text of a file. Raises CertificateError if a value can't stand in it."""
    lines = ["metadata"]
    for name, value in certificate.metadata.items():
        if '"' in value or not value.isprintable():
            raise CertificateError(f"{name}: {value!r} can't stand in a certificate")
        lines.append(f'    {name} = "{value}"')
    lines += ["curve", f'    public-key = "{encode_key(certificate.public_key)}"']
    if certificate.secret_key:
        lines.append(f'    secret-key = "{encode_key(certificate.secret_key)}"')
    return "\n".join([*lines, ""])
