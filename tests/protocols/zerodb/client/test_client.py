"""The client machine of ZeroDB without sockets: which server it chooses, and what it retries."""

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from kelek.protocols.connections import Connect, Disconnect, Send, Warn
from kelek.protocols.zerodb.client.client import Exchange, TableClientMachine, TableClientSetup
from kelek.protocols.zerodb.wire import requests
from kelek.protocols.zerodb.wire.values import NO_LEADER, REVERSE, Extension
from kelek.tests.clients.table.table_servers import FEATURES, FakeTableServer, TableStore

URLS = ("a", "b", "c")
NEVER = 1 << 40


class FakeServers:
    """Servers, and a client whose messages arrive when deliver() is called."""

    def __init__(self, features: int = FEATURES, **setup: Any) -> None:
        self.harness = TableStore()
        self.servers = {url: FakeTableServer(self.harness, url, features) for url in URLS}
        self.client = TableClientMachine(TableClientSetup(URLS, **setup))
        self.now_ms = 1000
        self.up: set[str] = set()
        self.dead: set[str] = set()
        self.numbers = count(1)
        self.answers: list[tuple[str, list[bytes]]] = []

    def begin(self, request: requests.Request, bound: str = "") -> Exchange:
        reqid = next(self.numbers).to_bytes(12, "little")
        return self.client.add(Exchange(request, reqid, NEVER, bound))

    def put(self, *keys: bytes) -> list[Exchange]:
        return [self.begin(requests.Put(1, [key], [b"v"], 1)) for key in keys]

    def send(self) -> None:
        """Carries out the machine's actions; answers arrive later."""
        for action in self.client.ready(self.now_ms):
            match action:
                case Connect(url):
                    if url not in self.dead:
                        self.up.add(url)
                        self.client.on_connected(url, self.now_ms)
                case Disconnect(url):
                    self.up.discard(url)
                case Send(url, frames):
                    if url in self.up:
                        self.answers += [(url, it) for it in self.servers[url].on_frames(frames)]

    def deliver(self, rounds: int = 6) -> None:
        for _ in range(rounds):
            self.send()
            arrived, self.answers = self.answers, []
            for url, frames in arrived:
                if url in self.up:
                    self.client.on_frames(url, frames, self.now_ms)

    def kill(self, url: str) -> None:
        self.dead.add(url)
        self.up.discard(url)
        self.client.on_disconnected(url, self.now_ms)

    @property
    def server(self) -> str:
        assert self.client.server is not None
        return self.client.server.url

    def written(self) -> list[bytes]:
        return [
            key for it in self.harness.writes if isinstance(it, requests.Put) for key in it.keys
        ]


def done(exchanges: Iterable[Exchange]) -> bool:
    return all(it.answer is not None and not it.answer.failed for it in exchanges)


def test_the_first_server_that_answers_is_chosen() -> None:
    net = FakeServers()
    net.servers["a"].silent = True
    net.deliver()
    assert net.server == "b"
    assert net.up == {"b"}
    assert net.client.server is not None
    assert net.client.server.features == FEATURES
    assert net.client.server.software == "b"


def test_answers_are_matched_by_reqid_in_any_order() -> None:
    net = FakeServers()
    net.deliver()
    exchanges = net.put(b"1", b"2", b"3")
    net.send()
    net.answers.reverse()
    net.deliver()
    assert done(exchanges)
    assert [it.answer.reqid for it in exchanges if it.answer] == [it.reqid for it in exchanges]
    assert net.written() == [b"1", b"2", b"3"]


def test_a_foreign_server_gets_one_request_at_a_time_and_no_extension() -> None:
    net = FakeServers(features=7)
    net.deliver()
    exchanges = net.put(b"1", b"2")
    net.send()
    assert net.written() == [b"1"], "the second one waits for the first answer"
    net.deliver()
    assert done(exchanges)
    assert net.written() == [b"1", b"2"]


@pytest.mark.parametrize(
    "request_",
    [
        requests.Scan(1, None, b"", b"", Extension(REVERSE)),
        requests.Put(1, [b"k"], [b"v"], 1, Extension(ttl_ms=5)),
        requests.Transaction([], [], []),
    ],
)
def test_requests_unknown_to_a_foreign_server_are_refused(request_: requests.Request) -> None:
    net = FakeServers(features=7)
    net.deliver()
    exchange = net.begin(request_)
    net.deliver()
    assert "does not know" in exchange.refusal
    assert len(net.servers[net.server].requests) == 1, "only the server info was asked for"


def test_a_lost_server_s_requests_go_to_the_next_one_in_order_and_happen_once() -> None:
    net = FakeServers()
    net.deliver()
    first = net.server
    net.servers[first].mute = 2
    exchanges = net.put(b"1", b"2", b"3")
    net.send()  # All three are done, but no answer has arrived.
    net.kill(first)
    exchanges += net.put(b"4")
    net.deliver()
    assert net.server != first
    assert done(exchanges)
    assert net.written() == [b"1", b"2", b"3", b"4"]
    seen = [it.keys for it in net.servers[net.server].requests if isinstance(it, requests.Put)]
    assert seen == [[b"1"], [b"2"], [b"3"], [b"4"]]


def test_a_silent_server_is_pinged_and_then_left() -> None:
    net = FakeServers(silence_ms=100)
    net.deliver()
    first = net.server
    net.servers[first].silent = True
    exchanges = net.put(b"1")
    net.deliver()
    assert net.client.deadline_ms == net.now_ms + 100
    net.now_ms += 100
    net.deliver()
    assert net.server == first, "it may just be slow: it is asked whether it is there"
    net.now_ms += 100
    net.deliver()
    assert net.server != first
    assert net.client.counters["silent"] == 1
    assert done(exchanges)


@pytest.mark.parametrize("notice", [True, False])
def test_a_server_without_a_leader_says_so_to_a_ping(notice: bool) -> None:
    """It keeps the request itself for some seconds, until it refuses it."""
    net = FakeServers(features=FEATURES | NO_LEADER, notice=notice, silence_ms=1000)
    net.deliver()
    assert net.client.server is not None
    assert net.client.server.features == FEATURES, "it is a state"
    server, begun_ms = net.servers[net.server], net.now_ms
    server.mute = 1
    net.put(b"k")
    warned: dict[int, str] = {}
    while net.now_ms < begun_ms + 4000:
        for action in net.client.ready(net.now_ms):
            if isinstance(action, Warn):
                warned[net.now_ms - begun_ms] = action.text
            elif isinstance(action, Send):
                for frames in server.on_frames(action.frames):
                    net.client.on_frames(server.name, frames, net.now_ms)
        due_ms = net.client.deadline_ms
        assert due_ms is None or due_ms > net.now_ms - 50, "nothing is due for ever"
        net.now_ms += 50
    if not notice:
        assert not warned
        return
    ((after_ms, text),) = warned.items()
    assert 1000 < after_ms <= 1600
    assert text == (
        f"requests wait: {server.name}: its node knows no leader; does a majority of its cluster "
        "run?"
    )


def test_a_server_that_knows_a_leader_again_is_no_longer_said_to_know_none() -> None:
    net = FakeServers(notice=True, silence_ms=100)
    net.deliver()
    server = net.servers[net.server]
    server.mute = 1
    net.put(b"k")
    reasons = []
    for server.features in (FEATURES | NO_LEADER, FEATURES):
        net.deliver()
        net.now_ms += 100
        net.deliver()
        reasons.append(net.client.reason)
    assert reasons == ["its node knows no leader", ""]


def test_a_slow_server_that_answers_pings_is_kept() -> None:
    net = FakeServers(silence_ms=100)
    net.deliver()
    first = net.server
    net.servers[first].mute = 1
    net.put(b"1")
    for _ in range(10):
        net.deliver()
        net.now_ms += 60
    assert net.server == first
    assert net.client.counters["searches"] == 1


def test_a_large_request_is_given_time() -> None:
    net = FakeServers(silence_ms=100)
    net.deliver()
    first = net.server
    net.servers[first].silent = True
    net.begin(requests.Put(1, [b"k"], [bytes(4 << 20)], 1))
    net.deliver()
    assert net.client.deadline_ms is not None
    assert net.client.deadline_ms >= net.now_ms + 1100
    net.now_ms += 2200
    net.deliver()
    assert net.server == first
    net.now_ms += 1200
    net.deliver()
    assert net.server != first


def test_retries_keep_the_order_of_requests() -> None:
    net = FakeServers(retry_ms=50)
    net.deliver()
    net.servers[net.server].refuse_count = 2
    exchanges = net.put(b"1", b"2", b"3")
    net.deliver()
    assert net.written() == [b"3"], "it was on its way already"
    assert net.client.deadline_ms is not None
    exchanges += net.put(b"4")
    net.deliver()
    assert net.written() == [b"3"], "nothing new overtakes them"
    net.now_ms += 50
    net.deliver()
    assert net.written() == [b"3", b"1", b"2", b"4"]
    assert done(exchanges)


def test_a_server_that_keeps_refusing_is_left() -> None:
    net = FakeServers(retry_ms=50, retries_max=3)
    net.deliver()
    first = net.server
    net.servers[first].refuse_count = 1000
    exchanges = net.put(b"1")
    for _ in range(6):
        net.deliver()
        net.now_ms += 50
    assert net.server != first
    assert done(exchanges)


def test_a_deadline_ends_retries() -> None:
    net = FakeServers()
    net.deliver()
    net.servers[net.server].refuse_count = 1000
    exchange = Exchange(requests.Read(1, [b"k"]), b"r" * 12, net.now_ms)
    net.client.add(exchange)
    net.deliver()
    assert exchange.answer is not None
    assert exchange.answer.failed
    assert exchange.answer.text == "an election"


def test_requests_bound_to_a_server_are_lost_with_it() -> None:
    net = FakeServers()
    net.deliver()
    first = net.server
    net.servers[first].silent = True
    bound = net.begin(requests.ClientData(1), first)
    other = net.begin(requests.Read(1, [b"k"]))
    net.send()
    net.kill(first)
    net.deliver()
    assert first in bound.refusal
    assert done([other])
    late = net.begin(requests.ClientData(1), first)
    net.deliver()
    assert late.refusal


def test_bound_requests_are_retried_at_their_server() -> None:
    net = FakeServers(retry_ms=50)
    net.deliver()
    net.servers[net.server].refuse_count = 1
    bound = net.begin(requests.JobStatus(1), net.server)
    net.deliver()
    assert not bound.done
    net.now_ms += 50
    net.deliver()
    assert done([bound])
    assert bound.url == net.server


def test_the_window_has_limits() -> None:
    net = FakeServers(requests_max=2, bytes_max=1000)
    net.deliver()
    net.put(b"1", b"2", b"3")
    net.send()
    assert net.written() == [b"1", b"2"]
    rooms = [net.client.has_room]
    net.deliver()
    rooms.append(net.client.has_room)
    net.begin(requests.Put(1, [b"k"], [bytes(2000)], 1))
    net.send()
    rooms.append(net.client.has_room)  # After so many unanswered requests.
    net.deliver()
    rooms.append(net.client.has_room)
    assert rooms == [False, True, False, True]


def test_a_dropped_request_is_not_sent_and_its_answer_is_a_stray() -> None:
    net = FakeServers()
    net.deliver()
    sent, unsent = net.put(b"1")[0], None
    net.send()
    (unsent,) = net.put(b"2")
    net.client.drop(sent)
    net.client.drop(unsent)
    net.deliver()
    assert net.written() == [b"1"]
    assert net.client.counters["strays"] == 1
    assert net.client.has_room


def test_junk_is_counted() -> None:
    net = FakeServers()
    net.deliver()
    for frames in ([b""], [b"\x31\x02\x00"], [b"\x31\x01\x20"]):
        net.client.on_frames(net.server, frames, net.now_ms)
    assert net.client.counters["junk"] == 3
