"""Scheduling of requests by a table worker on tables in memory: order, batches, slices, limits."""

import json
from typing import Any
from unittest.mock import patch

import pytest

from kelek.protocols.raft.messages import KIND_STATE, EntryBatch
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zerodb.tables.tables import TableEntry, TableInfo, TablePartition
from kelek.protocols.zerodb.wire import answers, requests, values
from kelek.protocols.zerodb.wire.ops import (
    EQUAL,
    Attach,
    Compare,
    Delete,
    DeleteLimited,
    DeleteRange,
    Expire,
    Expiry,
    Op,
    Open,
    Part,
    Put,
    SessionEnd,
    SessionOpen,
    Truncate,
    pack,
)
from kelek.protocols.zerodb.wire.requests import Request, encode_request, type_of
from kelek.protocols.zerodb.wire.values import Extension, TableOptions
from kelek.protocols.zerodb.wire.writes import operations_of
from kelek.protocols.zerodb.worker import gets
from kelek.protocols.zerodb.worker import reads as table_reads
from kelek.protocols.zerodb.worker import requests as table_requests
from kelek.protocols.zerodb.worker import watch as table_watch
from kelek.protocols.zerodb.worker.requests import (
    Databases,
    TableRequestLimits,
    TableRequests,
)
from kelek.protocols.zerodb.worker.tickets import QueuedRequest
from kelek.storage.errors import Damaged, StorageFull
from kelek.tests.storage.memory_tables import MemoryTables

LOCAL = 1000
UNIX_MS = 1_700_000_000_000
LIMITS = TableRequestLimits(1 << 20, 5000, True)
ROWS = [(b"%05d" % number, b"value %d" % number) for number in range(5000)]


def with_id(number: int, **fields: Any) -> Extension:
    return Extension(reqid=number.to_bytes(12, "big"), **fields)


class CountingTables(MemoryTables):
    """Tables that count the calls of the database."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.full = False

    def get(self, table: int, keys: Any) -> list[bytes | None]:
        self.calls.append(f"get {table} {len(keys)}")
        return super().get(table, keys)

    def write(self, entries: Any, sync: bool = False) -> Any:
        if self.full:
            self.problem = "no space"
            raise StorageFull("tables")
        self.calls.append(f"write {len(entries[0].ops)} {sync}")
        return super().write(entries, sync)


Told = tuple[int, list[tuple[int, list[Op]]]]  # The next index; of each entry index and changes.


def told_by(answer: answers.Answer) -> Told:
    """The content of an answer to a watch without times."""
    index, changes = answers.WATCH.decode(answer)
    assert not any(each.time_s for each in changes)
    return index, [(each.log_index, each.ops) for each in changes]


class RequestRig:
    """Requests of a worker and their answers."""

    def __init__(self, limits: TableRequestLimits = LIMITS) -> None:
        self.tables, self.local = CountingTables(), CountingTables()
        owner = TablePartition(0, 1, frozenset([LOCAL]))
        databases = Databases("table_worker", owner, self.tables, self.local)
        self.refusals: dict[bytes, str] = {}
        self.requests = TableRequests(databases, limits, self.read_log, self.refusals)
        self.log: list[EntryBatch] = []
        self.base = 0
        self.now_ms = 0
        self.ticket = 0

    def put(self, table: int, pairs: list[tuple[bytes, bytes]]) -> None:
        self.apply(Put(table, [key for key, _ in pairs], [value for _, value in pairs]))

    def apply(self, *ops: Op) -> None:
        """As an entry of the log."""
        index = self.tables.applied[0] + 1
        self.log.append(encode_block(index, 1, [Record(KIND_STATE, None, pack(ops))]))
        self.tables.write([TableEntry(index, 1, list(ops))])

    def read_log(self, index: int) -> list[EntryBatch] | None:
        if index <= self.base:
            return None
        return [batch for batch in self.log if batch.first_index >= index][:10]

    def watch(self, index: int, **fields: Any) -> None:
        self.ask(requests.Watch(5, b"b", b"d", index, with_id(index, **fields)), b"w%d" % index)

    def told(self) -> Told:
        """The content of the only answer of this run."""
        (frames,) = self.run_all(self.tables.applied[0])
        return told_by(answers.decode_answer(frames[1:]))

    def ask(self, request: Request, route: bytes = b"c1", **asked: Any) -> None:
        self.ticket += 1
        frames = encode_request(request)
        self.requests.add(QueuedRequest(route, frames, ticket=self.ticket, **asked), self.now_ms)

    def run(self, applied: int = 100) -> list[list[bytes]]:
        """The answers of one run."""
        self.requests.run(applied, self.now_ms, UNIX_MS)
        out = [message[1:] for message in self.requests.out.messages()]  # Without their tags.
        self.requests.out.clear()
        return out

    def run_all(self, applied: int = 100) -> list[list[bytes]]:
        out = self.run(applied)
        while self.requests.has_work:
            out += self.run(applied)
        return out


def test_many_reads_are_one_call_of_the_engine() -> None:
    rig = RequestRig()
    rig.put(5, ROWS)
    rig.tables.calls.clear()
    for number in range(100):
        rig.ask(requests.Read(5, [ROWS[number][0], b"none%d" % number]), b"c%d" % (number % 7))
    out = rig.run_all()
    # The size of its values is not known at first.
    assert rig.tables.calls == ["get 5 8", "get 5 64", "get 5 128"]
    assert len(out) == 100
    by_route = [frames for frames in out if frames[0] == b"c3"]
    assert [frames[2] for frames in by_route] == [ROWS[i][1] for i in range(3, 100, 7)]
    assert by_route[0] == [b"c3", b"\x31\x01\x10\x00", ROWS[3][1], b""]


def test_reads_of_one_connection_are_answered_in_order_whatever_their_tables_and_types() -> None:
    rig = RequestRig()
    rig.put(5, ROWS[:10])
    rig.put(6, ROWS[:10])
    asked: list[Request] = [
        requests.Read(5, [b"00001"]),
        requests.Exists(6, [b"00001"]),
        requests.Read(6, [b"00002"]),
        requests.Count(5),
        requests.Read(5, [b"00003"]),
    ]
    for request in asked:
        rig.ask(request)
    types = [frames[1][2] for frames in rig.run_all()]
    assert types == [type_of(request) for request in asked]


def test_a_long_scan_delays_no_other_client() -> None:
    rig = RequestRig()
    rig.put(5, ROWS)
    rig.ask(requests.Scan(5), b"slow")
    rig.ask(requests.Read(5, [b"00001"]), b"slow")
    rig.ask(requests.Read(5, [b"00001"]), b"fast")
    assert [frames[0] for frames in rig.run()] == [b"fast"]
    rig.put(5, [(b"00002", b"later")])
    later = rig.run_all()
    assert [(frames[0], frames[1][2]) for frames in later] == [(b"slow", 0x13), (b"slow", 0x10)]
    assert later[0][2:] == [part for row in ROWS for part in row], "it saw what was there at first"


def test_with_a_reqid_later_requests_do_not_wait_for_a_scan() -> None:
    rig = RequestRig()
    rig.put(5, ROWS)
    rig.ask(requests.Count(5, extension=with_id(1)))
    rig.ask(requests.Count(5, extension=with_id(2)))
    rig.ask(requests.Scan(5, extension=with_id(3)))
    rig.ask(requests.Read(5, [b"00001"], with_id(4)))
    assert [frames[1][2] for frames in rig.run()] == [0x10]
    assert sorted(frames[1][2] for frames in rig.run_all()) == [0x11, 0x11, 0x13]


def test_no_more_than_some_long_requests_run_at_once() -> None:
    rig = RequestRig()
    rig.put(5, ROWS)
    for number in range(20):
        rig.ask(requests.Scan(5, extension=with_id(number)), b"c%d" % number)
    rig.run()
    assert len(rig.requests.running) == table_requests.RUNNING_MAX
    assert len(rig.run_all()) == 20


def test_a_request_waits_for_its_index() -> None:
    rig = RequestRig()
    rig.put(5, ROWS[:3])
    rig.ask(requests.Read(5, [b"00001"]), log_index=7)
    rig.ask(requests.Read(5, [b"00002"]))
    rig.ask(requests.Read(5, [b"00002"]), b"c2")
    assert [frames[0] for frames in rig.run(6)] == [b"c2"]
    assert rig.requests.completed_ticket == 0
    assert rig.requests.is_waiting
    assert [frames[2] for frames in rig.run(7)] == [b"value 1", b"value 2"]
    assert rig.requests.completed_ticket == 3


def test_a_missing_index_is_reported_in_time() -> None:
    rig = RequestRig()
    rig.ask(requests.Read(5, [b"a"]), log_index=7)
    rig.ask(requests.Read(5, [b"a"], with_id(9, deadline_ms=100)), b"c2", log_index=8)
    rig.ask(requests.Read(5, [b"a"], with_id(3, deadline_ms=600_000)), b"c3", log_index=7)
    assert rig.run(6) == []
    assert rig.requests.deadline_ms == 100
    rig.now_ms = 100
    (early,) = rig.run(6)
    answer = answers.decode_answer(early[1:])
    assert (answer.code, answer.retry) == (0x10, True)
    rig.now_ms = 5000  # The client of the other one would wait longer, but may ask another server.
    late, other = rig.run(6)
    assert late[2] == other[2] == b"entry 7 is not applied here yet, only 6\0"
    assert answers.decode_answer(other[1:]).retry
    assert rig.requests.deadline_ms is None


def test_no_request_waits_while_the_database_refuses() -> None:
    rig = RequestRig()
    rig.put(5, ROWS[:3])
    rig.ask(requests.Read(5, [b"00001"]), log_index=7)
    assert rig.run(6) == []
    rig.tables.problem = "no space"
    rig.ask(requests.Read(5, [b"00001"]), b"c2", log_index=6)
    first, second = rig.run_all(6)
    assert first[2] == b"entry 7 is not applied here yet, only 6: no space\0"
    assert second[2] == b"value 1"
    rig = RequestRig(LIMITS._replace(alone=True))
    rig.put(5, ROWS[:3])
    rig.tables.problem = "no space"
    rig.ask(requests.Read(5, [b"00001"]), log_index=7)
    assert rig.run_all(6)[0][2] == b"value 1", "a node that is alone goes on"


def test_local_writes_are_one_batch_and_read_afterwards() -> None:
    rig = RequestRig()
    rig.ask(requests.Put(LOCAL, [b"a"], [b"1"], values.PARTSYNC))
    rig.ask(requests.Put(LOCAL, [b"b"], [b"2"], values.FULLSYNC), b"c2")
    rig.ask(requests.Read(LOCAL, [b"a"]))
    rig.ask(requests.Delete(LOCAL, [b"a"]), answered=False)
    rig.ask(requests.Exists(LOCAL, [b"a", b"b"]), envelope=True)
    out = rig.run_all()
    assert rig.local.calls[0] == "write 2 True"
    assert [frames[1] for frames in out[:2]] == [b"\x31\x01\x20\x00"] * 2
    assert out[2][2] == b"1"
    assert out[3] == [b"c1", b"", b"\x31\x01\x12\x00", b"\0", b"\1"]
    assert rig.requests.completed_ticket == 5


def test_the_time_that_keys_have_left() -> None:
    rig = RequestRig()
    rig.put(5, [(b"a", b""), (b"b", b""), (b"held", b""), (b"late", b"")])
    rig.apply(Expiry(5, UNIX_MS + 1500, [b"a"]), Expiry(5, UNIX_MS - 1, [b"late"]))
    rig.apply(SessionOpen(0, 1000, UNIX_MS), Attach(5, 3, [b"held"]))  # By its index.
    rig.ask(requests.Lifetimes(5, [b"a", b"b", b"none", b"held", b"late"]))
    ((_, header, *frames),) = rig.run_all()
    assert header == b"\x31\x01\x17\x00"
    none = b"\xff" * 8
    assert frames == [
        (1500).to_bytes(16, "little"), none + bytes(8), b"",
        none + (3).to_bytes(8, "little"), bytes(16),
    ]  # fmt: skip


def test_a_write_refused_by_the_database_is_an_error() -> None:
    rig = RequestRig()
    rig.local.full = True
    rig.ask(requests.Put(LOCAL, [b"a"], [b"1"], values.FULLSYNC))
    rig.ask(requests.Put(LOCAL, [b"a"], [b"1"]), b"", answered=False)
    ((_, header, text),) = rig.run_all()
    assert header == b"\x31\x01\x20\x02"
    assert b"no space is left" in text
    assert len(rig.requests.one_way_failures) == 1


@pytest.mark.parametrize(
    "request_", [requests.Put(5, [b"a"], [b"1"]), requests.Session(requests.SESSION_OPEN, 0, 1000)]
)
def test_writes_of_replicated_tables_are_refused_here(request_: Request) -> None:
    rig = RequestRig()
    rig.ask(request_)
    ((_, header, text),) = rig.run_all()
    assert header[3] == values.ERROR
    assert b"not a local table" in text
    assert rig.tables.calls + rig.local.calls == []


def test_an_answer_over_the_limit_is_an_error_or_a_page() -> None:
    rig = RequestRig(TableRequestLimits(1000, 5000, True))
    rig.put(5, ROWS)
    rig.ask(requests.Scan(5))
    rig.ask(requests.Read(5, [key for key, _ in ROWS[:200]]))
    rig.ask(requests.Scan(5, extension=with_id(1, flags=values.PACKED)))
    rig.ask(requests.Scan(5, 3, b"", b"", with_id(2, flags=values.PACKED | values.REVERSE)))
    scan, read, page, reverse = rig.run_all()
    assert (scan[1][3], read[1][3]) == (0x10, 0x10)
    assert b"more than 1000 bytes" in scan[2]
    request = requests.Scan(5, extension=with_id(1, flags=values.PACKED))
    found = answers.SCAN.decode(answers.decode_answer(page[1:]), request)
    assert found.keys == [key for key, _ in ROWS[: len(found.keys)]]
    assert found.resume == ROWS[len(found.keys)][0]
    assert 900 < sum(map(len, found.keys + found.values)) <= 1000
    found = answers.SCAN.decode(answers.decode_answer(reverse[1:]), request)
    assert found.keys == [b"04999", b"04998", b"04997"]
    assert found.resume == b"04997", "the next end, which is not included"


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [None, 7])
def test_pages_return_each_pair_once(reverse: bool, limit: int | None) -> None:
    rig = RequestRig(TableRequestLimits(3000, 5000, True))
    rig.put(5, ROWS[:900])
    flags = values.PACKED | (values.REVERSE if reverse else 0)
    got: list[bytes] = []
    start, end = b"00010", b"00850"
    while True:
        request = requests.Scan(5, limit, start, end, with_id(1, flags=flags))
        rig.ask(request)
        (page,) = rig.run_all()
        found = answers.SCAN.decode(answers.decode_answer(page[1:]), request)
        got += found.keys
        if not found.resume:
            break
        start, end = (start, found.resume) if reverse else (found.resume, end)
    expected = [key for key, _ in ROWS[10:850]]
    assert got == (expected[::-1] if reverse else expected)


def test_unknown_tables() -> None:
    rig = RequestRig(TableRequestLimits(1000, 5000, False))
    rig.tables.write([TableEntry(1, 1, [Open(5, TableOptions())])])
    for request in (
        requests.Read(5, [b"a"]),
        requests.Read(6, [b"a"]),
        requests.Count(6),
        requests.Put(LOCAL, [b"a"], [b"b"], values.PARTSYNC),
        requests.OpenTable(LOCAL),
        requests.Put(LOCAL, [b"a"], [b"b"], values.PARTSYNC),
    ):
        rig.ask(request)
    codes = [frames[1][2:4] for frames in rig.run_all()]
    assert codes == [b"\x10\0", b"\x10\x10", b"\x11\x10", b"\x20\x01", b"\x01\0", b"\x20\0"]


def test_table_info_hashes_the_content_at_an_index() -> None:
    rig = RequestRig()
    rig.put(5, ROWS)
    rig.ask(requests.TableInfo(5, content=True))
    ((_, _, number, info),) = rig.run_all(42)
    assert number == (5).to_bytes(4, "little")
    assert b'"applied_index": 42' in info
    assert rig.tables.content_hash(5).hex().encode() in info


def test_table_info_counts_a_range() -> None:
    rig = RequestRig()
    rig.put(5, [(b"a", b"123"), (b"b", b""), (b"c", b"4567"), (b"d", b"8")])
    rig.ask(requests.TableInfo(5, start=b"b", end=b"d"))
    ((*_, info),) = rig.run_all()
    assert {"range_keys": 2, "range_bytes": 6}.items() <= json.loads(info).items()
    rig.ask(requests.TableInfo(5))
    ((*_, info),) = rig.run_all()
    assert "range_keys" not in json.loads(info)


@pytest.mark.parametrize(("size", "keys"), [(table_reads.COUNTED_BYTES_MAX, 2), (1 << 20, 9)])
def test_keys_of_small_tables_are_counted(size: int, keys: int) -> None:
    """The database's estimate counts each write of a key."""
    rig = RequestRig()
    rig.put(5, [(b"a", b""), (b"b", b"")])
    rig.ask(requests.TableInfo(5))
    with patch.object(rig.tables, "info", return_value=TableInfo(TableOptions(), 9, size)):
        ((*_, info),) = rig.run_all()
    assert json.loads(info)["keys"] == keys


def test_malformed_requests_are_answered_and_counted() -> None:
    rig = RequestRig()
    rig.requests.add(QueuedRequest(b"c1", [b"\x31\x01\x10", b"123"], ticket=3), 0)
    rig.requests.add(QueuedRequest(b"c1", [b"\x31\x01\x77"], ticket=4), 0)
    assert [frames[1][2] for frames in rig.run()] == [0x10, 0xFF]
    assert rig.requests.completed_ticket == 4


def test_a_ticket_is_complete_when_all_earlier_ones_are() -> None:
    rig = RequestRig()
    rig.put(5, ROWS)
    rig.ask(requests.Count(5, extension=with_id(1)))
    rig.ask(requests.Read(5, [b"a"], with_id(2)))
    rig.run()
    assert rig.requests.completed_ticket == 0
    rig.run_all()
    assert rig.requests.completed_ticket == 2


def test_long_requests_may_be_retried_after_a_restore() -> None:
    rig = RequestRig()
    rig.put(5, ROWS)
    rig.ask(requests.Scan(5))
    rig.ask(requests.Read(5, [b"00001"]))
    assert rig.run() == []
    rig.requests.abort_running()
    failed, read = rig.run_all()
    assert failed[1][3] == 0x10
    assert read[2] == b"value 1"


# ---- watch ----


def test_a_watch_reports_changes_of_its_range() -> None:
    rig = RequestRig()
    rig.watch(0)
    assert rig.told() == (1, [])
    rig.put(5, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")])
    rig.put(6, [(b"b", b"other")])
    rig.apply(Delete(5, [b"a", b"c"]), DeleteRange(5, b"", b"c"))
    rig.watch(1)
    put, deleted = Put(5, [b"b", b"c"], [b"2", b"3"]), Delete(5, [b"c"])
    assert rig.told() == (4, [(1, [put]), (3, [deleted, DeleteRange(5, b"b", b"c")])])
    rig.watch(2)
    assert rig.told() == (4, [(3, [deleted, DeleteRange(5, b"b", b"c")])])


def test_a_watch_waits_for_changes_and_ends_in_time() -> None:
    rig = RequestRig()
    rig.put(5, [(b"b", b"2")])
    rig.watch(2, deadline_ms=60_000)
    assert rig.run_all(1) == []
    assert not rig.requests.has_work
    rig.put(6, [(b"b", b"other")])
    assert rig.run_all(2) == []
    rig.now_ms = table_requests.WATCH_MS_MAX
    assert rig.told() == (3, []), "nothing was done, the next request goes on there"
    rig.watch(3)
    rig.put(5, [(b"c", b"3")])
    assert rig.told() == (4, [(3, [Put(5, [b"c"], [b"3"])])])


def test_a_watch_reports_recorded_effects() -> None:
    rig = RequestRig()
    rig.put(5, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    equal = Compare(5, b"a", EQUAL, b"1")
    for number in range(2):
        transaction = requests.Transaction(
            [equal], [Delete(5, [b"a", b"b"])], [Put(5, [b"c"], [b"else"])], 0, with_id(7 + number)
        )
        rig.apply(*operations_of(transaction, UNIX_MS))
    rig.apply(DeleteLimited(5, b"", 9))
    rig.apply(Put(5, [b"b"], [b"short"]), Expiry(5, UNIX_MS, [b"b"]))
    rig.apply(Expire(0, UNIX_MS + 1))
    rig.apply(SessionOpen(0, 1000, UNIX_MS))
    held = requests.Put(5, [b"c"], [b"held"], 0, with_id(9, lease=7))
    rig.apply(*operations_of(held, UNIX_MS))
    rig.apply(SessionEnd(0, 7))
    rig.apply(Truncate(5))
    rig.watch(2)
    index, changes = rig.told()
    assert index == 11
    assert changes == [
        (2, [Delete(5, [b"b"])]),
        (3, [Put(5, [b"c"], [b"else"])]),
        (4, [Delete(5, [b"c"])]),
        (5, [Put(5, [b"b"], [b"short"])]),
        (6, [Delete(5, [b"b"])]),
        (8, [Put(5, [b"c"], [b"held"])]),
        (9, [Delete(5, [b"c"])]),
        (10, [Truncate(5)]),
    ]


def test_large_values_are_reported_as_of_now() -> None:
    rig = RequestRig()
    data = pack([Put(5, [b"b", b"c"], [b"large" * 50_000, b"small"])])
    half = len(data) // 2
    rig.apply(Part(5, b"r" * 12, 0, 2, data[:half]))
    rig.apply(Part(5, b"r" * 12, 1, 2, data[half:]))
    rig.apply(Delete(5, [b"c"]))
    rig.watch(1)
    assert rig.told()[1] == [
        (2, [Put(5, [b"b"], [b"large" * 50_000]), Delete(5, [b"c"])]),
        (3, [Delete(5, [b"c"])]),
    ]


class LocalRequestRig(RequestRig):
    """Watches the local table."""

    def watch_local(self, index: int) -> Told | None:
        """The immediate answer, or None."""
        request = requests.Watch(LOCAL, b"b", b"d", index, with_id(self.ticket))
        self.ask(request, b"w%d" % self.ticket)
        return self.told_now()

    def told_now(self) -> Told | None:
        out = [frames for frames in self.run_all() if frames[0].startswith(b"w")]
        if not out:
            return None
        ((_, *frames),) = out
        answer = answers.decode_answer(frames)
        return (0, []) if answer.code == values.GONE else told_by(answer)


def test_a_local_table_is_watched() -> None:
    """Reports also contain what only the tables know: the keys of a limited delete or an expiry."""
    rig = LocalRequestRig()
    rig.ask(requests.Put(LOCAL, [b"b"], [b"before"]))
    assert rig.watch_local(UNIX_MS * 1000) == (0, []), "nothing was kept"
    begin, _ = rig.watch_local(0) or (0, [])
    assert begin == UNIX_MS * 1000
    assert rig.watch_local(begin) is None
    rig.ask(requests.Put(LOCAL, [b"a", b"b", b"c"], [b"1", b"2", b"3"]))
    put = (begin, [Put(LOCAL, [b"b", b"c"], [b"2", b"3"])])
    assert rig.told_now() == (begin + 1, [put]), "at once, in the turn of the write"
    rig.ask(requests.DeleteLimited(LOCAL, b"", 2))
    rig.ask(requests.Put(LOCAL, [b"b"], [b"short"], 0, with_id(1, ttl_ms=1)))
    rig.run_all()
    rig.local.write([TableEntry(0, 0, [Expire(0, UNIX_MS + 2)])])
    rig.ask(requests.Put(LOCAL, [b"z"], [b"beyond"]))
    gone, short = Delete(LOCAL, [b"b"]), Put(LOCAL, [b"b"], [b"short"])
    assert rig.watch_local(begin + 1) == (
        begin + 5, [(begin + 1, [gone]), (begin + 2, [short]), (begin + 3, [gone])]
    )  # fmt: skip
    assert rig.watch_local(begin) == rig.watch_local(begin)
    assert rig.watch_local(begin + 6) == (0, []), "of another process"
    rig.now_ms += table_requests.LOCAL_WATCH_MS
    assert rig.watch_local(begin + 5) == (0, []), "no watch for a long time"
    assert (rig.watch_local(0) or (0, []))[0] >= begin + 5


def test_many_changes_are_reported_in_pages() -> None:
    rig = LocalRequestRig()
    index, _ = rig.watch_local(0) or (0, [])
    large = b"x" * (1 << 20)
    pairs = [(b"%c%03d" % (b"ab"[i % 2], i), large) for i in range(14)]
    for some in (pairs[:4], pairs[4:]):
        rig.ask(requests.Put(LOCAL, [key for key, _ in some], [value for _, value in some]))
        rig.run_all()
    found: list[bytes] = []
    pages = 0
    while told := rig.watch_local(index):
        index, changes = told
        found += [key for _, done in changes for op in done if isinstance(op, Put)
                  for key in op.keys]  # fmt: skip
        pages += 1
    assert found == [key for key, _ in pairs if key >= b"b"]
    assert pages == 2
    for _ in range(2):
        rig.ask(requests.Put(LOCAL, [b"b"] * 9, [large] * 9))
        rig.run_all()
    assert rig.watch_local(index - 1) == (0, []), "16 MiB are kept"
    assert rig.local.recent is not None
    assert rig.local.recent.size <= 16 << 20


def test_lost_changes_are_an_error() -> None:
    rig = RequestRig()
    rig.put(5, ROWS[:3])
    rig.base = 1
    rig.watch(1)
    ((_, header, text),) = rig.run_all(1)
    assert header[3] == values.GONE
    assert b"entry 1" in text


def test_an_empty_log_read_is_retried_later() -> None:
    rig = RequestRig()
    rig.put(5, [(b"b", b"2")])
    log, rig.log = rig.log, []
    rig.watch(1)
    assert rig.run_all(1) == []
    assert not rig.requests.has_work
    rig.log = log
    rig.put(5, [(b"c", b"3")])
    assert len(rig.told()[1]) == 2


def test_reads_are_sized_by_earlier_values() -> None:
    rig = RequestRig(TableRequestLimits(32 << 20, 5000, True))
    keys, large = [b"%03d" % number for number in range(600)], [bytes(100_000)] * 600
    rig.tables.write([TableEntry(1, 1, [Put(5, keys, large)])])
    rig.put(6, ROWS)
    rig.tables.calls.clear()
    for number in range(4):
        rig.ask(requests.Read(5, keys[:300], with_id(number)), b"c%d" % number)
    rig.ask(requests.Read(6, [key for key, _ in ROWS[:600]], with_id(9)))
    first = rig.run()
    assert len(first) < 5, "what is too much to be sent at once waits"
    assert len(first + rig.run_all()) == 5
    counts = [int(call.split()[2]) for call in rig.tables.calls if call.startswith("get 5")]
    assert counts[0] == gets.GET_KEYS_FIRST
    assert max(counts[1:]) <= gets.GET_BYTES // 100_000
    assert f"get 6 {gets.GET_KEYS_FIRST}" in rig.tables.calls, (
        "of another table something else is known"
    )


def test_no_request_reads_more_than_its_answer_may_hold() -> None:
    rig = RequestRig(TableRequestLimits(1 << 20, 5000, True))
    keys, large = [b"%03d" % number for number in range(600)], [bytes(100_000)] * 600
    rig.tables.write([TableEntry(1, 1, [Put(5, keys, large)])])
    rig.tables.calls.clear()
    rig.ask(requests.Read(5, [b"%03d" % number for number in range(600)]))
    rig.ask(requests.Read(5, [b"001"]))
    too_large, fine = rig.run_all()
    assert (too_large[1][3], fine[1][3]) == (0x10, 0)
    assert rig.tables.calls == ["get 5 8", "get 5 64", "get 5 1"]


@pytest.mark.parametrize("request_", [requests.Read(5, [b"a"]), requests.Scan(5)])
def test_damage_is_reported_to_the_client_and_the_owner(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = RequestRig()

    def damaged(*_: Any) -> None:
        raise Damaged("tables", "block 7 is wrong", "it is made anew")

    for name in ("get", "scan"):
        monkeypatch.setattr(rig.tables, name, damaged)
    rig.ask(request_)
    ((_, header, text),) = rig.run_all()
    assert header[3] == 0x10
    assert b"block 7" in text
    assert "block 7" in rig.requests.damage


def test_large_values_among_small_ones_use_bounded_memory() -> None:
    """Many clients read one large value of a table whose values were small: memory is bounded by
    the answers that are sent at once."""
    rig = RequestRig()
    rig.put(5, [*ROWS[:200], (b"large", bytes(1 << 20))])
    for _ in range(3):
        rig.ask(requests.Read(5, [key for key, _ in ROWS[:200]]))
    assert len(rig.run_all()) == 3
    for number in range(40):
        rig.ask(requests.Read(5, [b"large"], with_id(number)), b"c%d" % (number % 3))
    sizes: list[int] = []
    answered: list[tuple[bytes, ...]] = []
    while len(answered) < 40:
        rig.requests.run(100, 0, UNIX_MS)
        sizes.append(rig.requests.out.size)
        answered += [tuple(message[1:3]) for message in rig.requests.out.messages()]
        rig.requests.out.clear()
    assert max(sizes) < table_requests.OUT_BYTES + (2 << 20)
    for route in (b"c0", b"c1", b"c2"):
        asked = [n for n in range(40) if b"c%d" % (n % 3) == route]
        heads = [head for it, head in answered if it == route]
        assert heads == [answers.encode_head(0x10, 0, with_id(n)) for n in asked]
    assert rig.tables.calls[-1] == "get 5 1", "one of many alike is read"


@pytest.mark.parametrize("what", ["page", "hash", "text"])
def test_large_rows_in_memory_are_bounded(what: str) -> None:
    """A slice of 2048 rows would be 80 MB here, and 128 GiB of the largest."""
    rig = RequestRig()
    keys = [b"%05d" % number for number in range(2000)]
    rig.tables.write([TableEntry(1, 1, [Put(6, keys, [bytes(40_000)] * 2000)])])
    alive = most = 0

    class Row(tuple[bytes, bytes]):
        def __new__(cls, pair: tuple[bytes, bytes]) -> "Row":
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            return super().__new__(cls, pair)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def scan(*range_: Any) -> Any:
        return map(Row, MemoryTables.scan(rig.tables, *range_))

    rig.tables.scan = scan  # type: ignore[assignment, method-assign]
    packed = Extension(values.PACKED, reqid=b"r" * 12, bytes_max=100_000)
    asked: dict[str, Request] = {
        "page": requests.Scan(6, extension=packed),
        "hash": requests.TableInfo(6, content=True),
        "text": requests.Scan(6),
    }
    rig.ask(asked[what])
    (frames,) = rig.run_all()
    assert frames[1][3] == (0x10 if what == "text" else 0)
    assert most < 140


def test_rows_of_an_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reads, "ANSWER_ROWS_MAX", 3000)
    rig = RequestRig()
    rig.put(5, ROWS)
    rig.ask(requests.Scan(5))
    rig.ask(requests.Scan(5, 3000))
    packed = requests.Scan(5, extension=with_id(1, flags=values.PACKED))
    rig.ask(packed)
    refused, whole, page = rig.run_all()
    assert b"or 3000 rows; set a limit" in refused[2]
    assert len(whole) == 2 + 6000
    pairs = answers.SCAN.decode(answers.decode_answer(page[1:]), packed)
    assert (len(pairs.keys), pairs.resume) == (3000, ROWS[3000][0])


def test_current_values_of_changes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_watch, "CURRENT_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(table_watch, "CURRENT_KEYS", 2)
    rig = RequestRig()
    keys = [b"c%d" % number for number in range(9)]
    packed = pack([Put(5, keys, [bytes(10_000)] * 9)])
    for part in range(2):
        half = packed[part * 50_000 : (part + 1) * 50_000]
        rig.apply(Part(5, b"r" * 12, part, 2, half))
    rig.put(5, [(key, bytes(400_000)) for key in keys])
    rig.watch(1)
    rig.tables.calls.clear()
    ((_, header, *_),) = rig.run_all(3)
    assert header[3] == values.GONE
    assert sum(call == "get 5 2" for call in rig.tables.calls) == 2


# ---- keys whose grants have changed ----

ANN, BOB = 3, 4  # Clients.


def refused(answers_: list[list[bytes]]) -> list[bytes]:
    """The connections that were told that their key has no grant."""
    found = [(route, answers.decode_answer(frames)) for route, *frames in answers_]
    return [route for route, answer in found if answer.code == values.NOT_ALLOWED]


def test_the_waiting_reads_of_a_revoked_key_end() -> None:
    rig = RequestRig()
    rig.put(5, ROWS)
    watch = requests.Watch(5, b"", b"", rig.tables.applied[0] + 1, with_id(1))
    rig.ask(watch, b"watch of ann", client=ANN)
    rig.ask(watch, b"watch of bob", client=BOB)
    rig.ask(watch, b"without a key")
    rig.ask(requests.Count(5), b"count of ann", client=ANN)
    rig.ask(requests.Read(5, [b"k"]), b"waits for the log", client=ANN, log_index=2)
    rig.ask(requests.Read(5, [b"k"]), b"of bob", client=BOB, log_index=2)
    assert rig.run(1) == []
    rig.requests.end_denied(ANN, [])
    ended = rig.run(1)
    assert refused(ended) == [b"watch of ann", b"count of ann", b"waits for the log"]
    assert len(ended) == 3
    rig.put(5, [(b"new", b"row")])
    left = [route for route, *_ in rig.run_all(2)]
    assert left == [b"of bob", b"watch of bob", b"without a key"]


def test_reads_of_tables_that_a_key_may_still_read_go_on() -> None:
    rig = RequestRig()
    for table in (5, 6):
        rig.ask(requests.Watch(table, b"", b"", 1, with_id(1)), b"watch %d" % table, client=ANN)
    assert rig.run(0) == []
    rig.requests.end_denied(ANN, [(6, 9)])
    assert refused(rig.run(0)) == [b"watch 5"]
    assert rig.requests.is_waiting


def test_the_next_request_of_a_connection_starts_behind_a_refused_one() -> None:
    rig = RequestRig()
    rig.ask(requests.Watch(5, b"", b"", 1), client=ANN)
    rig.ask(requests.Read(6, [b"k"]), client=ANN)
    assert rig.run(0) == []
    rig.requests.end_denied(ANN, [(6, 6)])
    first, second = rig.run_all(0)
    assert refused([first, second]) == [b"c1"]
    assert answers.decode_answer(second[1:]).request_type == values.READ
