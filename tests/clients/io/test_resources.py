"""Clients that a program drops or leaves open delay neither the garbage collector nor its exit."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import zmq

import kelek
from kelek.bench.ports import free_udp_port
from kelek.tests.clients.broker.broker_thread import BrokerThread
from kelek.tests.clients.broker.services import serving
from kelek.tests.clients.log.log_peers import LogPeers
from kelek.tests.clients.table.table_servers import TableServers

LIMIT_S = 90
EXIT_S = 8  # Nodes say goodbye for a second; the machine may be busy.


@kelek.service("parts", concurrency=16)  # A dropped client occupies one for 2 to 3 s.
def parts(body: kelek.Body) -> Iterator[str]:
    for number in range(int(body)):
        yield str(number)


@contextmanager
def servers(kind: str, folder: Path) -> Iterator[str]:
    """Servers for a client of this kind; yields their urls."""
    name = kind.removeprefix("Async")
    if name == "Table":
        with closing(TableServers(folder)) as tables:
            yield ",".join(tables.urls)
    elif name == "Log":
        with closing(LogPeers(folder)) as peers:
            yield ",".join(peers.urls)
    elif name == "Node":
        yield str(free_udp_port())
    else:
        # The dropped client reads no further, so its stream never ends.
        quick = kelek.WorkerTuning(drain_ms=500)
        with (
            closing(BrokerThread(folder)) as host,
            serving(parts, urls=host.back_url, tuning=quick),
        ):
            yield host.back_url if name == "Worker" else host.front_url


KINDS = [
    *("Table", "Log", "Broker", "Node"),
    *("AsyncTable", "AsyncLog", "AsyncBroker", "AsyncNode", "Worker"),
]


@pytest.mark.parametrize("kind", [*KINDS, "Farm", "AsyncFarm"])
def test_a_client_without_servers_is_dropped_at_once(kind: str) -> None:
    """The server takes connections and never answers; what the client sends stays unsent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "kelek.tests.clients.io.dropped_clients", kind, url],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    assert time.monotonic() - float(done.stdout) < EXIT_S


@pytest.mark.parametrize("kind", KINDS)
def test_an_unclosed_client_delays_neither_collector_nor_exit(kind: str, tmp_path: Path) -> None:
    with servers(kind, tmp_path) as url:
        leave_open(kind, url)


def leave_open(kind: str, url: str) -> None:
    """Runs the program that closes no client."""
    done = subprocess.run(
        [sys.executable, "-m", "kelek.tests.clients.io.unclosed_clients", kind, url],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "the end" in done.stdout, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    assert f"unclosed kelek.{kind}: use " in done.stdout, done.stdout


def test_the_collector_does_not_wait_for_the_end_of_a_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a context waits for libzmq's thread, which may be resolving a host name."""
    ended, term = threading.Event(), zmq.Context.term

    def slow_term(context: zmq.Context[zmq.Socket[bytes]]) -> None:
        assert ended.wait(LIMIT_S)
        term(context)

    with servers("Table", tmp_path) as url, monkeypatch.context() as patch:
        patch.setattr(zmq.Context, "term", slow_term)
        table = kelek.Table(url.split(","))
        assert table.get(b"a") is None
        with pytest.warns(ResourceWarning, match=r"unclosed kelek\.Table"):
            del table
        ended.set()
