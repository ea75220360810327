"""Durable services without sockets: brokers over one store are killed, stopped and go on, at every
step, and each request ends once."""

import math
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC
from random import Random

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kelek.native.broker.exchange import ExchangeSetup, NewWorker
from kelek.native.net.messages import Arena
from kelek.protocols.majordomo.broker import BrokerMachine, BrokerSetup
from kelek.protocols.majordomo.codec import LATE, UNFINISHED, Request, encode_failure
from kelek.protocols.majordomo.durable import (
    Durable,
    Order,
    StoreChange,
    StoreIndex,
    StoreRead,
    StoreWrite,
    Watch,
)
from kelek.protocols.majordomo.ledger import DurableSetup, Ledger
from kelek.protocols.majordomo.records import Sender
from kelek.protocols.majordomo.values import HEADERS, Framing

KLKC, KLKW = b"KLKC01", b"KLKW01"
UNIX_MS = 1_700_000_000_000
Message = list[bytes]
Pair = tuple[bytes, bytes]


class Store:
    """A replicated table: entries in one order, each atomic and applied once."""

    def __init__(self) -> None:
        self.table: dict[bytes, bytes] = {}
        self.entries: list[StoreChange] = []
        self.results: dict[tuple[bytes, int], bool] = {}
        self.first = 0  # Changes before it are no longer kept.

    def write(self, token: bytes, write: StoreWrite) -> bool:
        known = self.results.get((token, write.ticket))
        if known is not None:
            return known
        holds = all(self.table.get(key) == value for key, value in write.guards)
        if holds:
            for key, value in write.puts:
                self.table[key] = value
            for key in write.deletes:
                self.table.pop(key, None)
            self.entries.append(StoreChange(list(write.puts), list(write.deletes)))
        self.results[token, write.ticket] = holds
        return holds


class DurableNode:
    """A broker, its orders to the store, and the answers in flight."""

    def __init__(self, network: "DurableBrokers", number: int) -> None:
        self.network = network
        network.tokens += 1
        self.token = network.tokens.to_bytes(8, "big")
        self.name = b"n%d" % number
        durable = DurableSetup(
            self.name.decode(), self.token, {b"work": network.ttl_ms, b"idle": network.ttl_ms},
            UNIX_MS, lease_ms=300,
        )  # fmt: skip
        self.broker = BrokerMachine(
            BrokerSetup(heartbeat_interval_ms=200, durable=durable), network.now_ms
        )
        self.orders: deque[Order] = deque()
        self.results: deque[Callable[[], None]] = deque()
        self.asleep_ms = 0  # Until then it does nothing.

    @property
    def durable(self) -> Durable:
        assert self.broker.durable is not None
        return self.broker.durable

    def ready(self) -> None:
        self.broker.ready(self.network.now_ms)
        self.orders += self.durable.pop_orders()
        self.network.deliver(self)

    def do_order(self, dice: Random) -> None:
        store, durable, order = self.network.store, self.durable, self.orders.popleft()

        def now() -> int:
            return self.network.now_ms

        ticket = order.ticket
        fails = dice.random() < 0.05
        if isinstance(order, StoreWrite):
            if fails and dice.random() < 0.5:
                self.results.append(lambda: durable.on_failed(ticket, now()))
                return
            holds = store.write(self.token, order)
            if fails:  # It was done, and the result was lost.
                self.results.append(lambda: durable.on_failed(ticket, now()))
            else:
                self.results.append(lambda: durable.on_written(ticket, holds, now()))
        elif fails:
            self.results.append(lambda: durable.on_failed(ticket, now()))
        elif isinstance(order, StoreRead):
            found = sorted(p for p in store.table.items() if order.start <= p[0] < order.end)
            page, rest = found[:3], found[3:]
            resume = rest[0][0] if rest else b""
            self.results.append(lambda: durable.on_read(ticket, page, resume, now()))
        else:
            assert isinstance(order, Watch)
            self._watch(order, dice)

    def _watch(self, order: Watch, dice: Random) -> None:
        store, durable, ticket = self.network.store, self.durable, order.ticket
        last = len(store.entries)
        if order.index and order.index - 1 < store.first:
            self.results.append(lambda: durable.on_changes_lost(ticket))
            return
        first = order.index - 1 if order.index else last
        end = min(last, first + dice.randint(1, 5))
        changes = store.entries[first:end] if order.index else []
        index = (end if order.index else last) + 1
        now_ms = self.network.now_ms
        self.results.append(lambda: durable.on_watched(ticket, index, changes, now_ms))


class DurableClient:
    """Sends unanswered requests again, at any broker."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.open: dict[bytes, Message] = {}
        self.finals: dict[bytes, set[bytes]] = {}
        self.uuids: dict[bytes, bytes] = {}


class DurableBrokers:
    def __init__(self, seed: int, ttl_ms: int = 10_000_000) -> None:
        self.dice = Random(seed)
        self.ttl_ms = ttl_ms
        self.now_ms = 1000
        self.tokens = 0
        self.store = Store()
        self.nodes = [DurableNode(self, number) for number in range(3)]
        self.late: list[tuple[bytes, StoreWrite]] = []  # Of brokers that are no more.
        self.clients = [DurableClient(b"client %d" % i) for i in range(3)]
        self.asked = 0
        self.executed: Counter[bytes] = Counter()
        self.working: list[tuple[DurableNode, Message]] = []  # Requests that workers have.

    # ---- what brokers send ----

    def deliver(self, node: DurableNode) -> None:
        for name, header, kind, service, request_id, *body in node.broker.clients.messages():
            client = next(each for each in self.clients if each.name == name)
            assert header == KLKC
            if kind == b"\3":
                self._on_final(client, service, request_id, body)
        node.broker.clients.clear()
        for routing_id, _, command, *frames in node.broker.workers.messages():
            if command == b"\2":
                address, _, request_id, *body = frames
                assert self.holders() == [node], "it is the one that may hand out"
                assert (address, request_id) not in self.ended(), "this has ended already"
                self.executed[body[0]] += 1
                answer = [routing_id, KLKW, b"\4", address, b"", request_id]
                self.working.append((node, [*answer, b"%s %d" % (body[0], self.executed[body[0]])]))
        node.broker.workers.clear()

    def _on_final(
        self, client: DurableClient, service: bytes, request_id: bytes, body: Message
    ) -> None:
        assert body[0] != b"KLK-ERROR", body
        client.open.pop(request_id, None)
        whole = b"|".join(body)
        client.finals.setdefault(request_id, set()).add(whole)
        assert len(client.finals[request_id]) == 1 or self.ttl_ms < 1000, "two ends"

    def ended(self) -> set[tuple[bytes, bytes]]:
        return {
            (row[0], row[1])
            for key, value in self.store.table.items()
            if key[:1] == b"f"
            for row in msgpack.unpackb(value)[2]
        }

    def holders(self) -> list[DurableNode]:
        return [node for node in self.nodes if node.durable.may_dispatch(self.now_ms)]

    # ---- what happens ----

    def awake(self) -> list[DurableNode]:
        return [node for node in self.nodes if node.asleep_ms <= self.now_ms]

    def send(self, client: DurableClient, request_id: bytes, node: DurableNode) -> None:
        frames = client.open[request_id]
        message = [client.name, KLKC, b"\1", *frames]
        node.broker.on_requests(Arena.from_messages([message]), self.now_ms)
        node.ready()

    def ask(self) -> None:
        nodes = self.awake()
        if not nodes:
            return
        client = self.dice.choice(self.clients)
        self.asked += 1
        name = b"%d" % self.asked
        titanic = [b"titanic.request", name, b"work", name]
        client.open[name] = titanic if self.dice.random() < 0.2 else [b"work", name, name]
        self.send(client, name, self.dice.choice(nodes))

    def repeat(self) -> None:
        nodes, client = self.awake(), self.dice.choice(self.clients)
        if nodes and client.open:
            self.send(client, self.dice.choice(list(client.open)), self.dice.choice(nodes))

    def register(self, node: DurableNode) -> None:
        ready = [b"w%d" % self.dice.randrange(1 << 60), KLKW, b"\1", b"work", b"\0\2"]
        node.broker.on_answers(Arena.from_messages([ready]), self.now_ms)
        node.ready()

    def answer(self) -> None:
        there = [each for each in self.working if each[0] in self.awake()]
        if there:
            node, message = each = self.dice.choice(there)
            self.working.remove(each)
            node.broker.on_answers(Arena.from_messages([message]), self.now_ms)
            node.ready()

    def kill(self, place: int) -> None:
        """Its writes may arrive later, or never."""
        old = self.nodes[place]
        self.late += [(old.token, o) for o in old.orders if isinstance(o, StoreWrite)]
        self.working = [each for each in self.working if each[0] is not old]
        self.nodes[place] = DurableNode(self, place)

    def write_late(self) -> None:
        if self.late:
            token, write = self.late.pop(0)
            if self.dice.random() < 0.7:
                self.store.write(token, write)

    def step(self, calm: bool = False) -> None:
        dice = self.dice
        self.now_ms += dice.choice((0, 0, 1, 5, 20))
        for node in self.awake():
            for queue in (node.orders, node.results):
                if queue and dice.random() < 0.7:
                    if queue is node.orders:
                        node.do_order(dice)
                    else:
                        node.results.popleft()()
            node.ready()
            if not node.broker.worker_infos() or dice.random() < 0.002:
                self.register(node)
            for info in node.broker.worker_infos():
                if dice.random() < 0.2:
                    ping = [info.routing_id, KLKW, b"PING"]
                    node.broker.on_answers(Arena.from_messages([ping]), self.now_ms)
        assert len(self.holders()) <= 1, "two may hand out at once"
        if dice.random() < 0.5:
            self.answer()
        if dice.random() < 0.05:
            self.repeat()
        if dice.random() < 0.3:
            self.write_late()
        if calm:
            return
        if dice.random() < 0.1:
            self.ask()
        if dice.random() < 0.01:
            self.kill(dice.randrange(len(self.nodes)))
        if dice.random() < 0.01:
            dice.choice(self.nodes).asleep_ms = self.now_ms + dice.choice((100, 500, 2000))
        if dice.random() < 0.005:
            self.store.first = len(self.store.entries)

    def calm_down(self) -> None:
        """Nothing is killed any more: all requests end."""
        for _ in range(20_000):
            self.step(calm=True)
            if not any(client.open for client in self.clients):
                return
            for client in self.clients:
                for request_id in list(client.open):
                    if self.dice.random() < 0.05 and (nodes := self.awake()):
                        self.send(client, request_id, self.dice.choice(nodes))
        missing = [client.open for client in self.clients]
        raise AssertionError(f"these never end: {missing}")


@pytest.mark.parametrize("seed", range(24))
def test_each_request_ends_once_whatever_is_killed(seed: int) -> None:
    network = DurableBrokers(seed)
    for _ in range(800):
        network.step()
    network.calm_down()
    assert network.asked > 20


@pytest.mark.parametrize("seed", range(100, 106))
def test_what_has_ended_is_deleted(seed: int) -> None:
    network = DurableBrokers(seed, ttl_ms=300)
    for _ in range(800):
        network.step()
    network.calm_down()
    for _ in range(20_000):
        network.step(calm=True)
        ledgers = [node.durable.ledger for node in network.nodes]
        if not any(ledger.count for ledger in ledgers) and len(network.store.table) == 2:
            break
    assert set(network.store.table) == {b"l", b"o"}
    assert [(ledger.count, ledger.size) for ledger in ledgers] == [(0, 0)] * 3


# ---- titanic ----


class TitanicNode(DurableNode):
    """Also asks for the index of the store's last change."""

    def do_order(self, dice: Random) -> None:
        if not isinstance(order := self.orders[0], StoreIndex):
            super().do_order(dice)
            return
        self.orders.popleft()
        durable, ticket = self.durable, order.ticket
        if dice.random() < 0.05:
            self.results.append(lambda: durable.on_failed(ticket, self.network.now_ms))
        else:
            last = len(self.network.store.entries)
            self.results.append(lambda: durable.on_index(ticket, last))


class TitanicBrokers(DurableBrokers):
    """Each client asks for a request that it has left, and closes it at any broker."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.nodes = [TitanicNode(self, number) for number in range(len(self.nodes))]
        self.left: dict[bytes, bytes] = {}  # By uuid: the body of its request.
        self.asked_to_close: set[bytes] = set()
        self.closed: set[bytes] = set()
        self.behind = 0  # Closes that were sent to a broker that had not seen all changes.
        self.checked: dict[bytes, Message] = {}  # By uuid: the last answer to titanic.reply.

    def kill(self, place: int) -> None:
        super().kill(place)
        self.nodes[place] = TitanicNode(self, place)

    def ask(self) -> None:
        client, nodes = self.dice.choice(self.clients), self.awake()
        if not nodes:
            return
        self.asked += 1
        number, node = b"%d" % self.asked, self.dice.choice(nodes)
        uuid = self.dice.choice([b"", *self.left])
        if not uuid:
            frames = [b"titanic.request", number, b"work", number]
        elif uuid not in self.asked_to_close and self.dice.random() < 0.3:
            frames = [b"titanic.close", b"c" + uuid, uuid]
            self.asked_to_close.add(uuid)
            node = max(nodes, key=self.missing)
            self.behind += self.missing(node) > 0
        else:
            frames = [b"titanic.reply", b"%s %s" % (number, uuid), uuid]
        client.open[frames[1]] = frames
        self.send(client, frames[1], node)

    def _on_final(
        self, client: DurableClient, service: bytes, request_id: bytes, body: Message
    ) -> None:
        code, *frames = body
        asked = client.open.pop(request_id, None)
        if service == b"titanic.request":
            assert code == b"200"
            if asked is not None:
                self.left[frames[0]] = asked[3]
        elif service == b"titanic.close":
            assert body == [b"200"]
            if asked is not None:
                self.closed.add(asked[2])
        else:
            uuid = request_id.split()[1]
            assert code in (b"200", b"300", b"400", b"500")
            self.checked[uuid] = body
            if code == b"200":
                assert frames[0].split()[0] == self.left[uuid], "another answer"
            if code == b"400":
                assert uuid in self.asked_to_close, "unknown, but not closed"

    def replies(self, place: int) -> dict[bytes, bytes]:
        """The codes of a broker's answers to titanic.reply for all that was left."""
        return {uuid: self.reply(place, uuid) for uuid in self.left}

    def reply(self, place: int, uuid: bytes) -> bytes:
        client, tries = self.clients[0], 0
        self.checked.pop(uuid, None)
        while (code := self.checked.pop(uuid, [b"500"])[0]) in (b"500", b"300"):
            tries += 1
            assert tries < 1000, "no answer"
            request_id = b"%d-%d %s" % (self.now_ms, tries, uuid)
            client.open[request_id] = [b"titanic.reply", request_id, uuid]
            self.send(client, request_id, self.nodes[place])
            self.step(calm=True)
            while uuid not in self.checked and self.dice.random() < 0.95:
                self.step(calm=True)
        return code

    def catch_up(self) -> None:
        """Until each broker has seen all changes."""
        for _ in range(20_000):
            self.step(calm=True)
            if not any(map(self.missing, self.nodes)):
                return
        raise AssertionError("a broker stays behind")

    def missing(self, node: DurableNode) -> int:
        """The segments that only one of store and broker has."""
        stored = {key for key in self.store.table if key[:1] in (b"r", b"f")}
        return len(stored ^ node.durable.ledger.written_keys().keys())


@pytest.mark.parametrize("seed", range(8))
def test_a_close_holds_at_every_broker_as_long_as_the_answer_is_stored(seed: int) -> None:
    network = TitanicBrokers(seed)
    for _ in range(1000):
        network.step()
    network.calm_down()
    assert network.behind, "no broker was behind"
    assert network.closed == network.asked_to_close
    assert network.closed != network.left.keys(), "an answer is not closed"
    wanted = {uuid: b"400" if uuid in network.closed else b"200" for uuid in network.left}
    for minute in range(3):
        network.catch_up()
        for place in range(len(network.nodes)):
            assert network.replies(place) == wanted, f"minute {minute}"
        network.now_ms += 60_000


# ---- whatever the store holds ----

SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
    | st.binary(max_size=300) | st.text(max_size=9) | st.datetimes(timezones=st.just(UTC))
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=9))
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text() | st.binary(), inner, max_size=3)
    ),
    max_leaves=8,
)
ROWS = {
    b"r": [b"old", b"1", 0, 0, [b"body"], [b"asking", b"2"]],
    b"f": [b"old", b"1", 0, [[True, [b"end"]]], [b"closed"], [b"asking", b"2"]],
}


@st.composite
def bad_segments(draw: st.DrawFn) -> tuple[bytes, object]:
    """A key, and what is no segment: often one of ours in which one thing is another."""
    kind = draw(st.sampled_from((b"r", b"f")))
    stamp = draw(st.sampled_from((0, UNIX_MS, (1 << 64) - 1)))
    key = kind + stamp.to_bytes(8, "big") + b"another1" + draw(st.binary(min_size=4, max_size=4))
    row: list[object] = list(ROWS[kind])
    place = draw(st.integers(0, len(row)))
    if place < len(row):
        inside = row[place]
        if isinstance(inside, list) and draw(st.booleans()):
            row[place] = [draw(ANYTHING), *inside[1:]]
        else:
            row[place] = draw(ANYTHING)
        return key, [1, b"work", [row, draw(ANYTHING)]]
    return key, draw(ANYTHING)


@settings(max_examples=40, deadline=None)
@given(st.lists(bad_segments(), min_size=1, max_size=4))
@example([(b"r" + bytes(20), [1, b"work", [[*ROWS[b"r"][:3], math.inf, [b"x"], None]]])])
@example([(b"r" + bytes(20), [1, b"work", [[*ROWS[b"r"][:5], {"a": b"b"}]]])])
def test_a_broker_survives_any_content_of_its_table(bad: list[tuple[bytes, object]]) -> None:
    network = DurableBrokers(1)
    good = b"r" + UNIX_MS.to_bytes(8, "big") + b"another1" + bytes(4)
    before = {key: msgpack.packb(value, datetime=True) for key, value in bad if key != good}
    client = network.clients[0]
    client.open[b"good"] = [b"work", b"good", b"good"]
    row = [client.name, b"good", 0, 0, [b"good"], None]
    (key, junk), *_ = bad
    before[good] = msgpack.packb([1, b"work", [row, *(junk if isinstance(junk, list) else [])]],
                                 datetime=True)  # fmt: skip
    network.store.table = dict(before)
    network.clients.append(DurableClient(b"old"))
    network.deliver = lambda node: None  # type: ignore[method-assign]  # Junk may name any client.
    done = False
    for _ in range(300):
        network.step(calm=True)
        for node in network.nodes:
            for routing_id, _, command, *frames in node.broker.workers.messages():
                if command == b"\2":
                    address, _, request_id, *body = frames
                    answer = [routing_id, KLKW, b"\4", address, b"", request_id, *body]
                    node.broker.on_answers(Arena.from_messages([answer]), network.now_ms)
                    done |= body == [b"good"]
            node.broker.workers.clear()
            node.broker.clients.clear()
    assert done, "what stands beside it is worked on"
    kept = set(network.store.table)
    for node in network.nodes:
        assert node.durable.is_loaded
        for key, _ in node.durable.ledger.junk:
            assert key in kept, "unreadable rows stay for an operator"


def following_durable() -> tuple[Durable, int, StoreWrite]:
    """One that has read an empty store, the ticket of its watch, and its claim of the store."""
    setup = DurableSetup("n", b"token  1", {b"work": 1000}, UNIX_MS)
    durable = Durable(setup, ExchangeSetup(HEADERS, (b"full", b"queue", b"late", b"unfinished")), 0)
    while True:
        durable.ready(0)
        order, *writes = durable.pop_orders()
        if isinstance(order, StoreRead):
            durable.on_read(order.ticket, [], b"", 0)
        elif durable.is_loaded:
            (claim,) = writes
            assert isinstance(claim, StoreWrite)
            return durable, order.ticket, claim
        else:
            durable.on_watched(order.ticket, 10, [], 0)


def written_ends(durable: Durable) -> dict[bytes, Message]:
    """Writes everything; the clients and errors of the ends in it."""
    durable.ready(0)
    found: dict[bytes, Message] = {}
    for write in durable.pop_orders():
        if isinstance(write, StoreWrite):
            durable.on_written(write.ticket, True, 0)
            for key, value in write.puts:
                if key.startswith(b"f"):
                    found |= {row[0]: row[3][0][1] for row in msgpack.unpackb(value)[2]}
    return found


def test_an_unknown_uuid_is_looked_for_in_all_changes_until_the_question() -> None:
    other = Ledger(DurableSetup("m", b"token  2", {b"work": 1000}))
    asked = Request(b"titanic.request", b"1", [b"work", b"x"])
    other.add_titanic_request(Sender(b"c"), Framing.TEXT, asked)
    pairs = other.pack_requests(UNIX_MS)
    other.on_written(key for key, _ in pairs)
    uuid = other.replies[0][-1]
    durable, watch, _ = following_durable()

    def ask(request_id: bytes, uuid: bytes) -> Message:
        request = Request(b"titanic.reply", request_id, [uuid])
        return durable.titanic_reply(Sender(b"c"), Framing.TEXT, request)

    def indexes() -> list[int]:
        durable.ready(0)
        return [each.ticket for each in durable.pop_orders() if isinstance(each, StoreIndex)]

    def answered() -> list[Message]:
        found = [reply[4:] for reply in durable.ledger.replies]
        durable.ledger.replies.clear()
        return found

    assert ask(b"2", uuid) == ask(b"3", b"none") == []
    (ticket,) = indexes()
    assert ask(b"4", b"later") == []
    assert indexes() == [], "one at a time"
    durable.on_index(ticket, 12)
    (later,) = indexes()
    assert answered() == [], "this broker is behind"
    durable.on_watched(watch, 13, [StoreChange(list(pairs), [])], 0)
    assert answered() == [[b"2", b"300"], [b"3", b"400"]]
    assert ask(b"5", uuid) == [b"300"]
    durable.on_failed(later, 0)
    assert answered() == [[b"4", b"500"]]
    assert ask(b"6", b"none") == []
    (ticket,) = indexes()
    durable.on_index(ticket, 12)
    assert answered() == [[b"6", b"400"]], "it has seen that already"


def test_a_worker_that_passes_on_the_error_of_an_expired_call_had_the_request() -> None:
    """A repeat gets that end, and runs nothing again."""
    durable, watch, claim = following_durable()
    durable.on_written(claim.ticket, True, 0)
    durable.on_watched(watch, 12, [StoreChange(claim.puts, [])], 0)
    assert durable.exchange.add_worker(NewWorker(b"w", b"work"), 0)
    durable.add_request(Sender(b"c"), Framing.TEXT, Request(b"work", b"1", [b"x"]), 0)
    assert written_ends(durable) == {}
    durable.ready(0)
    (request,) = durable.exchange.workers.messages()
    answer = [b"w", KLKW, b"\4", request[3], b"", b"1", *encode_failure(LATE)]
    assert durable.exchange.receive_answers(Arena.from_messages([answer]), 0, 0) == (1, None)
    assert written_ends(durable) == {b"c": encode_failure(UNFINISHED)}


def test_an_owner_calls_a_request_of_an_earlier_owner_unfinished() -> None:
    """That one may have dispatched it. Only the present owner can have dispatched later ones."""
    expired = Request(b"work", b"1", [b"x"], remaining_ms=0)
    other = Ledger(DurableSetup("m", b"token  2", {b"work": 1000}))
    other.add_request(Sender(b"earlier"), Framing.TEXT, expired, UNIX_MS)
    earlier = StoreChange(other.pack_requests(UNIX_MS), [])
    durable, watch, claim = following_durable()
    durable.on_written(claim.ticket, True, 0)
    durable.on_watched(watch, 12, [earlier, StoreChange(claim.puts, [])], 0)

    assert written_ends(durable) == {b"earlier": encode_failure(UNFINISHED)}
    durable.add_request(Sender(b"later"), Framing.TEXT, expired, 0)
    assert written_ends(durable) == {}, "it is written first"
    assert written_ends(durable) == {b"later": encode_failure(LATE)}
