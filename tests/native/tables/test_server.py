"""The inner loop of a table server over real sockets.

Its steps have their twins in test_plain.py and test_channels.py. Here each client gets the answer
to its request, whatever is left to Python.
"""

import errno
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from kelek.native.broker.budget import Budget
from kelek.native.broker.server import ServedRouter
from kelek.native.latency import Latency
from kelek.native.log.lease import SharedLease
from kelek.native.net.messages import Arena, Frames
from kelek.native.net.poller import Poller
from kelek.native.net.sockets import Drain, DrainedSocket
from kelek.native.tables.channels import ReadChannels
from kelek.native.tables.gets import AnswerPlace, Gets
from kelek.native.tables.plain import LATE_MS, PlainWrites
from kelek.native.tables.rounds import ReadRounds
from kelek.native.tables.row_cache import BYTES_MIN, RowCache, RowReaders
from kelek.native.tables.server import Left, TableResult, TableServer
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.requests import (
    Put,
    Read,
    ServerInfo,
    Transaction,
    encode_request,
)
from kelek.protocols.zerodb.wire.values import PARTSYNC, WITH_INDEX, Extension
from kelek.protocols.zerodb.wire.worker_pipe import ANSWER_TAG, PIPE_HEADER, RESULT_QUERY
from kelek.protocols.zmqraft.wire.extensions import PACK_ACCEPTED, PACK_ANSWER, PackAnswer
from kelek.tests.native.broker.bundle_twin import encode, opened

Socket = zmq.Socket[bytes]
TABLE, WORKERS, EPOCH = 4, 2, 77
WAIT_MS, DEADLINE_S = 5, 60
NUMBERS = itertools.count()
FAR_MS = 1 << 60


class PlayedServer:
    """A table server around the loop; the test plays clients, leader and workers."""

    def __init__(self, context: "zmq.Context[Socket]", folder: Path, **limits: Any) -> None:
        self.context, self.number = context, next(NUMBERS)
        self.sockets: list[Socket] = []
        self.poller = Poller()
        self.writes = PlainWrites(
            b"cluster", Latency(), maker=b"maker", entry_bytes_max=1 << 20, workers=WORKERS,
            timeout_ms=5000,
        )  # fmt: skip
        self.writes.set_tables([TABLE, TABLE + 1])
        self.writes.set_applied_max(1 << 40)
        self.channels = ReadChannels(WORKERS, 1)
        for channel in self.channels.all:
            channel.open(EPOCH)
        self.lease = SharedLease(str(folder / "lease"))
        self.lease.write(FAR_MS, 9)
        router = self.bound(zmq.ROUTER, "clients")
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        drain = Drain(router, **{"message_bytes_max": 1 << 20, **limits})
        self.router = ServedRouter(router, drain, Budget(1 << 30))
        done = self.bound(zmq.PULL, "done")
        drain = Drain(done, message_bytes_max=1 << 20, opens_bundles=True)
        self.done = DrainedSocket(done, drain)
        dealer = self.socket(zmq.DEALER)
        self.leader = DrainedSocket(dealer, Drain(dealer, message_bytes_max=1 << 20))
        self.pushes = [self.socket(zmq.PUSH) for _ in range(WORKERS)]
        for source in (router, done, dealer):
            self.poller.register(source, zmq.POLLIN, drained=True)
        self.rows = RowReaders(WORKERS)
        self.rounds = ReadRounds(b"cluster", b"maker")
        self.server = TableServer(
            *(self.poller, self.writes, self.channels, self.rounds, self.rows),
            *(self.router, self.done, self.pushes, 1000),
        )
        self.clients: dict[bytes, Socket] = {}
        self.answer_end = self.connected(zmq.PUSH, "done")  # Of the workers.

    def socket(self, kind: int) -> Socket:
        self.sockets.append(self.context.socket(kind))
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            self.sockets[-1].setsockopt(option, 0)
        return self.sockets[-1]

    def close(self) -> None:
        self.lease.close()
        for socket in self.sockets:
            socket.close(0)

    def bound(self, kind: int, name: str) -> Socket:
        socket = self.socket(kind)
        socket.bind(f"inproc://{name}-{self.number}")
        return socket

    def connected(self, kind: int, name: str) -> Socket:
        socket = self.socket(kind)
        socket.connect(f"inproc://{name}-{self.number}")
        return socket

    def add_peers(self) -> tuple[Socket, list[Socket]]:
        """The leader, and the workers' ends for requests."""
        leader = self.bound(zmq.ROUTER, "leader")
        self.leader.socket.connect(f"inproc://leader-{self.number}")
        workers = []
        for number, push in enumerate(self.pushes):
            workers.append(self.bound(zmq.PULL, f"worker{number}"))
            push.connect(f"inproc://worker{number}-{self.number}")
        return leader, workers

    def link(self, name: str) -> DrainedSocket:
        """A connection to one of its own sockets."""
        dealer = self.socket(zmq.DEALER)
        dealer.connect(f"inproc://{name}-{self.number}")
        self.poller.register(dealer, zmq.POLLIN, drained=True)
        return DrainedSocket(dealer, Drain(dealer, message_bytes_max=1 << 20))

    def keep_rows(self, request: Read, values: list[bytes | None], applied: int = 9) -> None:
        """As the worker of the request's table does when it answers it."""
        memory, number = bytearray(BYTES_MIN), request.table % WORKERS
        rows, place = RowCache(memory, "", 1), AnswerPlace(number, EPOCH)
        head = PIPE_HEADER.pack(0, 0, 0, EPOCH, 0, 1)
        arena = Arena.from_messages([[head, b"route", *encode_request(request)]])
        gets = Gets(arena, len(request.keys))
        assert gets.read(place, 0)
        gets.answer(values, place, Frames(), rows)
        rows.apply(applied)
        self.rows.map_memory = lambda _: memory
        self.rows.open(number, "")

    def client(self, name: bytes) -> Socket:
        if name not in self.clients:
            socket = self.socket(zmq.DEALER)
            socket.setsockopt(zmq.ROUTING_ID, name)
            socket.connect(f"inproc://clients-{self.number}")
            self.clients[name] = socket
        return self.clients[name]

    def wait(self, **changed: Any) -> TableResult:
        asked: dict[str, Any] = {
            "leader": self.leader,
            "index": None,
            "lease": self.lease,
            "passes_done": True,
        }
        asked |= changed
        result = self.server.wait(WAIT_MS, **asked)
        assert result is not None
        return result

    def wait_for(self, left: Left, **changed: Any) -> TableResult:
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            result = self.wait(**changed)
            if result.left:
                assert result.left == left
                return result
        raise AssertionError(f"{left!r} was never left")


@pytest.fixture
def node(context: "zmq.Context[Socket]", tmp_path: Path) -> Iterator[PlayedServer]:
    made = PlayedServer(context, tmp_path)
    yield made
    made.close()


def put(number: int) -> list[bytes]:
    extension = Extension(WITH_INDEX, reqid=b"%012d" % number)
    return encode_request(Put(TABLE, [b"%d" % number], [b"value"], PARTSYNC, extension))


def transact(number: int) -> list[bytes]:
    table, key = TABLE + number % WORKERS, b"%d" % number
    extension = Extension(WITH_INDEX, reqid=b"%012d" % number)
    steps: list[ops.Op] = [ops.Put(table, [key], [b"value"])]
    asked = Transaction([ops.Compare(table, key, ops.ABSENT)], steps, [], PARTSYNC, extension)
    return encode_request(asked)


def read(number: int) -> Read:
    return Read(TABLE + number % WORKERS, [b"%d" % number])


def get(number: int) -> list[bytes]:
    return encode_request(read(number))


OTHER = encode_request(ServerInfo())
MAKERS = {"put": put, "transact": transact, "get": get}
HEADS = (b"\x31\1\x20", b"\x31\1\x25")  # Of the answers to the first two.


def committed(pack: list[bytes], index: int) -> list[bytes]:
    """The leader's answer to [route][reqid][..], whose pack has one write."""
    answer = PackAnswer(PACK_ACCEPTED, ((pack[-1].count(b"value"), index),))
    return [pack[0], *PACK_ANSWER.encode(answer, pack[1])]


def answered(number: int, request: list[bytes], place: int) -> list[bytes]:
    """A worker's answer to [header][route][header][table][key], or to a question for a result:
    [header][route][reqid][header]."""
    head = PIPE_HEADER.unpack(request[0])
    if head[0] == RESULT_QUERY:
        tag = ANSWER_TAG.pack(number, 0, EPOCH, place, head[5])
        return [tag, request[1], request[3], b"result of " + request[2]]
    return [ANSWER_TAG.pack(number, 0, EPOCH, place, head[5]), request[1], b"found", request[4]]


def requests_of(worker: Socket) -> list[list[bytes]]:
    """What has arrived, in bundles."""
    bundles = []
    while worker.poll(0):
        bundles.append(worker.recv_multipart())
    return opened(bundles)


def check_answers(node: PlayedServer, asked: dict[bytes, list[str]], index: int) -> None:
    """Each client has one answer for each request. asked: by client, in order; index: the last"""
    got: dict[bytes, list[list[bytes]]] = {}
    for name, client in node.clients.items():
        while client.poll(0):
            got.setdefault(name, []).append(client.recv_multipart())
    assert {name: len(each) for name, each in got.items()} == {
        name: len(each) for name, each in asked.items()
    }
    indexes = []
    for name, requests in asked.items():
        wanted = [each.split() for each in requests]
        writes = [frames for frames in got[name] if frames[0][:3] in HEADS]
        by_c = [number for kind, number in wanted if kind in ("put", "transact")]
        assert len(writes) <= len(by_c)
        indexes += [int.from_bytes(frames[0][-8:], "little") for frames in writes]
        for head, *result in writes:
            reqid, kind = head[-20:-8], "transact" if result else "put"
            assert [kind, b"%d" % int(reqid)] in [[each, at.encode()] for each, at in wanted]
            assert result in ([], [b"result of " + reqid])
        for frames in got[name]:
            if frames[0] == b"found":
                assert ["get", frames[1].decode()] in wanted
    assert sorted(indexes) == list(range(1, index + 1))


@pytest.mark.parametrize("seed", range(3))
def test_each_request_has_its_answer(node: PlayedServer, seed: int) -> None:
    rng = random.Random(seed)
    leader, workers = node.add_peers()
    asked: dict[bytes, list[str]] = {}  # By client: what it has asked, in order.
    others, index, questions, seen = 0, 0, 0, set[str]()
    places: dict[tuple[int, int], int] = {}
    packs: list[list[bytes]] = []
    reads: list[tuple[int, list[bytes], int]] = []
    for number in range(400):
        name = b"client%d" % rng.randrange(5)
        kind = rng.choice(["put", "transact", "get", "get", "get", "other"])
        if kind == "other" and rng.random() < 0.9:
            kind = "put"
        client = node.client(name)
        client.send_multipart(MAKERS.get(kind, lambda _: OTHER)(number))
        asked.setdefault(name, []).append(f"{kind} {number}")
        if rng.random() < 0.4 and number < 399:
            continue
        until = time.monotonic() + DEADLINE_S
        while True:
            result = node.wait()
            assert time.monotonic() < until
            assert result.left in (0, Left.CLIENTS), result.left
            seen.add(str(Left(result.left)))
            if result.left & Left.CLIENTS:  # Python would do all of it.
                for route, *rest in node.router.drain.arena.messages():
                    others += rest == OTHER
                    node.router.socket.send_multipart([route, b"Python", *rest[-1:]])
                    node.poller.recheck(node.router.socket)
            while leader.poll(0):
                packs.append(leader.recv_multipart())
            for at, worker in enumerate(workers):
                for request in requests_of(worker):
                    asked_kind, *_, at_index, ticket = PIPE_HEADER.unpack(request[0])
                    place = places.get((at, ticket), 0)
                    places[at, ticket] = place + 1
                    if asked_kind == RESULT_QUERY:
                        questions += 1
                        assert 1 <= at_index <= index
                    else:
                        assert at_index == 9  # The lease's.
                    reads.append((at, request, place))
            if not (packs or reads) and not result.left:
                break
            if packs and rng.random() < 0.7:
                pack = packs.pop(0)
                leader.send_multipart(committed(pack, index + 1))
                index += pack[-1].count(b"value")
            done = []
            while reads and rng.random() < 0.7:
                done.append(answered(*reads.pop(rng.randrange(len(reads)))))
            # In a bundle, as workers send them, or one by one.
            for message in [[encode(done)]] if done and rng.random() < 0.7 else done:
                node.answer_end.send_multipart(message)
    check_answers(node, asked, index)
    assert seen == {str(Left(0)), str(Left.CLIENTS)}
    assert others
    assert questions > 20
    assert node.writes.taken == index
    assert sum(channel.taken for channel in node.channels.all) > 50


def test_a_silent_leader_is_left_to_the_caller(node: PlayedServer) -> None:
    leader, _ = node.add_peers()
    node.client(b"client").send_multipart(put(1))
    began = time.monotonic()
    node.wait_for(Left.LATE)
    assert time.monotonic() - began >= LATE_MS / 1000
    packs, _ = node.writes.take_back()
    assert [pack.sent for pack in packs] == [True]
    leader.send_multipart(committed(leader.recv_multipart(), 5))
    result = node.wait_for(Left.LEADER)  # C waits for it no longer.
    assert result.leader_position == 0
    assert node.leader.drain.arena.count == 1


def test_what_has_no_peer_is_left_to_the_caller(node: PlayedServer) -> None:
    client = node.client(b"client")
    client.send_multipart(put(1))
    node.wait_for(Left.PACK)
    packs, _ = node.writes.take_back()
    assert [pack.sent for pack in packs] == [False]
    for number in range(3):
        client.send_multipart(get(number))
    node.wait_for(Left.READS)
    taken = [channel.take_back() for channel in node.channels.all]
    assert [[(it.requests.count, it.sent) for it in each] for each in taken] == [
        [(2, 0)],
        [(1, 0)],
    ]
    assert not node.channels.fits(node.router.drain.arena)  # Until the caller opens it again.


def test_questions_without_a_worker_are_left_to_the_caller(node: PlayedServer) -> None:
    """One whose worker is not there, and one whose pipe takes nothing."""
    leader = node.bound(zmq.ROUTER, "leader")
    node.leader.socket.connect(f"inproc://leader-{node.number}")
    node.client(b"client").send_multipart(transact(0))
    node.wait()
    pack = leader.recv_multipart()
    node.channels.all[0].open(None)
    leader.send_multipart(committed(pack, 5))
    assert node.wait_for(Left.LEADER).leader_position == 0
    node.channels.all[0].open(EPOCH)
    leader.send_multipart(committed(pack, 5))
    node.wait_for(Left.READS)
    assert node.writes.is_empty
    ((requests, _, index, _, _, sent),) = node.channels.all[0].take_back()
    assert (index, sent) == (5, 0)
    ((head, route, reqid, _),) = requests.messages()
    assert (head[0], route, int(reqid)) == (RESULT_QUERY, b"client", 0)


def test_without_leader_or_lease_requests_are_left_to_the_caller(node: PlayedServer) -> None:
    node.add_peers()
    client = node.client(b"client")
    client.send_multipart(put(1))
    node.wait_for(Left.CLIENTS, leader=None)
    client.send_multipart(get(1))
    node.wait_for(Left.CLIENTS, lease=None)
    node.lease.write(0, 9)  # It has ended.
    client.send_multipart(get(1))
    node.wait_for(Left.CLIENTS)
    assert node.writes.is_empty


def test_reads_of_shared_rows_need_no_worker(node: PlayedServer) -> None:
    kept = Read(TABLE + 1, [b"1", b"3"])
    node.keep_rows(kept, [b"one", None])
    node.client(b"client").send_multipart(encode_request(kept))
    result = node.wait()
    assert result.left == 0
    assert node.client(b"client").recv_multipart() == [b"\x31\1\x10\0", b"one", b""]
    assert node.rows.answered == sum(channel.taken for channel in node.channels.all) == 1
    assert sum(channel.count for channel in node.channels.all) == 0


def index_asked(message: list[bytes]) -> list[bytes]:
    """Checks a question of the server at the leader; returns its route and id."""
    route, id_, *rest = message
    assert rest == [b"\x6b\x52", b"cluster", b"\1"]
    return [route, id_]


@pytest.mark.parametrize("shares", [True, False])
def test_without_a_lease_reads_ask_the_leader(node: PlayedServer, shares: bool) -> None:
    """All that arrive meanwhile together. Their rows or their workers answer them."""
    leader, workers = node.add_peers()
    index = node.leader
    if not shares:
        leader, index = node.bound(zmq.ROUTER, "index"), node.link("index")
    asked: dict[str, Any] = {"lease": None, "index": index}
    client = node.client(b"client")
    client.send_multipart(get(0))
    node.wait(**asked)
    question = index_asked(leader.recv_multipart())
    for number in range(1, 6):  # One alone has no earlier read at the worker.
        node.client(b"other" if number == 3 else b"client").send_multipart(get(number))
    while node.rounds.count < 6:
        node.wait(**asked)
    assert not leader.poll(0)
    assert [requests_of(worker) for worker in workers] == [[], []]
    assert node.rounds.count == 6
    leader.send_multipart([*question, b"\x6b\x52", b"\1", b""])  # Later.
    leader.send_multipart([*question, b"\x6b\x52", b"\1", (300).to_bytes(2, "little")])
    node.wait(**asked)
    ((head, _, *request),) = requests_of(workers[0])
    assert (request, PIPE_HEADER.unpack(head)[4]) == (get(0), 300)
    again = index_asked(leader.recv_multipart())
    assert again[1] != question[1]
    node.keep_rows(read(3), [b"of three"], applied=301)
    leader.send_multipart([*again, b"\x6b\x52", b"\1", (301).to_bytes(2, "little")])
    node.wait(**asked)
    assert node.rounds.is_empty
    assert [len(requests_of(worker)) for worker in workers] == [2, 2]
    assert node.client(b"other").recv_multipart()[1:] == [b"of three"]


def test_what_the_leader_says_otherwise_is_left_to_the_caller(node: PlayedServer) -> None:
    leader, index = node.bound(zmq.ROUTER, "index"), node.link("index")
    node.client(b"client").send_multipart(get(1))
    node.wait(lease=None, index=index)
    question = index_asked(leader.recv_multipart())
    for answer in ([b"\0", b""], [b"\1", bytes(7)], [b"\1", b"\xff" * 7], [b"\1", b"1", b""]):
        leader.send_multipart([*question, b"\x6b\x52", *answer])
        result = node.wait_for(Left.INDEX, lease=None, index=index)
        assert result.index_position == 0
        assert index.drain.arena.message(0)[2:] == answer
    assert node.wait_for(Left.LATE, lease=None, index=index)
    (reads,) = node.rounds.take_back()
    assert reads.messages() == [[b"client", *get(1)]]
    assert node.rounds.is_empty
    node.client(b"client").send_multipart(get(1))  # A lease, and no read that came before.
    node.wait(index=index)
    assert not leader.poll(0)


@pytest.mark.parametrize("kind", ["put", "get", "kept"])
def test_an_answer_to_a_client_that_is_gone_is_reported(node: PlayedServer, kind: str) -> None:
    leader, workers = node.add_peers()
    if kind != "kept":
        node.client(b"client").send_multipart(put(1) if kind == "put" else get(1))
        node.wait()
    else:
        node.keep_rows(read(1), [b"value"])
        node.client(b"client").send_multipart(get(1))
    node.clients[b"client"].close(0)
    until, is_gone = time.monotonic() + DEADLINE_S, False
    while not is_gone:  # Another thread closes it.
        assert time.monotonic() < until
        try:
            node.router.socket.send_multipart([b"client", b""], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            is_gone = error.errno == errno.EHOSTUNREACH
    if kind == "put":
        leader.send_multipart(committed(leader.recv_multipart(), 5))
        result = node.wait_for(Left.UNSENT)
    elif kind == "kept":
        result = node.wait_for(Left.CACHED)
    else:
        at = (TABLE + 1) % WORKERS
        node.answer_end.send_multipart(answered(at, requests_of(workers[at])[0], 0))
        result = node.wait_for(Left.FAILED)
    assert result.unsent is not None
    assert result.answers is not None
    assert (result.unsent.over, result.unsent.full, result.unsent.gone) == ([], [], [0])
    assert result.answers.message(0)[result.skip] == b"client"


def test_other_answers_of_workers_are_left_to_the_caller(node: PlayedServer) -> None:
    _, workers = node.add_peers()
    client, at = node.client(b"client"), (TABLE + 1) % WORKERS
    for passes_done, tag in ((False, None), (True, ANSWER_TAG.pack(at, 0, EPOCH, 0, 99))):
        client.send_multipart(get(1))
        node.wait()
        message = answered(at, requests_of(workers[at])[0], 0)
        node.answer_end.send_multipart([tag or message[0], *message[1:]])
        node.wait_for(Left.DONE, passes_done=passes_done)
        assert node.done.drain.arena.count == 1
    assert node.channels.all[at].count == 2


def test_bytes_of_answers_are_told_in_time(node: PlayedServer) -> None:
    _, workers = node.add_peers()
    client, at = node.client(b"client"), (TABLE + 1) % WORKERS
    client.send_multipart(get(1))
    node.wait()
    message = answered(at, requests_of(workers[at])[0], 0)
    began = time.monotonic()
    node.answer_end.send_multipart([*message, bytes(1000)])
    while not (size := node.channels.all[at].pop_bytes()):
        node.server.wait(60_000, node.leader, None, node.lease, True)
        assert time.monotonic() - began < DEADLINE_S
    assert size == sum(map(len, message)) + 1000


def test_a_large_message_is_left_until_its_arena_has_shrunk(
    context: "zmq.Context[Socket]", tmp_path: Path
) -> None:
    node = PlayedServer(context, tmp_path, arena_bytes=1 << 12, frames=64)
    node.add_peers()
    large = encode_request(Put(TABLE, [b"key"], [bytes(10_000)], PARTSYNC))
    node.client(b"client").send_multipart(large)
    result = node.wait()
    while not result.ready:
        result = node.wait()
    assert result.ready == [(node.router.socket, zmq.POLLIN)]
    assert node.router.drain.receive().count == 1
    assert node.router.drain.is_grown
    assert node.server.wait(WAIT_MS, node.leader, None, node.lease, True) is None
    node.close()


def test_a_flood_does_not_hold_the_caller(context: "zmq.Context[Socket]", tmp_path: Path) -> None:
    """It has other work when its time is over, although more has arrived."""
    node = PlayedServer(context, tmp_path, arena_bytes=1 << 12, frames=64)
    node.add_peers()
    count, until = 5000, time.monotonic() + DEADLINE_S
    for number in range(count):
        node.client(b"client").send_multipart(put(number))
    waits = 0
    while node.writes.taken < count:
        assert time.monotonic() < until
        result = node.server.wait(0, node.leader, None, node.lease, True)
        assert result is not None
        waits += 1
        if (node.router.socket, zmq.POLLIN) in result.ready:
            node.poller.recheck(node.router.socket)
        node.writes.take_back()
    assert waits > 50
    node.close()
