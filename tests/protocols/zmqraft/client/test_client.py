"""Scenarios of the client machine in virtual time: the leader, repeats, and their order."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.zmqraft.client.client import (
    Connect,
    EntryStream,
    LogClientMachine,
    LogClientSetup,
    PendingRead,
    PendingUpdates,
    Query,
    Send,
    WindowLimits,
)
from kelek.protocols.zmqraft.client.window import AFTER_REFUSED, runs_of
from kelek.protocols.zmqraft.wire.client_codec import (
    CONFIG_ANSWER,
    ConfigAnswer,
    EntriesAnswer,
    EntriesStatus,
    Form,
    LogInfo,
    RequestBroadcastStateUrl,
    RequestConfig,
    RequestLogInfo,
)
from kelek.protocols.zmqraft.wire.config_codec import ConfigUpdate
from kelek.protocols.zmqraft.wire.extensions import (
    NOT_ALLOWED_ANSWER,
    PACK_ACCEPTED,
    PACK_ANSWER,
    TOO_MANY_ANSWER,
    PackAnswer,
    RequestDenied,
)
from kelek.protocols.zmqraft.wire.snapshot_codec import MakeSnapshot
from kelek.protocols.zmqraft.wire.transfer_codec import RequestTransfer
from kelek.protocols.zmqraft.wire.values import (
    CONFIG_UPDATE,
    ENTRIES_PACKED,
    MAKE_SNAPSHOT,
    READ_INDEX,
    REQUEST_BROADCAST_STATE_URL,
    REQUEST_CONFIG,
    REQUEST_ENTRIES,
    REQUEST_LOG_INFO,
    REQUEST_UPDATE,
    TRANSFER,
    UPDATE_PACK,
)
from kelek.tests.protocols.zmqraft.fake_cluster import IDENT, FakeCluster, records_of, settled

REQID = b"request-id-1"


def pack(cluster: FakeCluster, *updates: bytes) -> PendingUpdates:
    pending = PendingUpdates([cluster.new_id() for _ in updates], updates)
    cluster.client.window.add(pending)
    return pending


def data_of(cluster: FakeCluster) -> list[bytes]:
    return [data for _, data in cluster.log.records]


def deny(cluster: FakeCluster, *types: bytes) -> None:
    for peer in cluster.peers:
        peer.denies = types


def test_the_leader_is_found_and_other_connections_end() -> None:
    cluster = FakeCluster(lead="n2")
    cluster.run(lambda: cluster.client.leader == "tcp://n2")
    cluster.run(lambda: list(cluster.links) == ["tcp://n2"])
    assert cluster.client.leader_form is None  # It named packs.


def test_a_peer_that_is_not_known_is_learned() -> None:
    cluster = FakeCluster(known=1, lead="n3")
    cluster.run(lambda: cluster.client.leader == "tcp://n3")
    assert cluster.client.members["n2"] == "tcp://n2"


def test_updates_commit_in_order_and_know_their_indexes() -> None:
    cluster = FakeCluster(lead="n1")
    first, second = pack(cluster, b"a", b"b"), pack(cluster, b"c")
    took_ms = cluster.run(lambda: bool(second.runs))
    assert took_ms < 20
    assert data_of(cluster) == [b"a", b"b", b"c"]
    assert not cluster.client.window.items
    assert (first.runs, second.runs) == (((1, 1), (1, 2)), ((1, 3),))


def test_the_first_pack_names_no_predecessor_and_the_next_ones_do() -> None:
    cluster = FakeCluster()
    cluster.lead("n1").commits = False
    first = pack(cluster, b"a", b"b")
    pack(cluster, b"c")
    cluster.run(lambda: len(cluster.peers[0].taken) == 2)
    (_, _, _, none, records), (_, _, _, previous, _) = cluster.peers[0].taken
    assert (none, previous) == (b"", first.reqids[1])
    assert [record.reqid for record in records_of(records)] == first.reqids


def test_no_update_is_sent_to_find_the_leader() -> None:
    cluster = FakeCluster()
    pack(cluster, b"a")
    cluster.at(700, lambda: cluster.lead("n3"))
    cluster.run(lambda: bool(cluster.log.records))
    updates = {url for _, url, frames in cluster.sent if frames[1] in (REQUEST_UPDATE, UPDATE_PACK)}
    assert updates == {"tcp://n3"}


def test_a_killed_leader_is_noticed_at_once() -> None:
    """The longest gap in commits is the election and one round of questions."""
    cluster = FakeCluster()
    cluster.lead("n1").commits = False
    last = [pack(cluster, b"%d" % number) for number in range(8)][-1]
    cluster.run(lambda: len(cluster.peers[0].taken) == 8)
    cluster.kill("n1")
    cluster.at(250, lambda: cluster.lead("n2"))
    took_ms = cluster.run(lambda: bool(last.runs))
    assert 250 <= took_ms < 290
    assert data_of(cluster) == [b"%d" % number for number in range(8)]


def test_a_silent_leader_is_left_after_the_ttl() -> None:
    """The text's second broken-leader case: SERVER_RESPONSE_TTL, 500 ms."""
    cluster = settled()
    cluster.peers[0].mute = True
    last = pack(cluster, b"a")
    cluster.at(100, lambda: cluster.lead("n2"))
    took_ms = cluster.run(lambda: bool(last.runs))
    assert 500 <= took_ms < 530
    assert cluster.client.leader == "tcp://n2"


def test_a_leader_that_is_sent_much_is_given_longer() -> None:
    """At 4 KiB a millisecond: left too early, the next one would be sent all of it again."""
    cluster = settled()
    cluster.peers[0].mute = True
    last = pack(cluster, bytes(4 << 20))
    cluster.at(100, lambda: cluster.lead("n2"))
    took_ms = cluster.run(lambda: bool(last.runs))
    assert 1524 <= took_ms < 1560


def test_an_accepted_update_restarts_the_clock() -> None:
    """Frame 2 true without frame 3: "it should reset the client's RPC timeout clock"."""
    cluster = FakeCluster()
    leader = cluster.lead("n1")
    leader.commits = False
    slow = pack(cluster, b"a")

    def remind() -> None:
        cluster.client.on_frames(leader.url, [slow.reqids[0], b"k=", b"\x01", b""], cluster.now_ms)
        if cluster.now_ms < 4000:
            cluster.at(400, remind)

    cluster.run(lambda: len(leader.taken) == 1)
    remind()
    cluster.run(lambda: cluster.now_ms >= 4000)
    assert cluster.client.counters["searches"] == 1


def test_a_refusal_starts_the_search() -> None:
    """The text's first broken-leader case: a negative answer, with or without LEADER ID."""
    cluster = FakeCluster(lead="n1")
    cluster.run(lambda: cluster.client.leader == "tcp://n1")
    cluster.lead("n2")
    last = pack(cluster, b"a")
    assert cluster.run(lambda: bool(last.runs)) < 60
    assert cluster.client.counters["refused"] == 1


def test_a_gap_sends_the_whole_window_again_in_order() -> None:
    cluster = settled()
    cluster.peers[0].drop_packs = 1
    last = [pack(cluster, b"%d" % number) for number in range(5)][-1]
    cluster.run(lambda: bool(last.runs))
    assert data_of(cluster) == [b"%d" % number for number in range(5)]
    assert cluster.client.counters["gaps"] == 4
    assert cluster.client.counters["searches"] == 1


def test_a_leader_without_room_is_sent_less() -> None:
    cluster = settled()
    cluster.peers[0].drop_packs = 16
    cluster.client.window.halve_packs()
    cluster.client.window.sent = 0
    assert cluster.client.window.packs_allowed == 1
    last = [pack(cluster, b"%d" % number) for number in range(16)][-1]
    cluster.run(lambda: bool(last.runs), limit_ms=20_000)
    assert data_of(cluster) == [b"%d" % number for number in range(16)]
    assert cluster.client.window.packs_allowed > 1


def test_a_refused_update_takes_those_behind_it_along() -> None:
    cluster = FakeCluster()
    cluster.lead("n1").refuse = "expired"
    first, second = pack(cluster, b"a", b"b"), pack(cluster, b"c")
    window = cluster.client.window
    cluster.run(lambda: first.refusal != "")
    assert (first.refusal, first.refused_position, second.refusal) == ("expired", 1, AFTER_REFUSED)
    assert (len(window.items), window.count, window.size, window.sent) == (0, 0, 0, 0)


@pytest.mark.parametrize("form", [Form.NODE, Form.TEXT])
def test_single_updates_in_the_forms_of_others(form: Form) -> None:
    cluster = FakeCluster(form)
    cluster.lead("n1").speaks = False
    last = [pack(cluster, b"a%d" % number, b"b%d" % number) for number in range(3)][-1]
    cluster.run(lambda: bool(last.runs))
    assert data_of(cluster) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    assert last.runs == ((2, 5),)
    assert not cluster.client.window.singles


def test_a_leader_without_hello_gets_single_updates_in_node_form() -> None:
    cluster = FakeCluster()
    cluster.lead("n1").speaks = False
    last = pack(cluster, b"a", b"b")
    cluster.run(lambda: bool(last.runs))
    assert [frames[1:] for frames in cluster.peers[0].taken] == [
        [b"=", IDENT, b"a"],
        [b"=", IDENT, b"b"],
    ]


def test_from_packs_to_single_updates_and_back_nothing_doubles() -> None:
    """A mixed cluster: ours, then a foreign leader, then ours again."""
    cluster = FakeCluster()
    cluster.peers[1].speaks = False
    cluster.lead("n1").commits = False
    first = pack(cluster, b"a", b"b")
    cluster.run(lambda: len(cluster.peers[0].taken) == 1)
    cluster.kill("n1")
    cluster.lead("n2")
    cluster.run(lambda: bool(first.runs))
    last = pack(cluster, b"c", b"d")
    cluster.kill("n2")
    cluster.lead("n3")
    cluster.run(lambda: bool(last.runs))
    assert data_of(cluster) == [b"a", b"b", b"c", b"d"]


def test_questions_are_asked_of_the_leader() -> None:
    cluster = FakeCluster(lead="n1")
    info = cluster.client.query(Query(RequestLogInfo(cluster.new_id())))
    config = cluster.client.query(Query(RequestConfig(cluster.new_id())))
    url = cluster.client.query(Query(RequestBroadcastStateUrl(cluster.new_id())))
    cluster.run(lambda: info.done and config.done and url.done)
    assert isinstance(info.answer, LogInfo)
    assert isinstance(config.answer, ConfigAnswer)
    assert config.answer.leader == "n1"
    assert url.answer == "tcp://pub"


def test_a_question_outlives_its_leader() -> None:
    cluster = settled()
    cluster.peers[0].mute = True
    info = cluster.client.query(Query(RequestLogInfo(cluster.new_id())))
    cluster.lead("n2")
    cluster.run(lambda: info.done)


def test_a_question_to_one_peer_makes_a_connection_for_it() -> None:
    cluster = FakeCluster(lead="n1")
    cluster.run(lambda: list(cluster.links) == ["tcp://n1"])
    ask = cluster.client.query(Query(RequestLogInfo(cluster.new_id()), "tcp://n3"))
    cluster.run(lambda: ask.done)
    assert isinstance(ask.answer, LogInfo)
    assert ask.answer.leading is False
    cluster.run(lambda: list(cluster.links) == ["tcp://n1"])


def read(cluster: FakeCluster, stream: EntryStream) -> list[bytes]:
    found: list[bytes] = []

    def take() -> bool:
        while (part := cluster.client.next_run(stream, cluster.now_ms)) is not None:
            entries = part.decoded()
            assert entries[0].index == len(found) + 1 + start
            found.extend(entry.data for entry in entries)
        return stream.done and not stream.runs

    start = stream.prev_index
    cluster.client.open_stream(stream)
    cluster.run(take)
    return found


@pytest.mark.parametrize(("after", "count"), [(0, None), (5, 50), (98, None), (100, None), (0, 0)])
@pytest.mark.parametrize("form", [None, Form.NODE])
def test_entries_by_answers_and_follow_ups(
    after: int, count: int | None, form: Form | None
) -> None:
    """In whole blocks from a peer of ours (None), and entry by entry."""
    cluster = FakeCluster(form, lead="n1", entries=100)
    end = 100 if count is None else after + count
    assert read(cluster, EntryStream(after, count)) == [
        b"%d" % number for number in range(after, end)
    ]
    assert not cluster.client.streams
    kinds = {frames[1] for *_, frames in cluster.sent} & {REQUEST_ENTRIES, ENTRIES_PACKED}
    assert kinds <= {ENTRIES_PACKED if form is None else REQUEST_ENTRIES}


@pytest.mark.parametrize("trouble", ["none", "old", "foreign", "refuses", "mute", "away", "dies"])
def test_entries_of_a_peer_that_does_not_lead(trouble: str) -> None:
    """It is asked alone; where it can't serve them, the leader does from there on."""
    cluster = FakeCluster(lead="n1", entries=100)
    follower = cluster.peer("tcp://n2")
    stream = EntryStream(0, url="tcp://n2")
    match trouble:
        case "old":
            follower.features = ("pack", "append", "entries")
        case "foreign":
            follower.speaks = False
        case "refuses":
            follower.serves = False
        case "mute":
            cluster.run(lambda: cluster.client.leader is not None)
            follower.mute = True
        case "away":
            follower.alive = False
        case "dies":
            cluster.at(15, lambda: cluster.kill("n2"))
    assert read(cluster, stream) == [b"%d" % number for number in range(100)]
    served_alone = trouble == "none"
    assert (cluster.peer("tcp://n1").entries_sent == 0) is served_alone
    assert (follower.entries_sent > 0) is (trouble in ("none", "dies"))
    cluster.client.close_stream(stream)
    cluster.run(lambda: list(cluster.links) == ["tcp://n1"])
    assert cluster.client.deadline_ms is None


def test_entries_go_on_with_the_next_leader() -> None:
    cluster = FakeCluster(lead="n1", entries=100)
    stream = EntryStream(0)

    def fail_over() -> None:
        cluster.kill("n1")
        cluster.lead("n2")

    cluster.at(15, fail_over)
    assert read(cluster, stream) == [b"%d" % number for number in range(100)]
    assert cluster.client.leader == "tcp://n2"


def test_a_stream_is_stopped_by_count_0() -> None:
    cluster = FakeCluster(lead="n1", entries=100)
    stream = cluster.client.open_stream(EntryStream(0))
    cluster.run(lambda: bool(stream.runs))
    cluster.client.close_stream(stream)
    cluster.run(lambda: not cluster.peers[0].streams)
    assert cluster.sent[-1][2][-1] == b"\0"


def test_few_requests_ask_for_the_leader() -> None:
    """Each peer is asked every 25 ms, one that does not answer five times a second."""
    cluster = FakeCluster()
    cluster.peers[2].mute = True
    cluster.at(1000, lambda: cluster.lead("n1"))
    cluster.run(lambda: cluster.client.leader is not None)
    asked = [url for _, url, frames in cluster.sent if frames[1] == REQUEST_CONFIG]
    assert 30 <= asked.count("tcp://n2") <= 42
    assert asked.count("tcp://n3") <= 6


FRAME = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"", b"\0", b"\1", b"\2", b"\3", b"k=", b"k\0", b"\xc0", b"\xa2n1"]),
    st.integers(0, 12).map(lambda number: number.to_bytes(12, "big")),
)


@given(st.lists(st.lists(FRAME, max_size=6), max_size=20))
def test_junk_from_the_leader_changes_nothing(messages: list[list[bytes]]) -> None:
    cluster = settled()
    for frames in messages:
        cluster.client.on_frames("tcp://n1", frames, cluster.now_ms)
    last = pack(cluster, b"a", b"b")
    cluster.run(lambda: bool(last.runs))
    assert data_of(cluster) == [b"a", b"b"]


@given(st.lists(st.integers(1, 2**53 - 1), max_size=30))
def test_runs_cover_the_indexes_in_order(indexes: list[int]) -> None:
    runs = runs_of(indexes)
    assert [first + n for count, first in runs for n in range(count)] == indexes


def test_the_window_has_limits() -> None:
    cluster = FakeCluster()
    window = cluster.client.window
    window.limits = WindowLimits(packs=2, updates=3, bytes=100)
    pack(cluster, b"a")
    assert window.has_room
    pack(cluster, b"b")
    assert not window.has_room


def test_an_answer_without_entries_does_not_move_a_stream() -> None:
    stream = EntryStream(0, 10)
    stream.start(b"request-id-1")
    with pytest.raises(RemoteProtocolError):
        stream.on_answer(EntriesAnswer(EntriesStatus.MORE, 1000))
    assert (stream.prev_index, stream.remaining, stream.done) == (0, 10, False)


def test_a_peer_that_names_ever_more_members_is_not_followed_everywhere() -> None:
    numbers = count(1)
    setup = LogClientSetup(IDENT, ("tcp://n1",))
    client = LogClientMachine(setup, lambda: next(numbers).to_bytes(12, "big"), 0)
    client.on_connected("tcp://n1", 0)
    made = 0
    for round_ in range(8):
        now_ms = 1000 * round_
        actions = client.ready(now_ms)
        made += sum(isinstance(action, Connect) for action in actions)
        asked = [action.frames for action in actions if isinstance(action, Send)][-1]
        members = tuple((f"m{round_}.{i}", f"tcp://m{round_}.{i}") for i in range(200))
        answer = ConfigAnswer(leading=False, leader=None, members=members)
        client.on_frames("tcp://n1", CONFIG_ANSWER.encode(answer, asked[0]), now_ms)
    made += sum(isinstance(action, Connect) for action in client.ready(9000))
    assert 200 < made <= 256


# ---- requests that the client's key does not allow ----


@pytest.mark.parametrize("form", [None, Form.NODE, Form.TEXT])
def test_denied_updates_leave_the_window(form: Form | None) -> None:
    cluster = FakeCluster(form, lead="n1")
    first = pack(cluster, b"a", b"b")
    cluster.run(lambda: bool(first.runs))
    deny(cluster, REQUEST_UPDATE, UPDATE_PACK)
    denied = [pack(cluster, b"c", b"d"), pack(cluster, b"e")]
    took_ms = cluster.run(lambda: all(each.refusal for each in denied))
    assert took_ms < 20
    assert {each.refusal for each in denied} == {"this key has no grant `log.append`"}
    assert all(each.is_denied for each in denied)
    assert not cluster.client.window.items
    deny(cluster)
    last = pack(cluster, b"f")
    cluster.run(lambda: bool(last.runs))
    assert data_of(cluster) == [b"a", b"b", b"f"]
    assert cluster.client.counters["searches"] == 1


def test_updates_before_a_denied_one_still_commit() -> None:
    """The leader may have received them before the grant ended."""
    cluster = FakeCluster()
    leader = cluster.lead("n1")
    leader.commits = False
    first, second = pack(cluster, b"a"), pack(cluster, b"b")
    cluster.run(lambda: len(leader.taken) == 2)
    answer = NOT_ALLOWED_ANSWER.encode(RequestDenied(UPDATE_PACK), second.reqids[0])
    cluster.client.on_frames(leader.url, answer, cluster.now_ms)
    assert (first.refusal, second.is_denied) == ("", True)
    run = PACK_ANSWER.encode(PackAnswer(PACK_ACCEPTED, runs=((1, 1),)), first.reqids[0])
    cluster.client.on_frames(leader.url, run, cluster.now_ms)
    assert first.runs == ((1, 1),)


def test_a_stream_ends_if_the_client_has_too_many() -> None:
    cluster = FakeCluster(lead="n1")
    stream = cluster.client.open_stream(EntryStream(0))
    cluster.run(lambda: stream.reqid is not None)
    assert stream.reqid is not None
    refusal = TOO_MANY_ANSWER.encode(RequestDenied(ENTRIES_PACKED), stream.reqid)
    cluster.client.on_frames("tcp://n1", refusal, cluster.now_ms)
    assert "too many entry streams" in stream.denial
    assert not cluster.client.streams


def test_a_denied_read_ends() -> None:
    cluster = FakeCluster(lead="n1")
    deny(cluster, READ_INDEX)
    reads = [cluster.client.reads.add(PendingRead(wait)) for wait in (0, 1)]
    assert cluster.run(lambda: all(read.done for read in reads)) < 20
    assert {(read.refusal, read.is_denied) for read in reads} == {
        ("this key has no grant `log.read`", True)
    }
    assert not len(cluster.client.reads)


@pytest.mark.parametrize(
    ("ask", "kind", "grant"),
    [
        (Query(RequestLogInfo(REQID)), REQUEST_LOG_INFO, "log.read"),
        (Query(RequestLogInfo(REQID), "tcp://n2"), REQUEST_LOG_INFO, "log.read"),
        (Query(RequestBroadcastStateUrl(REQID)), REQUEST_BROADCAST_STATE_URL, "log.read"),
        (Query(RequestTransfer(REQID, "n2", "")), TRANSFER, "admin"),
        (Query(MakeSnapshot(REQID)), MAKE_SNAPSHOT, "admin"),
        (Query(ConfigUpdate(REQID, b"\x90")), CONFIG_UPDATE, "admin"),
    ],
)
def test_a_denied_query_ends(ask: Query, kind: bytes, grant: str) -> None:
    cluster = FakeCluster(lead="n1")
    deny(cluster, kind)
    cluster.client.query(ask)
    assert cluster.run(lambda: ask.done) < 20
    assert (ask.denial, ask.answer) == (f"this key has no grant `{grant}`", None)
    cluster.at(2000, cluster.act)
    cluster.run(lambda: cluster.now_ms >= 3000)
    assert sum(frames[1] == kind for _, _, frames in cluster.sent) == 1
    assert cluster.client.leader == "tcp://n1"


@pytest.mark.parametrize("url", [None, "tcp://n3"])
def test_a_denied_stream_ends(url: str | None) -> None:
    cluster = FakeCluster(lead="n1", entries=9)
    deny(cluster, REQUEST_ENTRIES, ENTRIES_PACKED)
    stream = cluster.client.open_stream(EntryStream(0, url=url))
    assert cluster.run(lambda: stream.done) < 50
    assert stream.denial == "this key has no grant `log.read`"
    assert not cluster.client.streams


def test_entries_before_a_denied_follow_up_are_read() -> None:
    cluster = FakeCluster(lead="n1", entries=90)
    stream = cluster.client.open_stream(EntryStream(0))
    cluster.run(lambda: bool(stream.runs))
    deny(cluster, REQUEST_ENTRIES, ENTRIES_PACKED)
    last_index = 0

    def read() -> bool:
        nonlocal last_index
        run = cluster.client.next_run(stream, cluster.now_ms)
        last_index = run.last_index if run is not None else last_index
        return stream.done and not stream.runs

    cluster.run(read)
    assert stream.denial
    assert last_index == stream.prev_index > 0


def test_a_denial_of_an_unknown_request_changes_nothing() -> None:
    cluster = settled()
    url = cluster.client.leader
    assert url is not None
    cluster.client.on_frames(url, [b"unknown", b"k-", b"="], cluster.now_ms)
    cluster.client.on_frames(url, [b"unknown", b"k-"], cluster.now_ms)
    assert cluster.client.counters["strays"] == 1
    assert cluster.client.counters["junk"] == 1
    assert cluster.client.leader == url
