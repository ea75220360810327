"""Stories of the server in virtual time: when clients get answers, and what workers get."""

from functools import partial

import pytest

from kelek.native.net.messages import Arena
from kelek.protocols.zerodb.server.worker_channel import HELLO_MS, SERVER_WAITS_MS, WorkerChannel
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.client_codec import encode_request
from kelek.protocols.zerodb.wire.values import Extension, TableOptions, encode_extension
from kelek.protocols.zerodb.wire.worker_pipe import (
    CHECKPOINT,
    ENVELOPE,
    FAILED,
    JOB_WRITE,
    LEASE,
    ONE_WAY,
    PIPE_HEADER,
    PROGRESS,
    REQUEST,
    RESULT_QUERY,
    RETRYABLE,
    TABLES,
    OperationResult,
)
from kelek.tests.protocols.zerodb.server.served import TABLE, Served, entries, head, led

OPEN = b"\x31\x01\x01\x00"
TRUNCATE = b"\x31\x01\x04"
READ = b"\x31\x01\x10"
PUT = b"\x31\x01\x20"
PARTSYNC = b"\x31\x01\x20\x01"
MANY = b"\x31\x01\x24"


def test_a_partsync_put_is_answered_when_it_is_applied_here() -> None:
    world = led()
    world.applies = False
    world.ask(b"c", PARTSYNC, TABLE, b"k", b"v")
    world.run(lambda: bool(world.log.records) and not world.client.window.items)
    assert not world.answers
    world.applies = True
    world.run(lambda: bool(world.answers))
    assert world.answers == [[b"c", b"\x31\x01\x20\x00"]]
    assert entries(world) == [[ops.Put(7, [b"k"], [b"v"])]]


def test_an_unflagged_put_is_acknowledged_at_once_and_written_later() -> None:
    world = Served()
    world.ask(b"c", PUT, TABLE, b"k", b"v")
    world.run(lambda: bool(world.answers))
    assert not world.log.records
    world.lead("n2")
    world.run(lambda: bool(world.log.records))
    assert world.answers == [[b"c", b"\x31\x01\x20\x00"]]


def test_the_envelope_of_a_req_socket_is_echoed() -> None:
    world = led()
    world.ask(b"c", b"", PARTSYNC, TABLE, b"k", b"v")
    world.ask(b"d", b"", b"\x31\x01\x00")
    world.ask(b"e", b"")
    world.run(lambda: len(world.answers) == 3)
    found = {answer[0]: answer[1:] for answer in world.answers}
    assert found[b"c"] == [b"", b"\x31\x01\x20\x00"]
    features = int.from_bytes(found[b"d"][1][3:11], "little")
    assert found[b"d"][0] == b""
    assert features & 7 == 7
    assert found[b"d"][2] == b"kelek test\0"
    assert found[b"e"][:2] == [b"", b"\x31\x01\xff"]


def test_writes_of_one_connection_keep_their_order_through_a_lost_leader() -> None:
    world = led()
    for number in range(50):
        world.at(number * 3, partial(world.ask, b"c", PARTSYNC, TABLE, b"k", b"%d" % number))
    world.at(60, lambda: world.kill("n1"))
    world.at(300, lambda: world.lead("n2"))
    world.run(lambda: len(world.answers) == 50)
    written = [op.values[0] for each in entries(world) for op in each if isinstance(op, ops.Put)]
    assert written == [b"%d" % number for number in range(50)]
    assert all(not answer.failed for answer in world.heard(b"c"))


def test_during_an_election_a_request_waits_and_then_gets_an_error_that_says_so() -> None:
    world = Served(request_timeout_ms=400)
    world.ask(b"w", PARTSYNC, TABLE, b"k", b"v")
    world.ask(b"r", READ, TABLE, b"k")
    took_ms = world.run(lambda: len(world.answers) == 2)
    assert took_ms == 400
    (write,), (read,) = world.heard(b"w"), world.heard(b"r")
    assert (write.code, read.code) == (values.ERROR, values.REQUEST_ERROR)
    assert write.text.startswith("not known to be committed: no leader was found")
    assert read.text.startswith("not read: no leader was found: an election goes on")
    assert not world.workers[0].taken


def test_a_request_that_waits_is_served_once_there_is_a_leader() -> None:
    world = Served()
    world.ask(b"w", PARTSYNC, TABLE, b"k", b"v")
    world.ask(b"r", READ, TABLE, b"k")
    world.at(1000, lambda: world.lead("n3"))
    world.run(lambda: bool(world.answers and world.workers[0].taken))
    assert not world.heard(b"w")[0].failed
    assert world.workers[0].taken[0][5] == b"r"


def test_a_leader_without_a_majority_is_named() -> None:
    world = Served(request_timeout_ms=300)
    world.lead("n1").commits = False
    extension = Extension(reqid=b"r" * 12)
    world.ask(b"c", head(0x20, 1, extension), TABLE, b"k", b"v")
    world.run(lambda: bool(world.answers))
    (answer,) = world.heard(b"c")
    assert answer.retry
    assert answer.reqid == b"r" * 12
    assert "the leader at tcp://n1 did not commit: it has no" in answer.text
    assert answer.text.endswith("it may still be")


def test_an_unproposed_write_is_known_to_be_unwritten() -> None:
    world = Served(request_timeout_ms=300)
    data = bytes(1_000_000)
    for number in range(12):  # More than the window holds.
        world.ask(b"%d" % number, PARTSYNC, TABLE, b"k", data)
    world.run(lambda: len(world.answers) == 12)
    texts = [world.heard(b"%d" % number)[0].text for number in range(12)]
    assert texts[0].startswith("not known to be committed")
    assert texts[-1].startswith("nothing was written")
    assert world.session.inflight_bytes < 12 << 20, "what was given up is let go"


def test_no_write_overtakes_a_timed_out_write_that_is_retried() -> None:
    world = Served(request_timeout_ms=300)

    def put(number: int) -> None:
        header = head(0x20, 1, Extension(reqid=b"%012d" % number))
        world.ask(b"c", header, TABLE, b"k", b"%d" % number)

    data = bytes(1_000_000)
    for number in range(10):  # Fills the window, so that further writes wait behind it.
        world.ask(b"%d" % number, PARTSYNC, TABLE, b"k", data)
    put(1)
    world.at(100, lambda: put(2))
    world.ask(b"plain", PUT, TABLE, b"k", b"plain")
    world.run(lambda: len(world.heard(b"c")) == 2)
    put(3)
    world.run(lambda: len(world.heard(b"c")) == 3)
    assert [(it.failed, it.retry) for it in world.heard(b"c")] == [(True, True)] * 3
    world.lead("n1")
    for number in (1, 2, 3):
        put(number)
    world.run(lambda: len(world.heard(b"c")) == 6)
    assert [data for _, data in world.log.records if len(data) < 100 and b"plain" not in data] == [
        ops.pack([ops.Put(7, [b"k"], [b"%d" % number])]) for number in (1, 2, 3)
    ]


def test_the_fence_of_a_missing_retry_expires() -> None:
    """Meanwhile every write is checked one by one."""
    world = Served(request_timeout_ms=300)
    data = bytes(1_000_000)
    for number in range(20):  # Fills the window.
        world.ask(b"%d" % number, PARTSYNC, TABLE, b"k", data)
    world.ask(b"c", head(0x20, 1, Extension(reqid=b"r" * 12)), TABLE, b"k", b"1")
    world.run(lambda: bool(world.heard(b"c")), 20_000)
    assert len(world.session.retry_fence) == 1
    world.lead("n1")
    world.at(50_000, lambda: world.ask(b"d", PARTSYNC, TABLE, b"k", b"2"))
    world.run(lambda: bool(world.heard(b"d")), 100_000)
    assert len(world.session.retry_fence) == 1
    header = head(0x20, 1, Extension(reqid=b"s" * 12))
    world.at(10_000, lambda: world.ask(b"c", header, TABLE, b"k", b"3"))
    world.run(lambda: len(world.heard(b"c")) == 2, 100_000)
    assert not world.heard(b"c")[1].failed


def test_reads_share_one_read_index() -> None:
    world = led()
    world.ask(b"w", PARTSYNC, TABLE, b"k", b"v")
    world.run(lambda: bool(world.answers))
    for number in range(5):
        world.ask(b"%d" % number, READ, TABLE, b"k")
    world.ask(b"e", b"", READ, TABLE, b"k")
    sent = len(world.sent)
    world.run(lambda: len(world.workers[0].taken) == 6)
    assert len(world.sent) == sent + 1
    index = len(world.log.records) + 1
    assert {(kind, epoch, at) for kind, _, epoch, at, *_ in world.workers[0].taken} == {
        (REQUEST, 1, index)
    }
    assert [flags for _, flags, *_ in world.workers[0].taken] == [0] * 5 + [ENVELOPE]
    assert world.workers[0].taken[0][6] == [READ, TABLE, b"k"]


@pytest.mark.parametrize("wish", ["topology", "request"])
def test_a_stale_read_asks_no_leader(wish: str) -> None:
    world = Served(stale_allowed=wish == "topology")
    extension = Extension(flags=values.STALE, reqid=b"r" * 12)
    header = READ + encode_extension(extension) if wish == "request" else READ
    world.ask(b"c", header, TABLE, b"k")
    world.run(lambda: bool(world.workers[0].taken))
    assert world.workers[0].taken[0][3] == 0


def test_reads_keep_their_order_when_a_later_round_is_confirmed_first() -> None:
    world = led()
    world.run(lambda: world.client.leader is not None)
    for number in range(3):
        world.ask(b"%d" % number, READ, TABLE, b"k")
        world.session.ready(world.now)
    rounds = list(world.session.read_rounds.rounds)
    rounds[1].read.index = 7
    world.session.ready(world.now)
    world.workers[0].channel.send(world.workers[0].take)
    assert [(taken[5], taken[3]) for taken in world.workers[0].taken] == [(b"0", 7), (b"1", 7)]
    world.run(lambda: len(world.workers[0].taken) == 3)


def test_local_tables_need_no_leader() -> None:
    world = Served(local=frozenset({7}))
    world.ask(b"a", PUT, TABLE, b"k", b"v")
    world.ask(b"b", PARTSYNC, TABLE, b"k", b"v")
    world.ask(b"c", READ, TABLE, b"k")
    world.ask(b"d", OPEN, TABLE)
    world.run(lambda: len(world.workers[0].taken) == 4)
    kinds = [(kind, index, routing_id) for kind, _, _, index, _, routing_id, _ in
             world.workers[0].taken]  # fmt: skip
    assert kinds == [(ONE_WAY, 0, b"a"), (REQUEST, 0, b"b"), (REQUEST, 0, b"c"), (REQUEST, 0, b"d")]
    assert world.answers == [[b"a", b"\x31\x01\x20\x00"]]


def test_the_number_of_a_table_decides_its_worker() -> None:
    world = led(workers=3)
    for table in range(6):
        world.ask(b"%d" % table, READ, table.to_bytes(4, "little"), b"k")
    world.run(lambda: all(len(worker.taken) == 2 for worker in world.workers))
    assert [taken[5] for worker in world.workers for taken in worker.taken] == [
        b"0", b"3", b"1", b"4", b"2", b"5",
    ]  # fmt: skip


def test_open_and_truncate_go_through_the_log_and_close_does_not() -> None:
    world = led()
    cache = (1 << 20).to_bytes(8, "little")
    world.ask(b"o", b"\x31\x01\x01\x01", TABLE, cache)
    world.ask(b"t", TRUNCATE, TABLE)
    world.ask(b"c", b"\x31\x01\x02", TABLE)
    world.run(lambda: len(world.answers) == 2 and bool(world.workers[0].taken))
    assert entries(world) == [
        [ops.Open(7, TableOptions(cache_bytes=1 << 20, compression=False))],
        [ops.Truncate(7)],
    ]
    assert [answer[1:] for answer in world.answers] == [[OPEN], [TRUNCATE + b"\0"]]
    assert world.workers[0].taken[0][6] == [b"\x31\x01\x02", TABLE]


def test_a_malformed_write_without_a_flag_is_acknowledged_and_published() -> None:
    world = led()
    world.ask(b"a", PUT, TABLE, b"k")
    world.ask(b"b", PARTSYNC, TABLE, b"k")
    world.ask(b"c", PARTSYNC, b"123", b"k", b"v")
    world.ask(b"d", PARTSYNC, TABLE, b"", b"v")
    world.run(lambda: len(world.answers) == 4)
    codes = {it: world.heard(it)[0].code for it in (b"a", b"b", b"c", b"d")}
    assert codes == {b"a": 0, b"b": 0x10, b"c": 0x01, b"d": 0x01}
    assert "frame 2" in world.heard(b"b")[0].text
    assert world.session.notices == [
        (2, "dropped: request 0x20: frame 2: expected a value behind the key, found none")
    ]
    assert not world.log.records


def test_many_tables_at_once_are_one_entry_of_one_worker() -> None:
    world = led(workers=2, local=frozenset({9}))

    def part(table: int) -> bytes:
        return table.to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\1"

    world.ask(b"a", MANY, part(7), b"k", part(11), b"k")
    world.ask(b"b", MANY, part(7), b"k", part(8), b"k")
    world.ask(b"c", MANY, part(7), b"k", part(9), b"k")
    world.run(lambda: len(world.answers) == 3 and bool(world.log.records))
    assert entries(world) == [[ops.Delete(7, [b"k"]), ops.Delete(11, [b"k"])]]
    assert [world.heard(it)[0].code for it in (b"a", b"b", b"c")] == [0, 1, 1]
    assert "the tables 7, 8 are of several workers" in world.heard(b"b")[0].text
    assert "the tables 7, 9: 9 are local" in world.heard(b"c")[0].text


@pytest.mark.parametrize("settings", [{"local": frozenset({0})}, {"open_on_the_fly": False}])
def test_sessions_are_of_no_table(settings: dict[str, object]) -> None:
    world = led(**settings)
    world.applies = False
    world.ask(b"c", b"\x31\x01\x26\x01", b"\0", bytes(8), (1000).to_bytes(8, "little"))
    world.run(lambda: bool(world.log.records or world.answers or world.workers[0].taken))
    assert isinstance(entries(world)[0][0], ops.SessionOpen)


def test_a_large_write_is_cut_and_answered_with_its_last_part() -> None:
    world = led(entry_bytes_max=1000)
    world.ask(b"c", PARTSYNC, TABLE, b"k", bytes(5000))
    world.run(lambda: bool(world.answers))
    parts = [op for each in entries(world) for op in each if isinstance(op, ops.Part)]
    assert [part.part for part in parts] == list(range(parts[0].parts))
    assert ops.unpack(b"".join(part.data for part in parts)) == [ops.Put(7, [b"k"], [bytes(5000)])]
    assert world.answers == [[b"c", b"\x31\x01\x20\x00"]]


def test_a_large_write_fails_as_a_whole_when_a_part_of_it_is_refused() -> None:
    world = Served(entry_bytes_max=1000)
    leader = world.lead("n1")
    leader.refuse = "expired"
    world.ask(b"c", PARTSYNC, TABLE, b"k", bytes(100_000))

    def heal() -> None:
        leader.refuse = None

    world.run(lambda: bool(leader.taken))
    heal()
    world.run(lambda: bool(world.answers) and not world.session.inflight)
    assert "expired" in world.heard(b"c")[0].text
    parts = [op for each in entries(world) for op in each if isinstance(op, ops.Part)]
    assert all(part.part + 1 < part.parts for part in parts)


def test_a_timed_out_large_write_leaves_no_parts() -> None:
    world = Served(entry_bytes_max=1000, request_timeout_ms=300)
    world.ask(b"c", PARTSYNC, TABLE, b"k", bytes(500_000))
    world.run(lambda: bool(world.answers))
    assert world.heard(b"c")[0].text.startswith("nothing was written")
    assert world.session.proposals.size == world.client.window.size


def test_a_large_write_and_later_writes_get_more_time() -> None:
    """At 4 KiB a millisecond: otherwise it would time out during progress and be retried."""
    world = Served(request_timeout_ms=300)
    world.lead("n1").commits = False
    world.ask(b"large", PARTSYNC, TABLE, b"k", bytes(8 << 20))
    world.ask(b"small", PARTSYNC, TABLE, b"k", b"v")
    impatient = Extension(reqid=b"r" * 12, deadline_ms=100)
    world.ask(b"impatient", head(0x20, 1, impatient), TABLE, b"k", b"v")
    assert world.run(lambda: bool(world.answers)) == 100
    assert [answer[0] for answer in world.answers] == [b"impatient"]
    took_ms = world.run(lambda: len(world.answers) == 3)
    assert 2348 <= 100 + took_ms <= 2352


@pytest.mark.parametrize("flags", [b"\1", b"\1\2\3", b"\0\1", b"\4\1"])
def test_uniform_requests_are_handled_as_single_ones(flags: bytes) -> None:
    """With local tables each row is checked by itself."""
    seen = []
    tables = [bytes([number, 0, 0, 0]) for number in range(5)] * 12
    for local in (frozenset[int](), frozenset({99})):
        world = led(workers=2, local=local)
        puts = []
        for i, table in enumerate(tables):
            flag = flags[i % len(flags) :][:1]
            puts.append([b"%d" % i, b"\x31\x01\x20" + flag, table, b"k", b"v"])
        reads = [[b"r%d" % i, READ, table, b"k"] for i, table in enumerate(tables)]
        world.session.on_requests(Arena.from_messages(puts), world.now)
        world.session.on_requests(Arena.from_messages(reads), world.now)
        proposals = world.session.proposals
        world.run(lambda: len(world.answers) == 60 and proposals.is_idle)  # noqa: B023
        taken = [[(each[5], each[6]) for each in worker.taken] for worker in world.workers]
        assert sum(map(len, taken)) == 60
        seen.append((sorted(world.answers), [data for _, data in world.log.records], taken))
    assert seen[0] == seen[1]
    assert len(seen[0][1]) == 60


def test_the_reqid_of_a_request_is_that_of_its_entry() -> None:
    world = led()
    header = head(0x20, 1, Extension(reqid=b"x" * 12))
    for _ in range(2):
        world.ask(b"c", header, TABLE, b"k", b"v")
        world.run(lambda: not world.session.inflight)
    assert [reqid for reqid, _ in world.log.records] == [b"x" * 12]
    assert [answer.reqid for answer in world.heard(b"c")] == [b"x" * 12] * 2


def test_a_transaction_is_answered_with_what_the_worker_reports() -> None:
    world = led()
    world.applies = False
    request = requests.Transaction(
        [ops.Compare(7, b"k", ops.ABSENT)], [ops.Put(7, [b"k"], [b"v"])], [], 0,
        Extension(reqid=b"t" * 12),
    )  # fmt: skip
    world.ask(b"c", *encode_request(request))
    world.run(lambda: bool(world.log.records) and not world.client.window.items)
    world.session.proposals.on_results([(1, OperationResult(0, b"\1" + bytes(8)))])
    world.applies = True
    world.run(lambda: bool(world.answers))
    (answer,) = world.heard(b"c")
    assert (answer.code, answer.reqid, answer.frames) == (0, b"t" * 12, [b"\1" + bytes(8)])
    world.ask(b"d", *encode_request(request))
    world.run(lambda: bool(world.workers[0].taken))
    kind, _, _, index, _, routing_id, frames = world.workers[0].taken[0]
    assert (kind, index, routing_id, frames[0]) == (RESULT_QUERY, 1, b"d", b"t" * 12)
    assert frames[1] == answers.encode_head(values.TRANSACTION, 0, request.extension)

    world.workers[0].taken.clear()
    world.workers[0].report(2, 1, world.now_ms)
    world.run(lambda: bool(world.workers[0].taken))
    assert world.workers[0].taken[0][0] == RESULT_QUERY, "a new worker is asked again"
    world.applies = False
    world.workers[0].channel.on_lost(world.now_ms)
    world.run(lambda: len(world.answers) == 2, 10_000)
    (answer,) = world.heard(b"d")
    assert (answer.retry, answer.reqid) == (True, b"t" * 12)


def test_results_of_other_nodes_are_bounded_and_refusals_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kelek.protocols.zerodb.server.proposals.RESULTS_BYTES_MAX", 10_000)
    world = led()
    proposals = world.session.proposals
    world.applies = False
    world.ask(b"c", PARTSYNC, TABLE, b"k", b"v")
    world.run(lambda: bool(world.log.records))
    proposals.on_results([(1, OperationResult(2, b"the pieces are missing"))])
    for index in range(2, 1000):  # Of other nodes, while this write waits.
        proposals.on_results([(index, OperationResult(0, bytes(1000)))])
    assert 0 < len(proposals.unclaimed_results) < 12
    world.applies = True
    world.run(lambda: bool(world.answers))
    assert world.heard(b"c")[0].text == "the pieces are missing"
    # Behind a write that was proposed later, earlier results are dropped.
    world.log.records += [(b"", b"")] * 1000
    world.run(lambda: proposals.is_idle)
    world.ask(b"d", PARTSYNC, TABLE, b"k", b"v")
    world.session.ready(world.now)
    proposals.on_results([(index, OperationResult(2, b"no")) for index in range(1, 900)])
    assert not proposals.unclaimed_results


def test_keys_expire_by_an_entry_of_the_leaders_server() -> None:
    for own_url, took_ms in (("tcp://n1", 500), ("tcp://n2", 2500)):
        world = led(own_url=own_url)
        world.run(lambda: world.client.leader is not None)  # noqa: B023
        begun_ms = world.now.unix_ms
        world.session.on_expiry(0, begun_ms + 500)
        world.run(lambda: bool(world.log.records))  # noqa: B023
        assert entries(world) == [[ops.Expire(0, begun_ms + took_ms)]]
        world.run(lambda: len(world.log.records) == 3)  # noqa: B023
        world.session.on_expiry(0, 0)
        world.run(lambda: not world.session.inflight)  # noqa: B023
        assert world.session.deadline_ms is None


def test_a_refusing_database_is_reported_to_clients() -> None:
    world = led()
    world.applies = False
    handoff = world.workers[0].channel
    handoff.status = handoff.status._replace(refusal="no space left on device")
    world.ask(b"c", PARTSYNC, TABLE, b"k", b"v")
    world.run(lambda: bool(world.answers))
    (answer,) = world.heard(b"c")
    assert answer.code == values.DATABASE_ERROR
    assert answer.text.endswith("not applied here yet: no space left on device")


def test_a_refusing_database_does_not_delay_other_workers() -> None:
    world = led(workers=2)
    world.applies = False
    world.workers[1].report(1, 100, world.now_ms)
    handoff = world.workers[0].channel
    handoff.status = handoff.status._replace(refusal="no space left on device")
    world.ask(b"c", PARTSYNC, TABLE, b"k", b"v")
    world.run(lambda: bool(world.answers))
    world.workers[0].report(1, 0, world.now_ms)
    world.ask(b"d", PARTSYNC, (8).to_bytes(4, "little"), b"k", b"v")
    world.run(lambda: len(world.answers) == 2)
    assert not world.heard(b"c")[0].failed
    assert world.heard(b"d")[0].code == values.DATABASE_ERROR


def test_all_tables_are_listed_by_all_workers() -> None:
    world = led(workers=2)
    world.ask(b"c", b"", b"\x31\x01\x15")
    world.run(lambda: all(worker.taken for worker in world.workers))
    keys = {worker.taken[0][5] for worker in world.workers}
    (key,) = keys
    assert [worker.taken[0][6] for worker in world.workers] == [[b"\x31\x01\x15"]] * 2
    parts = [{4: {"keys": 7}, 6: {"keys": 8}}, {5: {"keys": 9}}]
    request = requests.TableInfo()
    for worker in (0, 0, 1, 1):
        frames = answers.encode_table_info(request, parts[worker])
        world.session.on_part(worker, [key, *frames])
    world.run(lambda: bool(world.answers))
    assert world.answers == [[b"c", b"", *answers.encode_table_info(request, parts[0] | parts[1])]]


def test_when_one_worker_fails_to_list_its_tables_all_of_it_fails() -> None:
    world = led(workers=2, request_timeout_ms=300)
    world.applies = False
    for worker in world.workers:
        worker.channel.epoch = None  # Neither worker runs.
    world.ask(b"gone", b"\x31\x01\x15")
    world.run(lambda: bool(world.answers))
    assert "does not answer" in world.heard(b"gone")[0].text
    for worker in world.workers:
        worker.report(2, 9, world.now_ms)
    world.ask(b"c", b"\x31\x01\x15")
    world.run(lambda: bool(world.workers[1].taken))
    key = world.workers[1].taken[0][5]
    refusal = answers.encode_error(requests.TableInfo(), 0x10, "block 7 is wrong")
    world.session.on_part(1, [key, *refusal])
    world.session.on_part(0, [key, *answers.encode_table_info(requests.TableInfo(), {})])
    world.run(lambda: len(world.answers) == 2)
    assert (world.heard(b"c")[0].code, world.heard(b"c")[0].text) == (0x10, "block 7 is wrong")
    assert not len(world.session.scatter_gather)


def test_a_refused_write_does_not_take_the_others_with_it() -> None:
    world = Served()
    leader = world.lead("n1")
    leader.refuse = "expired"  # The second of a pack.
    for number in range(3):
        world.ask(b"%d" % number, PARTSYNC, TABLE, b"k", b"%d" % number)

    def heal() -> None:
        leader.refuse = None

    world.run(lambda: bool(world.answers))
    heal()
    world.run(lambda: len(world.answers) == 3)
    assert [world.heard(b"%d" % number)[0].code for number in range(3)] == [0, 1, 0]
    assert "expired" in world.heard(b"1")[0].text
    assert [data for _, data in world.log.records] == [
        ops.pack([ops.Put(7, [b"k"], [value])]) for value in (b"0", b"2")
    ]


# ---- workers ----


def test_nothing_is_sent_to_a_worker_that_has_not_reported() -> None:
    world = Served(local=frozenset({7}), request_timeout_ms=500)
    world.workers[0].channel.epoch = None
    world.applies = False
    world.ask(b"c", READ, TABLE, b"k")
    took_ms = world.run(lambda: bool(world.answers))
    assert took_ms == 500
    assert not world.workers[0].taken
    assert world.heard(b"c")[0].text == "table_worker 1 does not answer"


def test_hello_is_sent_until_the_reports_arrive() -> None:
    handoff = WorkerChannel(0, 1000)
    assert handoff.must_send_hello(10)
    assert not handoff.must_send_hello(20)
    handoff.on_epoch(1, 30)
    handoff.reported_kinds.add(PROGRESS)
    assert not handoff.must_send_hello(9 + HELLO_MS)
    assert handoff.must_send_hello(10 + HELLO_MS)
    handoff.reported_kinds.add(TABLES)
    assert handoff.deadline_ms is None
    handoff.on_epoch(2, 1000)
    assert handoff.must_send_hello(1000)
    handoff.reported_kinds |= {PROGRESS, TABLES}
    assert not handoff.must_send_hello(2000)
    handoff.on_lost(2000)
    assert handoff.must_send_hello(2000)


def test_server_waits_is_sent_periodically() -> None:
    handoff = WorkerChannel(0, 1000)
    assert not handoff.must_send_waiting(0), "nobody is there to hear it"
    handoff.on_epoch(1, 0)
    assert handoff.must_send_waiting(10)
    assert not handoff.must_send_waiting(9 + SERVER_WAITS_MS)
    assert handoff.must_send_waiting(10 + SERVER_WAITS_MS)
    handoff.on_epoch(2, 11 + SERVER_WAITS_MS)
    assert handoff.must_send_waiting(11 + SERVER_WAITS_MS), "a new one knows nothing"


def test_a_restarted_worker_gets_only_repeatable_requests_again() -> None:
    world = Served(local=frozenset({7}))
    worker = world.workers[0]
    limit = (5).to_bytes(8, "little")
    world.ask(b"a", PARTSYNC, TABLE, b"k", b"v")
    world.run(lambda: len(worker.taken) == 1)
    world.ask(b"b", READ, TABLE, b"k")
    world.ask(b"l", b"\x31\x01\x23\x01", TABLE, b"k", limit)
    world.ask(b"d", PARTSYNC, TABLE, b"k", b"v")
    world.run(lambda: len(worker.taken) == 4)
    worker.channel.on_handled(worker.taken[0][4])
    worker.taken.clear()
    worker.report(2, 0, world.now_ms)
    world.run(lambda: bool(world.answers))
    assert [(epoch, routing_id) for _, _, epoch, _, _, routing_id, _ in worker.taken] == [
        (2, b"b"), (2, b"d"),
    ]  # fmt: skip
    assert "it may have been done" in world.heard(b"l")[0].text
    worker.report(2, 0, world.now_ms)
    assert len(worker.taken) == 2


def test_no_client_is_answered_twice_when_a_worker_dies() -> None:
    world = led(local=frozenset({9}))
    worker, handoff = world.workers[0], world.workers[0].channel
    local = (9).to_bytes(4, "little")
    limit = (5).to_bytes(8, "little")
    for routing_id in (b"a", b"b"):
        world.ask(routing_id, READ, local, routing_id)
    for routing_id in (b"l", b"m"):
        world.ask(routing_id, b"\x31\x01\x23\x01", local, b"k", limit)
    world.run(lambda: len(worker.taken) == 4)
    ticket = worker.taken[0][4]
    places = {taken[5]: place for place, taken in enumerate(worker.taken)}
    assert handoff.on_answer(1, places[b"a"], ticket)
    assert handoff.on_answer(1, places[b"l"], ticket)
    worker.taken.clear()
    worker.report(2, 0, world.now_ms)
    assert not handoff.on_answer(1, places[b"b"], ticket), "its successor has been asked"
    world.run(lambda: bool(worker.taken and world.answers))
    assert [taken[5] for taken in worker.taken] == [b"b"]
    assert [each[0] for each in world.answers] == [b"m"]
    assert "it may have been done" in world.heard(b"m")[0].text
    assert handoff.on_answer(2, 0, ticket)
    handoff.on_handled(ticket)
    assert handoff.on_answer(2, 0, ticket), "its word that all is done may come first"
    assert not handoff.count


def test_answers_for_an_earlier_server_are_dropped() -> None:
    world = Served(local=frozenset({9}), first_ticket=1000)
    worker, handoff = world.workers[0], world.workers[0].channel
    world.ask(b"a", READ, (9).to_bytes(4, "little"), b"k")
    world.run(lambda: len(worker.taken) == 1)
    assert worker.taken[0][4] == 1000
    handoff.on_handled(999)
    assert handoff.count == 1
    assert not handoff.on_answer(1, 0, 999), "who asked has lost its connection, or asked anew"
    assert handoff.on_answer(1, 0, 1000)
    handoff.on_handled(1000)
    assert not handoff.count


def test_unsent_requests_are_repeatable() -> None:
    world = Served(local=frozenset({9}))
    worker = world.workers[0]
    worker.room = 1
    limit = (5).to_bytes(8, "little")
    for routing_id in (b"l", b"m"):
        frames = [routing_id, b"\x31\x01\x23\x01", (9).to_bytes(4, "little"), b"k", limit]
        world.ask(*frames)
    world.run(lambda: len(worker.taken) == 1)
    worker.room = 10
    worker.taken.clear()
    worker.report(2, 0, world.now_ms)
    world.run(lambda: bool(worker.taken and world.answers))
    assert [taken[5] for taken in worker.taken] == [b"m"]
    assert [each[0] for each in world.answers] == [b"l"]


def test_late_answers_of_an_expired_worker_are_dropped() -> None:
    world = Served(local=frozenset({9}), request_timeout_ms=500)
    worker, handoff = world.workers[0], world.workers[0].channel
    world.ask(b"a", READ, (9).to_bytes(4, "little"), b"k")
    world.run(lambda: len(worker.taken) == 1)
    world.applies = False
    handoff.on_lost(world.now_ms)
    world.run(lambda: bool(world.answers))
    assert not handoff.on_answer(1, 0, worker.taken[0][4])


def test_requests_of_a_lost_worker_are_answered_with_errors() -> None:
    world = Served(local=frozenset({7}), request_timeout_ms=500)
    world.applies = False
    world.ask(b"a", READ, TABLE, b"k")
    world.run(lambda: len(world.workers[0].taken) == 1)
    world.workers[0].channel.on_lost(world.now_ms)
    world.run(lambda: bool(world.answers))
    assert world.heard(b"a")[0].text == "table_worker 1 does not answer"
    assert not world.session.inflight


def test_a_full_pipe_keeps_the_order() -> None:
    world = Served(local=frozenset({7}))
    worker = world.workers[0]
    worker.room = 2
    for number in range(4):
        world.ask(b"%d" % number, READ, TABLE, b"k")
    world.run(lambda: len(worker.taken) == 2)
    world.ask(b"4", READ, TABLE, b"k")
    worker.room = 10
    world.run(lambda: len(worker.taken) == 5)
    assert [taken[5] for taken in worker.taken] == [b"0", b"1", b"2", b"3", b"4"]


# ---- one-way sockets and jobs ----


def test_failures_without_a_client_are_published() -> None:
    world = led(local=frozenset({9}))
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
    world.session.on_one_way(arena, world.now)
    world.run(lambda: bool(world.log.records and world.workers[0].taken))
    assert not world.answers
    assert world.workers[0].taken[0][0] == ONE_WAY
    assert world.session.counters["dropped"] == 4


def test_a_job_request_goes_to_the_job_server_and_its_ask_to_the_worker() -> None:
    world = led()
    world.ask(b"j", b"", b"\x31\x01\x42", TABLE, b"", b"", b"")
    world.run(lambda: bool(world.jobs))
    assert PIPE_HEADER.unpack(world.jobs[0][0])[:2] == (REQUEST, ENVELOPE)
    assert world.jobs[0][1:3] == [b"j", b"\x31\x01\x42"]
    world.session.on_job_request((CHECKPOINT, 0, 0, 0, 0, 77), [TABLE, b"/p"], world.now)
    world.session.on_job_request(
        (JOB_WRITE, 0, 0, 0, 0, 78), [TABLE, ops.pack([ops.Truncate(7)])], world.now
    )
    world.run(lambda: bool(world.workers[0].taken) and len(world.jobs) == 2)
    kind, _, _, _, ticket, _, frames = world.workers[0].taken[0]
    assert (kind, ticket, frames) == (CHECKPOINT, 77, [TABLE, b"/p"])
    assert PIPE_HEADER.unpack(world.jobs[1][0]) == (JOB_WRITE, 0, 0, 0, 1, 78)


def test_an_entry_about_a_lease_is_answered_when_all_workers_have_applied_it() -> None:
    """It concerns no table, so closed and local tables do not matter."""
    world = led(workers=2, local=frozenset({0}), open_on_the_fly=False)
    entry = ops.pack([ops.LeaseOpen(7, 1)])
    world.applies = False
    world.session.on_job_request((LEASE, 0, 0, 0, 0, 77), [TABLE, entry, b"r" * 12], world.now)
    world.session.on_job_request((LEASE, 0, 0, 0, 0, 78), [bytes(4), ops.pack([]), b""], world.now)
    world.run(lambda: len(world.log.records) == 2 and not world.client.window.items)
    world.workers[1].report(1, 2, world.now_ms)
    assert not world.session.jobs.count
    world.session.proposals.on_results([(1, OperationResult(2, b"no room"))])
    world.workers[0].report(1, 2, world.now_ms)
    world.run(lambda: len(world.jobs) == 2)
    told = {PIPE_HEADER.unpack(message[0]): message[1:] for message in world.jobs}
    assert told[(JOB_WRITE, 0, 0, 0, 2, 78)] == []
    assert told[(FAILED, 0, 0, values.DATABASE_ERROR, 0, 77)] == [b"no room"]


def test_a_failed_job_request_is_reported_to_the_job_server() -> None:
    world = Served(request_timeout_ms=200)
    world.session.on_job_request((CHECKPOINT, 0, 0, 0, 0, 77), [TABLE, b"/p"], world.now)
    world.run(lambda: bool(world.jobs))
    assert PIPE_HEADER.unpack(world.jobs[0][0]) == (FAILED, RETRYABLE, 0, values.ERROR, 0, 77)
    assert world.jobs[0][1].startswith(b"not read: no leader was found")


def test_job_requests_of_a_dead_worker_are_reported_to_the_job_server() -> None:
    """The worker refuses it itself."""
    world = led(request_timeout_ms=400)
    worker = world.workers[0]
    world.session.on_job_request((CHECKPOINT, 0, 0, 0, 0, 77), [TABLE, b"/p"], world.now)
    world.run(lambda: len(worker.taken) == 1)
    for epoch in (1, 2):
        assert not world.session.jobs.count
        worker.report(epoch, 0, world.now_ms)
    world.run(lambda: bool(world.jobs))
    assert PIPE_HEADER.unpack(world.jobs[0][0]) == (FAILED, RETRYABLE, 0, values.ERROR, 0, 77)
    worker.report(3, 0, world.now_ms)
    assert not world.session.jobs.count, "it is said once"
    worker.room = 0
    world.session.on_job_request((CHECKPOINT, 0, 0, 0, 0, 78), [TABLE, b"/q"], world.now)
    world.run(lambda: len(world.jobs) == 2)
    assert PIPE_HEADER.unpack(world.jobs[1][0])[5] == 78


def test_a_missing_job_server_is_reported_to_clients() -> None:
    world = led()
    world.ask(b"j", b"\x31\x01\x48", bytes(8))
    world.run(lambda: bool(world.jobs))
    world.session.refuse_job(world.jobs[0])
    world.run(lambda: bool(world.answers))
    (answer,) = world.heard(b"j")
    assert answer.failed
    assert answer.text == "no job_server runs on this node now"


def test_above_its_limits_the_server_reads_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kelek.protocols.zerodb.server.session.INFLIGHT_MAX", 3)
    world = Served(request_timeout_ms=300)
    for number in range(3):
        assert not world.session.is_full
        world.ask(b"%d" % number, PARTSYNC, TABLE, b"k", b"v")
        world.session.ready(world.now)
    assert world.session.is_full
    world.run(lambda: not world.session.is_full)
    assert len(world.answers) == 3
