"""The store of a broker's durable requests: a replicated table, used like by any client.

protocols/majordomo/durable.py decides what is written and read.
"""

import os
import time
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from ...net.client_keys import ClientKeys
from ...net.links import LinkLimits
from ...protocols.errors import RemoteProtocolError
from ...protocols.majordomo.durable import (
    Durable,
    Order,
    StoreChange,
    StoreRead,
    StoreWrite,
    Watch,
)
from ...protocols.reqids import MACHINE_BYTES, make_reqids
from ...protocols.zerodb.client.client import Exchange, TableClientMachine, TableClientSetup
from ...protocols.zerodb.wire import answers, ops, requests, values
from ...protocols.zerodb.wire.values import PACKED, PARTSYNC, Extension
from ..raft.leader_link import LeaderLink
from ..runtime.process_loop import ProcessLoop

PAGE_BYTES = 4 << 20  # Of a read.
WATCH_MS = 1000  # A server answers after this time even without changes.
PATIENCE_MS = 24 * 3600 * 1000  # Of a request, which is repeated until then.
LIMITS = LinkLimits(message_bytes_max=256 << 20, message_frames_max=1 << 18)


class StoreTarget(NamedTuple):
    """The table of the store."""

    urls: tuple[str, ...]  # Of table servers, the nearest first.
    table: int
    secret: bytes = b""  # Proves that the table is the broker's.


class BrokerStore:
    """Executes the orders of a Durable, and reports their results."""

    def __init__(
        self,
        loop: ProcessLoop,
        target: StoreTarget,
        durable: Durable,
        keys: ClientKeys | None = None,
    ) -> None:
        """keys: None: connections without CURVE"""
        self._loop = loop
        self._target = target
        self._durable = durable
        self._client = TableClientMachine(TableClientSetup(target.urls, owner=target.secret))
        self._link = LeaderLink(loop, self._client, LIMITS, keys)
        self._machine = os.urandom(MACHINE_BYTES)
        self._numbers = count(int.from_bytes(os.urandom(3), "big"))
        self._reqids: dict[int, bytes] = {}  # Of writes: a repeat is applied once.
        self._in_flight: dict[Exchange, Order] = {}
        self._has_new_requests = True
        self._client.add(self._exchange(requests.OpenTable(target.table), self._new_reqid()))

    def _new_reqid(self) -> bytes:
        return make_reqids(int(time.time()), self._machine, os.getpid(), [next(self._numbers)])[0]

    def _exchange(self, request: requests.Request, reqid: bytes) -> Exchange:
        return Exchange(request, reqid, self._loop.now_ms + PATIENCE_MS)

    # ---- results ----

    def receive_answers(self, now_ms: int) -> None:
        """Reports the results of answered orders."""
        done = [exchange for exchange in self._in_flight if exchange.done]
        for exchange in done:
            order = self._in_flight.pop(exchange)
            try:
                self._report(order, exchange, now_ms)
            except RemoteProtocolError as error:
                self._loop.log_rarely("store-unclear", problem=str(error))
                self._durable.on_failed(order.ticket, now_ms)
        junk = self._durable.ledger.junk
        while junk:
            key, problem = junk.pop()
            self._loop.log_rarely("store-junk", key=key.hex(), problem=problem)

    def _report(self, order: Order, exchange: Exchange, now_ms: int) -> None:
        """Raises RemoteProtocolError: the answer has another form."""
        durable, answer, ticket = self._durable, exchange.answer, order.ticket
        if answer is None or (answer.failed and answer.code != values.GONE):
            problem = exchange.refusal if answer is None else answer.text
            self._loop.log_rarely("store-refuses", problem=problem)
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
        else:
            index, found_changes = answers.WATCH.decode(answer)
            changes = [change for each in found_changes if (change := _decode_change(each.ops))]
            if len(changes) == len(found_changes):
                durable.on_watched(ticket, index, changes, now_ms)
            else:
                durable.on_changes_lost(ticket)  # Another client emptied the table or a part of it.

    # ---- orders ----

    def send_orders(self, now_ms: int) -> None:
        """Sends new orders; called at the end of a wake."""
        for order in self._durable.pop_orders():
            reqid = self._reqids.get(order.ticket) or self._new_reqid()
            if isinstance(order, StoreWrite):
                self._reqids[order.ticket] = reqid
            exchange = self._client.add(self._exchange(self._request(order), reqid))
            self._in_flight[exchange] = order
            self._has_new_requests = True
        self._link.act(now_ms, self._has_new_requests)
        self._has_new_requests = False

    def _request(self, order: Order) -> requests.Request:
        table = self._target.table
        if isinstance(order, StoreRead):
            packed = Extension(PACKED, bytes_max=PAGE_BYTES)
            return requests.Scan(table, None, order.start, order.end, packed)
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

    @property
    def deadline_ms(self) -> int | None:
        return self._link.deadline_ms

    def close(self) -> None:
        self._link.close()


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
