"""The parts of the kind `zre` that need no Spark: options, and rows of reports and presences."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kelek
from kelek.pipeline import errors as log_errors
from kelek.pipeline.errors import OptionError, SchemaError
from kelek.pipeline.options import parse_options
from kelek.pipeline.zre.options import ZreReadOptions, ZreTableOptions
from kelek.pipeline.zre.rows import SCHEMA, rows_of, values_of
from kelek.protocols.zerodb.wire.ops import Delete, Put, pack
from kelek.protocols.zre.log import Report, decode_report, encode_report, uuid_hash
from kelek.protocols.zre.presence import (
    Presence,
    PresenceEvent,
    decode_presence,
    encode_presence,
    is_presence,
)
from kelek.protocols.zre.values import Level, LogEvent, Malformed, Reason, Version
from kelek.tests.clients.log.log_peers import LogPeers
from kelek.tests.conftest import ROOT

URL = "tcp://127.0.0.1:7201"
NODE, PEER = bytes(range(0x10, 0x20)), bytes(range(0x20, 0x30))
TIME_MS = 1_700_000_000_123
TIME = datetime.fromtimestamp(TIME_MS // 1000, UTC).replace(microsecond=123_000)
REPORT = Report(Level.ERROR, LogEvent.LEAVE, 1, 0xFFFE, TIME_MS, "a räther long text " * 12)
PRESENCE = Presence(
    PresenceEvent.ENTER, TIME_MS, NODE, "n1", PEER, "Äb", "tcp://10.0.0.1:61000", Version.V1,
    headers={"X-A": "é", "X-B": ""},
)  # fmt: skip


def binary(items: list[bytes]) -> pyarrow.Array:
    return pyarrow.array(items, pyarrow.binary())


def one_by_one(data: list[bytes]) -> tuple[list[dict[str, Any]], set[int]]:
    """What the rows must be, by the codecs of protocols/; and which ones have a text that is none,
    which costs a row that column alone."""
    found, unreadable = [], set()
    for index, entry in enumerate(data):
        row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
        try:
            if is_presence([entry]):
                said = decode_presence([entry])
                row |= {
                    "node": said.node.hex(), "node_name": said.node_name, "peer": said.peer.hex(),
                    "peer_name": said.peer_name, "endpoint": said.endpoint,
                    "version": said.version.value, "group": said.group or None,
                    "headers": list(said.headers.items()) or None,
                    "node_hash": int.from_bytes(entry[5:7]),
                    "peer_hash": int.from_bytes(entry[7:9]),
                }  # fmt: skip
                time_ms, level, event = said.time_ms, said.level, said.event.name
            else:
                report = decode_report([entry])
                row |= {"node_hash": report.node, "peer_hash": report.peer, "text": report.data}
                time_ms, level, event = report.time_ms, report.level, report.event.name
        except Malformed as error:
            if error.reason is Reason.TEXT:
                unreadable.add(index)
            continue
        time = datetime.fromtimestamp(time_ms // 1000, UTC)
        row |= {"index": index, "time": time.replace(microsecond=time_ms % 1000 * 1000)}
        found.append(row | {"level": level.name, "event": event})
    return found, unreadable


def test_rows() -> None:
    leave = PRESENCE._replace(event=PresenceEvent.LEAVE, group="g", headers={})
    silent = PRESENCE._replace(
        event=PresenceEvent.SILENT, peer_name="", version=Version.V2, headers={}
    )
    data = [b"an update", encode_report(REPORT), b"", encode_presence(PRESENCE)]
    data += [encode_presence(leave), b"\xaa\xa2", encode_presence(silent), encode_report(REPORT)]
    found = rows_of(binary(data), pyarrow.array(range(100, 100 + len(data))))
    assert found.schema == SCHEMA
    found.validate(full=True)
    rows = found.to_pylist()
    assert [row["index"] for row in rows] == [101, 103, 104, 106, 107]
    assert rows[0] == rows[4] | {"index": 101}
    assert rows[0] == {
        **dict.fromkeys(SCHEMA.names), "index": 101, "time": TIME, "level": "ERROR",
        "event": "LEAVE", "node_hash": 1, "peer_hash": 0xFFFE, "text": REPORT.data,
    }  # fmt: skip
    assert rows[1] == {
        "index": 103, "time": TIME, "level": "INFO", "event": "ENTER", "node": NODE.hex(),
        "node_name": "n1", "peer": PEER.hex(), "peer_name": "Äb",
        "endpoint": "tcp://10.0.0.1:61000", "version": 1, "group": None,
        "headers": [("X-A", "é"), ("X-B", "")], "node_hash": uuid_hash(NODE),
        "peer_hash": uuid_hash(PEER), "text": None,
    }  # fmt: skip
    assert rows[2] | {"headers": [("X-A", "é"), ("X-B", "")], "group": None} == rows[1] | {
        "index": 104,
        "event": "LEAVE",
    }
    assert rows[2]["group"] == "g"
    assert rows[2]["headers"] is None
    assert (rows[3]["level"], rows[3]["event"], rows[3]["version"]) == ("WARNING", "SILENT", 2)
    assert rows_of(binary(data)[2:4], None).to_pylist() == [rows[1] | {"index": None}]
    for nothing in ([], [b""], [b"x" * 18], [b"\xaa\xa2" + bytes(16)]):
        assert rows_of(binary(nothing), None).num_rows == 0


def test_texts_that_are_none_and_times_that_are_none_are_null() -> None:
    """A stranger's report, which nobody has looked at: a log takes what it is given."""
    data = encode_report(REPORT._replace(data="abc"))
    late = data[:9] + b"\xff" * 8 + data[17:]
    said = encode_presence(PRESENCE)
    rows = rows_of(
        binary(
            [data[:-1] + b"\xff", late, data, said[:-1] + b"]", said[:51] + b"\xff" + said[52:]]
        ),
        None,
    ).to_pylist()
    assert [row["text"] for row in rows] == [None, "abc", "abc", None, None]
    assert [row["time"] for row in rows] == [TIME, None, TIME, TIME, TIME]
    assert [row["headers"] is None for row in rows] == [True, True, True, True, False]
    assert [row["node_name"] for row in rows] == [None, None, None, "n1", None]


@given(
    st.lists(
        st.sampled_from([encode_report(REPORT), encode_presence(PRESENCE)])
        | st.binary(max_size=40)
        | st.builds(
            lambda said, seed: spoilt(said, Random(seed)),
            st.sampled_from([encode_report(REPORT), encode_presence(PRESENCE)]),
            st.integers(0, 2**32),
        ),
        max_size=12,
    ),
    st.integers(0, 3),
)
def test_rows_are_those_of_the_codecs(data: list[bytes], first: int) -> None:
    """Whatever lies between them, and wherever in a larger array they begin."""
    array = binary([b"\xaa\xa2\x02"] * first + data)[first:]
    found = rows_of(array, pyarrow.array(range(len(data))))
    found.validate(full=True)
    wanted, unreadable = one_by_one(data)
    rows = found.to_pylist()
    assert [row for row in rows if row["index"] not in unreadable] == wanted
    assert {row["index"] for row in rows} == unreadable | {row["index"] for row in wanted}


def spoilt(data: bytes, rng: Random) -> bytes:
    """With one octet changed, or with its end cut off; never in its time."""
    place = rng.randrange(len(data))
    if 9 <= place <= 16:
        return data[:place]
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def test_values_that_entries_put_into_a_table() -> None:
    said = [encode_presence(PRESENCE), encode_report(REPORT), b"x"]
    keys = [b"a", b"b", b"c"]
    entries = [
        b"", b"kLT\x01", encode_report(REPORT),
        pack([Put(7, keys, said)]), pack([Put(8, keys, said)]), pack([Delete(7, keys)]),
        pack([Put(7, keys, said)])[:-40], pack([Put(7, keys[:1], said[1:2])]),
    ]  # fmt: skip
    values, places = values_of(binary(entries), 7)
    assert values.to_pylist() == [*said, said[1]]
    assert places.tolist() == [3, 3, 3, 7]
    assert values_of(binary([]), 7)[0].to_pylist() == []
    assert values_of(binary([b"", b"x"]), 7)[0].to_pylist() == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"urls": URL, "afters": "1"}, "'afters'; did you mean after"),
        ({"urls": URL, "kind": "zre", "tables": "1"}, "'tables'; did you mean table"),
        ({"urls": URL, "table": "x"}, "option table is a whole number"),
        ({"urls": URL, "table": "7", "after": "5"}, "earliest or a time, not '5': a table"),
        ({"urls": URL, "table": "7", "cluster": "demo"}, "unknown option 'cluster'"),
        ({"table": "7"}, "option urls is missing"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], words: str) -> None:
    section: Any = ZreTableOptions if "table" in given else ZreReadOptions
    with pytest.raises(OptionError, match=words):
        parse_options(section, given)


def test_options() -> None:
    stream = parse_options(ZreReadOptions, {"urls": URL, "table": "7"}, "streams")
    assert (stream.table, stream.after, stream.with_state) == (7, "latest", False)
    batch = parse_options(ZreReadOptions, {"urls": URL})
    assert (batch.table, batch.after, batch.ending_index) == (None, "earliest", "latest")
    given = {"urls": URL, "Table": "7"}
    assert parse_options(ZreTableOptions, given).of_table().range == (b"", b"")
    table = parse_options(ZreTableOptions, {**given, "after": "2023-11-14T22:13:20.123Z"})
    assert table.of_table().range == (TIME_MS.to_bytes(8), b"")


def test_the_page_names_columns() -> None:
    kind = pytest.importorskip("kelek.pipeline.zre.kind", reason="it needs pyspark")
    page = ROOT / "docs" / "guides" / "spark" / "presence-and-farms.md"
    text = page.read_text(encoding="utf-8")
    text = text.partition("\n## Presence\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`\w+`,? ?)+)\| ([A-Z, ]+) \|", text, re.M)
    shown: list[str] = []
    for names, types in rows:
        found = types.split(", ")
        columns = re.findall(r"`\w+`", names)
        words = found * (len(columns) // len(found))
        shown += [f"{name} {word.lower()}" for name, word in zip(columns, words, strict=True)]
    known = kind.KIND.schema({}).replace("<string,string>", "").split(", ")
    assert sorted(shown) == sorted(known)


# ---- over a log, in whose place there are three sockets of this process ----


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LogPeers]:
    cluster = LogPeers(tmp_path)
    yield cluster
    cluster.close()


def read(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


def events(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(row["index"], row["event"]) for row in rows]


def test_a_batch_and_a_stream(cluster: LogPeers) -> None:
    """Of what lies in the log between other entries, and of what is put into a table there."""
    source = pytest.importorskip("kelek.pipeline.zre.kind", reason="it needs pyspark")
    said, left = encode_presence(PRESENCE), encode_report(REPORT)
    with kelek.Log(cluster.urls) as log:
        log.append_many([b"a", said, b"b", left, pack([Put(7, [b"k", b"l"], [left, said])]), said])
    urls = {"urls": ",".join(cluster.urls), "timeoutMs": "5000"}
    options = parse_options(
        ZreReadOptions, {**urls, "entriesPerPartition": "2", "endingIndex": "5"}
    )
    reader = source.LogReader(options)
    assert events(read(reader, reader.partitions())) == [(2, "ENTER"), (4, "LEAVE")]
    for table, wanted in ((None, [(4, "LEAVE"), (6, "ENTER")]), (7, [(5, "LEAVE"), (5, "ENTER")])):
        given = {**urls, "after": "2"} | ({} if table is None else {"table": str(table)})
        stream = source.LogStreamReader(parse_options(ZreReadOptions, given, "streams"))
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert (start["index"], end["index"]) == (2, 6)
        assert events(read(stream, stream.partitions(start, end))) == wanted
        stream.stop()
    with pytest.raises(log_errors.WrongCheckpoint, match="of the cluster 'b', not of 'demo'"):
        stream.partitions(start | {"cluster": "b"}, end)
    source.KIND.check_columns(typed := spark_type())
    with pytest.raises(SchemaError, match=r"leave schema\(\) out"):
        source.KIND.check_columns(type(typed)(typed.fields[1:]))


def spark_type() -> Any:
    """The columns in Spark's words, of which its own must make those that the rows have."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    found = from_arrow_schema(SCHEMA)
    assert to_arrow_schema(found, timezone="UTC") == SCHEMA
    return found
