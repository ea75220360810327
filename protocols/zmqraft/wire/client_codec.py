"""Codec of messages between clients and peers, in text form and node form.

Pure functions over frames as on a DEALER: without a routing id. Entries stay encoded (entry.py).
config_codec.py has ConfigUpdate.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from ....native.net.messages import Frames
from ...errors import RemoteProtocolError
from ...raft.messages import EntryBatch
from .config_codec import CONFIG_UPDATE_REQUEST, ConfigUpdate
from .entry import check_heads
from .peer_codec import check_entries
from .snapshot_codec import MAKE_SNAPSHOT_REQUEST, MakeSnapshot
from .values import (
    CONFIG_UPDATE,
    REQUEST_BROADCAST_STATE_URL,
    REQUEST_CONFIG,
    REQUEST_ENTRIES,
    REQUEST_LOG_INFO,
    REQUEST_UPDATE,
    UINT_MAX,
    URL_BYTES_MAX,
    decode_bool,
    decode_count,
    decode_id,
    decode_ident,
    decode_json,
    decode_json_uint,
    decode_leader,
    decode_members,
    decode_reqid,
    decode_string,
    decode_uint,
    encode_bool,
    encode_json,
    encode_members,
    encode_uint,
    expect,
)

ENTRIES_ANSWER_MAX = 4096  # Entries of one answer to RequestEntries.


class Form(Enum):
    """The two forms of a client's requests."""

    TEXT = "text"  # [id, type, args...]
    NODE = "node"  # [id, type, cluster ident, args...]


class ReplyAddress(NamedTuple):
    """Where answers to a request go: a socket's outgoing frames, the client's routing id."""

    out: Frames
    routing_id: bytes


class RequestConfig(NamedTuple):
    reqid: bytes


class RequestLogInfo(NamedTuple):
    reqid: bytes


class RequestBroadcastStateUrl(NamedTuple):
    reqid: bytes


class RequestUpdate(NamedTuple):
    reqid: bytes
    data: bytes


class RequestEntries(NamedTuple):
    """The first request of a stream, or a follow-up with the same id."""

    reqid: bytes
    prev_index: int
    limit: int | None = None  # Of entries. None: no limit; 0: stop.
    # Node form: the next offset, while the client receives a snapshot's state.
    offset: int | None = None
    packed: bool = False  # Kelek's own type: whole blocks in large messages (extensions.py).
    text: bool = False  # In text form; the answers are, too.
    any_peer: bool = False  # With packed: any peer answers, leader or not.


ClientRequest = (
    RequestConfig
    | RequestLogInfo
    | RequestBroadcastStateUrl
    | RequestUpdate
    | RequestEntries
    | ConfigUpdate
    | MakeSnapshot
)

# Type: (frames of the text form, fewest, most), fewest frames of the node form.
_SHAPES = {
    REQUEST_CONFIG: (2, 2, 3),
    REQUEST_LOG_INFO: (2, 2, 3),
    REQUEST_BROADCAST_STATE_URL: (2, 2, 3),
    REQUEST_UPDATE: (3, 3, 3),
    REQUEST_ENTRIES: (3, 4, 4),
}


def client_form(frames: Sequence[bytes], cluster: bytes) -> Form | None:
    """Returns the form of a request by its shape alone ("Two forms"); None: drop and count it.

    node     frame 3 equals our ident, and ^ % * = have 3 frames or more, < 4 or more, & exactly 4
    text     exactly 2 frames for ^ % *, exactly 3 for =, 3 or 4 for <; & does not exist

    [id, <, X] has text form also when X equals the ident. [id, =, ident] is an update without data.
    An update of another cluster's client, [id, =, WRONG, data], has neither form.
    """
    count = len(frames)
    if count < 2:
        return None
    if frames[1] == CONFIG_UPDATE:
        return Form.NODE if count == 4 and frames[2] == cluster else None
    shape = _SHAPES.get(frames[1])
    if shape is None:
        return None
    text_min, text_max, node_min = shape
    if count >= node_min and frames[2] == cluster:
        return Form.NODE
    return Form.TEXT if text_min <= count <= text_max else None


def encode_client_request(
    request: ClientRequest, cluster: bytes, form: Form = Form.NODE
) -> list[bytes]:
    """Encodes any request of a client; decode_client_request lists the frames."""
    ident = [cluster] if form is Form.NODE else []
    match request:
        case RequestConfig(reqid):
            return [reqid, REQUEST_CONFIG, *ident]
        case RequestLogInfo(reqid):
            return [reqid, REQUEST_LOG_INFO, *ident]
        case RequestBroadcastStateUrl(reqid):
            return [reqid, REQUEST_BROADCAST_STATE_URL, *ident]
        case RequestUpdate(reqid, data):
            return [reqid, REQUEST_UPDATE, *ident, data]
        case RequestEntries():
            return _encode_request_entries(request, ident)
        case ConfigUpdate():  # It exists in node form only.
            return CONFIG_UPDATE_REQUEST.encode(request, cluster=cluster)
        case MakeSnapshot():  # Kelek's own, in one form only.
            return MAKE_SNAPSHOT_REQUEST.encode(request, cluster=cluster)


def _encode_request_entries(request: RequestEntries, ident: list[bytes]) -> list[bytes]:
    frames = [request.reqid, REQUEST_ENTRIES, *ident, encode_uint(request.prev_index)]
    count = b"" if request.limit is None else encode_uint(request.limit)
    if ident and request.offset is not None:
        return [*frames, count, encode_uint(request.offset)]
    return [*frames, count] if count else frames


def decode_client_request(frames: Sequence[bytes], cluster: bytes) -> tuple[Form, ClientRequest]:
    """Decodes any request of a client ("Client messages").

    frames   1 reqid   12 bytes; in node form ^ % * < take any id of 1 to 12 bytes
             2 bytes   message type: ^ config, % log info, * state url, = update, < entries
             3 bytes   cluster ident, in node form only; the next ones then follow
      =      3 bytes   the update's data, at least one byte; absent in node form: none
      <      3 uint    previous LOG INDEX
             4 uint    count of entries; absent or empty: no limit; 0: stop
             5 uint    next byte offset of a snapshot, in node form only

    Returns (form, request). Raises RemoteProtocolError when it has neither form, on a wrong id and
    on a number over its limit. It returns empty and too long updates, because they get an answer.
    """
    form = client_form(frames, cluster)
    if form is None or frames[1] == CONFIG_UPDATE:
        raise RemoteProtocolError("a client request of no known shape")
    kind, args = frames[1], frames[3:] if form is Form.NODE else frames[2:]
    if kind == REQUEST_UPDATE:
        return form, RequestUpdate(decode_reqid(frames[0]), args[0] if args else b"")
    reqid = (decode_id if form is Form.NODE else decode_reqid)(frames[0])
    if kind == REQUEST_CONFIG:
        return form, RequestConfig(reqid)
    if kind == REQUEST_LOG_INFO:
        return form, RequestLogInfo(reqid)
    if kind == REQUEST_BROADCAST_STATE_URL:
        return form, RequestBroadcastStateUrl(reqid)
    count = decode_count(args[1]) if len(args) > 1 else None
    offset = decode_count(args[2]) if len(args) > 2 else None
    return form, RequestEntries(reqid, decode_uint(args[0]), count, offset)


class ConfigAnswer(NamedTuple):
    """The leader and the members of a cluster (docs/protocols/zmq-raft.md, "Client messages").

    leading   the responding peer is the leader
    leader    the leader's PEER ID; None: none is known
    members   (PEER ID, url) of each member; None: the peer does not lead
    """

    leading: bool
    leader: str | None
    members: tuple[tuple[str, str], ...] | None = None


def encode_config_answer(reqid: bytes, answer: ConfigAnswer) -> list[bytes]:
    """Encodes the answer to RequestConfig."""
    frames = [reqid, encode_bool(answer.leading), encode_json(answer.leader)]
    return frames if answer.members is None else [*frames, encode_members(answer.members)]


def decode_config_answer(frames: Sequence[bytes]) -> tuple[bytes, ConfigAnswer]:
    """Decodes the answer to RequestConfig ("Client messages").

    frames   1 reqid   of the request
             2 bool    the responder is the leader
             3 json    LEADER ID, or null
    or also  4 json    [[PEER ID, url], ...]

    Returns (reqid, answer). Raises RemoteProtocolError on a wrong frame count or other json.
    """
    expect(frames, "a config answer", 3, 4)
    members = decode_members(frames[3]) if len(frames) == 4 else None
    leading, leader = decode_bool(frames[1]), decode_leader(frames[2])
    return decode_id(frames[0]), ConfigAnswer(leading, leader, members)


class UpdateStatus(Enum):
    """The four answers to RequestUpdate."""

    ACCEPTED = "accepted"  # Not committed yet; may be sent several times.
    COMMITTED = "committed"
    REFUSED = "refused"  # By this peer: the client looks for the leader.
    REJECTED = "rejected"  # For good: the request id has expired, or the data is invalid.


class UpdateAnswer(NamedTuple):
    status: UpdateStatus
    log_index: int = 0  # COMMITTED.
    leader: str | None = None  # REFUSED: the leader, if known.


def encode_update_answer(reqid: bytes, answer: UpdateAnswer) -> list[bytes]:
    """Encodes the answer to RequestUpdate."""
    match answer.status:
        case UpdateStatus.ACCEPTED:
            return [reqid, b"\x01"]
        case UpdateStatus.COMMITTED:
            return [reqid, b"\x01", encode_json(answer.log_index)]
        case UpdateStatus.REFUSED:
            return [reqid, b"", encode_json(answer.leader)]
        case UpdateStatus.REJECTED:
            return [reqid, b""]


def decode_update_answer(frames: Sequence[bytes]) -> tuple[bytes, UpdateAnswer]:
    """Decodes the answer to RequestUpdate ("Client messages").

    frames   1 reqid   of the request
             2 bool    true: accepted, with frame 3 committed; false: refused, without 3 for good
    or also  3 json    true: the LOG INDEX; false: LEADER ID, or null

    Returns (reqid, answer). Raises RemoteProtocolError on a wrong frame count or other json.
    """
    expect(frames, "an update answer", 2, 3)
    reqid, accepted = decode_reqid(frames[0]), decode_bool(frames[1])
    if len(frames) == 2:
        return reqid, UpdateAnswer(UpdateStatus.ACCEPTED if accepted else UpdateStatus.REJECTED)
    if accepted:
        return reqid, UpdateAnswer(UpdateStatus.COMMITTED, log_index=decode_json_uint(frames[2]))
    return reqid, UpdateAnswer(UpdateStatus.REFUSED, leader=decode_leader(frames[2]))


class EntriesStatus(Enum):
    """Frame 2 of an answer to RequestEntries."""

    NOT_LEADER = 0
    LAST = 1
    MORE = 2
    SNAPSHOT = 3


class StateChunk(NamedTuple):
    """A chunk of a snapshot's state, sent instead of the entries that the snapshot includes."""

    offset: int
    size: int  # Of the whole state.
    term: int | None  # Of the last included entry; absent in text form.
    data: bytes


class EntriesAnswer(NamedTuple):
    status: EntriesStatus
    last_index: int = 0  # The last entry's index; without entries the previous one's.
    entries: tuple[bytes, ...] = ()
    leader: str | None = None
    batches: tuple[EntryBatch, ...] = ()  # Instead of entries, in packed answers.
    chunk: StateChunk | None = None  # SNAPSHOT: last_index is the last included index.

    @property
    def entries_count(self) -> int:
        return len(self.entries) + sum(batch.count for batch in self.batches)


def encode_entries_answer(reqid: bytes, answer: EntriesAnswer) -> list[bytes]:
    """Encodes one answer to RequestEntries."""
    frames = [reqid, encode_uint(answer.status.value), encode_json(answer.leader)]
    if answer.status is EntriesStatus.NOT_LEADER:
        return frames
    if answer.chunk is not None:
        offset, size, term, data = answer.chunk
        frames[2] = encode_json([offset, size] if term is None else [offset, size, term])
        return [*frames, encode_uint(answer.last_index), data]
    return [*frames, encode_uint(answer.last_index), *answer.entries]


def decode_entries_answer(frames: Sequence[bytes]) -> tuple[bytes, EntriesAnswer]:
    """Decodes one answer to RequestEntries ("Client messages").

    frames   1 reqid   of the request
             2 uint    status: 0 not the leader, 1 last answer, 2 more answers follow, 3 a chunk of
                       a snapshot's state
             3 json    0: LEADER ID or null; 1 and 2: ignored; 3: [offset, size], in node form
                       [offset, size, LOG TERM of the last included entry]
             4 uint    1 and 2: LOG INDEX of the last entry here; 3: of the last included one
             5.. entry 1 and 2: the entries
             5 bytes   3: the chunk

    Returns (reqid, answer). Raises RemoteProtocolError on a wrong frame count, another status, an
    entry of a wrong size, or a chunk that is not within the state.
    """
    expect(frames, "an entries answer", 3, 4 + ENTRIES_ANSWER_MAX)
    reqid, status = decode_id(frames[0]), decode_uint(frames[1])
    if status == 0:
        answer = EntriesAnswer(EntriesStatus.NOT_LEADER, leader=decode_leader(frames[2]))
        return reqid, answer
    if status == 3:
        return reqid, _decode_chunk(frames)
    if status > 3:
        raise RemoteProtocolError(f"an entries answer of status {status}")
    expect(frames, "an entries answer", 4, 4 + ENTRIES_ANSWER_MAX)
    last_index, entries = decode_uint(frames[3]), tuple(frames[4:])
    check_entries(entries)
    if last_index < len(entries):
        raise RemoteProtocolError("an entries answer with more entries than its LOG INDEX")
    return reqid, EntriesAnswer(EntriesStatus(status), last_index, entries)


def _decode_chunk(frames: Sequence[bytes]) -> EntriesAnswer:
    expect(frames, "a snapshot chunk", 5, 5)
    numbers, data = decode_json(frames[2]), frames[4]
    if not isinstance(numbers, list) or not 2 <= len(numbers) <= 3:
        raise RemoteProtocolError("a snapshot chunk names offset and size")
    if not all(type(number) is int and 0 <= number <= UINT_MAX for number in numbers):
        raise RemoteProtocolError("a snapshot chunk's offset and size are numbers")
    offset, size, *term = numbers
    if offset + len(data) > size or (size and not data):
        raise RemoteProtocolError(f"a chunk of {len(data)} bytes at {offset} of {size}")
    chunk = StateChunk(offset, size, term[0] if term else None, data)
    return EntriesAnswer(EntriesStatus.SNAPSHOT, decode_uint(frames[3]), chunk=chunk)


class LogInfo(NamedTuple):
    """The state of a peer's log."""

    leading: bool
    leader: str | None
    term: int
    first_index: int
    applied_index: int
    commit_index: int
    last_index: int
    snapshot_bytes: int = 0
    prune_index: int | None = None


def encode_log_info_answer(reqid: bytes, answer: LogInfo) -> list[bytes]:
    """Encodes the answer to RequestLogInfo; with a prune index in node form."""
    numbers = [encode_uint(number) for number in answer[2:8]]
    if answer.prune_index is not None:
        numbers.append(encode_uint(answer.prune_index))
    return [reqid, encode_bool(answer.leading), encode_json(answer.leader), *numbers]


def decode_log_info_answer(frames: Sequence[bytes]) -> tuple[bytes, LogInfo]:
    """Decodes the answer to RequestLogInfo ("Client messages").

    frames   1 reqid   of the request
             2 bool    the responder is the leader
             3 json    LEADER ID, or null
             4 uint    current TERM
             5 uint    first LOG INDEX
             6 uint    LAST APPLIED INDEX
             7 uint    COMMIT INDEX
             8 uint    last LOG INDEX
             9 uint    bytes of the snapshot
    node    10 uint    prune index: every request id up to it has expired

    Returns (reqid, answer). Raises RemoteProtocolError on a wrong frame count, other json or a
    number over its limit.
    """
    expect(frames, "a log info answer", 9, 10)
    numbers = [decode_uint(frame) for frame in frames[3:]]
    leading, leader = decode_bool(frames[1]), decode_leader(frames[2])
    return decode_id(frames[0]), LogInfo(leading, leader, *numbers)


def encode_state_url_answer(reqid: bytes, url: str | None) -> list[bytes]:
    """Encodes the answer to RequestBroadcastStateUrl; None: no broadcast here, or not the
    leader."""
    return [reqid] if url is None else [reqid, url.encode()]


def decode_state_url_answer(frames: Sequence[bytes]) -> tuple[bytes, str | None]:
    """Decodes the answer to RequestBroadcastStateUrl ("Client messages").

    frames   1 reqid   of the request
    or also  2 string  URL of the PUB socket

    Returns (reqid, URL or None). Raises RemoteProtocolError on a wrong frame count or a URL that is
    empty, too long or not UTF-8.
    """
    expect(frames, "a state url answer", 1, 2)
    reqid = decode_id(frames[0])
    if len(frames) == 1:
        return reqid, None
    if not frames[1]:
        raise RemoteProtocolError("an empty url")
    return reqid, decode_string(frames[1], URL_BYTES_MAX)


class StateBroadcast(NamedTuple):
    """A message of the leader's PUB socket: entries after each apply, or none as a heartbeat."""

    term: int
    applied_index: int
    entries: tuple[bytes, ...] = ()


def encode_state_broadcast(cluster: bytes, message: StateBroadcast) -> list[bytes]:
    """Encodes a StateBroadcast. Its first frame is the subscription's topic."""
    numbers = [encode_uint(message.term), encode_uint(message.applied_index)]
    return [cluster, *numbers, *message.entries]


def decode_state_broadcast(frames: Sequence[bytes], cluster: bytes) -> StateBroadcast:
    """Decodes a StateBroadcast ("StateBroadcast").

    frames   1 bytes   cluster ident
             2 uint    leader's current TERM
             3 uint    LAST APPLIED INDEX
             4.. entry the entries just applied, the last one has that index

    Raises RemoteProtocolError on a wrong frame count, a foreign cluster ident, a number over its
    limit, an invalid entry, or too many entries. A subscriber gets dropped entries by
    RequestEntries.
    """
    expect(frames, "a StateBroadcast", 3, 3 + ENTRIES_ANSWER_MAX)
    decode_ident(frames[0], cluster)
    entries = tuple(frames[3:])
    check_entries(entries)
    check_heads(entries)
    message = StateBroadcast(decode_uint(frames[1]), decode_uint(frames[2]), entries)
    if message.applied_index < len(entries):
        raise RemoteProtocolError("a StateBroadcast with more entries than its LAST APPLIED INDEX")
    return message
