"""Builds and runs bench/load/loadgen.c: one closed loop for kelek and for the systems beside it.

A benchmark compiles it into its own directory when it needs it. It uses the shared library of
pyzmq, so it only needs a C compiler.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from kelek.bench.machine import BenchError, ends_with_us

HERE = Path(__file__).resolve().parent
DRIVERS = ("zmqraft", "etcd", "zerodb", "redis", "broker")
PARTS = ("", "_zmq", "_curve", "_zmtp", "_bare", *(f"_{name}" for name in DRIVERS))
SOURCES = [HERE / f"loadgen{part}.c" for part in PARTS]
FLAGS = ["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]
SLACK_S = 60.0  # A generator that exceeds its own time limits by so much is stuck.


class Load(NamedTuple):
    """A closed loop: `clients` connections with `window` unanswered updates each."""

    clients: int
    window: int
    size: int = 64
    secs: float = 2.0
    warmup_s: float = 0.5
    updates: int = 0  # Total number of updates, instead of a time.
    pack: int = 0  # Updates in one message of kelek's own form.
    reads: bool = False  # Linearizable reads instead of updates.
    give_up_s: float = 30.0
    hold_ms: int = 0  # Workers: time for which each holds a request.
    rate: int = 0  # Updates a second, an open loop with at most `window` unanswered.
    bundles: bool = False  # Broker, workers: messages in bundles, kelek's own form.

    def arguments(self) -> list[str]:
        return [
            *("--clients", str(self.clients), "--window", str(self.window)),
            *("--size", str(self.size), "--secs", str(self.secs), "--warmup", str(self.warmup_s)),
            *("--count", str(self.updates), "--pack", str(self.pack)),
            *("--reads", str(int(self.reads))),
            *("--give-up", str(self.give_up_s), "--hold-ms", str(self.hold_ms)),
            *("--bundles", str(int(self.bundles)), "--rate", str(self.rate)),
        ]


def libzmq() -> str:
    """The path of the libzmq that pyzmq has loaded."""
    assert zmq.zmq_version()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]  # The path may contain blanks.
        if "libzmq" in path:
            return path
    raise BenchError("pyzmq was built without a shared libzmq: install its wheel")


class Generator:
    """The compiled load generator."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "loadgen"
        command = [os.environ.get("CC", "cc"), *FLAGS, "-o", str(self.path), *map(str, SOURCES)]
        try:
            done = subprocess.run([*command, "-ldl"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise BenchError("no C compiler (cc): install gcc or set CC") from None
        if done.returncode:
            raise BenchError(f"the load generator does not compile:\n{done.stderr}")

    def start(self, target: list[str], load: Load) -> "subprocess.Popen[str]":
        """Starts the generator against a cluster (Cluster.target); finish() returns the result."""
        command = [str(self.path), *target, *load.arguments()]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=ends_with_us()
        )

    def run(self, target: list[str], load: Load) -> dict[str, Any]:
        return finish(self.start(target, load), load)


def finish(process: "subprocess.Popen[str]", load: Load) -> dict[str, Any]:
    """Returns a generator's counts (loadgen.c, report). Raises BenchError."""
    try:
        output, _ = process.communicate(timeout=load.secs + load.give_up_s + SLACK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise BenchError(f"the load generator is stuck: {load}") from None
    try:
        result: dict[str, Any] = json.loads(output)
    except ValueError:
        raise BenchError(f"the load generator ended with {process.returncode}") from None
    if "error" in result:
        raise BenchError(f"load generator: {result['error']}")
    return result
