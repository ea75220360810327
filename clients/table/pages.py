"""Pages and chunks of a scan, and what is left of the scan after each."""

from types import ModuleType
from typing import Any, NamedTuple

from ...protocols.zerodb.wire import answers, requests
from ...protocols.zerodb.wire.answers import Answer
from ...protocols.zerodb.wire.values import NO_MORE_DATA, PACKED
from ..errors import TableError
from .arguments import Range, behind_key


class ScanQuery(NamedTuple):
    """The range to read, and how."""

    range: Range
    reverse: bool = False
    limit: int | None = None
    keys_only: bool = False


class Page(NamedTuple):
    """The part of a scan that one response brings."""

    content: list[Any]  # Pairs, or a record batch.
    size: int  # Number of pairs.
    resume: bytes  # The next start key (reverse: end key); empty: nothing is left.


def pairs_of(answer: Answer, request: requests.Scan | requests.ClientData) -> Page:
    """A page or chunk as a list of (key, value). Raises RemoteProtocolError."""
    if answer.code == NO_MORE_DATA and not answer.frames:
        return Page([], 0, b"")  # The end of a job, or the answer to an unknown one.
    is_scan = isinstance(request, requests.Scan)
    keys, found, resume = (answers.SCAN if is_scan else answers.CHUNK).decode(answer, request)
    packed = request.extension.flags & PACKED
    if not packed and isinstance(request, requests.Scan) and len(keys) == request.limit != 0:
        resume = keys[-1] + b"\0"
    return Page([*zip(keys, found, strict=True)], len(keys), resume)


def keys_of(answer: Answer, request: requests.Scan | requests.ClientData) -> Page:
    """A page as a list of keys. Raises RemoteProtocolError."""
    page = pairs_of(answer, request)
    return page._replace(content=[key for key, _ in page.content])


def arrow() -> ModuleType:
    """The module that needs pyarrow. Raises TableError."""
    try:
        from . import arrow
    except ImportError as error:
        raise TableError("Arrow needs pyarrow: pip install 'kelek[arrow]'") from error
    return arrow


def typed() -> ModuleType:
    """The module of typed rows, which needs pyarrow. Raises TableError."""
    arrow()
    from .typed import rows

    return rows


def after(page: Page, asked: ScanQuery) -> ScanQuery | None:
    """The rest of a query after a page; None: nothing is left."""
    start, end = asked.range
    bounds = Range(start, page.resume) if asked.reverse else Range(page.resume, end)
    limit = None if asked.limit is None else asked.limit - page.size
    left = asked._replace(range=bounds, limit=limit)
    return left if page.resume and has_more(left) else None


def behind(content: list[Any], asked: ScanQuery) -> ScanQuery:
    """The rest of a query after a chunk of pairs, or of record batches."""
    last = content[-1]
    key = last[0] if isinstance(last, tuple) else last.column(0)[-1].as_py()
    start = behind_key(key)
    # No key follows: an empty range, for which no job starts.
    bounds = Range(start, asked.range.end) if start else Range(key, key)
    return asked._replace(range=bounds)


def has_more(asked: ScanQuery) -> bool:
    return not asked.range.empty and asked.limit != 0
