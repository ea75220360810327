"""`kelek table` and `kelek shell` against servers with a table in memory."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.console import cli_errors
from kelek.console.kelek_cli import main
from kelek.console.table.shell import Shell
from kelek.protocols.zerodb.wire.requests import RangeJob
from kelek.protocols.zerodb.wire.values import SESSION_ENDED, TableOptions
from kelek.testing import LocalCluster
from kelek.testing.fixtures import kelek_cluster as kelek_cluster
from kelek.tests.clients.table.table_servers import JOB, TableServers
from kelek.tests.console.kelek_runner import fails, ok, run

TOPOLOGY = """
cluster: small
nodes:
  n1: {url: 'tcp://127.0.0.1:20001', peer_url: 'ipc:///tmp/kelek-none-1', zerodb: {url: 'URL'}}
  n2: {url: 'tcp://127.0.0.1:20002', peer_url: 'ipc:///tmp/kelek-none-2'}
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableServers]:
    """Servers, and a topology that names one of them, in the working directory."""
    cluster = TableServers(tmp_path)
    (tmp_path / "topology.yaml").write_text(TOPOLOGY.replace("URL", cluster.urls[0]))
    monkeypatch.chdir(tmp_path)
    yield cluster
    cluster.close()


def test_put_get_delete(cluster: TableServers) -> None:
    ok("table", "put", "7", "k", "v")
    assert ok("table", "get", "7", "k") == "v\n"
    ok("table", "put", "7", "0x00ff", "-", stdin=b"\xfe\n")
    assert cluster.store.tables[7] == {b"k": b"v", b"\0\xff": b"\xfe\n"}
    assert ok("table", "get", "7", "k", "0x00ff") == "k\tv\n\\x00\\xff\t\\xfe\\n\n"
    rows = [
        json.loads(line)
        for line in ok("table", "get", "7", "k", "0x00ff", "-o", "json").splitlines()
    ]
    assert rows[0] == {"key": "k", "value": "v"}
    assert rows[1] == {"key_base64": "AP8=", "value_base64": "/go="}
    assert ok("table", "get", "7", "k", "-v") == "k\tv\t2\n"
    assert json.loads(ok("table", "get", "7", "k", "-v", "-o", "json")) == {**rows[0], "index": 2}
    assert json.loads(ok("table", "put", "7", "k", "v", "-o", "json")) == {"key": "k", "index": 3}
    code, line = fails("table", "open", "8", "--versions")
    assert (code, line.endswith("does not keep versions of keys")) == (1, True)
    words = "table", "put", "7", "k", "v", "--if-equal", "v", "-o", "json"
    assert json.loads(ok(*words)) == {"key": "k", "index": 4}
    code, line = fails("table", "get", "7", "no", "-v")
    assert (code, line) == (1, "kelek: table 7: no key no; list the keys: kelek table scan 7")
    code, line = fails("table", "get", "7", "no")
    assert code == cli_errors.FAILED
    assert line == "kelek: table 7: no key no; list the keys: kelek table scan 7"
    ok("table", "delete", "7", "k", "no")
    assert ok("table", "count", "7") == "1\n"
    ok("table", "delete", "7", "--start", "0x00")
    assert ok("table", "count", "7", "-o", "json") == '{"table": 7, "keys": 0}\n'


@pytest.mark.parametrize("value", [b"", b"a", b"a\n", b"\xff\x00\r"])
def test_a_value_comes_back_raw(cluster: TableServers, value: bytes) -> None:
    ok("table", "put", "7", "k", "-", stdin=value)
    said = run("table", "get", "7", "k", "--raw")
    assert (said.exit_code, said.stdout_bytes) == (0, value)
    for words in (["k", "other"], ["k", "-v"], ["k", "-o", "json"]):
        code, line = fails("table", "get", "7", "--raw", *words)
        assert (code, line) == (
            2, "kelek: --raw: it prints one value; give one KEY, no -v and no -o json"
        )  # fmt: skip
    assert fails("table", "get", "7", "no", "--raw")[0] == 1


def test_a_write_of_a_session_that_has_ended_is_refused_in_one_line(cluster: TableServers) -> None:
    cluster.servers[0].error = SESSION_ENDED, "nothing was written: the session has ended"
    code, line = fails("table", "put", "7", "k", "v")
    said = "kelek: topology.yaml: table 7: nothing was written: the session has ended"
    assert (code, line) == (1, said)


def test_a_put_on_condition(cluster: TableServers) -> None:
    ok("table", "put", "7", "lock", "me", "--if-absent")
    code, line = fails("table", "put", "7", "lock", "you", "--if-absent")
    assert (code, line) == (1, "kelek: lock: nothing was stored, it holds 'me'")
    assert "does not exist" in fails("table", "put", "7", "x", "y", "--if-equal", "z")[1]
    ok("table", "put", "7", "lock", "x" * 50, "--if-equal", "me", "--ttl", "5")
    assert "of 50 bytes" in fails("table", "put", "7", "lock", "", "--if-absent")[1]


def test_scan(cluster: TableServers) -> None:
    for key in ("a", "b1", "b2", "c"):
        ok("table", "put", "1", key, key * 2)
    assert ok("table", "scan", "1") == "a\taa\nb1\tb1b1\nb2\tb2b2\nc\tcc\n"
    assert ok("table", "scan", "1", "--prefix", "b", "--keys-only") == "b1\nb2\n"
    assert ok("table", "scan", "1", "--reverse", "-n", "1", "-o", "json") == (
        '{"key": "c", "value": "cc"}\n'
    )
    assert ok("table", "scan", "1", "--start", "b", "--end", "c", "--keys-only") == "b1\nb2\n"
    assert ok("table", "scan", "2") == ""


def test_the_table_itself(cluster: TableServers) -> None:
    ok("table", "open", "3", "--cache", "1MiB", "--bloom-bits", "10", "--no-compression")
    assert cluster.store.options == {
        3: TableOptions(cache_bytes=1 << 20, bloom_bits=10, compression=False)
    }
    ok("table", "put", "3", "k", "v")
    assert "keys                     1" in ok("table", "info", "3")
    assert json.loads(ok("table", "info", "-o", "json"))["tables"] == {"3": {"keys": 1}}
    assert "range_keys               1" in ok("table", "info", "3", "--prefix", "k")
    assert "range_keys               0" in ok("table", "info", "3", "--start", "l")
    assert "name it" in fails("table", "info", "--start", "l")[1]
    assert "does not exist" in fails("table", "info", "4")[1]
    assert ok("table", "compact", "3").startswith("n1 ")
    cluster.servers[0].silent = True
    two = [word for url in cluster.urls[:2] for word in ("--url", url)]
    said = run("table", "compact", "3", "--timeout", "0.2", *two)
    assert (said.exit_code, said.stdout.split()[0]) == (cli_errors.FAILED, cluster.urls[1])
    assert said.stderr.endswith("table 3: 1 of 2 nodes did not compact it; try again later\n")
    cluster.servers[0].silent = False
    code, line = fails("table", "truncate", "3")
    assert (code, line) == (2, "kelek: table 3: 1 key would be deleted; add --yes to do it")
    ok("table", "truncate", "3", "--yes")
    assert ok("table", "count", "3") == "0\n"


CSV = 'carrier,hour,note\nAA,5,first\nUA,6,"two\nlines"\n'


def test_csv(cluster: TableServers) -> None:
    Path("f.csv").write_text(CSV)
    said = ok("table", "load", "1", "f.csv", "--key", "carrier", "--key", "hour")
    assert said.startswith("loaded 2 rows in ")
    assert json.loads(cluster.store.tables[1][b"UA/6"]) == {
        "carrier": "UA", "hour": "6", "note": "two\nlines"
    }  # fmt: skip
    ok("table", "load", "2", "-", "--format", "csv", "--key", "hour", "--value", "note",
       "--limit", "1", stdin=CSV.encode())  # fmt: skip
    assert cluster.store.tables[2] == {b"5": b"first"}
    assert ok("table", "export", "2", "-", "--format", "csv") == "key,value\n5,first\n"


ROUND = {b"a": b"1", b'b"\n,': "grüß".encode(), b"c": b""}
# Each character that a reader may take for the end of a cell, or of a line, alone and in a row.
ROUND |= {
    f"{around}{one}{around}".encode(): f"{one}{one}v".encode()
    for one in '\r\n", \t;\x00\x0b\x0c\x1c\x85\u2028'
    for around in ("", "x")
}
BINARY = {**ROUND, b"\xff\0": b"\x80"}


@pytest.mark.parametrize(
    ("name", "pairs", "options"),
    [
        ("f.csv", ROUND, []),
        ("f.csv", BINARY, ["--encoding", "base64"]),
        ("f.csv", BINARY, ["--encoding", "hex"]),
        ("f.jsonl", BINARY, []),
        ("f.parquet", BINARY, []),
    ],
)
def test_what_is_exported_can_be_loaded(
    cluster: TableServers, name: str, pairs: dict[bytes, bytes], options: list[str]
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    cluster.store.tables[1] = dict(pairs)
    figures = json.loads(ok("table", "export", "1", name, *options, "-o", "json"))
    assert figures["rows"] == len(pairs)
    ok("table", "load", "2", name, *options)
    assert cluster.store.tables[2] == pairs
    assert os.listdir().count(f"{name}.part") == 0
    ok("table", "export", "1", name, *options, "--prefix", "a")
    ok("table", "load", "3", name, *options)
    assert cluster.store.tables[3] == {b"a": b"1"}
    ok("table", "export", "1", name, *options, "--snapshot")
    assert isinstance(cluster.store.job_request, RangeJob)
    ok("table", "load", "4", name, *options)
    assert cluster.store.tables[4] == pairs


def test_columns_of_other_types(cluster: TableServers) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"n": [1, 2], "x": [b"\xff", None], "t": [True, False]})
    parquet.write_table(table, "f.parquet")
    ok("table", "load", "1", "f.parquet", "--key", "n", "--value", "t")
    assert cluster.store.tables[1] == {b"1": b"true", b"2": b"false"}
    ok("table", "load", "2", "f.parquet", "--key", "n")
    assert json.loads(cluster.store.tables[2][b"1"]) == {"n": 1, "x": "/w==", "t": True}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("f.csv", "a,b\n1,2\n", "row 1: no column 'key'; --key COLUMN; the columns are a, b"),
        ("f.csv", "key,value\n1\n", "f.csv:2: 1 cells; the header has 2"),
        ("f.csv", 'key,value\n1,"2', "f.csv:2: unexpected end of data"),
        ("f.csv", "key,value\n,2\n", "row 1: a key has 1 to"),
        ("f.csv", "", "f.csv: the first line of CSV names the columns; it is empty"),
        ("f.csv", "key\na\n", "row 1: it has no value; add --key key to store the whole row"),
        ("f.jsonl", '{"key": "a"}', "row 1: it has no value; add --key key"),
        ("f.jsonl", '{"key": "1"', "f.jsonl:1: not JSON"),
        ("f.jsonl", "[1]", "f.jsonl:1: a row is a JSON object"),
        ("f.jsonl", '{"key_base64": "?"}', "row 1: "),
        ("f.parquet", "PAR1", "f.parquet: not Parquet: "),
        ("f.txt", "", "the name shows no format; add --format"),
    ],
)
def test_files_that_are_wrong(cluster: TableServers, name: str, text: str, said: str) -> None:
    Path(name).write_text(text)
    code, line = fails("table", "load", "1", name)
    assert code == cli_errors.IMPOSSIBLE
    assert said in line
    assert not cluster.store.tables.get(1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["load", "1", "nowhere.csv"], "nowhere.csv: No such file"),
        (["load", "1", "-", "--format", "parquet"], "give a file"),
        (["export", "1", "-", "--format", "parquet"], "give a file"),
        (["export", "1", "no/where.csv"], "no/where.csv: No such file"),
        (["export", "1", "x.csv", "--prefix", "a", "--end", "b"], "--prefix: --start or --end"),
        (["delete", "1"], "give keys, or a range"),
        (["delete", "1", "k", "--prefix", "k"], "give keys, or a range"),
        (["put", "1", "", "v"], "a key has 1 to 65536 bytes, not 0"),
        (["put", "1", "k", "v", "--if-absent", "--if-equal", "v"], "leave one of them out"),
        (["get", "1", "0xzz"], "is not hexadecimal"),
        (["get", "-1", "k"], "-1"),
        (["open", "1", "--cache", "much"], "is no size; write 4096 or 4KiB"),
        (["count", "1", "--node", "n2"], "--node n2: has no `zerodb: {url: ...}`"),
        (["count", "1", "--node", "n9"], "--node n9: is not a node; those with one are n1"),
        (["count", "1", "--url", "tcp://h"], "write tcp://HOST:PORT"),
        (["count", "1", "--url", "tcp://h:1", "--node", "n1"], "leave one of them out"),
        (["open", "1", "--block", "0"], "--block: 0 is not in the range 1 to 1073741824"),
        (["open", "1", "--write-buffer", "2048GiB"], "--write-buffer: 2199023255552 is not in"),
        (["put", "1", "k", "v", "--ttl", "1e9"], "0.001<=x<=315360000"),
        (["count", "1", "--start", "x" * 65537], "a bound has at most 65536 bytes, not 65537"),
        (["copy", "1", "1"], "table 1 cannot be copied into itself"),
        (["copy", "1", "2", "--prefix", "a", "--end", "b"], "--prefix: --start or --end"),
        (["map", "1", "2", "nowhere.wat"], "nowhere.wat: No such file"),
        (["map", "1", "2", "topology.yaml"], "topology.yaml: not a mapper"),
        (["map", "1", "2", "m.wat", "-p", "a"], "'a' is no parameter; write KEY=VALUE"),
        (["jobs", "--end"], "--end and --wait need the number of a job"),
        (["jobs", "5", "--wait", "--end"], "leave one of them out"),
        (["jobs", "-n", "0"], "1<=x<=1000"),
    ],
)
def test_what_can_not_work_is_one_line(cluster: TableServers, words: list[str], said: str) -> None:
    code, line = fails("table", *words)
    assert code == cli_errors.IMPOSSIBLE
    assert said in line


@pytest.mark.parametrize("words", [["--url", "ipc:///nobody"], []])
def test_no_server_answers(cluster: TableServers, words: list[str]) -> None:
    for server in cluster.servers:
        server.silent = True
    code, line = fails("table", "count", "1", "--timeout", "0.2", *words)
    assert code == cli_errors.FAILED
    assert ("does a table server run there?" if words else "start it: supervisor start") in line
    assert ("ipc:///nobody" if words else cluster.urls[0]) in line


def test_a_host_without_an_address(cluster: TableServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has an address is enough."""
    known = socket.getaddrinfo

    def resolve(host: str, *rest: Any) -> Any:
        if host == "gone.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    unknown = ["--url", "tcp://gone.example:7100", "--url", "tcp://a..b:7100"]
    code, line = fails("table", "count", "1", *unknown)
    assert code == cli_errors.FAILED
    assert "--url tcp://gone.example:7100: the name gone.example has no address: Name or" in line
    assert ok("table", "count", "1", *unknown, "--url", cluster.urls[0]) == "0\n"


def test_a_topology_without_tables(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("cluster: c\nnodes: {n1: {url: 'ipc:///a', peer_url: 'ipc:///b'}}\n")
    assert "no node serves tables" in fails("table", "count", "1", "-t", str(path))[1]


def test_what_is_no_utf8_is_named(cluster: TableServers) -> None:
    cluster.store.tables[1] = dict(BINARY)
    code, line = fails("table", "export", "1", "f.csv")
    assert code == cli_errors.FAILED
    assert "is not UTF-8; add --encoding base64, or --format jsonl" in line
    assert not Path("f.csv").exists()


def test_a_local_table_is_one_node_s(cluster: TableServers) -> None:
    """Asked of any node, a put and a get may be of two tables."""
    text = TOPOLOGY.replace("URL", cluster.urls[0]).replace(
        "-2'}", f"-2', zerodb: {{url: '{cluster.urls[1]}'}}}}"
    )
    Path("topology.yaml").write_text(f"{text}zerodb: {{local_tables: [0, 7]}}\n")
    said = "kelek: table 7: each node has its own; choose one with --node: n1, n2"
    for words in (
        ["put", "7", "k", "v"],
        ["get", "7", "k"],
        ["copy", "7", "8"],
        ["copy", "8", "7"],
    ):
        assert fails("table", *words) == (cli_errors.IMPOSSIBLE, said)
    ok("table", "put", "7", "k", "v", "--node", "n2")
    assert "table 7" in ok("table", "info")
    ok("table", "compact", "7")
    ok("table", "jobs")


def test_an_export_to_a_full_disk(cluster: TableServers) -> None:
    cluster.store.tables[1] = {b"k": b"v" * 100_000}
    Path("f.csv.part").symlink_to("/dev/full")
    assert fails("table", "export", "1", "f.csv") == (
        cli_errors.FAILED, "kelek: f.csv: No space left on device; it is not written"
    )  # fmt: skip


def test_a_load_that_fails_reports_its_progress(cluster: TableServers) -> None:
    lines = [json.dumps({"key": f"{n}", "value": "v" * 300}) for n in range(20_000)]
    Path("f.jsonl").write_text("\n".join([*lines, "nonsense"]))
    code, line = fails("table", "load", "1", "f.jsonl")
    assert code == cli_errors.FAILED
    assert "f.jsonl:20001: not JSON" in line
    assert "rows are stored: you can load the file again" in line


def test_a_bulk_load(
    kelek_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"key": f"{n:04}", "value": f"{n}"}) for n in range(999, -1, -1)]
    Path("f.jsonl").write_text("\n".join(lines))
    Path("bad.jsonl").write_text("\n".join([*lines[:5], "nonsense"]))
    where = ["--url", kelek_cluster.table_urls[0]]
    monkeypatch.setattr("kelek.clients.table.loads.RUN_BYTES", 32)
    with kelek.Table(kelek_cluster.table_urls, "bulk", timeout_ms=60_000) as table:
        _, line = fails("table", "load", "bulk", "bad.jsonl", "--bulk", *where)
        assert "bad.jsonl:6: not JSON" in line
        assert "the table shows all rows of the file, or none" in line
        assert table.count() == 0
        figures = json.loads(ok("table", "load", "bulk", "f.jsonl", "--bulk", *where, "-o", "json"))
        assert figures["rows"] == 1000
        assert [*table.scan()] == [(b"%04d" % n, b"%d" % n) for n in range(1000)]
        _, line = fails("table", "load", "bulk", "f.jsonl", "--bulk", *where)
        assert "has rows: a load fills an empty table" in line
        ok("table", "load", "bulk", "f.jsonl", "--replace", "--limit", "3", *where)
        assert table.count() == 3


def test_an_export_without_a_server_keeps_no_file(cluster: TableServers) -> None:
    cluster.servers[0].mute_scans = True
    code, line = fails("table", "export", "1", "f.csv", "--timeout", "0.3")
    assert code == cli_errors.FAILED
    assert "table 1: the server at" in line
    assert sorted(os.listdir()) == ["s0", "s1", "s2", "topology.yaml"]


def test_refusals_are_the_server_s_words(cluster: TableServers) -> None:
    cluster.servers[0].error = 2, "no space left"
    code, line = fails("table", "put", "7", "k", "v")
    assert (code, line) == (1, "kelek: topology.yaml: table 7: no space left")


def test_bench(cluster: TableServers) -> None:
    figures = json.loads(ok("table", "bench", "9", "--count", "500", "--alone", "5", "-o", "json"))
    assert figures["pairs"] == 500
    assert figures["get_p99_ms"] > 0
    assert "put_many  500 x 100 B" in ok("table", "bench", "9", "--count", "500", "--alone", "1")
    assert cluster.store.tables[9] == {}


def test_watch(cluster: TableServers) -> None:
    ok("table", "put", "1", "a", "1")
    ok("table", "delete", "1", "a")
    ok("table", "delete", "1", "--prefix", "b")
    command = [
        sys.executable,
        "-m",
        "kelek.console.kelek_cli",
        "table",
        "watch",
        "1",
        "--after",
        "0",
    ]
    with subprocess.Popen([*command, "-o", "json"], stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        found = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == cli_errors.INTERRUPTED
    assert found == [
        {"index": 1, "key": "a", "value": "1"},
        {"index": 2, "key": "a", "deleted": True},
        {"index": 3, "deleted": True, "start": "b", "end": "c"},
    ]


# ---- jobs ----


def test_copy(cluster: TableServers) -> None:
    cluster.store.job_polls = 2
    said = ok("table", "copy", "7", "9", "--prefix", "k")
    assert said == "copied 1,200 rows in 2.0 s: 600 rows/s; 1,100 puts, 100 deletes\n"
    assert cluster.store.job_request[:4] == (7, 9, b"k", b"l")
    told = json.loads(ok("table", "copy", "7", "9", "-o", "json"))
    assert (told["node"], told["apid"], told["kind"], told["state"]) == ("n1", JOB, "copy", "done")
    assert (told["rows"], told["started"], told["reason"]) == (1200, 1_700_000_000_000, "")
    said = ok("table", "copy", "7", "9", "--no-wait", "-t", "topology.yaml")
    see = f"kelek table jobs {JOB} -t topology.yaml --node n1"
    assert said == f"job {JOB} of n1 has started; show it: {see}\n"
    assert ok("table", "copy", "7", "9", "--no-wait", "-o", "json") == (
        f'{{"node": "n1", "apid": {JOB}}}\n'
    )


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("failed", "has failed: no space is left; 1,100 puts and 100 deletes were written before"),
        ("cancelled", "was cancelled; 1,100 puts and 100 deletes were written before"),
    ],
)
def test_a_job_that_ends_badly(cluster: TableServers, state: str, said: str) -> None:
    cluster.store.job_state = state
    for words in (["copy", "7", "9"], ["jobs", str(JOB), "--wait"]):
        assert fails("table", *words) == (cli_errors.FAILED, f"kelek: job {JOB} of n1 {said}")


def test_a_job_that_is_lost(cluster: TableServers) -> None:
    cluster.store.lost_jobs.add(JOB)
    code, line = fails("table", "copy", "7", "9")
    assert code == cli_errors.FAILED
    assert line.startswith(f"kelek: job {JOB} of n1 is lost with its process: no such job; its")


def test_map(cluster: TableServers) -> None:
    pytest.importorskip("wasmtime")
    Path("m.wat").write_text("(module)")
    ok("table", "map", "7", "9", "m.wat", "-p", "a=b=c", "-p", "0x00=", "--threads", "3")
    asked = cluster.store.job_request
    assert asked.mapper == b"\0asm\1\0\0\0"
    assert asked[:4] == (7, 9, 3, [(b"a", b"b=c"), (b"\0", b"")])
    ok("table", "map", "7", "9", "-", stdin=b"BC\xc0\xde and so on")
    assert cluster.store.job_request.mapper == b"BC\xc0\xde and so on"
    Path("wrong.wat").write_text("(module\n  (funk))")
    code, line = fails("table", "map", "7", "9", "wrong.wat")
    assert code == cli_errors.IMPOSSIBLE
    assert line.startswith("kelek: wrong.wat: 2:4: expected valid module field")


def test_jobs(cluster: TableServers) -> None:
    head, first, second = ok("table", "jobs").splitlines()
    assert head.split()[:6] == ["node", "job", "kind", "table", "into", "state"]
    assert first.split()[:9] == ["n1", "77", "copy", "7", "9", "running", "1,200", "1,100", "100"]
    assert second.split()[-1] == "2.0"
    assert len(ok("table", "jobs", "--running", "-o", "json").splitlines()) == 1
    assert "state          done" in ok("table", "jobs", "8")
    assert json.loads(ok("table", "jobs", str(JOB), "--end", "-o", "json"))["state"] == "cancelled"
    assert fails("table", "jobs", "5", "--end") == (
        cli_errors.FAILED, "kelek: job 5 of n1: there is no data job 5"
    )  # fmt: skip
    cluster.store.lost_jobs.add(6)
    cluster.store.job_state = "failed"
    assert "state          failed" in ok("table", "jobs", "8")
    assert fails("table", "jobs", "6") == (cli_errors.FAILED, "kelek: job 6: no such job")
    two = f"--url {cluster.urls[0]} --url {cluster.urls[1]}"
    assert ok("table", "jobs", "8", *two.split()).count("state") == 2
    code, line = fails("table", "jobs", "8", "--end", *two.split())
    assert code == cli_errors.IMPOSSIBLE
    assert line == "kelek: job 8: several nodes have a job of that number; add " + two.replace(
        " --url", " or --url"
    )
    cluster.servers[1].silent = True
    said = run("table", "jobs", "--timeout", "0.2", *two.split())
    assert (said.exit_code, len(said.stdout.splitlines())) == (0, 3)
    assert said.stderr.startswith(f"{cluster.urls[1]}: no answer from {cluster.urls[1]}")
    cluster.servers[0].silent = True
    said = run("table", "jobs", "--timeout", "0.2")
    assert (said.exit_code, said.stdout) == (cli_errors.FAILED, "")


# ---- the shell ----


def test_a_shell_does_one_line_after_the_other(cluster: TableServers) -> None:
    script = b"""
        # A comment.
        table put 7 k v
        use 7
        put 'two words' "a b"
        get k
        scan --keys-only
        exit
        nonsense
    """
    assert ok("shell", stdin=script) == "v\nk\ntwo words\n"
    assert ok("shell", "7", stdin=b"count") == "2\n"
    assert ok("shell", "7", stdin=b"copy 9") == ok("shell", stdin=b"table copy 7 9")
    assert ok("shell", "7", stdin=b"jobs 8") == ok("shell", stdin=b"jobs 8")
    assert "Prints the value of each KEY" in ok("shell", stdin=b"help get")


def test_help_in_a_shell_shows_what_it_takes(cluster: TableServers) -> None:
    """With a table in use its commands, without one those of kelek."""
    of_table = ok("shell", "7", stdin=b"help")
    assert re.search("truncate +Deletes all keys of TABLE", of_table)
    assert "Shell commands: help [COMMAND], use [TABLE], exit" in of_table
    of_kelek = ok("shell", stdin=b"help")
    assert "truncate" not in of_kelek
    assert "Shell commands: help [COMMAND], use [TABLE], exit" in of_kelek
    assert "Usage: kelek log " in ok("shell", "7", stdin=b"help log")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("get k", "get: use a table first: use users"),
        ("use 7x", "a table's name has 1 to 128"),
        ("put 'open", "No closing quotation"),
        ("nonsense", "no such command 'nonsense'"),
        ("shell", "shell: this is the shell"),
        ("table get 7 none", "no key none"),
    ],
)
def test_a_shell_without_a_watcher_ends_with_the_first_failure(
    cluster: TableServers, line: str, said: str
) -> None:
    result = run("shell", stdin=f"{line}\ntable count 7\n".encode())
    assert said in result.stderr
    assert result.exit_code in (1, 2)
    assert result.stdout == ""


def test_a_shell_gives_its_topology_to_every_command(
    cluster: TableServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("topology.yaml").rename("other.yaml")
    assert ok("shell", "-t", "other.yaml", stdin=b"table count 7") == "0\n"


class Terminal:
    """A shell with a terminal."""

    def __init__(self, folder: Path) -> None:
        self.fd, inner = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kelek.console.kelek_cli", "shell", "7"],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "XDG_STATE_HOME": str(folder), "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(inner)

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def wait_for(self, text: str) -> None:
        """Reads on until it was shown."""
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], 60)
            assert ready, f"{text!r} was not shown: {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 1 << 16).decode()
            except OSError as error:  # Linux reports so that the terminal is closed.
                raise AssertionError(f"the shell has ended: {self.seen!r}") from error
        self.seen = self.seen.partition(text)[2]

    def end(self) -> None:
        """Ctrl-D at the prompt; before it the key would mean nothing."""
        self.wait_for("kelek 7> ")
        self.type("\x04")
        assert self.process.wait(60) == 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.fd)


def test_a_shell_at_a_terminal(cluster: TableServers, tmp_path: Path) -> None:
    pytest.importorskip("readline")
    with closing(Terminal(tmp_path)) as terminal:
        terminal.wait_for("kelek 7> ")
        terminal.type("put k vvv\n")
        terminal.wait_for("kelek 7> ")
        terminal.type("sca\t--ke\t\n")
        terminal.wait_for("scan --keys-only")
        terminal.wait_for("\nk\r\n")
        terminal.wait_for("kelek 7> ")
        terminal.type("get no\n")
        terminal.wait_for("no key no")
        terminal.end()
    with closing(Terminal(tmp_path)) as again:
        again.wait_for("kelek 7> ")
        again.type("\x1b[A\x1b[A\n")  # The line before the last one, of the shell before.
        again.wait_for("\nk\r\n")
        again.end()


def shell_of(number: int | None) -> Any:
    return Shell(main, None, number)


def test_completion() -> None:
    shell = shell_of(None)
    assert shell.complete("ta", "ta") == ["table"]
    assert shell.complete("table co", "co") == ["compact", "copy", "count"]
    assert shell.complete("us", "us") == ["use"]
    assert "--keys-only" in shell.complete("table scan 7 --ke", "--ke")
    assert shell.complete("ge", "ge") == []
    assert shell.complete("jo", "jo") == ["jobs"]
    assert shell.complete("jobs --ru", "--ru") == ["--running"]
    with_table = shell_of(7)
    assert with_table.complete("ge", "ge") == ["get"]
    assert with_table.complete("scan --rev", "--rev") == ["--reverse"]
    assert with_table.complete("load 'open", "'open") == []
    assert with_table.prompt == "kelek 7> "


def test_files_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights.csv").touch()
    (tmp_path / "folder").mkdir()
    assert shell_of(7).complete("load f", "f") == ["flights.csv", "folder/"]


def test_tables_have_names(cluster: TableServers) -> None:
    code, line = fails("table", "scan", "users")
    assert (code, line) == (1, "kelek: no table has the name users; list them: kelek table list")
    for words in (["get", "users", "k"], ["drop", "users"], ["copy", "users", "7"]):
        assert fails("table", *words)[0] == 1
    assert cluster.store.writes == []
    ok("table", "put", "users", "k", "v")
    ok("table", "put", "7", "k", "w")
    assert ok("table", "scan", "users") == "k\tv\n"
    assert ok("table", "count", "users", "-o", "json") == '{"table": "users", "keys": 1}\n'
    assert json.loads(ok("table", "list", "-o", "json"))[0]["name"] == "users"
    lines = ok("table", "list").splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["name", "table"], ["users", "2147483648"], ["7", "1"], ["(names", "and"]
    ]  # fmt: skip
    assert lines[-1].split()[2:4] == ["schemas)", "4294967291"]
    assert json.loads(ok("table", "list", "-o", "json"))[-1]["use"] == "names and schemas"
    ok("table", "rename", "7", "old")
    ok("table", "rename", "users", "people")
    assert ok("table", "get", "people", "k") == "v\n"
    assert fails("table", "rename", "people", "old")[1].endswith("another table has the name old")
    assert fails("table", "rename", "people", "a b")[0] == 2
    assert fails("table", "scan", "a/b")[0] == 2
    assert "1 key would be deleted; add --yes" in fails("table", "drop", "people")[1]
    ok("table", "drop", "people", "--yes")
    assert fails("table", "get", "people", "k")[0] == 1
    assert ok("table", "get", "7", "k") == "w\n"
    text = "use old\nget k\nput b c\nscan\nuse a/b\n"
    said = run("shell", stdin=text.encode())
    assert said.stdout.splitlines() == ["w", "b\tc", "k\tw"]
    assert said.exit_code == 2


def test_versions_of_keys(kelek_cluster: LocalCluster) -> None:
    topology = "-t", kelek_cluster.topology
    ok("table", "open", "versioned", "--versions", *topology)
    words = "table", "put", "versioned", "k", "v", "-o", "json", *topology
    last = [json.loads(ok(*words))["index"] for _ in range(2)][-1]
    get = "table", "get", "versioned", "k", "-v", *topology
    key, value, index, changed, changes = ok(*get).rstrip().split("\t")
    assert [key, value, int(changed), int(changes)] == ["k", "v", last, 2]
    assert int(index) >= last
    assert json.loads(ok(*get, "-o", "json"))["version"] == {"index": last, "changes": 2}


def test_values_that_depend_on_the_values_before(cluster: TableServers) -> None:
    assert ok("table", "increment", "counts", "n") == "1\n"
    assert ok("table", "increment", "counts", "n", "--", "-3") == "-2\n"
    assert ok("table", "append", "counts", "n", "x") == "3\n"
    assert "no whole number" in fails("table", "increment", "counts", "n")[1]
    ok("table", "expire", "counts", "n", "60")
    ok("table", "expire", "counts", "n")
    code, line = fails("table", "expire", "counts", "none", "60")
    assert (code, line) == (1, "kelek: table counts: no key none")
    said = ok("table", "watch", "counts", "--snapshot", "--quiet", "0.001")
    assert said.split()[1:] == ["n", "=", "-2x"]
    assert fails("table", "watch", "7", "--snapshot", "--after", "1")[0] == 2
