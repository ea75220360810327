"""The engine alone, in a process of its own: what tables are measured against.

    python -m kelek.bench.tables.engine DIRECTORY

The same rows as the load generator's, the same batches, a local table's default options, through
the same package: what kelek adds is sockets, the protocol and a process more. A line on stdin
asks, a number on stdout answers:

    put SECONDS ROWS   atomic batches of BATCH rows, keys repeated after ROWS     -> rows/s
    get SECONDS ROWS   BATCH keys a call                                          -> rows/s
    scan SECONDS ROWS  passes over the whole table                                -> rows/s
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rocksdict import Rdict, WriteBatch

from kelek.bench.machine import BenchError
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.storage.engine.families import Resources, family_options

BATCH = 100
VALUE_BYTES = 64
SHARED_BYTES = 256 << 20  # The topology's defaults.
# As in loadgen_zerodb.c: consecutive rows are not neighbours in the table.
FACTOR = 0x9E3779B97F4A7C15
END_S = 30.0


def key(number: int) -> bytes:
    return b"%016x" % (number * FACTOR & (1 << 64) - 1)


def put(db: Rdict, keys: list[bytes], value: bytes) -> int:
    batch = WriteBatch(raw_mode=True)
    for one in keys:
        batch.put(one, value)
    db.write(batch)
    return len(keys)


def get(db: Rdict, keys: list[bytes], value: bytes) -> int:
    found = db.get([*keys])  # The binding requires this type.
    assert isinstance(found, list)
    return len(found)


def scan(db: Rdict, keys: list[bytes], value: bytes) -> int:
    return sum(1 for _ in db.items())


def rate(work: Callable[[Rdict, list[bytes], bytes], int], db: Rdict, ask: list[str]) -> float:
    """Returns rows per second. Batches are made beforehand, as the load generator's cost does not
    count either."""
    seconds, rows = float(ask[0]), int(ask[1])
    keys = [key(number) for number in range(rows)]
    batches = [keys[at : at + BATCH] for at in range(0, rows, BATCH)]
    value = (b"v" + b"\x5a") * (VALUE_BYTES // 2)
    done, calls, started = 0, 0, time.monotonic()
    while time.monotonic() < started + seconds:
        done += work(db, batches[calls % len(batches)], value)
        calls += 1
    return done / (time.monotonic() - started)


def main(directory: str) -> None:
    shared = Resources.of(SHARED_BYTES, SHARED_BYTES)
    options, _ = family_options(TableOptions(), shared, replicated=False)
    db = Rdict(directory, options)
    works = {"put": put, "get": get, "scan": scan}
    for line in sys.stdin:
        name, *ask = line.split()
        print(rate(works[name], db, ask), flush=True)
    db.close()


class Engine:
    """The engine's process."""

    name = "engine"

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        command = [sys.executable, "-P", "-m", "kelek.bench.tables.engine", str(directory / "db")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def rate(self, work: str, seconds: float, rows: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{work} {seconds} {rows}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise BenchError("the bare engine has ended")
        return float(line)

    def stop(self) -> None:
        self.process.communicate(timeout=END_S)


if __name__ == "__main__":
    main(sys.argv[1])
