"""Rows in shared memory and their twin, a dictionary: each answer is what a worker would say."""

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from kelek.native.latency import Latency
from kelek.native.net.messages import Arena, Frames
from kelek.native.tables.channels import ReadChannels
from kelek.native.tables.gets import AnswerPlace, Gets
from kelek.native.tables.plain import PlainWrites
from kelek.native.tables.row_cache import (
    BYTES_MIN,
    ROW_BYTES_MAX,
    RowCache,
    RowChange,
    RowReaders,
    map_shared,
    shared_rows,
)
from kelek.protocols.zerodb.wire.requests import Read, encode_request
from kelek.protocols.zerodb.wire.values import PACKED, Extension
from kelek.protocols.zerodb.wire.worker_pipe import ANSWER_TAG, PIPE_HEADER

TABLES = (3, 4, 8)
MANY = (1, 1, 2, 3, 50)  # Keys of a write.
WORKERS, EPOCH = 1, 7
EXTENDED = Extension(reqid=b"r" * 12)
Message = list[bytes]


class Played:
    """A worker's side and the server's."""

    def __init__(self, size: int = BYTES_MIN) -> None:
        self.memory = bytearray(size)
        self.rows = RowCache(self.memory, "here", 11)
        self.readers = RowReaders(WORKERS)
        self.readers.map_memory = lambda place: self.memory
        self.channels = ReadChannels(WORKERS, 1)
        self.channels.all[0].open(EPOCH)
        self.plain = PlainWrites(
            b"cluster", Latency(), maker=b"maker", entry_bytes_max=1 << 20, workers=WORKERS,
            timeout_ms=5000,
        )  # fmt: skip
        self.plain.set_tables(TABLES)
        self.place = AnswerPlace(0, EPOCH)

    def open(self) -> None:
        self.readers.open(0, self.rows.place)

    def keep(self, request: Read, values: Sequence[bytes | None]) -> Message:
        """The worker reads values. Returns its answer without the tag."""
        head = PIPE_HEADER.pack(0, 0, 0, EPOCH, 0, 1)
        arena = Arena.from_messages([[head, b"route", *encode_request(request)]])
        gets, out = Gets(arena, 2000), Frames()
        assert gets.read(self.place, 1)
        gets.answer(values, self.place, out, self.rows)
        ((tag, *answer),) = out.messages()
        assert len(tag) == ANSWER_TAG.size
        return answer

    def ask(self, messages: list[Message], index: int) -> tuple[list[Message], list[Message]]:
        """What the server answers to [routing id][request frames ..], and what it forwards."""
        arena = Arena.from_messages(messages)
        self.plain.read(arena)
        answers = self.readers.answer(self.channels, self.plain.rows, arena, index, 0).messages()
        left = self.channels.add(0, arena, index, 0, self.plain.rows).messages()
        return answers, [[route, *frames] for _, route, *frames in left]


class RowHistory:
    """Random reads and writes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.played = Played(self.rng.choice([BYTES_MIN, 1 << 16]))
        self.data: dict[tuple[int, bytes], bytes | None] = {}
        self.applied = 0
        self.answered = self.left = 0
        self.played.open()

    def key(self) -> bytes:
        return b"key%d" % self.rng.randrange(60)

    def value(self) -> bytes:
        return self.rng.randbytes(self.rng.choice([0, 5, 80, ROW_BYTES_MAX]))

    def request(self) -> Read:
        rng = self.rng
        keys = [self.key() for _ in range(rng.choice([1, 1, 1, 4]))]
        extension = None
        if rng.random() < 0.7:
            extension = Extension(rng.choice([0, PACKED]), reqid=rng.randbytes(12))
        return Read(rng.choice(TABLES), keys, *([] if extension is None else [extension]))

    def values_of(self, request: Read) -> list[bytes | None]:
        return [self.data.get((request.table, key)) for key in request.keys]

    def write(self) -> None:
        """Entries are applied: the database has them, their rows are written, their index told."""
        changes: list[RowChange] = []
        for _ in range(self.rng.randint(1, 2)):
            table, keys = (
                self.rng.choice(TABLES),
                [self.key() for _ in range(self.rng.choice(MANY))],
            )
            values = [self.value() if self.rng.random() < 0.7 else None for _ in keys]
            if self.rng.random() < 0.1:
                values = [None] * len(keys)
            changes.append((table, keys, None if values == [None] * len(keys) else values))
            self.data.update({(table, key): it for key, it in zip(keys, values, strict=True)})
        rows, is_cut = self.played.rows, self.rng.random() < 0.03
        if is_cut:
            (table,) = self.rng.sample(TABLES, 1)
            self.data = {one: value for one, value in self.data.items() if one[0] != table}
            rows.write([change for change in changes if change[0] != table], {table})
        elif self.rng.random() < 0.02:
            self.data.clear()
            rows.clear()
        else:
            rows.write(changes)
        self.applied += 1
        self.played.rows.apply(self.applied)

    def read(self) -> None:
        requests = [self.request() for _ in range(self.rng.choice([1, 5]))]
        messages = [[b"c%d" % at, *encode_request(each)] for at, each in enumerate(requests)]
        ahead = self.rng.random() < 0.1
        answers, left = self.played.ask(messages, self.applied + ahead)
        assert len(answers) + len(left) == len(requests)
        assert not (ahead and answers)
        for route, *answer in answers:
            request = requests[int(route[1:])]
            assert answer == self.played.keep(request, self.values_of(request))[1:]
        for route, *_ in left:
            request = requests[int(route[1:])]
            self.played.keep(request, self.values_of(request))
        self.answered, self.left = self.answered + len(answers), self.left + len(left)
        self.played.channels.all[0].take_back()


@pytest.mark.parametrize("seed", range(8))
def test_an_answer_is_what_the_worker_says(seed: int) -> None:
    history = RowHistory(seed)
    for _ in range(600):
        if history.rng.random() < 0.2:
            history.write()
        else:
            history.read()
    assert history.answered > 100
    assert history.left > 100
    assert history.played.readers.answered == history.answered


def test_many_rows_stay_and_the_oldest_leave() -> None:
    played = Played(1 << 20)
    played.open()
    keys = [b"%06d" % at for at in range(20_000)]

    def answered(some: list[bytes]) -> int:
        messages = [[b"c", *encode_request(Read(3, [key], EXTENDED))] for key in some]
        return sum(len(played.ask([message], 0)[0]) for message in messages)

    for at in range(0, 10_000, 1000):
        some = keys[at : at + 1000]
        played.keep(Read(3, some), [b"v" * 40] * 1000)
    assert answered(keys[:10_000:7]) == len(keys[:10_000:7])
    for at in range(10_000, 20_000, 1000):
        some = keys[at : at + 1000]
        played.keep(Read(3, some), [b"v" * 40] * 1000)
    assert answered(keys[15_000::7]) == len(keys[15_000::7])
    assert answered(keys[:1000]) == 0


def test_a_client_without_request_ids_gets_its_answers_in_order() -> None:
    played = Played()
    played.open()
    asked, absent = Read(3, [b"here"]), Read(3, [b"not here"])
    played.keep(asked, [b"value"])
    one, other = [b"one", *encode_request(asked)], [b"other", *encode_request(asked)]
    missing = [b"one", *encode_request(absent)]
    answers, left = played.ask([one, missing, one, other], 0)
    assert [route for route, *_ in answers] == [b"one", b"other"]
    assert left == [missing, one]
    answers, left = played.ask([one, other], 0)  # The worker has not answered yet.
    assert ([each[0] for each in answers], left) == ([b"other"], [one])
    extended = [b"one", *encode_request(asked._replace(extension=EXTENDED))]
    assert played.ask([extended], 0)[1] == []
    for ticket, count in ((1, 2), (2, 1)):
        for place in range(count):
            played.channels.all[0].answered(ticket, place, 0)
    assert played.ask([one], 0)[1] == []
    played.channels.all[0].open(EPOCH, has_others=True)  # Perhaps of this client.
    assert played.ask([one, extended], 0)[1] == [one]


def test_memory_that_is_no_cache_is_not_read() -> None:
    played = Played()
    request = [b"c", *encode_request(Read(3, [b"key"]))]
    played.keep(Read(3, [b"key"]), [b"value"])
    assert played.ask([request], 0)[0] == []  # It is not open.
    played.channels.all[0].take_back()
    played.open()
    assert len(played.ask([request], 0)[0]) == 1
    good = bytes(played.memory)
    for place, damage in ((0, 1), (8, 1), (16, 3), (24, 0xFF)):
        played.memory = memory = bytearray(good)
        memory[place] ^= damage
        memory[place + 7] ^= damage * (place > 8)
        played.open()
        assert played.ask([request], 0)[0] == [], place
        played.channels.all[0].take_back()
    played.readers.map_memory = lambda _: bytearray(100)
    played.open()
    assert played.ask([request], 0)[0] == []


def test_another_process_finds_shared_rows() -> None:
    rows = shared_rows(1 << 20)
    assert rows is not None
    played = Played()
    played.rows, played.readers.map_memory = rows, map_shared
    played.keep(Read(3, [b"key"]), [b"value"])
    played.open()
    request = [b"c", *encode_request(Read(3, [b"key"]))]
    assert played.ask([request], 0)[0][0][2:] == [b"value"]
    assert played.readers.answered == 1
    played.open()  # As for a worker that has been started again.
    assert played.readers.answered == 1
    played.readers.open(0, "/proc/self/fd/no-such-file")
    assert played.ask([request], 0)[0] == []
    assert played.readers.answered == 1
    assert shared_rows(BYTES_MIN - 1) is None


@pytest.mark.parametrize("size", [BYTES_MIN, 1 << 16])
def test_a_reader_beside_the_writer_sees_one_state(size: int) -> None:
    """All keys of a read have the same number, and later reads a higher one or the same."""
    played = Played(size)
    played.open()
    asked = Read(3, [b"one", b"other", b"third"], Extension(PACKED))
    message = [b"c", *encode_request(asked)]
    found: list[int] = []
    problems: list[Any] = []
    is_over = threading.Event()

    def read() -> None:
        try:
            while not is_over.is_set():
                answers, _ = played.ask([message], 0)
                played.channels.all[0].take_back()
                for *_, values, there in answers:
                    assert there == b"\1\1\1"
                    (number,) = {values[at : at + len(values) // 3] for at in (0,)}
                    assert values == number * 3
                    found.append(int(number[:8]))
        except AssertionError as error:
            problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2500):
        value = b"%08d" % number * (1 + number % 9)
        if number % 3:  # As a write of several operations.
            played.rows.write([(3, [key], [value]) for key in asked.keys])
        elif number:
            played.rows.write([(3, asked.keys, [b"%020000d" % number] * 3)])  # None is kept.
        played.keep(asked, [value] * 3)
    is_over.set()
    reader.join()
    assert problems == []
    assert found == sorted(found)
    assert len(found) > 10
