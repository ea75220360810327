"""The codec of the Garlic Farm wire: requests, responses, and their byte streams.

Integers are big endian. Ids are signed; other numbers are at most 2**63 - 1, because Java's are
signed. values.py has the layouts of entry values.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from struct import Struct
from typing import Generic, TypeVar

from ...errors import LocalProtocolError, RemoteProtocolError, TooLarge
from .messages import (
    ENTRIES_BYTES_MAX,
    ENTRIES_MAX,
    ID_MAX,
    ID_MIN,
    NUMBER_MAX,
    RESPONSE_TYPES,
    FarmLogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)
from .packed import PackedEntries, parse_packed

REQUEST_HEADER = Struct(">BiiqqqqI")  # 45 bytes
RESPONSE = Struct(">BiiqqB")  # 26 bytes
ENTRY_HEADER = Struct(">qBI")  # 13 bytes
REQUEST_TYPES = frozenset(RESPONSE_TYPES)
_RESPONSE_TYPES = frozenset(RESPONSE_TYPES.values())
_VALUE_TYPES = {int(value_type): value_type for value_type in ValueType}
_TYPES = {int(message_type): message_type for message_type in MessageType}

# Requests with log entries. Their entries stay packed, as the log stores them.
_LOG_ENTRY_REQUESTS = frozenset((MessageType.APPEND_ENTRIES, MessageType.CLIENT_REQUEST))

M = TypeVar("M", Request, Response)


def check_number(value: int) -> int:
    """Checks a term, an index or an offset. Raises LocalProtocolError if it is out of range."""
    if not 0 <= value <= NUMBER_MAX:
        raise LocalProtocolError(f"{value} is not a number from 0 to 2**63 - 1")
    return value


def check_id(value: int) -> int:
    """Checks a server id. Raises LocalProtocolError if it is out of range."""
    if not ID_MIN <= value <= ID_MAX:
        raise LocalProtocolError(f"{value} is not a signed 32-bit id")
    return value


def encode_entries(entries: Sequence[FarmLogEntry]) -> bytes:
    """Encodes log entries; decode_entries has the layout."""
    if isinstance(entries, PackedEntries):
        return entries.data
    parts: list[bytes] = []
    for term, value_type, value in entries:
        parts.append(ENTRY_HEADER.pack(check_number(term), value_type, len(value)))
        parts.append(value)
    return b"".join(parts)


def decode_entries(data: bytes) -> tuple[FarmLogEntry, ...]:
    """Decodes log entries that fill the data exactly (specification, "Log Entries").

     8 bytes  term
     1 byte   value type: 1 Application, 2 Configuration, 3 ClusterServer, 4 LogPack,
              5 SnapshotSyncRequest
     4 bytes  size of the value
     n bytes  value

    Raises RemoteProtocolError on an unknown type, a negative term, a value beyond the end of the
    data, or more than ENTRIES_MAX entries.
    """
    entries: list[FarmLogEntry] = []
    at, end = 0, len(data)
    while at < end:
        if end - at < ENTRY_HEADER.size:
            raise RemoteProtocolError(f"{end - at} bytes after the last entry")
        term, kind, size = ENTRY_HEADER.unpack_from(data, at)
        at += ENTRY_HEADER.size
        value_type = _VALUE_TYPES.get(kind)
        if value_type is None:
            raise RemoteProtocolError(f"unknown value type {kind}")
        if term < 0:
            raise RemoteProtocolError("an entry's term is 2**63 or more")
        if size > end - at:
            raise RemoteProtocolError(f"an entry of {size} bytes, but only {end - at} follow")
        if len(entries) == ENTRIES_MAX:
            raise TooLarge(f"more than {ENTRIES_MAX} entries in one request")
        entries.append(FarmLogEntry(term, value_type, data[at : at + size]))
        at += size
    return tuple(entries)


def encode_request(request: Request) -> bytes:
    """Encodes a request; RequestStream has the layout.

    Raises LocalProtocolError if the wire cannot carry a value.
    """
    message_type, source, destination, term, last_term, last_index, commit, entries = request
    assert message_type in REQUEST_TYPES, "a request has a request's type"
    data = encode_entries(entries)
    if len(data) > NUMBER_MAX >> 32:
        raise LocalProtocolError(f"entries of {len(data)} bytes in one request")
    header = REQUEST_HEADER.pack(
        message_type,
        check_id(source),
        check_id(destination),
        check_number(term),
        check_number(last_term),
        check_number(last_index),
        check_number(commit),
        len(data),
    )
    return header + data


def _decode_head(data: bytes) -> tuple[Request, int]:
    """A request without its entries, and their size."""
    kind, source, destination, term, last_term, last_index, commit, size = REQUEST_HEADER.unpack(
        data
    )
    message_type = _TYPES.get(kind)
    if message_type is None or message_type not in REQUEST_TYPES:
        raise RemoteProtocolError(f"message type {kind} is not a request")
    if min(term, last_term, last_index, commit) < 0:
        raise RemoteProtocolError("a number of a request is 2**63 or more")
    request = Request(message_type, source, destination, term, last_term, last_index, commit)
    return request, size


def encode_response(response: Response) -> bytes:
    """Encodes a response; decode_response has the layout.

    Raises LocalProtocolError if the wire cannot carry a value.
    """
    message_type, source, destination, term, next_index, is_accepted = response
    assert message_type in _RESPONSE_TYPES, "a response has a response's type"
    return RESPONSE.pack(
        message_type,
        check_id(source),
        check_id(destination),
        check_number(term),
        check_number(next_index),
        is_accepted,
    )


def decode_response(data: bytes) -> Response:
    """Decodes one response (specification, "Responses").

     1 byte   message type
     4 bytes  source id
     4 bytes  destination id; in some types the leader's id
     8 bytes  term
     8 bytes  next index
     1 byte   accepted: 0 or 1

    Raises RemoteProtocolError on another type or size, a number above 2**63 - 1, or another value
    of accepted.
    """
    if len(data) != RESPONSE.size:
        raise RemoteProtocolError(f"a response of {len(data)} bytes")
    kind, source, destination, term, next_index, accepted = RESPONSE.unpack(data)
    message_type = _TYPES.get(kind)
    if message_type is None or message_type not in _RESPONSE_TYPES:
        raise RemoteProtocolError(f"message type {kind} is not a response")
    if min(term, next_index) < 0:
        raise RemoteProtocolError("a number of a response is 2**63 or more")
    if accepted > 1:
        raise RemoteProtocolError(f"accepted is {accepted}")
    return Response(message_type, source, destination, term, next_index, accepted == 1)


class _MessageStream(ABC, Generic[M]):
    """Splits bytes into whole messages. It fails for good at the first malformed message."""

    __slots__ = ("_buffer", "_failed")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._failed = False

    def feed(self, data: bytes) -> list[M]:
        """Adds bytes; returns the messages that are now complete.

        Raises RemoteProtocolError when the stream is malformed. The stream is then unusable, and
        the messages before the malformed one are lost with the connection.
        """
        assert not self._failed, "a malformed stream is not read on"
        self._buffer += data
        found: list[M] = []
        try:
            while (message := self._next()) is not None:
                found.append(message)
        except RemoteProtocolError:
            self._failed = True
            self._buffer.clear()
            raise
        return found

    @abstractmethod
    def _next(self) -> M | None:
        """The next message, if complete. Raises RemoteProtocolError."""

    def _read(self, size: int) -> bytes | None:
        """The next bytes, once all have arrived."""
        if len(self._buffer) < size:
            return None
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data


class RequestStream(_MessageStream[Request]):
    """The stream that an acceptor reads (specification, "Request Header").

     1 byte   message type
     4 bytes  source id
     4 bytes  destination id
     8 bytes  term
     8 bytes  last log term
     8 bytes  last log index
     8 bytes  commit index
     4 bytes  size of the log entries, at most entries_bytes_max
     n bytes  log entries

    The header is checked before the stream buffers any entries. Raises RemoteProtocolError on
    another type or size, or a number above 2**63 - 1; TooLarge on larger entries.
    """

    __slots__ = ("_entries_bytes_max", "_head", "header")

    def __init__(self, entries_bytes_max: int = ENTRIES_BYTES_MAX) -> None:
        super().__init__()
        self._entries_bytes_max = entries_bytes_max
        self._head: tuple[Request, int] | None = None  # Without entries, and their size.
        self.header: Request | None = None  # The header that arrived last.

    @property
    def partial(self) -> tuple[int, int]:
        """Of an incomplete request: bytes received, and total size."""
        if self._head is None:
            return len(self._buffer), REQUEST_HEADER.size
        return REQUEST_HEADER.size + len(self._buffer), REQUEST_HEADER.size + self._head[1]

    def _next(self) -> Request | None:
        if self._head is None:
            header = self._read(REQUEST_HEADER.size)
            if header is None:
                return None
            head = _decode_head(header)
            self.header, size = head
            if size > self._entries_bytes_max:
                most = self._entries_bytes_max
                raise TooLarge(f"entries of {size} bytes, the limit is {most}")
            self._head = head
        request, size = self._head
        data = self._read(size)
        if data is None:
            return None
        self._head = None
        if not size:
            return request
        log_entries = parse_packed(data) if request.type in _LOG_ENTRY_REQUESTS else None
        return request._replace(
            entries=decode_entries(data) if log_entries is None else log_entries
        )


class ResponseStream(_MessageStream[Response]):
    """The stream that the opener of a connection reads."""

    __slots__ = ()

    def _next(self) -> Response | None:
        data = self._read(RESPONSE.size)
        return None if data is None else decode_response(data)
