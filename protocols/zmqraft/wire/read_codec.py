"""Codec of linearizable reads, for clients and tests (docs/protocols/zmq-raft.md, "Read index").

A peer decodes these requests in C (native/log/reads.py).
"""

from collections.abc import Sequence

from ....native.log.reads import WAIT_APPLIED
from ...errors import RemoteProtocolError
from .peer_codec import decode_type
from .values import READ_INDEX, decode_id, decode_leader, decode_uint, expect

FEATURE_READS = "reads"


def encode_read_index(id_: bytes, cluster: bytes, wait: int = WAIT_APPLIED) -> list[bytes]:
    """Encodes a request for the read index ("Read index"); the peer decodes it in C.

    frames   1 bytes   id, 1 to 12 bytes
             2 bytes   message type, 0x6b 0x52
             3 bytes   cluster ident
             4 byte    when to answer: 0 the leader has applied the index, 1 the index is confirmed;
                       absent: 0
    """
    return [id_, READ_INDEX, cluster, bytes([wait])]


def decode_read_answer(frames: Sequence[bytes]) -> tuple[bytes, int | str | None]:
    """Decodes the answer to a request for the read index ("Read index").

    frames   1 bytes   id
             2 bytes   message type, 0x6b 0x52
             3 byte    status: 0 not the leader, 1 accepted
             4         0: json  LEADER ID or null
                       1: uint  LOG INDEX; empty: not yet

    Returns (id, index), with 0 for not yet, or (id, LEADER ID or None). Raises RemoteProtocolError
    on a wrong frame count, another type or an invalid payload.
    """
    decode_type(frames, READ_INDEX, "read index answer")
    expect(frames, "read index answer", 4, 4)
    id_, status, payload = decode_id(frames[0]), frames[2], frames[3]
    if status == b"\0":
        return id_, decode_leader(payload)
    if status != b"\1":
        raise RemoteProtocolError(f"a read's status {status[:4]!r}")
    if not payload:
        return id_, 0
    index = decode_uint(payload)
    if not index:
        raise RemoteProtocolError("a read answered with index 0")
    return id_, index
