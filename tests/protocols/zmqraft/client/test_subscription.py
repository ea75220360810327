"""Subscriptions: broadcasts, missing entries, and failures of both."""

from random import Random

import pytest

from kelek.protocols.record import Record
from kelek.protocols.zmqraft.client import subscription as subscriptions
from kelek.protocols.zmqraft.client.requests import Compacted
from kelek.protocols.zmqraft.client.subscription import Subscription
from kelek.protocols.zmqraft.wire.client_codec import EntriesAnswer, EntriesStatus, Form, StateChunk
from kelek.protocols.zmqraft.wire.entry import Entry
from kelek.protocols.zmqraft.wire.values import (
    ENTRIES_PACKED,
    REQUEST_BROADCAST_STATE_URL,
    REQUEST_ENTRIES,
)
from kelek.tests.protocols.zmqraft.fake_cluster import FakeCluster
from kelek.tests.protocols.zmqraft.wire_strategies import encode_entry


class SubscriptionReader:
    """A cluster with one subscriber, which reads all entries there are when it is told to."""

    def __init__(self, form: Form | None = None, after: int = 0) -> None:
        self.cluster = FakeCluster(form)
        for peer in self.cluster.peers:
            peer.pub = f"{peer.url}/pub"
        self.cluster.lead("n1")
        self.got: list[Entry] = []
        self.subscription = self.cluster.client.subscribe(Subscription(after))
        self.number = 0

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.number += 1
            self.cluster.log.add(self.number.to_bytes(12, "big"), b"%d" % self.number)

    def take(self) -> None:
        while (
            part := self.subscription.next_run(self.cluster.client, self.cluster.now_ms)
        ) is not None:
            self.got += part.decoded()

    def run(self, until_index: int, limit_ms: int = 5000) -> int:
        """Reads on until an index was read; returns how long it took."""

        def there() -> bool:
            self.take()
            return bool(self.got) and self.got[-1].index >= until_index

        return self.cluster.run(there, limit_ms)

    def rest(self, pause_ms: int) -> None:
        over: list[bool] = []
        self.cluster.at(pause_ms, lambda: over.append(True))

        def is_over() -> bool:
            self.take()
            return bool(over)

        self.cluster.run(is_over)

    def asked(self) -> int:
        """How often entries were asked for, follow-ups included."""
        return sum(
            frames[1] in (REQUEST_ENTRIES, ENTRIES_PACKED) for *_, frames in self.cluster.sent
        )

    def check(self, first_index: int = 1) -> None:
        indexes = [entry.index for entry in self.got]
        assert indexes == list(range(first_index, first_index + len(indexes)))
        assert all(entry.data == b"%d" % entry.index for entry in self.got)


@pytest.fixture(params=[None, Form.NODE, Form.TEXT])
def reader(request: pytest.FixtureRequest) -> SubscriptionReader:
    return SubscriptionReader(request.param)


def live(reader: SubscriptionReader) -> None:
    """Until it has read everything there was, and listens to the leader."""
    reader.append(10)
    reader.run(10)
    reader.rest(20)
    assert list(reader.cluster.listening.values()) == ["tcp://n1/pub"]


def test_what_was_there_before_is_asked_for_and_then_broadcasts_are_enough(
    reader: SubscriptionReader,
) -> None:
    live(reader)
    asked = reader.asked()
    for _ in range(50):
        reader.append(2)
        reader.cluster.broadcast("n1", 2)
        reader.rest(100)
    assert len(reader.got) == 110
    assert reader.asked() == asked, "and no request was sent"
    reader.check()


def test_it_begins_behind_any_index() -> None:
    reader = SubscriptionReader(after=7)
    live(reader)
    reader.check(first_index=8)


@pytest.mark.parametrize("lost", [1, 7])
def test_lost_broadcasts_are_asked_for_when_the_next_one_comes(
    reader: SubscriptionReader, lost: int
) -> None:
    live(reader)
    reader.append(lost)
    reader.append(2)
    reader.cluster.broadcast("n1", 2)
    assert reader.run(12 + lost) < 30
    reader.append()
    reader.cluster.broadcast("n1", 0)  # A heartbeat shows it as well.
    assert reader.run(13 + lost) < 30
    reader.check()


def test_what_overlaps_is_not_doubled(reader: SubscriptionReader) -> None:
    live(reader)
    reader.append(5)
    for entries in (3, 5, 15, 1):
        reader.cluster.broadcast("n1", entries)
    reader.rest(50)
    assert len(reader.got) == 15
    reader.check()


def test_after_silence_the_leader_is_asked(reader: SubscriptionReader) -> None:
    """Its state machine was restarted, or another one broadcasts at that address now."""
    live(reader)
    reader.append()
    assert reader.run(11) <= subscriptions.SILENCE_MS_MAX + 50


def test_a_new_leader_is_listened_to(reader: SubscriptionReader) -> None:
    live(reader)
    reader.cluster.kill("n1")
    reader.cluster.lead("n2")
    reader.append()
    reader.run(11)
    reader.rest(20)
    assert list(reader.cluster.listening.values()) == ["tcp://n2/pub"]
    reader.append()
    reader.cluster.broadcast("n2", 1)
    assert reader.run(12) < 30
    reader.check()


def test_a_leader_that_was_deposed_and_is_silent_is_left(reader: SubscriptionReader) -> None:
    live(reader)
    reader.cluster.lead("n3")
    reader.append()
    reader.run(11)
    reader.rest(20)
    assert list(reader.cluster.listening.values()) == ["tcp://n3/pub"]
    reader.check()


def test_without_broadcasts_the_leader_is_asked_again_and_again(reader: SubscriptionReader) -> None:
    for peer in reader.cluster.peers:
        peer.pub = None
    reader.append(10)
    reader.run(10)
    searches = reader.cluster.client.counters["searches"]
    for index in range(11, 40):
        reader.append()
        assert reader.run(index) < 250
    before = reader.asked()
    reader.rest(2000)
    assert reader.asked() - before < 20
    assert reader.cluster.client.counters["searches"] == searches
    assert not reader.cluster.listening
    reader.check()


def test_a_slow_reader_is_not_waited_for_and_loses_nothing(
    reader: SubscriptionReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "QUEUED_BYTES_MAX", 1000)
    live(reader)
    for _ in range(200):
        reader.append()
        reader.cluster.broadcast("n1", 1)
    over: list[bool] = []
    reader.cluster.at(50, lambda: over.append(True))
    reader.cluster.run(lambda: bool(over))
    assert reader.subscription.queued_bytes <= 1100
    assert reader.subscription.ahead_bytes <= 1000
    reader.run(210)
    reader.check()


def test_what_is_no_longer_stored_ends_it() -> None:
    reader = SubscriptionReader(Form.NODE)
    reader.append(10)
    reader.cluster.answer_entries = EntriesAnswer(
        EntriesStatus.SNAPSHOT, 7, chunk=StateChunk(0, 5, 1), data=b"state"
    )
    reader.cluster.run(lambda: reader.subscription.readable)
    assert reader.subscription.next_run(reader.cluster.client, reader.cluster.now_ms) is None
    assert reader.subscription.compacted == Compacted(7, 5)
    reader.rest(2000)
    assert reader.asked() < 6, "it does not ask again and again"


def test_junk_is_counted_and_changes_nothing(reader: SubscriptionReader) -> None:
    live(reader)
    client = reader.cluster.client
    for frames in ([], [b"demo"], [b"demo", b"", b"\1"], [b"other", b"\1", b"\1"],
                   [b"demo", b"\1", b"\xff" * 9], [b"demo", b"\1", b"\5", b"short"],
                   [b"demo", b"\1", b"\1", bytes(30), bytes(30)]):  # fmt: skip
        client.on_broadcast(reader.subscription, frames, reader.cluster.now_ms)
    assert client.counters["junk"] == 7
    reader.append()
    reader.cluster.broadcast("n1", 1)
    reader.run(11)
    reader.check()


@pytest.mark.parametrize(
    "bad",
    [
        bytes(12) + b"\xff" + (1).to_bytes(7, "little") + b"x",  # A type of no entry.
        bytes(12) + b"\0" + bytes(7) + b"x",  # Term 0.
        bytes(12) + b"\0" + b"\xff" * 7 + b"x",  # A term that is never reached.
    ],
)
def test_a_broadcast_of_what_is_no_entry_is_filled_from_the_log(
    reader: SubscriptionReader, bad: bytes
) -> None:
    live(reader)
    client = reader.cluster.client
    reader.append(2)
    good = encode_entry(1, Record(0, bytes(11) + b"\x0c", b"12"))
    broadcast = [b"demo", b"\1", b"\x0c", bad, good]
    client.on_broadcast(reader.subscription, broadcast, reader.cluster.now_ms)
    assert client.counters["junk"] == 1
    reader.append()
    reader.cluster.broadcast("n1", 1)
    assert reader.run(13) < 30
    reader.check()


def test_ended_it_asks_for_nothing_more(reader: SubscriptionReader) -> None:
    live(reader)
    reader.cluster.client.unsubscribe(reader.subscription)
    reader.cluster.client.unsubscribe(reader.subscription)
    reader.rest(10)
    assert not reader.cluster.listening
    sent = len(reader.cluster.sent)
    reader.cluster.client.on_broadcast(reader.subscription, [b"demo", b"\1", b"\x7f"], 0)
    reader.rest(3000)
    assert len(reader.cluster.sent) == sent


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_nothing_is_lost_or_doubled(seed: int) -> None:
    dice = Random(seed)
    reader = SubscriptionReader(dice.choice([None, Form.NODE, Form.TEXT]))
    cluster, names = reader.cluster, ["n1", "n2", "n3"]
    leader = "n1"
    for _ in range(60):
        reader.append(dice.choice([0, 1, 1, 5, 30]))
        for _ in range(dice.randint(0, 2)):
            # Of any peer: a leader deposed a moment ago may still send.
            name = leader if dice.random() < 0.9 else dice.choice(names)
            cluster.broadcast(name, dice.randint(0, min(40, reader.number)))
        if dice.random() < 0.1:
            leader = dice.choice(names)
            cluster.lead(leader)
        if dice.random() < 0.1:
            cluster.reset(cluster.peer(f"tcp://{dice.choice(names)}"))
        if dice.random() < 0.05:
            cluster.peer(f"tcp://{dice.choice(names)}").pub = None
        reader.rest(dice.choice([0, 1, 3, 20, 300]))
    reader.append()
    reader.run(reader.number, 10_000)
    reader.check()


@pytest.mark.parametrize(
    "types", [(REQUEST_ENTRIES, ENTRIES_PACKED), (REQUEST_BROADCAST_STATE_URL,)]
)
def test_it_ends_when_the_key_may_not_read(types: tuple[bytes, ...]) -> None:
    reader = SubscriptionReader()
    reader.append(3)
    reader.run(3)
    for peer in reader.cluster.peers:
        peer.denies = types
    reader.append(2)
    reader.cluster.reset(reader.cluster.peers[0])  # The client asks again.
    reader.cluster.run(lambda: bool(reader.subscription.denial))
    assert reader.subscription.denial == "this key has no grant `log.read`"
    assert reader.subscription.readable
    assert reader.subscription.deadline_ms is None
    asked = len(reader.cluster.sent)
    reader.rest(3000)
    assert len(reader.cluster.sent) == asked
