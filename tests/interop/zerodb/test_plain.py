"""Every request and answer of ZeroDB, as a client sees them that was written from its text.

One node is asked; with KELEK_ASK=leader, or follower, that one of three.
"""

import os
import re

import pytest
import zmq

from kelek.tests.interop.zerodb import zerodb_malformed as malformed
from kelek.tests.interop.zerodb import zerodb_plain as plain
from kelek.tests.interop.zerodb.tables import NodeTables
from kelek.tests.interop.zerodb.tables import running as running
from kelek.tests.interop.zerodb.tables import tables as tables
from kelek.tests.interop.zerodb.zerodb_malformed import Invalid
from kelek.tests.interop.zerodb.zerodb_plain import (
    Frames,
    Pair,
    PlainTableClient,
    deletes,
    flat,
    head,
    log_line,
    number,
    puts,
    u32,
    u64,
    wait_for,
)

KINDS = pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ], ids=["DEALER", "REQ"])
FLAGS = pytest.mark.parametrize("flags", [plain.PARTSYNC, plain.FULLSYNC, 3])
ROWS = [(b"%03d" % n, b"value %d" % n) for n in range(20)]
SURPLUS = b"surplus bytes of a later version"
WARNING = 2


@pytest.fixture(params=["replicated", "local"])
def table(request: pytest.FixtureRequest, tables: NodeTables) -> int:
    """A table of the test's own that is not open."""
    return next(tables.local if request.param == "local" else tables.replicated)


@pytest.fixture
def client(tables: NodeTables) -> PlainTableClient:
    return tables.client()


@pytest.fixture
def filled(tables: NodeTables, client: PlainTableClient) -> int:
    table = next(tables.replicated)
    client.put(table, *ROWS)
    return table


def after(client: PlainTableClient, table: int) -> list[Pair]:
    """The table's rows once all that this client has sent before was dealt with."""
    client.put(table, (b"~", b"after"))
    rows = client.scan(table)
    assert rows.pop() == (b"~", b"after")
    client.delete(table, b"~")
    return rows


# ---- meta ----


@KINDS
def test_server_info(tables: NodeTables, kind: int) -> None:
    client = tables.client(kind)
    features, software = client.info()
    assert features & 7 == 7
    assert re.fullmatch(r"kelek \S+", software)
    assert client.ask(head(plain.INFO) + SURPLUS) == client.ask(head(plain.INFO))


def test_open_with_options(client: PlainTableClient, table: int) -> None:
    client.open(table, 1 << 20, 16 << 10, 1 << 20, 10, flags=plain.NOCOMPRESSION)
    client.put(table, (b"k", b"v"))
    client.open(table, 2 << 20)  # Open already: success, and nothing changes.
    client.open(table)
    assert client.read(table, b"k") == [b"v"]


@pytest.mark.parametrize("options", [(), (None,), (None, 4096), (None, None, None, None), (1,)])
def test_open_with_defaults(
    tables: NodeTables, client: PlainTableClient, options: tuple[int | None]
) -> None:
    table = next(tables.replicated)
    client.open(table, *options)
    assert client.count(table) == 0
    header, *rest = client.ask(head(plain.OPEN), u32(table))
    assert (header[3], rest) == (0, []), "the flags octet, too, may be missing"


def test_a_closed_table_opens_on_the_fly(client: PlainTableClient, table: int) -> None:
    client.put(table, *ROWS)
    client.shut(table)
    assert client.scan(table) == ROWS
    client.shut(table)
    client.put(table, (b"more", b"of it"))
    assert client.count(table) == len(ROWS) + 1


@pytest.mark.parametrize("bounds", [(b"", b""), (b"003", b""), (b"", b"003"), (b"003", b"009")])
def test_compact(client: PlainTableClient, filled: int, bounds: tuple[bytes, bytes]) -> None:
    client.compact(filled, *bounds)
    assert client.scan(filled) == ROWS


def test_truncate(client: PlainTableClient, table: int) -> None:
    client.open(table, None, None, None, 10)
    client.put(table, *ROWS)
    client.truncate(table)
    assert client.scan(table) == []
    client.put(table, (b"k", b"v"))
    assert client.scan(table) == [(b"k", b"v")]
    client.truncate(table)
    client.open(table, 1 << 20)
    assert client.count(table) == 0


# ---- reads ----


@KINDS
def test_read_and_exists(tables: NodeTables, filled: int, kind: int) -> None:
    client = tables.client(kind)
    client.put(filled, (b"empty", b""), (b"\0\xff" * 100, os.urandom(1000)))
    assert client.read(filled, b"007", b"nothing", b"003", b"007") == [
        b"value 7",
        b"",
        b"value 3",
        b"value 7",
    ]
    assert client.read(filled, b"empty") == [b""]
    assert client.exists(filled, b"empty", b"nothing", b"019", b"01") == [True, False, True, False]
    keys = [key for key, _ in ROWS] * 20
    assert client.read(filled, *keys) == [value for _, value in ROWS] * 20
    assert client.exists(filled, *keys) == [True] * len(keys)


def test_an_unknown_table_is_empty(client: PlainTableClient, table: int) -> None:
    assert client.read(table, b"a", b"b") == [b"", b""]
    assert client.exists(table, b"a") == [False]
    assert client.scan(table) == []
    assert client.count(table) == 0


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ((), 20),
        ((b"005",), 15),
        ((b"005", b""), 15),
        ((b"", b""), 20),
        ((b"", b"005"), 6),
        ((b"005", b"007"), 3),
        ((b"0055", b"0075"), 2),
        ((b"007", b"005"), 0),
        ((b"zzz",), 0),
    ],
)
def test_count_has_an_inclusive_end(
    client: PlainTableClient, filled: int, bounds: tuple[bytes, ...], found: int
) -> None:
    assert client.count(filled, *bounds) == found


@pytest.mark.parametrize("limit", [None, 0, 1, 7, 100, (1 << 64) - 1])
@pytest.mark.parametrize(
    ("start", "end"),
    [(b"", b""), (b"005", b""), (b"", b"005"), (b"005", b"007"), (b"0055", b"zz"), (b"9", b"1")],
)
def test_scan_has_an_exclusive_end(
    client: PlainTableClient, filled: int, start: bytes, end: bytes, limit: int | None
) -> None:
    rows = [row for row in ROWS if start <= row[0] and (not end or row[0] < end)]
    assert client.scan(filled, limit, start, end) == rows[:limit]


def test_keys_are_in_order_of_their_bytes(client: PlainTableClient, table: int) -> None:
    keys = [b"\0", b"\0\0", b"\x7f", b"\x80", b"\xff", b"\xff\0", b"a", b"aa", b"b" * 65536]
    client.put(table, *((key, key[::-1]) for key in reversed(keys)))
    assert client.scan(table) == [(key, key[::-1]) for key in sorted(keys)]


# ---- writes ----


@FLAGS
@KINDS
def test_writes_are_seen_once_acknowledged(
    tables: NodeTables, table: int, kind: int, flags: int
) -> None:
    client, other = tables.client(kind), tables.client()
    client.put(table, *ROWS, flags=flags)
    assert other.scan(table) == ROWS
    client.delete(table, b"003", b"nothing", b"004", flags=flags)
    left = [row for row in ROWS if row[0] not in {b"003", b"004"}]
    assert other.scan(table) == left
    client.delete_range(table, b"010", b"015", flags=flags)
    left = [row for row in left if not b"010" <= row[0] < b"015"]
    assert other.scan(table) == left
    client.delete_limited(table, b"001", 3, flags=flags)
    assert other.scan(table) == [left[0], *left[4:]]
    client.put(table, (b"k", b"1"), (b"k", b"2"), (b"000", b"new"), flags=flags)
    assert other.read(table, b"k", b"000") == [b"2", b"new"]


@KINDS
@pytest.mark.parametrize("flags", [(), (0,)], ids=["no octet", "0x00"])
def test_async_writes_of_a_connection_keep_their_order(
    tables: NodeTables, table: int, kind: int, flags: tuple[int, ...]
) -> None:
    client = tables.client(kind)
    for n in range(100):
        pair = (b"k%d" % (n % 7), b"%d" % n)
        assert client.ask(head(plain.PUT, *flags), u32(table), *pair) == [head(plain.PUT, 0)]
        if n % 10 == 9:
            frames = [head(plain.DELETE, *flags), u32(table), b"k%d" % (n % 7)]
            assert client.ask(*frames) == [head(plain.DELETE, 0)]
    wanted: dict[bytes, bytes] = {}
    for n in range(100):
        wanted[b"k%d" % (n % 7)] = b"%d" % n
        if n % 10 == 9:
            del wanted[b"k%d" % (n % 7)]
    assert after(client, table) == sorted(wanted.items())


def test_many_requests_at_once(client: PlainTableClient, table: int) -> None:
    """All are sent before any is answered; one connection's answers to one table keep order."""
    for n in range(200):
        client.send(head(plain.PUT, plain.PARTSYNC), u32(table), b"%03d" % n, b"v")
        client.send(head(plain.COUNT), u32(table))
    counts = []
    for _ in range(400):
        header, *rest = client.receive()
        assert header[3] == 0
        if header[2] == plain.COUNT:
            counts.append(number(rest[0]))
    assert counts == sorted(counts)
    assert client.count(table) == 200


@pytest.mark.parametrize(
    ("start", "end"), [(b"", b""), (b"", b"005"), (b"005", b""), (b"9", b"1"), (b"0055", b"007")]
)
def test_delete_range(client: PlainTableClient, table: int, start: bytes, end: bytes) -> None:
    client.put(table, *ROWS)
    client.delete_range(table, start, end)
    assert client.scan(table) == [
        row for row in ROWS if not (start <= row[0] and (not end or row[0] < end))
    ]


@pytest.mark.parametrize("start", [b"", b"005", b"0055", b"zz"])
@pytest.mark.parametrize("limit", [0, 1, 5, (1 << 64) - 1])
def test_delete_limited(client: PlainTableClient, table: int, start: bytes, limit: int) -> None:
    client.put(table, *ROWS)
    client.delete_limited(table, start, limit)
    gone = [row for row in ROWS if row[0] >= start][:limit]
    assert client.scan(table) == [row for row in ROWS if row not in gone]


@pytest.mark.parametrize("flags", [0, plain.PARTSYNC, plain.FULLSYNC])
def test_write_tables(tables: NodeTables, client: PlainTableClient, flags: int) -> None:
    one = next(tables.replicated)
    two = next(table for table in tables.replicated if table % 2 == one % 2)  # Of one worker.
    client.put(two, (b"old", b"row"), (b"older", b"row"))
    parts = (puts(one, (b"a", b"1"), (b"b", b"")), deletes(two, b"old"), puts(two, (b"c", b"3")))
    client.write_tables(*parts, flags=flags)
    assert after(client, one) == [(b"a", b"1"), (b"b", b"")]
    assert after(client, two) == [(b"c", b"3"), (b"older", b"row")]
    client.write_tables(flags=flags)  # None at all is an arbitrary number, too.


@pytest.mark.parametrize("flags", [0, plain.PARTSYNC, plain.FULLSYNC])
def test_write_tables_of_two_workers_is_refused(
    tables: NodeTables, client: PlainTableClient, flags: int
) -> None:
    one = next(tables.replicated)
    two = next(table for table in tables.replicated if table % 2 != one % 2)
    for other in (two, next(tables.local)):
        with pytest.raises(plain.RequestRefused) as refused:
            client.write_tables(puts(one, (b"a", b"1")), puts(other, (b"a", b"1")), flags=flags)
        assert refused.value.code == 0x01
        assert str(one) in refused.value.reason
        assert str(other) in refused.value.reason
        assert client.scan(one) == client.scan(other) == []


def test_large_values(client: PlainTableClient, table: int) -> None:
    """Larger than an entry of the log can be."""
    rows = [(b"%d" % n, os.urandom(1 << 16) * 200) for n in range(2)]
    client.put(table, *rows)
    assert client.read(table, b"1", b"0") == [rows[1][1], rows[0][1]]
    assert client.scan(table) == rows


def test_surplus_header_bytes_are_ignored(client: PlainTableClient, table: int) -> None:
    def ask(kind: int, *frames: bytes, flags: bytes = b"") -> Frames:
        header, *rest = client.ask(head(kind) + flags + SURPLUS, *frames)
        assert (header[2], header[3]) == (kind, 0)
        return rest

    name = u32(table)
    ask(plain.OPEN, name, flags=b"\0")
    for flags in (b"\1", b"\2"):
        ask(plain.PUT, name, *flat(ROWS), flags=flags)
        ask(plain.DELETE, name, b"000", flags=flags)
        ask(plain.DELETE_RANGE, name, b"010", b"012", flags=flags)
        ask(plain.DELETE_LIMITED, name, b"018", u64(1), flags=flags)
        ask(plain.WRITE_TABLES, *puts(table, (b"a", b"b")), flags=flags)
    assert after(client, table) == [*ROWS[1:10], *ROWS[12:18], ROWS[19], (b"a", b"b")]
    assert ask(plain.READ, name, b"001") == [b"value 1"]
    assert ask(plain.EXISTS, name, b"001", b"000") == [b"\1", b"\0"]
    assert ask(plain.COUNT, name, b"001", b"002") == [u64(2)]
    assert ask(plain.SCAN, name, u64(1), b"", b"") == [*ROWS[1]]
    (apid,) = ask(plain.RANGE_JOB, name, b"", b"019", b"a")
    chunk = [head(plain.CLIENT_DATA, plain.PARTIAL), *ROWS[19], b"a", b"b"]
    assert client.ask(head(plain.CLIENT_DATA) + SURPLUS, apid) == chunk
    ask(plain.COMPACT, name, b"", b"")
    ask(plain.CLOSE, name)
    ask(plain.TRUNCATE, name)
    assert client.count(table) == 0


# ---- data jobs ----


@pytest.mark.parametrize("endpoint", ["url", "jobs_url"])
@KINDS
def test_range_job(tables: NodeTables, table: int, kind: int, endpoint: str) -> None:
    client, jobs = tables.client(), tables.client(kind, endpoint=endpoint)
    client.put(table, *ROWS)
    apid = jobs.range_job(table, 6, b"002", b"015")
    client.put(table, (b"003", b"later"), (b"0031", b"later"))
    client.delete(table, b"004")
    chunks = jobs.chunks(apid)
    assert [len(chunk.pairs) for chunk in chunks] == [6, 6, 2]
    assert [chunk.flags for chunk in chunks] == [0, 0, plain.PARTIAL]
    assert [row for chunk in chunks for row in chunk.pairs] == ROWS[2:16]
    assert jobs.chunk(apid) == (plain.NO_MORE, [])
    assert jobs.info()[0] & 7 == 7


@pytest.mark.parametrize(
    ("size", "bounds", "sizes"),
    [(10, (b"", b""), [10, 10]), (20, (b"", b""), [20]), (1, (b"018", b""), [1, 1])],
)
def test_a_last_chunk_that_is_full(
    client: PlainTableClient, filled: int, size: int, bounds: tuple[bytes, bytes], sizes: list[int]
) -> None:
    chunks = client.chunks(client.range_job(filled, size, *bounds))
    assert [len(chunk.pairs) for chunk in chunks] == sizes
    assert {chunk.flags for chunk in chunks} == {0}


def test_chunks_have_a_default_size(tables: NodeTables, client: PlainTableClient) -> None:
    table = next(tables.replicated)
    client.put(table, *((b"%04d" % n, b"") for n in range(1500)))
    chunks = client.chunks(client.range_job(table))
    assert [len(chunk.pairs) for chunk in chunks] == [1000, 500]
    assert client.chunks(client.range_job(table, None, b"9")) == []


def test_several_clients_share_a_job(tables: NodeTables, filled: int) -> None:
    clients = [tables.client(), tables.client(zmq.REQ), tables.client(endpoint="jobs_url")]
    apid = clients[0].range_job(filled, 3)
    found = []
    while True:
        chunks = [client.chunk(apid) for client in clients]
        found += [row for chunk in chunks for row in chunk.pairs]
        if any(chunk.flags for chunk in chunks):
            break
    assert sorted(found) == ROWS


@pytest.mark.parametrize("limit", [0, 1, 7, 1000])
def test_forward_range(client: PlainTableClient, filled: int, limit: int) -> None:
    apid = client.forward_range(filled, b"002", b"010", limit)
    found = [row for chunk in client.chunks(apid) for row in chunk.pairs]
    assert found == ROWS[2:11][:limit]


def test_apids_are_never_given_twice(
    tables: NodeTables, client: PlainTableClient, filled: int
) -> None:
    jobs = tables.client(endpoint="jobs_url")
    apids = [endpoint.range_job(filled) for endpoint in (client, jobs) * 5]
    apids += [client.forward_range(filled, b"", b"", 1)]
    assert len(set(apids)) == len(apids)


@pytest.mark.parametrize(
    "apid", [u64(0), u64(1 << 63), b"", u32(1), b"\0" * 9], ids=["0", "large", "none", "4", "9"]
)
def test_an_apid_of_no_job_has_no_data(client: PlainTableClient, apid: bytes) -> None:
    assert client.chunk(apid) == (plain.NO_MORE, [])
    header, *rest = client.ask(head(plain.CLIENT_DATA))
    assert (header, rest) == (head(plain.CLIENT_DATA, plain.NO_MORE), [])


def test_job_status(client: PlainTableClient, filled: int) -> None:
    apid = client.range_job(filled, 5)
    assert {"rows", "bytes", "state", "started"} <= client.job_status(apid).keys()
    client.chunks(apid)
    status = client.job_status(apid)
    assert int(status["rows"]) == len(ROWS)
    assert int(status["bytes"]) == sum(len(key) + len(value) for key, value in ROWS)
    assert "ended" in status
    for unknown in (u64(0), b"", u32(1)):
        with pytest.raises(plain.RequestRefused):
            client.job_status(unknown)


def test_a_mapper_is_off_by_default(client: PlainTableClient, filled: int) -> None:
    frames = [head(plain.MAP_TABLE), u32(filled), u32(filled), u32(1), b"", b"\0asm"]
    header, apid, reason = client.ask(*frames)
    assert (header[2], header[3], apid) == (plain.MAP_TABLE, 0x01, bytes(8))
    assert "mapper" in plain.text(reason)


def test_the_python_client_of_2013(client: PlainTableClient, filled: int) -> None:
    """It wants an envelope on its DEALER, and exactly 4 bytes of header before an APID."""
    for header, frames in (
        (head(plain.RANGE_JOB), [u32(filled), u32(7), b"", b""]),
        (head(plain.FORWARD_RANGE), [u32(filled), b"", b"", u64(3)]),
    ):
        answer = client.ask(b"", header, *frames)
        assert [answer[0], answer[1], len(answer[2])] == [b"", header + b"\0", 8]
        header = client.ask(b"", head(plain.CLIENT_DATA), answer[2])[1]
        assert len(header) == 4
    broken = client.ask(b"", head(plain.RANGE_JOB), b"\1\1\1", b"", b"", b"")
    assert broken[1] == head(plain.RANGE_JOB, 0x10)
    assert client.ask(b"", head(plain.PUT, 1), u32(filled), b"k", b"v") == [b"", head(plain.PUT, 0)]
    assert client.ask(b"", head(plain.READ), u32(filled), b"k") == [b"", head(plain.READ, 0), b"v"]


# ---- what is wrong ----


def assert_names(bad: Invalid, reason: str) -> None:
    """The message names the frame, and then what was expected and found."""
    words = re.findall(r"frame \d+|\d+", reason)
    for name in bad.names:
        assert name in words, f"{bad}: {reason!r} does not name {name!r}"


def refusal(client: PlainTableClient, bad: Invalid, table: int, *flags: int) -> str:
    header, *rest = client.ask(*bad.request(table, *flags))
    assert (header[2], header[3], len(rest)) == (bad.kind, bad.code, 1), (header, rest)
    return plain.text(rest[0])


@KINDS
@pytest.mark.parametrize("bad", malformed.OTHERS, ids=str)
def test_malformed(tables: NodeTables, filled: int, kind: int, bad: Invalid) -> None:
    client = tables.client(kind)
    assert_names(bad, refusal(client, bad, filled))
    assert client.scan(filled) == ROWS


@pytest.mark.parametrize(("kind", "flags"), [(zmq.DEALER, 1), (zmq.REQ, 2), (zmq.DEALER, 3)])
@pytest.mark.parametrize("bad", malformed.WRITES, ids=str)
def test_malformed_writes(
    tables: NodeTables, filled: int, kind: int, bad: Invalid, flags: int
) -> None:
    client = tables.client(kind)
    assert_names(bad, refusal(client, bad, filled, flags))
    assert client.scan(filled) == ROWS


@pytest.mark.parametrize("bad", malformed.WRITES_OF_TABLES, ids=str)
def test_malformed_writes_of_tables(client: PlainTableClient, filled: int, bad: Invalid) -> None:
    assert_names(bad, refusal(client, bad, filled, plain.FULLSYNC))
    assert client.scan(filled) == ROWS


@KINDS
@pytest.mark.parametrize("bad", [*malformed.WRITES, *malformed.WRITES_OF_TABLES], ids=str)
def test_malformed_async_writes_are_acknowledged(
    tables: NodeTables, filled: int, kind: int, bad: Invalid
) -> None:
    """As the text's Note says, and nothing is written."""
    client = tables.client(kind)
    for flags in ((), (0,)):
        assert client.ask(*bad.request(filled, *flags)) == [head(bad.kind, 0)]
    assert after(client, filled) == ROWS


@pytest.mark.parametrize("endpoint", ["url", "jobs_url"])
@KINDS
@pytest.mark.parametrize("frames", malformed.UNRECOGNIZED, ids=lambda it: it[0][:3].hex() or "none")
def test_unrecognized(tables: NodeTables, kind: int, endpoint: str, frames: Frames) -> None:
    client = tables.client(kind, endpoint=endpoint)
    answer = client.ask(*frames)
    if kind == zmq.DEALER and frames[0] == b"":
        assert answer.pop(0) == b"", "an empty frame is an envelope"
    header, reason = answer
    assert header == head(plain.PROTOCOL_ERROR)
    assert plain.text(reason)
    assert client.info()


@pytest.mark.parametrize("kind", [plain.READ, plain.PUT, plain.OPEN, plain.SCAN, plain.COMPACT])
def test_the_url_of_jobs_accepts_nothing_else(tables: NodeTables, filled: int, kind: int) -> None:
    header, reason = tables.client(endpoint="jobs_url").ask(head(kind, 1), u32(filled), b"k", b"v")
    assert header[2] in {kind, plain.PROTOCOL_ERROR}
    assert header[2] == plain.PROTOCOL_ERROR or header[3] != 0
    assert plain.text(reason)
    assert tables.client().scan(filled) == ROWS


# ---- envelopes, and the endpoints without answers ----


def test_envelopes(client: PlainTableClient, filled: int) -> None:
    question = [head(plain.READ), u32(filled), b"001"]
    answer = [head(plain.READ, 0), b"value 1"]
    assert client.ask(*question) == answer
    assert client.ask(b"", *question) == [b"", *answer]
    assert client.ask(b"", b"", *question)[:2] == [b"", head(plain.PROTOCOL_ERROR)]
    assert client.ask(b"")[:2] == [b"", head(plain.PROTOCOL_ERROR)]


def one_way(tables: NodeTables, kind: int) -> zmq.Socket[bytes]:
    """A PUSH, or a publisher whose subscriber is there (XPUB tells)."""
    socket = tables.context.socket(kind)
    socket.linger = 0
    socket.connect(tables.endpoints[tables.asked]["pull_url" if kind == zmq.PUSH else "sub_url"])
    if kind == zmq.XPUB:
        assert socket.poll(int(plain.DEADLINE_S * 1000)), "no subscriber"
        assert socket.recv() == b"\1", "not to everything"
    return socket


@pytest.mark.parametrize("kind", [zmq.PUSH, zmq.XPUB], ids=["PULL", "SUB"])
def test_endpoints_without_answers(tables: NodeTables, table: int, kind: int) -> None:
    """Every kind of write is taken, flags are ignored; reads and what is wrong are dropped."""
    client, name = tables.client(), u32(table)
    with one_way(tables, kind) as socket:

        def send(kind: int, *frames: bytes, flags: tuple[int, ...] = ()) -> None:
            socket.send_multipart([head(kind, *flags), *frames])

        send(plain.OPEN, name, b"", b"", b"", u64(10), flags=(1,))
        send(plain.PUT, name, b"gone", b"before")
        send(plain.TRUNCATE, name)
        for flags in ((), (0,), (1,), (2,), (3,)):
            send(plain.PUT, name, *flat(ROWS), flags=flags)
        send(plain.READ, name, b"001")
        send(plain.INFO)
        send(plain.RANGE_JOB, name, b"", b"", b"")
        for bad in (*malformed.all_bad(), *malformed.all_bad()):
            socket.send_multipart(bad.request(table, 1))
        for frames in malformed.UNRECOGNIZED:
            socket.send_multipart(frames)
        send(plain.DELETE, name, b"000", b"001", flags=(1,))
        send(plain.DELETE_RANGE, name, b"010", b"015")
        send(plain.DELETE_LIMITED, name, b"016", u64(2))
        send(plain.WRITE_TABLES, *puts(table, (b"a", b"1")), *deletes(table, b"002"))
        send(plain.CLOSE, name)
        send(plain.COMPACT, name, b"", b"")
        send(plain.PUT, name, b"~", b"after")
        wait_for(lambda: client.exists(table, b"~"), lambda found: found == [True])
    assert client.scan(table) == [*ROWS[3:10], ROWS[15], *ROWS[18:], (b"a", b"1"), (b"~", b"after")]


def test_the_log_of_what_was_dropped(tables: NodeTables, filled: int) -> None:
    """A malformed ASYNC write is acknowledged; who listens to the log hears what was wrong."""
    client = tables.client()
    with tables.context.socket(zmq.SUB) as log, one_way(tables, zmq.PUSH) as push:
        log.linger = 0
        log.subscribe(b"")
        log.connect(tables.endpoints[tables.asked]["events_url"])

        heard: list[str] = []

        def provoke() -> list[str]:
            """Once more, as a subscription takes a moment; all that was heard so far."""
            assert client.ask(head(plain.PUT), u32(filled), b"", b"v") == [head(plain.PUT, 0)]
            push.send_multipart([head(plain.READ), u32(filled), b"001"])
            while log.poll(20):
                line = log_line(log.recv_multipart())
                assert line.sender
                heard.append(line.text if line.level <= WARNING else "")
            return heard

        wait_for(
            provoke,
            lambda lines: (
                any("frame 2" in line for line in lines)
                and any("0x10" in line or "read" in line.lower() for line in lines)
            ),
        )
    assert after(client, filled) == ROWS
