"""Appends over a network that delays, swaps and loses what several clients send, in one process."""

from collections import deque
from collections.abc import Generator, Iterator
from random import Random
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kelek.clients.errors import StreamConflict, TableTimeout
from kelek.clients.io.operations import Wait
from kelek.clients.stream.appender import PendingAppend
from kelek.clients.stream.core import StreamClient, pending_append
from kelek.clients.stream.layout import StreamKeys, pack_records, unpack_records
from kelek.clients.table.batch import Batch
from kelek.protocols.zerodb.client.client import Exchange
from kelek.protocols.zerodb.tables.operations import apply
from kelek.protocols.zerodb.wire import answers, ops, requests
from kelek.protocols.zerodb.wire.answers import Answer
from kelek.protocols.zerodb.wire.requests import Request
from kelek.protocols.zerodb.wire.values import NO_REQID, OK, TRANSACTION, TableOptions
from kelek.tests.storage.memory_tables import MemoryTables

TABLE = 1
NAME = "s"
RECORDS = 24  # Of each producer.
STEPS_MAX = 20_000
Steps = Generator[Any, Any, Any]


class LossyNetwork:
    """One table, and the requests that have not reached it or not been answered."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.state = MemoryTables()
        self.state.create(TABLE, TableOptions())
        self.sent: list[Exchange] = []
        self.answered: list[tuple[Exchange, Answer]] = []

    @property
    def is_idle(self) -> bool:
        return not (self.sent or self.answered)

    def act(self, loss: float) -> None:
        """A request reaches the table, or an answer its client. Turns of dead clients end."""
        if self.random.random() < 0.01:
            self.state.delete(TABLE, [StreamKeys(NAME).turn])
        if self.sent and (not self.answered or self.random.random() < 0.5):
            late = self.random.random() < 0.2
            place = self.random.randrange(len(self.sent)) if late else 0
            exchange = self.sent.pop(place)
            self.answered.append((exchange, self._apply(exchange.request)))
        elif self.answered:
            exchange, answer = self.answered.pop(0)
            if self.random.random() >= loss:
                exchange.answer = answer

    def _apply(self, request: Request) -> Answer:
        assert isinstance(request, requests.Transaction)
        op = ops.Transaction(TABLE, NO_REQID, request.compares, request.then, request.otherwise)
        return Answer(TRANSACTION, OK, b"", False, [apply(self.state, 1, op)])

    def records(self) -> list[Any]:
        """All records of the stream. Raises AssertionError for holes and wrong batches."""
        start, end = StreamKeys(NAME).batches()
        found = []
        for key, data in self.state.scan(TABLE, start, end):
            found += unpack_records(data)
            assert key == StreamKeys(NAME).batch(found[-1].offset)
        assert [record.offset for record in found] == list(range(len(found)))
        return found


class TableOfNetwork:
    """What an appender needs of a table client."""

    _write_flags = 0
    number = TABLE
    has_room = True

    def __init__(self, network: LossyNetwork) -> None:
        self._network = network
        self._client = self

    def _value(self, data: bytes | None) -> bytes | None:
        return data

    def drop(self, exchange: Exchange) -> None:
        """A late answer changes nothing."""

    def _begin(self, request: Request) -> Exchange:
        exchange = Exchange(request, b"", 0)
        self._network.sent.append(exchange)
        return exchange

    def _answer(self, exchange: Exchange) -> Answer:
        assert exchange.answer is not None
        return exchange.answer

    def _get(self, keys: list[bytes]) -> Steps:
        yield Wait(lambda: True)
        return self._network.state.get(TABLE, keys)

    def _find(self) -> Steps:
        yield from ()

    def _begin_get(self, keys: list[bytes]) -> list[bytes]:
        return keys

    def _finish_get(self, keys: list[bytes]) -> Steps:
        return self._get(keys)

    def _begin_commit(self, batch: Batch, _: int) -> Steps:
        yield from ()
        return self._begin(requests.Transaction(*batch.parts({})))

    def _finish_transaction(self, exchange: Exchange) -> Steps:
        yield Wait(lambda: exchange.done)
        return answers.TRANSACTION.decode(self._answer(exchange))

    def _values(self, found: list[Any]) -> list[Any]:
        return found


def produce(network: LossyNetwork, name: str, depth: int) -> Steps:
    """A process that appends its records, several batches at once; after an error or at random it
    dies, and its successor goes on where it was."""
    random = network.random
    while True:
        core = StreamClient(NAME, cast(Any, TableOfNetwork(network)), None)
        try:
            link = yield from core.open_producer(name)
            while link.durable.sequence < RECORDS:
                numbers = iter(range(link.durable.sequence + 1, RECORDS + 1))
                sent: list[PendingAppend] = []
                while len(sent) < depth and (part := list(next_part(numbers, random))):
                    body = pack_records([f"{name} {number}" for number in part], None)
                    sent.append(pending_append(body, link, part[0]))
                    core.appender.begin(sent[-1])
                    yield None
                for each in sent:
                    yield from core.appender.settle(each)
                if random.random() < 0.05:
                    break
            else:
                return
        except TableTimeout:
            if random.random() < 0.5:
                continue


def append(network: LossyNetwork, name: str, depth: int) -> Steps:
    """A client that appends batches of one record, several at once, without a producer."""
    core = StreamClient(NAME, cast(Any, TableOfNetwork(network)), None)
    numbers = iter(range(1, RECORDS + 1))
    sent: deque[PendingAppend] = deque()
    for number in numbers:
        sent.append(PendingAppend(pack_records([f"{name} {number:04}"], None)))
        core.appender.begin(sent[-1])
        yield None
        if len(sent) == depth:
            yield from core.appender.settle(sent.popleft())
    for each in sent:
        yield from core.appender.settle(each)


def next_part(numbers: Iterator[int], random: Random) -> Iterator[int]:
    for _ in range(random.randint(1, 4)):
        number = next(numbers, 0)
        if not number:
            return
        yield number


def run(network: LossyNetwork, tasks: list[Steps], loss: float) -> None:
    """Runs all to their ends; who waits for what is lost gets a timeout."""
    waits: dict[int, Wait] = {}
    left = list(range(len(tasks)))
    for _ in range(STEPS_MAX):
        if not left:
            return
        network.act(loss)
        place = network.random.choice(left)
        wait = waits.pop(place, None)
        try:
            if wait is None or wait.is_done():
                step = next(tasks[place])
            elif loss and (network.random.random() < 0.02 or network.is_idle):
                step = tasks[place].throw(TableTimeout("late"))
            else:
                waits[place] = wait
                continue
        except StopIteration:
            left.remove(place)
            continue
        if isinstance(step, Wait):
            waits[place] = step
    raise AssertionError("no end")


@given(st.integers(0, 1 << 32), st.integers(1, 3), st.integers(1, 6), st.sampled_from([0.01, 0.1]))
@example(seed=7, clients=3, depth=6, loss=0.1)
def test_each_record_is_appended_once_and_in_order(
    seed: int, clients: int, depth: int, loss: float
) -> None:
    network = LossyNetwork(Random(seed))
    names = [f"p{number}" for number in range(clients)]
    run(network, [produce(network, name, depth) for name in names], loss)
    while network.sent:  # What was late arrives after all.
        network.act(loss)
    found = [record.value.decode() for record in network.records()]
    for name in names:
        mine = [value for value in found if value.startswith(f"{name} ")]
        assert mine == [f"{name} {number}" for number in range(1, RECORDS + 1)]


@given(st.integers(0, 1 << 32), st.integers(2, 3), st.integers(1, 6))
def test_without_producers_each_client_keeps_its_order(seed: int, clients: int, depth: int) -> None:
    network = LossyNetwork(Random(seed))
    run(network, [append(network, f"p{number}", depth) for number in range(clients)], 0)
    found = [record.value.decode() for record in network.records()]
    for number in range(clients):
        mine = [value for value in found if value.startswith(f"p{number} ")]
        assert mine == [f"p{number} {at:04}" for at in range(1, RECORDS + 1)]


def finish(network: LossyNetwork, task: Steps) -> Any:
    """The result of steps over a network that loses nothing."""
    try:
        while True:
            step = next(task)
            while isinstance(step, Wait) and not step.is_done():
                network.act(0)
    except StopIteration as end:
        return end.value


def timed_out(network: LossyNetwork, task: Steps) -> None:
    """Steps whose request reaches the table, and whose answer is lost."""
    while not isinstance(step := next(task), Wait) or step.is_done():
        continue
    with pytest.raises(TableTimeout):
        task.throw(TableTimeout("late"))
    while network.sent:
        network.act(1)


def test_a_repeat_without_a_number_must_be_the_same_record() -> None:
    network = LossyNetwork(Random(1))
    core = StreamClient(NAME, cast(Any, TableOfNetwork(network)), None)
    link = finish(network, core.open_producer("p"))

    def append(*values: str) -> Steps:
        write = pending_append(pack_records(values, None), link, None)
        core.appender.begin(write)
        yield from core.appender.settle(write)
        return write.offset

    assert finish(network, append("a")) == 0
    timed_out(network, append("b", "c"))
    assert finish(network, append("b", "c")) == 1
    timed_out(network, append("d"))
    with pytest.raises(StreamConflict, match="record 4 was appended already, and was another"):
        finish(network, append("other"))
    assert finish(network, append("e")) == 4
    assert [record.value for record in network.records()] == [b"a", b"b", b"c", b"d", b"e"]


def test_a_producer_that_was_replaced_appends_no_more() -> None:
    network = LossyNetwork(Random(1))
    core = StreamClient(NAME, cast(Any, TableOfNetwork(network)), None)
    first = finish(network, core.open_producer("p"))
    second = finish(network, core.open_producer("p"))
    assert (first.state.epoch, second.state.epoch) == (1, 2)
    write = pending_append(pack_records(["a"], None), first, None)
    core.appender.begin(write)
    with pytest.raises(StreamConflict, match="another one was opened with its id"):
        finish(network, core.appender.settle(write))
    assert network.records() == []
