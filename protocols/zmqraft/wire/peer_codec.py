"""Codec of messages between peers in the specification's form: RequestVote and AppendEntries.

Pure functions over frames as on a DEALER: without a routing id. Entries stay encoded (see entry.py;
peers decode them in C by the batch). snapshot_codec.py has InstallSnapshot.
"""

from collections.abc import Sequence
from typing import Literal

from ...errors import RemoteProtocolError
from ...raft.messages import AppendEntries, AppendResponse, RequestVote, Vote
from ...record import RECORD_BYTES_MAX
from ...wire import Frame
from .entry import ENTRY_HEADER_BYTES
from .values import (
    APPEND_ENTRIES,
    PEER_ID,
    REQUEST_VOTE,
    UINT,
    decode_bool,
    decode_ident,
    decode_message_id,
    decode_peer_id,
    decode_uint,
    encode_bool,
    encode_uint,
    expect,
)

ENTRIES_MAX = 16384  # Of one AppendEntries.

Dialect = Literal["text", "node"]


VOTE_FRAMES = (
    Frame("candidate", PEER_ID, "candidate's PEER ID"),
    Frame("term", UINT, "candidate's TERM"),
    Frame("last_index", UINT, "candidate's last LOG INDEX"),
    Frame("last_term", UINT, "candidate's last LOG TERM"),
)


def decode_type(frames: Sequence[bytes], wanted: bytes, name: str) -> None:
    """Raises RemoteProtocolError unless frame 2 is the wanted message type."""
    if len(frames) < 2 or frames[1] != wanted:
        raise RemoteProtocolError(f"not a {name}")


def encode_request_vote(message_id: int, cluster: bytes, message: RequestVote) -> list[bytes]:
    """Encodes a RequestVote request; decode_request_vote lists the frames."""
    return [
        encode_uint(message_id),
        REQUEST_VOTE,
        cluster,
        message.candidate.encode(),
        encode_uint(message.term),
        encode_uint(message.last_index),
        encode_uint(message.last_term),
    ]


def decode_request_vote(frames: Sequence[bytes], cluster: bytes) -> tuple[int, RequestVote]:
    """Decodes a RequestVote request (docs/protocols/zmq-raft.md, "RequestVote").

    frames   1 uint    message id, 0 to 16777215
             2 bytes   message type, 0x3f
             3 bytes   cluster ident
             4 string  candidate's PEER ID (UTF-8)
             5 uint    candidate's current TERM
             6 uint    candidate's last LOG INDEX
             7 uint    candidate's last LOG TERM

    Returns (message id, message). Raises RemoteProtocolError on a wrong frame count, another type,
    a foreign cluster ident, a number over its limit or a PEER ID that is not UTF-8.
    """
    decode_type(frames, REQUEST_VOTE, "RequestVote")
    return decode_vote_frames(frames, cluster, "RequestVote")


def decode_vote_frames(
    frames: Sequence[bytes], cluster: bytes, name: str
) -> tuple[int, RequestVote]:
    """Decodes the frames that RequestVote, pre-vote and transfer vote share."""
    expect(frames, name, 7, 7)
    decode_ident(frames[2], cluster)
    return decode_message_id(frames[0]), RequestVote(
        term=decode_uint(frames[4]),
        candidate=decode_peer_id(frames[3]),
        last_index=decode_uint(frames[5]),
        last_term=decode_uint(frames[6]),
    )


def encode_vote(message_id: int, message: Vote) -> list[bytes]:
    """Encodes the answer to RequestVote and to a pre-vote."""
    return [encode_uint(message_id), encode_uint(message.term), encode_bool(message.granted)]


def decode_vote(frames: Sequence[bytes]) -> tuple[int, Vote]:
    """Decodes the answer to RequestVote and to a pre-vote ("RequestVote").

    frames   1 uint    message id of the request
             2 uint    responder's current TERM
             3 bool    vote granted

    Returns (message id, message). Only the requester knows whether it was a pre-vote. Raises
    RemoteProtocolError on a wrong frame count or a number over its limit.
    """
    expect(frames, "a vote", 3, 3)
    message_id = decode_message_id(frames[0])
    return message_id, Vote(term=decode_uint(frames[1]), granted=decode_bool(frames[2]))


def encode_append_entries(
    message_id: int, cluster: bytes, message: AppendEntries, entries: Sequence[bytes] = ()
) -> list[bytes]:
    """Encodes an AppendEntries request; it ignores message.batches."""
    return [
        encode_uint(message_id),
        APPEND_ENTRIES,
        cluster,
        message.leader.encode(),
        encode_uint(message.term),
        encode_uint(message.prev_index),
        encode_uint(message.prev_term),
        encode_uint(message.commit_index),
        *entries,
    ]


def decode_append_entries(
    frames: Sequence[bytes], cluster: bytes
) -> tuple[int, AppendEntries, list[bytes]]:
    """Decodes an AppendEntries request ("AppendEntries").

    frames   1 uint    message id
             2 bytes   message type, 0x2b
             3 bytes   cluster ident
             4 string  leader's PEER ID
             5 uint    leader's current TERM
             6 uint    LOG INDEX preceding the new entries
             7 uint    LOG TERM of the entry there
             8 uint    leader's COMMIT INDEX
             9.. entry the entries, if any: at least one byte of data each

    Returns (message id, message without batches, the encoded entries). Raises RemoteProtocolError
    on a wrong frame count, another type, a foreign cluster ident, a number over its limit, a PEER
    ID that is not UTF-8 or an entry that is too short or too long.
    """
    decode_type(frames, APPEND_ENTRIES, "AppendEntries")
    expect(frames, "AppendEntries", 8, 8 + ENTRIES_MAX)
    decode_ident(frames[2], cluster)
    entries = list(frames[8:])
    check_entries(entries)
    message = AppendEntries(
        term=decode_uint(frames[4]),
        leader=decode_peer_id(frames[3]),
        prev_index=decode_uint(frames[5]),
        prev_term=decode_uint(frames[6]),
        commit_index=decode_uint(frames[7]),
    )
    return decode_message_id(frames[0]), message, entries


def check_entries(entries: Sequence[bytes]) -> None:
    """Raises RemoteProtocolError unless each frame has the size of an entry."""
    for entry in entries:
        if not 0 < len(entry) - ENTRY_HEADER_BYTES <= RECORD_BYTES_MAX:
            raise RemoteProtocolError(f"an entry of {len(entry)} bytes")


def encode_append_response(
    message_id: int, message: AppendResponse, dialect: Dialect = "text"
) -> list[bytes]:
    """Encodes the answer to AppendEntries in the leader's dialect.

    text     a log that is too short: [.., 0, last index + 1]; a conflict: [.., term, index]
    node     a log that is too short: [.., last index + 1]; a conflict has no further frames
    """
    frames = [encode_uint(message_id), encode_uint(message.term), encode_bool(message.success)]
    if message.success or not message.conflict_index:
        return frames
    if dialect == "text":
        frames.append(encode_uint(message.conflict_term))
    elif message.conflict_term:
        return frames
    frames.append(encode_uint(message.conflict_index))
    return frames


def decode_append_response(frames: Sequence[bytes]) -> tuple[int, AppendResponse]:
    """Decodes the answer to AppendEntries in text and node form ("AppendEntries").

    frames   1 uint    message id of the request
             2 uint    responder's current TERM
             3 bool    success
    of 4     4 uint    log too short: last LOG INDEX + 1 (node)
    of 5     4 uint    conflict TERM, 0 when the log is too short
             5 uint    conflict LOG INDEX

    Returns (message id, message). The frames do not name the match index: on success it is 0, and
    the requester fills it in. Raises RemoteProtocolError on a wrong frame count or a number over
    its limit.
    """
    expect(frames, "an AppendEntries answer", 3, 5)
    message_id, term = decode_message_id(frames[0]), decode_uint(frames[1])
    numbers = [decode_uint(frame) for frame in frames[3:]]
    if decode_bool(frames[2]) or not numbers:
        return message_id, AppendResponse(term, decode_bool(frames[2]))
    conflict_term = numbers[0] if len(numbers) == 2 else 0
    return message_id, AppendResponse(
        term, success=False, conflict_index=numbers[-1], conflict_term=conflict_term
    )
