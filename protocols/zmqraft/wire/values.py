"""Frame types of ZMQ RAFT: uint, bool, json, string and ids. It knows no message.

Decoders check each value against its limit before they allocate memory for it. They raise
RemoteProtocolError and nothing else (docs/protocols/zmq-raft.md, "Types").
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from struct import Struct
from typing import Any

import msgpack

from ...errors import RemoteProtocolError
from ...limits import PORT_MAX
from ...reqids import REQID_BYTES
from ...wire import FrameType, Id, Ident

UINT_MAX = 2**53 - 1  # The largest exact JSON number; a term in an entry has 7 bytes.
UINT_BYTES_MAX = 8
MESSAGE_ID_BYTES_MAX = 3
MESSAGE_ID_MAX = 2**24 - 1
# Clients of the npm package may use shorter ids for requests that only read.
ID_BYTES_MAX = REQID_BYTES
PEER_ID_BYTES_MAX = 255
URL_BYTES_MAX = 1024
JSON_BYTES_MAX = 64 << 10
JSON_ITEMS_MAX = 256

NULL = b"\xc0"

_URL = re.compile(r"tcp://(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})|ipc://\S{1,100}", re.ASCII)

REQUEST_VOTE = b"\x3f"
APPEND_ENTRIES = b"\x2b"
INSTALL_SNAPSHOT = b"\x24"
REQUEST_CONFIG = b"\x5e"
REQUEST_UPDATE = b"\x3d"
REQUEST_ENTRIES = b"\x3c"
REQUEST_LOG_INFO = b"\x25"
REQUEST_BROADCAST_STATE_URL = b"\x2a"
CONFIG_UPDATE = b"\x26"

# Types of kelek's own messages. Foreign peers drop types of two bytes.
HELLO = b"\x6b\x00"
UPDATE_PACK = b"\x6b\x3d"
APPEND_PACKED = b"\x6b\x2b"
PRE_VOTE = b"\x6b\x3f"
READ_INDEX = b"\x6b\x52"
ENTRIES_PACKED = b"\x6b\x3c"
TIMEOUT_NOW = b"\x6b\x54"
TRANSFER = b"\x6b\x4c"
TRANSFER_VOTE = b"\x6b\x56"
INSTALL_PACKED = b"\x6b\x24"
MAKE_SNAPSHOT = b"\x6b\x73"
NOT_ALLOWED = b"\x6b\x2d"  # Of answers alone.
TOO_MANY = b"\x6b\x2e"  # Of answers alone.


class Feature(StrEnum):
    """What a kelek peer's hello lists; older versions list fewer."""

    PACK = "pack"
    APPEND = "append"
    PRE_VOTE = "prevote"
    READS = "reads"
    ENTRIES = "entries"
    SNAPSHOT = "snapshot"
    TRANSFER = "transfer"
    MEMBERS = "members"
    ANYWHERE = "anywhere"
    BACKUP = "backup"
    TABLES = "tables"
    LEASE = "lease"
    SUMS = "sums"
    VERSIONS = "versions"
    LOADS = "loads"


def encode_uint(value: int) -> bytes:
    """Encodes a number in as few bytes as possible, least significant first; 0 is one byte."""
    return value.to_bytes((value.bit_length() + 7) >> 3 or 1, "little")


def decode_uint(frame: bytes) -> int:
    """Decodes 1 to 8 bytes to a number of at most 2**53 - 1; high zero bytes are allowed."""
    if not 1 <= len(frame) <= UINT_BYTES_MAX:
        raise RemoteProtocolError(f"a uint has 1 to 8 bytes, got {len(frame)}")
    value = int.from_bytes(frame, "little")
    if value > UINT_MAX:
        raise RemoteProtocolError(f"a uint is at most 2**53 - 1, got {value}")
    return value


def decode_count(frame: bytes) -> int | None:
    """Decodes a uint, or an empty frame as None."""
    return decode_uint(frame) if frame else None


def next_message_id(message_id: int) -> int:
    """Returns the next id on a peer connection: 1, 2, ... 16777215, 0, 1, ..."""
    return message_id + 1 & MESSAGE_ID_MAX


def decode_message_id(frame: bytes) -> int:
    """Decodes a uint of 1 to 3 bytes."""
    if not 1 <= len(frame) <= MESSAGE_ID_BYTES_MAX:
        raise RemoteProtocolError(f"a message id has 1 to 3 bytes, got {len(frame)}")
    return int.from_bytes(frame, "little")


def decode_id(frame: bytes) -> bytes:
    """Checks an id that the answer repeats: 1 to 12 bytes."""
    if not 1 <= len(frame) <= ID_BYTES_MAX:
        raise RemoteProtocolError(f"a request id has 1 to 12 bytes, got {len(frame)}")
    return frame


def decode_reqid(frame: bytes) -> bytes:
    """Checks a request id: 12 bytes."""
    if len(frame) != REQID_BYTES:
        raise RemoteProtocolError(f"a reqid has 12 bytes, got {len(frame)}")
    return frame


def reqid_seconds(reqid: bytes) -> int:
    """Returns the Unix time of a request id in seconds (its first 4 bytes)."""
    return int.from_bytes(reqid[:4], "big")


def encode_bool(value: bool) -> bytes:
    """Encodes True as the byte 1, False as an empty frame."""
    return b"\x01" if value else b""


def decode_byte(frame: bytes) -> int:
    if len(frame) != 1:
        raise RemoteProtocolError(f"1 byte was expected, got {len(frame)}")
    return frame[0]


def decode_bool(frame: bytes) -> bool:
    """Decodes a bool: True when the first byte is not 0."""
    return frame[:1] not in (b"", b"\x00")


def decode_string(frame: bytes, bytes_max: int) -> str:
    """Decodes UTF-8 of at most bytes_max bytes."""
    if len(frame) > bytes_max:
        raise RemoteProtocolError(f"a string of {len(frame)} bytes, at most {bytes_max} here")
    try:
        return frame.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a string that is not UTF-8") from None


def decode_peer_id(frame: bytes) -> str:
    """Decodes a PEER ID: 1 to 255 bytes of UTF-8."""
    if not frame:
        raise RemoteProtocolError("an empty PEER ID")
    return decode_string(frame, PEER_ID_BYTES_MAX)


def encode_json(value: object) -> bytes:
    """Encodes a value as MessagePack, in the smallest encodings."""
    return bytes(msgpack.packb(value))


def decode_json(frame: bytes) -> Any:
    """Decodes one MessagePack value of the JSON types: at most 64 KiB, 256 items a container.

    It applies the limits before it allocates memory: a header of five bytes may claim four billion
    items.
    """
    if len(frame) > JSON_BYTES_MAX:
        raise RemoteProtocolError(f"json of {len(frame)} bytes, at most {JSON_BYTES_MAX}")
    try:
        return msgpack.unpackb(
            frame,
            max_str_len=JSON_BYTES_MAX,
            max_bin_len=0,
            max_array_len=JSON_ITEMS_MAX,
            max_map_len=JSON_ITEMS_MAX,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"json that is not MessagePack: {error}") from None


def decode_json_uint(frame: bytes) -> int:
    """Decodes a JSON number that is an index: 0 to 2**53 - 1."""
    value = decode_json(frame)
    if type(value) is not int or not 0 <= value <= UINT_MAX:
        raise RemoteProtocolError("a JSON number was expected")
    return value


def check_peer_id(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= PEER_ID_BYTES_MAX:
        raise RemoteProtocolError("a PEER ID was expected")
    return value


def decode_leader(frame: bytes) -> str | None:
    """Decodes a LEADER ID: a JSON string, or null."""
    value = decode_json(frame)
    return None if value is None else check_peer_id(value)


def encode_members(members: Sequence[tuple[str, str]]) -> bytes:
    """Encodes pairs of PEER ID and URL as a JSON array of arrays."""
    return encode_json([list(member) for member in members])


def decode_members(frame: bytes) -> tuple[tuple[str, str], ...]:
    return check_members(decode_json(frame))


def is_url(url: str) -> bool:
    """Whether a socket can connect to it: tcp://HOST:PORT or ipc://PATH."""
    match = _URL.fullmatch(url)
    return match is not None and 0 < int(match[1] or 1) <= PORT_MAX


def check_members(value: object) -> tuple[tuple[str, str], ...]:
    """Checks pairs of PEER ID and URL inside json."""
    if not isinstance(value, list):
        raise RemoteProtocolError("a cluster config is an array")
    return tuple(_check_member(member) for member in value)


def check_voters(value: object) -> tuple[tuple[str, str], ...]:
    """Checks the members of a configuration: at least one, none twice."""
    members = check_members(value)
    if not members:
        raise RemoteProtocolError("a configuration without members")
    if len({peer for peer, _ in members}) < len(members):
        raise RemoteProtocolError("a configuration names a PEER ID twice")
    return members


def _check_member(member: object) -> tuple[str, str]:
    if not isinstance(member, list) or len(member) != 2:
        raise RemoteProtocolError("a cluster config holds pairs of PEER ID and url")
    peer_id, url = member
    if not isinstance(url, str) or not 1 <= len(url.encode()) <= URL_BYTES_MAX:
        raise RemoteProtocolError("a peer's url was expected")
    return check_peer_id(peer_id), url


def numbers_type(count: int) -> FrameType:
    """A frame of numbers with 8 bytes each, little endian."""
    packed = Struct(f"<{count}Q")

    def decode(frame: bytes) -> tuple[int, ...]:
        if len(frame) != packed.size:
            raise RemoteProtocolError(f"{packed.size} bytes were expected, got {len(frame)}")
        numbers: tuple[int, ...] = packed.unpack(frame)
        if max(numbers) > UINT_MAX:
            raise RemoteProtocolError(f"a number over 2**53 - 1: {max(numbers)}")
        return numbers

    return FrameType("u64s", lambda numbers: packed.pack(*numbers), decode)


def _decode_url(frame: bytes) -> str:
    if not frame:
        raise RemoteProtocolError("an empty url")
    return decode_string(frame, URL_BYTES_MAX)


def _decode_reason(frame: bytes) -> str:
    value = decode_json(frame)
    if not isinstance(value, str):
        raise RemoteProtocolError("a reason is a string")
    return value


# ---- types of frames (docs/protocols/zmq-raft.md, "Types") ----

BYTES = FrameType("bytes", bytes, bytes)
JSON = FrameType("json", bytes, bytes)  # Not decoded.
UINT = FrameType("uint", encode_uint, decode_uint)
COUNT = FrameType("uint", lambda count: b"" if count is None else encode_uint(count), decode_count)
BYTE = FrameType("byte", lambda value: bytes([value]), decode_byte)
BOOL = FrameType("bool", encode_bool, decode_bool)
PEER_ID = FrameType("string", str.encode, decode_peer_id)
PEER_ID_OR_EMPTY = FrameType(
    "string", str.encode, lambda frame: decode_string(frame, PEER_ID_BYTES_MAX)
)
LEADER = FrameType("json", encode_json, decode_leader)
LEADER_OR_EMPTY = FrameType(
    "json",
    lambda leader: b"" if leader is None else encode_json(leader),
    lambda frame: decode_leader(frame) if frame else None,
)
MEMBERS = FrameType("json", encode_members, decode_members)
URL = FrameType("string", str.encode, _decode_url)
REASON = FrameType("json", encode_json, _decode_reason)
JSON_UINT = FrameType("json", encode_json, decode_json_uint)
REQUEST_ID = FrameType("bytes", bytes, decode_id)
REQID = FrameType("reqid", bytes, decode_reqid)

MESSAGE_ID = Id(FrameType("uint", encode_uint, decode_message_id), "message id")
ANSWER_ID = Id(REQUEST_ID, "id of the request")
ANSWER_REQID = Id(REQID, "reqid of the request")
IDENT = Ident()
