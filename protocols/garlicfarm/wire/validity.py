"""When a TLS certificate expires: its notAfter (RFC 5280, section 4.1.2.5), from PEM.

Python's ssl shows the certificates of connections only, and its own files may expire unseen.
"""

import re
from base64 import b64decode
from calendar import timegm
from collections.abc import Iterator

from ...errors import RemoteProtocolError

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----([^-]*)-----END CERTIFICATE-----")
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0
_TIME = re.compile(rb"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z")


def expires_ms(pem: str) -> int:
    """When the first of these certificates expires, in ms since the epoch.

    Raises RemoteProtocolError if there is none, or one is malformed.
    """
    try:
        times = [_not_after_s(b64decode(found[1])) for found in _PEM.finditer(pem)]
        return min(times) * 1000
    except (ValueError, IndexError) as error:
        raise RemoteProtocolError(f"no certificate: {error}") from None


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements of a DER value: tag and content. Raises ValueError, IndexError."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + size > len(data):
            raise ValueError("it is cut off")
        yield tag, data[at : at + size]
        at += size


def _not_after_s(der: bytes) -> int:
    """Raises ValueError, IndexError."""
    ((_, certificate),) = _elements(der)
    _, signed = next(_elements(certificate))
    fields = [field for field in _elements(signed) if field[0] != _VERSION]
    tag, validity = fields[3]  # After serial number, algorithm and issuer.
    if tag != _SEQUENCE:
        raise ValueError("it has no validity")
    _, (kind, text) = _elements(validity)
    if kind == _UTC_TIME:  # Two digits of the year: 1950 to 2049.
        text = (b"20" if text < b"5" else b"19") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("its end is no time")
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("its end is no time")
    return timegm((*map(int, found.groups()), 0, 0, 0))
