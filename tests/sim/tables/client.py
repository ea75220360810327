"""Clients of tables: the real client machine, one request at a time, and what they do with it."""

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from itertools import count
from typing import Any

from kelek.protocols.reqids import make_reqids
from kelek.protocols.zerodb.client.client import Exchange, TableClientMachine, TableClientSetup
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.answers import Answer, AnswerLayout
from kelek.protocols.zerodb.wire.chunks import SortedRows, encode_chunk
from kelek.protocols.zerodb.wire.requests import Request
from kelek.protocols.zerodb.wire.values import FULLSYNC, PARTSYNC, Extension
from kelek.tests.crash.histories.linear import COMPARE, NEVER, PUT, READ, SWAP, Call
from kelek.tests.sim.log.client import ClientHost, MachineLinks, SimClient
from kelek.tests.sim.log.node import UNIX_S
from kelek.tests.sim.network import Network
from kelek.tests.sim.simulation import US_PER_MS
from kelek.tests.sim.tables.checker import (
    COUNTERS,
    LOADED,
    REGISTERS,
    SCRATCH,
    SESSIONS,
    STREAMS,
    CountedCall,
    TableChecker,
)
from kelek.tests.sim.tables.node import ServerRouter
from kelek.tests.sim.tables.replay import session_value

TIMEOUT_MS = 1500
FOREVER_MS = 600_000
PIPELINED_MAX = 30
FILLING_MAX = 60
DEADLINES_MS = range(500, 1000, 25)  # Writes with deadlines so far apart do not share a pack.
SILENCE_MS = 200
KEYS = 2  # Registers at any time.
KEY_MS = 300  # How long a register is used: a long history takes long to check.
UNUSED = 20  # So many windows later no call on a key is under way.
KINDS = READ, READ, PUT, SWAP, COMPARE
WATCH_MS = 150
LOCK = b"lock"
IDLE_MS = 10_000
LARGE_BYTES = 1000

# Yields a request, and gets its answer, or None without one; or yields a pause in ms.
Script = Generator[Request | int, Answer | None, None]


# They are one entry each.
_WRITES = requests.Put | requests.Delete | requests.Transaction | requests.BulkLoad


class MachineClient(SimClient):
    """Runs the client machine over the network of the run."""

    def __init__(
        self,
        network: Network,
        checker: TableChecker,
        servers: Mapping[str, ServerRouter],
        number: int,
    ) -> None:
        super().__init__(network.simulation, f"t{number}")
        self.checker = checker
        self.random = self.simulation.random
        self.numbers = count(number * 1_000_000 + 1)  # Unique among all clients.
        urls = list(servers)
        self.random.shuffle(urls)
        setup = TableClientSetup(tuple(urls), silence_ms=SILENCE_MS, retry_ms=30)
        self.machine = TableClientMachine(setup)
        self.links = MachineLinks(ClientHost(network, servers, self, self.name, repeats=False))
        self._machine_id = b"cl%c" % number
        self._next_us = 0  # When it begins something.
        self.wake_after(0)

    def on_wake(self) -> None:
        now_ms = self.simulation.now_ms
        inbox, self.inbox = self.inbox, []
        for event in inbox:
            self.links.receive(self.machine, event, now_ms)
        self._advance(now_ms)
        self.links.carry_out(self.machine.ready(now_ms))
        due_ms = min((due for due in self._dues() if due is not None), default=None)
        if due_ms is not None:
            self.wake_after(max(0, due_ms * US_PER_MS - self.simulation.now_us))
        if not self.stopped:
            self.wake_after(max(100, self._next_us - self.simulation.now_us))

    @abstractmethod
    def _advance(self, now_ms: int) -> None:
        """Handles answers, and begins what is due."""

    def _dues(self) -> list[int | None]:
        return [self.machine.deadline_ms]

    def _send(self, request: Request, timeout_ms: int) -> Exchange:
        now_ms = self.simulation.now_ms
        seconds = UNIX_S + now_ms // 1000
        (reqid,) = make_reqids(seconds, self._machine_id, 1, [next(self.numbers)])
        return self.machine.add(Exchange(request, reqid, now_ms + timeout_ms))

    def _note_answer(self, exchange: Exchange) -> None:
        answer = exchange.answer
        if answer is None or answer.failed:
            self.simulation.counters["refused"] += 1
        elif isinstance(exchange.request, _WRITES) and exchange.request.flags & PARTSYNC:
            self.checker.written.add(exchange.reqid)


class TableClient(MachineClient):
    """A client that follows a script until it is stopped."""

    def __init__(
        self,
        network: Network,
        checker: TableChecker,
        servers: Mapping[str, ServerRouter],
        number: int,
        script: "Callable[[TableClient], Script]",
    ) -> None:
        super().__init__(network, checker, servers, number)
        self._exchange: Exchange | None = None
        self._script = script(self)
        self._started = False
        self.served = False  # By a probe.

    def _advance(self, now_ms: int) -> None:
        exchange, answer = self._exchange, None
        if exchange is not None:
            if exchange.done:
                answer = exchange.answer
                self._note_answer(exchange)
            elif now_ms >= exchange.deadline_ms:
                self.machine.drop(exchange)
                self.simulation.counters["no answer"] += 1
            else:
                return
            self._exchange = None
        elif self.stopped or self.simulation.now_us < self._next_us:
            return
        step = self._script.send(answer) if self._started else next(self._script)
        self._started = True
        if isinstance(step, int):
            self._next_us = self.simulation.now_us + step * US_PER_MS
        elif not self.stopped:
            self._exchange = self._send(step, TIMEOUT_MS)
            self._next_us = self.simulation.now_us + TIMEOUT_MS * US_PER_MS

    def _dues(self) -> list[int | None]:
        deadline_ms = None if self._exchange is None else self._exchange.deadline_ms
        return [*super()._dues(), deadline_ms]

    @property
    def done(self) -> bool:
        return self._exchange is None

    def status(self) -> str:
        return f"server={self.machine.server} request={self._exchange}"

    # What scripts use.

    @property
    def now(self) -> int:
        return self.simulation.now_us

    def rest(self) -> int:
        """A pause in ms."""
        return self.random.choice([0, 2, 30, 80])


class PipelineClient(MachineClient):
    """Writes growing numbers to a key of its own and reads them, many at a time, and gives none up.

    An old copy of a write never follows a newer write, through whichever servers both came. Each
    request is answered once the faults have ended.
    """

    pipelined_max = PIPELINED_MAX

    def __init__(
        self,
        network: Network,
        checker: TableChecker,
        servers: Mapping[str, ServerRouter],
        number: int,
    ) -> None:
        super().__init__(network, checker, servers, number)
        self._exchanges: dict[Exchange, int] = {}  # What was acknowledged when each was sent.
        self._acknowledged = 0

    def _advance(self, now_ms: int) -> None:
        for exchange in [each for each in self._exchanges if each.done]:
            self._on_done(exchange, self._exchanges.pop(exchange))
        if self.stopped or self.simulation.now_us < self._next_us:
            return
        self._next_us = self.simulation.now_us + self.random.choice([1, 20, 100]) * US_PER_MS
        for _ in range(self._burst()):
            if len(self._exchanges) < self.pipelined_max:
                key, number = self.name.encode(), b"%d" % next(self.numbers)
                request: Request = requests.Put(STREAMS, [key], [number], PARTSYNC, self._terms())
                if self.random.random() < 0.3:
                    request = requests.Read(STREAMS, [key])
                self._exchanges[self._send(request, FOREVER_MS)] = self._acknowledged

    def _burst(self) -> int:
        """The number of requests to send at once."""
        return self.random.randint(1, 3)

    def _terms(self) -> Extension:
        """Of a write."""
        return values.NO_EXTENSION

    def _on_done(self, exchange: Exchange, floor: int) -> None:
        self._note_answer(exchange)
        request, answer = exchange.request, exchange.answer
        if answer is None or answer.failed:
            return
        if isinstance(request, requests.Put):
            self._acknowledged = max(self._acknowledged, int(request.values[0]))
        else:
            (found,) = answers.VALUES.decode(answer)
            self.checker.expect(int(found or 0) >= floor, self.name, "reads", found, floor)

    @property
    def done(self) -> bool:
        return not self._exchanges

    def status(self) -> str:
        return f"server={self.machine.server} requests={len(self._exchanges)}"


class FillingClient(PipelineClient):
    """One that fills its server when it is told to: some of its writes find no room there."""

    pipelined_max = FILLING_MAX
    _fills = False

    def fill(self) -> None:
        """Sends all it may at once."""
        self._fills, self._next_us = True, self.simulation.now_us
        self.wake_after(0)

    def _burst(self) -> int:
        fills, self._fills = self._fills, False
        return FILLING_MAX if fills else super()._burst()

    def _terms(self) -> Extension:
        return Extension(deadline_ms=self.random.choice(DEADLINES_MS))


def _value(layout: AnswerLayout[Any], answer: Answer | None) -> Any:
    """The value in an answer; None: nothing is known."""
    return None if answer is None or answer.failed else layout.decode(answer)


def _encoded(number: int | None) -> bytes:
    """A value of a register. Some are larger than an entry may be."""
    return b"%0*d" % (LARGE_BYTES if (number or 0) % 7 == 0 else 1, number or 0)


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value)


# ---- scripts ----


def registers(client: TableClient) -> Script:
    """Gets, puts, deletes, swaps, compares and scans of a few keys that all clients use."""
    random, checker = client.random, client.checker
    seen: dict[bytes, int | None] = {}
    while True:
        window = client.simulation.now_ms // KEY_MS
        key = b"%06d/%d" % (window, random.randrange(KEYS))
        kind = random.choice(KINDS)
        value = None if kind == PUT and random.random() < 0.3 else next(client.numbers)
        call = Call(kind, client.now, NEVER, value, seen.get(key))
        if kind == READ and random.random() < 0.3:
            yield from _scan(client, b"%06d/" % window)
        elif random.random() < 0.05:
            yield requests.DeleteRange(REGISTERS, b"", b"%06d" % (window - UNUSED), PARTSYNC)
        elif random.random() < 0.05:
            answer = yield requests.Read(REGISTERS, [key], Extension(flags=values.STALE))
            found = _value(answers.VALUES, answer)
            if found is not None:
                checker.on_stale_read(REGISTERS, key, found[0])
        else:
            # The first read of several may find a row that later ones are answered from.
            for _ in range(random.choice([1, 3]) if kind == READ else 1):
                began = call._replace(began=client.now)
                ended, known = _ended(began, (yield _request_of(key, began)), client.now)
                checker.add_call(REGISTERS, key, ended)
                if known:
                    seen = {key: ended.result if kind in (READ, SWAP) else ended.value}
        yield client.rest()


def _request_of(key: bytes, call: Call) -> Request:
    encoded = _encoded(call.value)
    put: list[ops.Op] = [ops.Put(REGISTERS, [key], [encoded])]
    match call.kind:
        case "get":
            return requests.Read(REGISTERS, [key])
        case "put" if call.value is None:
            return requests.Delete(REGISTERS, [key], PARTSYNC)
        case "put":
            return requests.Put(REGISTERS, [key], [encoded], PARTSYNC)
        case "swap":
            steps: list[ops.Op] = [ops.Get(REGISTERS, [key]), *put]
            return requests.Transaction([], steps, [], PARTSYNC)
    holds = ops.Compare(REGISTERS, key, ops.ABSENT)
    if call.expected is not None:
        holds = ops.Compare(REGISTERS, key, ops.EQUAL, _encoded(call.expected))
    return requests.Transaction([holds], put, [], PARTSYNC)


def _ended(call: Call, answer: Answer | None, now: int) -> tuple[Call, bool]:
    """The call with its end, if that is known."""
    if answer is None or answer.failed:
        return call, False
    result: int | bool | None = None
    if call.kind == READ:
        result = _number(answers.VALUES.decode(answer)[0])
    elif call.kind in (SWAP, COMPARE):
        found = answers.TRANSACTION.decode(answer)
        result = found.succeeded if call.kind == COMPARE else _number(found.values[0])
    return call._replace(ended=now, result=result), True


def _scan(client: TableClient, prefix: bytes) -> Script:
    """Reads all registers at once."""
    began = client.now
    answer = yield requests.Scan(REGISTERS, None, prefix, prefix + b"\xff")
    found = _value(answers.SCAN, answer)
    if found is not None:
        pairs = dict(zip(found.keys, found.values, strict=True))
        for number in range(KEYS):
            key = prefix + b"%d" % number
            call = Call(READ, began, client.now, result=_number(pairs.get(key)))
            client.checker.add_call(REGISTERS, key, call)


def counters(client: TableClient) -> Script:
    """Increments of two numbers together, and reads of both."""
    keys = [b"one", b"other"]
    steps: list[ops.Op] = [ops.Increment(COUNTERS, [key], [b"1"]) for key in keys]
    while True:
        began, is_read = client.now, client.random.random() < 0.3
        if is_read:
            found = _value(answers.VALUES, (yield requests.Read(COUNTERS, keys)))
        else:
            answer = yield requests.Transaction([], steps, [], PARTSYNC)
            result = _value(answers.TRANSACTION, answer)
            found = None if result is None else result.values
        if found is not None:
            number, other = (int(value or 0) for value in found)
            client.checker.expect(number == other, "half of a transaction:", number, other)
            call = CountedCall(began, client.now, number, is_read)
            client.checker.add_number("increments", call)
        yield client.rest()


def sessions(client: TableClient) -> Script:
    """Sessions with keys under them, one of which is a lock; they are kept, ended or forgotten."""
    random = client.random
    while True:
        ttl_ms = random.choice([300, 600, 1200])
        opening = requests.Session(requests.SESSION_OPEN, ttl_ms=ttl_ms, flags=PARTSYNC)
        session = _value(answers.SESSION, (yield opening))
        if not session:
            yield client.rest()
            continue
        for _ in range(random.randint(2, 8)):
            number = next(client.numbers)
            value, bound = session_value(session, number), Extension(lease=session)
            match random.randrange(4):
                case 0:
                    key = b"%d" % random.randrange(5)
                    yield requests.Put(SESSIONS, [key], [value], PARTSYNC, bound)
                case 1:
                    ttl = Extension(ttl_ms=random.choice([100, 400]))
                    key, lived = b"ttl %d" % random.randrange(3), b"ttl %d" % number
                    yield requests.Put(SESSIONS, [key], [lived], PARTSYNC, ttl)
                case 2:
                    yield from _lock(client, value, bound)
                case _:
                    yield requests.Session(requests.SESSION_KEEP, session, flags=PARTSYNC)
            yield random.choice([5, 20, 80])
        if random.random() < 0.4:
            yield requests.Session(requests.SESSION_END, session, flags=PARTSYNC)


def _lock(client: TableClient, value: bytes, bound: Extension) -> Script:
    began = client.now
    is_free = [ops.Compare(SESSIONS, LOCK, ops.ABSENT)]
    put: list[ops.Op] = [ops.Put(SESSIONS, [LOCK], [value])]
    answer = yield requests.Transaction(is_free, put, [], PARTSYNC, bound)
    result = _value(answers.TRANSACTION, answer)
    if result is not None and result.succeeded:
        client.checker.add_number("tokens", CountedCall(began, client.now, result.token))


def bulk(client: TableClient) -> Script:
    """All other writes, and infos of all tables."""
    random = client.random
    while True:
        keys = [b"%d" % random.randrange(20) for _ in range(random.randint(1, 5))]
        found = [b"%d" % next(client.numbers) for _ in keys]
        put, delete = ops.Put(SCRATCH, keys, found), ops.Delete(SCRATCH, keys[:1])
        beside = ops.Put(SCRATCH + 2, keys, found)
        wanted: list[Request] = [
            requests.WriteTables([put, beside], FULLSYNC),
            requests.WriteTables([delete, beside, put], FULLSYNC),
            requests.DeleteLimited(SCRATCH, keys[0], 2, PARTSYNC),
            requests.DeleteRange(SCRATCH, min(keys), max(keys), PARTSYNC),
            requests.Put(SCRATCH, keys, found),  # It is acknowledged before it is done.
            requests.TruncateTable(SCRATCH),
            requests.OpenTable(SCRATCH),
            requests.TableInfo(content=True),
            requests.Count(SCRATCH),
        ]
        yield random.choice(wanted)
        yield client.rest()


def loads(client: TableClient) -> Script:
    """Loads a table again and again. The rows of a failed run do not count, and a reader finds the
    rows of one load, which is not older than the last acknowledged one."""
    random, least = client.random, 0
    keys = [b"%d" % key for key in range(6)]
    while True:
        number = next(client.numbers)
        for request in _load(number, keys, random.random() < 0.3):
            answer = yield request
            if answer is None or answer.failed:
                break
            if request.action == requests.LOAD_COMMIT:
                least = number
                client.simulation.counters["loads"] += 1
        found = _value(answers.VALUES, (yield requests.Read(LOADED, keys)))
        if found is not None:
            is_whole = len({*found}) == 1 and (found[0] is None or int(found[0]) <= number)
            client.checker.expect(is_whole, client.name, "finds a mix of loads", found)
            client.checker.expect(int(found[0] or 0) >= least, client.name, "lost a load", least)
        yield client.rest()


def _load(number: int, keys: list[bytes], fails: bool) -> list[requests.BulkLoad]:
    """The requests of a load."""
    load, value = b"%016d" % number, b"%d" % number

    def chunk(run: int, at: int, some: list[bytes], rows: bytes = value) -> requests.BulkLoad:
        data = encode_chunk(SortedRows(some, [rows] * len(some)))
        return requests.BulkLoad(
            LOADED, load, requests.LOAD_CHUNK, run, at, data=data, flags=PARTSYNC
        )

    def step(action: int, chunks: int = 0, run: int = 0) -> requests.BulkLoad:
        return requests.BulkLoad(
            LOADED, load, action, run, chunks=chunks, replaces=True, flags=PARTSYNC
        )

    asked = [chunk(1, 0, keys[:2]), chunk(1, 1, keys[2:4])]
    if fails:
        asked += [chunk(2, 0, keys[4:], b"-1"), step(requests.LOAD_DROP)][: 1 + number % 2]
        if number % 2:
            return asked
    asked += [step(requests.LOAD_BUILD, 2, 1), chunk(3, 0, keys[4:])]
    return [*asked, step(requests.LOAD_BUILD, 1, 3), step(requests.LOAD_COMMIT, 3)]


def probe(client: TableClient) -> Script:
    """Writes and reads once. The client is served when it has succeeded."""
    key, value = b"probe " + client.name.encode(), b"%d" % next(client.numbers)
    while not client.served:
        written = yield requests.Put(REGISTERS, [key], [value], PARTSYNC)
        if written is not None and not written.failed:
            found = _value(answers.VALUES, (yield requests.Read(REGISTERS, [key])))
            client.checker.expect(found in (None, [value]), client.name, "reads", found)
            client.served = found is not None
    while True:
        yield IDLE_MS


def watcher(table: int) -> Callable[[TableClient], Script]:
    return lambda client: _watch(client, table)


def _watch(client: TableClient, table: int) -> Script:
    """Watches a whole table; begins again when the entries are gone."""
    checker = client.checker
    index, pairs = 0, dict[bytes, bytes]()
    while True:
        waits = Extension(deadline_ms=WATCH_MS)
        answer = yield requests.Watch(table, b"", b"", index, waits)
        if answer is not None and answer.failed and answer.code == values.GONE:
            client.simulation.counters["changes gone"] += 1
            index = 0
        found = _value(answers.WATCH, answer)
        if found is not None:
            following, changes = found
            if index == 0:
                pairs = checker.replay_of(table).pairs_at(table, following - 1)
            else:
                name, indexes = f"{client.name} of {table}", range(index, following)
                checker.check_watch(name, table, indexes, changes, pairs)
                client.simulation.counters["watched entries"] += len(changes)
            index = following
        elif answer is None or answer.failed:
            yield 20


SCRIPTS = (
    registers,
    registers,
    registers,
    counters,
    counters,
    sessions,
    sessions,
    bulk,
    watcher(SCRATCH),
    watcher(REGISTERS),
    watcher(SESSIONS),
)
LOAD_SCRIPTS = (loads, watcher(LOADED))
