"""The store of durable requests as a client of a replicated table, without sockets.

durable.py decides what is written and read; this module makes requests of its orders, and reports
their answers.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from ..errors import RemoteProtocolError
from ..zerodb.client.client import Exchange, TableClientMachine
from ..zerodb.wire import answers, ops, requests, values
from ..zerodb.wire.values import PACKED, PARTSYNC, WITH_INDEX, Extension
from .durable import (
    LEASE,
    Durable,
    Order,
    StoreChange,
    StoreIndex,
    StoreRead,
    StoreWrite,
    Watch,
)

PAGE_BYTES = 4 << 20  # Of a read.
WATCH_MS = 1000  # A server answers after this time even without changes.
PATIENCE_MS = 24 * 3600 * 1000  # Of a request, which is repeated until then.


class StoreLog(Protocol):
    """The log of the broker's process."""

    def log_rarely(self, event: str, **values: object) -> None: ...


class StoreRequests:
    """Executes the orders of a Durable, and reports their results. The owner drives the client."""

    def __init__(
        self,
        table: int,
        durable: Durable,
        client: TableClientMachine,
        new_reqid: Callable[[], bytes],
        log: StoreLog,
    ) -> None:
        self.client = client
        self._table = table
        self._durable = durable
        self._new_reqid = new_reqid
        self._log = log
        self._reqids: dict[int, bytes] = {}  # Of writes: a repeat is applied once.
        self._in_flight: dict[Exchange, Order] = {}

    def open_table(self, now_ms: int) -> None:
        """The first request."""
        self._add(requests.OpenTable(self._table), self._new_reqid(), now_ms)

    def _add(self, request: requests.Request, reqid: bytes, now_ms: int) -> Exchange:
        return self.client.add(Exchange(request, reqid, now_ms + PATIENCE_MS))

    # ---- results ----

    def receive_answers(self, now_ms: int) -> None:
        """Reports the results of answered orders."""
        done = [exchange for exchange in self._in_flight if exchange.done]
        for exchange in done:
            order = self._in_flight.pop(exchange)
            try:
                self._report(order, exchange, now_ms)
            except RemoteProtocolError as error:
                self._log.log_rarely("store-unclear", problem=str(error))
                self._durable.on_failed(order.ticket, now_ms)
        junk = self._durable.ledger.junk
        while junk:
            key, problem = junk.pop()
            self._log.log_rarely("store-junk", key=key.hex(), problem=problem)

    def _report(self, order: Order, exchange: Exchange, now_ms: int) -> None:
        """Raises RemoteProtocolError: the answer has another form."""
        durable, answer, ticket = self._durable, exchange.answer, order.ticket
        if answer is None or (answer.failed and answer.code != values.GONE):
            problem = exchange.refusal if answer is None else answer.text
            self._log.log_rarely("store-refuses", problem=problem)
            durable.on_failed(ticket, now_ms)
        elif answer.failed:
            durable.on_changes_lost(ticket)
        elif isinstance(order, StoreWrite):
            holds = not order.guards or answers.TRANSACTION.decode(answer).succeeded
            self._reqids.pop(ticket, None)
            durable.on_written(ticket, holds, now_ms)
        elif isinstance(order, StoreRead):
            assert isinstance(exchange.sent, requests.Scan)
            found = answers.SCAN.decode(answer, exchange.sent)
            pairs = list(zip(found.keys, found.values, strict=True))
            durable.on_read(ticket, pairs, found.resume, now_ms)
        elif isinstance(order, StoreIndex):
            # A server that does not tell the index is that of an older version.
            durable.on_index(ticket, answer.log_index or 0)
        else:
            index, found_changes = answers.WATCH.decode(answer)
            changes = [change for each in found_changes if (change := _decode_change(each.ops))]
            if len(changes) == len(found_changes):
                durable.on_watched(ticket, index, changes, now_ms)
            else:
                durable.on_changes_lost(ticket)  # Another client emptied the table or a part of it.

    # ---- orders ----

    def send_orders(self, now_ms: int) -> bool:
        """Gives the client the new orders. False: there are none."""
        orders = self._durable.pop_orders()
        for order in orders:
            reqid = self._reqids.get(order.ticket) or self._new_reqid()
            if isinstance(order, StoreWrite):
                self._reqids[order.ticket] = reqid
            self._in_flight[self._add(self._request(order), reqid, now_ms)] = order
        return bool(orders)

    def _request(self, order: Order) -> requests.Request:
        table = self._table
        if isinstance(order, StoreRead):
            packed = Extension(PACKED, bytes_max=PAGE_BYTES)
            return requests.Scan(table, None, order.start, order.end, packed)
        if isinstance(order, StoreIndex):
            return requests.Read(table, [LEASE], Extension(WITH_INDEX))
        if isinstance(order, Watch):
            return requests.Watch(table, b"", b"", order.index, Extension(deadline_ms=WATCH_MS))
        if not order.guards:
            keys, found = [key for key, _ in order.puts], [value for _, value in order.puts]
            return requests.Put(table, keys, found, PARTSYNC, Extension(PACKED))
        compares = [
            ops.Compare(table, key, ops.ABSENT)
            if value is None
            else ops.Compare(table, key, ops.EQUAL, value)
            for key, value in order.guards
        ]
        then: list[ops.Op] = [ops.Put(table, [key], [value]) for key, value in order.puts]
        then += [ops.Delete(table, [key]) for key in order.deletes]
        return requests.Transaction(compares, then, [], PARTSYNC)


def _decode_change(done: Sequence[ops.Op]) -> StoreChange | None:
    """The change of an entry; None: an operation that brokers do not use."""
    puts: list[tuple[bytes, bytes]] = []
    deletes: list[bytes] = []
    for op in done:
        match op:
            case ops.Put():
                puts += zip(op.keys, op.values, strict=True)
            case ops.Delete():
                deletes += op.keys
            case _:
                return None
    return StoreChange(puts, deletes)
