"""The reads' intake in C against a plain Python twin, on random histories; and its corners."""

from collections import Counter
from random import Random

import pytest

from kelek.native.errors import NativeError
from kelek.native.log.reads import WAIT_APPLIED, WAIT_CONFIRMED, Reads, ReadView
from kelek.native.net.messages import Arena, Frames

Messages = list[list[bytes]]
IDENT = b"demo"
READ_INDEX = b"kR"


class ReadsTwin:
    """The intake in plain Python: lists, one reader after the other."""

    def __init__(self) -> None:
        self.readers: tuple[list[tuple[int, bytes, bytes, int]], ...] = ([], [])
        self.counters: Counter[str] = Counter()

    def receive(self, messages: Messages, view: ReadView) -> tuple[Messages, list[int]]:
        out: Messages = []
        others: list[int] = []
        for number, message in enumerate(messages):
            if len(message) < 3 or message[2] != READ_INDEX:
                others.append(number)
                continue
            routing_id, request_id = message[:2]
            fine = len(message) in (4, 5) and message[3] == IDENT and 1 <= len(request_id) <= 12
            wait_kind = message[4] if len(message) > 4 else b"\0"
            if not fine or wait_kind not in (b"\0", b"\1"):
                self.counters["reads_dropped"] += 1
            elif not view.leader:
                self.counters["reads_astray"] += 1
                out.append([routing_id, request_id, READ_INDEX, b"\0", view.refusal])
            else:
                self.counters["reads"] += 1
                due_ms = view.now_ms + 100
                self.readers[wait_kind[0]].append((view.round, routing_id, request_id, due_ms))
        return out, others

    def answer(self, wait_kind: int, round_: int, index: int) -> Messages:
        readers = self.readers[wait_kind]
        size = max(1, (index.bit_length() + 7) // 8)
        out = []
        while readers and readers[0][0] <= round_:
            _, routing_id, request_id, _ = readers.pop(0)
            out.append([routing_id, request_id, READ_INDEX, b"\1", index.to_bytes(size, "little")])
        return out

    def remind(self, now_ms: int) -> Messages:
        out = []
        for readers in self.readers:
            for number, (round_, routing_id, request_id, due_ms) in enumerate(readers):
                if due_ms <= now_ms:
                    readers[number] = (round_, routing_id, request_id, now_ms + 100)
                    out.append([routing_id, request_id, READ_INDEX, b"\1", b""])
        return out

    def refuse(self, refusal: bytes) -> Messages:
        out = []
        for readers in self.readers:
            out += [[each[1], each[2], READ_INDEX, b"\0", refusal] for each in readers]
            readers.clear()
        return out


def random_message(rng: Random) -> list[bytes]:
    routing_id = rng.choice([b"\0abcd", b"A", b"r" * 255])
    request_id = rng.randbytes(rng.choice([0, 1, 8, 12, 12, 13]))
    choice = rng.random()
    if choice < 0.5:
        return [routing_id, request_id, READ_INDEX, IDENT]
    if choice < 0.9:
        return [
            routing_id,
            request_id,
            READ_INDEX,
            IDENT,
            rng.choice([b"\0", b"\1", b"\1", b"\2", b""]),
        ]
    frames = [b"=", READ_INDEX, IDENT, b"^", b"", b"dem", rng.randbytes(12)]
    return [routing_id, *rng.choices(frames, k=rng.randint(0, 7))]


def run(seed: int) -> Counter[str]:
    rng = Random(seed)
    native, twin = Reads(IDENT, 1 << 20), ReadsTwin()
    round_ = index = 0
    now_ms = 1000
    for _ in range(200):
        out = Frames(bytes_max=1, frames_max=1)
        match rng.randrange(7):
            case 0 | 1 | 2:
                messages = [random_message(rng) for _ in range(rng.randint(0, 30))]
                leader = rng.random() < 0.9
                view = ReadView(leader, rng.choice([b"\xc0", b"\xa2n1"]), round_ + 1, now_ms)
                arena = Arena.from_messages(messages)
                before = twin.counters["reads"]
                expected, others = twin.receive(messages, view)
                accepted = native.receive(arena, range(len(messages)), view, out)
                assert accepted == (twin.counters["reads"] - before, others)
            case 3 | 4:
                round_ += rng.randint(0, 2)
                index += rng.choice([0, 1, 1000, 1 << 40])
                wait_kind = rng.choice([WAIT_APPLIED, WAIT_CONFIRMED])
                expected = twin.answer(wait_kind, round_, index)
                assert native.answer(wait_kind, round_, index, out) == len(expected)
            case 5:
                now_ms += rng.choice([0, 10, 99, 100, 250])
                expected = twin.remind(now_ms)
                native.remind(now_ms, out)
            case _:
                expected = twin.refuse(b"\xa2n3") if rng.random() < 0.3 else []
                if expected:
                    assert native.refuse(b"\xa2n3", out) == len(expected)
        assert out.messages() == expected
        assert {k: n for k, n in native.counters().items() if n} == dict(twin.counters)
        assert native.waiting == sum(map(len, twin.readers))
    return twin.counters


@pytest.mark.parametrize("seed", range(20))
def test_a_history_of_reads(seed: int) -> None:
    counters = run(seed)
    assert all(counters[name] > 5 for name in ("reads", "reads_dropped", "reads_astray")), counters


def read(number: int, *wait_kind: bytes) -> list[bytes]:
    return [b"\0peer", number.to_bytes(4), READ_INDEX, IDENT, *wait_kind]


def receive(reads: Reads, messages: Messages, round_: int = 1, now_ms: int = 0) -> int:
    arena = Arena.from_messages(messages)
    out = Frames()
    view = ReadView(True, b"\xc0", round_, now_ms)
    accepted, others = reads.receive(arena, range(arena.count), view, out)
    assert not others
    assert not out.count
    return accepted


def test_what_finds_no_room_stays_unanswered_and_room_comes_back() -> None:
    reads = Reads(IDENT, 1024)
    fits = receive(reads, [read(number) for number in range(100)])
    assert 10 < fits < 100
    assert reads.counters()["reads_over"] == 100 - fits
    answered = 0
    for round_ in range(2, 200):  # Around the ring's end many times, never empty.
        out = Frames()
        accepted = receive(reads, [read(number) for number in range(3)], round_)
        answered += reads.answer(WAIT_APPLIED, round_ - 1, 7, out)
        fits += accepted
        assert all(answer[-1] == b"\7" for answer in out.messages())
    assert reads.waiting == fits - answered == 3


def test_the_two_waits_do_not_wait_for_each_other() -> None:
    reads, out = Reads(IDENT), Frames()
    receive(reads, [read(1), read(2, b"\1"), read(3, b"\0")])
    assert reads.answer(WAIT_CONFIRMED, 1, 300, out) == 1
    assert out.messages() == [[b"\0peer", (2).to_bytes(4), READ_INDEX, b"\1", b"\x2c\1"]]
    assert reads.waiting == 2


def test_a_deadline_while_a_client_waits() -> None:
    reads = Reads(IDENT)
    assert reads.deadline_ms is None
    receive(reads, [read(1, b"\1")], now_ms=50)
    receive(reads, [read(1)], now_ms=70)
    assert reads.deadline_ms == 150


@pytest.mark.parametrize("size", [0, 511, 1000])
def test_a_ring_that_is_none(size: int) -> None:
    with pytest.raises(ValueError, match="a ring has"):
        Reads(IDENT, size)


def test_a_message_that_is_not_there() -> None:
    with pytest.raises(NativeError):
        Reads(IDENT).receive(Arena.from_messages([]), [3], ReadView(True, b"\xc0", 1, 0), Frames())
