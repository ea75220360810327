"""Clients with keys: real sockets with CURVE, and what a user is told when one is refused."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pytest

import kelek
from kelek.bench.ports import free_ports
from kelek.net.links import ENDS, KEY_REFUSED, NEEDS_KEY, NO_CURVE, OTHER_KEY, LinkProblem
from kelek.tests.clients.curve_gate import CurveGate, new_key, write_key
from kelek.tests.clients.log.log_peers import LogPeers
from kelek.tests.clients.router_thread import RouterThread
from kelek.tests.clients.table.table_servers import TableServers

TIMEOUT_MS = 60_000
TOLD_S = 2.0


class SilentServer:
    """Records what it receives."""

    def __init__(self) -> None:
        self.received: list[list[bytes]] = []

    def on_frames(self, frames: list[bytes]) -> list[list[bytes]]:
        self.received.append(frames)
        return []


class Told(Exception):
    """Ends a call at its warning."""


class Warnings(logging.Handler):
    """Records warnings, and raises them in the call that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.raises = False

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if self.raises:
            raise Told(record.getMessage())


@pytest.fixture
def warnings() -> Iterator[Warnings]:
    handler = Warnings()
    logging.getLogger("kelek").addHandler(handler)
    yield handler
    logging.getLogger("kelek").removeHandler(handler)


@pytest.fixture
def gate() -> CurveGate:
    return CurveGate()


@pytest.fixture
def key(tmp_path: Path, gate: CurveGate) -> Path:
    """The file of a key that the gate allows."""
    allowed = new_key("orders")
    gate.allow(allowed)
    return write_key(tmp_path, allowed)


def tcp_urls(number: int) -> list[str]:
    return [f"tcp://127.0.0.1:{port}" for port in free_ports(number)]


# ---- requests ----


def test_a_table_with_keys(tmp_path: Path, gate: CurveGate, key: Path) -> None:
    urls = tcp_urls(3)
    with closing(TableServers(tmp_path, urls=urls, gate=gate)):
        pinned = dict.fromkeys(urls, gate.public_key)
        with kelek.Table(urls, 1, key=key, server_keys=pinned) as table:
            table.put(b"k", b"v")
            assert table.get(b"k") == b"v"

        async def get() -> Any:
            async with kelek.AsyncTable(urls, 1, key=key, server_keys=gate.public_key) as other:
                return await other.get(b"k")

        assert asyncio.run(get()) == b"v"


def test_a_log_with_keys(tmp_path: Path, gate: CurveGate, key: Path) -> None:
    """The leader's url comes from an answer, its key from the client."""
    urls = tcp_urls(3)
    with closing(LogPeers(tmp_path, urls, gate)) as peers:
        peers.elect("n2")
        pinned = dict.fromkeys(urls, gate.public_key)
        with kelek.Log(urls[0], key=key, server_keys=pinned) as log:
            assert log.append_many([b"1", b"2"]) == 2
            assert [entry.data for entry in log.entries()] == [b"1", b"2"]


def test_a_url_from_an_answer_without_a_pinned_key_is_not_connected_to(
    tmp_path: Path, gate: CurveGate, key: Path, warnings: Warnings
) -> None:
    urls = tcp_urls(3)
    with closing(LogPeers(tmp_path, urls, gate)) as peers, socket.socket() as listener:
        leader = peers.model.peers[1]
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        leader.url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        peers.elect("n2")
        pinned = dict.fromkeys(urls, gate.public_key)
        problem = f"{leader.url}: no key of this server"
        log = kelek.Log(urls[0], key=key, server_keys=pinned, timeout_ms=700)
        with log, pytest.raises(kelek.LogNoLeader, match=problem):
            log.append(b"x")
        told = [text for text in warnings.texts if text.startswith(f"kelek: {leader.url}")]
        assert told == [
            f"kelek: {leader.url}: no key of this server is known; add it to the server keys"
        ]
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_key_that_is_allowed_later_connects(tmp_path: Path, gate: CurveGate) -> None:
    """libzmq itself does not connect again after a refusal."""
    late = new_key("late")
    urls = tcp_urls(1)
    path = write_key(tmp_path, late)
    with closing(TableServers(tmp_path, urls=urls, gate=gate)):
        keys: dict[str, Any] = {"key": path, "server_keys": gate.public_key}
        with kelek.Table(urls, 1, timeout_ms=500, **keys) as table:
            with pytest.raises(kelek.TableUnavailable, match=KEY_REFUSED.text):
                table.put(b"k", b"v")
            gate.allow(late)
            table.timeout_ms = TIMEOUT_MS
            table.put(b"k", b"v")

        async def get() -> Any:
            never = new_key("never")
            keys["key"] = write_key(tmp_path, never)
            async with kelek.AsyncTable(urls, 1, timeout_ms=TIMEOUT_MS, **keys) as other:
                asyncio.get_running_loop().call_later(0.3, gate.allow, never)
                return await other.get(b"k")

        assert asyncio.run(get()) == b"v"


# ---- refusals ----


def append(url: str, **keys: Any) -> None:
    with kelek.Log(url, timeout_ms=TIMEOUT_MS, **keys) as log:
        log.append(b"secret")


def put(url: str, **keys: Any) -> None:
    with kelek.Table(url, 1, timeout_ms=TIMEOUT_MS, **keys) as table:
        table.put(b"secret", b"secret")


def call(url: str, **keys: Any) -> None:
    with kelek.Broker(url, timeout_ms=TIMEOUT_MS, **keys) as broker:
        broker.call("mail", b"secret")


def serve(url: str, **keys: Any) -> None:
    @kelek.service("mail")
    async def mail(body: kelek.Body) -> bytes:
        return b"secret"

    async def run() -> None:
        failed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failed.set_exception(context["exception"])
        )
        serving = asyncio.ensure_future(mail.serve(url, **keys))
        try:
            await failed
        finally:
            serving.cancel()

    asyncio.run(run())


class Refusal(NamedTuple):
    """A server and a client whose handshake fails, and what the user is told."""

    has_curve: bool
    key: str
    server_key: str
    problem: LinkProblem


REFUSALS = {
    "unknown key": Refusal(True, "unknown", "own", KEY_REFUSED),
    "wrong server key": Refusal(True, "orders", "other", OTHER_KEY),
    "no CURVE": Refusal(False, "orders", "own", NO_CURVE),
    "no key": Refusal(True, "", "", NEEDS_KEY),
}
UNSURE = {NO_CURVE: OTHER_KEY, NEEDS_KEY: ENDS}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refused_client_says_why_and_sends_nothing(
    tmp_path: Path, gate: CurveGate, key: Path, warnings: Warnings, refusal: Refusal
) -> None:
    (url,) = tcp_urls(1)
    server = SilentServer()
    keys: dict[str, Any] = {}
    if refusal.key:
        keys["key"] = key if refusal.key == "orders" else write_key(tmp_path, new_key("unknown"))
        own = refusal.server_key == "own"
        keys["server_keys"] = gate.public_key if own else CurveGate().public_key
    warnings.raises = True
    with closing(RouterThread({url: server}, gate if refusal.has_curve else None)):
        for request in (append, put, call, serve):
            begin_s = monotonic()
            with pytest.raises(Told) as told:
                request(url, **keys)
            # libzmq may miss why a server ends its handshakes.
            problems = {refusal.problem, UNSURE.get(refusal.problem, refusal.problem)}
            assert str(told.value) in {f"kelek: {url}: {it.text}; {it.way_out}" for it in problems}
            assert monotonic() - begin_s < TOLD_S
    assert server.received == []


def test_the_error_after_the_timeout_says_it_too(gate: CurveGate, warnings: Warnings) -> None:
    (url,) = tcp_urls(1)
    texts = {f"{url}: {it.text}; {it.way_out}" for it in (NEEDS_KEY, ENDS)}
    text = f"{url}: the server .*; {NEEDS_KEY.way_out}"
    with closing(RouterThread({url: SilentServer()}, gate)):
        with kelek.Log(url, timeout_ms=1400) as log, pytest.raises(kelek.LogNoLeader, match=text):
            log.append(b"x")
        broker = kelek.Broker(url, timeout_ms=1400)
        with broker, pytest.raises(kelek.BrokerUnavailable, match=text):
            broker.call("mail")
    assert len(warnings.texts) == 2
    assert {text.removeprefix("kelek: ") for text in warnings.texts} <= texts


# ---- arguments ----


def test_unusable_keys_are_refused_before_a_connection(key: Path, gate: CurveGate) -> None:
    def problem(**keys: Any) -> str:
        with pytest.raises(kelek.KeyUnusable) as error:
            kelek.Table("tcp://127.0.0.1:9", 1, **keys)
        with pytest.raises(kelek.KeyUnusable):
            kelek.Log("tcp://127.0.0.1:9", **keys)
        with pytest.raises(kelek.KeyUnusable):
            kelek.Broker("tcp://127.0.0.1:9", **keys)
        return str(error.value)

    assert problem(key=key) == "key is given without server_keys; give both, or neither"
    assert problem(server_keys=gate.public_key).startswith("server_keys is given without key")
    assert "tcp://127.0.0.1:9: no key of this server" in problem(
        key=key, server_keys={"tcp://127.0.0.1:8": gate.public_key}
    )
    assert "40 characters" in problem(key=key, server_keys="short")
    assert "No such file" in problem(key=key.with_name("none"), server_keys=gate.public_key)
    key.chmod(0o644)
    assert f"chmod 600 {key}" in problem(key=key, server_keys=gate.public_key)
