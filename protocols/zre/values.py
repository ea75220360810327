"""The numbers of ZRE: signatures, commands, limits, times. It knows no message
(docs/protocols/zre.md)."""

from enum import Enum, IntEnum
from typing import NamedTuple

UUID_BYTES = 16


class Version(IntEnum):
    """How a node writes its messages; told by the routing id alone, never by later bytes."""

    V1 = 1  # The text, RFC 20.
    V2 = 2  # RFC 36, what living nodes speak.


class CommandKind(IntEnum):
    """A command's octet, in both versions."""

    HELLO = 1
    WHISPER = 2
    SHOUT = 3
    JOIN = 4
    LEAVE = 5
    PING = 6
    PING_OK = 7


SIGNATURE = b"\xaa\xa1"
# A DEALER's routing id: in v1 the UUID; in v2 an octet 01 before it.
V2_ROUTING_PREFIX = b"\x01"

# Limits of what is taken in; the wire itself ends at 255 octets a string, 2^32 - 1 a long one.
STRING_BYTES_MAX = 255
COUNT_V1_MAX = 255  # Groups, or headers, of a v1 HELLO.
GROUPS_MAX = 4096
HEADERS_MAX = 1024
HEADER_BYTES_MAX = 65_536  # Of one value in v2; in v1 name, `=` and value share 255 octets.
HELLO_BYTES_MAX = 1 << 20
CONTENT_FRAMES_MAX = 1024
MESSAGE_BYTES = 1 << 20  # Of one message, unless its owner wants more ...
MESSAGE_BYTES_MAX = 64 << 20  # ... but not than this.
SEQUENCES = 1 << 16
STATUSES = 1 << 8

BEACON_PORT = 5670  # UDP (decisions; the text leaves it to IANA).
# The text: a mailbox is in C000 to FFFF. Above 61000 no ephemeral port of Linux clashes.
MAILBOX_BIND_MIN, MAILBOX_BIND_MAX = 61_000, 65_535

PEERS_MAX = 1000
SEND_HWM = 3000  # The text's example: 100 messages a second for 30 s.


class Times(NamedTuple):
    """Milliseconds."""

    beacon_ms: int = 1000  # Between two beacons; one more at once when a new peer is heard.
    greet_wait_ms: int = 500  # So long a node that is not ours may greet first, in its version.
    evasive_ms: int = 5000  # Silent for so long: asked by PING, and again after as long.
    silent_ms: int = 10_000  # Silent for so long, asked in vain: said to the user.
    dead_ms: int = 30_000  # Silent for so long: held dead.


TIMES = Times()
ANSWER_BEACON_MS = 20  # Beacons of our own for new peers come no closer than this.


class Reason(Enum):
    """Why something was thrown away: the counter's name."""

    SHORT = "short"  # It ends within a field, or has nothing behind the routing id.
    SIGNATURE = "signature"
    VERSION = "version"
    COMMAND = "command"  # A number that no command has.
    TRAILING = "trailing"  # Octets or frames behind a command that has no more.
    TEXT = "text"  # No UTF-8, or characters that can't be shown.
    LIMIT = "limit"  # More than the limits above.
    ADDRESS = "address"  # An endpoint that is none, or is not the sender's.
    ROUTING_ID = "routing_id"


# ---- ZRE/LOG ----

LOG_SIGNATURE = b"\xaa\xa2"
LOG_COMMAND = 1
LOG_SERVICE = "X-ZRELOG"  # The header that announces the service: tcp://ipaddress:port.


class Level(IntEnum):
    ERROR = 1
    WARNING = 2
    INFO = 3


class LogEvent(IntEnum):
    JOIN = 1
    LEAVE = 2
    ENTER = 3
    EXIT = 4
