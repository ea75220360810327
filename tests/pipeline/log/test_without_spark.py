"""The parts of the kind `log` that need no Spark: options, offsets, ranges, ids, appending."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kelek
from kelek.pipeline import errors as log_errors
from kelek.pipeline.errors import OptionError, PipelineError, SchemaError
from kelek.pipeline.log import rows as log_rows
from kelek.pipeline.log.append import append
from kelek.pipeline.log.offset import (
    LogOffset,
    LogRange,
    check_entry,
    decode_offset,
    plan_ranges,
)
from kelek.pipeline.log.options import LogReadOptions, LogWriteOptions
from kelek.pipeline.log.read import LogView
from kelek.pipeline.log.reqids import Origin, row_reqids
from kelek.pipeline.log.rows import Rows
from kelek.pipeline.options import parse_options
from kelek.tests.clients.log.log_peers import LogPeers

URL = "tcp://127.0.0.1:7201"
NOW = 1_800_000_000


def test_a_place_is_a_word_an_index_or_a_time() -> None:
    def start(value: str) -> object:
        return parse_options(LogReadOptions, {"urls": URL, "after": value}, "streams").after

    assert parse_options(LogReadOptions, {"urls": URL}, "streams").after == "latest"
    assert parse_options(LogReadOptions, {"urls": URL}).after == "earliest"
    assert (start("Earliest"), start("17")) == ("earliest", 17)
    assert start("2026-01-31T12:00:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    for wrong in ("-1", "soon", "2026-01-31T12:00:00"):
        with pytest.raises(OptionError, match="after is earliest, latest, an index"):
            start(wrong)


def test_the_old_name_of_after_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="option startingIndex is deprecated"):
        assert (
            parse_options(LogReadOptions, {"urls": URL, "startingindex": "17"}, "streams").after
            == 16
        )
    with pytest.warns(DeprecationWarning, match="use option after"):
        assert (
            parse_options(LogReadOptions, {"urls": URL, "startingIndex": "latest"}, "streams").after
            == "latest"
        )
    with pytest.warns(match="after"), pytest.raises(OptionError, match="from 1 on"):
        parse_options(LogReadOptions, {"urls": URL, "startingIndex": "0"}, "streams")
    with pytest.raises(OptionError, match="options after and startingIndex are both given"):
        parse_options(LogReadOptions, {"urls": URL, "startingIndex": "1", "after": "0"}, "streams")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option urls is missing"),
        ({"urls": URL, "afters": "1"}, "'afters'; did you mean after"),
        ({"urls": URL, "maxBytesPerTrigger": "1"}, "maxBytesPerTrigger is for streams only"),
        ({"urls": URL, "endingIndex": "earliest"}, "endingIndex is latest or an index"),
        ({"urls": URL, "cluster": ""}, "cluster is the cluster's ident"),
        ({"urls": "127.0.0.1:7201"}, "urls is the nodes' urls"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_options(LogReadOptions, given)


@given(st.integers(0, 10**12), st.integers(0, 10**7), st.integers(1, 10**6))
def test_ranges_cover_each_entry_once(after: int, count: int, entries: int) -> None:
    entries = max(entries, count // 1000 + 1)
    ranges = plan_ranges(after, after + count, entries)
    assert [*ranges, LogRange(after + count, 0)][0].after == after
    assert all(before.last == behind.after for before, behind in pairwise(ranges))
    assert all(0 < one.last - one.after <= entries for one in ranges)
    assert not ranges or ranges[-1].last == after + count


def test_an_offset_is_of_one_log() -> None:
    offset = LogOffset("a", 7, 3, "00ff")
    assert decode_offset(asdict(offset), LogOffset("a")) == offset
    check_entry(offset, offset)
    check_entry(offset, LogOffset("a", 7))  # No longer stored.
    for value, words in (
        (asdict(offset) | {"cluster": "b"}, "of the cluster 'b', not of 'a'"),
        ({"partition": 1}, "its offset reads"),
        ({"cluster": "a", "index": "7"}, "its offset reads"),
    ):
        with pytest.raises(log_errors.WrongCheckpoint, match=words):
            decode_offset(value, LogOffset("a"))
    for found, words in (
        (LogOffset("a", 7, 4, "00ff"), "entry 7 has term 3, and in the log it has 4"),
        (LogOffset("a", 7, 3, "0100"), "has the reqid 00ff, and in the log it has 0100"),
    ):
        with pytest.raises(log_errors.WrongCheckpoint, match=words):
            check_entry(offset, found)


def test_request_ids_of_rows_differ_and_are_reproducible() -> None:
    numbers = [0, 1, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, 5 << 24]
    origins = [Origin("q", 1, 2), Origin("q", 1, 3), Origin("q", 11, 2), Origin("p", 1, 2)]
    ids = [one for origin in origins for one in row_reqids(NOW, origin, numbers)]
    assert len(set(ids)) == len(origins) * len(numbers)
    assert {(len(one), one[:4]) for one in ids} == {(12, NOW.to_bytes(4, "big"))}
    assert ids[:6] == list(row_reqids(NOW, Origin("q", 1, 2), numbers))
    assert ids[1][:9] + b"\0\0\0" == ids[0]
    assert ids[3][9:] == ids[0][9:]
    assert ids[3][:9] != ids[0][:9]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LogPeers]:
    cluster = LogPeers(tmp_path)
    yield cluster
    cluster.close()


def rows(data: list[bytes | None], *times: int) -> Iterator[pyarrow.RecordBatch]:
    """Two record batches of rows; all have the first time, unless there are more."""
    every = [datetime.fromtimestamp((*times, NOW)[0], UTC)] * len(data)
    for at, time in enumerate(times):
        every[at] = datetime.fromtimestamp(time, UTC)
    table = pyarrow.table(
        {"data": pyarrow.array(data, pyarrow.binary()), "time": pyarrow.array(every)}
    )
    yield from table.to_batches(max_chunksize=len(data) // 2 + 1)


def options_of(cluster: LogPeers, **others: str) -> dict[str, str]:
    return {"urls": ",".join(cluster.urls), "timeoutMs": "5000", **others}


def test_rows_that_are_written_again_are_appended_once(cluster: LogPeers) -> None:
    """In another order, among which equal ones, also from a file; another partition's are
    others."""
    options = parse_options(LogWriteOptions, options_of(cluster, memoryBytes="1k"), "writes")
    data: list[bytes | None] = [b"%d" % (number % 700) for number in range(1000)]
    assert append(options, Origin("q", 1, 0), rows(data)) == 1000
    assert append(options, Origin("q", 1, 0), rows(data[::-1])) == 1000
    assert [held for _, held in cluster.model.log.records] == data
    assert append(options, Origin("q", 1, 1), rows(data)) == 1000
    assert append(options, Origin("q", 1, 2), iter(())) == 0
    assert len(cluster.model.log.records) == 2000


@given(
    st.lists(st.integers(0, 40).map(lambda number: b"%d" % number), min_size=1, max_size=300),
    st.randoms(use_true_random=False),
    st.sampled_from([1, 1 << 20]),
)
def test_ranks_do_not_depend_on_the_order(data: list[bytes], rng: Random, memory: int) -> None:
    """Nor on how many buckets and chunks they are ordered by; each is there once."""

    def ranked() -> list[tuple[int, bytes]]:
        with closing(Rows(memory)) as held:
            for first in range(0, len(data), 70):
                held.add(pyarrow.array(data[first : first + 70], pyarrow.large_binary()))
            assert list(held.data()) == data
            return sorted(zip(held.ranks(), held.data(), strict=True))

    before = ranked()
    assert [rank for rank, _ in before] == list(range(len(data)))
    rng.shuffle(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_rows, "BUCKET_BITS", 5)
        patch.setattr(log_rows, "BUCKET_ROWS", 32)
        patch.setattr(log_rows, "CHUNK_ROWS", 40)
        assert ranked() == before


def test_lack_of_room_for_rows_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/none,{folder}")
    with closing(Rows(1000)) as held:
        folder.rmdir()
        with pytest.raises(PipelineError, match=rf"kept in {folder}: No such .*spark\.local\.dir"):
            held.add(pyarrow.array([bytes(2000)], pyarrow.large_binary()))


@pytest.mark.parametrize(
    ("data", "times", "error", "words"),
    [
        ([b"a", None], (), SchemaError, "data is null"),
        ([b"a", b""], (), SchemaError, "0 to 1 bytes: an entry of the log has 1 to"),
        ([b"a", b"b"], (NOW, NOW + 1), SchemaError, r"let it be current_timestamp\(\)"),
        ([b"a", b"b"], (0, 0), SchemaError, r"let it be current_timestamp\(\)"),
        ([b"a"] * 4, (NOW, NOW, NOW, NOW + 1), SchemaError, "differs between rows"),
    ],
)
def test_rows_that_no_entry_can_be_are_refused_before_any_is_sent(
    cluster: LogPeers,
    data: list[bytes | None],
    times: tuple[int, ...],
    error: type[Exception],
    words: str,
) -> None:
    options = parse_options(LogWriteOptions, options_of(cluster), "writes")
    with pytest.raises(error, match=words):
        append(options, Origin("q", 1, 0), rows(data, *times))
    assert not cluster.model.log.records


def test_a_repeat_that_is_too_old_stops(cluster: LogPeers) -> None:
    cluster.model.peers[0].refuse = "expired"
    with pytest.raises(log_errors.ReplayExpired, match=r"2027-01-15T08:00:00.*update_ttl_s"):
        append(
            parse_options(LogWriteOptions, options_of(cluster), "writes"),
            Origin("q", 1, 0),
            rows([b"a", b"b"]),
        )


def test_a_view_finds_places(cluster: LogPeers) -> None:
    """By index, by time, by bytes."""
    with kelek.Log(cluster.urls) as log:
        for second in range(100):
            reqid = (NOW + second // 10).to_bytes(4, "big") + bytes(7) + bytes([second])
            log.append_many([bytes(10)], reqids=[reqid])
    view = LogView(parse_options(LogReadOptions, options_of(cluster)))
    try:
        assert view.index_before("earliest") == 0
        assert view.index_before(17) == 17
        for second, index in ((-5, 0), (0, 0), (4, 40), (9, 90), (10, 100)):
            assert view.index_before(datetime.fromtimestamp(NOW + second, UTC)) == index
        assert view.end_of_bytes(0, 100, 1) == 1
        assert view.end_of_bytes(5, 100, 39) == 8
        assert view.end_of_bytes(5, 100, 40) == 9
        assert view.end_of_bytes(5, 8, 4000) == 8
        assert view.offset_at(0) == LogOffset("demo")
        offset = view.offset_at(7)
        assert offset.reqid.endswith("06")
        view.check(offset)
        with pytest.raises(log_errors.WrongCheckpoint, match="in the log it has"):
            view.check(replace(offset, index=8))
        with pytest.raises(log_errors.WrongCheckpoint, match="the log ends at 101"):
            view.check(replace(offset, index=102))
        with pytest.raises(log_errors.LogEnds, match="after is behind its end"):
            view.offset_at(101)  # The fake leaders answer so for the next index.
    finally:
        view.close()


@pytest.mark.parametrize("source", ["leader", "followers"])
def test_entries_come_from_the_peers_in_the_options(cluster: LogPeers, source: str) -> None:
    with kelek.Log(cluster.urls) as log:
        log.append_many([b"%d" % number for number in range(100)])
    leader, *followers = cluster.model.peers
    before = leader.entries_sent
    view = LogView(parse_options(LogReadOptions, options_of(cluster, readFrom=source)))
    try:
        found = pyarrow.Table.from_batches(view.entries(LogRange(10, 90)))
        assert view.end_of_bytes(10, 90, 60) == 40
    finally:
        view.close()
    assert found["data"].to_pylist() == [b"%d" % number for number in range(10, 90)]
    assert (leader.entries_sent > before) is (source == "leader")
    assert any(peer.entries_sent for peer in followers) is (source == "followers")


def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    options = parse_options(LogReadOptions, {"urls": f"ipc://{tmp_path}/none", "timeoutMs": "50"})
    with pytest.raises(log_errors.LogUnreachable, match=r"none .*\(options urls and cluster\)"):
        LogView(options)
    log_sink = pytest.importorskip("kelek.pipeline.log.sink", reason="it needs pyspark")
    writing = parse_options(
        LogWriteOptions, {"urls": f"ipc://{tmp_path}/none", "timeoutMs": "50"}, "writes"
    )
    columns = log_sink.StructType().add("data", "string").add("time", "timestamp")
    for writer in (log_sink.LogWriter, log_sink.LogStreamWriter):
        with pytest.raises(log_errors.LogUnreachable, match=r"none .*\(options urls and cluster\)"):
            writer(writing, columns, False)
