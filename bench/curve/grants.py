"""What do grants cost the process that receives?

    python -m kelek.bench grants [--quick] [--rounds N] [-o json]

`curve` compares throughputs, whose spread on a shared machine is far above the goal of 3 %. Here
two ROUTERs of one process, both without CURVE, receive the same messages by turns: one compares
each with the grants of its sender, as an endpoint with keys does, the other only receives. Only the
CPU time of the thread that receives counts, so other programs disturb it little. In each round both
receive up to 2,048 messages, in a random order; the difference is within the round.

The goal is in the CPU that a cluster without keys needs for the same: of all processes on the node
that receives the messages, driven as in `curve`, in the same call.
"""

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import zmq

from kelek.bench.curve.clusters import GRANTS, KeyedCluster
from kelek.bench.curve.curve import BUSY, ROWS, WIDE, CurveCase, row_options
from kelek.bench.kelek_cluster import IDENT, NODES
from kelek.bench.load.loadgen import Generator, Load
from kelek.bench.machine import BenchError, cpu_s
from kelek.bench.question import Question, say
from kelek.bench.report import Section, number, summed_up
from kelek.native.net.guard import AllowedKeys, MessageGuard
from kelek.native.net.messages import Arena, Frames
from kelek.native.net.sockets import Drain, send_batch
from kelek.net.access.zap import ENDPOINT
from kelek.protocols.access.grants import Right, parse_grants
from kelek.protocols.access.guards import broker_guard, log_guard, row_of, tables_guard
from kelek.protocols.access.zap import NULL, AllowedKey, Keyring, ProtectedEndpoint, ZapHandler
from kelek.protocols.majordomo import codec
from kelek.protocols.zerodb.wire import requests
from kelek.protocols.zmqraft.wire.values import UPDATE_PACK

ROUNDS = 21
MESSAGES = 2048
PACK, BATCH, VALUE = 16, 100, bytes(64)
SECS, DRIVES = 0.6, 3
GOAL = 3.0  # Percent.
DOMAIN = "bench"


class GrantsCase(NamedTuple):
    """Messages of one kind.

    updates   rows, updates or calls of one message
    driven    the same load on a cluster
    """

    name: str
    guard: MessageGuard
    message: Sequence[bytes]
    updates: float
    driven: CurveCase
    is_bundled: bool = False


def cases() -> list[GrantsCase]:
    pack = [bytes(12), UPDATE_PACK, IDENT.encode(), b"", bytes(PACK * 96)]
    keys = [b"key %6d" % number for number in range(BATCH)]
    put = requests.encode_request(requests.Put(1, keys, [VALUE] * BATCH))
    call = codec.encode(codec.Request(b"echo", b"0123456789ab", [VALUE], 1000, b"k" * 16))
    log = CurveCase("log", "zmqraft", BUSY._replace(pack=PACK), ("--ident", IDENT))
    rows = CurveCase("put", "zerodb", WIDE, row_options("put", BATCH, ROWS))
    plain, bundles = (CurveCase("call", "broker", Load(4, 25, bundles=it)) for it in (False, True))
    broker = broker_guard()
    return [
        GrantsCase("log in packs, an update", log_guard(), pack, PACK, log),
        GrantsCase("put of 100, a row", tables_guard(), put, BATCH, rows),
        GrantsCase("service, a call", broker, call, 0.5, plain),  # And the worker's answer.
        GrantsCase("service in bundles, a call", broker, call, 0.5, bundles, True),
    ]


class Receiver:
    """A ROUTER with a sender, and the CPU time of its drain."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", case: GrantsCase,
                 keys: AllowedKeys | None) -> None:  # fmt: skip
        self.router, self.sender = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        for socket in (self.router, self.sender):
            socket.hwm, socket.linger = 2 * MESSAGES, 0
        if keys is not None:
            self.router.zap_domain = DOMAIN.encode()
            self.router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self.router.bind("tcp://127.0.0.1:*")
        self.sender.connect(self.router.getsockopt_string(zmq.LAST_ENDPOINT))
        self.drain = Drain(
            self.router, message_bytes_max=1 << 20, keys=keys, opens_bundles=case.is_bundled,
            guard=case.guard if keys is not None else None,
        )  # fmt: skip
        self.case = case

    def receive(self) -> float:
        """The CPU time of all messages, in microseconds for each."""
        # Of few frames in all, as a process receives them in one wake.
        count = max(1, MESSAGES * 8 // (8 + len(self.case.message)))
        frames = Frames()
        for _ in range(count):
            frames.add(self.case.message)
        send_batch(self.sender, frames, "keep", self.case.is_bundled)
        received, took = 0, 0.0
        while received < count:
            if not self.router.poll(60_000):
                raise BenchError(f"{self.case.name}: {received} of {count} messages arrived")
            begun = time.thread_time()
            arena: Arena = self.drain.receive()
            took += time.thread_time() - begun
            received += arena.count
        return took * 1e6 / count


def receivers(
    context: "zmq.Context[zmq.Socket[bytes]]", case: GrantsCase
) -> tuple[Receiver, Receiver]:
    """With grants, and without."""
    keyring = Keyring()
    keyring.replace({NULL: AllowedKey("load", parse_grants(GRANTS))})
    handler = ZapHandler(keyring, {DOMAIN.encode(): ProtectedEndpoint(NULL, Right(~0), NULL)})
    with context.socket(zmq.ROUTER) as zap:
        zap.bind(ENDPOINT)
        made = Receiver(context, case, AllowedKeys(map(row_of, keyring.slots)))
        asked = zap.recv_multipart()
        zap.send_multipart([*asked[:2], *handler.answer(asked[2:])[0]])
        made.receive()
    other = Receiver(context, case, None)
    other.receive()
    return made, other


def measured(case: GrantsCase, rounds: int) -> list[float]:
    """The differences of the rounds, in microseconds for one message."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        both = receivers(context, case)
        found = []
        for _ in range(rounds):
            took = {it: it.receive() for it in random.sample(both, 2)}
            found.append(took[both[0]] - took[both[1]])
        return found
    finally:
        context.destroy(0)


def bases(directory: Path, driven: Sequence[CurveCase]) -> list[float]:
    """The CPU time of the receiving node for one update, row or call without keys."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster, generator = KeyedCluster(directory / "null", "null"), Generator(directory)
    found: list[list[float]] = [[] for _ in driven]
    try:
        cluster.start_fresh()
        cluster.wait_for_tables()
        cluster.start_workers(generator)
        for _ in range(DRIVES):
            for case, times in zip(driven, found, strict=True):
                node, target = NODES[0], cluster.target_at("broker", cluster.clients_url)
                if case.protocol != "broker":
                    node = cluster.leader()
                    at = NODES.index(node)
                    is_log = case.protocol == "zmqraft"
                    target = cluster.target if is_log else cluster.target_of(at, case.table)
                pids = cluster.node_pids(node)
                before = cpu_s(pids)
                load = case.load._replace(secs=SECS, warmup_s=0.2)
                done = generator.run([*target, *case.words], load)["done"]
                times.append((cpu_s(pids) - before) * 1e6 / done)
    finally:
        cluster.stop()
    return [statistics.median(times) for times in found]


def measure(directory: Path, rounds: int) -> Section:
    asked = cases()
    say("grants: a cluster without keys")
    cpu = bases(directory, [case.driven for case in asked])
    figures, rows = [], [["what", "CPU without keys, us", "grants of a message, us", "spread"]]
    for case, base in zip(asked, cpu, strict=True):
        say(f"grants: {case.name}")
        found = measured(case, rounds)
        shares = [us / case.updates / base * 100 for us in found]
        figures.append(summed_up(f"grants, {case.name}", shares, "%", GOAL))
        spread = f"{number(min(found))}-{number(max(found))}"
        rows.append([case.name, number(base), number(statistics.median(found)), spread])
    note = (
        f"Medians of {rounds} rounds of up to {MESSAGES} messages. The CPU without keys is of all "
        "processes on the node that receives, for one update, row or call."
    )
    return Section("What grants cost", figures, rows, note)


QUESTION = Question("grants", __doc__, measure, ROUNDS)
