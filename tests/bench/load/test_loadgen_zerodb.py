"""The load generator against tables: a ZeroDB played by hand, and Redis if it is there."""

import itertools
import shutil
import threading
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from kelek.bench.load import loadgen
from kelek.bench.load.loadgen import Generator, Load
from kelek.bench.tables.engine import Engine
from kelek.bench.tables.peers import Redis

POLL_MS = 20
JOIN_S = 60
TABLE = 7
PUT, SCAN = 0x20, 0x13
PACKED = b"kLK\1\2"  # Our extension, with the flag for a packed answer.


def column(items: list[bytes]) -> list[bytes]:
    ends = itertools.accumulate(map(len, items), initial=0)
    return [b"".join(end.to_bytes(4, "little") for end in ends), b"".join(items)]


def interleaved(columns: list[bytes]) -> list[bytes]:
    """The keys of one column, or the keys and values of two."""
    lists = []
    for offsets, items in zip(columns[::2], columns[1::2], strict=True):
        ends = [int.from_bytes(offsets[i : i + 4], "little") for i in range(0, len(offsets), 4)]
        lists.append([items[a:b] for a, b in itertools.pairwise(ends)])
    return [item for row in zip(*lists, strict=True) for item in row]


def packed(pairs: list[bytes], rows: dict[bytes, bytes]) -> list[bytes]:
    """Offsets, keys, offsets, values, and the key to go on from."""

    keys = pairs[::2]
    left = sorted(key for key in rows if keys and key > keys[-1])
    return [*column(keys), *column(pairs[1::2]), *left[:1]] + [b""] * (not left)


class LoadedServer(threading.Thread):
    """ZeroDB as far as the generator asks for it, over one table in memory."""

    def __init__(self, refuses: bool = False) -> None:
        super().__init__(daemon=True)
        self.refuses = refuses
        self.rows: dict[bytes, bytes] = {}
        self.tables: set[int] = set()
        self.reqids: list[bytes] = []  # Of requests in columns.
        self.stopped = threading.Event()
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.url = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"

    def run(self) -> None:
        while not self.stopped.is_set():
            if self.socket.poll(POLL_MS):
                client, header, table, *frames = self.socket.recv_multipart()
                assert header[:2] == b"\x31\x01"
                self.tables.add(int.from_bytes(table, "little"))
                if columns := PACKED in header and header[2] != SCAN:
                    self.reqids.append(header[-16:-4])
                    frames = interleaved(frames)
                answer = self.answer(header[2:4] if header[2] == PUT else header[2:3], frames)
                if columns and answer:
                    answer = [*column(answer), b"\1" * len(answer)]
                elif header[3:8] == PACKED and not columns:
                    answer = packed(answer, self.rows)
                code = b"\1" if self.refuses else b"\0"
                self.socket.send_multipart([client, header[:3] + code, *answer])
        self.socket.close()

    def answer(self, kind: bytes, frames: list[bytes]) -> list[bytes]:
        if self.refuses:
            return [b"no\0"]
        if kind == b"\x20\x01":
            self.rows.update(zip(frames[::2], frames[1::2], strict=True))
            return []
        if kind == b"\x10":
            return [self.rows.get(key, b"") for key in frames]
        assert kind[:1] == b"\x13"
        limit, start, end = frames
        assert end == b""
        keys = sorted(self.rows)
        first = bisect_left(keys, start)
        found = keys[first : first + int.from_bytes(limit, "little")]
        return [frame for key in found for frame in (key, self.rows[key])]


@pytest.fixture
def server() -> Iterator[LoadedServer]:
    server = LoadedServer()
    yield server
    server.stopped.set()
    server.join(JOIN_S)


def drive(generator: Generator, server: LoadedServer, load: Load, **more: Any) -> dict[str, Any]:
    if not server.is_alive():
        server.start()
    target = ["--protocol", "zerodb", "--libzmq", loadgen.libzmq(), "--urls", server.url]
    words = [word for name, value in more.items() for word in (f"--{name}", str(value))]
    return generator.run([*target, "--table", str(TABLE), *words], load)


def assert_sound(result: dict[str, Any], rows: int) -> None:
    names = ("done", "sent", "rejected", "refused", "malformed", "stray")
    assert [result[name] for name in names] == [rows, rows, 0, 0, 0, 0]


def test_puts_write_every_key_and_reads_ask_for_them(
    generator: Generator, server: LoadedServer
) -> None:
    load = Load(2, 4, size=10, updates=300)
    assert_sound(drive(generator, server, load, op="put", batch=10, keys=300), 300)
    assert server.tables == {TABLE}
    assert len(server.rows) == 300
    assert {(len(key), len(value)) for key, value in server.rows.items()} == {(16, 10)}
    asked = drive(generator, server, load, op="get", batch=10, keys=300)
    assert_sound(asked, 300)
    assert_sound(drive(generator, server, Load(1, 1, updates=7), op="put", keys=7), 7)


def test_columns(generator: Generator, server: LoadedServer) -> None:
    load = Load(2, 4, size=10, updates=300)
    for op in ("put", "get"):
        result = drive(generator, server, load, op=op, batch=10, keys=300, columns=1)
        assert_sound(result, 300)
    assert {(len(key), len(value)) for key, value in server.rows.items()} == {(16, 10)}
    assert (len(server.rows), len(server.reqids), len(set(server.reqids))) == (300, 60, 60)


@pytest.mark.parametrize("op", ["scan", "packed"])
def test_scans_pass_over_each_row_in_turn(
    generator: Generator, server: LoadedServer, op: str
) -> None:
    """The last chunk of a round is short: those rows count, and no others."""
    drive(generator, server, Load(1, 1, size=3, updates=250), op="put", batch=10, keys=250)
    result = drive(generator, server, Load(1, 1, updates=500), op=op, batch=100)
    assert_sound(result, 500)


def test_many_tables(generator: Generator, server: LoadedServer) -> None:
    load = Load(2, 4, updates=300)
    assert_sound(drive(generator, server, load, op="put", batch=10, tables=7), 300)
    assert server.tables == set(range(TABLE, TABLE + 7))


def test_a_refusal_voids_a_run(generator: Generator, server: LoadedServer) -> None:
    server.refuses = True
    result = drive(generator, server, Load(1, 1, updates=5), op="put")
    assert (result["done"], result["rejected"]) == (0, 5)


def test_the_bare_engine(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "engine")
    try:
        for work in ("put", "get", "scan"):
            assert engine.rate(work, 0.05, 1000) > 0
    finally:
        engine.stop()


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_redis(generator: Generator, tmp_path: Path) -> None:
    redis = Redis(tmp_path / "redis")
    redis.start_fresh()
    try:
        load = Load(2, 4, size=10, updates=300)
        for more in (("--op", "put", "--batch", "10"), ("--op", "put"), ("--op", "get")):
            result = generator.run([*redis.target, "--keys", "300", *more], load)
            assert_sound(result, 300)
        waits = generator.run([*redis.target, "--op", "put", "--wait", "1"], load)
        assert_sound(waits, 300)
        never = generator.run(
            [*redis.target, "--op", "put", "--wait", "2"], load._replace(updates=1)
        )
        assert never["refused"] == 1
    finally:
        redis.stop()
