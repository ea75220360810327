"""What a server shows of itself over HTTP: JSON, behind the same digest as the messages.

Paths stand beside the one of the messages; a connection carries one answer, and is closed.
"""

from http import HTTPStatus
from typing import NamedTuple, Protocol
from urllib.parse import parse_qsl

from ...errors import RemoteProtocolError
from .messages import NUMBER_MAX

ENTRIES_COUNT_DEFAULT = 100  # When a request does not say how many.
ENTRIES_COUNT_MAX = 1000
ENTRIES_VALUES_BYTES_MAX = 4 << 20  # Of values in one answer, unless the first alone is larger.
DOCUMENTS_BYTES_MAX = 16 << 20  # Of documents in one answer; those behind are left out.
METHODS = ("GET", "HEAD")
VIEW_NAMES = ("status", "documents", "entries", "configuration")
_QUERY_PARAMETERS = {
    "entries": {"from": (1, NUMBER_MAX), "count": (1, ENTRIES_COUNT_MAX), "raw": (0, 1)},
    "documents": {"id": (-(2**31), 2**31 - 1)},
}

Headers = list[tuple[bytes, bytes]]


class ViewRequest(NamedTuple):
    """What is to be shown: one of NAMES, the numbers of its query, and to whom."""

    name: str
    parameters: dict[str, int]
    user: str = ""


class StatusSource(Protocol):
    """Whoever knows what there is to show of one farm."""

    def render(self, view: ViewRequest) -> bytes:
        """The JSON, in UTF-8."""
        ...


def parse_view(name: str, query: str, user: str) -> ViewRequest:
    """What a request of somebody who was let in asks for; its path is known already.

    Raises RemoteProtocolError on what is none of the numbers that this view takes, and on one that
    stands there twice.
    """
    known = _QUERY_PARAMETERS.get(name, {})
    parameters: dict[str, int] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise RemoteProtocolError("a query is none") from None
    for key, value in pairs:
        if key not in known or key in parameters or not (value.isascii() and value.lstrip("-")):
            raise RemoteProtocolError(f"{name} takes no such {key!r}")
        if not value.removeprefix("-").isdigit() or len(value) > len(str(-NUMBER_MAX)):
            raise RemoteProtocolError(f"{key} is a number")
        smallest, largest = known[key]
        parameters[key] = int(value)
        if not smallest <= parameters[key] <= largest:
            raise RemoteProtocolError(f"{key} is {smallest} to {largest}")
    return ViewRequest(name, parameters, user)


def respond(
    status: int, body: bytes | None = None, more: Headers | None = None, is_head: bool = False
) -> bytes:
    """An answer behind which the connection is closed.

    body      JSON; None: the status alone, as any web server says it
    more      headers
    is_head   the body is only counted, as HEAD wants it
    """
    phrase = HTTPStatus(status).phrase.encode()
    is_json = body is not None
    body = phrase + b"\n" if body is None else body
    headers = [
        (b"Content-Type", b"application/json" if is_json else b"text/plain"),
        (b"Content-Length", b"%d" % len(body)),
        *(((b"Cache-Control", b"no-store"),) if is_json else ()),
        (b"Connection", b"close"),
        *(more or ()),
    ]
    lines = [b"HTTP/1.1 %d %s" % (status, phrase), *(b": ".join(each) for each in headers)]
    # Not by h11: it sends nothing on a connection on which it has read what is none of HTTP.
    return b"\r\n".join((*lines, b"", b"" if is_head else body))
