"""The kind `farm` without a JVM: options, rows, and offsets in a real server's log."""

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

import kelek
from kelek.bench.ports import free_port
from kelek.clients.farm.values import APPLICATION, CONFIGURATION, FarmEntry
from kelek.pipeline import errors as log_errors
from kelek.pipeline.errors import FarmRefuses, FarmUnreachable, OptionError, SchemaError
from kelek.pipeline.farm.options import FarmReadOptions
from kelek.pipeline.farm.read import FarmView
from kelek.pipeline.farm.rows import SCHEMA, rows_of
from kelek.pipeline.log.offset import FarmOffset, LogRange
from kelek.pipeline.options import parse_options
from kelek.protocols.garlicfarm.app.documents import encode_status
from kelek.protocols.garlicfarm.app.orders import Order, OrderKind, encode_order
from kelek.protocols.garlicfarm.wire.messages import ClusterServer, FarmConfiguration
from kelek.protocols.garlicfarm.wire.values import encode_configuration
from kelek.tests.actors.farm.farm_servers import FarmServers
from kelek.tests.conftest import ROOT
from kelek.tests.http_proxy import HttpProxy

GIVEN = {"urls": "tls://127.0.0.1:7401", "user": "demo", "secretFile": "demo.secret"}
BEGIN_MS = 1_700_000_000_000
EVERY, KEPT = 100, 20  # Entries between snapshots, and entries kept before one.


def status(server: int, minute: int, farm: str = "farm") -> bytes:
    return encode_status(
        {
            "cluster": farm,
            "date": BEGIN_MS + minute * 60_000,
            "id": server,
            "meta": {"publishConfig": "on", "publishing": server == 1},
            "router": {"uptime": minute * 60_000, "name": "Zoë"},
        }
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**GIVEN, "password": "demo"}, "'password': Spark shows options in its plans.*secretFile"),
        ({**GIVEN, "Secret": "demo"}, "'Secret': Spark shows options"),
        ({**GIVEN, "secretfil": "x"}, "did you mean secretFile"),
        ({**GIVEN, "urls": "here"}, "urls is the servers' addresses, tls://HOST:PORT"),
        ({**GIVEN, "urls": "zre://"}, "urls is the servers' addresses, .* is no zre url"),
        ({**GIVEN, "tls": "1.1"}, "tls is 1.3 or 1.2"),
        ({**GIVEN, "proxy": "4444"}, "proxy is HOST:PORT of an HTTP proxy, not '4444'"),
        ({"urls": GIVEN["urls"], "user": "demo"}, "option secretFile is missing"),
        ({**GIVEN, "endingIndex": "earliest"}, "endingIndex is latest or an index"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_options(FarmReadOptions, given)


def test_options() -> None:
    batch, stream = (
        parse_options(FarmReadOptions, GIVEN),
        parse_options(FarmReadOptions, {**GIVEN, "maxEntriesPerTrigger": "5"}, "streams"),
    )
    assert (batch.after, batch.ending_index) == ("earliest", "latest")
    assert (stream.after, stream.max_entries_per_trigger) == ("latest", 5)
    assert (batch.farm, batch.tls, batch.ca_file) == ("farm", "1.3", None)


def test_rows() -> None:
    order = encode_order(Order(OrderKind.PUBLISH, "farm", BEGIN_MS, "demo", publish=2))
    members = encode_configuration(
        FarmConfiguration(1, 0, (ClusterServer(1, "tcp://h:1"), ClusterServer(-7, "tcp://h:2")))
    )
    log = [
        (CONFIGURATION, members), (APPLICATION, status(1, 3)), (APPLICATION, status(1, 4, "b")),
        (APPLICATION, b"\xff"), (APPLICATION, b"{}"), (APPLICATION, order),
        (CONFIGURATION, b"x"), (APPLICATION, order.replace(b'"farm"', b'"barn"')),
        (APPLICATION, status(2, 5).replace(b"1700000300000", b"9223372036854775807")),
    ]  # fmt: skip
    entries = [FarmEntry(index, 3, *one) for index, one in enumerate(log, 1)]
    found = rows_of(entries, "farm")
    assert found.schema == SCHEMA
    nothing = dict.fromkeys(SCHEMA.names) | {"term": 3}
    time = datetime.fromtimestamp(BEGIN_MS / 1000, UTC)
    assert found.to_pylist() == [
        nothing | {"index": 1, "kind": "configuration", "members": [1, -7]},
        nothing | {
            "index": 2, "kind": "status", "server": 1, "publish": "on", "publishing": True,
            "time": datetime.fromtimestamp(BEGIN_MS / 1000 + 180, UTC), "uptime_ms": 180_000,
            "document": status(1, 3).decode(),
        },
        nothing | {"index": 6, "kind": "order", "time": time, "document": order.decode()},
        nothing | {
            "index": 9, "kind": "status", "server": 2, "publish": "on", "publishing": False,
            "uptime_ms": 300_000,  # Its date is out of range.
            "document": status(2, 5).decode().replace("1700000300000", "9223372036854775807"),
        },
    ]  # fmt: skip
    assert rows_of([], "farm").num_rows == 0


def test_the_page_names_columns() -> None:
    kind = pytest.importorskip("kelek.pipeline.farm.kind", reason="it needs pyspark")
    page = ROOT / "docs" / "guides" / "spark" / "presence-and-farms.md"
    text = page.read_text(encoding="utf-8")
    text = text.partition("\n## A farm's documents\n")[2].partition("\n## ")[0]
    columns = re.findall(r"^\| (`\w+`) \| ([A-Z<>]+) \|", text, re.M)
    assert ", ".join(f"{name} {word.lower()}" for name, word in columns) == kind.KIND.schema({})


# ---- a server ----


@pytest.fixture(scope="module")
def farm() -> Iterator[FarmServers]:
    settings = f"snapshot_entries: {EVERY}, snapshot_trailing_entries: {KEPT}"
    with FarmServers((1,), farm=settings, node="post_interval_ms: 0") as farm:
        farm.start()
        yield farm


def given_of(servers: FarmServers, **others: str) -> dict[str, str]:
    urls, files = f"tls://127.0.0.1:{servers.ports[1]}", {"caFile": str(servers.ca)}
    secret = {"secretFile": str(servers.folder / "demo.secret")}
    return {"urls": urls, "user": "demo", **secret, **files, "timeoutMs": "60000", **others}


def append(farm: FarmServers, *values: bytes) -> int:
    """Appends; returns the index of the last entry."""
    given = given_of(farm)
    secret_file = farm.folder / "servers.secret"  # The servers of the status documents.
    client = kelek.Farm(
        given["urls"], user="servers", secret_file=secret_file, ca_file=given["caFile"]
    )
    with client:
        return client.append_many(values)


def test_places(farm: FarmServers) -> None:
    """Before compaction; the first entry is a Configuration."""
    last = append(farm, *(status(1, minute) for minute in range(30)))
    view = FarmView(parse_options(FarmReadOptions, given_of(farm)))
    try:
        assert view.last_index() == last == 32
        assert view.info().first_index == 1
        times = [(0, 0), (1, 3), (29, 31), (30, 32)]
        for minute, index in times:
            place = datetime.fromtimestamp(BEGIN_MS / 1000 + minute * 60 - 1, UTC)
            assert view.index_before(place) == max(index, 0), minute
        offset = view.offset_at(7)
        assert (offset.farm, offset.index, offset.term > 0) == ("farm", 7, True)
        view.check(offset)
        for wrong, words in (
            (replace(offset, term=offset.term + 1), "entry 7 has term"),
            (replace(offset, index=99), "behind entry 99, the log ends at 32"),
        ):
            with pytest.raises(log_errors.WrongCheckpoint, match=words):
                view.check(wrong)
        rows = [row for one in view.entries(LogRange(0, 32)) for row in one.to_pylist()]
        assert [row["index"] for row in rows] == [1, *range(3, 33)], "2 names who has posted"
    finally:
        view.close()


def test_a_batch_and_a_stream(farm: FarmServers) -> None:
    """Compacted entries fail, or each server's last document replaces them."""
    source = pytest.importorskip("kelek.pipeline.farm.kind", reason="it needs pyspark")
    last = append(farm, status(7, 0), *(status(1, minute) for minute in range(100, 300)))
    view = FarmView(parse_options(FarmReadOptions, given_of(farm)))
    first = farm.wait(lambda: _kept_from(view, last), "nothing is compacted")
    view.close()
    stream = source.LogStreamReader(
        parse_options(FarmReadOptions, given_of(farm, after="0"), "streams")
    )
    stream = pickle.loads(pickle.dumps(stream))
    begin = stream.initialOffset()
    words = f"from 1 to {first - 1} are no longer stored.*the last document of each server"
    with pytest.raises(log_errors.EntriesCompacted, match=words):
        stream.latestOffset(begin, stream.getDefaultReadLimit())
    with pytest.raises(log_errors.WrongCheckpoint, match="of the farm 'barn', not of 'farm'"):
        stream.partitions(begin | {"farm": "barn"}, begin)
    stream.stop()
    allowed = given_of(farm, after="0", failOnCompaction="false")
    stream = source.LogStreamReader(parse_options(FarmReadOptions, allowed, "streams"))
    rows, end = [], begin
    while end["index"] < last:
        end = stream.latestOffset(begin, stream.getDefaultReadLimit())
        parts = stream.partitions(begin, end)
        rows += [row for part in parts for one in stream.read(part) for row in one.to_pylist()]
        begin = end
    assert FarmOffset(**end) == FarmOffset("farm", last, end["term"])
    assert stream.reportLatestOffset() == {"farm": "farm", "index": last, "lag": 0}
    stream.stop()
    kept = [row for row in rows if row["index"] < first]
    assert [(row["server"], row["term"]) for row in kept] == [(7, None)]
    assert kept[0]["document"] == status(7, 0).decode()
    assert [row["index"] for row in rows[1:]] == list(range(first, last + 1))
    reader = source.LogReader(
        parse_options(FarmReadOptions, allowed | {"entriesPerPartition": "50"})
    )
    found = [row for part in reader.partitions() for one in reader.read(part)
             for row in one.to_pylist()]  # fmt: skip
    assert found == rows


def _kept_from(view: FarmView, last: int) -> int:
    """The first entry in the log when no snapshot is due; else 0."""
    first = view.info().first_index
    return first if first > 1 and last - (first - 1 + KEPT) < EVERY else 0


def test_refused_credentials_are_explained(farm: FarmServers) -> None:
    wrong = farm.write_secret("wrong.secret", "something else\n")
    for others, error, words in (
        ({"secretFile": str(wrong)}, FarmRefuses, "options user, secretFile"),
        ({"secretFile": str(farm.folder / "none")}, FarmRefuses, r"none.*options user, secretFile"),
        ({"farm": "barn"}, FarmRefuses, "barn"),
        ({"urls": f"tls://127.0.0.1:{free_port()}", "timeoutMs": "300"}, FarmUnreachable,
         r"127.0.0.1.* \(options urls and farm\)"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            FarmView(parse_options(FarmReadOptions, given_of(farm, **others)))


def test_what_spark_is_given_holds_no_password(farm: FarmServers) -> None:
    """Only its file's path; each process reads the file."""
    source = pytest.importorskip("kelek.pipeline.farm.kind", reason="it needs pyspark")
    secret = farm.folder / "secret"
    given = given_of(farm, user="peer", secretFile=str(secret), failOnCompaction="false")
    reader = source.LogReader(parse_options(FarmReadOptions, given))
    assert reader.partitions()  # It has asked the servers.
    pickled = pickle.dumps(reader)
    assert str(secret).encode() in pickled
    assert secret.read_bytes().strip() not in pickled


def test_servers_inside_of_i2p(farm: FarmServers) -> None:
    """Through a proxy, which alone resolves the names, or through a local tunnel."""
    with FarmServers((1,), tls=False, node="post_interval_ms: 0") as hidden, HttpProxy({}) as proxy:
        proxy.hosts["one.b32.i2p:80"] = hidden.ports[1]
        hidden.start()
        index = hidden.append(b"{}").next_index - 1
        inside = {"proxy": f"127.0.0.1:{proxy.port}", "urls": "tcp://one.b32.i2p:80"}
        tunnel = {"i2p": "true", "urls": f"tcp://127.0.0.1:{hidden.ports[1]}"}
        for others in (inside, tunnel):
            view = FarmView(parse_options(FarmReadOptions, given_of(hidden, **others)))
            assert view.last_index() == index
            view.close()
        assert proxy.heads
    far = given_of(farm, i2p="true", urls="tcp://10.0.0.1:80")
    with pytest.raises(OptionError, match=r"10\.0\.0\.1: without TLS or a proxy only loopback"):
        FarmView(parse_options(FarmReadOptions, far))


def test_columns() -> None:
    source = pytest.importorskip("kelek.pipeline.farm.kind", reason="it needs pyspark")
    from pyspark.sql import types
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    found = from_arrow_schema(SCHEMA)
    source.KIND.check_columns(found)
    assert to_arrow_schema(found, timezone="UTC") == SCHEMA
    with pytest.raises(SchemaError, match=r"leave schema\(\) out"):
        source.KIND.check_columns(types.StructType(found.fields[1:]))
