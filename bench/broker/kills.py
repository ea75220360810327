"""Kills 200 of 210 workers during 10,000 requests, and checks that each is answered once.

Every worker is a process. A request that is lost with its worker waits until the broker misses the
worker: after so many heartbeat intervals, of which the specification says "usually 3-5".
"""

import time
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import zmq

from kelek.bench.load.loadgen import Load, finish
from kelek.bench.machine import BenchError

if TYPE_CHECKING:
    from kelek.bench.broker.broker import Between

HOLD_MS = 20  # Time of a worker for one request; most workers have one when they are killed.
KILL_MS = 10  # Time between two kills.
START_S = 60.0


class Scale(NamedTuple):
    """Size of the test."""

    requests: int = 10_000
    workers: int = 210
    killed: int = 200


SCALE = Scale()


class Kills(NamedTuple):
    """Result of the test."""

    once: int  # Requests with exactly one FINAL.
    resent: int
    wait_s: float  # Longest time of a request.
    # The same, in multiples of the time after which the broker drops a silent worker.
    wait_of_expiry: float


def kills(between: "Between", scale: Scale = SCALE) -> Kills:
    """Raises BenchError."""
    load = Load(clients=4, window=25, updates=scale.requests, give_up_s=60)
    control = between.context.socket(zmq.ROUTER)
    control.bind(f"ipc://{between.directory}/control")
    rng = Random(1)
    try:
        between.start()
        workers = [between.add_workers(1, 1, HOLD_MS) for _ in range(scale.workers)]
        wait_for(control, "workers", scale.workers)
        clients = between.start_load(load)
        for victim in rng.sample(workers, scale.killed):
            time.sleep(KILL_MS / 1e3)
            victim.kill()
        result = finish(clients, load)
        seen = wait_for(control, "finals", scale.requests)
    finally:
        control.close(0)
        between.stop()
    expiry_s = between.settings.heartbeat_interval_ms * between.settings.liveness / 1e3
    wait_s = result["longest_us"] / 1e6
    twice = result["stray"] + result["rejected"] + result["malformed"]
    return Kills(result["done"] - twice, seen["resent"], wait_s, wait_s / expiry_s)


def wait_for(control: "zmq.Socket[bytes]", key: str, count: int) -> dict[str, Any]:
    """Waits until a number that the broker reports to its supervisor is large enough."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if control.poll(1000):
            _, kind, *rest = control.recv_multipart()
            if kind == b"status" and (seen := msgpack.unpackb(rest[0]))[key] >= count:
                return dict(seen)
    raise BenchError(f"the broker does not come to {count} {key}")
