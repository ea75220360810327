"""The requests that a worker has: sent, sent again, answered once, completed, lost."""

from kelek.native.net.messages import Arena
from kelek.native.tables.row_cache import BYTES_MIN, RowCache
from kelek.protocols.zerodb.server.worker_channel import HELLO_MS, SERVER_WAITS_MS, WorkerChannel
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.worker_pipe import (
    ONE_WAY,
    PIPE_HEADER,
    PROGRESS,
    REQUEST,
    ROWS,
    TABLES,
)
from kelek.tests.protocols.zerodb.server.served import TABLE, SessionHarness, entries, led

READ = b"\x31\x01\x10"
PUT = b"\x31\x01\x20"
PARTSYNC = b"\x31\x01\x20\x01"


def test_nothing_is_sent_to_a_worker_that_has_not_reported() -> None:
    harness = SessionHarness(local=frozenset({7}), request_timeout_ms=500)
    harness.workers[0].channel.epoch = None
    harness.applies = False
    harness.ask(b"c", READ, TABLE, b"k")
    took_ms = harness.run(lambda: bool(harness.answers))
    assert took_ms == 500
    assert not harness.workers[0].taken
    assert harness.heard(b"c")[0].text == "table_worker 1 does not answer"


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
    assert not handoff.must_send_waiting(0, False), "there is no worker"
    handoff.on_epoch(1, 0)
    assert handoff.must_send_waiting(10, False)
    assert not handoff.must_send_waiting(9 + SERVER_WAITS_MS, False)
    assert handoff.must_send_waiting(9 + SERVER_WAITS_MS, True), "it does not know that"
    assert not handoff.must_send_waiting(10 + SERVER_WAITS_MS, True)
    assert not handoff.must_send_waiting(10 + SERVER_WAITS_MS, False)
    assert handoff.must_send_waiting(9 + 2 * SERVER_WAITS_MS, False)
    handoff.on_epoch(2, 11 + SERVER_WAITS_MS)
    assert handoff.must_send_waiting(11 + SERVER_WAITS_MS, False), "a new one knows nothing"


def test_a_restarted_worker_gets_only_repeatable_requests_again() -> None:
    harness = SessionHarness(local=frozenset({7}))
    worker = harness.workers[0]
    limit = (5).to_bytes(8, "little")
    harness.ask(b"a", PARTSYNC, TABLE, b"k", b"v")
    harness.run(lambda: len(worker.taken) == 1)
    harness.ask(b"b", READ, TABLE, b"k")
    harness.ask(b"l", b"\x31\x01\x23\x01", TABLE, b"k", limit)
    harness.ask(b"d", PARTSYNC, TABLE, b"k", b"v")
    harness.run(lambda: len(worker.taken) == 4)
    worker.channel.on_handled(worker.taken[0][4])
    worker.taken.clear()
    worker.report(2, 0, harness.now_ms)
    harness.run(lambda: bool(harness.answers))
    assert [(epoch, routing_id) for _, _, epoch, _, _, routing_id, _ in worker.taken] == [
        (2, b"b"), (2, b"d"),
    ]  # fmt: skip
    assert "it may have been done" in harness.heard(b"l")[0].text
    worker.report(2, 0, harness.now_ms)
    assert len(worker.taken) == 2


def test_no_client_is_answered_twice_when_a_worker_dies() -> None:
    harness = led(local=frozenset({9}))
    worker, handoff = harness.workers[0], harness.workers[0].channel
    local = (9).to_bytes(4, "little")
    limit = (5).to_bytes(8, "little")
    for routing_id in (b"a", b"b"):
        harness.ask(routing_id, READ, local, routing_id)
    for routing_id in (b"l", b"m"):
        harness.ask(routing_id, b"\x31\x01\x23\x01", local, b"k", limit)
    harness.run(lambda: len(worker.taken) == 4)
    ticket = worker.taken[0][4]
    places = {taken[5]: place for place, taken in enumerate(worker.taken)}
    assert handoff.on_answer(1, places[b"a"], ticket)
    assert handoff.on_answer(1, places[b"l"], ticket)
    worker.taken.clear()
    worker.report(2, 0, harness.now_ms)
    assert not handoff.on_answer(1, places[b"b"], ticket), "its successor has been asked"
    harness.run(lambda: bool(worker.taken and harness.answers))
    assert [taken[5] for taken in worker.taken] == [b"b"]
    assert [each[0] for each in harness.answers] == [b"m"]
    assert "it may have been done" in harness.heard(b"m")[0].text
    assert handoff.on_answer(2, 0, ticket)
    handoff.on_handled(ticket)
    assert handoff.on_answer(2, 0, ticket), "its word that all is done may come first"
    assert not handoff.count


def test_answered_requests_are_done() -> None:
    harness = SessionHarness(local=frozenset({9}))
    worker, channel = harness.workers[0], harness.workers[0].channel
    local = (9).to_bytes(4, "little")
    for frames in ((READ, local, b"k"), (PUT, local, b"k", b"v"), (READ, local, b"k")):
        harness.ask(b"a", *frames)
        harness.session.ready(harness.now)
        channel.send(worker.take)
    assert [taken[0] for taken in worker.taken] == [REQUEST, ONE_WAY, REQUEST]
    first, one_way, last = (taken[4] for taken in worker.taken)
    for ticket in (last, first):
        assert channel.on_answer(1, 0, ticket)
        channel.end_answered()
    assert channel.count == 2, "the worker does not answer one of them"
    assert sum(channel.latency.values()[1:]) == 1
    channel.on_handled(one_way)
    channel.end_answered()
    assert not channel.count


def test_answers_for_an_earlier_server_are_dropped() -> None:
    harness = SessionHarness(local=frozenset({9}), first_ticket=1000)
    worker, handoff = harness.workers[0], harness.workers[0].channel
    harness.ask(b"a", READ, (9).to_bytes(4, "little"), b"k")
    harness.run(lambda: len(worker.taken) == 1)
    assert worker.taken[0][4] == 1000
    handoff.on_handled(999)
    assert handoff.count == 1
    assert not handoff.on_answer(1, 0, 999), "who asked has lost its connection, or asked anew"
    assert handoff.on_answer(1, 0, 1000)
    handoff.on_handled(1000)
    assert not handoff.count


def test_unsent_requests_are_repeatable() -> None:
    harness = SessionHarness(local=frozenset({9}))
    worker = harness.workers[0]
    worker.room = 1
    limit = (5).to_bytes(8, "little")
    for routing_id in (b"l", b"m"):
        frames = [routing_id, b"\x31\x01\x23\x01", (9).to_bytes(4, "little"), b"k", limit]
        harness.ask(*frames)
    harness.run(lambda: len(worker.taken) == 1)
    worker.room = 10
    worker.taken.clear()
    worker.report(2, 0, harness.now_ms)
    harness.run(lambda: bool(worker.taken and harness.answers))
    assert [taken[5] for taken in worker.taken] == [b"m"]
    assert [each[0] for each in harness.answers] == [b"l"]


def test_late_answers_of_an_expired_worker_are_dropped() -> None:
    harness = SessionHarness(local=frozenset({9}), request_timeout_ms=500)
    worker, handoff = harness.workers[0], harness.workers[0].channel
    harness.ask(b"a", READ, (9).to_bytes(4, "little"), b"k")
    harness.run(lambda: len(worker.taken) == 1)
    harness.applies = False
    handoff.on_lost(harness.now_ms)
    harness.run(lambda: bool(harness.answers))
    assert not handoff.on_answer(1, 0, worker.taken[0][4])


def test_requests_of_a_lost_worker_are_answered_with_errors() -> None:
    harness = SessionHarness(local=frozenset({7}), request_timeout_ms=500)
    harness.applies = False
    harness.ask(b"a", READ, TABLE, b"k")
    harness.run(lambda: len(harness.workers[0].taken) == 1)
    harness.workers[0].channel.on_lost(harness.now_ms)
    harness.run(lambda: bool(harness.answers))
    assert harness.heard(b"a")[0].text == "table_worker 1 does not answer"
    assert not harness.session.inflight


def test_a_full_pipe_keeps_the_order() -> None:
    harness = SessionHarness(local=frozenset({7}))
    worker = harness.workers[0]
    worker.room = 2
    for number in range(4):
        harness.ask(b"%d" % number, READ, TABLE, b"k")
    harness.run(lambda: len(worker.taken) == 2)
    harness.ask(b"4", READ, TABLE, b"k")
    worker.room = 10
    harness.run(lambda: len(worker.taken) == 5)
    assert [taken[5] for taken in worker.taken] == [b"0", b"1", b"2", b"3", b"4"]


def forwarded(harness: SessionHarness, *routing_ids: bytes) -> list[list[bytes]]:
    """Reads that C forwards; returns its messages to the worker."""
    harness.session.open_channels()
    assert harness.session.reads_in_c
    reads = Arena.from_messages([[each, READ, TABLE, b"key"] for each in routing_ids])
    assert harness.session.read_channels.fits(reads)
    return harness.session.read_channels.add(0, reads, 3, 0).messages()


def ticket_of(message: list[bytes]) -> int:
    fields: tuple[int, ...] = PIPE_HEADER.unpack(message[0])
    return fields[5]


def test_reads_that_c_has_forwarded_go_to_the_next_worker() -> None:
    harness = led(local=frozenset({9}))
    worker, channel = harness.workers[0], harness.workers[0].channel
    first = forwarded(harness, b"a", b"b")
    harness.ask(b"c", READ, (9).to_bytes(4, "little"), b"key")
    harness.run(lambda: len(worker.taken) == 1)
    second = forwarded(harness, b"d")
    assert [ticket_of(first[0]), worker.taken[0][4], ticket_of(second[0])] == [1, 2, 3]
    assert channel.count == harness.session.inflight == 4
    assert channel.on_answer(1, 1, 1)  # That of b.
    worker.taken.clear()
    worker.report(2, 3, harness.now_ms)
    assert not channel.on_answer(1, 0, 1), "its successor has been asked"
    harness.run(lambda: len(worker.taken) == 3)
    asked = [(epoch, index, ticket, route) for _, _, epoch, index, ticket, route, _ in worker.taken]
    assert asked == [(2, 3, 1, b"a"), (2, 0, 2, b"c"), (2, 3, 3, b"d")]
    for ticket in (1, 2, 3):
        assert channel.on_answer(2, 0, ticket)
    channel.end_answered()
    assert not channel.count


def test_reads_that_c_could_not_send_are_sent_later() -> None:
    harness = led()
    worker, channel = harness.workers[0], harness.workers[0].channel
    forwarded(harness, b"a", b"b", b"c")
    channel.reads.stop(1)
    channel.take_back_reads()
    assert channel.count == 3
    harness.session.open_channels()
    assert harness.session.reads_in_c
    fits = harness.session.read_channels.fits
    assert not fits(Arena.from_messages([[b"d", READ, TABLE, b"key"]])), "others come first"
    channel.send(worker.take)
    assert [taken[5] for taken in worker.taken] == [b"b", b"c"]
    harness.session.open_channels()
    assert harness.session.reads_in_c
    assert fits(Arena.from_messages([[b"d", READ, TABLE, b"key"]]))


def test_c_forwards_nothing_to_a_worker_that_is_lost() -> None:
    harness = led()
    channel = harness.workers[0].channel
    reads = Arena.from_messages([[b"a", READ, TABLE, b"key"]])
    forwarded(harness, b"a")
    channel.on_lost(harness.now_ms)
    assert channel.count == 1
    assert not harness.session.read_channels.all[0].count
    harness.session.open_channels()
    assert harness.session.reads_in_c
    assert not harness.session.read_channels.fits(reads)
    harness.workers[0].report(2, 0, harness.now_ms)
    channel.send(harness.workers[0].take)
    harness.session.open_channels()
    assert harness.session.reads_in_c
    assert harness.session.read_channels.fits(reads)


def test_reads_that_c_has_asked_for_come_back_before_later_ones() -> None:
    harness = led()
    session, worker = harness.session, harness.workers[0]
    assert session.index_url == harness.client.leader
    session.plain.set_tables([7])
    for some in ((b"a", b"b"), (b"c",)):
        reads = Arena.from_messages([[each, READ, TABLE, b"key"] for each in some])
        session.plain.read(reads)
        assert session.rounds.add(reads, session.plain, 1000 * harness.now_ms)
        session.rounds.ask()
    assert session.inflight == 3
    requests_before = session.counters["requests"]
    harness.ask(b"d", READ, TABLE, b"key")
    assert session.rounds.is_empty
    assert session.index_url is None, "C would overtake them"
    harness.run(lambda: len(worker.taken) == 4)
    assert [taken[5] for taken in worker.taken] == [b"a", b"b", b"c", b"d"]
    assert all(taken[3] for taken in worker.taken), "the index that the leader has told"
    assert session.counters["requests"] == requests_before + 4
    assert session.index_url is not None


def test_rows_of_a_worker_are_read_where_it_says_they_are() -> None:
    harness = led()
    asked: list[str] = []
    memory = bytearray(BYTES_MIN)
    RowCache(memory, "place", 1)

    def map_memory(place: str) -> bytearray:
        asked.append(place)
        return memory

    harness.session.rows.map_memory = map_memory
    head = PIPE_HEADER.unpack(PIPE_HEADER.pack(ROWS, 0, 0, 0, 0, 1))
    harness.session.on_report(head, [b"place"], harness.now_ms, 0)
    assert asked == ["place"]


def test_one_way_writes_come_behind_reads_that_c_has_asked_for() -> None:
    """They are taken back before the rows of the writes are begun."""
    harness = led(local=frozenset({9}))
    session, worker = harness.session, harness.workers[0]
    session.plain.set_tables([7])
    reads = Arena.from_messages([[b"a", READ, TABLE, b"key"]])
    session.plain.read(reads)
    assert session.rounds.add(reads, session.plain, 1000 * harness.now_ms)
    session.rounds.ask()
    writes = [[PUT, TABLE, b"key", b"%d" % number] for number in range(3)]
    session.on_one_way(Arena.from_messages(writes), harness.now)
    harness.run(lambda: len(worker.taken) == 1 and len(harness.log.records) == 3)
    assert worker.taken[0][5] == b"a"
    written = [op for (op,) in entries(harness)]
    assert [op.values for op in written if isinstance(op, ops.Put)] == [[b"0"], [b"1"], [b"2"]]
