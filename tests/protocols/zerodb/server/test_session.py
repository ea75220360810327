"""Stories of the server in virtual time: when clients get answers, and what workers get."""

from functools import partial

import pytest

from kelek.native.net.messages import Arena
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.requests import encode_request
from kelek.protocols.zerodb.wire.values import Extension, TableOptions, encode_extension
from kelek.protocols.zerodb.wire.worker_pipe import (
    CHECKPOINT,
    ENVELOPE,
    FAILED,
    JOB_WRITE,
    LEASE,
    ONE_WAY,
    PIPE_HEADER,
    REQUEST,
    RESULT_QUERY,
    RETRYABLE,
    OperationResult,
)
from kelek.tests.protocols.zerodb.server.served import TABLE, SessionHarness, entries, head, led

OPEN = b"\x31\x01\x01\x00"
TRUNCATE = b"\x31\x01\x04"
READ = b"\x31\x01\x10"
PUT = b"\x31\x01\x20"
PARTSYNC = b"\x31\x01\x20\x01"
MANY = b"\x31\x01\x24"


def test_a_partsync_write_is_answered_when_it_is_applied_here() -> None:
    """If the tables may refuse it; test_proposals.py has plain puts."""
    harness = led()
    harness.applies = False
    harness.ask(b"c", b"\x31\x01\x22\x01", TABLE, b"k", b"l")
    harness.run(lambda: bool(harness.log.records) and not harness.client.window.items)
    assert not harness.answers
    harness.applies = True
    harness.run(lambda: bool(harness.answers))
    assert harness.answers == [[b"c", b"\x31\x01\x22\x00"]]
    assert entries(harness) == [[ops.DeleteRange(7, b"k", b"l")]]


def test_an_unflagged_put_is_acknowledged_at_once_and_written_later() -> None:
    harness = SessionHarness()
    harness.ask(b"c", PUT, TABLE, b"k", b"v")
    harness.run(lambda: bool(harness.answers))
    assert not harness.log.records
    harness.lead("n2")
    harness.run(lambda: bool(harness.log.records))
    assert harness.answers == [[b"c", b"\x31\x01\x20\x00"]]


def test_the_envelope_of_a_req_socket_is_echoed() -> None:
    harness = led()
    harness.ask(b"c", b"", PARTSYNC, TABLE, b"k", b"v")
    harness.ask(b"d", b"", b"\x31\x01\x00")
    harness.ask(b"e", b"")
    harness.run(lambda: len(harness.answers) == 3)
    found = {answer[0]: answer[1:] for answer in harness.answers}
    assert found[b"c"] == [b"", b"\x31\x01\x20\x00"]
    features = int.from_bytes(found[b"d"][1][3:11], "little")
    assert found[b"d"][0] == b""
    assert features & 7 == 7
    assert found[b"d"][2] == b"kelek test\0"
    assert found[b"e"][:2] == [b"", b"\x31\x01\xff"]


def test_writes_of_one_connection_keep_their_order_through_a_lost_leader() -> None:
    harness = led()
    for number in range(50):
        harness.at(number * 3, partial(harness.ask, b"c", PARTSYNC, TABLE, b"k", b"%d" % number))
    harness.at(60, lambda: harness.kill("n1"))
    harness.at(300, lambda: harness.lead("n2"))
    harness.run(lambda: len(harness.answers) == 50)
    written = [op.values[0] for each in entries(harness) for op in each if isinstance(op, ops.Put)]
    assert written == [b"%d" % number for number in range(50)]
    assert all(not answer.failed for answer in harness.heard(b"c"))


def test_during_an_election_a_request_waits_and_then_gets_an_error_that_says_so() -> None:
    harness = SessionHarness(request_timeout_ms=400)
    harness.ask(b"w", PARTSYNC, TABLE, b"k", b"v")
    harness.ask(b"r", READ, TABLE, b"k")
    took_ms = harness.run(lambda: len(harness.answers) == 2)
    assert took_ms == 400
    (write,), (read,) = harness.heard(b"w"), harness.heard(b"r")
    assert (write.code, read.code) == (values.ERROR, values.REQUEST_ERROR)
    assert write.text.startswith("not known to be committed: no leader was found")
    assert read.text.startswith("not read: no leader was found: an election goes on")
    assert not harness.workers[0].taken


def test_a_request_that_waits_is_served_once_there_is_a_leader() -> None:
    harness = SessionHarness()
    harness.ask(b"w", PARTSYNC, TABLE, b"k", b"v")
    harness.ask(b"r", READ, TABLE, b"k")
    harness.at(1000, lambda: harness.lead("n3"))
    harness.run(lambda: bool(harness.answers and harness.workers[0].taken))
    assert not harness.heard(b"w")[0].failed
    assert harness.workers[0].taken[0][5] == b"r"


def test_a_leader_without_a_majority_is_named() -> None:
    harness = SessionHarness(request_timeout_ms=300)
    harness.lead("n1").commits = False
    extension = Extension(reqid=b"r" * 12)
    harness.ask(b"c", head(0x20, 1, extension), TABLE, b"k", b"v")
    harness.run(lambda: bool(harness.answers))
    (answer,) = harness.heard(b"c")
    assert answer.retry
    assert answer.reqid == b"r" * 12
    assert "the leader at tcp://n1 did not commit: it has no" in answer.text
    assert answer.text.endswith("it may still be")


def test_an_unproposed_write_is_known_to_be_unwritten() -> None:
    harness = SessionHarness(request_timeout_ms=300)
    data = bytes(1_000_000)
    for number in range(12):  # More than the window holds.
        harness.ask(b"%d" % number, PARTSYNC, TABLE, b"k", data)
    harness.run(lambda: len(harness.answers) == 12)
    texts = [harness.heard(b"%d" % number)[0].text for number in range(12)]
    assert texts[0].startswith("not known to be committed")
    assert texts[-1].startswith("nothing was written")
    assert harness.session.inflight_bytes < 12 << 20, "what was given up is let go"


def test_no_write_overtakes_a_timed_out_write_that_is_retried() -> None:
    harness = SessionHarness(request_timeout_ms=300)

    def put(number: int) -> None:
        header = head(0x20, 1, Extension(reqid=b"%012d" % number))
        harness.ask(b"c", header, TABLE, b"k", b"%d" % number)

    data = bytes(1_000_000)
    for number in range(10):  # Fills the window, so that further writes wait behind it.
        harness.ask(b"%d" % number, PARTSYNC, TABLE, b"k", data)
    put(1)
    harness.at(100, lambda: put(2))
    harness.ask(b"plain", PUT, TABLE, b"k", b"plain")
    harness.run(lambda: len(harness.heard(b"c")) == 2)
    put(3)
    harness.run(lambda: len(harness.heard(b"c")) == 3)
    assert [(it.failed, it.retry) for it in harness.heard(b"c")] == [(True, True)] * 3
    harness.lead("n1")
    for number in (1, 2, 3):
        put(number)
    harness.run(lambda: len(harness.heard(b"c")) == 6)
    assert [
        data for _, data in harness.log.records if len(data) < 100 and b"plain" not in data
    ] == [ops.pack([ops.Put(7, [b"k"], [b"%d" % number])]) for number in (1, 2, 3)]


def test_the_fence_of_a_missing_retry_expires() -> None:
    """Meanwhile every write is checked one by one."""
    harness = SessionHarness(request_timeout_ms=300)
    data = bytes(1_000_000)
    for number in range(20):  # Fills the window.
        harness.ask(b"%d" % number, PARTSYNC, TABLE, b"k", data)
    harness.ask(b"c", head(0x20, 1, Extension(reqid=b"r" * 12)), TABLE, b"k", b"1")
    harness.run(lambda: bool(harness.heard(b"c")), 20_000)
    assert len(harness.session.writes.checks.fence) == 1
    harness.lead("n1")
    harness.at(50_000, lambda: harness.ask(b"d", PARTSYNC, TABLE, b"k", b"2"))
    harness.run(lambda: bool(harness.heard(b"d")), 100_000)
    assert len(harness.session.writes.checks.fence) == 1
    header = head(0x20, 1, Extension(reqid=b"s" * 12))
    harness.at(10_000, lambda: harness.ask(b"c", header, TABLE, b"k", b"3"))
    harness.run(lambda: len(harness.heard(b"c")) == 2, 100_000)
    assert not harness.heard(b"c")[1].failed


def test_reads_share_one_read_index() -> None:
    harness = led()
    harness.ask(b"w", PARTSYNC, TABLE, b"k", b"v")
    harness.run(lambda: bool(harness.answers))
    for number in range(5):
        harness.ask(b"%d" % number, READ, TABLE, b"k")
    harness.ask(b"e", b"", READ, TABLE, b"k")
    sent = len(harness.sent)
    harness.run(lambda: len(harness.workers[0].taken) == 6)
    assert len(harness.sent) == sent + 1
    index = len(harness.log.records) + 1
    assert {(kind, epoch, at) for kind, _, epoch, at, *_ in harness.workers[0].taken} == {
        (REQUEST, 1, index)
    }
    assert [flags for _, flags, *_ in harness.workers[0].taken] == [0] * 5 + [ENVELOPE]
    assert harness.workers[0].taken[0][6] == [READ, TABLE, b"k"]


@pytest.mark.parametrize("wish", ["topology", "request"])
def test_a_stale_read_asks_no_leader(wish: str) -> None:
    harness = SessionHarness(stale_allowed=wish == "topology")
    extension = Extension(flags=values.STALE, reqid=b"r" * 12)
    header = READ + encode_extension(extension) if wish == "request" else READ
    harness.ask(b"c", header, TABLE, b"k")
    harness.run(lambda: bool(harness.workers[0].taken))
    assert harness.workers[0].taken[0][3] == 0


def test_a_lease_of_this_node_answers_for_the_leader() -> None:
    harness = SessionHarness()
    harness.leased_index = 7
    harness.ask(b"a", READ, TABLE, b"k")
    harness.session.ready(harness.now)
    worker = harness.workers[0]
    worker.channel.send(worker.take)
    assert [(taken[5], taken[3]) for taken in worker.taken] == [(b"a", 7)]
    asked = [harness.session.has_log_requests]
    assert harness.session.reads.count == 0
    harness.leased_index = 0
    harness.ask(b"b", READ, TABLE, b"k")
    harness.session.ready(harness.now)
    worker.channel.send(worker.take)
    assert len(worker.taken) == 1
    asked.append(harness.session.has_log_requests)
    assert asked == [False, True]
    harness.leased_index = 9
    harness.ask(b"c", READ, TABLE, b"k")  # Behind one that waits for the leader.
    harness.session.ready(harness.now)
    worker.channel.send(worker.take)
    assert len(worker.taken) == 1


def test_reads_keep_their_order_when_a_later_round_is_confirmed_first() -> None:
    harness = led()
    harness.run(lambda: harness.client.leader is not None)
    for number in range(3):
        harness.ask(b"%d" % number, READ, TABLE, b"k")
        harness.session.ready(harness.now)
    harness.session.reads.rounds[1].read.index = 7
    harness.session.ready(harness.now)
    harness.workers[0].channel.send(harness.workers[0].take)
    assert [(taken[5], taken[3]) for taken in harness.workers[0].taken] == [(b"0", 7), (b"1", 7)]
    harness.run(lambda: len(harness.workers[0].taken) == 3)


def test_local_tables_need_no_leader() -> None:
    harness = SessionHarness(local=frozenset({7}))
    harness.ask(b"a", PUT, TABLE, b"k", b"v")
    harness.ask(b"b", PARTSYNC, TABLE, b"k", b"v")
    harness.ask(b"c", READ, TABLE, b"k")
    harness.ask(b"d", OPEN, TABLE)
    harness.run(lambda: len(harness.workers[0].taken) == 4)
    kinds = [(kind, index, routing_id) for kind, _, _, index, _, routing_id, _ in
             harness.workers[0].taken]  # fmt: skip
    assert kinds == [(ONE_WAY, 0, b"a"), (REQUEST, 0, b"b"), (REQUEST, 0, b"c"), (REQUEST, 0, b"d")]
    assert harness.answers == [[b"a", b"\x31\x01\x20\x00"]]


def test_the_number_of_a_table_decides_its_worker() -> None:
    harness = led(workers=3)
    for table in range(6):
        harness.ask(b"%d" % table, READ, table.to_bytes(4, "little"), b"k")
    harness.run(lambda: all(len(worker.taken) == 2 for worker in harness.workers))
    assert [taken[5] for worker in harness.workers for taken in worker.taken] == [
        b"0", b"3", b"1", b"4", b"2", b"5",
    ]  # fmt: skip


def test_open_and_truncate_go_through_the_log_and_close_does_not() -> None:
    harness = led()
    cache = (1 << 20).to_bytes(8, "little")
    harness.ask(b"o", b"\x31\x01\x01\x01", TABLE, cache)
    harness.ask(b"t", TRUNCATE, TABLE)
    harness.ask(b"c", b"\x31\x01\x02", TABLE)
    harness.run(lambda: len(harness.answers) == 2 and bool(harness.workers[0].taken))
    assert entries(harness) == [
        [ops.Open(7, TableOptions(cache_bytes=1 << 20, compression=False))],
        [ops.Truncate(7)],
    ]
    assert [answer[1:] for answer in harness.answers] == [[OPEN], [TRUNCATE + b"\0"]]
    assert harness.workers[0].taken[0][6] == [b"\x31\x01\x02", TABLE]


def test_a_malformed_write_without_a_flag_is_acknowledged_and_published() -> None:
    harness = led()
    harness.ask(b"a", PUT, TABLE, b"k")
    harness.ask(b"b", PARTSYNC, TABLE, b"k")
    harness.ask(b"c", PARTSYNC, b"123", b"k", b"v")
    harness.ask(b"d", PARTSYNC, TABLE, b"", b"v")
    harness.run(lambda: len(harness.answers) == 4)
    codes = {it: harness.heard(it)[0].code for it in (b"a", b"b", b"c", b"d")}
    assert codes == {b"a": 0, b"b": 0x10, b"c": 0x01, b"d": 0x01}
    assert "frame 2" in harness.heard(b"b")[0].text
    assert harness.session.outbox.notices == [
        (2, "dropped: request 0x20: put, frame 2: expected a value behind the key, found none")
    ]
    assert not harness.log.records


def test_many_tables_at_once_are_one_entry_of_one_worker() -> None:
    harness = led(workers=2, local=frozenset({9}))

    def part(table: int) -> bytes:
        return table.to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\1"

    harness.ask(b"a", MANY, part(7), b"k", part(11), b"k")
    harness.ask(b"b", MANY, part(7), b"k", part(8), b"k")
    harness.ask(b"c", MANY, part(7), b"k", part(9), b"k")
    harness.run(lambda: len(harness.answers) == 3 and bool(harness.log.records))
    assert entries(harness) == [[ops.Delete(7, [b"k"]), ops.Delete(11, [b"k"])]]
    assert [harness.heard(it)[0].code for it in (b"a", b"b", b"c")] == [0, 1, 1]
    assert "the tables 7, 8 are of several workers" in harness.heard(b"b")[0].text
    assert "the tables 7, 9: 9 are local" in harness.heard(b"c")[0].text


@pytest.mark.parametrize("settings", [{"local": frozenset({0})}, {"open_on_the_fly": False}])
def test_sessions_are_of_no_table(settings: dict[str, object]) -> None:
    harness = led(**settings)
    harness.applies = False
    harness.ask(b"c", b"\x31\x01\x26\x01", b"\0", bytes(8), (1000).to_bytes(8, "little"))
    harness.run(lambda: bool(harness.log.records or harness.answers or harness.workers[0].taken))
    assert isinstance(entries(harness)[0][0], ops.SessionOpen)


def test_a_large_write_is_cut_and_answered_with_its_last_part() -> None:
    harness = led(entry_bytes_max=1000)
    harness.ask(b"c", PARTSYNC, TABLE, b"k", bytes(5000))
    harness.run(lambda: bool(harness.answers))
    parts = [op for each in entries(harness) for op in each if isinstance(op, ops.Part)]
    assert [part.part for part in parts] == list(range(parts[0].parts))
    assert ops.unpack(b"".join(part.data for part in parts)) == [ops.Put(7, [b"k"], [bytes(5000)])]
    assert harness.answers == [[b"c", b"\x31\x01\x20\x00"]]


def test_a_large_write_fails_as_a_whole_when_a_part_of_it_is_refused() -> None:
    harness = SessionHarness(entry_bytes_max=1000)
    leader = harness.lead("n1")
    leader.refuse = "expired"
    harness.ask(b"c", PARTSYNC, TABLE, b"k", bytes(100_000))

    def heal() -> None:
        leader.refuse = None

    harness.run(lambda: bool(leader.taken))
    heal()
    harness.run(lambda: bool(harness.answers) and not harness.session.inflight)
    assert "expired" in harness.heard(b"c")[0].text
    parts = [op for each in entries(harness) for op in each if isinstance(op, ops.Part)]
    assert all(part.part + 1 < part.parts for part in parts)


def test_a_timed_out_large_write_leaves_no_parts() -> None:
    harness = SessionHarness(entry_bytes_max=1000, request_timeout_ms=300)
    harness.ask(b"c", PARTSYNC, TABLE, b"k", bytes(500_000))
    harness.run(lambda: bool(harness.answers))
    assert harness.heard(b"c")[0].text.startswith("nothing was written")
    assert harness.session.writes.proposals.size == harness.client.window.size


def test_a_large_write_and_later_writes_get_more_time() -> None:
    """At 4 KiB a millisecond: otherwise it would time out during progress and be retried."""
    harness = SessionHarness(request_timeout_ms=300)
    harness.lead("n1").commits = False
    harness.ask(b"large", PARTSYNC, TABLE, b"k", bytes(8 << 20))
    harness.ask(b"small", PARTSYNC, TABLE, b"k", b"v")
    impatient = Extension(reqid=b"r" * 12, deadline_ms=100)
    harness.ask(b"impatient", head(0x20, 1, impatient), TABLE, b"k", b"v")
    assert harness.run(lambda: bool(harness.answers)) == 100
    assert [answer[0] for answer in harness.answers] == [b"impatient"]
    took_ms = harness.run(lambda: len(harness.answers) == 3)
    assert 2348 <= 100 + took_ms <= 2352


@pytest.mark.parametrize("flags", [b"\1", b"\1\2\3", b"\0\1", b"\4\1"])
def test_uniform_requests_are_handled_as_single_ones(flags: bytes) -> None:
    """With local tables each row is checked by itself."""
    seen = []
    tables = [bytes([number, 0, 0, 0]) for number in range(5)] * 12
    for local in (frozenset[int](), frozenset({99})):
        harness = led(workers=2, local=local)
        puts = []
        for i, table in enumerate(tables):
            flag = flags[i % len(flags) :][:1]
            puts.append([b"%d" % i, b"\x31\x01\x20" + flag, table, b"k", b"v"])
        reads = [[b"r%d" % i, READ, table, b"k"] for i, table in enumerate(tables)]
        harness.session.on_requests(Arena.from_messages(puts), harness.now)
        harness.session.on_requests(Arena.from_messages(reads), harness.now)
        proposals = harness.session.writes.proposals
        harness.run(lambda: len(harness.answers) == 60 and proposals.is_idle)  # noqa: B023
        taken = [[(each[5], each[6]) for each in worker.taken] for worker in harness.workers]
        assert sum(map(len, taken)) == 60
        seen.append((sorted(harness.answers), [data for _, data in harness.log.records], taken))
    assert seen[0] == seen[1]
    assert len(seen[0][1]) == 60


def test_the_reqid_of_a_request_is_that_of_its_entry() -> None:
    harness = led()
    header = head(0x20, 1, Extension(reqid=b"x" * 12))
    for _ in range(2):
        harness.ask(b"c", header, TABLE, b"k", b"v")
        harness.run(lambda: not harness.session.inflight)
    assert [reqid for reqid, _ in harness.log.records] == [b"x" * 12]
    assert [answer.reqid for answer in harness.heard(b"c")] == [b"x" * 12] * 2


def test_a_transaction_is_answered_with_what_the_worker_reports() -> None:
    harness = led()
    harness.applies = False
    request = requests.Transaction(
        [ops.Compare(7, b"k", ops.ABSENT)], [ops.Put(7, [b"k"], [b"v"])], [], 0,
        Extension(reqid=b"t" * 12),
    )  # fmt: skip
    harness.ask(b"c", *encode_request(request))
    harness.run(lambda: bool(harness.log.records) and not harness.client.window.items)
    harness.session.writes.proposals.on_results([(1, OperationResult(0, b"\1" + bytes(8)))])
    harness.applies = True
    harness.run(lambda: bool(harness.answers))
    (answer,) = harness.heard(b"c")
    assert (answer.code, answer.reqid, answer.frames) == (0, b"t" * 12, [b"\1" + bytes(8)])
    harness.ask(b"d", *encode_request(request))
    harness.run(lambda: bool(harness.workers[0].taken))
    kind, _, _, index, _, routing_id, frames = harness.workers[0].taken[0]
    assert (kind, index, routing_id, frames[0]) == (RESULT_QUERY, 1, b"d", b"t" * 12)
    assert frames[1] == answers.encode_head(values.TRANSACTION, 0, request.extension)

    harness.workers[0].taken.clear()
    harness.workers[0].report(2, 1, harness.now_ms)
    harness.run(lambda: bool(harness.workers[0].taken))
    assert harness.workers[0].taken[0][0] == RESULT_QUERY, "a new worker is asked again"
    harness.applies = False
    harness.workers[0].channel.on_lost(harness.now_ms)
    harness.run(lambda: len(harness.answers) == 2, 10_000)
    (answer,) = harness.heard(b"d")
    assert (answer.retry, answer.reqid) == (True, b"t" * 12)


def test_results_of_other_nodes_are_bounded_and_refusals_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kelek.protocols.zerodb.server.proposals.RESULTS_BYTES_MAX", 10_000)
    harness = led()
    proposals = harness.session.writes.proposals
    harness.applies = False
    harness.ask(b"c", PARTSYNC, TABLE, b"k", b"v")
    harness.run(lambda: bool(harness.log.records))
    proposals.on_results([(1, OperationResult(2, b"the pieces are missing"))])
    for index in range(2, 1000):  # Of other nodes, while this write waits.
        proposals.on_results([(index, OperationResult(0, bytes(1000)))])
    assert 0 < len(proposals.unclaimed_results) < 12
    harness.applies = True
    harness.run(lambda: bool(harness.answers))
    assert harness.heard(b"c")[0].text == "the pieces are missing"
    # Behind a write that was proposed later, earlier results are dropped.
    harness.log.records += [(b"", b"")] * 1000
    harness.run(lambda: proposals.is_idle)
    harness.ask(b"d", PARTSYNC, TABLE, b"k", b"v")
    harness.session.ready(harness.now)
    proposals.on_results([(index, OperationResult(2, b"no")) for index in range(1, 900)])
    assert not proposals.unclaimed_results


def test_keys_expire_by_an_entry_of_the_leaders_server() -> None:
    for own_url, took_ms in (("tcp://n1", 500), ("tcp://n2", 2500)):
        harness = led(own_url=own_url)
        harness.run(lambda: harness.client.leader is not None)  # noqa: B023
        begun_ms = harness.now.unix_ms
        harness.session.writes.on_expiry(0, begun_ms + 500)
        harness.run(lambda: bool(harness.log.records))  # noqa: B023
        assert entries(harness) == [[ops.Expire(0, begun_ms + took_ms)]]
        harness.run(lambda: len(harness.log.records) == 3)  # noqa: B023
        harness.session.writes.on_expiry(0, 0)
        harness.run(lambda: not harness.session.inflight)  # noqa: B023
        assert harness.session.deadline_ms is None


def test_a_refusing_database_is_reported_to_clients() -> None:
    harness = led()
    harness.applies = False
    handoff = harness.workers[0].channel
    handoff.status = handoff.status._replace(refusal="no space left on device")
    harness.ask(b"c", PARTSYNC, TABLE, b"k", b"v")
    harness.run(lambda: bool(harness.answers))
    (answer,) = harness.heard(b"c")
    assert answer.code == values.DATABASE_ERROR
    assert answer.text.endswith("not applied here yet: no space left on device")


def test_a_refusing_database_does_not_delay_other_workers() -> None:
    harness = led(workers=2)
    harness.applies = False
    harness.workers[1].report(1, 100, harness.now_ms)
    handoff = harness.workers[0].channel
    handoff.status = handoff.status._replace(refusal="no space left on device")
    harness.ask(b"c", PARTSYNC, TABLE, b"k", b"v")
    harness.run(lambda: bool(harness.answers))
    harness.workers[0].report(1, 0, harness.now_ms)
    harness.ask(b"d", PARTSYNC, (8).to_bytes(4, "little"), b"k", b"v")
    harness.run(lambda: len(harness.answers) == 2)
    assert not harness.heard(b"c")[0].failed
    assert harness.heard(b"d")[0].code == values.DATABASE_ERROR


def test_all_tables_are_listed_by_all_workers() -> None:
    harness = led(workers=2)
    harness.ask(b"c", b"", b"\x31\x01\x15")
    harness.run(lambda: all(worker.taken for worker in harness.workers))
    keys = {worker.taken[0][5] for worker in harness.workers}
    (key,) = keys
    assert [worker.taken[0][6] for worker in harness.workers] == [[b"\x31\x01\x15"]] * 2
    parts = [{4: {"keys": 7}, 6: {"keys": 8}}, {5: {"keys": 9}}]
    request = requests.TableInfo()
    for worker in (0, 0, 1, 1):
        frames = answers.TABLE_INFO.encode(request, parts[worker].items())
        harness.session.outbox.on_part(worker, [key, *frames])
    harness.run(lambda: bool(harness.answers))
    assert harness.answers == [
        [b"c", b"", *answers.TABLE_INFO.encode(request, sorted((parts[0] | parts[1]).items()))]
    ]


def test_when_one_worker_fails_to_list_its_tables_all_of_it_fails() -> None:
    harness = led(workers=2, request_timeout_ms=300)
    harness.applies = False
    for worker in harness.workers:
        worker.channel.epoch = None  # Neither worker runs.
    harness.ask(b"gone", b"\x31\x01\x15")
    harness.run(lambda: bool(harness.answers))
    assert "does not answer" in harness.heard(b"gone")[0].text
    for worker in harness.workers:
        worker.report(2, 9, harness.now_ms)
    harness.ask(b"c", b"\x31\x01\x15")
    harness.run(lambda: bool(harness.workers[1].taken))
    key = harness.workers[1].taken[0][5]
    refusal = answers.encode_error(requests.TableInfo(), 0x10, "block 7 is wrong")
    harness.session.outbox.on_part(1, [key, *refusal])
    harness.session.outbox.on_part(0, [key, *answers.TABLE_INFO.encode(requests.TableInfo(), ())])
    harness.run(lambda: len(harness.answers) == 2)
    assert (harness.heard(b"c")[0].code, harness.heard(b"c")[0].text) == (0x10, "block 7 is wrong")
    assert not len(harness.session.outbox.scatter_gather)


def test_a_refused_write_does_not_take_the_others_with_it() -> None:
    harness = SessionHarness()
    leader = harness.lead("n1")
    leader.refuse = "expired"  # The second of a pack.
    for number in range(3):
        harness.ask(b"%d" % number, PARTSYNC, TABLE, b"k", b"%d" % number)

    def heal() -> None:
        leader.refuse = None

    harness.run(lambda: bool(harness.answers))
    heal()
    harness.run(lambda: len(harness.answers) == 3)
    assert [harness.heard(b"%d" % number)[0].code for number in range(3)] == [0, 1, 0]
    assert "expired" in harness.heard(b"1")[0].text
    assert [data for _, data in harness.log.records] == [
        ops.pack([ops.Put(7, [b"k"], [value])]) for value in (b"0", b"2")
    ]


# ---- one-way sockets and jobs ----


def test_failures_without_a_client_are_published() -> None:
    harness = led(local=frozenset({9}))
    arena = Arena.from_messages(
        [
            [PARTSYNC, TABLE, b"k", b"v"],
            [PUT, (9).to_bytes(4, "little"), b"k", b"v"],
            [READ, TABLE, b"k"],
            [PUT, TABLE, b"k"],
            [b"junk"],
            [b""],
        ]
    )
    harness.session.on_one_way(arena, harness.now)
    harness.run(lambda: bool(harness.log.records and harness.workers[0].taken))
    assert not harness.answers
    assert harness.workers[0].taken[0][0] == ONE_WAY
    assert harness.session.outbox.counters["dropped"] == 4


def test_a_job_request_goes_to_the_job_server_and_its_ask_to_the_worker() -> None:
    harness = led()
    harness.ask(b"j", b"", b"\x31\x01\x42", TABLE, b"", b"", b"")
    harness.run(lambda: bool(harness.jobs))
    assert PIPE_HEADER.unpack(harness.jobs[0][0])[:2] == (REQUEST, ENVELOPE)
    assert harness.jobs[0][1:3] == [b"j", b"\x31\x01\x42"]
    harness.session.on_job_request((CHECKPOINT, 0, 0, 0, 0, 77), [TABLE, b"/p"], harness.now)
    harness.session.on_job_request(
        (JOB_WRITE, 0, 0, 0, 0, 78), [TABLE, ops.pack([ops.Truncate(7)])], harness.now
    )
    harness.run(lambda: bool(harness.workers[0].taken) and len(harness.jobs) == 2)
    kind, _, _, _, ticket, _, frames = harness.workers[0].taken[0]
    assert (kind, ticket, frames) == (CHECKPOINT, 77, [TABLE, b"/p"])
    assert PIPE_HEADER.unpack(harness.jobs[1][0]) == (JOB_WRITE, 0, 0, 0, 1, 78)


def test_an_entry_about_a_lease_is_answered_when_all_workers_have_applied_it() -> None:
    """It concerns no table, so closed and local tables do not matter."""
    harness = led(workers=2, local=frozenset({0}), open_on_the_fly=False)
    entry = ops.pack([ops.LeaseOpen(7, 1)])
    harness.applies = False
    opened, changed = [TABLE, entry, b"r" * 12, b""], [bytes(4), ops.pack([]), b"", b""]
    harness.session.on_job_request((LEASE, 0, 0, 0, 0, 77), opened, harness.now)
    harness.session.on_job_request((LEASE, 0, 0, 0, 0, 78), changed, harness.now)
    harness.run(lambda: len(harness.log.records) == 2 and not harness.client.window.items)
    harness.workers[1].report(1, 2, harness.now_ms)
    assert not harness.session.outbox.jobs.count
    harness.session.writes.proposals.on_results([(1, OperationResult(2, b"no room"))])
    harness.workers[0].report(1, 2, harness.now_ms)
    harness.run(lambda: len(harness.jobs) == 2)
    told = {PIPE_HEADER.unpack(message[0]): message[1:] for message in harness.jobs}
    assert told[(JOB_WRITE, 0, 0, 0, 2, 78)] == []
    assert told[(FAILED, 0, 0, values.DATABASE_ERROR, 0, 77)] == [b"no room"]


def test_a_failed_job_request_is_reported_to_the_job_server() -> None:
    harness = SessionHarness(request_timeout_ms=200)
    harness.session.on_job_request((CHECKPOINT, 0, 0, 0, 0, 77), [TABLE, b"/p"], harness.now)
    harness.run(lambda: bool(harness.jobs))
    assert PIPE_HEADER.unpack(harness.jobs[0][0]) == (FAILED, RETRYABLE, 0, values.ERROR, 0, 77)
    assert harness.jobs[0][1].startswith(b"not read: no leader was found")


def test_job_requests_of_a_dead_worker_are_reported_to_the_job_server() -> None:
    """The worker refuses it itself."""
    harness = led(request_timeout_ms=400)
    worker = harness.workers[0]
    harness.session.on_job_request((CHECKPOINT, 0, 0, 0, 0, 77), [TABLE, b"/p"], harness.now)
    harness.run(lambda: len(worker.taken) == 1)
    for epoch in (1, 2):
        assert not harness.session.outbox.jobs.count
        worker.report(epoch, 0, harness.now_ms)
    harness.run(lambda: bool(harness.jobs))
    assert PIPE_HEADER.unpack(harness.jobs[0][0]) == (FAILED, RETRYABLE, 0, values.ERROR, 0, 77)
    worker.report(3, 0, harness.now_ms)
    assert not harness.session.outbox.jobs.count, "it is said once"
    worker.room = 0
    harness.session.on_job_request((CHECKPOINT, 0, 0, 0, 0, 78), [TABLE, b"/q"], harness.now)
    harness.run(lambda: len(harness.jobs) == 2)
    assert PIPE_HEADER.unpack(harness.jobs[1][0])[5] == 78


def test_a_missing_job_server_is_reported_to_clients() -> None:
    harness = led()
    harness.ask(b"j", b"\x31\x01\x48", bytes(8))
    harness.run(lambda: bool(harness.jobs))
    harness.session.jobs.refuse(harness.jobs[0])
    harness.run(lambda: bool(harness.answers))
    (answer,) = harness.heard(b"j")
    assert answer.failed
    assert answer.text == "no job_server runs on this node now"


def test_above_its_limits_the_server_reads_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kelek.protocols.zerodb.server.session.INFLIGHT_MAX", 3)
    harness = SessionHarness(request_timeout_ms=300)
    for number in range(3):
        assert not harness.session.is_full
        harness.ask(b"%d" % number, PARTSYNC, TABLE, b"k", b"v")
        harness.session.ready(harness.now)
    assert harness.session.is_full
    harness.run(lambda: not harness.session.is_full)
    assert len(harness.answers) == 3
