"""Errors of refused requests, and whether their clients wait for an answer."""

from ..wire import requests, values
from ..wire.codec import error_code
from ..wire.requests import Request, RequestError

SYNC_FLAGS = values.PARTSYNC | values.FULLSYNC


class FencedError(RequestError):
    """The retry fence refuses the request for now."""


class UnacknowledgedError(RequestError):
    """The client gets this error even if the request is otherwise acknowledged at once."""


def refusal_of(request: Request, text: str) -> RequestError:
    request_type = requests.type_of(request)
    return RequestError(request_type, error_code(request_type), text, request.extension)


def not_open(table: int) -> str:
    return f"table {table} is not open; open it first (0x01)"


def mixed_batch(request: Request, text: str) -> RequestError:
    return unacknowledged(request, f"{text}; one batch can't hold them")


def unacknowledged(request: Request, text: str) -> RequestError:
    return UnacknowledgedError(requests.type_of(request), values.ERROR, text, request.extension)


def is_acknowledged_first(request_type: int, header: bytes) -> bool:
    """Whether the server acknowledges a write before it is done: writes of the specification
    without a sync flag. WRITE_TABLES (0x24) ignores PARTSYNC."""
    if request_type == values.WRITE_TABLES:
        return not header[3:4] or not header[3] & values.FULLSYNC
    if request_type not in values.WRITE_TYPES or request_type > values.WRITE_TABLES:
        return False
    return not header[3:4] or not header[3] & SYNC_FLAGS
