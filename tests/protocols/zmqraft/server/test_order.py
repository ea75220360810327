"""Order and exactly once, whatever fails: leaders that lose what was not committed, late messages,
lost messages, peers that stop, connections that break."""

import os
import random

import pytest

from kelek.protocols.zmqraft.client.client import PendingUpdates
from kelek.protocols.zmqraft.wire import extensions as own
from kelek.protocols.zmqraft.wire.client_codec import RequestUpdate, UpdateAnswer
from kelek.tests.protocols.zmqraft.fake_cluster import IDENT, FakeCluster, FakePeer, records_of

SEEDS = [int(os.environ["KELEK_SEED"])] if "KELEK_SEED" in os.environ else list(range(40))
PACKS = 150


class LosingPeer(FakePeer):
    """Takes packs as the chain rule says, commits them some time later, forgets some at a change
    of leaders."""

    cluster: "LossyCluster"

    def _on_pack(self, frames: list[bytes]) -> list[list[bytes]]:
        cluster = self.cluster
        pack = own.PACK_REQUEST.decode(frames, IDENT)
        if not self.leads:
            return [self._answer(pack, own.PackAnswer(own.PACK_NOT_LEADER, leader=self.leader))]
        if cluster.dice.random() < cluster.loss:
            return []
        if pack.previous and pack.previous not in cluster.log.index_of:
            return [self._answer(pack, own.PackAnswer(own.PACK_GAP))]
        records = records_of(pack.records)
        indexes = [cluster.log.add(record.reqid or b"", record.data) for record in records]
        runs = tuple((1, index) for index in indexes)
        committed = self._answer(pack, own.PackAnswer(own.PACK_ACCEPTED, runs=runs))
        if max(indexes) <= cluster.committed:
            return [committed]
        term, generation = cluster.term, cluster.generation_of(self.url)

        def commit() -> None:
            if cluster.term == term and self.alive:
                cluster.committed = max(cluster.committed, *indexes)
                if generation is not None:
                    cluster.reply(self.url, generation, committed)

        cluster.at(cluster.dice.randrange(1, 60), commit)
        return [self._answer(pack, own.PackAnswer(own.PACK_ACCEPTED))]

    def _on_update(self, frames: list[bytes], request: RequestUpdate) -> UpdateAnswer:
        raise AssertionError("a single update to a peer that takes packs")

    def _answer(self, pack: own.Pack, answer: own.PackAnswer) -> list[bytes]:
        return own.PACK_ANSWER.encode(answer, pack.reqid)


class LossyCluster(FakeCluster):
    """A cluster with faults at random times, until enough have happened."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dice = random.Random(seed)
        self.peers = [LosingPeer(self, name) for name in ("n1", "n2", "n3")]
        self.committed = 0
        self.term = 0
        self.loss = self.dice.choice([0.0, 0.0, 0.1, 0.3])
        self.slow = self.dice.choice([0.0, 0.02, 0.2])
        self.troubles = 20
        self.elect()
        self.at(200, self.trouble)

    def latency_ms(self) -> int:
        return self.dice.randrange(20, 400) if self.dice.random() < self.slow else 1

    def generation_of(self, url: str) -> int | None:
        return self.links.get(url)

    def elect(self) -> None:
        """A living peer leads; it may lack what was not committed, never what was."""
        able = [peer for peer in self.peers if peer.alive and not peer.mute]
        self.term += 1
        kept = self.dice.randrange(self.committed, len(self.log.records) + 1)
        for reqid, _ in self.log.records[kept:]:
            del self.log.index_of[reqid]
        del self.log.records[kept:]
        if able:
            self.lead(self.dice.choice(able).name)

    def trouble(self) -> None:
        """One more thing breaks, or all is mended."""
        self.troubles -= 1
        for peer in self.peers:
            if self.troubles <= 0 or self.dice.random() < 0.5:
                peer.alive, peer.mute = True, False
        if self.troubles <= 0:
            self.loss = self.slow = 0.0
            self.elect()
            return
        peer = self.dice.choice(self.peers)
        match self.dice.randrange(5):
            case 0:
                self.kill(peer.name)
            case 1:
                peer.mute = True
            case 2:
                self.reset(peer)
            case 3:
                frames = [self.dice.randbytes(12) for _ in range(self.dice.randrange(5))]
                self.client.on_frames(peer.url, frames, self.now_ms)
            case 4:
                pass  # Only another leader.
        if self.dice.random() < 0.7:
            self.at(self.dice.randrange(0, 300), self.elect)
        self.at(self.dice.randrange(20, 900), self.trouble)


@pytest.mark.parametrize("seed", SEEDS)
def test_updates_commit_once_and_in_order(seed: int) -> None:
    storm = LossyCluster(seed)
    waiting = [
        (number, [b"%d.%d" % (number, n) for n in range(storm.dice.randrange(1, 4))])
        for number in range(PACKS)
    ]
    expected = [data for _, updates in waiting for data in updates]
    pendings: list[PendingUpdates] = []

    def feed() -> bool:
        while waiting and storm.client.window.has_room:
            _, updates = waiting.pop(0)
            pendings.append(PendingUpdates([storm.new_id() for _ in updates], updates))
            storm.client.window.add(pendings[-1])
        # In order, at every moment: what is committed is a prefix of what was given.
        committed = [data for _, data in storm.log.records[: storm.committed]]
        assert committed == expected[: len(committed)]
        return not waiting and not storm.client.window.items

    storm.run(feed, limit_ms=200_000)
    assert storm.committed == len(expected)
    at = 0
    for pending in pendings:
        indexes = [first + n for count, first in pending.runs for n in range(count)]
        assert indexes == list(range(at + 1, at + 1 + len(pending.updates)))
        at += len(pending.updates)
