"""Reads forwarded in C to table workers, against a twin made of the codec."""

import random
from typing import NamedTuple

import pytest

from kelek.native.net.messages import Arena
from kelek.native.tables.channels import BATCHES, READS_MAX, ReadChannels
from kelek.protocols.zerodb.wire.requests import Put, Read, encode_request
from kelek.protocols.zerodb.wire.worker_pipe import ANSWER_TAG, ENVELOPE, PIPE_HEADER

WORKERS, FIRST_TICKET = 3, 40
EPOCHS = (7, 8, 9)


class TwinBatch(NamedTuple):
    ticket: int
    messages: list[list[bytes]]
    log_index: int
    arrived_us: int
    answered: set[int]


class ChannelTwin:
    """What csrc/server/channels.c does for one worker."""

    def __init__(self) -> None:
        self.ticket, self.batches = FIRST_TICKET - 1, list[TwinBatch]()
        self.taken = self.bytes = self.ended = 0

    def batch(self, ticket: int, place: int) -> TwinBatch | None:
        found = [batch for batch in self.batches if batch.ticket == ticket]
        return found[0] if found and place < len(found[0].messages) else None

    def answered(self, ticket: int, place: int) -> bool:
        batch = self.batch(ticket, place)
        if batch is None:
            return False
        batch.answered.add(place)
        while self.batches and len(self.batches[0].answered) == len(self.batches[0].messages):
            self.end()
        return True

    def end(self) -> None:
        self.ended += len(self.batches.pop(0).messages)


class ChannelHistory:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.native = ReadChannels(WORKERS, FIRST_TICKET)
        self.twins = [ChannelTwin() for _ in range(WORKERS)]
        for channel, epoch in zip(self.native.all, EPOCHS, strict=True):
            channel.open(epoch)
        self.is_open = [True] * WORKERS
        self.now_us = 0
        self.seen: set[str] = set()

    def add(self) -> None:
        rng = self.rng
        requests: list[Put | Read] = []
        messages = []
        for at in range(rng.choice([1, 2, 5, 30])):
            keys = [rng.randbytes(4) for _ in range(rng.randint(1, 3))]
            table, writes = rng.randrange(9), rng.random() < 0.1
            requests.append(Put(table, keys, keys) if writes else Read(table, keys))
            envelope = [b""] if rng.random() < 0.2 else []
            messages.append([b"c%d" % at, *envelope, *encode_request(requests[-1])])
        arena, log_index = Arena.from_messages(messages), rng.randrange(100)
        full = any(len(twin.batches) == BATCHES for twin in self.twins)
        fits = self.native.fits(arena)
        assert fits is (all(self.is_open) and not full)
        self.seen.add("fits" if fits else "does not fit")
        if not fits:
            return
        for number, twin in enumerate(self.twins):
            expected = []
            for request, (route, *rest) in zip(requests, messages, strict=True):
                if isinstance(request, Read) and request.table % WORKERS == number:
                    flags = 0 if rest[0] else ENVELOPE
                    fields = (0, flags, 0, EPOCHS[number], log_index, twin.ticket + 1)
                    frames = rest if rest[0] else rest[1:]
                    expected.append([PIPE_HEADER.pack(*fields), route, *frames])
            if expected:
                twin.ticket += 1
                batch = TwinBatch(twin.ticket, expected, log_index, self.now_us, set())
                twin.batches.append(batch)
                twin.taken += len(expected)
            found = self.native.add(number, arena, log_index, self.now_us)
            assert found.messages() == expected

    def done(self) -> None:
        rng = self.rng
        messages, known = [], []
        for _ in range(rng.choice([1, 1, 4])):
            number = rng.randrange(WORKERS)
            twin, epoch = self.twins[number], EPOCHS[number]
            open_ = [
                (batch.ticket, at)
                for batch in twin.batches
                for at in range(len(batch.messages))
                if at not in batch.answered
            ]
            ticket, place = rng.choice(open_) if open_ else (FIRST_TICKET, 0)
            flags = 0
            if rng.random() < 0.03:
                what = rng.randrange(5)
                number += WORKERS * (what == 0)
                flags, epoch = int(what == 1), epoch + (what == 2)
                ticket, place = ticket + 100 * (what == 3), place + 99 * (what == 4)
            is_known = number < WORKERS and not flags and epoch == EPOCHS[number]
            is_known = is_known and twin.batch(ticket, place) is not None
            known.append((is_known, number, ticket, place))
            tag = ANSWER_TAG.pack(number, flags, epoch, place, ticket)
            messages.append([tag, b"route", b"answer"[: rng.randrange(6)]])
        if rng.random() < 0.02:
            messages[-1] = messages[-1][:2]
            known[-1] = (False, *known[-1][1:])
        expected = all(one[0] for one in known)
        assert self.native.done(Arena.from_messages(messages), self.now_us) is expected
        self.seen.add("done" if expected else "not done")
        if expected:
            for (_, number, ticket, place), message in zip(known, messages, strict=True):
                self.twins[number].answered(ticket, place)
                self.twins[number].bytes += sum(map(len, message))

    def other(self) -> None:
        number, rng = self.rng.randrange(WORKERS), self.rng
        channel, twin = self.native.all[number], self.twins[number]
        kind = rng.random()
        if kind < 0.3:
            ticket, place = rng.randint(FIRST_TICKET - 1, twin.ticket + 1), rng.randrange(6)
            is_known = twin.answered(ticket, place)
            assert channel.answered(ticket, place, self.now_us) is is_known
        elif kind < 0.4:
            ticket = rng.randint(FIRST_TICKET, twin.ticket + 1)
            channel.handled(ticket, self.now_us)
            while twin.batches and twin.batches[0].ticket <= ticket:
                twin.end()
        elif kind < 0.6:
            twin.ticket += 1
            assert channel.next_ticket() == twin.ticket
        elif kind < 0.7:
            self.is_open[number] = rng.random() < 0.8
            channel.open(EPOCHS[number] if self.is_open[number] else None)
        elif kind < 0.85:
            sent = None
            if twin.batches and rng.random() < 0.5:
                sent = rng.randrange(len(twin.batches[-1].messages))
                channel.stop(sent)
                self.is_open[number] = False
            taken = channel.take_back()
            sizes = [len(batch.messages) for batch in twin.batches]
            assert [each.sent for each in taken] == sizes[:-1] + [
                size if sent is None else sent for size in sizes[-1:]
            ]
            assert [
                (each.ticket, each.requests.messages(), each.log_index, each.arrived_us)
                for each in taken
            ] == [batch[:4] for batch in twin.batches]
            assert [each.answered for each in taken] == [it.answered for it in twin.batches]
            self.seen.add("taken back" if taken else "nothing taken back")
            twin.batches.clear()
        else:
            assert channel.pop_bytes() == twin.bytes
            twin.bytes = 0

    def check(self) -> None:
        for channel, twin in zip(self.native.all, self.twins, strict=True):
            messages = [message for batch in twin.batches for message in batch.messages]
            assert channel.count == len(messages)
            assert channel.size == sum(len(frame) for message in messages for frame in message)
            assert channel.taken == twin.taken
            assert sum(channel.latency.values()[1:]) == twin.ended


@pytest.mark.parametrize("seed", range(8))
def test_a_history_of_reads_is_its_twins(seed: int) -> None:
    history = ChannelHistory(seed)
    for _ in range(2000):
        history.now_us += history.rng.randint(0, 3000)
        kind = history.rng.random()
        if kind < 0.2:
            history.add()
        elif kind < 0.92:
            history.done()
        else:
            history.other()
        history.check()
    assert history.seen >= {"fits", "does not fit", "done", "not done", "taken back"}


def test_more_than_a_batch_does_not_fit() -> None:
    channels = ReadChannels(1, 1)
    channels.all[0].open(1)
    read = [b"client", *encode_request(Read(1, [b"key"]))]
    assert channels.fits(Arena.from_messages([read] * READS_MAX))
    assert not channels.fits(Arena.from_messages([read] * (READS_MAX + 1)))
    large = [b"client", *encode_request(Read(1, [b"k" * 60_000]))]
    assert channels.fits(Arena.from_messages([large] * 4))
    assert not channels.fits(Arena.from_messages([large] * 5))
    many = [b"client", *encode_request(Read(1, [b"key"] * 2000))]
    assert channels.fits(Arena.from_messages([many] * 4))
    assert not channels.fits(Arena.from_messages([many] * 5))
