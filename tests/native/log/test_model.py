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


def random_reqid(rng: Random, spread_s: int, numbers: int = 1200) -> bytes:
    return reqid_of(rng.randrange(numbers), spread_s)


def test_shards_grow_and_find_everything() -> None:
    rng = Random(1)
    native, twin = Reqids(rng.randbytes(16)), twins.Reqids()
    index = 1
    while index < 100_000:
        records = []
        for i in range(rng.randint(1, 9000)):
            reqid = (NOW_S + rng.randint(-3000, 3000)).to_bytes(4) + rng.randbytes(8)
            twin.put(reqid, index + i)
            records.append(Record(0, reqid, b"x"))
        native.add_block(encode_block(index, 1, records).block)
        index += len(records)
    assert len(native) == len(twin)
    assert all(native.find(reqid) == found for reqid, found in twin.indexes.items())
    assert all(native.find(NOW_S.to_bytes(4) + rng.randbytes(8)) is None for _ in range(1000))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_ids(seed: int) -> None:
    """Blocks come, the log is cut, seconds are forgotten: both tables say the same throughout."""
    rng = Random(seed)
    spread_s = rng.choice([2, 100, 40_000])
    numbers = rng.choice([300, 20_000])
    native, twin = Reqids(rng.randbytes(16)), twins.Reqids()
    sampled = [
        random_reqid(Random(number), spread_s, numbers)
        for number in range(0, numbers, max(1, numbers // 300))
    ]
    last_index = 0
    for _ in range(60):
        what = rng.random()
        if what < 0.7:
            reqids = [
                rng.choice([None, bytes(12), random_reqid(rng, spread_s, numbers)])
                if rng.random() < 0.1
                else random_reqid(rng, spread_s, numbers)
                for _ in range(rng.randint(1, 200))
            ]
            records = [Record(0, reqid, b"x") for reqid in reqids]
            newest = native.add_block(encode_block(last_index + 1, 1, records).block)
            assert newest == max((twins.seconds_of(r) for r in reqids if r), default=0)
            for offset, reqid in enumerate(reqids):
                if reqid:
                    twin.put(reqid, last_index + 1 + offset)
            last_index += len(records)
        elif what < 0.85:
            last_index = max(0, last_index - rng.randint(0, 300))
            native.truncate(last_index)
            twin.truncate(last_index)
        elif what < 0.95:
            seconds = NOW_S + rng.randint(-spread_s - 2, spread_s // 2)
            native.forget(seconds)
            twin.forget(seconds)
        else:
            count_max = rng.randint(0, 500)
            native.bound(count_max)
            twin.bound(count_max)
        assert (len(native), native.forgotten_s) == (len(twin), max(twin.forgotten_s, 0))
        for reqid in sampled:
            assert native.find(reqid) == twin.find(reqid)


def load(table: Reqids, data: bytes, piece: int) -> bool:
    """Whether a table takes what is in data, given in pieces."""
    try:
        table.load(data[at : at + piece] for at in range(0, len(data), piece))
    except NativeError:
        return False
    return True


def tables_with(rng: Random, count: int) -> tuple[Reqids, Any, int]:
    """Both tables with the same ids, and the last index."""
    native, twin, index = Reqids(rng.randbytes(16)), twins.Reqids(), 1 << rng.choice([0, 31, 40])
    while len(twin) < count:
        reqids = [random_reqid(rng, 300, 3 * count) for _ in range(rng.randint(1, 50))]
        native.add_block(encode_block(index, 1, [Record(0, r, b"x") for r in reqids]).block)
        for offset, reqid in enumerate(reqids):
            twin.put(reqid, index + offset)
        index += rng.choice([len(reqids), 1000, 1 << 20])
    return native, twin, index


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_as_bytes(seed: int) -> None:
    rng = Random(seed)
    native, twin, last_index = tables_with(rng, rng.choice([1, 10, 3000]))
    if rng.random() < 0.5:
        native.settle(200, 2000)
        twin.forget(twin.newest_s - 200)
        twin.bound(2000)
    for upto in (last_index, last_index - rng.randint(0, 1 << 20), 0):
        assert bytes(native.export(max(0, upto))) == twin.export(max(0, upto))
    data = twin.export(last_index)
    reloaded = Reqids(rng.randbytes(16))
    assert load(reloaded, data, rng.choice([1, 7, 24, 1000, 1 << 20]))
    assert (len(reloaded), reloaded.newest_s, reloaded.forgotten_s) == (
        len(native),
        native.newest_s,
        native.forgotten_s,
    )
    assert bytes(reloaded.export(last_index)) == data
    reqids = [random_reqid(rng, 300) for _ in range(100)]
    block = encode_block(last_index + 1, 1, [Record(0, r, b"x") for r in reqids]).block
    for table in (native, reloaded):
        table.add_block(block)
        table.settle(100, 1500)
    assert native.export(last_index + 100) == reloaded.export(last_index + 100), "it goes on alike"


@pytest.mark.parametrize("seed", range(10))
def test_a_malformed_table_is_refused_and_changes_nothing(seed: int) -> None:
    rng = Random(seed)
    _, twin, last_index = tables_with(rng, 40)
    data = twin.export(last_index)
    table = Reqids()
    assert load(table, data, 100)
    accepted = 0
    tries = 4 * settings().max_examples
    for _ in range(tries):
        wrong = bytearray(data)
        what = rng.random()
        if what < 0.6:
            wrong[rng.randrange(len(wrong))] ^= 1 << rng.randrange(8)
        elif what < 0.8:
            del wrong[rng.randrange(len(wrong)) :]
        else:  # Swapped or doubled.
            one, two = (24 + 16 * rng.randrange(len(data) // 16 - 1) for _ in range(2))
            wrong[one : one + rng.choice([12, 16])] = data[two : two + 16][: rng.choice([12, 16])]
        expected = twins.Reqids()
        assert load(table, bytes(wrong), rng.choice([1, 16, 1000])) == expected.load(bytes(wrong))
        if expected.load(bytes(wrong)):
            accepted += 1
            upto = int.from_bytes(wrong[8:16], "little")
            assert bytes(table.export(upto)) == expected.export(upto)
            assert load(table, data, 100)
        assert bytes(table.export(last_index)) == data
    assert accepted < 0.75 * tries
    assert load(table, b"", 1)
    assert (len(table), table.newest_s, table.forgotten_s) == (0, 0, 0)


def test_the_intake_sees_what_was_loaded() -> None:
    rng = Random(1)
    _, twin, last_index = tables_with(rng, 40)
    reqids = Reqids()
    updates = Updates(b"demo", reqids)
    reqids.load([twin.export(last_index)])
    reqid, index = next(iter(twin.indexes.items()))
    view = View(True, b"\xc0", last_index + 1, last_index, now_ms=1, unix_s=NOW_S)
    out = Frames()
    updates.receive(Arena.from_messages([[b"R", reqid, b"=", b"x"]]), view, out)
    answer = index.to_bytes((index.bit_length() + 7) // 8, "little")
    assert out.messages() == [[b"R", reqid, b"\x01", answer]]


def random_record(rng: Random, reqid: bytes, data: bytes) -> bytes:
    body = bytes([0x80 if rng.random() < 0.99 else rng.randrange(256)]) + reqid + data
    size, varint = len(body), b""
    while size >= 0x80:
        varint, size = varint + bytes([size & 0x7F | 0x80]), size >> 7
    return varint + bytes([size]) + body


def random_message(rng: Random, spread_s: int) -> list[bytes]:
    routing_id = rng.choice([b"\0abcd", b"A", b"r" * 255])
    reqid = random_reqid(rng, spread_s)
    data = rng.randbytes(rng.choice([0, 1, 5, 100, 101, 3000])) if rng.random() < 0.1 else b"data"
    what = rng.random()
    if what < 0.3:
        return [routing_id, reqid, b"=", data]
    if what < 0.5:
        return [routing_id, reqid, b"=", b"demo", data, *[b"more"] * rng.randrange(2)]
    if what < 0.9:
        reloaded = rng.choice([0.0, 0.5])
        records, first = b"", reqid
        for _ in range(rng.randint(1, 12)):
            records += random_record(rng, reqid, data or b"x")
            if rng.random() >= reloaded:
                reqid = random_reqid(rng, spread_s)
        if rng.random() < 0.05:
            records = records[: rng.randrange(len(records) + 1)] + rng.randbytes(3)
        previous = rng.choice([b"", b"", b"", random_reqid(rng, spread_s)])
        return [routing_id, first, b"k=", b"demo", previous, records]
    frames = [b"=", b"k=", b"demo", b"^", b"", reqid, data, rng.randbytes(12)]
    return [routing_id, *rng.choices(frames, k=rng.randint(0, 7))]


class Both:
    """The intake in C and its twin, doing the same."""

    def __init__(self, rng: Random) -> None:
        limits = {
            "record_bytes_max": rng.choice([100, 1 << 20]),
            "inflight_max": rng.choice([20, 10_000]),
            "ttl_s": rng.choice([300, 28_800]),
        }
        self.rng, self.spread_s = rng, rng.choice([40, 400])
        self.native = Updates(b"demo", Reqids(rng.randbytes(16)), **limits)
        shared = rng.random() < 0.5
        if shared:
            self.native.share(None)
        self.twin = twins.Updates(b"demo", twins.Reqids(), **limits, shared=shared)
        self.last_index = self.commit_index = 0
        self.now_ms, self.unix_s = 1000, NOW_S

    def receive(self) -> None:
        rng = self.rng
        messages = [random_message(rng, self.spread_s) for _ in range(rng.randint(0, 40))]
        leader, refusal = rng.random() < 0.95, rng.choice([b"\xc0", b"\xa2n1"])
        view = View(
            leader, refusal, self.last_index + 1, self.commit_index, self.now_ms, self.unix_s
        )
        out = Frames(bytes_max=1, frames_max=1)
        before = len(self.twin.records)
        accepted = self.native.receive(Arena.from_messages(messages), view, out)
        self.twin.receive(messages, view)
        assert out.messages() == self.twin.out
        assert accepted == (len(self.twin.records) - before, self.twin.others)

    def propose(self) -> None:
        records: list[bytes] = []
        while accepted := self.native.block(self.last_index + 1, 1):
            batch, found = decode_block(accepted[0])
            self.last_index = batch.last_index
            records += [(record.reqid or b"") + record.data for record in found]
        assert records == self.twin.records
        self.twin.records = []

    def commit(self) -> None:
        self.commit_index = self.rng.randint(self.commit_index, self.last_index)
        out = Frames(bytes_max=1, frames_max=1)
        count = self.native.commit(self.commit_index, out)
        assert out.messages() == self.twin.commit(self.commit_index)
        assert count == out.count

    def remind(self) -> None:
        self.now_ms += self.rng.choice([0, 10, 99, 100, 250])
        self.unix_s += self.rng.randint(0, 2)
        out = Frames(bytes_max=1, frames_max=1)
        self.native.remind(self.now_ms, out)
        assert out.messages() == self.twin.remind(self.now_ms)

    def step_down(self) -> None:
        out = Frames(bytes_max=1, frames_max=1)
        self.native.refuse(b"\xa2n3", out)
        assert out.messages() == self.twin.refuse(b"\xa2n3")
        self.last_index = self.rng.randint(self.commit_index, self.last_index)
        for reqids in (self.native.reqids, self.twin.reqids):
            reqids.truncate(self.last_index)

    def forget(self) -> None:
        seconds = self.unix_s - self.rng.randint(self.spread_s // 2, 2 * self.spread_s)
        for reqids in (self.native.reqids, self.twin.reqids):
            reqids.forget(seconds)


def run_updates(seed: int) -> Counter[str]:
    """One history; returns what the intake has counted in it."""
    pair = Both(Random(seed))
    steps = [pair.receive] * 4 + [pair.propose, pair.commit, pair.remind] * 2
    steps += [pair.step_down, pair.forget]
    for _ in range(150):
        pair.rng.choice(steps)()
        counters = {name: count for name, count in pair.native.counters().items() if count}
        assert counters == dict(pair.twin.counters)
        assert pair.native.waiting == len(pair.twin.waiters)
        assert len(pair.native.reqids) == len(pair.twin.reqids)
    return Counter(pair.native.counters())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_updates(seed: int) -> None:
    run_updates(seed)


def test_the_histories_reach_everything() -> None:
    reached = sum((run_updates(seed) for seed in range(100, 106)), Counter())
    counters = ("taken", "repeated", "refused", "dropped", "over", "gaps", "astray")
    assert all(reached[name] > 20 for name in counters), reached
