"""Codecs of all messages: the specified frames in both directions, and invalid ones."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.raft.messages import (
    AppendEntries,
    AppendResponse,
    EntryBatch,
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
from kelek.protocols.zmqraft.wire.client_codec import Form, UpdateStatus
from kelek.protocols.zmqraft.wire.config_codec import ConfigStatus
from kelek.protocols.zmqraft.wire.entry import encode_entry
from kelek.tests.protocols.layouts import IDENT, check_fuzz, check_round_trip, layouts
from kelek.tests.protocols.zmqraft.wire_strategies import STRATEGIES

LAYOUTS = layouts(wire).values()
by_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
REQID = bytes.fromhex("5956dc8826f27e10dcccab20")
ENTRY = REQID + b"\0" + (42).to_bytes(7, "little") + b"foo"


@by_layout
@given(st.data())
def test_messages_come_back_as_they_were(layout: Layout[Any], data: st.DataObject) -> None:
    check_round_trip(data, layout, STRATEGIES)


@by_layout
@given(st.data())
def test_broken_messages(layout: Layout[Any], data: st.DataObject) -> None:
    check_fuzz(data, layout, STRATEGIES)


EXAMPLES: list[tuple[Layout[Any], Any, Any, list[bytes]]] = [
    (
        snapshots.INSTALL_REQUEST,
        InstallSnapshot(3, "n2", 70, 2, 10, 100, b"piece"),
        1,
        [b"\1", b"\x24", IDENT, b"n2", b"\3", b"\x46", b"\2", b"\x0a", b"\x64", b"piece"],
    ),
    (snapshots.INSTALL_ANSWER, SnapshotResponse(3), 1, [b"\1", b"\3"]),
    (snapshots.INSTALL_ANSWER, SnapshotResponse(3, 15), 1, [b"\1", b"\3", b"\x0f"]),
    (snapshots.MAKE_SNAPSHOT_REQUEST, snapshots.MakeSnapshot(b"id"), None, [b"id", b"ks", IDENT]),
    (
        config.CONFIG_UPDATE_REQUEST,
        config.ConfigUpdate(REQID, b"\x90"),
        None,
        [REQID, b"&", IDENT, b"\x90"],
    ),
    (
        config.CONFIG_UPDATE_ANSWER,
        config.ConfigUpdateAnswer(ConfigStatus.ACCEPTED, log_index=7),
        REQID,
        [REQID, b"\1", b"\7"],
    ),
    (reads.READ_REQUEST, reads.RequestRead(b"id", 0), None, [b"id", b"kR", IDENT, b"\0"]),
    (reads.READ_REQUEST, reads.RequestRead(b"id"), None, [b"id", b"kR", IDENT]),
    (reads.READ_ANSWER, reads.ReadAnswer(1), b"id", [b"id", b"kR", b"\1", b""]),
    (reads.READ_ANSWER, reads.ReadAnswer(1, log_index=7), b"id", [b"id", b"kR", b"\1", b"\7"]),
    (reads.READ_ANSWER, reads.ReadAnswer(0, "n2"), b"id", [b"id", b"kR", b"\0", b"\xa2n2"]),
]


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


def test_request_vote_frames() -> None:
    frames = [b"\x01", b"?", b"demo", b"n1", b"\x07", b"\x00\x01", b"\x06"]
    message = RequestVote(term=7, candidate="n1", last_index=256, last_term=6)
    assert peer.encode_request_vote(1, IDENT, message) == frames
    assert peer.decode_request_vote(frames, IDENT) == (1, message)


def test_vote_frames() -> None:
    assert peer.encode_vote(256, Vote(7, True)) == [b"\x00\x01", b"\x07", b"\x01"]
    assert peer.decode_vote([b"\x00\x01", b"\x07", b""]) == (256, Vote(7, False))


def test_append_entries_frames() -> None:
    frames = [b"\x02", b"+", b"demo", b"n1", b"\x2a", b"\x05", b"\x29", b"\x04", ENTRY]
    message = AppendEntries(42, "n1", 5, 41, 4)
    assert peer.encode_append_entries(2, IDENT, message, [ENTRY]) == frames
    assert peer.decode_append_entries(frames, IDENT) == (2, message, [ENTRY])
    assert peer.decode_append_entries(frames[:8], IDENT) == (2, message, [])


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
    assert peer.decode_append_response(frames) == (9, message)


def test_append_answer_dialects() -> None:
    short, conflict = AppendResponse(3, False, 0, 5, 0), AppendResponse(3, False, 0, 5, 2)
    head = [b"\x09", b"\x03", b""]
    assert peer.encode_append_response(9, short) == [*head, b"\x00", b"\x05"]
    assert peer.encode_append_response(9, conflict) == [*head, b"\x02", b"\x05"]
    assert peer.encode_append_response(9, short, "node") == [*head, b"\x05"]
    assert peer.encode_append_response(9, conflict, "node") == head
    assert peer.encode_append_response(9, AppendResponse(3, False), "text") == head


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


def test_client_answer_frames() -> None:
    members = (("n1", "tcp://h:1"), ("n2", "tcp://h:2"))
    config = client.ConfigAnswer(True, "n1", members)
    frames = [REQID, b"\x01", b"\xa2n1", b"\x92\x92\xa2n1\xa9tcp://h:1\x92\xa2n2\xa9tcp://h:2"]
    assert client.encode_config_answer(REQID, config) == frames
    assert client.decode_config_answer(frames) == (REQID, config)
    nobody = client.ConfigAnswer(False, None)
    assert client.decode_config_answer([REQID, b"", b"\xc0"]) == (REQID, nobody)
    info = client.LogInfo(False, None, 1, 1, 2, 3, 4, 0)
    numbers = [b"\x01", b"\x01", b"\x02", b"\x03", b"\x04", b"\x00"]
    assert client.encode_log_info_answer(REQID, info) == [REQID, b"", b"\xc0", *numbers]
    assert client.decode_log_info_answer([REQID, b"", b"\xc0", *numbers]) == (REQID, info)
    assert client.encode_state_url_answer(REQID, None) == [REQID]
    assert client.decode_state_url_answer([REQID, b"tcp://h:1"]) == (REQID, "tcp://h:1")


@pytest.mark.parametrize(
    ("frames", "answer"),
    [
        ([b"\x01"], client.UpdateAnswer(UpdateStatus.ACCEPTED)),
        ([b"\x01", b"\xcd\x01\x00"], client.UpdateAnswer(UpdateStatus.COMMITTED, 256)),
        ([b""], client.UpdateAnswer(UpdateStatus.REJECTED)),
        ([b"", b"\xc0"], client.UpdateAnswer(UpdateStatus.REFUSED)),
        ([b"", b"\xa2n2"], client.UpdateAnswer(UpdateStatus.REFUSED, leader="n2")),
    ],
)
def test_update_answer_frames(frames: list[bytes], answer: client.UpdateAnswer) -> None:
    assert client.encode_update_answer(REQID, answer) == [REQID, *frames]
    assert client.decode_update_answer([REQID, *frames]) == (REQID, answer)


def test_entries_answer_frames() -> None:
    more = client.EntriesAnswer(client.EntriesStatus.MORE, 6, (ENTRY, ENTRY))
    frames = [REQID, b"\x02", b"\xc0", b"\x06", ENTRY, ENTRY]
    assert client.encode_entries_answer(REQID, more) == frames
    assert client.decode_entries_answer(frames) == (REQID, more)
    # Frame 3 must be ignored for status 1 and 2.
    assert client.decode_entries_answer([REQID, b"\x02", b"junk", *frames[3:]])[1] == more
    elsewhere = client.EntriesAnswer(client.EntriesStatus.NOT_LEADER, leader="n2")
    assert client.encode_entries_answer(REQID, elsewhere) == [REQID, b"\x00", b"\xa2n2"]
    assert client.decode_entries_answer([REQID, b"\x00", b"\xa2n2"]) == (REQID, elsewhere)


def test_extension_frames() -> None:
    batch = EntryBatch(6, 1, 42, b"block")
    message = AppendEntries(42, "n1", 5, 41, 4, (batch,))
    frames = own.encode_append_packed(3, IDENT, message)
    assert frames[:4] == [b"\x03", b"k+", b"demo", b"n1"]
    assert frames[4] == b"".join(n.to_bytes(8, "little") for n in (42, 5, 41, 4))
    unpacked = message._replace(batches=())
    assert own.decode_append_packed(frames, IDENT) == (3, unpacked, [b"block"])
    answer = AppendResponse(42, False, 0, 5, 41)
    assert own.decode_append_packed_answer(own.encode_append_packed_answer(3, answer)) == (
        3,
        answer,
    )
    heard = own.encode_append_packed_answer(4, AppendResponse(42, True, 9, clients_wait=True))
    assert heard[2] == b"\x03", "a leader that does not know of it takes it for a success"
    assert own.decode_append_packed_answer(heard)[1].clients_wait
    refused = own.encode_append_packed_answer(4, AppendResponse(42, False, 9, clients_wait=True))
    assert own.decode_append_packed_answer(refused)[1] == AppendResponse(42, False, 9)
    question = RequestVote(7, "n1", 256, 6, pre_vote=True)
    assert own.decode_pre_vote(own.encode_pre_vote(1, IDENT, question), IDENT) == (1, question)
    assert own.encode_pre_vote(1, IDENT, question)[1] == b"k?"


def test_hello_frames() -> None:
    hello = own.Hello("n1", "0.1.0", ("pack", "append"), 17, True, 5)
    frames = own.encode_hello(b"\x01", IDENT, hello)
    assert frames[:4] == [b"\x01", b"k\x00", b"demo", b"n1"]
    assert own.decode_hello(frames, IDENT) == (b"\x01", hello)
    assert own.decode_hello_answer(own.encode_hello_answer(REQID, hello)) == (REQID, hello)
    client_hello = own.Hello("", "0.1.0")
    assert own.decode_hello(own.encode_hello(REQID, IDENT, client_hello), IDENT)[1] == client_hello


@pytest.mark.parametrize(
    "answer",
    [
        own.PackAnswer(own.PACK_ACCEPTED),
        own.PackAnswer(own.PACK_ACCEPTED, runs=((3, 7), (1, 2))),
        own.PackAnswer(own.PACK_NOT_LEADER, leader="n2"),
        own.PackAnswer(own.PACK_NOT_LEADER),
        own.PackAnswer(own.PACK_GAP),
        own.PackAnswer(own.PACK_REFUSED, position=4, reason="expired"),
    ],
)
def test_pack_answers(answer: own.PackAnswer) -> None:
    assert own.decode_pack_answer(own.encode_pack_answer(REQID, answer)) == (REQID, answer)


def test_pack_frames() -> None:
    pack = own.Pack(REQID, b"", b"records")
    assert own.encode_pack(IDENT, pack) == [REQID, b"k=", b"demo", b"", b"records"]
    assert own.decode_pack([REQID, b"k=", b"demo", REQID, b"r"], IDENT).previous == REQID


Decoder = Callable[[Sequence[bytes]], Any]
DECODERS: list[Decoder] = [
    lambda frames: peer.decode_request_vote(frames, IDENT),
    peer.decode_vote,
    lambda frames: peer.decode_append_entries(frames, IDENT),
    peer.decode_append_response,
    lambda frames: client.decode_client_request(frames, IDENT),
    client.decode_config_answer,
    client.decode_update_answer,
    client.decode_entries_answer,
    client.decode_log_info_answer,
    client.decode_state_url_answer,
    lambda frames: client.decode_state_broadcast(frames, IDENT),
    lambda frames: own.decode_hello(frames, IDENT),
    own.decode_hello_answer,
    lambda frames: own.decode_pre_vote(frames, IDENT),
    lambda frames: own.decode_append_packed(frames, IDENT),
    own.decode_append_packed_answer,
    lambda frames: own.decode_pack(frames, IDENT),
    own.decode_pack_answer,
]
FRAME = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\x00", b"\x01", b"\x02", b"\x03", b"\xc0", b"\xa2n1", IDENT, REQID]),
    st.sampled_from([b"?", b"+", b"^", b"=", b"<", b"%", b"*", b"&", b"k\0", b"k=", b"k+", b"k?"]),
)


@given(st.lists(FRAME, max_size=11))
def test_junk_raises_remote_protocol_error_and_nothing_else(frames: list[bytes]) -> None:
    for decode in DECODERS:
        with contextlib.suppress(RemoteProtocolError):
            decode(frames)


@given(st.data())
def test_one_broken_frame_raises_remote_protocol_error_and_nothing_else(
    data: st.DataObject,
) -> None:
    good = [
        peer.encode_request_vote(1, IDENT, RequestVote(1, "n1", 2, 1)),
        peer.encode_append_entries(1, IDENT, AppendEntries(1, "n1", 2, 1, 1), [ENTRY]),
        own.encode_append_packed(1, IDENT, AppendEntries(1, "n1", 2, 1, 1)),
        own.encode_hello(REQID, IDENT, own.Hello("n1", "1", ("pack",), 1, True, 1)),
        own.encode_pack(IDENT, own.Pack(REQID, REQID, b"records")),
        client.encode_client_request(client.RequestEntries(REQID, 1, 2), IDENT),
        client.encode_config_answer(REQID, client.ConfigAnswer(True, "n1", (("n1", "u"),))),
        own.encode_pack_answer(REQID, own.PackAnswer(own.PACK_REFUSED, reason="no")),
    ]
    frames = data.draw(st.sampled_from(good))
    frames[data.draw(st.integers(0, len(frames) - 1))] = data.draw(FRAME)
    for decode in DECODERS:
        with contextlib.suppress(RemoteProtocolError):
            decode(frames)


def test_foreign_idents_are_refused() -> None:
    vote = peer.encode_request_vote(1, b"other", RequestVote(1, "n1", 2, 1))
    append = peer.encode_append_entries(1, b"other", AppendEntries(1, "n1", 2, 1, 1))
    pack = own.encode_pack(b"other", own.Pack(REQID, b"", b"records"))
    for decode, frames in zip(
        (peer.decode_request_vote, peer.decode_append_entries, own.decode_pack),
        (vote, append, pack),
        strict=True,
    ):
        with pytest.raises(RemoteProtocolError, match="foreign"):
            decode(frames, IDENT)


@pytest.mark.parametrize("size", [0, 20, 20 + (10 << 20) + 1])
def test_entries_have_limits(size: int) -> None:
    frames = peer.encode_append_entries(1, IDENT, AppendEntries(1, "n1", 0, 0, 0), [b"\0" * size])
    with pytest.raises(RemoteProtocolError, match="an entry of"):
        peer.decode_append_entries(frames, IDENT)


# ---- whole blocks of entries ----


@pytest.mark.parametrize("count", [None, 0, 5])
@pytest.mark.parametrize("offset", [None, 0, 1 << 20])
@pytest.mark.parametrize("anywhere", [False, True])
def test_packed_requests_for_entries(count: int | None, offset: int | None, anywhere: bool) -> None:
    request = client.RequestEntries(b"id", 7, count, offset, packed=True, any_peer=anywhere)
    frames = own.encode_entries_packed(IDENT, request)
    assert frames[:4] == [b"id", b"k<", IDENT, b"\7"]
    assert own.decode_entries_packed(frames, IDENT) == request


@pytest.mark.parametrize(
    "frames",
    [
        [b"id", b"k<", IDENT],
        [b"id", b"k<", IDENT, b""],
        [b"id", b"k<", IDENT, b"\xff" * 9],
        [b"id", b"k<", IDENT, b"\xff" * 8],
        [b"id", b"k<", b"other", b"\0"],
        [b"", b"k<", IDENT, b"\0"],
        [b"i" * 13, b"k<", IDENT, b"\0"],
        [b"id", b"k<", IDENT, b"\0", b"\xff" * 9],
        [b"id", b"k<", IDENT, b"\0", b"", b"", b"", b""],
    ],
)
def test_packed_requests_that_are_none(frames: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        own.decode_entries_packed(frames, IDENT)


def test_packed_answers() -> None:
    batches = (
        encode_block(3, 1, [Record(0, None, b"a"), Record(0, b"request-id-1", b"b")]),
        encode_block(5, 2, [Record(2, None, b"\xc0")]),
    )
    answer = client.EntriesAnswer(client.EntriesStatus.MORE, 5, batches=batches)
    frames = own.encode_entries_packed_answer(b"id", answer)
    assert frames == [b"id", b"k<", b"\2", b"\xc0", b"\5", *(batch.block for batch in batches)]
    assert own.decode_entries_packed_answer(frames) == (b"id", answer)
    refused = client.EntriesAnswer(client.EntriesStatus.NOT_LEADER, leader="n2")
    frames = own.encode_entries_packed_answer(b"id", refused)
    assert own.decode_entries_packed_answer(frames) == (b"id", refused)
    empty = client.EntriesAnswer(client.EntriesStatus.LAST, 9)
    frames = own.encode_entries_packed_answer(b"id", empty)
    assert own.decode_entries_packed_answer(frames) == (b"id", empty)


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
        [b"\1", b"\xc0"],
        [b"\x09", b"\xc0", b"\3"],
        [b"", b"\xc0", b"\3"],
        [b"\0", b"\xc1"],
    ):
        with pytest.raises(RemoteProtocolError):
            own.decode_entries_packed_answer([b"id", b"k<", *rest])


def test_broadcasts_that_are_none() -> None:
    entry = encode_entry(1, Record(0, None, b"a"))
    for frames in (
        [],
        [IDENT, b"\1"],
        [b"other", b"\1", b"\1"],
        [IDENT, b"", b"\1"],
        [IDENT, b"\1", b"\xff" * 9],
        [IDENT, b"\1", b"\1", entry, entry],
        [IDENT, b"\1", b"\1", b"short"],
    ):
        with pytest.raises(RemoteProtocolError):
            client.decode_state_broadcast(frames, IDENT)
