"""A cluster while peers without CURVE attack its endpoints.

The short form attacks until each limit has ended a connection, so it proves the same on a busy
machine: they hold, the leader stays, memory is bounded, appends are acknowledged. With
KELEK_HOSTILE_S (`./check --long hostile`) the attack lasts so long, at the default limits, with
tables and a broker, and clients and heartbeats must not be delayed, too: with the default writer of
the log, and with that of the demo. Clients are measured four
times: alone; while the same attackers send to a process that only reads; while as many processes
compute at the attackers' priority; during the attack. Attackers are other machines in reality, and
here they share the processors with the cluster: the attack is compared with the third, and all four
are printed.

KELEK_HOSTILE_KINDS="large_ready flood" attacks with these kinds alone, with as many connections;
KELEK_HOSTILE_MB and KELEK_HOSTILE_MESSAGES set the rate of each connection. On a machine with other
work KELEK_HOSTILE_NICE=-15 has the drill's sessions count more than the others.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kelek.bench.ports import free_ports
from kelek.native.net.connections import ConnectionLimits
from kelek.protocols.zerodb.wire.values import REQUEST_BYTES_MAX
from kelek.tests.crash.hostile import hostile_peers
from kelek.tests.crash.hostile.attacked_cluster import (
    CUT,
    SAMPLE_S,
    AttackedCluster,
    Latencies,
    Processors,
    attackers,
    burners,
    rounded,
    sink,
)

PEERS = int(os.environ.get("KELEK_HOSTILE_PEERS", "6"))
SECS = float(os.environ.get("KELEK_HOSTILE_S", "0"))
IS_LONG = SECS > 0
CHOSEN = os.environ.get("KELEK_HOSTILE_KINDS", "").split()
DEADLINE_S = 20 if IS_LONG else 240  # Other tests run beside the short form.
WRITERS = ["thread", "process"] if IS_LONG else ["process"]
BASELINE_S = min(SECS / 4, 10)
SLOWER_MAX = 2.0  # p99 of honest requests, over that beside processes that compute.
EXPECTED = {f"{CUT}bytes", f"{CUT}memory"}
LIMITS = ConnectionLimits() if IS_LONG else ConnectionLimits(bytes=256 << 20, memory=32 << 20)
TOPOLOGY = (
    "raft: {election_timeout_ms: [1000, 1500]}\n"
    if IS_LONG
    else "raft: {election_timeout_ms: [20000, 30000]}\n"
    f"limits: {{held_bytes_max: {LIMITS.bytes}, growth_bytes_max: {LIMITS.memory}}}\n"
)
# What docs/security.md states, and the process's own buffers.
GROWTH_BYTES_MAX = LIMITS.bytes + REQUEST_BYTES_MAX + LIMITS.memory + (128 << 20)

pytestmark = [
    pytest.mark.timeout(120 + DEADLINE_S + 3 * SECS),
    *([pytest.mark.tables] if IS_LONG else []),
]


@pytest.fixture(params=WRITERS)
def cluster(shell: Any, request: pytest.FixtureRequest) -> Iterator[AttackedCluster]:
    path = shell.folder / "topology.yaml"
    path.write_text(path.read_text().replace("writer: process", f"writer: {request.param}"))
    made = AttackedCluster(shell, TOPOLOGY, DEADLINE_S)
    try:
        yield made
    finally:
        made.close()


def kinds_of(cluster: AttackedCluster, leader: str) -> dict[str, list[str]]:
    wanted = CHOSEN or (hostile_peers.KINDS if IS_LONG else hostile_peers.FAST_KINDS)
    return {kind: ports for kind, ports in cluster.targets(leader).items() if kind in wanted}


def test_leader_memory_and_clients_survive_hostile_peers(cluster: AttackedCluster) -> None:
    leader, term = cluster.leadership()
    for request in cluster.requests().values():
        request()
    cluster.sample()
    if IS_LONG:
        problems = delays(cluster, leader)
    else:
        with attackers(kinds_of(cluster, leader), PEERS):
            problems = limits_that_do_not_hold(cluster)
    cuts, worst = cluster.cuts(), cluster.largest_growth()
    print(f"{PEERS} hostile peers: {dict(cuts)}")
    print("growth in MiB:", {name: size >> 20 for name, size in worst.items()})
    found = cluster.leadership()
    if found != (leader, term):
        problems.append(f"leader and term {found} instead of {(leader, term)}")
    if max(worst.values()) > GROWTH_BYTES_MAX:
        problems.append(f"a process grew by more than {GROWTH_BYTES_MAX >> 20} MiB: {worst}")
    assert not problems, "\n".join(problems)


def limits_that_do_not_hold(cluster: AttackedCluster) -> list[str]:
    """Appends until each of the limits has ended a connection."""
    until_s, sampled_s, count = time.monotonic() + DEADLINE_S, 0.0, 0
    cuts = cluster.cuts()
    while set(cuts) < EXPECTED and time.monotonic() < until_s:
        cluster.log.append(b"honest")
        count += 1
        if time.monotonic() - sampled_s >= SAMPLE_S:
            cluster.sample()
            cuts = cluster.cuts()
            sampled_s = time.monotonic()
    print(f"{count} appends")
    return (
        [f"limits have ended no connection: {EXPECTED - set(cuts)}"] if EXPECTED - set(cuts) else []
    )


def delays(cluster: AttackedCluster, leader: str) -> list[str]:
    """Attacks for SECS. Returns what an attack must not do, and did: delay honest requests and
    heartbeats."""
    targets = kinds_of(cluster, leader)
    alone = measured("alone", cluster, BASELINE_S, {})
    other = beside_other_attack(cluster, targets)
    with burners(len(targets)) as names:
        base = measured("burnt", cluster, max(BASELINE_S, SECS / 3), names)
    missed_before, _ = cluster.heartbeats()
    with attackers(targets, PEERS) as names:
        during = measured("attacked", cluster, SECS, names)
        missed = cluster.heartbeats()[0] - missed_before
    problems = [f"{missed} heartbeats missed"] if missed else []
    for name, base_of in base.items():
        slower = during[name].p99_ms / base_of.p99_ms
        of_other, of_alone = (during[name].p99_ms / it[name].p99_ms for it in (other, alone))
        print(f"{name}: p99 x{slower:.1f}; x{of_other:.1f} of control, x{of_alone:.1f} of alone")
        if slower > SLOWER_MAX:
            problems.append(f"p99 of {name} x{slower:.1f}")
    return problems


def beside_other_attack(
    cluster: AttackedCluster, targets: dict[str, list[str]]
) -> dict[str, Latencies]:
    """Honest requests while the attackers send to a process that only reads."""
    known = sorted({port for ports in targets.values() for port in ports})
    ports = dict(zip(known, map(str, free_ports(len(known))), strict=True))
    others = {kind: [ports[it] for it in each] for kind, each in targets.items()}
    with sink(list(ports.values())) as read_by, attackers(others, PEERS) as names:
        return measured("control", cluster, max(BASELINE_S, SECS / 3), names | read_by)


def measured(
    title: str, cluster: AttackedCluster, secs: float, others: dict[int, str]
) -> dict[str, Latencies]:
    """Honest requests for so long. others: names of further processes, by pid"""
    missed, _ = cluster.heartbeats()
    used = {"the cluster": Processors(cluster.processes), "attackers": Processors(others)}
    found = cluster.serve(secs)
    for name, each in found.items():
        print(f"{title:9} {name:7} {each}")
    for title_of, processors in used.items():
        times = processors.used()
        print(f"{title:9} processors of {title_of}: {sum(times.values()):.2f} {rounded(times)}")
    now, gap_ms = cluster.heartbeats()
    print(f"{title:9} heartbeats missed: {now - missed}; longest silence so far {gap_ms} ms")
    return found
