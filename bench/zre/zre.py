"""How soon do ZRE nodes find each other, and how fast do they talk?

    python -m kelek.bench zre [--quick] [--rounds N] [-o json]

All run on loopback, in programs that have imported what they use. In the same round kelek.Node,
pyre's node and a pair of bare sockets (a ROUTER to receive, a DEALER to send, pyzmq, one message at
a time) do the same: they whisper messages of 64 bytes to a node in another process, at most 2,000
unacknowledged, and have one echoed. Shouts go to ten nodes in another process. Three rounds measure
a mesh; five nodes are killed; beacons get lost once.
"""

import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import kelek
from kelek.bench.machine import BenchError, ends_with_us
from kelek.bench.ports import free_ports
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Figure, Section, ratios, summed_up
from kelek.bench.zre.nodes import (
    ACK,
    ECHO,
    LO,
    PLAIN,
    SIZE,
    WINDOW,
    AnyNode,
    Bare,
    GroupNode,
    Ours,
    Pyre,
    load,
)

ROUNDS = 7
ALONE = 2000  # Single messages that wait for their echo.
MANY = 100_000
WINDOWS = 2  # Unacknowledged windows.
SHOUT_PEERS = 10
SHOUTS = 20_000
MESH_NODES = 200
MESH_IDLE_S = 5.0
MESH_ROUNDS = 3
LOSS, LOSS_S, LOSS_NODES = 0.3, 60.0, 5  # In each of two processes.
KILLED, APART_S = 5, 0.3  # At different moments between two beacons.
END_S = 60.0
TUNING = kelek.NodeTuning(interface=LO)
KINDS = ("kelek", "pyre", "bare")
Found = dict[str, list[float]]


@contextmanager
def process(*arguments: object) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that plays a role of bench/zre/nodes.py."""
    command = [sys.executable, "-P", "-m", "kelek.bench.zre.nodes", *map(str, arguments)]
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=ends_with_us()
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def said(started: "subprocess.Popen[bytes]") -> list[float]:
    """Returns the numbers of its next line; none means that it is up."""
    assert started.stdout is not None
    line = started.stdout.readline().split()
    if not line:
        raise BenchError("a process of nodes has ended")
    return [] if line == [b"up"] else [float(word) for word in line]


# ---- whispers and shouts ----


def make_driver(kind: str, port: int) -> AnyNode:
    return Bare(port, port + 1) if kind == "bare" else make_group_driver(kind, port)


def make_group_driver(kind: str, port: int) -> GroupNode:
    return Ours(port) if kind == "kelek" else Pyre(port)


def find(driver: AnyNode, kind: str, event: str, count: int) -> list[Any]:
    """Returns the peers of the next events of this kind."""
    peers: list[Any] = [None] if kind == "bare" else []
    until = time.monotonic() + END_S
    while len(peers) < count:
        peers += [peer for name, peer, _ in driver.receive() if name == event]
        if time.monotonic() > until:
            raise BenchError(f"{kind}: {len(peers)} of {count} are found")
    return peers


def talk(kind: str, port: int, found: Found) -> None:
    """Measures discovery, single echoes, and many whispers."""
    with process("answer", kind, port, 1) as other:
        said(other)
        load(kind)
        started = time.monotonic()
        driver = make_driver(kind, port)
        try:
            (peer,) = find(driver, kind, "ENTER", 1)
            if kind != "bare":
                found.setdefault(f"{kind} found", []).append((time.monotonic() - started) * 1e3)
            found.setdefault(f"{kind} alone", []).append(echo(driver, peer))
            took = stream(driver, MANY, lambda part: driver.whisper_many(peer, part), 1)
            found.setdefault(f"{kind} whispers", []).append(MANY / took)
        finally:
            driver.close()


def echo(driver: AnyNode, peer: Any) -> float:
    """Returns the median microseconds until an echo."""
    text, times = ECHO + bytes(SIZE - 1), []
    for _ in range(ALONE):
        begun = time.perf_counter()
        driver.whisper(peer, text)
        while not any(content == text for _, _, content in driver.receive()):
            pass
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def stream(driver: AnyNode, count: int, send: Any, peers: int) -> float:
    """Sends windows that every peer acknowledges; returns the seconds."""
    part = [PLAIN + bytes(SIZE - 1)] * WINDOW
    begun, until = time.monotonic(), time.monotonic() + END_S
    acked = 0
    for sent in range(count // WINDOW + WINDOWS):
        if sent < count // WINDOW:
            send(part)
        while acked < (sent + 1 - WINDOWS) * peers:
            acked += sum(content == ACK for _, _, content in driver.receive())
            if time.monotonic() > until:
                raise BenchError("messages are lost")
    return time.monotonic() - begun


def shout(kind: str, port: int, found: Found) -> None:
    with process("answer", kind, port, SHOUT_PEERS) as other:
        said(other)
        driver = make_group_driver(kind, port)
        try:
            driver.join()
            find(driver, kind, "JOIN", SHOUT_PEERS)
            count = SHOUTS if kind == "kelek" else SHOUTS // 5  # So that pyre takes about as long.
            took = stream(driver, count, driver.shout_many, SHOUT_PEERS)
            found.setdefault(f"{kind} shouts", []).append(count * SHOUT_PEERS / took)
        finally:
            driver.close()


# ---- in fewer rounds ----


def mesh() -> list[float]:
    """Returns the seconds until all know all, the part of a core that they then use, and the lost
    peers."""
    with process("mesh", free_ports(1)[0], MESH_NODES, MESH_IDLE_S) as nodes:
        return said(nodes)


def lose() -> list[float]:
    """Returns wrongly lost peers, and how often a peer was asked whether it lives."""
    port = free_ports(1)[0]
    with (
        process("lossy", port, LOSS_NODES, LOSS) as a,
        process("lossy", port, LOSS_NODES, LOSS) as b,
    ):
        for one in (a, b):
            said(one)
        time.sleep(LOSS_S)
        exits = asked = 0.0
        for one in (a, b):
            assert one.stdin is not None
            one.stdin.close()
            one.stdin = None
            lost, evasive, peers = said(one)
            exits, asked = exits + lost, asked + evasive
            if one is a and peers != 2 * LOSS_NODES - 1:
                raise BenchError(f"only {peers:.0f} peers are known")
    return [exits, asked]


def miss(tuning: kelek.NodeTuning, count: int) -> Found:
    """Returns the seconds from a kill to EVASIVE and to EXIT."""
    times: Found = {"EVASIVE": [], "EXIT": []}
    killed: dict[bytes, float] = {}
    with ExitStack() as stack:
        node = stack.enter_context(kelek.Node(tuning=tuning))
        others: dict[bytes, subprocess.Popen[bytes]] = {}
        while len(others) < count:
            other = stack.enter_context(process("answer", "kelek", tuning.port, 1))
            for event in node.events(int(END_S * 1000)):
                if event.kind is kelek.EventKind.JOIN and event.peer is not None:
                    others[event.peer.uuid] = other
                    break
        for uuid, other in others.items():
            other.kill()
            killed[uuid] = time.monotonic()
            time.sleep(APART_S)
        for event in node.events(int(END_S * 1000)):
            kind = event.kind.value
            if kind in times and event.peer is not None and event.peer.uuid in killed:
                times[kind].append(time.monotonic() - killed[event.peer.uuid])
            if len(times["EXIT"]) == count:
                return times
    raise BenchError("no peer misses them")


# ---- the measurement ----


def measure(directory: Path, rounds: int) -> Section:
    found: Found = {}
    kinds: tuple[str, ...] = KINDS
    if importlib.util.find_spec("pyre") is None:
        kinds = tuple(kind for kind in KINDS if kind != "pyre")
        say("zre: without pyre: zeromq-pyre is missing (pip install 'kelek[bench]')")
    for number in range(rounds):
        say(f"zre: round {number + 1} of {rounds}")
        for kind in kinds:
            talk(kind, free_ports(1)[0], found)
            if kind != "bare":
                shout(kind, free_ports(1)[0], found)
    say("zre: mesh, lost beacons, killed nodes")
    for _ in range(min(rounds, MESH_ROUNDS)):
        took, idle, _ = mesh()
        found.setdefault("mesh", []).append(took)
        found.setdefault("idle", []).append(100 * idle)
    found["lost"], found["asked"] = ([value] for value in lose())
    found |= miss(TUNING._replace(port=free_ports(1)[0]), KILLED)
    return _section(found)


def _section(found: Found) -> Section:
    def of(name: str) -> list[float]:
        return found[name]

    def within(ms: int) -> float:
        """Silence starts with the last beacon."""
        return (ms + TUNING.beacon_ms) / 1000

    figures: list[Figure] = [
        summed_up("a new node is found", of("kelek found"), "ms", 5),
        summed_up("whispers", of("kelek whispers"), "/s", 100_000, up=True),
        summed_up("a whisper and its answer, p50", of("kelek alone"), "us", 200),
        summed_up("shouts to 10, deliveries", of("kelek shouts"), "/s", 200_000, up=True),
        summed_up("200 nodes in a process: mesh", of("mesh"), "s", 5),
        summed_up("the same, idle", of("idle"), "% of a core", 20),
        summed_up("30 % of beacons lost, 60 s: lost peers", of("lost"), "", 0),
        summed_up("a killed node is evasive after", of("EVASIVE"), "s", within(TUNING.evasive_ms)),
        summed_up("a killed node is held dead after", of("EXIT"), "s", within(TUNING.expired_ms)),
    ]
    units = {"found": "ms", "whispers": "/s", "alone": "us", "shouts": "/s"}
    rows = [ROW_HEAD]
    for what, unit in units.items():
        for kind in KINDS:
            if f"{kind} {what}" in found:
                rows.append(row(f"{kind}, {what}", of(f"{kind} {what}"), unit))
    pairs = {name: [{"value": value} for value in values] for name, values in found.items()}
    for what, other in (
        ("whispers", "bare"),
        ("whispers", "pyre"),
        ("alone", "bare"),
        ("alone", "pyre"),
        ("shouts", "pyre"),
    ):
        if f"{other} {what}" not in pairs:
            continue
        values = ratios(pairs[f"kelek {what}"], pairs[f"{other} {what}"], "value")
        rows.append(row(f"kelek / {other}, {what}", values, "", ".2f"))
    rows.append(row("asked by PING, 10 nodes, 30 % of beacons lost", of("asked"), "times"))
    note = "loopback, a process each; 64 bytes, 2,000 unanswered. 'alone' is a whisper and its"
    return Section("Nodes of ZRE", figures, rows, f"{note} answer, 'found' a new node's ENTER.")


QUESTION = Question("zre", __doc__, measure, ROUNDS)
