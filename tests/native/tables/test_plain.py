"""Plain writes packed and answered in C, and questions for results, against a twin made of the
codecs."""

import random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.latency import Latency
from kelek.native.net.guard import AllowedKeys, KeyRow
from kelek.native.net.messages import Arena
from kelek.native.tables.channels import BATCHES, ReadChannels
from kelek.native.tables.plain import (
    AHEAD,
    APART_MS,
    BYTES_MAX,
    DEADLINE_MS,
    LATE_MS,
    PACKS,
    WRITES_MAX,
    PlainKinds,
    PlainWrites,
)
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.requests import encode_request
from kelek.protocols.zerodb.wire.values import NO_EXTENSION, Extension
from kelek.protocols.zerodb.wire.worker_pipe import ENVELOPE, PIPE_HEADER, RESULT_QUERY
from kelek.protocols.zmqraft.wire.extensions import (
    PACK_ACCEPTED,
    PACK_ANSWER,
    PACK_GAP,
    PACK_REFUSED,
    PACK_REQUEST,
    Pack,
    PackAnswer,
    pack_records,
)
from kelek.tests.native.tables.test_requests import twin_entry

IDENT, MAKER, WORKERS, TIMEOUT_MS = b"cluster", b"maker", 3, 5000
TABLES, OTHER_TABLE = (1, 5, 6, 900), 7
UNIX_S = 1_700_000_000
Write = requests.Put | requests.Delete | requests.DeleteRange | requests.Transaction
Request = Write | requests.Read
EPOCH, FIRST_TICKET = 77, 5


def table_of(request: Request) -> int:
    """The table of a request, which has one."""
    if isinstance(request, requests.Transaction):
        return request.then[0].table
    return request.table


class AskedRow(NamedTuple):
    message: list[bytes]
    request: Any


class TwinPack:
    def __init__(self, deadline_ms: int, arrived_us: int) -> None:
        self.deadline_ms, self.arrived_us = deadline_ms, arrived_us
        self.reqids: list[bytes] = []
        self.entries: list[bytes] = []
        self.answers: list[list[bytes]] = []
        self.workers: set[int] = set()
        self.asked: dict[int, int] = {}  # The worker of each transaction.
        self.asks_index = self.sent = False


class PlainTwin:
    """What csrc/server/plain.c does, request by request."""

    def __init__(self, entry_bytes_max: int) -> None:
        self.entry_bytes_max = entry_bytes_max
        self.packs: list[TwinPack] = []
        self.rows: list[AskedRow] = []
        self.made = self.taken = 0
        self.applied_max = 0
        self.tickets = [FIRST_TICKET - 1] * WORKERS
        self.batches = [0] * WORKERS  # Of questions, without answers.
        self.is_open = [True] * WORKERS

    def found(self, row: AskedRow) -> PlainKinds:
        request = row.request
        if table_of(request) not in TABLES or request.extension.ttl_ms:
            return PlainKinds.OTHERS
        if isinstance(request, requests.Read):
            return PlainKinds.OTHERS if request.extension.flags else PlainKinds.READS
        deadline_ms = request.extension.deadline_ms
        is_plain = (
            isinstance(request, requests.Put | requests.Delete | requests.Transaction)
            and request.flags in (1, 2, 3)
            and (not deadline_ms or deadline_ms >= DEADLINE_MS)
            and len(twin_entry(request)) <= self.entry_bytes_max
        )
        return PlainKinds.WRITES if is_plain else PlainKinds.OTHERS

    def take(self, now_us: int) -> None:
        while self.rows:
            row = self.rows[0]
            if isinstance(row.request, requests.Read):
                del self.rows[0]
                continue
            extension = row.request.extension
            reqid = extension.reqid
            if reqid in (b"", values.NO_REQID):
                self.made += 1
                reqid = UNIX_S.to_bytes(4, "big") + MAKER + self.made.to_bytes(3, "big")
            given = min(extension.deadline_ms or TIMEOUT_MS, TIMEOUT_MS)
            deadline_ms, entry = now_us // 1000 + given, twin_entry(row.request)
            pack = self.packs[-1] if self.packs and not self.packs[-1].sent else None
            if (
                pack is None
                or abs(pack.deadline_ms - deadline_ms) > APART_MS
                or len(pack.entries) == WRITES_MAX
                or sum(map(len, pack.entries)) + len(entry) > BYTES_MAX
            ):
                first_ids = [pack.reqids[0] for pack in self.packs]
                if len(self.packs) == PACKS or reqid in first_ids:
                    return
                pack = TwinPack(deadline_ms, now_us)
                self.packs.append(pack)
            pack.reqids.append(reqid)
            pack.entries.append(entry)
            worker = table_of(row.request) % WORKERS
            pack.workers.add(worker)
            if isinstance(row.request, requests.Transaction):
                pack.asked[len(pack.entries) - 1] = worker
            pack.asks_index |= bool(extension.flags & values.WITH_INDEX)
            echo = extension._replace(deadline_ms=0, reqid=extension.reqid or values.NO_REQID)
            if extension != NO_EXTENSION and not echo.flags:
                echo = echo._replace(flags=values.STALE)  # Else it could be NO_EXTENSION.
            head = answers.encode_head(
                requests.type_of(row.request), 0, NO_EXTENSION if not extension.reqid else echo
            )
            envelope = [b""] if not row.message[1] else []
            pack.answers.append([row.message[0], *envelope, head])
            self.taken += 1
            del self.rows[0]

    def to_send(self) -> list[list[bytes]]:
        found = []
        for at, pack in enumerate(self.packs):
            if pack.sent:
                continue
            is_last = at == len(self.packs) - 1
            if is_last and at >= AHEAD and not self.rows:
                break
            previous = self.packs[at - 1].reqids[-1] if at else b""
            records = pack_records(pack.reqids, pack.entries)
            sent = Pack(pack.reqids[0], previous, records)
            found.append(PACK_REQUEST.encode(sent, cluster=IDENT))
            pack.sent = True
        return found

    def answer(
        self, frames: list[bytes], answer: PackAnswer
    ) -> tuple[list[list[bytes]], dict[int, list[list[bytes]]]] | None:
        """Answers to clients, and questions to workers."""
        first = self.packs[0] if self.packs else None
        if first is None or not first.sent or frames[0] != first.reqids[0]:
            return None
        if answer.status != PACK_ACCEPTED:
            return None
        indexes = [index for count, first in answer.runs for index in range(first, first + count)]
        if not indexes:
            return [], {}
        if len(indexes) != len(first.entries) or max(indexes) > self.applied_max:
            return None
        workers = first.workers if first.asked else ()
        if not all(self.is_open[it] and self.batches[it] < BATCHES for it in workers):
            return None
        del self.packs[0]
        told, questions = [], dict[int, list[list[bytes]]]()
        for place, ((*prefix, head), index) in enumerate(zip(first.answers, indexes, strict=True)):
            if place not in first.asked:
                told.append([*prefix, answers.tell_index(head, index)])
                continue
            frames = [prefix[0], first.reqids[place], answers.tell_index(head, index)]
            number = first.asked[place]
            last = max(indexes[at] for at, worker in first.asked.items() if worker == number)
            flags = ENVELOPE if len(prefix) > 1 else 0
            fields = (RESULT_QUERY, flags, 0, EPOCH, last, self.tickets[number] + 1)
            questions.setdefault(number, []).append([PIPE_HEADER.pack(*fields), *frames])
        for number in questions:
            self.tickets[number] += 1
            self.batches[number] += 1
        return told, questions


class PlainHistory:
    """The same events for both."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.entry_bytes_max = self.rng.choice([300, 1 << 20])
        self.twin = PlainTwin(min(self.entry_bytes_max, BYTES_MAX))
        self.latency = Latency()
        self.plain = PlainWrites(
            IDENT, self.latency,
            maker=MAKER, entry_bytes_max=self.entry_bytes_max, workers=WORKERS,
            timeout_ms=TIMEOUT_MS,
        )  # fmt: skip
        self.plain.set_tables(TABLES)
        self.channels = ReadChannels(WORKERS, FIRST_TICKET)
        for channel in self.channels.all:
            channel.open(EPOCH)
        self.now_us = 1_000_000_000
        self.index = 0
        self.seen: set[str] = set()
        self.clients = 0

    def extension(self) -> Extension:
        rng = self.rng
        if rng.random() < 0.3:
            return NO_EXTENSION
        return Extension(
            rng.choice([0, 0, values.WITH_INDEX]),
            rng.choice([0, 0, 0, 600, 630, 10_000, DEADLINE_MS - 1] if rng.random() < 0.2 else [0]),
            rng.choice([values.NO_REQID, *[rng.randbytes(12)] * 9]),
            ttl_ms=rng.random() < 0.01,
        )

    def request(self) -> Request:
        rng = self.rng
        table = rng.choice(TABLES) if rng.random() < 0.995 else OTHER_TABLE
        keys = [rng.randbytes(rng.randint(1, 9)) for _ in range(rng.randint(1, 3))]
        size = rng.choice([0, 5, 20, 20, 100, 400]) if rng.random() < 0.97 else 60_000
        flags, extension = rng.choice([1, 2, 3]), self.extension()
        if rng.random() < 0.01:
            flags = 0
        kind = rng.random()
        if kind < 0.2:
            asked = requests.Transaction(
                [ops.Compare(table, key, ops.ABSENT) for key in keys],
                [ops.Put(table, [key], [rng.randbytes(size)]) for key in keys],
                [ops.Increment(table, [key], [b"1"]) for key in keys],
                flags,
            )
            own = rng.randbytes(12)  # Without one, and with a lifetime, it is not plain.
            return asked._replace(extension=extension._replace(reqid=own))
        if kind < 0.7:
            return requests.Put(table, keys, [rng.randbytes(size) for _ in keys], flags, extension)
        if kind < 0.93:
            return requests.Delete(table, keys, flags, extension)
        if kind < 0.935:
            return requests.DeleteRange(table, b"a", b"b", flags, extension)
        return requests.Read(table, keys, extension._replace(ttl_ms=0))

    def receive(self) -> None:
        if self.twin.rows:
            return
        rows = []
        for _ in range(self.rng.choice([1, 1, 3, 10, 200])):
            request = self.request()
            self.clients += 1
            envelope = [b""] if self.rng.random() < 0.2 else []
            frames = [b"c%d" % self.clients, *envelope, *encode_request(request)]
            rows.append(AskedRow(frames, request))
        arena = Arena.from_messages([row.message for row in rows])
        expected = PlainKinds(0)
        for row in rows:
            expected |= self.twin.found(row)
        assert self.plain.read(arena) == expected
        self.seen.add(str(expected))
        if PlainKinds.OTHERS in expected:
            return
        self.twin.rows = rows
        self.twin.take(self.now_us)
        self.plain.receive(arena, self.now_us, UNIX_S)

    def send(self) -> None:
        self.twin.take(self.now_us)
        assert self.plain.packs(self.now_us).messages() == self.twin.to_send()

    def answer(self) -> None:
        rng, packs = self.rng, [pack for pack in self.twin.packs if pack.sent]
        asked = packs[0] if packs and rng.random() < 0.95 else None
        reqid = asked.reqids[0] if asked else rng.randbytes(12)
        count = len(asked.entries) if asked else 1
        runs: list[tuple[int, int]] = []
        kind = rng.random()
        if kind < 0.7:
            count += rng.choice([0] * 30 + [1, -1])
            while count > 0:
                one = rng.randint(1, count)
                runs.append((one, self.index + rng.randint(1, 3)))
                self.index = runs[-1][1] + one - 1
                count -= one
        if rng.random() < 0.98:
            self.twin.applied_max = self.index
        self.plain.set_applied_max(self.twin.applied_max)
        status = rng.choice([PACK_GAP, PACK_REFUSED]) if kind > 0.97 else PACK_ACCEPTED
        answer = PackAnswer(status, tuple(runs) if status == PACK_ACCEPTED else ())
        frames = PACK_ANSWER.encode(answer, reqid)
        if rng.random() < 0.02:
            frames = frames[:-1]
        expected = self.twin.answer(frames, answer) if len(frames) == 4 else None
        found = self.plain.answer(Arena.from_messages([frames]), 0, self.now_us, self.channels)
        if expected is None or found is None:
            assert found is None
            assert expected is None
            self.seen.add("no answer")
            return
        told, questions = expected
        assert found.answers.messages() == told
        assert {at: it.messages() for at, it in found.questions.items()} == questions
        self.seen.add("answers" if told else "accepted")
        self.seen.add("questions" if questions else "no questions")
        if told and questions:
            self.seen.add("both")

    def change_channel(self) -> None:
        rng, number = self.rng, self.rng.randrange(WORKERS)
        channel, twin = self.channels.all[number], self.twin
        if rng.random() < 0.7:
            done = rng.randint(0, twin.batches[number])
            channel.handled(twin.tickets[number] - twin.batches[number] + done, self.now_us)
            twin.batches[number] -= done
        elif rng.random() < 0.5:
            twin.is_open[number] = rng.random() < 0.9
            channel.open(EPOCH if twin.is_open[number] else None)
        else:
            taken = channel.take_back()
            assert len(taken) == twin.batches[number]
            twin.batches[number] = 0

    def take_back(self) -> None:
        twin = self.twin
        packs, rest = self.plain.take_back()
        assert [pack.reqids for pack in packs] == [pack.reqids for pack in twin.packs]
        for found, pack in zip(packs, twin.packs, strict=True):
            assert found.entries == pack.entries
            assert found.records == pack_records(pack.reqids, pack.entries)
            assert found.answers.messages() == pack.answers
            assert (found.deadline_ms, found.arrived_us) == (pack.deadline_ms, pack.arrived_us)
            assert (found.workers, found.asks_index) == (pack.workers, pack.asks_index)
            assert found.sent is pack.sent
            assert found.asked == pack.asked
            self.seen.add("taken back" if found.sent else "taken back unsent")
        left = [] if rest is None else rest[0].messages()[rest[1] :]
        assert left == [row.message for row in twin.rows]
        self.seen.add("rows left" if left else "no rows left")
        assert self.plain.is_empty
        twin.packs, twin.rows = [], []

    def check(self) -> None:
        plain, twin = self.plain, self.twin
        assert plain.taken == twin.taken
        assert plain.is_stalled is bool(twin.rows)
        assert plain.is_empty is not bool(twin.packs or twin.rows)
        assert plain.count == sum(len(pack.entries) for pack in twin.packs)
        assert plain.size == sum(len(entry) for pack in twin.packs for entry in pack.entries)
        first_us = twin.packs[0].arrived_us if twin.packs else None
        assert plain.late_us == (None if first_us is None else first_us + 1000 * LATE_MS)


@pytest.mark.parametrize("seed", range(8))
def test_a_history_of_writes_is_its_twins(seed: int) -> None:
    history = PlainHistory(seed)
    for _ in range(1500):
        history.now_us += history.rng.randint(0, 30_000)
        kind = history.rng.random()
        if kind < 0.1:
            history.change_channel()
        elif kind < 0.5:
            history.receive()
        elif kind < 0.75:
            history.send()
        elif kind < 0.997:
            history.answer()
        else:
            history.take_back()
        if history.rng.random() < 0.9:
            history.send()
        history.check()
    history.take_back()
    assert {
        "answers",
        "no answer",
        "accepted",
        "no rows left",
        "questions",
        "both",
        str(PlainKinds.WRITES),
    } <= history.seen
    assert sum(history.latency.values()[1:]) > 100


def put(number: int, size: int, reqid: bytes = b"") -> list[bytes]:
    extension = Extension(reqid=reqid) if reqid else NO_EXTENSION
    request = requests.Put(1, [b"%d" % number], [bytes(size)], 1, extension)
    return [b"c%d" % number, *encode_request(request)]


def fresh() -> PlainWrites:
    plain = PlainWrites(
        IDENT, Latency(), maker=MAKER, entry_bytes_max=1 << 20, workers=1, timeout_ms=TIMEOUT_MS
    )
    plain.set_tables(TABLES)
    return plain


def test_what_has_no_room_waits_and_comes_back_in_order() -> None:
    plain = fresh()
    sizes = [BYTES_MAX - 100] * (PACKS + 3)
    arena = Arena.from_messages([put(at, size) for at, size in enumerate(sizes)])
    assert plain.read(arena) == PlainKinds.WRITES
    plain.receive(arena, 0, UNIX_S)
    assert plain.is_stalled
    assert plain.packs(0).count == PACKS
    assert plain.count == PACKS
    packs, rest = plain.take_back()
    assert [len(pack.entries) for pack in packs] == [1] * PACKS
    assert rest is not None
    assert [message[0] for message in rest[0].messages()[rest[1] :]] == [
        b"c%d" % at for at in range(PACKS, PACKS + 3)
    ]


def test_a_repeat_waits_until_the_pack_that_it_would_name_is_answered() -> None:
    plain, reqid = fresh(), b"r" * 12
    for at in range(2):
        arena = Arena.from_messages([put(at, 1, reqid)])
        assert plain.read(arena) == PlainKinds.WRITES
        plain.receive(arena, 0, UNIX_S)
        assert plain.is_stalled is bool(at)
        assert plain.packs(0).count == 1 - at
    plain.set_applied_max(9)
    frames = PACK_ANSWER.encode(PackAnswer(PACK_ACCEPTED, ((1, 4),)), reqid)
    found = plain.answer(Arena.from_messages([frames]), 0, 0, ReadChannels(1, 1))
    assert found is not None
    assert found.answers.count == 1
    assert plain.packs(0).count == 1
    assert not plain.is_stalled


KEYS = AllowedKeys([KeyRow(1), KeyRow(1, name=b"ann"), KeyRow(1, name=b"anna")])
OWNERS = {9: "anna", 5: "ann", 7: "bob", 6: "ann"}


@given(
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([0, *OWNERS]),
    st.lists(st.tuples(st.sampled_from([ops.PRESENT, ops.ALIVE]), st.integers(5, 9)), max_size=9),
)
def test_with_keys_the_sessions_of_a_transaction_are_its_clients_own(
    slot: int | None, lease: int, compares: list[tuple[int, int]]
) -> None:
    asked = requests.Transaction(
        [ops.Compare(1, number.to_bytes(8, "little"), kind) for kind, number in compares],
        [ops.Delete(1, [b"key"])],
        [],
        1,
        Extension(reqid=b"r" * 12, lease=lease),
    )
    plain = fresh()
    plain.set_sessions(OWNERS)
    arena = Arena.from_messages([[b"c", *encode_request(asked)]], slot, KEYS.state)
    alive = [number for kind, number in compares if kind == ops.ALIVE]
    names = [OWNERS.get(number, "") for number in [lease] * (lease > 0) + alive]
    name = None if slot is None else ["", "ann", "anna"][slot]
    is_plain = name is None or not names or (len(names) <= 8 and {*names} == {name} != {""})
    assert plain.read(arena) == (PlainKinds.WRITES if is_plain else PlainKinds.OTHERS)


def test_many_small_writes_fill_a_pack() -> None:
    plain = fresh()
    arena = Arena.from_messages([put(at, 0) for at in range(WRITES_MAX + 1)])
    assert plain.read(arena) == PlainKinds.WRITES
    plain.receive(arena, 0, UNIX_S)
    packs, _ = plain.take_back()
    assert [len(pack.entries) for pack in packs] == [WRITES_MAX, 1]
