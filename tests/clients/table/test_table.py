"""kelek.Table over real sockets, against servers with tables in memory."""

import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.clients.table.arguments import Range, behind_prefix
from kelek.clients.table.changes import Change
from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.zerodb.wire import requests
from kelek.protocols.zerodb.wire.answers import Answer
from kelek.protocols.zerodb.wire.values import (
    FULLSYNC,
    KEYS_ONLY,
    NOT_ALLOWED,
    PACKED,
    PARTSYNC,
    WITH_LEASE,
    Extension,
)
from kelek.tests.clients.table.table_servers import CHUNK_PAIRS, JOB, TableServers, job_status

PAIRS = [(b"key %05d" % n, b"value %d" % n) for n in range(5000)]


def flatten(pages: Iterable[list[tuple[bytes, bytes]]]) -> list[tuple[bytes, bytes]]:
    return list(chain.from_iterable(pages))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TableServers]:
    cluster = TableServers(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[TableServers]:
    """Servers that support only the specification."""
    cluster = TableServers(tmp_path, features=7)
    yield cluster
    cluster.close()


def test_operations_on_one_key(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 3, timeout_ms=60_000) as table:
        assert table.number == 3
        assert table.get(b"k") is None
        assert not table.exists(b"k")
        table.put(b"k", bytearray(b"v"))
        table.put(memoryview(b"empty"), b"")
        assert table.get(b"k") == b"v"
        assert table.get_many([b"empty", b"none", b"k"]) == [b"", None, b"v"]
        assert table.exists_many([b"empty", b"none"]) == [True, False]
        table.delete(b"k")
        assert table.get(b"k") is None
        table.delete_many([b"empty", b"none"])
        assert table.count() == 0
        assert table.get_many([]) == []
    assert cluster.store.tables == {3: {}}


def test_many_keys_are_packed_and_pipelined(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, timeout_ms=60_000) as table:
        seen: list[int] = []
        assert table.put_many(iter(PAIRS), progress=seen.append) == 5000
        assert seen[-1] == 5000
        assert list(table.scan()) == PAIRS
        assert table.get_many([key for key, _ in PAIRS]) == [value for _, value in PAIRS]
        assert table.exists_many([key for key, _ in PAIRS] + [b"x"]) == [True] * 5000 + [False]
        assert table.put_many([]) == 0
    assert len(cluster.store.writes) < 500
    assert {it.flags for it in cluster.store.writes if isinstance(it, requests.Put)} == {PARTSYNC}


def test_a_read_too_large_for_one_answer_is_split(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls) as table:
        table.put_many(PAIRS[:100])
        for server in cluster.servers:
            server.read_max = 7
        assert table.get_many([key for key, _ in PAIRS[:100]]) == [
            value for _, value in PAIRS[:100]
        ]
        for server in cluster.servers:
            server.read_max = 0
        with pytest.raises(kelek.TableRefused, match="too much"):
            table.get_many([key for key, _ in PAIRS[:100]])


def test_ranges_of_scans(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls) as table:
        table.put_many(PAIRS)
        assert list(table.scan(prefix=b"key 0001")) == PAIRS[10:20]
        assert list(table.scan(start=b"key 00010", end=b"key 00013")) == PAIRS[10:13]
        assert list(table.scan(reverse=True)) == PAIRS[::-1]
        assert list(table.scan(prefix=b"key 0001", reverse=True, limit=3)) == PAIRS[19:16:-1]
        assert list(table.scan(limit=7)) == PAIRS[:7]
        assert list(table.scan(limit=0)) == []
        assert list(table.scan(start=b"b", end=b"a")) == []
        assert list(table.keys(limit=2)) == [b"key 00000", b"key 00001"]
        assert list(islice(table.scan(), 3)) == PAIRS[:3]
        assert table.count() == 5000
        assert table.count(prefix=b"key 0001") == 10
        assert table.count(start=b"key 04990") == 10
        assert table.count(start=b"key 00010", end=b"key 00013") == 3
        with pytest.raises(ValueError, match="not both"):
            table.count(prefix=b"a", start=b"b")
        with pytest.raises(ValueError, match="limit"):
            list(table.scan(limit=-1))


def test_a_scan_has_pages_of_about_1_mb(cluster: TableServers) -> None:
    pairs = [(b"%04d" % n, bytes(100_000)) for n in range(50)]
    with kelek.Table(cluster.urls) as table:
        table.put_many(pairs)
        pages = list(table.scan_pages())
        assert flatten(pages) == pairs
        assert len(pages) == 5
        assert flatten(table.scan_pages(reverse=True)) == pairs[::-1]
        first = next(table.scan_pages())
        assert len(first) == 10


def test_arrow_has_the_pairs_of_a_range(cluster: TableServers) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    with kelek.Table(cluster.urls) as table:
        table.put_many(PAIRS)
        found = pyarrow.Table.from_batches(table.to_arrow(prefix=b"key 0"))
        assert found.schema.names == ["key", "value"]
        assert found["key"].to_pylist() == [key for key, _ in PAIRS]
        assert found["value"].to_pylist() == [value for _, value in PAIRS]


@pytest.mark.parametrize("features", [7, 0x1FFFF])
def test_arrow_from_packed_and_plain_answers(tmp_path: Path, features: int) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pairs = [(b"%03d" % n, bytes(30_000)) for n in range(100)]
    with closing(TableServers(tmp_path, features)) as cluster, kelek.Table(cluster.urls) as table:
        table.put_many(pairs)
        batches = list(table.to_arrow())
        assert len(batches) == (1 if features == 7 else 3)
        assert pyarrow.Table.from_batches(batches).to_pylist() == [
            {"key": key, "value": value} for key, value in pairs
        ]
        assert list(table.to_arrow(prefix=b"x")) == []


def test_arrow_from_plain_answers_of_many_frames(foreign: TableServers) -> None:
    """Above 256 frames a message stays in native columns."""
    pyarrow = pytest.importorskip("pyarrow")
    with kelek.Table(foreign.urls) as table:
        table.put_many(PAIRS[:1000])
        found = pyarrow.Table.from_batches(table.to_arrow())
        assert found["key"].to_pylist() == [key for key, _ in PAIRS[:1000]]
        assert found["value"].to_pylist() == [value for _, value in PAIRS[:1000]]


OFFSETS = struct.pack("<3I", 0, 1, 2)


@pytest.mark.parametrize(
    "frames",
    [
        [OFFSETS, b"ab", OFFSETS, b"cd"],
        [OFFSETS, b"a", OFFSETS, b"cd", b""],
        [b"", b"", b"", b"", b""],
        [OFFSETS[:-1], b"ab", OFFSETS, b"cd", b""],
        [struct.pack("<3I", 0, 2, 1), b"ab", OFFSETS, b"cd", b""],
        [OFFSETS, b"ab", OFFSETS[:8], b"c", b""],
        [struct.pack("<2I", 0, 2**32 - 1), b"ab", OFFSETS, b"cd", b""],
    ],
)
def test_malformed_columns_are_refused_before_arrow(frames: list[bytes]) -> None:
    pytest.importorskip("pyarrow")
    from kelek.clients.table.arrow import batch_of

    request = requests.Scan(1, None, b"", b"", Extension(PACKED))
    with pytest.raises(RemoteProtocolError):
        batch_of(Answer(0x13, 0, b"", False, frames), request)


def test_ranges_are_deleted(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls) as table:
        table.put_many(PAIRS)
        table.delete_range(prefix=b"key 0001")
        assert table.count() == 4990
        table.delete_range(start=b"key 03000")
        assert table.count() == 2990
        table.delete_limited(3, start=b"key 00005")
        assert list(table.keys(limit=7)) == [PAIRS[n][0] for n in (0, 1, 2, 3, 4, 8, 9)]
        table.delete_range(start=b"b", end=b"a")  # Empty: no request is sent.
        table.delete_range()
        assert table.count() == 0


def test_a_batch_is_atomic(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 1) as table:
        batch = table.batch().put(b"a", b"1").put(b"b", b"2", table=2).get(b"a")
        first = table.commit(batch)
        assert first.succeeded
        assert first.values == [None]
        assert cluster.store.tables == {1: {b"a": b"1"}, 2: {b"b": b"2"}}
        batch = table.batch().when_equal(b"a", b"0").delete(b"a")
        batch.otherwise.get(b"a", b"c")
        result = table.commit(batch)
        assert not result.succeeded
        assert result.values == [b"1", None]
        assert result.token > first.token
        batch = table.batch().when_present(b"a").when_absent(b"x", b"y").when_less(b"a", b"2")
        batch.when_greater(b"a", b"0").when_not_equal(b"a", b"2")
        assert table.commit(batch.put_many([(b"x", b"1"), (b"y", b"2")])).succeeded
        assert not table.commit(batch).succeeded, "x exists now"
        assert table.commit(table.batch().delete_range(b"x")).succeeded
        ranges = table.batch().delete_range(prefix=b"a").delete_range(b"x", b"y", table=9)
        ranges.delete_range(prefix=b"b\xff").otherwise.delete_range(prefix=b"")
        assert [op[1:] for op in (*ranges.ops, *ranges.otherwise.ops)] == [
            (b"a", b"b"), (b"x", b"y"), (b"b\xff", b"c"), (b"", b"")
        ]  # fmt: skip
        with pytest.raises(ValueError, match="not both"):
            table.batch().delete_range(b"a", prefix=b"b")
        with pytest.raises(ValueError, match="into itself"):
            table.copy_into(table.number)
        assert list(table.keys()) == [b"a"]


def test_compare_and_put(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, sync="async") as table:
        assert table.compare_and_put(b"k", None, b"1")
        assert not table.compare_and_put(b"k", None, b"2")
        assert not table.compare_and_put(b"k", b"0", b"2")
        assert table.compare_and_put(b"k", b"1", b"2")
        assert table.get(b"k") == b"2"
    (last,) = cluster.store.writes[-1:]
    assert isinstance(last, requests.Transaction)
    assert last.flags == PARTSYNC, "the result must wait for the write"


def test_sessions_and_ttls(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, sync="fullsync") as table:
        session = table.open_session(2.5)
        table.put(b"lock", b"1", session=session, ttl_s=1)
        assert table.keep_session(session)
        assert table.commit(table.batch().when_alive(session)).succeeded
        assert table.get(b"lock") == b"1"
        table.end_session(session)
        with pytest.raises(kelek.SessionEnded, match="the session has ended"):
            table.put(b"lock", b"2", session=session)
        with pytest.raises(kelek.SessionEnded):
            table.commit(table.batch(session=session).put(b"lock", b"2"))
        assert not table.keep_session(session)
        assert not table.commit(table.batch().when_alive(session)).succeeded
        table.put_many([(b"a", b"b")], ttl_s=0.001)
        with pytest.raises(ValueError, match="time to live"):
            table.put(b"a", b"b", ttl_s=0)
    opened, put = cluster.store.writes[:2]
    assert isinstance(opened, requests.Session)
    assert opened.ttl_ms == 2500
    assert isinstance(put, requests.Put)
    assert (put.flags, put.extension.ttl_ms, put.extension.lease) == (FULLSYNC, 1000, session)


def test_watch_returns_changes_of_a_range(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 1) as table, kelek.Table(cluster.urls, 1) as writer:
        writer.put(b"a0", b"early")
        from_now = table.watch(prefix=b"a")
        old = list(islice(table.watch(prefix=b"a", after=0), 1))
        assert old == [Change(1, b"a0", b"early")]
        writer.put_many([(b"a1", b"1"), (b"b", b"2")])
        writer.delete(b"a1")
        writer.delete_range()
        writer.truncate()
        found = list(islice(table.watch(prefix=b"a", after=1), 4))
        assert found == [
            Change(2, b"a1", b"1"),
            Change(3, b"a1", None),
            Change(4, b"a", None, b"b"),
            Change(5, b"a", None, b"b"),
        ]
        from_now.close()
        with pytest.warns(DeprecationWarning, match="after="):
            assert next(table.watch(index=2)).index == 2
        cluster.store.first_change = 5
        with pytest.raises(kelek.TableCompacted) as error:
            next(table.watch(after=1))
        assert (error.value.index, error.value.after) == (6, 5)


def test_options_and_statistics_of_a_table(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 1) as table:
        assert table.info() is None
        options = kelek.TableOptions(cache_bytes=1 << 20, bloom_bits=10, compression=False)
        table.open(options)
        assert cluster.store.options == {1: options}
        table.put_many(PAIRS)
        assert table.info() == {"keys": 5000}
        assert table.tables() == {1: {"keys": 5000}}
        found = table.info(end=PAIRS[10][0])
        assert found is not None
        assert found["range_keys"] == 10
        points = table.split_points(4)
        assert points == [PAIRS[n][0] for n in (1250, 2500, 3750)]
        table.compact(prefix=b"k")
        table.unload()
        table.truncate()
        assert table.count() == 0
        server = table.server()
        assert server.url in cluster.urls
        assert server.software in ("s0", "s1", "s2")


def test_each_chunk_of_a_job_goes_to_one_client(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls[:1], 1) as table, kelek.Table(cluster.urls[:1], 1) as other:
        table.put_many(PAIRS[:20])
        job = table.range_job(prefix=b"key", chunk_pairs=CHUNK_PAIRS, lease=0)
        assert (job.lease, job.path, job.index) == (9, "lease.9", 5)
        mine = table.chunks(job)
        chunks = [next(mine), next(mine)]
        chunks += list(other.chunks(job))
        assert list(mine) == []
        assert flatten(chunks) == PAIRS[:20]
        table.release(job.lease)
        exact = table.range_job(end=PAIRS[6][0])
        assert flatten(table.chunks(exact)) == PAIRS[:6]
        assert table.copy_into(2) == 77
        assert table.map_into(2, b"\0asm", parameters=[(b"a", b"b")]) == 77
        assert table.job_status(JOB) == job_status(JOB, "done")


def test_jobs_are_polled_and_cancelled(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 1) as table:
        apid = table.copy_into(2)
        cluster.store.job_polls = 3
        seen: list[str] = []
        ended = table.wait_job(apid, progress=lambda status: seen.append(status["state"]))
        assert (ended["state"], seen) == ("done", ["running"] * 3 + ["done"])
        assert [one["apid"] for one in table.jobs()] == ["77", "8"]
        assert [one["state"] for one in table.jobs(running=True)] == ["running"]
        table.end_job(apid)
        assert table.wait_job(apid)["state"] == "cancelled"
        with pytest.raises(kelek.TableRefused, match="no data job 5"):
            table.end_job(5)
        with pytest.raises(ValueError, match="limit is a number from 1 to 1000, not 0"):
            table.jobs(limit=0)
        with pytest.raises(ValueError, match="a job is a number"):
            table.job_status(-1)


def test_the_status_of_a_job_is_read_from_its_server(cluster: TableServers) -> None:
    """Another server may have a job with the same number."""
    with kelek.Table(cluster.urls, 1) as table:
        apid = table.copy_into(2)
        cluster.kill(table.server().url)
        with pytest.raises(kelek.TableJobLost):
            table.wait_job(apid)
        assert table.job_status(apid + 1)["state"] == "done"


@pytest.mark.parametrize("features", [7, 0x1FFFF])
def test_a_job_as_arrow(tmp_path: Path, features: int) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    with (
        closing(TableServers(tmp_path, features)) as cluster,
        kelek.Table(cluster.urls, 1) as table,
    ):
        table.put_many(PAIRS[:20])
        batches = list(table.chunks_arrow(table.range_job()))
        assert [batch.num_rows for batch in batches] == [3] * 6 + [2]
        found = pyarrow.Table.from_batches(batches).to_pylist()
        assert [(row["key"], row["value"]) for row in found] == PAIRS[:20]
        early = table.chunks_arrow(table.range_job())
        assert next(early).num_rows == 3
        early.close()
        assert table.count() == 20, "unread chunks delay no other answer"


def test_arrow_is_written_in_packed_requests(cluster: TableServers) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    big = [(b"big", bytes(300_000)), (b"small", b""), *PAIRS]
    columns = [pyarrow.array([pair[i] for pair in big], pyarrow.binary()) for i in (0, 1)]
    batch = pyarrow.RecordBatch.from_arrays(columns, ["key", "value"])
    seen: list[int] = []
    with kelek.Table(cluster.urls, 1) as table:
        slices = [batch.slice(0, 1), batch.slice(1, 0), batch.slice(1, 2001), batch.slice(2002)]
        assert table.put_arrow(slices, bytes_max=10_000, progress=seen.append) == len(big)
        assert list(table.scan()) == sorted(big)
        text = pyarrow.RecordBatch.from_pydict({"value": ["ö"], "key": ["text"]})
        assert table.put_arrow([text]) == 1
        assert table.get(b"text") == "ö".encode()
        assert table.put_arrow([]) == 0
        large = pyarrow.array(["l"], pyarrow.large_string())
        assert table.put_arrow([pyarrow.record_batch({"key": large, "value": large})]) == 1
        assert table.get(b"l") == b"l"
    puts = [it for it in cluster.store.writes if isinstance(it, requests.Put)]
    sizes = [sum(map(len, [*put.keys, *put.values])) for put in puts]
    assert sizes[0] == 300_003
    assert max(sizes[1:]) <= 10_000
    assert len(puts) < 15
    assert seen[-1] == len(big)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": [b"k"]}, "no column value; there are: key"),
        ({"key": [b"k", None], "value": [b"", b""]}, "column key: a table holds no null"),
        ({"key": [1], "value": [b""]}, "column key is int64; cast it to binary"),
        ({"key": [b"k", b""], "value": [b"", b""]}, "a key has 1 to 65536 bytes, not 0"),
        ({"key": [b"k" * 65_537], "value": [b""]}, "a key has 1 to 65536 bytes, not 65537"),
    ],
)
def test_invalid_arrow_batches_are_refused(cluster: TableServers, columns: Any, words: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    batch = pyarrow.RecordBatch.from_pydict(columns)
    with kelek.Table(cluster.urls) as table, pytest.raises((ValueError, TypeError), match=words):
        table.put_arrow([batch])
    assert cluster.store.writes == []


def test_a_job_may_return_keys_only(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 1) as table:
        table.put_many(PAIRS[:20])
        table.range_job()
        table.range_job(keys_only=True, lease=0)
    found = [it for server in cluster.servers for it in server.requests]
    jobs = [it.extension.flags for it in found if isinstance(it, requests.RangeJob)]
    assert jobs == [0, KEYS_ONLY | WITH_LEASE]


def test_an_expired_job_raises_an_error(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 1) as table:
        table.put_many(PAIRS[:20])
        job = table.range_job()
        chunks = table.chunks(job)
        next(chunks)
        cluster.store.jobs[job.apid] = []
        cluster.store.lost_jobs.add(job.apid)
        with pytest.raises(kelek.TableJobLost, match="unknown"):
            next(chunks)


def test_a_job_ends_with_its_server(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 1, timeout_ms=60_000) as table:
        table.put_many(PAIRS[:20])
        job = table.range_job()
        chunks = table.chunks(job)
        next(chunks)
        cluster.kill(table.server().url)
        with pytest.raises(kelek.TableJobLost):
            list(chunks)
        assert table.count() == 20, "other requests go to another server"


def test_a_failover_during_put_many_writes_each_pair_once(cluster: TableServers) -> None:
    pairs = [(b"%06d" % n, b"") for n in range(30_000)]

    def source() -> Iterator[tuple[bytes, bytes]]:
        for number, pair in enumerate(pairs):
            if number == 12_000:
                cluster.kill(table.server().url)
            yield pair

    with kelek.Table(cluster.urls, timeout_ms=60_000) as table:
        assert table.put_many(source()) == 30_000
        assert table.counters["servers"] >= 2  # More when an answer is late.
    written = [key for it in cluster.store.writes for key in getattr(it, "keys", [])]
    assert written == [key for key, _ in pairs], "each once, in order"


def test_servers_of_the_specification_return_the_same_results(foreign: TableServers) -> None:
    with kelek.Table(foreign.urls, 1) as table:
        table.put_many(PAIRS)
        table.put(b"empty", b"")
        assert table.get_many([b"empty", b"none", PAIRS[7][0]]) == [b"", None, b"value 7"]
        assert table.exists_many([b"empty", b"none"]) == [True, False]
        assert list(table.scan(prefix=b"key")) == PAIRS
        assert list(table.scan(prefix=b"key", limit=1500)) == PAIRS[:1500]
        assert list(table.keys(limit=1)) == [b"empty"]
        assert table.count(prefix=b"key") == 5000
        assert flatten(table.chunks(table.range_job(end=PAIRS[5][0]))) == [
            (b"empty", b""),
            *PAIRS[:5],
        ]
        with pytest.raises(kelek.TableUnsupported, match="does not know"):
            list(table.scan(reverse=True))
        with pytest.raises(kelek.TableUnsupported):
            table.compare_and_put(b"k", None, b"v")


def test_refusals_have_the_text_of_the_server(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, timeout_ms=60_000) as table:
        for server in cluster.servers:
            server.error = 2, "no space"
        with pytest.raises(kelek.TableRefused, match="no space") as error:
            table.put_many(PAIRS)
        assert error.value.code == 2
        assert error.value.written == 0
        for server in cluster.servers:
            server.error = NOT_ALLOWED, "the key has no grant"
        with pytest.raises(kelek.NotAllowed, match="the key has no grant") as denied:
            table.get(b"k")
        assert isinstance(denied.value, kelek.TableRefused)
        for server in cluster.servers:
            server.error = None
        table.put(b"k", b"v")
        assert table.get(b"k") == b"v"


def test_calls_without_an_answer_time_out(tmp_path: Path, cluster: TableServers) -> None:
    with (
        kelek.Table(f"ipc://{tmp_path}/unused", timeout_ms=100) as table,
        pytest.raises(kelek.TableUnavailable, match=r"no connection to ipc:.*unused within"),
    ):
        table.get(b"k")
    with kelek.Table(cluster.urls) as table:
        table.server()
        table.timeout_ms = 200
        for server in cluster.servers:
            server.mute = 1 << 30
        with pytest.raises(kelek.TableTimeout):
            table.put(b"k", b"v")
    with pytest.raises(kelek.TableError, match="closed"):
        table.get(b"k")


def test_timeouts_have_the_last_reason_of_a_server(cluster: TableServers) -> None:
    """The reason is dropped when a server accepts a request again."""
    with kelek.Table(cluster.urls, timeout_ms=60_000) as table:
        table.server()
        table.timeout_ms = 3000
        for server in cluster.servers:
            server.refuse_count = 1 << 30
        with pytest.raises(
            kelek.TableTimeout, match=r"^not done in 3000 ms by ipc:.*: an election$"
        ) as error:
            table.put(b"k", b"v")
        assert error.value.reason == "an election"
        for server in cluster.servers:
            server.refuse_count = 0
        table.timeout_ms = 60_000
        table.put(b"done", b"v")
        table.timeout_ms = 3000
        for server in cluster.servers:
            server.mute = 1 << 30
        with pytest.raises(kelek.TableTimeout, match=r"^the server at ") as error:
            table.put(b"k", b"v")
        assert error.value.reason == ""
    deadlines = [
        request.extension.deadline_ms
        for server in cluster.servers
        for request in server.requests
        if isinstance(request, requests.Put) and request.keys == [b"k"]
    ]
    assert max(deadlines) <= 2700, "the server answers before its client gives up"


@pytest.mark.parametrize("key", [b"", bytes((64 << 10) + 1)])
def test_keys_have_1_to_65536_bytes(cluster: TableServers, key: bytes) -> None:
    with kelek.Table(cluster.urls) as table:
        for call in (table.get, table.exists, table.delete):
            with pytest.raises(kelek.TableTooLarge):
                call(key)
        with pytest.raises(kelek.TableTooLarge):
            table.put_many([(key, b"")])
        with pytest.raises(TypeError):
            table.put(7, b"")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="several"):
            table.get_many(b"text")  # type: ignore[arg-type]
    assert not cluster.store.writes


HUGE = 2**64
NUMBERS: list[tuple[Callable[[kelek.Table], object], str]] = [
    (lambda it: next(it.scan(limit=HUGE)), "limit"),
    (lambda it: it.delete_limited(HUGE), "limit"),
    (lambda it: it.range_job(chunk_pairs=0), "chunk_pairs"),
    (lambda it: it.range_job(lease=HUGE), "a lease"),
    (lambda it: it.release(-1), "a lease"),
    (lambda it: it.split_points(0), "parts"),
    (lambda it: it.map_into(2, b"", threads=257), "threads"),
    (lambda it: it.map_into(2, b"\0" * ((16 << 20) + 1)), "a mapper has at most"),
    (lambda it: it.copy_into(2**32), "a table"),
    (lambda it: it.open(kelek.TableOptions(block_bytes=0)), "the block size"),
    (lambda it: it.open(kelek.TableOptions(bloom_bits=65)), "the bloom filter bits per key"),
    (lambda it: it.put(b"k", b"v", session=HUGE), "a session"),
    (lambda it: it.put(b"k", b"v", ttl_s=1e12), "a time to live"),
    (lambda it: it.put(b"k", b"v", ttl_s=float("nan")), "a time to live"),
    (lambda it: it.open_session(float("inf")), "a time to live"),
    (lambda it: it.end_session(-1), "a session"),
    (lambda it: it.batch().when_alive(-1), "a session"),
    (lambda it: it.commit(it.batch(session=HUGE).put(b"k", b"v")), "a session"),
    (lambda it: next(it.watch(after=HUGE)), "after"),
    (lambda it: it.end_job(HUGE), "a job"),
]


def test_numbers_out_of_range_are_refused(cluster: TableServers) -> None:
    """No request is sent, and the Table stays usable."""
    with kelek.Table(cluster.urls) as table:
        for call, words in NUMBERS:
            with pytest.raises(ValueError, match=f"^{words} "):
                call(table)
        with pytest.raises(TypeError, match="a mapper is bytes, not str"):
            table.map_into(2, "(module)")  # type: ignore[arg-type]
        assert table.count() == 0
    sent = {type(request).__name__ for server in cluster.servers for request in server.requests}
    assert sent == {"ServerInfo", "Count"}


def test_invalid_arguments_of_the_constructor() -> None:
    for urls in ("", "tcp://nowhere", "tcp://127.0.0.1:99999"):
        with pytest.raises(ValueError):
            kelek.Table(urls)
    for number in (-1, 2**32):
        with pytest.raises(ValueError):
            kelek.Table("tcp://127.0.0.1:20000", number)
    with pytest.raises(ValueError, match="partsync"):
        kelek.Table("tcp://127.0.0.1:20000", sync="never")


@pytest.mark.parametrize(
    ("end", "below", "above"),
    [(b"b", b"a" + b"\xff" * 9, b"b"), (b"b\0", b"b", b"b\0"), (b"a\x01", b"a\0\xff", b"a\x01")],
)
def test_an_exclusive_end_has_a_largest_key_below(end: bytes, below: bytes, above: bytes) -> None:
    last = Range(b"", end).last
    assert below <= last < above
    assert len(last) <= 64 << 10


def test_empty_ranges() -> None:
    assert Range(b"", b"\0").empty
    assert Range(b"b", b"b").empty
    assert not Range(b"b", b"").empty
    assert not Range(b"", b"").empty
    assert behind_prefix(b"a\xff") == b"b"
    assert behind_prefix(b"\xff\xff") == b""


def test_a_table_client_loads_neither_engine_nor_arrow() -> None:
    code = (
        "import sys, kelek; kelek.Table; "
        "assert not {'rocksdict', 'pyarrow', 'kelek.storage'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
