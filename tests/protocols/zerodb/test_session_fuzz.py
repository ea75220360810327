"""Whatever comes in, nothing ends the server, and each request is answered or handed on once."""

from collections import Counter
from random import Random

import pytest

from kelek.native import Arena
from kelek.protocols.zerodb.handoff import ANSWER
from kelek.protocols.zerodb.requests import TYPES
from kelek.tests.protocols.zerodb.served import TABLE, Served

TABLES = [TABLE, (8).to_bytes(4, "little"), (9).to_bytes(4, "little")]
ENDS = (0, 4, 12, 20, 3)  # Of our extension, behind its reqid; 3 is none.


def header(rng: Random) -> bytes:
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(6))
    found = bytes([0x31, 1, rng.choice([*TYPES.values(), 0x07, 0xFF])])
    if rng.random() < 0.6:
        found += bytes([rng.randrange(4)])
    if rng.random() < 0.4:
        reqid = rng.choice([bytes(12), rng.randbytes(12)])
        fields = bytes([rng.randrange(32)]) + rng.randbytes(4) + reqid
        found += b"kLK\1" + fields + rng.randbytes(rng.choice(ENDS))
    return found


def frame(rng: Random) -> bytes:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(TABLES)
    if kind == 1:
        return rng.choice([b"", b"k", b"key"])
    if kind == 2:
        return rng.randbytes(8)
    if kind == 3:
        return rng.choice(TABLES) + rng.choice([1, 2]).to_bytes(4, "little") + rng.randbytes(1)
    return rng.randbytes(rng.randrange(40))


def message(rng: Random, routing_id: bytes) -> list[bytes]:
    envelope = [b""] * (rng.random() < 0.3)
    return [routing_id, *envelope, header(rng), *(frame(rng) for _ in range(rng.randrange(6)))]


@pytest.mark.parametrize("seed", range(4))
def test_each_request_is_answered_or_handed_on_once(seed: int) -> None:
    rng = Random(seed)
    world = Served(workers=2, local=frozenset({9}), open_on_the_fly=seed % 2 == 0)
    world.lead("n1")
    asked: list[bytes] = []
    for _ in range(100):
        routing_ids = [b"%06d" % (len(asked) + i) for i in range(rng.randrange(1, 12))]
        asked += routing_ids
        messages = [message(rng, each) for each in routing_ids]
        world.session.on_requests(Arena.from_messages(messages), world.now)
        one_way = [message(rng, b"")[1:] for _ in range(3)]
        world.session.on_one_way(Arena.from_messages(one_way), world.now)
        world.session.ready(world.now)
        world.run(lambda: not world.session._rounds and world.session.proposals.is_idle)
    found = Counter(answer[0] for answer in world.answers)
    found.update(job[1] for job in world.jobs)
    for worker in world.workers:
        found.update(taken[5] for taken in worker.taken if taken[0] == ANSWER)
    assert found == Counter(asked)
