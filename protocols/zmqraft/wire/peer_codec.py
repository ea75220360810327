"""Messages between peers in the specification's form: RequestVote and AppendEntries.

Entries stay encoded (see entry.py; peers decode them in C by the batch). snapshot_codec.py has
InstallSnapshot.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from ...errors import RemoteProtocolError
from ...raft.messages import AppendResponse, RequestVote, Vote
from ...record import RECORD_BYTES_MAX
from ...wire import Constant, Frame, Layout, Rest, RestType
from . import values as v
from .entry import ENTRY_HEADER_BYTES

ENTRIES_MAX = 16384  # Of one AppendEntries.

Dialect = Literal["text", "node"]


class PlainAppend(NamedTuple):
    """AppendEntries with encoded entries instead of batches."""

    term: int
    leader: str
    prev_index: int
    prev_term: int
    commit_index: int
    entries: tuple[bytes, ...] = ()


def decode_entry_frames(frames: Sequence[bytes]) -> tuple[bytes, ...]:
    """Checks the sizes of encoded entries."""
    for entry in frames:
        if not 0 < len(entry) - ENTRY_HEADER_BYTES <= RECORD_BYTES_MAX:
            raise RemoteProtocolError(f"an entry of {len(entry)} bytes")
    return tuple(frames)


ENTRIES = RestType("entry", tuple, decode_entry_frames)

# RequestVote, pre-vote and transfer RequestVote have the same frames and the same answer.
VOTE_FRAMES = (
    Frame("candidate", v.PEER_ID, "candidate's PEER ID"),
    Frame("term", v.UINT, "candidate's TERM"),
    Frame("last_index", v.UINT, "candidate's last LOG INDEX"),
    Frame("last_term", v.UINT, "candidate's last LOG TERM"),
)
VOTE_REQUEST = Layout(
    "RequestVote", RequestVote,
    v.MESSAGE_ID, Constant(v.REQUEST_VOTE), v.IDENT,
    *VOTE_FRAMES,
)  # fmt: skip
VOTE_ANSWER = Layout(
    "vote", Vote,
    v.MESSAGE_ID,
    Frame("term", v.UINT, "responder's TERM"),
    Frame("granted", v.BOOL, "vote granted"),
)  # fmt: skip

APPEND_REQUEST = Layout(
    "AppendEntries", PlainAppend,
    v.MESSAGE_ID, Constant(v.APPEND_ENTRIES), v.IDENT,
    Frame("leader", v.PEER_ID, "leader's PEER ID"),
    Frame("term", v.UINT, "leader's TERM"),
    Frame("prev_index", v.UINT, "LOG INDEX before the new entries"),
    Frame("prev_term", v.UINT, "LOG TERM of the entry there"),
    Frame("commit_index", v.UINT, "leader's COMMIT INDEX"),
    Rest("entries", ENTRIES, "new entries, if any", ENTRIES_MAX),
)  # fmt: skip
APPEND_ANSWER = Layout(
    "AppendEntries answer", AppendResponse,
    v.MESSAGE_ID,
    Frame("term", v.UINT, "responder's TERM"),
    Frame("success", v.BOOL, "success"),
    Frame("conflict_term", v.UINT, "conflict TERM, 0 when the log is too short", optional=True),
    Frame("conflict_index", v.UINT, "conflict LOG INDEX", optional=True),
)  # fmt: skip
APPEND_ANSWER_NODE = Layout(
    "AppendEntries answer of node", AppendResponse,
    v.MESSAGE_ID,
    Frame("term", v.UINT, "responder's TERM"),
    Frame("success", v.BOOL, "success"),
    Frame("conflict_index", v.UINT, "last LOG INDEX + 1, when the log is too short", optional=True),
)  # fmt: skip


def encode_append_answer(
    message: AppendResponse, message_id: int, dialect: Dialect = "text"
) -> list[bytes]:
    """Encodes the answer to AppendEntries in the leader's dialect. The node dialect does not name
    a conflict."""
    if message.conflict_term and not message.conflict_index:  # No hint.
        message = message._replace(conflict_term=0)
    if dialect == "text":
        return APPEND_ANSWER.encode(message, message_id)
    if message.conflict_term:
        message = message._replace(conflict_index=0)
    return APPEND_ANSWER_NODE.encode(message, message_id)


def decode_append_answer(frames: Sequence[bytes]) -> AppendResponse:
    """Decodes the answer to AppendEntries in either dialect: node's has four frames at most.

    It does not name the match index: on success that is 0, and the requester fills it in.
    """
    layout = APPEND_ANSWER_NODE if len(frames) == 4 else APPEND_ANSWER
    answer = layout.decode(frames)
    return AppendResponse(answer.term, True) if answer.success else answer
