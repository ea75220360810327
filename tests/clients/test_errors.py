"""What a caller is told within 2 s when no server can serve: urls, cluster, and the way out.

What waiting can't heal is an error: no url leads to a server, or all to another cluster. What
waiting can heal, such as an election, is a warning.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Any

import pytest

import kelek
from kelek.bench.ports import free_port, free_ports
from kelek.protocols.failover.limits import GIVE_UP_MS, NOTICE_MS
from kelek.tests.actors.farm.farm_servers import PASSWORD, USER, FarmServers
from kelek.tests.clients.log.log_peers import LogPeers
from kelek.tests.clients.table.table_servers import TableServers

TIMEOUT_MS = 60_000  # Of the calls; a test waits for the error or the warning alone.
LATE_S = 2.5  # A server that starts so long after its client is later than GIVE_UP_MS.

LOG = kelek.LogTuning(reach_ms=GIVE_UP_MS)
TABLE = kelek.TableTuning(reach_ms=GIVE_UP_MS)
BROKER = kelek.BrokerTuning(reach_ms=GIVE_UP_MS)


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


def log_of(urls: str | list[str], cluster: str = "demo", tuning: kelek.LogTuning = LOG) -> None:
    with kelek.Log(urls, cluster, timeout_ms=TIMEOUT_MS, tuning=tuning) as log:
        log.append(b"x")


def table_of(urls: str | list[str]) -> None:
    with kelek.Table(urls, 1, timeout_ms=TIMEOUT_MS, tuning=TABLE) as table:
        table.put(b"k", b"v")


def log_watch(urls: str) -> None:
    """It has no timeout."""
    with kelek.Log(urls, "demo", timeout_ms=TIMEOUT_MS, tuning=LOG) as log:
        next(log.watch())


def table_scan(urls: str) -> None:
    with kelek.Table(urls, 1, timeout_ms=TIMEOUT_MS, tuning=TABLE) as table:
        list(table.scan())


def broker_of(urls: str) -> None:
    with kelek.Broker(urls, timeout_ms=TIMEOUT_MS, tuning=BROKER) as broker:
        broker.call("x")


def broker_stream(urls: str) -> None:
    with kelek.Broker(urls, timeout_ms=TIMEOUT_MS, tuning=BROKER) as broker:
        list(broker.stream("x"))


def farm_of(urls: str, name: str = "barn", password: str = "p") -> None:
    tuning = kelek.FarmTuning(i2p=True)
    with kelek.Farm(urls, name, user=USER, password=password, tuning=tuning) as farm:
        farm.append(b"x")


def said_by(call: Callable[[], object], kind: type[Exception] = kelek.Unavailable) -> str:
    """The error of a call, which comes soon, and not after a warning."""
    begin_s = monotonic()
    with pytest.raises(kind) as said:
        call()
    assert max(NOTICE_MS, GIVE_UP_MS) < 2000
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
        (broker_stream, "does a broker run there?"),
        (farm_of, "does a server of farm 'barn' run there?"),
    ],
)
def test_a_dead_url(call: Callable[[str], None], way_out: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    text = said_by(lambda: call(f"{'tls' if call is farm_of else 'tcp'}://{address}"))
    assert address in text
    assert text.endswith(way_out)


async def first_of(found: AsyncIterator[object]) -> object:
    return await anext(found)


ASYNC_CALLS: list[tuple[Callable[[str], Any], Callable[[Any], Any], str]] = [
    (lambda it: kelek.AsyncLog(it, tuning=LOG), lambda log: log.append(b"x"), "cluster 'demo'"),
    (lambda it: kelek.AsyncLog(it, tuning=LOG), lambda log: first_of(log.watch()), "'demo'"),
    (lambda it: kelek.AsyncTable(it, 1, tuning=TABLE), lambda it: it.get(b"k"), "a table server"),
    (lambda it: kelek.AsyncTable(it, 1, tuning=TABLE), lambda it: first_of(it.scan()), "a table"),
    (lambda it: kelek.AsyncBroker(it, tuning=BROKER), lambda broker: broker.call("x"), "a broker"),
    (lambda it: kelek.AsyncFarm(it.replace("tcp", "tls"), "barn", user=USER, password="p",
                                tuning=kelek.FarmTuning(i2p=True)),
     lambda farm: farm.append(b"x"), "a server of farm 'barn'"),
]  # fmt: skip


def test_a_dead_url_with_asyncio() -> None:
    """All clients at once."""
    address = f"127.0.0.1:{free_port()}"

    async def one(make: Callable[[str], Any], call: Callable[[Any], Any], _: str) -> str:
        async with make(f"tcp://{address}") as client:
            with pytest.raises(kelek.Unavailable) as said:
                await asyncio.wait_for(call(client), TIMEOUT_MS / 2000)
        return str(said.value)

    async def run() -> list[str]:
        return await asyncio.gather(*(one(*each) for each in ASYNC_CALLS))

    for text, (_, _, word) in zip(asyncio.run(run()), ASYNC_CALLS, strict=True):
        assert address in text
        assert word in text
        assert text.endswith("run there?")


NAMELESS = "tcp://a..b:7100"  # No look-up of it leaves the machine.


def default_table_of(url: str) -> None:
    with kelek.Table([url, f"tcp://127.0.0.1:{free_port()}"], 1) as table:
        table.get(b"k")


def async_table_of(url: str) -> None:
    async def get() -> None:
        async with kelek.AsyncTable(url, 1, tuning=TABLE) as table:
            await table.get(b"k")

    asyncio.run(get())


@pytest.mark.parametrize("call", [log_of, default_table_of, broker_of, async_table_of])
def test_a_host_name_without_an_address(call: Callable[[str], None]) -> None:
    """A warning says it at once. An error does, too, once the call has waited enough: the name may
    get an address later, as that of a container."""
    way_out = "; write the address of the machine"
    if call is not async_table_of:
        warned = said_by(lambda: call(NAMELESS), Noticed)
        assert warned.startswith(f"kelek: {NAMELESS}: the name a..b has no address: ")
        assert warned.endswith(way_out)
    logging.getLogger("kelek").handlers.clear()
    if call is not default_table_of:
        said = said_by(lambda: call(NAMELESS))
        assert f"{NAMELESS}: the name a..b has no address: " in said
        assert said.endswith(way_out)


def test_a_host_name_without_an_address_may_get_one() -> None:
    begin_s = monotonic()
    logging.getLogger("kelek").handlers.clear()
    with (
        kelek.Table(NAMELESS, 1, timeout_ms=round(LATE_S * 1000)) as table,
        pytest.raises(kelek.TableTimeout, match=r"the name a\.\.b has no address"),
    ):
        table.get(b"k")
    assert monotonic() - begin_s > LATE_S - 0.1, "the call has not waited"


def test_calls_repeat_and_wait_anew() -> None:
    """A call after the error gets its own time for a server that has started meanwhile."""
    url = f"tcp://127.0.0.1:{free_port()}"
    reach_ms = 200
    with (
        kelek.Broker(url, tuning=kelek.BrokerTuning(reach_ms=reach_ms)) as broker,
        kelek.Log(url, tuning=kelek.LogTuning(reach_ms=reach_ms)) as log,
        kelek.Table(url, tuning=kelek.TableTuning(reach_ms=reach_ms)) as table,
    ):
        for call in (lambda: broker.call("x"), log.info, table.tables):
            for _ in range(2):
                begin_s = monotonic()
                with pytest.raises(kelek.Unavailable):
                    call()
                assert monotonic() - begin_s >= reach_ms / 1000 - 0.01


def test_a_call_takes_no_longer_than_its_timeout() -> None:
    """The time in which a server may still be found is a part of it."""
    url, timeout_ms = f"tcp://127.0.0.1:{free_port()}", 1000
    logging.getLogger("kelek").handlers.clear()

    async def ask() -> None:
        async with kelek.AsyncTable(url, timeout_ms=timeout_ms) as table:
            await table.tables()

    with kelek.Table(url, timeout_ms=timeout_ms) as table:
        for call in (table.tables, lambda: asyncio.run(ask())):
            begin_s = monotonic()
            with pytest.raises(kelek.Unavailable):
                call()
            assert 0.99 <= monotonic() - begin_s < 1.8


def test_a_client_that_starts_before_its_cluster(tmp_path: Path) -> None:
    """It waits, with a warning."""
    logging.getLogger("kelek").handlers.clear()
    log_urls = [f"tcp://127.0.0.1:{port}" for port in free_ports(3)]
    started: list[Any] = []

    def start() -> None:
        started.append(LogPeers(tmp_path, log_urls))

    timer = Timer(LATE_S, start)
    timer.start()
    try:
        with kelek.Log(log_urls) as log:
            assert log.append(b"x") == 1
        with kelek.Log(log_urls) as log:
            assert log.append(b"y") == 2
    finally:
        timer.join()
        for each in started:
            each.close()


@pytest.mark.parametrize(
    ("cluster", "answers", "kind", "way_out"),
    [
        (
            "other",
            True,
            kelek.LogUnavailable,
            "give its ident, which is in its topology, or other urls",
        ),
        ("other", False, Noticed, "is 'other' the ident of its cluster?"),
        ("demo", True, Noticed, "does a majority of cluster 'demo' run?"),
    ],
)
def test_a_wrong_ident_and_no_leader_of_a_log(
    tmp_path: Path, cluster: str, answers: bool, kind: type[Exception], way_out: str
) -> None:
    """answers: the peers answer in text form, which names no cluster."""
    with closing(LogPeers(tmp_path)) as peers:
        peers.model.peers[0].leads = False
        for peer in peers.model.peers:
            peer.says_it_is_there = answers
        text = said_by(lambda: log_of(peers.urls, cluster, kelek.LogTuning()), kind)
    assert all(url in text for url in peers.urls)
    assert text.endswith(way_out)


def test_no_leader_of_a_table(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = stack.enter_context(closing(TableServers(tmp_path)))
        for server in servers.servers:
            server.refuse_count = 1 << 30
        text = said_by(lambda: table_of(servers.urls[0]), Noticed)
    assert servers.urls[0] in text
    assert text.endswith("an election; does a majority of its cluster run?")


def test_a_wrong_name_and_no_leader_of_a_farm() -> None:
    with FarmServers(tls=False, node="post_interval_ms: 0") as servers:
        servers.start(1)  # It has no majority.
        address = f"127.0.0.1:{servers.ports[1]}"
        wrong = said_by(lambda: farm_of(f"tls://{address}", "barn"), kelek.FarmRefused)
        text = said_by(lambda: farm_of(f"tls://{address}", "farm", PASSWORD), Noticed)
    assert wrong == f"{address}: it has no farm barn; is this its name?"
    assert f"{address}: server 1 knows no leader" in text
    assert text.endswith("does a majority of farm 'farm' run?")
