"""How soon does a node that has lost everything return, with a snapshot of 26 MB and 24 MB of log?

    python -m kelek.bench snapshot [--quick] [--rounds N] [-o json]

1.6 M updates fill the table of request ids, which makes the snapshot's 26 MB; their log is
compacted. 24 MB of entries of 1 KiB follow. In each round the same follower is killed, loses its
directory, and starts again. Times come from its file system and RequestLogInfo:

transfer   the first byte of the snapshot is on the follower's disk
in place   its log starts after the snapshot: checked, renamed, request ids loaded caught up  it has
applied what the leader had committed
"""

import time
from pathlib import Path
from typing import NamedTuple

import kelek
from kelek.bench.kelek_cluster import IDENT, NODES, Apart
from kelek.bench.load.loadgen import Generator, Load
from kelek.bench.machine import BenchError
from kelek.bench.peers import START_S_MAX
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Section, summed_up

ROUNDS = 7
FILL = Load(8, 4096, size=16, updates=1_600_000, pack=256)
LATER_BYTES = 24_000_000
LATER_ENTRY_BYTES = 1024
IN_PLACE_S = 0.5
CAUGHT_UP_S = 1.5
APPEARS_S = 0.001


class Return(NamedTuple):
    """Times of one return (time.monotonic)."""

    started: float
    transfer: float
    in_place: float
    caught_up: float


def fill(cluster: Apart, generator: Generator, victim: str) -> int:
    """Writes the data of the rounds; returns the snapshot's LOG INDEX on the other two nodes."""
    generator.run([*cluster.target, "--ident", IDENT], FILL)
    cluster.leader()
    others = [node for node in NODES if node != victim]
    index = min(cluster.make_snapshot(node) for node in others)
    for node in others:
        cluster.wait(node, lambda info: info.first_index > index, "a compacted log")
    with kelek.Log(list(cluster.urls.values()), IDENT) as log:
        data = bytes(LATER_ENTRY_BYTES)
        log.append_many(data for _ in range(LATER_BYTES // LATER_ENTRY_BYTES))
    return index


def appears(folder: Path) -> float:
    """Returns when a snapshot starts to arrive (time.monotonic)."""
    until = time.monotonic() + START_S_MAX
    while time.monotonic() < until:
        if any(folder.glob("*.incoming")):
            return time.monotonic()
        time.sleep(APPEARS_S)
    raise BenchError(f"no snapshot came within {START_S_MAX:.0f} s")


def come_back(cluster: Apart, victim: str, index: int, commit_index: int) -> Return:
    cluster.wipe(victim)
    started = cluster.start_node(victim)
    transfer = appears(cluster.snapshots_of(victim))
    in_place = cluster.wait(victim, lambda info: info.last_index >= index, "the snapshot")
    caught_up = cluster.wait(victim, lambda info: info.applied >= commit_index, "the log")
    return Return(started, transfer, in_place, caught_up)


def measure(directory: Path, rounds: int) -> Section:
    directory.mkdir(parents=True)
    generator = Generator(directory)
    cluster = Apart(directory / "cluster")
    returns = []
    try:
        cluster.start_fresh()
        leader = cluster.leader()
        victim = next(node for node in NODES if node != leader)
        index = fill(cluster, generator, victim)
        for number in range(rounds):
            info = cluster.info(cluster.leader())
            assert info is not None
            returns.append(come_back(cluster, victim, index, info.commit_index))
            seconds = returns[-1].caught_up - returns[-1].started
            say(f"return {number + 1} of {rounds}: {seconds:.2f} s")
        size = cluster.snapshot_size(victim)
    except BenchError:
        say(cluster.last_words())
        raise
    finally:
        cluster.stop()
    return section(returns, size)


def section(returns: list[Return], size: int) -> Section:
    in_place = [one.in_place - one.transfer for one in returns]
    caught_up = [one.caught_up - one.transfer for one in returns]
    megabytes = f"{size / 1e6:.0f} MB"
    figures = [
        summed_up(f"snapshot of {megabytes} to a wiped node: in place", in_place, "s", IN_PLACE_S),
        summed_up("wiped node caught up: 24 MB of later log, too", caught_up, "s", CAUGHT_UP_S),
    ]
    rows = [
        ROW_HEAD,
        row(
            "start of the process to transfer",
            [r.transfer - r.started for r in returns],
            "s",
            ".3f",
        ),
        row("transfer to in place", in_place, "s", ".3f"),
        row("transfer to caught up", caught_up, "s", ".3f"),
        row(
            "start of the process to caught up",
            [r.caught_up - r.started for r in returns],
            "s",
            ".3f",
        ),
    ]
    note = "Both goals count from the first byte of the snapshot on the follower's disk."
    return Section("A wiped node comes back", figures, rows, note)


QUESTION = Question("snapshot", __doc__, measure, ROUNDS)
