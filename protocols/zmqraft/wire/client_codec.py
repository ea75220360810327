"""Messages between clients and peers, in text form and node form.

Entries stay encoded (entry.py). config_codec.py has ConfigUpdate.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from ....native.net.messages import Frames
from ...errors import RemoteProtocolError
from ...raft.messages import EntryBatch
from ...wire import Case, Cases, Constant, Frame, FrameType, Ident, Layout, Rest, RestType, Unused
from . import values as v
from .config_codec import CONFIG_UPDATE_REQUEST, ConfigUpdate
from .entry import check_heads
from .peer_codec import ENTRIES, decode_entry_frames
from .snapshot_codec import MAKE_SNAPSHOT_REQUEST, MakeSnapshot

ENTRIES_ANSWER_MAX = 4096  # Entries of one answer to RequestEntries.


class Form(Enum):
    TEXT = "text"  # [id, type, args...]
    NODE = "node"  # [id, type, cluster ident, args...]


class ReplyAddress(NamedTuple):
    """Where answers to a request go: a socket's outgoing frames, the client's routing id.

    foreign   the client has no CURVE, at an endpoint beside those with CURVE
    slot      of its key; None: the endpoint has no CURVE
    """

    out: Frames
    routing_id: bytes
    foreign: bool = False
    slot: int | None = None

    @property
    def client(self) -> bytes | int:
        """What has limits: all connections of a key together, or this connection."""
        return self.routing_id if self.foreign or self.slot is None else self.slot

    def send(self, frames: Sequence[bytes]) -> None:
        self.out.add([self.routing_id, *frames])


class RequestConfig(NamedTuple):
    reqid: bytes


class RequestLogInfo(NamedTuple):
    reqid: bytes


class RequestBroadcastStateUrl(NamedTuple):
    reqid: bytes


class RequestUpdate(NamedTuple):
    reqid: bytes
    data: bytes = b""


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
    container: bool = False  # With packed: chunks are of the snapshot's container, not its state.


ClientRequest = (
    RequestConfig
    | RequestLogInfo
    | RequestBroadcastStateUrl
    | RequestUpdate
    | RequestEntries
    | ConfigUpdate
    | MakeSnapshot
)

# ---- requests ----


def _forms(
    name: str, value: type[Any], type_: bytes, node_id: FrameType, *frames: Frame, node: int = 0
) -> dict[Form, Layout[Any]]:
    """A request in both forms.

    node_id   of the id in node form; in text form it is a reqid
    node      so many of the last frames exist in node form only
    """
    id_ = Frame("reqid", v.REQID, "reqid")
    return {
        Form.NODE: Layout(
            name,
            value,
            id_._replace(type=node_id),
            Constant(type_),
            v.IDENT,
            *frames,
            ignores_more=True,
        ),
        Form.TEXT: Layout(name, value, id_, Constant(type_), *frames[: len(frames) - node]),
    }


REQUESTS = {
    v.REQUEST_CONFIG: _forms("RequestConfig", RequestConfig, v.REQUEST_CONFIG, v.REQUEST_ID),
    v.REQUEST_LOG_INFO: _forms("RequestLogInfo", RequestLogInfo, v.REQUEST_LOG_INFO, v.REQUEST_ID),
    v.REQUEST_BROADCAST_STATE_URL: _forms(
        "RequestBroadcastStateUrl",
        RequestBroadcastStateUrl,
        v.REQUEST_BROADCAST_STATE_URL,
        v.REQUEST_ID,
    ),
    v.REQUEST_UPDATE: _forms(
        "RequestUpdate",
        RequestUpdate,
        v.REQUEST_UPDATE,
        v.REQID,
        Frame("data", v.BYTES, "the update: 1 byte to 10 MiB", optional=True),
    ),
    v.REQUEST_ENTRIES: _forms(
        "RequestEntries",
        RequestEntries,
        v.REQUEST_ENTRIES,
        v.REQUEST_ID,
        Frame("prev_index", v.UINT, "previous LOG INDEX"),
        Frame("limit", v.COUNT, "count of entries; empty: all; 0: stop", optional=True),
        Frame(
            "offset",
            v.COUNT,
            "next byte offset, while chunks are outstanding; in a first request the offset to "
            "resume the state at",
            optional=True,
        ),
        node=1,
    ),
}
_BY_VALUE = {forms[Form.NODE].value: forms for forms in REQUESTS.values()}

# Type: (frames of the text form, fewest, most), fewest frames of the node form.
_SHAPES = {
    v.REQUEST_CONFIG: (2, 2, 3),
    v.REQUEST_LOG_INFO: (2, 2, 3),
    v.REQUEST_BROADCAST_STATE_URL: (2, 2, 3),
    v.REQUEST_UPDATE: (3, 3, 3),
    v.REQUEST_ENTRIES: (3, 4, 4),
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
    if frames[1] == v.CONFIG_UPDATE:
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
    if isinstance(request, RequestUpdate):  # By hand: the only one that clients send in numbers.
        ident = [cluster] if form is Form.NODE else []
        return [request.reqid, v.REQUEST_UPDATE, *ident, request.data]
    if isinstance(request, ConfigUpdate):  # It exists in node form only.
        return CONFIG_UPDATE_REQUEST.encode(request, cluster=cluster)
    if isinstance(request, MakeSnapshot):  # Kelek's own, in one form only.
        return MAKE_SNAPSHOT_REQUEST.encode(request, cluster=cluster)
    return _BY_VALUE[type(request)][form].encode(request, cluster=cluster)


def decode_client_request(frames: Sequence[bytes], cluster: bytes) -> tuple[Form, ClientRequest]:
    """Decodes any request of a client ("Client messages"). Returns (form, request).

    Raises RemoteProtocolError also when it has neither form. It returns empty and too long updates,
    because they get an answer.
    """
    form = client_form(frames, cluster)
    if form is None or frames[1] == v.CONFIG_UPDATE:
        raise RemoteProtocolError("a client request of no known shape")
    request: ClientRequest = REQUESTS[frames[1]][form].decode(frames, cluster)
    return form, request


# ---- answers ----


class ConfigAnswer(NamedTuple):
    """The leader and the members of a cluster.

    leading   the responding peer is the leader
    leader    the leader's PEER ID; None: none is known
    members   (PEER ID, url) of each member; None: the peer does not lead
    """

    leading: bool
    leader: str | None
    members: tuple[tuple[str, str], ...] | None = None


LEADING = Frame("leading", v.BOOL, "the responder leads")
LEADER_OR_NULL = Frame("leader", v.LEADER, "LEADER ID or null")

CONFIG_ANSWER = Layout(
    "config answer", ConfigAnswer,
    v.ANSWER_ID, LEADING, LEADER_OR_NULL,
    Frame("members", v.MEMBERS,
        "`[[PEER ID, url], ...]`; during a change the old members and the new ones",
        optional=True),
)  # fmt: skip


class UpdateStatus(Enum):
    ACCEPTED = "accepted"  # Not committed yet; may be sent several times.
    COMMITTED = "committed"
    REFUSED = "refused"  # By this peer: the client looks for the leader.
    REJECTED = "rejected"  # For good: the request id has expired, or the data is invalid.


class UpdateAnswer(NamedTuple):
    status: UpdateStatus
    log_index: int = 0  # COMMITTED.
    leader: str | None = None  # REFUSED: the leader, if known.


UPDATE_STATUS = FrameType(
    "bool",
    lambda status: v.encode_bool(status in (UpdateStatus.ACCEPTED, UpdateStatus.COMMITTED)),
    v.decode_bool,
)
UPDATE_ANSWER = Layout(
    "update answer", UpdateAnswer,
    v.ANSWER_REQID,
    Cases("status", UPDATE_STATUS, "status",
        Case(UpdateStatus.ACCEPTED,
            "accepted, not yet committed: sent after 100 ms and every 100 ms from then on, and "
            "restarts the client's timeout"),
        Case(UpdateStatus.COMMITTED, "committed", Frame("log_index", v.JSON_UINT, "LOG INDEX")),
        Case(UpdateStatus.REFUSED, "this peer does not lead", LEADER_OR_NULL),
        Case(UpdateStatus.REJECTED,
            "refused for good: the reqid has expired, or the data is empty or too long")),
)  # fmt: skip


class EntriesStatus(Enum):
    """Frame 2 of an answer to RequestEntries."""

    NOT_LEADER = 0
    LAST = 1
    MORE = 2
    SNAPSHOT = 3


class StateChunk(NamedTuple):
    """The position of a chunk of a snapshot's state, which is sent instead of the entries that the
    snapshot includes."""

    offset: int
    size: int  # Of the whole state.
    term: int | None  # Of the last included entry; absent in text form.


class EntriesAnswer(NamedTuple):
    status: EntriesStatus
    last_index: int = 0  # The last entry's index; without entries the previous one's.
    entries: tuple[bytes, ...] = ()
    leader: str | None = None
    batches: tuple[EntryBatch, ...] = ()  # Instead of entries, in packed answers.
    chunk: StateChunk | None = None  # SNAPSHOT: last_index is the last included index.
    data: bytes = b""  # Of the chunk.

    @property
    def entries_count(self) -> int:
        return len(self.entries) + sum(batch.count for batch in self.batches)


def _encode_chunk(chunk: StateChunk) -> bytes:
    return v.encode_json(list(chunk[:2] if chunk.term is None else chunk))


def _decode_chunk(frame: bytes) -> StateChunk:
    match v.decode_json(frame):
        case [int(offset), int(size), *term] as numbers if len(term) <= 1:
            if all(type(number) is int and 0 <= number <= v.UINT_MAX for number in numbers):
                return StateChunk(offset, size, term[0] if term else None)
    raise RemoteProtocolError("a snapshot chunk names offset and size")


def check_entries_answer(answer: EntriesAnswer) -> str:
    """What is wrong with an answer whose frames are valid; "" when nothing is."""
    if answer.chunk is not None:
        offset, size, _ = answer.chunk
        if offset + len(answer.data) > size or (size and not answer.data):
            return f"a chunk of {len(answer.data)} bytes at {offset} of {size}"
    elif answer.last_index < len(answer.entries):
        return "more entries than its LOG INDEX"
    return ""


ENTRIES_STATUS = FrameType("uint", lambda status: v.UINT.encode(status.value), v.UINT.decode)
CHUNK_POSITION = FrameType("json", _encode_chunk, _decode_chunk)


def entries_cases(entries: Rest) -> Cases:
    """The frames of answers to RequestEntries, with entries of either form."""
    follows = (
        Unused("ignored", v.NULL),
        Frame("last_index", v.UINT, "LOG INDEX of the last entry here, or the previous one"),
        entries,
    )
    return Cases(
        "status",
        ENTRIES_STATUS,
        "status",
        Case(EntriesStatus.NOT_LEADER, "not the leader", LEADER_OR_NULL),
        Case(EntriesStatus.LAST, "last answer", *follows),
        Case(EntriesStatus.MORE, "more answers follow", *follows),
        Case(
            EntriesStatus.SNAPSHOT,
            "a chunk of a snapshot's state",
            Frame("chunk", CHUNK_POSITION, "`[offset, size]`, in node form `[offset, size, TERM]`"),
            Frame("last_index", v.UINT, "LOG INDEX of the last entry in the snapshot"),
            Frame("data", v.BYTES, "the chunk"),
        ),
    )


ENTRIES_ANSWER = Layout(
    "entries answer", EntriesAnswer,
    v.ANSWER_ID,
    entries_cases(Rest("entries", ENTRIES, "the entries", ENTRIES_ANSWER_MAX)),
    check=check_entries_answer,
)  # fmt: skip


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


LOG_INFO_ANSWER = Layout(
    "log info answer", LogInfo,
    v.ANSWER_ID, LEADING, LEADER_OR_NULL,
    Frame("term", v.UINT, "TERM"),
    Frame("first_index", v.UINT, "first LOG INDEX"),
    Frame("applied_index", v.UINT, "LAST APPLIED INDEX"),
    Frame("commit_index", v.UINT, "COMMIT INDEX"),
    Frame("last_index", v.UINT, "last LOG INDEX"),
    Frame("snapshot_bytes", v.UINT, "bytes of the snapshot"),
    Frame("prune_index", v.UINT,
        "node form only: prune index, the highest LOG INDEX up to which every reqid has expired "
        "(within a minute of log time)",
        optional=True),
)  # fmt: skip


class StateUrlAnswer(NamedTuple):
    url: str | None = None  # None: no broadcast here, or not the leader.


STATE_URL_ANSWER = Layout(
    "state url answer", StateUrlAnswer,
    v.ANSWER_ID,
    Frame("url", v.URL, "url of the PUB socket", optional=True),
)  # fmt: skip


class StateBroadcast(NamedTuple):
    """A message of the leader's PUB socket: entries after each apply, or none as a heartbeat."""

    term: int
    applied_index: int
    entries: tuple[bytes, ...] = ()


def _decode_broadcast_entries(frames: Sequence[bytes]) -> tuple[bytes, ...]:
    entries = decode_entry_frames(frames)
    check_heads(entries)
    return entries


BROADCAST_ENTRIES = RestType("entry", tuple, _decode_broadcast_entries)
STATE_BROADCAST = Layout(
    "StateBroadcast", StateBroadcast,
    Ident("cluster ident: the topic"),
    Frame("term", v.UINT, "leader's TERM"),
    Frame("applied_index", v.UINT, "LAST APPLIED INDEX"),
    Rest("entries", BROADCAST_ENTRIES,
        "the entries just applied, of every type; the last one has that index",
        ENTRIES_ANSWER_MAX),
    check=lambda message: (
        "more entries than its LAST APPLIED INDEX"
        if message.applied_index < len(message.entries)
        else ""
    ),
)  # fmt: skip
