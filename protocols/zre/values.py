"""Constants of ZRE: signatures, commands, limits, times (docs/protocols/zre.md), and the error for
malformed input."""

from enum import Enum, IntEnum
from typing import NamedTuple

from ..errors import RemoteProtocolError

UUID_BYTES = 16


class Version(IntEnum):
    """How a node encodes its messages. Only its routing id tells it, never later bytes."""

    V1 = 1  # RFC 20.
    V2 = 2  # RFC 36, the version of living nodes.


class CommandKind(IntEnum):
    """The octet of a command, in both versions."""

    HELLO = 1
    WHISPER = 2
    SHOUT = 3
    JOIN = 4
    LEAVE = 5
    PING = 6
    PING_OK = 7


SIGNATURE = b"\xaa\xa1"
# A DEALER's routing id: in v1 the UUID, in v2 the octet 01 and the UUID.
V2_ROUTING_PREFIX = b"\x01"

# Limits for received messages; the wire allows 255 octets a string and 2^32 - 1 a long string.
STRING_BYTES_MAX = 255
COUNT_V1_MAX = 255  # Groups or headers of a v1 HELLO.
GROUPS_MAX = 4096
HEADERS_MAX = 1024
HEADER_BYTES_MAX = 65_536  # Of one v2 value; in v1 name, `=` and value share 255 octets.
HELLO_BYTES_MAX = 1 << 20
CONTENT_FRAMES_MAX = 1024
MESSAGE_BYTES = 1 << 20  # The default limit of a message ...
MESSAGE_BYTES_MAX = 64 << 20  # ... and the largest that a user can set.
SEQUENCES = 1 << 16
STATUSES = 1 << 8

BEACON_PORT = 5670  # UDP; RFC 20 leaves it to IANA.
# RFC 20: a mailbox is in C000 to FFFF. Linux's ephemeral ports end at 60999.
MAILBOX_BIND_MIN, MAILBOX_BIND_MAX = 61_000, 65_535

PEERS_MAX = 1000
SEND_HWM = 3000  # RFC 20's example: 100 messages a second for 30 s.


class Times(NamedTuple):
    """Milliseconds."""

    beacon_ms: int = 1000  # Between beacons; a new peer is answered by another one at once.
    greet_wait_ms: int = 500  # A foreign node may greet first for this time, in its version.
    evasive_ms: int = 5000  # After this silence a node sends PING, and again after each such time.
    silent_ms: int = 10_000  # After this silence the user gets a SILENT event.
    expired_ms: int = 30_000  # After this silence the peer is removed.


TIMES = Times()
ANSWER_BEACON_MS = 20  # Between beacons that answer new peers.


class Reason(Enum):
    """Why input was discarded: the counter's name."""

    SHORT = "short"  # It ends within a field, or lacks frames behind the routing id.
    SIGNATURE = "signature"
    VERSION = "version"
    COMMAND = "command"  # An unknown command.
    TRAILING = "trailing"  # Octets or frames behind the end of a command.
    TEXT = "text"  # Not UTF-8, or unprintable characters.
    LIMIT = "limit"  # Above one of the limits.
    ADDRESS = "address"  # An invalid endpoint, or not the sender's.
    ROUTING_ID = "routing_id"
    KEY = "key"  # No CURVE key, or not that of the connection.


class Malformed(RemoteProtocolError):
    """The input is discarded silently and counted by its reason."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


# ---- ZRE/LOG ----

LOG_SIGNATURE = b"\xaa\xa2"
LOG_COMMAND = 1


class Level(IntEnum):
    ERROR = 1
    WARNING = 2
    INFO = 3


class LogEvent(IntEnum):
    JOIN = 1
    LEAVE = 2
    ENTER = 3
    EXIT = 4
