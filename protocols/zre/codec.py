"""Codec of the commands of ZRE v1 and v2. Frames are as on a DEALER, without a routing id.

    v1   [AA A1, command, sequence 2, fields][content]           RFC 20, one frame of content
    v2   [AA A1, command, 02, sequence 2, fields][content ..]    RFC 36, any number of frames

All numbers are big-endian; COMMANDS declares the fields. RFC 20's grammar has the sequence before
the command; every known node sends the command first (docs/protocols/zre.md, "Departures").
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..access.certificates import CertificateError, decode_key, encode_key
from ..errors import LocalProtocolError, RemoteProtocolError, TooLarge
from ..wire import Frame
from ..wire_bytes import (
    ByteLayout,
    Incomplete,
    InvalidValue,
    Surplus,
    listed,
    mapped,
    number,
    several,
    string,
)
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


def keyed_endpoint(address: str, port: int, key: bytes) -> str:
    """tcp://ADDRESS:PORT, and with a CURVE key `|` and its 40 characters of Z85, as zyre."""
    endpoint = endpoint_of(address, port)
    return f"{endpoint}|{encode_key(key)}" if key else endpoint


def parse_keyed_endpoint(text: str) -> tuple[str, int, bytes]:
    """(address, port, key) of an endpoint with or without a key. Malformed: another form."""
    endpoint, _, key = text.partition("|")
    try:
        return *parse_endpoint(endpoint), decode_key(key) if key else b""
    except CertificateError as error:
        raise Malformed(Reason.KEY, f"{text!r}: {error}") from error


# ---- commands ----


def _split_header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Malformed(Reason.TEXT, "a header without =")
    return name, value


OCTET, COUNT = number(1), number(4)
STRING = string(OCTET, values.STRING_BYTES_MAX)
LONG_NAME = string(COUNT, values.STRING_BYTES_MAX, "long string")
LONG_STRING = string(COUNT, values.HEADER_BYTES_MAX, "long string")
MAILBOX_V1 = mapped(
    several(STRING, number(2)), tuple, lambda mailbox: parse_endpoint(endpoint_of(*mailbox))
)
MAILBOX_V2 = mapped(STRING, lambda mailbox: endpoint_of(*mailbox), parse_endpoint)
GROUPS_V1 = listed(STRING, values.COUNT_V1_MAX, OCTET)
GROUPS_V2 = listed(LONG_NAME, values.GROUPS_MAX, COUNT)
_HEADER_V1 = mapped(STRING, "=".join, _split_header)
HEADERS_V1 = mapped(listed(_HEADER_V1, values.COUNT_V1_MAX, OCTET), dict.items, dict)
_HEADER_V2 = several(STRING, LONG_STRING)
HEADERS_V2 = mapped(listed(_HEADER_V2, values.HEADERS_MAX, COUNT), dict.items, dict)

_GROUP = Frame("group", STRING, "group, case sensitive")
_STATUS = Frame("status", OCTET, "joins and leaves of the sender, modulo 256")
# The fields behind the sequence.
HELLO_V1 = ByteLayout(
    "HELLO of v1",
    Hello,
    Frame(("address", "port"), MAILBOX_V1, "address and port of the mailbox"),
    Frame("groups", GROUPS_V1, "groups"),
    _STATUS,
    Frame("headers", HEADERS_V1, "headers, each `name=value`"),
    given={"name": ""},
)
HELLO_V2 = ByteLayout(
    "HELLO of v2",
    Hello,
    Frame(("address", "port"), MAILBOX_V2, "endpoint of the mailbox"),
    Frame("groups", GROUPS_V2, "groups"),
    _STATUS,
    Frame("name", STRING, "name of the node"),
    Frame("headers", HEADERS_V2, "headers: name, value"),
)
COMMANDS: dict[CommandKind, ByteLayout[Any]] = {
    CommandKind.HELLO: HELLO_V2,
    CommandKind.WHISPER: ByteLayout("WHISPER", Whisper, given={"content": []}),
    CommandKind.SHOUT: ByteLayout("SHOUT", Shout, _GROUP, given={"content": []}),
    CommandKind.JOIN: ByteLayout("JOIN", Join, _GROUP, _STATUS),
    CommandKind.LEAVE: ByteLayout("LEAVE", Leave, _GROUP, _STATUS),
    CommandKind.PING: ByteLayout("PING", Ping),
    CommandKind.PING_OK: ByteLayout("PING-OK", PingOk),
}
_KINDS = {layout.value: kind for kind, layout in COMMANDS.items()}
_REASONS = {
    Incomplete: Reason.SHORT,
    Surplus: Reason.TRAILING,
    InvalidValue: Reason.TEXT,
    TooLarge: Reason.LIMIT,
}


def layout_of(kind: CommandKind, version: Version) -> ByteLayout[Any]:
    """The fields of a command."""
    return HELLO_V1 if (kind, version) == (CommandKind.HELLO, Version.V1) else COMMANDS[kind]


def head(kind: CommandKind, sequence: int, version: Version) -> bytes:
    """The first octets of every message."""
    octets = [kind] if version is Version.V1 else [kind, Version.V2]
    return SIGNATURE + bytes(octets) + sequence.to_bytes(2)


def decode(frames: Frames, version: Version) -> tuple[int, Command]:
    """(sequence, command) of a message from a sender of that version.

    Raises Malformed. RFC 20: a message without the signature SHALL be discarded silently.
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
    try:
        command: Command = layout_of(CommandKind(head[2]), version).unpack(head, size)
    except Malformed:
        raise
    except RemoteProtocolError as error:
        raise Malformed(_REASONS[type(error)], str(error)) from error
    content = list(frames[1:])
    if not isinstance(command, Whisper | Shout):
        if content:
            raise Malformed(Reason.TRAILING, f"{len(frames)} frames in place of one")
        return sequence, command
    # RFC 20 has one frame. More frames of v1 nodes are accepted; v2 nodes may send none.
    if not content and version is Version.V1:
        raise Malformed(Reason.SHORT, "no content")
    if len(content) > values.CONTENT_FRAMES_MAX:
        raise Malformed(Reason.LIMIT, f"{len(content)} frames of content")
    return sequence, command._replace(content=content)


def encode(sequence: int, command: Command, version: Version) -> list[bytes]:
    """Frames of a command. LocalProtocolError: the version has no encoding for it."""
    kind = _KINDS.get(type(command))
    if kind is None:
        raise LocalProtocolError(f"{command} can't be sent")
    header = head(kind, sequence, version) + layout_of(kind, version).pack(command)
    if len(header) > values.HELLO_BYTES_MAX:
        raise LocalProtocolError(f"a HELLO of {len(header)} octets")
    if not isinstance(command, Whisper | Shout):
        return [header]
    # RFC 20: ZRE does not support multi-frame message contents. RFC 36 does.
    count_max = 1 if version is Version.V1 else values.CONTENT_FRAMES_MAX
    if not 0 < len(command.content) <= count_max:
        raise LocalProtocolError(f"{len(command.content)} frames of content, 1 to {count_max}")
    return [header, *command.content]
