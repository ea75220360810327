"""Answers to requests that the grants of a client's key do not allow."""

from ....native.net.messages import Arena, Frames
from ...errors import RemoteProtocolError
from ..wire import values as v
from ..wire.extensions import NOT_ALLOWED_ANSWER, RequestDenied

_HEAD_FRAMES = 3  # Routing id, id, type.

# Requests of clients. A hello is refused only if it names another peer than its key does.
ANSWERED = frozenset(
    (
        v.REQUEST_CONFIG,
        v.REQUEST_LOG_INFO,
        v.REQUEST_UPDATE,
        v.UPDATE_PACK,
        v.REQUEST_ENTRIES,
        v.ENTRIES_PACKED,
        v.REQUEST_BROADCAST_STATE_URL,
        v.READ_INDEX,
        v.CONFIG_UPDATE,
        v.TRANSFER,
        v.MAKE_SNAPSHOT,
    )
)


def answer_denied(arena: Arena, foreign_slot: int | None, out: Frames) -> None:
    """Adds an answer for each refused request of a client that can be answered.

    arena          first frames of the refused messages, with their routing ids and slots
    foreign_slot   of foreign peers, which do not know this answer; None: there are none

    Messages of peers, and without a valid id, get none. An answer exceeds its request by the type
    frame at most.
    """
    for number, message in enumerate(arena.messages()):
        if len(message) < _HEAD_FRAMES or arena.slot(number) in (None, foreign_slot):
            continue
        routing_id, id_, kind = message[:_HEAD_FRAMES]
        if kind not in ANSWERED:
            continue
        try:
            v.decode_id(id_)
        except RemoteProtocolError:
            continue
        out.add([routing_id, *NOT_ALLOWED_ANSWER.encode(RequestDenied(kind), id_)])
