"""Constants of the broker's three framings: headers, commands, limits, times, error codes
(docs/protocols/majordomo.md)."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Self

from ..errors import LocalProtocolError


class Framing(IntEnum):
    """How a client or a worker encodes its commands."""

    TEXT = 0  # The specification's, with request ids.
    MDP01 = 1  # RFC 7: an empty frame before the header.
    MDP02 = 2  # RFC 18.


class Headers(NamedTuple):
    """The headers of the specification's framing, which defines no values for them."""

    client: bytes = b"KLKC01"
    worker: bytes = b"KLKW01"
    deadline: bytes = b"KLKD01"  # Extension: a client's REQUEST with its remaining time.
    named: bytes = b"KLKN01"  # Extension: a client's with remaining time, credit and its name.

    @classmethod
    def of(cls, settings: object) -> Self:
        """The headers of a topology's section `broker`: client_header, worker_header, ..."""
        return cls(*(getattr(settings, f"{field}_header").encode() for field in cls._fields))


HEADERS = Headers()
MDPC01 = b"MDPC01"
MDPW01 = b"MDPW01"
MDPC02 = b"MDPC02"
MDPW02 = b"MDPW02"
MDP_HEADERS = frozenset((MDPC01, MDPW01, MDPC02, MDPW02))

# Clients, in the specification's framing and MDP/0.2; MDP/0.1 has no command frame.
CLIENT_REQUEST = b"\x01"
CLIENT_PARTIAL = b"\x02"
CLIENT_FINAL = b"\x03"
# Extension, behind the named header: credit for parts, and cancellation.
CLIENT_CREDIT = b"\x04"
CLIENT_CANCEL = b"\x05"
# Extension, to clients that gave credit: PARTIAL and FINAL with their position; a sign of life.
CLIENT_PART = b"\x04"
CLIENT_END = b"\x05"
CLIENT_ALIVE = b"\x06"
# Workers, in all framings.
READY = b"\x01"
REQUEST = b"\x02"
# The specification and MDP/0.2.
PARTIAL = b"\x03"
FINAL = b"\x04"
DISCONNECT = b"\x06"
HEARTBEAT = b"\x05"  # MDP/0.2; the specification has PING.
# MDP/0.1.
REPLY_01 = b"\x03"
HEARTBEAT_01 = b"\x04"
DISCONNECT_01 = b"\x05"
# The specification.
PING = b"PING"
PONG = b"PONG"
# The fourth frame of READY (extension): the worker wants each request's remaining time.
DEADLINES = b"D"
# Extensions of workers: READY of a worker that knows deadlines, credit and cancellation; and the
# two commands to it.
READY_CREDIT = b"\x07"
BUNDLES = b"B"  # Its fourth frame: the worker accepts bundles.
CREDIT = b"\x07"
CANCEL = b"\x08"

HEADER_BYTES_MAX = 255
SERVICE_BYTES_MAX = 255
REQUEST_ID_BYTES_MAX = 255
ADDRESS_BYTES_MAX = 255  # Of a client, as a ROUTER names it.
WINDOW_MAX = 65_535
REMAINING_BYTES = 8  # Milliseconds, big-endian.
REMAINING_MS_UNKNOWN = (1 << 64) - 1  # To a worker that wants it: the client has no deadline.
CREDIT_BYTES = 8  # Octets of parts, big-endian.
CREDIT_UNLIMITED = (1 << 64) - 1  # To a worker: the client accepts all parts, or none.
# The credit that each part costs besides its octets, which bounds the number of parts.
PART_COST = 8192
NAME_BYTES_MAX = 255  # Of a client; the first octet is not 0.
PRINTABLE_MIN, PRINTABLE_MAX = 0x20, 0x7E  # Octets of a service's name.

INTERVAL_MS = 2500  # Between PINGs, and between HEARTBEATs.
LIVENESS = 4  # After so many silent intervals a peer is disconnected.
REQUEST_TTL_MS = 60_000

# Services of the broker itself (RFC 8, RFC 9, and kelek's).
MMI = b"mmi."
MMI_SERVICE = b"mmi.service"
TITANIC = b"titanic."
TITANIC_REQUEST = b"titanic.request"
TITANIC_REPLY = b"titanic.reply"
TITANIC_CLOSE = b"titanic.close"
TITANIC_OK = b"200"
TITANIC_PENDING = b"300"
TITANIC_UNKNOWN = b"400"
TITANIC_FAILED = b"500"
TITANIC_NOT_DURABLE = b"501"
OWN = b"klk."  # Kelek's services, about the broker.
OWN_SERVICES = b"klk.services"
OWN_WORKERS = b"klk.workers"
OWN_FEATURES = b"klk.features"  # The answer has a frame for each extension that the broker knows.
FEATURE_NAMED = b"named"  # Requests of KLKN01 and their extensions.
FEATURE_BUNDLES = b"bundles"  # Bundles; a client that accepts them says so in its question.
OWN_ROWS_MAX = 1000  # Of one answer; a client asks for the next rows after the last one.
RESERVED = (MMI, TITANIC, OWN)
MMI_FOUND = b"200"
MMI_NOT_ALLOWED = b"403"
MMI_NOT_FOUND = b"404"
MMI_NOT_IMPLEMENTED = b"501"

# An answer of exactly these two frames is an error.
ERROR_MARK = b"KLK-ERROR"
ERROR_FRAMES = 2
ERROR_BYTES_MAX = 4096  # Of the second frame.
ERROR_TEXT_BYTES_MAX = 1024
# The codes of errors.
NOT_ALLOWED = 403  # The client's key has no grant for it.
BUSY = 429  # Too many requests of this client, or of this service.
TOO_LARGE = 413  # A durable request or its answers exceed the limit.
CANCELLED = 499  # The client withdrew the request; workers answer so, and the answer is dropped.
FAILED = 500  # The worker's program failed.
EXPIRED = 504  # No worker accepted or finished the request in time.
LOST = 507  # A part of the answer was dropped, because its client left too much unread.


def check_headers(headers: Headers) -> None:
    """Raises LocalProtocolError if the headers do not distinguish the framings."""
    for header in headers:
        if not 0 < len(header) <= HEADER_BYTES_MAX:
            raise LocalProtocolError(
                f"a header has 1 to {HEADER_BYTES_MAX} octets, got {len(header)}"
            )
        if header in MDP_HEADERS:
            raise LocalProtocolError(f"the header {header.decode()} is MDP's own")
    if len(set(headers)) < len(headers):
        raise LocalProtocolError(f"two headers are the same: {headers}")


def is_service(name: bytes) -> bool:
    """Whether this is a valid service name: 1 to 255 printable octets of ASCII, spaces included."""
    # Python's isprintable() accepts the same octets: PRINTABLE_MIN to PRINTABLE_MAX.
    return 0 < len(name) <= SERVICE_BYTES_MAX and name.isascii() and name.decode().isprintable()


def is_name(name: bytes) -> bool:
    """Whether this is a valid client name: 1 to 255 octets, the first one not 0."""
    return 0 < len(name) <= NAME_BYTES_MAX and name[0] != 0


def part_cost(body: Sequence[bytes]) -> int:
    """The credit that a part costs."""
    return PART_COST + sum(map(len, body))
