"""`kelek broker`, against a broker's process."""

import json
from collections.abc import Iterator

import pytest
import zmq
from click.testing import CliRunner

from kelek.console import cli_errors
from kelek.console.kelek_cli import main
from kelek.protocols.majordomo.values import OWN_ROWS_MAX
from kelek.tests.actors.broker.broker_process import BrokerProcess
from kelek.tests.console.kelek_runner import ok

C, W = b"KLKC01", b"KLKW01"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """A worker of `echo` that answers nothing, three requests for it, and some without a worker."""
    process = BrokerProcess(heartbeat_interval_ms=600_000, request_ttl_ms=600_000)
    process.wait_for("ready")
    worker, client = process.worker(), process.client()
    worker.send_multipart([W, b"\1", b"echo", b"\0\2"])
    worker.send_multipart([W, b"PING"])
    assert worker.recv_multipart() == [W, b"PONG"]
    client.setsockopt(zmq.SNDHWM, 0)
    for i in range(3):
        client.send_multipart([C, b"\1", b"echo", b"%d" % i, b"x"])
    for i in range(OWN_ROWS_MAX + 5):
        client.send_multipart([C, b"\1", b"nobody.%04d" % i, b"n%d" % i, b"x"])
    while process.wait_for("status")["requests"] < OWN_ROWS_MAX + 8:
        pass
    yield process
    assert process.stop() == 0


def listed(broker: BrokerProcess, *words: str) -> str:
    return ok("broker", *words, "--url", broker.clients_url, "--timeout", "60")


def test_services_workers_and_what_waits(broker: BrokerProcess) -> None:
    heads, line, *others = listed(broker, "services").splitlines()
    assert heads.split()[:6] == ["broker", "name", "workers", "working", "waiting", "waiting_bytes"]
    assert line.split()[:5] == [broker.clients_url, "echo", "1", "2", "1"]
    assert len(others) == OWN_ROWS_MAX + 5
    (worker,) = listed(broker, "workers", "-o", "json").splitlines()
    found = json.loads(worker)
    assert (found["service"], found["framing"], found["working"]) == ("echo", "TEXT", 2)
    assert found["number"] > 0
    assert "routing_id" not in found
    queued = [json.loads(line) for line in listed(broker, "queue", "-o", "json").splitlines()]
    assert len(queued) == OWN_ROWS_MAX + 6
    assert {one["waiting"] for one in queued} == {1}
    times = [one["oldest_ms"] for one in queued]
    assert times == sorted(times, reverse=True)


def test_an_unreachable_broker_is_one_line(broker: BrokerProcess) -> None:
    command = ["broker", "queue", "--url", "ipc:///tmp/nobody.kelek", "--timeout", "0.2"]
    result = CliRunner().invoke(main, command, prog_name="kelek")
    assert result.exit_code == cli_errors.FAILED
    assert "does a broker run there?" in result.stderr
