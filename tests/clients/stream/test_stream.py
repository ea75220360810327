"""kelek.Stream and its producers against a cluster of three nodes."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import kelek
import kelek.testing
from kelek.clients.io.operations import Batches, Sleep
from kelek.clients.stream.layout import BATCH_BYTES_MAX
from kelek.clients.stream.reader import StreamReader
from kelek.testing.local_cluster import LocalCluster

NAMES = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with kelek.testing.cluster() as cluster:
        yield cluster


@pytest.fixture
def name() -> str:
    return f"s{next(NAMES)}"


@pytest.fixture
def stream(cluster: LocalCluster, name: str) -> Iterator[kelek.Stream]:
    with kelek.Stream(cluster.table_urls, name) as stream:
        yield stream


def values(records: Any) -> list[Any]:
    return [record.value for record in records]


def test_records_have_offsets_keys_headers_and_times(stream: kelek.Stream) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert stream.append("new", key="order-1", headers={"by": "shop", "id": b"\1"}) == 0
    assert stream.append_batch([b"paid", kelek.StreamRecord(b"sent", b"order-1")]) == 1
    assert stream.append_many(str(number) for number in range(2500)) == 2500
    found = list(stream.read())
    assert [record.offset for record in found] == list(range(2503))
    assert found[0][:3] == (b"new", b"order-1", {"by": "shop", "id": b"\1"})
    assert found[1][:3] == (b"paid", None, {})
    assert found[2][:3] == (b"sent", b"order-1", {})
    assert values(found[3:]) == [b"%d" % number for number in range(2500)]
    assert before <= found[0].time <= found[-1].time <= datetime.now(UTC)
    assert values(stream.read(1, limit=2)) == [b"paid", b"sent"]
    assert values(stream.read("last")) == [b"2499"]
    assert not list(stream.read("end"))
    assert not list(stream.read(limit=0))


def test_a_stream_that_does_not_exist_is_empty(stream: kelek.Stream, name: str) -> None:
    assert stream.info() is None
    assert not list(stream.read())
    assert not list(stream.tail("first", timeout_s=0.01))
    assert stream.trim() == 0
    assert not stream.delete()
    assert stream.create(partitions=3, max_records=7)
    assert not stream.create(partitions=4)
    info = stream.info()
    assert info is not None
    assert (info.name, info.records, info.partitions, info.max_records) == (name, 0, 3, 7)
    assert info in stream.streams()


def test_two_streams_and_their_codecs(cluster: LocalCluster, name: str) -> None:
    with (
        kelek.Stream(cluster.table_urls, name, codec="json") as one,
        kelek.Stream(cluster.table_urls, name + "0", codec="text") as other,
    ):
        one.append({"price": 3}, key="é")
        other.append("text")
        assert [tuple(record[:2]) for record in one.read()] == [({"price": 3}, "é")]
        assert values(other.read()) == ["text"]
        assert one.delete()
        assert one.info() is None
        assert values(other.read()) == ["text"]
        assert one.append([]) == 0


def test_a_tail_yields_what_is_there_and_what_comes(stream: kelek.Stream) -> None:
    stream.append_many([b"0", b"1"], batch=1)
    with closing(stream.tail(start=1)) as tail:
        assert next(tail).value == b"1"
        stream.append("2")
        stream.append_batch([b"3", b"4"])
        assert values(itertools.islice(tail, 3)) == [b"2", b"3", b"4"]
    assert values(stream.tail("last", timeout_s=0.05)) == [b"4"]
    assert not list(stream.tail(timeout_s=0.05))


def test_a_slow_first_look_is_no_quiet_time(
    stream: kelek.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy cluster a reader with a short timeout_s waits for a record all the same."""
    pages = StreamReader.pages

    def slow_pages(self: StreamReader, *position: Any) -> Batches[kelek.StreamRecord]:
        yield Sleep(300)
        yield from pages(self, *position)

    monkeypatch.setattr(StreamReader, "pages", slow_pages)
    with stream.group("slow") as group:
        for read in (stream.tail, group.records):
            begun_s = time.monotonic()
            assert not list(read(timeout_s=0.2))
            assert time.monotonic() - begun_s >= 0.5


def test_reading_from_a_time(stream: kelek.Stream) -> None:
    for number in range(40):
        stream.append_batch([b"%d" % number, b""])
    found = list(stream.read())
    for record in found:
        first = next(each for each in found if each.time_ms >= record.time_ms)
        assert next(iter(stream.read(record.time))).offset == first.offset
    assert not list(stream.read(found[-1].time + timedelta(milliseconds=1)))
    assert next(iter(stream.read(datetime(1970, 1, 1, tzinfo=UTC)))).offset == 0


@pytest.mark.parametrize(
    ("start", "error", "text"),
    [
        ("middle", ValueError, "start is first, last, end"),
        (datetime(2026, 1, 1), ValueError, "time zone"),
        (1.5, TypeError, "not float"),
        (-1, ValueError, "an offset is a number from 0"),
    ],
)
def test_wrong_starts(stream: kelek.Stream, start: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        list(stream.read(start))


def test_batches_have_limits(stream: kelek.Stream) -> None:
    with pytest.raises(ValueError, match="a record at least"):
        stream.append_batch([])
    with pytest.raises(kelek.TableTooLarge, match=f"at most 65536 and {BATCH_BYTES_MAX}"):
        stream.append_batch([bytes(BATCH_BYTES_MAX)])
    with pytest.raises(kelek.TableTooLarge, match="a batch of 65537 records"):
        stream.append_batch([b""] * 65_537)
    assert stream.append_many([bytes(200_000)] * 20) == 20
    assert sum(len(record.value) for record in stream.read()) == 4_000_000


def test_producers_of_several_clients_leave_no_holes(cluster: LocalCluster, name: str) -> None:
    def work(worker: int) -> None:
        with kelek.Stream(cluster.table_urls, name) as stream:
            stream.append_many((f"{worker} {number}" for number in range(300)), batch=7)

    with ThreadPoolExecutor() as pool:
        list(pool.map(work, range(3)))
    with kelek.Stream(cluster.table_urls, name) as stream:
        found = list(stream.read())
    assert [record.offset for record in found] == list(range(900))
    for worker in range(3):
        mine = [record.value.decode() for record in found if record.value[0] == 48 + worker]
        assert mine == [f"{worker} {number}" for number in range(300)]


def test_retention_by_count_size_and_age(cluster: LocalCluster, stream: kelek.Stream) -> None:
    stream.append_many([b"x" * 100] * 1000, batch=10)
    stream.retain(max_records=95)
    assert stream.trim() == 900
    assert [record.offset for record in stream.read()] == list(range(900, 1000))
    info = stream.info()
    assert info is not None
    first_size = info.size // 10
    stream.retain(max_bytes=5 * first_size)
    stream.append_many([b"x" * 100] * 200, batch=10)
    info = stream.info()
    assert info is not None
    assert 40 <= info.records <= 60  # Appends have trimmed it.
    stream.retain(max_age_s=3600)
    assert stream.trim() == info.first
    stream.retain(max_age_s=0.001)
    threading.Event().wait(0.01)
    assert stream.trim() == 1200
    assert not list(stream.read())
    stream.retain()
    assert stream.append("next") == 1200
    assert values(stream.read("first")) == [b"next"]


def test_a_reader_behind_the_first_record_is_told_so(stream: kelek.Stream) -> None:
    stream.append_many([b"x"] * 100, batch=10)
    assert stream.trim(before=35) == 30
    with pytest.raises(kelek.StreamTrimmed, match="records 5 to 29 are no longer kept") as found:
        list(stream.read(5))
    assert (found.value.offset, found.value.first) == (5, 30)
    assert isinstance(found.value, kelek.Compacted)
    with closing(stream.tail(start=30)) as tail:
        assert next(tail).offset == 30
        assert next(tail).offset == 31
    with closing(stream.tail(start="first")) as tail:
        assert next(tail).offset == 30
    stream.trim(before=1000)
    info = stream.info()
    assert info is not None
    assert (info.first, info.next, info.size) == (100, 100, 0)


def test_a_producer_appends_each_record_once(cluster: LocalCluster, name: str) -> None:
    with (
        kelek.Stream(cluster.table_urls, name) as stream,
        kelek.Stream(cluster.table_urls, name) as other,
    ):
        first = stream.producer("import")
        assert (first.id, first.sequence) == ("import", 0)
        assert [first.append("1"), first.append("2", key="k")] == [0, 1]
        assert first.append_batch(["3", "4", "5"]) == 2
        assert other.append("between") == 5
        assert first.append("6") == 6
        assert first.sequence == 6

        second = other.producer("import")
        assert second.sequence == 6
        with pytest.raises(kelek.StreamConflict, match="another one was opened with its id"):
            first.append("7")
        assert second.append("6", sequence=6) == 6
        assert second.append("5", sequence=5) is None
        lines = [str(number) for number in range(1, 2001)]
        assert second.append_many(lines, sequence=1, batch=64) == 2000 - 6
        assert second.sequence == 2000
        assert second.append_batch(["2000", "2001"], sequence=2000) is not None
        assert values(it for it in stream.read() if it.value != b"between") == [
            str(number).encode() for number in range(1, 2002)
        ]


def test_help_fits_a_screen() -> None:
    for kind in (kelek.Stream, kelek.AsyncStream, kelek.Producer, kelek.AsyncProducer):
        assert kind.__doc__ is not None
        assert kind.__doc__.count("\n") < 30
