"""Packs of writes in a session: when the leader's answer matters, and which index clients learn."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.net.messages import Arena
from kelek.native.tables.plain import AHEAD, BYTES_MAX, PACKS, PlainKinds
from kelek.protocols.zerodb.server import proposals as proposals_module
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.requests import Request, encode_request
from kelek.protocols.zerodb.wire.values import PACKED, WITH_INDEX, Extension
from kelek.protocols.zerodb.wire.worker_pipe import (
    PIPE_HEADER,
    RESULT_QUERY,
    WRITE_STATUS,
    OperationResult,
)
from kelek.tests.protocols.zerodb.server.served import TABLE, SessionHarness, entries, led

PARTSYNC = b"\x31\x01\x20\x01"
DELETE_RANGE = b"\x31\x01\x22\x01"
READ = b"\x31\x01\x10"


def test_the_leaders_answer_may_wait_until_a_worker_has_applied_something() -> None:
    """One pack, and no read: only then nothing waits for the answer alone."""
    harness = led()
    session = harness.session

    def may_wait() -> bool:
        return session.may_wait

    harness.run(lambda: session.writes.proposals.is_idle)
    assert not may_wait()
    harness.applies = False
    harness.ask(b"c", DELETE_RANGE, TABLE, b"k", b"v")
    harness.act()
    assert may_wait()
    harness.ask(b"d", READ, TABLE, b"k")
    harness.act()
    assert not may_wait()
    harness.run(lambda: not len(harness.client.reads))
    harness.applies = True
    harness.run(lambda: len(harness.heard(b"c")) == 1)
    assert not may_wait()


def test_plain_writes_are_answered_at_the_commit() -> None:
    """Nothing else is: the tables may refuse it."""
    harness = led()
    proposals = harness.session.writes.proposals
    harness.applies = False
    harness.ask(b"p", PARTSYNC, TABLE, b"k", b"v")
    harness.ask(b"d", b"\x31\x01\x21\x01", TABLE, b"k")
    harness.act()
    assert [harness.session.may_wait, proposals.awaits_apply] == [False, False]
    harness.run(lambda: len(harness.answers) == 2)
    assert [answer[0] for answer in harness.answers] == [b"p", b"d"]
    assert proposals.is_idle
    harness.ask(b"p", PARTSYNC, TABLE, b"k", b"v")
    harness.ask(b"r", DELETE_RANGE, TABLE, b"k", b"l")
    harness.run(lambda: len(harness.log.records) == 4 and not harness.client.window.items)
    assert proposals.awaits_apply
    assert len(harness.answers) == 2, "they share a pack"
    harness.applies = True
    harness.run(lambda: len(harness.answers) == 4)


@pytest.mark.parametrize("why", ["it is far behind", "its disk takes no writes"])
def test_plain_writes_wait_for_a_node(why: str) -> None:
    harness = led()
    harness.applies = False
    channel = harness.workers[0].channel
    if why == "it is far behind":
        for number in range(proposals_module.UNAPPLIED_MAX):
            harness.log.add(b"%012d" % number, b"")
    else:
        channel.status = channel.status._replace(refusal="no space")
    harness.ask(b"p", PARTSYNC, TABLE, b"k", b"v")
    harness.run(lambda: len(harness.answers) == 1 or channel.must_send_waiting(1 << 40, False))
    harness.run(lambda: not harness.client.window.items and bool(harness.log.records))
    if why == "it is far behind":
        assert not harness.answers
        harness.applies = True
        harness.run(lambda: bool(harness.answers))
        assert not harness.heard(b"p")[0].failed
    else:
        harness.run(lambda: bool(harness.answers))
        assert "not applied here yet: no space" in harness.heard(b"p")[0].text


def test_answers_for_two_packs_do_not_wait() -> None:
    harness = led()
    harness.applies = False
    for key in (b"k", b"l"):
        harness.ask(b"c", PARTSYNC, TABLE, key, b"v")
        harness.act()
    assert not harness.session.may_wait


# ---- the index of a write ----

MAKE: list[Callable[[Extension], Request]] = [
    lambda asked: requests.Put(7, [b"k"], [b"v"], values.PARTSYNC, asked),
    lambda asked: requests.Put(7, [b"k"], [bytes(3000)], values.FULLSYNC, asked),  # In parts.
    lambda asked: requests.Put(8, [b"k"], [b"v"], 3, asked._replace(flags=asked.flags | PACKED)),
    lambda asked: requests.Put(8, [b"k"], [b"v"], values.PARTSYNC, asked._replace(ttl_ms=5000)),
    lambda asked: requests.Delete(7, [b"k", b"l"], values.PARTSYNC, asked),
    lambda asked: requests.DeleteRange(8, b"a", b"b", values.PARTSYNC, asked),
    lambda asked: requests.WriteTables([ops.Delete(7, [b"k"])], values.FULLSYNC, asked),
    lambda asked: requests.OpenTable(9, extension=asked),
    lambda asked: requests.TruncateTable(7, asked),
]
# A number of MAKE, a number of a reqid, whether the answer must tell the index.
ASKED_WRITE = st.tuples(st.integers(0, len(MAKE) - 1), st.integers(1, 9), st.booleans())


def asked_write(make: int, number: int, asks: bool) -> list[bytes]:
    extension = Extension(WITH_INDEX if asks else 0, reqid=b"%d%011d" % (asks, number))
    return encode_request(MAKE[make](extension))


@given(st.lists(st.lists(ASKED_WRITE, min_size=1, max_size=5), max_size=4))
def test_an_answer_tells_the_index_of_its_entry(batches: list[list[tuple[int, int, bool]]]) -> None:
    """Whatever shares its pack. A repeat, also of another write, has that of the first time."""
    harness = led(entry_bytes_max=1000, workers=2)
    harness.log.add(b"of another  ", b"")
    for batch in batches:
        messages = [[b"c", *asked_write(*it)] for it in batch]
        harness.session.on_requests(Arena.from_messages(messages), harness.now)
        harness.act()
    count = sum(map(len, batches))
    harness.run(lambda: len(harness.answers) == count and harness.session.writes.proposals.is_idle)
    for answer in harness.heard(b"c"):
        asked = answer.reqid[:1] == b"1"
        told = harness.log.index_of[answer.reqid] if asked else None
        assert (answer.failed, answer.log_index) == (False, told)


def transaction(number: int, flags: int = WITH_INDEX) -> list[bytes]:
    extension = Extension(flags, reqid=b"%012d" % number)
    return encode_request(requests.Transaction([], [], [], 0, extension))


def test_a_transaction_tells_the_index_of_the_first_time() -> None:
    """Also when its result must be asked for again."""
    harness = led()
    proposals = harness.session.writes.proposals
    for number in (1, 2):
        harness.ask(b"c", *transaction(number))
    harness.applies = False
    harness.run(lambda: len(harness.log.records) == 2 and not harness.client.window.items)
    result = b"\1" + bytes(8)
    proposals.on_results([(1, OperationResult(0, result)), (2, OperationResult(0, result))])
    harness.applies = True
    harness.run(lambda: len(harness.answers) == 2)
    told = {it.reqid: (it.log_index, it.frames) for it in harness.heard(b"c")}
    assert told == {b"%012d" % number: (number, [result]) for number in (1, 2)}
    harness.ask(b"d", *transaction(1))
    harness.run(lambda: bool(harness.workers[0].taken))
    kind, _, _, index, _, _, frames = harness.workers[0].taken[0]
    assert (kind, index) == (RESULT_QUERY, 1)
    header = answers.encode_head(values.TRANSACTION, 0, Extension(WITH_INDEX, reqid=b"%012d" % 1))
    assert frames == [b"%012d" % 1, answers.tell_index(header, 1)]


def test_a_write_that_nobody_waits_for_tells_no_index() -> None:
    """It is acknowledged before it is in the log."""
    harness = led(local=frozenset({9}))
    for number, (table, flags) in enumerate([(7, 0), (9, 0)]):
        asked = Extension(WITH_INDEX, reqid=b"%012d" % number)
        frames = encode_request(requests.Put(table, [b"k"], [b"v"], flags, asked))
        harness.ask(b"c", *frames)
        harness.ask(b"c", *frames[:-1])  # A key without its value.
    harness.ask(b"e", b"", *asked_write(0, 1, True))
    harness.run(lambda: len(harness.answers) == 5)
    assert [it.log_index for it in harness.heard(b"c")] == [0] * 4
    (answer,) = [it[2:] for it in harness.answers if it[0] == b"e"]  # Of a REQ.
    assert answers.decode_answer(answer).log_index == harness.log.index_of[b"1%011d" % 1]


def test_a_pack_that_is_cut_after_a_refusal_tells_the_right_indexes() -> None:
    harness = SessionHarness()
    leader = harness.lead("n1")
    leader.refuse = "expired"
    for number in range(3):
        harness.ask(b"c", *asked_write(0, number, True))
    harness.run(lambda: bool(leader.taken))
    leader.refuse = None
    harness.run(lambda: len(harness.answers) == 3)
    done = [answer for answer in harness.heard(b"c") if not answer.failed]
    assert len(done) == 2
    assert {it.reqid: it.log_index for it in done} == harness.log.index_of


def plain(harness: SessionHarness, *puts: tuple[bytes, bytes, bytes]) -> list[list[bytes]]:
    """Writes that C takes; returns its messages to the leader."""
    requests = [[client, PARTSYNC, TABLE, key, value] for client, key, value in puts]
    writes, arena = harness.session.plain, Arena.from_messages(requests)
    assert writes.read(arena) == PlainKinds.WRITES
    writes.receive(arena, 1000 * harness.now_ms, 1_700_000_000)
    return writes.packs(1000 * harness.now_ms).messages()


def in_c() -> SessionHarness:
    harness = led()
    harness.session.plain.set_tables([7])
    harness.run(lambda: harness.session.plain_url is not None)
    return harness


@pytest.mark.parametrize(
    "later",
    [
        [DELETE_RANGE, TABLE, b"k", b"l"],
        encode_request(requests.WriteTables([ops.Put(7, [b"k"], [b"t"])], 1)),
    ],
)
def test_a_later_write_comes_behind_those_that_c_has(later: list[bytes]) -> None:
    """The leader has got none of them."""
    harness = in_c()
    sent = [len(plain(harness, (b"c%d" % at, b"k", b"%d" % at))) for at in range(AHEAD + 2)]
    assert sent == [1] * AHEAD + [0] * 2
    assert harness.session.inflight == AHEAD + 2
    harness.ask(b"later", *later)
    assert harness.session.plain.is_empty
    assert harness.session.plain_url is None
    harness.run(lambda: len(harness.answers) == AHEAD + 3)
    assert all(not harness.heard(b"c%d" % at)[0].failed for at in range(AHEAD + 2))
    written = [each[0] for each in entries(harness)]
    assert [op.values for op in written[:-1] if isinstance(op, ops.Put)] == [
        [b"%d" % at] for at in range(AHEAD + 2)
    ]
    assert harness.session.plain_url is None, "the leader could not queue so many packs"
    for at in range(PACKS):
        harness.ask(b"more", PARTSYNC, TABLE, b"k", b"%d" % at)
        harness.run(lambda at=at: len(harness.heard(b"more")) == at + 1)  # type: ignore[misc]
    assert harness.session.plain_url is not None


def test_what_the_leader_has_committed_for_c_is_not_written_again() -> None:
    harness = in_c()
    (pack,) = plain(harness, (b"a", b"k", b"1"), (b"b", b"k", b"2"))
    url = harness.session.plain_url
    assert url is not None
    harness.session.take_back(harness.now)
    harness.client.failover.send(url, pack)  # As C has done before.
    harness.run(lambda: len(harness.answers) == 2)
    harness.now_ms += 60_000
    harness.act()
    written = [each[0] for each in entries(harness)]
    assert written == [ops.Put(7, [b"k"], [b"1"]), ops.Put(7, [b"k"], [b"2"])]


def test_a_refusal_of_the_database_is_waited_for_by_c_as_by_python() -> None:
    """Nothing is answered at its commit then."""
    harness = in_c()
    worker = harness.workers[0]
    head = PIPE_HEADER.pack(WRITE_STATUS, 1, 0, 0, 0, 1)
    harness.session.on_report(PIPE_HEADER.unpack(head), [b"full"], harness.now_ms, 0)
    assert harness.session.plain_url is None
    assert worker.channel.status.refusal == "full"


def test_rows_that_had_no_room_in_c_follow_its_packs() -> None:
    harness = in_c()
    size = BYTES_MAX - 100
    puts = [(b"c%d" % at, b"k", b"%03d" % at + bytes(size)) for at in range(PACKS + 2)]
    assert len(plain(harness, *puts)) == PACKS
    assert harness.session.plain.is_stalled
    harness.session.take_back(harness.now)
    harness.run(lambda: len(harness.answers) == PACKS + 2)
    written = [each[0] for each in entries(harness)]
    assert [op.values[0][:3] for op in written if isinstance(op, ops.Put)] == [
        b"%03d" % at for at in range(PACKS + 2)
    ]


def test_one_way_writes_follow_rows_that_had_no_room_in_c() -> None:
    harness = in_c()
    puts = [(b"c%d" % at, b"k", bytes(BYTES_MAX - 100)) for at in range(PACKS + 2)]
    plain(harness, *puts)
    assert harness.session.plain.is_stalled
    writes = [[b"\x31\x01\x20", TABLE, b"last", b"%d" % at] for at in range(2)]
    harness.session.on_one_way(Arena.from_messages(writes), harness.now)
    harness.run(lambda: len(harness.log.records) == PACKS + 4)
    written = [op for (op,) in entries(harness) if isinstance(op, ops.Put)]
    assert [op.keys for op in written] == [[b"k"]] * (PACKS + 2) + [[b"last"]] * 2


def test_reads_among_rows_that_had_no_room_are_not_forwarded_again() -> None:
    """C has forwarded them before it takes the writes."""
    harness = in_c()
    harness.session.open_channels()
    assert harness.session.reads_in_c
    reqid = values.Extension(reqid=b"r" * 12)
    put = encode_request(requests.Put(7, [b"k"], [b"v"], 1, reqid))
    messages = [[b"a", *put], [b"b", *put], [b"reader", READ, TABLE, b"k"]]
    writes = harness.session.plain
    for some in ([messages[0]], messages[1:]):
        arena = Arena.from_messages(some)
        assert PlainKinds.WRITES in writes.read(arena)
        channels = harness.session.read_channels
        assert channels.add(0, arena, 1, 0).count == len(some) - 1
        writes.receive(arena, 1000 * harness.now_ms, 1_700_000_000)
        writes.packs(1000 * harness.now_ms)
    assert writes.is_stalled, "the repeat waits, and the read stands behind it"
    before = harness.session.counters["requests"]
    harness.session.take_back(harness.now)
    assert harness.session.counters["requests"] == before + 1
    harness.run(lambda: len(harness.heard(b"b")) == 1)
    assert not harness.workers[0].taken, "it was forwarded once, by C"
    assert harness.session.channels[0].count == 1
