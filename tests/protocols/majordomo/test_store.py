"""The requests to the store: their ids, and what their answers report."""

from itertools import count

from kelek.native.broker.exchange import ExchangeSetup
from kelek.protocols.majordomo.durable import Durable, Order, StoreIndex, StoreWrite, Watch
from kelek.protocols.majordomo.ledger import DurableSetup
from kelek.protocols.majordomo.store import StoreRequests
from kelek.protocols.majordomo.values import HEADERS
from kelek.protocols.zerodb.client.client import Exchange, TableClientMachine, TableClientSetup
from kelek.protocols.zerodb.wire import requests, values
from kelek.protocols.zerodb.wire.answers import Answer

TABLE = 5
GUARD = b"o", None


class ScriptedDurable(Durable):
    """It orders what a test wants, and keeps what it is told."""

    def __init__(self) -> None:
        setup = DurableSetup("n", b"token  1", {b"work": 1000})
        super().__init__(setup, ExchangeSetup(HEADERS, (b"full", b"queue", b"late", b"lost")), 0)
        self.wanted: list[Order] = []
        self.told: list[tuple[object, ...]] = []

    def pop_orders(self) -> list[Order]:
        wanted, self.wanted = self.wanted, []
        return wanted

    def on_failed(self, ticket: int, now_ms: int) -> None:
        self.told.append(("failed", ticket))

    def on_written(self, ticket: int, holds: bool, now_ms: int) -> None:
        self.told.append(("written", ticket, holds))

    def on_index(self, ticket: int, index: int) -> None:
        self.told.append(("index", ticket, index))

    def on_changes_lost(self, ticket: int) -> None:
        self.told.append(("lost", ticket))


class NotingClient(TableClientMachine):
    """It keeps what it is given."""

    def __init__(self) -> None:
        super().__init__(TableClientSetup(("a",)))
        self.given: list[Exchange] = []

    def add(self, exchange: Exchange) -> Exchange:
        self.given.append(exchange)
        return exchange


class StoreBench:
    """StoreRequests with a client whose answers a test gives."""

    def __init__(self) -> None:
        numbers = count(1)
        self.durable = ScriptedDurable()
        self.lines: list[str] = []
        self.client = NotingClient()
        self.store = StoreRequests(
            TABLE, self.durable, self.client, lambda: next(numbers).to_bytes(12, "big"), self
        )

    def log_rarely(self, event: str, **values: object) -> None:
        self.lines.append(event)

    def order(self, *orders: Order) -> list[Exchange]:
        self.durable.wanted += orders
        assert self.store.send_orders(0)
        given, self.client.given = self.client.given, []
        return given

    def answer(self, exchange: Exchange, answer: Answer) -> tuple[object, ...]:
        exchange.answer = answer
        self.store.receive_answers(0)
        return self.durable.told.pop()


def refused(exchange: Exchange, code: int) -> Answer:
    return Answer(requests.type_of(exchange.request), code, exchange.reqid, True, [b"why"])


def test_a_write_without_guards_is_a_put_and_has_one_id_until_it_is_done() -> None:
    bench = StoreBench()
    order = StoreWrite(7, [], [(b"r1", b"x")], [])
    (first,) = bench.order(order)
    assert isinstance(first.request, requests.Put)
    assert bench.answer(first, refused(first, 1)) == ("failed", 7)
    assert bench.lines == ["store-refuses"]
    (again,) = bench.order(order)
    assert again.reqid == first.reqid, "the log counts it once"
    done = Answer(requests.type_of(again.request), 0, again.reqid, False, [])
    assert bench.answer(again, done) == ("written", 7, True)
    (other,) = bench.order(order._replace(ticket=8))
    assert other.reqid != first.reqid


def test_a_guarded_write_is_a_transaction_that_may_not_hold() -> None:
    bench = StoreBench()
    (exchange,) = bench.order(StoreWrite(7, [GUARD], [(b"f1", b"x")], [b"r1"]))
    request = exchange.request
    assert isinstance(request, requests.Transaction)
    assert (len(request.compares), len(request.then)) == (1, 2)
    junk = Answer(requests.type_of(request), 0, exchange.reqid, False, [b"junk"])
    assert bench.answer(exchange, junk) == ("failed", 7)
    assert bench.lines == ["store-unclear"]


def test_changes_that_are_gone_are_read_anew() -> None:
    bench = StoreBench()
    (exchange,) = bench.order(Watch(9, 100))
    assert isinstance(exchange.request, requests.Watch)
    assert bench.answer(exchange, refused(exchange, values.GONE)) == ("lost", 9)
    assert not bench.lines, "it is no failure"


def test_the_index_of_a_read_is_that_of_the_log() -> None:
    bench = StoreBench()
    (exchange,) = bench.order(StoreIndex(9))
    request = exchange.request
    assert isinstance(request, requests.Read)
    assert request.extension.flags & values.WITH_INDEX
    assert not request.extension.flags & values.STALE
    answer = Answer(requests.type_of(request), 0, exchange.reqid, False, [])
    assert bench.answer(exchange, answer._replace(log_index=77)) == ("index", 9, 77)
