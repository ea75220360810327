"""ZRE/LOG reports, from a frame and back (RFC 20, "ZRE/LOG").

A report is one frame of a PUB, which connects to the SUB that a log service binds and announces in
the header X-ZRELOG. All numbers are big-endian.

    octets   0-1     signature, AA A2
             2       command, 01
             3       level: 1 ERROR, 2 WARNING, 3 INFO
             4       event: 1 JOIN, 2 LEAVE, 3 ENTER, 4 EXIT
             5-6     hash of the node's UUID
             7-8     hash of the peer's UUID
             9-16    time, milliseconds since 1970
             17      size of what follows
             18-     printable text, UTF-8
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import LocalProtocolError
from .peers import Event
from .values import LOG_COMMAND, LOG_SIGNATURE, STRING_BYTES_MAX, Level, LogEvent, Malformed, Reason

_LAYOUT = struct.Struct(">2sBBBHHQB")
FRAME_BYTES_MAX = _LAYOUT.size + STRING_BYTES_MAX


class Report(NamedTuple):
    """One message."""

    level: Level
    event: LogEvent
    node: int  # uuid_hash() of the reporting node ...
    peer: int  # ... and of the peer.
    time_ms: int
    data: str


def uuid_hash(uuid: bytes) -> int:
    """16 bits for a UUID: h starts at 0, h = 33 * h ^ c modulo 2^32 over its octets; the low 16
    bits."""
    value = 0
    for octet in uuid:
        value = (33 * value ^ octet) & 0xFFFFFFFF
    return value & 0xFFFF


def report_of(event: Event, uuid: bytes, unix_ms: int) -> Report | None:
    """A node's report of an event; None: ZRE/LOG has no such event."""
    said = LogEvent.__members__.get(event.kind.name)
    if said is None or event.peer is None:
        return None
    peer = event.peer
    text = f"{event.group} {peer.name}" if event.group else f"{peer.name} {peer.endpoint}"
    # Drops an incomplete last character.
    data = text.encode()[:STRING_BYTES_MAX].decode(errors="ignore")
    return Report(Level.INFO, said, uuid_hash(uuid), uuid_hash(peer.uuid), unix_ms, data)


def encode_report(report: Report) -> bytes:
    """LocalProtocolError: a text of more than 255 octets, a number out of range."""
    data = report.data.encode()
    try:
        head = _LAYOUT.pack(
            LOG_SIGNATURE, LOG_COMMAND, report.level, report.event,
            report.node, report.peer, report.time_ms, len(data),
        )  # fmt: skip
    except struct.error as error:
        raise LocalProtocolError(f"a report that does not fit: {error}") from error
    return head + data


def decode_report(frames: Sequence[bytes]) -> Report:
    """Raises Malformed with the reason that is counted. RFC 20: a service SHALL silently discard
    what does not start with the signature."""
    data = frames[0] if frames else b""
    if data[:2] != LOG_SIGNATURE:
        raise Malformed(Reason.SIGNATURE, "no signature")
    if len(data) < _LAYOUT.size:
        raise Malformed(Reason.SHORT, f"a report of {len(data)} octets")
    _, command, level, event, node, peer, time_ms, size = _LAYOUT.unpack_from(data)
    if command != LOG_COMMAND or not 1 <= level <= 3 or not 1 <= event <= 4:
        raise Malformed(Reason.COMMAND, f"command {command}, level {level}, event {event}")
    text = data[_LAYOUT.size :]
    if len(text) < size:
        raise Malformed(Reason.SHORT, f"{size - len(text)} octets are missing")
    if len(text) > size or len(frames) > 1:
        raise Malformed(Reason.TRAILING, "more than a report")
    try:
        words = text.decode()
    except UnicodeDecodeError as error:
        raise Malformed(Reason.TEXT, "a text that is not UTF-8") from error
    return Report(Level(level), LogEvent(event), node, peer, time_ms, words)
