"""Messages of snapshots: InstallSnapshot in text form and packed, and "make a snapshot".

docs/protocols/zmq-raft.md, "InstallSnapshot", "Packed InstallSnapshot" and "Make a snapshot".
"""

from typing import NamedTuple

from ...errors import RemoteProtocolError
from ...raft.messages import InstallSnapshot, SnapshotResponse
from ...wire import Constant, Frame, FrameType, Layout
from . import values as v

CHUNK_BYTES_PLAIN = 64 << 10  # To a peer without a hello.
CHUNK_BYTES_MAX = 1 << 20


class SnapshotMade(NamedTuple):
    """The answer to a request for a new snapshot. With last_index 0 there is none, see reason."""

    last_index: int = 0
    size: int = 0
    reason: str = ""


class MakeSnapshot(NamedTuple):
    """A client's request for a new snapshot."""

    reqid: bytes


def _decode_chunk(frame: bytes) -> bytes:
    if len(frame) > CHUNK_BYTES_MAX:
        raise RemoteProtocolError(f"a chunk of {len(frame)} bytes")
    return frame


def _check_chunk(message: InstallSnapshot) -> str:
    offset, size, chunk = message[4:]
    if offset + len(chunk) > size or (size and not chunk):
        return f"a chunk of {len(chunk)} bytes at {offset} of {size}"
    return ""


def _encode_progress(progress: tuple[int | None, bool]) -> bytes:
    offset, done = progress
    return PROGRESS_NUMBERS.encode((offset or 0, int(done)))


def _decode_progress(frame: bytes) -> tuple[int, bool]:
    offset, done = PROGRESS_NUMBERS.decode(frame)
    return offset, done == 1


def _decode_made(frame: bytes) -> tuple[int, int, str]:
    match v.decode_json(frame):
        case [int(index), int(size), str(reason)] if min(index, size) >= 0:
            return index, size, reason
    raise RemoteProtocolError("an answer about a snapshot names index, size and reason")


CHUNK = FrameType("bytes", bytes, _decode_chunk)
INSTALL_NUMBERS = v.numbers_type(5)
PROGRESS_NUMBERS = v.numbers_type(2)
PROGRESS = FrameType(PROGRESS_NUMBERS.name, _encode_progress, _decode_progress)
MADE = FrameType("json", v.encode_json, _decode_made)

INSTALL_REQUEST = Layout(
    "InstallSnapshot", InstallSnapshot,
    v.MESSAGE_ID, Constant(v.INSTALL_SNAPSHOT), v.IDENT,
    Frame("leader", v.PEER_ID, "leader's PEER ID"),
    Frame("term", v.UINT, "leader's TERM"),
    Frame("last_index", v.UINT, "LOG INDEX of the last entry that the snapshot includes"),
    Frame("last_term", v.UINT, "its LOG TERM"),
    Frame("offset", v.UINT, "byte offset of the chunk"),
    Frame("size", v.UINT, "bytes of the whole snapshot"),
    Frame("chunk", CHUNK, "the chunk: kelek sends at most 64 KiB and accepts at most 1 MiB"),
    check=_check_chunk,
)  # fmt: skip
INSTALL_ANSWER = Layout(
    "InstallSnapshot answer", SnapshotResponse,
    v.MESSAGE_ID,
    Frame("term", v.UINT, "responder's TERM"),
    Frame("offset", v.UINT, "byte offset to continue at, only when it is not the end of the chunk",
        optional=True),
)  # fmt: skip

INSTALL_PACKED_REQUEST = Layout(
    "packed InstallSnapshot", InstallSnapshot,
    v.MESSAGE_ID, Constant(v.INSTALL_PACKED), v.IDENT,
    Frame("leader", v.PEER_ID, "leader's PEER ID"),
    Frame(("term", "last_index", "last_term", "offset", "size"), INSTALL_NUMBERS,
        "leader's TERM, last included LOG INDEX, its LOG TERM, offset of the chunk, bytes of the "
        "whole snapshot"),
    Frame("chunk", CHUNK, "the chunk, at most 1 MiB"),
    check=_check_chunk,
)  # fmt: skip
INSTALL_PACKED_ANSWER = Layout(
    "packed InstallSnapshot answer", SnapshotResponse,
    v.MESSAGE_ID,
    Frame("term", v.UINT, "responder's TERM"),
    Frame(("offset", "done"), PROGRESS,
        "the next byte offset; 1 when the snapshot is in place or not needed, else 0"),
)  # fmt: skip

MAKE_SNAPSHOT_REQUEST = Layout(
    "snapshot request", MakeSnapshot,
    Frame("reqid", v.REQUEST_ID, "id: 1 to 12 bytes, repeated in the answer"),
    Constant(v.MAKE_SNAPSHOT), v.IDENT,
)  # fmt: skip
MAKE_SNAPSHOT_ANSWER = Layout(
    "snapshot answer", SnapshotMade,
    v.ANSWER_ID, Constant(v.MAKE_SNAPSHOT),
    Frame(("last_index", "size", "reason"), MADE, '`[LOG INDEX, bytes, ""]`, or `[0, 0, reason]`'),
)  # fmt: skip
