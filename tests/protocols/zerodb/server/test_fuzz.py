"""Each request is answered once, although workers crash and leaders change."""

from collections import Counter
from random import Random

import pytest

from kelek.protocols.zerodb.wire.worker_pipe import REQUEST
from kelek.tests.protocols.zerodb.server.served import TABLE, SessionHarness

TABLES = [TABLE, (8).to_bytes(4, "little"), (9).to_bytes(4, "little")]


class CrashingWorker:
    """A worker that answers its requests later, unless it dies before."""

    def __init__(self, harness: SessionHarness, number: int) -> None:
        self.harness = harness
        self.worker = harness.workers[number]
        self.epoch = 1
        self.answered: list[bytes] = []
        self._done = 0

    def work(self, share: float = 1.0) -> None:
        """Answers a share of the requests, in order."""
        taken = self.worker.taken
        end = self._done + int((len(taken) - self._done) * share)
        for kind, _, epoch, _, _, routing_id, _ in taken[self._done : end]:
            if epoch == self.epoch and kind == REQUEST:  # Others were for its predecessor.
                self.answered.append(routing_id)
        self._done = end
        if end == len(taken) and taken:
            self.worker.channel.on_handled(taken[-1][4])

    def die(self) -> None:
        """Unanswered requests are lost."""
        self._done = len(self.worker.taken)
        self.epoch += 1
        self.worker.report(self.epoch, len(self.harness.log.records), self.harness.now_ms)


@pytest.mark.parametrize("seed", range(6))
def test_each_request_is_answered_once_despite_crashes(seed: int) -> None:
    rng = Random(seed)
    harness = SessionHarness(
        workers=2, local=frozenset({9}), request_timeout_ms=rng.choice([300, 5000])
    )
    workers = [CrashingWorker(harness, number) for number in range(2)]
    asked: list[bytes] = []

    def ask() -> None:
        routing_id = b"%06d" % len(asked)
        asked.append(routing_id)
        table = rng.choice(TABLES)
        if rng.random() < 0.5:
            harness.ask(routing_id, b"\x31\x01\x10", table, b"k")
        else:
            flags = rng.choice([b"\0", b"\1"])
            harness.ask(routing_id, b"\x31\x01\x20" + flags, table, b"k", routing_id)

    def lose_leader() -> None:
        for peer in harness.peers:
            if peer.leads:
                peer.leads = False
                harness.reset(peer)

    for _ in range(200):
        at_ms = rng.randrange(2000)
        chance = rng.random()
        if chance < 0.04:
            harness.at(at_ms, lose_leader)
            harness.at(at_ms + 200, lambda: harness.lead(rng.choice(["n1", "n2", "n3"])))
        elif chance < 0.08:
            harness.at(at_ms, rng.choice(workers).die)
        elif chance < 0.4:
            harness.at(at_ms, lambda: rng.choice(workers).work(rng.random()))
        else:
            harness.at(at_ms, ask)
    harness.at(2500, lambda: harness.lead("n1"))
    for pause_ms in range(2600, 9000, 100):
        for worker in workers:
            harness.at(pause_ms, worker.work)
    harness.run(lambda: harness.now_ms > 3600 and not harness.session.inflight, 20_000)
    found = Counter(answer[0] for answer in harness.answers)
    for worker in workers:
        found.update(worker.answered)
    # Only clients of a worker that died may get two answers: it had answered without reporting
    # that.
    again = {
        taken[5] for worker in workers for taken in worker.worker.taken if taken[2] < worker.epoch
    }
    assert set(found) == set(asked)
    assert {routing_id for routing_id, times in found.items() if times > 1} <= again
