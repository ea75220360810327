"""`kelek call` and `kelek worker`, against the model's broker; the worker is a process."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner

import kelek
from kelek.console import cli_errors
from kelek.console.kelek_cli import main
from kelek.protocols.majordomo.codec import Failure
from kelek.tests.clients.broker.broker_thread import BrokerThread
from kelek.tests.console.kelek_runner import fails, ok, run

SERVED = '''
import kelek

@kelek.service("add")
def add(body):
    """Adds up the frames."""
    if body == b"7":
        raise kelek.ServiceRefused(409, "no sevens")
    return str(sum(int(frame) for frame in body.frames))

@kelek.service("count")
def count(body):
    for number in range(int(body)):
        yield str(number)

def plain(body):
    return [body, b"\\xff"]

number = 7
'''


@pytest.fixture
def host(tmp_path: Path) -> Iterator[BrokerThread]:
    host = BrokerThread(tmp_path)
    yield host
    host.close()


@contextmanager
def working(place: Path, *words: str) -> "Iterator[subprocess.Popen[str]]":
    """A worker process; it is asked to end, and does so by itself."""
    (place / "served.py").write_text(SERVED, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "kelek.console.kelek_cli", "worker", "run", *words]
    with subprocess.Popen(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def call(*words: str) -> str:
    return ok("call", *words)


def test_a_service_from_a_shell(host: BrokerThread, tmp_path: Path) -> None:
    front, back = ["--url", host.front_url, "--timeout", "60"], ["--url", host.back_url]
    with working(tmp_path, "served:add", *back) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == f"serving service=add brokers={host.back_url}\n"
        assert call("add", "40", "2", *front) == "42\n"
        assert json.loads(call("add", "1", "-o", "json", *front)) == {"final": True, "body": "1"}
        assert call("add", "1", "--identity", "desk", "--id", "0xff", *front) == "1\n"
        assert b"desk" in host.names
        code, line = fails("call", "add", "x", *front)
        assert code == cli_errors.FAILED
        assert line.startswith(f"kelek: {host.front_url}: service add: ValueError: invalid literal")
        assert "no sevens (code 409)" in fails("call", "add", "7", *front)[1]
        worker.send_signal(signal.SIGTERM)
        stdout, stderr = worker.communicate(timeout=60)
        assert worker.returncode == 0
        assert stdout == "ended service=add answered=5 failed=2\n"
        assert "kelek: add: ValueError: invalid literal" in stderr
        assert "no sevens" not in stderr, "it is an answer"


def test_a_call_without_workers_says_so_while_it_waits(host: BrokerThread) -> None:
    result = run("call", "nothing", "--url", host.front_url, "--timeout", "0.3")
    assert result.exit_code == cli_errors.FAILED
    first = result.stderr.splitlines()[0]
    assert first.startswith("kelek: nothing: no worker offers it now; waiting up to 0.3 s")


def test_a_call_of_what_is_no_broker(tmp_path: Path) -> None:
    url = f"ipc://{tmp_path}/router"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(url)
        code, line = fails("call", "add", "1", "--url", url, "--timeout", "1")
    assert code == cli_errors.FAILED
    assert line == f"kelek: {url}: no answer within 1 s; is it a broker's `clients_url`?"


def test_parts_from_a_shell(host: BrokerThread, tmp_path: Path) -> None:
    front, back = ["--url", host.front_url, "--timeout", "60"], ["--url", host.back_url]
    with working(tmp_path, "served:count", "--concurrency", "2", *back):
        assert call("count", "3", "--partials", *front) == "0\n1\n2\n"
        result = CliRunner().invoke(main, ["call", "count", "3", *front], prog_name="kelek")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "kelek: count: 3 parts are left out; show them: --partials\n"
        lines = call("count", "1", "--partials", "-o", "json", *front).splitlines()
        assert [json.loads(line) for line in lines] == [
            {"final": False, "body": "0"},
            {"final": True, "body": ""},
        ]


def test_a_plain_function_needs_a_name(host: BrokerThread, tmp_path: Path) -> None:
    front, back = ["--url", host.front_url, "--timeout", "60"], ["--url", host.back_url]
    with working(tmp_path, "served:plain", "--name", "two", "--window", "5", *back):
        assert json.loads(call("two", "0x61", "-o", "json", *front)) == {
            "final": True,
            "frames": [{"body": "a"}, {"body_base64": "/w=="}],
        }


def test_a_worker_without_a_broker_reports_it(host: BrokerThread, tmp_path: Path) -> None:
    absent = f"ipc://{tmp_path}/absent"
    with working(tmp_path, "served:add", "--url", absent) as worker:
        assert worker.stderr is not None
        said = worker.stderr.readline()
    waits = f"kelek: service 'add' gets no requests: no connection to {absent}; "
    assert said == waits + "does a broker take workers there?\n"
    # With a topology the command that starts the broker is known.
    topology = (
        "cluster: c\nnodes: {n1: {url: 'tcp://127.0.0.1:9', peer_url: 'tcp://127.0.0.1:10',\n"
        f"  broker: {{clients_url: 'ipc://{tmp_path}/c', workers_url: '{absent}'}}}}}}\n"
    )
    (tmp_path / "t.yaml").write_text(topology)
    with working(tmp_path, "served:add", "-t", "t.yaml") as worker:
        assert worker.stderr is not None
        said = worker.stderr.readline()
    assert said.endswith("; start it: supervisor start t.yaml\n"), said


def test_a_call_loads_little() -> None:
    """The figure is time, below 200 ms; what takes the time is loading modules."""
    code = (
        "import sys; import kelek.console.kelek_cli, kelek.console.broker.commands; "
        "heavy = {'yaml', 'asyncio', 'concurrent.futures', 'kelek.clients.broker.service_worker'}; "
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


def test_answers_of_the_broker(host: BrokerThread) -> None:
    host.refuse.append(Failure(504, "no worker took it in time"))
    result = run("call", "x", "--url", host.front_url)
    assert result.exit_code == cli_errors.FAILED
    _, line = result.stderr.splitlines()  # The first one says that it waits for a worker.
    assert "no worker took it in time; does a worker run? kelek worker run" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["call", "x", "--url", "nowhere"], "tcp://HOST:PORT"),
        (["call", "x", "--url", "ipc:///x", "-t", "y"], "leave one of them out"),
        (["call", "x", "-t", "nowhere.yaml"], "nowhere.yaml"),
        (["call", "", "--url", "ipc:///x"], "1 to 255 printable"),
        (["call", "x", "--id", "7", "--url", "ipc:///x"], "--identity; give one, too"),
        (["call", "x", "--identity", "0x00", "--url", "ipc:///x"], "the first one not 0"),
        (["call", "x", "--identity", "a", "--id", "", "--url", "ipc:///x"], "1 to 255 octets"),
        (["call", "x", "0xq", "--url", "ipc:///x"], "hexadecimal"),
        (["call", "x", "-t", "bare.yaml"], "no node has a broker"),
        (["worker", "run", "served", "--url", "ipc:///x"], "MODULE:FUNCTION"),
        (["worker", "run", "served:number", "--url", "ipc:///x"], "not a function"),
        (["worker", "run", "served:nothing", "--url", "ipc:///x"], "has no nothing"),
        (["worker", "run", "served:plain", "--url", "ipc:///x"], "--name"),
        (["worker", "run", "served:plain", "--name", "mmi.x", "--url", "ipc:///x"], "broker's own"),
    ],
)
def test_what_can_not_work_is_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "served.py").write_text(SERVED, encoding="utf-8")
    bare = (
        "cluster: c\nnodes: {n1: {url: 'tcp://127.0.0.1:7998', peer_url: 'tcp://127.0.0.1:7999'}}\n"
    )
    (tmp_path / "bare.yaml").write_text(bare, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, line = fails(*words)
    assert code == cli_errors.IMPOSSIBLE
    assert line.startswith("kelek: ")
    assert said in line


def test_modules_that_can_not_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_service.py").write_text("def f(:\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, line = fails("worker", "run", "broken_service:f", "--url", "ipc:///x")
    assert code == cli_errors.FAILED
    assert "broken_service.py:1:" in line
    (tmp_path / "needs_more.py").write_text("import no_such_library\n", encoding="utf-8")
    code, line = fails("worker", "run", "needs_more:f", "--url", "ipc:///x")
    assert code == cli_errors.FAILED
    assert "no_such_library" in line


def test_a_module_that_is_not_there_is_a_wrong_argument_as_a_function_is() -> None:
    for target in ("no_such_service:f", "no_such.service:f", "json.no_such:f", "json:no_such"):
        code, line = fails("worker", "run", target, "--url", "ipc:///x")
        assert code == cli_errors.IMPOSSIBLE, line
        assert "no_such" in line


def test_an_unreachable_server_is_reported_soon(tmp_path: Path) -> None:
    code, line = fails("call", "x", "--url", f"ipc://{tmp_path}/absent", "--timeout", "0.2")
    assert code == cli_errors.FAILED
    assert "does a broker run there?" in line


def test_the_urls_of_a_topology(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "cluster: c\nbroker: {client_header: ABC, heartbeat_interval_ms: 700}\n"
        "nodes:\n  n1:\n    url: tcp://127.0.0.1:7998\n"
        "    peer_url: tcp://127.0.0.1:7999\n"
        "    broker: {clients_url: 'ipc:///c', workers_url: 'ipc:///w'}\n",
        encoding="utf-8",
    )
    from kelek.console.broker.target import CLIENTS_URL, WORKERS_URL, resolve_brokers

    found = resolve_brokers(str(path), (), CLIENTS_URL)
    assert found.urls == ("ipc:///c",)
    assert found.headers.client == b"ABC"
    assert resolve_brokers(str(path), (), WORKERS_URL).urls == ("ipc:///w",)
    assert found.interval_ms == 700
    assert kelek.BrokerTuning(headers=found.headers).headers.worker == b"KLKW01"
