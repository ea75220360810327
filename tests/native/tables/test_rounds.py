"""Reads that ask the leader in C, against a twin with lists."""

import random

import pytest

from kelek.native.latency import Latency
from kelek.native.net.messages import Arena
from kelek.native.tables.channels import ReadChannels
from kelek.native.tables.plain import PlainWrites
from kelek.native.tables.rounds import READS_MAX, ReadRounds
from kelek.protocols.zerodb.wire.requests import Put, Read, encode_request
from kelek.protocols.zerodb.wire.worker_pipe import PIPE_HEADER
from kelek.protocols.zmqraft.wire.read_codec import (
    READ_ACCEPTED,
    READ_ANSWER,
    READ_NOT_LEADER,
    READ_REQUEST,
    ReadAnswer,
    RequestRead,
)

TABLE, CLUSTER = 4, b"cluster"
Message = list[bytes]


def plain_writes() -> PlainWrites:
    made = PlainWrites(
        CLUSTER, Latency(), maker=b"maker", entry_bytes_max=1 << 20, workers=1, timeout_ms=5000
    )
    made.set_tables([TABLE])
    return made


class RoundHistory:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rounds, self.plain = ReadRounds(CLUSTER, b"maker"), plain_writes()
        self.asked: list[tuple[int, Message]] = []  # (arrival, message)
        self.next: list[tuple[int, Message]] = []
        self.id: bytes | None = None
        self.ids: set[bytes] = set()
        self.now_us = self.number = 0
        self.seen: set[str] = set()

    def add(self) -> None:
        messages, reads = [], []
        for _ in range(self.rng.choice([1, 3, 700])):
            self.number += 1
            key = b"%d" % self.number
            request = Read(TABLE, [key])
            is_read = self.rng.random() < 0.8
            frames = encode_request(request if is_read else Put(TABLE, [key], [key]))
            envelope = [b""] if self.rng.random() < 0.3 else []
            messages.append([b"c%d" % self.rng.randrange(9), *envelope, *frames])
            if is_read:
                reads.append((self.now_us, messages[-1]))
        arena = Arena.from_messages(messages)
        self.plain.read(arena)
        fits = len(self.next) + len(messages) <= READS_MAX
        assert self.rounds.add(arena, self.plain, self.now_us) is fits
        self.seen.add("fits" if fits else "does not fit")
        if fits:
            self.next += reads

    def ask(self) -> None:
        question = self.rounds.ask()
        if self.id is not None or not self.next:
            assert question is None
            return
        assert question is not None
        self.id = READ_REQUEST.decode(question, cluster=CLUSTER).id
        assert question == READ_REQUEST.encode(RequestRead(self.id, 1), cluster=CLUSTER)
        assert self.id not in self.ids
        self.ids.add(self.id)
        self.asked, self.next = self.next, []

    def answer(self) -> None:
        rng, id_ = self.rng, self.id or b"another id"
        known = rng.random() < 0.8
        status = READ_ACCEPTED if rng.random() < 0.8 else READ_NOT_LEADER
        index = rng.choice([0, 5, 300, (1 << 53) - 1])
        answer = ReadAnswer(status, None, index if status == READ_ACCEPTED else 0)
        frames = READ_ANSWER.encode(answer, id_ if known else b"other id.")
        if rng.random() < 0.1:
            frames, status = frames[:-1], READ_NOT_LEADER
        found = self.rounds.answer(Arena.from_messages([frames]), 0)
        if self.id is None or not known or status != READ_ACCEPTED:
            assert found is None
            return
        assert found == index
        if index:
            assert self.rounds.asked.messages() == [message for _, message in self.asked]
            self.rounds.end()
            self.asked, self.id = [], None
            self.seen.add("served")

    def take_back(self) -> None:
        found = [frames.messages() for frames in self.rounds.take_back()]
        kept = [[message for _, message in each] for each in (self.asked, self.next)]
        assert found == [each for each in kept if each]
        self.asked, self.next, self.id = [], [], None
        self.seen.add("taken back")

    def check(self) -> None:
        reads = [*self.asked, *self.next]
        assert self.rounds.count == len(reads)
        assert self.rounds.is_empty is not bool(reads)
        assert self.rounds.size == sum(len(frame) for _, message in reads for frame in message)
        assert self.rounds.since_us == min((at for at, _ in reads), default=None)


@pytest.mark.parametrize("seed", range(6))
def test_a_history_of_rounds_is_its_twins(seed: int) -> None:
    history = RoundHistory(seed)
    steps = [history.add, history.ask, history.answer, history.take_back]
    for _ in range(500):
        history.now_us += history.rng.randrange(1000)
        history.rng.choices(steps, [4, 3, 4, 0.2])[0]()
        history.check()
    assert history.seen == {"fits", "does not fit", "served", "taken back"}


def test_the_keys_of_senders_stay_with_their_reads() -> None:
    rounds, plain = ReadRounds(CLUSTER, b"maker"), plain_writes()
    messages = [[b"c%d" % at, *encode_request(Read(TABLE, [b"k"]))] for at in range(2)]
    arena = Arena.from_messages(messages, [7, 9])
    plain.read(arena)
    assert rounds.add(arena, plain, 0)
    assert rounds.add(arena, plain, 0)
    question = rounds.ask()
    assert question is not None
    answer = READ_ANSWER.encode(ReadAnswer(READ_ACCEPTED, None, 5), question[0])
    assert rounds.answer(Arena.from_messages([answer]), 0) == 5
    channels = ReadChannels(1, 1)
    channels.all[0].open(7)
    sent = channels.add(0, rounds.asked, 5, 0, rounds.rows).messages()
    clients = [PIPE_HEADER.unpack(message[0])[2] for message in sent]
    assert clients == [slot + 1 for slot in (7, 9, 7, 9)]
