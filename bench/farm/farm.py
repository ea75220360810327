"""How fast is a farm of three servers on loopback: requests, handshakes, a snapshot for a newcomer?

    python -m kelek.bench farm [--quick] [--rounds N] [-o json]

A request counts as answered once a majority has committed and synced it; entries have 64 bytes. In
the same round a floor does the same: three processes that write and sync the bytes of each request,
without Raft (farm/floor.py). Both run with TLS 1.3 and without. One client serves both, a Python
process that sends prepared bytes. Handshakes are TLS 1.3 without resumption, and HTTP Digest with a
known challenge. Each server has its own node and supervisor. The snapshot has 200 documents of 500
kB and goes to a server with an empty directory; the time is from AddServer until the newcomer is a
member.
"""

import importlib.util
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import kelek
from kelek.bench.farm.cluster import SERVERS, FarmCluster, node_of
from kelek.bench.farm.floor import ANSWER_BYTES, connect, contexts, received
from kelek.bench.machine import BenchError, ends_with_us
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Section, ratios, summed_up
from kelek.protocols.garlicfarm.wire.codec import encode_request
from kelek.protocols.garlicfarm.wire.handshake import ChallengeCache
from kelek.protocols.garlicfarm.wire.messages import (
    FarmLogEntry,
    MessageType,
    Request,
    ValueType,
)

ROUNDS = 7
SECONDS = 1.5
VALUE = bytes(64)
HANDSHAKES = 300
HANDSHAKES_AT_ONCE = 4
DOCUMENTS, DOCUMENT_BYTES = 200, 500_000
RETURNS = 3
MODES = "plain", "TLS"
Found = dict[str, list[float]]


class Cell(NamedTuple):
    """A load: number of connections, unanswered requests of each, entries of each request."""

    name: str
    connections: int
    outstanding: int
    entries: int

    @property
    def request(self) -> bytes:
        entry = FarmLogEntry(0, ValueType.APPLICATION, VALUE)
        return encode_request(Request(MessageType.CLIENT_REQUEST, entries=(entry,) * self.entries))


CELLS = (
    Cell("1 outstanding", 1, 1, 1),
    Cell("64 outstanding", 8, 8, 1),
    Cell("100 entries a request", 8, 1, 100),
)


def alone(sock: socket.socket, request: bytes) -> list[float]:
    """Returns the times of requests sent one after the other, in seconds."""
    sock.setblocking(True)
    times = []
    end = time.perf_counter() + SECONDS
    while (begun := time.perf_counter()) < end:
        sock.sendall(request)
        answer = b""
        while len(answer) < ANSWER_BYTES:
            data = sock.recv(ANSWER_BYTES - len(answer))
            if not data:
                raise BenchError("the connection has ended")
            answer += data
        if answer[-1] != 1:
            raise BenchError("a request was refused")
        times.append(time.perf_counter() - begun)
    return times


def together(socks: list[socket.socket], cell: Cell) -> float:
    """Returns requests answered per second."""
    poll, request = select.poll(), cell.request
    by_number = {sock.fileno(): sock for sock in socks}
    rests = dict.fromkeys(by_number, b"")
    for sock in socks:
        sock.setblocking(False)
        poll.register(sock, select.POLLIN)
        sock.send(request * cell.outstanding)
    begun, done, open_ = time.perf_counter(), 0, len(socks) * cell.outstanding
    end = begun + SECONDS
    took = SECONDS
    while open_:
        for number, _ in poll.poll(10_000):
            data = received(by_number[number])
            if data is None:
                raise BenchError("the connection has ended")
            data = rests[number] + data
            count = len(data) // ANSWER_BYTES
            if data[ANSWER_BYTES - 1 :: ANSWER_BYTES].count(1) != count:
                raise BenchError("a request was refused")
            rests[number] = data[count * ANSWER_BYTES :]
            done, open_ = done + count, open_ - count
            if count and time.perf_counter() < end:
                by_number[number].send(request * count)
                open_ += count
                took = time.perf_counter() - begun
    return done / max(took, SECONDS)


# ---- who is measured ----


class Ours:
    """Our three servers."""

    def __init__(self, directory: Path, tls: bool) -> None:
        self.farm = FarmCluster(directory, tls=tls)
        self.tls_folder = self.farm.tls_folder
        self.farm.prepare()
        self.farm.start()

    def connect(self, cell: Cell) -> list[socket.socket]:
        leader, challenges = self.farm.leader_id(), ChallengeCache()
        _, client = contexts(self.tls_folder)
        return [self.farm.dial(leader, client, challenges) for _ in range(cell.connections)]

    def handshakes(self) -> float:
        """Returns handshakes per second: TLS, and Digest with a known challenge."""
        leader = self.farm.leader_id()
        _, client = contexts(self.tls_folder)

        def some(count: int) -> None:
            challenges = ChallengeCache()
            for _ in range(count):
                self.farm.dial(leader, client, challenges).close()

        some(1)
        begun = time.perf_counter()
        with ThreadPoolExecutor(HANDSHAKES_AT_ONCE) as pool:
            list(pool.map(some, [HANDSHAKES // HANDSHAKES_AT_ONCE] * HANDSHAKES_AT_ONCE))
        return HANDSHAKES / (time.perf_counter() - begun)

    def close(self) -> None:
        self.farm.stop()


class FloorFarm:
    """Three processes of farm/floor.py for each size of a request."""

    def __init__(self, directory: Path, tls_folder: str) -> None:
        self._directory, self._tls = directory, tls_folder
        directory.mkdir(parents=True)
        self._running: list[subprocess.Popen[str]] = []
        self._ports: dict[int, int] = {}

    def _start(self, size: int, ports: str) -> int:
        path = self._directory / f"{len(self._running)}.log"
        command = [sys.executable, "-P", "-m", "kelek.bench.farm.floor"]
        started = subprocess.Popen(
            [*command, str(path), str(size), ports, self._tls],
            stdout=subprocess.PIPE, text=True, preexec_fn=ends_with_us(),
        )  # fmt: skip
        self._running.append(started)
        assert started.stdout is not None
        line = started.stdout.readline()
        if not line:
            raise BenchError("the floor has ended")
        return int(line)

    def connect(self, cell: Cell) -> list[socket.socket]:
        size = len(cell.request)
        if size not in self._ports:
            followers = [self._start(size, "") for _ in range(2)]
            self._ports[size] = self._start(size, ",".join(map(str, followers)))
        _, client = contexts(self._tls)
        return [connect(self._ports[size], client) for _ in range(cell.connections)]

    def close(self) -> None:
        for started in self._running:
            started.kill()
            started.communicate()


@contextmanager
def connected(system: Ours | FloorFarm, cell: Cell) -> Iterator[list[socket.socket]]:
    socks = system.connect(cell)
    try:
        yield socks
    finally:
        for sock in socks:
            sock.close()


def measure_cell(system: Ours | FloorFarm, cell: Cell) -> float:
    """Returns the median in milliseconds for one unanswered request, else entries per second."""
    with connected(system, cell) as socks:
        if cell.connections == 1:
            return statistics.median(alone(socks[0], cell.request)) * 1e3
        return together(socks, cell) * cell.entries


# ---- a newcomer ----


def fill(farm: FarmCluster) -> None:
    """Writes 100 MB of documents and makes a snapshot of them."""
    filling = b"x" * (DOCUMENT_BYTES - 60)
    with farm.client(SERVERS) as client:
        for number in range(1, DOCUMENTS + 1):
            said = b'{"cluster":"farm","date":%d,"id":%d,"x":"%s"}' % (number, number, filling)
            client.append(said)
        farm.wait_for(lambda: client.status()["first"] >= DOCUMENTS, "no snapshot")


def take_in(farm: FarmCluster, client: kelek.Farm) -> float:
    """Returns the seconds until server 2 is a member."""
    farm.start_server(2, is_new=True)
    begun = time.monotonic()
    client.add_server(2, f"tcp://127.0.0.1:{farm.ports[2]}")
    took = time.monotonic() - begun
    client.remove_server(2)
    farm.wipe(node_of(2))
    return took


def snapshots(directory: Path, tls: bool, rounds: int) -> list[float]:
    settings = f", initial_servers: [1], snapshot_entries: {DOCUMENTS}"
    settings += ", snapshot_trailing_entries: 0"
    farm = FarmCluster(directory, tls=tls, servers=2, settings=settings)
    farm.prepare()
    try:
        farm.start_server(1)
        farm.leader_id()
        fill(farm)
        with farm.client() as client:
            return [take_in(farm, client) for _ in range(min(rounds, RETURNS))]
    except kelek.FarmError as error:
        raise BenchError(f"{error}; {farm.last_words()}") from error
    finally:
        farm.stop()


# ---- the measurement ----


def measure(directory: Path, rounds: int) -> Section:
    found: Found = {}
    modes: tuple[str, ...] = MODES
    if importlib.util.find_spec("cryptography") is None:
        modes = MODES[:1]
        say("farm: without TLS: cryptography is missing (pip install 'kelek[bench]')")
    with ExitStack() as stack:
        systems: dict[str, Ours | FloorFarm] = {}
        for mode in modes:
            ours = Ours(directory / f"{mode} servers", tls=mode == "TLS")
            stack.callback(ours.close)
            floor = FloorFarm(directory / mode, ours.tls_folder)
            stack.callback(floor.close)
            systems |= {f"kelek, {mode}": ours, f"floor, {mode}": floor}
        for number in range(rounds):
            say(f"farm: round {number + 1} of {rounds}")
            for name, system in systems.items():
                for cell in CELLS:
                    found.setdefault(f"{name}, {cell.name}", []).append(measure_cell(system, cell))
                if isinstance(system, Ours):
                    found.setdefault(f"{name}, handshakes", []).append(system.handshakes())
    say("farm: a newcomer takes a snapshot")
    found["snapshot"] = snapshots(directory / "newcomer", modes is MODES, rounds)
    return _section(found, modes)


def _section(found: Found, modes: tuple[str, ...]) -> Section:
    one, many, packed = (cell.name for cell in CELLS)
    figures = [summed_up("1 outstanding, p50", found[f"kelek, plain, {one}"], "ms", 1.0)]
    if "TLS" in modes:
        tls = {what: found[f"kelek, TLS, {what}"] for what in (one, many, packed, "handshakes")}
        figures += [
            summed_up("1 outstanding, TLS, p50", tls[one], "ms", 1.3),
            summed_up("64 outstanding, TLS", tls[many], "/s", 10_000, up=True),
            summed_up("100 entries a request, TLS", tls[packed], "/s", 60_000, up=True),
            summed_up("handshakes, TLS", tls["handshakes"], "/s", 500, up=True),
        ]
    figures.append(summed_up("a newcomer takes a snapshot of 100 MB", found["snapshot"], "s", 3.0))
    rows = [ROW_HEAD]
    for name, values in found.items():
        unit, form = ("ms", ".2f") if name.endswith(one) else ("/s", ".0f")
        if name != "snapshot":
            rows.append(row(name, values, unit, form))
    for mode in modes:
        for cell in CELLS:
            ours, floors = (
                [{"value": value} for value in found[f"{who}, {mode}, {cell.name}"]]
                for who in ("kelek", "floor")
            )
            values = ratios(ours, floors, "value")
            rows.append(row(f"kelek / floor, {mode}, {cell.name}", values, "", ".2f"))
    note = "Three processes on loopback, entries of 64 bytes, committed and synced by a majority."
    return Section("A farm", figures, rows, note)


QUESTION = Question("farm", __doc__, measure, ROUNDS)
