"""C against its Python twins: the table of request ids and the intake, on random histories."""

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import settings

from kelek.native.errors import NativeError
from kelek.native.log.updates import Reqids, Updates, View
from kelek.native.net.messages import Arena, Frames
from kelek.protocols.record import Record, decode_block, encode_block
from kelek.tests.native.log import updates_twin as twins

NOW_S = 1_800_000_000
SEEDS = range(30)


@cache
def reqid_of(number: int, spread_s: int) -> bytes:
    """The same number is always the same id."""
    seconds = NOW_S + Random(number).randint(-spread_s, spread_s)
    return seconds.to_bytes(4) + number.to_bytes(8)


def some_reqid(dice: Random, spread_s: int, numbers: int = 1200) -> bytes:
    return reqid_of(dice.randrange(numbers), spread_s)


def test_shards_grow_and_find_everything() -> None:
    dice = Random(1)
    mine, other = Reqids(dice.randbytes(16)), twins.Reqids()
    index = 1
    while index < 100_000:
        records = []
        for i in range(dice.randint(1, 9000)):
            reqid = (NOW_S + dice.randint(-3000, 3000)).to_bytes(4) + dice.randbytes(8)
            other.put(reqid, index + i)
            records.append(Record(0, reqid, b"x"))
        mine.add_block(encode_block(index, 1, records).block)
        index += len(records)
    assert len(mine) == len(other)
    assert all(mine.find(reqid) == found for reqid, found in other.indexes.items())
    assert all(mine.find(NOW_S.to_bytes(4) + dice.randbytes(8)) is None for _ in range(1000))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_ids(seed: int) -> None:
    """Blocks come, the log is cut, seconds are forgotten: both tables say the same throughout."""
    dice = Random(seed)
    spread_s = dice.choice([2, 100, 40_000])
    numbers = dice.choice([300, 20_000])
    mine, other = Reqids(dice.randbytes(16)), twins.Reqids()
    asked = [
        some_reqid(Random(number), spread_s, numbers)
        for number in range(0, numbers, max(1, numbers // 300))
    ]
    last_index = 0
    for _ in range(60):
        what = dice.random()
        if what < 0.7:
            reqids = [
                dice.choice([None, bytes(12), some_reqid(dice, spread_s, numbers)])
                if dice.random() < 0.1
                else some_reqid(dice, spread_s, numbers)
                for _ in range(dice.randint(1, 200))
            ]
            records = [Record(0, reqid, b"x") for reqid in reqids]
            newest = mine.add_block(encode_block(last_index + 1, 1, records).block)
            assert newest == max((twins.seconds_of(r) for r in reqids if r), default=0)
            for offset, reqid in enumerate(reqids):
                if reqid:
                    other.put(reqid, last_index + 1 + offset)
            last_index += len(records)
        elif what < 0.85:
            last_index = max(0, last_index - dice.randint(0, 300))
            mine.truncate(last_index)
            other.truncate(last_index)
        elif what < 0.95:
            seconds = NOW_S + dice.randint(-spread_s - 2, spread_s // 2)
            mine.forget(seconds)
            other.forget(seconds)
        else:
            count_max = dice.randint(0, 500)
            mine.bound(count_max)
            other.bound(count_max)
        assert (len(mine), mine.forgotten_s) == (len(other), max(other.forgotten_s, 0))
        for reqid in asked:
            assert mine.find(reqid) == other.find(reqid)


def loaded(table: Reqids, data: bytes, piece: int) -> bool:
    """Whether a table takes what is in data, given in pieces."""
    try:
        table.load(data[at : at + piece] for at in range(0, len(data), piece))
    except NativeError:
        return False
    return True


def grown(dice: Random, count: int) -> tuple[Reqids, Any, int]:
    """Both tables with the same ids, and the last index."""
    mine, other, index = Reqids(dice.randbytes(16)), twins.Reqids(), 1 << dice.choice([0, 31, 40])
    while len(other) < count:
        reqids = [some_reqid(dice, 300, 3 * count) for _ in range(dice.randint(1, 50))]
        mine.add_block(encode_block(index, 1, [Record(0, r, b"x") for r in reqids]).block)
        for offset, reqid in enumerate(reqids):
            other.put(reqid, index + offset)
        index += dice.choice([len(reqids), 1000, 1 << 20])
    return mine, other, index


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_as_bytes(seed: int) -> None:
    dice = Random(seed)
    mine, other, last_index = grown(dice, dice.choice([1, 10, 3000]))
    if dice.random() < 0.5:
        mine.settle(200, 2000)
        other.forget(other.newest_s - 200)
        other.bound(2000)
    for upto in (last_index, last_index - dice.randint(0, 1 << 20), 0):
        assert bytes(mine.export(max(0, upto))) == other.export(max(0, upto))
    data = other.export(last_index)
    again = Reqids(dice.randbytes(16))
    assert loaded(again, data, dice.choice([1, 7, 24, 1000, 1 << 20]))
    assert (len(again), again.newest_s, again.forgotten_s) == (
        len(mine),
        mine.newest_s,
        mine.forgotten_s,
    )
    assert bytes(again.export(last_index)) == data
    reqids = [some_reqid(dice, 300) for _ in range(100)]
    block = encode_block(last_index + 1, 1, [Record(0, r, b"x") for r in reqids]).block
    for table in (mine, again):
        table.add_block(block)
        table.settle(100, 1500)
    assert mine.export(last_index + 100) == again.export(last_index + 100), "it goes on alike"


@pytest.mark.parametrize("seed", range(10))
def test_a_malformed_table_is_refused_and_changes_nothing(seed: int) -> None:
    dice = Random(seed)
    _, other, last_index = grown(dice, 40)
    data = other.export(last_index)
    table = Reqids()
    assert loaded(table, data, 100)
    taken = 0
    tries = 4 * settings().max_examples
    for _ in range(tries):
        wrong = bytearray(data)
        what = dice.random()
        if what < 0.6:
            wrong[dice.randrange(len(wrong))] ^= 1 << dice.randrange(8)
        elif what < 0.8:
            del wrong[dice.randrange(len(wrong)) :]
        else:  # Swapped or doubled.
            one, two = (24 + 16 * dice.randrange(len(data) // 16 - 1) for _ in range(2))
            wrong[one : one + dice.choice([12, 16])] = data[two : two + 16][: dice.choice([12, 16])]
        expected = twins.Reqids()
        assert loaded(table, bytes(wrong), dice.choice([1, 16, 1000])) == expected.load(
            bytes(wrong)
        )
        if expected.load(bytes(wrong)):
            taken += 1
            upto = int.from_bytes(wrong[8:16], "little")
            assert bytes(table.export(upto)) == expected.export(upto)
            assert loaded(table, data, 100)
        assert bytes(table.export(last_index)) == data
    assert taken < 0.75 * tries
    assert loaded(table, b"", 1)
    assert (len(table), table.newest_s, table.forgotten_s) == (0, 0, 0)


def test_the_intake_sees_what_was_loaded() -> None:
    dice = Random(1)
    _, other, last_index = grown(dice, 40)
    reqids = Reqids()
    updates = Updates(b"demo", reqids)
    reqids.load([other.export(last_index)])
    reqid, index = next(iter(other.indexes.items()))
    view = View(True, b"\xc0", last_index + 1, last_index, now_ms=1, unix_s=NOW_S)
    out = Frames()
    updates.receive(Arena.from_messages([[b"R", reqid, b"=", b"x"]]), view, out)
    answer = index.to_bytes((index.bit_length() + 7) // 8, "little")
    assert out.messages() == [[b"R", reqid, b"\x01", answer]]


def some_record(dice: Random, reqid: bytes, data: bytes) -> bytes:
    body = bytes([0x80 if dice.random() < 0.99 else dice.randrange(256)]) + reqid + data
    size, varint = len(body), b""
    while size >= 0x80:
        varint, size = varint + bytes([size & 0x7F | 0x80]), size >> 7
    return varint + bytes([size]) + body


def some_message(dice: Random, spread_s: int) -> list[bytes]:
    routing_id = dice.choice([b"\0abcd", b"A", b"r" * 255])
    reqid = some_reqid(dice, spread_s)
    data = (
        dice.randbytes(dice.choice([0, 1, 5, 100, 101, 3000])) if dice.random() < 0.1 else b"data"
    )
    what = dice.random()
    if what < 0.3:
        return [routing_id, reqid, b"=", data]
    if what < 0.5:
        return [routing_id, reqid, b"=", b"demo", data, *[b"more"] * dice.randrange(2)]
    if what < 0.9:
        again = dice.choice([0.0, 0.5])
        records, first = b"", reqid
        for _ in range(dice.randint(1, 12)):
            records += some_record(dice, reqid, data or b"x")
            if dice.random() >= again:
                reqid = some_reqid(dice, spread_s)
        if dice.random() < 0.05:
            records = records[: dice.randrange(len(records) + 1)] + dice.randbytes(3)
        previous = dice.choice([b"", b"", b"", some_reqid(dice, spread_s)])
        return [routing_id, first, b"k=", b"demo", previous, records]
    frames = [b"=", b"k=", b"demo", b"^", b"", reqid, data, dice.randbytes(12)]
    return [routing_id, *dice.choices(frames, k=dice.randint(0, 7))]


class Both:
    """The intake in C and its twin, doing the same."""

    def __init__(self, dice: Random) -> None:
        limits = {
            "record_bytes_max": dice.choice([100, 1 << 20]),
            "inflight_max": dice.choice([20, 10_000]),
            "ttl_s": dice.choice([300, 28_800]),
        }
        self.dice, self.spread_s = dice, dice.choice([40, 400])
        self.mine = Updates(b"demo", Reqids(dice.randbytes(16)), **limits)
        self.twin = twins.Updates(b"demo", twins.Reqids(), **limits)
        self.last_index = self.commit_index = 0
        self.now_ms, self.unix_s = 1000, NOW_S

    def take(self) -> None:
        dice = self.dice
        messages = [some_message(dice, self.spread_s) for _ in range(dice.randint(0, 40))]
        leader, refusal = dice.random() < 0.95, dice.choice([b"\xc0", b"\xa2n1"])
        view = View(
            leader, refusal, self.last_index + 1, self.commit_index, self.now_ms, self.unix_s
        )
        out = Frames(bytes_max=1, frames_max=1)
        before = len(self.twin.records)
        taken = self.mine.receive(Arena.from_messages(messages), view, out)
        self.twin.take(messages, view)
        assert out.messages() == self.twin.out
        assert taken == (len(self.twin.records) - before, self.twin.others)

    def propose(self) -> None:
        records: list[bytes] = []
        while taken := self.mine.block(self.last_index + 1, 1):
            batch, found = decode_block(taken[0])
            self.last_index = batch.last_index
            records += [(record.reqid or b"") + record.data for record in found]
        assert records == self.twin.records
        self.twin.records = []

    def commit(self) -> None:
        self.commit_index = self.dice.randint(self.commit_index, self.last_index)
        out = Frames(bytes_max=1, frames_max=1)
        count = self.mine.commit(self.commit_index, out)
        assert out.messages() == self.twin.commit(self.commit_index)
        assert count == out.count

    def remind(self) -> None:
        self.now_ms += self.dice.choice([0, 10, 99, 100, 250])
        self.unix_s += self.dice.randint(0, 2)
        out = Frames(bytes_max=1, frames_max=1)
        self.mine.remind(self.now_ms, out)
        assert out.messages() == self.twin.remind(self.now_ms)

    def step_down(self) -> None:
        out = Frames(bytes_max=1, frames_max=1)
        self.mine.refuse(b"\xa2n3", out)
        assert out.messages() == self.twin.refuse(b"\xa2n3")
        self.last_index = self.dice.randint(self.commit_index, self.last_index)
        for reqids in (self.mine.reqids, self.twin.reqids):
            reqids.truncate(self.last_index)

    def forget(self) -> None:
        seconds = self.unix_s - self.dice.randint(self.spread_s // 2, 2 * self.spread_s)
        for reqids in (self.mine.reqids, self.twin.reqids):
            reqids.forget(seconds)


def run_updates(seed: int) -> Counter[str]:
    """One history; returns what the intake has counted in it."""
    both = Both(Random(seed))
    steps = [both.take] * 4 + [both.propose, both.commit, both.remind] * 2
    steps += [both.step_down, both.forget]
    for _ in range(150):
        both.dice.choice(steps)()
        counters = {name: count for name, count in both.mine.counters().items() if count}
        assert counters == dict(both.twin.counters)
        assert both.mine.waiting == len(both.twin.waiters)
        assert len(both.mine.reqids) == len(both.twin.reqids)
    return Counter(both.mine.counters())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_updates(seed: int) -> None:
    run_updates(seed)


def test_the_histories_reach_everything() -> None:
    reached = sum((run_updates(seed) for seed in range(100, 106)), Counter())
    counters = ("taken", "repeated", "refused", "dropped", "over", "gaps", "astray")
    assert all(reached[name] > 20 for name in counters), reached
