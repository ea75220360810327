"""Codec of the commands of ZRE v1 and v2. Frames are as on a DEALER, without a routing id.

    v1   [AA A1, command, sequence 2, fields][content]           RFC 20, one frame of content
    v2   [AA A1, command, 02, sequence 2, fields][content ..]    RFC 36, any number of frames

All numbers are big-endian. RFC 20's grammar has the sequence before the command; every known node
sends the command first (docs/protocols/zre.md, "Departures"). Fields:

    string n+..    1 octet of size         strings    count, then that many
    long n+..      4 octets of size        dictionary count, then names and values

    command       v1                                         v2
    1 HELLO       ip string, mailbox 2, groups (1, string),  endpoint string, groups (4, long),
                  status 1, headers (1, string `name=value`) status 1, name string,
                                                             headers (4, string, long)
    2 WHISPER     -                                          -
    3 SHOUT       group string                               group string
    4 JOIN        group string, status 1                     group string, status 1
    5 LEAVE       group string, status 1                     group string, status 1
    6 PING        -                                          -
    7 PING-OK     -                                          -

The decoder checks every size against the octets that are left. It raises Malformed, with the reason
that is counted.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, assert_never

from ..errors import LocalProtocolError
from . import values
from .values import SIGNATURE, UUID_BYTES, CommandKind, Malformed, Reason, Version

Frames = Sequence[bytes]

_ENDPOINT = re.compile(
    r"tcp://(\[[0-9A-Fa-f:.]{2,45}(?:%[0-9A-Za-z_.-]{1,15})?\]"
    r"|[0-9]{1,3}(?:\.[0-9]{1,3}){3}):([0-9]{1,5})"
)


class Hello(NamedTuple):
    """A greeting, which tells the peer where to connect."""

    address: str  # Numeric, without brackets.
    port: int  # Of its mailbox.
    groups: tuple[str, ...]
    status: int  # Joins and leaves, modulo 256.
    name: str  # Empty in v1, which has no names.
    headers: dict[str, str]


class Whisper(NamedTuple):
    """A message to one peer."""

    content: list[bytes]


class Shout(NamedTuple):
    """A message to a group."""

    group: str
    content: list[bytes]


class Join(NamedTuple):
    group: str
    status: int  # After joining.


class Leave(NamedTuple):
    group: str
    status: int  # After leaving.


class Ping(NamedTuple):
    pass


class PingOk(NamedTuple):
    pass


class Unknown(NamedTuple):
    """An unknown v2 command of a later version: only its sequence counts."""

    number: int


Command = Hello | Whisper | Shout | Join | Leave | Ping | PingOk | Unknown


# ---- routing ids and endpoints ----


def routing_id(uuid: bytes, version: Version) -> bytes:
    """The routing id of our DEALER: the UUID in v1, 01 and the UUID in v2."""
    return uuid if version is Version.V1 else values.V2_ROUTING_PREFIX + uuid


def identify(routing_id: bytes) -> tuple[bytes, Version]:
    """(UUID, version) of a sender. Only its routing id tells the version: a v1 sequence of 512 to
    767 looks like v2's octet. Malformed: not a node's routing id."""
    if len(routing_id) == UUID_BYTES:
        return routing_id, Version.V1
    if len(routing_id) == UUID_BYTES + 1 and routing_id[:1] == values.V2_ROUTING_PREFIX:
        return routing_id[1:], Version.V2
    raise Malformed(Reason.ROUTING_ID, f"a routing id of {len(routing_id)} octets")


def endpoint_of(address: str, port: int) -> str:
    """tcp://ADDRESS:PORT, with brackets around an IPv6 address."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def connection_of(address: str, endpoint: str) -> str:
    """The endpoint for zmq_connect. For IPv6 it binds our address, because a machine has several
    and peers check a HELLO's address against its connection."""
    if ":" not in address or "[" not in endpoint:
        return endpoint
    return f"{endpoint_of(address, 0)};{endpoint.removeprefix('tcp://')}"


def parse_endpoint(text: str) -> tuple[str, int]:
    """(address, port) of an endpoint. Malformed: another form, or a name, which is never resolved.

    A link-local IPv6 address carries its interface: fe80::1%eth0.
    """
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match[2]) <= 65_535:
        raise Malformed(Reason.ADDRESS, f"{text!r} is no endpoint")
    return match[1].strip("[]"), int(match[2])


# ---- decoding ----


class _Fields:
    """The undecoded rest of a header frame."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size))

    def text(self, size: int, bytes_max: int) -> str:
        """A string behind a size field of `size` octets."""
        count = self.number(size)
        if count > bytes_max:
            raise Malformed(Reason.LIMIT, f"a string of {count} octets, at most {bytes_max}")
        try:
            return self._take(count).decode()
        except UnicodeDecodeError as error:
            raise Malformed(Reason.TEXT, "a string that is not UTF-8") from error

    def end(self) -> None:
        if self._at != len(self._data):
            raise Malformed(Reason.TRAILING, f"{len(self._data) - self._at} octets too many")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise Malformed(Reason.SHORT, f"{end - len(self._data)} octets are missing")
        found = self._data[self._at : end]
        self._at = end
        return found


def decode(frames: Frames, version: Version) -> tuple[int, Command]:
    """(sequence, command) of a message from a sender of that version.

    Raises Malformed for anything else than the table above. RFC 20: a message without the signature
    SHALL be discarded silently.
    """
    head = frames[0] if frames else b""
    size = 5 if version is Version.V1 else 6
    if head[:2] != SIGNATURE:
        raise Malformed(Reason.SIGNATURE, "no signature")
    if version is Version.V2 and len(head) > 3 and head[3] != Version.V2:
        raise Malformed(Reason.VERSION, f"version {head[3]} behind a routing id of version 2")
    if len(head) < size:
        raise Malformed(Reason.SHORT, f"a header of {len(head)} octets")
    if len(head) > values.HELLO_BYTES_MAX:
        raise Malformed(Reason.LIMIT, f"a header of {len(head)} octets")
    sequence = int.from_bytes(head[size - 2 : size])
    if not CommandKind.HELLO <= head[2] <= CommandKind.PING_OK:
        if version is Version.V1 or not head[2]:
            raise Malformed(Reason.COMMAND, f"command {head[2]}")
        return sequence, Unknown(head[2])
    kind = CommandKind(head[2])
    fields = _Fields(head, size)
    command = _decode_fields(kind, fields, list(frames[1:]), version)
    fields.end()
    if kind not in (CommandKind.WHISPER, CommandKind.SHOUT) and len(frames) > 1:
        raise Malformed(Reason.TRAILING, f"{kind.name} of {len(frames)} frames")
    return sequence, command


def _decode_fields(
    kind: CommandKind, fields: _Fields, content: list[bytes], version: Version
) -> Command:
    match kind:
        case CommandKind.HELLO:
            return _decode_hello_v1(fields) if version is Version.V1 else _decode_hello_v2(fields)
        case CommandKind.WHISPER:
            return Whisper(_checked_content(content, version))
        case CommandKind.SHOUT:
            return Shout(_group(fields), _checked_content(content, version))
        case CommandKind.JOIN:
            return Join(_group(fields), fields.number(1))
        case CommandKind.LEAVE:
            return Leave(_group(fields), fields.number(1))
        case CommandKind.PING:
            return Ping()
        case CommandKind.PING_OK:
            return PingOk()
        case _:
            assert_never(kind)


def _checked_content(content: list[bytes], version: Version) -> list[bytes]:
    """RFC 20 has one frame. More frames of v1 nodes are accepted; v2 nodes may send none."""
    if not content and version is Version.V1:
        raise Malformed(Reason.SHORT, "no content")
    if len(content) > values.CONTENT_FRAMES_MAX:
        raise Malformed(Reason.LIMIT, f"{len(content)} frames of content")
    return content


def _group(fields: _Fields) -> str:
    """RFC 20: group names are case sensitive."""
    return fields.text(1, values.STRING_BYTES_MAX)


def _decode_hello_v1(fields: _Fields) -> Hello:
    address, port = parse_endpoint(
        endpoint_of(fields.text(1, values.STRING_BYTES_MAX), fields.number(2))
    )
    groups = tuple(_group(fields) for _ in range(fields.number(1)))
    status = fields.number(1)
    headers = {}
    for _ in range(fields.number(1)):
        name, equals, value = fields.text(1, values.STRING_BYTES_MAX).partition("=")
        if not equals:
            raise Malformed(Reason.TEXT, "a header without =")
        headers[name] = value
    return Hello(address, port, groups, status, "", headers)


def _decode_hello_v2(fields: _Fields) -> Hello:
    address, port = parse_endpoint(fields.text(1, values.STRING_BYTES_MAX))
    groups = tuple(
        fields.text(4, values.STRING_BYTES_MAX) for _ in range(_count(fields, values.GROUPS_MAX))
    )
    status, name = fields.number(1), fields.text(1, values.STRING_BYTES_MAX)
    headers = {}
    for _ in range(_count(fields, values.HEADERS_MAX)):
        key = fields.text(1, values.STRING_BYTES_MAX)
        headers[key] = fields.text(4, values.HEADER_BYTES_MAX)
    return Hello(address, port, groups, status, name, headers)


def _count(fields: _Fields, count_max: int) -> int:
    count = fields.number(4)
    if count > count_max:
        raise Malformed(Reason.LIMIT, f"a list of {count}, at most {count_max}")
    return count


# ---- encoding ----


def encode(sequence: int, command: Command, version: Version) -> list[bytes]:
    """Frames of a command. LocalProtocolError: the version has no encoding for it."""
    match command:
        case Hello():
            hello = head(CommandKind.HELLO, sequence, version) + _encode_hello(command, version)
            if len(hello) > values.HELLO_BYTES_MAX:
                raise LocalProtocolError(f"a HELLO of {len(hello)} octets")
            return [hello]
        case Whisper(content):
            return [head(CommandKind.WHISPER, sequence, version), *_content(content, version)]
        case Shout(group, content):
            fields = _string(group)
            return [
                head(CommandKind.SHOUT, sequence, version) + fields,
                *_content(content, version),
            ]
        case Join(group, status):
            return [head(CommandKind.JOIN, sequence, version) + _string(group) + bytes([status])]
        case Leave(group, status):
            return [head(CommandKind.LEAVE, sequence, version) + _string(group) + bytes([status])]
        case Ping():
            return [head(CommandKind.PING, sequence, version)]
        case PingOk():
            return [head(CommandKind.PING_OK, sequence, version)]
        case Unknown(number):
            raise LocalProtocolError(f"command {number} can't be sent")
        case _:
            assert_never(command)


def head(kind: CommandKind, sequence: int, version: Version) -> bytes:
    """The first octets of every message."""
    octets = [kind] if version is Version.V1 else [kind, Version.V2]
    return SIGNATURE + bytes(octets) + sequence.to_bytes(2)


def _content(content: list[bytes], version: Version) -> list[bytes]:
    # RFC 20: ZRE does not support multi-frame message contents. RFC 36 does.
    if version is Version.V1 and len(content) != 1:
        raise LocalProtocolError(f"a v1 node takes one frame of content, not {len(content)}")
    if not 0 < len(content) <= values.CONTENT_FRAMES_MAX:
        raise LocalProtocolError(f"{len(content)} frames of content")
    return content


def _string(text: str, size: int = 1) -> bytes:
    data = text.encode()
    bytes_max = values.STRING_BYTES_MAX if size == 1 else values.HEADER_BYTES_MAX
    if len(data) > bytes_max:
        raise LocalProtocolError(f"a string of {len(data)} octets, at most {bytes_max}")
    return len(data).to_bytes(size) + data


def _encode_hello(hello: Hello, version: Version) -> bytes:
    if version is Version.V2:
        return b"".join(
            (
                _string(endpoint_of(hello.address, hello.port)),
                len(hello.groups).to_bytes(4),
                *(_string(group, 4) for group in hello.groups),
                bytes([hello.status]),
                _string(hello.name),
                len(hello.headers).to_bytes(4),
                *(_string(key) + _string(value, 4) for key, value in hello.headers.items()),
            )
        )
    if max(len(hello.groups), len(hello.headers)) > values.COUNT_V1_MAX:
        raise LocalProtocolError(f"v1 has {values.COUNT_V1_MAX} groups and headers at most")
    return b"".join(
        (
            _string(hello.address),
            hello.port.to_bytes(2),
            bytes([len(hello.groups)]),
            *(_string(group) for group in hello.groups),
            bytes([hello.status, len(hello.headers)]),
            *(_string(f"{key}={value}") for key, value in hello.headers.items()),
        )
    )
