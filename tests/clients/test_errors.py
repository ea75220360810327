"""What a caller is told within 2 s when no server can serve: urls, cluster, and the way out."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import kelek
from kelek.protocols.failover.limits import NOTICE_MS
from kelek.tests.actors.farm.farm_servers import PASSWORD, USER, FarmServers
from kelek.tests.clients.log.log_peers import LogPeers
from kelek.tests.clients.table.table_servers import TableServers
from kelek.tests.ports import free_port

TIMEOUT_MS = 60_000  # Of the calls; a test waits for the warning alone.


class Noticed(Exception):
    """Ends a call at its warning."""


class RaisingHandler(logging.Handler):
    """Raises the warning in the call that waits."""

    def emit(self, record: logging.LogRecord) -> None:
        raise Noticed(record.getMessage())


@pytest.fixture(autouse=True)
def raising_handler() -> Iterator[None]:
    handler = RaisingHandler()
    logging.getLogger("kelek").addHandler(handler)
    yield
    logging.getLogger("kelek").removeHandler(handler)


def log_of(urls: str | list[str], cluster: str = "demo") -> None:
    with kelek.Log(urls, cluster, timeout_ms=TIMEOUT_MS) as log:
        log.append(b"x")


def table_of(urls: str | list[str]) -> None:
    with kelek.Table(urls, 1, timeout_ms=TIMEOUT_MS) as table:
        table.put(b"k", b"v")


def log_watch(urls: str) -> None:
    """It has no timeout: only the warning says that it waits."""
    with kelek.Log(urls, "demo", timeout_ms=TIMEOUT_MS) as log:
        next(log.watch())


def table_scan(urls: str) -> None:
    with kelek.Table(urls, 1, timeout_ms=TIMEOUT_MS) as table:
        list(table.scan())


def broker_of(urls: str) -> None:
    with kelek.Broker(urls, timeout_ms=TIMEOUT_MS) as broker:
        broker.call("x")


def farm_of(urls: str, name: str = "barn", password: str = "p") -> None:
    tuning = kelek.FarmTuning(i2p=True)
    with kelek.Farm(urls, name, user=USER, password=password, tuning=tuning) as farm:
        farm.append(b"x")


def said_by(call: Callable[[], None]) -> str:
    """The warning or the error of a call, which comes soon."""
    begin_s = monotonic()
    with pytest.raises((Noticed, kelek.Unavailable, kelek.FarmRefused)) as said:
        call()
    assert NOTICE_MS <= 2000
    assert monotonic() - begin_s < TIMEOUT_MS / 2000, "the call has waited for its timeout"
    return str(said.value)


@pytest.mark.parametrize(
    ("call", "way_out"),
    [
        (log_of, "does a peer of cluster 'demo' run there?"),
        (log_watch, "does a peer of cluster 'demo' run there?"),
        (table_scan, "does a table server run there?"),
        (table_of, "does a table server run there?"),
        (broker_of, "does a broker run there?"),
        (farm_of, "does a server of farm 'barn' run there?"),
    ],
)
def test_a_dead_url(call: Callable[[str], None], way_out: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    text = said_by(lambda: call(f"{'tls' if call is farm_of else 'tcp'}://{address}"))
    assert address in text
    assert text.endswith(way_out)


async def waiting(client: Any, call: Callable[[Any], Any], texts: list[str]) -> None:
    """Runs a call of a client of asyncio until it has warned or failed."""
    async with client:
        task = asyncio.ensure_future(call(client))
        until = monotonic() + TIMEOUT_MS / 2000
        while not (task.done() or texts):
            assert monotonic() < until, "it has said nothing"
            await asyncio.wait([task], timeout=0.05)
        task.cancel()
        with suppress(asyncio.CancelledError, kelek.Unavailable):
            await task
    if not task.cancelled():
        texts.append(str(task.exception()))


async def first_of(found: AsyncIterator[object]) -> object:
    return await anext(found)


ASYNC_CALLS: list[tuple[Callable[[str], Any], Callable[[Any], Any], str]] = [
    (lambda it: kelek.AsyncLog(it, "demo"), lambda log: log.append(b"x"), "cluster 'demo'"),
    (lambda it: kelek.AsyncLog(it, "demo"), lambda log: first_of(log.watch()), "cluster 'demo'"),
    (lambda it: kelek.AsyncTable(it, 1), lambda table: table.get(b"k"), "a table server"),
    (lambda it: kelek.AsyncTable(it, 1), lambda table: first_of(table.scan()), "a table server"),
    (kelek.AsyncBroker, lambda broker: broker.call("x"), "a broker"),
    (lambda it: kelek.AsyncFarm(it.replace("tcp", "tls"), "barn", user=USER, password="p",
                                tuning=kelek.FarmTuning(i2p=True)),
     lambda farm: farm.append(b"x"), "a server of farm 'barn'"),
]  # fmt: skip


def test_a_dead_url_with_asyncio() -> None:
    """All clients at once."""
    logging.getLogger("kelek").handlers.clear()
    address = f"127.0.0.1:{free_port()}"

    async def one(make: Callable[[str], Any], call: Callable[[Any], Any], word: str) -> str:
        texts: list[str] = []
        with listening(texts, word):
            await waiting(make(f"tcp://{address}"), call, texts)
        return texts[0]

    async def run() -> list[str]:
        return await asyncio.gather(*(one(*each) for each in ASYNC_CALLS))

    for text, (_, _, word) in zip(asyncio.run(run()), ASYNC_CALLS, strict=True):
        assert address in text
        assert word in text
        assert text.endswith("run there?")


class WordHandler(logging.Handler):
    """Collects the warnings that have a word."""

    def __init__(self, texts: list[str], word: str) -> None:
        super().__init__()
        self._texts, self._word = texts, word

    def emit(self, record: logging.LogRecord) -> None:
        if self._word in record.getMessage():
            self._texts.append(record.getMessage())


@contextmanager
def listening(texts: list[str], word: str) -> Iterator[None]:
    handler = WordHandler(texts, word)
    logging.getLogger("kelek").addHandler(handler)
    yield
    logging.getLogger("kelek").removeHandler(handler)


@pytest.mark.parametrize(
    ("cluster", "way_out"),
    [
        ("other", "is 'other' the ident of its cluster?"),
        ("demo", "does a majority of cluster 'demo' run?"),
    ],
)
def test_a_wrong_ident_and_no_leader_of_a_log(tmp_path: Path, cluster: str, way_out: str) -> None:
    with closing(LogPeers(tmp_path)) as peers:
        peers.model.peers[0].leads = False
        text = said_by(lambda: log_of(peers.urls, cluster))
    assert all(url in text for url in peers.urls)
    assert text.endswith(way_out)


def test_no_leader_of_a_table(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = stack.enter_context(closing(TableServers(tmp_path)))
        for server in servers.servers:
            server.refuse_count = 1 << 30
        text = said_by(lambda: table_of(servers.urls[0]))
    assert servers.urls[0] in text
    assert text.endswith("an election; does a majority of its cluster run?")


def test_a_wrong_name_and_no_leader_of_a_farm() -> None:
    with FarmServers(tls=False, node="post_interval_ms: 0") as servers:
        servers.start(1)  # It has no majority.
        address = f"127.0.0.1:{servers.ports[1]}"
        wrong = said_by(lambda: farm_of(f"tls://{address}", "barn"))
        text = said_by(lambda: farm_of(f"tls://{address}", "farm", PASSWORD))
    assert wrong == f"{address}: it has no farm barn; is this its name?"
    assert f"{address}: server 1 knows no leader" in text
    assert text.endswith("does a majority of farm 'farm' run?")
