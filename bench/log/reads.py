"""How many linearizable reads a second are possible, and how long does a single one take?

    python -m kelek.bench reads [--quick] [--rounds N] [-o json]

The load generator (loadgen.c) asks the leader of three nodes for the read index, with 256
unanswered reads on 8 connections, and with one. The leader answers when its state machine has
applied the index. The floor, in the same round, is one hop: a process with a ROUTER that answers
the same frames at once, with the same C. So the difference is the cost of Raft: a round of
heartbeats.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import zmq

from kelek.bench.kelek_cluster import IDENT, Kelek
from kelek.bench.load.loadgen import Generator, Load, libzmq
from kelek.bench.machine import BenchError, ends_with_us
from kelek.bench.ports import free_ports
from kelek.bench.question import ROW_HEAD, Question, row
from kelek.bench.report import Section, ratios, summed_up
from kelek.native.log.reads import WAIT_APPLIED, Reads, ReadView
from kelek.native.net.messages import Frames
from kelek.native.net.sockets import Drain, send_batch
from kelek.protocols.zmqraft.wire.client_codec import (
    CONFIG_ANSWER,
    ConfigAnswer,
    RequestConfig,
    decode_client_request,
)

ROUNDS = 7
MANY = Load(clients=8, window=32, reads=True)
ALONE = Load(clients=1, window=1, reads=True)
GOAL_S = 80_000
END_S = 10


def floor(url: str) -> None:
    """Answers every read at once as a leader, until its input ends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.bind(url)
    drain = Drain(router, message_bytes_max=1 << 20)
    out, reads = Frames(), Reads(IDENT.encode())
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(sys.stdin, zmq.POLLIN)
    while not any(source == sys.stdin.fileno() for source, _ in poller.poll()):
        arena = drain.receive()
        view = ReadView(True, b"\xc0", 1, 0)
        _, others = reads.receive(arena, range(arena.count), view, out)
        reads.answer(WAIT_APPLIED, 1, 1, out)
        for number in others:
            routing_id, *frames = arena.message(number)
            _, request = decode_client_request(frames, IDENT.encode())
            assert isinstance(request, RequestConfig)
            config = ConfigAnswer(True, "floor", (("floor", url),))
            out.add([routing_id, *CONFIG_ANSWER.encode(config, request.reqid)])
        send_batch(router, out)
    router.close()
    context.term()


class ReadsFloor:
    """The floor in a process of its own."""

    def __init__(self) -> None:
        (port,) = free_ports(1)
        self.url = f"tcp://127.0.0.1:{port}"
        command = [sys.executable, "-P", "-m", "kelek.bench.log.reads", self.url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=ends_with_us())

    @property
    def target(self) -> list[str]:
        return ["--libzmq", libzmq(), "--ident", IDENT, "--urls", self.url]

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(END_S)


def run(generator: Generator, target: list[str], load: Load) -> dict[str, Any]:
    result = generator.run(target, load)
    if not result["measured"] or result["malformed"]:
        raise BenchError(f"reads went wrong: {result}")
    return result


def measure(directory: Path, rounds: int) -> Section:
    cluster, one_hop = Kelek(directory), ReadsFloor()
    found: dict[str, list[dict[str, Any]]] = {"many": [], "alone": [], "floor": [], "hop": []}
    try:
        cluster.start_fresh()
        generator = Generator(directory)
        cluster.leader()
        target = [*cluster.target, "--ident", IDENT]
        for _ in range(rounds):
            found["many"].append(run(generator, target, MANY))
            found["floor"].append(run(generator, one_hop.target, MANY))
            found["alone"].append(run(generator, target, ALONE))
            found["hop"].append(run(generator, one_hop.target, ALONE))
    finally:
        one_hop.stop()
        cluster.stop()

    def values(name: str, key: str) -> list[float]:
        return [result[key] for result in found[name]]

    many = values("many", "updates_s")
    figures = [summed_up("linearizable reads, 256 outstanding", many, "/s", GOAL_S, up=True)]
    rows = [
        ROW_HEAD,
        row("reads, 256 outstanding", many, "/s"),
        row("... p50", values("many", "p50_us"), "us"),
        row("floor: one hop, 256 outstanding", values("floor", "updates_s"), "/s"),
        row("reads / floor", ratios(found["many"], found["floor"], "updates_s"), "", ".2f"),
        row("a read alone, p50", values("alone", "p50_us"), "us"),
        row("floor: one hop alone, p50", values("hop", "p50_us"), "us"),
        row("read / floor", ratios(found["alone"], found["hop"], "p50_us"), "", ".2f"),
    ]
    note = "The log has the leader's own entry alone: nothing is written meanwhile."
    return Section("Linearizable reads", figures, rows, note)


QUESTION = Question("reads", __doc__, measure, ROUNDS)

if __name__ == "__main__":
    floor(sys.argv[1])
