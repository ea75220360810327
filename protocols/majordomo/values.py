"""The numbers of the broker's three framings: headers, commands, limits, times, error codes. It
knows no message (docs/protocols/majordomo.md)."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from ..errors import LocalProtocolError


class Framing(IntEnum):
    """How a client or a worker writes its commands."""

    TEXT = 0  # The text's, with request ids.
    MDP01 = 1  # RFC 7: an empty frame before the header.
    MDP02 = 2  # RFC 18.


class Side(IntEnum):
    """Whose command it is."""

    CLIENT = 0
    WORKER = 1


class Headers(NamedTuple):
    """What the text's commands begin with; the text gives no value."""

    client: bytes = b"KLKC01"
    worker: bytes = b"KLKW01"
    deadline: bytes = b"KLKD01"  # Ours: of a client's REQUEST that says how much time it has.
    named: bytes = b"KLKN01"  # Ours: of a client that says that, credit for parts, and its name.


HEADERS = Headers()
MDPC01 = b"MDPC01"
MDPW01 = b"MDPW01"
MDPC02 = b"MDPC02"
MDPW02 = b"MDPW02"
MDP_HEADERS = frozenset((MDPC01, MDPW01, MDPC02, MDPW02))

# Clients, in the text's framing and that of MDP/0.2; MDP/0.1 has no command frame.
CLIENT_REQUEST = b"\x01"
CLIENT_PARTIAL = b"\x02"
CLIENT_FINAL = b"\x03"
# Ours, behind the named header: credit for more parts, and that nobody waits any more.
CLIENT_CREDIT = b"\x04"
CLIENT_CANCEL = b"\x05"
# Ours, to clients that gave credit: PARTIAL and FINAL with their place; and a sign of life.
CLIENT_PART = b"\x04"
CLIENT_END = b"\x05"
CLIENT_ALIVE = b"\x06"
# Workers, in all three.
READY = b"\x01"
REQUEST = b"\x02"
# The text's and MDP/0.2's.
PARTIAL = b"\x03"
FINAL = b"\x04"
DISCONNECT = b"\x06"
HEARTBEAT = b"\x05"  # MDP/0.2 alone: the text has PING.
# MDP/0.1's.
REPLY_01 = b"\x03"
HEARTBEAT_01 = b"\x04"
DISCONNECT_01 = b"\x05"
# The text's.
PING = b"PING"
PONG = b"PONG"
# The fourth frame of our READY: requests shall say how much of their time is left.
DEADLINES = b"D"
# Ours, of a worker: READY of one that knows deadlines and the next two; to it: credit for more
# parts of an answer, and that nobody waits for that any more.
READY_CREDIT = b"\x07"
CREDIT = b"\x07"
CANCEL = b"\x08"

HEADER_BYTES_MAX = 255
SERVICE_BYTES_MAX = 255
REQUEST_ID_BYTES_MAX = 255
ADDRESS_BYTES_MAX = 255  # Of a client, as a ROUTER names it.
WINDOW_MAX = 65_535
WINDOW_BYTES = 2  # Big-endian.
REMAINING_BYTES = 8  # Milliseconds, big-endian.
REMAINING_MS_UNKNOWN = (1 << 64) - 1  # For a worker that asked: nobody set a deadline.
CREDIT_BYTES = 8  # Octets of parts, big-endian.
CREDIT_UNLIMITED = (1 << 64) - 1  # To a worker: its client takes parts as they come, or none.
PART_COST = 8192  # Credit that a part takes besides its octets: so their number is bounded, too.
PART_POSITION_BYTES = 8  # Of a part: run and number, 4 octets each, big-endian.
NAME_BYTES_MAX = 255  # Of a client; the first octet is not 0.
PRINTABLE_MIN, PRINTABLE_MAX = 0x20, 0x7E  # Octets of a service's name.

INTERVAL_MS = 2500  # Of PING and HEARTBEAT.
LIVENESS = 4  # Silent for so many of them: disconnected.
REQUEST_TTL_MS = 60_000

# Services that the broker keeps for itself (RFC 8, RFC 9, and ours).
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
OWN = b"klk."  # Ours: what the broker has to say of itself.
OWN_SERVICES = b"klk.services"
OWN_WORKERS = b"klk.workers"
OWN_FEATURES = b"klk.features"  # Answered with a frame for each thing beyond the text it knows.
FEATURE_NAMED = b"named"  # Requests of KLKN01, with all that belongs to them.
OWN_ROWS_MAX = 1000  # In one answer; who wants more asks again, behind the last one.
RESERVED = (MMI, TITANIC, OWN)
MMI_FOUND = b"200"
MMI_NOT_FOUND = b"404"
MMI_NOT_IMPLEMENTED = b"501"

# An answer of these two frames, and no more, says that the request failed.
ERROR_MARK = b"KLK-ERROR"
ERROR_FRAMES = 2
ERROR_BYTES_MAX = 4096  # Of the second one.
ERROR_TEXT_BYTES_MAX = 1024
# Its codes.
BUSY = 429  # This client has too many requests in work, or the service has too many queued.
TOO_LARGE = 413  # Of a durable request, or its answers: more than is kept.
CANCELLED = 499  # Nobody waits for it any more: our workers say so, and nobody hears it.
FAILED = 500  # The worker's program did: our workers say so.
EXPIRED = 504  # No worker took it, or finished it, in time.
LOST = 507  # A part of the answer was dropped: its client left too much unread.


def check_headers(headers: Headers) -> None:
    """Raises LocalProtocolError when the framings could not be told apart."""
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
    """Whether this is a service's name: 1 to 255 printable octets of ASCII, blanks included."""
    # Python calls the same octets of ASCII printable: PRINTABLE_MIN to PRINTABLE_MAX.
    return 0 < len(name) <= SERVICE_BYTES_MAX and name.isascii() and name.decode().isprintable()


def is_name(name: bytes) -> bool:
    """Whether a client can be called so: 1 to 255 octets, the first one not 0."""
    return 0 < len(name) <= NAME_BYTES_MAX and name[0] != 0


def part_cost(body: Sequence[bytes]) -> int:
    """The credit that a part takes."""
    return PART_COST + sum(map(len, body))
