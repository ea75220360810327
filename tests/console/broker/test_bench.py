"""`kelek broker bench`, against a broker's process."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import msgpack
import pytest

import kelek
from kelek.console import cli_errors
from kelek.console.broker.bench import Measurement
from kelek.protocols.majordomo.codec import Failure
from kelek.tests.actors.broker.broker_process import BrokerProcess
from kelek.tests.clients.broker.services import echo, fails, serving
from kelek.tests.console.kelek_runner import run as run_kelek
from kelek.tests.waiting import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    process = BrokerProcess(inflight_max=50, heartbeat_interval_ms=60_000)
    process.wait_for("ready")
    yield process
    assert process.stop() == 0


def run(broker: BrokerProcess, *words: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    command = ["broker", "bench", "--url", broker.clients_url, "--timeout", "60", *words]
    result = run_kelek(*command)
    return result.exit_code, result.stdout, result.stderr


def services(broker: BrokerProcess) -> dict[str, int]:
    """The workers of each service."""
    with kelek.Broker(broker.clients_url, timeout_ms=60_000) as client:
        rows = [msgpack.unpackb(row) for row in client.call("klk.services").frames if row]
    return {row["name"]: row["workers"] for row in rows}


def test_workers_of_its_own(broker: BrokerProcess) -> None:
    words = ["--workers-url", broker.workers_url, "--workers", "2", "--outstanding", "40"]
    code, shown, said = run(broker, *words, "--count", "1000", "--alone", "5", "-o", "json")
    assert (code, said) == (0, "")
    figures = json.loads(shown)
    assert figures["broker"] == broker.clients_url
    assert {
        key: figures[key] for key in ("requests", "outstanding", "bytes", "alone", "failed")
    } == {
        "requests": 1000,
        "outstanding": 40,
        "bytes": 64,
        "alone": 5,
        "failed": 0,
    }
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert figures["requests_per_s"] > 0
    assert not services(broker).get(figures["service"]), "they have gone home"


def test_a_service_of_the_user(broker: BrokerProcess) -> None:
    with serving(echo, fails, urls=broker.workers_url):
        wait_until(lambda: {"echo", "fails"} <= services(broker).keys())
        code, shown, said = run(broker, "echo", "a", "bc", "--count", "20", "--outstanding", "8")
        assert (code, said) == (0, "")
        pipelined, alone = shown.splitlines()
        assert pipelined.startswith("pipelined  20 x 3 B, 8 at a time")
        assert "requests/s  p50 " in pipelined
        assert alone.startswith("alone      200 x 3 B  p50 ")
        few = ["--count", "9", "--outstanding", "3", "--alone", "0"]
        code, shown, said = run(broker, "fails", *few)
        assert shown.startswith("pipelined  9 x 64 B")
        assert code == cli_errors.FAILED
        assert said.endswith("9 requests have failed: 500 ValueError: no good\n")


def test_more_at_a_time_than_the_broker_takes(broker: BrokerProcess) -> None:
    words = ["--workers-url", broker.workers_url, "--outstanding", "500", "--count", "600"]
    code, _, said = run(broker, *words)
    assert code == cli_errors.FAILED
    assert "429 this client has too many requests in work; take fewer --outstanding" in said


def test_a_silent_worker(broker: BrokerProcess) -> None:
    worker = broker.worker()
    worker.send_multipart([b"KLKW01", b"\1", b"mute"])
    wait_until(lambda: services(broker).get("mute"))
    code, _, said = run(broker, "mute", "--timeout", "0.2", "--count", "5")
    worker.send_multipart([b"KLKW01", b"\6"])
    assert code == cli_errors.FAILED
    assert "requests are unanswered, and no answer for 0.2 s" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give it with --workers-url, or a SERVICE whose workers run"),
        (["nobody"], "it has no worker; start one: kelek worker run"),
        (["é"], "printable"),
        (["--workers-url", "nowhere"], "tcp://HOST:PORT"),
        (["--workers-url", "FRONT", "--timeout", "1"], "is this its url for workers?"),
        (["--outstanding", "9999", "--size", "99999"], "take fewer or smaller ones"),
    ],
)
def test_what_can_not_be_measured_is_one_line(
    broker: BrokerProcess, words: list[str], said: str
) -> None:
    code, _, line = run(broker, *(word.replace("FRONT", broker.clients_url) for word in words))
    assert code in (cli_errors.FAILED, cli_errors.IMPOSSIBLE)
    assert said in line
    assert line.count("\n") == 1


def test_its_workers_end_with_it(broker: BrokerProcess) -> None:
    command = [sys.executable, "-P", "-m", "kelek.console.kelek_cli", "broker", "bench"]
    addresses = ["--url", broker.clients_url, "--workers-url", broker.workers_url]
    count = ["--count", "100000000", "--outstanding", "1"]
    with subprocess.Popen([*command, *addresses, *count]) as process:

        def working() -> bool:
            return any(name.startswith("bench.") and n for name, n in services(broker).items())

        try:
            wait_until(working)
        finally:
            process.send_signal(signal.SIGKILL)
    wait_until(lambda: not working())


def test_figures() -> None:
    measured = Measurement(0.5, [n * 1_000_000 for n in range(1, 201)], Counter())
    assert (measured.rate, measured.percentiles()) == (400, {"p50_ms": 101.0, "p99_ms": 199.0})
    short = Measurement(0.0, [5_000], Counter([Failure(1, "")]))
    assert short.percentiles("alone_")["alone_p99_ms"] == 0.005
