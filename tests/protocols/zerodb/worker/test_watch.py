"""Limits of watches: of one client, and of the log that one run reads for them."""

import pytest

from kelek.protocols.raft.messages import KIND_TABLES, EntryBatch
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zerodb.tables import gate
from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire import answers, requests, values
from kelek.protocols.zerodb.wire.ops import LoadCommit, Op, Put, pack
from kelek.protocols.zerodb.worker import requests as table_requests
from kelek.protocols.zerodb.worker.requests import TableRequestLimits
from kelek.protocols.zerodb.worker.watch import LogChanges
from kelek.protocols.zerodb.worker.worker import READ_BYTES_MAX
from kelek.tests.protocols.zerodb.worker.test_requests import LIMITS, RequestRig, with_id


def test_the_watches_of_a_client_are_limited() -> None:
    """All connections of a key count together; without keys each counts alone."""
    rig = RequestRig(LIMITS._replace(client_watches_max=2))
    rig.put(5, [(b"b", b"1")])
    for number, (route, key) in enumerate([(b"a", 3), (b"b", 3), (b"c", 3), (b"d", 0), (b"e", 4)]):
        watch = requests.Watch(5, b"b", b"d", 2, with_id(number, deadline_ms=60_000))
        rig.ask(watch, route, client=key)
    ((route, *frames),) = rig.run_all(1)
    answer = answers.decode_answer(frames)
    assert (route, answer.code) == (b"c", values.REQUEST_ERROR)
    assert answer.text == "this client has 2 watches already; end one"
    assert rig.requests.counts["watches_refused"] == 1
    rig.put(5, [(b"b", b"2")])
    assert {message[0] for message in rig.run_all(2)} == {b"a", b"b", b"d", b"e"}
    watch = requests.Watch(5, b"b", b"d", 2, with_id(9))
    rig.ask(watch, b"c", client=3)
    assert [message[0] for message in rig.run_all(2)] == [b"c"], "the others have ended"


def test_a_watch_ends_at_a_load_of_its_table() -> None:
    """Neither the log nor a record has the rows: the client has to read the table again."""
    rig = RequestRig()
    gate.note_known(rig.tables, 0, 3)
    rig.put(5, [(b"b", b"1")])
    rig.put(6, [(b"b", b"2")])
    rig.apply(LoadCommit(5, b"r" * 16, False, 0, 0))  # Refused: it has changed nothing.
    rig.ask(requests.Watch(5, b"", b"", 2, with_id(1, deadline_ms=60_000)), b"a")
    rig.ask(requests.Watch(6, b"", b"", 2, with_id(2)), b"b")
    found = {message[0]: answers.decode_answer(message[1:]) for message in rig.run_all(3)}
    assert {route: answer.failed for route, answer in found.items()} == {b"b": False}
    rig.apply(LoadCommit(5, b"l" * 16, True, 0, 0))
    rig.ask(requests.Watch(6, b"", b"", 2, with_id(3)), b"c")
    rig.ask(requests.Watch(5, b"", b"", 5, with_id(4, deadline_ms=60_000)), b"d")
    found = {message[0]: answers.decode_answer(message[1:]) for message in rig.run_all(4)}
    assert {route: answer.code for route, answer in found.items()} == {
        b"a": values.GONE, b"c": values.OK
    }  # fmt: skip


def test_watches_far_behind_take_turns() -> None:
    """Each needs its own page of the log: one run must not read them all."""
    rig = RequestRig()
    for number in range(400):
        rig.put(6, [(b"b", b"%d" % number)])
    rig.put(5, [(b"b", b"end")])
    pages: list[int] = []
    read = rig.read_log

    def read_log(index: int) -> list[EntryBatch] | None:
        pages.append(index)
        return read(index)

    rig.requests.log_changes = LogChanges(rig.requests.databases.owner, read_log)
    for number in range(100):
        watch = requests.Watch(5, b"b", b"d", 1 + 3 * number, with_id(number))
        rig.ask(watch, b"%d" % number)
    answered = []
    runs = 0
    while rig.requests.has_work:
        pages.clear()
        answered += [message[0] for message in rig.run(401)]
        assert len(pages) <= table_requests.WATCH_PAGES
        runs += 1
    assert {*answered} == {b"%d" % number for number in range(100)}
    assert len(answered) == 100
    assert runs > 100 // table_requests.WATCH_PAGES


@pytest.mark.parametrize("entry_bytes", [READ_BYTES_MAX // 10, READ_BYTES_MAX // 2, READ_BYTES_MAX])
def test_a_watch_tells_each_change_once_over_full_pages(entry_bytes: int) -> None:
    """A worker reads the log in pages; the next one begins behind the last entry of a full one."""
    rig = RequestRig()
    for number in range(25):
        rig.put(6, [(b"other", bytes(entry_bytes))])
        rig.put(5, [(b"b%d" % number, b"%d" % number)])
    pages: list[int] = []

    def read_log(index: int) -> list[EntryBatch]:
        pages.append(index)
        page: list[EntryBatch] = []
        for batch in rig.log[index - 1 :]:
            if sum(len(one.block) for one in page) >= READ_BYTES_MAX:
                break
            page.append(batch)
        return page

    rig.requests.log_changes = LogChanges(rig.requests.databases.owner, read_log)
    told: list[tuple[int, list[Op]]] = []
    index, last_index = 1, rig.tables.applied[0]
    while index <= last_index:
        rig.watch(index)
        index, changes = rig.told()
        told += changes
    assert told == [(2 * n + 2, [Put(5, [b"b%d" % n], [b"%d" % n])]) for n in range(25)]
    assert len({*pages}) >= 25 * entry_bytes // READ_BYTES_MAX, "it read full pages"


def test_a_watch_tells_the_times_of_entries() -> None:
    """A reqid begins with its time in seconds. An entry without one has none."""
    rig = RequestRig()
    for index, reqid in enumerate([(1_800_000_000).to_bytes(4, "big") + bytes(8), None], 1):
        put = Put(5, [b"b"], [b"%d" % index])
        rig.log.append(encode_block(index, 1, [Record(KIND_TABLES, reqid, pack([put]))]))
        rig.tables.write([TableEntry(index, 1, [put])])
    rig.ask(requests.Watch(5, b"", b"", 1, with_id(1, flags=values.WITH_TIMES)))
    ((_, *frames),) = rig.run_all(2)
    _, changes = answers.WATCH.decode(answers.decode_answer(frames))
    assert [each.time_s for each in changes] == [1_800_000_000, 0]


def test_many_changes_need_several_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """zerodb_server would refuse a larger answer, and close the pipe for all clients."""
    monkeypatch.setattr(values, "PAIR_BYTES_MAX", 250_000)
    rig = RequestRig(TableRequestLimits(1000, 5000, True))
    for _ in range(5):
        rig.apply(Put(5, [b"c"], [bytes(100_000)]))
    rig.watch(1)
    assert [index for index, _ in rig.told()[1]] == [1, 2]
    rig.watch(3)
    index, changes = rig.told()
    assert (index, [log_index for log_index, _ in changes]) == (5, [3, 4])
    rig.apply(Put(5, [b"c"], [bytes(300_000)]))
    rig.watch(6)
    ((_, header, text),) = rig.run_all(6)
    assert header[3] == values.GONE
    assert b"entry 6 has changed has more than 250000 bytes" in text
