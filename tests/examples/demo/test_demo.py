"""The demo on a few flights of our own: its proof, and what it says when the proof fails."""

import hashlib
import json
import re
import socket
import zipfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from kelek.actors.topology import topology as topologies
from kelek.clients.table.table import Table
from kelek.console.cli_errors import CliError
from kelek.examples.demo import __main__ as demo
from kelek.examples.demo import pipeline as demo_pipeline
from kelek.examples.demo import services as demo_services
from kelek.examples.demo import tables as demo_tables
from kelek.examples.demo.cluster import Cluster, is_free, wipe
from kelek.examples.demo.flights import Flights, log_hash, read_flights
from kelek.tests.clients.table.table_servers import TableServers

FLIGHTS = 4000
TABLES = "127.0.0.1:7100"


def write_flights(path: Path, count: int = FLIGHTS) -> Path:
    """Of a handful of carriers, some minutes apart."""
    lines = ["year,month,day,hour,minute,dep_delay,carrier,flight"]
    for n in range(count):
        when = f"2013,{n % 12 + 1},{n % 28 + 1},{n % 24},{n % 60}"
        lines.append(f"{when},{n % 100 - 10},{['UA', 'DL', 'AA'][n % 3]},{n}")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join(lines) + "\n")
    return path


def test_flights_are_the_lines_without_the_header(tmp_path: Path) -> None:
    header, flights = read_flights(write_flights(tmp_path / "f.zip", 2))
    assert header.startswith(b"year,")
    assert flights == [b"2013,1,1,0,0,-10,UA,0", b"2013,2,2,1,1,-9,DL,1"]
    first, second = flights
    expected = b"\x15\0\0\0" + first + b"\x14\0\0\0" + second
    assert log_hash(flights) == hashlib.sha256(expected).hexdigest()


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.zip").write_text("no archive")
    with pytest.raises(CliError, match=r"f\.zip"):
        read_flights(tmp_path / "f.zip")


def test_only_a_demo_directory_is_wiped(tmp_path: Path) -> None:
    wipe(tmp_path / "new")
    (tmp_path / "new" / "n1").mkdir()
    wipe(tmp_path / "new")
    assert not (tmp_path / "new" / "n1").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "log").write_text("dear")
    with pytest.raises(CliError, match="has not made"):
        wipe(tmp_path / "mine")
    assert (tmp_path / "mine" / "log").exists()


TOPOLOGY = """
cluster: small
data: var
raft: {election_timeout_ms: [400, 600], update_ttl_s: 8 h}
nodes:
  n1: {url: 'tcp://127.0.0.1:%d', peer_url: 'ipc:///tmp/kelek-peer-1'}
  n2: {url: 'tcp://127.0.0.1:%d', peer_url: 'ipc:///tmp/kelek-peer-2'}
"""


def test_a_new_node_has_a_topology_and_addresses_of_its_own(shell: Any) -> None:
    first, second = (int(port.rpartition(":")[2]) for port in [*shell.addresses.values()][:2])
    path = shell.folder / "two.yaml"
    path.write_text(TOPOLOGY % (first, second))
    (shell.folder / "var").mkdir()
    cluster = Cluster(topologies.load(str(path)))
    assert cluster.new_node() == "n3"
    found = topologies.load(str(shell.folder / "var" / "topology.yaml"))
    before = cluster.topology
    assert list(found.nodes) == ["n1", "n2", "n3"]
    assert found.data_dir.resolve() == before.data_dir.resolve()
    assert (found.cluster, found.raft, found.log) == (before.cluster, before.raft, before.log)
    new = found.nodes["n3"]
    assert cluster.urls["n3"] == new.url
    assert int(new.url.rpartition(":")[2]) > max(first, second)
    assert new.peer_url == "ipc:///tmp/kelek-peer-2-new"
    assert new.broadcast_url == ""


def test_a_port_in_use_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert not is_free("127.0.0.1", port)
    assert is_free("127.0.0.1", port)


def test_two_nodes_are_too_few(shell: Any) -> None:
    path = shell.folder / "two.yaml"
    path.write_text(TOPOLOGY % (20_001, 20_002))
    write_flights(shell.folder / "f.zip")
    done = shell.run("python -m kelek.examples.demo --data f.zip --topology two.yaml")
    assert done.returncode == 2
    assert "2 nodes can't lose one" in done.stderr
    assert not (shell.folder / "var").exists()


def test_none_is_left_when_one_can_not_start(shell: Any) -> None:
    write_flights(shell.folder / "f.zip")
    host, _, port = shell.addresses["127.0.0.1:7201"].partition(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        done = shell.run("python -m kelek.examples.demo --data f.zip")
    assert done.returncode == 2
    assert f":{port}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert shell.run("supervisor status topology.yaml").returncode == 3, "nothing runs"


def row(node: str, role: str, **values: Any) -> dict[str, Any]:
    return {"node": node, "role": role, "hash": "h", **values}


def test_rows_of_the_table_are_the_flights(tmp_path: Path) -> None:
    file = read_flights(write_flights(tmp_path / "f.zip", 100))
    rows = demo_tables.rows_of(*file)
    assert rows[1] == (b"DL/2013-02-02T01:01/1/000002", file.lines[1])
    assert demo_tables.flights_of(sorted(rows)) == file.lines
    with pytest.raises(CliError, match="no column carrier"):
        demo_tables.rows_of(b"year,month,day,hour,minute,flight", file.lines)


def test_questions_have_the_answers_of_the_file(tmp_path: Path) -> None:
    file = read_flights(write_flights(tmp_path / "f.zip", 300))
    rows = demo_tables.rows_of(*file)
    with (
        closing(TableServers(tmp_path)) as servers,
        Table(servers.urls, demo_tables.TABLE) as table,
    ):
        table.put_many(rows)
        for question in demo_tables.questions_of(rows):
            assert question.ask(table) == question.expected
            assert demo_tables.shown(question.expected)


DELAYS = b"""carrier,flight,dep_delay,origin,tailnum,time_hour
UA,1,-4,EWR,N1,2013-01-01T10:00:00Z
UA,2,30,EWR,N2,2013-01-01T10:00:00Z
UA,3,NA,EWR,N3,2013-01-01T11:00:00Z
DL,4,7,LGA,N4,2013-01-01T10:00:00Z""".split(b"\n")
TABLE_URLS = {"n1": "tcp://127.0.0.1:1"}


def test_what_spark_counts_is_compared_with_the_file(tmp_path: Path) -> None:
    file = Flights(DELAYS[0], DELAYS[1:])
    with closing(TableServers(tmp_path)) as servers, Table(servers.urls, 2) as table:
        table.put(b"05/UA/EWR/fair/unknown", b'{"flights": 1, "minutes": -4}')
        table.put(b"05/UA/EWR/fog/unknown", b'{"flights": 1, "minutes": 30}')
        assert demo_pipeline.sums_of(table) != demo_pipeline.expected_sums(file)
        table.put(b"05/DL/LGA/fog/unknown", b'{"flights": 1, "minutes": 7}')
        assert demo_pipeline.sums_of(table) == demo_pipeline.expected_sums(file)


def test_a_pipeline_that_can_not_be_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_pipeline, "NEEDED", {"json": "nothing"})
    assert demo_pipeline.why_not(TABLE_URLS, DELAYS[0]) == ""
    assert "serves tables" in demo_pipeline.why_not({}, DELAYS[0])
    assert "no column dep_delay" in demo_pipeline.why_not(
        TABLE_URLS, DELAYS[0].replace(b"dep_", b"")
    )
    monkeypatch.setattr(demo_pipeline, "NEEDED", {"no_such_spark": "kelek[spark]"})
    assert "pip install 'kelek[spark]'" in demo_pipeline.why_not(TABLE_URLS, DELAYS[0])
    monkeypatch.setattr(demo_pipeline, "EXAMPLE", Path("nowhere.py"))
    assert "nowhere.py is not there" in demo_pipeline.why_not(TABLE_URLS, DELAYS[0])


SERVED = b"year,month,day,dep_time,sched_dep_time,dep_delay,carrier"
PAIRS = [(b"UA/1", b"2013,1,1,517,515,2,UA"), (b"UA/2", b"2013,1,1,NA,520,NA,UA")]


def served(tmp_path: Path, broker: str = "") -> demo_services.Services:
    """The chapter of a topology that is never started."""
    path = tmp_path / "t.yaml"
    path.write_text(
        f"cluster: c\ndata: .\nnodes: {{n1: {{{broker} url: 'ipc:///u', peer_url: 'ipc:///p'}}}}\n"
    )
    tables: Any = SimpleNamespace(
        rows=PAIRS, table_urls=TABLE_URLS, cluster=SimpleNamespace(keys={})
    )
    return demo_services.Services(topologies.load(str(path)), tables)


BROKER = "broker: {clients_url: 'ipc:///no-one', workers_url: 'ipc:///no-one'},"


def test_a_service_that_can_not_be_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why_not, topology = demo_services.why_not, served(tmp_path, BROKER).topology
    assert why_not(topology, TABLE_URLS, SERVED) == ""
    assert "has a broker" in why_not(served(tmp_path).topology, TABLE_URLS, SERVED)
    assert "serves tables" in why_not(topology, {}, SERVED)
    assert "dep_delay is not column 6" in why_not(
        topology, TABLE_URLS, SERVED.replace(b"year,", b"")
    )
    monkeypatch.setattr(demo_services, "EXAMPLE", "examples.nothing:here")
    assert "in a clone of the repository" in why_not(topology, TABLE_URLS, SERVED)


@pytest.mark.parametrize(
    ("answers", "counters", "wrong"),
    [
        ([b"2", b"NA"], {"brokers": 1}, []),
        ([b"2", b"7"], {"brokers": 1}, ["1 answers of flights.delay are wrong: b'UA/2' b'7'"]),
        ([b"2", b"NA"], {"brokers": 1, "strays": 3}, ["3 answers of flights.delay came twice"]),
        ([b"2", b"NA"], {"brokers": 2, "strays": 3}, []),  # Asked twice, over two connections.
    ],
)
def test_what_a_service_answers_is_compared_with_the_file(
    answers: list[bytes], counters: dict[str, int], wrong: list[str], tmp_path: Path
) -> None:
    services = served(tmp_path)
    services.check(answers, counters)
    assert services.problems == wrong


def test_the_end_of_a_worker_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_services, "EXAMPLE", "examples.flight_delays:nothing")
    monkeypatch.setattr(demo_services.Services, "_known", lambda self, broker: 0)
    with pytest.raises(CliError, match=r"2 workers are not there; see .*services\.log"):
        served(tmp_path, BROKER).run()
    assert "has no nothing" in (tmp_path / "services.log").read_text()


def test_a_pipeline_that_fails_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = tmp_path / "example.py"
    example.write_text("raise SystemExit('no Java here')")
    monkeypatch.setattr(demo_pipeline, "EXAMPLE", example)
    cluster = SimpleNamespace(keys={}, topology=SimpleNamespace(data_dir=tmp_path))
    tables: Any = SimpleNamespace(table_urls=TABLE_URLS, cluster=cluster)
    done = demo_pipeline.run(tables, Flights(DELAYS[0], DELAYS[1:]))
    assert done.problems == [f"the pipeline ended with 1; see {tmp_path / 'pipeline.log'}"]
    assert (tmp_path / "pipeline.log").read_text() == "no Java here\n"


def test_misuse_is_one_line() -> None:
    done = CliRunner().invoke(demo.main, ["--flights", "0"], prog_name="./demo")
    assert done.exit_code == 2
    assert done.stderr.startswith("./demo: ")
    assert done.stderr.endswith("; see `./demo --help`\n")
    assert done.stderr.count("\n") == 1


class FakeLog:
    """A log that holds what it is told, behind a checkpoint."""

    def __init__(self, *flights: bytes) -> None:
        self.all = [(2, b""), *((0, flight) for flight in flights)]

    def entries(self, after: int) -> list[Any]:
        numbered = enumerate(self.all, 1)
        entries = [SimpleNamespace(index=i, type=kind, data=data) for i, (kind, data) in numbered]
        return entries[after:]


@pytest.mark.parametrize(
    ("held", "wrong"),
    [
        ([b"a", b"b"], ""),
        ([b"a"], "1 flights are missing"),
        ([b"b", b"a"], "entry 2 is not flight 1 of 2"),
        ([b"a", b"a", b"b"], "entry 3 is not flight 2 of 2"),
        ([b"a", b"b", b"b"], "entry 4 is not flight 3 of 2"),
    ],
)
def test_a_log_holds_each_flight_once_in_order(held: list[bytes], wrong: str) -> None:
    log: Any = FakeLog(*held)
    assert demo.same_entries(log, [b"a", b"b"]) == wrong


def test_entries_before_are_not_read_again() -> None:
    log: Any = FakeLog(b"a", b"b", b"c")
    assert demo.same_entries(log, [b"b", b"c"], after=2) == ""


def test_waits_for_the_last_node() -> None:
    ask = demo.applied_by_all(["n1", "n2"], 10)
    first = [row("n1", "raft_peer", snapshot_index=7), row("n1", "state_machine", applied_index=10)]
    second = row("n2", "raft_peer", snapshot_index=0)
    assert ask([*first, second]) is None
    assert ask([*first, second, row("n2", "state_machine", applied_index=9)]) is None
    there = row("n2", "state_machine", applied_index=10)
    assert ask([*first, row("n2", "raft_peer"), there]) is None, "it has just been started"
    assert ask([*first, second, there]) == [
        demo.NodeProof("n1", 10, 7, "h"),
        demo.NodeProof("n2", 10, 0, "h"),
    ]


def ask(shell: Any, work: str, call: str) -> None:
    """What the demo says about its service is to be tried."""
    worker = shell.start(work.removesuffix("&"), FLIGHTS_URLS=f"tcp://{shell.addresses[TABLES]}")
    try:
        assert re.fullmatch(r"-?\d+\n", shell.ok(f"{call} --timeout 60"))
    finally:
        worker.terminate()
        said, _ = worker.communicate()
    assert worker.returncode == 0
    assert said.decode().endswith("ended service=flights.delay answered=1 failed=0\n")


@pytest.mark.tables
def test_demo_on_a_cluster(shell: Any) -> None:
    write_flights(shell.folder / "f.zip")
    command = "python -m kelek.examples.demo --data f.zip --fast"
    wipe(shell.folder / "var" / "demo")  # As one before this has left it.
    (shell.folder / "var" / "demo" / "n1").mkdir()
    shown = shell.ok(command)
    assert "SIGKILL to the leader's whole node" in shown
    assert shown.count(log_hash(read_flights(shell.folder / "f.zip").lines)) == 5
    assert re.search(r"each flight once, in order +yes", shown)
    assert re.search(r"each answered once, right +yes", shown)
    assert re.search(r"the pipeline in Spark +left out", shown)
    for step in (
        r"a snapshot on each node, of \d\.\d MB up to entry \d",
        "n4 added: it has caught up",
        r"n\d removed, and stopped",
        "the last 400 flights, with two of three members",
        r"n\d started again: by snapshot and log",
        r"n\d started, and added again",
        "n4 removed",
        "4,000 flights into table 1, by carrier and time",
        r"flights of \w\w",
        r"SIGKILL to n\d, which answered, until it is back [\d,]+ answers",
        "the same hash of the table on n1, n2, n3",
        "2 workers started",
        r"3,000 calls, 64 at once, [\d,]+/s, SIGKILL to worker \d+ among them",
        r"each answered, once, with the minutes of the CSV, [\d,]+ by the other worker",
    ):
        assert re.search(rf"^ +\d+\.\d\d s  {step}", shown, re.M), step
    assert "wiping" in shown
    shell.ok("supervisor start topology.yaml --detach")
    members = json.loads(shell.ok("kelek log members list -o json"))["members"]
    assert sorted(members) == ["n1", "n2", "n3"], "as the topology says"
    assert shell.ok("kelek table count 1") == "4000\n"
    ask(shell, *re.findall(r"kelek (?:worker run|call) .*", shown))
    done = shell.run(command)
    assert done.returncode == 2
    assert "runs already" in done.stderr
