"""Codec of snapshots: InstallSnapshot in text form and packed, and "make a snapshot".

Pure functions over frames as on a DEALER: without a routing id.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import RemoteProtocolError
from ...raft.messages import InstallSnapshot, SnapshotResponse
from .peer_codec import decode_type
from .values import (
    INSTALL_PACKED,
    INSTALL_SNAPSHOT,
    MAKE_SNAPSHOT,
    UINT_MAX,
    decode_id,
    decode_ident,
    decode_json,
    decode_message_id,
    decode_peer_id,
    decode_uint,
    encode_json,
    encode_uint,
    expect,
)

FEATURE_SNAPSHOT = "snapshot"
CHUNK_BYTES_PLAIN = 64 << 10  # To a peer without a hello.
CHUNK_BYTES_MAX = 1 << 20

_INSTALL_HEADER = struct.Struct("<QQQQQ")
_INSTALL_ANSWER = struct.Struct("<QQ")


def encode_install(message_id: int, cluster: bytes, message: InstallSnapshot) -> list[bytes]:
    """Encodes an InstallSnapshot request; decode_install lists the frames."""
    numbers = message.term, message.last_index, message.last_term, message.offset, message.size
    return [
        encode_uint(message_id),
        INSTALL_SNAPSHOT,
        cluster,
        message.leader.encode(),
        *map(encode_uint, numbers),
        message.chunk,
    ]


def decode_install(frames: Sequence[bytes], cluster: bytes) -> tuple[int, InstallSnapshot]:
    """Decodes an InstallSnapshot request (docs/protocols/zmq-raft.md, "InstallSnapshot").

    frames   1 uint    message id
             2 bytes   message type, 0x24
             3 bytes   cluster ident
             4 string  leader's PEER ID
             5 uint    leader's current TERM
             6 uint    LOG INDEX of the last entry that the snapshot includes
             7 uint    LOG TERM of that entry
             8 uint    byte offset of the chunk
             9 uint    bytes of the whole snapshot
            10 bytes   the chunk, at most 1 MiB

    Returns (message id, message). Raises RemoteProtocolError on a wrong frame count, another type,
    a foreign cluster ident, a number over its limit, a PEER ID that is not UTF-8 or a chunk that is
    not within the snapshot.
    """
    decode_type(frames, INSTALL_SNAPSHOT, "InstallSnapshot")
    expect(frames, "InstallSnapshot", 10, 10)
    decode_ident(frames[2], cluster)
    numbers = [decode_uint(frame) for frame in frames[4:9]]
    return decode_message_id(frames[0]), _install(decode_peer_id(frames[3]), numbers, frames[9])


def _install(leader: str, numbers: Sequence[int], chunk: bytes) -> InstallSnapshot:
    term, last_index, last_term, offset, size = numbers
    if len(chunk) > CHUNK_BYTES_MAX or offset + len(chunk) > size or (size and not chunk):
        raise RemoteProtocolError(f"a chunk of {len(chunk)} bytes at {offset} of {size}")
    return InstallSnapshot(term, leader, last_index, last_term, offset, size, chunk)


def encode_install_answer(
    message_id: int, message: SnapshotResponse, end: int | None
) -> list[bytes]:
    """Encodes the answer to InstallSnapshot; `end` is the end of the answered chunk.

    Frame 3 is present only when the next offset is another one.
    """
    frames = [encode_uint(message_id), encode_uint(message.term)]
    if message.offset is None or message.offset == end or message.done:
        return frames
    return [*frames, encode_uint(message.offset)]


def decode_install_answer(frames: Sequence[bytes]) -> tuple[int, SnapshotResponse]:
    """Decodes the answer to InstallSnapshot ("InstallSnapshot").

    frames   1 uint    message id of the request
             2 uint    responder's current TERM
    or also  3 uint    byte offset to continue at

    Returns (message id, message). Without frame 3 its offset is None: the end of the chunk, which
    the requester knows. Raises RemoteProtocolError on a wrong frame count or a number over its
    limit.
    """
    expect(frames, "an InstallSnapshot answer", 2, 3)
    offset = decode_uint(frames[2]) if len(frames) == 3 else None
    return decode_message_id(frames[0]), SnapshotResponse(decode_uint(frames[1]), offset)


def encode_install_packed(message_id: int, cluster: bytes, message: InstallSnapshot) -> list[bytes]:
    """Encodes a packed InstallSnapshot: a chunk of the container, larger, several in flight."""
    numbers = message.term, message.last_index, message.last_term, message.offset, message.size
    leader = message.leader.encode()
    header = _INSTALL_HEADER.pack(*numbers)
    return [encode_uint(message_id), INSTALL_PACKED, cluster, leader, header, message.chunk]


def decode_install_packed(frames: Sequence[bytes], cluster: bytes) -> tuple[int, InstallSnapshot]:
    """Decodes a packed InstallSnapshot ("Packed InstallSnapshot").

    frames   1 uint    message id
             2 bytes   message type, 0x6b 0x24
             3 bytes   cluster ident
             4 string  leader's PEER ID
             5 bytes   5 numbers of 8 bytes, little endian: TERM, last included LOG INDEX, its LOG
                       TERM, byte offset of the chunk, bytes of the whole
             6 bytes   the chunk, at most 1 MiB

    Returns (message id, message). Raises RemoteProtocolError as decode_install does.
    """
    decode_type(frames, INSTALL_PACKED, "packed InstallSnapshot")
    expect(frames, "packed InstallSnapshot", 6, 6)
    decode_ident(frames[2], cluster)
    numbers = _unpack(_INSTALL_HEADER, frames[4])
    return decode_message_id(frames[0]), _install(decode_peer_id(frames[3]), numbers, frames[5])


def encode_install_packed_answer(message_id: int, message: SnapshotResponse) -> list[bytes]:
    """Encodes the answer to a packed InstallSnapshot; its decoder lists the frames."""
    numbers = _INSTALL_ANSWER.pack(message.offset or 0, int(message.done))
    return [encode_uint(message_id), encode_uint(message.term), numbers]


def decode_install_packed_answer(frames: Sequence[bytes]) -> tuple[int, SnapshotResponse]:
    """Decodes the answer to a packed InstallSnapshot ("Packed InstallSnapshot").

    frames   1 uint    message id of the request
             2 uint    responder's current TERM
             3 bytes   2 numbers of 8 bytes, little endian: next byte offset, and 1 when the
                       snapshot is installed or was not needed

    Returns (message id, message). Raises RemoteProtocolError on a wrong frame count or a number
    over its limit.
    """
    expect(frames, "a packed InstallSnapshot answer", 3, 3)
    offset, done = _unpack(_INSTALL_ANSWER, frames[2])
    message = SnapshotResponse(decode_uint(frames[1]), offset, done == 1)
    return decode_message_id(frames[0]), message


def _unpack(layout: struct.Struct, frame: bytes) -> tuple[int, ...]:
    if len(frame) != layout.size:
        raise RemoteProtocolError(f"{layout.size} bytes were expected, got {len(frame)}")
    numbers: tuple[int, ...] = layout.unpack(frame)
    if max(numbers) > UINT_MAX:
        raise RemoteProtocolError(f"a number over 2**53 - 1: {max(numbers)}")
    return numbers


class SnapshotMade(NamedTuple):
    """The answer to a request for a new snapshot. With last_index 0 there is none, see reason."""

    last_index: int = 0
    size: int = 0
    reason: str = ""


class MakeSnapshot(NamedTuple):
    """A client's request for a new snapshot."""

    reqid: bytes


def encode_make_snapshot(request_id: bytes, cluster: bytes) -> list[bytes]:
    """Encodes a client's request for a new snapshot."""
    return [request_id, MAKE_SNAPSHOT, cluster]


def decode_make_snapshot(frames: Sequence[bytes], cluster: bytes) -> bytes:
    """Decodes a request for a new snapshot ("Make a snapshot").

    frames   1 bytes   id, 1 to 12 bytes
             2 bytes   message type, 0x6b 0x73
             3 bytes   cluster ident

    Returns the id. Raises RemoteProtocolError on a wrong frame count or a foreign cluster ident.
    """
    decode_type(frames, MAKE_SNAPSHOT, "request for a snapshot")
    expect(frames, "a request for a snapshot", 3, 3)
    decode_ident(frames[2], cluster)
    return decode_id(frames[0])


def encode_snapshot_made(request_id: bytes, answer: SnapshotMade) -> list[bytes]:
    """Encodes the answer to a request for a new snapshot."""
    return [request_id, MAKE_SNAPSHOT, encode_json(list(answer))]


def decode_snapshot_made(frames: Sequence[bytes]) -> tuple[bytes, SnapshotMade]:
    """Decodes the answer to a request for a new snapshot ("Make a snapshot").

    frames   1 bytes   id of the request
             2 bytes   message type, 0x6b 0x73
             3 json    [last included LOG INDEX, bytes, ""], or [0, 0, reason]

    Returns (id, answer). Raises RemoteProtocolError on a wrong frame count or other json.
    """
    decode_type(frames, MAKE_SNAPSHOT, "answer about a snapshot")
    expect(frames, "an answer about a snapshot", 3, 3)
    match decode_json(frames[2]):
        case [int(index), int(size), str(reason)] if min(index, size) >= 0:
            return decode_id(frames[0]), SnapshotMade(index, size, reason)
    raise RemoteProtocolError("an answer about a snapshot names index, size and reason")
