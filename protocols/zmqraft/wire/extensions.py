"""Codec of kelek's own messages: hello, pre-vote, and whole blocks of entries and updates.

Their types have two bytes and begin with 0x6b, so foreign peers drop them. Until a peer's hello
lists a feature, it is sent nothing but hello (docs/protocols/zmq-raft.md, "Extensions").
"""

import struct
from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import NamedTuple

from ....native.log.blocks import block_encode
from ...errors import RemoteProtocolError
from ...raft.messages import KIND_STATE, AppendEntries, AppendResponse, RequestVote
from ...record import BLOCK_HEADER, check_block
from .client_codec import (
    EntriesAnswer,
    EntriesStatus,
    RequestEntries,
    decode_entries_answer,
    encode_entries_answer,
)
from .peer_codec import decode_type, decode_vote_frames, encode_request_vote
from .values import (
    APPEND_PACKED,
    ENTRIES_PACKED,
    HELLO,
    PEER_ID_BYTES_MAX,
    PRE_VOTE,
    UINT_MAX,
    UPDATE_PACK,
    URL_BYTES_MAX,
    check_peer_id,
    check_voters,
    decode_bool,
    decode_count,
    decode_id,
    decode_ident,
    decode_json,
    decode_leader,
    decode_message_id,
    decode_peer_id,
    decode_reqid,
    decode_string,
    decode_uint,
    encode_bool,
    encode_json,
    encode_uint,
    expect,
)

FEATURE_PACK = "pack"
FEATURE_APPEND = "append"
FEATURE_PRE_VOTE = "prevote"
FEATURE_ENTRIES = "entries"
FEATURE_MEMBERS = "members"
FEATURE_ANYWHERE = "anywhere"
FEATURE_TABLES = "tables"

BLOCKS_MAX = 256  # Of one packed AppendEntries.
ENTRIES_BLOCKS_MAX = 1024  # Of one packed answer to RequestEntries.
PACK_BYTES_MAX = 1 << 20
PACK_COUNT_MAX = 4096
PACK_FRAME_BYTES_MAX = (10 << 20) + 32  # A record of the largest size is allowed alone.

PACK_NOT_LEADER = 0
PACK_ACCEPTED = 1
PACK_GAP = 2
PACK_REFUSED = 3

_APPEND_HEADER = struct.Struct("<QQQQ")
_APPEND_ANSWER = struct.Struct("<QQQ")
_SUCCESS_WAITS = b"\x03"  # Success; any number but 0 is true.
_RUN = struct.Struct("<IQ")


class Hello(NamedTuple):
    """The state and features of a peer or client."""

    peer: str  # Empty for a client.
    version: str = ""
    features: tuple[str, ...] = ()
    incarnation: int = 0  # A new one after each start: messages in flight are forgotten.
    empty: bool = False  # An empty log and no term: a cluster may start with it.
    last_index: int = 0
    voter: bool = True  # False: its acknowledgements do not count yet.
    # The members, with incarnations, that it has seen empty at the same time: the cluster's first
    # start.
    witnessed: tuple[tuple[str, int], ...] = ()
    peer_url: str = ""  # Its URL for kelek peers.
    # The initial members, while its log begins at index 1.
    members: tuple[tuple[str, str], ...] | None = None


def _hello_map(hello: Hello) -> dict[str, object]:
    return {
        "version": hello.version,
        "features": list(hello.features),
        "incarnation": hello.incarnation,
        "empty": hello.empty,
        "last_index": hello.last_index,
        "voter": hello.voter,
        "witnessed": dict(hello.witnessed),
        "peer_url": hello.peer_url,
        "members": hello.members and [list(member) for member in hello.members],
    }


def encode_hello(message_id: bytes, cluster: bytes, hello: Hello) -> list[bytes]:
    """Encodes a hello. The answer repeats its id: a message id of a peer, a request id of a
    client."""
    return [message_id, HELLO, cluster, hello.peer.encode(), encode_json(_hello_map(hello))]


def decode_hello(frames: Sequence[bytes], cluster: bytes) -> tuple[bytes, Hello]:
    """Decodes a hello ("Extensions").

    frames   1 bytes   id, 1 to 12 bytes
             2 bytes   message type, 0x6b 0x00
             3 bytes   cluster ident
             4 string  PEER ID of the sender, empty for a client
             5 json    map: version, features, incarnation, empty, last_index,
                       voter, witnessed, peer_url, members; others are ignored

    Returns (id, hello). Raises RemoteProtocolError on a wrong frame count or type, a foreign
    cluster ident, or a map whose values have other types.
    """
    decode_type(frames, HELLO, "hello")
    expect(frames, "hello", 5, 5)
    decode_ident(frames[2], cluster)
    peer = decode_string(frames[3], PEER_ID_BYTES_MAX)
    return decode_id(frames[0]), _decode_hello_map(frames[4], peer)


def encode_hello_answer(message_id: bytes, hello: Hello) -> list[bytes]:
    """Encodes the answer to a hello."""
    return [message_id, HELLO, encode_json({**_hello_map(hello), "peer": hello.peer})]


def decode_hello_answer(frames: Sequence[bytes]) -> tuple[bytes, Hello]:
    """Decodes the answer to a hello ("Extensions").

    frames   1 bytes   id of the hello
             2 bytes   message type, 0x6b 0x00
             3 json    the responder's map, with its PEER ID as "peer"

    Returns (id, hello). Raises RemoteProtocolError as decode_hello does.
    """
    decode_type(frames, HELLO, "hello answer")
    expect(frames, "hello answer", 3, 3)
    return decode_id(frames[0]), _decode_hello_map(frames[2], None)


def _decode_hello_map(frame: bytes, peer: str | None) -> Hello:
    value = decode_json(frame)
    if not isinstance(value, dict):
        raise RemoteProtocolError("a hello holds a map")
    version, features = value.get("version"), value.get("features")
    if not isinstance(version, str) or not isinstance(features, list):
        raise RemoteProtocolError("a hello without version or features")
    if not all(isinstance(feature, str) for feature in features):
        raise RemoteProtocolError("a feature is a string")
    return Hello(
        check_peer_id(value.get("peer")) if peer is None else peer,
        version,
        tuple(features),
        _number(value, "incarnation"),
        value.get("empty") is True,
        _number(value, "last_index"),
        value.get("voter") is not False,
        _witnessed(value.get("witnessed", {})),
        _peer_url(value.get("peer_url", "")),
        None if value.get("members") is None else check_voters(value["members"]),
    )


def _peer_url(value: object) -> str:
    if not isinstance(value, str) or len(value.encode()) > URL_BYTES_MAX:
        raise RemoteProtocolError("a hello's peer_url is a string")
    return value


def _witnessed(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, dict):
        raise RemoteProtocolError("a hello's witnessed is a map")
    return tuple((check_peer_id(peer), _number(value, peer)) for peer in value)


def _number(value: dict[object, object], key: str) -> int:
    number = value.get(key, 0)
    if type(number) is not int or not 0 <= number <= UINT_MAX:
        raise RemoteProtocolError(f"a hello's {key} is a number")
    return number


def encode_pre_vote(message_id: int, cluster: bytes, message: RequestVote) -> list[bytes]:
    """Encodes a pre-vote, with the frames of RequestVote."""
    frames = encode_request_vote(message_id, cluster, message)
    frames[1] = PRE_VOTE
    return frames


def decode_pre_vote(frames: Sequence[bytes], cluster: bytes) -> tuple[int, RequestVote]:
    """Decodes a pre-vote: the frames of RequestVote with type 0x6b 0x3f and the next campaign's
    TERM.

    encode_vote encodes its answer. Raises RemoteProtocolError as decode_request_vote does.
    """
    decode_type(frames, PRE_VOTE, "pre-vote")
    message_id, message = decode_vote_frames(frames, cluster, "pre-vote")
    return message_id, message._replace(pre_vote=True)


def encode_append_packed(message_id: int, cluster: bytes, message: AppendEntries) -> list[bytes]:
    """Encodes AppendEntries with whole blocks, as in the log (docs/disk-format.md)."""
    header = _APPEND_HEADER.pack(
        message.term, message.prev_index, message.prev_term, message.commit_index
    )
    blocks = [batch.block for batch in message.batches]
    leader = message.leader.encode()
    return [encode_uint(message_id), APPEND_PACKED, cluster, leader, header, *blocks]


def decode_append_packed(
    frames: Sequence[bytes], cluster: bytes
) -> tuple[int, AppendEntries, list[bytes]]:
    """Decodes a packed AppendEntries ("Extensions").

    frames   1 uint    message id
             2 bytes   message type, 0x6b 0x2b
             3 bytes   cluster ident
             4 string  leader's PEER ID
             5 bytes   4 numbers of 8 bytes, little endian: TERM, previous LOG INDEX, its LOG TERM,
                       COMMIT INDEX
             6.. bytes the blocks, if any

    Returns (message id, message without batches, the blocks, for record.check_block). Raises
    RemoteProtocolError on a wrong frame count, another type, a foreign cluster ident, a PEER ID
    that is not UTF-8 or a number over 2**53 - 1.
    """
    decode_type(frames, APPEND_PACKED, "packed AppendEntries")
    expect(frames, "packed AppendEntries", 5, 5 + BLOCKS_MAX)
    decode_ident(frames[2], cluster)
    leader = decode_peer_id(frames[3])
    term, prev_index, prev_term, commit_index = _unpack(_APPEND_HEADER, frames[4])
    message = AppendEntries(term, leader, prev_index, prev_term, commit_index)
    return decode_message_id(frames[0]), message, list(frames[5:])


def _unpack(layout: struct.Struct, frame: bytes) -> tuple[int, ...]:
    if len(frame) != layout.size:
        raise RemoteProtocolError(f"{layout.size} bytes were expected, got {len(frame)}")
    numbers: tuple[int, ...] = layout.unpack(frame)
    if max(numbers) > UINT_MAX:
        raise RemoteProtocolError(f"a number over 2**53 - 1: {max(numbers)}")
    return numbers


def encode_append_packed_answer(message_id: int, message: AppendResponse) -> list[bytes]:
    """Encodes the answer to a packed AppendEntries; its decoder lists the frames."""
    numbers = _APPEND_ANSWER.pack(
        message.match_index, message.conflict_index, message.conflict_term
    )
    return [
        encode_uint(message_id),
        encode_uint(message.term),
        _SUCCESS_WAITS
        if message.success and message.clients_wait
        else encode_bool(message.success),
        numbers,
    ]


def decode_append_packed_answer(frames: Sequence[bytes]) -> tuple[int, AppendResponse]:
    """Decodes the answer to a packed AppendEntries ("Extensions").

    frames   1 uint    message id of the request
             2 uint    responder's current TERM
             3 bool    success; 3: success, and clients of its node wait for commits
             4 bytes   3 numbers of 8 bytes, little endian: match index, conflict LOG INDEX,
                       conflict TERM

    Returns (message id, message). Raises RemoteProtocolError on a wrong frame count or a number
    over its limit.
    """
    expect(frames, "a packed AppendEntries answer", 4, 4)
    match_index, conflict_index, conflict_term = _unpack(_APPEND_ANSWER, frames[3])
    term, success = decode_uint(frames[1]), decode_bool(frames[2])
    message = AppendResponse(
        *(term, success, match_index, conflict_index, conflict_term),
        clients_wait=frames[2] == _SUCCESS_WAITS,
    )
    return decode_message_id(frames[0]), message


class Pack(NamedTuple):
    """Consecutive updates of one client, framed as in the log."""

    reqid: bytes  # The request id of the first record is the pack's id.
    previous: bytes  # The request id of the previous update; empty: all earlier ones are committed.
    records: bytes


def pack_records(reqids: Sequence[bytes], updates: Sequence[bytes]) -> bytes:
    """Frames updates as the records of a pack, in C."""
    records = list(zip(repeat(KIND_STATE), reqids, updates))
    block = block_encode(1, 1, records)
    payload_size = BLOCK_HEADER.unpack_from(block)[5]
    return block[BLOCK_HEADER.size : BLOCK_HEADER.size + payload_size]


def encode_pack(cluster: bytes, pack: Pack) -> list[bytes]:
    """Encodes a pack of updates; decode_pack lists the frames."""
    return [pack.reqid, UPDATE_PACK, cluster, pack.previous, pack.records]


def decode_pack(frames: Sequence[bytes], cluster: bytes) -> Pack:
    """Decodes a pack of updates ("Extensions"). Peers decode packs in C; this is the Python twin.

    frames   1 reqid   of the first record
             2 bytes   message type, 0x6b 0x3d
             3 bytes   cluster ident
             4 bytes   request id of the previous update, or empty
             5 bytes   the records, each with its request id (docs/disk-format.md, "Record")

    Raises RemoteProtocolError on a wrong frame count, another type, a foreign cluster ident or
    records that are empty or too long.
    """
    decode_type(frames, UPDATE_PACK, "pack")
    expect(frames, "pack", 5, 5)
    decode_ident(frames[2], cluster)
    previous, records = frames[3], frames[4]
    if previous:
        decode_reqid(previous)
    if not 0 < len(records) <= PACK_FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a pack with {len(records)} bytes of records")
    return Pack(decode_reqid(frames[0]), previous, records)


class PackAnswer(NamedTuple):
    """The answer to a pack. The status tells which of the other fields are valid."""

    status: int
    # ACCEPTED: pairs (count, first index); none: not yet committed.
    runs: tuple[tuple[int, int], ...] = ()
    leader: str | None = None  # NOT_LEADER
    position: int = 0  # REFUSED: the record's position, from 0 ...
    reason: str = ""  # ... and the reason; a refusal is final.


def encode_pack_answer(reqid: bytes, answer: PackAnswer) -> list[bytes]:
    """Encodes the answer to a pack; decode_pack_answer lists the frames."""
    payload = b""
    if answer.status == PACK_ACCEPTED:
        payload = b"".join(_RUN.pack(count, first) for count, first in answer.runs)
    elif answer.status == PACK_NOT_LEADER:
        payload = encode_json(answer.leader)
    elif answer.status == PACK_REFUSED:
        payload = encode_json([answer.position, answer.reason])
    return [reqid, UPDATE_PACK, bytes([answer.status]), payload]


def decode_pack_answer(frames: Sequence[bytes]) -> tuple[bytes, PackAnswer]:
    """Decodes the answer to a pack ("Extensions").

    frames   1 reqid   of the pack
             2 bytes   message type, 0x6b 0x3d
             3 bytes   status: 0 not the leader, 1 accepted, 2 a gap (the previous update is
                       unknown), 3 refused for good
             4         0: json  LEADER ID or null
                       1: bytes runs of a count (4 bytes) and a first LOG INDEX (8 bytes), little
                          endian, that cover the records in order; empty: not yet committed
                       2: empty
                       3: json  [position, reason]

    Returns (reqid, answer). Raises RemoteProtocolError on a wrong frame count, another type or an
    invalid payload.
    """
    decode_type(frames, UPDATE_PACK, "pack answer")
    expect(frames, "pack answer", 4, 4)
    reqid, status, payload = decode_reqid(frames[0]), frames[2], frames[3]
    if status == b"\x01":
        return reqid, PackAnswer(PACK_ACCEPTED, runs=_decode_runs(payload))
    if status == b"\x00":
        return reqid, PackAnswer(PACK_NOT_LEADER, leader=decode_leader(payload))
    if status == b"\x02":
        return reqid, PackAnswer(PACK_GAP)
    if status != b"\x03":
        raise RemoteProtocolError(f"a pack answer of status {status[:4]!r}")
    match decode_json(payload):
        case [int(position), str(reason)] if 0 <= position < PACK_COUNT_MAX:
            return reqid, PackAnswer(PACK_REFUSED, position=position, reason=reason)
    raise RemoteProtocolError("the answer to a refused pack needs position and reason")


def _decode_runs(payload: bytes) -> tuple[tuple[int, int], ...]:
    if len(payload) % _RUN.size or len(payload) > _RUN.size * PACK_COUNT_MAX:
        raise RemoteProtocolError(f"runs of {len(payload)} bytes")
    runs: list[tuple[int, int]] = []
    for count, first_index in _RUN.iter_unpack(payload):
        if not 1 <= count <= PACK_COUNT_MAX or not 1 <= first_index <= UINT_MAX:
            raise RemoteProtocolError("a run of indexes over the limits")
        runs.append((count, first_index))
    return tuple(runs)


def encode_entries_packed(cluster: bytes, request: RequestEntries) -> list[bytes]:
    """Encodes a RequestEntries for whole blocks, or a follow-up; see decode_entries_packed."""
    frames = [request.reqid, ENTRIES_PACKED, cluster, encode_uint(request.prev_index)]
    numbers = [
        b"" if number is None else encode_uint(number) for number in (request.limit, request.offset)
    ]
    last = [*numbers, encode_bool(request.any_peer)]
    while last and not last[-1]:
        last.pop()
    return frames + last


def decode_entries_packed(frames: Sequence[bytes], cluster: bytes) -> RequestEntries:
    """Decodes a RequestEntries for whole blocks ("Extensions").

    frames   1 bytes   id, 1 to 12 bytes
             2 bytes   message type, 0x6b 0x3c
             3 bytes   cluster ident
             4 uint    previous LOG INDEX
    or also  5 uint    count of entries; empty: no limit; 0: stop
             6 uint    next byte offset of a snapshot; empty: none
             7 bool    any peer answers, leader or not

    Raises RemoteProtocolError on a wrong frame count, another type, a foreign cluster ident or a
    number over its limit.
    """
    decode_type(frames, ENTRIES_PACKED, "packed RequestEntries")
    expect(frames, "packed RequestEntries", 4, 7)
    decode_ident(frames[2], cluster)
    count = decode_count(frames[4]) if len(frames) > 4 else None
    offset = decode_count(frames[5]) if len(frames) > 5 else None
    anywhere = len(frames) > 6 and decode_bool(frames[6])
    request = RequestEntries(decode_id(frames[0]), decode_uint(frames[3]), count, offset)
    return request._replace(packed=True, any_peer=anywhere)


def encode_entries_packed_answer(reqid: bytes, answer: EntriesAnswer) -> list[bytes]:
    """Encodes a packed answer to RequestEntries; see decode_entries_packed_answer."""
    _, *frames = encode_entries_answer(reqid, answer)
    return [reqid, ENTRIES_PACKED, *frames, *(batch.block for batch in answer.batches)]


def decode_entries_packed_answer(frames: Sequence[bytes]) -> tuple[bytes, EntriesAnswer]:
    """Decodes a packed answer to RequestEntries ("Extensions").

    frames   1 bytes   id of the request
             2 bytes   message type, 0x6b 0x3c
             3..       as frames 2 to 4 of a plain answer: status, json, LOG INDEX
             6.. bytes status 1 and 2: blocks as in the log, instead of entries

    Returns (id, answer with batches). Raises RemoteProtocolError as decode_entries_answer does, and
    on a block that is invalid or does not follow the one before.
    """
    decode_type(frames, ENTRIES_PACKED, "packed entries answer")
    expect(frames, "a packed entries answer", 4, 5 + ENTRIES_BLOCKS_MAX)
    plain = [frames[0], *frames[2:]]
    status = decode_uint(frames[2])
    if status not in (EntriesStatus.LAST.value, EntriesStatus.MORE.value):
        return decode_entries_answer(plain)
    reqid, answer = decode_entries_answer(plain[:4])
    batches = tuple(check_block(block) for block in frames[5:])
    for batch, following in pairwise(batches):
        if following.first_index != batch.last_index + 1:
            raise RemoteProtocolError("the blocks of an entries answer do not follow each other")
    if batches and batches[-1].last_index != answer.last_index:
        raise RemoteProtocolError("the blocks of an entries answer do not end at its LOG INDEX")
    return reqid, answer._replace(batches=batches)
