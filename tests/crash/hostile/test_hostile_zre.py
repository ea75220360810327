"""Nodes of ZRE while peers without CURVE attack the mailbox of one.

It attacks until each limit has ended a connection, as the short form of test_hostile_peers.py: no
node loses another, a new one finds all of them, and memory is bounded. Routing ids are not stolen:
without CURVE a UUID is no proof (docs/protocols/zre.md). With KELEK_HOSTILE_S it attacks for so
long, with KELEK_HOSTILE_PEERS connections, at the default limits.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

import kelek
from kelek.clients.node.base import NodeTuning
from kelek.clients.node.discovery import DiscoveredNode, discover_nodes
from kelek.native.net.connections import ConnectionLimits
from kelek.native.net.interfaces import LOOPBACK, LOOPBACK_BROADCAST
from kelek.protocols.zre.peers import EventKind
from kelek.protocols.zre.values import MESSAGE_BYTES
from kelek.tests.crash.hostile import hostile_peers
from kelek.tests.crash.hostile.attacked_cluster import CUT, SAMPLE_S, AttackedCluster, attackers

PEERS = int(os.environ.get("KELEK_HOSTILE_PEERS", "9"))
SECS = float(os.environ.get("KELEK_HOSTILE_S", "0"))
DEADLINE_S = 240  # Other tests run beside the short form.
NODES = {"n1", "n2", "n3"}
OLD_KINDS = ("large_ready", "endless_large", "endless_empty", "half_handshake",
             "one_byte_a_second", "flood")  # fmt: skip
EXPECTED = set() if SECS else {f"{CUT}memory"}  # It has no messages of more than 1 MiB.
LIMITS = ConnectionLimits() if SECS else ConnectionLimits(bytes=256 << 20, memory=32 << 20)
GROWTH_BYTES_MAX = LIMITS.bytes + MESSAGE_BYTES + LIMITS.memory + (128 << 20)
TOPOLOGY = (
    "raft: {{election_timeout_ms: [20000, 30000]}}\n"
    "zre: {{port: {port}, evasive_ms: 2000, silent_ms: 5000, expired_ms: 15000}}\n"
    f"limits: {{{{held_bytes_max: {LIMITS.bytes}, growth_bytes_max: {LIMITS.memory}}}}}\n"
)

pytestmark = pytest.mark.timeout(120 + DEADLINE_S + 2 * SECS)


@pytest.fixture
def tuning(shell: Any) -> NodeTuning:
    port = int(shell.addresses["5670"])
    return NodeTuning(port, LOOPBACK, LOOPBACK_BROADCAST, expired_ms=15_000)


@pytest.fixture
def cluster(shell: Any, tuning: NodeTuning) -> Iterator[AttackedCluster]:
    path = shell.folder / "topology.yaml"
    own = f"    zre: {{interface: {LOOPBACK}, broadcast_address: {LOOPBACK_BROADCAST}}}\n"
    text = path.read_text()
    for node in NODES:
        text = text.replace(f"  {node}:\n", f"  {node}:\n{own}")
    path.write_text(text)
    made = AttackedCluster(shell, TOPOLOGY.format(port=tuning.port), DEADLINE_S)
    try:
        yield made
    finally:
        made.close()


def mailbox_of(cluster: AttackedCluster, node: str) -> str:
    (row,) = [it for it in cluster.rows() if it["role"] == "zre_node" and it["node"] == node]
    return str(row["mailbox"])


def is_seen(cluster: AttackedCluster) -> bool:
    """Whether a limit has ended connections, and attackers have greeted."""
    row = next(it for it in cluster.rows() if it["role"] == "zre_node" and it["node"] == "n1")
    crowd = {"peers", "shouts_elsewhere"} | ({"hello_refused", "displaced"} if SECS else set())
    return cluster.cuts().keys() >= EXPECTED and all(row.get(name, 0) > 3 for name in crowd)


def is_attacked(node: DiscoveredNode) -> bool:
    return node.node == "n1"


def test_nodes_survive_hostile_peers(cluster: AttackedCluster, tuning: NodeTuning) -> None:
    cluster.leadership()
    cluster.sample()
    targets = [mailbox_of(cluster, "n1")]
    kinds = (*OLD_KINDS, *hostile_peers.ZRE_KINDS)
    known: set[str] = set()
    lost: list[str] = []
    with kelek.Node("honest", tuning=tuning) as node:

        def receive(timeout_ms: int) -> None:
            for event in node.receive(timeout_ms):
                name = event.peer.name if event.peer else ""
                if event.kind is EventKind.ENTER:
                    known.add(name)
                if event.kind is EventKind.EXIT and name in NODES:
                    lost.append(name)

        until_s = time.monotonic() + DEADLINE_S
        while not known >= NODES:
            receive(1000)
            assert time.monotonic() < until_s, known
        with attackers(dict.fromkeys(kinds, targets), PEERS):
            begun_s, found = time.monotonic(), set[str]()
            while time.monotonic() < begun_s + SECS or not (found >= NODES and is_seen(cluster)):
                receive(int(1000 * SAMPLE_S))
                cluster.sample()
                found = {it.node for it in discover_nodes(tuning, 3000, is_attacked)}
                assert time.monotonic() < begun_s + SECS + DEADLINE_S, (cluster.cuts(), found)
            receive(0)
    print(f"{PEERS} hostile peers: {dict(cluster.cuts())}")
    print("growth in MiB:", {name: size >> 20 for name, size in cluster.largest_growth().items()})
    rows = [row for row in cluster.rows() if row["role"] == "zre_node"]
    assert not lost
    assert {(row["pid"], row["node"]) for row in rows} <= {
        (pid, name.partition("/")[0]) for pid, name in cluster.processes.items()
    }
    for row in rows:
        assert row["peers"] >= len(NODES) - 1, row
    assert max(cluster.growth.values()) < GROWTH_BYTES_MAX
