"""`kelek stream` against a cluster of one node."""

import json
from collections.abc import Iterator

import pytest

import kelek
import kelek.testing
from kelek.testing.local_cluster import LocalCluster
from kelek.tests.console.kelek_runner import fails, ok

DAY_S = 86_400


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with kelek.testing.cluster(nodes=1) as cluster:
        yield cluster


@pytest.fixture
def place(cluster: LocalCluster) -> Iterator[tuple[str, ...]]:
    """Words of each command, with an empty stream table behind it."""
    yield "-t", cluster.topology
    with kelek.Stream(cluster.table_urls, "any") as stream:
        for each in stream.streams():
            with kelek.Stream(cluster.table_urls, each.name) as other:
                assert other.delete()


def test_records_from_words_and_lines(place: tuple[str, ...]) -> None:
    words = "--key", "order-1", "--header", "by=shop"
    assert ok("stream", "append", *place, "orders", "new", "0x70616964", *words) == (
        "2 appended, the next offset is 2\n"
    )
    ok("stream", "append", *place, "orders", stdin=b"a\n\xff\r\n\n")
    rows = [line.split("  ") for line in ok("stream", "read", *place, "orders").splitlines()]
    assert [[row[-1] if at > 1 else row[-2], row[-3] if at < 2 else row[-2]]
            for at, row in enumerate(rows)] == [
        ["new", "order-1"], ["paid", "order-1"], ["a", "-"], ["\\xff", "-"], ["", "-"],
    ]  # fmt: skip
    assert rows[0][-1] == "[by=shop]"
    found = json.loads(ok("stream", "read", *place, "orders", "-o", "json", "-n", 1))
    assert found.pop("time").startswith("20")
    assert found == {"offset": 0, "key": "order-1", "value": "new", "headers": {"by": "shop"}}
    junk = json.loads(ok("stream", "read", *place, "orders", "-o", "json", "--start", 3, "-n", 1))
    assert junk["value_base64"] == "/w=="


def test_a_producer_leaves_out_what_it_has_appended(place: tuple[str, ...]) -> None:
    words = "stream", "append", *place, "lines", "--producer", "file", "-o", "json"
    assert json.loads(ok(*words, stdin="a\nb\n")) == {"appended": 2, "next": 2}
    assert json.loads(ok(*words, stdin="a\nb\nc\n")) == {"appended": 1, "next": 3}
    assert ok("stream", "read", *place, "lines", "--values") == "a\nb\nc\n"


def test_reading_and_following_from_a_position(place: tuple[str, ...]) -> None:
    ok("stream", "append", *place, "s", *"abcdef")
    assert ok("stream", "read", *place, "s", "--values", "--start", "last") == "f\n"
    assert ok("stream", "read", *place, "s", "--values", "--start", "2020-01-01", "-n", 2) == (
        "a\nb\n"
    )
    assert ok("stream", "read", *place, "s", "--values", "--start", "9999-01-01") == ""
    assert ok("stream", "tail", *place, "s", "--values", "--start", 2, "-n", 3) == "c\nd\ne\n"
    assert ok("stream", "tail", *place, "s", "--quiet", 0.01) == ""
    ok("stream", "trim", *place, "s", "--before", 6)
    code, line = fails("stream", "read", *place, "s", "--start", 2)
    assert code == 1
    assert "the records 2 to 5 are no longer kept; read on with --start 6" in line


def test_a_stream_and_what_it_keeps(place: tuple[str, ...]) -> None:
    limits = "--max-age", "7d", "--max-size", "1MiB", "--max-records", 100
    ok("stream", "create", *place, "orders", "--partitions", 4, *limits)
    code, line = fails("stream", "create", *place, "orders")
    assert code == 1
    assert "exists already; to change what it keeps: kelek stream retain orders" in line
    found = json.loads(ok("stream", "info", *place, "orders", "-o", "json"))
    assert (found["partitions"], found["max_age_s"], found["max_records"]) == (4, 7 * DAY_S, 100)
    shown = ok("stream", "info", *place, "orders")
    assert "  keeps          604,800 s, 1,048,576 bytes, 100 records\n" in shown
    ok("stream", "retain", *place, "orders")
    assert "  keeps          all\n" in ok("stream", "info", *place, "orders")
    for word in "abc":
        ok("stream", "append", *place, "orders", word)
    ok("stream", "retain", *place, "orders", "--max-records", 1)
    assert ok("stream", "trim", *place, "orders") == "2\n"
    row = ok("stream", "list", *place).splitlines()[1].split()
    assert row[:3] == ["orders", "2", "3"]
    code, line = fails("stream", "drop", *place, "orders")
    assert (code, line) == (
        2,
        "kelek: stream orders: 1 record would be deleted; add --yes to do it",
    )
    ok("stream", "drop", *place, "orders", "--yes")
    for words in (["info"], ["read"], ["trim"], ["groups"], ["drop"], ["retain"]):
        code, line = fails("stream", *words, *place, "orders")
        assert code == 1
        assert line == "kelek: stream orders: does not exist; list them: kelek stream list"


def test_groups(cluster: LocalCluster, place: tuple[str, ...]) -> None:
    with kelek.Stream(cluster.table_urls, "orders") as stream:
        stream.create(partitions=2)
        stream.append_batch(["a", "b", "c"])
        with stream.group("billing", member="host-1") as group:
            next(iter(group))
            row = ok("stream", "groups", *place, "orders").splitlines()[1]
            assert row.split() == ["billing", "1", "0", "3"]
            row = ok("stream", "groups", *place, "orders", "--members").splitlines()[1]
            assert row.split() == ["billing", "host-1", "0", "1"]
            for command in ("reset", "forget"):
                words = ("--start", "first") if command == "reset" else ()
                code, line = fails("stream", command, *place, "orders", "billing", *words)
                assert code == 1
                assert "group billing has members: host-1; stop them first" in line
    assert ok("stream", "reset", *place, "orders", "billing", "--start", 1) == "1\n"
    found = json.loads(ok("stream", "groups", *place, "orders", "-o", "json"))
    assert found == {"name": "billing", "members": [], "free": [0, 1], "offset": 1, "lag": 2}
    ok("stream", "forget", *place, "orders", "billing")
    code, line = fails("stream", "forget", *place, "orders", "billing")
    assert code == 1
    assert line.endswith("has no group billing; list them: kelek stream groups orders")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["read", "s", "--start", "soon"], "'soon' is not first, last, end, an offset or a time"),
        (["read", "s", "--start", str(2**63)], "is not in the range"),
        (["create", "s", "--max-age", "7w"], "'7w' is no age; write 3600, 60m, 24h or 7d"),
        (["append", "s", "a", "--header", "by"], "--header: 'by' is no NAME=VALUE"),
        (["append", "s", "a", "--producer", ""], "--producer: an ID has a character at least"),
        (["append", "", "a"], "NAME: 1 to 1024 bytes"),
        (["read", "s", "--values", "-o", "json"], "--values: -o json is given too"),
    ],
)
def test_wrong_words(place: tuple[str, ...], words: list[str], text: str) -> None:
    code, line = fails("stream", words[0], *place, *words[1:])
    assert code == 2
    assert text in line
