"""Kelek's own messages: hello, pre-vote, and whole blocks of entries and updates.

Their types have two bytes and begin with 0x6b, so foreign peers drop them. Until a peer's hello
lists a feature, it is sent nothing but hello (docs/protocols/zmq-raft.md, "Extensions").
"""

import struct
from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

from ....native.log.blocks import block_encode
from ...errors import RemoteProtocolError
from ...raft.messages import KIND_STATE, AppendEntries, AppendResponse, EntryBatch, RequestVote
from ...record import BLOCK_HEADER, check_block
from ...wire import Case, Cases, Constant, Frame, FrameType, Layout, Rest, RestType, Unused
from . import values as v
from .client_codec import (
    ENTRIES_ANSWER,
    EntriesAnswer,
    RequestEntries,
    check_entries_answer,
    entries_cases,
)
from .peer_codec import VOTE_FRAMES

BLOCKS_MAX = 256  # Of one packed AppendEntries.
ENTRIES_BLOCKS_MAX = 1024  # Of one packed answer to RequestEntries.
PACK_BYTES_MAX = 1 << 20
PACK_COUNT_MAX = 4096
PACK_FRAME_BYTES_MAX = (10 << 20) + 32  # A record of the largest size is allowed alone.

PACK_NOT_LEADER = 0
PACK_ACCEPTED = 1
PACK_GAP = 2
PACK_REFUSED = 3

_RUN = struct.Struct("<IQ")
_SUCCESS_WAITS = b"\x03"  # Success; any number but 0 is true.

# ---- hello ----


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
    time_ms: int = 0  # Its wall clock, in ms since the epoch; 0: not known.


def _encode_map(hello: Hello, **named: str) -> bytes:
    members = hello.members and [list(member) for member in hello.members]
    fields = {**hello._asdict(), "witnessed": dict(hello.witnessed), "members": members}
    del fields["peer"]
    return v.encode_json({**fields, **named})


def _decode_map(frame: bytes, is_named: bool) -> tuple[object, ...]:
    value = v.decode_json(frame)
    if not isinstance(value, dict):
        raise RemoteProtocolError("a hello holds a map")
    version, features = value.get("version"), value.get("features")
    if not isinstance(version, str) or not isinstance(features, list):
        raise RemoteProtocolError("a hello without version or features")
    if not all(isinstance(feature, str) for feature in features):
        raise RemoteProtocolError("a feature is a string")
    return (
        *((v.check_peer_id(value.get("peer")),) if is_named else ()),
        version,
        tuple(features),
        _number(value, "incarnation"),
        value.get("empty") is True,
        _number(value, "last_index"),
        value.get("voter") is not False,
        _witnessed(value.get("witnessed", {})),
        _peer_url(value.get("peer_url", "")),
        None if value.get("members") is None else v.check_voters(value["members"]),
        _number(value, "time_ms"),
    )


def _peer_url(value: object) -> str:
    if not isinstance(value, str) or len(value.encode()) > v.URL_BYTES_MAX:
        raise RemoteProtocolError("a hello's peer_url is a string")
    return value


def _witnessed(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, dict):
        raise RemoteProtocolError("a hello's witnessed is a map")
    return tuple((v.check_peer_id(peer), _number(value, peer)) for peer in value)


def _number(value: dict[object, object], key: str) -> int:
    number = value.get(key, 0)
    if type(number) is not int or not 0 <= number <= v.UINT_MAX:
        raise RemoteProtocolError(f"a hello's {key} is a number")
    return number


HELLO_MAP = FrameType(
    "json",
    lambda fields: _encode_map(Hello("", *fields)),
    lambda frame: _decode_map(frame, is_named=False),
)
HELLO_ANSWER_MAP = FrameType(
    "json",
    lambda fields: _encode_map(Hello(*fields), peer=fields[0]),
    lambda frame: _decode_map(frame, is_named=True),
)

# A peer's id is a message id, a client's a request id.
HELLO_REQUEST = Layout(
    "hello", Hello,
    v.ANSWER_ID._replace(meaning="id: 1 to 12 bytes, repeated in the answer"), Constant(v.HELLO),
    v.IDENT,
    Frame("peer", v.PEER_ID_OR_EMPTY, "PEER ID of the sender, empty for a client"),
    Frame(Hello._fields[1:], HELLO_MAP, "map of the keys below; unknown ones are ignored"),
)  # fmt: skip
HELLO_ANSWER = Layout(
    "hello answer", Hello,
    v.ANSWER_ID, Constant(v.HELLO),
    Frame(Hello._fields, HELLO_ANSWER_MAP, "the responder's map, with its PEER ID as `peer`"),
)  # fmt: skip

# ---- requests that a key does not allow ----


class RequestDenied(NamedTuple):
    """The grants of the client's key do not allow a request. It did nothing."""

    request_type: bytes


def _decode_type(frame: bytes) -> bytes:
    if not 1 <= len(frame) <= len(v.NOT_ALLOWED):
        raise RemoteProtocolError(f"a type has 1 or 2 bytes, got {len(frame)}")
    return frame


REQUEST_TYPE = FrameType("bytes", bytes, _decode_type)

NOT_ALLOWED_ANSWER = Layout(
    "not allowed", RequestDenied,
    v.ANSWER_ID, Constant(v.NOT_ALLOWED),
    Frame("request_type", REQUEST_TYPE, "type of the request"),
)  # fmt: skip

TOO_MANY_ANSWER = Layout(
    "too many", RequestDenied,
    v.ANSWER_ID, Constant(v.TOO_MANY),
    Frame("request_type", REQUEST_TYPE, "type of the request, of which its client has too many"),
)  # fmt: skip

# ---- between peers ----

# It has RequestVote's frames and answer, with the TERM of the next campaign.
PRE_VOTE_REQUEST = Layout(
    "pre-vote", RequestVote,
    v.MESSAGE_ID, Constant(v.PRE_VOTE), v.IDENT,
    *VOTE_FRAMES,
    given={"pre_vote": True},
)  # fmt: skip


def _encode_blocks(batches: Sequence[EntryBatch]) -> list[bytes]:
    return [batch.block for batch in batches]


def _decode_blocks(frames: Sequence[bytes]) -> tuple[EntryBatch, ...]:
    return tuple(check_block(frame) for frame in frames)


def _encode_success(fields: Sequence[bool]) -> bytes:
    success, clients_wait = fields
    return _SUCCESS_WAITS if success and clients_wait else v.encode_bool(success)


def _decode_success(frame: bytes) -> tuple[bool, bool]:
    return v.decode_bool(frame), frame == _SUCCESS_WAITS


BLOCKS = RestType("bytes", _encode_blocks, _decode_blocks)
SUCCESS = FrameType("bool", _encode_success, _decode_success)
APPEND_NUMBERS = v.numbers_type(4)
APPEND_ANSWER_NUMBERS = v.numbers_type(3)
_APPEND_NUMBERS = struct.Struct("<4Q")
_APPEND_ANSWER_NUMBERS = struct.Struct("<3Q")


class _PackedAppend(Layout[AppendEntries]):
    """Handles the usual message in fewer steps, for each batch of updates; any other as Layout."""

    def decode(self, frames: Sequence[bytes], cluster: bytes = b"") -> AppendEntries:
        count = len(frames)
        if (
            5 <= count <= 6
            and frames[1] == v.APPEND_PACKED
            and frames[2] == cluster
            and 1 <= len(frames[0]) <= v.MESSAGE_ID_BYTES_MAX
            and len(frames[4]) == _APPEND_NUMBERS.size
            and max(numbers := _APPEND_NUMBERS.unpack(frames[4])) <= v.UINT_MAX
        ):
            try:
                leader = v.decode_peer_id(frames[3])
                batches = (check_block(frames[5]),) if count == 6 else ()
                term, prev_index, prev_term, commit_index = numbers
                return AppendEntries(term, leader, prev_index, prev_term, commit_index, batches)
            except RemoteProtocolError:
                pass  # Layout tells the frame.
        return super().decode(frames, cluster)

    def encode(
        self, message: AppendEntries, message_id: Any = None, cluster: bytes = b""
    ) -> list[bytes]:
        term, leader, prev_index, prev_term, commit_index, batches, _ = message
        numbers = _APPEND_NUMBERS.pack(term, prev_index, prev_term, commit_index)
        frames = [v.encode_uint(message_id), v.APPEND_PACKED, cluster, leader.encode(), numbers]
        for batch in batches:
            frames.append(batch.block)
        return frames


class _PackedAppendAnswer(Layout[AppendResponse]):
    """As _PackedAppend, for the answer."""

    def decode(self, frames: Sequence[bytes], cluster: bytes = b"") -> AppendResponse:
        if (
            len(frames) == 4
            and 1 <= len(frames[0]) <= v.MESSAGE_ID_BYTES_MAX
            and 1 <= len(frames[1]) <= v.UINT_BYTES_MAX
            and len(frames[3]) == _APPEND_ANSWER_NUMBERS.size
        ):
            term = int.from_bytes(frames[1], "little")
            match_index, conflict_index, conflict_term = _APPEND_ANSWER_NUMBERS.unpack(frames[3])
            if max(term, match_index, conflict_index, conflict_term) <= v.UINT_MAX:
                success, waits = _decode_success(frames[2])
                return AppendResponse(
                    term, success, match_index, conflict_index, conflict_term, 0, waits
                )
        return super().decode(frames, cluster)

    def encode(
        self, message: AppendResponse, message_id: Any = None, cluster: bytes = b""
    ) -> list[bytes]:
        term, success, match_index, conflict_index, conflict_term, _, waits = message
        return [
            v.encode_uint(message_id),
            v.encode_uint(term),
            _encode_success((success, waits)),
            _APPEND_ANSWER_NUMBERS.pack(match_index, conflict_index, conflict_term),
        ]


APPEND_PACKED_REQUEST = _PackedAppend(
    "packed AppendEntries", AppendEntries,
    v.MESSAGE_ID, Constant(v.APPEND_PACKED), v.IDENT,
    Frame("leader", v.PEER_ID, "leader's PEER ID"),
    Frame(("term", "prev_index", "prev_term", "commit_index"), APPEND_NUMBERS,
        "leader's TERM, previous LOG INDEX, its LOG TERM, COMMIT INDEX"),
    Rest("batches", BLOCKS, "blocks as in the log ([disk format](../reference/disk-format.md))",
         BLOCKS_MAX),
)  # fmt: skip
APPEND_PACKED_ANSWER = _PackedAppendAnswer(
    "packed AppendEntries answer", AppendResponse,
    v.MESSAGE_ID,
    Frame("term", v.UINT, "responder's TERM"),
    Frame(("success", "clients_wait"), SUCCESS,
        "success; the byte 3 for success while clients of the responder's node wait for commits"),
    Frame(("match_index", "conflict_index", "conflict_term"), APPEND_ANSWER_NUMBERS,
        "match index, conflict LOG INDEX, conflict TERM"),
)  # fmt: skip

# ---- packs of updates ----


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


def _decode_previous(frame: bytes) -> bytes:
    return v.decode_reqid(frame) if frame else frame


def _decode_records(frame: bytes) -> bytes:
    if not 0 < len(frame) <= PACK_FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a pack with {len(frame)} bytes of records")
    return frame


REQID_OR_EMPTY = FrameType("bytes", bytes, _decode_previous)
RECORDS = FrameType("bytes", bytes, _decode_records)

# Peers decode packs in C.
PACK_REQUEST = Layout(
    "pack", Pack,
    Frame("reqid", v.REQID, "reqid of the first update: the pack's id"),
    Constant(v.UPDATE_PACK), v.IDENT,
    Frame("previous", REQID_OR_EMPTY, "reqid of the update before this pack, or empty"),
    Frame("records", RECORDS,
        "records as in the log, each with its reqid: at most 1 MiB and 4096, or a single larger "
        "one"),
)  # fmt: skip


class PackAnswer(NamedTuple):
    """The answer to a pack. The status tells which of the other fields are valid."""

    status: int
    # ACCEPTED: pairs (count, first index); none: not yet committed.
    runs: tuple[tuple[int, int], ...] = ()
    leader: str | None = None  # NOT_LEADER
    position: int = 0  # REFUSED: the record's position, from 0 ...
    reason: str = ""  # ... and the reason; a refusal is final.


def _encode_runs(runs: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(_RUN.pack(count, first_index) for count, first_index in runs)


def _decode_runs(payload: bytes) -> tuple[tuple[int, int], ...]:
    if len(payload) % _RUN.size or len(payload) > _RUN.size * PACK_COUNT_MAX:
        raise RemoteProtocolError(f"runs of {len(payload)} bytes")
    runs: list[tuple[int, int]] = []
    for count, first_index in _RUN.iter_unpack(payload):
        if not 1 <= count <= PACK_COUNT_MAX or not 1 <= first_index <= v.UINT_MAX:
            raise RemoteProtocolError("a run of indexes over the limits")
        runs.append((count, first_index))
    return tuple(runs)


def _decode_refusal(frame: bytes) -> tuple[int, str]:
    match v.decode_json(frame):
        case [int(position), str(reason)] if 0 <= position < PACK_COUNT_MAX:
            return position, reason
    raise RemoteProtocolError("the answer to a refused pack needs position and reason")


RUNS = FrameType("bytes", _encode_runs, _decode_runs)
REFUSAL = FrameType("json", v.encode_json, _decode_refusal)

PACK_ANSWER = Layout(
    "pack answer", PackAnswer,
    v.ANSWER_REQID, Constant(v.UPDATE_PACK),
    Cases("status", v.BYTE, "status",
        Case(PACK_NOT_LEADER, "not the leader", Frame("leader", v.LEADER, "LEADER ID or null")),
        Case(PACK_ACCEPTED, "accepted",
            Frame("runs", RUNS,
                "empty: not yet committed, repeated like `[reqid, 01]`; else runs of count (4 "
                "bytes) and first LOG INDEX (8), little endian, which cover the updates in "
                "order")),
        Case(PACK_GAP,
            "a gap: the previous update is unknown, or was in a pack that was not taken; the "
            "client sends all updates from the first unanswered one",
            Unused("empty")),
        Case(PACK_REFUSED, "refused for good, with all of its updates",
            Frame(("position", "reason"), REFUSAL, "`[position, reason]`"))),
)  # fmt: skip

# ---- whole blocks for clients ----


def _check_blocks(answer: EntriesAnswer) -> str:
    batches = answer.batches
    for batch, following in pairwise(batches):
        if following.first_index != batch.last_index + 1:
            return "its blocks do not follow each other"
    if batches and batches[-1].last_index != answer.last_index:
        return "its blocks do not end at its LOG INDEX"
    return check_entries_answer(answer)


ENTRIES_PACKED_REQUEST = Layout(
    "packed RequestEntries", RequestEntries,
    Frame("reqid", v.REQUEST_ID, "reqid of the stream"),
    Constant(v.ENTRIES_PACKED), v.IDENT,
    Frame("prev_index", v.UINT, "previous LOG INDEX"),
    Frame("limit", v.COUNT, "count of entries; empty: all; 0: stop", optional=True),
    Frame("offset", v.COUNT, "empty, or next byte offset, while chunks are outstanding",
        optional=True),
    Frame("any_peer", v.BOOL, "any peer answers, leader or not", optional=True),
    Frame("container", v.BOOL, "chunks are of the snapshot's container, not of its state",
        optional=True),
    given={"packed": True},
)  # fmt: skip
ENTRIES_PACKED_ANSWER = Layout(
    "packed entries answer", EntriesAnswer,
    v.ANSWER_ID, Constant(v.ENTRIES_PACKED),
    entries_cases(
        Rest("batches", BLOCKS,
            "contiguous blocks as in the log, of 1 MiB + 4 KiB at most, or one larger entry",
            ENTRIES_BLOCKS_MAX)),
    check=_check_blocks,
)  # fmt: skip
# By RequestEntries.packed.
ENTRIES_ANSWERS = {False: ENTRIES_ANSWER, True: ENTRIES_PACKED_ANSWER}
