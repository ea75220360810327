"""The state broadcast: as the text says, frame by frame, and to kelek's own subscribers while
leaders are killed. Real processes.
"""

import asyncio
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from itertools import islice, pairwise

import pytest
import zmq

import kelek
from kelek.tests.interop.conftest import InteropCluster, new_folder
from kelek.tests.interop.zmqraft.plain import PlainEntry, PlainLogClient, entry, number, reqid, uint

IDENT = "interop"
HEARTBEAT_S = 0.5
DEADLINE_MS = 60_000
Socket = zmq.Socket[bytes]


class Subscriber:
    """A plain SUB, as the text has it: the ident is the topic."""

    def __init__(self, url: str) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.linger = 0
        self.socket.subscribe(IDENT.encode())
        self.socket.connect(url)

    def receive(self) -> tuple[int, int, list[PlainEntry]]:
        """TERM, LAST APPLIED INDEX and entries of the next message."""
        assert self.socket.poll(DEADLINE_MS), "nothing was broadcast"
        ident, term, applied, *entries = self.socket.recv_multipart()
        assert ident == IDENT.encode()
        return number(term), number(applied), [entry(frame) for frame in entries]

    def close(self) -> None:
        self.socket.close()
        self.context.term()


@pytest.fixture
def subscriber(cluster: InteropCluster) -> Iterator[Subscriber]:
    """Connected to the leader, and heard of there."""
    with cluster.client() as client:
        client.find_leader()
        subscriber = Subscriber(cluster.broadcast_urls[client.leader])
    subscriber.receive()
    yield subscriber
    subscriber.close()


def test_entries_come_as_they_are_applied(cluster: InteropCluster, subscriber: Subscriber) -> None:
    with cluster.client() as client:
        requests = [reqid() for _ in range(5)]
        indexes = [client.update(b"%d" % n, request) for n, request in enumerate(requests)]
        term = number(client.peers[client.leader].ask(reqid(), b"%")[2])
    found: dict[int, PlainEntry] = {}
    while indexes[-1] not in found:
        said, applied, entries = subscriber.receive()
        assert said == term
        first = applied - len(entries) + 1
        found.update((first + n, it) for n, it in enumerate(entries))
    assert [found[index] for index in indexes] == [
        PlainEntry(request, 0, term, b"%d" % n) for n, request in enumerate(requests)
    ]


def test_silence_is_broken_by_empty_messages(
    cluster: InteropCluster, subscriber: Subscriber
) -> None:
    times: list[float] = []
    while len(times) < 4:
        _, _, entries = subscriber.receive()
        if not entries:
            times.append(time.monotonic())
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps) > HEARTBEAT_S / 2


def test_much_at_once_is_split_and_complete(
    cluster: InteropCluster, subscriber: Subscriber
) -> None:
    with kelek.Log(cluster.urls.values(), IDENT) as log:
        indexes = list(log.append_each(random.randbytes(20_000) for _ in range(300)))
    expected = indexes[0]
    while expected <= indexes[-1]:
        _, applied, entries = subscriber.receive()
        size = sum(len(it.data) + 20 for it in entries)
        assert size <= 1 << 20
        if applied < expected or not entries:
            continue
        assert applied - len(entries) + 1 <= expected
        expected = applied + 1


def test_followers_broadcast_nothing(cluster: InteropCluster) -> None:
    with cluster.client() as client:
        client.find_leader()
        subscribers = [Subscriber(cluster.broadcast_urls[name]) for name in client.followers]
        indexes = [client.update(b"quiet") for _ in range(20)]
        client.wait_applied(indexes[-1])
    for subscriber in subscribers:
        assert not subscriber.socket.poll(int(1500 * HEARTBEAT_S))
        subscriber.close()


def test_unknown_senders_at_the_broadcast_url(
    cluster: InteropCluster, subscriber: Subscriber
) -> None:
    """What subscribers send up is theirs alone, however odd."""
    before = cluster.pid("n1", "state_machine")
    context: zmq.Context[Socket] = zmq.Context()
    dice = random.Random(1)
    for url in cluster.broadcast_urls.values():
        stranger = context.socket(zmq.XSUB)
        stranger.linger = 1000
        stranger.sndtimeo = 200
        stranger.connect(url)
        for _ in range(200):
            stranger.send(dice.randbytes(dice.choice([0, 1, 2, 8, 900])))
        stranger.send(b"\x01" + bytes(100_000))
        stranger.send_multipart([b"\x01interop", b"\x01", b""])
        stranger.close()
    context.term()
    with cluster.client() as client:
        index = client.update(b"still here")
    while subscriber.receive()[1] < index:
        pass
    assert cluster.pid("n1", "state_machine") == before


@pytest.fixture
def own() -> Iterator[InteropCluster]:
    """A cluster that the test may harm."""
    folder = new_folder()
    cluster = InteropCluster(folder, {"n1": "kelek", "n2": "kelek", "n3": "kelek"})
    with PlainLogClient(cluster.urls) as client:
        client.update(b"up")
    yield cluster
    cluster.stop()
    shutil.rmtree(folder)


class BroadcastWriter(threading.Thread):
    """Appends numbers until it is told to stop."""

    def __init__(self, cluster: InteropCluster) -> None:
        super().__init__()
        self.urls = list(cluster.urls.values())
        self.count = 0
        self.enough = threading.Event()

    def run(self) -> None:
        with kelek.Log(self.urls, IDENT) as log:
            while not self.enough.is_set():
                self.count += log.append_many(b"%d" % (self.count + n) for n in range(20))

    def stop(self) -> None:
        self.enough.set()
        self.join()


def test_subscribers_through_leader_kills(own: InteropCluster) -> None:
    """Three leaders are killed with -9, one of them with its state machine; none of the updates
    that were committed meanwhile is lost, doubled or out of order."""
    writer = BroadcastWriter(own)
    writer.start()
    urls = list(own.urls.values())
    got: list[bytes] = []
    try:
        with kelek.Log(urls, IDENT) as log:
            entries = (it for it in log.watch() if it.type == 0 and it.data != b"up")
            for kill in range(3):
                got += (it.data for it in islice(entries, 300))
                with own.client() as client:
                    client.find_leader()
                os.kill(own.pid(client.leader), signal.SIGKILL)
                if kill == 1:
                    os.kill(own.pid(client.leader, "state_machine"), signal.SIGKILL)
            got += (it.data for it in islice(entries, 600))
            writer.stop()
            got += (it.data for it in islice(entries, writer.count - len(got)))
    finally:
        writer.stop()
    assert got == [b"%d" % number for number in range(writer.count)]


@pytest.mark.timeout(120)
def test_a_slow_subscriber_loses_nothing(own: InteropCluster) -> None:
    """It takes a list now and then, while far more is broadcast than anybody keeps for it."""

    async def main() -> None:
        urls = list(own.urls.values())
        async with kelek.AsyncLog(urls, IDENT) as reader, kelek.AsyncLog(urls, IDENT) as log:
            lists = reader.watch_lists(None)
            first = asyncio.create_task(anext(lists))
            await reader.info()  # Behind the question with which the subscriber begins.
            await reader.info()
            indexes = [index async for index in log.append_each(bytes(100_000) for _ in range(600))]
            found = [entry.index for entry in await first]
            while found[-1] < indexes[-1]:
                found += [entry.index for entry in await anext(lists)]
                await log.info()
            assert found == list(range(found[0], indexes[-1] + 1))
            assert found[0] <= indexes[0]
            await lists.aclose()

    asyncio.run(asyncio.wait_for(main(), 100))


def test_the_plain_frames_of_a_gap(cluster: InteropCluster, subscriber: Subscriber) -> None:
    """What a broadcast leaves out is there for RequestEntries: it was applied before."""
    with cluster.client() as client:
        index = client.update(b"gap")
        while subscriber.receive()[1] < index:
            pass
        leader = client.find_leader()
        status, _, last, frame = leader.ask(reqid(), b"<", uint(index - 1), b"\x01")
    assert (number(status), number(last), entry(frame).data) == (1, index, b"gap")
