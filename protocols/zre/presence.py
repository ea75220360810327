"""Presence reports between kelek nodes and kelek log services, with names and headers.

A ZRE/LOG report has only a hash of 16 bits and one line of text. This message begins alike, with
another command, and goes only to services that announce X-KELEK-PRESENCE; log.py has the other
reports. It is one frame; all numbers are big-endian.

    octets   0-1     signature, AA A2
             2       command, 02
             3       level: 2 WARNING of EVASIVE and SILENT, else 3 INFO
             4       event: 1 JOIN, 2 LEAVE, 3 ENTER, 4 EXIT, 5 CHANGED, 6 EVASIVE, 7 SILENT
             5-6     hash of the node's UUID
             7-8     hash of the peer's UUID
             9-16    time, milliseconds since 1970
             17-32   the node's UUID
             33-48   the peer's UUID
             49      the peer's version, 1 or 2
             50-     strings, each with 1 octet of size: the node's name, the peer's name, the
                     peer's endpoint, the group of JOIN and LEAVE
             then    4 octets of size, and the peer's headers with ENTER and CHANGED: a JSON object
                     of strings; nothing with other events
"""

import json
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from ..errors import LocalProtocolError
from .log import uuid_hash
from .peers import Event, EventKind
from .values import LOG_SIGNATURE, STRING_BYTES_MAX, Level, Malformed, Reason, Version

COMMAND = 2
HEAD = struct.Struct(">2sBBBHHQ16s16sB")
STRINGS = 4
SIZE_BYTES = 4
# Further headers are left out: they do not belong into a log.
HEADERS_BYTES_MAX = 4096
FRAME_BYTES_MAX = HEAD.size + STRINGS * (1 + STRING_BYTES_MAX) + SIZE_BYTES + HEADERS_BYTES_MAX


class PresenceEvent(IntEnum):
    """The first four are those of ZRE/LOG (values.LogEvent)."""

    JOIN = 1
    LEAVE = 2
    ENTER = 3
    EXIT = 4
    CHANGED = 5
    EVASIVE = 6
    SILENT = 7


_WARNINGS = frozenset({PresenceEvent.EVASIVE, PresenceEvent.SILENT})
_WITH_HEADERS = frozenset({EventKind.ENTER, EventKind.CHANGED})


class Presence(NamedTuple):
    """A node's report about a peer."""

    event: PresenceEvent
    time_ms: int
    node: bytes  # UUID of the reporting node ...
    node_name: str
    peer: bytes  # ... and of the peer.
    peer_name: str  # Empty for v1 nodes, which have no name.
    endpoint: str
    version: Version
    group: str = ""
    headers: Mapping[str, str] = {}

    @property
    def level(self) -> Level:
        return Level.WARNING if self.event in _WARNINGS else Level.INFO


def presence_of(event: Event, uuid: bytes, name: str, unix_ms: int) -> Presence | None:
    """A node's report of an event; None: the event is not about presence, for example a WHISPER."""
    told = PresenceEvent.__members__.get(event.kind.name)
    if told is None or event.peer is None:
        return None
    peer = event.peer
    headers = _fitting(peer.headers) if event.kind in _WITH_HEADERS else {}
    return Presence(
        told,
        unix_ms,
        uuid,
        name,
        peer.uuid,
        peer.name,
        peer.endpoint,
        peer.version,
        event.group,
        headers,
    )


def _fitting(headers: Mapping[str, str]) -> dict[str, str]:
    """The first headers that fit."""
    found: dict[str, str] = {}
    size = len("{}")
    for name, value in headers.items():
        size += len(_json({name: value}))  # The braces count for the comma.
        if size > HEADERS_BYTES_MAX:
            break
        found[name] = value
    return found


def _json(headers: Mapping[str, str]) -> bytes:
    return json.dumps(headers, ensure_ascii=False, separators=(",", ":")).encode()


def encode_presence(presence: Presence) -> bytes:
    """LocalProtocolError: a string or headers too long, a number out of range."""
    texts = (presence.node_name, presence.peer_name, presence.endpoint, presence.group)
    strings = [text.encode() for text in texts]
    headers = _json(presence.headers) if presence.headers else b""
    if max(map(len, strings)) > STRING_BYTES_MAX or len(headers) > HEADERS_BYTES_MAX:
        raise LocalProtocolError("a presence report that does not fit: a string is too long")
    try:
        head = HEAD.pack(
            LOG_SIGNATURE, COMMAND, presence.level, presence.event, uuid_hash(presence.node),
            uuid_hash(presence.peer), presence.time_ms, presence.node, presence.peer,
            presence.version,
        )  # fmt: skip
    except struct.error as error:
        raise LocalProtocolError(f"a presence report that does not fit: {error}") from error
    sized = b"".join(bytes([len(one)]) + one for one in strings)
    return head + sized + len(headers).to_bytes(SIZE_BYTES) + headers


def is_presence(frames: Sequence[bytes]) -> bool:
    """Whether it is a presence report, not a ZRE/LOG report."""
    return frames[0][:3] == LOG_SIGNATURE + bytes([COMMAND]) if frames else False


def decode_presence(frames: Sequence[bytes]) -> Presence:
    """Raises Malformed with the reason that is counted."""
    data = frames[0] if frames else b""
    if not is_presence(frames):
        raise Malformed(Reason.SIGNATURE, "no signature of a presence report")
    if len(data) < HEAD.size:
        raise Malformed(Reason.SHORT, f"a presence report of {len(data)} octets")
    _, _, level, event, _, _, time_ms, node, peer, version = HEAD.unpack_from(data)
    if not 1 <= event <= len(PresenceEvent) or version not in (1, 2):
        raise Malformed(Reason.COMMAND, f"event {event} of version {version}")
    strings, place = [], HEAD.size
    for _ in range(STRINGS):
        first, place = place + 1, place + 1 + int.from_bytes(data[place : place + 1])
        strings.append(data[first:place])
    first, size = place + SIZE_BYTES, int.from_bytes(data[place : place + SIZE_BYTES])
    if len(data) < first + size:
        raise Malformed(Reason.SHORT, f"{first + size - len(data)} octets are missing")
    if len(data) > first + size or len(frames) > 1:
        raise Malformed(Reason.TRAILING, "octets behind a presence report")
    if size > HEADERS_BYTES_MAX:
        raise Malformed(Reason.LIMIT, f"headers of {size} octets")
    try:
        node_name, peer_name, endpoint, group = (one.decode() for one in strings)
        headers = json.loads(data[first:].decode()) if size else {}
    except (ValueError, RecursionError) as error:
        raise Malformed(
            Reason.TEXT, "a text that is not UTF-8, or headers that are no JSON object"
        ) from error
    if not isinstance(headers, dict) or not all(type(one) is str for one in headers.values()):
        raise Malformed(Reason.TEXT, "headers that are no strings")
    found = Presence(
        PresenceEvent(event), time_ms, node, node_name, peer, peer_name, endpoint, Version(version),
        group, headers,
    )  # fmt: skip
    if level != found.level:
        raise Malformed(Reason.COMMAND, f"level {level} of event {event}")
    return found
