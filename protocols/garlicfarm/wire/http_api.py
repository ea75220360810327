"""The HTTP API of a farm server: JSON views behind the same Digest authentication as the messages.

The views' paths are siblings of the messages' path. A connection carries one answer.
"""

from http import HTTPStatus
from typing import NamedTuple, Protocol
from urllib.parse import parse_qsl

from ...errors import RemoteProtocolError
from .messages import NUMBER_MAX

ENTRIES_COUNT_DEFAULT = 100  # If the request has no count.
ENTRIES_COUNT_MAX = 1000
ENTRIES_VALUES_BYTES_MAX = 4 << 20  # Values in one answer; the first value may exceed it alone.
DOCUMENTS_BYTES_MAX = 16 << 20  # Documents in one answer; later ones are null.
METHODS = ("GET", "HEAD")
VIEW_NAMES = ("status", "documents", "entries", "configuration")
_QUERY_PARAMETERS = {
    "entries": {"from": (1, NUMBER_MAX), "count": (1, ENTRIES_COUNT_MAX), "raw": (0, 1)},
    "documents": {"id": (-(2**31), 2**31 - 1)},
}

Headers = list[tuple[bytes, bytes]]


class ViewRequest(NamedTuple):
    """A view of VIEW_NAMES, its query parameters, and the user who asks."""

    name: str
    parameters: dict[str, int]
    user: str = ""


class StatusSource(Protocol):
    """Renders the views of one farm."""

    def render(self, view: ViewRequest) -> bytes:
        """The JSON of a view, UTF-8."""
        ...


def parse_view(name: str, query: str, user: str) -> ViewRequest:
    """Parses the query of an authenticated request whose path names a view.

    Raises RemoteProtocolError on an unknown, repeated or malformed parameter.
    """
    known = _QUERY_PARAMETERS.get(name, {})
    parameters: dict[str, int] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise RemoteProtocolError("the query is malformed") from None
    for key, value in pairs:
        if key not in known or key in parameters or not (value.isascii() and value.lstrip("-")):
            raise RemoteProtocolError(
                f"{name} has no parameter {key!r}, or it is repeated or empty"
            )
        if not value.removeprefix("-").isdigit() or len(value) > len(str(-NUMBER_MAX)):
            raise RemoteProtocolError(f"{key} must be a number")
        smallest, largest = known[key]
        parameters[key] = int(value)
        if not smallest <= parameters[key] <= largest:
            raise RemoteProtocolError(f"{key} must be {smallest} to {largest}")
    return ViewRequest(name, parameters, user)


def respond(
    status: int,
    body: bytes | None = None,
    more: Headers | None = None,
    is_head: bool = False,
    content_type: bytes = b"application/json",
) -> bytes:
    """An HTTP response after which the connection closes.

    body           None: the status text alone
    more           extra headers
    is_head        omits the body but keeps its Content-Length
    content_type   of the body
    """
    phrase = HTTPStatus(status).phrase.encode()
    has_body = body is not None
    body = phrase + b"\n" if body is None else body
    headers = [
        (b"Content-Type", content_type if has_body else b"text/plain"),
        (b"Content-Length", b"%d" % len(body)),
        *(((b"Cache-Control", b"no-store"),) if has_body else ()),
        (b"Connection", b"close"),
        *(more or ()),
    ]
    lines = [b"HTTP/1.1 %d %s" % (status, phrase), *(b": ".join(each) for each in headers)]
    # h11 sends nothing on a connection whose input was not HTTP.
    return b"\r\n".join((*lines, b"", b"" if is_head else body))
