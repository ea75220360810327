"""Codecs of all messages: generated messages, the specified frames, and invalid ones."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.raft.messages import (
    AppendEntries,
    AppendResponse,
    InstallSnapshot,
    RequestVote,
    SnapshotResponse,
    Vote,
)
from kelek.protocols.record import Record, encode_block
from kelek.protocols.wire import Layout
from kelek.protocols.zmqraft import wire
from kelek.protocols.zmqraft.wire import client_codec as client
from kelek.protocols.zmqraft.wire import config_codec as config
from kelek.protocols.zmqraft.wire import extensions as own
from kelek.protocols.zmqraft.wire import peer_codec as peer
from kelek.protocols.zmqraft.wire import read_codec as reads
from kelek.protocols.zmqraft.wire import snapshot_codec as snapshots
from kelek.protocols.zmqraft.wire.client_codec import EntriesStatus, Form, UpdateStatus
from kelek.protocols.zmqraft.wire.config_codec import ConfigStatus
from kelek.tests.protocols.layouts import FEWER, IDENT, check_fuzz, check_round_trip, layouts
from kelek.tests.protocols.zmqraft.wire_strategies import BATCHES, STRATEGIES, encode_entry

REQID = bytes.fromhex("5956dc8826f27e10dcccab20")
ENTRY = REQID + b"\0" + (42).to_bytes(7, "little") + b"foo"
BLOCKS = [batch.block for batch in BATCHES]
by_layout = pytest.mark.parametrize("layout", layouts(wire), ids=lambda layout: layout.name)


@by_layout
@FEWER
@given(st.data())
def test_messages_come_back_as_they_were(layout: Layout[Any], data: st.DataObject) -> None:
    check_round_trip(data, layout, STRATEGIES)


@by_layout
@FEWER
@given(st.data())
def test_broken_messages(layout: Layout[Any], data: st.DataObject) -> None:
    check_fuzz(data, layout, STRATEGIES)


def _u64s(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


MEMBERS = (("n1", "tcp://h:1"), ("n2", "tcp://h:2"))
EXAMPLES: list[tuple[Layout[Any], Any, Any, list[bytes]]] = [
    (snapshots.INSTALL_REQUEST, InstallSnapshot(3, "n2", 70, 2, 10, 100, b"piece"), 1,
     [b"\1", b"\x24", IDENT, b"n2", b"\3", b"\x46", b"\2", b"\x0a", b"\x64", b"piece"]),
    (snapshots.INSTALL_ANSWER, SnapshotResponse(3), 1, [b"\1", b"\3"]),
    (snapshots.INSTALL_ANSWER, SnapshotResponse(3, 15), 1, [b"\1", b"\3", b"\x0f"]),
    (snapshots.MAKE_SNAPSHOT_REQUEST, snapshots.MakeSnapshot(b"id"), None, [b"id", b"ks", IDENT]),
    (config.CONFIG_UPDATE_REQUEST, config.ConfigUpdate(REQID, b"\x90"), None,
     [REQID, b"&", IDENT, b"\x90"]),
    (config.CONFIG_UPDATE_ANSWER, config.ConfigUpdateAnswer(ConfigStatus.ACCEPTED, log_index=7),
     REQID, [REQID, b"\1", b"\7"]),
    (reads.READ_REQUEST, reads.RequestRead(b"id", 0), None, [b"id", b"kR", IDENT, b"\0"]),
    (reads.READ_REQUEST, reads.RequestRead(b"id"), None, [b"id", b"kR", IDENT]),
    (reads.READ_ANSWER, reads.ReadAnswer(1), b"id", [b"id", b"kR", b"\1", b""]),
    (reads.READ_ANSWER, reads.ReadAnswer(1, log_index=7), b"id", [b"id", b"kR", b"\1", b"\7"]),
    (reads.READ_ANSWER, reads.ReadAnswer(0, "n2"), b"id", [b"id", b"kR", b"\0", b"\xa2n2"]),
    (peer.VOTE_REQUEST, RequestVote(term=7, candidate="n1", last_index=256, last_term=6), 1,
     [b"\1", b"?", IDENT, b"n1", b"\7", b"\0\1", b"\6"]),
    (own.PRE_VOTE_REQUEST, RequestVote(7, "n1", 256, 6, pre_vote=True), 1,
     [b"\1", b"k?", IDENT, b"n1", b"\7", b"\0\1", b"\6"]),
    (peer.VOTE_ANSWER, Vote(7, True), 256, [b"\0\1", b"\7", b"\1"]),
    (peer.APPEND_REQUEST, peer.PlainAppend(42, "n1", 5, 41, 4, (ENTRY,)), 2,
     [b"\2", b"+", IDENT, b"n1", b"\x2a", b"\5", b"\x29", b"\4", ENTRY]),
    (own.APPEND_PACKED_REQUEST, AppendEntries(42, "n1", 5, 41, 4, BATCHES), 3,
     [b"\3", b"k+", IDENT, b"n1", _u64s(42, 5, 41, 4), *BLOCKS]),
    (own.APPEND_PACKED_ANSWER, AppendResponse(42, False, 0, 5, 41), 3,
     [b"\3", b"\x2a", b"", _u64s(0, 5, 41)]),
    (own.APPEND_PACKED_ANSWER, AppendResponse(42, True, 9, clients_wait=True), 3,
     [b"\3", b"\x2a", b"\3", _u64s(9, 0, 0)]),
    (own.ENTRIES_PACKED_REQUEST, client.RequestEntries(b"id", 7, packed=True, any_peer=True), None,
     [b"id", b"k<", IDENT, b"\7", b"", b"", b"\1"]),
    (own.ENTRIES_PACKED_ANSWER, client.EntriesAnswer(EntriesStatus.MORE, 5, batches=BATCHES), b"id",
     [b"id", b"k<", b"\2", b"\xc0", b"\5", *BLOCKS]),
    (own.PACK_REQUEST, own.Pack(REQID, b"", b"r"), None, [REQID, b"k=", IDENT, b"", b"r"]),
    (own.PACK_ANSWER, own.PackAnswer(own.PACK_ACCEPTED), REQID, [REQID, b"k=", b"\1", b""]),
    (own.PACK_ANSWER, own.PackAnswer(own.PACK_GAP), REQID, [REQID, b"k=", b"\2", b""]),
    (client.CONFIG_ANSWER, client.ConfigAnswer(True, "n1", MEMBERS), REQID,
     [REQID, b"\1", b"\xa2n1", b"\x92\x92\xa2n1\xa9tcp://h:1\x92\xa2n2\xa9tcp://h:2"]),
    (client.CONFIG_ANSWER, client.ConfigAnswer(False, None), REQID, [REQID, b"", b"\xc0"]),
    (client.LOG_INFO_ANSWER, client.LogInfo(False, None, 1, 1, 2, 3, 4, 0), REQID,
     [REQID, b"", b"\xc0", b"\1", b"\1", b"\2", b"\3", b"\4", b"\0"]),
    (client.STATE_URL_ANSWER, client.StateUrlAnswer(), REQID, [REQID]),
    (client.STATE_URL_ANSWER, client.StateUrlAnswer("tcp://h:1"), REQID, [REQID, b"tcp://h:1"]),
    *(
        (client.UPDATE_ANSWER, answer, REQID, [REQID, *frames])
        for answer, frames in (
            (client.UpdateAnswer(UpdateStatus.ACCEPTED), [b"\1"]),
            (client.UpdateAnswer(UpdateStatus.COMMITTED, 256), [b"\1", b"\xcd\1\0"]),
            (client.UpdateAnswer(UpdateStatus.REJECTED), [b""]),
            (client.UpdateAnswer(UpdateStatus.REFUSED), [b"", b"\xc0"]),
            (client.UpdateAnswer(UpdateStatus.REFUSED, leader="n2"), [b"", b"\xa2n2"]),
        )
    ),
    (client.ENTRIES_ANSWER, client.EntriesAnswer(EntriesStatus.MORE, 6, (ENTRY, ENTRY)), REQID,
     [REQID, b"\2", b"\xc0", b"\6", ENTRY, ENTRY]),
    (client.ENTRIES_ANSWER, client.EntriesAnswer(EntriesStatus.NOT_LEADER, leader="n2"), REQID,
     [REQID, b"\0", b"\xa2n2"]),
    *(
        (
            client.ENTRIES_ANSWER,
            client.EntriesAnswer(
                EntriesStatus.SNAPSHOT, 9, chunk=client.StateChunk(3, 8, term), data=b"abcde"
            ),
            REQID,
            [REQID, b"\3", numbers, b"\x09", b"abcde"],
        )
        for term, numbers in ((None, b"\x92\3\x08"), (7, b"\x93\3\x08\7"))
    ),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "message", "id_", "frames"), EXAMPLES)
def test_examples(layout: Layout[Any], message: Any, id_: Any, frames: list[bytes]) -> None:
    assert layout.encode(message, id_, IDENT) == frames
    assert layout.decode(frames, IDENT) == message


@pytest.mark.parametrize(
    ("layout", "frames"),
    [
        *((snapshots.INSTALL_REQUEST, [*EXAMPLES[0][3][:9], bytes(n)]) for n in (0, 91)),
        (
            snapshots.INSTALL_REQUEST,
            [*EXAMPLES[0][3][:8], b"\0\0\x20", bytes(snapshots.CHUNK_BYTES_MAX + 1)],
        ),
        (snapshots.INSTALL_PACKED_ANSWER, [b"\1", b"\1", b"short"]),
        (snapshots.INSTALL_PACKED_ANSWER, [b"\1", b"\1", b"\xff" * 16]),
        (snapshots.MAKE_SNAPSHOT_ANSWER, [b"id", b"\x6b\x73", b"\xc0"]),
        (reads.READ_ANSWER, [b"id", b"kR", b"\1", b"\0"]),
    ],
)
def test_values_over_their_limits(layout: Layout[Any], frames: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        layout.decode(frames, IDENT)


# ---- what a Layout cannot say ----


def test_a_status_whose_next_frame_is_ignored() -> None:
    frames = [REQID, b"\2", b"junk", b"\6", ENTRY]
    assert client.ENTRIES_ANSWER.decode(frames).entries == (ENTRY,)


def test_hello_answers_repeat_the_id() -> None:
    hello = own.Hello("n1", "0.1.0", ("pack", "append"), 17, True, 5, time_ms=1_795_000_000_123)
    frames = own.HELLO_REQUEST.encode(hello, b"\1", IDENT)
    assert frames[:4] == [b"\1", b"k\0", IDENT, b"n1"]
    assert own.HELLO_REQUEST.decode(frames, IDENT) == hello
    assert own.HELLO_ANSWER.encode(hello, REQID)[:2] == [REQID, b"k\0"]


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([b"\x09", b"\x03", b"\x01"], AppendResponse(3, True)),
        ([b"\x09", b"\x03", b""], AppendResponse(3, False)),  # A stale term, or node's conflict.
        ([b"\x09", b"\x03", b"", b"\x05"], AppendResponse(3, False, 0, 5, 0)),  # Node: too short.
        ([b"\x09", b"\x03", b"", b"\x00", b"\x05"], AppendResponse(3, False, 0, 5, 0)),
        ([b"\x09", b"\x03", b"", b"\x02", b"\x05"], AppendResponse(3, False, 0, 5, 2)),
    ],
)
def test_append_answers_of_3_4_and_5_frames(frames: list[bytes], message: AppendResponse) -> None:
    assert peer.decode_append_answer(frames) == message


def test_append_answer_dialects() -> None:
    short, conflict = AppendResponse(3, False, 0, 5, 0), AppendResponse(3, False, 0, 5, 2)
    head = [b"\x09", b"\x03", b""]
    assert peer.encode_append_answer(short, 9) == [*head, b"\x00", b"\x05"]
    assert peer.encode_append_answer(conflict, 9) == [*head, b"\x02", b"\x05"]
    assert peer.encode_append_answer(short, 9, "node") == [*head, b"\x05"]
    assert peer.encode_append_answer(conflict, 9, "node") == head
    assert peer.encode_append_answer(AppendResponse(3, False), 9, "text") == head


def test_client_request_frames() -> None:
    text, node = Form.TEXT, Form.NODE
    update, entries = client.RequestUpdate(REQID, b"foo"), client.RequestEntries(REQID, 7, 9)
    cases: list[tuple[Form, client.ClientRequest, list[bytes]]] = [
        (text, client.RequestConfig(REQID), [REQID, b"^"]),
        (node, client.RequestConfig(REQID), [REQID, b"^", b"demo"]),
        (text, update, [REQID, b"=", b"foo"]),
        (node, update, [REQID, b"=", b"demo", b"foo"]),
        (text, entries, [REQID, b"<", b"\x07", b"\x09"]),
        (node, entries, [REQID, b"<", b"demo", b"\x07", b"\x09"]),
        (text, client.RequestEntries(REQID, 7), [REQID, b"<", b"\x07"]),
        (node, client.RequestEntries(REQID, 7), [REQID, b"<", b"demo", b"\x07"]),
        (text, client.RequestLogInfo(REQID), [REQID, b"%"]),
        (text, client.RequestBroadcastStateUrl(REQID), [REQID, b"*"]),
        (
            node,
            client.RequestEntries(REQID, 7, None, 65536),
            [REQID, b"<", b"demo", b"\x07", b"", b"\x00\x00\x01"],
        ),
    ]
    for form, request, frames in cases:
        assert client.encode_client_request(request, IDENT, form) == frames
        assert client.decode_client_request(frames, IDENT) == (form, request)


@pytest.mark.parametrize(
    ("args", "form"),
    [
        ([b"^"], Form.TEXT),
        ([b"^", b"demo"], Form.NODE),
        ([b"^", b"demo", b"surplus"], Form.NODE),
        ([b"^", b"other"], None),
        ([b"%", b""], None),
        ([b"*", b"demo"], Form.NODE),
        ([b"="], None),
        ([b"=", b"data"], Form.TEXT),
        ([b"=", b"demo"], Form.NODE),  # Without data.
        ([b"=", b"demo", b"data"], Form.NODE),
        ([b"=", b"demo", b"data", b"surplus"], Form.NODE),
        ([b"=", b"other", b"data"], None),  # Never an entry of our log.
        ([b"=", b"", b"data"], None),
        ([b"<", b"\x05"], Form.TEXT),
        ([b"<", b"demo"], Form.TEXT),
        ([b"<", b"\x05", b"\x07"], Form.TEXT),
        ([b"<", b"demo", b"\x07"], Form.NODE),
        ([b"<", b"other", b"\x07", b"\x07"], None),
        ([b"&", b"demo", b"\x90"], Form.NODE),
        ([b"&", b"demo"], None),
        ([b"&", b"\x90"], None),
        ([b"&", b"demo", b"\x90", b"surplus"], None),
        ([b"?", b"demo", b"\x90"], None),
        ([b"k\x00", b"demo"], None),
        ([b""], None),
        ([], None),
    ],
)
def test_the_shape_decides_the_form(args: list[bytes], form: Form | None) -> None:
    assert client.client_form([REQID, *args], IDENT) is form


def test_short_ids_are_for_reading_in_node_form_only() -> None:
    assert client.decode_client_request([b"\x01", b"^", IDENT], IDENT)[1].reqid == b"\x01"
    for frames in (
        [b"\x01", b"^"],
        [b"", b"^", IDENT],
        [b"\x01", b"=", IDENT, b"foo"],
        [b"\x01", b"=", b"foo"],
        [REQID + b"\0", b"^", IDENT],
    ):
        with pytest.raises(RemoteProtocolError):
            client.decode_client_request(frames, IDENT)


@given(st.data())
def test_updates_are_encoded_by_hand_as_declared(data: st.DataObject) -> None:
    update = client.RequestUpdate(REQID, data.draw(st.binary(min_size=1)))
    for form, layout in client.REQUESTS[b"="].items():
        frames = layout.encode(update, cluster=IDENT)
        assert client.encode_client_request(update, IDENT, form) == frames


@given(st.lists(st.sampled_from([b"", b"\0", b"\1", REQID, IDENT, *client.REQUESTS]), max_size=6))
def test_client_requests_of_any_frames(frames: list[bytes]) -> None:
    with suppress(RemoteProtocolError):
        client.decode_client_request(frames, IDENT)


@pytest.mark.parametrize("size", [0, 20, 20 + (10 << 20) + 1])
def test_entries_have_limits(size: int) -> None:
    frames = [*EXAMPLES[0][3][:1], b"+", IDENT, b"n1", *[b"\0"] * 4, bytes(size)]
    with pytest.raises(RemoteProtocolError, match="AppendEntries, frame 9: an entry of"):
        peer.APPEND_REQUEST.decode(frames, IDENT)


def test_packed_answers_that_are_none() -> None:
    first = encode_block(3, 1, [Record(0, None, b"a")]).block
    second = encode_block(5, 1, [Record(0, None, b"a")]).block
    damaged = first[:-9] + bytes([first[-9] ^ 1]) + first[-8:]
    for rest in (
        [b"\1", b"\xc0", b"\5", first, second],
        [b"\1", b"\xc0", b"\4", first],
        [b"\1", b"\xc0", b"\3", damaged],
        [b"\1", b"\xc0", b"\3", first[:-1]],
        [b"\1", b"\xc0", b"\3", b""],
    ):
        with pytest.raises(RemoteProtocolError):
            own.ENTRIES_PACKED_ANSWER.decode([b"id", b"k<", *rest])


def test_broadcasts_that_are_none() -> None:
    entry = encode_entry(1, Record(0, None, b"a"))
    for frames in ([IDENT, b"\1", b"\1", entry, entry], [IDENT, b"\1", b"\1", entry[:20]]):
        with pytest.raises(RemoteProtocolError):
            client.STATE_BROADCAST.decode(frames, IDENT)
